"""Rules that rows must keep as they come in. Rows that break one are kept apart with the reason, never dropped.

Always on: values that can be cast to their types, keys and event moments that are not null. Of single rows: not_null,
range, among, match, length, unique, future. Of all rows that come in together: fresh, rows, distribution, and not_null
with a share; no row is to blame for these, so they warn or refuse. Limits stand in limits.py.

A null breaks not_null and nothing else; NaN breaks a range. Messages quote no value: it may be somebody's.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from hashlib import blake2b
from secrets import token_bytes
from typing import Any, NamedTuple

import numpy as np

from falaj.asof.casting import Mask, cast_column
from falaj.asof.column_drift import VERDICT_OTHER_TYPE, VERDICT_TOO_FEW_ROWS, compare_stats
from falaj.asof.column_stats import ColumnStats, measure_column, merge_table_stats
from falaj.asof.histograms import Hashes, mix_bits
from falaj.asof.moments import format_span, parse_span, to_micros
from falaj.asof.records import FeatureField
from falaj.asof.rule_limits import (
    ACTION_QUARANTINE,
    ACTION_REFUSE,
    ACTION_WARN,
    INCLUSIVE_ENDS,
    ROW_KINDS,
    RuleLike,
    anchor_pattern,
    check_limits,
    describe_columns,
    format_rule_name,
)
from falaj.core.data import dataclass
from falaj.core.errors import Invalid

REASONS_COLUMN = "__why"
DEFAULT_SKEW = "10m"
"""How far ahead of ours a clock may be, where a rule does not say."""


@dataclass(frozen=True, slots=True)
class RuleFinding:
    """A rule that was broken."""

    rule: str
    column: str
    broken: int
    """How many rows; 0 where no row is to blame."""
    share: float
    action: str
    message: str


class NamedRule(NamedTuple):
    """A rule in a list of them; what is always on has no place there."""

    at: int
    rule: str
    column: str
    action: str = ACTION_QUARANTINE

    def __str__(self) -> str:
        return f"{self.rule}({self.column})" if self.column else self.rule


class BrokenRule(NamedTuple):
    """Which rows break a rule."""

    rule: NamedRule
    mask: Mask


@dataclass(frozen=True, slots=True)
class CheckedRows:
    """Rows that were looked at."""

    table: Any
    """In the types they should have; null where a value has none."""
    good: Mask
    why: tuple[BrokenRule, ...]
    """What keeps rows apart."""
    findings: tuple[RuleFinding, ...] = ()


@dataclass(frozen=True, slots=True)
class ExpectedRows:
    """What rows should look like."""

    fields: Sequence[FeatureField] = ()
    """Columns and their types; others stay as they are."""
    keys: Sequence[str] = ()
    event: str = "event"
    """Of microseconds, or a time; empty: there is none."""
    zone: str = ""
    """Of times without one."""


def split_checked_rows(table: Any, checked: CheckedRows) -> tuple[Any, Any]:
    """The good rows in the types they should have; the others as they came, with the reasons in `__why`."""
    import pyarrow as pa
    import pyarrow.compute as pc

    bad_rows = np.flatnonzero(~checked.good)
    rejected = table.take(pa.array(bad_rows, pa.int64()))
    if REASONS_COLUMN in rejected.column_names:
        rejected = rejected.drop_columns([REASONS_COLUMN])
    reason_parts = [
        pc.if_else(pa.array(broken_rule.mask[bad_rows]), str(broken_rule.rule), None) for broken_rule in checked.why
    ]
    texts = [reason_part.cast(pa.string()) for reason_part in reason_parts] or [pa.nulls(len(bad_rows), pa.string())]
    reasons = pc.binary_join_element_wise(*texts, "; ", null_handling="skip")
    return checked.table.filter(pa.array(checked.good)), rejected.append_column(REASONS_COLUMN, reasons)


class RowValidator:
    """Looks at the batches of an arrival one after the other, and in the end at all of them together."""

    def __init__(
        self,
        rules: Sequence[RuleLike],
        now_us: int,
        reference: Mapping[str, ColumnStats] | None = None,
        expected: ExpectedRows | None = None,
    ) -> None:
        for rule in rules:
            check_limits(rule)
        self._rules, self._now_us, self._reference = tuple(rules), now_us, reference or {}
        self._expected = expected or ExpectedRows()
        self._row_count = self._good_count = 0
        self._broken_counts: Counter[NamedRule] = Counter()
        self._hashes_by_rule: dict[int, Hashes] = {}
        self._stats_by_column: dict[str, ColumnStats] = {}
        self._salt = token_bytes(16)

    def take(self, table: Any) -> CheckedRows:
        """Look at the rows of a batch. Its findings are those that blame rows."""
        typed_rows, broken_rules = _cast_to_expected(table, self._expected)
        is_good = np.asarray(
            ~np.logical_or.reduce(
                [np.zeros(typed_rows.num_rows, np.bool_), *(broken_rule.mask for broken_rule in broken_rules)]
            )
        )
        # Whether a row came before is asked last: one that is kept apart anyway is not the first of its kind.
        for position, rule in sorted(enumerate(self._rules), key=lambda broken_rule: broken_rule[1].kind == "unique"):
            check_limits(rule, typed_rows.column_names)
            if _is_row_rule(rule):
                mask = self._find_broken_rows(position, rule, typed_rows, is_good)
                broken_rules.append(
                    BrokenRule(NamedRule(position, rule.kind, describe_columns(rule), rule.action), mask)
                )
                is_good = is_good & ~mask if rule.action == ACTION_QUARANTINE else is_good
        broken_rules = [broken_rule for broken_rule in broken_rules if broken_rule.mask.any()]
        rejecting_rules = tuple(
            broken_rule for broken_rule in broken_rules if broken_rule.rule.action == ACTION_QUARANTINE
        )
        broken_counts = Counter({broken_rule.rule: int(broken_rule.mask.sum()) for broken_rule in broken_rules})
        self._row_count += typed_rows.num_rows
        self._good_count += int(is_good.sum())
        self._broken_counts += broken_counts
        self._update_statistics(typed_rows, is_good)
        return CheckedRows(
            typed_rows, is_good, rejecting_rules, tuple(_make_row_findings(broken_counts, typed_rows.num_rows))
        )

    def finish(self) -> tuple[RuleFinding, ...]:
        """All findings, of rows and of what they are together."""
        findings = list(_make_row_findings(self._broken_counts, self._row_count))
        for rule in self._rules:
            if not _is_row_rule(rule):
                action = ACTION_REFUSE if rule.action == ACTION_REFUSE else ACTION_WARN
                messages = [f"{format_rule_name(rule)}: {problem}" for problem in self._check_all_rows(rule)]
                findings += [RuleFinding(rule.kind, rule.column, 0, 0.0, action, message) for message in messages]
        return tuple(findings)

    def _find_broken_rows(self, position: int, rule: RuleLike, table: Any, is_good: Mask) -> Mask:
        import pyarrow as pa

        try:
            if rule.kind == "unique":
                return self._find_repeated_rows(
                    position, table.select(rule.limits.get("columns") or [rule.column]), is_good
                )
            column = table.column(rule.column or self._expected.event).combine_chunks()
            limits: Mapping[str, Any] = rule.limits
            if rule.kind == "future":
                limits = {"high": self._now_us + parse_span(limits.get("skew", DEFAULT_SKEW))}
            return np.asarray(
                ~_find_kept_values(rule.kind, column, limits).fill_null(True).to_numpy(zero_copy_only=False)
            )
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError, KeyError) as error:
            raise Invalid(
                f"{format_rule_name(rule)} does not suit its column", "see which rules a type can have"
            ) from error

    def _find_repeated_rows(self, position: int, columns: Any, is_good: Mask) -> Mask:
        """Good rows whose values were there before, in this batch or an earlier one; a null is never the same."""
        is_complete = np.logical_and.reduce([is_good, *(_to_mask(column.is_valid()) for column in columns.columns)])
        hashes = _hash_rows(columns.filter(is_complete), self._salt)
        unique_hashes, first_rows = np.unique(hashes, return_index=True)
        earlier_hashes = self._hashes_by_rule.get(position, unique_hashes[:0])
        is_new = ~np.isin(unique_hashes, earlier_hashes, assume_unique=True)
        self._hashes_by_rule[position] = np.sort(np.concatenate([earlier_hashes, unique_hashes[is_new]]), kind="stable")
        is_repeat = np.ones(len(hashes), np.bool_)
        is_repeat[first_rows[is_new]] = False
        is_repeated = np.zeros(len(is_complete), np.bool_)
        is_repeated[is_complete] = is_repeat
        return is_repeated

    def _update_statistics(self, table: Any, is_good: Mask) -> None:
        import pyarrow as pa

        event = self._expected.event
        needed_columns = {
            rule.column or event for rule in self._rules if not _is_row_rule(rule) and rule.kind != "rows"
        }
        good_rows = table.select(sorted(needed_columns)).filter(pa.array(is_good))
        self._stats_by_column = merge_table_stats(
            self._stats_by_column, {name: measure_column(good_rows.column(name)) for name in good_rows.column_names}
        )

    def _check_all_rows(self, rule: RuleLike) -> Iterable[str]:
        limits, stats = (
            rule.limits,
            self._stats_by_column.get(rule.column or self._expected.event, ColumnStats("number")),
        )
        if rule.kind == "rows":
            return _check_bounds("the number of rows", self._good_count, (limits.get("low"), limits.get("high")))
        if rule.kind == "not_null":
            return _check_bounds("the share of nulls", stats.nulls / max(1, stats.rows), (None, limits["share"]))
        if rule.kind == "fresh":
            within = parse_span(limits["within"])
            is_late = stats.high is None or stats.high < self._now_us - within
            return [f"the newest row is older than {format_span(within)}"] if is_late else []
        return _find_deviations(stats, limits, self._reference.get(rule.column))


def _cast_to_expected(table: Any, expected: ExpectedRows) -> tuple[Any, list[BrokenRule]]:
    """The table in its types, and the rows that are not what every row must be."""
    import pyarrow as pa

    typed_rows = pa.Table.from_batches([table]) if isinstance(table, pa.RecordBatch) else table
    needed_names = (
        [field.name for field in expected.fields] + [*expected.keys] + [expected.event] * bool(expected.event)
    )
    missing_columns = [name for name in needed_names if name not in typed_rows.column_names]
    if missing_columns:
        raise Invalid(f"rows have no column {missing_columns[0]!r:.60}", "give every column of the view")
    broken_rules, failed_casts = [], {}
    for field in expected.fields:
        column, failed_casts[field.name] = cast_column(typed_rows.column(field.name), field.type, expected.zone)
        typed_rows = typed_rows.set_column(typed_rows.column_names.index(field.name), field.name, column)
        broken_rules.append(BrokenRule(NamedRule(-1, "type", field.name), failed_casts[field.name]))
    for kind, name in [*(("key", name) for name in expected.keys), *[("event", expected.event)] * bool(expected.event)]:
        is_null = _to_mask(typed_rows.column(name).is_null())
        broken_rules.append(
            BrokenRule(NamedRule(-1, kind, name), is_null & ~failed_casts.get(name, np.zeros(1, np.bool_)))
        )
    return typed_rows, broken_rules


def _is_row_rule(rule: RuleLike) -> bool:
    return rule.kind in ROW_KINDS and "share" not in rule.limits


def _find_kept_values(kind: str, column: Any, limits: Mapping[str, Any]) -> Any:
    """Which values keep a rule; null: nothing is said."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if kind == "not_null":
        return column.is_valid()
    if kind == "among":
        is_listed = pc.is_in(column, value_set=pa.array(limits["values"]).cast(column.type))
        return pc.or_(is_listed, column.is_null())
    if kind == "match":
        return pc.match_substring_regex(column, pattern=anchor_pattern(limits["pattern"]))
    if kind == "length":
        is_text = pa.types.is_string(column.type) or pa.types.is_large_string(column.type)
        is_list = pa.types.is_nested(column.type)
        column = (pc.utf8_length if is_text else pc.list_value_length if is_list else pc.binary_length)(column)
    elif pa.types.is_timestamp(column.type):
        column = column.cast(pa.int64())
        limits = {**limits, **{name: to_micros(limits[name]) for name in ("low", "high") if name in limits}}
    inclusive_ends = INCLUSIVE_ENDS[limits.get("inclusive", True)]
    is_kept = pc.equal(column, column)
    if limits.get("low") is not None:
        compare_low = pc.greater_equal if inclusive_ends in {"both", "low"} else pc.greater
        is_kept = pc.and_(is_kept, compare_low(column, limits["low"]))
    if limits.get("high") is not None:
        compare_high = pc.less_equal if inclusive_ends in {"both", "high"} else pc.less
        is_kept = pc.and_(is_kept, compare_high(column, limits["high"]))
    return is_kept


def _hash_rows(columns: Any, salt: bytes) -> Hashes:
    """64 bits of each row, not to be foretold."""
    import pyarrow as pa

    hashes = np.zeros(columns.num_rows, np.uint64)
    for chunked in columns.columns:
        column = chunked.combine_chunks()
        if pa.types.is_floating(column.type):
            column_hashes = (np.asarray(column.cast(pa.float64())) + 0.0).view(np.uint64)
        elif pa.types.is_integer(column.type) or pa.types.is_timestamp(column.type) or pa.types.is_boolean(column.type):
            column_hashes = np.asarray(column.cast(pa.int64())).view(np.uint64)
        else:
            encoded = column.cast(pa.large_binary()).dictionary_encode()
            digests = (blake2b(value, digest_size=8, key=salt).digest() for value in encoded.dictionary.to_pylist())
            column_hashes = np.frombuffer(b"".join(digests), np.uint64)[np.asarray(encoded.indices)]
        hashes = mix_bits(hashes + np.uint64(int.from_bytes(salt[:8], "big")) ^ mix_bits(column_hashes))
    return hashes


def _find_deviations(stats: ColumnStats, limits: Mapping[str, Any], reference: ColumnStats | None) -> Iterable[str]:
    """In what a column differs from what its rule says."""
    statistics = {"mean": stats.mean, "std": stats.std, "nulls": stats.nulls / max(1, stats.rows)}
    descriptions = {"mean": "the mean", "std": "the standard deviation", "nulls": "the share of nulls"}
    for name, value in statistics.items():
        yield from _check_bounds(descriptions[name], value, limits.get(name, (None, None)))
    for share, bounds in limits.get("quantiles", {}).items():
        yield from _check_bounds(f"the quantile {float(share):g}", stats.at(float(share)), bounds)
    for text, bounds in limits.get("shares", {}).items():
        count = None if stats.values is None else stats.values.get(text, 0) / max(1, stats.known)
        yield from _check_bounds("the share of a text", count, bounds)
    if "psi" in limits and reference is not None:
        drift = compare_stats(stats, reference)
        if drift.verdict == VERDICT_OTHER_TYPE:
            yield "the type differs from the reference"
        elif drift.verdict != VERDICT_TOO_FEW_ROWS and drift.psi >= limits["psi"]:
            yield f"it moved from the reference (PSI {drift.psi:.2f})"


def _check_bounds(subject: str, value: float | None, bounds: Sequence[float | None]) -> Iterable[str]:
    low, high = bounds
    if value is not None and low is not None and value < low:
        yield f"{subject} is below its bound"
    if value is not None and high is not None and value > high:
        yield f"{subject} is above its bound"


def _make_row_findings(counts: Mapping[NamedRule, int], row_count: int) -> Iterable[RuleFinding]:
    for rule, broken in counts.items():
        message = f"{rule}: {broken} of {row_count} rows break it"
        yield RuleFinding(rule.rule, rule.column, broken, broken / row_count, rule.action, message)


def _to_mask(bool_array: Any) -> Mask:
    return np.asarray(bool_array.to_numpy(), np.bool_)
