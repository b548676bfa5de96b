"""Views, and columns of views as services take them."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypedDict, Unpack

from falaj.asof.moments import span_us
from falaj.core.errors import Invalid
from falaj.core.label import Label
from falaj.features.declare import Entity, Feature, Source, Window
from falaj.features.kept import keep
from falaj.features.records import Pick, RuleDef, ViewDef
from falaj.features.said import about, check_pick, check_view


@dataclass(frozen=True, slots=True)
class Picked:
    """Columns of a view, as a service or a computation takes them."""

    pick: Pick
    view: "View | None" = None

    def __getitem__(self, columns: str | tuple[str, ...]) -> "Picked":
        names = (columns,) if isinstance(columns, str) else tuple(columns)
        self._known(names, self.columns)
        return self._with(replace(self.pick, columns=names))

    def at(self, version: str) -> "Picked":
        """Stay at this version, whatever comes after it."""
        return self._with(replace(self.pick, view=f"{self.pick.view.partition('@')[0]}@{version}"))

    def renamed(self, **names: str) -> "Picked":
        """Other names in the answer: renamed(amount="spend")."""
        self._known(names, self.columns)
        return self._with(replace(self.pick, names={**self.pick.names, **names}))

    def by(self, **keys: str) -> "Picked":
        """Found by another key of the request: by(customer_id="payer_id")."""
        entity = self.view.entity if self.view else None
        self._known(keys, {one.name: one.type for one in entity.definition.keys} if isinstance(entity, Entity) else {})
        return self._with(replace(self.pick, keys={**self.pick.keys, **keys}))

    @property
    def columns(self) -> dict[str, str]:
        """What there is to pick, with types; nothing where it is not known here: a version of the past, or shared."""
        return self.view.columns if self.view and "@" not in self.pick.view else {}

    def _with(self, pick: Pick) -> "Picked":
        check_pick(pick)
        return replace(self, pick=pick)

    def _known(self, names: Iterable[str], known: Mapping[str, str]) -> None:
        strange = [name for name in names if known and name not in known]
        if strange:
            raise Invalid(f"view {self.pick.view} has no {strange[0]!r}", f"it has {', '.join(known)}")


class View:
    """A view: over a function (@view(...)) one that the function computes; indexed, it gives columns to a service."""

    def __init__(self, definition: ViewDef, entity: Entity | str) -> None:
        self.definition, self.entity = definition, entity
        with about(f"view {definition.name}"):
            check_view(definition, entity.definition if isinstance(entity, Entity) else None)

    def __call__(self, function: Callable[..., object]) -> "View":
        with about(f"view {self.definition.name}"):
            text = keep(function)
        return View(replace(self.definition, function=text), self.entity)

    @property
    def columns(self) -> dict[str, str]:
        """What can be asked for: its windows where it has some, else its features."""
        served = self.definition.windows or self.definition.features
        return {one.name: one.type for one in served}

    @property
    def picked(self) -> Picked:
        """All of it."""
        return Picked(Pick(self.definition.name), self)

    def __getitem__(self, columns: str | tuple[str, ...]) -> Picked:
        return self.picked[columns]

    def at(self, version: str) -> Picked:
        """Stay at this version, whatever comes after it."""
        return self.picked.at(version)

    def renamed(self, **names: str) -> Picked:
        """Other names in the answer."""
        return self.picked.renamed(**names)

    def by(self, **keys: str) -> Picked:
        """Found by another key of the request."""
        return self.picked.by(**keys)


class ViewWords(TypedDict, total=False):
    """What can be said of a view beside what it is made of."""

    ttl: str
    rules: Sequence[RuleDef]
    online: bool
    sealed: bool
    label: str | Label
    zone: str
    owner: str
    about: str
    tags: Mapping[str, str]


def view(
    name: str,
    entity: Entity | str,
    source: Source,
    *,
    features: Sequence[Feature] = (),
    windows: Sequence[Window] = (),
    **more: Unpack[ViewWords],
) -> View:
    """Features of an entity from a source; over a function (@view(...)), those that the function computes."""
    columns = tuple(one.definition for one in features)
    types = {one.name: one.type for one in columns}
    with about(f"view {name}"):
        definition = ViewDef(
            name=name,
            entity=entity.definition.name if isinstance(entity, Entity) else entity,
            source=source.definition,
            features=columns,
            windows=tuple(one.over(types) for one in windows),
            ttl_us=span_us(more.get("ttl", 0)),
            rules=tuple(more.get("rules", ())),
            online=more.get("online", True),
            sealed=more.get("sealed", False),
            label=Label.parse(more.get("label", "")),
            zone=more.get("zone", ""),
            owner=more.get("owner", ""),
            about=more.get("about", ""),
            tags=dict(more.get("tags", {})),
        )
    return View(definition, entity)


def shared(name: str) -> Picked:
    """A view that stands already, of another team or file: shared("cards/spend@v2")["amount"]."""
    check_pick(Pick(name))
    return Picked(Pick(name))
