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

from falaj.asof.casting import Mask, cast
from falaj.asof.drift import FEW, OTHER, compare
from falaj.asof.limits import (
    INCLUSIVE,
    QUARANTINE,
    REFUSE,
    ROW_KINDS,
    WARN,
    RuleLike,
    checked_limits,
    columns_of,
    named,
    whole,
)
from falaj.asof.moments import micros, say_span, span_us
from falaj.asof.records import Field
from falaj.asof.sketch import Hashes, mixed
from falaj.asof.stats import ColumnStats, measured, merged_tables
from falaj.core.data import dataclass
from falaj.core.errors import Invalid

WHY = "__why"
SKEW = "10m"
"""How far ahead of ours a clock may be, where a rule does not say."""


@dataclass(frozen=True, slots=True)
class Finding:
    """A rule that was broken."""

    rule: str
    column: str
    broken: int
    """How many rows; 0 where no row is to blame."""
    share: float
    action: str
    message: str


class Named(NamedTuple):
    """A rule in a list of them; what is always on has no place there."""

    at: int
    rule: str
    column: str
    action: str = QUARANTINE

    def __str__(self) -> str:
        return f"{self.rule}({self.column})" if self.column else self.rule


class Reason(NamedTuple):
    """Which rows break a rule."""

    rule: Named
    mask: Mask


@dataclass(frozen=True, slots=True)
class Checked:
    """Rows that were looked at."""

    table: Any
    """In the types they should have; null where a value has none."""
    good: Mask
    why: tuple[Reason, ...]
    """What keeps rows apart."""
    findings: tuple[Finding, ...] = ()


@dataclass(frozen=True, slots=True)
class Expected:
    """What rows should look like."""

    fields: Sequence[Field] = ()
    """Columns and their types; others stay as they are."""
    keys: Sequence[str] = ()
    event: str = "event"
    """Of microseconds, or a time; empty: there is none."""
    zone: str = ""
    """Of times without one."""


def split(table: Any, checked: Checked) -> tuple[Any, Any]:
    """The good rows in the types they should have; the others as they came, with the reasons in `__why`."""
    import pyarrow as pa
    import pyarrow.compute as pc

    bad = np.flatnonzero(~checked.good)
    apart = table.take(pa.array(bad, pa.int64()))
    if WHY in apart.column_names:
        apart = apart.drop_columns([WHY])
    parts = [pc.if_else(pa.array(one.mask[bad]), str(one.rule), None) for one in checked.why]
    texts = [part.cast(pa.string()) for part in parts] or [pa.nulls(len(bad), pa.string())]
    said = pc.binary_join_element_wise(*texts, "; ", null_handling="skip")
    return checked.table.filter(pa.array(checked.good)), apart.append_column(WHY, said)


class Watch:
    """Looks at the batches of an arrival one after the other, and in the end at all of them together."""

    def __init__(
        self,
        rules: Sequence[RuleLike],
        now_us: int,
        reference: Mapping[str, ColumnStats] | None = None,
        expected: Expected | None = None,
    ) -> None:
        for rule in rules:
            checked_limits(rule)
        self._rules, self._now_us, self._reference = tuple(rules), now_us, reference or {}
        self._expected = expected or Expected()
        self._rows = self._good = 0
        self._broken: Counter[Named] = Counter()
        self._seen: dict[int, Hashes] = {}
        self._stats: dict[str, ColumnStats] = {}
        self._salt = token_bytes(16)

    def take(self, table: Any) -> Checked:
        """Look at the rows of a batch. Its findings are those that blame rows."""
        made, why = _typed(table, self._expected)
        good = np.asarray(~np.logical_or.reduce([np.zeros(made.num_rows, np.bool_), *(one.mask for one in why)]))
        # Whether a row came before is asked last: one that is kept apart anyway is not the first of its kind.
        for at, rule in sorted(enumerate(self._rules), key=lambda one: one[1].kind == "unique"):
            checked_limits(rule, made.column_names)
            if _blames_rows(rule):
                mask = self._mask(at, rule, made, good)
                why.append(Reason(Named(at, rule.kind, columns_of(rule), rule.action), mask))
                good = good & ~mask if rule.action == QUARANTINE else good
        why = [one for one in why if one.mask.any()]
        apart = tuple(one for one in why if one.rule.action == QUARANTINE)
        counts = Counter({one.rule: int(one.mask.sum()) for one in why})
        self._rows += made.num_rows
        self._good += int(good.sum())
        self._broken += counts
        self._measure(made, good)
        return Checked(made, good, apart, tuple(_row_findings(counts, made.num_rows)))

    def finish(self) -> tuple[Finding, ...]:
        """All findings, of rows and of what they are together."""
        found = list(_row_findings(self._broken, self._rows))
        for rule in self._rules:
            if not _blames_rows(rule):
                action = REFUSE if rule.action == REFUSE else WARN
                said = [f"{named(rule)}: {what}" for what in self._together(rule)]
                found += [Finding(rule.kind, rule.column, 0, 0.0, action, message) for message in said]
        return tuple(found)

    def _mask(self, at: int, rule: RuleLike, table: Any, good: Mask) -> Mask:
        import pyarrow as pa

        try:
            if rule.kind == "unique":
                return self._again(at, table.select(rule.limits.get("columns") or [rule.column]), good)
            column = table.column(rule.column or self._expected.event).combine_chunks()
            limits: Mapping[str, Any] = rule.limits
            if rule.kind == "future":
                limits = {"high": self._now_us + span_us(limits.get("skew", SKEW))}
            return np.asarray(~_kept(rule.kind, column, limits).fill_null(True).to_numpy(zero_copy_only=False))
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError, KeyError) as error:
            raise Invalid(f"{named(rule)} does not suit its column", "see which rules a type can have") from error

    def _again(self, at: int, columns: Any, good: Mask) -> Mask:
        """Good rows whose values were there before, in this batch or an earlier one; a null is never the same."""
        there = np.logical_and.reduce([good, *(_mask(column.is_valid()) for column in columns.columns)])
        hashes = _row_hashes(columns.filter(there), self._salt)
        once, first = np.unique(hashes, return_index=True)
        before = self._seen.get(at, once[:0])
        new = ~np.isin(once, before, assume_unique=True)
        self._seen[at] = np.sort(np.concatenate([before, once[new]]), kind="stable")
        again = np.ones(len(hashes), np.bool_)
        again[first[new]] = False
        found = np.zeros(len(there), np.bool_)
        found[there] = again
        return found

    def _measure(self, table: Any, good: Mask) -> None:
        import pyarrow as pa

        event = self._expected.event
        needed = {rule.column or event for rule in self._rules if not _blames_rows(rule) and rule.kind != "rows"}
        kept = table.select(sorted(needed)).filter(pa.array(good))
        self._stats = merged_tables(self._stats, {name: measured(kept.column(name)) for name in kept.column_names})

    def _together(self, rule: RuleLike) -> Iterable[str]:
        limits, stats = rule.limits, self._stats.get(rule.column or self._expected.event, ColumnStats("number"))
        if rule.kind == "rows":
            return _bounded("the number of rows", self._good, (limits.get("low"), limits.get("high")))
        if rule.kind == "not_null":
            return _bounded("the share of nulls", stats.nulls / max(1, stats.rows), (None, limits["share"]))
        if rule.kind == "fresh":
            within = span_us(limits["within"])
            late = stats.high is None or stats.high < self._now_us - within
            return [f"the newest row is older than {say_span(within)}"] if late else []
        return _strayed(stats, limits, self._reference.get(rule.column))


def _typed(table: Any, expected: Expected) -> tuple[Any, list[Reason]]:
    """The table in its types, and the rows that are not what every row must be."""
    import pyarrow as pa

    made = pa.Table.from_batches([table]) if isinstance(table, pa.RecordBatch) else table
    wanted = [one.name for one in expected.fields] + [*expected.keys] + [expected.event] * bool(expected.event)
    lost = [name for name in wanted if name not in made.column_names]
    if lost:
        raise Invalid(f"rows have no column {lost[0]!r:.60}", "give every column of the view")
    why, wrong = [], {}
    for one in expected.fields:
        column, wrong[one.name] = cast(made.column(one.name), one.type, expected.zone)
        made = made.set_column(made.column_names.index(one.name), one.name, column)
        why.append(Reason(Named(-1, "type", one.name), wrong[one.name]))
    for kind, name in [*(("key", name) for name in expected.keys), *[("event", expected.event)] * bool(expected.event)]:
        null = _mask(made.column(name).is_null())
        why.append(Reason(Named(-1, kind, name), null & ~wrong.get(name, np.zeros(1, np.bool_))))
    return made, why


def _blames_rows(rule: RuleLike) -> bool:
    return rule.kind in ROW_KINDS and "share" not in rule.limits


def _kept(kind: str, column: Any, limits: Mapping[str, Any]) -> Any:
    """Which values keep a rule; null: nothing is said."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if kind == "not_null":
        return column.is_valid()
    if kind == "among":
        known = pc.is_in(column, value_set=pa.array(limits["values"]).cast(column.type))
        return pc.or_(known, column.is_null())
    if kind == "match":
        return pc.match_substring_regex(column, pattern=whole(limits["pattern"]))
    if kind == "length":
        texts = pa.types.is_string(column.type) or pa.types.is_large_string(column.type)
        lists = pa.types.is_nested(column.type)
        column = (pc.utf8_length if texts else pc.list_value_length if lists else pc.binary_length)(column)
    elif pa.types.is_timestamp(column.type):
        column = column.cast(pa.int64())
        limits = {**limits, **{name: micros(limits[name]) for name in ("low", "high") if name in limits}}
    ends = INCLUSIVE[limits.get("inclusive", True)]
    kept = pc.equal(column, column)
    if limits.get("low") is not None:
        above = pc.greater_equal if ends in {"both", "low"} else pc.greater
        kept = pc.and_(kept, above(column, limits["low"]))
    if limits.get("high") is not None:
        below = pc.less_equal if ends in {"both", "high"} else pc.less
        kept = pc.and_(kept, below(column, limits["high"]))
    return kept


def _row_hashes(columns: Any, salt: bytes) -> Hashes:
    """64 bits of each row, not to be foretold."""
    import pyarrow as pa

    found = np.zeros(columns.num_rows, np.uint64)
    for chunked in columns.columns:
        column = chunked.combine_chunks()
        if pa.types.is_floating(column.type):
            each = (np.asarray(column.cast(pa.float64())) + 0.0).view(np.uint64)
        elif pa.types.is_integer(column.type) or pa.types.is_timestamp(column.type) or pa.types.is_boolean(column.type):
            each = np.asarray(column.cast(pa.int64())).view(np.uint64)
        else:
            coded = column.cast(pa.large_binary()).dictionary_encode()
            words = (blake2b(one, digest_size=8, key=salt).digest() for one in coded.dictionary.to_pylist())
            each = np.frombuffer(b"".join(words), np.uint64)[np.asarray(coded.indices)]
        found = mixed(found + np.uint64(int.from_bytes(salt[:8], "big")) ^ mixed(each))
    return found


def _strayed(stats: ColumnStats, limits: Mapping[str, Any], reference: ColumnStats | None) -> Iterable[str]:
    """In what a column differs from what its rule says."""
    plain = {"mean": stats.mean, "std": stats.std, "nulls": stats.nulls / max(1, stats.rows)}
    said = {"mean": "the mean", "std": "the standard deviation", "nulls": "the share of nulls"}
    for name, value in plain.items():
        yield from _bounded(said[name], value, limits.get(name, (None, None)))
    for share, pair in limits.get("quantiles", {}).items():
        yield from _bounded(f"the quantile {float(share):g}", stats.at(float(share)), pair)
    for text, pair in limits.get("shares", {}).items():
        count = None if stats.values is None else stats.values.get(text, 0) / max(1, stats.known)
        yield from _bounded("the share of a text", count, pair)
    if "psi" in limits and reference is not None:
        moved = compare(stats, reference)
        if moved.verdict == OTHER:
            yield "the type differs from the reference"
        elif moved.verdict != FEW and moved.psi >= limits["psi"]:
            yield f"it moved from the reference (PSI {moved.psi:.2f})"


def _bounded(what: str, value: float | None, pair: Sequence[float | None]) -> Iterable[str]:
    low, high = pair
    if value is not None and low is not None and value < low:
        yield f"{what} is below its bound"
    if value is not None and high is not None and value > high:
        yield f"{what} is above its bound"


def _row_findings(counts: Mapping[Named, int], rows: int) -> Iterable[Finding]:
    for one, broken in counts.items():
        said = f"{one}: {broken} of {rows} rows break it"
        yield Finding(one.rule, one.column, broken, broken / rows, one.action, said)


def _mask(found: Any) -> Mask:
    return np.asarray(found.to_numpy(), np.bool_)
