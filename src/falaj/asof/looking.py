"""What labels see in the rows of a view, a piece at a time: one segment is open, never more.

A label may find its key in several segments; the row of the highest rank is the one it sees, wherever it lies. Only
windows need the rows of a key together, so for them a partition's rows are laid together first.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from falaj.asof.arrow import arrow_type, from_numbers, numbers_in
from falaj.asof.kernel import status_of
from falaj.asof.keys import KeyColumn, key_column
from falaj.asof.moments import Moments
from falaj.asof.records import NOT_FOUND, PRESENT, Field, ViewPlan, Window
from falaj.asof.sources import (
    Asked,
    Clustered,
    OwnRows,
    Part,
    Raw,
    Sight,
    Source,
    cluster,
    columns_of,
    open_part,
    rows_of,
)
from falaj.core.data import dataclass
from falaj.core.errors import Corrupt, Invalid

Statuses = NDArray[np.uint8]
ROW, STATUS = "__row", "__status"
"""Columns of a piece: which label each of its rows is of, and what is known of the row it sees."""


@dataclass(frozen=True, slots=True)
class _Place:
    """Rows that some of the labels may find themselves in; `open` before looking, `raw` to take values after it."""

    labels: Moments
    open: Callable[[], Source]
    raw: Callable[[], Raw]


def over(rows: OwnRows, plan: ViewPlan, asked: Asked) -> Iterator[pa.Table]:
    """The pieces of all labels, from rows in segments."""
    if _windows(plan):
        yield from _by_partition(rows, plan, asked)
        return
    types = [key.type for key in plan.keys]
    least = min((part.of for part in rows.parts), default=1)
    # Two segments can hold one key only where their partitions are the same among the fewest.
    several = rows.extra is not None or len({part.partition % least for part in rows.parts}) < len(rows.parts)
    opened = partial(open_part, types=types, created=several or asked.known is not None, seq=several)
    labels = _labels_by_part(asked.keys, rows.parts)
    places = [
        _Place(mine, partial(opened, part), partial(columns_of, part))
        for mine, part in zip(labels, rows.parts, strict=True)
    ]
    if rows.extra is not None:
        held = cluster(rows.extra, types)
        places.append(_Place(np.arange(len(asked.at)), lambda: held, lambda: held.raw))
    yield from (_best_of if several else _each_of)(places, plan, asked)


def over_source(rows: Source, plan: ViewPlan, asked: Asked) -> Iterator[pa.Table]:
    """The piece of all labels, from rows that are open."""
    every = np.arange(len(asked.at))
    if isinstance(rows, Clustered) and _windows(plan):
        yield _windowed_piece(rows, plan, asked, every)
    else:
        yield from _each_of([_Place(every, lambda: rows, lambda: rows.raw)], plan, asked)


def wanted_types(plan: ViewPlan) -> list[str]:
    """The types of what a plan gives, in order."""
    types = {field.name: field.type for field in plan.stored} | {each.name: each.type for each in plan.windows}
    for name in plan.wanted:
        if name not in types:
            raise Invalid(f"{plan.ref} has no {name}", "ask for what the view has")
    return [types[name] for name in plan.wanted]


def bare_keys(plan: ViewPlan) -> tuple[Field, ...]:
    """Keys by names that no column has: those of labels may be those of features."""
    return tuple(Field(f"__key{at}", key.type) for at, key in enumerate(plan.keys))


def _windows(plan: ViewPlan) -> list[Window]:
    return [window for window in plan.windows if window.name in plan.wanted]


def _labels_by_part(keys: KeyColumn, parts: Sequence[Part]) -> list[Moments]:
    """The labels whose keys lie in each part's partition."""
    cuts: dict[int, list[Moments]] = {}
    for of in {part.of for part in parts}:
        lies_in = keys.partitions(of)
        ends = np.cumsum(np.bincount(lies_in, minlength=of))
        cuts[of] = np.split(np.argsort(lies_in, kind="stable"), ends[:-1])
    return [cuts[part.of][part.partition] for part in parts]


def _each_of(places: Sequence[_Place], plan: ViewPlan, asked: Asked) -> Iterator[pa.Table]:
    """Each label can be in one place only, so what it sees there is what it sees."""
    left = np.ones(len(asked.at), np.bool_)
    for place in places:
        if len(place.labels):
            rows, mine = place.open(), asked.take(place.labels)
            sight = rows.see(mine, ranks=False)
            status = status_of(sight.row, sight.event, sight.later, mine.at, plan.ttl_us)
            yield _piece(plan, place.labels, sight.row, status, rows.raw)
            left[place.labels] = False
    yield _nothing(plan, np.flatnonzero(left))


def _best_of(places: Sequence[_Place], plan: ViewPlan, asked: Asked) -> Iterator[pa.Table]:
    """Look in all places, remember the highest rank; then take its values where it lies."""
    num = len(asked.at)
    where, later = np.full(num, -1, np.int64), np.zeros(num, np.bool_)
    row, event, created, seq = (np.full(num, -1, np.int64) for _ in range(4))
    for number, place in enumerate(places):
        if len(place.labels):
            mine = place.labels
            sight = place.open().see(asked.take(mine), ranks=True)
            later[mine] |= sight.later
            better = _better(sight, row[mine], event[mine], created[mine], seq[mine])
            mine = mine[better]
            where[mine], row[mine], event[mine] = number, sight.row[better], sight.event[better]
            created[mine], seq[mine] = sight.created[better], sight.seq[better]
    status = status_of(row, event, later, asked.at, plan.ttl_us)
    where[status != PRESENT] = -1
    for number, place in enumerate(places):
        (mine,) = np.nonzero(where == number)
        if len(mine):
            yield _piece(plan, mine, row[mine], status[mine], place.raw())
    (mine,) = np.nonzero(where < 0)
    yield _nothing(plan, mine, status[mine])


def _better(sight: Sight, row: Moments, event: Moments, created: Moments, seq: Moments) -> NDArray[np.bool_]:
    """Where a new sight is of a higher rank than what was seen before."""
    same = (sight.created > created) | ((sight.created == created) & (sight.seq > seq))
    newer = (row < 0) | (sight.event > event) | ((sight.event == event) & same)
    found: NDArray[np.bool_] = (sight.row >= 0) & newer
    return found


def _nothing(plan: ViewPlan, labels: Moments, status: Statuses | None = None) -> pa.Table:
    """The piece of labels that see no value."""
    if status is None:
        status = np.full(len(labels), NOT_FOUND, np.uint8)
    return _piece(plan, labels, np.full(len(labels), -1, np.int64), status, None)


def _piece(
    plan: ViewPlan,
    labels: Moments,
    row: Moments,
    status: Statuses,
    raw: Raw | None,
    values: Mapping[str, pa.Array] | None = None,
) -> pa.Table:
    """The values of the rows that labels see; `values` are those already made."""
    taken = _taker(row, status == PRESENT)
    columns = {ROW: pa.array(labels), STATUS: pa.array(status)}
    for name, want, kind in zip(plan.names, plan.wanted, wanted_types(plan), strict=True):
        if raw is None:
            columns[name] = pa.nulls(len(labels), arrow_type(kind, large=True))
        elif values is not None and want in values:
            columns[name] = values[want]
        else:
            column = raw(want)
            if column.type != arrow_type(kind, large=True):
                raise Corrupt(f"column {want} is of another type than in its view", "build the edition anew")
            columns[name] = taken(column, kind)
    return pa.table(columns)


def _taker(row: Moments, present: NDArray[np.bool_]) -> Callable[[pa.Array, str], pa.Array]:
    """What takes the rows that labels see out of one column after the other."""
    picks = np.where(present, row, 0)
    (absent,) = np.nonzero(~present)
    most = int(picks.max(initial=0))

    def take(column: pa.Array, kind: str) -> pa.Array:
        numbers = None if column.null_count or most >= len(column) else numbers_in(column, kind)
        if numbers is None:
            return column.take(pa.array(row, mask=~present))
        # A quarter of what Arrow's own takes with picks that may be null.
        found = np.take(numbers, picks, mode="clip")
        found[absent] = 0  # nobody's value lies under a null
        return from_numbers(found, kind, present)

    return take


def _by_partition(rows: OwnRows, plan: ViewPlan, asked: Asked) -> Iterator[pa.Table]:
    count = max((part.of for part in rows.parts), default=1)
    lies_in = asked.keys.partitions(count)
    for partition in range(count):
        (labels,) = np.nonzero(lies_in == partition)
        if len(labels) == 0:
            continue
        merged = _merged(rows, plan, partition, count)
        if merged is None:
            yield _nothing(plan, labels)
        else:
            yield _windowed_piece(merged, plan, asked.take(labels), labels)
    yield _nothing(plan, np.empty(0, np.int64))


def _merged(rows: OwnRows, plan: ViewPlan, partition: int, count: int) -> Clustered | None:
    """All rows of one of `count` partitions."""
    types = [key.type for key in plan.keys]
    parts = [part for part in rows.parts if part.partition == partition % part.of]
    if rows.extra is None and len(parts) == 1 and parts[0].of == count:
        return open_part(parts[0], types)
    stored = {field.name for field in plan.stored}
    columns = sorted({window.of for window in plan.windows if window.of} | set(plan.wanted) & stored)
    found = [open_part(part, types) for part in parts]
    if rows.extra is not None:
        found.append(cluster(rows.extra, types))
    tables = [rows_of(each, bare_keys(plan), columns) for each in found]
    mine = [_only(table, types, partition, count) for table in tables]
    return cluster(pa.concat_tables(mine), types) if mine else None


def _only(table: pa.Table, types: Sequence[str], partition: int, count: int) -> pa.Table:
    return table.filter(pa.array(key_column(table.columns[: len(types)], types).partitions(count) == partition))


def _windowed_piece(rows: Clustered, plan: ViewPlan, asked: Asked, labels: Moments) -> pa.Table:
    from falaj.asof.windows import windowed_columns

    windows = _windows(plan)
    sight = rows.see(asked, ranks=False)
    status = status_of(sight.row, sight.event, sight.later, asked.at, plan.ttl_us)
    present = status == PRESENT
    inputs = {name: numbers_of(rows.column(name)) for name in sorted({each.of for each in windows if each.of})}
    run = np.where(present, asked.keys.places_in(rows.keys), -1)
    made = windowed_columns(rows.run_starts, rows.event, rows.created, inputs, run, asked.at, asked.known, windows)
    values = {each.name: _filled(*one, present, each.type) for each, one in zip(windows, made, strict=True)}
    return _piece(plan, labels, sight.row, status, rows.raw, values)


def numbers_of(column: pa.Array) -> tuple[Any, NDArray[np.bool_]]:
    """A column as windows take it: an array where it is of numbers, else a list; and which are not null."""
    valid = column.is_valid().to_numpy(zero_copy_only=False)
    if pa.types.is_large_string(column.type) or pa.types.is_large_binary(column.type):
        return column.to_pylist(), valid
    if pa.types.is_timestamp(column.type):
        column = column.cast(pa.int64())
    filled = column.fill_null(pa.scalar(0).cast(column.type)) if column.null_count else column
    return filled.to_numpy(zero_copy_only=False), valid


def _filled(values: Any, valid: NDArray[np.bool_], present: NDArray[np.bool_], kind: str) -> pa.Array:
    there = np.asarray(valid, np.bool_) & present
    if isinstance(values, np.ndarray) and values.dtype != object:
        made = pa.array(values, mask=~there)
        return made if made.type == arrow_type(kind, large=True) else made.cast(arrow_type(kind, large=True))
    kept = [value if ok else None for value, ok in zip(values, there.tolist(), strict=True)]
    return pa.array(kept, arrow_type(kind, large=True))
