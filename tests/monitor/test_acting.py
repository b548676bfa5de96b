"""What is known of a new revision: which one it is, where one would go back to, and what it does to its callers."""

from typing import Any

import numpy as np
import pytest

from falaj.core.context import Context
from falaj.core.ref import Ref
from falaj.drift.profile import profile_of
from falaj.drift.tally import Tally
from falaj.monitor.acting import NEW_S, alike, is_alike, signs_of, standing_of
from falaj.monitor.decide import breakage
from falaj.monitor.gathering import Glance
from falaj.monitor.machine import Facts
from falaj.monitor.records import WatchPlan
from falaj.serve import books, life, trials
from falaj.serve.counts import Sum, bucket
from falaj.serve.records import Trial
from falaj.store.loop import house_context

CTX: Context = house_context("test")
NOW = 1_000_000.0


def endpoint(revisions: int, *switches: int, at: float = NOW) -> dict[str, Any]:
    """The record of an endpoint whose traffic went to these revisions, one after the other."""
    body = books.new_endpoint(CTX, "home", Ref.parse("secret:fraud/key"))
    body["revisions"] = [{"number": one} for one in range(1, revisions + 1)]
    for to in switches:
        body = life.switched(life.heading(body, to), to, at)
    return body


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (endpoint(1, 1), Facts(1, 1, live=(1,))),  # there is nothing to go back to
        (endpoint(2, 1, 2), Facts(2, 2, 2, NOW, 1, (2,))),
        (endpoint(2, 1, 2, at=NOW - NEW_S - 1), Facts(2, 2, live=(2,))),  # it has shown what it can
        (endpoint(2, 1, 2, 1), Facts(1, 2, live=(1,))),  # somebody went back
        (endpoint(3, 1, 2), Facts(2, 3, 2, NOW, 1, (2,))),  # a newer one is not ready yet
    ],
)
def test_how_revisions_stand(body: dict[str, Any], expected: Facts) -> None:
    assert standing_of(body, NOW + 1) == expected


@pytest.mark.parametrize(("kind", "share"), [("canary", 0.2), ("ab", 0.5), ("shadow", 1.0)])
def test_a_revision_under_trial(kind: str, share: float) -> None:
    body = trials.begun(endpoint(2, 1), Trial(kind, share), 2, NOW)
    waiting = standing_of(body, NOW + 1)
    assert (waiting.fresh, waiting.live, waiting.trial) == (0, (1,), "running"), "nobody is answered by it yet"
    body = trials.moved(body, trials.Move("step"), NOW + 2)
    facts = standing_of(body, NOW + 3)
    if kind == "shadow":
        assert (facts.fresh, facts.live) == (0, (1,)), "nobody sees what a shadow answers"
    else:
        assert (facts.fresh, facts.fresh_at, facts.back, facts.live) == (2, NOW + 2, 1, (1, 2))
    body = trials.moved(body, trials.Move("rollback", "worse"), NOW + 4)
    assert (standing_of(body, NOW + 5).trial, standing_of(body, NOW + 5).live) == ("rolled back", (1,))


FRESH = Facts(2, 2, 2, NOW, 1, (2,))


def glance(revision: int, requests: int = 100, errors: int = 0, rows: int = 0, odd: int = 0) -> Glance:
    return Glance(revision, NOW, NOW + 60, requests, errors, 1.0, rows, odd, 0.0)


def slow(revision: int, requests: int, share: float) -> Sum:
    return Sum(
        "base",
        revision,
        requests,
        0,
        {bucket(100): round(requests * (1 - share)), bucket(90_000): round(requests * share)},
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
def test_signs(glances: list[Glance], plan: WatchPlan, sums: dict[int, Sum], broken: str) -> None:
    found = breakage(signs_of({one.revision: one for one in glances}, FRESH, plan, sums))
    assert broken in found
    assert bool(broken) == bool(found)


def test_answers_that_are_all_the_same() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=5_000)
    known = profile_of({"x": x}, predictions={"y": x * 2})

    def counted(inputs: Any, answers: Any, profile: Any = known) -> Tally:
        tally = Tally(profile)
        tally.add({"x": inputs, "y": answers})
        return tally

    ones = np.ones(500)
    assert "one and the same" in breakage(alike(known, counted(x[:500], ones)))
    assert alike(known, counted(x[:500], x[:500])) == ()
    assert alike(known, counted(ones, ones)) == (), "somebody asks the same thing again and again"
    dull = profile_of({"x": x}, predictions={"y": np.where(x > 2.5, 1.0, 0.0)})
    assert alike(dull, counted(x[:500], np.zeros(500), dull)) == (), "that is how it always was"
    assert alike(None, None) == ()
    assert is_alike(Glance(2, 0, 1, 200, 0, 1.0, 200, 0, 1.0))
    assert not is_alike(Glance(2, 0, 1, 200, 0, 1.0, 50, 0, 1.0))
