"""The choice: never outside the bound, never beaten, the same when measured a little otherwise."""

from hypothesis import given, settings
from hypothesis import strategies as st

from falaj.optimize.pareto_front import MIN_SPEEDUP, NEAR_SPEED_SHARE, choose_variant, find_pareto_front
from falaj.optimize.records import FAILED, ORIGINAL_NAME, REFUSED, SKIPPED, WITHIN_BOUND, VariantResult

ROWS = st.lists(
    st.builds(
        lambda verdict, loss, speed, size: (verdict, loss, speed, size),
        st.sampled_from([WITHIN_BOUND, REFUSED, SKIPPED, FAILED]),
        st.floats(-0.1, 0.1),
        st.floats(0.1, 10),
        st.integers(1, 1000),
    ),
    max_size=8,
)


def _rows(found: list[tuple[str, float, float, int]]) -> list[VariantResult]:
    made = [VariantResult(ORIGINAL_NAME, WITHIN_BOUND, speed=1.0, size_bytes=500)]
    for nth, (verdict, loss, speed, size) in enumerate(found):
        measured = verdict in (WITHIN_BOUND, REFUSED)
        made.append(VariantResult(f"v{nth}", verdict, loss=loss, speed=speed if measured else 0, size_bytes=size))
    return made


@settings(max_examples=150, deadline=None)
@given(ROWS)
def test_what_is_chosen_is_within_the_bound_and_nearly_the_fastest(found: list[tuple[str, float, float, int]]) -> None:
    rows = _rows(found)
    chosen = choose_variant(rows)
    allowed = [one for one in rows[1:] if one.verdict == WITHIN_BOUND and one.speed >= MIN_SPEEDUP]
    assert (chosen is None) == (not allowed)
    if chosen:
        assert chosen in allowed
        assert chosen.speed >= NEAR_SPEED_SHARE * max(one.speed for one in allowed)


@settings(max_examples=150, deadline=None)
@given(ROWS)
def test_nothing_on_the_frontier_is_beaten_and_all_else_is(found: list[tuple[str, float, float, int]]) -> None:
    rows = [one for one in _rows(found) if one.speed]
    best = find_pareto_front(rows)
    for one in rows:
        better = [
            other
            for other in rows
            if (other.loss, -other.speed, other.size_bytes) != (one.loss, -one.speed, one.size_bytes)
            and other.loss <= one.loss
            and other.speed >= one.speed
            and other.size_bytes <= one.size_bytes
        ]
        assert (one.name in best) == (not better)


def test_among_equals_the_one_that_loses_least_is_taken() -> None:
    rows = [
        VariantResult(ORIGINAL_NAME, WITHIN_BOUND, speed=1),
        VariantResult("a", WITHIN_BOUND, loss=0.004, speed=2.0),
        VariantResult("b", WITHIN_BOUND, loss=0.0, speed=1.9),
        VariantResult("c", REFUSED, loss=0.3, speed=9.0),
    ]
    assert choose_variant(rows) == rows[2]
    assert choose_variant(rows[:1]) is None
