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
from falaj.drift.cutting import ODDS, RANKS, Array, Floats, Ints, Words, last_of, rank_counts, spread, text
from falaj.drift.records import CATEGORY, MOST_EDGES, MOST_VALUES, Axis
from falaj.drift.tally import as_numbers

FEW_WHOLE = 20
"""Whole numbers with no more different values than this are names, not amounts."""
_SAMPLE, _FRAMED = 100_000, 4_096
"""Rows that say what a column is and which values of a category are common; and that say where the middle of a number
lies and how far it spreads."""
_BLOCK = 1 << 15
"""Values of a column that are looked at in one go: they fit a cache."""
Counts = tuple[int, ...]
Rows = slice | NDArray[np.int64]


class _Middle(NamedTuple):
    """Of a number: where it lies, as an axis tells it."""

    mean: float = 0.0
    std: float = 0.0
    centre: float = 0.0
    scale: float = 0.0


class _Ranked(NamedTuple):
    """A number on its way to an axis."""

    middle: _Middle
    low: float
    high: float
    last: Ints
    """The ranks whose greatest numbers are its edges."""
    counts: Counts


def axes_of(columns: Mapping[str, Array], seed: int = 0) -> tuple[dict[str, Axis], dict[str, Counts]]:
    """The axis of every column, and its counts over all rows: those of its bins, then those of ODD."""
    rows = len(next(iter(columns.values()), ()))
    picks, framed = even(rows, _SAMPLE, seed), even(rows, _FRAMED, seed)
    axes: dict[str, Axis] = {}
    counts: dict[str, Counts] = {}
    numbers: dict[str, _Ranked] = {}
    for name, column in columns.items():
        if _is_number(name, column, picks):
            numbers[name] = _ranked(np.ascontiguousarray(column), framed)
            counts[name] = numbers[name].counts
        else:
            axes[name] = Axis(name, CATEGORY, values=common(column[picks], MOST_VALUES))
            counts[name] = _counted(axes[name], column)
    return axes | _cut(numbers), counts


def even(rows: int, most: int, seed: int) -> Rows:
    """So many rows at most, each drawn from as many neighbours: tables are often sorted, or repeat themselves."""
    if rows <= most:
        return slice(None)
    ends = np.arange(most + 1) * rows // most
    return ends[:-1] + (np.random.default_rng(seed).random(most) * np.diff(ends)).astype(np.int64)


def common(column: Array, most: int) -> tuple[str, ...]:
    """Its most common values, the most common first."""
    try:
        every = Counter(column.tolist())
    except TypeError as error:
        raise Invalid("a column holds lists or the like", "give numbers, text, booleans or dates") from error
    found: Counter[str] = Counter()
    for value, count in every.items():
        if value is not None and value == value:
            found[text(value)] += count
    return tuple(sorted(found, key=lambda value: (-found[value], value))[:most])


def _is_number(name: str, column: Array, picks: Rows) -> bool:
    kind = column.dtype.kind
    if kind in "iu":
        return len(np.unique(column[picks])) > FEW_WHOLE
    if kind == "O":
        return _are_numbers(column[picks])
    if kind in "fmMbUST":
        return kind in "fmM"
    raise Invalid(f"column {name!r} has values of type {column.dtype}", "give numbers, text, booleans or dates")


def _are_numbers(column: Array) -> bool:
    """Python objects: what they are is what the first hundred thousand of them say."""
    kinds = {type(value) for value in column.tolist()} - {type(None)}
    if not kinds or not kinds <= {int, float}:
        return False
    if any(value is not None and not isinstance(value, int) and value == value for value in column.tolist()):
        return True
    values = as_numbers(column)
    return len(np.unique(values[~np.isnan(values)])) > FEW_WHOLE


def _counted(axis: Axis, column: Array) -> Counts:
    """Of a category."""
    words, found = Words(axis.values), np.zeros(axis.bins + ODDS, np.int64)
    for first in range(0, len(column), _BLOCK):
        found += np.bincount(words.find(column[first : first + _BLOCK]), minlength=len(found))
    return tuple(found.tolist())


def _ranked(column: Array, framed: Rows) -> _Ranked:
    """Cut into parts of equally many rows, as far as equal values let it."""
    values = _ascending(column[framed])
    if not len(values) and len(column[framed]) < len(column):
        values = _ascending(column)  # So few of its values are numbers that the sample has none.
    middle, counts, ends = _middle(values), np.zeros(RANKS, np.int64), [*values[:1].tolist(), *values[-1:].tolist()]
    for first in range(0, len(column), _BLOCK):
        part = as_numbers(column[first : first + _BLOCK])
        counts += rank_counts(part, middle.centre, middle.scale or 1.0)
        ends += _ends(part)
    upto = counts.cumsum()
    rows, known, every = upto[-3:].tolist()
    odd = (every - known, known - rows, 0, 0)
    if not rows:
        return _Ranked(middle, 0.0, 0.0, np.empty(0, np.int64), (0, *odd))
    parts = min(MOST_EDGES, max(1, rows // 8)) + 1
    last = np.searchsorted(upto, (np.arange(1, parts) * rows) // parts, side="right")
    wanted = upto[last] < rows  # The last rank that there is has nothing above it.
    wanted[1:] &= last[1:] > last[:-1]
    last = last[wanted]
    below = [0, *upto[last].tolist(), rows]
    return _Ranked(middle, min(ends), max(ends), last, (*map(sub, below[1:], below), *odd))


def _ascending(column: Array) -> Floats:
    """Its finite values as numbers, sorted; as narrow as they came, which takes half the time."""
    values = np.sort(column if column.dtype == np.float32 else as_numbers(column))
    # Sorted, what is infinite stands at the ends, and what is missing after all.
    first, last = np.searchsorted(values, -np.inf, side="right"), np.searchsorted(values, np.inf, side="left")
    return np.asarray(values[first:last], np.float64)


def _middle(values: Floats) -> _Middle:
    """Of sorted values."""
    if not len(values):
        return _Middle()
    trim = len(values) // 1000
    inner = values[trim : len(values) - trim]
    top = max(abs(float(inner[0])), abs(float(inner[-1]))) or 1.0  # In parts of it: the sum of large numbers is none.
    inner = inner / top
    bare = _Middle(top * float(inner.mean()), top * float(inner.std()))
    low, centre, high = (float(values[(part * len(values)) // 4]) for part in (1, 2, 3))
    scale = min(2 * (high / 2.698 - low / 2.698), 1e308)
    return bare._replace(centre=centre, scale=scale if scale > abs(bare.mean) * 1e-12 else spread(bare))


def _ends(part: Floats) -> list[float]:
    """The least and the greatest finite value."""
    ends = [float(part.min()), float(part.max())]
    if isfinite(ends[0]) and isfinite(ends[1]):
        return ends
    finite = part[np.isfinite(part)]
    return [float(finite.min()), float(finite.max())] if len(finite) else []


def _cut(numbers: Mapping[str, _Ranked]) -> dict[str, Axis]:
    """Their axes, with edges that are searched for in one go."""
    every = list(numbers.values())
    sizes = [len(one.last) for one in every]
    frames = [(one.middle.centre, one.middle.scale, one.low, one.high) for one in every]
    spans = np.repeat(np.array(frames, np.float64).reshape(-1, 4), sizes, axis=0).T
    found = last_of(np.concatenate([np.empty(0, np.int64), *(one.last for one in every)]), *spans).tolist()
    axes: dict[str, Axis] = {}
    for (name, one), end, size in zip(numbers.items(), np.cumsum(sizes).tolist(), sizes, strict=True):
        axes[name] = Axis(
            name, edges=tuple(found[end - size : end]), low=one.low, high=one.high, **one.middle._asdict()
        )
    return axes
