"""How many replicas, which start and end, when traffic moves: by tables and by what must hold of any load."""

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from falaj.serve.records import DRAINING, READY, STARTING, ScalePolicy
from falaj.serve.replica_decisions import (
    SCALE_DOWN_WINDOW_S,
    SWITCH_TIMEOUT_S,
    DemandHistory,
    EndpointState,
    ReplicaDecision,
    ReplicaState,
    decide_replicas,
)
from falaj.serve.request_counts import RevisionLoad

NOW = 1_000_000.0
BUSY = RevisionLoad(10.0, 0, 0, 1000.0, NOW)


def world(**more: object) -> EndpointState:
    made = EndpointState(NOW, ScalePolicy(), {1: 1.0}, current=1, wanted=1, woken=0.0)
    return replace(made, **more)  # type: ignore[arg-type]


def seen(count: int, revision: int = 1, state: str = READY, since: float = NOW - 100) -> tuple[ReplicaState, ...]:
    return tuple(ReplicaState(f"score-r{revision}-{state}-{number}", revision, state, since) for number in range(count))


def load(inflight: int = 0, held: int = 0, p95_us: float = 0.0, last_at: float = NOW) -> RevisionLoad:
    return RevisionLoad(1.0, inflight, held, p95_us, last_at)


def test_the_first_replica_is_asked_for_and_gets_the_traffic() -> None:
    new = world(current=0, wanted=1)
    assert decide_replicas(new).start == {1: 1}
    assert decide_replicas(replace(new, replicas=seen(1, state=STARTING))).start == {}
    assert decide_replicas(replace(new, replicas=seen(1))).switch == 1


def test_a_switch_waits_for_as_many_as_there_were() -> None:
    two = world(scale=ScalePolicy(least=2, most=4), wanted=2, replicas=seen(2))
    asked = decide_replicas(two)
    assert asked.start == {2: 2}
    assert asked.drain == ()
    one = replace(two, replicas=(*seen(2), *seen(1, 2), *seen(1, 2, STARTING, NOW - 1)))
    assert decide_replicas(one).switch == 0
    assert decide_replicas(replace(one, now=NOW + SWITCH_TIMEOUT_S)).switch == 2
    assert decide_replicas(replace(two, replicas=(*seen(2), *seen(2, 2)))).switch == 2


def test_the_revision_before_is_kept_for_a_while() -> None:
    after = world(current=2, wanted=2, before=1, switched=NOW - 10, shares={2: 1.0}, replicas=(*seen(1), *seen(1, 2)))
    assert decide_replicas(after).drain == ()
    late = decide_replicas(replace(after, now=NOW + 400))
    assert late.drain == ("score-r1-ready-0",)
    # What was kept and died is not started again.
    assert decide_replicas(replace(after, replicas=seen(1, 2))).start == {}


def test_more_at_once_by_what_is_in_flight_and_held() -> None:
    busy = world(scale=ScalePolicy(least=1, most=5, concurrency=4), replicas=seen(1), loads={1: load(9, 4)})
    assert decide_replicas(busy).start == {1: 3}
    assert decide_replicas(replace(busy, loads={1: load(900)})).start == {1: 4}


def test_more_when_answers_are_slow_one_at_a_time() -> None:
    slow = world(scale=ScalePolicy(most=5, latency_ms=10), replicas=seen(2), loads={1: load(3, p95_us=20_000)})
    assert decide_replicas(slow).start == {1: 1}
    assert decide_replicas(replace(slow, replicas=(*seen(2), *seen(1, state=STARTING)))).start == {}
    assert decide_replicas(replace(slow, loads={1: load(0, p95_us=20_000)})).targets == {1: 1}


def test_none_while_nobody_asks_and_one_when_somebody_does() -> None:
    idle = world(scale=ScalePolicy(least=0, idle_s=30), replicas=seen(1), loads={1: load(last_at=NOW - 31)})
    assert decide_replicas(idle).drain == ("score-r1-ready-0",)
    assert decide_replicas(replace(idle, past={1: ((NOW - 31, 1),)})).drain == ("score-r1-ready-0",)
    assert decide_replicas(replace(idle, loads={1: load(last_at=NOW - 29)})).drain == ()
    assert decide_replicas(replace(idle, replicas=seen(1, since=NOW - 29))).drain == ()
    assert decide_replicas(replace(idle, replicas=(), woken=NOW - 1)).start == {1: 1}
    assert decide_replicas(replace(idle, replicas=())).start == {}


def test_arms_share_the_least_and_a_shadow_has_one() -> None:
    arms = world(scale=ScalePolicy(least=4, most=8), shares={1: 0.9, 2: 0.1})
    assert decide_replicas(arms).start == {1: 4, 2: 1}
    assert decide_replicas(world(scale=ScalePolicy(least=0), shares={1: 1.0, 2: 0.0})).start == {1: 1, 2: 1}


def test_what_failed_rests_first() -> None:
    assert decide_replicas(world(rests={1: NOW + 1})).start == {}
    assert decide_replicas(world(rests={1: NOW})).start == {1: 1}


def test_stopped_means_none() -> None:
    assert decide_replicas(world(stopped=True, replicas=(*seen(2), *seen(1, state=DRAINING)))).drain == (
        "score-r1-ready-0", "score-r1-ready-1",
    )  # fmt: skip


LOADS = st.lists(st.tuples(st.floats(0.1, 40.0), st.integers(0, 60), st.booleans()), min_size=1, max_size=30)


@given(LOADS, st.integers(0, 3), st.integers(0, 6), st.floats(0.5, 16))
@settings(max_examples=60, deadline=None)
def test_whatever_the_load_targets_keep_their_bounds_and_fall_slowly(
    steps: list[tuple[float, int, bool]], least: int, more: int, concurrency: float
) -> None:
    scale = ScalePolicy(least=least, most=max(1, least + more), concurrency=concurrency, idle_s=20.0)
    now, past, replicas = NOW, {}, ()
    history: list[tuple[float, int]] = []
    for pause_s, inflight, some_start in steps:
        now += pause_s
        told = replace(
            world(), now=now, scale=scale, past=past, replicas=replicas, loads={1: load(inflight, last_at=now)}
        )
        decision = decide_replicas(told)
        past, target = _kept(decision), decision.targets[1]
        assert min(1, scale.most) <= target <= scale.most
        assert target >= min(-(-inflight // concurrency), scale.most)
        recent = [count for at, count in history if now - at < SCALE_DOWN_WINDOW_S]
        assert target >= max(recent, default=0) or not recent
        history.append((now, min(scale.most, max(least, 1, int(-(-inflight // concurrency))))))
        assert len(decision.drain) == max(0, len(replicas) - target)
        left = [one for one in replicas if one.name not in decision.drain]
        made = [
            ReplicaState(f"{now}-{at}", 1, READY if some_start else STARTING, now)
            for at in range(decision.start.get(1, 0))
        ]
        replicas = (*left, *made)
        assert len(replicas) == target


def _kept(decision: ReplicaDecision) -> dict[int, DemandHistory]:
    return dict(decision.past)
