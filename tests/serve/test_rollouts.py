"""Roll-outs on a real house with its loops: what gateways count decides, and every decision is an event.

Replicas are stand-ins that say they serve; the gateway's rows are written here, second by second, as it writes them.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from falaj.core.errors import Conflict, Invalid
from falaj.core.ref import Ref
from falaj.serve import replica_jobs
from falaj.serve.request_counts import CountRow, latency_bucket
from falaj.serve.request_journal import JournalRow
from tests.serve.laptop import SMALL, STAND_IN, Laptop, forget, ready
from tests.town import refusal

SCORE = "endpoint:fraud/score"
REF = Ref.parse(SCORE)
QUICK = {"least": "100", "slow_ms": "1", "settle_s": "0"}


@pytest.fixture(scope="module")
def laptop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Laptop]:
    patch = pytest.MonkeyPatch()
    patch.setattr(replica_jobs, "REPLICA_COMMAND", STAND_IN)
    made = Laptop(tmp_path_factory.mktemp("laptop"))
    with made.here.working():
        made.here.serve.deploy(SCORE, made.model(), **SMALL)
        made.until(ready)
        yield made
    made.here.close()
    patch.undo()


@contextmanager
def traffic(laptop: Laptop, errors: dict[str, float], latency_us: int = 300) -> Iterator[None]:
    """What a gateway tells of 2000 requests each tenth of a second, split as the routes say."""
    house, ended = laptop.here.house, threading.Event()
    desk = house.desks["serve"]

    def tell() -> None:
        while not ended.wait(0.1):
            (route,) = desk.routes(house.system()).values()
            now = house.system().now()
            desk.counts.append(row(route, arm, now) for arm, (_, share) in route.shares.items() if share)

    def row(route: Any, arm: str, now: float) -> CountRow:
        revision, share = route.shares[arm]
        count = round(2000 * share)
        bad, took = round(count * errors.get(arm, 0.0)), {latency_bucket(latency_us): count}
        return CountRow(route.tenant, SCORE, arm, revision, now, count, bad, took, 1, 0, "g", route.zone)

    thread = threading.Thread(target=tell)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def said(laptop: Laptop, verb: str) -> list[Any]:
    facts = laptop.here.house.ledger.tail(kind="endpoint", limit=10_000)
    return [fact.event for fact in facts if fact.event.verb == verb]


def over(state: str) -> Callable[[Any], bool]:
    return lambda view: view.rollout is not None and view.rollout.state == state


def test_a_canary_with_errors_is_rolled_back_and_says_why(laptop: Laptop) -> None:
    laptop.here.serve.deploy(SCORE, laptop.model(seed=8), canary="10%", judge=True, watch=QUICK)
    newest = laptop.show().revisions[-1].number
    with traffic(laptop, {"canary": 0.2}):
        view = laptop.until(over("rolled back"))
    assert view.traffic == {"1": 1.0}
    assert view.rollout is not None
    assert "errors: 20.000%" in view.rollout.why
    assert view.rollout.step == 0
    event = said(laptop, "serve.rollback")[-1]
    assert event.body["revision"] == newest
    assert "worse" in event.body["reason"]
    assert event.actor == "loop-serve", "nobody asked for it"


def test_a_good_canary_grows_and_is_promoted(laptop: Laptop) -> None:
    before = laptop.show().traffic
    laptop.here.serve.deploy(SCORE, laptop.model(seed=9), canary="20%", judge=True, watch=QUICK)
    newest = laptop.show().revisions[-1].number
    with traffic(laptop, {"base": 0.001, "canary": 0.001}):
        view = laptop.until(over("promoted"))
    assert view.traffic == {str(newest): 1.0} != before
    steps = [event.body["shares"] for event in said(laptop, "serve.step")][-2:]
    assert steps == ['{"base": 0.8, "canary": 0.2}', '{"base": 0.5, "canary": 0.5}']
    assert "fine" in said(laptop, "serve.promote")[-1].body["reason"]


def test_nothing_is_decided_where_nobody_asked_for_a_judge(laptop: Laptop) -> None:
    base = laptop.show().traffic
    laptop.here.serve.deploy(SCORE, laptop.model(seed=10), ab="50%", watch=QUICK)
    newest = laptop.show().revisions[-1].number
    again = refusal(lambda: laptop.here.serve.deploy(SCORE, laptop.model(seed=7)))
    assert isinstance(again, Conflict), "one roll-out at a time"
    with traffic(laptop, {"b": 0.3}):
        laptop.until(lambda view: view.traffic.get(str(newest)) == 0.5)
        verdict = _until(
            lambda: laptop.here.serve.verdict(SCORE), lambda one: one.readings and one.readings[0].verdict == "worse"
        )
    assert (verdict.kind, verdict.state, verdict.step) == ("ab", "running", 0)
    (errors, slow) = verdict.readings
    assert errors.rate == pytest.approx(0.3)
    assert errors.low > 0.2
    assert errors.p_worse < 1e-6
    assert slow.verdict in ("wait", "fine")
    view = laptop.here.serve.rollback(SCORE, reason="enough seen")
    assert view.traffic == base
    assert (view.rollout.state, view.rollout.why) == ("rolled back", "enough seen")


def test_people_may_promote_before_the_judge_does(laptop: Laptop) -> None:
    laptop.here.serve.deploy(SCORE, laptop.model(seed=11), canary="10%", judge=True)
    newest = laptop.show().revisions[-1].number
    laptop.until(lambda view: ready(view, newest))
    view = laptop.here.serve.promote(SCORE, reason="it was tried elsewhere")
    assert view.rollout.state == "promoted"
    assert laptop.until(lambda one: one.traffic == {str(newest): 1.0})
    assert isinstance(refusal(lambda: laptop.here.serve.promote(SCORE)), Conflict)


@pytest.mark.slow
def test_time_that_is_over_leaves_the_base(laptop: Laptop) -> None:
    base = laptop.show().traffic
    laptop.here.serve.deploy(SCORE, laptop.model(seed=12), canary="10%", judge=True, watch={**QUICK, "most_s": "2"})
    view = laptop.until(over("inconclusive"))
    assert view.traffic == base
    assert "2 s" in view.rollout.why


@pytest.mark.slow
def test_a_canary_that_never_starts_is_rolled_back_though_nobody_judges(laptop: Laptop) -> None:
    bad = "endpoint:fraud/bad"
    laptop.here.serve.deploy(bad, laptop.model(), **SMALL)
    laptop.until(ready, bad)
    laptop.here.serve.deploy(bad, laptop.model(seed=9), canary="10%")
    view = laptop.until(over("rolled back"), bad)
    assert view.traffic == {"1": 1.0}
    assert "cannot be loaded" in view.rollout.why
    laptop.here.serve.remove(bad)


@pytest.mark.slow
def test_a_shadow_that_is_slow_gets_no_traffic(laptop: Laptop) -> None:
    laptop.here.serve.deploy(SCORE, laptop.model(seed=13), shadow="100%", watch=QUICK, judge=True)
    house = laptop.here.house
    desk = house.desks["serve"]
    view = laptop.until(lambda one: one.rollout.step_at > 0)
    assert len(view.traffic) == 1
    now = house.system().now()
    arms = {"base": (view.rollout.arms["base"], 300), "shadow": (view.rollout.arms["shadow"], 5000)}
    desk.counts.append(
        CountRow(
            "house", SCORE, arm, revision, now, 5000, 0, {latency_bucket(us): 5000}, 0, 0, "g", house.settings.zone
        )
        for arm, (revision, us) in arms.items()
    )
    done = laptop.until(over("rolled back"))
    assert "slow: 100.000%" in done.rollout.why


def test_labels_and_logs(laptop: Laptop) -> None:
    house = laptop.here.house
    (route,) = house.desks["serve"].routes(house.system()).values()
    now = house.system().now()
    body = b'{"inputs": [{"name": "x", "datatype": "FP32", "shape": [1], "data": [1.5]}]}'
    answer = b'{"outputs": [{"name": "y", "datatype": "FP32", "shape": [1, 1], "data": [0.9]}]}'
    house.desks["serve"].journal.append(
        route,
        [
            JournalRow(now + n / 1000, f"q{n}", f"c{n % 2}", "base", 1, 200, 90, "amal", body, answer, "json")
            for n in range(5)
        ],
    )
    page = laptop.here.serve.logs(SCORE, limit=3)
    assert [line.id for line in page.lines] == ["q4", "q3", "q2"]
    assert (page.lines[0].request, page.lines[0].response) == ({"x": [1.5]}, {"y": [[pytest.approx(0.9)]]})
    assert [line.id for line in laptop.here.serve.logs(SCORE, after=page.next).lines] == ["q1", "q0"]
    assert [line.id for line in laptop.here.serve.logs(SCORE, key="c1").lines] == ["q3", "q1"]
    assert laptop.here.serve.label(SCORE, {"q0": 1, "q1": 0}) == 2
    assert laptop.here.serve.label(SCORE, {"c1": 1}, by="key") == 1
    assert "one person alone" in refusal(lambda: laptop.here.serve.forget(SCORE, ("c1",))).message
    assert len(laptop.here.serve.logs(SCORE).lines) == 5
    assert forget(laptop.here, SCORE, ("c1",), reason="request 7") == 4
    assert [line.id for line in laptop.here.serve.logs(SCORE).lines] == ["q4", "q2", "q0"]
    assert [one.body["rows"] for one in said(laptop, "serve.forget") if "rows" in one.body] == [4]
    for act in (
        lambda: laptop.here.serve.label(SCORE, {}), lambda: laptop.here.serve.label(SCORE, {"a": 1}, by="name"),
        lambda: laptop.here.serve.logs(SCORE, limit=0), lambda: laptop.here.serve.logs(SCORE, after="x~y"),
        lambda: laptop.here.serve.forget(SCORE, ("",)), lambda: laptop.here.serve.logs("model:fraud/scorer"),
    ):  # fmt: skip
        assert isinstance(refusal(act), Invalid)


def _until(ask: Callable[[], Any], holds: Callable[[Any], Any]) -> Any:
    from tests.jobs.lab import until

    return until(ask, holds)
