"""What is known of entities, views and services; plain data, made of what a definition file says."""

from collections.abc import Mapping
from dataclasses import field
from typing import Any, ClassVar

from falaj.asof.records import Computed, FeatureField, ServicePlan, Window
from falaj.core.data import dataclass
from falaj.core.label import Label
from falaj.core.ref import Ref

KINDS = ("entity", "view", "service")


@dataclass(frozen=True, slots=True)
class EntityDef:
    """What features are about: a customer, a card, a shop on a day."""

    name: str
    """project/name."""
    keys: tuple[FeatureField, ...]
    subject: str = ""
    """The key that names a person, where it does: what an erasure request is about."""
    about: str = ""
    tags: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SourceDef:
    """Where rows come from."""

    kind: str
    """dataset (in the catalogue), sql (a query beside the caller), push, kafka."""
    address: str = ""
    """dataset:…, or the name of a connection; never a credential."""
    query: str = ""
    """SQL over `rows` (a dataset), or in the database's own words (sql)."""
    event: str = ""
    created: str = ""
    """The column that says when a row became known; the event itself where there is none, arrival for pushes."""
    zone: str = ""
    """The time zone of moments without one, for example Asia/Dubai; without it they are refused."""
    more: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class FeatureDef:
    """One column of a view."""

    name: str
    type: str
    express: Any = None
    """An expression over the source's columns (asof/expressions.py), plain data; the column of that name when None."""
    about: str = ""
    label: Label | None = None
    """Stricter than the view's: kept apart, and read only by who may."""


@dataclass(frozen=True, slots=True)
class RuleDef:
    """What must hold of rows as they come in (asof/quality_rules.py)."""

    kind: str
    column: str = ""
    limits: Mapping[str, Any] = field(default_factory=dict)
    action: str = "quarantine"
    """quarantine (the rows that break it), refuse (the whole batch) or warn."""


@dataclass(frozen=True, slots=True)
class ViewDef:
    """Features of one entity from one source."""

    name: str
    entity: str
    """project/name of the entity."""
    source: SourceDef
    features: tuple[FeatureDef, ...]
    windows: tuple[Window, ...] = ()
    """With windows, what is served are these, over the rows that `features` describe."""
    ttl_us: int = 0
    function: str = ""
    """The text of a Python function from the source's columns to the features'; run beside the caller only."""
    rules: tuple[RuleDef, ...] = ()
    online: bool = True
    sealed: bool = False
    """Seal each person's rows under a key of their own."""
    label: Label = field(default_factory=Label)
    zone: str = ""
    """Where its rows lie; the zone of the platform when empty."""
    owner: str = ""
    about: str = ""
    tags: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ColumnPick:
    """Columns of a view that a service takes; all of them when none are named."""

    view: str
    """project/name, or with @vN to stay at a version."""
    columns: tuple[str, ...] = ()
    names: Mapping[str, str] = field(default_factory=dict)
    """Column to its name in the answer; `view__column` only where two views clash."""
    keys: Mapping[str, str] = field(default_factory=dict)
    """The entity's key to the name that requests and labels use, for example {"customer_id": "payer_id"}."""
    hidden: bool = False
    """Read for what is computed alone; in the answer only where it is picked too."""


@dataclass(frozen=True, slots=True)
class ServiceDef:
    """A named set of features that a model asks for."""

    name: str
    picks: tuple[ColumnPick, ...]
    computed: tuple[Computed, ...] = ()
    request: tuple[FeatureField, ...] = ()
    owner: str = ""
    about: str = ""
    tags: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class DefinitionSet:
    """All that one definition file (or folder) says."""

    entities: tuple[EntityDef, ...] = ()
    views: tuple[ViewDef, ...] = ()
    services: tuple[ServiceDef, ...] = ()


@dataclass(frozen=True, slots=True)
class PlannedChange:
    """One line of a plan."""

    ref: Ref
    """What it is about; with the version it will be."""
    act: str
    """new, change, describe (nothing a number depends on), same or unlisted."""
    what: tuple[str, ...] = ()
    """In words: "ttl 7d -> 30d", "column city is gone"."""
    breaks: tuple[str, ...] = ()
    """Who relies on what goes: services and models, by reference, with the reason."""
    users: tuple[str, ...] = ()
    """Every service and model that pins the version before."""


@dataclass(frozen=True, slots=True)
class ChangePlan:
    """What applying definitions will do, or did."""

    changes: tuple[PlannedChange, ...]
    applied: bool = False
    digest: str = ""
    """Of the definitions and of what stood when it was made: `apply` with it does exactly this, or nothing."""


@dataclass(frozen=True, slots=True)
class MigrationResult:
    """What came over from another feature store, and what is left to do by hand."""

    plan: ChangePlan
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ServiceAccess:
    """What a reader of a service gets: the plan, and for how long it may be used before asking again."""

    plan: ServicePlan
    until: float
    sample: int = 0
    """Every so manieth read is told to the platform, for the check against history; 0: none."""
    model: Ref | None = None


@dataclass(frozen=True, slots=True)
class OnlineKeys:
    """What opens the online rows of a service."""

    spaces: Mapping[str, Mapping[str, str]] = field(repr=False)
    """Keys in base64, by the space of their rows and by version; `hash` is the key of the hash of entity keys."""


@dataclass(frozen=True, slots=True)
class FeatureValues:
    """Features of some keys, column by column, as they are now."""

    TEXT: ClassVar[str] = "lines"

    service: Ref
    columns: Mapping[str, list[Any]]
    """Values in the order of the keys; None where the status says that there is none. NaN and infinities as texts."""
    statuses: Mapping[str, list[str]]
    at: float
    types: Mapping[str, str] = field(default_factory=dict)

    @property
    def lines(self) -> tuple[str, ...]:
        """A feature a line: its values in the order of the keys, or why there is none."""
        width = max(map(len, self.columns), default=0)
        text_by_column = {
            name: [
                str(value) if status == "PRESENT" else status
                for value, status in zip(column, self.statuses[name], strict=True)
            ]
            for name, column in self.columns.items()
        }
        return tuple(
            f"{name:<{width}}  {'  '.join(f'{value_text:>12}' for value_text in values)}"
            for name, values in text_by_column.items()
        )


@dataclass(frozen=True, slots=True)
class DefinitionView:
    """One version of an entity, a view or a service, as its readers see it."""

    STRUCTURE: ClassVar = (
        "ref", "owner", "columns", "label", "at", "rows", "fresh", "generation", "filled", "quarantined", "uses",
        "zone",
    )  # fmt: skip
    MARKER: ClassVar = "about"
    COLUMNS: ClassVar[tuple[str, ...]] = ("ref", "owner", "columns", "rows", "fresh", "about")

    ref: Ref
    owner: str
    about: str
    columns: tuple[str, ...]
    """The names of keys or features, with their types."""
    label: Label
    at: float
    rows: int = 0
    fresh: float = 0.0
    """The newest event, as seconds since 1970; 0 where there is none."""
    generation: int = 0
    filled: int = 0
    quarantined: int = 0
    uses: tuple[Ref, ...] = ()
    """What it is made of, pinned."""
    tags: Mapping[str, str] = field(default_factory=dict)
    definition: Mapping[str, Any] = field(default_factory=dict)
    zone: str = ""
    """Of a view: where its rows lie."""


@dataclass(frozen=True, slots=True)
class DefinitionPage:
    """Some definitions and the cursor of the next page, empty at the end."""

    STRUCTURE: ClassVar = ("items", "next")

    items: tuple[DefinitionView, ...]
    next: str = ""
