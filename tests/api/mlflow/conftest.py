"""A real server with people of two tenants, and the real MLflow client in an environment and a process of its own."""

import json
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.people import enroll, enroll_tenant
from tests.replica import Replica
from tests.servers import peers
from tests.servers.process import Missing

SCRIPTS = Path(__file__).parent / "scripts"
Client = Callable[..., dict[str, Any]]


class Place(NamedTuple):
    """Where the server answers, and tokens by name."""

    url: str
    tokens: dict[str, str]
    replica: Replica


@pytest.fixture(scope="session")
def mlflow_bin() -> Path:
    """The programs of the current MLflow release."""
    try:
        return peers.peer("mlflow", *peers.MLFLOW)
    except Missing as missing:
        if os.environ.get("CI"):
            pytest.fail(str(missing), pytrace=False)
        pytest.skip(str(missing))


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """One server for a file of tests: amal and badr of the bank, sara of the clinic."""
    env = {"FALAJ_LIMITS_REQUESTS_PER_S": "100000", "FALAJ_LIMITS_BURST": "100000"}
    with Replica(tmp_path_factory.mktemp("mlflow"), env) as replica:
        admin = replica.as_()
        tokens = {"admin": replica.token}
        for tenant, boss in (("bank", "fatima"), ("clinic", "yusuf")):
            tokens[boss] = enroll_tenant(admin, tenant, boss)
        for boss, name, *roles in (
            ("fatima", "amal", "ml-engineer", "data-steward"),
            ("fatima", "mona", "ml-engineer"),
            ("fatima", "omar", "auditor"),
            ("fatima", "badr", "approver"),
            ("yusuf", "sara", "ml-engineer"),
        ):
            tokens[name] = enroll(replica.as_(tokens[boss]), name, tuple(roles), jurisdiction="AE")
        yield Place(replica.url, tokens, replica)


@pytest.fixture
def client(place: Place, mlflow_bin: Path) -> Client:
    """Run a script of ours with the real client, as somebody; gives what its last line says."""

    def run(script: str, who: str = "amal", **env: str) -> dict[str, Any]:
        chosen = {
            **{key: value for key, value in os.environ.items() if not key.startswith(("MLFLOW", "PYTHON"))},
            "MLFLOW_TRACKING_URI": place.url,
            "MLFLOW_TRACKING_TOKEN": place.tokens[who],
            "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
            "MLFLOW_DISABLE_TELEMETRY": "true",
            **env,
        }
        done = subprocess.run(
            [str(mlflow_bin / "python"), str(SCRIPTS / script)],
            env=chosen,
            capture_output=True,
            text=True,
            check=False,
            cwd=SCRIPTS,
            timeout=300,
        )
        assert done.returncode == 0, done.stderr[-4000:]
        found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
        return found

    return run
