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

MAX_BUCKETS = 1_000
Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Hashes = NDArray[np.uint64]
ExactSum = tuple[int, int]
"""mantissa * 2 ** exponent, the mantissa odd or zero."""
EXACT_ZERO: ExactSum = (0, 0)
_SIGNLESS_MASK = np.int64((1 << 63) - 1)
_HALF_BITS = 27
_BLOCK_ROWS = 1 << 16
"""Sums of halves of so many numbers (of 256 times as many, too) are whole in a float64; and they fit a cache."""
_SAMPLE_ROWS = 1 << 13


class Histogram(NamedTuple):
    """Buckets of numbers: the first `64 - shift` bits of each, in the order of numbers, and how many there are."""

    shift: int = 0
    keys: tuple[int, ...] = ()
    counts: tuple[int, ...] = ()

    @property
    def size(self) -> int:
        return sum(self.counts)


def build_histogram(values: Floats, shift: int = 0) -> Histogram:
    """Of finite numbers. A `shift` given keeps no more than 64 - shift bits of any."""
    if not len(values):
        return Histogram(shift)
    if len(values) > _SAMPLE_ROWS:
        # A part never needs a coarser cut than the whole; behind it, there is mostly little to sort.
        shift = build_histogram(values[:: len(values) // _SAMPLE_ROWS + 1], shift).shift
    return _limit_buckets(shift, *_count_keys(_to_ordered_ints(values) >> shift))


def merge_histograms(a: Histogram, b: Histogram) -> Histogram:
    """Of both."""
    keys, first_counts, second_counts, shift = align_histograms(a, b)
    return _limit_buckets(shift, keys, first_counts + second_counts)


def align_histograms(a: Histogram, b: Histogram) -> tuple[Ints, Ints, Ints, int]:
    """The buckets that either has, at the coarser of both cuts; how many each has in them; the cut."""
    shift = max(a.shift, b.shift)
    shifted_keys_by_source = [np.array(source.keys, np.int64) >> (shift - source.shift) for source in (a, b)]
    keys = np.unique(np.concatenate(shifted_keys_by_source))
    counts = [np.zeros(len(keys), np.int64), np.zeros(len(keys), np.int64)]
    for counts_by_key, shifted_keys, source in zip(counts, shifted_keys_by_source, (a, b), strict=True):
        np.add.at(counts_by_key, np.searchsorted(keys, shifted_keys), np.array(source.counts, np.int64))
    return keys, counts[0], counts[1], shift


def compute_bucket_bounds(keys: Ints, shift: int) -> tuple[Floats, Floats]:
    """The least and the greatest finite number of each bucket."""
    ends = _to_ordered_ints(np.array([-np.finfo(np.float64).max, np.finfo(np.float64).max]))
    low = keys << shift
    return _from_ordered_ints(np.clip(low, *ends)), _from_ordered_ints(np.clip(low | np.int64((1 << shift) - 1), *ends))


def estimate_quantile(source: Histogram, share: float) -> float | None:
    """The number below which such a share lies, as near as the buckets tell."""
    if not source.keys:
        return None
    low, high = compute_bucket_bounds(np.array(source.keys, np.int64), source.shift)
    cumulative_counts = np.cumsum(np.array(source.counts, np.int64))
    rank = share * (int(cumulative_counts[-1]) - 1)
    position = min(int(np.searchsorted(cumulative_counts, rank, side="right")), len(cumulative_counts) - 1)
    count_before = int(cumulative_counts[position]) - source.counts[position]
    fraction = min(1.0, max(0.0, (rank - count_before + 0.5) / source.counts[position]))
    return (
        float(low[position] * (1 - fraction) + high[position] * fraction)
        if low[position] != high[position]
        else float(low[position])
    )


def sum_exactly(values: Floats) -> tuple[ExactSum, ExactSum]:
    """The sum of finite numbers and of their squares, exact."""
    total, squares = EXACT_ZERO, EXACT_ZERO
    for start in range(0, len(values), _BLOCK_ROWS):
        fractions, power = np.frexp(values[start : start + _BLOCK_ROWS])
        mantissas, power = np.ldexp(fractions, 53).astype(np.int64), power.astype(np.int64) - 53
        total = add_exact(total, _sum_scaled(mantissas, power))
        high, low = np.abs(mantissas) >> _HALF_BITS, np.abs(mantissas) & ((1 << _HALF_BITS) - 1)
        for product, shift in ((high * high, 2 * _HALF_BITS), (high * low, _HALF_BITS + 1), (low * low, 0)):
            squares = add_exact(squares, _sum_scaled(product, 2 * power + shift))
    return total, squares


def add_exact(a: ExactSum, b: ExactSum) -> ExactSum:
    """The exact sum of two."""
    low = min(a[1], b[1])
    return _normalize_exact((a[0] << (a[1] - low)) + (b[0] << (b[1] - low)), low)


def compute_mean_and_std(sums: ExactSum, squares: ExactSum, count: int) -> tuple[float, float]:
    """Of so many numbers; the spread of these numbers themselves (divided by their count)."""
    mean = _to_fraction(sums) / count
    variance = _to_fraction(squares) / count - mean * mean
    # Halving the power first: a spread has room in a float64 where its square has none.
    power = (variance.numerator.bit_length() - variance.denominator.bit_length()) // 2
    return float(mean), math.ldexp(math.sqrt(variance / Fraction(4) ** power), power)


def mix_bits(bits: Hashes) -> Hashes:
    """64 bits spread evenly; the same on every machine and in every release (the finisher of splitmix64)."""
    with np.errstate(over="ignore"):
        bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return bits ^ (bits >> np.uint64(31))


def _to_ordered_ints(values: Floats) -> Ints:
    """The bits of numbers as integers that sort as they do; both zeros are one."""
    bits: Ints = np.ascontiguousarray(values + 0.0).view(np.int64)
    return bits ^ ((bits >> 63) & _SIGNLESS_MASK)


def _from_ordered_ints(ordered: Ints) -> Floats:
    return np.ascontiguousarray(ordered ^ ((ordered >> 63) & _SIGNLESS_MASK)).view(np.float64)


def _limit_buckets(shift: int, keys: Ints, counts: Ints) -> Histogram:
    """Sorted keys, cut at the least place that leaves MOST: neighbours that differ in no bit above it become one."""
    if len(keys) > MAX_BUCKETS:
        differing_bits = (keys[1:] ^ keys[:-1]).view(np.uint64)
        cut_bits = int(np.partition(differing_bits, -MAX_BUCKETS)[-MAX_BUCKETS]).bit_length()
        shift, keys = shift + cut_bits, keys >> cut_bits
        starts = np.flatnonzero(np.append(True, keys[1:] != keys[:-1]))
        keys, counts = keys[starts], np.add.reduceat(counts, starts)
    return Histogram(shift, tuple(keys.tolist()), tuple(counts.tolist()))


def _count_keys(keys: Ints) -> tuple[Ints, Ints]:
    """Keys once each, in order, and how often."""
    smallest, greatest = int(keys.min()), int(keys.max())
    if greatest - smallest > 4 * len(keys):
        return np.unique(keys, return_counts=True)
    counts = np.bincount(keys - smallest)
    used_positions = np.flatnonzero(counts)
    return used_positions + smallest, counts[used_positions]


def _sum_scaled(mantissas: Ints, power: Ints) -> ExactSum:
    """The sum of whole * 2 ** power, whole below 2 ** 54: by powers, in halves, then in Python's own integers."""
    smallest = int(power.min())
    high = np.bincount(power - smallest, weights=(mantissas >> _HALF_BITS).astype(np.float64))
    low = np.bincount(power - smallest, weights=(mantissas & ((1 << _HALF_BITS) - 1)).astype(np.float64))
    used_offsets = np.flatnonzero((high != 0) | (low != 0)).tolist()
    return _normalize_exact(
        sum(((int(high[offset]) << _HALF_BITS) + int(low[offset])) << offset for offset in used_offsets), smallest
    )


def _normalize_exact(mantissa: int, exponent: int) -> ExactSum:
    if not mantissa:
        return EXACT_ZERO
    zeros = (mantissa & -mantissa).bit_length() - 1
    return mantissa >> zeros, exponent + zeros


def _to_fraction(exact: ExactSum) -> Fraction:
    return exact[0] * Fraction(2) ** exact[1]
