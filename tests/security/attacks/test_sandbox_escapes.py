"""Proves the threat-model row "code in a sandbox leaves it": hundreds of attempts are refused in every sandbox.

Profiles are those that the product builds: a job, a replica, the launcher's own staging commands, a job of an agent,
and the isolated helper process of functions and parsers. Methods: namespaces as root and without, Landlock alone as
root and without.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from falaj.worker import sandbox_kernel
from tests.backends.test_cage_plain_user import PREPARE, UID
from tests.security.attacks.escapes import list_escapes
from tests.security.attacks.sandbox_runner import PROFILES

ROOT = Path(__file__).parents[3]
METHODS = ("namespaces", "landlock")
LANDLOCK_VERSION = 6
MOST_ABSENT = 0.15  # of the attempts: more, and this machine is no place to judge a sandbox


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that every user can enter; not below /tmp, of which sandboxes have one of their own."""
    parent = "/var/lib" if os.access("/var/lib", os.W_OK) else None
    path = Path(tempfile.mkdtemp(prefix="falaj-escapes-", dir=parent))
    path.chmod(0o711)
    yield path
    shutil.rmtree(path, ignore_errors=True)


def test_the_table_is_large_and_its_names_are_unique() -> None:
    names = [escape.name for escape in list_escapes()]
    assert len(names) == len(set(names)) > 300
    assert sum("q" in escape.flags for escape in list_escapes()) >= 30


def test_attempts_are_real(folder: Path) -> None:
    """Outside of a sandbox the marked ones succeed: they are refused by the sandbox and not by their own mistakes."""
    result = run("namespaces", "job", folder, "control")
    assert len(result["outcomes"]) > (120 if os.geteuid() == 0 else 50)
    assert {name: outcome for name, outcome in result["outcomes"].items() if outcome[0] != "done"} == {}


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("profile", PROFILES)
def test_quick_attempts_are_refused(method: str, profile: str, folder: Path) -> None:
    check_refused(run(method, profile, folder, "quick"))


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("profile", PROFILES)
def test_every_attempt_is_refused(method: str, profile: str, folder: Path) -> None:
    check_refused(run(method, profile, folder, "full"))


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("setpriv"), reason="only root can become another user")
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("profile", PROFILES)
def test_every_attempt_is_refused_without_root(method: str, profile: str, folder: Path) -> None:
    check_refused(run(method, profile, folder, "full", as_root=False))


def run(method: str, profile: str, folder: Path, which: str, *, as_root: bool = True) -> dict[str, Any]:
    """Run the attempts of one method and profile in a process of their own, which may give up rights for good."""
    if sandbox_kernel.get_landlock_version() < LANDLOCK_VERSION and (method == "landlock" or profile == "isolated"):
        words = f"this kernel's Landlock is older than {LANDLOCK_VERSION}"
        pytest.fail(words) if os.environ.get("CI") else pytest.skip(words)
    words = [sys.executable, "-m", "tests.security.attacks.sandbox_runner", method, profile, str(folder), which]
    env = {name: value for name, value in os.environ.items() if not name.startswith("FALAJ_")}
    env |= {"PYTHONDONTWRITEBYTECODE": "1"}
    if which == "control" and os.geteuid() == 0:  # what root may mount and name outside of a sandbox is its own
        words = ["unshare", "--mount", "--uts", *words]
    if not as_root:
        os.chown(folder, UID, UID)
        scratch = folder / "scratch"
        scratch.mkdir()
        env |= {"PREFIX": sys.base_prefix, "SCRATCH": str(scratch), "USER_ID": str(UID)}
        words = ["unshare", "--mount", "sh", "-c", PREPARE, "sh", *words]
    done = subprocess.run(words, env=env, cwd=ROOT, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def check_refused(result: dict[str, Any]) -> None:
    assert result["missing"] == [], result["end"]
    assert {name: outcome for name, outcome in result["outcomes"].items() if outcome[0] == "done"} == {}
    absent = {name: outcome[1] for name, outcome in result["outcomes"].items() if outcome[0] == "absent"}
    assert len(absent) <= MOST_ABSENT * len(result["outcomes"]), absent
    assert result["damage"] == []
