"""The choice: never outside the bound, never beaten, the same when measured a little otherwise."""

from hypothesis import given, settings
from hypothesis import strategies as st

from falaj.optimize.frontier import GAIN, NEAR, choose, frontier
from falaj.optimize.records import BEFORE, FAILED, KEPT, REFUSED, SKIPPED, Tried

ROWS = st.lists(
    st.builds(
        lambda verdict, loss, speed, size: (verdict, loss, speed, size),
        st.sampled_from([KEPT, REFUSED, SKIPPED, FAILED]), st.floats(-0.1, 0.1), st.floats(0.1, 10),
        st.integers(1, 1000),
    ),
    max_size=8,
)  # fmt: skip


def _rows(found: list[tuple[str, float, float, int]]) -> list[Tried]:
    made = [Tried(BEFORE, KEPT, speed=1.0, size_bytes=500)]
    for nth, (verdict, loss, speed, size) in enumerate(found):
        measured = verdict in (KEPT, REFUSED)
        made.append(Tried(f"v{nth}", verdict, loss=loss, speed=speed if measured else 0, size_bytes=size))
    return made


@settings(max_examples=150, deadline=None)
@given(ROWS)
def test_what_is_chosen_is_within_the_bound_and_nearly_the_fastest(found: list[tuple[str, float, float, int]]) -> None:
    rows = _rows(found)
    chosen = choose(rows)
    allowed = [one for one in rows[1:] if one.verdict == KEPT and one.speed >= GAIN]
    assert (chosen is None) == (not allowed)
    if chosen:
        assert chosen in allowed
        assert chosen.speed >= NEAR * max(one.speed for one in allowed)


@settings(max_examples=150, deadline=None)
@given(ROWS)
def test_nothing_on_the_frontier_is_beaten_and_all_else_is(found: list[tuple[str, float, float, int]]) -> None:
    rows = [one for one in _rows(found) if one.speed]
    best = frontier(rows)
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
        Tried(BEFORE, KEPT, speed=1), Tried("a", KEPT, loss=0.004, speed=2.0), Tried("b", KEPT, loss=0.0, speed=1.9),
        Tried("c", REFUSED, loss=0.3, speed=9.0),
    ]  # fmt: skip
    assert choose(rows) == rows[2]
    assert choose(rows[:1]) is None
