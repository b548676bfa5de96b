"""What is known of a new revision: which one it is, where one would go back to, and what it does to its callers."""

from typing import Any

import numpy as np
import pytest

from falaj.core.context import CallContext
from falaj.core.ref import Ref
from falaj.drift.profiles import build_profile
from falaj.drift.tally import DataTally
from falaj.monitor.actions import NEW_REVISION_S, find_alike_sign, has_alike_answers, list_signs, read_endpoint_facts
from falaj.monitor.gathering import RevisionGlance
from falaj.monitor.records import WatchPlan
from falaj.monitor.watch_decisions import describe_breakage
from falaj.monitor.watch_machine import EndpointFacts
from falaj.serve import endpoint_repository, rollout_state, state_machine
from falaj.serve.records import TrialRequest
from falaj.serve.request_counts import ArmSum, latency_bucket
from falaj.store.reconcile_loop import system_context

CTX: CallContext = system_context("test")
NOW = 1_000_000.0


def endpoint(revisions: int, *switches: int, at: float = NOW) -> dict[str, Any]:
    """The record of an endpoint whose traffic went to these revisions, one after the other."""
    body = endpoint_repository.create_endpoint_body(CTX, "home", Ref.parse("secret:fraud/key"))
    body["revisions"] = [{"number": one} for one in range(1, revisions + 1)]
    for to in switches:
        body = state_machine.switch_traffic(state_machine.set_target(body, to), to, at)
    return body


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (endpoint(1, 1), EndpointFacts(1, 1, live=(1,))),  # there is nothing to go back to
        (endpoint(2, 1, 2), EndpointFacts(2, 2, 2, NOW, 1, (2,))),
        (endpoint(2, 1, 2, at=NOW - NEW_REVISION_S - 1), EndpointFacts(2, 2, live=(2,))),  # it has shown what it can
        (endpoint(2, 1, 2, 1), EndpointFacts(1, 2, live=(1,))),  # somebody went back
        (endpoint(3, 1, 2), EndpointFacts(2, 3, 2, NOW, 1, (2,))),  # a newer one is not ready yet
    ],
)
def test_how_revisions_stand(body: dict[str, Any], expected: EndpointFacts) -> None:
    assert read_endpoint_facts(body, NOW + 1) == expected


@pytest.mark.parametrize(("kind", "share"), [("canary", 0.2), ("ab", 0.5), ("shadow", 1.0)])
def test_a_revision_under_trial(kind: str, share: float) -> None:
    body = rollout_state.start_rollout(endpoint(2, 1), TrialRequest(kind, share), 2, NOW)
    waiting = read_endpoint_facts(body, NOW + 1)
    assert (waiting.fresh, waiting.live, waiting.trial) == (0, (1,), "running"), "nobody is answered by it yet"
    body = rollout_state.apply_move(body, rollout_state.RolloutMove("step"), NOW + 2)
    facts = read_endpoint_facts(body, NOW + 3)
    if kind == "shadow":
        assert (facts.fresh, facts.live) == (0, (1,)), "nobody sees what a shadow answers"
    else:
        assert (facts.fresh, facts.fresh_at, facts.back, facts.live) == (2, NOW + 2, 1, (1, 2))
    body = rollout_state.apply_move(body, rollout_state.RolloutMove("rollback", "worse"), NOW + 4)
    assert (read_endpoint_facts(body, NOW + 5).trial, read_endpoint_facts(body, NOW + 5).live) == ("rolled back", (1,))


FRESH = EndpointFacts(2, 2, 2, NOW, 1, (2,))


def glance(revision: int, requests: int = 100, errors: int = 0, rows: int = 0, odd: int = 0) -> RevisionGlance:
    return RevisionGlance(revision, NOW, NOW + 60, requests, errors, 1.0, rows, odd, 0.0)


def slow(revision: int, requests: int, share: float) -> ArmSum:
    return ArmSum(
        "base",
        revision,
        requests,
        0,
        {latency_bucket(100): round(requests * (1 - share)), latency_bucket(90_000): round(requests * share)},
    )


@pytest.mark.parametrize(
    ("glances", "plan", "sums", "broken"),
    [
        ([], WatchPlan(), {}, ""),
        ([glance(1)], WatchPlan(), {}, ""),
        ([glance(2)], WatchPlan(), {}, ""),
        ([glance(2, errors=90)], WatchPlan(), {}, "requests failed"),
        ([glance(2, errors=90)], WatchPlan(errors=0), {}, ""),  # not looked at
        ([glance(2, errors=90), glance(1, errors=80)], WatchPlan(), {}, ""),  # going back would not help
        ([glance(2, rows=100, odd=100)], WatchPlan(), {}, "no numbers"),
        ([glance(2, rows=100, odd=100), glance(1, rows=100, odd=90)], WatchPlan(), {}, ""),
        ([glance(2)], WatchPlan(latency_ms=50), {2: slow(2, 100, 0.8)}, "too slow"),
        ([glance(2)], WatchPlan(latency_ms=50), {2: slow(2, 100, 0.8), 1: slow(1, 100, 0.7)}, ""),
        ([glance(2)], WatchPlan(latency_ms=50), {2: slow(2, 100, 0.04)}, ""),
    ],
)
def test_signs(glances: list[RevisionGlance], plan: WatchPlan, sums: dict[int, ArmSum], broken: str) -> None:
    found = describe_breakage(list_signs({one.revision: one for one in glances}, FRESH, plan, sums))
    assert broken in found
    assert bool(broken) == bool(found)


def test_answers_that_are_all_the_same() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=5_000)
    known = build_profile({"x": x}, predictions={"y": x * 2})

    def counted(inputs: Any, answers: Any, profile: Any = known) -> DataTally:
        tally = DataTally(profile)
        tally.add({"x": inputs, "y": answers})
        return tally

    ones = np.ones(500)
    assert "one and the same" in describe_breakage(find_alike_sign(known, counted(x[:500], ones)))
    assert find_alike_sign(known, counted(x[:500], x[:500])) == ()
    assert find_alike_sign(known, counted(ones, ones)) == (), "somebody asks the same thing again and again"
    dull = build_profile({"x": x}, predictions={"y": np.where(x > 2.5, 1.0, 0.0)})
    assert find_alike_sign(dull, counted(x[:500], np.zeros(500), dull)) == (), "that is how it always was"
    assert find_alike_sign(None, None) == ()
    assert has_alike_answers(RevisionGlance(2, 0, 1, 200, 0, 1.0, 200, 0, 1.0))
    assert not has_alike_answers(RevisionGlance(2, 0, 1, 200, 0, 1.0, 50, 0, 1.0))
