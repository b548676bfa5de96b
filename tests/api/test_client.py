"""The remote client: what it tries again, what it never does, and what it says when nobody answers."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx
import pytest

from falaj.api.remote_client import MAX_TRIES, RemoteClient
from falaj.core.errors import Conflict, CorruptData, FalajError, QuotaExceeded, StaleRevision, Unavailable

DONE = (200, b"[]", {})
BUSY = (503, json.dumps(Unavailable("later", "wait").wire()).encode(), {"retry-after": "0"})
FAST = (429, json.dumps(QuotaExceeded("too fast").wire()).encode(), {"retry-after": "0"})


@contextmanager
def answering(*answers: tuple[int, bytes, dict[str, str]]) -> Iterator[tuple[str, list[dict[str, str]]]]:
    """A server that gives these answers in turn, the last one for ever; and what it was asked."""
    asked: list[dict[str, str]] = []

    class Answers(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers.get("content-length", 0)))
            asked.append({name.lower(): value for name, value in self.headers.items()})
            status, body, headers = answers[min(len(asked), len(answers)) - 1]
            if not status:
                self.close_connection = True
                return
            self.send_response(status)
            for name, value in {**headers, "content-length": str(len(body))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args: Any) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", asked
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.mark.parametrize("first", [BUSY, FAST, (0, b"", {})], ids=["busy", "fast", "cut"])
def test_what_is_safe_is_tried_again(first: tuple[int, bytes, dict[str, str]]) -> None:
    with answering(first, DONE) as (url, asked), RemoteClient(url, token="t") as there:
        assert there.zones.list() == ()
    assert len(asked) == 2
    assert all("idempotency-key" not in headers for headers in asked)


def test_a_write_is_named_and_keeps_its_name_when_tried_again() -> None:
    with answering(BUSY, BUSY, (200, b'"x"', {})) as (url, asked), RemoteClient(url, token="t") as there:
        there.people.revoke("abc")
        there.people.revoke("abc")
    keys = [headers["idempotency-key"] for headers in asked]
    assert keys[0] == keys[1] == keys[2] != keys[3]


def test_it_gives_up_in_the_end() -> None:
    with (
        answering(BUSY) as (url, asked),
        RemoteClient(url, token="t") as there,
        pytest.raises(Unavailable, match="later"),
    ):
        there.zones.list()
    assert len(asked) == MAX_TRIES


@pytest.mark.parametrize("error", [StaleRevision("old"), Conflict("taken"), FalajError("odd")])
def test_what_will_not_change_is_not_tried_again(error: FalajError) -> None:
    answer = (error.status, json.dumps(error.wire()).encode(), {})
    with answering(answer) as (url, asked), RemoteClient(url, token="t") as there, pytest.raises(type(error)):
        there.zones.list()
    assert len(asked) == 1


def test_an_upload_is_sent_once() -> None:
    with answering(BUSY) as (url, asked), RemoteClient(url, token="t") as there, pytest.raises(Unavailable):
        there.store.put("blob:a/b", b"bytes")
    assert len(asked) == 1


def test_an_act_outside_the_ledger_is_sent_once() -> None:
    with answering(BUSY) as (url, asked), RemoteClient(url, token="t") as there, pytest.raises(Unavailable):
        there.store.copy("blob:a/b", "eu-west")
    assert len(asked) == 1


@pytest.mark.parametrize(
    "answer",
    [
        (502, b"<html>bad gateway</html>", {}),
        (200, b"<html>", {}),
        (200, b'{"odd": 1}', {}),
        (301, b"", {"location": "https://evil.example/"}),
    ],
)
def test_what_is_not_falaj_is_said_to_be_so(answer: tuple[int, bytes, dict[str, str]]) -> None:
    with (
        answering(answer) as (url, asked),
        RemoteClient(url, token="t") as there,
        pytest.raises((Unavailable, CorruptData)),
    ):
        there.people.revoke("abc")
    assert len({headers["host"] for headers in asked}) == 1


def test_nobody_there_is_said_with_what_to_do() -> None:
    with answering(DONE) as (url, _):
        pass
    with RemoteClient(url, token="t") as there, pytest.raises(Unavailable, match="nothing answers") as caught:
        there.zones.list()
    assert "falaj up" in caught.value.hint


def test_desks_and_verbs_are_those_of_the_house() -> None:
    with RemoteClient("http://127.0.0.1:1", token="t") as there:
        assert "zones" in dir(there)
        assert "list" in dir(there.zones)
        assert there.zones.list.__doc__
        for absent in (lambda: there.nothing, lambda: there.zones.nothing):
            with pytest.raises(AttributeError):
                absent()


def test_what_nobody_heard_of_may_be_sent_again(monkeypatch: pytest.MonkeyPatch) -> None:
    with answering((200, b'"blob:a/b@v1"', {})) as (url, asked), RemoteClient(url, token="t") as there:
        opened, tries = there._http_client.send, []

        def send(*args: Any, **named: Any) -> Any:
            tries.append(1)
            if len(tries) == 1:
                raise httpx.ConnectError("refused")
            return opened(*args, **named)

        monkeypatch.setattr(there._http_client, "send", send)
        there.store.put("blob:a/b", b"bytes")
    assert (len(asked), len(tries)) == (1, 2)
