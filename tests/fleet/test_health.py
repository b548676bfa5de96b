"""The health of nodes: explained, forgotten in time, and never ruined by one job."""

from hypothesis import given
from hypothesis import strategies as st

from falaj.fleet.health import HALF_LIFE_S, HEALTH_CAUSES, ILL, WATCH, WELL, HealthParts, add_cause, judge_health


def parts(**amounts: float) -> HealthParts:
    return {name: (amount, 0.0) for name, amount in amounts.items()}


def test_broken_hardware_makes_a_node_ill_and_says_why_and_what_to_do() -> None:
    found = judge_health("hall/n7", parts(xid=3, throttle_h=1), 0)
    assert (found.verdict, found.score) == (ILL, 21)
    assert found.why[0].startswith("3.0 hardware errors")
    assert found.advice == "falaj clusters drain hall/n7, then test it"


def test_time_heals() -> None:
    ill = parts(xid=2.5, ecc=1)
    assert [judge_health("n", ill, week * HALF_LIFE_S).verdict for week in (0, 1, 3)] == [ILL, WATCH, WELL]
    assert judge_health("n", {}, 0).verdict == WELL


def test_what_one_job_can_bring_about_makes_no_node_ill() -> None:
    for cause in ("lost", "trouble", "away", "throttle_h"):
        assert judge_health("n", parts(**{cause: 1e9}), 0).verdict != ILL


@given(st.lists(st.tuples(st.sampled_from(sorted(HEALTH_CAUSES)), st.floats(0, 100), st.floats(0, 1e7)), max_size=30))
def test_more_trouble_never_helps_and_points_add_up(troubles: list[tuple[str, float, float]]) -> None:
    known: HealthParts = {}
    now, score = 0.0, 100
    for what, amount, later in troubles:
        now += later
        before = judge_health("n", known, now)
        known = add_cause(known, what, amount, now)
        found = judge_health("n", known, now)
        assert found.score <= before.score
        assert 0 <= found.score <= 100
        assert abs(100 - sum(found.parts.values()) - found.score) <= 1 or found.score == 0
        score = found.score
    assert judge_health("n", known, now + 100 * HALF_LIFE_S).score >= score
