"""What is called often is answered at once, by the same bytes; everything else goes the ordinary way, in its turn."""

import json
import socket
from typing import Any

import httpx
import pytest

from falaj.api import http_connection
from falaj.api.http_server import HttpServer
from falaj.api.quick import BODY_BYTES
from falaj.core.context import CallContext
from falaj.core.errors import NotFound
from falaj.core.operation import operation
from falaj.core.settings import RequestLimits
from tests.api.conftest import FREE
from tests.api.small import AMAL_TOKEN, Echo, SmallHouse, serving
from tests.servers.process import wait_until

PATH = "/v1/echo/again"


class Often(Echo):
    """Says back what it hears, often."""

    @operation(is_high_rate=True)
    def again(self, ctx: CallContext, text: str = "", other: str = "") -> str:
        """Say it back."""
        if text == "break":
            raise ZeroDivisionError("secret in /etc/falaj/keys")
        if text == "nothing":
            raise NotFound("there is nothing", "look elsewhere")
        return f"{text} for {ctx.actor.id} {ctx.purpose}"


@pytest.fixture
def house() -> SmallHouse:
    return often(SmallHouse(limits=FREE))


def often(house: SmallHouse) -> SmallHouse:
    house.echo = house.desks["echo"] = Often()
    return house


@pytest.fixture
def known(http: httpx.Client, slow: list[str]) -> httpx.Client:
    """A client whom the gate has seen a moment ago."""
    assert http.post(PATH, json={"text": "first"}).json() == "first for amal "
    assert slow == [PATH]
    slow.clear()
    return http


def test_a_known_caller_is_answered_at_once_and_alike(known: httpx.Client, slow: list[str]) -> None:
    quick = known.post(PATH, json={"text": "hello"}, headers={"falaj-purpose": "fraud"})
    assert slow == []
    named = {"falaj-purpose": "fraud", "idempotency-key": "one-of-a-kind"}
    ordinary = known.post(PATH, json={"text": "hello"}, headers=named)
    assert slow == [PATH]
    assert quick.json() == ordinary.json() == "hello for amal fraud"
    assert list(quick.headers) == list(ordinary.headers)
    assert quick.headers["falaj-request"] != ordinary.headers["falaj-request"]


@pytest.mark.parametrize(("text", "status"), [("nothing", 404), ("break", 500)])
def test_errors_are_the_same(known: httpx.Client, slow: list[str], text: str, status: int) -> None:
    quick = known.post(PATH, json={"text": text})
    assert (quick.status_code, slow) == (status, [])
    assert "secret" not in quick.text
    ordinary = known.post(PATH, json={"text": text}, headers={"idempotency-key": "one-of-a-kind"})
    assert {**quick.json(), "hint": ""} == {**ordinary.json(), "hint": ""}
    assert known.post(PATH, json={"text": "on"}).json() == "on for amal "


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        ({"content": b"[", "headers": {"content-type": "application/json"}}, 400),
        ({"json": {"text": 5}}, 400),
        ({"content": b"{}", "headers": {"content-type": "text/plain"}}, 415),
        ({"content": b"{}", "headers": {"content-type": "application/json", "content-encoding": "gzip"}}, 415),
        ({"json": {}, "headers": {"host": "elsewhere.example"}}, 421),
        ({"json": {}, "headers": {"origin": "https://elsewhere.example"}}, 403),
        ({"json": {}, "headers": {"falaj-purpose": "<script>"}}, 400),
        ({"json": {}, "headers": {"authorization": "Bearer falaj_nobody-token-00000000"}}, 401),
        ({"json": {}, "headers": {"connection": "close"}}, 200),
        ({"json": {"text": "x" * (BODY_BYTES + 1)}}, 200),
    ],
)
def test_what_is_odd_goes_the_ordinary_way(
    known: httpx.Client, slow: list[str], sent: dict[str, Any], status: int
) -> None:
    answer = known.post(PATH, **sent)
    assert (answer.status_code, slow) == (status, [PATH])
    assert known.get(PATH).status_code == 405


def test_who_asks_too_fast_is_refused(slow: list[str]) -> None:
    house = often(SmallHouse(limits=RequestLimits(requests_per_s=0.001, burst=3, denials_per_s=1e6)))
    with serving(house) as server, _client(server) as http:
        assert [http.post(PATH, json={}).status_code for _ in range(5)] == [200, 200, 200, 429, 429]
    assert len(slow) == 3  # the first, who was not known yet, and those that were refused


def test_a_token_that_ended_is_asked_for_again(house: SmallHouse, known: httpx.Client) -> None:
    house.tokens.clear()
    wait_until(lambda: known.post(PATH, json={}).status_code == 401, 20)


def test_requests_in_one_piece_and_in_many_are_answered_in_order(server: HttpServer, known: httpx.Client) -> None:
    def asked(text: str, path: str = PATH) -> bytes:
        body = json.dumps({"text": text}).encode()
        host = server.url.partition("://")[2]
        head = f"POST {path} HTTP/1.1\r\nhost: {host}\r\nauthorization: Bearer {AMAL_TOKEN}\r\n"
        return f"{head}content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body

    whole = asked("one") + asked("", "/v1/echo/fail") + asked("two") + asked("three")
    for size in (len(whole), 7, 1):
        with _socket(server) as to:
            for start in range(0, len(whole), size):
                to.sendall(whole[start : start + size])
            got = b""
            while b"three for amal" not in got:
                got += to.recv(65536)
            places = [got.index(word) for word in (b"one for amal", b"HTTP/1.1 400", b"two for amal", b"three for")]
            assert places == sorted(places)


def test_a_body_that_does_not_come_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_connection, "HEAD_TIMEOUT_S", 0.3)
    with serving(often(SmallHouse(limits=RequestLimits(timeout_s=0.3)))) as server, _client(server) as http:
        assert http.post(PATH, json={}).status_code == 200
        head = (
            f"POST {PATH} HTTP/1.1\r\nhost: {server.url.partition('://')[2]}\r\nauthorization: Bearer {AMAL_TOKEN}\r\n"
        )
        with _socket(server) as to:
            to.sendall(f"{head}content-type: application/json\r\ncontent-length: 20\r\n\r\n{{".encode())
            assert to.recv(65536).startswith(b"HTTP/1.1 408 ")


def test_it_is_not_quick_where_a_store_is_far_away(slow: list[str]) -> None:
    with serving(often(SmallHouse(limits=FREE, online="redis://127.0.0.1:1/0"))) as server, _client(server) as http:
        assert [http.post(PATH, json={}).status_code for _ in range(3)] == [200] * 3
    assert slow == [PATH] * 3


def _client(server: HttpServer) -> httpx.Client:
    headers = {"authorization": f"Bearer {AMAL_TOKEN}"}
    return httpx.Client(base_url=server.url, headers=headers, trust_env=False, timeout=20)


def _socket(server: HttpServer) -> socket.socket:
    host, _, port = server.url.partition("://")[2].rpartition(":")
    return socket.create_connection((host, int(port)), timeout=20)
