"""Where labels look for rows: clustered rows of a segment or of memory, and what each label sees in them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple, Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from falaj.asof.arrow_columns import combine_chunks, from_segment_column
from falaj.asof.entity_keys import KeyColumn, build_key_column
from falaj.asof.join_kernel import compute_rank_order, find_run_starts, find_visible_rows
from falaj.asof.moments import Moments
from falaj.asof.records import FeatureField
from falaj.asof.segment import Fetch, Segment
from falaj.core.data import dataclass
from falaj.core.errors import CorruptData, Invalid

ReadColumn = Callable[[str], pa.Array]
RANK_COLUMNS = ("event", "created", "seq")
"""Columns that every row has, so that no feature can have these names."""


@dataclass(frozen=True, slots=True)
class LabelQuery:
    """What labels ask of one view: whose value, at which moment, by what was known when."""

    keys: KeyColumn
    at: Moments
    known: Moments | None

    def take(self, rows: Moments) -> "LabelQuery":
        return LabelQuery(self.keys.take(rows), self.at[rows], None if self.known is None else self.known[rows])


class VisibleRows(NamedTuple):
    """For each label the row it sees (by its number in the source, -1 for none) and the rank of that row."""

    row: Moments
    later: NDArray[np.bool_]
    """None is seen, but one of a later event is known."""
    event: Moments
    created: Moments
    seq: Moments


class RowSource(Protocol):
    """Rows that can be looked at."""

    @property
    def num_rows(self) -> int: ...
    def see(self, query: LabelQuery, ranks: bool) -> VisibleRows:
        """What each label sees; of the rank only the event where `ranks` is false."""
        ...

    def raw(self, name: str) -> pa.Array:
        """A column, in the order of row numbers."""
        ...


@dataclass(frozen=True, slots=True)
class PartitionSegment:
    """One segment of one partition: how to read each of its faces (those that may be read)."""

    partition: int
    of: int
    fetch_by_face: Mapping[str, Fetch]


@dataclass(frozen=True, slots=True)
class SegmentRows:
    """Rows in segments, any number to a partition, and those not yet in one."""

    parts: Sequence[PartitionSegment]
    extra: pa.Table | None = None
    """Key columns first, in order, then event, created and seq (int64), then features by name (as RowSchema.arrow)."""


@dataclass(frozen=True, slots=True)
class ClusteredRows:
    """Rows in the order of key, event, created, seq."""

    run_starts: Moments
    keys: KeyColumn
    """One a run, ascending."""
    event: Moments
    created: Moments
    seq: Moments
    raw: ReadColumn
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

    def see(self, query: LabelQuery, ranks: bool) -> VisibleRows:
        key_runs = query.keys.places_in(self.keys)
        lookup = find_visible_rows(self.run_starts, self.event, self.created, key_runs, query.at, query.known)
        if self.num_rows == 0:
            return VisibleRows(lookup.row, lookup.later, *[np.zeros(len(key_runs), np.int64)] * 3)
        event = self.event[lookup.row]
        other_ranks = (self.created[lookup.row], self.seq[lookup.row]) if ranks else (event, event)
        rows = lookup.row if self.order is None else np.where(lookup.row < 0, -1, self.order[lookup.row])
        return VisibleRows(rows, lookup.later, event, *other_ranks)


def open_partition_segment(
    segment: PartitionSegment, types: Sequence[str], created: bool = True, seq: bool = True
) -> ClusteredRows:
    """A segment's rows; of columns nothing is read until it is asked for."""
    main_segment, read_raw = _open_segments(segment)
    if tuple(key.type for key in main_segment.keys) != tuple(types):
        raise CorruptData("these rows have other keys than their view", "build their edition anew")
    ranks = main_segment.ranks(created, seq)
    key_columns = [from_segment_column(key) for key in ranks.keys]
    keys = build_key_column(key_columns, types)
    if not keys.ascending():
        raise CorruptData("the keys of these rows are out of order", "build their edition anew")
    return ClusteredRows(ranks.run_starts, keys, ranks.event, ranks.created, ranks.seq, read_raw, None, key_columns)


def open_segment_columns(segment: PartitionSegment) -> ReadColumn:
    """The columns of a segment, without keys and ranks."""
    return _open_segments(segment)[1]


def _open_segments(partition_segment: PartitionSegment) -> tuple[Segment, ReadColumn]:
    segments_by_group = {group: Segment(fetch) for group, fetch in partition_segment.fetch_by_face.items()}
    main_segment = segments_by_group.get("")
    if main_segment is None or any(group.num_rows != main_segment.num_rows for group in segments_by_group.values()):
        raise CorruptData("the faces of these rows do not belong together", "build their edition anew")
    segment_by_column = {field.name: segment for segment in segments_by_group.values() for field in segment.columns}

    def read_raw(name: str) -> pa.Array:
        if name not in segment_by_column:
            raise Invalid(f"these rows have no column {name}", "it may lie in a face that you may not read")
        return from_segment_column(segment_by_column[name].column(name))

    return main_segment, read_raw


def cluster_table(table: pa.Table, types: Sequence[str]) -> ClusteredRows:
    """Rows in memory (keys first, then event, created, seq as int64, then features), clustered."""
    key_columns = [combine_chunks(column) for column in table.columns[: len(types)]]
    event, created, seq = (combine_chunks(table[name]).to_numpy(zero_copy_only=False) for name in RANK_COLUMNS)
    clustered_rows = cluster_columns(
        build_key_column(key_columns, types), event, created, seq, lambda name: combine_chunks(table[name])
    )
    first_rows = pa.array(
        np.empty(0, np.int64) if clustered_rows.order is None else clustered_rows.order[clustered_rows.run_starts[:-1]]
    )
    return replace(clustered_rows, key_parts=[key_column_part.take(first_rows) for key_column_part in key_columns])


def cluster_columns(
    keys: KeyColumn, event: Moments, created: Moments, seq: Moments, read_raw: ReadColumn
) -> ClusteredRows:
    """The same of bare columns."""
    key_codes = keys.sortable()
    order = compute_rank_order(key_codes, event, created, seq)
    run_starts = find_run_starts(key_codes[order])
    first_rows = order[run_starts[:-1]]
    return ClusteredRows(run_starts, keys.take(first_rows), event[order], created[order], seq[order], read_raw, order)


def to_row_table(rows: ClusteredRows, keys: Sequence[FeatureField], columns: Sequence[str]) -> pa.Table:
    """All rows as a table that `write_rows` takes: keys, event, created, seq, and these columns, clustered."""
    run_numbers = pa.array(np.repeat(np.arange(len(rows.keys)), np.diff(rows.run_starts)))
    key_columns = {
        field.name: key_values.take(run_numbers) for field, key_values in zip(keys, rows.key_parts, strict=True)
    }
    ranks = {
        name: pa.array(rank_values)
        for name, rank_values in zip(RANK_COLUMNS, (rows.event, rows.created, rows.seq), strict=True)
    }
    return pa.table(key_columns | ranks | {name: rows.column(name) for name in columns})
