"""Threat: a job takes what others need. The file systems of its sandbox that lie in memory are bounded, and no
name of a job makes it run as the user of another's, whose processes count together."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from falaj.backends.process_sandbox import SandboxProfiles, probe_isolation
from tests.backends.attempts import attempt, slots
from tests.jobs.lab import Lab
from tests.town import Town

MEASURE = """
import os
for folder in ("/dev/shm", "/tmp"):
    found = os.statvfs(folder)
    print(folder, found.f_blocks * found.f_frsize >> 20)
"""


@pytest.fixture
def town(tmp_path: Path) -> Iterator[Town]:
    if probe_isolation(str(tmp_path)).method != "namespaces":
        pytest.skip("without namespaces a job has no file systems of its own")
    prepared = Town(tmp_path / "town")
    prepared.as_("admin").clusters.change("local", {"tenants": "bank"})
    with prepared.house.working():
        yield prepared
    prepared.close()


def test_memory_file_systems_of_a_job_are_bounded(town: Town, tmp_path: Path) -> None:
    lab = Lab(tmp_path, town.as_("amal"))
    done = lab.done(lab.submit(MEASURE, project="fraud", memory="100MiB"))
    assert done.state == "succeeded", done.note
    # A size of 0 is no limit for tmpfs, and reads as 0 blocks.
    assert lab.lines(done) == ("/dev/shm 100", "/tmp 1024")


def test_user_of_a_job_does_not_follow_from_its_name(town: Town, tmp_path: Path) -> None:
    cages = SandboxProfiles({"sandbox": "best"}, tmp_path)
    first = attempt(slots("node-1"), "pass")
    second = replace(first, id=f"{first.id}-2")
    assert cages.documents(first, "")["cage"]["uid"] == cages.documents(first, "")["cage"]["uid"]
    assert cages.documents(first, "")["cage"]["uid"] != cages.documents(second, "")["cage"]["uid"]


LEAK = """
import time
blocks = []
for _ in range(40):
    blocks.append(bytearray(32 << 20))
    time.sleep(0.3)
time.sleep(600)
"""
FILL_MEMORY_FILES = """
import os, time
for number in range(40):
    with open(f"/tmp/{number}", "wb") as file:
        file.write(os.urandom(1 << 20) * 32)
    time.sleep(0.3)
time.sleep(600)
"""


@pytest.mark.parametrize("script", [LEAK, FILL_MEMORY_FILES], ids=["heap", "files-in-memory"])
def test_job_that_takes_more_memory_than_it_asked_for_is_ended(town: Town, tmp_path: Path, script: str) -> None:
    lab = Lab(tmp_path, town.as_("amal"))
    done = lab.done(lab.submit(script, project="fraud", memory="256MiB"))
    assert done.state == "failed"
    assert "ran out of memory" in done.note
    assert "256 MiB" in done.note or "killed" in done.note


@pytest.mark.parametrize("folder", ["'.'", "os.environ['FALAJ_CHECKPOINTS']"], ids=["code", "checkpoints"])
def test_job_that_fills_the_disk_is_ended(town: Town, tmp_path: Path, folder: str) -> None:
    town.as_("admin").clusters.change("local", {"disk_mib": "64"})
    lab = Lab(tmp_path, town.as_("amal"))
    write = f"open({folder} + '/big', 'wb').write(os.urandom(1 << 20) * 200)"
    fill = f"import os, time\nos.makedirs({folder}, exist_ok=True)\n{write}\ntime.sleep(60)\n"
    done = lab.done(lab.submit(fill, project="fraud", memory="256MiB"))
    assert done.state == "failed"
    assert "disk_mib" in done.note


def test_log_of_a_job_is_bounded_and_its_ends_are_read(town: Town, tmp_path: Path) -> None:
    town.as_("admin").clusters.change("local", {"log_mib": "8"})
    lab = Lab(tmp_path, town.as_("amal"))
    chatter = "print('first', flush=True)\nfor _ in range(40): print('x' * (1 << 20), flush=True)\n"
    done = lab.done(lab.submit(f"{chatter}import time; time.sleep(2)\nprint('last')\n", project="fraud"))
    assert done.state == "succeeded", done.note
    (log,) = (tmp_path / "town").rglob("slot-0.log")
    assert log.stat().st_blocks * 512 < 16 << 20
    lines, cursor, over = list[str](), "", False
    while not over:
        page = lab.here.jobs.logs(done.ref, after=cursor)
        lines, cursor, over = [*lines, *page.lines], page.next, page.over
    assert lines[0] == "first"
    assert lines[-1] == "last"
    assert sum("was dropped" in line for line in lines) == 1
