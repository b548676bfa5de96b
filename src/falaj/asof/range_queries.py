"""Questions about ranges of a column, all answered at once at a cost that does not grow with their length.

Sums are differences of running sums, least and greatest come from tables of doubling width, and how many different
values from a bitwise sort.
"""

from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from falaj.asof import exact_sums
from falaj.asof.exact_sums import Ints, count_running

Values = NDArray[Any] | list[Any]
Valid = NDArray[np.bool_]
Columns = Mapping[str, tuple[Values, Valid]]
"""Name to cells (a list where they are text or bytes), and which of them are not null."""

_INT64_MIN, _INT64_MAX = -(1 << 63), (1 << 63) - 1
_MAX_COPIED_CELLS = 1 << 22
"""How many cells are copied out at once."""


class RangeColumn:
    """The cells of a column that are not null; questions are about ranges of them."""

    def __init__(self, values: Values, valid: Valid) -> None:
        self._count_before = None if valid.all() else count_running(valid)
        self.values = values if self._count_before is None else take_cells(values, np.flatnonzero(valid))

    def place(self, rows: Ints) -> Ints:
        """Where rows begin among the cells."""
        return rows if self._count_before is None else self._count_before[rows]

    @cached_property
    def running(self) -> exact_sums.RunningSums:
        return exact_sums.compute_running_sums(np.asarray(self.values))

    @cached_property
    def codes(self) -> Ints:
        """Equal for equal values and for no others."""
        if isinstance(self.values, list) or self.values.dtype.kind not in "fiub":
            values = self.values if isinstance(self.values, list) else self.values.tolist()
            code_by_value = {value: code for code, value in enumerate(dict.fromkeys(values))}
            return np.fromiter(map(code_by_value.__getitem__, values), np.int64, len(values))
        if self.values.dtype.kind != "f":
            return self.values.astype(np.int64)
        floats = self.values.astype(np.float64) + 0.0  # makes -0.0 0.0
        floats[np.isnan(floats)] = np.nan
        return floats.view(np.int64)

    @cached_property
    def twins(self) -> tuple[Ints, Ints]:
        """For each cell the place of the last equal one before it (-1: none), and of the next (or beyond the end)."""
        codes = self.codes
        previous_equal, next_equal = np.full(len(codes), -1), np.full(len(codes), len(codes))
        order = np.argsort(codes, kind="stable")
        sorted_codes = codes[order]
        repeat_positions = np.flatnonzero(sorted_codes[1:] == sorted_codes[:-1])
        previous_equal[order[repeat_positions + 1]] = order[repeat_positions]
        next_equal[order[repeat_positions]] = order[repeat_positions + 1]
        return previous_equal, next_equal

    def extreme_keys(self, how: str, lo: Ints, hi: Ints) -> Ints:
        """The least or greatest of ranges, none empty, as whole numbers that sort as the values do."""
        return find_extremes(
            to_sort_keys(np.asarray(self.values), how), lo, hi, np.minimum if how == "min" else np.maximum
        )

    def distinct(self, lo: Ints, hi: Ints) -> Ints:
        """How many different values: those that have no twin before them in the range."""
        return _count_below(self.twins[0] + 1, lo, hi, lo + 1)

    def last(self, n: int, lo: Ints, hi: Ints) -> list[list[Any]]:
        lo = np.maximum(lo, hi - n)
        out: list[list[Any]] = []
        for range_slice in iterate_range_parts(hi - lo):
            range_cells = take_cells(self.values, expand_ranges(lo[range_slice], hi[range_slice]))
            python_values = range_cells if isinstance(range_cells, list) else range_cells.tolist()
            ends = np.cumsum(hi[range_slice] - lo[range_slice])
            starts = ends - (hi[range_slice] - lo[range_slice])
            out += [python_values[a:b] for a, b in zip(starts.tolist(), ends.tolist(), strict=True)]
        return out


def take_cells(values: Values, rows: Ints) -> Values:
    """Some of a column's cells."""
    return [values[row] for row in rows.tolist()] if isinstance(values, list) else values[rows]


def expand_ranges(lo: Ints, hi: Ints) -> Ints:
    """Every place of each range, one after the other."""
    sizes = hi - lo
    shift: Ints = np.repeat(lo - (np.cumsum(sizes) - sizes), sizes)
    return np.arange(len(shift)) + shift


def iterate_range_parts(sizes: Ints) -> Iterator[slice]:
    """Cut so that each part has some millions of cells, or one range that has more."""
    ends, start = np.cumsum(sizes), 0
    while start < len(sizes):
        done_cells = int(ends[start - 1]) if start else 0
        stop = max(start + 1, int(np.searchsorted(ends, done_cells + _MAX_COPIED_CELLS, "right")))
        yield slice(start, stop)
        start = stop


def to_sort_keys(values: NDArray[Any], how: str) -> Ints:
    """Whole numbers in the order of values; NaN is the extreme of both ends, so that it always shows."""
    if values.dtype.kind != "f":
        return values.astype(np.int64)
    bits = values.astype(np.float64).view(np.int64)
    keys: Ints = bits ^ ((bits >> 63) & _INT64_MAX)
    keys[np.isnan(values)] = _INT64_MIN if how == "min" else _INT64_MAX
    return keys


def from_sort_keys(keys: Ints, dtype: np.dtype[Any]) -> NDArray[Any]:
    """The values behind `to_sort_keys`."""
    if dtype.kind != "f":
        return keys.astype(dtype)
    values = (keys ^ ((keys >> 63) & _INT64_MAX)).view(np.float64)
    return np.where(np.isnan(values), np.nan, values).astype(dtype)


def find_extremes(keys: Ints, lo: Ints, hi: Ints, choose: Callable[..., Any]) -> Ints:
    """The least or greatest of each range, none empty: two overlapping stretches of the widest power of two."""
    level = np.frexp((hi - lo).astype(np.float64))[1] - 1
    out = np.zeros(len(lo), np.int64)
    for power in range(int(level.max(initial=-1)) + 1):
        level_ranges = np.flatnonzero(level == power)
        out[level_ranges] = choose(keys[lo[level_ranges]], keys[hi[level_ranges] - (1 << power)])
        keys = choose(keys[: -(1 << power)], keys[1 << power :])
    return out


def _count_below(numbers: Ints, lo: Ints, hi: Ints, limit: Ints) -> Ints:
    """How many of each range are below a limit. Bit by bit from the top: numbers with a 0 go before those with a 1, and
    a range follows its limit's bit; where that is 1, those with a 0 are below."""
    out = np.zeros(len(lo), np.int64)
    for bit in reversed(range(int(len(numbers) + 1).bit_length())):
        has_zero_bit = (numbers >> bit) & 1 == 0
        zero_counts = count_running(has_zero_bit)
        low, high = zero_counts[lo], zero_counts[hi]
        has_one_bit = (limit >> bit) & 1 == 1
        out += np.where(has_one_bit, high - low, 0)
        lo, hi = (
            np.where(has_one_bit, zero_counts[-1] + end - count_before, count_before)
            for end, count_before in ((lo, low), (hi, high))
        )
        numbers = np.concatenate([numbers[has_zero_bit], numbers[~has_zero_bit]])
    return out
