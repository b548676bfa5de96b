"""Requests that one turn of the loop read and a door passes on as one: each client gets the answer that is its own."""

import asyncio
import gzip
from collections.abc import Callable, Sequence
from typing import Any

from falaj.oip.handler_calls import HttpCall, HttpReply
from falaj.oip.http1_parser import Http1Limits, RequestHead
from falaj.oip.http1_server import FULL_GROUP_SIZE, MIN_GROUP_SIZE, GatheredExchanges, Http1Server
from falaj.oip.http_responses import render_group
from falaj.oip.lot_frames import Told
from tests.infer.running import on_loop, until
from tests.infer.test_gathered import Wire

MANY = MIN_GROUP_SIZE + 4
LARGE = b"7" * 4000
PLAIN = b"POST /v2 HTTP/1.1\r\nhost: h\r\ncontent-length: 2\r\n\r\n"


class Passing:
    """A door that passes on, and gets what it wants for an answer."""

    def __init__(self) -> None:
        self.turns: list[tuple[GatheredExchanges, list[bytes]]] = []
        self.alone: list[bytes] = []
        self.ended: list[int] = []

    def joins(self, _: RequestHead) -> bool:
        return True

    def rest(self, call: HttpCall, send_reply: Callable[[HttpReply], Any]) -> None:
        self.alone.append(call.body)
        send_reply(HttpReply(200, (call.body,)))

    def pass_on(self, asked: Sequence[tuple[RequestHead, bytes]], _: float, turned: GatheredExchanges) -> list[int]:
        here = [number for number, (_, body) in enumerate(asked) if body != b"by"]
        turned.asked(here, self.ended.append)
        self.turns.append((turned, [body for _, body in asked]))
        return [number for number, (_, body) in enumerate(asked) if body == b"by"]

    def answer(self, turn: int, more: bytes = b"") -> list[int]:
        """Tell all of a turn what they said; gives those that were told by themselves."""
        turned, bodies = self.turns[turn]
        numbers = [number for number, body in enumerate(bodies) if body != b"by"]
        told = Told(200, 0, b"application/json", [bodies[number] + more for number in numbers])
        names = [b"n%d" % number for number in numbers]
        left = turned.tell_whole(numbers, told, render_group(told, b"name: ", names, b"\r\nbeside: 1\r\n"))
        for place in left:
            turned.tell(numbers[place], told.reply(place))
        return left


def wires_of(door: Passing, num: int) -> list[Wire]:
    server = Http1Server(door, Http1Limits())
    return [Wire(server) for _ in range(num)]


@on_loop
async def test_those_who_come_while_others_are_read_go_with_them() -> None:
    door = Passing()
    wires = wires_of(door, 3 * MANY)
    loop = asyncio.get_running_loop()

    def send(first: int) -> None:
        for number in range(first, first + MANY):
            wires[number].send(PLAIN + b"%02d" % number)

    send(0)
    loop.call_soon(send, MANY)
    await until(lambda: door.turns)
    assert [len(bodies) for _, bodies in door.turns] == [2 * MANY]
    send(2 * MANY)
    await until(lambda: len(door.turns) == 2)
    assert door.answer(0) == door.answer(1) == []
    assert [wire.answers() for wire in wires] == [
        [(200, wire.answers()[0][1], b"%02d" % number)] for number, wire in enumerate(wires)
    ]


@on_loop
async def test_nobody_waits_for_few_or_for_ever() -> None:
    door, loop = Passing(), asyncio.get_running_loop()
    wires = wires_of(door, 2 * FULL_GROUP_SIZE + MANY)
    left = list(wires)

    def send(num: int) -> None:
        """So many, and twice as many the next time."""
        for wire in left[:num]:
            wire.send(PLAIN + b"ab")
        del left[:num]
        if left:
            loop.call_soon(send, 2 * num)

    send(MIN_GROUP_SIZE - 1)
    await until(lambda: not left and sum(len(bodies) for _, bodies in door.turns) + len(door.alone) == len(wires))
    assert max(len(bodies) for _, bodies in door.turns) < 4 * FULL_GROUP_SIZE
    assert len(door.turns) > 1
    wires[0].said = b""
    wires[0].send(PLAIN + b"zz")
    assert not door.alone or door.alone[-1] != b"zz"
    await until(lambda: b"zz" in door.alone)


@on_loop
async def test_clients_who_want_more_than_an_answer_get_it() -> None:
    door = Passing()
    heads = [
        PLAIN, b"POST /v2 HTTP/1.1\r\nhost: h\r\nconnection: close\r\ncontent-length: 2\r\n\r\n",
        b"POST /v2 HTTP/1.0\r\nconnection: keep-alive\r\ncontent-length: 2\r\n\r\n",
        b"POST /v2 HTTP/1.1\r\nhost: h\r\naccept-encoding: gzip, br\r\ncontent-length: 2\r\n\r\n",
        b"POST /v2 HTTP/1.1\r\nhost: h\r\naccept-encoding: gzip\r\ncontent-length: 2\r\n\r\n",
        b"HEAD /v2 HTTP/1.1\r\nhost: h\r\ncontent-length: 2\r\n\r\n", *[PLAIN] * MIN_GROUP_SIZE,
    ]  # fmt: skip
    wires = wires_of(door, len(heads))
    for number, (wire, head) in enumerate(zip(wires, heads, strict=True)):
        wire.send(head + b"%02d" % number)
    wires[6].send(PLAIN + b"by")  # a second one before the first is answered
    await until(lambda: door.turns)
    left = door.answer(0)
    assert left == [1, 2, 4, 5, 6]
    assert wires[5].said.endswith(b"\r\n\r\n")
    (shut,), (old,), (small,), (packed,) = (wires[number].answers() for number in (1, 2, 3, 4))
    assert (shut[2], wires[1].closed, b"connection: close" in shut[1]) == (b"01", True, True)
    assert (old[2], b"connection: keep-alive" in old[1]) == (b"02", True)
    assert (small[2], b"content-encoding" in small[1]) == (b"03", False)
    assert gzip.decompress(packed[2]) == b"04"
    assert [one[2] for one in wires[6].answers()] == [b"06", b"by"]
    assert not any(wire.closed for number, wire in enumerate(wires) if number != 1)
    (last,) = wires[-1].answers()
    assert b"\r\nname: n%d\r\nbeside: 1" % (len(heads) - 1) in last[1]


@on_loop
async def test_large_answers_are_packed_for_those_who_take_them_so() -> None:
    door = Passing()
    wires = wires_of(door, MANY)
    for wire in wires:
        wire.send(b"POST /v2 HTTP/1.1\r\nhost: h\r\naccept-encoding: gzip, br\r\ncontent-length: 2\r\n\r\nab")
    await until(lambda: door.turns)
    assert door.answer(0, LARGE) == list(range(MANY))
    assert {gzip.decompress(wire.answers()[0][2]) for wire in wires} == {b"ab" + LARGE}


@on_loop
async def test_who_goes_away_ends_theirs_once_and_who_goes_alone_is_no_part() -> None:
    door = Passing()
    wires = wires_of(door, MANY)
    for number, wire in enumerate(wires):
        wire.send(PLAIN + (b"by" if number == 0 else b"%02d" % number))
    await until(lambda: door.turns)
    assert door.alone == [b"by"]
    wires[3].lose()
    assert door.ended == [2]  # the third of those that went as one
    assert door.answer(0) == []
    wires[4].lose()
    door.turns[0][0].tell(5, HttpReply(500))  # a second answer is dropped
    assert door.ended == [2]
    assert not wires[3].said
    assert [len(wire.answers()) for number, wire in enumerate(wires) if number != 3] == [1] * (MANY - 1)
