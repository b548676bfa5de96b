"""Threat: a person of the system tenant, who runs jobs beside the platform's keys, takes the installation over.
All jobs are sandboxed; only those of the single user of an embedded folder are not, and it says so."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import falaj
from falaj.core.errors import Invalid
from falaj.core.settings import Settings
from falaj.fleet.sandbox import is_single_user
from falaj.server import LocalClient, Server, load_settings
from tests.jobs.lab import Lab
from tests.people import enroll

TAKEOVER = """
import json, os, pathlib

def tried(act):
    try:
        return repr(act())[:200]
    except BaseException as error:
        return f"refused: {type(error).__name__}"

def mint():
    import falaj
    with falaj.connect(HOME) as here:
        return here.people.whoami()

print(json.dumps({
    "sandbox": os.environ.get("FALAJ_SANDBOX", ""),
    "uid": os.getuid(),
    "keys": tried(lambda: next(path.read_bytes() for path in pathlib.Path(HOME, "keys").rglob("*.key"))),
    "ledger": tried(lambda: open(HOME + "/ledger.db", "rb").read(16)),
    "token": tried(mint),
}))
"""


@pytest.fixture
def house(tmp_path: Path) -> Iterator[Server]:
    opened = Server(load_settings(str(tmp_path / "house")))
    yield opened
    opened.close()


def tried(house: Server, here: Any, folder: Path, name: str) -> dict[str, Any]:
    """What a job of this person could do, on the cluster that a fresh installation has."""
    lab = Lab(folder, here)
    with house.working():
        job = lab.done(lab.submit(TAKEOVER.replace("HOME", repr(house.settings.home)), name=name, memory="256MiB"))
    assert job.state == "succeeded", (job.note, lab.lines(job))
    outcome: dict[str, Any] = json.loads(lab.lines(job)[-1])
    return outcome


def test_data_scientist_of_the_system_tenant_is_sandboxed(house: Server, tmp_path: Path) -> None:
    admin = LocalClient(house, house.authenticate(house.bootstrap()))
    token = enroll(admin, "hasan", ("data-scientist",), jurisdiction="AE")
    came = tried(house, LocalClient(house, house.authenticate(token)), tmp_path, "takeover")
    assert came["sandbox"] == "namespaces"
    assert came["uid"] != 0
    for what in ("keys", "ledger", "token"):
        assert came[what].startswith("refused"), came


def test_owner_of_a_folder_is_sandboxed_once_anybody_else_has_an_account(house: Server, tmp_path: Path) -> None:
    owner = LocalClient(house, house.owner())
    assert tried(house, owner, tmp_path, "alone")["sandbox"] == ""
    admin = LocalClient(house, house.authenticate(house.bootstrap()))
    assert tried(house, owner, tmp_path, "served")["sandbox"] == "", "the account of the first start is the owner's own"
    admin.people.add("amal", ("data-scientist",), jurisdiction="AE")
    assert tried(house, owner, tmp_path, "shared")["sandbox"] == "namespaces"


def test_account_cannot_be_named_like_the_owner(house: Server) -> None:
    """Names of operating-system users are theirs: on Slurm a job of `os-amal` runs as the Unix user amal."""
    admin = LocalClient(house, house.authenticate(house.bootstrap()))
    with pytest.raises(Invalid, match="cannot be a name"):
        admin.people.add(house.owner().id, ("data-scientist",), jurisdiction="AE")


@pytest.mark.parametrize(
    "changed",
    [{"listen": "0.0.0.0:8470"}, {"url": "https://falaj.bank.ae"}, {"hosts": ("falaj.bank.ae",)},
     {"identity": "oidc:https://login.bank.ae,local:"}],
)  # fmt: skip
def test_folder_that_others_can_reach_is_no_single_users(house: Server, changed: dict[str, Any]) -> None:
    with house.ledger.read(house.system()) as tx:
        assert is_single_user(Settings(home=house.settings.home), tx)
        assert not is_single_user(Settings(home=house.settings.home, **changed), tx)


def test_embedded_folder_runs_jobs_of_its_owner(tmp_path: Path) -> None:
    with falaj.connect(str(tmp_path / "mine")) as here, here.working():
        lab = Lab(tmp_path, here)
        assert lab.done(lab.submit("print('done')")).state == "succeeded"
