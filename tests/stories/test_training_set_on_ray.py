"""training_set_on_ray: nodes that share nothing with the platform but its address build a set as one machine would.

And on Slurm, where they share a folder and run as the person who asked.
"""

import json
import os
import site
from collections.abc import Iterator
from pathlib import Path

import pytest

import falaj
from tests.features.spread_ground import bits, lay_ground, read_set
from tests.jobs.lab import Lab
from tests.people import enroll, enroll_tenant
from tests.replica import Replica
from tests.servers.ray import RayServer
from tests.servers.slurm import SlurmServer, shared_folder
from tests.stories.rays import bank_on_ray

ASKED = ("dataset:fraud/labels", "service:fraud/both")


@pytest.fixture
def shared() -> Iterator[Path]:
    """The file system of the site."""
    with shared_folder() as made:
        yield made


def spread(lab: Lab, folder: Path, cluster: str, workers: int) -> None:
    """A set by so many workers, held against what one machine makes."""
    everything = os.pathsep.join((str(Path(falaj.__file__).parents[1]), *site.getsitepackages()))
    job = {"workers": workers, "cluster": cluster, "memory": "512MiB", "env": {"PYTHONPATH": everything}}
    (folder / "job.json").write_text(json.dumps(job))
    done = lab.here.features.spread(
        *ASKED, "dataset:fraud/train", workers=str(folder / "job.json"), moment="moment", known_at="label"
    )
    alone = lab.here.features.table(*ASKED, moment="moment", known_at="label")
    made = read_set(lab.here, done.published, folder / "out")
    assert made.schema.equals(alone.schema)
    assert bits(made) == bits(alone)
    (shown,) = lab.here.jobs.list().jobs
    assert (shown.width, shown.attempts[-1].cluster) == (workers, cluster)


@pytest.mark.timeout(400)
@pytest.mark.slow  # Ray alone takes half a minute to start three nodes
def test_training_set_on_ray(tmp_path: Path, ray_server: RayServer, monkeypatch: pytest.MonkeyPatch) -> None:
    with bank_on_ray(tmp_path, ray_server) as lab:
        lay_ground(lab.here, tmp_path, monkeypatch)
        spread(lab, tmp_path, "rays", 3)
        assert list((tmp_path / "everywhere").rglob("*.parquet")) == [], "pieces were left behind"


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_training_set_on_slurm(
    tmp_path: Path, slurm_server: SlurmServer, shared: Path, unix_user: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Replica(tmp_path / "house") as server:
        admin = server.as_()
        boss = server.as_(enroll_tenant(admin, "bank", "fatima"))
        admin.clusters.add("hall", slurm_server.address, more={"folder": str(shared), "tenants": "bank"})
        lab = Lab(tmp_path, server.as_(enroll(boss, unix_user, ("data-scientist",), jurisdiction="AE")))
        lay_ground(lab.here, tmp_path, monkeypatch)
        spread(lab, tmp_path, "hall", 2)
