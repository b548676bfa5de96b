"""Frames: figures over time in columns; joined, summed up by minutes and hours, and how they become few bytes. Pure.

Figures are not negative and kept as whole numbers, some of them in hundredths. A figure that was not told is a gap.
"""

import json
import zlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from falaj.core.errors import Corrupt

GRID_S = 5
"""Samples that fall into the same five seconds are one row."""
SUMMED = frozenset({"xid", "ecc"})
"""Counts: an hour has all of its minutes', where other figures have a mean and a highest (`name^`)."""
_SCALES: Mapping[str, int] = {"cpu": 100, "load": 100, "pace": 1000}
_MOST = float(1 << 52)
_MOST_BYTES = 64 << 20
"""Of a block, unpacked: a day of a large node takes a tenth."""
Numbers = NDArray[np.float64]


class Frame:
    """Rows of figures in the order of time; NaN where one was not told."""

    __slots__ = ("columns", "times")

    def __init__(self, times: NDArray[np.int64], columns: Mapping[str, Numbers]) -> None:
        self.times, self.columns = times, columns

    @staticmethod
    def of(rows: Iterable[tuple[float, Mapping[str, float]]]) -> "Frame":
        """Samples by moment; of two that fall together, the later one of each figure counts."""
        merged: dict[int, dict[str, float]] = {}
        for at, figures in rows:
            merged.setdefault(int(at) // GRID_S * GRID_S, {}).update(figures)
        times = sorted(merged)
        names = sorted({name for figures in merged.values() for name in figures})
        columns = {name: np.array([merged[at].get(name, np.nan) for at in times], np.float64) for name in names}
        return Frame(np.array(times, np.int64), columns)

    @staticmethod
    def joined(frames: Sequence["Frame"]) -> "Frame":
        """All of them as one; where they tell of the same moment, the later frame counts."""
        frames = [frame for frame in frames if len(frame)]
        if len(frames) == 1:
            return frames[0]
        times = np.unique(np.concatenate([np.empty(0, np.int64), *(frame.times for frame in frames)]))
        columns: dict[str, Numbers] = {}
        for frame in frames:
            places = np.searchsorted(times, frame.times)
            for name, values in frame.columns.items():
                whole = columns.setdefault(name, np.full(len(times), np.nan))
                told = ~np.isnan(values)
                whole[places[told]] = values[told]
        return Frame(times, columns)

    def __len__(self) -> int:
        return len(self.times)

    def between(self, start: float, stop: float) -> "Frame":
        """The rows from a moment to before another."""
        low, high = np.searchsorted(self.times, [start, stop])
        kept = {name: values[low:high] for name, values in self.columns.items()}
        return Frame(self.times[low:high], {name: values for name, values in kept.items() if not _empty(values)})

    def column(self, name: str) -> Numbers:
        """One figure at every row."""
        found = self.columns.get(name)
        return np.full(len(self), np.nan) if found is None else found

    def rows(self) -> Iterable[tuple[int, dict[str, float]]]:
        """Row by row, what was told."""
        columns = [(name, column.tolist()) for name, column in self.columns.items()]
        for at, time in enumerate(self.times.tolist()):
            yield time, {name: told[at] for name, told in columns if told[at] == told[at]}

    def newest(self) -> dict[str, float]:
        """The last that was told of every figure."""
        return {
            name: float(told[-1]) for name, column in self.columns.items() if len(told := column[~np.isnan(column)])
        }

    def rolled(self, step_s: int) -> "Frame":
        """One row for every span of so many seconds: mean and highest, or the sum of what is counted."""
        if not len(self):
            return self
        spans = self.times // step_s * step_s
        times, starts = np.unique(spans, return_index=True)
        columns: dict[str, Numbers] = {}
        for name, values in self.columns.items():
            told = ~np.isnan(values)
            counts = np.add.reduceat(told, starts, dtype=np.int64)
            gap, figure = counts == 0, name.rpartition(".")[2]
            if name.endswith("^"):
                columns[name] = _highest(values, starts, gap)
                continue
            sums = np.add.reduceat(np.where(told, values, 0.0), starts)
            columns[name] = np.where(gap, np.nan, sums if figure in SUMMED else sums / np.maximum(counts, 1))
            if figure not in SUMMED and f"{name}^" not in self.columns:
                columns[f"{name}^"] = _highest(values, starts, gap)
        return Frame(times, columns)

    def pack(self) -> bytes:
        """Differences from row to row, the same bytes of each together: most of them are zero, and zlib sees it."""
        names = sorted(self.columns)
        values = np.array([self.columns[name] for name in names]).reshape(len(names), len(self)) * _scales(names)
        whole = np.where(np.isnan(values), 0, np.clip(np.rint(values), 0.0, _MOST) + 1).astype(np.int64)
        table = np.vstack([self.times, whole])
        steps = np.diff(table, axis=1, prepend=0)
        folded = ((steps << 1) ^ (steps >> 63)).astype("<u8")
        planes = folded.view(np.uint8).reshape(len(names) + 1, len(self), 8).transpose(2, 0, 1)
        head = json.dumps([len(self), names], separators=(",", ":")).encode()
        return zlib.compress(head + b"\n" + planes.tobytes(), 6)

    @staticmethod
    def unpack(data: bytes) -> "Frame":
        """What `pack` was given, to the accuracy that is kept."""
        try:
            head, _, body = zlib.decompressobj().decompress(data, _MOST_BYTES).partition(b"\n")
            length, names = json.loads(head)
            planes = np.frombuffer(body, np.uint8).reshape(8, len(names) + 1, length)
            scales = _scales(names)
        except (zlib.error, ValueError, TypeError, AttributeError, RecursionError) as error:
            raise Corrupt("a block of telemetry cannot be read", "it may be of a newer release, or damaged") from error
        folded: Any = np.ascontiguousarray(planes.transpose(1, 2, 0)).view("<u8")[..., 0]
        table = np.cumsum((folded >> 1).astype(np.int64) ^ -(folded & 1).astype(np.int64), axis=1)
        values = np.where(table[1:] == 0, np.nan, (table[1:] - 1) / scales)
        return Frame(table[0], dict(zip(names, values, strict=True)))


def _highest(values: Numbers, starts: NDArray[np.int64], gap: NDArray[np.bool_]) -> Numbers:
    highest = np.maximum.reduceat(np.where(np.isnan(values), -np.inf, values), starts)
    return np.where(gap, np.nan, highest)


def _scales(names: Sequence[str]) -> Numbers:
    """How many units one of each figure is kept as, as a column."""
    scales = [_SCALES.get(name.rpartition(".")[2].rstrip("^"), 1) for name in names]
    return np.array(scales, np.float64).reshape(-1, 1)


def _empty(values: Numbers) -> bool:
    return bool(np.isnan(values).all())
