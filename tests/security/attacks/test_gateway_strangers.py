"""Proves the threat-model row "a client without a token exhausts the gateway or locks others out of it".

Everything is sent over sockets to a gateway process whose memory is measured from outside.
"""

import contextlib
import gzip
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
from tritonclient.grpc import service_pb2 as pb

from tests.oip.grpc_serving import Client, message
from tests.security.attacks.gateway_process import INFER, LIMIT_BYTES, GatewayProcess, read_status, running_gateway

BOMB = gzip.compress(bytes((64 << 20) - 1), 9)
UNKNOWN = "fj_" + "0" * 16 + "_" + "x" * 43
"""A well-formed token of no account."""


@pytest.fixture(scope="module")
def gateway() -> Iterator[GatewayProcess]:
    with running_gateway() as running:
        with grpc_client(running) as client:  # what is loaded with the first call is no growth
            client.answer(client.ask(b"", "ServerLive"))
        assert call(running).status_code == 200
        yield running


def call(gateway: GatewayProcess, token: str = "", body: bytes = b"x", **headers: str) -> httpx.Response:
    """One inference as amal, or with another token."""
    headers = {"authorization": f"Bearer {token or gateway.tokens['amal']}", **headers}
    url = f"http://{gateway.http[0]}:{gateway.http[1]}{INFER}"
    return httpx.post(url, content=body, headers=headers, trust_env=False, timeout=30)


@contextlib.contextmanager
def grpc_client(gateway: GatewayProcess) -> Iterator[Client]:
    with Client(socket.create_connection(gateway.grpc, timeout=30)) as client:
        yield client


def bearer(token: str) -> tuple[str, str]:
    return "authorization", f"Bearer {token}"


def until(holds: Callable[[], Any], within_s: float = 30.0) -> None:
    end = time.monotonic() + within_s
    while not holds():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.02)


def send_all(connection: socket.socket, data: bytes) -> None:
    """Send as much as the gateway lets us."""
    with contextlib.suppress(OSError):
        connection.sendall(data)


# ---- HTTP/1.1


def test_unfinished_bodies_without_a_token_are_not_gathered(gateway: GatewayProcess) -> None:
    before = gateway.forget_peak()
    head = gateway.head("", content_length=str(64 << 20)) + b"\r\n"
    with contextlib.ExitStack() as stack:
        connections = [stack.enter_context(gateway.connect()) for _ in range(12)]
        senders = [threading.Thread(target=send_all, args=(client, head + bytes(63 << 20))) for client in connections]
        for sender in senders:
            sender.start()
        assert [read_status(connection) for connection in connections] == [401] * 12
        for connection in connections:
            connection.shutdown(socket.SHUT_RDWR)
        for sender in senders:
            sender.join()
    assert gateway.peak() - before < LIMIT_BYTES


def test_compressed_bodies_without_a_token_are_not_inflated(gateway: GatewayProcess) -> None:
    before = gateway.forget_peak()
    head = gateway.head("", content_encoding="gzip", content_length=str(len(BOMB))) + b"\r\n"
    with contextlib.ExitStack() as stack:
        connections = [stack.enter_context(gateway.connect()) for _ in range(40)]
        for connection in connections:
            send_all(connection, head + BOMB)
        assert [read_status(connection) for connection in connections] == [401] * 40
    assert gateway.peak() - before < LIMIT_BYTES


def test_compressed_bodies_with_an_unknown_token_are_not_inflated(gateway: GatewayProcess) -> None:
    before = gateway.forget_peak()
    small = gzip.compress(bytes(8 << 20), 9)  # one that arrives with its head
    with contextlib.ExitStack() as stack:
        connections = [stack.enter_context(gateway.connect()) for _ in range(40)]
        for number, connection in enumerate(connections):
            token = f"Bearer fj_{number:016d}_{'x' * 43}"
            body = small if number % 2 else BOMB
            length = str(len(body))
            head = gateway.head("", authorization=token, content_encoding="gzip", content_length=length) + b"\r\n"
            send_all(connection, head + body)
        assert {read_status(connection) for connection in connections} == {401}
    assert gateway.peak() - before < LIMIT_BYTES


def test_expect_100_continue_without_a_token_is_answered_401_without_a_body(gateway: GatewayProcess) -> None:
    with gateway.connect() as connection:
        connection.sendall(gateway.head("", expect="100-continue", content_length="1000000") + b"\r\n")
        assert read_status(connection) == 401
    with gateway.connect() as connection:
        connection.sendall(gateway.head(expect="100-continue", content_length="5") + b"\r\n")
        assert read_status(connection) == 100
        connection.sendall(b"hello")
        assert read_status(connection) == 200


def test_a_bomb_of_an_authenticated_caller_is_refused_while_it_inflates(gateway: GatewayProcess) -> None:
    before = gateway.forget_peak()
    answers = [call(gateway, body=BOMB, **{"content-encoding": "gzip"}).status_code for _ in range(8)]
    assert set(answers) == {413}
    assert gateway.peak() - before < LIMIT_BYTES


def test_bytes_of_one_caller_are_bounded_in_sum_and_returned(gateway: GatewayProcess) -> None:
    """Twelve bodies of 63 MiB exceed the share of one caller; others go on, and the memory is given back."""
    before = gateway.memory()
    head = gateway.head("mona", content_length=str(64 << 20)) + b"\r\n"
    with contextlib.ExitStack() as stack:
        connections = [stack.enter_context(gateway.connect()) for _ in range(12)]
        senders = [threading.Thread(target=send_all, args=(client, head + bytes(63 << 20))) for client in connections]
        for sender in senders:
            sender.start()
        refused = 0
        for connection in connections:
            connection.settimeout(0.2)
        until(lambda: gateway.memory() - before > 200 << 20)
        assert call(gateway).status_code == 200
        for sender in senders:
            sender.join()
        for connection in connections:
            with contextlib.suppress(TimeoutError):
                refused += read_status(connection) == 503
        assert refused >= 4
    until(lambda: gateway.memory() - before < LIMIT_BYTES)


def test_a_pipelined_head_cut_by_a_packet_is_weighed_by_itself(gateway: GatewayProcess) -> None:
    first = gateway.head(content_length="40000") + b"\r\n" + b"x" * 40000
    second = gateway.head(content_length="2") + b"\r\nhi"
    with gateway.connect() as connection:
        connection.sendall(first + second[:30])
        assert read_status(connection) == 200
        connection.sendall(second[30:])
        assert read_status(connection) == 200


# ---- gRPC


def test_compressed_messages_without_a_token_are_not_inflated(gateway: GatewayProcess) -> None:
    before = gateway.forget_peak()
    with grpc_client(gateway) as client:
        streams = []
        for _ in range(15):
            streams.append(client.ask(None, "ModelInfer", ("grpc-encoding", "gzip"), end=False))
            client.give(streams[-1], b"\1" + len(BOMB).to_bytes(4, "big") + BOMB)
        assert [client.answer(stream).status for stream in streams] == [16] * 15
    assert gateway.peak() - before < LIMIT_BYTES


def test_unfinished_messages_without_a_token_are_not_gathered(gateway: GatewayProcess) -> None:
    before = gateway.forget_peak()
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(grpc_client(gateway)) for _ in range(8)]
        for client in clients:
            streams = [client.ask(None, "ModelInfer", end=False) for _ in range(100)]
            for stream in streams:
                client.give(stream, b"\0" + (60 << 20).to_bytes(4, "big") + bytes(1 << 19), end=False)
        for client in clients:
            assert client.answer(1).status == 16
    assert gateway.peak() - before < LIMIT_BYTES


def test_messages_that_need_no_token_are_small(gateway: GatewayProcess) -> None:
    before = gateway.forget_peak()
    with grpc_client(gateway) as client:
        stream = client.ask(None, "ServerReady", ("grpc-encoding", "gzip"), end=False)
        client.give(stream, b"\1" + len(BOMB).to_bytes(4, "big") + BOMB)
        assert client.answer(stream).status == 8
        stream = client.ask(None, "ServerReady", end=False)
        client.give(stream, b"\0" + (60 << 20).to_bytes(4, "big") + bytes(1 << 19), end=False)
        assert client.answer(stream).status == 8
    assert gateway.peak() - before < LIMIT_BYTES


# ---- connections and lockout


def test_idle_unauthenticated_connections_make_room_for_callers(gateway: GatewayProcess) -> None:
    with contextlib.ExitStack() as stack:
        for number in range(4200):
            source = f"127.0.{number % 4 + 1}.1"
            stack.enter_context(gateway.connect(source))
        for _ in range(5):
            assert call(gateway).status_code == 200


def test_a_flood_of_bad_tokens_locks_nobody_else_out(gateway: GatewayProcess) -> None:
    over, refused = threading.Event(), [0, 0, 0]

    def flood(number: int) -> None:
        url = f"http://{gateway.http[0]}:{gateway.http[1]}"
        with httpx.Client(base_url=url, trust_env=False) as client:
            while not over.is_set():
                token = f"fj_{secrets.token_hex(8)}_{secrets.token_urlsafe(32)}" if number else UNKNOWN
                refused[number] += client.post(INFER, headers=dict([bearer(token)])).status_code in (401, 429)

    floods = [threading.Thread(target=flood, args=(number,)) for number in range(3)]
    for thread in floods:
        thread.start()
    try:
        until(lambda: min(refused) > 50)
        # None of these called before; they call from the address of the flood.
        statuses = {name: call(gateway, gateway.tokens[name]).status_code for name in ("badr", "salem", "sara", "ola")}
        assert not {401, 429, 503} & set(statuses.values()), statuses
    finally:
        over.set()
        for thread in floods:
            thread.join()


def test_spellings_of_one_token_are_one_caller(gateway: GatewayProcess) -> None:
    token = gateway.tokens["amal"]
    spellings = [f"Bearer{' ' * number}{token}" for number in range(1, 40)] + [f"bEaReR {token}"]
    with gateway.connect() as connection:
        for spelling in spellings:
            connection.sendall(gateway.head("", authorization=spelling, content_length="1") + b"\r\nx")
            assert read_status(connection) == 200


# ---- browsers


def test_a_rebound_host_name_is_refused(gateway: GatewayProcess) -> None:
    for host, status in (
        ("evil.example", 421), ("localhost.evil.example", 421), ("evil.example:8471", 421), ("localhost", 200),
        ("127.0.0.1", 200), ("[::1]:99", 200), (f"localhost:{gateway.http[1]}", 200), ("10.1.2.3", 200),
    ):  # fmt: skip
        assert call(gateway, host=host).status_code == status, host


def test_probes_are_answered_whatever_their_host(gateway: GatewayProcess) -> None:
    url = f"http://{gateway.http[0]}:{gateway.http[1]}/v2/health/live"
    assert httpx.get(url, headers={"host": "probe.internal"}, trust_env=False).status_code == 200


# ---- revocation


@pytest.mark.parametrize(
    ("order", "back"), [("suspend mona", "resume mona"), ("roles mona auditor", "roles mona ml-engineer")]
)
def test_a_stream_of_a_caller_who_may_no_longer_call_ends(gateway: GatewayProcess, order: str, back: str) -> None:
    request = pb.ModelInferRequest(model_name="fraud.score", id="hang").SerializeToString()
    with grpc_client(gateway) as client:
        token = bearer(gateway.tokens["mona"])
        gateway.order("reset hanging")
        stream = client.ask(None, "ModelStreamInfer", token, end=False)
        client.give(stream, message(request), end=False)
        gateway.order("await hanging")
        gateway.order(order)
        try:
            assert client.answer(stream).status in (7, 16)
            unary = client.ask(request, "ModelInfer", token)
            assert client.answer(unary).status in (7, 16)
        finally:
            gateway.order(back)
    until(lambda: call(gateway, gateway.tokens["mona"]).status_code == 200)


def test_a_keep_alive_connection_of_a_suspended_caller_is_refused(gateway: GatewayProcess) -> None:
    request = gateway.head("mona", content_length="1") + b"\r\nx"
    with gateway.connect() as connection:
        connection.sendall(request)
        assert read_status(connection) == 200
        gateway.order("suspend mona")

        def refused() -> bool:
            connection.sendall(request)
            return read_status(connection) == 401

        try:
            until(refused, 5.0)
        finally:
            gateway.order("resume mona")


def test_refused_requests_leave_nothing_behind(gateway: GatewayProcess) -> None:
    """A refusal that is remembered must not keep the requests that it was an answer to."""
    before = gateway.forget_peak()
    tokens = (UNKNOWN, gateway.tokens["omar"])  # of no account, and of a person who may not call
    url = f"http://{gateway.http[0]}:{gateway.http[1]}"
    for token in tokens:
        with httpx.Client(base_url=url, headers=dict([bearer(token)]), trust_env=False, timeout=30) as client:
            statuses = {client.post(INFER, content=bytes(200_000)).status_code for _ in range(600)}
        assert statuses <= {401, 403}
    assert gateway.peak() - before < LIMIT_BYTES
