"""Where labels look for rows: clustered rows of a segment or of memory, and what each label sees in them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple, Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from falaj.asof.arrow import from_column, whole
from falaj.asof.kernel import find, rank_order, run_starts_of
from falaj.asof.keys import KeyColumn, key_column
from falaj.asof.moments import Moments
from falaj.asof.records import Field
from falaj.asof.segment import Fetch, Segment
from falaj.core.data import dataclass
from falaj.core.errors import Corrupt, Invalid

Raw = Callable[[str], pa.Array]
RANKS = ("event", "created", "seq")
"""Columns that every row has, so that no feature can have these names."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What labels ask of one view: whose value, at which moment, by what was known when."""

    keys: KeyColumn
    at: Moments
    known: Moments | None

    def take(self, rows: Moments) -> "Asked":
        return Asked(self.keys.take(rows), self.at[rows], None if self.known is None else self.known[rows])


class Sight(NamedTuple):
    """For each label the row it sees (by its number in the source, -1 for none) and the rank of that row."""

    row: Moments
    later: NDArray[np.bool_]
    """None is seen, but one of a later event is known."""
    event: Moments
    created: Moments
    seq: Moments


class Source(Protocol):
    """Rows that can be looked at."""

    @property
    def num_rows(self) -> int: ...
    def see(self, asked: Asked, ranks: bool) -> Sight:
        """What each label sees; of the rank only the event where `ranks` is false."""
        ...

    def raw(self, name: str) -> pa.Array:
        """A column, in the order of row numbers."""
        ...


@dataclass(frozen=True, slots=True)
class Part:
    """One segment of one partition: how to read each of its faces (those that may be read)."""

    partition: int
    of: int
    fetch_by_face: Mapping[str, Fetch]


@dataclass(frozen=True, slots=True)
class OwnRows:
    """Rows in segments, any number to a partition, and those not yet in one."""

    parts: Sequence[Part]
    extra: pa.Table | None = None
    """Key columns first, in order, then event, created and seq (int64), then features by name (as RowSchema.arrow)."""


@dataclass(frozen=True, slots=True)
class Clustered:
    """Rows in the order of key, event, created, seq."""

    run_starts: Moments
    keys: KeyColumn
    """One a run, ascending."""
    event: Moments
    created: Moments
    seq: Moments
    raw: Raw
    order: Moments | None = None
    """The number of each row in `raw`, where that stands in another order."""
    key_parts: Sequence[pa.Array] = ()
    """The keys, part by part."""

    @property
    def num_rows(self) -> int:
        return len(self.event)

    def column(self, name: str) -> pa.Array:
        """A column in clustered order."""
        return self.raw(name) if self.order is None else self.raw(name).take(pa.array(self.order))

    def see(self, asked: Asked, ranks: bool) -> Sight:
        run = asked.keys.places_in(self.keys)
        found = find(self.run_starts, self.event, self.created, run, asked.at, asked.known)
        if self.num_rows == 0:
            return Sight(found.row, found.later, *[np.zeros(len(run), np.int64)] * 3)
        event = self.event[found.row]
        rest = (self.created[found.row], self.seq[found.row]) if ranks else (event, event)
        row = found.row if self.order is None else np.where(found.row < 0, -1, self.order[found.row])
        return Sight(row, found.later, event, *rest)


def open_part(part: Part, types: Sequence[str], created: bool = True, seq: bool = True) -> Clustered:
    """A segment's rows; of columns nothing is read until it is asked for."""
    main, raw = _opened(part)
    if tuple(key.type for key in main.keys) != tuple(types):
        raise Corrupt("these rows have other keys than their view", "build their edition anew")
    ranks = main.ranks(created, seq)
    parts = [from_column(key) for key in ranks.keys]
    keys = key_column(parts, types)
    if not keys.ascending():
        raise Corrupt("the keys of these rows are out of order", "build their edition anew")
    return Clustered(ranks.run_starts, keys, ranks.event, ranks.created, ranks.seq, raw, None, parts)


def columns_of(part: Part) -> Raw:
    """The columns of a segment, without keys and ranks."""
    return _opened(part)[1]


def _opened(part: Part) -> tuple[Segment, Raw]:
    faces = {face: Segment(fetch) for face, fetch in part.fetch_by_face.items()}
    main = faces.get("")
    if main is None or any(face.num_rows != main.num_rows for face in faces.values()):
        raise Corrupt("the faces of these rows do not belong together", "build their edition anew")
    where = {field.name: segment for segment in faces.values() for field in segment.columns}

    def raw(name: str) -> pa.Array:
        if name not in where:
            raise Invalid(f"these rows have no column {name}", "it may lie in a face that you may not read")
        return from_column(where[name].column(name))

    return main, raw


def cluster(table: pa.Table, types: Sequence[str]) -> Clustered:
    """Rows in memory (keys first, then event, created, seq as int64, then features), clustered."""
    parts = [whole(column) for column in table.columns[: len(types)]]
    event, created, seq = (whole(table[name]).to_numpy(zero_copy_only=False) for name in RANKS)
    rows = clustered(key_column(parts, types), event, created, seq, lambda name: whole(table[name]))
    firsts = pa.array(np.empty(0, np.int64) if rows.order is None else rows.order[rows.run_starts[:-1]])
    return replace(rows, key_parts=[part.take(firsts) for part in parts])


def clustered(keys: KeyColumn, event: Moments, created: Moments, seq: Moments, raw: Raw) -> Clustered:
    """The same of bare columns."""
    code = keys.sortable()
    order = rank_order(code, event, created, seq)
    starts = run_starts_of(code[order])
    firsts = order[starts[:-1]]
    return Clustered(starts, keys.take(firsts), event[order], created[order], seq[order], raw, order)


def rows_of(rows: Clustered, keys: Sequence[Field], columns: Sequence[str]) -> pa.Table:
    """All rows as a table that `write_rows` takes: keys, event, created, seq, and these columns, clustered."""
    run = pa.array(np.repeat(np.arange(len(rows.keys)), np.diff(rows.run_starts)))
    taken = {field.name: part.take(run) for field, part in zip(keys, rows.key_parts, strict=True)}
    ranks = {name: pa.array(each) for name, each in zip(RANKS, (rows.event, rows.created, rows.seq), strict=True)}
    return pa.table(taken | ranks | {name: rows.column(name) for name in columns})
