"""Threat: a job takes what others need. The file systems of its sandbox that lie in memory are bounded, and no
name of a job makes it run as the user of another's, whose processes count together."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from falaj.backends.process_cage import Cages, powers
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
    if powers(str(tmp_path)).method != "namespaces":
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
    cages = Cages({"sandbox": "best"}, tmp_path)
    first = attempt(slots("node-1"), "pass")
    second = replace(first, id=f"{first.id}-2")
    assert cages.documents(first, "")["cage"]["uid"] == cages.documents(first, "")["cage"]["uid"]
    assert cages.documents(first, "")["cage"]["uid"] != cages.documents(second, "")["cage"]["uid"]
