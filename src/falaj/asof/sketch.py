"""Sketches that merge to the same bits in any order: histograms and exact totals.

A histogram keeps of each number its leading bits: as many as leave at most MOST buckets. How many those are depends on
the numbers alone, because buckets nest and more numbers never need fewer of them; so neither order nor batches show.
Few distinct numbers are kept as they are, and many still have some hundred buckets where they crowd.
"""

import math
from fractions import Fraction
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

MOST = 1_000
Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Hashes = NDArray[np.uint64]
Exact = tuple[int, int]
"""mantissa * 2 ** exponent, the mantissa odd or zero."""
NOTHING: Exact = (0, 0)
_REST = np.int64((1 << 63) - 1)
_HALF = 27
_ROWS = 1 << 16
"""Sums of halves of so many numbers (of 256 times as many, too) are whole in a float64; and they fit a cache."""
_SAMPLE = 1 << 13


class Histogram(NamedTuple):
    """Buckets of numbers: the first `64 - shift` bits of each, in the order of numbers, and how many there are."""

    shift: int = 0
    keys: tuple[int, ...] = ()
    counts: tuple[int, ...] = ()

    @property
    def size(self) -> int:
        return sum(self.counts)


def histogram(values: Floats, shift: int = 0) -> Histogram:
    """Of finite numbers. A `shift` given keeps no more than 64 - shift bits of any."""
    if not len(values):
        return Histogram(shift)
    if len(values) > _SAMPLE:
        # A part never needs a coarser cut than the whole; behind it, there is mostly little to sort.
        shift = histogram(values[:: len(values) // _SAMPLE + 1], shift).shift
    return _fitted(shift, *_counted(_ordered(values) >> shift))


def joined(a: Histogram, b: Histogram) -> Histogram:
    """Of both."""
    keys, ours, theirs, shift = aligned(a, b)
    return _fitted(shift, keys, ours + theirs)


def aligned(a: Histogram, b: Histogram) -> tuple[Ints, Ints, Ints, int]:
    """The buckets that either has, at the coarser of both cuts; how many each has in them; the cut."""
    shift = max(a.shift, b.shift)
    cut = [np.array(one.keys, np.int64) >> (shift - one.shift) for one in (a, b)]
    keys = np.unique(np.concatenate(cut))
    found = [np.zeros(len(keys), np.int64), np.zeros(len(keys), np.int64)]
    for into, part, one in zip(found, cut, (a, b), strict=True):
        np.add.at(into, np.searchsorted(keys, part), np.array(one.counts, np.int64))
    return keys, found[0], found[1], shift


def bounds(keys: Ints, shift: int) -> tuple[Floats, Floats]:
    """The least and the greatest finite number of each bucket."""
    ends = _ordered(np.array([-np.finfo(np.float64).max, np.finfo(np.float64).max]))
    low = keys << shift
    return _number(np.clip(low, *ends)), _number(np.clip(low | np.int64((1 << shift) - 1), *ends))


def quantile(kept: Histogram, share: float) -> float | None:
    """The number below which such a share lies, as near as the buckets tell."""
    if not kept.keys:
        return None
    low, high = bounds(np.array(kept.keys, np.int64), kept.shift)
    upto = np.cumsum(np.array(kept.counts, np.int64))
    rank = share * (int(upto[-1]) - 1)
    at = min(int(np.searchsorted(upto, rank, side="right")), len(upto) - 1)
    before = int(upto[at]) - kept.counts[at]
    part = min(1.0, max(0.0, (rank - before + 0.5) / kept.counts[at]))
    return float(low[at] * (1 - part) + high[at] * part) if low[at] != high[at] else float(low[at])


def totals(values: Floats) -> tuple[Exact, Exact]:
    """The sum of finite numbers and of their squares, exact."""
    sums, squares = NOTHING, NOTHING
    for start in range(0, len(values), _ROWS):
        part, power = np.frexp(values[start : start + _ROWS])
        whole, power = np.ldexp(part, 53).astype(np.int64), power.astype(np.int64) - 53
        sums = plus(sums, _weighed(whole, power))
        high, low = np.abs(whole) >> _HALF, np.abs(whole) & ((1 << _HALF) - 1)
        for product, extra in ((high * high, 2 * _HALF), (high * low, _HALF + 1), (low * low, 0)):
            squares = plus(squares, _weighed(product, 2 * power + extra))
    return sums, squares


def plus(a: Exact, b: Exact) -> Exact:
    """The exact sum of two."""
    low = min(a[1], b[1])
    return _normal((a[0] << (a[1] - low)) + (b[0] << (b[1] - low)), low)


def mean_and_std(sums: Exact, squares: Exact, count: int) -> tuple[float, float]:
    """Of so many numbers; the spread of these numbers themselves (divided by their count)."""
    mean = _fraction(sums) / count
    spread = _fraction(squares) / count - mean * mean
    # Halving the power first: a spread has room in a float64 where its square has none.
    power = (spread.numerator.bit_length() - spread.denominator.bit_length()) // 2
    return float(mean), math.ldexp(math.sqrt(spread / Fraction(4) ** power), power)


def mixed(bits: Hashes) -> Hashes:
    """64 bits spread evenly; the same on every machine and in every release (the finisher of splitmix64)."""
    with np.errstate(over="ignore"):
        bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return bits ^ (bits >> np.uint64(31))


def _ordered(values: Floats) -> Ints:
    """The bits of numbers as integers that sort as they do; both zeros are one."""
    bits: Ints = np.ascontiguousarray(values + 0.0).view(np.int64)
    return bits ^ ((bits >> 63) & _REST)


def _number(ordered: Ints) -> Floats:
    return np.ascontiguousarray(ordered ^ ((ordered >> 63) & _REST)).view(np.float64)


def _fitted(shift: int, keys: Ints, counts: Ints) -> Histogram:
    """Sorted keys, cut at the least place that leaves MOST: neighbours that differ in no bit above it become one."""
    if len(keys) > MOST:
        apart = (keys[1:] ^ keys[:-1]).view(np.uint64)
        cut = int(np.partition(apart, -MOST)[-MOST]).bit_length()
        shift, keys = shift + cut, keys >> cut
        starts = np.flatnonzero(np.append(True, keys[1:] != keys[:-1]))
        keys, counts = keys[starts], np.add.reduceat(counts, starts)
    return Histogram(shift, tuple(keys.tolist()), tuple(counts.tolist()))


def _counted(keys: Ints) -> tuple[Ints, Ints]:
    """Keys once each, in order, and how often."""
    least, most = int(keys.min()), int(keys.max())
    if most - least > 4 * len(keys):
        return np.unique(keys, return_counts=True)
    counts = np.bincount(keys - least)
    used = np.flatnonzero(counts)
    return used + least, counts[used]


def _weighed(whole: Ints, power: Ints) -> Exact:
    """The sum of whole * 2 ** power, whole below 2 ** 54: by powers, in halves, then in Python's own integers."""
    least = int(power.min())
    high = np.bincount(power - least, weights=(whole >> _HALF).astype(np.float64))
    low = np.bincount(power - least, weights=(whole & ((1 << _HALF) - 1)).astype(np.float64))
    used = np.flatnonzero((high != 0) | (low != 0)).tolist()
    return _normal(sum(((int(high[at]) << _HALF) + int(low[at])) << at for at in used), least)


def _normal(mantissa: int, exponent: int) -> Exact:
    if not mantissa:
        return NOTHING
    zeros = (mantissa & -mantissa).bit_length() - 1
    return mantissa >> zeros, exponent + zeros


def _fraction(exact: Exact) -> Fraction:
    return exact[0] * Fraction(2) ** exact[1]
