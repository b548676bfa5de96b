"""Going without being missed: /ready says so at once, calls are answered on, streams say where to listen next."""

import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from falaj.api import http_server as listener
from falaj.api.http_server import HttpServer, create_http_server
from falaj.api.remote_client import RemoteClient
from tests.api.conftest import FREE
from tests.api.small import AMAL_TOKEN, SmallHouse, serving
from tests.servers.process import wait_until


@contextmanager
def going(house: SmallHouse) -> Iterator[tuple[HttpServer, httpx.Client, Callable[[], None], threading.Event]]:
    """A server, a caller of it, what tells it to go, and what is set while it goes."""
    server, renew = create_http_server(house)
    up, left = threading.Event(), threading.Event()
    thread = threading.Thread(target=server.go, args=(lambda _: up.set(), renew, left.set), daemon=True)
    thread.start()
    assert up.wait(20)

    def go() -> None:
        server.should_exit = True

    headers = {"authorization": f"Bearer {AMAL_TOKEN}"}
    with httpx.Client(base_url=server.url, headers=headers, trust_env=False, timeout=20) as http:
        try:
            yield server, http, go, left
        finally:
            server.force_exit = server.should_exit = True
            thread.join(20)
            assert not thread.is_alive()


def test_it_says_that_it_goes_and_answers_on() -> None:
    with going(SmallHouse(limits=FREE, drain_s=600.0)) as (server, http, go, left):
        assert http.get("/status").json()["ready"] is True
        anybody = httpx.get(f"{server.url}/ready", trust_env=False)
        assert (anybody.status_code, anybody.json()) == (200, {"ready": True})
        go()
        wait_until(lambda: httpx.get(f"{server.url}/ready", trust_env=False).status_code == 503, 20)
        assert left.wait(20)
        told = httpx.get(f"{server.url}/ready", trust_env=False)
        assert (told.json()["code"], told.headers["connection"]) == ("unavailable", "close")
        for _ in range(3):  # each by a new connection, which is still taken
            answer = http.post("/v1/echo/nothing")
            assert (answer.status_code, answer.headers["connection"]) == (200, "close")
        assert httpx.get(f"{server.url}/health", trust_env=False).status_code == 200


def test_what_was_asked_before_is_answered() -> None:
    house = SmallHouse(limits=FREE)
    with going(house) as (server, http, go, left), ThreadPoolExecutor(1) as pool:
        asked = pool.submit(http.post, "/v1/echo/wait")
        wait_until(lambda: server.app.lanes.calls > 0, 20)
        go()
        assert left.wait(20)
        house.echo.release.set()
        answer = asked.result(20)
        assert (answer.status_code, answer.headers["connection"]) == (200, "close")


def test_a_stream_ends_with_a_word_of_where_to_go_on() -> None:
    house = SmallHouse(limits=FREE)
    with going(house) as (_, http, go, _left):
        house.ledger.emit("bank", "first.event")
        with http.stream("GET", "/v1/events") as answer:
            lines = answer.iter_lines()
            assert next(line for line in lines if line.startswith("event: ")) == "event: first.event"
            go()
            assert [line for line in lines if line and line[:2] != "da"] == ["retry: 250", ": elsewhere"]


def test_a_listener_goes_on_elsewhere_and_misses_nothing() -> None:
    house = SmallHouse(limits=FREE)
    with serving(house) as first:
        port = first.url.rpartition(":")[2]
        there = RemoteClient(first.url, token=AMAL_TOKEN)
        heard = there.events()
        house.ledger.emit("bank", "first.event")
        assert next(heard)[1].verb == "first.event"
    again = SmallHouse(limits=FREE)
    again.ledger = house.ledger
    house.ledger.emit("bank", "second.event")
    with serving(again, listen=f"127.0.0.1:{port}"):
        house.ledger.emit("bank", "third.event")
        assert [next(heard)[1].verb for _ in range(2)] == ["second.event", "third.event"]
        there.close()


def test_a_thread_that_has_something_to_say_does_not_wait_long_for_one_that_computes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen, before = list[float](), sys.getswitchinterval()
    made = SimpleNamespace(url="", go=lambda *_: seen.append(sys.getswitchinterval()))
    monkeypatch.setattr(listener, "create_http_server", lambda *_, **__: (made, None))
    house: Any = SimpleNamespace(join=lambda *_: None, start_loops=lambda: None, stop_loops=lambda: None)
    house.dependencies = SimpleNamespace(start=lambda: None)
    try:
        listener.run_server(house)
    finally:
        sys.setswitchinterval(before)
    assert seen == [pytest.approx(min(before, listener.THREAD_SWITCH_S))]
