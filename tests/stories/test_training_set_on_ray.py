"""training_set_on_ray: workers on nodes that share nothing with the platform build a set as one machine would."""

import json
import os
import site
from pathlib import Path

import pytest

import falaj
from tests.features.spread_ground import bits, lay_ground, read_set
from tests.servers.ray import RayServer
from tests.stories.rays import bank_on_ray


@pytest.mark.timeout(400)
@pytest.mark.slow  # Ray alone takes half a minute to start three nodes
def test_training_set_on_ray(tmp_path: Path, ray_server: RayServer, monkeypatch: pytest.MonkeyPatch) -> None:
    everything = os.pathsep.join((str(Path(falaj.__file__).parents[1]), *site.getsitepackages()))
    job = {"workers": 3, "cluster": "rays", "cpus": 1, "memory": "512MiB", "env": {"PYTHONPATH": everything}}
    (tmp_path / "job.json").write_text(json.dumps(job))
    with bank_on_ray(tmp_path, ray_server) as lab:
        lay_ground(lab.here, tmp_path, monkeypatch)
        asked = ("dataset:fraud/labels", "service:fraud/both")
        done = lab.here.features.spread(
            *asked, "dataset:fraud/train", workers=str(tmp_path / "job.json"), moment="moment", known_at="label"
        )
        alone = lab.here.features.table(*asked, moment="moment", known_at="label")
        made = read_set(lab.here, done.published, tmp_path / "out")
        assert made.schema.equals(alone.schema)
        assert bits(made) == bits(alone)
        (shown,) = lab.here.jobs.list().jobs
        assert (shown.width, shown.attempts[-1].cluster) == (3, "rays")
        assert list((tmp_path / "everywhere").rglob("*.parquet")) == [], "pieces were left behind"
