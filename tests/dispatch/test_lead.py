"""What the leader reads, and when it may write."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from falaj.core.ports import RecordKey
from falaj.dispatch import leader_state
from falaj.dispatch.leader_state import FENCE_KEY, LeadershipLost, LeaderState
from falaj.jobs import service, state_machine
from falaj.jobs.records import JobView
from falaj.jobs.service import JobService
from falaj.schedule.model import SchedulerOptions, SlotPlacement
from falaj.schedule.runtime_forecast import to_shape_key
from falaj.serve.change_watch import ChangeWatch
from falaj.store.ledger import Ledger, LedgerReader
from falaj.store.reconcile_loop import LoopIteration, system_context
from falaj.store.records import LedgerRecord
from tests.jobs.lab import Lab


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    made = Lab(tmp_path)
    with made.here:
        yield made


@pytest.fixture
def leader(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> LeaderState:
    """It leads, and looks at the log only where it was told of something."""
    monkeypatch.setattr(leader_state, "_JOB_CHECK_INTERVAL_S", 3600.0)
    house = lab.here.house
    made = LeaderState(house.ledger, house.desks["clusters"], house.desks["track"], SchedulerOptions())
    made.begin(LoopIteration(system_context("jobs"), 1, lambda: True))
    made.follow()
    return made


def known(leader: LeaderState, job: JobView) -> LedgerRecord:
    leader.follow()
    return next(record for record in leader.jobs.values() if record.key.name == job.ref.name)


def test_what_others_write_is_read_at_once_and_what_we_write_never(
    lab: Lab, leader: LeaderState, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = lab.submit("print(1)", "mine")
    record, looks = known(leader, job), list[str]()
    usual = Ledger.subjects

    def subjects(self: Ledger, after: str, kind: str, limit: int) -> list[tuple[str, RecordKey]]:
        looks.append(kind)
        return usual(self, after, kind, limit)

    monkeypatch.setattr(Ledger, "subjects", subjects)
    leader.at_work = threading.get_ident()
    record = leader.write(record, {**record.body, "note": "ours"}, "jobs.note")
    leader.follow()
    assert "job" not in looks
    leader.at_work = 0  # what this thread writes from here on is not ours
    lab.here.jobs.cancel(job.ref)
    assert leader.follow()
    assert "job" in looks
    assert record.body["id"] not in leader.jobs


def test_of_a_group_the_first_that_writes_asks_whether_we_lead(
    lab: Lab, leader: LeaderState, monkeypatch: pytest.MonkeyPatch
) -> None:
    records = [known(leader, lab.submit(f"print({name!r})", name)) for name in ("one", "two")]
    asked, usual = list[RecordKey](), LedgerReader.key

    def key(self: LedgerReader, key: RecordKey) -> LedgerRecord | None:
        asked.append(key)
        return usual(self, key)

    monkeypatch.setattr(LedgerReader, "key", key)
    with lab.here.house.ledger.group():
        records = [leader.write(record, {**record.body, "note": "a"}, "jobs.note") for record in records]
    assert asked.count(FENCE_KEY) == 1
    with lab.here.house.ledger.group():
        leader.write(records[0], {**records[0].body, "note": "b"}, "jobs.note")
    leader.write(records[1], {**records[1].body, "note": "b"}, "jobs.note")
    assert asked.count(FENCE_KEY) == 3


@pytest.mark.parametrize("together", [False, True])
def test_who_was_replaced_writes_nothing(lab: Lab, leader: LeaderState, together: bool) -> None:
    job = lab.submit("print(1)", "mine")
    record, ledger = known(leader, job), lab.here.house.ledger
    with ledger.group():
        record = leader.write(record, {**record.body, "note": "while we lead"}, "jobs.note")
    other = LeaderState(ledger, lab.here.house.desks["clusters"], lab.here.house.desks["track"], SchedulerOptions())
    other.begin(LoopIteration(system_context("jobs"), 2, lambda: True))

    def late() -> None:
        leader.write(record, {**record.body, "note": "too late"}, "jobs.note")

    if together:
        with pytest.raises(LeadershipLost), ledger.group():
            late()
    else:
        with pytest.raises(LeadershipLost):
            late()
    assert leader.token == 0
    assert lab.show(job).note == "while we lead"


def test_what_is_said_of_other_things_is_passed_over_once(lab: Lab, leader: LeaderState) -> None:
    """However much is said of jobs, whoever waits for something else does not read it again and again."""
    store, watch = lab.here.house.ledger.store, ChangeWatch(lab.here.house.ledger, "cluster")
    job = lab.submit("print(1)", "much")
    lab.here.jobs.cancel(job.ref)
    end = store.end()
    leader._rare_changed = True
    leader.follow()
    assert (leader._cursors["cluster"], leader._cursors["queue"]) == (end, end)
    assert (watch.changed(), watch._cursors) == (set(), {"cluster": end})
    lab.one_node()
    assert leader.follow()
    assert [ref.name for _, ref in watch.changed()] == ["local"]


def test_a_waiting_job_is_estimated_by_the_progress_of_a_sibling_that_still_runs(
    lab: Lab, leader: LeaderState, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing was learned before a job ended: a cold cluster knew no length for as long as its first jobs ran."""
    code, size = lab.script("print(1)"), {"cpus": 0.1, "memory": "100MiB"}
    running = known(leader, lab.here.jobs.submit(code, name="first", steps=1000, **size))
    sibling = known(leader, lab.here.jobs.submit(code, name="second", steps=500, **size))
    start = leader.ctx.now() - 100
    spots = (SlotPlacement("local/node", 0),)
    body = state_machine.mark_launched(
        state_machine.admit_attempt(running.body, spots, "train-1", 2, start), "handle", start
    )
    running = leader.write(running, body, "jobs.start")
    forecast, job = leader.scheduler.forecast, leader.scheduler.lines.jobs[sibling.body["id"]]
    shape_key = to_shape_key(job.shape)
    assert forecast.left(job, shape_key, int(leader.ctx.now())) is None
    monkeypatch.setattr(service, "PROGRESS_INTERVAL_S", 0.0)
    desk: JobService = lab.here.house.desks["jobs"]
    facts = tuple({"kind": "progress", "step": step, "steps": 1000, "at": start + 3 * step} for step in (1, 30))
    with leader.ledger.write(leader.mine(running)) as tx:
        taken = desk.take(leader.mine(running), tx, running, facts)
    leader.take(taken)
    assert forecast.left(job, shape_key, int(leader.ctx.now())) == (1500, 1875), "500 steps of 3 s each"
