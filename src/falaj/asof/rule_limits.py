"""What rules may ask for: their kinds, and limits that make sense. A rule is checked where it is defined."""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Protocol

from falaj.asof.moments import parse_span, to_micros
from falaj.core.errors import Invalid

ACTION_QUARANTINE, ACTION_REFUSE, ACTION_WARN = ACTIONS = ("quarantine", "refuse", "warn")
MAX_PATTERN_CHARS, MAX_RULE_VALUES = 1_000, 10_000
LimitCheck = tuple[str, Callable[[Any], Any]]
"""In words, and how a value is tried."""
INCLUSIVE_ENDS = {True: "both", False: "neither", "both": "both", "neither": "neither", "low": "low", "high": "high"}


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


def describe_columns(rule: RuleLike) -> str:
    """What a rule is about, in a word."""
    return rule.column or ", ".join(map(str, _as_list(rule.limits.get("columns", ()))))


def format_rule_name(rule: RuleLike) -> str:
    """What a rule is called in a reason."""
    return f"{rule.kind}({columns})" if (columns := describe_columns(rule)) else rule.kind


def anchor_pattern(pattern: str) -> str:
    """A pattern of a part as one of the whole text."""
    return rf"\A(?:{pattern})\z"


def check_limits(rule: RuleLike, columns: Collection[str] | None = None) -> None:
    """Invalid, with what to write instead, unless the rule can be followed; `columns` are those that rows have."""
    rule_kind = _RULE_KINDS.get(rule.kind)
    if rule_kind is None:
        raise Invalid(f"there is no rule {rule.kind!r:.40}", f"rules are {', '.join(_RULE_KINDS)}")
    if rule.action not in ACTIONS:
        raise Invalid(f"{format_rule_name(rule)} cannot {rule.action!r:.40}", f"actions are {', '.join(ACTIONS)}")
    required_part, limits = rule_kind
    rule_columns = [*[rule.column] * bool(rule.column), *_as_list(rule.limits.get("columns", ()))]
    if required_part == "column" and not rule_columns:
        raise Invalid(f"a rule {rule.kind} names no column", "say which column it is about")
    unknown_limits = sorted(set(rule.limits) - set(limits))
    if unknown_limits:
        raise Invalid(
            f"{format_rule_name(rule)} has no limit {unknown_limits[0]!r:.40}", f"its limits are {', '.join(limits)}"
        )
    if required_part == "limits" and not rule.limits:
        raise Invalid(f"{format_rule_name(rule)} has no limit", f"give one of {', '.join(limits)}")
    for name, value in rule.limits.items():
        expected, is_valid = limits[name]
        if not _is_accepted(is_valid, value):
            raise Invalid(f"the limit {name} of {format_rule_name(rule)} makes no sense", f"it must be {expected}")
    missing_columns = [] if columns is None else [name for name in rule_columns if name not in columns]
    if missing_columns:
        raise Invalid(
            f"{format_rule_name(rule)}: rows have no column {missing_columns[0]!r:.60}",
            "name one of the view's columns",
        )


def _as_list(value: object) -> Sequence[Any]:
    return value if isinstance(value, Sequence) and not isinstance(value, str) else ()


def _is_accepted(accept: Callable[[Any], Any], value: object) -> bool:
    try:
        return bool(accept(value))
    except (Invalid, TypeError, ValueError, AttributeError):
        return False


def _is_number(value: Any) -> bool:
    return type(value) in {int, float} and value == value


def _is_moment(value: Any) -> bool:
    return not isinstance(value, bool) and to_micros(value) is not None


def _is_pair(value: Any) -> bool:
    return (
        isinstance(value, list | tuple)
        and len(value) == 2
        and all(bound is None or _is_number(bound) for bound in value)
    )


def _is_pattern(value: Any) -> bool:
    import pyarrow as pa
    import pyarrow.compute as pc

    if not isinstance(value, str) or len(value) > MAX_PATTERN_CHARS:
        return False
    for pattern in (value, anchor_pattern(value)):
        pc.match_substring_regex(pa.array([""]), pattern=pattern)  # pa.ArrowInvalid is a ValueError
    return True


_PAIR_LIMIT: LimitCheck = ("[low, high], either of them null", _is_pair)
_COUNT_LIMIT: LimitCheck = ("a whole number of at least 0", lambda value: type(value) is int and value >= 0)
_SPAN_LIMIT: LimitCheck = ('a length of time such as "2d"', lambda value: parse_span(value) > 0)
_END_LIMIT: LimitCheck = ("a number, or a moment", lambda value: _is_number(value) or _is_moment(value))
_VALUES_LIMIT: LimitCheck = (
    "a list of values, at most 10,000",
    lambda value: 0 < len(_as_list(value)) <= MAX_RULE_VALUES,
)
_COLUMNS_LIMIT: LimitCheck = (
    "a list of columns",
    lambda value: _as_list(value) and all(isinstance(column, str) for column in value),
)
_PATTERN_LIMIT: LimitCheck = ("a regular expression (RE2: no look-around) of at most 1,000 characters", _is_pattern)
_QUANTILES_LIMIT: LimitCheck = (
    'shares and their bounds, as {"0.99": [null, 500]}',
    lambda value: all(0 <= float(share) <= 1 and _is_pair(pair) for share, pair in value.items()),
)
_SHARES_LIMIT: LimitCheck = (
    'texts and the bounds of their shares, as {"card": [0.2, 0.9]}',
    lambda value: all(isinstance(text, str) and _is_pair(pair) for text, pair in value.items()),
)
_RULE_KINDS: Mapping[str, tuple[str, Mapping[str, LimitCheck]]] = {
    "not_null": ("column", {"share": ("a share from 0 to 1", lambda value: _is_number(value) and 0 <= value <= 1)}),
    "range": (
        "column",
        {"low": _END_LIMIT, "high": _END_LIMIT, "inclusive": ("true, false, low or high", INCLUSIVE_ENDS.__contains__)},
    ),
    "among": ("column", {"values": _VALUES_LIMIT}),
    "match": ("column", {"pattern": _PATTERN_LIMIT}),
    "length": ("column", {"low": _COUNT_LIMIT, "high": _COUNT_LIMIT}),
    "unique": ("column", {"columns": _COLUMNS_LIMIT}),
    "future": ("", {"skew": _SPAN_LIMIT}),
    "fresh": ("limits", {"within": _SPAN_LIMIT}),
    "rows": ("limits", {"low": _COUNT_LIMIT, "high": _COUNT_LIMIT}),
    "distribution": (
        "column",
        {**dict.fromkeys(("mean", "std", "nulls"), _PAIR_LIMIT), "quantiles": _QUANTILES_LIMIT, "shares": _SHARES_LIMIT}
        | {"psi": ("a number", _is_number)},
    ),
}
"""What each kind needs, and its limits. Those of ROW_KINDS say of each row whether it keeps them."""
ROW_KINDS = frozenset({"not_null", "range", "among", "match", "length", "unique", "future"})
