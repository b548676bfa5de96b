"""Checkpoints and folders of attempts are searched where this machine reaches them, and listed where it does not."""

import os
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from falaj.core.context import Actor, CallContext
from falaj.jobs.records import JobView
from falaj.jobs.staging import KEEP_S
from falaj.privacy.search.job_files import search_job_files
from falaj.privacy.search.records import SearchCase
from tests.jobs.lab import Lab
from tests.town import LABEL, Town

WHO = "784-1990-4440001-1"
CTX = CallContext(Actor("searcher", "bank", kind="service"), "ae-dubai")
SAVES = f"""
import os, pathlib
folder = pathlib.Path(os.environ["FALAJ_CHECKPOINTS"])
(folder / "deep").mkdir(parents=True, exist_ok=True)
(folder / "deep/state.json").write_text('{{"last": "{WHO}"}}')
"""
WEIGHTS = """
import os, pathlib
pathlib.Path(os.environ["FALAJ_CHECKPOINTS"], "weights.bin").write_bytes(bytes(range(256)) * 8)
"""


@pytest.fixture(scope="module")
def town(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Town]:
    made = Town(tmp_path_factory.mktemp("town") / "house")
    made.as_("admin").clusters.change("local", {"tenants": "bank"})
    yield made
    made.close()


@pytest.fixture
def lab(town: Town, tmp_path: Path) -> Lab:
    return Lab(tmp_path, town.as_("amal"))


def _search(town: Town, who: str = WHO) -> dict[str, str]:
    """Each source that is not clear, with its state."""
    steps = search_job_files(town.house._create_search_estate(), SearchCase(CTX, who, "pseudonym"), "")
    return {each.ref: each.state for outcomes, _ in steps for each in outcomes if each.state != "clear"}


def _checkpoints(town: Town, job: JobView) -> Path:
    with town.house.ledger.read(CTX) as tx:
        return Path(town.house.settings.home, "attempts", "checkpoints", tx.need(job.ref.bare).body["id"])


def _run(town: Town, lab: Lab, text: str, name: str, **more: object) -> JobView:
    with town.house.working():
        job = lab.done(lab.submit(text, name, project="fraud", **more))
    assert job.state == "succeeded", job.note
    return job


def test_checkpoint_with_the_person_is_found_until_the_plan_deletes_it(town: Town, lab: Lab) -> None:
    job = _run(town, lab, SAVES, "saves")
    state = _checkpoints(town, job) / "deep/state.json"
    assert WHO in state.read_text()
    assert _search(town)[f"checkpoints of {job.ref.bare}"] == "found"
    salem = town.as_("salem")
    request = salem.privacy.ask("erasure", WHO).ref
    erased = salem.privacy.erase(request, WHO)
    town.as_("badr").approvals.give(*_approval(town, request))
    erased = salem.privacy.erase(request, WHO)
    assert not [match for match in erased.matches if "checkpoints of" in match], erased
    assert not state.exists()
    assert f"checkpoints of {job.ref.bare}" not in _search(town)


def _approval(town: Town, request: object) -> tuple[object, str]:
    plan = town.as_("dana").privacy.plan(request)
    return plan.approval, plan.digest


def test_file_in_the_folder_of_an_attempt_is_found(town: Town, lab: Lab) -> None:
    who = "784-1990-4440002-2"
    job = _run(town, lab, "print('ready')", "leaves")
    with town.house.ledger.read(CTX) as tx:
        attempt = tx.need(job.ref.bare).body["attempts"][-1]["id"]
    folder = Path(town.house.settings.home, "attempts", attempt)
    (folder / "scratch").mkdir()
    (folder / "scratch/rows.csv").write_text(f"id,amount\n{who},3\n")
    assert _search(town, who)[f"files of {job.ref.bare}"] == "found"
    (folder / "scratch/rows.csv").unlink()
    outside = folder.parent.parent / "outside.txt"
    outside.write_text(who)
    (folder / "scratch/link.txt").symlink_to(outside)
    os.mkfifo(folder / "scratch/pipe")
    assert f"files of {job.ref.bare}" not in _search(town, who), "links and pipes are not followed"
    for path in sorted(folder.rglob("*"), reverse=True):
        with suppress(OSError):
            path.unlink()
            path.parent.rmdir()
    for path in (*sorted((each for each in folder.rglob("*")), reverse=True), folder):
        path.rmdir()
    assert _search(town, who)[f"files of {job.ref.bare}"] == "unread", "it may lie on another machine"


def test_weights_of_a_checkpoint_are_answered_for_by_live_inputs(town: Town, lab: Lab, tmp_path: Path) -> None:
    rows = tmp_path / "rows.csv"
    rows.write_text("n\n1\n")
    data = town.as_("amal").catalog.publish("dataset:fraud/inputs", str(rows), label=LABEL).ref
    explained = _run(town, lab, WEIGHTS, "explained", inputs={"data": str(data)})
    unexplained = _run(town, lab, WEIGHTS, "unexplained")
    states = _search(town)
    assert f"checkpoints of {explained.ref.bare}" not in states
    assert states[f"checkpoints of {unexplained.ref.bare}"] == "unread"
    town.as_("salem").catalog.delete(data, "no more needed", force=True)
    assert _search(town)[f"checkpoints of {explained.ref.bare}"] == "unread"


def test_checkpoints_of_ended_jobs_are_deleted_when_nobody_touched_them_for_long(
    town: Town, lab: Lab, tmp_path: Path
) -> None:
    (tmp_path / "rows.csv").write_text("n\n1\n")
    data = town.as_("amal").catalog.publish("dataset:fraud/swept", str(tmp_path / "rows.csv"), label=LABEL).ref
    job = _run(town, lab, SAVES, "swept", inputs={"data": str(data)})
    folder = _checkpoints(town, job)
    (stranger := folder.parent / "not-of-falaj").mkdir()
    (removed := folder.parent / ("0" * 32)).mkdir()
    staging = town.house.desks["jobs"].staging
    with town.house.ledger.read(CTX) as tx:
        cluster = town.house.desks["clusters"].known(tx)["local"]
    for path in (folder, folder / "deep", stranger, removed):
        _age(path)
    staging.sweep(CTX, cluster, frozenset(), frozenset(), lambda attempt: None)
    assert folder.is_dir(), "a file deep in it was written a moment ago"
    assert not removed.exists(), "of a job without a record"
    _age(folder / "deep/state.json")
    staging.sweep(CTX, cluster, frozenset(), frozenset({folder.name}), lambda attempt: None)
    assert folder.is_dir(), "the job has not ended"
    town.as_("dana").catalog.hold(data, "case 9")
    staging.sweep(CTX, cluster, frozenset(), frozenset(), lambda attempt: None)
    assert folder.is_dir(), "a court wants to see what it was made from"
    town.as_("dana").catalog.release(data, "case 9")
    staging.sweep(CTX, cluster, frozenset(), frozenset(), lambda attempt: None)
    assert not folder.exists()
    assert stranger.is_dir()


def test_folders_of_attempts_stay_while_a_hold_stands_on_the_job_or_its_inputs(
    town: Town, lab: Lab, tmp_path: Path
) -> None:
    (tmp_path / "rows.csv").write_text("n\n1\n")
    data = town.as_("amal").catalog.publish("dataset:fraud/evidence", str(tmp_path / "rows.csv"), label=LABEL).ref
    job = _run(town, lab, "print('kept for the court')", "evidence", inputs={"data": str(data)})
    folder = Path(town.house.settings.home, "attempts", job.attempts[-1].id)
    removed = folder.with_name(f"removed-{'0' * 12}-1")
    removed.mkdir()
    staging = town.house.desks["jobs"].staging
    with town.house.ledger.read(CTX) as tx:
        cluster = town.house.desks["clusters"].known(tx)["local"]
    for path in (folder, removed):
        _age(path)
    town.as_("dana").catalog.hold(data, "case 12")
    forgotten: list[str] = []
    staging.sweep(CTX, cluster, frozenset(), frozenset(), forgotten.append)
    assert lab.lines(job) == ("kept for the court",)
    assert removed.name in forgotten, "of a job without a record"
    assert folder.name not in forgotten
    assert not removed.exists()
    town.as_("dana").catalog.release(data, "case 12")
    staging.sweep(CTX, cluster, frozenset(), frozenset(), forgotten.append)
    assert folder.name in forgotten
    assert not folder.exists()


def _age(path: Path) -> None:
    long_ago = time.time() - KEEP_S - 60
    os.utime(path, (long_ago, long_ago))


def test_files_on_nodes_alone_are_listed_as_unread(town: Town, lab: Lab) -> None:
    job = _run(town, lab, "print('ready')", "away")
    with town.house.ledger.write(CTX) as tx:
        record = tx.need(job.ref.bare)
        attempts = [{**attempt, "cluster": "gone"} for attempt in record.body["attempts"]]
        tx.emit("test.move", tx.put(record.key, {**record.body, "attempts": attempts}, rev=record.rev).ref)
    assert _search(town)["files of jobs on cluster gone"] == "unread"
    town.as_("admin").clusters.add("gone", "agent:ae-dubai", zone="ae-dubai")
    assert _search(town)["files of jobs on cluster gone"] == "unread"
