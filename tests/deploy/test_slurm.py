"""The Slurm part, taken by a real Slurm: its partition, and a prolog that refuses a node which cannot serve."""

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from falaj.deploy.rendering import RenderedFile, render_site
from falaj.deploy.site import DeploymentSite
from tests.servers.process import Missing
from tests.servers.slurm import SlurmServer

SITE = {"slurm_nodes": "n[1-2]", "slurm_gres": "gpu:a100:2"}


def files(**more: str) -> dict[str, RenderedFile]:
    return render_site(DeploymentSite.of("enterprise", "ae-dxb-1", SITE | more))


def test_a_prolog_refuses_a_node_without_the_shared_folder(tmp_path: Path) -> None:
    folder = tmp_path / "shared"
    prolog = tmp_path / "prolog"
    prolog.write_text(files(slurm_folder=str(folder))["slurm/falaj-prolog"].text)
    refused = subprocess.run(["sh", str(prolog)], check=False, capture_output=True, text=True)
    assert (refused.returncode, "not mounted" in refused.stdout) == (1, True)
    folder.mkdir()
    assert subprocess.run(["sh", str(prolog)], check=False).returncode == 0


def test_an_epilog_touches_no_user_of_the_system(tmp_path: Path) -> None:
    epilog = tmp_path / "epilog"
    epilog.write_text(files()["slurm/falaj-epilog"].text)
    env = {"PATH": "/nowhere", "SLURM_JOB_USER": "root", "SLURM_JOB_UID": "0"}
    done = subprocess.run(["/bin/sh", str(epilog)], check=False, capture_output=True, text=True, env=env)
    assert (done.returncode, done.stderr) == (0, "")


class _WithPartition(SlurmServer):
    """The usual one, which includes our partition. What needs cgroups or a database is left out: there is none here."""

    def prepare(self) -> None:
        super().prepare()
        text = files()["slurm/falaj.conf"].text
        kept = re.findall(r"(?m)^PartitionName=.*$", text)
        (self.folder / "falaj.conf").write_text("\n".join(kept).replace(" AllowAccounts=falaj", "") + "\n")
        with self.conf.open("a") as conf:
            conf.write(f"Include {self.folder / 'falaj.conf'}\n")


@pytest.fixture
def slurm() -> Iterator[SlurmServer]:
    try:
        server = _WithPartition()
    except Missing as missing:
        pytest.skip(str(missing))
    with server:
        yield server


@pytest.mark.slow
def test_slurm_takes_the_partition(slurm: SlurmServer) -> None:
    told = slurm.ask("scontrol", "show", "partition", "falaj").stdout
    assert "State=UP" in told
    assert "MaxTime=7-00:00:00" in told
    done = slurm.ask("srun", "-p", "falaj", "-n", "1", "echo", "here")
    assert done.stdout.strip() == "here", done.stderr
