"""Proves the threat-model row "hostile HTTP/1.1 and HTTP/2 bytes confuse, stop or exhaust a listener".

Every case goes over a socket to the gateway and to the API in a process of their own. A case is answered with an error
or ends the connection, never reaches past its own request, and all of them together grow the process by less than a
fixed bound.
"""

import contextlib
import gzip
import json
import re
import socket
from collections.abc import Iterator

import httpx
import pytest
from hpack import Encoder
from hpack.hpack import encode_integer

from falaj.oip import http2_frames as w
from tests.oip.grpc_serving import Client, headers
from tests.oip.test_http1 import REFUSED
from tests.security.attacks.gateway_process import INFER, LIMIT_BYTES, GatewayProcess, running_gateway

FRAMING = (
    "bare LF",
    "folded header",
    "space before colon",
    "NUL in a header",
    "NUL in the path",
    "length and chunked",
    "chunked and length",
    "two lengths",
    "two equal lengths",
    "length with sign",
    "negative length",
    "hex length",
    "list of lengths",
    "length too large for anything",
    "gzip, chunked",
    "chunked, gzip",
    "chunked twice",
    "xchunked",
    "chunked in HTTP/1.0",
    "chunk size no number",
    "chunk size too large",
    "chunk longer than it says",
)
"""Cases of the parser's own tests in which two readers of the same bytes could disagree where a request ends."""
PROBE = b"GET /v2/health/live HTTP/1.1\r\nHost: localhost\r\n\r\n"
STATUS = re.compile(rb"HTTP/1\.[01] (\d{3}) ")
DEEP = b"[" * 200_000 + b"]" * 200_000
FRAMES = 20_000
"""Frames of a flood; the server allows a burst of a thousand that bring nothing."""


@pytest.fixture(scope="module")
def target() -> Iterator[GatewayProcess]:
    """The process; its growth over all cases of this module is bounded."""
    with running_gateway() as running:
        for address in (running.http, running.api):
            httpx.get(f"http://{address[0]}:{address[1]}/v2/health/live", trust_env=False)
        before = running.forget_peak()
        yield running
        assert running.peak() - before < LIMIT_BYTES


@pytest.fixture(params=["gateway", "api"])
def address(target: GatewayProcess, request: pytest.FixtureRequest) -> tuple[str, int]:
    return target.http if request.param == "gateway" else target.api


def exchange(address: tuple[str, int], data: bytes) -> list[int]:
    """Send everything and no more; the statuses of all answers until the server closes."""
    with socket.create_connection(address, timeout=60) as connection:
        answer = b""
        with contextlib.suppress(OSError):
            connection.sendall(data)
            connection.shutdown(socket.SHUT_WR)
        with contextlib.suppress(ConnectionError):
            while piece := connection.recv(1 << 16):
                answer += piece
    return [int(status) for status in STATUS.findall(answer)]


def alive(address: tuple[str, int]) -> bool:
    """True when another client is answered."""
    return httpx.get(f"http://{address[0]}:{address[1]}/v2/health/live", trust_env=False, timeout=30).status_code < 500


@pytest.mark.parametrize("name", FRAMING)
def test_a_request_behind_ambiguous_framing_is_not_answered(address: tuple[str, int], name: str) -> None:
    host = b"Host: %s:%d\r\n" % (address[0].encode(), address[1])
    data = REFUSED[name][0].replace(b"Host: here\r\n", host)
    statuses = exchange(address, data + PROBE.replace(b"Host: localhost\r\n", host))
    assert len(statuses) <= 1, statuses
    assert all(status >= 400 for status in statuses), statuses
    assert alive(address)


def _post(body: bytes, *lines: bytes, path: str = INFER) -> bytes:
    head = b"".join(line + b"\r\n" for line in (b"Content-Length: %d" % len(body), *lines))
    return b"POST " + path.encode() + b" HTTP/1.1\r\nHost: localhost\r\n" + head + b"\r\n" + body


CHUNKED = b"POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
BOMBS = {
    "endless header": b"GET / HTTP/1.1\r\nHost: localhost\r\nx: " + b"a" * (8 << 20),
    "endless path": b"GET /" + b"a" * (8 << 20),
    "endless chunk extension": CHUNKED + b"1;" + b"a" * (8 << 20),
    "chunks of one byte": CHUNKED + b"1\r\na\r\n" * 500_000,
    "endless trailers": CHUNKED + b"0\r\n" + b"x: y\r\n" * 500_000,
    "hundred thousand headers": b"GET / HTTP/1.1\r\nHost: localhost\r\n" + b"x: y\r\n" * 100_000 + b"\r\n",
    "one gzip bomb": _post(gzip.compress(bytes(64 << 20), 9), b"Content-Encoding: gzip"),
    "bomb in a bomb": _post(gzip.compress(gzip.compress(bytes(64 << 20), 9)), b"Content-Encoding: gzip, gzip"),
    "deep JSON": _post(DEEP, b"Content-Type: application/json", path="/v1/people/whoami"),
    "empty lines": b"\r\n" * 2_000_000,
    "pipelined without end": PROBE.replace(b"health/live", b"absent") * 50_000,
}


@pytest.mark.parametrize("name", BOMBS)
def test_bombs_without_a_token_are_refused(address: tuple[str, int], name: str) -> None:
    assert all(status >= 400 for status in exchange(address, BOMBS[name]))
    assert alive(address)


@pytest.mark.parametrize("body", [DEEP, b'{"a":' * 100_000 + b"1" + b"}" * 100_000, b'{"inputs":' + DEEP + b"}"])
def test_deep_json_of_a_caller_is_an_error_of_theirs(target: GatewayProcess, body: bytes) -> None:
    token = {"authorization": f"Bearer {target.tokens['amal']}", "content-type": "application/json"}
    url = f"http://{target.api[0]}:{target.api[1]}/v1/people/whoami"
    assert httpx.post(url, content=body, headers=token, trust_env=False, timeout=60).status_code == 400


def test_numbers_that_overflow_are_errors_of_the_caller(target: GatewayProcess) -> None:
    token = {"authorization": f"Bearer {target.tokens['amal']}", "content-type": "application/json"}
    url = f"http://{target.api[0]}:{target.api[1]}/v1/people/list"
    for value in ("1e400", "-1e400", "9" * 5000, "NaN", '"\\ud800"'):
        answer = httpx.post(url, content=f'{{"prefix": {value}}}', headers=token, trust_env=False, timeout=60)
        assert answer.status_code == 400, value


# ---- HTTP/2


def _literal(name: bytes, value: bytes, first: int = 0x40) -> bytes:
    return bytes([first]) + bytes(encode_integer(len(name), 7)) + name + bytes(encode_integer(len(value), 7)) + value


def _hpack_bomb() -> bytes:
    """One entry of 4000 bytes in the table, and sixteen thousand references to it."""
    block = _literal(b"x", b"a" * 3900) + b"\xbe" * 12_000
    return w.encode_frame(w.HEADERS, w.END_HEADERS | w.END_STREAM, 1, block)


def _open(stream: int, *more: tuple[str, str], flags: int = w.END_HEADERS) -> bytes:
    return w.encode_frame(w.HEADERS, flags, stream, Encoder().encode(headers("ModelInfer", *more)))


CANCEL = w.pack_uint32(w.CANCEL)
FLOODS = {
    "no HTTP/2": b"GET / HTTP/1.1\r\n\r\n" * 1000,
    "HPACK bomb": _hpack_bomb(),
    "HPACK integer overflow": w.encode_frame(w.HEADERS, w.END_HEADERS, 1, b"\xff" * 9000),
    "HPACK table of a gigabyte": w.encode_frame(w.HEADERS, w.END_HEADERS, 1, b"\x3f" + b"\xff" * 4 + b"\x07"),
    "CONTINUATION without end": w.encode_frame(w.HEADERS, 0, 1, b"\x82")
    + w.encode_frame(w.CONTINUATION, 0, 1, b"") * FRAMES,
    "CONTINUATION of much": w.encode_frame(w.HEADERS, 0, 1, b"\x82")
    + w.encode_frame(w.CONTINUATION, 0, 1, bytes(16384)) * 500,
    "rapid reset": b"".join(
        _open(stream, flags=w.END_HEADERS) + w.encode_frame(w.RST_STREAM, 0, stream, CANCEL)
        for stream in range(1, FRAMES, 2)
    ),
    "reset by a window that overflows": b"".join(
        _open(stream) + w.encode_frame(w.WINDOW_UPDATE, 0, stream, w.pack_uint32(w.MAX_WINDOW))
        for stream in range(1, FRAMES, 2)
    ),
    "reset by an empty window": b"".join(
        _open(stream) + w.encode_frame(w.WINDOW_UPDATE, 0, stream, w.pack_uint32(0)) for stream in range(1, FRAMES, 2)
    ),
    "settings": w.encode_settings({w.INITIAL_WINDOW: 1}) * FRAMES,
    "pings": w.encode_frame(w.PING, 0, 0, b"12345678") * FRAMES,
    "priorities": w.encode_frame(w.PRIORITY, 0, 1, bytes(5)) * FRAMES,
    "empty data": _open(1) + w.encode_frame(w.DATA, 0, 1) * FRAMES,
    "padding": _open(1) + w.encode_frame(w.DATA, w.PADDED, 1, b"\xff" + bytes(255)) * FRAMES,
    "unknown frames": w.encode_frame(200, 0, 0, b"x") * FRAMES,
    "push promise": w.encode_frame(w.PUSH_PROMISE, w.END_HEADERS, 1, bytes(4)),
    "frame above the bound": w.encode_frame(w.DATA, 0, 1, bytes(1 << 20)),
    "data for no stream": w.encode_frame(w.DATA, 0, 99, b"x"),
    "even stream": _open(2),
    "window of the connection that overflows": w.encode_frame(w.WINDOW_UPDATE, 0, 0, w.pack_uint32(w.MAX_WINDOW)) * 2,
    "streams without end": b"".join(_open(stream) for stream in range(1, FRAMES, 2)),
}


@pytest.mark.parametrize("name", FLOODS)
def test_hostile_frames_end_the_connection(target: GatewayProcess, name: str) -> None:
    greeting = b"" if name == "no HTTP/2" else w.PREFACE + w.encode_settings({})
    with socket.create_connection(target.grpc, timeout=10) as connection:
        with contextlib.suppress(ConnectionError):
            connection.sendall(greeting + FLOODS[name])
        with contextlib.suppress(ConnectionError):
            while connection.recv(1 << 16):
                pass
    with Client(socket.create_connection(target.grpc, timeout=60)) as client:
        assert client.answer(client.ask(b"", "ServerLive")).status == 0


def test_the_gateway_still_answers_callers(target: GatewayProcess) -> None:
    url = f"http://{target.http[0]}:{target.http[1]}{INFER}"
    answer = httpx.post(
        url, content=b"x", headers={"authorization": f"Bearer {target.tokens['amal']}"}, trust_env=False
    )
    assert json.loads(answer.content)["echo"] == "x"
