"""The hop: frames however they are cut, liars and strangers, and many requests on one connection."""

import asyncio
import json
import ssl
import time
import tracemalloc
from collections.abc import Callable
from contextlib import suppress
from struct import pack, unpack
from typing import Any

import pytest
import uvloop
from hypothesis import given, settings
from hypothesis import strategies as st

from falaj.core.errors import CorruptData, Invalid, Unavailable
from falaj.oip import lot_frames as lots
from falaj.oip import upstream_frames as f
from falaj.oip.handler_calls import GrpcCall, GrpcReply, HttpCall, HttpReply
from falaj.oip.upstream_server import REPLY_LATE, REPLY_LOST, GatewayConnection, UpstreamClient, UpstreamServer
from tests.infer.running import until

KEY = "a key by chance, long enough"
NAMES = st.binary(min_size=1, max_size=12).filter(lambda one: b"\0" not in one)
HEADERS = st.dictionaries(NAMES, NAMES, max_size=3)


class Wire(asyncio.Transport):
    """Keeps what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.sent, self.aborted = b"", False

    def write(self, data: Any) -> None:
        self.sent += data

    def abort(self) -> None:
        self.aborted = True


class Kept(f.FrameProtocol):
    """Keeps the frames that come."""

    def __init__(self) -> None:
        super().__init__(1 << 20)
        self.got: list[tuple[int, int, bytes]] = []

    def frame(self, kind: int, stream: int, data: bytes) -> None:
        self.got.append((kind, stream, data))


def whole(parts: Any) -> bytes:
    """A frame's payload."""
    return b"".join(parts)[9:]


@given(
    st.lists(st.tuples(st.integers(1, 255), st.integers(0, 2**32 - 1), st.binary(max_size=300)), max_size=8), st.data()
)
@settings(max_examples=60, deadline=None)
def test_frames_cut_anywhere_are_the_same_frames(sent: list[tuple[int, int, bytes]], data: st.DataObject) -> None:
    stream = b"".join(pack("<IBI", len(one[2]), *one[:2]) + one[2] for one in sent)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=12)))
    kept = Kept()

    async def feed() -> None:
        kept.connection_made(Wire())
        for begin, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
            kept.data_received(stream[begin:end])

    asyncio.run(feed())
    assert kept.got == sent


@given(st.sampled_from([b"GET", b"POST"]), st.binary(max_size=50), HEADERS, st.binary(max_size=200))
@settings(max_examples=60, deadline=None)
def test_requests_and_answers_come_out_as_they_went_in(
    method: bytes, path: bytes, headers: dict[bytes, bytes], body: bytes
) -> None:
    for name in (b"", b"018f"):
        sent_call = HttpCall(method, path, headers, body)
        sent_call.name = name
        call = f.decode_http_request(whole(f.encode_http_request(sent_call, 7)))
        assert (call.method, call.path, call.headers, call.body, call.trusted) == (method, path, headers, body, True)
        asked = GrpcCall("ModelInfer", body, headers)
        asked.name = name
        asked = f.decode_grpc_request(whole(f.encode_grpc_request(asked, 7)))
        assert (call.name, asked.name, asked.metadata) == (name, name, headers)
    pairs = tuple(headers.items())
    reply = f.decode_http_reply(
        whole(f.encode_http_reply(HttpReply(429, (body, b"x"), json_bytes=3, headers=pairs), 7))
    )
    assert (reply.status, b"".join(reply.parts), reply.json_bytes, tuple(reply.headers)) == (429, body + b"x", 3, pairs)
    deadline = time.monotonic() + 5
    asked = f.decode_grpc_request(whole(f.encode_grpc_request(GrpcCall("ModelInfer", body, headers, deadline), 7)))
    assert (asked.method, asked.message, asked.metadata, asked.trusted) == ("ModelInfer", body, headers, True)
    assert abs(asked.deadline - deadline) < 1
    sent = GrpcReply(body, code=5, text="no", last=False, metadata=pairs)
    told = f.decode_grpc_reply(whole(f.encode_grpc_reply(sent, 7)))
    assert (told.message, told.code, told.text, told.last, tuple(told.metadata)) == (body, 5, "no", False, pairs)


@pytest.mark.parametrize("name", [b"", b"018f"])
def test_headers_that_are_packed_already_are_said_as_others_are(name: bytes) -> None:
    for headers in ({}, {b"inference-header-content-length": b"93"}, {b"a": b"1", b"b": b""}):
        said = f.encode_http_request(HttpCall(b"POST", b"/v2", headers, b"body", name=name), 7)
        assert b"".join(
            f.encode_http_request(HttpCall(b"POST", b"/v2", f.PackedHeaders(headers), b"body", name=name), 7)
        ) == b"".join(said)
        call = f.decode_http_request(whole(said))
        assert (call.name, call.headers, call.body) == (name, headers, b"body")


def test_a_head_that_is_packed_once_says_what_others_say() -> None:
    for headers in ({}, {b"inference-header-content-length": b"93"}, {b"a": b"1", b"b": b""}):
        stub = f.RequestTemplate(b"POST", b"/v2/models/m/infer", headers, 4)
        for body in (b"", b"body"):
            said = b"".join(
                f.encode_http_request(HttpCall(b"POST", b"/v2/models/m/infer", headers, body, name=b"018f"), 7)
            )
            head = f.pack_frame_head(stub.size + len(body), f.HTTP_REQUEST, 7)
            assert b"".join((head, stub.begin, b"018f", stub.end, body)) == said
    with pytest.raises(Invalid):
        f.RequestTemplate(b"POST", b"/" * 70_000, {}, 4)


@given(st.binary(max_size=60))
@settings(max_examples=150, deadline=None)
def test_any_bytes_are_a_frame_or_corrupt(data: bytes) -> None:
    readers: tuple[Callable[[bytes], Any], ...] = (
        f.decode_http_request,
        f.decode_http_reply,
        f.decode_grpc_request,
        f.decode_grpc_reply,
        f.decode_json_object,
        lots.read_ask_lot,
        lots.read_reply_lot,
    )
    for read in readers:
        with suppress(CorruptData):
            read(data)


BODIES = st.lists(st.binary(max_size=40), min_size=1, max_size=3 * lots.FEW)


def num_of(count: int) -> int:
    """How many frames so many are that take turns with others."""
    return sum(1 if num >= lots.FEW else num for num in (count - count // 2, count // 2))


def frames_of(parts: Any) -> list[tuple[int, int, bytes]]:
    """What somebody would read of it."""
    kept = Kept()

    async def feed() -> None:
        kept.connection_made(Wire())
        kept.data_received(b"".join(parts))

    asyncio.run(feed())
    return kept.got


@given(bodies=BODIES, headers=HEADERS, name=st.sampled_from([0, 4]))
@settings(max_examples=60, deadline=None)
def test_several_requests_with_one_head_are_one_frame(bodies: list[bytes], headers: Any, name: int) -> None:
    stubs = [f.RequestTemplate(b"POST", path, headers, name) for path in (b"/a", b"/b")]
    sent = [(stubs[at % 2], 7 + at, b"%04d" % at if name else b"", body) for at, body in enumerate(bodies)]
    got: list[tuple[int, HttpCall]] = []
    found = frames_of(lots.ask_lots(sent))
    for kind, stream, data in found:
        got += (
            lots.read_ask_lot(data).calls() if kind == f.HTTP_REQUEST_GROUP else [(stream, f.decode_http_request(data))]
        )
        if kind == f.HTTP_REQUEST_GROUP:  # a byte less or more is no such frame
            for wrong in (data[:-1], data + b"x", data[:5]):
                with pytest.raises(CorruptData):
                    lots.read_ask_lot(wrong)
    assert len(found) == num_of(len(bodies))
    assert sorted((at, call.path, call.name, call.headers, call.body, call.trusted) for at, call in got) == [
        (at, b"/a" if stub is stubs[0] else b"/b", called, headers, body, True) for stub, at, called, body in sent
    ]


@given(bodies=BODIES)
@settings(max_examples=60, deadline=None)
def test_several_answers_that_begin_alike_are_one_frame(bodies: list[bytes]) -> None:
    told = [
        (at, HttpReply(200, (body, b"x"), b"k", 3) if at % 2 else HttpReply(400, (body,)))
        for at, body in enumerate(bodies)
    ]
    found = frames_of(lots.reply_lots(told))
    assert len(found) == num_of(len(bodies))
    got: dict[int, HttpReply] = {}
    for kind, stream, data in found:
        if kind == f.HTTP_REPLY_GROUP:
            streams, lot = lots.read_reply_lot(data)
            got |= {at: lot.reply(place) for place, at in enumerate(streams)}
            assert len(lot.largest().parts[0]) == max(map(len, lot.bodies))
        else:
            got[stream] = f.decode_http_reply(data)
    assert [(at, one.status, b"".join(one.parts), one.kind, one.json_bytes) for at, one in sorted(got.items())] == [
        (at, one.status, b"".join(one.parts), one.kind, one.json_bytes) for at, one in told
    ]


def test_a_stream_that_is_twice_in_a_frame_is_corrupt() -> None:
    stub = f.RequestTemplate(b"POST", b"/", {}, 0)
    ((_, _, data),) = frames_of(lots.ask_lots([(stub, 7, b"", b"a")] * lots.FEW))
    with pytest.raises(CorruptData):
        lots.read_ask_lot(data)


@pytest.mark.parametrize("old", [False, True], ids=["both know them", "the replica is an older one"])
def test_calls_of_a_turn_go_in_one_frame_and_have_their_own_answers(old: bool, monkeypatch: Any) -> None:
    async def main() -> None:
        door, kinds = Door(), list[int]()
        read = GatewayConnection.frame
        noted = lambda self, kind, *rest: (kinds.append(kind), read(self, kind, *rest))[1]  # noqa: E731
        monkeypatch.setattr(GatewayConnection, "frame", noted)
        server, client, _ = await pair(door)
        client._reads_groups = client._reads_groups and not old
        stub, got = f.RequestTemplate(b"POST", b"/v2", {}, 0), dict[int, Any]()
        bodies = [b"one", b"never", b"later", b"large", b"nul", b"x" * 20_000, *[b"%d" % at for at in range(30)]]
        streams = [
            client.pass_rest(stub, HttpCall(b"POST", b"/v2", {}, body), 0.0, lambda one, at=at: got.setdefault(at, one))
            for at, body in enumerate(bodies)
        ]
        client.cancel(streams[1])
        await until(lambda: len(got) == len(bodies) - 1)
        assert [got[at].status for at in (3, 4)] == [500, 500]
        for at in (0, 2, 5, *range(6, len(bodies))):
            assert b"".join(got[at].parts) == (b"later" if at == 2 else bodies[at][::-1])
        assert door.cancelled == 1
        assert (f.HTTP_REQUEST_GROUP in kinds) is not old
        assert kinds.count(f.HTTP_REQUEST) == (len(bodies) if old else 6)  # the large one, and the few before it
        await server.drain(5)

    uvloop.run(asyncio.wait_for(main(), 20))


def test_what_cannot_be_said_is_refused_before_it_is_sent() -> None:
    for headers in ({b"a\0b": b"c"}, {b"a": b"\0"}, {b"a": b"x" * 70_000}):
        with pytest.raises(Invalid):
            f.encode_http_request(HttpCall(b"GET", b"/", headers), 1)
    with pytest.raises(Invalid):
        f.encode_http_request(HttpCall(b"GET", b"/" * 70_000), 1)
    with pytest.raises(Invalid):
        f.encode_grpc_request(GrpcCall("x" * 300, b""), 1)
    full = HttpCall(b"GET", b"/", {b"a": b"x" * 65_000})
    full.name = b"n" * 600
    with pytest.raises(Invalid):
        f.encode_http_request(full, 1)
    with pytest.raises(Invalid):
        f.encode_http_reply(HttpReply(200, (b"x" * 100,)), 1, 50)


class Door:
    """Answers at once, later, never, or too much."""

    def __init__(self) -> None:
        self.cancelled = 0

    def rest(self, call: HttpCall, send_reply: Callable[[HttpReply], Any]) -> Callable[[], None] | None:
        if call.body == b"never":
            return self._cancel
        if call.body == b"large":
            send_reply(HttpReply(200, (b"x" * 3_000_000,)))
        elif call.body == b"nul":
            send_reply(HttpReply(200, (b"",), headers=((b"a", b"\0"),)))
        elif call.body == b"later":
            asyncio.get_running_loop().call_later(0.05, send_reply, HttpReply(200, (b"later",)))
        else:
            send_reply(HttpReply(200, (call.body[::-1],)))
        return None

    def grpc(self, call: GrpcCall, send_reply: Callable[[GrpcReply], Any]) -> None:
        send_reply(GrpcReply(b"1", last=False))
        send_reply(GrpcReply(call.message))

    def _cancel(self) -> None:
        self.cancelled += 1


async def pair(door: Door, key: str = KEY, **options: Any) -> tuple[UpstreamServer, UpstreamClient, list[str]]:
    """A server and a client that knows it."""
    server = UpstreamServer(door, door, KEY, server_info={"pid": 7}, max_frame_bytes=2 << 20, **options)
    host, port = await server.start("127.0.0.1", 0)
    said: list[str] = []
    ready = asyncio.Event()
    client = UpstreamClient(
        key,
        on_ready=ready.set,
        on_drain=lambda: said.append("drain"),
        on_lost=lambda: (said.append("lost"), ready.set()),
        max_frame_bytes=2 << 20,
    )
    await asyncio.get_running_loop().create_connection(lambda: client, host, port)
    await asyncio.wait_for(ready.wait(), 10)
    return server, client, said


async def asked(client: UpstreamClient, body: bytes, deadline: float = 0.0) -> Any:
    """One answer."""
    future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    client.ask_rest(HttpCall(b"POST", b"/v2", {}, body), deadline, future.set_result)
    return await asyncio.wait_for(future, 10)


class Lots(Door):
    """Answers the requests of a lot at once, when it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.came: list[tuple[lots.Lot, Any, lots.TellLot]] = []

    def lot(self, lot: lots.Lot, tell: Any, tell_lot: lots.TellLot) -> list[Any]:
        self.came.append((lot, tell, tell_lot))
        return []


def test_answers_to_a_lot_go_in_one_frame_and_to_those_who_wait() -> None:
    async def main() -> None:
        door = Lots()
        server, client, _ = await pair(door)
        stub, got = f.RequestTemplate(b"POST", b"/v2", {}, 2), list[tuple[Any, Any]]()
        bodies = [b"%02d" % at for at in range(20)]
        first = client.pass_lot(stub, bodies, bodies, 0.0, lambda *told: got.append(told))
        await until(lambda: door.came)
        lot, _, tell_lot = door.came[0]
        assert (list(lot.streams), lot.bodies) == (list(range(first, first + 20)), bodies)
        tell_lot(lot.streams[:10], lots.Told(200, 3, b"k", [body * 2 for body in bodies[:10]]))
        tell_lot(lot.streams[10:12], lots.Told(200, 0, b"k", bodies[10:12]))  # few
        tell_lot(lot.streams[10:14], lots.Told(200, 0, b"k", [b"again", b"again", b"1", b"2"]))
        client.cancel(first + 19)
        await until(lambda: sum(len(streams) for streams, _ in got) == 14)
        (streams, told), *others = got
        assert (list(streams), told.bodies) == (list(range(first, first + 10)), [body * 2 for body in bodies[:10]])
        assert (told.status, told.json_bytes, told.kind) == (200, 3, b"k")
        assert [(at, b"".join(one.parts)) for (at,), one in others] == [
            (first + 10, b"10"),
            (first + 11, b"11"),
            (first + 12, b"1"),
            (first + 13, b"2"),
        ]
        got.clear()
        large = [b"x" * (lots.MOST_BODY + 1), *bodies[15:20]]
        tell_lot(lot.streams[14:], lots.Told(200, 0, b"k", large))  # one of them is gone, one is large
        await until(lambda: client.outstanding == 0)
        assert [(at, b"".join(one.parts)) for (at,), one in sorted(got)] == list(
            zip(range(first + 14, first + 19), large[:5], strict=True)
        )
        await server.drain(5)

    uvloop.run(asyncio.wait_for(main(), 20))


def test_everybody_gets_their_own_answer_and_a_stream_all_of_its() -> None:
    async def main() -> None:
        server, client, _ = await pair(Door())
        assert client.about == {"pid": 7}
        bodies = [b"%d" % number * (number % 50) for number in range(500)]
        answers = await asyncio.gather(*(asked(client, body) for body in bodies))
        assert [b"".join(one.parts) for one in answers] == [body[::-1] for body in bodies]
        got: list[GrpcReply] = []
        done = asyncio.Event()
        client.ask_grpc(GrpcCall("ModelStreamInfer", b"2"), 0.0, lambda one: (got.append(one), one.last and done.set()))
        await asyncio.wait_for(done.wait(), 10)
        assert [one.message for one in got] == [b"1", b"2"]
        assert client.outstanding == 0
        big = await asked(client, b"y" * 1_500_000)
        assert b"".join(big.parts) == b"y" * 1_500_000
        await server.drain(5)

    uvloop.run(main())


def test_what_is_too_large_or_cannot_be_said_fails_alone() -> None:
    async def main() -> None:
        server, client, said = await pair(Door())
        answers = await asyncio.gather(*(asked(client, one) for one in (b"large", b"nul", b"abc")))
        assert [one.status for one in answers] == [500, 500, 200]
        assert said == []
        with pytest.raises(Invalid):
            client.ask_rest(HttpCall(b"POST", b"/", {}, b"x" * (3 << 20)), 0.0, lambda _: None)
        assert client.outstanding == 0
        await server.drain(5)

    uvloop.run(main())


def test_deadlines_cancels_and_the_end_of_a_connection_are_told_once() -> None:
    async def main() -> None:
        door = Door()
        server, client, said = await pair(door)
        assert await asked(client, b"never", time.monotonic() + 0.05) is REPLY_LATE
        stream = client.ask_rest(HttpCall(b"POST", b"/", {}, b"never"), 0.0, lambda _: pytest.fail("it was given up"))
        client.cancel(stream)
        last = asyncio.ensure_future(asked(client, b"never"))
        await asked(client, b"abc")
        assert door.cancelled == 2
        next(iter(server.connections)).end()
        assert await last is REPLY_LOST
        assert said == ["lost"]
        assert not client.ready
        with pytest.raises(Unavailable):
            client.ask_rest(HttpCall(b"GET", b"/"), 0.0, lambda _: None)
        await asyncio.sleep(0)
        assert door.cancelled == 3
        await server.drain(0)

    uvloop.run(main())


def test_draining_answers_what_was_asked_and_closes() -> None:
    async def main() -> None:
        server, client, said = await pair(Door())
        answers = [asyncio.ensure_future(asked(client, b"later")) for _ in range(10)]
        await asyncio.sleep(0)
        await server.drain(10)
        assert [one.result().status for one in answers] == [200] * 10
        assert said[0] == "drain"
        assert not client.ready

    uvloop.run(main())


def test_a_word_to_the_replica_arrives() -> None:
    async def main() -> None:
        heard: list[dict[str, Any]] = []
        server, client, _ = await pair(Door(), on_control=heard.append)
        client.tell({"features": {"a": 1}})
        await asked(client, b"")
        assert heard == [{"features": {"a": 1}}]
        await server.drain(5)

    uvloop.run(main())


def test_replica_whose_word_holds_many_items_loses_the_connection() -> None:
    """Reading it would take the gateway, which other tenants share, 25 times its bytes of memory."""

    async def main() -> None:
        heard: list[dict[str, Any]] = []
        server, ready, lost = UpstreamServer(Door(), Door(), KEY), asyncio.Event(), asyncio.Event()
        host, port = await server.start("127.0.0.1", 0)
        client = UpstreamClient(KEY, on_ready=ready.set, on_lost=lost.set)
        client.on_control = heard.append
        await asyncio.get_running_loop().create_connection(lambda: client, host, port)
        await asyncio.wait_for(ready.wait(), 10)
        (connection,) = server.connections
        server.tell({"tally": {"data": "x" * 1_000_000}}, connection)
        await asked(client, b"")
        assert len(heard) == 1
        server.tell({"tally": {"data": [[]] * 100_000}}, connection)
        try:
            await asyncio.wait_for(lost.wait(), 10)
        finally:
            client.end()
            await server.drain(5)
        assert len(heard) == 1

    uvloop.run(main())


def test_frame_in_tiny_segments_takes_no_more_memory_than_it_has_bytes() -> None:
    frames, size = f.FrameProtocol(), 1 << 18
    frames.proven()
    frames.data_received(pack("<IBI", size, f.HTTP_REPLY, 1))
    tracemalloc.start()
    for number in range(size // 2 - 1):
        frames.data_received((number % 60_000).to_bytes(2, "big"))
    held_bytes = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert held_bytes < 2 * size


def test_a_word_that_cannot_be_followed_costs_nobody_anything() -> None:
    def deaf(said: dict[str, Any]) -> None:
        raise Invalid(f"{said} makes no sense", "")

    async def main() -> None:
        server, client, said = await pair(Door(), on_control=deaf)
        client.tell({"features": {}})
        assert (await asked(client, b"abc")).parts == (b"cba",)
        assert said == []
        await server.drain(5)

    uvloop.run(main())


def test_a_wrong_key_learns_nothing_and_asks_nothing() -> None:
    async def main() -> None:
        server, client, said = await pair(Door(), key="another key, long enough")
        assert said == ["lost"]
        assert not client.ready
        with pytest.raises(Invalid):
            UpstreamServer(None, None, "short")
        await server.drain(0)

    uvloop.run(main())


def frame(kind: int, data: bytes = b"", stream: int = 0, length: int | None = None) -> bytes:
    """A frame, or what claims to be one."""
    return pack("<IBI", len(data) if length is None else length, kind, stream) + data


HELLO = frame(f.HELLO, bytes((f.PROTOCOL_VERSION,)) + b"n" * 32)
STRANGERS = {
    "not a frame": b"GET / HTTP/1.1\r\n\r\n" * 3,
    "asks before it proves": frame(f.HTTP_REQUEST, b"\x03\x01\x00\x00\x00GET/"),
    "a large hello": frame(f.HELLO, length=1 << 30),
    "another version": frame(f.HELLO, b"\x09" + b"n" * 32),
    "a wrong proof": HELLO + frame(f.PROOF, b"x" * 32),
    "hello twice": HELLO + HELLO,
    "its own proof sent back": HELLO + frame(f.PROOF, b""),
}


@pytest.mark.parametrize("sent", STRANGERS.values(), ids=STRANGERS)
def test_strangers_are_shown_out(sent: bytes) -> None:
    async def main() -> None:
        door = Door()
        server = UpstreamServer(door, door, KEY)
        host, port = await server.start("127.0.0.1", 0)
        reader, writer = await asyncio.open_connection(host, port)
        writer.write(sent)
        with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
            # A challenge may come first; then the end.
            await asyncio.wait_for(reader.readexactly(10_000), 10)
        writer.close()
        await server.drain(0)

    uvloop.run(main())


async def _friend(server: UpstreamServer) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    host, port = await server.start("127.0.0.1", 0)
    reader, writer = await asyncio.open_connection(host, port)
    writer.write(HELLO)
    theirs = (await reader.readexactly(9 + 64))[9:41]
    writer.write(frame(f.PROOF, f.compute_proof(KEY.encode(), b"gateway", b"n" * 32, theirs)))
    length, kind, _ = unpack("<IBI", await reader.readexactly(9))
    assert (kind, json.loads(await reader.readexactly(length))) == (f.WELCOME, {"lots": True})
    return reader, writer


ASK = b"\x04\x01\x00\x00\x00POST/never"
NEVER = [(f.RequestTemplate(b"POST", b"/", {}, 0), stream, b"", b"never") for stream in range(lots.FEW)]
FRIENDS = {
    "a stream twice, the second time with another": frame(f.HTTP_REQUEST, ASK, 5) + b"".join(lots.ask_lots(NEVER)),
    "a lying number": frame(f.HTTP_REQUEST_GROUP, b"\xff\xff\x00\x04\x01\x00\x00\x00POST/"),
    "an unknown kind": frame(99),
    "a stream twice": frame(f.HTTP_REQUEST, ASK, 5) * 2,
    "a lying method": frame(f.HTTP_REQUEST, b"\xff\x01\x00\x00\x00POST/", 1),
    "a lying length": frame(f.HTTP_REQUEST, b"", 1, length=1 << 31),
    "a word that is no object": frame(f.CONTROL, b"[]"),
    "a deep word": frame(f.CONTROL, b"[" * 100_000),
    "a flood": b"".join(frame(f.HTTP_REQUEST, ASK, number) for number in range(f.MAX_OPEN_STREAMS + 1)),
}


@pytest.mark.parametrize("sent", FRIENDS.values(), ids=FRIENDS)
def test_somebody_with_the_key_who_breaks_the_rules_loses_the_connection(sent: bytes) -> None:
    async def main() -> None:
        door = Door()
        server = UpstreamServer(door, door, KEY)
        reader, writer = await _friend(server)
        writer.write(sent)
        with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
            await asyncio.wait_for(reader.readexactly(1), 10)
        writer.close()
        await server.drain(0)

    uvloop.run(main())


def test_an_impostor_on_a_replicas_port_gets_no_request() -> None:
    async def main() -> None:
        got = bytearray()

        async def impostor(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            got.extend(await reader.readexactly(9 + 33))
            writer.write(frame(f.CHALLENGE, b"s" * 64) + frame(f.WELCOME, b"{}"))
            got.extend(await reader.read())
            writer.close()

        listening = await asyncio.start_server(impostor, "127.0.0.1", 0)
        lost = asyncio.Event()
        client = UpstreamClient(KEY, on_lost=lost.set)
        host, port = listening.sockets[0].getsockname()
        await asyncio.get_running_loop().create_connection(lambda: client, host, port)
        await asyncio.wait_for(lost.wait(), 10)
        assert not client.ready
        assert KEY.encode() not in got
        assert len(got) == 42
        listening.close()

    uvloop.run(main())


def test_the_hop_speaks_tls(tmp_path: Any) -> None:
    from falaj.api.tls import create_server_context, ensure_local_certificate

    async def main() -> None:
        made = ensure_local_certificate(str(tmp_path), ("localhost",), time.time())
        door = Door()
        server = UpstreamServer(door, door, KEY)
        context = create_server_context(made)
        context.verify_mode = ssl.CERT_NONE
        host, port = await server.start("127.0.0.1", 0, context)
        client = UpstreamClient(KEY, on_ready=(ready := asyncio.Event()).set)
        trusting = ssl.create_default_context(cafile=made.ca)
        loop = asyncio.get_running_loop()
        await loop.create_connection(lambda: client, host, port, ssl=trusting, server_hostname="localhost")
        await asyncio.wait_for(ready.wait(), 10)
        assert (await asked(client, b"abc")).parts == (b"cba",)
        await server.drain(5)

    uvloop.run(main())
