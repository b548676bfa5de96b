"""Connections: order, keep-alive, bounds, clients that lie, are slow or go away, and the end of a server."""

import asyncio
import contextlib
import gzip
import http.client
import itertools
import json
import socket
import ssl
import struct
import subprocess
import tracemalloc
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from falaj.oip.handler_calls import HttpAdmission, HttpReply
from falaj.oip.http1_parser import Http1Limits, Http1Parser, RequestHead
from falaj.oip.rest_codec import status_reply
from tests.oip.grpc_serving import certificate, secured
from tests.oip.serving import Mirror, Running, running
from tests.servers.process import wait_until

HOST = b"Host: here\r\n"
SMALL = Http1Limits(body_bytes=1000, head_bytes=2000, headers=20)


@pytest.fixture(scope="module")
def small() -> Iterator[Running]:
    with running(Mirror(), SMALL) as here:
        yield here


@pytest.fixture
def mirror() -> Mirror:
    return Mirror()


@pytest.fixture
def here(mirror: Mirror) -> Iterator[Running]:
    with running(mirror) as server:
        yield server


def post(path: bytes, body: bytes, *more: bytes) -> bytes:
    lines = [b"POST " + path + b" HTTP/1.1", b"Host: here", b"Content-Length: %d" % len(body), *more]
    return b"\r\n".join([*lines, b"", body])


GET = b"GET /a HTTP/1.1\r\n" + HOST + b"\r\n"

POST = b"POST / HTTP/1.1\r\n" + HOST
CHUNKED = POST + b"Transfer-Encoding: chunked\r\n\r\n"

REFUSED = {
    "no HTTP": (b"hello\r\n\r\n", 400),
    "HTTP/0.9": (b"GET /\r\n\r\n", 400),
    "HTTP/2 preface": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400),
    "HTTP/3.1": (b"GET / HTTP/3.1\r\n" + HOST + b"\r\n", 400),
    "no host": (b"GET / HTTP/1.1\r\n\r\n", 400),
    "two hosts": (b"GET / HTTP/1.1\r\n" + HOST + HOST + b"\r\n", 400),
    "bare LF": (b"GET / HTTP/1.1\nHost: here\n\n", 400),
    "folded header": (b"GET / HTTP/1.1\r\nHost: here\r\n more\r\n\r\n", 400),
    "space before colon": (b"GET / HTTP/1.1\r\nHost : here\r\n\r\n", 400),
    "NUL in a header": (b"GET / HTTP/1.1\r\nHost: he\0re\r\n\r\n", 400),
    "NUL in the path": (b"GET /\0 HTTP/1.1\r\n" + HOST + b"\r\n", 400),
    "length and chunked": (POST + b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n", 400),
    "chunked and length": (POST + b"Transfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n", 400),
    "two lengths": (POST + b"Content-Length: 3\r\nContent-Length: 4\r\n\r\nabcd", 400),
    "two equal lengths": (POST + b"Content-Length: 3\r\nContent-Length: 3\r\n\r\nabc", 400),
    "length with sign": (POST + b"Content-Length: +3\r\n\r\nabc", 400),
    "negative length": (POST + b"Content-Length: -3\r\n\r\nabc", 400),
    "hex length": (POST + b"Content-Length: 0x3\r\n\r\nabc", 400),
    "list of lengths": (POST + b"Content-Length: 3, 3\r\n\r\nabc", 400),
    "length too large for anything": (POST + b"Content-Length: %d\r\n\r\n" % 10**30, 400),
    "length above the bound": (POST + b"Content-Length: 1001\r\n\r\n", 413),
    "gzip, chunked": (POST + b"Transfer-Encoding: gzip, chunked\r\n\r\n", 501),
    "chunked, gzip": (POST + b"Transfer-Encoding: chunked, gzip\r\n\r\n", 400),
    "chunked twice": (
        POST + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400,
    ),
    "xchunked": (POST + b"Transfer-Encoding: xchunked\r\n\r\n", 501),
    "chunked in HTTP/1.0": (b"POST / HTTP/1.0\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 501),
    "chunk size no number": (CHUNKED + b"zz\r\n", 400),
    "chunk size too large": (CHUNKED + b"f" * 17 + b"\r\n", 400),
    "chunk longer than it says": (CHUNKED + b"1\r\nabc\r\n", 400),
    "chunks above the bound": (
        CHUNKED + b"1f4\r\n%b\r\n" % (b"x" * 500) * 3, 413,
    ),
    "endless header": (b"GET / HTTP/1.1\r\nx: " + b"a" * 3000, 431),
    "endless path": (b"GET /" + b"a" * 3000, 431),
    "many headers": (b"GET / HTTP/1.1\r\n" + HOST + b"".join(b"x%d: 1\r\n" % i for i in range(30)) + b"\r\n", 431),
    "large trailers": (
        CHUNKED + b"0\r\n" + b"x: %b\r\n" % (b"a" * 900) * 5, 431,
    ),
    "unknown content encoding": (post(b"/", b"abc", b"Content-Encoding: br"), 415),
    "two content encodings": (post(b"/", b"abc", b"Content-Encoding: gzip, gzip"), 415),
    "unknown expectation": (post(b"/", b"abc", b"Expect: 200-ok"), 417),
    "upgrade": (b"GET / HTTP/1.1\r\n" + HOST + b"Connection: upgrade\r\nUpgrade: h2c\r\n\r\n", 400),
    "websocket": (b"GET / HTTP/1.1\r\n" + HOST + b"Connection: upgrade\r\nUpgrade: websocket\r\n\r\n", 400),
    "connect": (b"CONNECT here:443 HTTP/1.1\r\n" + HOST + b"\r\n", 400),
    "two authorizations": (b"GET / HTTP/1.1\r\n" + HOST + b"Authorization: a\r\nauthorization: b\r\n\r\n", 400),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.parametrize("before", [b"", GET], ids=["first", "second"])
def test_what_breaks_the_rules_is_told_so_and_closed(small: Running, name: str, before: bytes) -> None:
    said, status = REFUSED[name]
    with small.connect() as client:
        client.say(before + said)
        answers = client.hear(3)
        if before:
            assert answers.pop(0)[2] == b"GET /a "
        assert [one[0] for one in answers] == [status]
        assert list(json.loads(answers[0][2])) == ["error"]
        assert answers[0][1]["connection"] == "close"
        assert client.closed()


ANSWERED = {
    "get": (GET, [b"GET /a "]),
    "query": (b"GET /a?b=c HTTP/1.1\r\n" + HOST + b"\r\n", [b"GET /a "]),
    "absolute": (b"GET http://here/a/b?c HTTP/1.1\r\n" + HOST + b"\r\n", [b"GET /a/b "]),
    "leading lines": (b"\r\n\r\n" + GET, [b"GET /a "]),
    "body": (post(b"/p", b"body"), [b"POST /p body"]),
    "body that looks like a request": (post(b"/p", GET) + GET, [b"POST /p " + GET, b"GET /a "]),
    "get with a body": (b"GET /g HTTP/1.1\r\n" + HOST + b"Content-Length: 2\r\n\r\nhi", [b"GET /g hi"]),
    "chunks": (
        CHUNKED + b"2\r\nab\r\n3;ext=1\r\ncde\r\n0\r\nx: y\r\n\r\n" + GET,
        [b"POST / abcde", b"GET /a "],
    ),
    "pipelined": (GET * 20, [b"GET /a "] * 20),
    "identity": (post(b"/p", b"abc", b"Content-Encoding: identity"), [b"POST /p abc"]),
    "gzip": (post(b"/p", gzip.compress(b"abc"), b"Content-Encoding: gzip"), [b"POST /p abc"]),
    "deflate": (post(b"/p", zlib.compress(b"abc"), b"Content-Encoding: Deflate"), [b"POST /p abc"]),
}  # fmt: skip


@pytest.mark.parametrize("name", ANSWERED)
@pytest.mark.parametrize("step", [0, 1, 7])
def test_requests_are_answered_in_order_and_the_connection_lives_on(small: Running, name: str, step: int) -> None:
    said, bodies = ANSWERED[name]
    with small.connect() as client:
        for _ in range(2):  # the second time the heads are known
            for at in range(0, len(said), step or len(said)):
                client.say(said[at : at + (step or len(said))])
            answers = client.hear(len(bodies))
            assert [(one[0], one[2]) for one in answers] == [(200, body) for body in bodies]
            assert all("connection" not in one[1] for one in answers)


def test_http_1_0_and_close_end_the_connection(here: Running) -> None:
    for said, told in (
        (b"GET /a HTTP/1.0\r\n\r\n", "close"),
        (b"GET /a HTTP/1.1\r\nHost: here\r\nConnection: close\r\n\r\n" + GET, "close"),
    ):
        for _ in range(2):
            with here.connect() as client:
                client.say(said)
                ((status, headers, body),) = client.hear(2)
                assert (status, headers["connection"], body) == (200, told, b"GET /a ")
    with here.connect() as client:
        client.say(b"GET /a HTTP/1.0\r\nConnection: keep-alive\r\n\r\n")
        assert client.hear()[0][1]["connection"] == "keep-alive"
        client.say(GET)
        assert client.hear()[0][0] == 200


def test_head_has_the_length_and_no_body(here: Running) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", here.port, timeout=20)
    for _ in range(2):
        connection.request("HEAD", "/a")
        answer = connection.getresponse()
        assert (answer.status, answer.headers["content-length"], answer.read()) == (200, "8", b"")
    connection.close()


def test_answers_keep_the_order_of_requests(here: Running, mirror: Mirror) -> None:
    with here.connect() as client:
        client.say(b"".join(b"GET /later/%d HTTP/1.1\r\n%b\r\n" % (i, HOST) for i in range(5)) + GET)
        wait_until(lambda: len(mirror.kept) == 5, 20)
        for i in (3, 0, 4, 2, 1):
            call, reply = mirror.kept[i]
            here.do(lambda call=call, reply=reply: reply(HttpReply(200, (call.path,))))  # type: ignore[misc]
            here.do(lambda reply=reply: reply(HttpReply(500, (b"again",))))  # type: ignore[misc]
        bodies = [one[2] for one in client.hear(6)]
    assert bodies == [b"/later/%d" % i for i in range(5)] + [b"GET /a "]


def test_who_went_away_is_not_worked_for(here: Running, mirror: Mirror) -> None:
    with here.connect() as client:
        client.say(b"GET /later HTTP/1.1\r\n%b\r\n" % HOST)
        wait_until(lambda: len(mirror.kept) == 1, 20)
    # A closed socket reads as the end of what is sent; only a reset says that nobody reads any more.
    reply = mirror.kept[0][1]
    here.do(lambda: reply(HttpReply(200, (b"x",))))
    wait_until(lambda: not here.do(lambda: len(here.server.connections)), 20)
    client = here.connect()
    client.say(b"GET /later/2 HTTP/1.1\r\n%b\r\n" % HOST)
    wait_until(lambda: len(mirror.kept) == 2, 20)
    client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # close with a reset
    client.socket.close()
    wait_until(lambda: mirror.gone == [b"/later/2"], 20)
    here.do(lambda: mirror.kept[1][1](HttpReply(200, (b"nobody hears it",))))


def test_a_client_may_stop_sending_and_still_read(here: Running, mirror: Mirror) -> None:
    with here.connect() as client:
        client.say(b"GET /later HTTP/1.1\r\n%b\r\n" % HOST)
        wait_until(lambda: len(mirror.kept) == 1, 20)
        client.socket.shutdown(socket.SHUT_WR)
        here.do(lambda: mirror.kept[0][1](HttpReply(200, (b"late",))))
        assert [one[2] for one in client.hear(2)] == [b"late"]


def test_bodies_wait_for_the_word_to_go_on(here: Running) -> None:
    with here.connect() as client:
        client.say(b"POST /p HTTP/1.1\r\nHost: here\r\nContent-Length: 3\r\nExpect: 100-continue\r\n\r\n")
        assert client.socket.recv(100) == b"HTTP/1.1 100 Continue\r\n\r\n"
        client.say(b"abc")
        assert client.hear()[0][2] == b"POST /p abc"


def test_so_many_requests_at_once_and_no_more_is_read(mirror: Mirror) -> None:
    with running(mirror, Http1Limits(pipelined=4)) as here, here.connect() as client:
        asked = b"".join(b"GET /later/%d HTTP/1.1\r\n%b\r\n" % (i, HOST) for i in range(40)) + b"no HTTP\r\n\r\n"
        client.say(asked)
        client.socket.shutdown(socket.SHUT_WR)
        for i in range(40):
            wait_until(lambda i=i: len(mirror.kept) > i, 20)  # type: ignore[misc]
            here.do(lambda: None)
            assert len(mirror.kept) <= i + 4
            here.do(lambda i=i: mirror.kept[i][1](HttpReply(200, (mirror.kept[i][0].path,))))  # type: ignore[misc]
        heard = client.hear(50)
    assert [one[2] for one in heard[:-1]] == [b"/later/%d" % i for i in range(40)]
    assert heard[-1][0] == 400


def test_nothing_in_a_header_ends_it(here: Running) -> None:
    with here.connect() as client:
        client.say(b"GET /split HTTP/1.1\r\n%b\r\n" % HOST)
        (answer,) = client.hear()
    assert answer[1]["x-id"] == "1set-cookie: evil"
    assert "set-cookie" not in answer[1]


BOMBS = {
    "bomb": (gzip.compress(bytes(1 << 24)), b"gzip", 413),
    "bomb of zlib": (zlib.compress(bytes(1 << 24)), b"deflate", 413),
    "no gzip": (b"hello", b"gzip", 400),
    "cut": (gzip.compress(b"hello" * 100)[:-9], b"gzip", 400),
    "wrong checksum": (gzip.compress(b"hello")[:-8] + bytes(8), b"gzip", 400),
    "more behind": (gzip.compress(b"hello") + b"junk", b"gzip", 400),
    "empty": (b"", b"gzip", 400),
}


@pytest.mark.parametrize("name", BOMBS)
def test_what_cannot_be_unpacked_is_refused_and_the_connection_lives(name: str) -> None:
    body, coding, status = BOMBS[name]
    for most in (1 << 12, 1 << 23):
        with running(Mirror(), Http1Limits(body_bytes=max(most, len(body)))) as here, here.connect() as client:
            client.say(post(b"/", body, b"Content-Encoding: " + coding) + GET)
            answers = client.hear(2)
            assert [one[0] for one in answers] == [status, 200]
            assert list(json.loads(answers[0][2])) == ["error"]


def test_large_bodies_travel_packed_both_ways(here: Running) -> None:
    body = bytes(range(256)) * 20_000
    for coding, unpack in ((b"gzip", gzip.decompress), (b"deflate", zlib.decompress)):
        packed = gzip.compress(body, 1) if coding == b"gzip" else zlib.compress(body, 1)
        with here.connect() as client:
            client.say(post(b"/p", packed, b"Content-Encoding: " + coding, b"Accept-Encoding: " + coding) + GET)
            answers = client.hear(2)
        assert answers[0][1]["content-encoding"] == coding.decode()
        assert unpack(answers[0][2]) == b"POST /p " + body
        assert answers[1][2] == b"GET /a "


@pytest.mark.parametrize(
    ("accepts", "coding"),
    [(b"gzip", "gzip"), (b"gzip, deflate, br", None), (b"identity", None), (b"gzip;q=0", None), (b"*", None)],
)
def test_small_answers_are_packed_only_for_who_asks_for_nothing_else(
    here: Running, accepts: bytes, coding: str | None
) -> None:
    with here.connect() as client:
        client.say(post(b"/p", b"abc", b"Accept-Encoding: " + accepts))
        assert client.hear()[0][1].get("content-encoding") == coding


def test_slow_senders_and_idle_connections_are_ended() -> None:
    limits = Http1Limits(head_s=0.2, idle_s=0.2, keep_s=0.2)
    with running(Mirror(), limits) as here:
        begins = {
            "head": b"GET / HT",
            "body": b"POST / HTTP/1.1\r\nHost: here\r\nContent-Length: 9\r\n\r\nab",
            "idle": b"",
        }
        clients = {name: here.connect() for name in begins}
        for name, begin in begins.items():
            clients[name].say(begin)
        told = {name: [one[0] for one in client.hear(2)] for name, client in clients.items()}
        assert all(client.closed() for client in clients.values())
        # Also of those who do not go when they are told.
        wait_until(lambda: not here.do(lambda: here.server.connections), 20)
        for client in clients.values():
            client.socket.close()
    assert told == {"head": [408], "body": [408], "idle": []}


def test_who_sends_a_byte_now_and_then_is_ended_all_the_same() -> None:
    with running(Mirror(), Http1Limits(head_s=0.5)) as here, here.connect() as client:
        client.socket.settimeout(0.05)
        heard: list[bytes] = []
        while not heard:
            client.say(b"x: y\r\n" if client.said else b"GET / HTTP/1.1\r\n")
            with contextlib.suppress(TimeoutError):
                heard.append(client.socket.recv(100))
        assert heard[0].startswith(b"HTTP/1.1 408")


def test_who_does_not_read_is_not_read_from_and_then_ended() -> None:
    with running(Mirror(), Http1Limits(idle_s=0.5)) as here, here.connect() as client:
        client.say(b"GET /big HTTP/1.1\r\n%b\r\n" % HOST * 8)
        wait_until(lambda: not here.do(lambda: here.server.connections), 20)


def test_who_is_made_to_wait_is_not_late(mirror: Mirror) -> None:
    """Bytes that we do not read are no fault of the client."""
    with running(mirror, Http1Limits(pipelined=1, idle_s=0.2, head_s=0.2)) as here, here.connect() as client:
        client.say(b"GET /later HTTP/1.1\r\n%b\r\nGET /a HT" % HOST)
        wait_until(lambda: len(mirror.kept) == 1, 20)
        begun = here.do(here.loop.time)
        wait_until(lambda: here.do(here.loop.time) > begun + 2.2, 20)
        client.say(b"TP/1.1\r\n%b\r\n" % HOST)
        here.do(lambda: mirror.kept[0][1](HttpReply(200, (b"x",))))
        assert [one[0] for one in client.hear(2)] == [200, 200]


def test_who_reads_gets_all_of_it(here: Running) -> None:
    with here.connect() as client:
        client.say(b"GET /big HTTP/1.1\r\n%b\r\n" % HOST * 3 + GET)
        assert [len(one[2]) for one in client.hear(4)] == [1 << 24] * 3 + [7]


def test_connections_are_bounded() -> None:
    with running(Mirror(), Http1Limits(connections=2)) as here:
        clients = [here.connect() for _ in range(3)]
        for client in clients:
            client.say(GET)
        assert sorted(client.hear()[0][0] for client in clients) == [200, 200, 503]
        for client in clients:
            client.socket.close()


def test_a_drain_answers_what_was_asked_and_closes_what_is_idle() -> None:
    mirror = Mirror()
    with running(mirror) as here:
        busy, idle, next_one = here.connect(), here.connect(), here.connect()
        busy.say(b"GET /later HTTP/1.1\r\n%b\r\n" % HOST)
        next_one.say(GET)
        assert next_one.hear()[0][0] == 200
        wait_until(lambda: len(mirror.kept) == 1, 20)
        draining = asyncio.run_coroutine_threadsafe(here.server.drain(20), here.loop)
        here.do(lambda: None)  # it has begun
        next_one.say(GET)
        assert next_one.hear()[0][1].get("connection") == "close"
        assert idle.closed()
        assert not draining.done()
        with pytest.raises(ConnectionRefusedError):
            here.connect()
        here.do(lambda: mirror.kept[0][1](HttpReply(200, (b"done",))))
        ((_, headers, body),) = busy.hear(2)
        assert (headers["connection"], body) == ("close", b"done")
        draining.result(20)
        for client in (busy, idle, next_one):
            client.socket.close()


def test_one_that_goes_answers_on_and_each_answer_is_the_last_of_its_connection() -> None:
    with running(Mirror()) as here:
        known = here.connect()
        known.say(GET)
        assert known.hear()[0][1].get("connection") != "close"
        going = asyncio.run_coroutine_threadsafe(here.server.linger(600), here.loop)
        here.do(lambda: None)  # it has begun
        fresh = here.connect()
        for client in (known, fresh):
            client.say(GET)
            ((status, headers, _),) = client.hear()
            assert (status, headers.get("connection")) == (200, "close")
            assert client.closed()
            client.socket.close()
        going.cancel()


def test_tls(tmp_path: Path) -> None:
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    made = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2"]
    name = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"]
    subprocess.run([*made, *name, "-keyout", key, "-out", cert], check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)
    with running(Mirror(), SMALL, context) as here:
        trusting = ssl.create_default_context(cafile=cert)
        connection = http.client.HTTPSConnection("localhost", here.port, timeout=20, context=trusting)
        for _ in range(2):
            connection.request("POST", "/p", b"abc")
            assert connection.getresponse().read() == b"POST /p abc"
        connection.request("POST", "/p", b"a" * 1001)
        assert connection.getresponse().status == 413
        connection.close()
        with here.connect() as plain:
            plain.say(GET)
            assert plain.closed()


BODIES = st.binary(max_size=60)
CODED = st.sampled_from(["length", "chunks"])
STREAM = st.lists(st.tuples(st.sampled_from([b"/a", b"/b?c", b"/later"]), BODIES, CODED), min_size=1, max_size=6)


def wire(path: bytes, body: bytes, how: str) -> bytes:
    if how == "length":
        return post(path, body)
    chunks = b"".join(b"%x\r\n%b\r\n" % (len(body[i : i + 7]), body[i : i + 7]) for i in range(0, len(body), 7))
    return b"POST %b HTTP/1.1\r\n%bTransfer-Encoding: chunked\r\n\r\n%b0\r\n\r\n" % (path, HOST, chunks)


@given(STREAM, st.lists(st.integers(0, 2000), max_size=8))
@settings(max_examples=150, deadline=None)
def test_requests_are_the_same_however_their_bytes_are_cut(
    stream: list[tuple[bytes, bytes, str]], cuts: list[int]
) -> None:
    data = b"".join(wire(*one) for one in stream)
    wanted = [(path.partition(b"?")[0], body) for path, body, _ in stream]
    heads: dict[bytes, RequestHead] = {}
    for places in ([], sorted(cuts), []):
        requests = Http1Parser(SMALL, heads)
        edges = [0, *(min(one, len(data)) for one in places), len(data)]
        found = [one for a, b in itertools.pairwise(edges) for one in requests.feed(data[a:b])]
        assert [(head.path, body) for head, body, _ in found] == wanted
        assert requests.refusal is None
        assert not requests.within


PIECES = st.one_of(
    st.binary(max_size=30),
    st.sampled_from([one for one, _ in REFUSED.values()] + [one for one, _ in ANSWERED.values()]),
    st.sampled_from([b"\r\n", b"\r\n\r\n", b"0\r\n\r\n", b"Content-Length: 5\r\n", b"GET / HTTP/1.1\r\n", HOST]),
)


@given(st.lists(PIECES, max_size=8), st.integers(1, 300), st.integers(0, 5), st.binary(max_size=4))
@settings(max_examples=300, deadline=None)
def test_no_bytes_break_a_connection(pieces: list[bytes], step: int, at: int, odd: bytes) -> None:
    """Whatever comes: requests, at most one refusal, and the same from a head that is known as from one that is not."""
    data = b"".join(pieces)
    data = data[:at] + odd + data[at + len(odd) :]
    told = []
    for heads in ({}, KNOWN):
        requests = Http1Parser(SMALL, heads)
        found: list[tuple[bytes, bytes, bytes, bytes]] = []
        for begin in range(0, len(data), step):
            new = requests.feed(data[begin : begin + step])
            found += [(head.method, head.path, repr(head.headers).encode(), body) for head, body, _ in new]
            if requests.refusal is not None or any(not head.keep for head, _, _ in new):
                break
        told.append((found, requests.refusal.status if requests.refusal else 0))
    closing = any(b"close" in one[2] for one in told[0][0])
    assert told[0][0] == told[1][0]
    assert told[0][1] == told[1][1] or closing


KNOWN: dict[bytes, RequestHead] = {}


@given(st.lists(PIECES, max_size=6), st.sampled_from([0, 1, 40]))
@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_bytes_break_a_server(small: Running, pieces: list[bytes], step: int) -> None:
    """Whatever comes over a socket, answers are whole, and the next client is answered."""
    data = b"".join(pieces)[:400].replace(b"later", b"other")
    with small.connect() as client:
        for begin in range(0, len(data), step or 1000):
            client.say(data[begin : begin + (step or 1000)])
        with contextlib.suppress(OSError):
            client.socket.shutdown(socket.SHUT_WR)
        statuses = [one[0] for one in client.hear(1000)]
    assert set(statuses) <= {200, 400, 408, 413, 415, 417, 431, 501}
    with small.connect() as client:
        client.say(GET)
        assert client.hear()[0][2] == b"GET /a "


class Guarded(Mirror):
    """A door for holders of one token, who are looked up when somebody says so."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[Callable[[HttpAdmission], Any]] = []

    def judge(self, head: RequestHead, peer: str, decide: Callable[[HttpAdmission], Any]) -> HttpAdmission | None:
        if b"authorization" not in head.headers:
            return status_reply(401, "no token", "send one")
        if head.headers[b"authorization"] == b"slow":
            self.asked.append(decide)
            return None
        return "amal"

    def vouch(self, headers: Mapping[bytes, bytes]) -> bool:
        return b"authorization" in headers


def _unfinished(*lines: bytes) -> bytes:
    return POST + b"".join(line + b"\r\n" for line in (b"Content-Length: 100000", *lines)) + b"\r\n" + b"x" * 50_000


def test_nothing_is_read_while_the_sender_is_looked_up() -> None:
    door = Guarded()
    with running(door) as here, here.connect() as client:
        client.say(_unfinished(b"Authorization: slow"))
        wait_until(lambda: len(door.asked) == 1, 20)
        client.say(b"x" * 50_000)
        assert here.do(lambda: here.server.budget.by_principal) == {"": 50_000}
        here.do(lambda: door.asked[0]("amal"))
        assert [one[0] for one in client.hear()] == [200]
        wait_until(lambda: here.server.budget.reserved == 0, 20)


def test_a_sender_who_is_refused_later_is_told_so_and_closed() -> None:
    door = Guarded()
    with running(door) as here, here.connect() as client:
        client.say(_unfinished(b"Authorization: slow"))
        wait_until(lambda: len(door.asked) == 1, 20)
        here.do(lambda: door.asked[0](status_reply(401, "unknown", "sign in")))
        assert [one[0] for one in client.hear(2)] == [401]
        assert client.closed()
        assert here.do(lambda: here.server.budget.reserved) == 0


def test_strangers_make_room_the_longest_idle_first() -> None:
    with running(Guarded(), Http1Limits(connections=4)) as here, contextlib.ExitStack() as stack:
        clients = [stack.enter_context(here.connect()) for _ in range(4)]
        for number, client in enumerate(clients):
            client.say(post(b"/p", b"hi", b"Authorization: a") if number < 2 else post(b"/p", b"hi"))
            assert client.hear()[0][0] == 200
            answered = here.do(here.loop.time)
            wait_until(lambda answered=answered: here.do(here.loop.time) > answered, 20)
        newest = stack.enter_context(here.connect())
        newest.say(GET)
        assert newest.hear()[0][0] == 200
        assert clients[2].closed()
        for client in (clients[0], clients[1], clients[3]):
            client.say(post(b"/p", b"hi", b"Authorization: a"))
            assert client.hear()[0][0] == 200


def test_handshakes_that_never_end_make_room(tmp_path: Path) -> None:
    cert, key = certificate(tmp_path)
    trusting = ssl.create_default_context(cafile=cert)
    with running(Guarded(), Http1Limits(connections=8), secured(cert, key)) as here, contextlib.ExitStack() as stack:
        for _ in range(40):
            stack.enter_context(socket.create_connection(("127.0.0.1", here.port), timeout=20))
        plain = socket.create_connection(("127.0.0.1", here.port), timeout=20)
        with trusting.wrap_socket(plain, server_hostname="localhost") as connection:
            connection.sendall(GET)
            assert connection.recv(1 << 16).startswith(b"HTTP/1.1 200 ")
        assert here.do(lambda: len(here.server.connections)) <= 9


def test_one_peer_has_its_share_of_connections() -> None:
    with running(Mirror(), Http1Limits(peer_connections=2)) as here, here.connect() as first, here.connect() as second:
        for client in (first, second):
            client.say(GET)
            assert client.hear()[0][0] == 200
        with here.connect() as third:
            assert third.hear()[0][0] == 503


def test_a_head_that_comes_before_its_body_is_known_again() -> None:
    head = b"POST /v2 HTTP/1.1\r\nhost: x\r\ncontent-length: 4\r\n\r\n"
    heads: dict[bytes, RequestHead] = {}
    found = []
    for body in (b"one.", b"two."):
        requests = Http1Parser(SMALL, heads)
        assert requests.feed(head) == []
        found += requests.feed(body)
    assert [body for _, body, _ in found] == [b"one.", b"two."]
    assert found[0][0] is found[1][0]


def test_body_in_tiny_segments_takes_no_more_memory_than_it_has_bytes() -> None:
    requests, whole = Http1Parser(Http1Limits(), {}), 1 << 18
    requests.feed(b"POST /a HTTP/1.1\r\n%bContent-Length: %d\r\n\r\n" % (HOST, whole))
    requests.admit("bank/amal")
    tracemalloc.start()
    for number in range(whole // 2 - 1):
        requests.feed((number % 60_000).to_bytes(2, "big"))
    held_bytes = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert held_bytes < 2 * whole
    ((_, body, _),) = requests.feed(b"ab")
    assert body == b"".join((number % 60_000).to_bytes(2, "big") for number in range(whole // 2 - 1)) + b"ab"
