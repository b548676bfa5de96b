"""The words of feature values: types, statuses, windows, and the plan by which a service is read."""

from collections.abc import Mapping
from dataclasses import field
from typing import Any

from falaj.core.data import dataclass

PRESENT, NULL, NOT_FOUND, EXPIRED, FUTURE = range(5)
STATUS_NAMES = ("PRESENT", "NULL", "NOT_FOUND", "EXPIRED", "FUTURE")
"""What is known of a value, in the order of its code. Only PRESENT has one; nothing is ever left out in silence."""
SCALAR_TYPES = ("bool", "int32", "int64", "float32", "float64", "string", "bytes", "time")
"""What a value can be, beside `list[…]` of one of them. A time is a moment: microseconds since 1970, UTC."""
KEY_TYPES = ("int64", "string", "bytes", "bool", "time")
"""What can name a thing."""
AGGREGATIONS = ("count", "sum", "mean", "min", "max", "distinct", "last")
MISSING_MOMENT = -(1 << 63)
"""The moment that is none."""


@dataclass(frozen=True, slots=True)
class FeatureField:
    """A column and its type."""

    name: str
    type: str


@dataclass(frozen=True, slots=True)
class Window:
    """A number over the rows of the last while; the edges are those of tiles of `hop_us`
    (asof/window_aggregation.py)."""

    name: str
    how: str
    of: str
    """The column; may be empty for count."""
    over_us: int
    hop_us: int
    type: str
    """Of what comes out: count and distinct int64, mean float64, last list[…], others as the column (sum: wide)."""
    n: int = 0
    """How many, for last."""


@dataclass(frozen=True, slots=True)
class ViewPlan:
    """One version of a view, as whoever reads its rows needs to know it."""

    ref: str
    """Pinned, for example view:fraud/spend@v3."""
    space: str
    """Where its rows lie online."""
    keys: tuple[FeatureField, ...]
    """The entity's keys, by the names that requests and labels use, in order."""
    stored: tuple[FeatureField, ...]
    """What a row holds, in the order of its layout."""
    wanted: tuple[str, ...]
    """Which of them (or of the windows) the reader asked for, in order."""
    names: tuple[str, ...]
    """What these are called in the answer."""
    ttl_us: int = 0
    """0: never too old."""
    windows: tuple[Window, ...] = ()
    """With these, a row online holds tiles and not values."""
    sealed: bool = False
    face: str = ""
    """Which of the view's faces this is: columns under a stricter label of their own lie apart, and are read apart."""
    zone: str = ""
    """Where its rows lie."""


@dataclass(frozen=True, slots=True)
class Computed:
    """Values made from others when they are asked for: an expression (plain data), or the text of a function."""

    name: str
    inputs: tuple[str, ...]
    """Names in the answer, or of request fields."""
    outputs: tuple[FeatureField, ...]
    express: Mapping[str, Any] = field(default_factory=dict)
    """Output name to expression (asof/expressions.py); empty where `source` says it in Python."""
    source: str = ""
    """A function of columns. Only ever run beside a caller or in an attempt, never in a platform process."""
    digest: str = ""


@dataclass(frozen=True, slots=True)
class ServicePlan:
    """All that reading a service takes, compiled once."""

    ref: str
    views: tuple[ViewPlan, ...]
    request: tuple[FeatureField, ...] = ()
    """What a request must bring beside keys."""
    computed: tuple[Computed, ...] = ()
    outputs: tuple[FeatureField, ...] = ()
    """The names and types of the answer, in order."""
    barred: tuple[tuple[str, FeatureField], ...] = ()
    """Spaces with the keys of people who may not be used for this, and the key of a read that names the person."""
