"""Requests that one turn of the loop reads from many connections: each has the answer that it would have alone."""

import asyncio
import hashlib
import json
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from falaj.infer.engine import InferenceEngine
from falaj.infer.rest_handler import RestInferHandler
from falaj.infer.token_keys import TokenKeys
from falaj.oip import http1_server
from falaj.oip.handler_calls import HttpCall, HttpReply
from falaj.oip.http1_parser import Http1Limits
from falaj.oip.http1_server import MAX_GATHERED_BYTES, MIN_GROUP_SIZE, Http1Connection, Http1Server
from tests.infer.running import POISON, Doubler, engine_of, on_loop, until
from tests.infer.test_together import REQUEST, call_of, plain

TOKEN = "a-token"
GOOD = b"authorization: Bearer a-token\r\n"


class Wire(asyncio.Transport):
    """A connection without a socket: what is written on it, and whether it was closed."""

    def __init__(self, server: Http1Server) -> None:
        super().__init__()
        self.said, self.closed = b"", False
        self.protocol = Http1Connection(server)
        self.protocol.connection_made(self)

    def send(self, *requests: bytes) -> None:
        self.protocol.data_received(b"".join(requests))

    def lose(self) -> None:
        self.protocol.connection_lost(None)

    def write(self, data: Any) -> None:
        assert not self.closed
        self.said += data

    def close(self) -> None:
        self.closed = True

    def is_closing(self) -> bool:
        return self.closed

    def can_write_eof(self) -> bool:
        return False

    def abort(self) -> None:
        self.closed = True

    def answers(self) -> list[tuple[int, bytes, bytes]]:
        """Status, head and body of each."""
        found, left = [], self.said
        while left:
            head, _, left = left.partition(b"\r\n\r\n")
            size = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
            found.append((int(head.split(b" ")[1]), head, left[:size]))
            left = left[size:]
        return found


class House:
    """A server with a model, and connections to it."""

    def __init__(self, engine: InferenceEngine) -> None:
        self.engine = engine
        self.door = RestInferHandler(engine, TokenKeys([hashlib.sha256(TOKEN.encode()).hexdigest()]))
        self.server = Http1Server(self.door, Http1Limits())

    def wires(self, num: int) -> list[Wire]:
        return [Wire(self.server) for _ in range(num)]

    async def turn(self, requests: Sequence[bytes]) -> list[tuple[int, bytes, bytes]]:
        """The answers to requests that are read in one turn, each from a connection of its own."""
        wires = self.wires(len(requests))
        for wire, one in zip(wires, requests, strict=True):
            wire.send(one)
        await until(lambda: all(wire.said for wire in wires))
        return [wire.answers()[0] for wire in wires]

    async def alone(self, requests: Sequence[bytes]) -> list[tuple[int, bytes, bytes]]:
        """The same, each read in a turn of its own and asked by itself."""
        gathers, self.server.gathers = self.server.gathers, False
        found = [(await self.turn([one]))[0] for one in requests]
        self.server.gathers = gathers
        return found

    async def close(self) -> None:
        await self.server.drain(0.0)
        await self.engine.close()


MANY = MIN_GROUP_SIZE + 4


async def house_of(runtime: Any, **options: Any) -> House:
    house = House(await engine_of(runtime, **options))
    house.engine.sessions()[0].curve.cap = 64
    await house.turn([of(1.0)])  # the first of all goes by itself
    return house


def http(call: HttpCall, *lines: bytes, token: bytes = GOOD) -> bytes:
    """A request as it is sent."""
    headers = b"".join(b"%b: %b\r\n" % pair for pair in call.headers.items()) + b"".join(lines) + token
    begin = b"POST %b HTTP/1.1\r\nhost: h\r\ncontent-length: %d\r\n" % (call.path, len(call.body))
    return begin + headers + b"\r\n" + call.body


def of(value: float, how: str = "json", **more: Any) -> bytes:
    return http(call_of(plain(value, how, **more)))


def values(answer: tuple[int, bytes, bytes]) -> list[float]:
    found: list[float] = json.loads(answer[2])["outputs"][0]["data"]
    return found


def fails(house: House) -> int:
    count: int = house.engine.statistics("m")["model_stats"][0]["inference_stats"]["fail"]["count"]
    return count


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    requests=st.lists(st.tuples(REQUEST, st.sampled_from([GOOD] * 5 + [b""])), max_size=12), twice=st.booleans(),
    few=st.sampled_from([1, MIN_GROUP_SIZE]),
)  # fmt: skip
def test_each_is_answered_as_if_it_were_alone(
    requests: list[tuple[dict[str, Any], bytes]], twice: bool, few: int
) -> None:
    async def main() -> None:
        house = await house_of(Doubler())
        sent = [http(call_of(one), token=token) for one, token in requests]
        if twice:  # then their heads and routes are known
            await house.turn(sent)
        together = await house.turn(sent)
        assert together == await house.alone(sent)
        await house.close()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(http1_server, "MIN_GROUP_SIZE", few)
        asyncio.run(main())


@pytest.mark.parametrize("how", ["json", "binary"])
def test_those_of_a_turn_are_one_run_and_counted_each(how: str) -> None:
    async def main() -> None:
        runtime = Doubler()
        house = await house_of(runtime)
        sent = [of(10.0**-at, how) for at in range(20)]  # in JSON of many lengths, so with many heads
        await house.turn(sent)
        before = house.engine.statistics("m")["model_stats"][0]["inference_stats"]
        del runtime.ran[:]
        await house.turn(sent)
        after = house.engine.statistics("m")["model_stats"][0]["inference_stats"]
        assert runtime.ran == [20]
        assert [after[name]["count"] - before[name]["count"] for name in ("success", "queue")] == [20, 20]
        await house.close()

    asyncio.run(main())


BAD: dict[str, tuple[bytes, int]] = {
    "no number": (of(1.0).replace(b"1.0, 1.0", b"1.0, tru"), 400),
    "a text": (of(1.0).replace(b"1.0, 1.0", b'1.0,  ""'), 400),
    "nothing": (of(1.0).replace(b"1.0, 1.0", b"1.0,    "), 400),
    "one too few": (of(1.0).replace(b"1.0, 1.0", b"1.000000"), 400),
    "one too many": (of(1.0).replace(b"1.0, 1.0", b"1, 1,  1"), 400),
    "another list": (of(1.0).replace(b"1.0, 1.0", b"1], [  1"), 400),
    "out of range": (of(1.0).replace(b"1.0, 1.0", b"1.0,1e39"), 400),
    "no JSON": (of(1.0).replace(b'"inputs"', b'"inputs '), 400),
    "what the model breaks on": (of(POISON), 422),
    "another's token": (of(1.0).replace(b"a-token", b"b-token"), 401),
    "no token": (of(1.0).replace(GOOD, b""), 401),
}


@pytest.mark.parametrize("name", BAD)
def test_one_bad_among_many_is_told_so_and_the_others_are_answered(name: str) -> None:
    async def main() -> None:
        house = await house_of(Doubler())
        bad, status = BAD[name]
        sent = [of(float(at)) for at in range(64)]
        sent[7] = bad
        await house.turn(sent)
        before = fails(house)
        found = await house.turn(sent)
        assert [one[0] for one in found] == [200] * 7 + [status] + [200] * 56
        assert found[7] == (await house.alone([bad]))[0]
        assert list(json.loads(found[7][2])) == ["error"]
        for at, one in enumerate(found):
            assert at == 7 or values(one) == [2 * at + 1] * 2
        assert fails(house) - before == (2 if status == 422 else 0)  # once here, once alone
        await house.close()

    asyncio.run(main())


@on_loop
async def test_each_has_its_own_id() -> None:
    runtime = Doubler()
    house = await house_of(runtime)
    sent = [of(float(at), id=f"id {at}") for at in range(MANY)]
    await house.turn(sent)
    del runtime.ran[:]
    found = [json.loads(one[2]) for one in await house.turn(sent)]
    told = [(one["id"], one["outputs"][0]["data"][0]) for one in found]
    assert told == [(f"id {at}", 2 * at + 1) for at in range(MANY)]
    assert runtime.ran == [MANY]
    await house.close()


@on_loop
async def test_answers_keep_the_order_of_a_connection_and_close_ends_it() -> None:
    house = await house_of(Doubler())
    about = b"GET /v2/models/m/ready HTTP/1.1\r\nhost: h\r\n" + GOOD + b"\r\n"
    head = about.replace(b"GET", b"HEAD")
    last = http(call_of(plain(4.0, "json")), b"connection: close\r\n")
    one, other, *others = house.wires(MANY)
    one.send(of(1.0), about, of(2.0, "binary"), of(3.0), last, of(5.0))
    other.send(of(6.0), head)
    for wire in others:
        wire.send(of(7.0))
    await until(lambda: one.closed and b"HTTP" in other.said[4:])
    answers = one.answers()
    assert [answer[0] for answer in answers] == [200] * 5
    assert [values(answers[at]) for at in (0, 3, 4)] == [[3.0, 3.0], [7.0, 7.0], [9.0, 9.0]]
    assert json.loads(answers[1][2]) == {"name": "m", "ready": True}
    assert np.frombuffer(answers[2][2][-8:], np.float32).tolist() == [5.0, 5.0]
    assert [b"connection: close" in answer[1] for answer in answers] == [False] * 4 + [True]
    first, rest = other.said.split(b"HTTP/1.1 200 OK", 2)[1:]
    assert json.loads(first.partition(b"\r\n\r\n")[2])["outputs"][0]["data"] == [13.0, 13.0]
    assert rest.endswith(b"\r\n\r\n")
    assert not other.closed
    assert [values(wire.answers()[0]) for wire in others] == [[15.0, 15.0]] * len(others)
    await house.close()


@pytest.mark.parametrize("num", [4, MANY])
def test_who_went_away_in_the_same_turn_is_not_worked_for(num: int) -> None:
    async def main() -> None:
        runtime = Doubler()
        house = await house_of(runtime)
        del runtime.ran[:]
        wires = house.wires(num)
        for wire in wires:
            wire.send(of(2.0))
        wires[1].lose()
        assert wires[2].protocol.eof_received()  # sends no more, and still reads
        await until(lambda: all(wire.said for at, wire in enumerate(wires) if at != 1))
        assert runtime.ran == [num - 1]
        assert not wires[1].said
        assert [at for at, wire in enumerate(wires) if wire.closed] == [2]
        await house.close()

    asyncio.run(main())


@pytest.mark.parametrize("num", [1, 3, MANY])
def test_all_are_answered_at_the_end_of_their_turn(num: int) -> None:
    async def main() -> None:
        house = await house_of(Doubler())
        wires, seen = house.wires(num), list[bytes]()
        for wire in wires:
            wire.send(of(2.0))
        asyncio.get_running_loop().call_soon(lambda: seen.extend(wire.said for wire in wires))
        await until(lambda: seen)
        assert all(b"[5.0,5.0]" in one for one in seen)
        await house.close()

    asyncio.run(main())


@on_loop
async def test_a_drain_answers_what_was_gathered() -> None:
    house = await house_of(Doubler())
    wires = house.wires(MANY)
    draining = asyncio.ensure_future(house.server.drain(5.0))
    for wire in wires:
        wire.send(of(2.0))
    await until(lambda: all(wire.closed for wire in wires))
    assert all(b"connection: close" in wire.answers()[0][1] for wire in wires)
    for connection in list(house.server.connections):
        connection.connection_lost(None)
    await draining
    await house.engine.close()


async def _unjoined(prepare: Callable[[House], Any], sent: bytes, **options: Any) -> int:
    """How many of the requests of a turn are asked one by one, with what is prepared."""
    house, alone = await house_of(Doubler(), **options), list[HttpCall]()
    prepare(house)
    asked = house.door.rest

    def rest(call: HttpCall, reply: Callable[[HttpReply], Any]) -> Any:
        alone.append(call)
        return asked(call, reply)

    house.door.rest = rest  # type: ignore[method-assign]
    assert {one[0] for one in await house.turn([sent] * MANY)} == {200}
    await house.close()
    return len(alone)


def _in_a_thread(house: House) -> None:
    house.engine.sessions()[0].batcher.inline = False


@on_loop
async def test_what_is_run_in_a_thread_or_is_large_or_cached_is_asked_as_it_comes() -> None:
    assert await _unjoined(lambda _: None, of(1.0)) == 1  # whoever comes first does not wait for others
    assert await _unjoined(_in_a_thread, of(1.0)) == MANY
    assert await _unjoined(lambda _: None, of(1.0, width=MAX_GATHERED_BYTES)) == MANY
    assert await _unjoined(lambda _: None, of(1.0), cache=8) == MANY


@on_loop
async def test_a_full_line_takes_as_many_as_there_is_room_for() -> None:
    house = await house_of(Doubler(), queue=4)
    found = await house.turn([of(1.0)] * MANY)
    assert sorted(one[0] for one in found) == [200] * 4 + [429] * (MANY - 4)
    assert house.engine.sessions()[0].statistics.refused == MANY - 4
    await house.close()


@on_loop
async def test_an_answer_that_cannot_be_written_is_one_connections_trouble(caplog: pytest.LogCaptureFixture) -> None:
    house = await house_of(Doubler())
    wires = house.wires(MANY)
    for wire in wires:
        wire.send(of(2.0))
    wires[3].closed = True  # what is written now is an error
    await until(lambda: all(wire.said for at, wire in enumerate(wires) if at != 3))
    assert not wires[3].said
    assert [one.message for one in caplog.records] == ["an answer could not be handed on"]
    await house.close()


@on_loop
async def test_a_door_that_breaks_leaves_nobody_waiting() -> None:
    house = await house_of(Doubler())
    heard: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: heard.append(context["exception"]))
    house.server._handle_similar = lambda *_: 1 // 0  # type: ignore[assignment]
    wires = house.wires(MANY)
    for wire in wires:
        wire.send(of(1.0))
    await until(lambda: all(wire.closed for wire in wires[1:]))
    assert [type(one) for one in heard] == [ZeroDivisionError]
    assert wires[0].said
    assert not wires[0].closed
    await house.close()
