"""The largest micro-batch that fits into memory, by a line through measurements and as few of them as it takes."""

import bisect
from collections.abc import Callable, Sequence
from typing import NamedTuple

FULL, TIGHT = 0.88, 0.92
"""So much of the free memory is filled; beyond the second share large pieces find no place, sooner or later."""
_FAR, _LEAP = 3, 8
"""A line is believed up to so many times its last point; without a slope nothing grows by more than this at a time."""


class Point(NamedTuple):
    """What one micro-batch took in forward and backward, the optimizer's state beside it. The step of the optimizer is
    left out: it takes the same whatever the micro-batch, and a line through its peak would be flat."""

    samples: int
    bytes: int
    free_bytes: int
    fits: bool = True


class Sized(NamedTuple):
    """The largest that fits, and what the line said of it before it was tried."""

    samples: int
    predicted: float
    """In samples, whole or not; infinite when memory does not grow with them."""
    brim: float = float("inf")
    """As many would fill memory to the last byte, by the same line: what nobody should run."""


def divisors(number: int) -> list[int]:
    """All of them, smallest first."""
    low = [one for one in range(1, int(number**0.5) + 1) if number % one == 0]
    return sorted({*low, *(number // one for one in low)})


def below(sizes: Sequence[int], most: float) -> int:
    """The largest of some sizes, smallest first, that is no larger than `most`; the smallest when all are."""
    return sizes[max(0, bisect.bisect_right(sizes, most) - 1)]


def predicted(low: Point, high: Point, share: float = FULL) -> float:
    """How many samples fill this share of the free memory, by the line through two points."""
    each = (high.bytes - low.bytes) / max(1, high.samples - low.samples)
    return high.samples + (high.free_bytes * share - high.bytes) / each if each > 0 else float("inf")


def largest(look: Callable[[int], Point], sizes: Sequence[int], start: int) -> Sized:
    """The largest of `sizes` that fits; `start` does. One that does not is followed by the next smaller."""
    high = look(start)
    low = look(below(sizes, start / 2)) if start > sizes[0] else high
    guess = predicted(low, high)
    sizes = [one for one in sizes if one >= start]
    while len(sizes) > 1:
        target = _next(sizes, guess, high.samples)
        if target == high.samples:
            break
        point = look(target)
        if point.fits:
            low, high = high, point
            guess = predicted(low, high)
            sizes = [one for one in sizes if one >= target]
        else:
            sizes = [one for one in sizes if one < target]
            guess = min(guess, float(target))
    return Sized(high.samples, guess, predicted(low, high, 1.0))


def _next(sizes: Sequence[int], guess: float, high: int) -> int:
    """Up to the guess, by way of half of it where that is far."""
    if guess == float("inf"):
        return max(below(sizes, high * _LEAP), sizes[1] if below(sizes, high * _LEAP) == high else high)
    half = below(sizes, guess / 2)
    return half if guess > high * _FAR and half > high else below(sizes, guess)
