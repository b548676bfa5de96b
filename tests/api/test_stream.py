"""Bodies of every awkward kind: large, deep, slow, chunked, cut, and streams both ways in little memory."""

import json
import resource
import socket
import time
from collections.abc import Iterator
from dataclasses import replace

import httpx
import pytest

from falaj.api.argument_decoding import encode_arguments_header
from falaj.api.http_server import HttpServer
from falaj.core.settings import RequestLimits
from tests.api.conftest import FREE, raw
from tests.api.small import AMAL_TOKEN, SmallHouse, serving

MIB = 1 << 20
ARGS = {"content-type": "application/octet-stream", "falaj-args": encode_arguments_header(b'{"name":"blob:a/b"}')}


def pieces(count: int, size: int = MIB) -> Iterator[bytes]:
    piece = b"x" * size
    for _ in range(count):
        yield piece


def test_a_stream_of_64_mib_goes_in_and_out_in_little_memory(http: httpx.Client, house: SmallHouse) -> None:
    http.post("/v1/echo/put", content=pieces(8), headers=ARGS)  # what is allocated once is allocated
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert http.post("/v1/echo/put", content=pieces(64), headers=ARGS).json() == 64 * MIB
    for known in (True, False):
        with http.stream("POST", "/v1/echo/get", json={"size": 64 * MIB, "known": known}) as answer:
            assert answer.headers["content-type"] == "application/octet-stream"
            assert ("content-length" in answer.headers) is known
            assert sum(len(part) for part in answer.iter_bytes()) == 64 * MIB
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 40 * 1024  # KiB, client and server together
    assert max(size for what, size in house.echo.seen if what == "largest") < 8 * MIB


def test_a_stream_longer_than_allowed_is_refused() -> None:
    house = SmallHouse(limits=replace(FREE, stream_bytes=3 * MIB))
    with (
        serving(house) as server,
        httpx.Client(base_url=server.url, headers={"authorization": f"Bearer {AMAL_TOKEN}"}, trust_env=False) as http,
    ):
        got = http.post("/v1/echo/put", content=pieces(4), headers=ARGS)
        assert (got.status_code, got.json()["code"]) == (429, "quota-exceeded")
        assert http.post("/v1/echo/put", content=pieces(2), headers=ARGS).json() == 2 * MIB


def test_an_answer_that_breaks_is_cut_and_not_ended(http: httpx.Client) -> None:
    for known in (True, False):
        asked = {"size": 8 * MIB, "broken_at": 5 * MIB, "known": known}
        with http.stream("POST", "/v1/echo/get", json=asked) as answer:
            assert answer.status_code == 200
            with pytest.raises(httpx.RemoteProtocolError):
                answer.read()
    assert http.post("/v1/echo/get", json={"size": MIB, "broken_at": 0}).status_code == 500
    assert http.post("/v1/echo/nothing").status_code == 200


def test_a_caller_that_leaves_ends_the_stream(http: httpx.Client, server: HttpServer) -> None:
    with http.stream("POST", "/v1/echo/get", json={"size": 1 << 40}) as answer:
        next(answer.iter_bytes())
    assert http.post("/v1/echo/nothing").status_code == 200  # and the listener could still be stopped by its fixture


def test_arguments_are_judged_before_the_body_is_read(http: httpx.Client, house: SmallHouse) -> None:
    headers = {**ARGS, "falaj-args": encode_arguments_header(b'{"name":"nonsense"}')}
    got = http.post("/v1/echo/put", content=pieces(64), headers=headers)
    assert got.status_code == 400
    assert house.echo.seen == []


def test_json_in_chunks_is_put_together_and_bounded(http: httpx.Client) -> None:
    body = json.dumps({"name": "dataset:a/b", "text": "x" * 300_000}).encode()
    chunks = (body[n : n + 5000] for n in range(0, len(body), 5000))
    got = http.post("/v1/echo/say", content=chunks, headers={"content-type": "application/json"})
    assert len(got.json()["text"]) == 300_000
    got = http.post("/v1/echo/say", content=pieces(5), headers={"content-type": "application/json"})
    assert got.status_code == 413


@pytest.mark.parametrize(
    "head",
    [
        "content-length: 5\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        "content-length: 5\r\ncontent-length: 6\r\n\r\nhello",
        "content-length: -1\r\n\r\n",
        "content-length: 99999999999999999999999\r\n\r\n",
        "transfer-encoding: chunked\r\n\r\nzz\r\n",
        "transfer-encoding: gzip, chunked, chunked\r\n\r\n0\r\n\r\n",
        "x: " + "a" * 70_000 + "\r\n\r\n",
        "".join(f"x{n}: y\r\n" for n in range(150)) + "\r\n",
        "bad header\r\n\r\n",
    ],
)
def test_heads_that_two_readers_could_read_differently_are_refused(server: HttpServer, head: str) -> None:
    host = server.url.partition("://")[2]
    start = f"POST /v1/echo/nothing HTTP/1.1\r\nhost: {host}\r\nauthorization: Bearer {AMAL_TOKEN}\r\n"
    start += "content-type: application/json\r\n"
    got = raw(server, (start + head).encode())
    assert got.split(b" ")[1] in (b"400", b"413", b"431", b"415"), got[:300]
    assert b'{"code":"invalid"' in got


def test_a_head_without_end_is_refused(server: HttpServer) -> None:
    host, _, port = server.url.partition("://")[2].rpartition(":")
    with socket.create_connection((host, int(port)), timeout=20) as connection:
        connection.sendall(b"GET /health HTTP/1.1\r\n")
        with pytest.raises(OSError, match=r"reset|pipe|closed"):  # noqa: PT012 - whichever write meets the closed door
            for _ in range(200):
                connection.sendall(b"x: " + b"y" * 4096 + b"\r\n")
                time.sleep(0)
            while connection.recv(4096):
                pass
            raise OSError("closed")


def test_a_body_that_never_came_is_not_an_empty_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever is cut off behind the head asked for something, and we do not know what."""
    house, called = SmallHouse(), list[str]()
    plain = house.call
    monkeypatch.setattr(house, "call", lambda desk, name, *rest: (called.append(name), plain(desk, name, *rest))[1])
    with serving(house) as server:
        host = server.url.partition("://")[2]
        head = f"POST /v1/echo/{{}} HTTP/1.1\r\nhost: {host}\r\nauthorization: Bearer {AMAL_TOKEN}\r\n"
        head += "content-type: application/json\r\ncontent-length: {}\r\n\r\n"
        with socket.create_connection(tuple(host.split(":")), timeout=20) as connection:
            connection.sendall(head.format("nothing", 12).encode())
            connection.shutdown(socket.SHUT_WR)
            while connection.recv(4096):
                pass
        assert b" 200 " in raw(server, head.format("nothing", 2).encode() + b"{}")
    assert called == ["nothing"]


def test_a_slow_body_and_a_slow_verb_are_ended() -> None:
    house = SmallHouse(limits=RequestLimits(timeout_s=0.3))
    with serving(house) as server:
        host = server.url.partition("://")[2]
        head = f"POST /v1/echo/say HTTP/1.1\r\nhost: {host}\r\nauthorization: Bearer {AMAL_TOKEN}\r\n"
        head += "content-type: application/json\r\ncontent-length: 50\r\n\r\n"
        got = raw(server, head.encode() + b"{")
        assert got.startswith(b"HTTP/1.1 408 ")
        got = httpx.post(
            f"{server.url}/v1/echo/wait", headers={"authorization": f"Bearer {AMAL_TOKEN}"}, trust_env=False
        )
        assert (got.status_code, got.json()["code"]) == (503, "unavailable")
        house.echo.release.set()
