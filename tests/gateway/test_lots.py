"""Requests that one turn of the loop read, handed on as one: each is still its own."""

import json
import socket
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from typing import Any

import pytest

from falaj.gateway import callers
from falaj.gateway.lots import Lot
from tests.gateway.stand_in import REF, Ground, Replica
from tests.gateway.test_doors import INFER, until

Make = Callable[..., Ground]
NUM = 24


@pytest.fixture
def lots(monkeypatch: Any) -> list[Sequence[bytes]]:
    """The bodies of requests that went as one."""
    seen: list[Sequence[bytes]] = []
    start = Lot.start

    def noted(self: Lot, numbers: Any, names: Any, bodies: Any) -> Any:
        began = start(self, numbers, names, bodies)
        if began is not None:
            seen.append(bodies)
        return began

    monkeypatch.setattr(Lot, "start", noted)
    for name in ("CALLER_LIFETIME_S", "EARLY_RENEWAL_S"):  # those whose caller is looked up again go one by one
        monkeypatch.setattr(callers, name, 60.0)
    return seen


class Crowd:
    """Connections whose requests the gateway finds all at once."""

    def __init__(self, one: Ground, stack: ExitStack, lots: list[Sequence[bytes]]) -> None:
        self._one, self._lots = one, lots
        host, port = one.doors.http.removeprefix("http://").split(":")
        self._head = f"POST {INFER} HTTP/1.1\r\nHost: {host}\r\nAuthorization: {one.headers()['authorization']}\r\n"
        self.sockets = [
            stack.enter_context(socket.create_connection((host, int(port)), timeout=20)) for _ in range(NUM)
        ]

    def send(self, bodies: Sequence[str]) -> None:
        """Ask these, a connection each, while the gateway looks elsewhere."""
        self._one.loop.loop.call_soon_threadsafe(time.sleep, 0.1)
        for at, body in zip(self.sockets, bodies, strict=True):
            at.sendall(f"{self._head}Content-Length: {len(body)}\r\n\r\n{body}".encode())

    def answer(self, number: int) -> tuple[int, dict[str, str], dict[str, Any]]:
        """What one is told."""
        told = b""
        while b"\r\n\r\n" not in told:
            told += self.sockets[number].recv(65536)
        head, _, body = told.partition(b"\r\n\r\n")
        first, *lines = head.decode().split("\r\n")
        headers = dict(line.lower().split(": ", 1) for line in lines)
        while len(body) < int(headers["content-length"]):
            body += self.sockets[number].recv(65536)
        return int(first.split()[1]), headers, json.loads(body)

    def together(self, bodies: Sequence[str]) -> None:
        """Ask these so that most go as one: the first with a head does not."""
        plain = [f"a{number:02}" for number in range(NUM)]

        def went() -> bool:
            self.send(plain)
            assert [self.answer(number)[2]["echo"] for number in range(NUM)] == plain
            return bool(self._lots)

        until(went)
        self._lots.clear()
        self.send(bodies)


@pytest.fixture
def crowd(lots: list[Sequence[bytes]]) -> Iterator[Callable[[Ground], Crowd]]:
    with ExitStack() as stack:
        yield lambda one: Crowd(one, stack, lots)


def idle(one: Ground) -> bool:
    (_, tally), *_ = one.gateway.tallies.busiest(1)
    return tally.inflight == 0


def test_each_gets_its_own_answer_and_name_and_is_counted(
    ground: Make, crowd: Callable[[Ground], Crowd], lots: list[Sequence[bytes]]
) -> None:
    one = ground()
    all_ = crowd(one)
    for turn in range(30):
        bodies = [f"{turn}" * (1 + number % 3) + f"-{number}" for number in range(NUM)]  # of several lengths
        all_.send(bodies)
        answers = [all_.answer(number) for number in range(NUM)]
        assert [said["echo"] for _, _, said in answers] == bodies
        assert {said["path"] for _, _, said in answers} == {"/v2/models/fraud.score/infer"}
        assert {headers["falaj-revision"] for _, headers, _ in answers} == {"1"}
        names = {headers["falaj-request"] for _, headers, _ in answers}
        assert (len(names), {len(name) for name in names}) == (NUM, {32})
        if sum(map(len, lots)) > 3 * NUM:
            break
    assert sum(map(len, lots)) > 3 * NUM
    assert any(len({len(body) for body in bodies}) > 1 for bodies in lots)
    (_, tally), *_ = one.gateway.tallies.busiest(1)
    assert (tally.inflight, tally.classes[2]) == (0, NUM * (turn + 1))


def test_bad_ones_and_sequences_do_not_touch_their_neighbours(
    ground: Make, crowd: Callable[[Ground], Crowd], lots: list[Sequence[bytes]]
) -> None:
    one = ground()
    all_ = crowd(one)
    bodies = [f"b{number:02}" for number in range(NUM)]
    bodies[5], bodies[9] = "status 400", '{"parameters": {"sequence_id": 7}}'
    bodies[13] = "status 503"
    all_.together(bodies)
    answers = [all_.answer(number) for number in range(NUM)]
    assert [answers[at][0] for at in (5, 9, 13)] == [400, 200, 503]
    assert all(said["echo"] == body for body, (status, _, said) in zip(bodies, answers, strict=True) if status == 200)
    assert bodies[9].encode() not in [body for lot in lots for body in lot]
    assert sum(map(len, lots)) > NUM // 2
    until(lambda: idle(one))


def test_callers_who_go_away_end_theirs_and_no_other(
    ground: Make, crowd: Callable[[Ground], Crowd], lots: list[Sequence[bytes]]
) -> None:
    one = ground()
    all_ = crowd(one)
    all_.together(["hang"] * (NUM // 2) + ["bide"] * (NUM // 2))
    assert [all_.answer(number)[2]["echo"] for number in range(NUM // 2, NUM)] == ["bide"] * (NUM // 2)
    for at in all_.sockets[: NUM // 2]:
        at.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        at.close()
    until(lambda: one.replicas[0].echo.cancelled == NUM // 2 and idle(one))
    assert sum(map(len, lots)) > NUM // 2


def test_those_that_take_too_long_are_told_so(
    ground: Make, crowd: Callable[[Ground], Crowd], lots: list[Sequence[bytes]]
) -> None:
    one = ground(timeout_s=0.5)
    all_ = crowd(one)
    all_.together(["hang"] * NUM)
    assert {all_.answer(number)[0] for number in range(NUM)} == {504}
    until(lambda: idle(one))
    assert sum(map(len, lots)) > NUM // 2


def test_those_whose_replica_goes_away_are_asked_elsewhere(
    ground: Make, crowd: Callable[[Ground], Crowd], lots: list[Sequence[bytes]]
) -> None:
    one = ground(retries=1.0)
    all_ = crowd(one)
    first = one.replicas[0]
    all_.together(["hang on replica-0"] * 4 + ["at home"] * (NUM - 4))
    assert [all_.answer(number)[2]["echo"] for number in range(4, NUM)] == ["at home"] * (NUM - 4)
    one.add(Replica(one.loop, 1, "replica-1"))
    (routed,) = one.gateway.table.routes.values()
    until(lambda: len(one.gateway.table.routes[routed.name].pools[1]) == 2)
    first.cut()
    assert {all_.answer(number)[2]["replica"] for number in range(4)} == {"replica-1"}
    assert sum(map(len, lots)) > NUM // 2
    until(lambda: idle(one))


def test_a_sample_of_them_is_kept(ground: Make, crowd: Callable[[Ground], Crowd], lots: list[Sequence[bytes]]) -> None:
    one = ground(sample=1.0)
    all_ = crowd(one)
    bodies = [f"keep {number:02}" for number in range(NUM)]
    all_.together(bodies)
    names = [all_.answer(number)[1]["falaj-request"] for number in range(NUM)]
    assert sum(map(len, lots)) > NUM // 2
    journal = one.town.house.desks["serve"].journal

    def kept() -> dict[str, bytes]:
        found = {row.id: row.request for row in journal.read("bank", REF)}
        return found if set(names) <= set(found) else {}

    found = until(kept)
    assert [found[name].decode() for name in names] == bodies
