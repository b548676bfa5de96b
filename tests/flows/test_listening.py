"""Clocks, events and verdicts that begin flows: once each, in their owners' names, and what stops them."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from falaj.core.errors import Denied, QuotaExceeded
from falaj.core.ref import Ref
from falaj.flows.start_loop import START_TIMEOUT_S
from tests.flows.listening_ground import FLOW, Ground
from tests.people import enroll


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ground]:
    made = Ground(tmp_path_factory.mktemp("listening") / "town")
    yield made
    made.town.close()


@pytest.fixture
def ground(house: Ground) -> Ground:
    """The same house with nothing asked for yet; what earlier tests said lies behind its cursor."""
    for one in house.amal.flows.triggers():
        house.amal.flows.off(one.ref)
    for one in house.amal.flows.schedules():
        house.amal.flows.unschedule(one.ref)
    house.fresh()
    return house


def test_a_verdict_begins_its_flow_once(ground: Ground) -> None:
    ground.watch(params={"depth": "3"})
    ground.verdict()
    ground.verdict()
    ground.verdict("v-other", action="alert")
    ground.verdict("v-odd", flow="no flow at all")
    ground.verdict("v-nobody", endpoint="endpoint:fraud/unwatched")
    ground.turn(2)
    wanted = {"endpoint": "endpoint:fraud/score", "cause": "drift of amount", "depth": "3"}
    assert ground.runs == {"v-1": (wanted, "verdict:v-1")}
    assert ground.owner("v-1") == "amal"
    asked = ground.asked
    ground.turn(2)
    assert ground.asked == asked


def test_killed_between_verdict_and_start_it_still_begins_and_once(ground: Ground) -> None:
    ground.verdict("v-2")
    ground.crash()
    ground.turn()
    ground.crash()
    ground.turn()
    assert list(ground.runs) == ["v-2"]
    assert ground.asked == 1


def test_a_verdict_whose_flow_may_not_be_begun_hears_of_its_end(ground: Ground) -> None:
    ground.trouble = Denied("no rule permits it")
    ground.verdict("v-3")
    ground.turn()
    end = ground.town.events(verb="flows.end")[-1]
    assert (end.body["state"], end.body["cause"], end.subject.kind) == ("failed", "v-3", "watch")
    assert "no rule permits it" in str(end.body["note"])
    ground.trouble = None
    ground.turn()
    assert ground.runs == {}


def test_what_cannot_begin_now_begins_later_and_survives_a_crash(ground: Ground) -> None:
    ground.trouble = QuotaExceeded("too much")
    ground.verdict("v-4")
    ground.turn()
    ground.crash()
    ground.turn()
    ground.trouble = None
    assert ground.runs == {}
    ground.later_s += 10
    ground.turn()
    assert list(ground.runs) == ["v-4"]


def test_what_never_can_is_given_up_after_a_while(ground: Ground) -> None:
    ground.trouble = QuotaExceeded("too much")
    ground.verdict("v-5")
    ground.turn()
    ground.later_s += START_TIMEOUT_S + 10
    ground.turn()
    ground.trouble = None
    ground.turn()
    assert ground.runs == {}
    assert ground.town.events(verb="flows.end")[-1].body["cause"] == "v-5"


def test_nothing_begins_for_a_watch_that_is_paused(ground: Ground) -> None:
    ground.verdict("v-6")
    with ground.ledger.write(ground.ctx("amal")) as tx:
        watch = tx.need(Ref.parse("watch:fraud/score"))
        kept = tx.put(watch.key, {**watch.body, "paused": "by amal"}, rev=watch.rev)
        tx.emit("monitor.pause", kept.ref)
    ground.turn()
    assert ground.runs == {}
    assert "paused" in str(ground.town.events(verb="flows.end")[-1].body["note"])
    with ground.ledger.write(ground.ctx("amal")) as tx:
        tx.emit("monitor.resume", tx.put(kept.key, {**kept.body, "paused": ""}, rev=kept.rev).ref)


def test_what_no_clock_can_tell_stops_no_other(ground: Ground) -> None:
    ground.amal.flows.schedule(FLOW, "@hourly", name="odd")
    ground.amal.flows.schedule(FLOW, "@hourly", name="well")
    with ground.ledger.write(ground.ctx("amal")) as tx:
        odd = tx.need(Ref.parse("schedule:fraud/odd"))
        tx.emit("test.break", tx.put(odd.key, {**odd.body, "zone": "Mars/Base"}, rev=odd.rev).ref)
    ground.later_s += 3601
    ground.turn()
    assert [cause.partition("@")[0] for cause in ground.runs] == ["schedule:fraud/well"]
    found = {one.ref.name: one for one in ground.amal.flows.schedules()}
    assert "no time zone" in found["odd"].note


def test_an_event_begins_a_flow_with_what_it_says(ground: Ground) -> None:
    ground.amal.flows.on(
        FLOW,
        ("catalog.*",),
        "dataset:fraud/*",
        {"rows": "1*", "unchanged": "!1"},
        {"data": "{subject}", "rows": "{rows}"},
    )
    ground.say("catalog.commit", "dataset:fraud/a", rows=12)
    ground.say("catalog.commit", "dataset:fraud/b", rows=7)
    ground.say("catalog.commit", "dataset:fraud/a", rows=12, unchanged=1)
    ground.say("catalog.commit", "dataset:other/a", rows=12)
    ground.say("track.start", "dataset:fraud/c", rows=12)
    ground.turn(3)
    ((cause, (params, _)),) = ground.runs.items()
    assert cause.startswith("trigger:fraud/retrain@")
    assert (params, ground.owner(cause)) == ({"data": "dataset:fraud/a@r1", "rows": 12}, "amal")
    (view,) = ground.amal.flows.triggers("fraud")
    assert (view.started, view.note) == (1, "")


def test_events_of_before_a_trigger_are_not_heard_and_cooling_passes_events_over(ground: Ground) -> None:
    ground.say("catalog.commit", "dataset:fraud/a")
    ground.amal.flows.on(FLOW, ("catalog.commit",), cool_s=60)
    ground.turn()
    assert ground.runs == {}
    for _ in range(3):
        ground.say("catalog.commit", "dataset:fraud/a")
    ground.turn()
    assert len(ground.runs) == 1
    ground.later_s += 61
    ground.say("catalog.commit", "dataset:fraud/a")
    ground.turn()
    assert len(ground.runs) == 2


def test_an_owner_hears_only_of_what_they_may_see(ground: Ground) -> None:
    town = ground.town
    fatima = town.as_("fatima")
    town.tokens["lina"] = enroll(fatima, "lina", ("data-scientist",), projects=("fraud",), jurisdiction="AE")
    town.as_("lina").flows.on(FLOW, ("catalog.commit",), params={"data": "{subject}"}, name="of-lina")
    ground.say("catalog.commit", "dataset:secretive/a")
    ground.say("catalog.commit", "dataset:fraud/a", who="sara")  # of the clinic
    ground.turn(2)
    assert ground.runs == {}
    ground.say("catalog.commit", "dataset:fraud/a")
    ground.turn()
    assert [ground.owner(cause) for cause in ground.runs] == ["lina"]
    town.as_("fatima").people.suspend("lina")
    ground.say("catalog.commit", "dataset:fraud/a")
    ground.turn()
    assert len(ground.runs) == 1


def test_a_parameter_that_cannot_be_filled_is_said(ground: Ground) -> None:
    ground.amal.flows.on(FLOW, ("catalog.commit",), params={"data": "{nothing}"})
    ground.say("catalog.commit", "dataset:fraud/a")
    ground.turn()
    (view,) = ground.amal.flows.triggers()
    assert "there is no nothing to fill in" in view.note
    assert ground.runs == {}


@pytest.mark.parametrize("how", ["its end", "the run itself", "a job of it"])
def test_runs_that_begin_each_other_come_to_an_end(ground: Ground, how: str) -> None:
    ground.amal.flows.on(FLOW, ("flows.end", "catalog.commit"), "turn:*" if how == "its end" else "dataset:*")
    ground.amal.flows.start(FLOW, cause=how)
    while True:
        known = len(ground.runs)
        with ground.ledger.read(ground.ctx("amal")) as tx:
            run = max(tx.find("turn").records, key=lambda one: int(one.key.name.rpartition("-")[2]))
        if how == "its end":
            ground.say("flows.end", str(run.ref.bare))
        elif how == "the run itself":
            ground.say("catalog.commit", "dataset:fraud/a", actor=f"run.{run.body['id']}")
        else:
            job = ground.amal.jobs.add(f"job:fraud/{run.key.name}.wait.t{known}", {"command": ["true"]})
            with ground.ledger.read(ground.ctx("amal")) as tx:
                id_ = tx.need(job.ref.bare).body["id"]
            ground.say("catalog.commit", "dataset:fraud/a", actor=f"run.{id_}")
        ground.turn()
        if len(ground.runs) == known:
            break
        assert known < 20
    assert len(ground.runs) == 9
    (view,) = ground.amal.flows.triggers()
    assert "began each other" in view.note


def test_a_clock_begins_each_moment_once_and_catches_up_as_asked(ground: Ground) -> None:
    for how in ("last", "all", "none"):
        ground.amal.flows.schedule(FLOW, "0 3 * * *", "Asia/Dubai", {"day": "{day}"}, catch_up=how, name=how)
    ground.turn()
    assert ground.runs == {}
    start = ground.amal.flows.schedules()[0].next_at
    ground.later_s += start - ground.now() + 3 * 86_400 + 600
    ground.turn(2)
    ground.crash()
    ground.turn()
    causes = [cause.partition("@")[0] for cause in ground.runs]
    assert causes.count("schedule:fraud/last") == 1
    assert causes.count("schedule:fraud/all") == 4
    assert causes.count("schedule:fraud/none") == 0
    assert ground.asked == 5
    assert all(cause.endswith("T03:00:00+04:00") for cause in ground.runs)
    after = {one.ref.name: one for one in ground.amal.flows.schedules()}
    assert {one.next_at for one in after.values()} == {start + 4 * 86_400}


def test_it_reads_on_over_postgresql(postgres_url: str, tmp_path: Path) -> None:
    ground = Ground(tmp_path / "town", store=postgres_url)
    ground.watch()
    ground.verdict("v-1")
    ground.turn(2)
    ground.crash()
    ground.turn()
    assert list(ground.runs) == ["v-1"]
    assert ground.asked == 1
    ground.town.close()
