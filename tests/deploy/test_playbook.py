"""The playbook applied to this machine, below a scratch root; what it installed is started by its unit's command.

Wheels come from a folder and from nowhere else, as at an air-gapped site. systemd is left out of it: there may be none
in charge here. The rest is what an operator does: start, back up, try a restore, check, apply again.
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from falaj.deploy.rendering import write_rendering
from falaj.deploy.site import PROFILES, DeploymentSite
from tests.deploy.machine import Machine
from tests.servers.peers import ANSIBLE, peer
from tests.servers.process import Missing

ROOT = Path(__file__).parents[2]
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def playbook() -> Path:
    try:
        return peer("ansible", *ANSIBLE) / "ansible-playbook"
    except Missing as missing:
        pytest.skip(str(missing))


@pytest.fixture(scope="module")
def wheelhouse(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Our own wheel, and every wheel that it needs."""
    folder = tmp_path_factory.mktemp("wheelhouse")
    tools = tmp_path_factory.mktemp("tools")
    build = [sys.executable, "-m", "uv", "build", "-q", "--wheel", "--out-dir", str(folder), str(ROOT)]
    subprocess.run(build, check=True)
    subprocess.run([sys.executable, "-m", "venv", str(tools)], check=True)
    (wheel,) = folder.glob("falaj-*.whl")
    fetch = [str(tools / "bin/pip"), "download", "-q", "--only-binary=:all:", "-d", str(folder), f"{wheel}[features]"]
    done = subprocess.run([*fetch, "-c", str(ROOT / "constraints.txt")], check=False, capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"the wheels that Falaj needs cannot be fetched: {done.stderr.strip()[-300:]}")
    return folder


def apply(playbook: Path, machine: Machine, groups: tuple[str, ...], wheelhouse: Path) -> dict[str, int]:
    """Apply it, and say how many tasks did what."""
    hosts = machine.root / "hosts.ini"
    hosts.write_text("".join(f"[{group}]\nlocalhost ansible_connection=local\n" for group in groups))
    given = {
        "falaj_become": False,
        "falaj_systemd": False,
        "falaj_package": "falaj[features]",
        "falaj_pip_arguments": f" --no-index --find-links {wheelhouse}",
        "falaj_python": sys.executable,
        "ansible_python_interpreter": sys.executable,
    }
    env = {**os.environ, "HOME": str(machine.root), "ANSIBLE_NOCOLOR": "1", "ANSIBLE_LOCALHOST_WARNING": "false"}
    # Nothing of our own environment may lead an installer elsewhere.
    env = {name: value for name, value in env.items() if not name.startswith(("PIP_", "UV_", "FALAJ_"))}
    command = [str(playbook), "-i", str(hosts), "-e", json.dumps(given), "site.yml"]
    done = subprocess.run(command, check=False, cwd=machine.out / "ansible", env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]
    recap = done.stdout.rpartition("PLAY RECAP")[2]
    return {name: int(count) for name, count in re.findall(r"(\w+)=(\d+)", recap)}


def test_a_machine_is_made_used_checked_and_left_alone(playbook: Path, wheelhouse: Path, tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    assert apply(playbook, machine, ("falaj",), wheelhouse)["changed"] > 5
    program = tmp_path / "opt/falaj/bin/falaj"
    check = [str(program), "deploy", "check", str(machine.out), "--json"]
    with machine.up():
        for unit in ("falaj-backup.service", "falaj-drill.service"):
            done = machine.run(unit)
            assert done.returncode == 0, done.stderr
        told = subprocess.run(check, check=False, capture_output=True, text=True, cwd=tmp_path)
        found = json.loads(told.stdout)
        assert {one["state"] for one in found} == {"ok"}, found
        assert told.returncode == 0
        again = apply(playbook, machine, ("falaj",), wheelhouse)
        assert (again["changed"], again["failed"]) == (0, 0)
        (tmp_path / "etc/falaj/falaj.toml").chmod(0o666)
        assert subprocess.run(check, check=False, capture_output=True, cwd=tmp_path).returncode == 1
        assert apply(playbook, machine, ("falaj",), wheelhouse)["changed"] == 1
        assert subprocess.run(check, check=False, capture_output=True, cwd=tmp_path).returncode == 0
    assert subprocess.run(check, check=False, capture_output=True, cwd=tmp_path).returncode == 1
    # What was installed renders the same bytes as what it was rendered by.
    renders = [str(program), *machine.site.command.split()[1:], "--out", str(tmp_path / "second")]
    subprocess.run(renders, check=True, capture_output=True)
    assert subprocess.run(["diff", "-r", machine.out, tmp_path / "second"], check=False).returncode == 0


def test_agents_and_nodes_are_made(playbook: Path, wheelhouse: Path, tmp_path: Path) -> None:
    machine = Machine(tmp_path, "enterprise")
    (tmp_path / "shared/falaj").mkdir(parents=True)
    assert apply(playbook, machine, ("nodes", "agents"), wheelhouse)["failed"] == 0
    command = machine.unit("falaj-agent.service")["ExecStart"].split()
    told = subprocess.run([*command[:2], "--help"], check=True, capture_output=True, text=True)
    assert [word for word in command if word.startswith("--") and word not in told.stdout] == []


@pytest.mark.parametrize("profile", PROFILES)
def test_every_playbook_is_read(playbook: Path, profile: str, tmp_path: Path) -> None:
    write_rendering(DeploymentSite.of(profile, "ae-dxb-1", {}), tmp_path / "out")
    command = [str(playbook), "-i", "inventory.ini", "--syntax-check", "site.yml"]
    env = {**os.environ, "HOME": str(tmp_path)}
    done = subprocess.run(command, check=False, cwd=tmp_path / "out/ansible", env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
