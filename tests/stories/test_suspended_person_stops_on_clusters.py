"""suspended_person_stops_on_clusters: on a real Slurm and a real Ray, a suspended person's running job saves and is
stopped, nothing of it runs meanwhile, and it goes on from its checkpoint when the suspension is lifted."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from tests.jobs.lab import Lab, until
from tests.people import enroll, enroll_tenant
from tests.replica import Replica
from tests.servers.ray import RayServer
from tests.servers.slurm import SlurmServer, shared_folder
from tests.stories.rays import bank_on_ray

SAVING = """
import pathlib, time
from falaj import worker
here = worker.attempt()
mark = pathlib.Path(here.checkpoints) / "step"
step = int(mark.read_text()) if mark.exists() else 0
print("begins at", step, flush=True)
resumed = step > 0
while step < 4 or not resumed:
    step += 1
    here.progress(step, 1000)
    if here.asked():
        mark.write_text(str(step))
        here.checkpointed(step)
        if here.asked() == "stop":
            here.yield_place()
    time.sleep(0.2)
print("done", flush=True)
"""
WORDS = {"project": "fraud", "cpus": 0.5, "memory": "64MiB", "checkpoint": "every=1s,save=1s,restart=1s"}


def suspend_and_resume(lab: Lab, boss: Any, person: str, is_running: Callable[[Any], bool], **words: Any) -> None:
    """The job of a person through a suspension; the person's client does not work meanwhile, so the boss looks."""
    job = lab.submit(SAVING, "saves", **WORDS, **words)
    running = lab.until(job, lambda view: view.step >= 2 or view.over)
    assert running.state == "running", (running, lab.lines(running))
    boss.people.suspend(person)
    held = until(lambda: boss.jobs.show(job.ref), lambda view: view.state == "held")
    assert held.note == f"the account {person} is suspended"
    assert held.attempts[-1].outcome.startswith("suspended"), held
    until(lambda: is_running(held.attempts[-1]), lambda still: not still)
    boss.people.resume(person)
    done = lab.done(job)
    assert (done.state, len(done.attempts)) == ("succeeded", 2), (done, lab.lines(done))
    assert int(lab.lines(done)[0].split()[-1]) >= 2, "it goes on from its checkpoint"


@contextmanager
def bank_on_slurm(home: Path, slurm_server: SlurmServer, unix_user: str) -> Iterator[tuple[Lab, Any]]:
    with shared_folder() as shared, Replica(home / "house") as server:
        boss = server.as_(enroll_tenant(server.as_(), "bank", "fatima"))
        server.as_().clusters.add("hall", slurm_server.address, more={"folder": str(shared), "tenants": "bank"})
        person = server.as_(enroll(boss, unix_user, ("data-scientist",), jurisdiction="AE"))
        yield Lab(home, person), boss


def test_on_slurm(tmp_path: Path, slurm_server: SlurmServer, unix_user: str) -> None:
    def is_running(attempt: Any) -> bool:
        return slurm_server.ask("squeue", "-h", f"--name={attempt.id}", "-t", "running,completing").stdout != ""

    with bank_on_slurm(tmp_path, slurm_server, unix_user) as (lab, boss):
        suspend_and_resume(lab, boss, unix_user, is_running, cluster="hall")


def read_environments() -> Iterator[bytes]:
    """The variables of every process that may be looked at."""
    for path in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):
            yield path.read_bytes()


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_on_ray(tmp_path: Path, ray_server: RayServer) -> None:
    def is_running(attempt: Any) -> bool:
        return any(attempt.id.encode() in variables for variables in read_environments())

    with bank_on_ray(tmp_path, ray_server) as lab:
        suspend_and_resume(lab, lab.boss, "amal", is_running, cluster="rays")
