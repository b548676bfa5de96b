"""From a value to its bin: by the leading bits of a standardised number, or by the words of a category.

A search among 127 edges costs 70 ns a value; a look into a table costs a tenth. So a number is moved to the middle of
the reference and scaled, and the upper half of it as a float32 is looked up: first its rank (how it stands to all
others; 128 steps an octave where values crowd, fewer far out, so that a column takes 4 KiB), then the bin of that rank.
Each step keeps order, so what a bin holds lies between two edges; `find_true_edges` finds where they really are.
"""

import sys
from collections.abc import Iterable, Sequence
from itertools import repeat
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from falaj.drift.records import ProfileAxis

Array = NDArray[np.generic]
Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
SPECIAL_BIN_COUNT = 4
MISSING_OFFSET, INFINITE_OFFSET, BELOW_OFFSET, ABOVE_OFFSET = range(SPECIAL_BIN_COUNT)
"""Where they stand after the bins of an axis."""
MAX_TEXT_CHARS = 128
_FINE_OCTAVE, _FAR_OCTAVE, _END_OCTAVE = -6, 5, 64
"""Octaves: from the first to the second they have 128 steps; below 16, above 8; from the last on there is one."""
_NEAR_OCTAVE: Final = -12
"""Smaller ones are all the same: a float64 that came as a float32 must find the bin it had."""
_UPPER_HALF = 1 if sys.byteorder == "little" else 0
_MAX_FLOAT32 = np.float32(3e38)


def _build_rank_table() -> tuple[NDArray[np.uint16], int]:
    """The rank of every upper half of a float32, and how many there are; the last two are infinite and missing."""
    key = np.arange(1 << 16)
    octave, step = ((key & 0x7FFF) >> 7) - 127, key & 127
    fine_start = (_FINE_OCTAVE - _NEAR_OCTAVE) * 16
    far_start = fine_start + (_FAR_OCTAVE - _FINE_OCTAVE) * 128
    last_start = far_start + (_END_OCTAVE - _FAR_OCTAVE) * 8
    size = np.select(
        [octave < _NEAR_OCTAVE, octave < _FINE_OCTAVE, octave < _FAR_OCTAVE, octave < _END_OCTAVE],
        [0, 1 + (octave - _NEAR_OCTAVE) * 16 + step // 8, 1 + fine_start + (octave - _FINE_OCTAVE) * 128 + step,
         1 + far_start + (octave - _FAR_OCTAVE) * 8 + step // 16],
        1 + last_start,
    )  # fmt: skip
    middle = last_start + 1
    rank = np.where(key >> 15, middle - size, middle + size)
    rank = np.where(octave == 128, np.where(step, 2 * middle + 2, 2 * middle + 1), rank)
    return rank.astype(np.uint16), 2 * middle + 3


_RANK_TABLE, RANK_COUNT = _build_rank_table()
"""The second: bytes of table that a column takes."""


def _build_last_values() -> NDArray[np.float64]:
    """Of every rank, the greatest number that has it: halfway from the last of its float32s to the next."""
    bits = (np.arange(1 << 16, dtype=np.uint32) << 16) | np.where(np.arange(1 << 16) >> 15, 0, 0xFFFF).astype(np.uint32)
    ends = bits.view(np.float32)
    last: Floats = np.full(RANK_COUNT, -float(_MAX_FLOAT32))
    is_finite = np.abs(ends) < _MAX_FLOAT32
    above = np.nextafter(ends[is_finite], np.float32(np.inf)).astype(np.float64)
    np.maximum.at(last, _RANK_TABLE[is_finite], (ends[is_finite] + above) / 2)
    return last


_LAST_VALUES = _build_last_values()


def get_axis_frame(axis: ProfileAxis) -> tuple[float, float]:
    """What a number of this axis is moved and scaled by."""
    if axis.scale > 0:
        return axis.centre, axis.scale
    return axis.mean, get_spread(axis)


class HasSpread(Protocol):
    """What has a middle and a width."""

    @property
    def mean(self) -> float: ...
    @property
    def std(self) -> float: ...


def get_spread(axis: HasSpread) -> float:
    """Its standard deviation; where it has none, so much that a change of a thousandth is a large one."""
    return axis.std if axis.std > 1e-290 else max(abs(axis.mean) * 1e-3, 1e-9)


def compute_ranks(values: Floats, centre: Any, scale: Any) -> NDArray[np.uint16]:
    """How finite numbers of a column stand to each other, as coarse as they are cut."""
    with np.errstate(over="ignore"):
        scaled = ((values - centre) * (1 / scale)).astype(np.float32)
    np.clip(scaled, -_MAX_FLOAT32, _MAX_FLOAT32, out=scaled)
    rank_values: NDArray[np.uint16] = _RANK_TABLE[scaled.view(np.uint16)[_UPPER_HALF::2]]
    return rank_values


def count_ranks(values: Floats, centre: float, scale: float) -> Ints:
    """How many numbers of a column have each rank: as they are cut, so that sums over ranks are counts of bins."""
    with np.errstate(over="ignore", invalid="ignore"):
        centred = values - centre
        centred *= 1 / scale
        scaled = centred.astype(np.float32)
    counts = np.bincount(_RANK_TABLE.take(scaled.view(np.uint16)[_UPPER_HALF::2]), minlength=RANK_COUNT)
    if counts[RANK_COUNT - 2]:  # Too large for a float32 is not infinite.
        overflowed = scaled[np.isinf(scaled) & np.isfinite(values)]
        counts[RANK_COUNT - 2] -= len(overflowed)
        np.add.at(counts, compute_ranks(np.copysign(_MAX_FLOAT32, overflowed).astype(np.float64), 0.0, 1.0), 1)
    return counts


def find_true_edges(edges: Floats, centre: float, scale: float, low: float, high: float) -> Floats:
    """The greatest numbers that are cut like those wanted, each once; none that leaves nothing above it."""
    edge_ranks = np.unique(compute_ranks(edges, centre, scale))
    return find_last_values(
        edge_ranks[edge_ranks < compute_ranks(np.array([high]), centre, scale)[0]], centre, scale, low, high
    )


def find_last_values(edge_ranks: NDArray[np.integer], centre: Any, scale: Any, low: Any, high: Any) -> Floats:
    """The greatest number of each of these ranks; of several columns at once where the rest are arrays, too. `low` is
    cut so or lower, and `high` higher."""
    lower, upper = (_to_ordered_ints(np.broadcast_to(limit, edge_ranks.shape)) for limit in (low, high))
    # Where it should be but for rounding, and a little to both sides of that: what is left to search is short.
    with np.errstate(over="ignore", invalid="ignore"):
        estimates = _LAST_VALUES[edge_ranks] * scale
        tolerances = 8 * np.finfo(np.float64).eps * (abs(estimates) + abs(centre))
        guesses = [_to_ordered_ints(np.nan_to_num(estimates + centre + side)) for side in (-tolerances, tolerances)]
    while guesses or (upper - 1 > lower).any():  # Between `lower`, which is cut so, and `upper`, which is not: halve.
        halfway = (lower >> 1) + (upper >> 1) + (lower & upper & 1)
        middle = np.clip(guesses.pop(), lower, upper) if guesses else halfway
        is_inside = compute_ranks(_from_ordered_ints(middle), centre, scale) <= edge_ranks
        lower, upper = np.where(is_inside, middle, lower), np.where(is_inside, upper, middle)
    return _from_ordered_ints(lower)


def _to_ordered_ints(values: Floats) -> Ints:
    """Whole numbers in the order of the floats."""
    bits = np.ascontiguousarray(values, np.float64).view(np.int64)
    return np.where(bits < 0, np.int64(-(2**63)) - bits, bits)


def _from_ordered_ints(order: Ints) -> Floats:
    return np.where(order < 0, np.int64(-(2**63)) - order, order).view(np.float64)


class NumberCutter:
    """Cuts the columns of a matrix, each by an axis of its own; `starts` says where the bins of each begin."""

    __slots__ = ("_bin_starts", "_inverse", "_table", "_table_offsets", "centre", "scale")

    def __init__(self, axes: Sequence[ProfileAxis], starts: Sequence[int]) -> None:
        frames = [get_axis_frame(axis) for axis in axes]
        self.centre = np.array([centre for centre, _ in frames], np.float64)
        self.scale = np.array([scale for _, scale in frames], np.float64)
        self._inverse = 1 / self.scale
        self._table = np.concatenate([_build_bin_table(axis) for axis in axes]) if axes else np.empty(0, np.uint8)
        self._table_offsets = np.arange(len(axes), dtype=np.int64) * RANK_COUNT
        self._bin_starts = np.array(starts, np.int64)

    @property
    def size_bytes(self) -> int:
        """Of its tables."""
        return self._table.nbytes

    def cut(self, block: NDArray[np.floating]) -> tuple[Ints, Floats]:
        """Of every value: its bin among those of all axes; and the value, moved and scaled."""
        with np.errstate(over="ignore", invalid="ignore"):
            scaled = np.subtract(block, self.centre, dtype=np.float64, order="C")
            scaled *= self._inverse
            as_float32 = scaled.astype(np.float32)
        is_overflowed = np.isinf(as_float32)
        if is_overflowed.any():  # Too large for a float32 is not infinite.
            is_overflowed &= np.isfinite(block)
            as_float32[is_overflowed] = np.copysign(_MAX_FLOAT32, as_float32[is_overflowed])
        rank_values = _RANK_TABLE.take(as_float32.view(np.uint16)[:, _UPPER_HALF::2])
        bins = self._table.take(rank_values + self._table_offsets) + self._bin_starts
        return bins, scaled


def _build_bin_table(axis: ProfileAxis) -> NDArray[np.uint8]:
    """The bin of every rank."""
    centre, scale = get_axis_frame(axis)
    rank = np.arange(RANK_COUNT)
    table = np.searchsorted(compute_ranks(np.array(axis.edges, np.float64), centre, scale), rank, side="left")
    if axis.low < axis.high or not axis.edges:  # An axis with edges and without a range was made without a reference.
        low, high = compute_ranks(np.array([axis.low, axis.high], np.float64), centre, scale)
        table[rank < low], table[rank > high] = axis.bins + BELOW_OFFSET, axis.bins + ABOVE_OFFSET
    table[RANK_COUNT - 2], table[RANK_COUNT - 1] = axis.bins + INFINITE_OFFSET, axis.bins + MISSING_OFFSET
    return table.astype(np.uint8)


class CategoryFinder:
    """Finds values among those of a category, be they text, bytes or numbers."""

    __slots__ = ("_bin_by_value", "_numbers", "_order", "count")

    def __init__(self, values: Iterable[str]) -> None:
        values = tuple(values)
        self.count = len(values)
        self._bin_by_value: dict[object, int] = {value: position for position, value in enumerate(values)}
        self._bin_by_value |= {value.encode(errors="replace"): position for position, value in enumerate(values)}
        numbers = sorted(
            (number, position)
            for position, value in enumerate(values)
            if (number := parse_category_number(value)) is not None
        )
        self._numbers = np.array([number for number, _ in numbers], np.float64)
        self._order = np.array([position for _, position in numbers], np.int64)

    def find(self, column: Array) -> Ints:
        """The place of each value: `count` for others, and after it the odd ones of an axis."""
        if column.dtype.kind in "fiub":
            return self._find_numbers(column.astype(np.float64))
        other_bin = self.count
        bins = np.fromiter(map(self._bin_by_value.get, column.tolist(), repeat(other_bin)), np.int64, len(column))
        for position in np.flatnonzero(bins == other_bin).tolist():  # Few, where the reference is any good.
            bins[position] = self._find_special(column[position])
        return bins

    def _find_numbers(self, column: Floats) -> Ints:
        bins = np.full(len(column), self.count, np.int64)
        if len(self._numbers):
            positions = np.minimum(np.searchsorted(self._numbers, column), len(self._numbers) - 1)
            bins = np.where(self._numbers[positions] == column, self._order[positions], bins)
        bins[np.isnan(column)] = self.count + 1 + MISSING_OFFSET
        bins[np.isinf(column)] = self.count + 1 + INFINITE_OFFSET
        return bins

    def _find_special(self, value: object) -> int:
        if value is None or (isinstance(value, float) and value != value):
            return self.count + 1 + MISSING_OFFSET
        return self._bin_by_value.get(to_category_text(value), self.count)


def to_category_text(value: object) -> str:
    """A value of a category as text: whole numbers are the same whether they came as floats or not."""
    if isinstance(value, bytes):
        return value[: 4 * MAX_TEXT_CHARS].decode(errors="replace")[:MAX_TEXT_CHARS]
    if isinstance(value, (bool, np.bool_)):
        return "true" if value else "false"
    if isinstance(value, (float, np.floating)) and float(value).is_integer():
        value = int(value)
    value_text = str(value)[:MAX_TEXT_CHARS]
    return value_text if value_text.isascii() else value_text.encode(errors="replace").decode()


def parse_category_number(value: str) -> float | None:
    """The number that a value of a category is; None where it is none."""
    if value in {"true", "false"}:
        return float(value == "true")
    try:
        number = float(value)
    except ValueError:
        return None
    return number if np.isfinite(number) else None
