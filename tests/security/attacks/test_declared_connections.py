"""Proves the threat-model row "a replica that reads features from Redis connects to anything else": a broker outside
opens its connections, to the declared servers alone. Real servers, a real sandbox, by each method of making one."""

import json
import socket
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from falaj.backends.process_sandbox import probe_isolation
from falaj.backends.redis_online import RedisOnlineStore
from falaj.core.online_rows import pack_rank
from falaj.worker import sandbox_kernel
from tests.backends.cages import HOSTILE
from tests.conformance.test_online import TlsDoor
from tests.servers.redis import RedisCluster, RedisServer
from tests.servers.transit import _tls
from tests.worker.slot import SlotUnderTest

NOW = 1_700_000_000_000_000
ROW = pack_rank(1, 0, 0) + b"balance 5"
SOURCES = Path(sys.modules["falaj"].__file__ or "").parents[1]
SERVED = """
from falaj.backends.redis_online import RedisOnlineStore
online = RedisOnlineStore(URL, {"readonly": True})
def read_rows():
    (cells,) = online.get([("s", [b"k%d" % number for number in range(40)])])
    assert len(cells) == 40 and None not in cells and len(set(cells)) == 1, cells
    return cells[0][24:]
tried("may read features", read_rows)
"""
ATTACKS = """
from falaj.core.connection_broker import FD_VARIABLE, open_connection
broker = int(os.environ[FD_VARIABLE])
def ask(text, *files):
    answer, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    channel = socket.socket(fileno=os.dup(broker))
    socket.send_fds(channel, [text], [theirs.fileno(), *files])
    theirs.close()
    answer.settimeout(5)
    text, files, _, _ = socket.recv_fds(answer, 256, 1)
    if not files:
        raise PermissionError(text.decode())
    return socket.socket(fileno=files[0])
def connect_again(opened):
    libc.connect(opened.fileno(), (ctypes.c_ushort * 8)(), 16)
    opened.connect(("127.0.0.1", OTHER))
    opened.send(b"stolen")
def send_elsewhere(opened):
    opened.sendto(b"stolen", 0x20000000, ("127.0.0.1", OTHER))
def bind_again(opened):
    libc.connect(opened.fileno(), (ctypes.c_ushort * 8)(), 16)
    opened.bind(("127.0.0.1", 0))
tried("may connect to the store", lambda: open_connection("127.0.0.1", STORE, 5).getpeername())
tried("may connect by number", lambda: ask(b"0").getpeername())
tried("the store by itself", lambda: connect("127.0.0.1", STORE))
tried("same port elsewhere", lambda: connect("127.0.0.2", STORE))
tried("same port elsewhere by the broker", lambda: open_connection("127.0.0.2", STORE, 5))
tried("another port by the broker", lambda: open_connection("127.0.0.1", OTHER, 5))
for text in (b"1", b"-1", b"0x0", b"00000009", b"127.0.0.1", b"\\xff"):
    tried(f"request {text!r}", lambda text=text: ask(text))
tried("the broker's socket connected again", lambda: connect_again(ask(b"0")))
tried("the broker's socket with fast open", lambda: send_elsewhere(ask(b"0")))
tried("the broker's socket bound", lambda: bind_again(ask(b"0")))
tried("a local socket", lambda: socket.socket(socket.AF_UNIX).connect("/run/falaj-nothing"))
with open("/dev/null") as null:
    socket.send_fds(socket.socket(fileno=os.dup(broker)), [b"0"], [null.fileno(), null.fileno()])
tried("may connect after a malformed request", lambda: ask(b"0").getpeername())
"""


@pytest.fixture(params=["namespaces", "landlock"])
def method(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "namespaces" and probe_isolation(str(tmp_path)).method != "namespaces":
        pytest.skip("this machine has no namespaces")
    if sandbox_kernel.get_landlock_version() < 6:
        pytest.skip("this kernel's Landlock is older")
    return str(request.param)


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with RedisServer() as running:
        yield running


@pytest.fixture(scope="module")
def cluster() -> Iterator[RedisCluster]:
    with RedisCluster() as running:
        yield running


def fill(url: str) -> None:
    with closing(RedisOnlineStore(url)) as online:
        online.put("s", [(b"k%d" % number, ROW) for number in range(40)], NOW)


def run_replica(folder: Path, method: str, program: str, services: list[tuple[str, int]]) -> dict[str, tuple[str, str]]:
    """What came of each trial of a program in the sandbox of a replica with these services."""
    cage = {
        "method": method,
        "uid": 1_900_000_000 * (method == "namespaces"),
        "listen": "127.0.0.1",
        "services": services,
        "shown": sorted({sys.prefix, sys.base_prefix, str(SOURCES)}),
        "hidden": [str(Path("~root").expanduser())],
    }
    slot = SlotUnderTest(folder, sys.executable, "-c", HOSTILE + program, cage=cage)
    assert slot.end()["code"] == 0, slot.log()
    return {name: (outcome, text) for name, outcome, text in map(json.loads, slot.log().splitlines())}


def check(outcomes: dict[str, tuple[str, str]]) -> None:
    """Exactly what is named so went through."""
    assert outcomes
    wrong = {name: seen for name, seen in outcomes.items() if (seen[0] == "done") != name.startswith("may ")}
    assert wrong == {}


def test_replica_reaches_its_declared_server_and_nothing_else(tmp_path: Path, method: str, server: RedisServer) -> None:
    fill(server.url)
    with socket.create_server(("127.0.0.1", 0)) as other, socket.create_server(("127.0.0.2", server.port)) as elsewhere:
        names = f"URL, STORE, OTHER = {server.url!r}, {server.port}, {other.getsockname()[1]}\n"
        outcomes = run_replica(tmp_path, method, names + SERVED + ATTACKS, [("127.0.0.1", server.port)])
        check(outcomes)
        assert "balance 5" in outcomes["may read features"][1]
        for listener in (other, elsewhere):
            listener.setblocking(False)
            with pytest.raises(BlockingIOError):
                listener.accept()


def test_features_are_served_over_tls(tmp_path: Path, method: str, server: RedisServer) -> None:
    fill(server.url)
    with TlsDoor(_tls(tmp_path), server.port) as door:
        port = door.server_address[1]
        url = f"rediss://127.0.0.1:{port}/0?ca={tmp_path}/ca.pem"
        check(run_replica(tmp_path, method, f"URL = {url!r}\n{SERVED}", [("127.0.0.1", port)]))
        door.shutdown()


def test_features_are_served_from_a_cluster(tmp_path: Path, method: str, cluster: RedisCluster) -> None:
    fill(cluster.url)
    services = [("127.0.0.1", node.port) for node in cluster.nodes]
    check(run_replica(tmp_path, method, f"URL = {cluster.url!r}\n{SERVED}", services))


def test_features_are_served_through_a_local_socket(tmp_path: Path, method: str) -> None:
    with RedisServer(unixsocket="redis.sock", unixsocketperm="777") as server:
        path = Path(server.folder, "redis.sock")
        fill(server.url)
        url = f"redis://localhost/0?socket={path}"
        check(run_replica(tmp_path, method, f"URL = {url!r}\n{SERVED}", [(str(path), 0)]))


def test_executor_declares_servers_and_sockets_of_the_online_store(tmp_path: Path) -> None:
    from falaj.backends.process_sandbox import SandboxProfiles
    from tests.backends.attempts import attempt, slots

    def declared(online: str, kind: str = "feature-replica", **options: str) -> Any:
        cages = SandboxProfiles({"sandbox": "best", "online": online, **options}, tmp_path)
        return cages.documents(attempt(slots("node-1"), "pass", kind=kind, listen="127.0.0.1"), str(tmp_path))["cage"]

    assert declared("redis://a:7000,b?cluster=yes", services="c:1")["services"] == [("a", 7000), ("b", 6379), ("c", 1)]
    assert declared("redis://localhost/0?socket=/srv/redis.sock")["services"] == [("/srv/redis.sock", 0)]
    assert declared("redis://a:7000", kind="replica")["services"] == []
    assert declared("lmdb:/srv/online")["services"] == []
