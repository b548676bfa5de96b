"""Training sets: labels joined with what was true, and known, of their things at their moments.

One partition at a time, so that memory is bounded by a partition; each can as well be done elsewhere (`part_of`) and
the pieces laid together (`gather`): the bits are the same.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from falaj.asof.arrow import arrow_type, whole
from falaj.asof.kernel import status_of
from falaj.asof.keys import key_column
from falaj.asof.moments import Moments, micros, moments
from falaj.asof.records import NULL, PRESENT, ViewPlan, Window
from falaj.asof.sources import Asked, Clustered, OwnRows, Part, Source, cluster, open_part, rows_of
from falaj.core.errors import Corrupt, Invalid

if TYPE_CHECKING:
    from falaj.asof.foreign import ForeignRows

__all__ = ["ROW", "Joined", "OwnRows", "Part", "gather", "part_of", "partitions_of", "training_set"]
Columns = dict[str, pa.Array]
_MAX_SMALL_BYTES = 1 << 31
ROW, STATUS = "__row", "__status"
"""Columns of a piece: which label each of its rows is of, and what is known of the row it sees."""


@dataclass(frozen=True, slots=True)
class Joined:
    """A view and where its rows are."""

    plan: ViewPlan
    rows: "OwnRows | ForeignRows"


def training_set(
    labels: pa.Table,
    moment: str,
    views: Sequence[Joined],
    *,
    known_at: str | int | None = None,
    zone: str = "",
    status: bool = False,
    advance: Callable[[int], None] | None = None,
) -> pa.Table:
    """The labels as they are, then the features of each view as of `moment`, null where there is none.

    `known_at`: "label" leaves out what became known after a label's own moment, a moment what became known after it.
    With `status`, a column `<name>__status` (asof/records.py) for each feature says why it is null. `advance` is told
    how many labels were done for one view.
    """
    _check_names(labels, moment, views, status)
    laid = []
    for joined in views:
        pieces = []
        for piece in _pieces(labels, moment, joined, (known_at, zone)):
            pieces.append(piece)
            if advance is not None:
                advance(len(piece))
        laid.append(_laid(len(labels), joined.plan, pieces, status))
    return _beside(labels, laid)


def partitions_of(joined: Joined) -> int:
    """Into how many parts the work on a view can be cut."""
    return min((part.of for part in joined.rows.parts), default=1) if isinstance(joined.rows, OwnRows) else 1


def part_of(
    labels: pa.Table,
    moment: str,
    joined: Joined,
    partition: int,
    *,
    known_at: str | int | None = None,
    zone: str = "",
) -> pa.Table:
    """The piece of a training set that one partition of a view gives: row numbers, a status, features.

    Labels need no more columns than the keys and the moment.
    """
    return pa.concat_tables(_pieces(labels, moment, joined, (known_at, zone), partition))


def gather(
    labels: pa.Table, views: Sequence[Joined], pieces: Sequence[Sequence[pa.Table]], *, status: bool = False
) -> pa.Table:
    """Lay pieces together: `pieces` has, for each view, those of all its partitions, in any order."""
    laid = [_laid(len(labels), each.plan, own, status) for each, own in zip(views, pieces, strict=True)]
    return _beside(labels, laid)


def _check_names(labels: pa.Table, moment: str, views: Sequence[Joined], status: bool) -> None:
    have = list(labels.schema.names)
    for name in (moment, *(key.name for each in views for key in each.plan.keys)):
        if have.count(name) != 1:
            raise Invalid(f"the labels do not have one column {name}", "labels hold every key and the moment")
    names = [name for each in views for name in each.plan.names]
    names += [f"{name}__status" for name in names if status]
    twice = {name for name in names if names.count(name) > 1 or name in have}
    if twice:
        raise Invalid(f"two columns would be called {min(twice)}", "give one of them another name in the service")


def _laid(num: int, plan: ViewPlan, pieces: Sequence[pa.Table], status: bool) -> tuple[Columns, Columns]:
    """One view's columns, and statuses if wanted, in the order of the labels."""
    table = pa.concat_tables(pieces)
    places = whole(table[ROW]).to_numpy()
    if len(places) != num:
        raise Invalid("these pieces are not all of a view's", "give one piece for each partition")
    back = None
    if bool(np.any(places[1:] < places[:-1])):
        inverse = np.empty(num, np.int64)
        inverse[places] = np.arange(num)
        back = pa.array(inverse)
    features, statuses = {}, {}
    for name, kind in zip(plan.names, wanted_types(plan), strict=True):
        column = whole(table[name]) if back is None else whole(table[name]).take(back)
        # Offsets of 32 bits, as everybody expects, unless there is too much for them.
        features[name] = column.cast(arrow_type(kind)) if column.nbytes < _MAX_SMALL_BYTES else column
    if status:
        said = whole(table[STATUS] if back is None else whole(table[STATUS]).take(back)).to_numpy()
        for name, column in features.items():
            empty = (said == PRESENT) & column.is_null().to_numpy(zero_copy_only=False)
            statuses[f"{name}__status"] = pa.array(np.where(empty, np.uint8(NULL), said))
    return features, statuses


def _beside(labels: pa.Table, laid: Sequence[tuple[Columns, Columns]]) -> pa.Table:
    for columns in (*(each[0] for each in laid), *(each[1] for each in laid)):
        for name, column in columns.items():
            labels = labels.append_column(name, column)
    return labels


def _pieces(
    labels: pa.Table,
    moment: str,
    joined: Joined,
    when: tuple[str | int | None, str],
    only: int | None = None,
) -> Iterator[pa.Table]:
    """What each partition (or only one) gives to the labels whose keys lie in it."""
    plan, rows = joined.plan, joined.rows
    asked = _ask(labels, moment, plan, *when)
    if isinstance(rows, OwnRows):
        yield from _over(rows, plan, asked, only)
        return
    with rows.opened(plan, asked) as found:
        if isinstance(found, OwnRows):
            yield from _over(found, plan, asked, None)
        else:
            yield look([found], plan, asked, np.arange(len(asked.at)))


def _ask(labels: pa.Table, moment: str, plan: ViewPlan, known_at: str | int | None, zone: str) -> Asked:
    at = moments(labels.column(moment), zone)
    keys = key_column([labels.column(key.name) for key in plan.keys], [key.type for key in plan.keys], zone)
    if known_at is None:
        return Asked(keys, at, None)
    return Asked(keys, at, at if known_at == "label" else np.full(len(at), micros(known_at, zone)))


def _over(rows: OwnRows, plan: ViewPlan, asked: Asked, only: int | None) -> Iterator[pa.Table]:
    count = min((part.of for part in rows.parts), default=1)
    lies_in = asked.keys.partitions(count)
    order = np.argsort(lies_in, kind="stable")
    ends = np.cumsum(np.bincount(lies_in, minlength=count)).tolist()
    for partition in range(count) if only is None else (only,):
        places = order[ends[partition - 1] if partition else 0 : ends[partition]]
        if len(places) or partition == (only or 0):
            sources = _sources(rows, plan, (partition, count), asked.known is not None) if len(places) else []
            yield look(sources, plan, asked.take(places), places)


def look(sources: Sequence[Source], plan: ViewPlan, asked: Asked, places: Moments) -> pa.Table:
    """What labels see of the rows of one partition: a piece."""
    windowed = [window for window in plan.windows if window.name in plan.wanted]
    if windowed and len(sources) > 1:
        sources = [_merged(sources, plan)]
    row, status = _see(sources, asked, plan.ttl_us)
    present = status == PRESENT
    picks = pa.array(row, mask=~present)
    values = _windowed(sources, asked, windowed, present) if windowed else {}
    columns = {ROW: pa.array(places), STATUS: pa.array(status)}
    for name, want, kind in zip(plan.names, plan.wanted, wanted_types(plan), strict=True):
        columns[name] = values[want] if want in values else _taken(sources, want, kind, picks)
    return pa.table(columns)


def wanted_types(plan: ViewPlan) -> list[str]:
    """The types of what a plan gives, in order."""
    types = {field.name: field.type for field in plan.stored} | {each.name: each.type for each in plan.windows}
    for name in plan.wanted:
        if name not in types:
            raise Invalid(f"{plan.ref} has no {name}", "ask for what the view has")
    return [types[name] for name in plan.wanted]


def _sources(rows: OwnRows, plan: ViewPlan, which: tuple[int, int], created: bool) -> list[Source]:
    """All rows of one of `count` partitions, source by source; the rank is read only where it decides."""
    partition, count = which
    types = [key.type for key in plan.keys]
    parts = [part for part in rows.parts if part.partition % count == partition]
    extra = rows.extra
    if extra is not None and count > 1:
        mine = key_column(extra.columns[: len(types)], types).partitions(count) == partition
        extra = extra.filter(pa.array(mine))
    several = len(parts) + bool(extra) > 1
    every = several or bool(plan.windows)
    opened: list[Source] = [open_part(part, types, created=created or every, seq=every) for part in parts]
    return [*opened, cluster(extra, types)] if extra else opened


def _merged(sources: Sequence[Source], plan: ViewPlan) -> Clustered:
    stored = {field.name for field in plan.stored}
    columns = sorted({window.of for window in plan.windows if window.of} | set(plan.wanted) & stored)
    tables = [rows_of(each, plan.keys, columns) for each in sources if isinstance(each, Clustered)]
    return cluster(pa.concat_tables(tables), [key.type for key in plan.keys])


def _see(sources: Sequence[Source], asked: Asked, ttl_us: int) -> tuple[Moments, NDArray[np.uint8]]:
    """The row each label sees, of all sources laid end to end, and what is known of it. The highest rank is seen."""
    num = len(asked.at)
    best, later = np.full(num, -1, np.int64), np.zeros(num, np.bool_)
    event = created = seq = np.zeros(num, np.int64)
    offset = 0
    for rows in sources:
        sight = rows.see(asked, ranks=len(sources) > 1)
        later |= sight.later
        same = (sight.created > created) | ((sight.created == created) & (sight.seq > seq))
        newer = (best < 0) | (sight.event > event) | ((sight.event == event) & same)
        better = (sight.row >= 0) & newer
        event, best = np.where(better, sight.event, event), np.where(better, sight.row + offset, best)
        created, seq = np.where(better, sight.created, created), np.where(better, sight.seq, seq)
        offset += rows.num_rows
    return best, status_of(best, event, later, asked.at, ttl_us)


def _taken(sources: Sequence[Source], name: str, kind: str, picks: pa.Array) -> pa.Array:
    if not sources:
        return pa.nulls(len(picks), arrow_type(kind, large=True))
    columns = [rows.raw(name) for rows in sources]
    if any(column.type != arrow_type(kind, large=True) for column in columns):
        raise Corrupt(f"column {name} is of another type than in its view", "build the edition anew")
    # Laid end to end first: to take from many chunks costs several times as much.
    return (columns[0] if len(columns) == 1 else pa.concat_arrays(columns)).take(picks)


def _windowed(
    sources: Sequence[Source], asked: Asked, windows: Sequence[Window], present: NDArray[np.bool_]
) -> dict[str, pa.Array]:
    from falaj.asof.windows import windowed_columns

    if not sources:
        return {each.name: pa.nulls(len(present), arrow_type(each.type, large=True)) for each in windows}
    (rows,) = sources
    if not isinstance(rows, Clustered):
        raise Invalid("windows need rows in order", "leave the engine to us")
    inputs = {name: _numbers(rows.column(name)) for name in sorted({each.of for each in windows if each.of})}
    run = np.where(present, asked.keys.places_in(rows.keys), -1)
    made = windowed_columns(rows.run_starts, rows.event, rows.created, inputs, run, asked.at, asked.known, windows)
    return {each.name: _filled(*one, present, each.type) for each, one in zip(windows, made, strict=True)}


def _numbers(column: pa.Array) -> tuple[Any, NDArray[np.bool_]]:
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
