"""Token buckets."""

from hypothesis import given
from hypothesis import strategies as st

from falaj.api.rate_limits import TokenBuckets


@given(st.lists(st.floats(0, 2), max_size=60), st.floats(0.1, 50), st.integers(1, 20))
def test_no_more_than_the_burst_and_what_came_back(gaps: list[float], per_s: float, burst: int) -> None:
    buckets, now, taken = TokenBuckets(per_s, burst), 0.0, 0
    for gap in gaps:
        now += gap
        wait = buckets.take("amal", now)
        taken += wait == 0.0
        assert taken <= burst + now * per_s + 1e-6
        if wait:
            assert buckets.wait("amal", now + wait + 1e-6) == 0.0


def test_callers_do_not_share_and_the_oldest_is_forgotten() -> None:
    buckets = TokenBuckets(0.001, 1, max_keys=2)
    assert [buckets.take(who, 0.0) > 0 for who in ("a", "a", "b", "c", "a", "c")] == [
        False,
        True,
        False,
        False,
        False,
        True,
    ]


def test_a_clock_that_goes_back_gives_nothing() -> None:
    buckets = TokenBuckets(1.0, 2)
    assert [buckets.take("a", now) > 0 for now in (100.0, 50.0, 50.0)] == [False, False, True]


def test_a_rate_of_nothing_never_comes_back() -> None:
    buckets = TokenBuckets(0.0, 1)
    buckets.take("a", 0.0)
    assert buckets.take("a", 1e9) == 3600.0
