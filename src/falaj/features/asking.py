"""Services: the features a model asks for, and what is computed from them on demand."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from falaj.asof.records import Computed, Field
from falaj.core.errors import Invalid
from falaj.features.declare import Feature, Request
from falaj.features.kept import digest_of, keep
from falaj.features.records import FeatureDef, ServiceDef
from falaj.features.said import about as about_what
from falaj.features.said import check_computed, check_service
from falaj.features.viewing import Picked, View


class OnDemand:
    """Values made from others when they are asked for, in training sets and in requests alike."""

    def __init__(self, inputs: Sequence[View | Picked | Request], features: Sequence[FeatureDef]) -> None:
        _known(inputs, (View, Picked, Request))
        self.picks = _picked(inputs)
        self.request = tuple(one.field for one in inputs if isinstance(one, Request))
        self.computed: Computed | None = None
        self._features = tuple(features)

    def __call__(self, function: Callable[..., object]) -> "OnDemand":
        name = getattr(function, "__name__", "this")
        with about_what(f"on demand {name}"):
            if any(one.express is not None for one in self._features):
                raise Invalid("a feature has an expression, and a function too", "compute it in one of them")
            return self.named(name, keep(function))

    def named(self, name: str, text: str = "") -> "OnDemand":
        """The same under a name, computed by the text of a function, or by its expressions."""
        types = {one.name: one.type for one in self.request}
        given = [one.name for one in self.request]
        for picked in self.picks:
            for column in picked.pick.columns or picked.columns:
                given.append(picked.pick.names.get(column, column))
                types[given[-1]] = picked.columns.get(column, "")
        express = {} if text else {one.name: one.express for one in self._features}
        outputs = tuple(Field(one.name, one.type) for one in self._features)
        made = Computed(name, tuple(given), outputs, express, text, digest_of(text) if text else "")
        with about_what(f"on demand {name}"):
            check_computed(made, types)
        self.computed = made
        return self


def on_demand(
    name: str = "", *, inputs: Sequence[View | Picked | Request], features: Mapping[str, str] | Sequence[Feature]
) -> OnDemand:
    """Over a function: what it computes from these inputs. With a name and expressions: what they compute."""
    listed = [Feature(*one) for one in features.items()] if isinstance(features, Mapping) else features
    made = OnDemand(inputs, [one.definition for one in listed])
    return made.named(name) if name else made


class Service:
    """A named set of features that a model asks for: views, some of their columns, and what is computed from them."""

    def __init__(
        self,
        name: str,
        parts: Sequence[View | Picked | OnDemand | Request],
        *,
        owner: str = "",
        about: str = "",
        tags: Mapping[str, str] | None = None,
    ) -> None:
        """A `Request` among the parts is a value that every request must bring."""
        self.parts = tuple(parts)
        made = [one for one in parts if isinstance(one, OnDemand)]
        hidden = [replace(one.pick, hidden=True) for part in made for one in part.picks]
        wanted = [one.field for one in parts if isinstance(one, Request)]
        wanted += [one for part in made for one in part.request]
        self.definition = ServiceDef(
            name=name,
            picks=(
                *(one.pick for one in _picked(parts)),
                *(pick for at, pick in enumerate(hidden) if pick not in hidden[:at]),
            ),
            computed=tuple(one.computed for one in made if one.computed),
            request=tuple(dict.fromkeys(wanted)),
            owner=owner,
            about=about,
            tags=dict(tags or {}),
        )
        with about_what(f"service {name}"):
            _known(parts, (View, Picked, OnDemand, Request))
            if not all(one.computed for one in made):
                raise Invalid("something on demand has no function", "@on_demand(…), or a name and expressions")
            check_service(self.definition)


def _picked(parts: Sequence[object]) -> tuple[Picked, ...]:
    whole = [one.picked if isinstance(one, View) else one for one in parts]
    return tuple(one for one in whole if isinstance(one, Picked))


def _known(parts: Sequence[object], kinds: tuple[type, ...]) -> None:
    strange = [type(one).__name__ for one in parts if not isinstance(one, kinds)]
    if strange:
        raise Invalid(f"features are not taken from a {strange[0]}", "take them from views: spend['amount']")
