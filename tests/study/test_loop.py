"""The loop of sweeps, turn by turn: what it writes, for whom, and what becomes of it when somebody dies or goes."""

import multiprocessing
import os
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from falaj.core.errors import Conflict, Denied, Invalid, NotFound
from falaj.core.ref import Ref
from falaj.server import Server, load_settings
from falaj.store.reconcile_loop import LoopIteration, system_context
from falaj.study.records import SweepPlan
from falaj.study.sweep_loop import SweepLoop
from falaj.track.records import Metric
from tests.town import Town, refusal

SWEEP = Ref.parse("sweep:fraud/s1")
PLAN = SweepPlan(space=("x=float:0..1",), metric="loss", trials=6, at_once=3, sampler="random", min_steps=1)
SPEC = {"command": ["python3", "-c", "pass"]}


class Desk:
    """A town whose jobs wait for ever: nothing runs but the loop of sweeps, and that when it is told to."""

    def __init__(self, town: Town) -> None:
        self.town, self.house = town, town.house
        self.loop = SweepLoop(town.house.ledger, town.house.desks["sweeps"])
        self.amal = town.as_("amal")

    def add(self, name: str = "s1", **more: Any) -> Any:
        return self.amal.sweeps.add(Ref("sweep", "fraud", name), replace(PLAN, **more), SPEC)

    def turn(self, times: int = 1, alive: bool = True) -> None:
        for _ in range(times):
            turn_of(self.house, self.loop, alive)

    def show(self, name: str = "s1") -> Any:
        return self.amal.sweeps.show(f"sweep:fraud/{name}")

    def measure(self, number: int, value: float, step: int = 1) -> None:
        run = next(one.run for one in self.show().trials if one.number == number)
        self.amal.track.log(run, (Metric("loss", value, 0.0, step),))


def turn_of(house: Server, loop: SweepLoop, alive: bool = True) -> None:
    loop.step(LoopIteration(system_context("sweeps", house.settings.zone), 1, lambda: alive))


everywhere = pytest.mark.parametrize("desk", ["sqlite", "postgresql"], indirect=True)


@pytest.fixture
def desk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Desk]:
    engine = getattr(request, "param", "sqlite")
    store = {} if engine == "sqlite" else {"store": request.getfixturevalue("postgres_url")}
    town = Town(tmp_path / "town", **store)
    town.as_("admin").clusters.change("local", {"tenants": "bank,clinic"})
    yield Desk(town)
    town.close()


def test_as_many_trials_as_at_once_and_no_more(desk: Desk) -> None:
    desk.add()
    desk.turn(3)
    shown = desk.show()
    assert [one.number for one in shown.trials] == [1, 2, 3]
    assert {one.state for one in shown.trials} == {"waiting"}
    found = desk.amal.jobs.list(project="fraud", mine=True).jobs
    assert sorted(str(one.ref) for one in found) == [f"job:fraud/s1-{n}" for n in (1, 2, 3)]
    first = next(one for one in shown.trials if one.number == 1)
    job = desk.amal.jobs.show(first.job)
    x = str(first.params["x"])
    assert job.spec.command[-2:] == ("--x", x)
    run = desk.amal.track.show(first.run)
    assert (run.params["x"], run.tags["sweep"], str(run.experiment)) == (x, "sweep:fraud/s1", "experiment:fraud/s1")


def test_every_act_is_in_the_log_with_whom_it_is_for(desk: Desk) -> None:
    desk.add()
    desk.turn()
    told = {(event.verb, event.behalf) for event in desk.town.events() if event.actor.startswith("run.")}
    assert {("jobs.add", "amal"), ("track.log", "amal"), ("sweeps.trial", "amal"), ("sweeps.start", "amal")} <= told


@everywhere
def test_who_is_behind_is_stopped_and_the_next_is_asked_for(desk: Desk) -> None:
    desk.add()
    desk.turn()
    for number, value in ((1, 0.5), (2, 0.9), (3, 0.7)):
        desk.measure(number, value)
    desk.turn(4)
    trials = {one.number: one for one in desk.show().trials}
    assert [trials[n].state for n in (1, 2, 3)] == ["waiting", "stopped", "stopped"]
    assert trials[2].note == "stopped early: 0.9 at step 1 is behind 2 of 3"
    assert sorted(trials) == [1, 2, 3, 4, 5]
    assert next(iter(desk.show().trials)).number == 1  # best first
    assert [event.behalf for event in desk.town.events(verb="jobs.cancel")] == ["amal", "amal"]


def test_another_replica_and_a_leader_who_lost_its_lead_do_nothing(desk: Desk) -> None:
    desk.add()
    other = SweepLoop(desk.house.ledger, desk.house.desks["sweeps"])
    desk.turn(alive=False)
    assert desk.show().trials == ()
    desk.turn()
    turn_of(desk.house, other)
    desk.turn()
    assert len(desk.show().trials) == 3


@everywhere
def test_two_that_both_think_they_lead_start_no_trial_twice(desk: Desk) -> None:
    """Both decide on the same revision; the second one's transaction finds it gone, jobs and all."""
    desk.add()
    ledger, ctx = desk.house.ledger, replace(system_context("sweeps", desk.house.settings.zone), tenant="bank")
    with ledger.read(ctx) as tx:
        sweep = tx.need(SWEEP)
    desk.turn()
    late = SweepLoop(ledger, desk.house.desks["sweeps"])
    late._iteration = LoopIteration(ctx, 1, lambda: True)
    with pytest.raises(Conflict):
        late._start(ctx, sweep, [], 3)
    assert len(desk.amal.jobs.list(project="fraud").jobs) == 3


def test_stop_cancels_what_runs_and_names_nothing(desk: Desk) -> None:
    desk.add()
    desk.turn()
    desk.amal.sweeps.stop(SWEEP, reason="enough")
    desk.turn(3)
    shown = desk.show()
    assert (shown.state, shown.note) == ("stopped", "enough")
    assert {(one.state, one.note) for one in shown.trials} == {("cancelled", "enough")}
    assert {one.state for one in desk.amal.jobs.list(project="fraud").jobs} == {"cancelled"}
    assert isinstance(refusal(lambda: desk.amal.sweeps.stop(SWEEP)), Conflict)


def test_let_finish_waits_for_what_runs(desk: Desk) -> None:
    desk.add()
    desk.turn()
    desk.amal.sweeps.stop(SWEEP, let_finish=True)
    desk.turn(2)
    assert (desk.show().state, {one.state for one in desk.show().trials}) == ("stopping", {"waiting"})
    for one in desk.show().trials:
        desk.amal.jobs.cancel(one.job)
    desk.turn(2)
    shown = desk.show()
    assert (shown.state, {one.state for one in shown.trials}) == ("failed", {"cancelled"})
    assert "no trial succeeded" in shown.note


@pytest.mark.parametrize("how", ["suspend", "roles"])
def test_sweep_rests_while_its_owner_may_not_work_and_goes_on_afterwards(desk: Desk, how: str) -> None:
    desk.add(at_once=2)
    desk.turn()
    people = desk.town.as_("fatima").people
    mona = desk.town.as_("mona")
    if how == "suspend":
        people.suspend("amal")
    else:
        people.change("amal", roles=("approver",))
    mona.jobs.cancel("job:fraud/s1-1")
    desk.turn(5)
    shown = mona.sweeps.show(SWEEP)
    assert (shown.state, len(shown.trials)) == ("running", 2), "it asks for nothing"
    assert mona.jobs.show("job:fraud/s1-2").state == "held"
    if how == "suspend":
        people.resume("amal")
    else:
        people.change("amal", roles=("data-scientist",))
    desk.turn(2)
    assert len(desk.show().trials) == 3
    assert mona.jobs.show("job:fraud/s1-2").state == "waiting"
    assert desk.town.events(verb="guard.deny") == []


def test_sweep_of_a_removed_account_is_stopped(desk: Desk) -> None:
    desk.add(at_once=2)
    desk.turn()
    desk.town.as_("fatima").people.remove("amal")
    desk.turn(5)
    shown = desk.town.as_("mona").sweeps.show(SWEEP)
    assert (shown.state, shown.note) == ("stopped", "the account amal was removed")
    assert {trial.state for trial in shown.trials} == {"cancelled"}


@everywhere
def test_a_name_that_is_taken_ends_it_with_the_reason(desk: Desk) -> None:
    desk.amal.jobs.add("job:fraud/s1-2", SPEC)
    desk.add()
    desk.turn(3)
    shown = desk.show()
    assert shown.state == "failed"
    assert "job:fraud/s1-2 exists already" in shown.note
    assert shown.trials == ()  # all or nothing: the first was undone with the second
    assert len(desk.amal.jobs.list(project="fraud").jobs) == 1


def test_a_gang_is_asked_for_together_and_the_next_when_all_are_over(desk: Desk) -> None:
    desk.add(gang=True, stopper="none")
    desk.turn()
    desk.amal.jobs.cancel("job:fraud/s1-1")
    desk.turn(3)
    assert len(desk.show().trials) == 3
    for number in (2, 3):
        desk.amal.jobs.cancel(f"job:fraud/s1-{number}")
    desk.turn(2)
    assert len(desk.show().trials) == 6


def test_one_sweep_in_trouble_holds_up_no_other(desk: Desk) -> None:
    desk.amal.jobs.add("job:fraud/a-1", SPEC)
    for name in ("a", "b"):
        desk.add(name)
    desk.turn(2)
    assert (desk.show("a").state, len(desk.show("b").trials)) == ("failed", 3)


def test_what_cannot_be_is_refused_when_it_is_asked_for(desk: Desk) -> None:
    for more in (
        {"metric": ""}, {"goal": "up"}, {"sampler": "magic"}, {"stopper": "me"}, {"trials": 0}, {"at_once": 0},
        {"eta": 1}, {"space": ()}, {"space": ("x=log:0..1",)}, {"space": ("memory=1|2",)}, {"sampler": "grid"},
        {"take": "all"},
    ):  # fmt: skip
        assert isinstance(refusal(lambda more=more: desk.add(**more)), Invalid), more
    add = desk.amal.sweeps.add
    assert isinstance(refusal(lambda: add("job:fraud/s1", PLAN, SPEC)), Invalid)
    assert isinstance(refusal(lambda: add(SWEEP, PLAN, {"command": []})), Invalid)
    assert isinstance(refusal(lambda: add(SWEEP, PLAN, SPEC, inputs={"data": "dataset:fraud/none"})), NotFound)
    assert desk.amal.sweeps.list().sweeps == ()
    desk.add()
    assert isinstance(refusal(desk.add), Conflict)


def test_only_who_may_see_and_stop_it_do(desk: Desk) -> None:
    desk.add()
    sara, omar = desk.town.as_("sara"), desk.town.as_("omar")
    assert isinstance(refusal(lambda: sara.sweeps.show(SWEEP)), NotFound)
    assert isinstance(refusal(lambda: sara.sweeps.stop(SWEEP)), NotFound)
    assert sara.sweeps.list().sweeps == ()
    assert omar.sweeps.show(SWEEP).state == "running"
    assert isinstance(refusal(lambda: omar.sweeps.stop(SWEEP)), Denied)
    assert isinstance(refusal(lambda: omar.sweeps.add("sweep:fraud/s2", PLAN, SPEC)), Denied)
    assert [str(one.ref) for one in desk.amal.sweeps.list(mine=True).sweeps] == ["sweep:fraud/s1"]


def _die_in_the_middle(home: str, verb: str, times: int) -> None:
    """In a process of its own: a server that is killed inside a transaction, when it has called a verb so often."""
    house = Server(load_settings(home, {"zone": "ae-dubai"}))
    jobs, called = house.desks["jobs"], []
    call = getattr(jobs, verb)

    def dies(*given: Any, **more: Any) -> Any:
        made = call(*given, **more)
        called.append(made)
        if len(called) == times:
            os.kill(os.getpid(), signal.SIGKILL)
        return made

    setattr(jobs, verb, dies)
    turn_of(house, SweepLoop(house.ledger, house.desks["sweeps"]))


def _killed(desk: Desk, verb: str, times: int) -> None:
    arguments = (desk.house.settings.home, verb, times)
    process = multiprocessing.get_context("spawn").Process(target=_die_in_the_middle, args=arguments)
    process.start()
    process.join(100)
    assert process.exitcode == -signal.SIGKILL


def test_killed_while_it_asks_for_trials_none_is_lost_or_doubled(desk: Desk) -> None:
    desk.add()
    _killed(desk, "add", 2)
    assert desk.show().trials == ()
    assert desk.amal.jobs.list(project="fraud").jobs == ()
    desk.turn(2)
    assert sorted(one.number for one in desk.show().trials) == [1, 2, 3]
    assert len(desk.amal.jobs.list(project="fraud").jobs) == 3


def test_killed_while_it_stops_a_trial_the_next_stops_it(desk: Desk) -> None:
    desk.add(trials=3)
    desk.turn()
    for number, value in ((1, 0.5), (2, 0.9), (3, 0.4)):
        desk.measure(number, value)
    _killed(desk, "cancel", 1)
    assert {one.state for one in desk.amal.jobs.list(project="fraud").jobs} == {"waiting"}
    desk.turn(2)
    assert {one.number: one.state for one in desk.show().trials} == {1: "stopped", 2: "stopped", 3: "waiting"}
