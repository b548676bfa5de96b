"""Executors that refuse, hang, forget and lie: their jobs wait or go elsewhere, and nobody else notices."""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from operator import lt
from pathlib import Path
from typing import Any

import pytest

from falaj.backends.process import ProcessExecutor
from falaj.core.errors import Unavailable
from falaj.core.executor import SUCCEEDED, UNKNOWN, Attempt, AttemptStatus, NodeInfo, PersonRefused
from falaj.dispatch import cluster_worker, jobs_loop, leader_state, unpublished
from falaj.dispatch.leader_state import LeaderState
from falaj.jobs.staging import AttemptStaging
from falaj.schedule.model import SchedulePlan
from falaj.schedule.scheduler import Scheduler
from falaj.store import ledger
from tests.jobs.lab import Lab, until


class Faulty(ProcessExecutor):
    """Does as it is told, until a test says otherwise."""

    def __init__(self, url: str, options: Any, faults: dict[str, Callable[..., Any]]) -> None:
        super().__init__(url, options)
        self.faults = faults
        self.launched: list[str] = []

    def launch(self, attempt: Attempt) -> str:
        self.launched.append(attempt.id)
        if fault := self.faults.get("launch"):
            fault(attempt)
        return super().launch(attempt)

    def capacity(self) -> Sequence[NodeInfo]:
        found = super().capacity()
        return self.faults["capacity"]() if "capacity" in self.faults else found

    def poll(self, handles: Sequence[str]) -> Sequence[AttemptStatus]:
        if fault := self.faults.get("poll"):
            return fault(super().poll(handles))
        return super().poll(handles)


class Bad(Lab):
    """A lab whose cluster `bad` has faults beside a good one, `local`."""

    def __init__(self, home: Path) -> None:
        super().__init__(home)
        self.faults: dict[str, Callable[..., Any]] = {}
        self.made: list[Faulty] = []
        self.here.clusters.add("bad", "process:", more={"folder": str(home / "bad")})
        desk = self.here.house.desks["clusters"]
        desk._opener, usual = self._open, desk._opener
        self._usual = usual

    def _open(self, url: str, options: Any) -> Any:
        if not options["folder"].endswith("bad"):
            return self._usual(url, options)
        self.made.append(Faulty(url, options, self.faults))
        return self.made[-1]


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Bad]:
    made = Bad(tmp_path)
    with made.here, made.here.working():
        yield made


def test_a_refused_placement_backs_off_alone(lab: Bad) -> None:
    def refuse(attempt: Attempt) -> None:
        raise Unavailable("no beds free", "come back later")

    lab.faults["launch"] = refuse
    job = lab.submit("print(1)", "refused", cluster="bad")
    job = lab.until(job, lambda job: len(job.attempts) > 1)
    assert job.attempts[0].outcome.startswith("refused: no beds free")
    assert lab.done(lab.submit("print(2)", "other")).state == "succeeded"
    lab.faults.clear()
    assert lab.done(job).state == "succeeded"


WRITE_MODEL = """
import pathlib
from falaj import worker
pathlib.Path(worker.attempt().outputs["model"], "m").write_text("m")
"""


@pytest.mark.parametrize("end", ["succeeded", "cancelled"])
def test_outputs_wait_for_the_blob_store(lab: Bad, monkeypatch: pytest.MonkeyPatch, end: str) -> None:
    publish, outage, calls = AttemptStaging.publish, threading.Event(), list[str]()
    outage.set()

    def fail_in_outage(self: AttemptStaging, ctx: Any, record: Any, cluster: Any) -> dict[str, str]:
        calls.append(record.body["id"])
        if outage.is_set():
            raise Unavailable("the blob store does not answer", "try again")
        return publish(self, ctx, record, cluster)

    monkeypatch.setattr(AttemptStaging, "publish", fail_in_outage)
    monkeypatch.setattr(unpublished, "PUBLISH_AGAIN_S", 0.1)
    job = lab.submit(WRITE_MODEL, "trained", outputs={"model": "model:default/m"})
    until(lambda: len(calls) >= 5, bool)
    assert lab.show(job).state == "running"
    assert lab.done(lab.submit("print(1)", "other")).state == "succeeded", "other jobs go on"
    if end == "cancelled":
        lab.here.jobs.cancel(job.ref)
        assert lab.done(job).state == "cancelled"
        return
    outage.clear()
    job = lab.done(job)
    assert (job.state, len(job.attempts), str(job.outputs["model"])) == ("succeeded", 1, "model:default/m@v1")


def test_a_cluster_that_refuses_a_person_is_no_candidate_for_their_jobs(lab: Bad) -> None:
    def refuse(attempt: Attempt) -> None:
        raise PersonRefused("there is no Unix user 'amal' here", "map the person to a user of the site")

    lab.faults["launch"] = refuse
    lab.here.clusters.change("local", {"state": "closed"})
    job = lab.submit("print(1)", "elsewhere")
    until(lambda: [name for executor in lab.made for name in executor.launched], len)
    lab.here.clusters.change("local", {"state": "open"})
    job = lab.done(job)
    assert (job.state, [attempt.cluster for attempt in job.attempts]) == ("succeeded", ["bad", "local"]), job
    assert "refused: there is no Unix user 'amal' here" in job.attempts[0].outcome
    named = lab.done(lab.submit("print(1)", "named", cluster="bad"))
    assert (named.state, "no Unix user 'amal'" in named.note, len(named.attempts)) == ("failed", True, 1)


def test_a_cluster_that_hangs_holds_up_nobody_else(lab: Bad, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_worker, "CALL_DEADLINE_S", 0.5)
    gate = threading.Event()
    lab.faults["launch"] = lambda attempt: gate.wait(30)
    job = lab.submit("print(1)", "stuck", cluster="bad")
    until(lambda: [name for one in lab.made for name in one.launched], len)
    assert lab.done(lab.submit("print(2)", "other", cluster="local")).state == "succeeded"
    until(lambda: len(lab.made), lambda made: made > 1)
    lab.faults.clear()
    gate.set()
    job = lab.done(job)
    assert (job.state, lab.lines(job)) == ("succeeded", ("1",))
    assert len(job.attempts) == 1


def test_a_cluster_that_forgets_an_attempt_has_lost_it(lab: Bad) -> None:
    job = lab.submit(
        "import time; time.sleep(600 if __import__('os').environ['FALAJ_ATTEMPT'][-1] == '1' else 0)", cluster="bad"
    )
    lab.until(job, lambda job: job.state == "running")
    lab.faults["poll"] = lambda found: [AttemptStatus(one.handle, UNKNOWN) for one in found]
    lab.until(job, lambda job: bool(job.attempts) and job.attempts[0].ended > 0)
    lab.faults.clear()
    job = lab.done(job)
    assert (job.state, job.attempts[0].outcome.split(":")[0]) == ("succeeded", "lost")
    first = job.attempts[0].id
    until(lambda: lab.made[-1].poll([first])[0].phase, lambda phase: phase not in ("running", "waiting"))


def test_lies_about_strangers_and_changed_minds_change_nothing(lab: Bad) -> None:
    told: list[str] = []

    def lie(found: Sequence[AttemptStatus]) -> Sequence[AttemptStatus]:
        told.extend(one.handle for one in found)
        return [AttemptStatus("never-heard-of", SUCCEEDED), *reversed(found), AttemptStatus("", "dancing")]

    lab.faults["poll"] = lie
    jobs = [lab.submit(f"print({number})", f"job-{number}", cluster="bad") for number in range(3)]
    done = [lab.done(job) for job in jobs]
    assert [lab.lines(job) for job in done] == [("0",), ("1",), ("2",)]
    assert {job.state for job in done} == {"succeeded"}
    assert told


def test_a_faulty_executor_closes_its_own_nodes_only(lab: Bad) -> None:
    def fault(found: Sequence[AttemptStatus]) -> Sequence[AttemptStatus]:
        raise KeyError("a bug")

    job = lab.submit("import time; time.sleep(1)", "first", cluster="bad")
    lab.until(job, lambda job: job.state == "running")
    lab.faults["poll"] = fault
    assert lab.done(lab.submit("print(1)", "other", cluster="local")).state == "succeeded"
    lab.faults.clear()
    assert lab.done(job).state == "succeeded"


def test_a_job_cancelled_while_it_is_launched_does_not_run_on(lab: Bad) -> None:
    gate = threading.Event()
    lab.faults["launch"] = lambda attempt: gate.wait(30)
    job = lab.submit("import time; time.sleep(600)", cluster="bad")
    (name,) = until(lambda: [name for one in lab.made for name in one.launched], len)
    lab.here.jobs.cancel(job.ref)
    gate.set()
    assert lab.done(job).state == "cancelled"
    until(lambda: lab.made[-1].poll([name])[0].phase, lambda phase: phase not in ("running", "waiting"))


def test_a_decision_that_breaks_costs_a_rebuild_and_nothing_else(lab: Bad, monkeypatch: pytest.MonkeyPatch) -> None:
    broken: list[int] = []
    usual = Scheduler.cycle

    def cycle(self: Scheduler, now: int, most: int = 1000) -> SchedulePlan:
        plan = usual(self, now, most)
        if plan.starts and not broken:
            broken.append(1)
            raise KeyError("a bug")
        return plan

    monkeypatch.setattr(Scheduler, "cycle", cycle)
    job = lab.done(lab.submit("print(1)", cluster="local"))
    assert (job.state, len(job.attempts), broken) == ("succeeded", 1, [1])


def test_an_attempt_whose_node_is_gone_is_tried_elsewhere(lab: Bad, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs_loop, "NODE_GONE_TIMEOUT_S", 0.2)
    monkeypatch.setattr(cluster_worker, "NODE_POLL_INTERVAL_S", 0.1)
    job = lab.submit("import os, time; time.sleep(600 if os.environ['FALAJ_ATTEMPT'][-1] == '1' else 0)", cluster="bad")
    lab.until(job, lambda job: job.state == "running")
    lab.faults["capacity"] = list
    lab.until(job, lambda job: bool(job.attempts) and job.attempts[0].ended > 0)
    lab.faults.clear()
    job = lab.done(job)
    assert (job.state, "is gone" in job.attempts[0].outcome) == ("succeeded", True)


def test_what_an_attempt_wrote_stays_until_its_end_is_durable(lab: Bad, monkeypatch: pytest.MonkeyPatch) -> None:
    """The ends of many jobs are committed together, and the store may go away at that very moment."""
    broken: list[str] = []
    ended, ledger = LeaderState.write, lab.here.house.ledger
    together, left = ledger.group, list[str]()

    def write(self: LeaderState, old: Any, body: Any, said: str, *more: Any, **fields: Any) -> Any:
        broken.extend([said] if said == "jobs.end" and not broken else [])
        return ended(self, old, body, said, *more, **fields)

    @contextmanager
    def group() -> Iterator[None]:
        with together():
            yield
            if broken == ["jobs.end"]:
                broken.append("undone")
                threading.Event().wait(0.5)  # time for whoever is too early
                left.extend(path.name for path in (lab.home / "house").glob("attempts/*/outputs/rows/*"))
                raise Unavailable("the store went away")

    monkeypatch.setattr(LeaderState, "write", write)
    monkeypatch.setattr(ledger, "group", group)
    script = "import os, pathlib; pathlib.Path(os.environ['FALAJ_OUTPUT_ROWS'], 'a').write_text('a')"
    job = lab.done(lab.submit(script, outputs={"rows": "dataset:lab/rows"}, cluster="local"))
    assert (job.state, str(job.outputs["rows"])) == ("succeeded", "dataset:lab/rows@v1"), job.note
    assert (broken, left) == (["jobs.end", "undone"], ["a"])


def test_nobody_backs_off_until_a_day_that_a_wrong_clock_named(lab: Bad) -> None:
    def refuse(attempt: Attempt) -> None:
        raise Unavailable("not now")

    lab.faults["launch"] = refuse
    job = lab.submit("print(1)", cluster="bad")
    lab.until(job, lambda one: "refused" in one.note)
    house = lab.here.house
    ctx = house.context(lab.here.actor)

    def put_off(tx: Any) -> None:
        old = tx.need(job.ref.bare)
        tx.put(old.key, {**old.body, "not_before": round(time.time()) + 86_400}, rev=old.rev, terms=old.terms)
        tx.emit("jobs.refuse", job.ref.bare.at(f"r{old.rev + 1}"))

    until(lambda: lab.show(job), lambda one: one.state == "waiting")
    lab.faults.clear()
    house.ledger.retry(ctx, put_off)
    assert lab.done(job).state == "succeeded"


def test_a_cluster_that_another_process_closed_takes_nothing_that_came_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leader_state, "_RARE_CHECK_INTERVAL_S", 3600.0)
    mine = Lab(tmp_path)
    other = Lab(tmp_path)  # as a process beside ours: its commits do not wake us
    with mine.here, other.here, mine.here.working():
        assert mine.done(mine.submit("print(1)", "first")).state == "succeeded"
        other.here.clusters.change("local", {"state": "closed"})
        late = other.submit("print(2)", "late")
        until(lambda: _steps(mine), partial(lt, _steps(mine) + 2))
        assert mine.show(late).state == "waiting"
        other.here.clusters.change("local", {"state": "open"})
        assert other.done(late, other.submit("print(3)", "last")).state == "succeeded"


def _steps(lab: Lab) -> int:
    return next(one.steps for one in lab.here.house._loop_runner.turned() if one.loop == "jobs")


def test_an_attempt_that_is_over_before_it_is_written_down_is_written_once(
    lab: Bad, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster_worker, "BATCH_ATTEMPTS", 0)  # whatever is launched waits for what comes of it
    monkeypatch.setattr(cluster_worker, "BATCH_WINDOW_S", 3600.0)
    job = lab.done(lab.submit("print(1)", cluster="bad"))
    (tried,) = job.attempts
    assert (job.state, tried.outcome, tried.started > 0) == ("succeeded", "succeeded", True)
    assert lab.lines(job) == ("1",)
    ledger = lab.here.house.ledger
    facts = [fact.event for fact in ledger.tail(kind="job") if fact.event.verb not in ("jobs.show", "jobs.logs")]
    said = [(event.verb, event.subject.version) for event in facts]
    assert said == [("jobs.add", "r1"), ("jobs.admit", "r2"), ("jobs.start", "r3"), ("jobs.end", "r3")]
    assert dict(facts[2].body)["handle"] == tried.id


def test_a_decision_that_comes_too_late_is_dropped_and_the_others_of_its_step_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are one transaction, and somebody wrote of one of the jobs after it was decided on."""
    mine, usual, seals = Lab(tmp_path), Scheduler.cycle, list[int]()
    sealed = ledger.encrypt_events

    def cycle(self: Scheduler, now: int, most: int = 1000) -> SchedulePlan:
        plan = usual(self, now, most)
        if len(plan.starts) == 3:
            mine.here.jobs.cancel(second.ref)
        return plan

    def seal_events(cipher: Any, said: Any, bundled: bool) -> Any:
        seals.append(sum(event.verb == "jobs.admit" for event in said))
        return sealed(cipher, said, bundled)

    monkeypatch.setattr(jobs_loop, "MAX_GROUPED_DECISION_S", 0.0)  # so that somebody else can write while it is decided
    monkeypatch.setattr(Scheduler, "cycle", cycle)
    monkeypatch.setattr(ledger, "encrypt_events", seal_events)
    with mine.here:
        first, second, third = (mine.submit("print(1)", name) for name in ("one", "two", "three"))
        assert mine.done(first, third).state == "succeeded"
        assert [mine.show(job).state for job in (first, second, third)] == ["succeeded", "cancelled", "succeeded"]
    assert max(seals) == 2
