"""A restored copy acts on nothing until it is activated, and it is activated only once the old installation is gone.

The old installation goes on while a copy of it is started: no job runs twice. The copy is refused its activation while
the old one answers, or makes backups; it takes a reason where nothing answers, and the log keeps it.
"""

import shutil
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pytest

import falaj
from falaj.core.errors import Conflict, Denied, Invalid
from tests.people import enroll
from tests.replica import Replica
from tests.servers.process import free_ports, wait_until

pytestmark = pytest.mark.timeout(300)
REASON = "its machine was taken out of the rack, ticket 4711"


def run(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "falaj", *words]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)


@pytest.fixture
def homes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path, Path, str]:
    """The old home, that of the copy, the job's mark, and where the old one listens."""
    monkeypatch.setenv("FALAJ_GATEWAY", "")
    monkeypatch.setenv("FALAJ_SANDBOX", "off")
    return tmp_path / "old", tmp_path / "copy", tmp_path / "mark", f"127.0.0.1:{next(free_ports())}"


def submit_and_copy(old: Path, copy: Path, mark: Path) -> None:
    """A job that nobody started yet, a backup with it, and the copy made from that."""
    with closing(falaj.connect(str(old))) as here:
        here.jobs.submit(f'sh -c "echo ran >> {mark}"', name="once", project="main", cpus=1, memory="64MiB")
        (old / "ledger.backup").write_bytes(here.store.backup().read())
    copy.mkdir(mode=0o700)
    shutil.copytree(old / "keys", copy / "keys")
    restored = run("restore", str(old / "ledger.backup"), "--at", str(copy))
    assert restored.returncode == 0, restored.stderr
    assert "FENCED" in restored.stderr


def state(platform: Any) -> str:
    return str(platform.jobs.show("job:main/once").state)


def test_a_copy_acts_on_nothing_until_the_old_one_is_gone(homes: tuple[Path, Path, Path, str]) -> None:
    home, copy, mark, listen = homes
    with Replica(home, listen=listen) as first:
        token = first.token
    submit_and_copy(home, copy, mark)
    with Replica(home, listen=listen, first=False) as old, Replica(copy, first=False) as new:
        wait_until(lambda: state(old.as_(token)) == "succeeded", 90)
        admin = new.as_(token)
        status = admin.get("/status")
        assert (status["ready"], status["fenced"]) == (True, True)
        assert "FENCED" in run("status", "--at", str(copy)).stdout
        assert "FENCED" in run("doctor", "--at", str(copy)).stdout
        assert state(admin) == "waiting"
        with pytest.raises(Denied, match="fenced"):
            admin.store.collect()
        assert "fenced" in admin.clusters.check("local").problem
        about = [httpx.get(f"{each.url}/v1/login", trust_env=False).json() for each in (old, new)]
        assert about[0]["origin"] == about[1]["origin"] != ""
        assert [each["fenced"] for each in about] == [False, True]
        refused = run("restore", "--activate", "--old-is-gone", REASON, "--at", str(copy))
        assert (refused.returncode, f"it answers at http://{listen}" in refused.stderr) == (Conflict.exit_code, True)
        old.kill()
        unproven = run("restore", "--activate", "--at", str(copy))
        assert (unproven.returncode, "does not prove" in unproven.stderr) == (Invalid.exit_code, True)
        assert (state(admin), mark.read_text()) == ("waiting", "ran\n")
        activated = run("restore", "--activate", "--old-is-gone", REASON, "--at", str(copy))
        assert activated.returncode == 0, activated.stderr
        # The job would have run a second time: what was waiting in the backup runs as soon as the copy acts.
        wait_until(lambda: state(admin) == "succeeded", 90)
        assert mark.read_text() == "ran\nran\n"
        omar = new.as_(enroll(admin, "omar", ("auditor",)))
        (fact,) = omar.audit.log(verb="store.activate").entries
        assert fact.body["reason"] == REASON
        assert admin.get("/status")["fenced"] is False
        assert run("restore", "--activate", "--at", str(copy)).returncode == Conflict.exit_code


def test_commands_in_a_copys_folder_start_no_job_either(homes: tuple[Path, Path, Path, str]) -> None:
    home, copy, mark, _ = homes
    submit_and_copy(home, copy, mark)
    with closing(falaj.connect(str(copy))) as here:
        with pytest.raises(Denied, match="fenced"), here.working():
            pass
        assert state(here) == "waiting"
    assert not mark.exists()


def test_a_backup_that_the_old_one_made_since_refuses_the_activation(homes: tuple[Path, Path, Path, str]) -> None:
    home, copy, _, _ = homes
    shelf = f"dir:{home.parent}/backups"
    with closing(falaj.connect(str(home), **{"backup.to": shelf})) as old:
        old.store.preserve()
        copy.mkdir(mode=0o700)
        shutil.copytree(home / "keys", copy / "keys")
        assert run("restore", shelf, "--at", str(copy)).returncode == 0
        with closing(falaj.connect(str(copy), **{"backup.to": shelf})) as here, pytest.raises(Denied, match="fenced"):
            here.store.preserve()
        old.store.preserve()
    refused = run("restore", "--activate", "--old-is-gone", REASON, "--at", str(copy))
    assert (refused.returncode, "after this copy was restored" in refused.stderr) == (Conflict.exit_code, True)
