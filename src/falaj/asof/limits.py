"""What rules may ask for: their kinds, and limits that make sense. A rule is checked where it is defined."""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Protocol

from falaj.asof.moments import micros, span_us
from falaj.core.errors import Invalid

QUARANTINE, REFUSE, WARN = ACTIONS = ("quarantine", "refuse", "warn")
LONGEST_PATTERN, MOST_VALUES = 1_000, 10_000
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


def named(rule: RuleLike) -> str:
    """What a rule is called in a reason."""
    return f"{rule.kind}({rule.column})" if rule.column else rule.kind


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
        if not _holds(limits[name], value):
            raise Invalid(f"the limit {name} of {named(rule)} makes no sense", f"it must be {limits[name].__doc__}")
    lost = [] if columns is None else [name for name in asked if name not in columns]
    if lost:
        raise Invalid(f"{named(rule)}: rows have no column {lost[0]!r:.60}", "name one of the view's columns")


def _listed(value: object) -> Sequence[Any]:
    return value if isinstance(value, Sequence) and not isinstance(value, str) else ()


def _holds(test: Callable[[Any], bool], value: object) -> bool:
    try:
        return test(value)
    except (Invalid, TypeError, ValueError):
        return False


def _number(value: Any) -> bool:
    """a number"""
    return type(value) in {int, float} and value == value


def _end(value: Any) -> bool:
    """a number, or a moment"""
    return _number(value) or (type(value) is not bool and micros(value) is not None)


def _count(value: Any) -> bool:
    """a whole number of at least 0"""
    return type(value) is int and value >= 0


def _share(value: Any) -> bool:
    """a share from 0 to 1"""
    return _number(value) and 0 <= value <= 1


def _span(value: Any) -> bool:
    """a length of time such as "2d" """
    return span_us(value) > 0


def _inclusive(value: Any) -> bool:
    """true, false, low or high"""
    return value in INCLUSIVE


def _pair(value: Any) -> bool:
    """[low, high], either of them null"""
    return len(value) == 2 and all(one is None or _number(one) for one in value) and not isinstance(value, str)


def _quantiles(value: Any) -> bool:
    """shares and their bounds, as {"0.99": [null, 500]}"""
    return all(0 <= float(share) <= 1 and _pair(pair) for share, pair in value.items())


def _shares(value: Any) -> bool:
    """texts and the bounds of their shares, as {"card": [0.2, 0.9]}"""
    return all(isinstance(text, str) and _pair(pair) for text, pair in value.items())


def _values(value: Any) -> bool:
    """a list of values, at most 10,000"""
    return isinstance(value, Sequence) and not isinstance(value, str | bytes) and 0 < len(value) <= MOST_VALUES


def _columns(value: Any) -> bool:
    """a list of columns"""
    return _values(value) and all(isinstance(one, str) for one in value)


def _pattern(value: Any) -> bool:
    """a regular expression (RE2: no look-around, no back-references) of at most 1,000 characters"""
    import pyarrow as pa
    import pyarrow.compute as pc

    if not isinstance(value, str) or len(value) > LONGEST_PATTERN:
        return False
    for pattern in (value, whole(value)):
        pc.match_substring_regex(pa.array([""]), pattern=pattern)  # pa.ArrowInvalid is a ValueError
    return True


_KINDS: Mapping[str, tuple[str, Mapping[str, Callable[[Any], bool]]]] = {
    "not_null": ("column", {"share": _share}),
    "range": ("column", {"low": _end, "high": _end, "inclusive": _inclusive}),
    "among": ("column", {"values": _values}),
    "match": ("column", {"pattern": _pattern}),
    "length": ("column", {"low": _count, "high": _count}),
    "unique": ("column", {"columns": _columns}),
    "future": ("", {"skew": _span}),
    "fresh": ("limits", {"within": _span}),
    "rows": ("limits", {"low": _count, "high": _count}),
    "distribution": (
        "column",
        {"mean": _pair, "std": _pair, "nulls": _pair, "quantiles": _quantiles, "shares": _shares, "psi": _number},
    ),
}
ROW_KINDS = frozenset({"not_null", "range", "among", "match", "length", "unique", "future"})
"""Those that say of each row whether it keeps them."""
