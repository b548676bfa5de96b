"""Fixtures every test may use: real servers, started once per test process when first asked for."""

import os
import shutil
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TypeVar

import pytest
from hypothesis import HealthCheck, settings

from tests.servers.oidc import OidcServer
from tests.servers.postgres import PostgresServer
from tests.servers.process import Missing
from tests.servers.ray import RayServer
from tests.servers.redis import RedisCluster, RedisServer
from tests.servers.registry import RegistryServer
from tests.servers.seaweed import Bucket, SeaweedServer
from tests.servers.slurm import SlurmServer, shared_folder
from tests.servers.softhsm import SoftHsm

Running = TypeVar("Running")
LONG = ("stories", "train", "study", "serve", "gateway", "state", "mlflow", "conformance", "dispatch", "features")
"""Folders whose modules take longest: they begin first, so that no worker is left alone with one at the end."""


FEW = 40
"""So many examples of a property are enough where the slow tests are left out: each run draws others."""


def pytest_configure(config: pytest.Config) -> None:
    """That a machine is slow breaks no property."""
    settings.register_profile("falaj", deadline=None, suppress_health_check=[HealthCheck.too_slow])
    settings.load_profile("falaj")


def pytest_itemcollected(item: pytest.Item) -> None:
    """All the examples a property asks for are drawn in full tests."""
    test = getattr(item, "obj", None)
    test = getattr(test, "__func__", test)  # of one that stands in a class, too
    asked = getattr(test, "_hypothesis_internal_use_settings", None)
    if "not slow" in item.config.option.markexpr and asked is not None and asked.max_examples > FEW:
        test._hypothesis_internal_use_settings = settings(asked, max_examples=FEW)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Those first that take longest; within a folder as they are written."""
    rank = {folder: place for place, folder in enumerate(LONG)}
    items.sort(key=lambda item: min((rank.get(part, len(LONG)) for part in item.path.parts), default=len(LONG)))


@pytest.fixture(autouse=True)
def whole_numbers() -> Iterator[None]:
    """Who trains lets the processor round tiny numbers to nothing, which other tests do not expect of it."""
    yield
    if "torch" in sys.modules:
        sys.modules["torch"].set_flush_denormal(False)


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    """The PostgreSQL shared by this process. A test that restarts or kills one makes its own `PostgresServer()`."""
    yield from _running(PostgresServer)


@pytest.fixture(scope="session")
def new_postgres(postgres_server: PostgresServer) -> Callable[[], str]:
    """Each call makes an empty database and returns its URL."""
    return postgres_server.create_database


@pytest.fixture
def postgres_url(new_postgres: Callable[[], str]) -> str:
    """The URL of an empty database of this test's own."""
    return new_postgres()


@pytest.fixture(scope="session")
def s3_server() -> Iterator[SeaweedServer]:
    """The S3 store shared by this process."""
    yield from _running(SeaweedServer)


@pytest.fixture(scope="session")
def new_s3(s3_server: SeaweedServer) -> Callable[[], Bucket]:
    """Each call makes an empty bucket and returns its `url` and `options`."""
    return s3_server.create_bucket


@pytest.fixture
def s3_url(new_s3: Callable[[], Bucket]) -> Bucket:
    """An empty bucket of this test's own: `S3Store.from_url(s3_url.url, **s3_url.options)`."""
    return new_s3()


@pytest.fixture(scope="session")
def oidc_provider() -> Iterator[OidcServer]:
    """The OpenID Connect provider shared by this process: `issuer`, `service_token()`, `sign_in("alice")`."""
    yield from _running(OidcServer)


@pytest.fixture(scope="session")
def softhsm() -> Iterator[SoftHsm]:
    """The PKCS#11 token shared by this process: `library`, `label`, `pin`. Give each key a label of its own."""
    yield from _running(SoftHsm)


@pytest.fixture(scope="session")
def oci_registry() -> Iterator[RegistryServer]:
    """The OCI registry shared by this process: `host`, `url`, `blob(digest)`. Use a repository of your own."""
    yield from _running(RegistryServer)


@pytest.fixture(scope="session")
def redis_server() -> Iterator[RedisServer]:
    """The Redis-compatible server shared by this process: `url`. Use a prefix of your own; to kill one, make one."""
    yield from _running(RedisServer)


@pytest.fixture(scope="session")
def redis_cluster() -> Iterator[RedisCluster]:
    """The Redis cluster of three servers shared by this process: `url`. Use a prefix of your own; to kill, make one."""
    yield from _running(RedisCluster)


@pytest.fixture(scope="session")
def slurm_server() -> Iterator[SlurmServer]:
    """The Slurm cluster shared by this process, with the nodes n1 and n2: `address`, `ask("squeue")`."""
    yield from _running(SlurmServer)


@pytest.fixture
def shared() -> Iterator[Path]:
    """A folder that every user can reach."""
    with shared_folder() as made:
        yield made


@pytest.fixture(scope="module")
def unix_user() -> Iterator[str]:
    """Somebody with an account at the site, who is not us."""
    yield from _unix_account()


@pytest.fixture(scope="module")
def other_unix_user() -> Iterator[str]:
    """A second person with an account at the site."""
    yield from _unix_account()


@pytest.fixture(scope="session")
def ray_server() -> Iterator[RayServer]:
    """The Ray cluster shared by this process, three nodes: `address`, `token`, `tell("kill", "127.0.0.3")`."""
    yield from _running(RayServer)


def _unix_account() -> Iterator[str]:
    if os.geteuid() != 0 or shutil.which("useradd") is None:
        pytest.skip("only root can make a Unix user, and act as one without sudo")
    name = f"falaj{uuid.uuid4().hex[:6]}"
    subprocess.run(["useradd", "--no-create-home", "--shell", "/bin/sh", name], check=True)
    yield name
    subprocess.run(["userdel", name], check=False)


def _running(server: Callable[[], AbstractContextManager[Running]]) -> Iterator[Running]:
    try:
        made = server()
    except Missing as missing:
        if os.environ.get("CI"):
            pytest.fail(str(missing), pytrace=False)
        pytest.skip(str(missing))
    with made as running:
        yield running
