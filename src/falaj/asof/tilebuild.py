"""From rows to what is kept online of each key (asof/tilestate.py), all keys at once."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from falaj.asof import exact
from falaj.asof.exact import Ints, Running, running_count
from falaj.asof.ranges import Column, Columns, Valid, Values, spread, take
from falaj.asof.records import MISSING, Window
from falaj.asof.tilestate import FLOATS, INTS, MOST_VALUES, TEXTS, HopShape, KeptShape, Shape, shape_of, too_many

_LEAST, _MOST = -(1 << 63), (1 << 63) - 1


class Rows(NamedTuple):
    """Rows of keys, clustered by (key, event, created, seq)."""

    run_starts: Ints
    event: Ints
    created: Ints
    seq: Ints
    columns: Columns


def build(
    run_starts: Ints, event: Ints, created: Ints, seq: Ints, columns: Columns, windows: Sequence[Window], now_us: int
) -> list[bytes]:
    """The bytes of each key's state as of now: `merge` brings them together with what is there, `pack` is the same."""
    shape = shape_of(tuple(windows))
    used = {name: _plain(*columns[name], name in shape.valued) for name in shape.columns}
    return _Building(shape, Rows(run_starts, event, created, seq, used), now_us).states()


def _plain(values: Values, valid: Valid, valued: bool) -> tuple[Values, Valid]:
    """Whole numbers, floats or bytes."""
    if not valued:
        return np.zeros(len(valid), np.int64), valid
    if isinstance(values, np.ndarray) and values.dtype.kind in "iubf":
        return values.astype(np.float64 if values.dtype.kind == "f" else np.int64, copy=False), valid
    return [value.encode() if isinstance(value, str) else value or b"" for value in values], valid


class _Building:
    """Sections of bytes over all keys, each with the places where a key's part begins and ends.

    Without a moment every row counts, and each state is as of its newest row.
    """

    def __init__(self, shape: Shape, rows: Rows, now_us: int | None) -> None:
        self.shape, self.rows, self.now_us = shape, rows, now_us
        self.start, self.end = rows.run_starts[:-1], rows.run_starts[1:]
        self.stop = self.end if now_us is None else self._since(now_us + 1)
        self.cells = {name: Column(*cells) for name, cells in rows.columns.items()}
        self.head = np.zeros(len(self.start), shape.head)
        self.sections: list[tuple[bytes, Ints]] = []

    def states(self) -> list[bytes]:
        self._set_head()
        for place, hop in enumerate(self.shape.hops):
            self._add_hop(f"hop{place}", hop)
        for place, kept in enumerate(self.shape.distinct):
            self._add_kept(f"distinct{place}", kept, self._distinct(kept))
        for place, kept in enumerate(self.shape.last):
            self._add_kept(f"last{place}", kept, self._last(kept))
        self._add_held()
        size = self.shape.head.itemsize
        sections = [(self.head.tobytes(), size * np.arange(len(self.head) + 1)), *self.sections]
        views = [(memoryview(data), bounds.tolist()) for data, bounds in sections if data]
        return [b"".join([data[at[i] : at[i + 1]] for data, at in views]) for i in range(len(self.head))]

    def _since(self, moment: int) -> Ints:
        """The first row of each key that is not before a moment."""
        before = running_count(self.rows.event < moment)
        return self.start + before[self.end] - before[self.start]

    def _from(self, shape: HopShape | KeptShape) -> Ints:
        """The first row of each key that a window can still count."""
        return self.start if self.now_us is None else np.minimum(self._since(shape.edge_us(self.now_us)), self.stop)

    def _set_head(self) -> None:
        head, rows = self.head, self.rows
        head["magic"], head["digest"] = b"FTL1", self.shape.digest
        some = self.stop > self.start
        for name, ranks in (("event", rows.event), ("created", rows.created), ("seq", rows.seq)):
            head[name] = MISSING
            head[name][some] = ranks[self.stop[some] - 1]
        head["until"] = head["event"] if self.now_us is None else self.now_us
        head["seen"] = MISSING
        some = self.end > self.start
        if some.any():
            head["seen"][some] = np.maximum.reduceat(rows.seq, self.start[some])

    def _add(self, data: np.ndarray[Any, Any], bounds: Ints) -> None:
        self.sections.append((data.tobytes(), bounds * data.itemsize))

    def _add_hop(self, name: str, hop: HopShape) -> None:
        lo = self._from(hop)
        rows, run = spread(lo, self.stop), np.repeat(np.arange(len(lo)), self.stop - lo)
        tile = self.rows.event[rows] // hop.hop_us
        begins = np.ones(len(rows), bool)
        begins[1:] = (tile[1:] != tile[:-1]) | (run[1:] != run[:-1])
        first, ends = rows[begins], self.stop[run[begins]]
        counts = np.bincount(run[begins], minlength=len(lo))
        bounds = np.concatenate([[0], np.cumsum(counts)])
        self.head[name] = counts
        self._add(tile[begins].astype("<i8"), bounds)
        for place, (part, column) in enumerate(hop.parts):
            width, shift, data = self._part(part, column, first, ends)
            self.head[f"{name}.{place}.width"], self.head[f"{name}.{place}.shift"] = width, shift
            self.sections.append((data, bounds * width))

    def _part(self, part: str, of: str, lo: Ints, hi: Ints) -> tuple[int, int, bytes]:
        if part == "rows":
            return 4, 0, (hi - lo).astype("<i4").tobytes()
        column = self.cells[of]
        lo, hi = column.place(lo), column.place(hi)
        if part == "count":
            return 4, 0, (hi - lo).astype("<i4").tobytes()
        if part == "sum":
            return exact.packed(column.running, lo, hi)
        if part == "odd":
            width, _, data = exact.packed(Running(0, tuple(enumerate(column.running.odd))), lo, hi)
            return width, 0, data
        keys = np.full(len(lo), _MOST if part == "min" else _LEAST)
        some = hi > lo
        keys[some] = column.extreme_keys(part, lo[some], hi[some])
        return 8, 0, keys.astype("<i8").tobytes()

    def _range(self, kept: KeptShape) -> tuple[Ints, Ints]:
        """Each key's cells that a window can still count."""
        column = self.cells[kept.column]
        return column.place(self._from(kept)), column.place(self.stop)

    def _distinct(self, kept: KeptShape) -> tuple[Ints, Ints]:
        """Cells that no equal one of the same key follows, and how many each key has."""
        lo, hi = self._range(kept)
        cells = spread(lo, hi)
        newest = self.cells[kept.column].twins[1][cells] >= np.repeat(hi, hi - lo)
        counts = np.diff(running_count(newest)[np.concatenate([[0], np.cumsum(hi - lo)])])
        if (counts > MOST_VALUES).any():
            raise too_many(f"different values of {kept.column!r}")
        return cells[newest], counts

    def _last(self, kept: KeptShape) -> tuple[Ints, Ints]:
        lo, hi = self._range(kept)
        lo = np.maximum(lo, hi - kept.n)
        return spread(lo, hi), hi - lo

    def _add_kept(self, name: str, kept: KeptShape, picked: tuple[Ints, Ints]) -> None:
        cells, counts = picked
        column, bounds = self.cells[kept.column], np.concatenate([[0], np.cumsum(counts)])
        rows = np.flatnonzero(self.rows.columns[kept.column][1])[cells]
        self._add_ranks(name, rows, bounds)
        values = column.values
        if name.startswith("distinct") and isinstance(values, np.ndarray):
            values = column.codes  # equal values must be equal bytes: one NaN, one zero
        self._add_cells(name, take(values, cells), bounds)

    def _add_held(self) -> None:
        counts = self.end - self.stop
        if (counts > MOST_VALUES).any():
            raise too_many("rows of later moments")
        rows, bounds = spread(self.stop, self.end), np.concatenate([[0], np.cumsum(counts)])
        alone: list[bytes] = []
        if len(rows):
            cells = {name: (take(values, rows), valid[rows]) for name, (values, valid) in self.rows.columns.items()}
            event, created, seq = (ranks[rows] for ranks in self.rows[1:4])
            each = Rows(np.arange(len(rows) + 1), event, created, seq, cells)
            alone = _Building(self.shape, each, None).states()
        self._add_ranks("held", rows, bounds)
        self._add_cells("held", alone, bounds)

    def _add_ranks(self, name: str, rows: Ints, bounds: Ints) -> None:
        self.head[f"{name}.count"] = np.diff(bounds)
        for ranks in self.rows[1:2] if name.startswith("distinct") else self.rows[1:4]:
            self._add(ranks[rows].astype("<i8"), bounds)

    def _add_cells(self, name: str, values: Values, bounds: Ints) -> None:
        head, counts = self.head, np.diff(bounds)
        kind = TEXTS if isinstance(values, list) else FLOATS if values.dtype.kind == "f" else INTS
        head[f"{name}.kind"] = np.where(counts > 0, kind, INTS)
        if isinstance(values, np.ndarray):
            head[f"{name}.size"] = 8 * counts
            self._add(values.view(np.int64).astype("<i8"), bounds)
            return
        ends = np.concatenate([[0], np.cumsum(np.fromiter(map(len, values), np.int64, len(values)))])
        begin = ends[bounds]
        head[f"{name}.size"] = 4 * counts + np.diff(begin)
        self._add((ends[1:] - np.repeat(begin[:-1], counts)).astype("<u4"), bounds)
        self.sections.append((b"".join(values), begin))
