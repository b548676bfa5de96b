"""Threat model: no process of the platform's user runs commands for others, so none can be told a false confinement."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.replica import Replica


def children_of(pid: int) -> list[str]:
    """The command lines of a process's children."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    children = [child for task in tasks for child in (task / "children").read_text().split()]
    return [Path(f"/proc/{child}/cmdline").read_text().replace("\0", " ") for child in children]


def listening_paths() -> set[str]:
    """Paths of UNIX sockets on this machine."""
    rows = [line.split() for line in Path("/proc/net/unix").read_text().splitlines()[1:]]
    return {row[7] for row in rows if len(row) > 7}


def test_platform_starts_no_process_that_takes_commands(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    env = {"FALAJ_GATEWAY": "", "FALAJ_CACHE": str(cache)}
    with Replica(tmp_path / "house", env) as running:
        assert not [command for command in children_of(running.process.pid) if "falaj.cli" in command]
        assert not [path for path in listening_paths() if path.startswith(str(tmp_path))]
        assert not [path for path in tmp_path.rglob("*") if path.is_socket()]


def test_command_does_not_ask_a_socket_in_the_cache_folder(tmp_path: Path) -> None:
    """A socket where the resident process used to answer is not called: the command runs by itself."""
    cache = tmp_path / "cache"
    cache.mkdir()
    with socket.socket(socket.AF_UNIX) as trap:
        trap.bind(str(cache / f"steward-{os.uname().nodename}.sock"))
        trap.listen()
        trap.setblocking(False)
        command = [sys.executable, "-m", "falaj", "people", "whoami", "--at", str(tmp_path / "house"), "--json"]
        env = {**os.environ, "FALAJ_CACHE": str(cache)}
        done = subprocess.run(command, env=env, capture_output=True, check=True, timeout=60)
        assert b'"id"' in done.stdout
        with pytest.raises(BlockingIOError):
            trap.accept()
