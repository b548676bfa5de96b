"""A job whose input is restricted stops with its grace, is held, and goes on when the restriction is lifted."""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.jobs.lab import Lab, until
from tests.town import LABEL, Town

TRAINING = """
import os, pathlib, time
from falaj import worker
here = worker.attempt()
saved = pathlib.Path(os.environ["FALAJ_CHECKPOINTS"]) / "state"
step = int(saved.read_text()) if saved.exists() else 0
rows = (pathlib.Path(here.inputs["data"]) / "rows.csv").read_text()
print("begins at", step, flush=True)
pause_s = 0.01 if saved.exists() else 0.3
while step < 100:
    step += 1
    here.progress(step, 100)
    if here.asked():
        saved.write_text(str(step))
        here.checkpointed(step)
        if here.asked() == "stop":
            here.yield_place()
    time.sleep(pause_s)
print("rows", len(rows.split()), flush=True)
"""


@pytest.fixture
def town(tmp_path: Path) -> Iterator[Town]:
    made = Town(tmp_path / "house")
    made.as_("admin").clusters.change("local", {"tenants": "bank"})
    yield made
    made.close()


def _publish(town: Town, folder: Path, name: str) -> Any:
    path = folder / name
    path.mkdir()
    (path / "rows.csv").write_text("id\n1\n2\n")
    return town.as_("amal").catalog.publish(f"dataset:fraud/{name}", str(path), label=LABEL).ref


def _has_processes(job: Any, home: Path) -> bool:
    """True while a process of this job with a folder below `home` runs: other tests have jobs of the same name."""
    for process in Path("/proc").iterdir():
        with suppress(OSError):
            text = (process / "environ").read_text(errors="replace")
            if str(home) in text and f"FALAJ_JOB={job.ref}" in text.split("\0"):
                return True
    return False


def test_job_stops_when_its_input_is_restricted_and_goes_on_when_that_is_lifted(town: Town, tmp_path: Path) -> None:
    data, other = (_publish(town, tmp_path, name) for name in ("rows", "other"))
    lab, salem = Lab(tmp_path, town.as_("amal")), town.as_("salem")
    with town.house.working():
        small = {"project": "fraud", "checkpoint": "every=1s,save=1s,restart=1s"}
        training = lab.submit(TRAINING, "training", inputs={"data": str(data)}, **small)
        bystander = lab.submit(TRAINING, "bystander", inputs={"data": str(other)}, **small)
        for job in (training, bystander):
            lab.until(job, lambda view: view.step > 2)
        salem.catalog.restrict(data, "a court asks for it")
        stopped = lab.until(training, lambda view: view.state == "held")
        assert f"{data} is restricted" in stopped.note
        assert str(data) in lab.here.jobs.why(training.ref).text
        until(lambda: _has_processes(training, tmp_path), lambda is_running: not is_running)
        folder = Path(town.house.settings.home, "attempts", stopped.attempts[-1].id)
        until((folder / "inputs").exists, lambda is_there: not is_there)
        assert lab.done(bystander).state == "succeeded"
        assert [attempt.outcome for attempt in lab.show(bystander).attempts] == ["succeeded"]
        assert lab.show(training).state == "held"
        salem.catalog.lift(data, "the court has it")
        ended = lab.done(training)
    assert [attempt.outcome.partition(":")[0] for attempt in ended.attempts] == ["suspended", "succeeded"]
    assert int(lab.lines(training)[0].split()[2]) > 0, "it goes on from its checkpoint"
    assert lab.lines(training)[-1] == "rows 3"


def test_waiting_job_with_a_restricted_input_is_held_and_does_not_fail(town: Town, tmp_path: Path) -> None:
    data = _publish(town, tmp_path, "rows")
    lab, salem = Lab(tmp_path, town.as_("amal")), town.as_("salem")
    waiting = lab.submit(TRAINING, "waiting", project="fraud", inputs={"data": str(data)})
    salem.catalog.restrict(data, "accuracy contested")
    assert lab.show(waiting).state == "held"
    with town.house.working():
        witness = lab.submit("print('ran')", "witness", project="fraud")
        assert lab.done(witness).state == "succeeded"
        assert (lab.show(waiting).state, lab.show(waiting).attempts) == ("held", ())
        salem.catalog.lift(data, "corrected")
        lab.until(waiting, lambda view: view.step > 0)
        salem.catalog.restrict(data, "contested again")
        lab.until(waiting, lambda view: view.state == "held")
        salem.catalog.lift(data, "corrected again")
        lab.until(waiting, lambda view: view.state == "running")
        lab.here.jobs.cancel(waiting.ref)
        assert lab.done(waiting).state == "cancelled"
