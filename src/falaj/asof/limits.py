"""What rules may ask for: their kinds, and limits that make sense. A rule is checked where it is defined."""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Protocol

from falaj.asof.moments import micros, span_us
from falaj.core.errors import Invalid

QUARANTINE, REFUSE, WARN = ACTIONS = ("quarantine", "refuse", "warn")
LONGEST_PATTERN, MOST_VALUES = 1_000, 10_000
Limit = tuple[str, Callable[[Any], Any]]
"""In words, and how a value is tried."""
INCLUSIVE = {True: "both", False: "neither", "both": "both", "neither": "neither", "low": "low", "high": "high"}


class RuleLike(Protocol):
    """A rule as plain data; features/records.py has them."""

    @property
    def kind(self) -> str: ...
    @property
    def column(self) -> str: ...
    @property
    def limits(self) -> Mapping[str, Any]: ...
    @property
    def action(self) -> str: ...


def columns_of(rule: RuleLike) -> str:
    """What a rule is about, in a word."""
    return rule.column or ", ".join(map(str, _listed(rule.limits.get("columns", ()))))


def named(rule: RuleLike) -> str:
    """What a rule is called in a reason."""
    return f"{rule.kind}({columns})" if (columns := columns_of(rule)) else rule.kind


def whole(pattern: str) -> str:
    """A pattern of a part as one of the whole text."""
    return rf"\A(?:{pattern})\z"


def checked_limits(rule: RuleLike, columns: Collection[str] | None = None) -> None:
    """Invalid, with what to write instead, unless the rule can be followed; `columns` are those that rows have."""
    known = _KINDS.get(rule.kind)
    if known is None:
        raise Invalid(f"there is no rule {rule.kind!r:.40}", f"rules are {', '.join(_KINDS)}")
    if rule.action not in ACTIONS:
        raise Invalid(f"{named(rule)} cannot {rule.action!r:.40}", f"actions are {', '.join(ACTIONS)}")
    needed, limits = known
    asked = [*[rule.column] * bool(rule.column), *_listed(rule.limits.get("columns", ()))]
    if needed == "column" and not asked:
        raise Invalid(f"a rule {rule.kind} names no column", "say which column it is about")
    strange = sorted(set(rule.limits) - set(limits))
    if strange:
        raise Invalid(f"{named(rule)} has no limit {strange[0]!r:.40}", f"its limits are {', '.join(limits)}")
    if needed == "limits" and not rule.limits:
        raise Invalid(f"{named(rule)} has no limit", f"give one of {', '.join(limits)}")
    for name, value in rule.limits.items():
        words, test = limits[name]
        if not _holds(test, value):
            raise Invalid(f"the limit {name} of {named(rule)} makes no sense", f"it must be {words}")
    lost = [] if columns is None else [name for name in asked if name not in columns]
    if lost:
        raise Invalid(f"{named(rule)}: rows have no column {lost[0]!r:.60}", "name one of the view's columns")


def _listed(value: object) -> Sequence[Any]:
    return value if isinstance(value, Sequence) and not isinstance(value, str) else ()


def _holds(test: Callable[[Any], Any], value: object) -> bool:
    try:
        return bool(test(value))
    except (Invalid, TypeError, ValueError, AttributeError):
        return False


def _number(value: Any) -> bool:
    return type(value) in {int, float} and value == value


def _moment(value: Any) -> bool:
    return not isinstance(value, bool) and micros(value) is not None


def _pair(value: Any) -> bool:
    return isinstance(value, list | tuple) and len(value) == 2 and all(one is None or _number(one) for one in value)


def _pattern(value: Any) -> bool:
    import pyarrow as pa
    import pyarrow.compute as pc

    if not isinstance(value, str) or len(value) > LONGEST_PATTERN:
        return False
    for pattern in (value, whole(value)):
        pc.match_substring_regex(pa.array([""]), pattern=pattern)  # pa.ArrowInvalid is a ValueError
    return True


_PAIR: Limit = ("[low, high], either of them null", _pair)
_COUNT: Limit = ("a whole number of at least 0", lambda value: type(value) is int and value >= 0)
_SPAN: Limit = ('a length of time such as "2d"', lambda value: span_us(value) > 0)
_END: Limit = ("a number, or a moment", lambda value: _number(value) or _moment(value))
_VALUES: Limit = ("a list of values, at most 10,000", lambda value: 0 < len(_listed(value)) <= MOST_VALUES)
_COLUMNS: Limit = ("a list of columns", lambda value: _listed(value) and all(isinstance(one, str) for one in value))
_PATTERN: Limit = ("a regular expression (RE2: no look-around) of at most 1,000 characters", _pattern)
_QUANTILES: Limit = (
    'shares and their bounds, as {"0.99": [null, 500]}',
    lambda value: all(0 <= float(share) <= 1 and _pair(pair) for share, pair in value.items()),
)
_SHARES: Limit = (
    'texts and the bounds of their shares, as {"card": [0.2, 0.9]}',
    lambda value: all(isinstance(text, str) and _pair(pair) for text, pair in value.items()),
)
_KINDS: Mapping[str, tuple[str, Mapping[str, Limit]]] = {
    "not_null": ("column", {"share": ("a share from 0 to 1", lambda value: _number(value) and 0 <= value <= 1)}),
    "range": ("column", {"low": _END, "high": _END, "inclusive": ("true, false, low or high", INCLUSIVE.__contains__)}),
    "among": ("column", {"values": _VALUES}),
    "match": ("column", {"pattern": _PATTERN}),
    "length": ("column", {"low": _COUNT, "high": _COUNT}),
    "unique": ("column", {"columns": _COLUMNS}),
    "future": ("", {"skew": _SPAN}),
    "fresh": ("limits", {"within": _SPAN}),
    "rows": ("limits", {"low": _COUNT, "high": _COUNT}),
    "distribution": (
        "column",
        {**dict.fromkeys(("mean", "std", "nulls"), _PAIR), "quantiles": _QUANTILES, "shares": _SHARES}
        | {"psi": ("a number", _number)},
    ),
}
"""What each kind needs, and its limits. Those of ROW_KINDS say of each row whether it keeps them."""
ROW_KINDS = frozenset({"not_null", "range", "among", "match", "length", "unique", "future"})
