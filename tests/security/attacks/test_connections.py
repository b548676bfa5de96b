"""Threat model: unauthenticated clients that hold connections open, idle or slow, keep no known caller from the API."""

import socket
import ssl
import time
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from falaj.api import connection_table, http_connection
from falaj.server import Server, load_settings
from tests.api.small import serving
from tests.security.attacks.edge_server import EdgeServer, edge_server, read_status

TOTAL, PER_PEER = 40, 16
LIMITS = {"limits.connections": TOTAL, "limits.connections_per_peer": PER_PEER}
ATTACKERS = ("127.0.1.1", "127.0.1.2", "127.0.1.3", "127.0.1.4")


@pytest.fixture(scope="module")
def edge(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EdgeServer]:
    with edge_server(tmp_path_factory.mktemp("connections"), **LIMITS) as running:
        yield running


def call(edge: EdgeServer, line: socket.socket, person: str = "amal") -> int:
    line.sendall(edge.request(authorization=f"Bearer {edge.town.tokens[person]}"))
    return read_status(line)


def is_open(line: socket.socket) -> bool:
    """Whether the server has left a silent connection open."""
    line.setblocking(False)
    try:
        return bool(line.recv(1))
    except BlockingIOError:
        return True
    except ConnectionError:
        return False
    finally:
        line.setblocking(True)


def test_idle_connections_of_one_address_make_room_for_a_known_caller_there(edge: EdgeServer) -> None:
    with ExitStack() as stack:
        person = stack.enter_context(edge.connect(ATTACKERS[0]))
        assert call(edge, person) == 200
        for _ in range(3 * PER_PEER):
            stack.enter_context(edge.connect(ATTACKERS[0]))
        late = stack.enter_context(edge.connect(ATTACKERS[0]))
        assert call(edge, late) == 200
        assert call(edge, person) == 200  # known, and idle for longest: it was not closed
        assert len(edge.server.app.connections) <= PER_PEER


def test_idle_connections_of_many_addresses_make_room_for_others(edge: EdgeServer) -> None:
    with ExitStack() as stack:
        person = stack.enter_context(edge.connect())
        assert call(edge, person) == 200
        for _ in range(2 * PER_PEER):
            for address in ATTACKERS:
                stack.enter_context(edge.connect(address))
        for source in ("127.0.0.1", "127.0.0.2", *ATTACKERS):
            late = stack.enter_context(edge.connect(source))
            assert call(edge, late) == 200, source
        assert call(edge, person) == 200
        assert len(edge.server.app.connections) <= TOTAL


def test_slow_heads_and_bodies_make_room_too(edge: EdgeServer) -> None:
    parts = (
        b"POST /v1/people/whoami HTTP/1.1\r\nhost: ",
        f"POST /v1/agents/join HTTP/1.1\r\nhost: {edge.host}\r\ncontent-length: 9\r\n\r\n{{".encode(),
    )
    with ExitStack() as stack:
        slow = [stack.enter_context(edge.connect(ATTACKERS[number % 4])) for number in range(2 * TOTAL)]
        for number, line in enumerate(slow):
            if is_open(line):
                line.sendall(parts[number % 2])
        late = stack.enter_context(edge.connect())
        assert call(edge, late) == 200


def test_known_caller_cannot_take_all_connections(edge: EdgeServer) -> None:
    with ExitStack() as stack:
        for number in range(2 * TOTAL):
            greedy = stack.enter_context(edge.connect(ATTACKERS[number % 4]))
            assert call(edge, greedy) == 200
        late = stack.enter_context(edge.connect())
        assert call(edge, late, "omar") == 200


def test_anonymous_client_is_closed_before_a_known_caller(edge: EdgeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_connection, "UNAUTHENTICATED_IDLE_S", 1)
    with edge.connect() as anonymous, edge.connect() as person:
        assert call(edge, person) == 200
        anonymous.sendall(edge.request("/health", "GET"))
        assert read_status(anonymous) == 200
        assert anonymous.recv(1) == b""  # awaits the close
        assert call(edge, person) == 200


def test_handshakes_that_do_not_begin_make_room_and_are_ended(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection_table, "HANDSHAKE_TIMEOUT_S", 1.0)
    home = tmp_path_factory.mktemp("handshakes")
    house = Server(load_settings(str(home), LIMITS))
    token = house.bootstrap()
    with serving(house, listen="127.0.0.1:0", own_ca=True) as server, ExitStack() as stack:
        edge = EdgeServer(None, server)  # type: ignore[arg-type]
        silent = [stack.enter_context(edge.connect(ATTACKERS[number % 4])) for number in range(2 * TOTAL)]
        trust = ssl.create_default_context(cafile=home / "tls" / "ca.pem")
        for source in ("127.0.0.1", ATTACKERS[0]):
            plain = stack.enter_context(edge.connect(source))
            line = stack.enter_context(trust.wrap_socket(plain, server_hostname="127.0.0.1"))
            line.sendall(edge.request(authorization=f"Bearer {token}"))
            assert read_status(line) == 200, source
        assert len(server.app.connections) <= TOTAL
        for line in silent:
            line.settimeout(10)
            began = time.monotonic()
            try:
                assert line.recv(1) == b""
            except ConnectionError:
                assert time.monotonic() - began < 10
    house.close()
