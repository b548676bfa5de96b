"""Frames: figures over time in columns; joined, summed up by minutes and hours, and how they become few bytes. Pure.

Figures are not negative and kept as whole numbers, some of them in hundredths. A figure that was not told is a gap.
"""

import json
import zlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from falaj.core.errors import CorruptData

GRID_STEP_S = 5
"""Samples that fall into the same five seconds are one row."""
SUMMED_FIGURES = frozenset({"xid", "ecc"})
"""Counts: an hour has all of its minutes', where other figures have a mean and a highest (`name^`)."""
_SCALES: Mapping[str, int] = {"cpu": 100, "load": 100, "pace": 1000}
_MAX_VALUE = float(1 << 52)
_MAX_BYTES = 64 << 20
"""Of a block, unpacked: a day of a large node takes a tenth."""
FloatArray = NDArray[np.float64]


class FigureFrame:
    """Rows of figures in the order of time; NaN where one was not told."""

    __slots__ = ("columns", "times")

    def __init__(self, times: NDArray[np.int64], columns: Mapping[str, FloatArray]) -> None:
        self.times, self.columns = times, columns

    @staticmethod
    def of(rows: Iterable[tuple[float, Mapping[str, float]]]) -> "FigureFrame":
        """Samples by moment; of two that fall together, the later one of each figure counts."""
        merged: dict[int, dict[str, float]] = {}
        for moment, figures in rows:
            merged.setdefault(int(moment) // GRID_STEP_S * GRID_STEP_S, {}).update(figures)
        times = sorted(merged)
        names = sorted({name for figures in merged.values() for name in figures})
        columns = {name: np.array([merged[moment].get(name, np.nan) for moment in times], np.float64) for name in names}
        return FigureFrame(np.array(times, np.int64), columns)

    @staticmethod
    def joined(frames: Sequence["FigureFrame"]) -> "FigureFrame":
        """All of them as one; where they tell of the same moment, the later frame counts."""
        frames = [frame for frame in frames if len(frame)]
        if len(frames) == 1:
            return frames[0]
        times = np.unique(np.concatenate([np.empty(0, np.int64), *(frame.times for frame in frames)]))
        columns: dict[str, FloatArray] = {}
        for frame in frames:
            positions = np.searchsorted(times, frame.times)
            for name, values in frame.columns.items():
                column = columns.setdefault(name, np.full(len(times), np.nan))
                is_known = ~np.isnan(values)
                column[positions[is_known]] = values[is_known]
        return FigureFrame(times, columns)

    def __len__(self) -> int:
        return len(self.times)

    def between(self, start: float, stop: float) -> "FigureFrame":
        """The rows from a moment to before another."""
        low, high = np.searchsorted(self.times, [start, stop])
        selected = {name: values[low:high] for name, values in self.columns.items()}
        return FigureFrame(
            self.times[low:high], {name: values for name, values in selected.items() if not _is_empty(values)}
        )

    def column(self, name: str) -> FloatArray:
        """One figure at every row."""
        values = self.columns.get(name)
        return np.full(len(self), np.nan) if values is None else values

    def rows(self) -> Iterable[tuple[int, dict[str, float]]]:
        """Row by row, what was told."""
        columns = [(name, column.tolist()) for name, column in self.columns.items()]
        for row_number, time in enumerate(self.times.tolist()):
            yield (
                time,
                {name: values[row_number] for name, values in columns if values[row_number] == values[row_number]},
            )

    def newest(self) -> dict[str, float]:
        """The last that was told of every figure."""
        return {
            name: float(known_values[-1])
            for name, column in self.columns.items()
            if len(known_values := column[~np.isnan(column)])
        }

    def rolled(self, step_s: int) -> "FigureFrame":
        """One row for every span of so many seconds: mean and highest, or the sum of what is counted."""
        if not len(self):
            return self
        spans = self.times // step_s * step_s
        times, starts = np.unique(spans, return_index=True)
        columns: dict[str, FloatArray] = {}
        for name, values in self.columns.items():
            is_known = ~np.isnan(values)
            counts = np.add.reduceat(is_known, starts, dtype=np.int64)
            is_gap, figure = counts == 0, name.rpartition(".")[2]
            if name.endswith("^"):
                columns[name] = _find_segment_max(values, starts, is_gap)
                continue
            sums = np.add.reduceat(np.where(is_known, values, 0.0), starts)
            columns[name] = np.where(is_gap, np.nan, sums if figure in SUMMED_FIGURES else sums / np.maximum(counts, 1))
            if figure not in SUMMED_FIGURES and f"{name}^" not in self.columns:
                columns[f"{name}^"] = _find_segment_max(values, starts, is_gap)
        return FigureFrame(times, columns)

    def pack(self) -> bytes:
        """Differences from row to row, the same bytes of each together: most of them are zero, and zlib sees it."""
        names = sorted(self.columns)
        values = np.array([self.columns[name] for name in names]).reshape(len(names), len(self)) * _get_figure_scales(
            names
        )
        integers = np.where(np.isnan(values), 0, np.clip(np.rint(values), 0.0, _MAX_VALUE) + 1).astype(np.int64)
        table = np.vstack([self.times, integers])
        steps = np.diff(table, axis=1, prepend=0)
        folded = ((steps << 1) ^ (steps >> 63)).astype("<u8")
        planes = folded.view(np.uint8).reshape(len(names) + 1, len(self), 8).transpose(2, 0, 1)
        header = json.dumps([len(self), names], separators=(",", ":")).encode()
        return zlib.compress(header + b"\n" + planes.tobytes(), 6)

    @staticmethod
    def unpack(data: bytes) -> "FigureFrame":
        """What `pack` was given, to the accuracy that is kept."""
        try:
            header, _, body = zlib.decompressobj().decompress(data, _MAX_BYTES).partition(b"\n")
            length, names = json.loads(header)
            planes = np.frombuffer(body, np.uint8).reshape(8, len(names) + 1, length)
            scales = _get_figure_scales(names)
        except (zlib.error, ValueError, TypeError, AttributeError, RecursionError) as error:
            raise CorruptData(
                "a block of telemetry cannot be read", "it may be of a newer release, or damaged"
            ) from error
        folded: Any = np.ascontiguousarray(planes.transpose(1, 2, 0)).view("<u8")[..., 0]
        table = np.cumsum((folded >> 1).astype(np.int64) ^ -(folded & 1).astype(np.int64), axis=1)
        values = np.where(table[1:] == 0, np.nan, (table[1:] - 1) / scales)
        return FigureFrame(table[0], dict(zip(names, values, strict=True)))


def _find_segment_max(values: FloatArray, starts: NDArray[np.int64], is_gap: NDArray[np.bool_]) -> FloatArray:
    highest = np.maximum.reduceat(np.where(np.isnan(values), -np.inf, values), starts)
    return np.where(is_gap, np.nan, highest)


def _get_figure_scales(names: Sequence[str]) -> FloatArray:
    """How many units one of each figure is kept as, as a column."""
    scales = [_SCALES.get(name.rpartition(".")[2].rstrip("^"), 1) for name in names]
    return np.array(scales, np.float64).reshape(-1, 1)


def _is_empty(values: FloatArray) -> bool:
    return bool(np.isnan(values).all())
