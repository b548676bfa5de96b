"""Requests with one way to go: which those are, and that the others are none."""

import socket
import struct
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import httpx
import pytest

from falaj.gateway.straight import Straight
from tests.gateway.stand_in import REF, Ground, Replica
from tests.gateway.test_doors import INFER, until

Make = Callable[..., Ground]
Asking = Callable[..., httpx.Client]


@pytest.fixture
def gone(monkeypatch: Any) -> list[bytes]:
    """The bodies of requests that went straight."""
    seen: list[bytes] = []
    start = Straight.start

    def noted(self: Straight) -> Any:
        seen.append(self.call.body)
        return start(self)

    monkeypatch.setattr(Straight, "start", noted)
    return seen


def test_the_next_ones_with_a_head_go_straight_and_are_answered_named_and_counted(
    ground: Make, asking: Asking, gone: list[bytes]
) -> None:
    one = ground()
    client = asking(one)
    bodies = [str(number) for number in range(40)]
    answers = [client.post(INFER, content=body) for body in bodies]
    assert [got.json()["echo"] for got in answers] == bodies
    assert {got.headers["falaj-revision"] for got in answers} == {"1"}
    assert {got.json()["path"] for got in answers} == {"/v2/models/fraud.score/infer"}
    names = [got.headers["falaj-request"] for got in answers]
    assert len(set(names)) == 40
    assert {len(name) for name in names} == {32}
    assert names == sorted(names)
    assert len(gone) > 20  # callers are looked up again, and tables change, but not each time
    (_, tally), *_ = one.gateway.tallies.busiest(1)
    assert tally.inflight == 0
    assert tally.classes[2] == 40


@pytest.mark.parametrize(
    ("rules", "headers", "body", "path"),
    [
        ({}, {}, '{"parameters": {"sequence_id": 7}}', INFER),
        ({}, {"falaj-sequence": "7"}, "1", INFER),
        ({}, {"falaj-key": "amal"}, "1", INFER),
        ({"per_s": 1000.0}, {}, "1", INFER),
        ({}, {}, "1", INFER.replace("/infer", "/versions/1/infer")),
    ],
)
def test_what_must_be_looked_at_does_not_go_straight(
    ground: Make, asking: Asking, gone: list[bytes], rules: Any, headers: Any, body: str, path: str
) -> None:
    client = asking(ground(**rules))
    for _ in range(20):
        assert client.post(path, content=body, headers=headers).json()["echo"] == body
    assert gone == []


def test_with_a_second_replica_there_is_a_choice_again(ground: Make, asking: Asking, gone: list[bytes]) -> None:
    client = asking(ground(replicas=2))
    assert {client.post(INFER, content="1").json()["replica"] for _ in range(20)} == {"replica-0", "replica-1"}
    assert gone == []


def test_a_replica_that_cannot_is_seen_as_before(ground: Make, asking: Asking, gone: list[bytes]) -> None:
    client = asking(ground(retries=0.0))
    until(lambda: client.post(INFER, content="1").status_code == 200 and gone)
    assert client.post(INFER, content="status 503").status_code == 503
    before = len(gone)
    assert client.post(INFER, content="2").json()["echo"] == "2"  # its last answer was none: it is looked at
    assert len(gone) == before


def test_what_is_too_long_for_the_hop_is_told_so(
    ground: Make, asking: Asking, gone: list[bytes], monkeypatch: Any
) -> None:
    one = ground()
    client = asking(one)
    until(lambda: client.post(INFER, content="1").status_code == 200 and gone)
    (routed,) = one.gateway.table.routes.values()
    monkeypatch.setattr(routed.pools[1][0].client, "most_bytes", 1000)
    got = client.post(INFER, content="x" * 2000)
    assert got.status_code == 400
    assert "too long" in got.json()["error"]
    (_, tally), *_ = one.gateway.tallies.busiest(1)
    assert tally.inflight == 0
    assert client.post(INFER, content="2").json()["echo"] == "2"


def went(client: httpx.Client, gone: list[bytes], body: str) -> list[httpx.Response]:
    """Ask until one went straight: the first with a head does not, nor do those whose caller is looked up again."""
    answers: list[httpx.Response] = []
    until(lambda: client.post(INFER, content="x" * len(body)).status_code == 200 and gone)

    def asked() -> bool:
        with suppress(httpx.ReadTimeout):
            answers.append(client.post(INFER, content=body, timeout=0.5))
        return gone[-1] == body.encode()

    until(asked)
    return answers


def test_a_caller_who_goes_away_ends_it(ground: Make, asking: Asking, gone: list[bytes]) -> None:
    one = ground()
    host, port = one.doors.http.removeprefix("http://").split(":")
    head = f"POST {INFER} HTTP/1.1\r\nHost: {host}\r\nAuthorization: {one.headers()['authorization']}\r\n"
    sent = 0
    while b"hang" not in gone:
        with socket.create_connection((host, int(port)), timeout=20) as caller:
            caller.sendall(f"{head}Content-Length: 4\r\n\r\n1234".encode())
            assert caller.recv(4096).startswith(b"HTTP/1.1 200")
            caller.sendall(f"{head}Content-Length: 4\r\n\r\nhang".encode())
            sent += 1
            until(lambda sent=sent: one.replicas[0].echo.asked == 2 * sent)
            caller.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        until(lambda sent=sent: one.replicas[0].echo.cancelled == sent)
        assert sent < 20
    (_, tally), *_ = one.gateway.tallies.busiest(1)
    assert tally.inflight == 0


def test_one_that_takes_too_long_is_told_so_and_counted(ground: Make, asking: Asking, gone: list[bytes]) -> None:
    one = ground(timeout_s=0.1)
    answers = went(asking(one), gone, "hang")
    assert answers[-1].status_code == 504
    (_, tally), *_ = one.gateway.tallies.busiest(1)
    assert tally.inflight == 0
    assert tally.classes[5] >= len(answers)


def test_a_replica_that_goes_away_is_asked_elsewhere(ground: Make, asking: Asking, gone: list[bytes]) -> None:
    one = ground()
    client = asking(one)
    went(client, gone, "anybody at home 1")
    first = one.replicas[0]
    before = first.echo.asked
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(client.post, INFER, content="hang on replica-0")
        until(lambda: first.echo.asked > before)
        one.add(Replica(one.loop, 1, "replica-1"))
        (routed,) = one.gateway.table.routes.values()
        until(lambda: len(one.gateway.table.routes[routed.name].pools[1]) == 2)
        first.cut()
        assert asked.result(30).json()["replica"] == "replica-1"
    (_, tally), *_ = one.gateway.tallies.busiest(1)
    assert tally.inflight == 0


def test_a_sample_of_them_is_kept(ground: Make, asking: Asking, gone: list[bytes]) -> None:
    one = ground(sample=1.0)
    name = went(asking(one), gone, "keep me")[-1].headers["falaj-request"]
    desk = one.town.house.desks["serve"]
    (row,) = until(lambda: [row for row in desk.journal.read("bank", REF) if row.id == name])
    assert (row.request, row.status, row.revision, row.caller) == (b"keep me", 200, 1, "amal")
