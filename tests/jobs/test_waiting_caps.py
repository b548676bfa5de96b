"""Caps on waiting jobs: of a queue with all below it, and of one person; sweeps wait for room instead of failing."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from falaj.core.errors import Invalid, QuotaExceeded
from falaj.jobs.records import JobSpec
from tests.jobs.lab import Lab
from tests.town import Town, refusal

SMALL = {"cpus": 0.1, "memory": "32MiB"}


@pytest.fixture
def town(tmp_path: Path) -> Iterator[Town]:
    town = Town(tmp_path / "town")
    town.as_("admin").clusters.change("local", {"tenants": "bank,clinic"})
    town.as_("admin").queues.add("root/bank/fraud", projects=("bank/fraud",))
    yield town
    town.close()


def add(town: Town, person: str, name: str) -> Any:
    return town.as_(person).jobs.add(f"job:fraud/{name}", JobSpec(("sleep", "600")))


def test_a_queue_takes_no_more_waiting_jobs_than_its_cap(town: Town) -> None:
    admin = town.as_("admin")
    shown = admin.queues.change("root/bank", {"max_waiting": "2"})
    assert (shown.max_waiting, shown.max_waiting_per_person) == (2, None)
    add(town, "amal", "a")
    job = add(town, "mona", "b")
    error = refusal(lambda: add(town, "amal", "c"))
    assert isinstance(error, QuotaExceeded)
    assert "queue root/bank: expected at most 2 waiting jobs, got 3" in str(error)
    other = town.as_("amal").jobs.add("job:fraud/other", JobSpec(("true",), queue="root/default"))
    moved = refusal(lambda: town.as_("amal").jobs.change(other.ref, queue="root/bank/fraud"))
    assert isinstance(moved, QuotaExceeded)
    town.as_("mona").jobs.cancel(job.ref)
    add(town, "amal", "c")
    assert isinstance(refusal(lambda: town.as_("mona").jobs.retry(job.ref)), QuotaExceeded)
    assert admin.queues.change("root/bank", {"max_waiting": "none"}).max_waiting is None
    town.as_("mona").jobs.retry(job.ref)
    assert isinstance(refusal(lambda: admin.queues.change("root/bank", {"max_waiting": "-1"})), Invalid)


def test_one_person_does_not_fill_a_queue(town: Town) -> None:
    town.as_("admin").queues.change("root", {"max_waiting_per_person": "1"})
    add(town, "amal", "a")
    error = refusal(lambda: add(town, "amal", "b"))
    assert "at most 1 waiting jobs of amal, got 2" in str(error)
    assert add(town, "mona", "b").state == "waiting"


def test_jobs_that_run_are_not_counted(town: Town, tmp_path: Path) -> None:
    town.as_("admin").queues.change("root", {"max_waiting": "1"})
    lab = Lab(tmp_path, town.as_("amal"))
    with town.house.working():
        first = lab.submit("import time; time.sleep(600)", "first", project="fraud")
        lab.until(first, lambda job: job.state == "running")
        second = lab.submit("import time; time.sleep(600)", "second", project="fraud")
        lab.until(second, lambda job: job.state == "running")
        for job in (first, second):
            lab.here.jobs.cancel(job.ref)


def test_a_sweep_waits_for_room_below_a_cap(tmp_path: Path) -> None:
    lab = Lab(tmp_path)
    with lab.here:
        lab.here.queues.change("root", {"max_waiting": "1"})
        script = lab.script("from falaj import worker\nworker.attempt().metric('loss', 1.0, 1)")
        plan = {"space": ("lr=log:1e-3..1e-1",), "metric": "loss", "trials": 3, "at_once": 3}
        sweep = lab.here.sweeps.start(script, name="capped", wait=True, **plan, **SMALL)
        assert (sweep.state, sweep.progress) == ("finished", "3/3"), sweep
