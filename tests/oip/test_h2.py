"""Our HTTP/2, frame by frame: what a client may do, and what none should."""

import asyncio
import gzip
import itertools
import time
import tracemalloc
import zlib
from collections.abc import Callable, Iterator

import pytest
from hpack import Encoder
from hypothesis import given, settings
from hypothesis import strategies as st

from falaj.core.errors import CorruptData, FalajError, Invalid
from falaj.oip import http2_frames as w
from falaj.oip.byte_budget import ByteBudget
from falaj.oip.handler_calls import GrpcReply
from falaj.oip.hpack_cache import CallHeadCache, encode_headers, encode_status_text
from falaj.oip.http2_frames import Http2Limits, encode_frame, pack_uint32
from falaj.oip.http2_server import Http2Connection, Http2GrpcServer
from falaj.oip.http2_stream import MessageReader
from falaj.oip.pieces import append_piece
from tests.oip.grpc_serving import Client, Memory, Mirror, Running, headers, held, message, running

OPEN = w.END_HEADERS
LAST = w.END_HEADERS | w.END_STREAM


@pytest.fixture(scope="module")
def here() -> Iterator[Running]:
    with running() as found:
        yield found


def test_calls_are_answered_whatever_their_frames(here: Running) -> None:
    with here.connect() as client:
        said = client.answer(client.ask(b"hi"))
        assert (said.status, said.messages) == (0, [b"hi"])
        assert said.headers == {":status": "200", "content-type": "application/grpc"}
        assert client.answer(client.ask(b"")).messages == [b""]
        stream = client.ask(None, end=False)
        for piece in (message(b"split")[:3], message(b"split")[3:7], message(b"split")[7:]):
            client.give(stream, piece, end=False)
        client.give(stream, b"")
        assert client.answer(stream).messages == [b"split"]
        stream = client.next
        client.next += 2
        whole = client.block(headers())
        client.say(
            encode_frame(w.HEADERS, w.PADDED | w.WITH_PRIORITY, stream, b"\x03" + bytes(5) + whole[:4] + b"\0\0\0")
        )
        client.say(
            encode_frame(w.CONTINUATION, 0, stream, whole[4:9]) + encode_frame(w.CONTINUATION, OPEN, stream, whole[9:])
        )
        client.say(encode_frame(w.DATA, w.PADDED, stream, b"\x02" + message(b"padded") + b"\0\0"))
        client.say(encode_frame(w.HEADERS, LAST, stream, client.block(("x-checksum", "1"))))
        assert client.answer(stream).messages == [b"padded"]


def test_many_calls_at_once_each_get_their_own(here: Running) -> None:
    with here.connect() as client:
        asked = {client.ask(b"call %d" % number): b"call %d" % number for number in range(300)}
        for stream, said in asked.items():
            assert client.answer(stream).messages == [said]


def test_errors_are_trailers_alone(here: Running) -> None:
    with here.connect() as client:
        said = client.answer(client.ask(b"fail8"))
        assert (said.status, said.data, said.headers["retry-after"]) == (8, b"", "7")
        assert said.headers["grpc-message"] == "n%C3%B6: 100%25%0A"
        said = client.answer(client.ask(b"meta"))
        assert (said.headers["falaj-request"], said.headers["x"]) == ("abc", "1" * 300)


REFUSED: dict[str, tuple[dict[str, str | None], tuple[tuple[str, str], ...], str, int]] = {
    "another service": ({"path": "/other.Service/ModelInfer"}, (), "grpc-status", 12),
    "no path of gRPC": ({"path": "/v2/models/m/infer"}, (), "grpc-status", 12),
    "a path with dots": ({"path": "/inference.GRPCInferenceService/../x"}, (), "grpc-status", 12),
    "an encoding nobody knows": ({}, (("grpc-encoding", "br"),), "grpc-status", 12),
    "a time that is none": ({}, (("grpc-timeout", "soon"),), "grpc-status", 3),
    "GET": ({"method": "GET"}, (), ":status", 405),
    "JSON": ({"content_type": "application/json"}, (), ":status", 415),
    "gRPC for browsers": ({"content_type": "application/grpc-web"}, (), ":status", 415),
}


@pytest.mark.parametrize("name", REFUSED)
def test_requests_that_are_no_calls(here: Running, name: str) -> None:
    changed, more, field, value = REFUSED[name]
    with here.connect() as client:
        client.say(encode_frame(w.HEADERS, LAST, 1, client.block(headers("ModelInfer", *more, **changed))))
        assert client.answer(1).headers[field] == str(value)
        client.next = 3
        assert client.answer(client.ask(b"hi")).status == 0


BROKEN_HEADERS: dict[str, list[tuple[str, str]]] = {
    "no path": headers(path=None),
    "no method": headers(method=None),
    "no authority": headers(authority=None),
    "an authority that is none": headers(authority="a b@c/"),
    "a scheme that is none": headers(scheme="ftp"),
    "a pseudo header twice": [(":method", "POST"), *headers()],
    "a pseudo header that does not exist": [(":status", "200"), *headers()],
    "a pseudo header after others": [*headers(path=None), (":path", "/x/y")],
    "capital letters": [*headers(), ("Name", "x")],
    "a name that is none": [*headers(), ("na me", "x")],
    "a value with a line break": [*headers(), ("name", "a\r\nb")],
    "a header of HTTP/1": [*headers(), ("connection", "close")],
    "te without trailers": headers(te="gzip"),
    "two tokens": [*headers(), ("authorization", "a"), ("authorization", "b")],
}


@pytest.mark.parametrize("name", BROKEN_HEADERS)
def test_headers_that_break_the_rules_end_their_stream(here: Running, name: str) -> None:
    pairs = BROKEN_HEADERS[name]
    with here.connect() as client:
        client.say(encode_frame(w.HEADERS, LAST, 1, client.block(pairs)))
        assert client.answer(1).reset == w.PROTOCOL_ERROR
        client.next = 3
        assert client.answer(client.ask(b"hi")).status == 0


def _settings(name: int, value: int) -> bytes:
    return w.encode_settings({name: value})


HOSTILE: dict[str, tuple[Callable[[Client], bytes], int]] = {
    "frame larger than allowed": (lambda _: w._FRAME_HEAD.pack(0x7FFF, 0, w.DATA, 0, 1), w.FRAME_SIZE_ERROR),
    "data on stream 0": (lambda _: encode_frame(w.DATA, 0, 0, b"x"), w.PROTOCOL_ERROR),
    "data on an idle stream": (lambda _: encode_frame(w.DATA, 0, 5, b"x"), w.PROTOCOL_ERROR),
    "headers on stream 0": (lambda c: encode_frame(w.HEADERS, LAST, 0, c.block(headers())), w.PROTOCOL_ERROR),
    "headers on an even stream": (lambda c: encode_frame(w.HEADERS, LAST, 2, c.block(headers())), w.PROTOCOL_ERROR),
    "a stream that goes back": (
        lambda c: (
            encode_frame(w.HEADERS, OPEN, 5, c.block(headers())) + encode_frame(w.HEADERS, OPEN, 3, c.block(headers()))
        ),
        w.STREAM_CLOSED,
    ),
    "headers inside a block": (
        lambda c: (
            encode_frame(w.HEADERS, 0, 1, c.block(headers())) + encode_frame(w.HEADERS, OPEN, 3, c.block(headers()))
        ),
        w.PROTOCOL_ERROR,
    ),
    "data inside a block": (
        lambda c: encode_frame(w.HEADERS, 0, 1, c.block(headers())) + encode_frame(w.DATA, 0, 1, b"x"),
        w.PROTOCOL_ERROR,
    ),
    "an unknown frame inside a block": (
        lambda c: encode_frame(w.HEADERS, 0, 1, c.block(headers())) + encode_frame(77, 0, 1, b"x"),
        w.PROTOCOL_ERROR,
    ),
    "a continuation of another stream": (
        lambda c: encode_frame(w.HEADERS, 0, 1, c.block(headers())) + encode_frame(w.CONTINUATION, OPEN, 3, b""),
        w.PROTOCOL_ERROR,
    ),
    "a continuation of nothing": (lambda _: encode_frame(w.CONTINUATION, OPEN, 1, b""), w.PROTOCOL_ERROR),
    "endless continuations": (
        lambda c: encode_frame(w.HEADERS, 0, 1, c.block(headers())) + encode_frame(w.CONTINUATION, 0, 1, b"\0") * 100,
        w.ENHANCE_YOUR_CALM,
    ),
    "a block that is too large": (
        lambda c: encode_frame(w.HEADERS, 0, 1, b"\0" * 16_000) + encode_frame(w.CONTINUATION, 0, 1, b"\0" * 16_000),
        w.ENHANCE_YOUR_CALM,
    ),
    "a block that is too large, in one frame": (
        lambda c: encode_frame(w.HEADERS, OPEN, 1, c.block(headers()) + b"\0\1x\1y" * 4000),
        w.COMPRESSION_ERROR,
    ),
    "a block that unpacks to too much": (
        lambda c: encode_frame(w.HEADERS, OPEN, 1, c.block([*headers(), ("x", "y" * 3000)]) + b"\xbe" * 8000),
        w.COMPRESSION_ERROR,
    ),
    "a block that is no HPACK": (
        lambda _: encode_frame(w.HEADERS, OPEN, 1, b"\xff\xff\xff\xff\xff\xff"),
        w.COMPRESSION_ERROR,
    ),
    "an index that does not exist": (lambda _: encode_frame(w.HEADERS, OPEN, 1, b"\xc6"), w.COMPRESSION_ERROR),
    "a table that is too large": (lambda _: encode_frame(w.HEADERS, OPEN, 1, b"\x3f\xe1\xff\x03"), w.COMPRESSION_ERROR),
    "padding longer than its frame": (
        lambda c: (c.ask(None, end=False) and encode_frame(w.DATA, w.PADDED, 1, b"\x09abc")) or b"",
        w.PROTOCOL_ERROR,
    ),
    "padded headers longer than their frame": (
        lambda _: encode_frame(w.HEADERS, w.PADDED, 1, b"\x09abc"),
        w.PROTOCOL_ERROR,
    ),
    "headers too short for their priority": (lambda _: encode_frame(w.HEADERS, 0x24, 1, b"abc"), w.PROTOCOL_ERROR),
    "a reset of stream 0": (lambda _: encode_frame(w.RST_STREAM, 0, 0, pack_uint32(8)), w.PROTOCOL_ERROR),
    "a reset of an idle stream": (lambda _: encode_frame(w.RST_STREAM, 0, 9, pack_uint32(8)), w.PROTOCOL_ERROR),
    "a short reset": (lambda _: encode_frame(w.RST_STREAM, 0, 1, b"x"), w.FRAME_SIZE_ERROR),
    "settings on a stream": (lambda _: encode_frame(w.SETTINGS, 0, 1), w.PROTOCOL_ERROR),
    "settings of odd length": (lambda _: encode_frame(w.SETTINGS, 0, 0, b"12345"), w.FRAME_SIZE_ERROR),
    "an acknowledgement with settings": (lambda _: encode_frame(w.SETTINGS, w.ACK, 0, b"123456"), w.FRAME_SIZE_ERROR),
    "push that is neither": (lambda _: _settings(w.ENABLE_PUSH, 2), w.PROTOCOL_ERROR),
    "a window out of range": (lambda _: _settings(w.INITIAL_WINDOW, 1 << 31), w.FLOW_CONTROL_ERROR),
    "frames that are too small": (lambda _: _settings(w.MAX_FRAME, 100), w.PROTOCOL_ERROR),
    "frames that are too large": (lambda _: _settings(w.MAX_FRAME, 1 << 24), w.PROTOCOL_ERROR),
    "a promise": (lambda _: encode_frame(w.PUSH_PROMISE, OPEN, 1, pack_uint32(2)), w.PROTOCOL_ERROR),
    "a ping on a stream": (lambda _: encode_frame(w.PING, 0, 1, bytes(8)), w.PROTOCOL_ERROR),
    "a short ping": (lambda _: encode_frame(w.PING, 0, 0, bytes(7)), w.FRAME_SIZE_ERROR),
    "a goodbye on a stream": (lambda _: encode_frame(w.GOAWAY, 0, 1, bytes(8)), w.PROTOCOL_ERROR),
    "a short goodbye": (lambda _: encode_frame(w.GOAWAY, 0, 0, bytes(7)), w.FRAME_SIZE_ERROR),
    "a window of 0": (lambda _: encode_frame(w.WINDOW_UPDATE, 0, 0, pack_uint32(0)), w.PROTOCOL_ERROR),
    "a window of an idle stream": (lambda _: encode_frame(w.WINDOW_UPDATE, 0, 3, pack_uint32(1)), w.PROTOCOL_ERROR),
    "a window of three bytes": (lambda _: encode_frame(w.WINDOW_UPDATE, 0, 0, b"123"), w.FRAME_SIZE_ERROR),
    "a window that overflows": (
        lambda _: encode_frame(w.WINDOW_UPDATE, 0, 0, pack_uint32(w.MAX_WINDOW)),
        w.FLOW_CONTROL_ERROR,
    ),
    "a priority of stream 0": (lambda _: encode_frame(w.PRIORITY, 0, 0, bytes(5)), w.PROTOCOL_ERROR),
    "a short priority": (lambda _: encode_frame(w.PRIORITY, 0, 1, bytes(4)), w.FRAME_SIZE_ERROR),
    "many pings": (lambda _: encode_frame(w.PING, 0, 0, bytes(8)) * 2000, w.ENHANCE_YOUR_CALM),
    "many settings": (lambda _: w.encode_settings({}) * 2000, w.ENHANCE_YOUR_CALM),
    "many priorities": (lambda _: encode_frame(w.PRIORITY, 0, 1, bytes(5)) * 2000, w.ENHANCE_YOUR_CALM),
    "answers asked for byte by byte": (
        lambda c: (
            c.say(_settings(w.INITIAL_WINDOW, 0))
            or (c.ask(b"big50000") and encode_frame(w.WINDOW_UPDATE, 0, 1, pack_uint32(1)) * 3000)
            or b""
        ),
        w.ENHANCE_YOUR_CALM,
    ),
    "many unknown frames": (lambda _: encode_frame(99, 0, 0, b"") * 2000, w.ENHANCE_YOUR_CALM),
    "many empty data frames": (
        lambda c: (c.ask(None, end=False) and encode_frame(w.DATA, 0, 1, b"") * 2000) or b"",
        w.ENHANCE_YOUR_CALM,
    ),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_frames_end_the_connection(here: Running, name: str) -> None:
    said, code = HOSTILE[name]
    with here.connect() as client:
        client.say(said(client))
        assert client.goodbye() == code
    with here.connect() as another:
        assert another.answer(another.ask(b"hi")).status == 0


def test_rapid_resets_end_the_connection_and_leave_nothing(here: Running) -> None:
    with here.connect() as client:
        for _ in range(1200):
            stream = client.ask(b"keep" + b"x" * 100)
            client.say(encode_frame(w.RST_STREAM, 0, stream, pack_uint32(w.CANCEL)))
        assert client.goodbye() == w.ENHANCE_YOUR_CALM
    here.until(lambda: not here.server.connections)
    assert len(here.door.gone) == len(here.door.kept) > 100
    here.door.kept.clear()
    here.door.gone.clear()


@pytest.mark.parametrize("data", [b"GET / HTTP/1.1\r\n\r\n", b"PRI * HTTP/2.0\r\n\r\nXX", b"\x16\x03\x01" + bytes(50)])
def test_what_is_no_http2_is_told_so(here: Running, data: bytes) -> None:
    with here.connect(greet=False) as client:
        client.say(data)
        assert client.goodbye() == w.PROTOCOL_ERROR


def test_the_first_frame_must_be_settings(here: Running) -> None:
    with here.connect(greet=False) as client:
        client.say(w.PREFACE + encode_frame(w.PING, 0, 0, bytes(8)))
        assert client.goodbye() == w.PROTOCOL_ERROR


STREAM_FAULTS: dict[str, tuple[Callable[[Client], bytes], int]] = {
    "data after the end": (lambda c: (c.ask(b"keep") and encode_frame(w.DATA, 0, 1, b"x")) or b"", w.STREAM_CLOSED),
    "a window of 0": (
        lambda c: (c.ask(b"keep") and encode_frame(w.WINDOW_UPDATE, 0, 1, pack_uint32(0))) or b"",
        w.PROTOCOL_ERROR,
    ),
    "a window that overflows": (
        lambda c: (c.ask(b"keep") and encode_frame(w.WINDOW_UPDATE, 0, 1, pack_uint32(w.MAX_WINDOW))) or b"",
        w.FLOW_CONTROL_ERROR,
    ),
    "trailers that do not end it": (
        lambda c: (c.ask(b"keep", end=False) and encode_frame(w.HEADERS, OPEN, 1, c.block(("x", "y")))) or b"",
        w.PROTOCOL_ERROR,
    ),
    "pseudo headers in trailers": (
        lambda c: (c.ask(b"keep", end=False) and encode_frame(w.HEADERS, LAST, 1, c.block((":path", "y")))) or b"",
        w.PROTOCOL_ERROR,
    ),
    "data for a closed stream": (
        lambda c: (c.answer(c.ask(b"hi")) and encode_frame(w.DATA, 0, 1, b"x")) or b"",
        w.STREAM_CLOSED,
    ),
}


@pytest.mark.parametrize("name", STREAM_FAULTS)
def test_faults_of_one_stream_end_that_one(here: Running, name: str) -> None:
    said, code = STREAM_FAULTS[name]
    with here.connect() as client:
        client.say(said(client))
        assert client.answer(1).reset == code
        assert client.answer(client.ask(b"hi")).status == 0
        assert here.do(lambda: not any(one._streams for one in here.server.connections))


ODD_CALLS: dict[str, tuple[bytes, int]] = {
    "no message": (b"", 13),
    "half a prefix": (b"\0\0\0", 13),
    "half a message": (message(b"hello")[:-1], 13),
    "two messages": (message(b"a") + message(b"b"), 13),
    "compressed, not said how": (message(b"a", 1), 3),
    "a flag that does not exist": (message(b"a", 9), 3),
    "larger than allowed": (b"\0\xff\xff\xff\xff", 8),
}


@pytest.mark.parametrize("name", ODD_CALLS)
def test_calls_whose_messages_are_odd(here: Running, name: str) -> None:
    data, code = ODD_CALLS[name]
    with here.connect() as client:
        stream = client.ask(None, end=False)
        client.give(stream, data)
        assert client.answer(stream).status == code
        assert client.answer(client.ask(b"hi")).status == 0


def test_compressed_messages_are_read_within_bounds() -> None:
    with running(limits=Http2Limits(body_bytes=1000)) as here, here.connect() as client:
        for coding, pack in (("gzip", gzip.compress), ("deflate", zlib.compress)):
            for plain, code in ((b"hello", 0), (b"x" * 1000, 0), (b"x" * 1001, 8), (b"\0" * 100_000, 8)):
                stream = client.ask(None, "ModelInfer", ("grpc-encoding", coding), end=False)
                client.give(stream, message(pack(plain), 1))
                said = client.answer(stream)
                assert (said.status, said.messages) == (code, [] if code else [plain])
            for bad in (b"junk", pack(b"hello")[:-3], pack(b"hello") + b"more"):
                stream = client.ask(None, "ModelInfer", ("grpc-encoding", coding), end=False)
                client.give(stream, message(bad, 1))
                assert client.answer(stream).status == 3


def test_what_is_too_large_is_refused_before_it_came(here: Running) -> None:
    with here.connect() as client:
        stream = client.ask(None, end=False)
        client.say(encode_frame(w.DATA, 0, stream, b"\0" + pack_uint32(1 << 30) + b"x" * 100))
        assert client.answer(stream).status == 8
        found = client._of(stream)
        assert found is not None
        assert found.kind == w.RST_STREAM
        client.give(stream, b"x" * 50_000)  # what was on its way is no fault
        assert client.answer(client.ask(b"hi")).status == 0


def test_large_answers_wait_for_the_client(here: Running) -> None:
    with here.connect() as client:
        stream = client.ask(b"big200000")
        client.ping()
        assert sum(len(one.payload) for one in client.frames if one.kind == w.DATA) == w.DEFAULT_WINDOW
        other = client.ask(b"hi")  # the connection's window is used up
        client.ping()
        assert not any(one.stream == other and one.kind == w.DATA for one in client.frames)
        client.say(encode_frame(w.WINDOW_UPDATE, 0, 0, pack_uint32(10)))
        client.ping()
        assert client.answer(other).messages == [b"hi"]
        client.say(
            encode_frame(w.WINDOW_UPDATE, 0, 0, pack_uint32(1 << 20))
            + encode_frame(w.WINDOW_UPDATE, 0, stream, pack_uint32(1 << 20))
        )
        assert client.answer(stream, widen=False).messages == [b"x" * 200_000]


def test_windows_that_change_while_answers_wait(here: Running) -> None:
    with here.connect(settings={w.INITIAL_WINDOW: 10}) as client:
        stream = client.ask(b"big100")
        client.ping()
        assert [len(one.payload) for one in client.frames if one.kind == w.DATA] == [10]
        client.say(_settings(w.INITIAL_WINDOW, 0))  # now at -10
        client.say(encode_frame(w.WINDOW_UPDATE, 0, stream, pack_uint32(15)))
        client.ping()
        assert [len(one.payload) for one in client.frames if one.kind == w.DATA] == [10, 5]
        client.say(_settings(w.INITIAL_WINDOW, 1000))
        assert client.answer(stream, widen=False).messages == [b"x" * 100]
        client.say(_settings(w.MAX_FRAME, 1 << 20))
        client.say(encode_frame(w.WINDOW_UPDATE, 0, 0, pack_uint32(1 << 20)) + _settings(w.INITIAL_WINDOW, 1 << 20))
        stream = client.ask(b"big500000")
        assert client.answer(stream, widen=False).messages == [b"x" * 500_000]


def test_a_client_with_a_smaller_table_is_told_that_ours_is_empty(here: Running) -> None:
    with here.connect(settings={w.HEADER_TABLE_SIZE: 0}) as client:
        client._decoder.max_allowed_table_size = 0
        client.ping()
        assert client.answer(client.ask(b"hi")).messages == [b"hi"]
        assert client.answer(client.ask(b"hi")).messages == [b"hi"]


def test_streams_answer_in_the_order_of_completion(here: Running) -> None:
    with here.connect() as client:
        stream = client.ask(b"keep1", "ModelStreamInfer", end=False)
        client.give(stream, message(b"two") + message(b"many") + message(b"big100000"), end=False)
        client.give(stream, b"")
        here.until(lambda: here.door.kept)
        _, reply = here.door.kept.pop()
        here.do(lambda: reply(GrpcReply(b"one")))
        said = client.answer(stream)
        assert said.messages == [b"two", b"0", b"1", b"2", b"x" * 100_000, b"one"]
        assert said.status == 0
        assert client.answer(client.ask(None, "ModelStreamInfer")).status == 0
        said = client.answer(client.ask(b"whole", "ModelStreamInfer"))
        assert (said.messages, said.status) == ([b"whole"], 0)
        stream = client.ask(None, "ModelStreamInfer", end=False)
        client.give(stream, message(b"a") + message(b"b") + message(b"many"))
        assert client.answer(stream).messages == [b"a", b"b", b"0", b"1", b"2"]
        said = client.answer(client.ask(b"fail7", "ModelStreamInfer", end=False))
        assert said.status == 7


def test_a_client_that_cancels_now_and_then_is_no_flood(here: Running) -> None:
    with here.connect() as client:
        for _ in range(1500):
            stream = client.ask(b"keep")
            client.say(encode_frame(w.RST_STREAM, 0, stream, pack_uint32(w.CANCEL)))
            assert client.answer(client.ask(b"hi")).status == 0
    here.until(lambda: len(here.door.gone) == len(here.door.kept))
    here.door.kept.clear()
    here.door.gone.clear()


def test_a_stream_whose_answers_are_not_read_is_not_told_to_go_on() -> None:
    limits = Http2Limits(window_bytes=1 << 16)
    with running(limits=limits) as here, here.connect(settings={w.INITIAL_WINDOW: 0}) as client:
        stream = client.ask(None, "ModelStreamInfer", end=False)
        for count in (300, 180):
            client.give(stream, message(b"x" * 100) * count, end=False)
        client.ping()
        assert not any(one.kind == w.WINDOW_UPDATE and one.stream for one in client.frames)
        client.say(encode_frame(w.WINDOW_UPDATE, 0, stream, pack_uint32(1 << 16)))
        client.ping()
        assert any(one.kind == w.WINDOW_UPDATE and one.stream for one in client.frames)
        assert sum(len(one.payload) for one in client.frames if one.kind == w.DATA) == 480 * 105


def test_work_nobody_waits_for_is_given_up() -> None:
    with running() as here:
        with here.connect() as client:
            stream = client.ask(b"keep1")
            client.ask(b"keep2")
            client.ask(b"keep3", "ModelStreamInfer", end=False)
            here.until(lambda: len(here.door.kept) == 3)
            client.say(encode_frame(w.RST_STREAM, 0, stream, pack_uint32(w.CANCEL)))
            here.until(lambda: here.door.gone == [b"keep1"])
        here.until(lambda: sorted(here.door.gone) == [b"keep1", b"keep2", b"keep3"])
        for _, reply in here.door.kept:
            here.do(lambda reply=reply: reply(GrpcReply(b"too late")))


def test_no_bytes_are_kept_of_streams_that_are_reset() -> None:
    limits = Http2Limits(body_bytes=1 << 20, held_bytes=1 << 21)
    with running(limits=limits) as here, here.connect() as client:
        streams = [client.ask(None, end=False) for _ in range(3)]
        for stream in streams[:2]:
            client.give(stream, message(b"x" * 900_000)[:-1], end=False)
        client.ping()
        assert here.do(lambda: held(here.server)) == 2 * 899_999
        client.give(streams[2], message(b"x" * 900_000), end=False)
        assert client.answer(streams[2]).status == 8  # too much at once
        client.say(encode_frame(w.RST_STREAM, 0, streams[0], pack_uint32(w.CANCEL)))
        client.ping()
        assert here.do(lambda: held(here.server)) == 899_999
        client.give(streams[1], b"x")
        assert len(client.answer(streams[1]).messages[0]) == 900_000
        assert here.do(lambda: held(here.server)) == 0


def test_all_connections_together_hold_so_much_and_no_more() -> None:
    budget = ByteBudget(total_bytes=1_500_000)
    with running(limits=Http2Limits(body_bytes=1 << 20), budget=budget) as here, here.connect() as another:
        with here.connect() as client:
            stream = client.ask(None, end=False)
            client.give(stream, message(b"x" * 1_000_000)[:-1], end=False)
            client.ping()
            stream = another.ask(None, end=False)
            another.give(stream, message(b"x" * 1_000_000)[:-1], end=False)
            assert another.answer(stream).status == 8
            assert another.answer(another.ask(b"hi")).status == 0
            assert here.do(lambda: budget.reserved) == 999_999
        here.until(lambda: budget.reserved == 0)


def test_more_streams_than_allowed_are_refused() -> None:
    with running(limits=Http2Limits(streams=4)) as here, here.connect() as client:
        streams = [client.ask(b"keep") for _ in range(5)]
        assert client.answer(streams[4]).reset == w.REFUSED_STREAM


def test_more_connections_than_allowed_are_closed() -> None:
    with running(limits=Http2Limits(connections=1)) as here, here.connect() as first:
        first.ping()
        with here.connect() as second:
            assert second.goodbye() is None
        assert first.answer(first.ask(b"hi")).status == 0


def test_a_time_limit_reaches_the_door_and_is_held_to() -> None:
    with running() as here, here.connect() as client:
        for said, least_s, most_s in (("90S", 80, 90), ("5H", 17000, 18000), ("100m", -5, 0.1), ("99999999n", -5, 0.1)):
            stream = client.ask(b"hi", "ModelInfer", ("grpc-timeout", said))
            assert client.answer(stream).status == 0
            assert least_s < here.door.calls[-1].deadline - time.monotonic() <= most_s
        stream = client.ask(b"keep", "ModelInfer", ("grpc-timeout", "1m"))
        assert client.answer(stream).status == 4
        assert here.door.gone == [b"keep"]


def test_slow_clients_are_ended() -> None:
    """One that says nothing, one inside a frame, one inside headers, one inside a message, one that does not read."""
    limits = Http2Limits(head_s=0.1, idle_s=0.2, keep_s=1.5)
    with running(limits=limits) as here:
        silent = here.connect(greet=False)
        in_frame, in_headers, in_message, idle, unread = (here.connect() for _ in range(5))
        in_frame.say(w._FRAME_HEAD.pack(0, 9, w.DATA, 0, 1) + b"x")
        in_headers.say(encode_frame(w.HEADERS, 0, 1, in_headers.block(headers())))
        stream = in_message.ask(None, end=False)
        in_message.give(stream, message(b"half")[:-1], end=False)
        waits = unread.ask(b"big100000")
        for client in (silent, in_frame, in_headers):
            assert client.goodbye() is None
        assert in_message.answer(stream).status == 4
        assert unread.answer(waits, widen=False).reset == w.CANCEL
        assert idle.goodbye() == w.NO_ERROR
        for client in (silent, in_frame, in_headers, in_message, idle, unread):
            client.socket.close()


def test_a_client_that_does_not_read_holds_little_memory() -> None:
    wide = {w.INITIAL_WINDOW: w.MAX_WINDOW}
    with running(limits=Http2Limits(idle_s=0.5)) as here, here.connect(settings=wide) as client:
        client.say(encode_frame(w.WINDOW_UPDATE, 0, 0, pack_uint32(w.MAX_WINDOW - w.DEFAULT_WINDOW)))
        client.ask(b"big%d" % (50 << 20))
        here.until(lambda: any(one._is_write_paused for one in here.server.connections))
        (connection,) = here.server.connections
        assert here.do(connection._transport.get_write_buffer_size) < 4 << 20
        here.until(lambda: not here.server.connections)


def test_draining_answers_what_was_asked_and_takes_no_more() -> None:
    from falaj.oip.handler_calls import GrpcReply

    with running() as here, here.connect() as client:
        waits = client.ask(b"keep")
        streaming = client.ask(b"hi", "ModelStreamInfer", end=False)
        here.until(lambda: here.door.kept)
        ending = asyncio.run_coroutine_threadsafe(here.server.drain(20), here.loop)
        while (found := client.hear()) is None or found.kind != w.GOAWAY:
            assert found is not None
        assert int.from_bytes(found.payload[:4], "big") == w.MAX_WINDOW
        before = client.ask(b"just before it heard")
        client.say(encode_frame(w.PING, w.ACK, 0, b"falajend"))
        said = client.answer(streaming)
        assert (said.messages, said.status) == ([b"hi"], 14)
        assert client.answer(before).messages == [b"just before it heard"]
        assert client.answer(client.ask(b"after")).reset == w.REFUSED_STREAM
        here.do(lambda: here.door.kept[0][1](GrpcReply(b"at last")))
        assert client.answer(waits).messages == [b"at last"]
        assert client.goodbye() == w.NO_ERROR
        ending.result(20)


def test_health_is_the_doors_own_readiness(here: Running) -> None:
    with here.connect() as client:
        for data, method, found in (
            (b"", "Check", (0, [b"\x08\x01"])),
            (b"\x0a\x01x", "Check", (5, [])),
            (b"", "Watch", (12, [])),
        ):
            stream, client.next = client.next, client.next + 2
            pairs = headers(path=f"/grpc.health.v1.Health/{method}")
            client.say(encode_frame(w.HEADERS, OPEN, stream, client.block(pairs)))
            client.give(stream, message(data))
            said = client.answer(stream)
            assert (said.status, said.messages) == found


# ---- without sockets


class Bench:
    """A connection in memory."""

    def __init__(self, limits: Http2Limits | None = None) -> None:
        self.door = Mirror()
        self.server = Http2GrpcServer(self.door, limits or Http2Limits())
        self.connection = Http2Connection(self.server)
        self.transport = Memory()
        self.connection.connection_made(self.transport)

    def end(self) -> bytes:
        self.server._timer.cancel()
        self.connection._flush_outgoing()
        return b"".join(self.transport.written)


def test_the_last_answer_of_a_connection_is_written_at_once() -> None:
    """The loop has no turn to make for it; those of the same turn go with it, in one write."""
    asyncio.run(_answered(1))
    asyncio.run(_answered(3))


async def _answered(calls: int) -> None:
    bench, encoder = Bench(), Encoder()
    bench.connection.data_received(w.PREFACE + w.encode_settings({}))
    for number in range(calls):
        begin = encode_frame(w.HEADERS, OPEN, 1 + 2 * number, encoder.encode(headers()))
        bench.connection.data_received(begin + encode_frame(w.DATA, w.END_STREAM, 1 + 2 * number, message(b"keep")))
    before = len(bench.transport.written)
    for _, reply in bench.door.kept:
        reply(GrpcReply(b"answer"))
    assert len(bench.transport.written) == before + 1
    assert bench.end().count(b"answer") == calls
    bench.connection.connection_lost(None)


def _conversation() -> bytes:
    encoder, made = Encoder(), w.PREFACE + w.encode_settings({w.INITIAL_WINDOW: 1 << 20})
    made += encode_frame(w.WINDOW_UPDATE, 0, 0, pack_uint32(1 << 20))
    for number in range(6):
        stream, more = 1 + 2 * number, [("grpc-timeout", "9S")] if number % 3 == 1 else []
        whole = encoder.encode(headers("ModelInfer", *more))
        made += encode_frame(w.HEADERS, 0, stream, whole[:3]) + encode_frame(w.CONTINUATION, OPEN, stream, whole[3:])
        data = message((b"big3000", b"hello", b"fail3")[number % 3])
        made += encode_frame(w.DATA, 0, stream, data[:4]) + encode_frame(w.DATA, w.END_STREAM, stream, data[4:])
    return made


async def _spoken(pieces: list[bytes]) -> tuple[bytes, bool]:
    bench = Bench()
    for piece in pieces:
        bench.connection.data_received(piece)
    said = bench.end()
    closing = bench.transport.closing
    bench.connection.connection_lost(None)
    return said, closing


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(0, len(_conversation())), max_size=12))
def test_a_conversation_means_the_same_however_it_is_cut(cuts: list[int]) -> None:
    whole, places = _conversation(), sorted({0, *cuts, len(_conversation())})
    pieces = [whole[a:b] for a, b in itertools.pairwise(places)]
    assert asyncio.run(_spoken(pieces)) == asyncio.run(_spoken([whole]))


@settings(max_examples=50, deadline=None)
@given(st.data())
def test_no_bytes_break_the_connection_itself(data: st.DataObject) -> None:
    """Whatever comes, it is answered or the connection is closed: nothing is raised."""
    whole = bytearray(_conversation())
    for _ in range(data.draw(st.integers(1, 5))):
        at = data.draw(st.integers(24, len(whole)))
        whole[at : at + data.draw(st.integers(0, 4))] = data.draw(st.binary(max_size=6))
    asyncio.run(_spoken([bytes(whole)]))


FRAMES = st.builds(
    encode_frame, st.integers(0, 10), st.integers(0, 255), st.sampled_from((0, 1, 2, 3, 5, 7)), st.binary(max_size=12)
)


@settings(max_examples=50, deadline=None)
@given(st.lists(FRAMES, max_size=12))
def test_no_frames_break_the_connection_itself(frames: list[bytes]) -> None:
    encoder = Encoder()
    begin = encode_frame(w.HEADERS, OPEN, 1, encoder.encode(headers("ModelStreamInfer")))
    begin += encode_frame(w.HEADERS, OPEN, 3, encoder.encode(headers()))
    asyncio.run(_spoken([w.PREFACE + w.encode_settings({}) + begin, *frames]))


NAMES = st.sampled_from(("authorization", "x-a", "x-b", "grpc-timeout", "user-agent"))
VALUES = st.sampled_from(("1S", "a", "b" * 30, "c" * 1000, "Bearer x"))


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.dictionaries(NAMES, VALUES, max_size=3), st.integers(0, 3)), min_size=1, max_size=12))
def test_a_block_means_what_hpack_says_it_means(blocks: list[tuple[dict[str, str], int]]) -> None:
    """Whatever the table goes through, a block that is looked up is what it would be if it were read."""
    encoder, heads, sizes = Encoder(), CallHeadCache(1 << 14), (4096, 0, 100, 200)
    for more, size in blocks:
        if size and len(more) == 3:
            encoder.header_table_size = sizes[size]
        pairs = headers("ModelInfer", *more.items())
        for said in (encoder.encode(pairs), encoder.encode(pairs), encoder.encode(pairs)):
            head = heads.known.get(said) or heads.read(said)
            assert head is not None
            assert {key: value for key, value in head.metadata.items() if key != b"content-type"} == {
                key.encode(): value.encode() for key, value in more.items()
            }


def test_emptying_the_table_and_making_it_large_again_forgets_what_was_known() -> None:
    heads, encoder = CallHeadCache(1 << 14), Encoder()
    first = encoder.encode(headers("ModelInfer", ("x-a", "1")))
    again = encoder.encode(headers("ModelInfer", ("x-a", "1")))
    assert heads.read(first) is not None
    assert heads.read(again) is not None
    assert again in heads.known
    assert first not in heads.known
    heads.skip(b"\x20\x3f\xe1\x1f")
    assert not heads.known
    with pytest.raises(CorruptData):
        heads.read(again)


def test_what_cannot_be_a_header_is_not_sent() -> None:
    for name, value in ((b"a b", b"c"), (b"A", b"c"), (b"a", b"c\r\nd"), (b"", b"x")):
        with pytest.raises(Invalid):
            encode_headers(((name, value),))
    assert encode_status_text("é%\x00" + "x" * 2000).startswith(b"%C3%A9%25%00xxx")
    assert len(encode_status_text("x" * 5000)) == 1000


@settings(max_examples=50, deadline=None)
@given(st.lists(st.binary(max_size=20), max_size=6), st.lists(st.integers(0, 150), max_size=8))
def test_messages_are_found_however_they_are_cut(given_: list[bytes], cuts: list[int]) -> None:
    whole = b"".join(message(one) for one in given_)
    places = sorted({0, len(whole), *(one for one in cuts if one < len(whole))})
    messages, found = MessageReader(b"identity", 100), []
    for begin, end in itertools.pairwise(places):
        found.extend(one for _, one in messages.feed(whole[begin:end]))
    assert found == given_
    assert not messages.within
    assert messages.held == 0


@pytest.mark.parametrize("size", [1, 2, 100])
def test_message_in_tiny_frames_takes_no_more_memory_than_it_has_bytes(size: int) -> None:
    messages, whole = MessageReader(b"identity", 64 << 20), 1 << 20
    data = bytes([1]) * (5 + whole)
    list(messages.feed(b"\0" + whole.to_bytes(4, "big")))
    tracemalloc.start()
    for start in range(0, whole - size, size):
        list(messages.feed(data[start : start + size]))
    held_bytes = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert held_bytes < 2 * whole
    assert next(messages.feed(data))[1] == data[:whole]


def test_pieces_that_came_before_the_caller_is_known_take_no_more_memory_than_they_have_bytes() -> None:
    pieces: list[bytes] = []
    tracemalloc.start()
    for number in range(1 << 18):
        append_piece(pieces, number.to_bytes(4, "big"))
    held_bytes = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert held_bytes < 2 << 20
    assert b"".join(pieces) == b"".join(number.to_bytes(4, "big") for number in range(1 << 18))


def test_one_frame_of_very_many_messages_is_read_in_one_go() -> None:
    whole = message(b"x") * 10_000
    messages = MessageReader(b"identity", 100)
    assert sum(1 for _ in messages.feed(whole)) == 10_000
    with pytest.raises(FalajError):
        list(messages.feed(message(b"x" * 101)))
