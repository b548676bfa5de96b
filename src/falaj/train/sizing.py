"""The largest micro-batch that fits into memory, by a line through measurements and as few of them as it takes."""

import bisect
from collections.abc import Callable, Sequence
from typing import NamedTuple

FILL_SHARE, MAX_FILL_SHARE = 0.88, 0.92
"""So much of the free memory is filled; beyond the second share large pieces find no place, sooner or later."""
_MAX_EXTRAPOLATION, _MAX_GROWTH = 3, 8
"""A line is believed up to so many times its last point; without a slope nothing grows by more than this at a time."""


class MemoryPoint(NamedTuple):
    """What one micro-batch took in forward and backward, the optimizer's state beside it. The step of the optimizer is
    left out: it takes the same whatever the micro-batch, and a line through its peak would be flat."""

    samples: int
    bytes: int
    free_bytes: int
    fits: bool = True


class SizingResult(NamedTuple):
    """The largest that fits, and what the line said of it before it was tried."""

    samples: int
    predicted: float
    """In samples, whole or not; infinite when memory does not grow with them."""
    brim: float = float("inf")
    """As many would fill memory to the last byte, by the same line: what nobody should run."""


def list_divisors(number: int) -> list[int]:
    """All of them, smallest first."""
    small_divisors = [divisor for divisor in range(1, int(number**0.5) + 1) if number % divisor == 0]
    return sorted({*small_divisors, *(number // divisor for divisor in small_divisors)})


def find_largest_below(sizes: Sequence[int], limit: float) -> int:
    """The largest of some sizes, smallest first, that is no larger than `limit`; the smallest when all are."""
    return sizes[max(0, bisect.bisect_right(sizes, limit) - 1)]


def predict_samples(low: MemoryPoint, high: MemoryPoint, share: float = FILL_SHARE) -> float:
    """How many samples fill this share of the free memory, by the line through two points."""
    bytes_per_sample = (high.bytes - low.bytes) / max(1, high.samples - low.samples)
    return (
        high.samples + (high.free_bytes * share - high.bytes) / bytes_per_sample
        if bytes_per_sample > 0
        else float("inf")
    )


def find_largest(measure_point: Callable[[int], MemoryPoint], sizes: Sequence[int], start: int) -> SizingResult:
    """The largest of `sizes` that fits; `start` does. One that does not is followed by the next smaller."""
    high = measure_point(start)
    low = measure_point(find_largest_below(sizes, start / 2)) if start > sizes[0] else high
    guess = predict_samples(low, high)
    sizes = [size for size in sizes if size >= start]
    while len(sizes) > 1:
        target = _choose_next_size(sizes, guess, high.samples)
        if target == high.samples:
            break
        point = measure_point(target)
        if point.fits:
            low, high = high, point
            guess = predict_samples(low, high)
            sizes = [size for size in sizes if size >= target]
        else:
            sizes = [size for size in sizes if size < target]
            guess = min(guess, float(target))
    return SizingResult(high.samples, guess, predict_samples(low, high, 1.0))


def _choose_next_size(sizes: Sequence[int], guess: float, high: int) -> int:
    """Up to the guess, by way of half of it where that is far."""
    if guess == float("inf"):
        return max(
            find_largest_below(sizes, high * _MAX_GROWTH),
            sizes[1] if find_largest_below(sizes, high * _MAX_GROWTH) == high else high,
        )
    half = find_largest_below(sizes, guess / 2)
    return half if guess > high * _MAX_EXTRAPOLATION and half > high else find_largest_below(sizes, guess)
