"""The largest micro-batch that fits: few looks, and never a wrong answer, whatever memory looks like."""

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from falaj.train.sizing import FILL_SHARE, MemoryPoint, find_largest, find_largest_below, list_divisors, predict_samples

FREE = 100_000


def looked(curve: Callable[[int], float], *, most: float = 0.92) -> tuple[Callable[[int], MemoryPoint], list[int]]:
    seen: list[int] = []

    def look(samples: int) -> MemoryPoint:
        if samples not in seen:
            seen.append(samples)
        used = int(curve(samples))
        return MemoryPoint(samples, used, FREE, used <= FREE * most)

    return look, seen


def test_divisors_are_all_there() -> None:
    assert list_divisors(12) == [1, 2, 3, 4, 6, 12]
    assert list_divisors(1) == [1]
    assert list_divisors(97) == [1, 97]
    assert [find_largest_below([2, 4, 8], most) for most in (1, 2, 7.9, 100)] == [2, 2, 4, 8]


def test_two_points_make_a_line() -> None:
    assert predict_samples(MemoryPoint(10, 2000, FREE), MemoryPoint(20, 3000, FREE)) == pytest.approx(
        (FREE * FILL_SHARE - 1000) / 100
    )
    assert predict_samples(MemoryPoint(10, 2000, FREE), MemoryPoint(20, 2000, FREE)) == float("inf")


def test_all_fits_at_once() -> None:
    look, seen = looked(lambda samples: 1000)
    assert find_largest(look, list_divisors(64), 64).samples == 64
    assert len(seen) <= 2


def test_a_small_start_takes_few_looks() -> None:
    look, seen = looked(lambda samples: 5000 + 10.3 * samples)
    found = find_largest(look, list_divisors(50_400), 4)
    true = max(size for size in list_divisors(50_400) if 5000 + 10.3 * size <= FREE * FILL_SHARE)
    assert found.samples == true
    assert found.predicted == pytest.approx((FREE * FILL_SHARE - 5000) / 10.3, rel=0.01)
    assert len(seen) <= 6


def test_what_runs_out_is_followed_by_the_next_smaller() -> None:
    """Memory that falls to pieces earlier than the line says."""
    look, seen = looked(lambda samples: 5000 + 100 * samples, most=0.70)
    found = find_largest(look, list_divisors(5040), 60)
    true = max(size for size in list_divisors(5040) if 5000 + 100 * size <= FREE * 0.70)
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

    sizes = list_divisors(batch)
    first = sizes[min(start, len(sizes) - 1)]
    if curve(first) > FREE * FILL_SHARE:
        return
    look, seen = looked(curve)
    found = find_largest(look, sizes, first).samples
    assert curve(found) <= FREE * 0.92
    larger = [size for size in sizes if size > found]
    assert not larger or curve(larger[0]) > FREE * FILL_SHARE * 0.999
    assert len(seen) <= 3 + len(sizes)
