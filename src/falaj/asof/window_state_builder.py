"""From rows to what is kept online of each key (asof/window_state.py), all keys at once."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from falaj.asof import exact_sums
from falaj.asof.exact_sums import Ints, RunningSums, count_running
from falaj.asof.range_queries import Columns, RangeColumn, Valid, Values, expand_ranges, take_cells
from falaj.asof.records import MISSING_MOMENT, Window
from falaj.asof.window_state import (
    KIND_BYTES,
    KIND_FLOATS,
    KIND_INTS,
    MAX_KEPT_VALUES,
    BucketShape,
    KeptRowsShape,
    WindowStateShape,
    get_state_shape,
    too_many_values_error,
)

_INT64_MIN, _INT64_MAX = -(1 << 63), (1 << 63) - 1


class WindowRows(NamedTuple):
    """Rows of keys, clustered by (key, event, created, seq)."""

    run_starts: Ints
    event: Ints
    created: Ints
    seq: Ints
    columns: Columns


def build_window_states(
    run_starts: Ints, event: Ints, created: Ints, seq: Ints, columns: Columns, windows: Sequence[Window], now_us: int
) -> list[bytes]:
    """The bytes of each key's state as of now: `merge` brings them together with what is there, `pack` is the same."""
    shape = get_state_shape(tuple(windows))
    used_columns = {name: _to_stored_values(*columns[name], name in shape.valued) for name in shape.columns}
    return _StateBuilder(shape, WindowRows(run_starts, event, created, seq, used_columns), now_us).states()


def _to_stored_values(values: Values, valid: Valid, needs_values: bool) -> tuple[Values, Valid]:
    """Whole numbers, floats or bytes."""
    if not needs_values:
        return np.zeros(len(valid), np.int64), valid
    if isinstance(values, np.ndarray) and values.dtype.kind in "iubf":
        return values.astype(np.float64 if values.dtype.kind == "f" else np.int64, copy=False), valid
    return [value.encode() if isinstance(value, str) else value or b"" for value in values], valid


class _StateBuilder:
    """Sections of bytes over all keys, each with the places where a key's part begins and ends.

    Without a moment every row counts, and each state is as of its newest row.
    """

    def __init__(self, shape: WindowStateShape, rows: WindowRows, now_us: int | None) -> None:
        self.shape, self.rows, self.now_us = shape, rows, now_us
        self.start, self.end = rows.run_starts[:-1], rows.run_starts[1:]
        self.stop = self.end if now_us is None else self._find_first_since(now_us + 1)
        self.cells = {name: RangeColumn(*column_values) for name, column_values in rows.columns.items()}
        self.head = np.zeros(len(self.start), shape.head)
        self.sections: list[tuple[bytes, Ints]] = []

    def states(self) -> list[bytes]:
        self._fill_headers()
        for position, hop in enumerate(self.shape.hops):
            self._add_bucket_series(f"hop{position}", hop)
        for position, kept_shape in enumerate(self.shape.distinct):
            self._add_kept_rows(f"distinct{position}", kept_shape, self._select_distinct(kept_shape))
        for position, kept_shape in enumerate(self.shape.last):
            self._add_kept_rows(f"last{position}", kept_shape, self._select_last(kept_shape))
        self._add_future_rows()
        size = self.shape.head.itemsize
        sections = [(self.head.tobytes(), size * np.arange(len(self.head) + 1)), *self.sections]
        views = [(memoryview(data), bounds.tolist()) for data, bounds in sections if data]
        return [b"".join([data[offsets[i] : offsets[i + 1]] for data, offsets in views]) for i in range(len(self.head))]

    def _find_first_since(self, moment: int) -> Ints:
        """The first row of each key that is not before a moment."""
        count_before = count_running(self.rows.event < moment)
        return self.start + count_before[self.end] - count_before[self.start]

    def _find_first_needed(self, shape: BucketShape | KeptRowsShape) -> Ints:
        """The first row of each key that a window can still count."""
        return (
            self.start
            if self.now_us is None
            else np.minimum(self._find_first_since(shape.edge_us(self.now_us)), self.stop)
        )

    def _fill_headers(self) -> None:
        headers, rows = self.head, self.rows
        headers["magic"], headers["digest"] = b"FTL1", self.shape.digest
        has_rows = self.stop > self.start
        for name, rank_values in (("event", rows.event), ("created", rows.created), ("seq", rows.seq)):
            headers[name] = MISSING_MOMENT
            headers[name][has_rows] = rank_values[self.stop[has_rows] - 1]
        headers["until"] = headers["event"] if self.now_us is None else self.now_us
        headers["seen"] = MISSING_MOMENT
        has_rows = self.end > self.start
        if has_rows.any():
            headers["seen"][has_rows] = np.maximum.reduceat(rows.seq, self.start[has_rows])

    def _add_section(self, data: np.ndarray[Any, Any], bounds: Ints) -> None:
        self.sections.append((data.tobytes(), bounds * data.itemsize))

    def _add_bucket_series(self, name: str, hop: BucketShape) -> None:
        first_needed = self._find_first_needed(hop)
        rows, key_numbers = (
            expand_ranges(first_needed, self.stop),
            np.repeat(np.arange(len(first_needed)), self.stop - first_needed),
        )
        bucket_numbers = self.rows.event[rows] // hop.hop_us
        is_bucket_start = np.ones(len(rows), bool)
        is_bucket_start[1:] = (bucket_numbers[1:] != bucket_numbers[:-1]) | (key_numbers[1:] != key_numbers[:-1])
        first_rows, end_rows = rows[is_bucket_start], self.stop[key_numbers[is_bucket_start]]
        counts = np.bincount(key_numbers[is_bucket_start], minlength=len(first_needed))
        bounds = np.concatenate([[0], np.cumsum(counts)])
        self.head[name] = counts
        self._add_section(bucket_numbers[is_bucket_start].astype("<i8"), bounds)
        for position, (part, column) in enumerate(hop.parts):
            width, shift, data = self._pack_part(part, column, first_rows, end_rows)
            self.head[f"{name}.{position}.width"], self.head[f"{name}.{position}.shift"] = width, shift
            self.sections.append((data, bounds * width))

    def _pack_part(self, part_kind: str, column_name: str, lo: Ints, hi: Ints) -> tuple[int, int, bytes]:
        if part_kind == "rows":
            return 4, 0, (hi - lo).astype("<i4").tobytes()
        column = self.cells[column_name]
        lo, hi = column.place(lo), column.place(hi)
        if part_kind == "count":
            return 4, 0, (hi - lo).astype("<i4").tobytes()
        if part_kind == "sum":
            return exact_sums.pack_range_sums(column.running, lo, hi)
        if part_kind == "odd":
            width, _, data = exact_sums.pack_range_sums(RunningSums(0, tuple(enumerate(column.running.odd))), lo, hi)
            return width, 0, data
        keys = np.full(len(lo), _INT64_MAX if part_kind == "min" else _INT64_MIN)
        has_rows = hi > lo
        keys[has_rows] = column.extreme_keys(part_kind, lo[has_rows], hi[has_rows])
        return 8, 0, keys.astype("<i8").tobytes()

    def _find_value_range(self, kept_shape: KeptRowsShape) -> tuple[Ints, Ints]:
        """Each key's cells that a window can still count."""
        column = self.cells[kept_shape.column]
        return column.place(self._find_first_needed(kept_shape)), column.place(self.stop)

    def _select_distinct(self, kept_shape: KeptRowsShape) -> tuple[Ints, Ints]:
        """Cells that no equal one of the same key follows, and how many each key has."""
        lo, hi = self._find_value_range(kept_shape)
        positions = expand_ranges(lo, hi)
        is_newest = self.cells[kept_shape.column].twins[1][positions] >= np.repeat(hi, hi - lo)
        counts = np.diff(count_running(is_newest)[np.concatenate([[0], np.cumsum(hi - lo)])])
        if (counts > MAX_KEPT_VALUES).any():
            raise too_many_values_error(f"different values of {kept_shape.column!r}")
        return positions[is_newest], counts

    def _select_last(self, kept_shape: KeptRowsShape) -> tuple[Ints, Ints]:
        lo, hi = self._find_value_range(kept_shape)
        lo = np.maximum(lo, hi - kept_shape.n)
        return expand_ranges(lo, hi), hi - lo

    def _add_kept_rows(self, name: str, kept_shape: KeptRowsShape, selection: tuple[Ints, Ints]) -> None:
        positions, counts = selection
        column, bounds = self.cells[kept_shape.column], np.concatenate([[0], np.cumsum(counts)])
        rows = np.flatnonzero(self.rows.columns[kept_shape.column][1])[positions]
        self._add_rank_columns(name, rows, bounds)
        values = column.values
        if name.startswith("distinct") and isinstance(values, np.ndarray):
            values = column.codes  # equal values must be equal bytes: one NaN, one zero
        self._add_packed_values(name, take_cells(values, positions), bounds)

    def _add_future_rows(self) -> None:
        counts = self.end - self.stop
        if (counts > MAX_KEPT_VALUES).any():
            raise too_many_values_error("rows of later moments")
        rows, bounds = expand_ranges(self.stop, self.end), np.concatenate([[0], np.cumsum(counts)])
        row_states: list[bytes] = []
        if len(rows):
            column_values = {
                name: (take_cells(values, rows), valid[rows]) for name, (values, valid) in self.rows.columns.items()
            }
            event, created, seq = (ranks[rows] for ranks in self.rows[1:4])
            single_rows = WindowRows(np.arange(len(rows) + 1), event, created, seq, column_values)
            row_states = _StateBuilder(self.shape, single_rows, None).states()
        self._add_rank_columns("held", rows, bounds)
        self._add_packed_values("held", row_states, bounds)

    def _add_rank_columns(self, name: str, rows: Ints, bounds: Ints) -> None:
        self.head[f"{name}.count"] = np.diff(bounds)
        for ranks in self.rows[1:2] if name.startswith("distinct") else self.rows[1:4]:
            self._add_section(ranks[rows].astype("<i8"), bounds)

    def _add_packed_values(self, name: str, values: Values, bounds: Ints) -> None:
        headers, counts = self.head, np.diff(bounds)
        value_kind = KIND_BYTES if isinstance(values, list) else KIND_FLOATS if values.dtype.kind == "f" else KIND_INTS
        headers[f"{name}.kind"] = np.where(counts > 0, value_kind, KIND_INTS)
        if isinstance(values, np.ndarray):
            headers[f"{name}.size"] = 8 * counts
            self._add_section(values.view(np.int64).astype("<i8"), bounds)
            return
        ends = np.concatenate([[0], np.cumsum(np.fromiter(map(len, values), np.int64, len(values)))])
        start_offsets = ends[bounds]
        headers[f"{name}.size"] = 4 * counts + np.diff(start_offsets)
        self._add_section((ends[1:] - np.repeat(start_offsets[:-1], counts)).astype("<u4"), bounds)
        self.sections.append((b"".join(values), start_offsets))
