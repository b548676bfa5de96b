"""From a value to its bin: by the leading bits of a standardised number, or by the words of a category.

A search among 127 edges costs 70 ns a value; a look into a table costs a tenth. So a number is moved to the middle of
the reference and scaled, and the upper half of it as a float32 is looked up: first its rank (how it stands to all
others; 128 steps an octave where values crowd, fewer far out, so that a column takes 4 KiB), then the bin of that rank.
Each step keeps order, so what a bin holds lies between two edges; `true_edges` finds where they really are.
"""

import sys
from collections.abc import Iterable, Sequence
from itertools import repeat
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from falaj.drift.records import Axis

Array = NDArray[np.generic]
Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
ODDS = 4
MISSING, INFINITE, BELOW, ABOVE = range(ODDS)
"""Where they stand after the bins of an axis."""
MOST_TEXT = 128
_FINE, _FAR, _END = -6, 5, 64
"""Octaves: from the first to the second they have 128 steps; below 16, above 8; from the last on there is one."""
_NEAR: Final = -12
"""Smaller ones are all the same: a float64 that came as a float32 must find the bin it had."""
_UPPER = 1 if sys.byteorder == "little" else 0
_HUGE = np.float32(3e38)


def _ranked() -> tuple[NDArray[np.uint16], int]:
    """The rank of every upper half of a float32, and how many there are; the last two are infinite and missing."""
    key = np.arange(1 << 16)
    octave, step = ((key & 0x7FFF) >> 7) - 127, key & 127
    fine = (_FINE - _NEAR) * 16
    far = fine + (_FAR - _FINE) * 128
    top = far + (_END - _FAR) * 8
    size = np.select(
        [octave < _NEAR, octave < _FINE, octave < _FAR, octave < _END],
        [0, 1 + (octave - _NEAR) * 16 + step // 8, 1 + fine + (octave - _FINE) * 128 + step,
         1 + far + (octave - _FAR) * 8 + step // 16],
        1 + top,
    )  # fmt: skip
    middle = top + 1
    rank = np.where(key >> 15, middle - size, middle + size)
    rank = np.where(octave == 128, np.where(step, 2 * middle + 2, 2 * middle + 1), rank)
    return rank.astype(np.uint16), 2 * middle + 3


_RANK, RANKS = _ranked()
"""The second: bytes of table that a column takes."""


def _lasts() -> NDArray[np.float64]:
    """Of every rank, the greatest number that has it: halfway from the last of its float32s to the next."""
    bits = (np.arange(1 << 16, dtype=np.uint32) << 16) | np.where(np.arange(1 << 16) >> 15, 0, 0xFFFF).astype(np.uint32)
    ends = bits.view(np.float32)
    last: Floats = np.full(RANKS, -float(_HUGE))
    real = np.abs(ends) < _HUGE
    above = np.nextafter(ends[real], np.float32(np.inf)).astype(np.float64)
    np.maximum.at(last, _RANK[real], (ends[real] + above) / 2)
    return last


_LAST = _lasts()


def frame(axis: Axis) -> tuple[float, float]:
    """What a number of this axis is moved and scaled by."""
    if axis.scale > 0:
        return axis.centre, axis.scale
    return axis.mean, spread(axis)


class Spreading(Protocol):
    """What has a middle and a width."""

    @property
    def mean(self) -> float: ...
    @property
    def std(self) -> float: ...


def spread(axis: Spreading) -> float:
    """Its standard deviation; where it has none, so much that a change of a thousandth is a large one."""
    return axis.std if axis.std > 1e-290 else max(abs(axis.mean) * 1e-3, 1e-9)


def ranks(values: Floats, centre: Any, scale: Any) -> NDArray[np.uint16]:
    """How finite numbers of a column stand to each other, as coarse as they are cut."""
    with np.errstate(over="ignore"):
        small = ((values - centre) * (1 / scale)).astype(np.float32)
    np.clip(small, -_HUGE, _HUGE, out=small)
    found: NDArray[np.uint16] = _RANK[small.view(np.uint16)[_UPPER::2]]
    return found


def rank_counts(values: Floats, centre: float, scale: float) -> Ints:
    """How many numbers of a column have each rank: as they are cut, so that sums over ranks are counts of bins."""
    with np.errstate(over="ignore", invalid="ignore"):
        moved = values - centre
        moved *= 1 / scale
        small = moved.astype(np.float32)
    found = np.bincount(_RANK.take(small.view(np.uint16)[_UPPER::2]), minlength=RANKS)
    if found[RANKS - 2]:  # Too large for a float32 is not infinite.
        wild = small[np.isinf(small) & np.isfinite(values)]
        found[RANKS - 2] -= len(wild)
        np.add.at(found, ranks(np.copysign(_HUGE, wild).astype(np.float64), 0.0, 1.0), 1)
    return found


def true_edges(wanted: Floats, centre: float, scale: float, low: float, high: float) -> Floats:
    """The greatest numbers that are cut like those wanted, each once; none that leaves nothing above it."""
    found = np.unique(ranks(wanted, centre, scale))
    return last_of(found[found < ranks(np.array([high]), centre, scale)[0]], centre, scale, low, high)


def last_of(found: NDArray[np.integer], centre: Any, scale: Any, low: Any, high: Any) -> Floats:
    """The greatest number of each of these ranks; of several columns at once where the rest are arrays, too. `low` is
    cut so or lower, and `high` higher."""
    least, most = (_ordered(np.broadcast_to(one, found.shape)) for one in (low, high))
    # Where it should be but for rounding, and a little to both sides of that: what is left to search is short.
    with np.errstate(over="ignore", invalid="ignore"):
        near = _LAST[found] * scale
        off = 8 * np.finfo(np.float64).eps * (abs(near) + abs(centre))
        guesses = [_ordered(np.nan_to_num(near + centre + side)) for side in (-off, off)]
    while guesses or (most - 1 > least).any():  # Between `least`, which is cut so, and `most`, which is not: halve.
        halfway = (least >> 1) + (most >> 1) + (least & most & 1)
        middle = np.clip(guesses.pop(), least, most) if guesses else halfway
        inside = ranks(_unordered(middle), centre, scale) <= found
        least, most = np.where(inside, middle, least), np.where(inside, most, middle)
    return _unordered(least)


def _ordered(values: Floats) -> Ints:
    """Whole numbers in the order of the floats."""
    bits = np.ascontiguousarray(values, np.float64).view(np.int64)
    return np.where(bits < 0, np.int64(-(2**63)) - bits, bits)


def _unordered(order: Ints) -> Floats:
    return np.where(order < 0, np.int64(-(2**63)) - order, order).view(np.float64)


class Numbers:
    """Cuts the columns of a matrix, each by an axis of its own; `starts` says where the bins of each begin."""

    __slots__ = ("_at", "_inverse", "_start", "_table", "centre", "scale")

    def __init__(self, axes: Sequence[Axis], starts: Sequence[int]) -> None:
        frames = [frame(axis) for axis in axes]
        self.centre = np.array([centre for centre, _ in frames], np.float64)
        self.scale = np.array([scale for _, scale in frames], np.float64)
        self._inverse = 1 / self.scale
        self._table = np.concatenate([_table(axis) for axis in axes]) if axes else np.empty(0, np.uint8)
        self._at = np.arange(len(axes), dtype=np.int64) * RANKS
        self._start = np.array(starts, np.int64)

    @property
    def size_bytes(self) -> int:
        """Of its tables."""
        return self._table.nbytes

    def cut(self, block: NDArray[np.floating]) -> tuple[Ints, Floats]:
        """Of every value: its bin among those of all axes; and the value, moved and scaled."""
        with np.errstate(over="ignore", invalid="ignore"):
            scaled = np.subtract(block, self.centre, dtype=np.float64, order="C")
            scaled *= self._inverse
            small = scaled.astype(np.float32)
        wild = np.isinf(small)
        if wild.any():  # Too large for a float32 is not infinite.
            wild &= np.isfinite(block)
            small[wild] = np.copysign(_HUGE, small[wild])
        found = _RANK.take(small.view(np.uint16)[:, _UPPER::2])
        bins = self._table.take(found + self._at) + self._start
        return bins, scaled


def _table(axis: Axis) -> NDArray[np.uint8]:
    """The bin of every rank."""
    centre, scale = frame(axis)
    rank = np.arange(RANKS)
    table = np.searchsorted(ranks(np.array(axis.edges, np.float64), centre, scale), rank, side="left")
    if axis.low < axis.high or not axis.edges:  # An axis with edges and without a range was made without a reference.
        low, high = ranks(np.array([axis.low, axis.high], np.float64), centre, scale)
        table[rank < low], table[rank > high] = axis.bins + BELOW, axis.bins + ABOVE
    table[RANKS - 2], table[RANKS - 1] = axis.bins + INFINITE, axis.bins + MISSING
    return table.astype(np.uint8)


class Words:
    """Finds values among those of a category, be they text, bytes or numbers."""

    __slots__ = ("_known", "_numbers", "_order", "count")

    def __init__(self, values: Iterable[str]) -> None:
        values = tuple(values)
        self.count = len(values)
        self._known: dict[object, int] = {value: at for at, value in enumerate(values)}
        self._known |= {value.encode(errors="replace"): at for at, value in enumerate(values)}
        numbers = sorted((number, at) for at, value in enumerate(values) if (number := number_of(value)) is not None)
        self._numbers = np.array([number for number, _ in numbers], np.float64)
        self._order = np.array([at for _, at in numbers], np.int64)

    def find(self, column: Array) -> Ints:
        """The place of each value: `count` for others, and after it the odd ones of an axis."""
        if column.dtype.kind in "fiub":
            return self._found(column.astype(np.float64))
        other = self.count
        found = np.fromiter(map(self._known.get, column.tolist(), repeat(other)), np.int64, len(column))
        for at in np.flatnonzero(found == other).tolist():  # Few, where the reference is any good.
            found[at] = self._odd(column[at])
        return found

    def _found(self, column: Floats) -> Ints:
        found = np.full(len(column), self.count, np.int64)
        if len(self._numbers):
            at = np.minimum(np.searchsorted(self._numbers, column), len(self._numbers) - 1)
            found = np.where(self._numbers[at] == column, self._order[at], found)
        found[np.isnan(column)] = self.count + 1 + MISSING
        found[np.isinf(column)] = self.count + 1 + INFINITE
        return found

    def _odd(self, value: object) -> int:
        if value is None or (isinstance(value, float) and value != value):
            return self.count + 1 + MISSING
        return self._known.get(text(value), self.count)


def text(value: object) -> str:
    """A value of a category as text: whole numbers are the same whether they came as floats or not."""
    if isinstance(value, bytes):
        return value[: 4 * MOST_TEXT].decode(errors="replace")[:MOST_TEXT]
    if isinstance(value, (bool, np.bool_)):
        return "true" if value else "false"
    if isinstance(value, (float, np.floating)) and float(value).is_integer():
        value = int(value)
    said = str(value)[:MOST_TEXT]
    return said if said.isascii() else said.encode(errors="replace").decode()


def number_of(value: str) -> float | None:
    """The number that a value of a category is; None where it is none."""
    if value in {"true", "false"}:
        return float(value == "true")
    try:
        number = float(value)
    except ValueError:
        return None
    return number if np.isfinite(number) else None
