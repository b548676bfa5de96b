"""slurm_job_as_user: a person submits over HTTP, and the site's own Slurm runs it as the Unix user of that name."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.jobs.lab import Lab, until
from tests.people import enroll, enroll_tenant
from tests.replica import FALAJ, Replica
from tests.servers.slurm import SlurmServer, shared_folder

TRAIN = """
import os, pathlib, pwd, time
from falaj import worker
here = worker.attempt()
print("as", pwd.getpwuid(os.geteuid()).pw_name, flush=True)
rows = (pathlib.Path(here.inputs["data"]) / "tx.csv").read_text().split()
go_on = pathlib.Path(here.checkpoints) / "go-on"
while not go_on.exists():
    time.sleep(0.05)
for step in (1, 2, 3):
    here.metric("loss", 1 / step, step)
    here.progress(step, 3)
(pathlib.Path(here.outputs["model"]) / "model.txt").write_text(f"{len(rows)} rows")
print("done", flush=True)
"""


@pytest.fixture(scope="module")
def shared() -> Iterator[Path]:
    """The file system of the site."""
    with shared_folder() as made:
        yield made


def falaj(server: Replica, token: str, *words: str) -> str:
    """What the program prints, for somebody at another machine."""
    env = {**os.environ, "FALAJ_URL": server.url, "FALAJ_TOKEN": token}
    done = subprocess.run([*FALAJ, *words], env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def bank(
    tmp_path_factory: pytest.TempPathFactory, slurm_server: SlurmServer, shared: Path, unix_user: str
) -> Iterator[tuple[Replica, dict[str, str]]]:
    """A server that knows the hall, and two people of the bank: one has an account there, `amal` has none."""
    with Replica(tmp_path_factory.mktemp("house")) as server:
        boss = server.as_(enroll_tenant(server.as_(), "bank", "fatima"))
        more = (f"folder={shared}", "tenants=bank")
        words = [word for one in more for word in ("--more", one)]
        falaj(server, server.token, "clusters", "add", "hall", slurm_server.address, *words)
        assert server.as_().clusters.check("hall").ok
        tokens = {name: enroll(boss, name, ("data-scientist",), jurisdiction="AE") for name in (unix_user, "amal")}
        yield server, tokens


def test_slurm_job_as_user(
    bank: tuple[Replica, dict[str, str]], slurm_server: SlurmServer, shared: Path, unix_user: str, tmp_path: Path
) -> None:
    server, tokens = bank
    lab = Lab(tmp_path, server.as_(tokens[unix_user]))
    (tmp_path / "tx").mkdir()
    (tmp_path / "tx" / "tx.csv").write_text("1\n2\n3\n")
    data = lab.here.catalog.publish("dataset:fraud/tx", str(tmp_path / "tx"))
    outputs = {"model": "model:fraud/scorer"}
    job = lab.submit(TRAIN, project="fraud", inputs={"data": data.ref}, outputs=outputs)
    # Its log is there while it runs, and Slurm says whose job it is.
    until(lambda: lab.lines(job), bool)
    assert lab.lines(job) == (f"as {unix_user}",)
    (attempt,) = lab.show(job).attempts
    assert slurm_server.ask("squeue", "-h", f"--name={attempt.id}", "-o", "%u").stdout.strip() == unix_user
    folder = shared / attempt.id
    assert {path.owner() for path in (folder, folder / "slot-0.log", folder / "outputs" / "model")} == {unix_user}
    assert folder.stat().st_mode & 0o077 == 0
    (checkpoints,) = (shared / "checkpoints").iterdir()
    (checkpoints / "go-on").touch()
    assert "done" in falaj(server, tokens[unix_user], "jobs", "follow", str(job.ref)).splitlines()
    done = lab.done(job)
    assert (done.state, done.progress) == ("succeeded", "3/3"), done.note
    # What it made is a version that knows what it is made of, and the run has what it measured.
    made = lab.here.catalog.show(done.outputs["model"])
    assert (made.inputs["data"], made.inputs["run"].bare, made.inputs["code"]) == (data.ref, job.run, done.code)
    assert b"".join(lab.here.catalog.cat(made.ref, "model.txt")) == b"3 rows"
    assert lab.here.track.show(job.run).metrics["loss"].value == pytest.approx(1 / 3)


def test_nobody_runs_under_a_name_that_the_site_does_not_know(
    bank: tuple[Replica, dict[str, str]], tmp_path: Path
) -> None:
    server, tokens = bank
    lab = Lab(tmp_path, server.as_(tokens["amal"]))
    job = lab.done(lab.submit("print('never')", "never", project="fraud"))
    assert job.state == "failed"
    assert "there is no Unix user 'amal'" in job.note
    assert lab.lines(job) == ()


def test_a_job_on_slurm_is_cancelled(
    bank: tuple[Replica, dict[str, str]], slurm_server: SlurmServer, unix_user: str, tmp_path: Path
) -> None:
    server, tokens = bank
    lab = Lab(tmp_path, server.as_(tokens[unix_user]))
    job = lab.submit("import time; print('here', flush=True); time.sleep(600)", "long", project="fraud")
    until(lambda: lab.lines(job), bool)
    falaj(server, tokens[unix_user], "jobs", "cancel", str(job.ref))
    assert lab.done(job).state == "cancelled"
    (attempt,) = lab.show(job).attempts
    assert slurm_server.ask("squeue", "-h", f"--name={attempt.id}", "-t", "running").stdout == ""


def test_an_output_that_leads_elsewhere_is_not_followed(
    bank: tuple[Replica, dict[str, str]], unix_user: str, tmp_path: Path
) -> None:
    """The platform reads outputs as root: what it reads must be the user's own."""
    server, tokens = bank
    lab = Lab(tmp_path, server.as_(tokens[unix_user]))
    text = "import os; at = os.environ['FALAJ_OUTPUT_MODEL']; os.rmdir(at); os.symlink('/etc/ssl', at)"
    job = lab.done(lab.submit(text, "thief", project="fraud", outputs={"model": "model:fraud/stolen"}))
    assert job.state == "failed"
    assert "leads elsewhere" in job.note


def test_where_tenants_share_a_site_a_name_is_not_enough(
    bank: tuple[Replica, dict[str, str]], unix_user: str, tmp_path: Path
) -> None:
    """Anybody may call a person of another tenant by the name of somebody who has an account."""
    server, tokens = bank
    server.as_().people.add_tenant("clinic", "yusuf")
    server.as_().clusters.change("hall", {"tenants": "bank,clinic"})
    lab = Lab(tmp_path, server.as_(tokens[unix_user]))
    job = lab.done(lab.submit("print('never')", "nobody", project="fraud"))
    server.as_().clusters.change("hall", {"tenants": "bank"})
    assert (job.state, f"'{unix_user}@bank'" in job.note) == ("failed", True), job.note
