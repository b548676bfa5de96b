"""Services: the features a model asks for, and what is computed from them on demand."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from falaj.asof.records import Computed, FeatureField
from falaj.core.errors import Invalid
from falaj.features.definition_parts import Feature, Request
from falaj.features.function_text import capture_function, hash_function_text
from falaj.features.records import FeatureDef, ServiceDef
from falaj.features.validation import check_computed, check_service
from falaj.features.validation import prefix_errors as about_what
from falaj.features.view_definitions import Picked, View


class OnDemand:
    """Values made from others when they are asked for, in training sets and in requests alike."""

    def __init__(self, inputs: Sequence[View | Picked | Request], features: Sequence[FeatureDef]) -> None:
        _check_part_types(inputs, (View, Picked, Request))
        self.picks = _list_picked_views(inputs)
        self.request = tuple(part.field for part in inputs if isinstance(part, Request))
        self.computed: Computed | None = None
        self._features = tuple(features)

    def __call__(self, function: Callable[..., object]) -> "OnDemand":
        name = getattr(function, "__name__", "this")
        with about_what(f"on demand {name}"):
            if any(feature.express is not None for feature in self._features):
                raise Invalid("a feature has an expression, and a function too", "compute it in one of them")
            return self.named(name, capture_function(function))

    def named(self, name: str, text: str = "") -> "OnDemand":
        """The same under a name, computed by the text of a function, or by its expressions."""
        types = {field.name: field.type for field in self.request}
        input_names = [field.name for field in self.request]
        for view_pick in self.picks:
            for column in view_pick.pick.columns or view_pick.columns:
                input_names.append(view_pick.pick.names.get(column, column))
                types[input_names[-1]] = view_pick.columns.get(column, "")
        express = {} if text else {field.name: field.express for field in self._features}
        outputs = tuple(FeatureField(field.name, field.type) for field in self._features)
        computed = Computed(name, tuple(input_names), outputs, express, text, hash_function_text(text) if text else "")
        with about_what(f"on demand {name}"):
            check_computed(computed, types)
        self.computed = computed
        return self


def on_demand(
    name: str = "", *, inputs: Sequence[View | Picked | Request], features: Mapping[str, str] | Sequence[Feature]
) -> OnDemand:
    """Over a function: what it computes from these inputs. With a name and expressions: what they compute."""
    feature_list = [Feature(*feature) for feature in features.items()] if isinstance(features, Mapping) else features
    on_demand_part = OnDemand(inputs, [feature.definition for feature in feature_list])
    return on_demand_part.named(name) if name else on_demand_part


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
        on_demand_parts = [item for item in parts if isinstance(item, OnDemand)]
        hidden_picks = [
            replace(item.pick, hidden=True) for on_demand_part in on_demand_parts for item in on_demand_part.picks
        ]
        request_fields = [item.field for item in parts if isinstance(item, Request)]
        request_fields += [item for on_demand_part in on_demand_parts for item in on_demand_part.request]
        self.definition = ServiceDef(
            name=name,
            picks=(
                *(item.pick for item in _list_picked_views(parts)),
                *(pick for position, pick in enumerate(hidden_picks) if pick not in hidden_picks[:position]),
            ),
            computed=tuple(item.computed for item in on_demand_parts if item.computed),
            request=tuple(dict.fromkeys(request_fields)),
            owner=owner,
            about=about,
            tags=dict(tags or {}),
        )
        with about_what(f"service {name}"):
            _check_part_types(parts, (View, Picked, OnDemand, Request))
            if not all(item.computed for item in on_demand_parts):
                raise Invalid("something on demand has no function", "@on_demand(…), or a name and expressions")
            check_service(self.definition)


def _list_picked_views(parts: Sequence[object]) -> tuple[Picked, ...]:
    picked_parts = [part.picked if isinstance(part, View) else part for part in parts]
    return tuple(part for part in picked_parts if isinstance(part, Picked))


def _check_part_types(parts: Sequence[object], allowed_types: tuple[type, ...]) -> None:
    unexpected = [type(part).__name__ for part in parts if not isinstance(part, allowed_types)]
    if unexpected:
        raise Invalid(f"features are not taken from a {unexpected[0]}", "take them from views: spend['amount']")
