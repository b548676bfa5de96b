"""Alarms of `falaj status` and `falaj doctor`: red in a terminal, plain where the output is read by a program."""

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import Run

OWNER = "jobs of the folder's owner run without a sandbox"
RED = "\x1b[31m"
BOLD_RED = "\x1b[1;31m"


def run_in_terminal(environment: dict[str, str], *arguments: str) -> str:
    """What the command writes to a terminal of its own."""
    ours, theirs = pty.openpty()
    terminal = {**environment, "TERM": "xterm-256color", "COLUMNS": "200"}
    command = [sys.executable, "-m", "falaj", *arguments]
    with subprocess.Popen(command, stdout=theirs, stderr=theirs, env=terminal) as process:
        os.close(theirs)
        output = b""
        try:
            while piece := os.read(ours, 65536):
                output += piece
        except OSError:  # Linux: EIO once the last writer is gone
            os.close(ours)
    assert process.returncode == 0, output
    return output.decode()


@pytest.fixture(scope="module")
def home(falaj: Run, tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = str(tmp_path_factory.mktemp("red") / "home")
    assert falaj("zones", "list", "--at", folder).returncode == 0
    return folder


def test_status_warns_in_red_in_a_terminal_only(falaj: Run, environment: dict[str, str], home: str) -> None:
    assert f"{BOLD_RED}WARNING (local): {OWNER}\x1b[0m" in run_in_terminal(environment, "status", "--at", home)
    piped = falaj("status", "--at", home).stdout
    assert f"WARNING (local): {OWNER}\n" in piped
    assert "\x1b" not in piped


def test_doctor_shows_the_finding_in_red_in_a_terminal_only(falaj: Run, environment: dict[str, str], home: str) -> None:
    lines = run_in_terminal(environment, "doctor", "--at", home).splitlines()
    (finding,) = (line for line in lines if OWNER in line)
    assert finding.startswith(RED)
    assert not [line for line in lines if "python" in line and RED in line], "what is well has no colour"
    piped = falaj("doctor", "--at", home).stdout
    assert f"jobs\tRISK\tlocal: {OWNER}\t" in piped
    assert "\x1b" not in piped


def test_clusters_without_a_sandbox_are_alarms(falaj: Run, tmp_path: Path) -> None:
    """Slurm without `sandbox=calls`, Ray, and a Ray cluster that several tenants share."""
    home, hall = str(tmp_path / "home"), str(tmp_path / "hall")
    address = "ray:http://127.0.0.1:1?insecure=loopback"
    declared = [
        ("hall", "slurm:", f"folder={hall}"),
        ("rays", address, "checkpoints=/c"),
        ("all", address, "shared=tenants"),
    ]
    for name, where, option in declared:
        added = falaj("clusters", "add", name, where, "--more", option, "--at", home)
        assert added.returncode == 0, added.stderr
    for command in ("status", "doctor"):
        output = falaj(command, "--at", home).stdout
        assert "as the Unix user of each submitter" in output
        assert "Ray separates nothing" in output
        assert "jobs of several tenants run without a sandbox" in output
