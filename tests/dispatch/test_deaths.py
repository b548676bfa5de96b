"""kill -9 of the platform in the middle of everything: nothing acknowledged is lost, nothing runs twice or too much."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.jobs.lab import until
from tests.people import enroll
from tests.replica import Replica

JOBS = 12
WORK = """
import os, sys, time
def say(word):
    with open(sys.argv[1], "a") as journal:
        journal.write(f"{word} {os.environ['FALAJ_ATTEMPT']} {time.time()}\\n")
say("start"); time.sleep(0.3); say("end")
"""


class Site:
    """A house that replicas come and go on; its cluster is one small node, its jobs write a journal."""

    def __init__(self, home: Path, env: dict[str, str]) -> None:
        self.home, self.env = home, env
        self.journal = home / "journal" / "lines"
        self.journal.parent.mkdir()
        self.script = home / "code" / "work.py"
        self.script.parent.mkdir()
        self.script.write_text(WORK)
        self.token = ""

    def replica(self) -> Replica:
        return Replica(self.home / "house", self.env, first=not self.token)

    def prepare(self, replica: Replica) -> None:
        admin = replica.as_()
        self.token = enroll(admin, "dev", ("data-scientist",), jurisdiction="AE")
        told = {"address": "process:?nodes=1&cpus=2000&memory=4096", "writable": str(self.journal.parent)}
        admin.clusters.change("local", told)

    def submit(self, here: Any, number: int) -> Any:
        command = f"python {self.script.name} {self.journal}"
        folder = str(self.script.parent)
        spec = self.home / f"job-{number}.json"
        spec.write_text(
            f'{{"name": "job-{number}", "command": "{command}", "folder": "{folder}", "cpus": 1, "memory": "100MiB"}}'
        )
        return here.jobs.submit(str(spec)).ref

    def check(self, here: Any, refs: list[Any]) -> None:
        """Every job succeeded once, no attempt began twice, and never more than two ran at a time."""
        done = here.jobs.wait(tuple(refs), timeout_s=100)
        assert {job.state for job in done} == {"succeeded"}, [(job.ref, job.state, job.note) for job in done]
        lines = [line.split() for line in self.journal.read_text().splitlines()]
        starts = [attempt for word, attempt, _ in lines if word == "start"]
        ends = [attempt for word, attempt, _ in lines if word == "end"]
        assert len(starts) == len(set(starts))
        won = [one.id for job in done for one in job.attempts if one.outcome == "succeeded"]
        assert sorted(ends) == sorted(won)
        moments = sorted((float(at), 1 if word == "start" else -1) for word, attempt, at in lines if attempt in won)
        running = peak = 0
        for _, change in moments:
            running += change
            peak = max(peak, running)
        assert peak <= 2


@pytest.mark.slow
def test_a_platform_killed_again_and_again_loses_nothing(tmp_path: Path) -> None:
    _story(Site(tmp_path, {}), deaths=2)


@pytest.mark.slow
def test_the_same_on_postgres(tmp_path: Path, new_postgres: Callable[[], str]) -> None:
    _story(Site(tmp_path, {"FALAJ_STORE": new_postgres()}), deaths=3)


@pytest.mark.slow
def test_two_replicas_and_one_dies(tmp_path: Path, new_postgres: Callable[[], str]) -> None:
    site = Site(tmp_path, {"FALAJ_STORE": new_postgres()})
    with site.replica() as first:
        site.prepare(first)
        with site.replica() as second:
            here = first.as_(site.token)
            refs = [site.submit(here, number) for number in range(JOBS)]
            until(site.journal.exists, bool)
            first.kill()
            site.check(second.as_(site.token), refs)


def _story(site: Site, deaths: int) -> None:
    chance = random.Random(4)
    with site.replica() as replica:
        site.prepare(replica)
        here = replica.as_(site.token)
        refs = [site.submit(here, number) for number in range(JOBS)]
        until(site.journal.exists, bool)
    for death in range(deaths):
        with site.replica() as replica:
            here = replica.as_(site.token)
            if death == deaths - 1:
                site.check(here, refs)
            else:
                _wait_for_more(site, chance.randint(1, 4))


def _wait_for_more(site: Site, lines: int) -> None:
    before = len(site.journal.read_text().splitlines())
    until(lambda: len(site.journal.read_text().splitlines()), lambda now: now >= before + lines)
