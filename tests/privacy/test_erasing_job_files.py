"""Logs and files of jobs that name a person are deleted by the approved plan, or restricted while a hold keeps them."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from falaj.core.errors import Denied, NotFound
from falaj.core.ref import Ref
from falaj.jobs.records import JobView
from tests.jobs.lab import Lab
from tests.privacy.erasures import approve, erase_approved
from tests.town import LABEL, Town, refusal

WHO, OTHER = "784-1990-1234567-1", "784-1985-7654321-9"
PRINTS = """
import os, pathlib, time
rows = pathlib.Path(os.environ["FALAJ_INPUT_DATA"], "rows.csv").read_text()
checkpoints = pathlib.Path(os.environ["FALAJ_CHECKPOINTS"])
checkpoints.mkdir(parents=True, exist_ok=True)
(checkpoints / "rows.csv").write_text(rows)
print(rows, flush=True)
time.sleep(float(os.environ.get("PAUSE_S", "0")))
"""


@pytest.fixture
def town(tmp_path: Path) -> Iterator[Town]:
    made = Town(tmp_path / "house")
    made.as_("admin").clusters.change("local", {"tenants": "bank"})
    yield made
    made.close()


@pytest.fixture
def lab(town: Town, tmp_path: Path) -> Lab:
    return Lab(tmp_path, town.as_("amal"))


@pytest.fixture
def data(town: Town, tmp_path: Path) -> Ref:
    (tmp_path / "rows.csv").write_text(f"id,n\n{WHO},1\n{OTHER},2\n")
    published: Ref = town.as_("amal").catalog.publish("dataset:fraud/rows", str(tmp_path / "rows.csv"), label=LABEL).ref
    return published


def _folder(town: Town, job: JobView) -> Path:
    return Path(town.house.settings.home, "attempts", job.attempts[-1].id)


def test_folders_of_ended_attempts_and_checkpoints_are_deleted_by_the_plan(town: Town, lab: Lab, data: Ref) -> None:
    with town.house.working():
        job = lab.done(lab.submit(PRINTS, "prints", project="fraud", inputs={"data": str(data)}))
        quiet = lab.done(lab.submit("print('ready')", "quiet", project="fraud"))
    assert WHO in "".join(lab.lines(job))
    folder, salem = _folder(town, job), town.as_("salem")
    (folder / "scratch.csv").write_text(f"id\n{WHO}\n")
    request = salem.privacy.ask("erasure", WHO).ref
    planned = {item.ref: item.action for item in salem.privacy.erase(request, WHO, plan=True).items}
    names = [f"{part} of {job.ref}" for part in ("log", "files", "checkpoints")]
    assert [planned[name] for name in names] == ["erase"] * 3
    assert folder.is_dir(), "a plan deletes nothing"
    approve(town, request)
    erased = salem.privacy.erase(request, WHO)
    assert erased.ok, erased
    assert not folder.exists()
    assert not [path for path in folder.parent.rglob("*.csv") if WHO in path.read_text()]
    assert isinstance(refusal(lambda: lab.lines(job)), NotFound)
    assert lab.show(job).state == "succeeded"
    assert lab.lines(quiet) == ("ready",)
    certificate = salem.privacy.certificate(request)
    assert certificate.state == "complete", certificate.statement


def test_folder_of_a_running_attempt_is_listed_and_deleted_after_its_end(town: Town, lab: Lab, data: Ref) -> None:
    salem = town.as_("salem")
    with town.house.working():
        job = lab.submit(PRINTS, "runs", project="fraud", inputs={"data": str(data)}, env={"PAUSE_S": "600"})
        lab.until(job, lambda _: WHO in "".join(lab.lines(job)))
        request = salem.privacy.ask("erasure", WHO).ref
        erased = erase_approved(town, request, WHO)
        assert erased.state == "found"
        assert any(f"log of {job.ref}" in match and "runs" in match for match in erased.matches), erased.matches
        assert lab.show(job).state == "running"
        lab.here.jobs.cancel(job.ref)
        ended = lab.done(job)
    erased = salem.privacy.erase(request, WHO)
    assert erased.ok, erased
    assert not _folder(town, ended).exists()


def test_log_is_restricted_while_a_hold_keeps_it_and_deleted_when_that_ends(town: Town, lab: Lab, data: Ref) -> None:
    with town.house.working():
        job = lab.done(lab.submit(PRINTS, "held", project="fraud", inputs={"data": str(data)}))
    salem, dana = town.as_("salem"), town.as_("dana")
    dana.catalog.hold(data, "case 4")
    request = salem.privacy.ask("erasure", WHO).ref
    erased = erase_approved(town, request, WHO)
    assert erased.state == "retained", erased
    name = f"log of {job.ref}"
    assert [text for text in erased.held if text.startswith(name) and "legal hold" in text], erased.held
    assert _folder(town, job).is_dir()
    assert isinstance(refusal(lambda: lab.lines(job)), Denied)
    dana.catalog.release(data, "case 4")
    assert [plan.request for plan in salem.privacy.retained(due=True)] == [request]
    erased = salem.privacy.erase(request, WHO)
    assert erased.ok, erased
    assert not _folder(town, job).exists()
