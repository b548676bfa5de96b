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

from falaj.asof.arrow_columns import array_from_numbers, to_arrow_type, view_numbers
from falaj.asof.entity_keys import KeyColumn, build_key_column
from falaj.asof.join_kernel import compute_status
from falaj.asof.moments import Moments
from falaj.asof.records import NOT_FOUND, PRESENT, FeatureField, ViewPlan, Window
from falaj.asof.row_sources import (
    ClusteredRows,
    LabelQuery,
    PartitionSegment,
    ReadColumn,
    RowSource,
    SegmentRows,
    VisibleRows,
    cluster_table,
    open_partition_segment,
    open_segment_columns,
    to_row_table,
)
from falaj.core.data import dataclass
from falaj.core.errors import CorruptData, Invalid

Statuses = NDArray[np.uint8]
ROW_COLUMN, STATUS_COLUMN = "__row", "__status"
"""Columns of a piece: which label each of its rows is of, and what is known of the row it sees."""


@dataclass(frozen=True, slots=True)
class _RowLocation:
    """Rows that some of the labels may find themselves in; `open` before looking, `raw` to take values after it."""

    labels: Moments
    open: Callable[[], RowSource]
    raw: Callable[[], ReadColumn]


def look_up_rows(rows: SegmentRows, plan: ViewPlan, query: LabelQuery) -> Iterator[pa.Table]:
    """The pieces of all labels, from rows in segments."""
    if _list_selected_windows(plan):
        yield from _look_up_by_partition(rows, plan, query)
        return
    types = [key.type for key in plan.keys]
    min_partitions = min((segment.of for segment in rows.parts), default=1)
    # Two segments can hold one key only where their partitions are the same among the fewest.
    is_overlapping = rows.extra is not None or len(
        {segment.partition % min_partitions for segment in rows.parts}
    ) < len(rows.parts)
    open_segment = partial(
        open_partition_segment, types=types, created=is_overlapping or query.known is not None, seq=is_overlapping
    )
    labels = _split_labels_by_part(query.keys, rows.parts)
    locations = [
        _RowLocation(part_labels, partial(open_segment, segment), partial(open_segment_columns, segment))
        for part_labels, segment in zip(labels, rows.parts, strict=True)
    ]
    if rows.extra is not None:
        extra_rows = cluster_table(rows.extra, types)
        locations.append(_RowLocation(np.arange(len(query.at)), lambda: extra_rows, lambda: extra_rows.raw))
    yield from (_look_up_best if is_overlapping else _look_up_disjoint)(locations, plan, query)


def look_up_source(rows: RowSource, plan: ViewPlan, query: LabelQuery) -> Iterator[pa.Table]:
    """The piece of all labels, from rows that are open."""
    all_labels = np.arange(len(query.at))
    if isinstance(rows, ClusteredRows) and _list_selected_windows(plan):
        yield _make_windowed_piece(rows, plan, query, all_labels)
    else:
        yield from _look_up_disjoint([_RowLocation(all_labels, lambda: rows, lambda: rows.raw)], plan, query)


def list_selected_types(plan: ViewPlan) -> list[str]:
    """The types of what a plan gives, in order."""
    types = {field.name: field.type for field in plan.stored} | {window.name: window.type for window in plan.windows}
    for name in plan.wanted:
        if name not in types:
            raise Invalid(f"{plan.ref} has no {name}", "ask for what the view has")
    return [types[name] for name in plan.wanted]


def name_key_fields(plan: ViewPlan) -> tuple[FeatureField, ...]:
    """Keys by names that no column has: those of labels may be those of features."""
    return tuple(FeatureField(f"__key{position}", key.type) for position, key in enumerate(plan.keys))


def _list_selected_windows(plan: ViewPlan) -> list[Window]:
    return [window for window in plan.windows if window.name in plan.wanted]


def _split_labels_by_part(keys: KeyColumn, segments: Sequence[PartitionSegment]) -> list[Moments]:
    """The labels whose keys lie in each part's partition."""
    labels_by_count: dict[int, list[Moments]] = {}
    for partition_count in {segment.of for segment in segments}:
        partitions = keys.partitions(partition_count)
        ends = np.cumsum(np.bincount(partitions, minlength=partition_count))
        labels_by_count[partition_count] = np.split(np.argsort(partitions, kind="stable"), ends[:-1])
    return [labels_by_count[segment.of][segment.partition] for segment in segments]


def _look_up_disjoint(locations: Sequence[_RowLocation], plan: ViewPlan, query: LabelQuery) -> Iterator[pa.Table]:
    """Each label can be in one place only, so what it sees there is what it sees."""
    is_pending = np.ones(len(query.at), np.bool_)
    for location in locations:
        if len(location.labels):
            rows, location_query = location.open(), query.take(location.labels)
            visible = rows.see(location_query, ranks=False)
            status = compute_status(visible.row, visible.event, visible.later, location_query.at, plan.ttl_us)
            yield _make_piece(plan, location.labels, visible.row, status, rows.raw)
            is_pending[location.labels] = False
    yield _make_empty_piece(plan, np.flatnonzero(is_pending))


def _look_up_best(locations: Sequence[_RowLocation], plan: ViewPlan, query: LabelQuery) -> Iterator[pa.Table]:
    """Look in all places, remember the highest rank; then take its values where it lies."""
    label_count = len(query.at)
    location_numbers, has_later_row = np.full(label_count, -1, np.int64), np.zeros(label_count, np.bool_)
    row, event, created, seq = (np.full(label_count, -1, np.int64) for _ in range(4))
    for number, location in enumerate(locations):
        if len(location.labels):
            label_rows = location.labels
            visible = location.open().see(query.take(label_rows), ranks=True)
            has_later_row[label_rows] |= visible.later
            is_better = _is_better_rank(
                visible, row[label_rows], event[label_rows], created[label_rows], seq[label_rows]
            )
            label_rows = label_rows[is_better]
            location_numbers[label_rows], row[label_rows], event[label_rows] = (
                number,
                visible.row[is_better],
                visible.event[is_better],
            )
            created[label_rows], seq[label_rows] = visible.created[is_better], visible.seq[is_better]
    status = compute_status(row, event, has_later_row, query.at, plan.ttl_us)
    location_numbers[status != PRESENT] = -1
    for number, location in enumerate(locations):
        (label_rows,) = np.nonzero(location_numbers == number)
        if len(label_rows):
            yield _make_piece(plan, label_rows, row[label_rows], status[label_rows], location.raw())
    (label_rows,) = np.nonzero(location_numbers < 0)
    yield _make_empty_piece(plan, label_rows, status[label_rows])


def _is_better_rank(
    visible: VisibleRows, row: Moments, event: Moments, created: Moments, seq: Moments
) -> NDArray[np.bool_]:
    """Where a new sight is of a higher rank than what was seen before."""
    is_higher_tie = (visible.created > created) | ((visible.created == created) & (visible.seq > seq))
    is_newer = (row < 0) | (visible.event > event) | ((visible.event == event) & is_higher_tie)
    is_better: NDArray[np.bool_] = (visible.row >= 0) & is_newer
    return is_better


def _make_empty_piece(plan: ViewPlan, labels: Moments, status: Statuses | None = None) -> pa.Table:
    """The piece of labels that see no value."""
    if status is None:
        status = np.full(len(labels), NOT_FOUND, np.uint8)
    return _make_piece(plan, labels, np.full(len(labels), -1, np.int64), status, None)


def _make_piece(
    plan: ViewPlan,
    labels: Moments,
    row: Moments,
    status: Statuses,
    raw: ReadColumn | None,
    values: Mapping[str, pa.Array] | None = None,
) -> pa.Table:
    """The values of the rows that labels see; `values` are those already made."""
    take_values = _make_row_taker(row, status == PRESENT)
    columns = {ROW_COLUMN: pa.array(labels), STATUS_COLUMN: pa.array(status)}
    for name, selected_name, kind in zip(plan.names, plan.wanted, list_selected_types(plan), strict=True):
        if raw is None:
            columns[name] = pa.nulls(len(labels), to_arrow_type(kind, large=True))
        elif values is not None and selected_name in values:
            columns[name] = values[selected_name]
        else:
            column = raw(selected_name)
            if column.type != to_arrow_type(kind, large=True):
                raise CorruptData(
                    f"column {selected_name} is of another type than in its view", "build the edition anew"
                )
            columns[name] = take_values(column, kind)
    return pa.table(columns)


def _make_row_taker(row: Moments, present: NDArray[np.bool_]) -> Callable[[pa.Array, str], pa.Array]:
    """What takes the rows that labels see out of one column after the other."""
    row_indices = np.where(present, row, 0)
    (absent,) = np.nonzero(~present)
    last_row = int(row_indices.max(initial=0))

    def take_values(column: pa.Array, kind: str) -> pa.Array:
        numbers = None if column.null_count or last_row >= len(column) else view_numbers(column, kind)
        if numbers is None:
            return column.take(pa.array(row, mask=~present))
        # A quarter of what Arrow's own takes with picks that may be null.
        taken = np.take(numbers, row_indices, mode="clip")
        taken[absent] = 0  # nobody's value lies under a null
        return array_from_numbers(taken, kind, present)

    return take_values


def _look_up_by_partition(rows: SegmentRows, plan: ViewPlan, query: LabelQuery) -> Iterator[pa.Table]:
    count = max((part.of for part in rows.parts), default=1)
    partitions = query.keys.partitions(count)
    for partition in range(count):
        (labels,) = np.nonzero(partitions == partition)
        if len(labels) == 0:
            continue
        clustered_rows = _merge_partition(rows, plan, partition, count)
        if clustered_rows is None:
            yield _make_empty_piece(plan, labels)
        else:
            yield _make_windowed_piece(clustered_rows, plan, query.take(labels), labels)
    yield _make_empty_piece(plan, np.empty(0, np.int64))


def _merge_partition(rows: SegmentRows, plan: ViewPlan, partition: int, count: int) -> ClusteredRows | None:
    """All rows of one of `count` partitions."""
    types = [key.type for key in plan.keys]
    segments = [segment for segment in rows.parts if segment.partition == partition % segment.of]
    if rows.extra is None and len(segments) == 1 and segments[0].of == count:
        return open_partition_segment(segments[0], types)
    stored = {field.name for field in plan.stored}
    columns = sorted({window.of for window in plan.windows if window.of} | set(plan.wanted) & stored)
    sources = [open_partition_segment(segment, types) for segment in segments]
    if rows.extra is not None:
        sources.append(cluster_table(rows.extra, types))
    tables = [to_row_table(source, name_key_fields(plan), columns) for source in sources]
    partition_tables = [_filter_partition(table, types, partition, count) for table in tables]
    return cluster_table(pa.concat_tables(partition_tables), types) if partition_tables else None


def _filter_partition(table: pa.Table, types: Sequence[str], partition: int, count: int) -> pa.Table:
    return table.filter(pa.array(build_key_column(table.columns[: len(types)], types).partitions(count) == partition))


def _make_windowed_piece(rows: ClusteredRows, plan: ViewPlan, query: LabelQuery, labels: Moments) -> pa.Table:
    from falaj.asof.window_aggregation import compute_window_columns

    windows = _list_selected_windows(plan)
    visible = rows.see(query, ranks=False)
    status = compute_status(visible.row, visible.event, visible.later, query.at, plan.ttl_us)
    present = status == PRESENT
    inputs = {
        name: to_window_values(rows.column(name)) for name in sorted({window.of for window in windows if window.of})
    }
    key_runs = np.where(present, query.keys.places_in(rows.keys), -1)
    window_columns = compute_window_columns(
        rows.run_starts, rows.event, rows.created, inputs, key_runs, query.at, query.known, windows
    )
    values = {
        window.name: _mask_absent(*window_column, present, window.type)
        for window, window_column in zip(windows, window_columns, strict=True)
    }
    return _make_piece(plan, labels, visible.row, status, rows.raw, values)


def to_window_values(column: pa.Array) -> tuple[Any, NDArray[np.bool_]]:
    """A column as windows take it: an array where it is of numbers, else a list; and which are not null."""
    valid = column.is_valid().to_numpy(zero_copy_only=False)
    if pa.types.is_large_string(column.type) or pa.types.is_large_binary(column.type):
        return column.to_pylist(), valid
    if pa.types.is_timestamp(column.type):
        column = column.cast(pa.int64())
    without_nulls = column.fill_null(pa.scalar(0).cast(column.type)) if column.null_count else column
    return without_nulls.to_numpy(zero_copy_only=False), valid


def _mask_absent(values: Any, valid: NDArray[np.bool_], present: NDArray[np.bool_], kind: str) -> pa.Array:
    is_present = np.asarray(valid, np.bool_) & present
    if isinstance(values, np.ndarray) and values.dtype != object:
        array = pa.array(values, mask=~is_present)
        return array if array.type == to_arrow_type(kind, large=True) else array.cast(to_arrow_type(kind, large=True))
    present_values = [
        value if is_value_present else None for value, is_value_present in zip(values, is_present.tolist(), strict=True)
    ]
    return pa.array(present_values, to_arrow_type(kind, large=True))
