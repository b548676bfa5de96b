"""Threat model: strangers' connections to the gRPC address of features, and calls one caller holds, stop nobody."""

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from typing import Any

import grpc
import pytest

from falaj.api import grpc_server as door_module
from falaj.api.grpc_server import FeatureGrpcServer, create_grpc_server
from tests.api.small import HOUSE_TOKEN
from tests.api.test_grpc import AMAL, READ, Held, ask, read, refused

CONNECTIONS, SHARE = 20, 4
GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0"
OTHER = (("authorization", f"Bearer {HOUSE_TOKEN}"),)


@pytest.fixture
def door(monkeypatch: pytest.MonkeyPatch) -> Iterator[FeatureGrpcServer]:
    limits = {
        "MAX_CONNECTIONS": CONNECTIONS,
        "MAX_OPEN_CALLS_PER_CALLER": SHARE,
        "HANDSHAKE_TIMEOUT_S": 2.0,
        "UNUSED_CONNECTION_TIMEOUT_S": 2.0,
    }
    for name, value in limits.items():
        monkeypatch.setattr(door_module, name, value)
    with create_grpc_server(Held(), "127.0.0.1:0") as running:
        yield running


def is_open(connection: socket.socket) -> bool:
    connection.setblocking(False)
    try:
        while connection.recv(1 << 16):
            pass
    except BlockingIOError:
        return True
    except ConnectionError:
        pass
    return False


@pytest.mark.parametrize("greeting", [b"", GREETING], ids=["silent", "greeted"])
def test_idle_connections_are_bounded_and_closed(door: FeatureGrpcServer, greeting: bytes) -> None:
    host, _, port = door.address.rpartition(":")
    with ExitStack() as stack:
        idle = [stack.enter_context(socket.create_connection((host, int(port)), 10)) for _ in range(3 * CONNECTIONS)]
        for connection in idle:
            with suppress(ConnectionError):  # it was one too many
                connection.sendall(greeting)
        deadline = time.monotonic() + 60
        while sum(map(is_open, idle)) > CONNECTIONS:
            assert time.monotonic() < deadline, "further connections were taken"
            time.sleep(0.05)
        while any(map(is_open, idle)):
            assert time.monotonic() < deadline, "idle connections stay open"
            time.sleep(0.05)
        with grpc.insecure_channel(door.address) as channel:
            assert read(channel, ask(a={"ints": [1]})).columns[0].ints == [1]


def test_open_calls_of_one_caller_are_bounded(door: FeatureGrpcServer) -> None:
    finished = threading.Event()

    def wait() -> Iterator[Any]:
        finished.wait(60)
        yield from ()

    with ExitStack() as stack:
        channels = [stack.enter_context(grpc.insecure_channel(door.address, (("x", n),))) for n in range(3)]
        call = channels[0].stream_unary(READ)
        waiting = [call.future(wait(), metadata=AMAL, timeout=60) for _ in range(SHARE)]
        deadline = time.monotonic() + 30
        while refused(channels[1], ask("denied"))[0] != grpc.StatusCode.RESOURCE_EXHAUSTED:
            assert time.monotonic() < deadline, "the calls of one caller are not bounded"
        answer = read(channels[2], ask(a={"ints": [1]}), metadata=OTHER)
        assert answer.columns[0].ints == [1]
        finished.set()
        for future in waiting:
            assert future.exception(timeout=30) is not None
