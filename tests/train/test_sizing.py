"""The largest micro-batch that fits: few looks, and never a wrong answer, whatever memory looks like."""

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from falaj.train.sizing import FULL, Point, below, divisors, largest, predicted

FREE = 100_000


def looked(curve: Callable[[int], float], *, most: float = 0.92) -> tuple[Callable[[int], Point], list[int]]:
    seen: list[int] = []

    def look(samples: int) -> Point:
        if samples not in seen:
            seen.append(samples)
        used = int(curve(samples))
        return Point(samples, used, FREE, used <= FREE * most)

    return look, seen


def test_divisors_are_all_there() -> None:
    assert divisors(12) == [1, 2, 3, 4, 6, 12]
    assert divisors(1) == [1]
    assert divisors(97) == [1, 97]
    assert [below([2, 4, 8], most) for most in (1, 2, 7.9, 100)] == [2, 2, 4, 8]


def test_two_points_make_a_line() -> None:
    assert predicted(Point(10, 2000, FREE), Point(20, 3000, FREE)) == pytest.approx((FREE * FULL - 1000) / 100)
    assert predicted(Point(10, 2000, FREE), Point(20, 2000, FREE)) == float("inf")


def test_all_fits_at_once() -> None:
    look, seen = looked(lambda samples: 1000)
    assert largest(look, divisors(64), 64).samples == 64
    assert len(seen) <= 2


def test_a_small_start_takes_few_looks() -> None:
    look, seen = looked(lambda samples: 5000 + 10.3 * samples)
    found = largest(look, divisors(50_400), 4)
    true = max(size for size in divisors(50_400) if 5000 + 10.3 * size <= FREE * FULL)
    assert found.samples == true
    assert found.predicted == pytest.approx((FREE * FULL - 5000) / 10.3, rel=0.01)
    assert len(seen) <= 6


def test_what_runs_out_is_followed_by_the_next_smaller() -> None:
    """Memory that falls to pieces earlier than the line says."""
    look, seen = looked(lambda samples: 5000 + 100 * samples, most=0.70)
    found = largest(look, divisors(5040), 60)
    true = max(size for size in divisors(5040) if 5000 + 100 * size <= FREE * 0.70)
    assert found.samples == true
    above = [size for size in seen if size > true]
    assert above == sorted(above, reverse=True)


@settings(deadline=None, max_examples=300)
@given(
    batch=st.integers(1, 20_000),
    base=st.floats(0, 0.5),
    slope=st.floats(0, 50),
    bend=st.floats(0, 1),
    start=st.integers(0, 40),
)
def test_the_answer_fits_and_the_next_larger_would_not(
    batch: int, base: float, slope: float, bend: float, start: int
) -> None:
    """Memory that bends upwards: what grows fastest in the end is not what is largest at first."""

    def curve(samples: int) -> float:
        return FREE * base + max(slope * samples, 3 * slope * samples - bend * FREE)

    sizes = divisors(batch)
    first = sizes[min(start, len(sizes) - 1)]
    if curve(first) > FREE * FULL:
        return
    look, seen = looked(curve)
    found = largest(look, sizes, first).samples
    assert curve(found) <= FREE * 0.92
    larger = [size for size in sizes if size > found]
    assert not larger or curve(larger[0]) > FREE * FULL * 0.999
    assert len(seen) <= 3 + len(sizes)
