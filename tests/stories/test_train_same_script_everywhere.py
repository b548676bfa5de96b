"""same_script_everywhere: plain python, processes, Slurm and Ray run one file, and its weights are the same bits."""

import os
import site
from collections.abc import Iterator
from pathlib import Path

import pytest

import falaj
from tests.jobs.lab import Lab
from tests.people import enroll, enroll_tenant
from tests.replica import Replica
from tests.servers.ray import RayServer
from tests.servers.slurm import SlurmServer, shared_folder
from tests.stories import training
from tests.stories.rays import bank_on_ray


@pytest.fixture
def shared() -> Iterator[Path]:
    """The file system of the site."""
    with shared_folder() as made:
        yield made


def trained(lab: Lab, tmp_path: Path, **more: object) -> None:
    """The script as a job of two workers, held against plain python."""
    script, folder = training.write(tmp_path)
    wanted = training.undisturbed(script, folder, tmp_path / "plain")
    data = lab.here.catalog.publish("dataset:fraud/rows", str(folder))
    job = lab.here.jobs.submit(
        str(script), name="train", project="fraud", workers=2, memory="512MiB", inputs={"data": data.ref},
        outputs={"model": "model:fraud/sines"}, checkpoint="every=10s,save=1s,restart=5s", **more,
    )  # fmt: skip
    done = lab.done(job)
    told = [lab.lines(done, slot=slot) for slot in (0, 1)]
    assert done.state == "succeeded", (done.note, told)
    assert [lines[-1] for lines in told] == ["done in 2"] * 2
    assert b"".join(lab.here.catalog.cat(done.outputs["model"], "model.safetensors")) == wanted
    assert lab.here.track.show(job.run).metrics["loss"].step == training.STEPS - 1


def everything() -> dict[str, str]:
    """Where a cluster's own Python finds Falaj and what it trains with."""
    return {"PYTHONPATH": os.pathsep.join((str(Path(falaj.__file__).parents[1]), *site.getsitepackages()))}


@pytest.mark.timeout(400)
def test_on_processes(tmp_path: Path) -> None:
    lab = Lab(tmp_path)
    with lab.here, lab.here.working():
        lab.one_node(cpus=2000, memory=4096)
        trained(lab, tmp_path, cpus=1)


@pytest.mark.timeout(400)
@pytest.mark.slow
def test_on_slurm(tmp_path: Path, slurm_server: SlurmServer, shared: Path, unix_user: str) -> None:
    with Replica(tmp_path / "house") as server:
        admin = server.as_()
        boss = server.as_(enroll_tenant(admin, "bank", "fatima"))
        admin.clusters.add("hall", slurm_server.address, more={"folder": str(shared), "tenants": "bank"})
        someone = enroll(boss, unix_user, ("data-scientist",), jurisdiction="AE")
        trained(Lab(tmp_path, server.as_(someone)), tmp_path, cpus=1, env=everything())


@pytest.mark.timeout(400)
@pytest.mark.slow  # Ray alone takes half a minute to start three nodes
def test_on_ray(tmp_path: Path, ray_server: RayServer) -> None:
    with bank_on_ray(tmp_path, ray_server) as lab:
        trained(lab, tmp_path, cluster="rays", cpus=1.5, env=everything())
