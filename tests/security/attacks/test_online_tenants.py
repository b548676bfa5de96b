"""Proves the threat-model row "a replica of one tenant reads or writes the online features of another": it cannot."""

import hashlib
import logging
import os
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from tempfile import gettempdir
from typing import Any

import pytest
import redis
from redis.exceptions import AuthenticationError, NoPermissionError, RedisError, ResponseError

from falaj.backends.lmdb_online import LmdbOnlineStore
from falaj.backends.process_sandbox import probe_isolation
from falaj.backends.redis_online import RedisOnlineStore
from falaj.core.errors import Denied, FalajError, Invalid, Unavailable
from falaj.core.online_rows import (
    READER_PASSWORD_VARIABLE,
    build_tenant_address,
    derive_reader_password,
    hash_space_name,
    pack_rank,
)
from tests.security.attacks.feature_ground import CANARY, Ground, ground
from tests.serve.laptop import Laptop
from tests.servers.process import wait_until
from tests.servers.redis import RedisCluster, RedisServer
from tests.town import Town, refusal

ROOT = Path(__file__).parents[3]
PASSWORD = "very-hidden-1"
NOW = 1_700_000_000_000_000
ROW = pack_rank(1, 0, 0) + CANARY.encode()
PROBE = """def probe(columns):
    import numpy

    escaped = 0
    for number, path in enumerate(("OTHER/data.mdb", "OWN/data.mdb", "OWN/lock.mdb")):
        for mode in ("r", "r+"):
            try:
                numpy.memmap(path, "u1", mode)
                escaped += 2**number
            except BaseException:
                pass
    rows = len(columns["balance"])
    return {"ran": [7.0] * rows, "escaped": [float(escaped)] * rows}
"""


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with RedisServer(requirepass=PASSWORD) as running:
        yield running


@pytest.fixture(scope="module")
def cluster() -> Iterator[RedisCluster]:
    with RedisCluster(requirepass=PASSWORD) as running:
        yield running


@pytest.fixture(params=["server", "cluster"])
def address(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("PLATFORM_PASSWORD", PASSWORD)
    url = request.getfixturevalue(request.param).url
    return f"{url}{'&' if '?' in url else '?'}password=env:PLATFORM_PASSWORD"


def open_tenant(address: str, tenant: str) -> RedisOnlineStore:
    return RedisOnlineStore(build_tenant_address(address, tenant))


def admit(store: Any, monkeypatch: pytest.MonkeyPatch, key: str = "key of an endpoint") -> str:
    """The address of a replica of the store's tenant, with its password where the replica has it."""
    password = derive_reader_password(key)
    monkeypatch.setenv(READER_PASSWORD_VARIABLE, password)
    url: str = store.admit_reader(hashlib.sha256(password.encode()).hexdigest())
    return url


def test_reader_of_a_tenant_reads_its_own_rows_and_nothing_else(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with closing(open_tenant(address, "bank")) as bank, closing(open_tenant(address, "clinic")) as clinic:
        bank.put("s", [(b"k", ROW[:24] + b"own")], NOW)
        clinic.put("s", [(b"k", ROW)], NOW)
        url = admit(bank, monkeypatch)
        assert "PLATFORM_PASSWORD" not in url
        with closing(RedisOnlineStore(url, {"readonly": True})) as reader:
            assert reader.get([("s", [b"k"])]) == [[ROW[:24] + b"own"]]
            for write in (lambda: reader.put("s", [(b"k", ROW)], NOW), lambda: reader.drop("s")):
                assert isinstance(refusal(write), FalajError)
        other = url.replace("prefix=falaj:bank:", "prefix=falaj:clinic:")
        assert other != url
        with closing(RedisOnlineStore(other, {"readonly": True})) as spy:
            assert isinstance(refusal(lambda: spy.get([("s", [b"k"])])), Unavailable)
        assert bank.get([("s", [b"k"])]) == [[ROW[:24] + b"own"]]
        assert clinic.get([("s", [b"k"])]) == [[ROW]]


def test_prefix_that_begins_like_another_is_another(server: RedisServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLATFORM_PASSWORD", PASSWORD)
    address = f"{server.url}?password=env:PLATFORM_PASSWORD&prefix=x-{{tenant}}"
    with closing(open_tenant(address, "bank")) as bank, closing(open_tenant(address, "bank2")) as other:
        other.put("s", [(b"k", ROW)], NOW)
        url = admit(bank, monkeypatch).replace("prefix=x-bank", "prefix=x-bank2")
        with closing(RedisOnlineStore(url, {"readonly": True})) as spy:
            assert isinstance(refusal(lambda: spy.get([("s", [b"k"])])), Unavailable)


def test_reader_runs_no_command_that_leaves_its_prefix(server: RedisServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLATFORM_PASSWORD", PASSWORD)
    address = f"{server.url}?password=env:PLATFORM_PASSWORD"
    with closing(open_tenant(address, "bank")) as bank, closing(open_tenant(address, "clinic")) as clinic:
        clinic.put("s", [(b"k", ROW)], NOW)
        admit(bank, monkeypatch)
    key = next(name for name in server.ask("KEYS", "*") if name.startswith(b"falaj:clinic:") and b"." in name)
    own = b"falaj:bank:{000}" + hash_space_name("s") + b".k"
    name, password = "falaj:bank:reader", os.environ[READER_PASSWORD_VARIABLE]
    attacks: list[tuple[Any, ...]] = [
        ("GET", key), ("MGET", own, key), ("GETRANGE", key, 0, -1), ("DUMP", key), ("SET", key, "x"), ("SET", own, "x"),
        ("KEYS", "*"), ("SCAN", 0), ("RANDOMKEY",), ("EVAL", "return redis.call('GET', KEYS[1])", 1, key),
        ("COPY", key, own), ("SORT", own, "BY", "nosort", "GET", key), ("CONFIG", "GET", "*"),
        ("CONFIG", "SET", "dir", "/"),
        ("ACL", "LIST"), ("ACL", "SETUSER", name, "allkeys"), ("FLUSHALL",), ("MONITOR",), ("DEBUG", "OBJECT", key),
        ("SUBSCRIBE", "*"), ("CLIENT", "LIST"), ("REPLICAOF", "127.0.0.1", 1), ("MIGRATE", "127.0.0.1", 1, key, 0, 1),
        ("MODULE", "LIST"), ("SAVE",), ("SHUTDOWN",), ("OBJECT", "ENCODING", key), ("WATCH", key), ("DEL", own),
    ]  # fmt: skip
    with redis.Redis(port=server.port, username=name, password=password) as client:
        assert client.execute_command("GET", own) is None
        for attack in attacks:
            with pytest.raises((NoPermissionError, ResponseError)):
                client.execute_command(*attack)
    for user, secret in (("default", None), ("default", ""), ("default", password), ("falaj:clinic:reader", password)):
        with redis.Redis(port=server.port, username=user, password=secret) as client, pytest.raises(RedisError):
            client.execute_command("GET", key)
    assert server.ask("GET", key) == ROW


def test_password_of_one_endpoint_is_not_that_of_another(server: RedisServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLATFORM_PASSWORD", PASSWORD)
    with closing(open_tenant(f"{server.url}?password=env:PLATFORM_PASSWORD", "bank")) as bank:
        admit(bank, monkeypatch, "first")
        admit(bank, monkeypatch, "second")
        for key in ("first", "second"):
            with sign_in(server, derive_reader_password(key)) as client:
                assert client.ping()
        bank.dismiss_reader(hashlib.sha256(derive_reader_password("first").encode()).hexdigest())
        bank.dismiss_reader(hashlib.sha256(b"never admitted").hexdigest())
    with sign_in(server, derive_reader_password("second")) as client:
        assert client.ping()
    for key in ("first", "third"):
        with sign_in(server, derive_reader_password(key)) as client, pytest.raises(AuthenticationError):
            client.ping()


def sign_in(server: RedisServer, password: str) -> "redis.Redis":
    return redis.Redis(port=server.port, username="falaj:bank:reader", password=password)


def test_open_redis_and_account_without_rights_are_no_wall(monkeypatch: pytest.MonkeyPatch) -> None:
    with RedisServer() as server:
        with closing(open_tenant(server.url, "bank")) as bank, pytest.raises(Denied, match="needs no password"):
            admit(bank, monkeypatch)
        server.ask("ACL", "SETUSER", "platform", "on", f">{PASSWORD}", "~*", "+@all", "-acl")
        monkeypatch.setenv("PLATFORM_PASSWORD", PASSWORD)
        url = server.url.replace("redis://", "redis://platform@")
        with closing(open_tenant(f"{url}?password=env:PLATFORM_PASSWORD", "bank")) as bank:
            bank.put("s", [(b"k", ROW)], NOW)
            with pytest.raises(Denied, match="may not create a user"):
                admit(bank, monkeypatch)


def test_addresses_of_tenants_never_meet() -> None:
    assert "prefix=falaj:bank:" in build_tenant_address("redis://{tenant}@h/0?password=env:ONLINE_{tenant}", "bank")
    assert build_tenant_address("redis://h/0?prefix=x-{tenant}", "bank") == "redis://h/0?prefix=x-bank"
    assert build_tenant_address("lmdb:/srv/{tenant}/rows", "bank") == "lmdb:/srv/bank/rows"
    for address in ("lmdb:/srv/online", "redis://h:1/0", "redis://h?prefix=x", "redis://{tenant}@h/0"):
        tenants = ("bank", "bank2", "clinic", "b")
        assert len({build_tenant_address(address, tenant) for tenant in tenants}) == len(tenants)
    for name in ("../clinic", "a/b", "", ".", "a:b", "a*", "a b", "a{b}"):
        assert isinstance(refusal(lambda name=name: build_tenant_address("lmdb:/srv/online", name)), Invalid)
    assert isinstance(refusal(lambda: build_tenant_address("other:/srv", "bank")), Invalid)


@pytest.fixture(scope="module")
def two_tenants(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ground]:
    folder = tmp_path_factory.mktemp("tenants")
    # A replica with features also runs where the sandbox is required, and no operator names its store.
    sandbox = "best" if probe_isolation(gettempdir()).missing else "required"
    with ground(folder, {"FALAJ_SANDBOX": sandbox}) as prepared:
        prepared.push_canary()
        online = folder / "home" / "online"
        prepared.apply_probe(PROBE.replace("OTHER", str(online / "clinic")).replace("OWN", str(online / "bank")))
        yield prepared


def test_each_tenant_has_a_file_of_its_own(two_tenants: Ground) -> None:
    online = two_tenants.folder / "home" / "online"
    assert sorted(path.name for path in online.iterdir()) == ["bank", "clinic"]
    assert CANARY.encode() not in (online / "bank" / "data.mdb").read_bytes()
    assert online.stat().st_mode & 0o77 == 0


@pytest.mark.skipif(
    probe_isolation(gettempdir()).method != "namespaces", reason="the mounts of a replica need namespaces"
)
def test_function_and_process_of_a_replica_see_no_other_tenant(two_tenants: Ground) -> None:
    view = two_tenants.deploy()
    assert two_tenants.ask(view) == [[5.0, 7.0, 0.0], [5.0, 7.0, 0.0]]
    laptop = Laptop(two_tenants.folder, two_tenants.mona)
    replica = two_tenants.mona.serve.show(view.ref).replicas[0]
    process = Path("/proc", str(laptop.pid(replica.name)))
    inside = process / "root"
    online = two_tenants.folder / "home" / "online"
    seen = Path(f"{inside}{online}")
    assert [path.name for path in seen.iterdir()] == ["bank"]
    mounts = [line.split() for line in (process / "mountinfo").read_text().splitlines()]
    (options,) = [words[5] for words in mounts if words[4] == str(online / "bank")]
    assert "ro" in options.split(",")
    assert PASSWORD.encode() not in (process / "environ").read_bytes()


def test_replica_on_redis_has_only_the_credential_of_its_tenant(tmp_path: Path, server: RedisServer) -> None:
    settings = {"FALAJ_ONLINE": f"{server.url}?password=env:PLATFORM_PASSWORD", "PLATFORM_PASSWORD": PASSWORD}
    with ground(tmp_path, settings) as prepared:
        prepared.push_canary()
        prepared.apply_probe(PROBE)
        view = prepared.deploy()
        assert prepared.ask(view)[0][:2] == [5.0, 7.0]
        replica = prepared.mona.serve.show(view.ref).replicas[0]
        environment = Path("/proc", str(Laptop(tmp_path, prepared.mona).pid(replica.name)), "environ").read_bytes()
        assert PASSWORD.encode() not in environment
        assert b"PLATFORM_PASSWORD" not in environment
        clients = server.ask("CLIENT", "LIST").decode()
        assert "user=falaj:bank:reader" in clients


def test_lmdb_open_for_reading_never_writes(tmp_path: Path) -> None:
    with closing(LmdbOnlineStore(f"lmdb:{tmp_path}/bank")) as store:
        store.put("s", [(b"k", ROW)], NOW)
        with closing(LmdbOnlineStore(store.admit_reader(""), {"readonly": True})) as reader:
            assert reader.get([("s", [b"k"])]) == [[ROW]]
            for write in (lambda: reader.put("s", [(b"k", ROW)], NOW), lambda: reader.drop("s")):
                assert isinstance(refusal(write), Invalid)


def test_start_tells_that_an_open_redis_keeps_nobody_apart(tmp_path: Path) -> None:
    with RedisServer() as server, closing(Town(tmp_path / "home", online=server.url)) as town:
        messages: list[str] = []
        handler = logging.Handler()
        handler.emit = lambda record: messages.append(record.getMessage())  # type: ignore[method-assign]
        logger = logging.getLogger("falaj.server")
        logger.addHandler(handler)
        logger.setLevel(logging.WARNING)  # a command that ran in this process may have asked for errors alone
        try:
            with town.house.working():
                wait_until(lambda: bool(messages), 30)
        finally:
            logger.removeHandler(handler)
            logger.setLevel(logging.NOTSET)
    assert "needs no password" in messages[0]


def test_documented_rights_of_the_platforms_account_suffice(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    rights = "~falaj:* +@read +@write +@scripting +info +ping +select +cluster +acl"
    assert f"ACL SETUSER falaj on >… {rights}" in (ROOT / "docs" / "features.md").read_text()
    server.ask("ACL", "SETUSER", "falaj", "on", f">{PASSWORD}", *rights.split())
    monkeypatch.setenv("PLATFORM_PASSWORD", PASSWORD)
    url = server.url.replace("redis://", "redis://falaj@")
    with closing(open_tenant(f"{url}?password=env:PLATFORM_PASSWORD", "shop")) as store:
        store.put("s", [(b"k", ROW)], NOW)
        store.note("s", b"filled")
        assert store.scan("s") == [(b"k", ROW)]
        with closing(RedisOnlineStore(admit(store, monkeypatch), {"readonly": True})) as reader:
            assert reader.get([("s", [b"k"])]) == [[ROW]]
        assert store.delete("s", [b"k"]) == 1
        store.drop("s")
