"""What a lane answers without a task: the same bytes, in order, in time; whatever is odd goes the ordinary way."""

import json
import re
import socket
import threading
from collections.abc import Iterator
from functools import partial
from typing import Any

import httpx
import pytest

from falaj.api import call_executor, identity_cache, soon
from falaj.api.app import HttpApplication
from falaj.api.call_executor import CallOutcome
from falaj.api.http_server import HttpServer
from falaj.api.quick import BODY_BYTES, Quick
from falaj.api.responses import BROWSER_HEADERS, SECURITY_HEADERS, HttpResponse, is_program_request, render_error
from falaj.api.routes import RequestContext
from falaj.api.soon import Work
from falaj.core.context import Actor, CallContext
from falaj.core.errors import Invalid, NotFound, StaleRevision
from falaj.core.operation import operation
from falaj.core.settings import RequestLimits
from tests.api.conftest import FREE
from tests.api.small import AMAL_TOKEN, Echo, SmallHouse, serving
from tests.servers.process import wait_until

PATH = "/v1/echo/repeat"


class Repeating(Echo):
    """The same, the ordinary way."""

    @operation()
    def repeat(self, ctx: CallContext, text: str = "") -> str:
        """Say it back."""
        if text == "odd":
            raise Invalid("that is odd")
        return f"{text} for {ctx.actor.id}"


def repeating(**limits: Any) -> SmallHouse:
    house = SmallHouse(limits=RequestLimits(**limits) if limits else FREE)
    house.echo = house.desks["echo"] = Repeating()
    return house


class Taking:
    """Says back what it hears, from a lane."""

    def __init__(self, app: HttpApplication) -> None:
        self._app = app
        self.stale = 0
        self.release = threading.Event()
        self.entered = threading.Event()
        app.quick = Quick(app, {}, {PATH.encode(): self.take})

    def take(self, ask: RequestContext, body: bytes) -> Work:
        ctx = self._app.gate.context(ask, ask.caller, is_repeatable=False)
        text = json.loads(body)["text"]
        if text == "odd":
            raise Invalid("that is odd")
        answer = partial(self._answer, ctx.request)
        return Work("echo.repeat", self._app.lanes.inside, self._run, (text, ctx.actor.id), (), answer)

    def _run(self, text: str, who: str) -> bytes:
        if text == "wait":
            self.entered.set()
            self.release.wait(20)
        if text == "met" and self.stale:
            self.stale -= 1
            raise StaleRevision("another writer was first")
        if text == "none":
            raise NotFound("there is none")
        return json.dumps(f"{text} for {who}").encode()

    def _answer(self, request: str, outcome: CallOutcome) -> HttpResponse:
        value, error = outcome
        if value == b'"break for amal"':
            raise ZeroDivisionError("secret in /etc/falaj/keys")
        return HttpResponse(200, value, request) if error is None else render_error(error, request)


@pytest.fixture
def house() -> SmallHouse:
    return repeating()


@pytest.fixture
def taking(server: HttpServer) -> Iterator[Taking]:
    made = Taking(server.app)
    yield made
    made.release.set()


@pytest.fixture
def known(http: httpx.Client, taking: Taking, slow: list[str]) -> httpx.Client:
    """A client whom the gate has seen a moment ago, and sees again."""
    del taking
    assert http.post(PATH, json={}).json() == " for amal"
    assert slow == [PATH]
    slow.clear()
    return http


def said(client: httpx.Client, text: str, **more: Any) -> httpx.Response:
    return client.post(PATH, json={"text": text}, **more)


def test_a_known_caller_is_answered_alike_and_without_a_task(known: httpx.Client, slow: list[str]) -> None:
    quick = said(known, "hello")
    assert (quick.status_code, slow) == (200, [])
    ordinary = said(known, "hello", headers={"content-type": "application/json; charset=utf-8"})
    assert slow == [PATH]
    assert quick.json() == ordinary.json() == "hello for amal"
    assert {**ordinary.headers, **quick.headers}.keys() == ordinary.headers.keys()
    assert quick.headers["falaj-request"] != ordinary.headers["falaj-request"]


@pytest.mark.parametrize("header", sorted(BROWSER_HEADERS))
def test_what_browsers_heed_is_left_out_for_programs_only(known: httpx.Client, slow: list[str], header: bytes) -> None:
    browsers = {name.decode() for name, _ in SECURITY_HEADERS}
    assert set(said(known, "hello").headers) == {"date", "content-type", "content-length", "falaj-request"}
    value = {"origin": f"http://{known.base_url.netloc.decode()}", "sec-fetch-site": "same-origin"}
    got = said(known, "hello", headers={header.decode(): value.get(header.decode(), "x")})
    assert (got.status_code, slow) == (200, [])
    assert browsers <= set(got.headers)
    assert browsers <= set(said(known, "none").headers)  # nor for errors
    assert not is_program_request({b"host": b"x", b"cookie": b"session=y"})
    assert not is_program_request({b"host": b"x"})  # no token is shown


def test_errors_are_answered_and_harm_nobody_else(known: httpx.Client, slow: list[str]) -> None:
    assert said(known, "none").status_code == 404
    broken = said(known, "break")
    assert (broken.status_code, "secret" in broken.text) == (500, False)
    assert said(known, "on").json() == "on for amal"
    assert slow == []


def test_those_answered_together_do_not_suffer_for_one(server: HttpServer, taking: Taking, known: httpx.Client) -> None:
    with connect(server) as holding, connect(server) as broken, connect(server) as good:
        holding.sendall(asked(server, "wait"))
        assert taking.entered.wait(20)
        broken.sendall(asked(server, "break"))
        good.sendall(asked(server, "good"))
        wait_until(lambda: server.app.lanes.waiting == 2, 20)
        taking.release.set()
        assert broken.recv(65536).startswith(b"HTTP/1.1 500 ")
        assert b"good for amal" in good.recv(65536)


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        ({"json": {"text": "odd"}}, 400),
        ({"content": b"{}", "headers": {"content-type": "text/plain"}}, 415),
        ({"json": {}, "headers": {"host": "elsewhere.example"}}, 421),
        ({"json": {}, "headers": {"origin": "https://elsewhere.example"}}, 403),
        ({"json": {}, "headers": {"authorization": "Bearer falaj_nobody-token-00000000"}}, 401),
        ({"json": {}, "headers": {"connection": "close"}}, 200),
        ({"json": {"text": "x" * (BODY_BYTES + 1)}}, 200),
    ],
)
def test_what_is_odd_goes_the_ordinary_way(
    known: httpx.Client, slow: list[str], sent: dict[str, Any], status: int
) -> None:
    assert known.post(PATH, **sent).status_code == status
    assert slow == [PATH]


def test_who_asks_too_fast_is_refused(slow: list[str]) -> None:
    with serving(repeating(requests_per_s=0.001, burst=3, denials_per_s=1e6)) as server, client(server) as http:
        Taking(server.app)
        assert http.post(PATH, json={}).status_code == 200
        assert [said(http, "x").status_code for _ in range(4)] == [200, 200, 429, 429]
    assert len(slow) == 3


def test_a_call_that_others_met_is_tried_again(known: httpx.Client, taking: Taking, slow: list[str]) -> None:
    taking.stale = call_executor.MAX_GROUP_TRIES + 1
    assert said(known, "met").json() == "met for amal"
    taking.stale = 10_000
    assert said(known, "met").status_code == 409
    assert 10_000 - taking.stale == soon.TRIES + 1
    assert slow == []


def test_where_too_many_wait_one_is_told_so(
    server: HttpServer, known: httpx.Client, taking: Taking, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(call_executor, "MAX_WAITING_CALLS", 0)
    assert said(known, "full").status_code == 503
    monkeypatch.undo()
    assert said(known, "again").json() == "again for amal"


@pytest.mark.parametrize("size", [10_000, 7, 1])
def test_what_comes_behind_it_on_the_same_connection_waits(server: HttpServer, known: httpx.Client, size: int) -> None:
    words = ("one", "odd", "two", "three", "odd", "four")
    whole = b"".join([asked(server, word) for word in words])
    with connect(server) as to:
        for start in range(0, len(whole), size):
            to.sendall(whole[start : start + size])
        got = b""
        while b"four for amal" not in got:
            got += to.recv(65536)
    found = re.findall(rb"(\w+) for amal|that is (odd)", got)
    assert [(first or second).decode() for first, second in found] == list(words)


def test_it_ends_in_time_and_a_late_outcome_is_dropped(slow: list[str]) -> None:
    with serving(repeating(timeout_s=0.3)) as server, client(server) as http:
        taking = Taking(server.app)
        assert http.post(PATH, json={}).status_code == 200
        late = said(http, "wait")
        assert (late.status_code, "no answer in time" in late.text, len(slow)) == (503, True, 1)
        taking.release.set()
        wait_until(lambda: said(http, "next").status_code == 200, 20)


def test_a_caller_who_left_harms_nobody(server: HttpServer, taking: Taking, known: httpx.Client) -> None:
    with connect(server) as to:
        to.sendall(asked(server, "wait"))
        assert taking.entered.wait(20)
    taking.release.set()
    assert said(known, "on").json() == "on for amal"


def test_a_server_that_goes_answers_what_is_under_way_and_says_so(
    server: HttpServer, taking: Taking, known: httpx.Client
) -> None:
    with connect(server) as to:
        to.sendall(asked(server, "wait"))
        assert taking.entered.wait(20)
        server.should_exit = True
        wait_until(lambda: server.app.draining, 20)
        taking.release.set()
        got = b""
        while chunk := to.recv(65536):
            got += chunk
    assert b"wait for amal" in got
    assert b"connection: close" in got


class Lookups:
    """A clock of the gate's own, and whom it asks who somebody is."""

    def __init__(self, server: HttpServer) -> None:
        self.now, self.count = 1000.0, 0
        self.hold = threading.Event()
        self.hold.set()
        self.gate, self._whois = server.app.gate, server.app.gate.whois
        self.gate.tokens._clock, self.gate.whois = lambda: self.now, self.whois
        self.gate.forget()

    def whois(self, token: str) -> Actor:
        found = self._whois(token)
        self.count += 1
        self.hold.wait(20)
        return found

    def settled(self, count: int) -> None:
        wait_until(lambda: self.count == count and not self.gate.tokens.pending, 20)


@pytest.fixture
def lookups(server: HttpServer, known: httpx.Client, slow: list[str]) -> Lookups:
    made = Lookups(server)
    assert said(known, "hello").status_code == 200
    made.settled(1)
    slow.clear()
    return made


def test_who_goes_on_asking_never_waits_to_be_looked_up(known: httpx.Client, lookups: Lookups, slow: list[str]) -> None:
    for count in range(2, 6):
        lookups.now += identity_cache.IDENTITY_TTL_S * identity_cache.REFRESH_FRACTION - 0.01
        assert said(known, "soon").status_code == 200
        assert lookups.count == count - 1
        lookups.now += 0.02
        assert said(known, "again").status_code == 200
        lookups.settled(count)
    assert slow == []


def test_who_is_nobody_any_more_is_not_known_for_longer(
    house: SmallHouse, known: httpx.Client, lookups: Lookups
) -> None:
    house.tokens.clear()
    lookups.now += 0.9 * identity_cache.IDENTITY_TTL_S
    assert said(known, "last").status_code == 200
    wait_until(lambda: not lookups.gate.tokens.pending, 20)
    assert said(known, "late").status_code == 401


def test_who_was_looked_up_before_people_changed_is_looked_up_again(
    known: httpx.Client, lookups: Lookups, slow: list[str]
) -> None:
    lookups.hold.clear()
    lookups.now += 0.9 * identity_cache.IDENTITY_TTL_S
    assert said(known, "before").status_code == 200
    wait_until(lambda: lookups.count == 2, 20)
    (old,) = lookups.gate.tokens.pending
    lookups.gate.forget()
    lookups.hold.set()
    assert said(known, "after").status_code == 200
    assert (lookups.count, slow) == (3, [PATH])
    wait_until(old.done, 20)
    assert said(known, "on").status_code == 200
    assert (lookups.count, slow) == (3, [PATH])


def asked(server: HttpServer, text: str, path: str = PATH) -> bytes:
    body = json.dumps({"text": text}).encode()
    head = f"POST {path} HTTP/1.1\r\nhost: {server.url.partition('://')[2]}\r\nauthorization: Bearer {AMAL_TOKEN}\r\n"
    return f"{head}content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body


def client(server: HttpServer) -> httpx.Client:
    headers = {"authorization": f"Bearer {AMAL_TOKEN}"}
    return httpx.Client(base_url=server.url, headers=headers, trust_env=False, timeout=20)


def connect(server: HttpServer) -> socket.socket:
    host, _, port = server.url.partition("://")[2].rpartition(":")
    return socket.create_connection((host, int(port)), timeout=20)
