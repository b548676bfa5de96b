"""Views, and columns of views as services take them."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypedDict, Unpack

from falaj.asof.moments import parse_span
from falaj.core.errors import Invalid
from falaj.core.label import Label
from falaj.features.definition_parts import Entity, Feature, Source, Window
from falaj.features.function_text import capture_function
from falaj.features.records import ColumnPick, RuleDef, ViewDef
from falaj.features.validation import check_pick, check_view, prefix_errors


@dataclass(frozen=True, slots=True)
class Picked:
    """Columns of a view, as a service or a computation takes them."""

    pick: ColumnPick
    view: "View | None" = None

    def __getitem__(self, columns: str | tuple[str, ...]) -> "Picked":
        names = (columns,) if isinstance(columns, str) else tuple(columns)
        self._check_names(names, self.columns)
        return self._with_pick(replace(self.pick, columns=names))

    def at(self, version: str) -> "Picked":
        """Stay at this version, whatever comes after it."""
        return self._with_pick(replace(self.pick, view=f"{self.pick.view.partition('@')[0]}@{version}"))

    def renamed(self, **names: str) -> "Picked":
        """Other names in the answer: renamed(amount="spend")."""
        self._check_names(names, self.columns)
        return self._with_pick(replace(self.pick, names={**self.pick.names, **names}))

    def by(self, **keys: str) -> "Picked":
        """Found by another key of the request: by(customer_id="payer_id")."""
        entity = self.view.entity if self.view else None
        self._check_names(
            keys, {key.name: key.type for key in entity.definition.keys} if isinstance(entity, Entity) else {}
        )
        return self._with_pick(replace(self.pick, keys={**self.pick.keys, **keys}))

    @property
    def columns(self) -> dict[str, str]:
        """What there is to pick, with types; nothing where it is not known here: a version of the past, or shared."""
        return self.view.columns if self.view and "@" not in self.pick.view else {}

    def _with_pick(self, pick: ColumnPick) -> "Picked":
        check_pick(pick)
        return replace(self, pick=pick)

    def _check_names(self, names: Iterable[str], known_columns: Mapping[str, str]) -> None:
        unexpected = [name for name in names if known_columns and name not in known_columns]
        if unexpected:
            raise Invalid(f"view {self.pick.view} has no {unexpected[0]!r}", f"it has {', '.join(known_columns)}")


class View:
    """A view: over a function (@view(...)) one that the function computes; indexed, it gives columns to a service."""

    def __init__(self, definition: ViewDef, entity: Entity | str) -> None:
        self.definition, self.entity = definition, entity
        with prefix_errors(f"view {definition.name}"):
            check_view(definition, entity.definition if isinstance(entity, Entity) else None)

    def __call__(self, function: Callable[..., object]) -> "View":
        with prefix_errors(f"view {self.definition.name}"):
            text = capture_function(function)
        return View(replace(self.definition, function=text), self.entity)

    @property
    def columns(self) -> dict[str, str]:
        """What can be asked for: its windows where it has some, else its features."""
        served_fields = self.definition.windows or self.definition.features
        return {field.name: field.type for field in served_fields}

    @property
    def picked(self) -> Picked:
        """All of it."""
        return Picked(ColumnPick(self.definition.name), self)

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


class ViewOptions(TypedDict, total=False):
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
    **more: Unpack[ViewOptions],
) -> View:
    """Features of an entity from a source; over a function (@view(...)), those that the function computes."""
    columns = tuple(item.definition for item in features)
    types = {item.name: item.type for item in columns}
    with prefix_errors(f"view {name}"):
        definition = ViewDef(
            name=name,
            entity=entity.definition.name if isinstance(entity, Entity) else entity,
            source=source.definition,
            features=columns,
            windows=tuple(item.over(types) for item in windows),
            ttl_us=parse_span(more.get("ttl", 0)),
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
    check_pick(ColumnPick(name))
    return Picked(ColumnPick(name))
