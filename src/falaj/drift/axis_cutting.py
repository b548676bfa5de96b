"""How the columns of a reference are cut, and how many of its rows lie in each part.

A number is moved and scaled by what a sample of the rows says. Where its edges lie, and what lies between them, is then
found on all rows by one count of their ranks, which are as fine as any number is ever cut: nothing has to be sorted.
"""

from collections import Counter
from collections.abc import Mapping
from math import isfinite
from operator import sub
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from falaj.core.errors import Invalid
from falaj.drift.records import KIND_CATEGORY, MAX_EDGES, MAX_VALUES, ProfileAxis
from falaj.drift.tally import to_float_values
from falaj.drift.value_binning import (
    RANK_COUNT,
    SPECIAL_BIN_COUNT,
    Array,
    CategoryFinder,
    Floats,
    Ints,
    count_ranks,
    find_last_values,
    get_spread,
    to_category_text,
)

MAX_CATEGORY_INTEGERS = 20
"""Whole numbers with no more different values than this are names, not amounts."""
_SAMPLE_ROWS, _FRAME_SAMPLE_ROWS = 100_000, 4_096
"""Rows that say what a column is and which values of a category are common; and that say where the middle of a number
lies and how far it spreads."""
_BLOCK_ROWS = 1 << 15
"""Values of a column that are looked at in one go: they fit a cache."""
BinCounts = tuple[int, ...]
RowSelection = slice | NDArray[np.int64]


class _NumberFrame(NamedTuple):
    """Of a number: where it lies, as an axis tells it."""

    mean: float = 0.0
    std: float = 0.0
    centre: float = 0.0
    scale: float = 0.0


class _RankedNumber(NamedTuple):
    """A number on its way to an axis."""

    middle: _NumberFrame
    low: float
    high: float
    last: Ints
    """The ranks whose greatest numbers are its edges."""
    counts: BinCounts


def compute_axes(columns: Mapping[str, Array], seed: int = 0) -> tuple[dict[str, ProfileAxis], dict[str, BinCounts]]:
    """The axis of every column, and its counts over all rows: those of its bins, then those of ODD."""
    rows = len(next(iter(columns.values()), ()))
    sample_rows, frame_rows = (
        select_even_rows(rows, _SAMPLE_ROWS, seed),
        select_even_rows(rows, _FRAME_SAMPLE_ROWS, seed),
    )
    axes: dict[str, ProfileAxis] = {}
    counts: dict[str, BinCounts] = {}
    numbers: dict[str, _RankedNumber] = {}
    for name, column in columns.items():
        if _is_number(name, column, sample_rows):
            numbers[name] = _rank_number(np.ascontiguousarray(column), frame_rows)
            counts[name] = numbers[name].counts
        else:
            axes[name] = ProfileAxis(name, KIND_CATEGORY, values=find_common_values(column[sample_rows], MAX_VALUES))
            counts[name] = _count_categories(axes[name], column)
    return axes | _build_number_axes(numbers), counts


def select_even_rows(rows: int, max_rows: int, seed: int) -> RowSelection:
    """So many rows at most, each drawn from as many neighbours: tables are often sorted, or repeat themselves."""
    if rows <= max_rows:
        return slice(None)
    ends = np.arange(max_rows + 1) * rows // max_rows
    return ends[:-1] + (np.random.default_rng(seed).random(max_rows) * np.diff(ends)).astype(np.int64)


def find_common_values(column: Array, max_values: int) -> tuple[str, ...]:
    """Its most common values, the most common first."""
    try:
        counts = Counter(column.tolist())
    except TypeError as error:
        raise Invalid("a column holds lists or the like", "give numbers, text, booleans or dates") from error
    counts_by_text: Counter[str] = Counter()
    for value, count in counts.items():
        if value is not None and value == value:
            counts_by_text[to_category_text(value)] += count
    return tuple(sorted(counts_by_text, key=lambda value: (-counts_by_text[value], value))[:max_values])


def _is_number(name: str, column: Array, sample_rows: RowSelection) -> bool:
    dtype_kind = column.dtype.kind
    if dtype_kind in "iu":
        return len(np.unique(column[sample_rows])) > MAX_CATEGORY_INTEGERS
    if dtype_kind == "O":
        return _are_numbers(column[sample_rows])
    if dtype_kind in "fmMbUST":
        return dtype_kind in "fmM"
    raise Invalid(f"column {name!r} has values of type {column.dtype}", "give numbers, text, booleans or dates")


def _are_numbers(column: Array) -> bool:
    """Python objects: what they are is what the first hundred thousand of them say."""
    value_types = {type(value) for value in column.tolist()} - {type(None)}
    if not value_types or not value_types <= {int, float}:
        return False
    if any(value is not None and not isinstance(value, int) and value == value for value in column.tolist()):
        return True
    values = to_float_values(column)
    return len(np.unique(values[~np.isnan(values)])) > MAX_CATEGORY_INTEGERS


def _count_categories(axis: ProfileAxis, column: Array) -> BinCounts:
    """Of a category."""
    value_finder, counts = CategoryFinder(axis.values), np.zeros(axis.bins + SPECIAL_BIN_COUNT, np.int64)
    for start in range(0, len(column), _BLOCK_ROWS):
        counts += np.bincount(value_finder.find(column[start : start + _BLOCK_ROWS]), minlength=len(counts))
    return tuple(counts.tolist())


def _rank_number(column: Array, frame_rows: RowSelection) -> _RankedNumber:
    """Cut into parts of equally many rows, as far as equal values let it."""
    values = _sort_finite(column[frame_rows])
    if not len(values) and len(column[frame_rows]) < len(column):
        values = _sort_finite(column)  # So few of its values are numbers that the sample has none.
    frame, counts, ends = (
        _compute_frame(values),
        np.zeros(RANK_COUNT, np.int64),
        [*values[:1].tolist(), *values[-1:].tolist()],
    )
    for start in range(0, len(column), _BLOCK_ROWS):
        block = to_float_values(column[start : start + _BLOCK_ROWS])
        counts += count_ranks(block, frame.centre, frame.scale or 1.0)
        ends += _find_ends(block)
    cumulative_counts = counts.cumsum()
    rows, known_rows, all_rows = cumulative_counts[-3:].tolist()
    special_counts = (all_rows - known_rows, known_rows - rows, 0, 0)
    if not rows:
        return _RankedNumber(frame, 0.0, 0.0, np.empty(0, np.int64), (0, *special_counts))
    bin_count = min(MAX_EDGES, max(1, rows // 8)) + 1
    last_ranks = np.searchsorted(cumulative_counts, (np.arange(1, bin_count) * rows) // bin_count, side="right")
    is_usable = cumulative_counts[last_ranks] < rows  # The last rank that there is has nothing above it.
    is_usable[1:] &= last_ranks[1:] > last_ranks[:-1]
    last_ranks = last_ranks[is_usable]
    cumulative_bounds = [0, *cumulative_counts[last_ranks].tolist(), rows]
    return _RankedNumber(
        frame, min(ends), max(ends), last_ranks, (*map(sub, cumulative_bounds[1:], cumulative_bounds), *special_counts)
    )


def _sort_finite(column: Array) -> Floats:
    """Its finite values as numbers, sorted; as narrow as they came, which takes half the time."""
    values = np.sort(column if column.dtype == np.float32 else to_float_values(column))
    # Sorted, what is infinite stands at the ends, and what is missing after all.
    first, last = np.searchsorted(values, -np.inf, side="right"), np.searchsorted(values, np.inf, side="left")
    return np.asarray(values[first:last], np.float64)


def _compute_frame(values: Floats) -> _NumberFrame:
    """Of sorted values."""
    if not len(values):
        return _NumberFrame()
    trimmed_count = len(values) // 1000
    trimmed = values[trimmed_count : len(values) - trimmed_count]
    magnitude = (
        max(abs(float(trimmed[0])), abs(float(trimmed[-1]))) or 1.0
    )  # In parts of it: the sum of large numbers is none.
    trimmed = trimmed / magnitude
    moments_frame = _NumberFrame(magnitude * float(trimmed.mean()), magnitude * float(trimmed.std()))
    low, centre, high = (float(values[(quarter * len(values)) // 4]) for quarter in (1, 2, 3))
    scale = min(2 * (high / 2.698 - low / 2.698), 1e308)
    return moments_frame._replace(
        centre=centre, scale=scale if scale > abs(moments_frame.mean) * 1e-12 else get_spread(moments_frame)
    )


def _find_ends(block: Floats) -> list[float]:
    """The least and the greatest finite value."""
    ends = [float(block.min()), float(block.max())]
    if isfinite(ends[0]) and isfinite(ends[1]):
        return ends
    finite = block[np.isfinite(block)]
    return [float(finite.min()), float(finite.max())] if len(finite) else []


def _build_number_axes(numbers: Mapping[str, _RankedNumber]) -> dict[str, ProfileAxis]:
    """Their axes, with edges that are searched for in one go."""
    ranked_numbers = list(numbers.values())
    edge_counts = [len(ranked.last) for ranked in ranked_numbers]
    frames = [(ranked.middle.centre, ranked.middle.scale, ranked.low, ranked.high) for ranked in ranked_numbers]
    spans = np.repeat(np.array(frames, np.float64).reshape(-1, 4), edge_counts, axis=0).T
    edge_values = find_last_values(
        np.concatenate([np.empty(0, np.int64), *(ranked.last for ranked in ranked_numbers)]), *spans
    ).tolist()
    axes: dict[str, ProfileAxis] = {}
    for (name, ranked), end, edge_count in zip(
        numbers.items(), np.cumsum(edge_counts).tolist(), edge_counts, strict=True
    ):
        axes[name] = ProfileAxis(
            name,
            edges=tuple(edge_values[end - edge_count : end]),
            low=ranked.low,
            high=ranked.high,
            **ranked.middle._asdict(),
        )
    return axes
