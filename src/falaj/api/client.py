"""The remote client: the same desks, signatures and errors as in process, over HTTPS."""

import json
import os
import random
import ssl
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any
from urllib.parse import urlsplit

import httpx

import falaj
from falaj.api.pieces import BLOCK, BUNDLE, GET, PUT, TICKET_HEADER, Tied, Wanted
from falaj.api.wire import ARGS_HEADER, ELSEWHERE, encode_header
from falaj.bound import BoundDesk
from falaj.core import trace
from falaj.core.bind import options
from falaj.core.errand import Progress, Silence
from falaj.core.errors import Corrupt, FalajError, Invalid, Unavailable, from_wire
from falaj.core.event import Event
from falaj.core.ports import Online
from falaj.core.stream import Stream
from falaj.core.transfer import Receipt
from falaj.core.verb import Verb
from falaj.desks import DESKS
from falaj.plugins import plugin
from falaj.store.codec import from_json, to_json

TRIES = 4
LONGEST_WAIT_S = 10.0
SAFE_GROUPS = frozenset({"see", "read"})
UNSENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)
"""After these nobody has heard of the call."""
LOOPBACK = ("127.0.0.1", "localhost", "::1")


class RemotePlatform:
    """A platform somewhere else. `here.zones.list()` is one POST; what the server raises is raised here."""

    def __init__(
        self,
        address: str,
        *,
        token: str = "",
        ca: str = "",
        cert: str = "",
        key: str = "",
        purpose: str = "",
        timeout_s: float = 60.0,
    ) -> None:
        parts = urlsplit(address)
        local = parts.hostname in LOOPBACK
        if parts.scheme == "http" and not local:
            raise Invalid("a token may not travel in the clear", f"use https://{parts.netloc}")
        self.address, self.ca = f"{parts.scheme}://{parts.netloc}", ca
        headers = {"user-agent": f"falaj/{falaj.__version__}"}
        headers |= {"authorization": f"Bearer {token}"} if token else {}
        headers |= {"falaj-purpose": purpose} if purpose else {}
        verify: ssl.SSLContext | bool = False
        if parts.scheme == "https":
            from falaj.api.tls import client_context

            verify = client_context(ca, cert, key)
        self.progress: Progress = Silence()
        self.bytes = RemoteBytes(self)
        self._online: Online | None = None
        self._http = httpx.Client(
            base_url=self.address,
            headers=headers,
            verify=verify,
            timeout=httpx.Timeout(timeout_s, connect=10.0),
            trust_env=not local,
        )

    def __getattr__(self, name: str) -> BoundDesk:
        if name.startswith("_") or name not in DESKS:
            raise AttributeError(f"there is no desk {name!r}; there are: {', '.join(DESKS)}")
        return BoundDesk(name, self, self.call)

    def __dir__(self) -> list[str]:
        return [*DESKS, "call", "close", "events", "get"]

    def __enter__(self) -> "RemotePlatform":
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def working(self) -> AbstractContextManager[None]:
        """Nothing to do here: the server works."""
        return nullcontext()

    def online(self) -> Online | None:
        """The tenant's online store where $FALAJ_ONLINE names it, for reading only; else the server is asked."""
        url = os.environ.get("FALAJ_ONLINE", "")
        if url and self._online is None:
            self._online = plugin("online", url.partition(":")[0])(url, {"readonly": True})
        return self._online

    def close(self) -> None:
        """Give the connections back."""
        self._http.close()

    def call(self, desk: str, verb: Verb, given: dict[str, Any]) -> Any:
        """One verb: arguments already typed, the result decoded to the verb's type."""
        path = f"/v1/{desk}/{verb.name}"
        stream = next((p.name for p in verb.params if Stream in options(p.type)), "")
        body = given.get(stream)
        said = {p.name: given[p.name] for p in verb.params if p.required or given.get(p.name) != p.default}
        said.pop(stream, None)
        if isinstance(body, Stream):
            return _result(verb, self._upload(path, to_json(said), body))
        if Stream in options(verb.result):
            return self._download(path, to_json(said))
        link = trace.here()
        headers = {"content-type": "application/json", **({"traceparent": link.header} if link else {})}
        safe = verb.reading or (verb.group in SAFE_GROUPS and not verb.writes)
        # Naming the request makes a repeat find the first outcome, so that it may be tried again.
        headers |= {} if safe or verb.outside else {"idempotency-key": uuid.uuid4().hex}
        text = to_json(said)
        return _result(
            verb,
            self._tried(lambda: self._http.post(path, content=text, headers=headers), again=not verb.outside or safe),
        )

    def get(self, path: str) -> Any:
        """The JSON at a read-only path: /health, /ready, /v1/login, /r/<ref>."""
        return self._tried(lambda: self._http.get(path), again=True).json()

    def send(self, path: str, body: bytes, headers: dict[str, str], *, stream: bool = False) -> httpx.Response:
        """POST what may be sent again without harm."""

        def post() -> httpx.Response:
            return self._http.send(self._http.build_request("POST", path, content=body, headers=headers), stream=stream)

        return self._tried(post, again=True)

    def events(self, after: str = "", **where: str) -> Iterator[tuple[str, Event]]:
        """Follow the tenant's log: (cursor, event), for as long as somebody speaks.

        Where a replica goes, or is lost, another tells on from the last event seen.
        """
        response = self._tried(partial(self._listen, after, where), again=True)
        while True:
            ended = True
            try:
                for line in response.iter_lines():
                    if line.startswith("id: "):
                        after = line[4:]
                    elif line.startswith("data: "):
                        yield after, Event.decode(line[6:].encode())
                    elif line == ELSEWHERE:
                        ended = False
            except httpx.TransportError:
                ended = False
            finally:
                response.close()
            if ended:
                return
            try:
                response = self._tried(partial(self._listen, after, where), again=True)
            except FalajError:
                return

    def _listen(self, after: str, where: dict[str, str]) -> httpx.Response:
        headers = {"last-event-id": after} if after else {}
        request = self._http.build_request(
            "GET", "/v1/events", params=where, headers=headers, timeout=httpx.Timeout(10.0, read=60.0)
        )
        return self._http.send(request, stream=True)

    def _upload(self, path: str, arguments: bytes, body: Stream) -> httpx.Response:
        headers = {"content-type": "application/octet-stream", ARGS_HEADER: encode_header(arguments)}
        headers |= {"content-length": str(body.size)} if body.size is not None else {}
        send = lambda: self._http.post(path, content=iter(body), headers=headers, timeout=None)  # noqa: E731
        return self._tried(send, again=False)

    def _download(self, path: str, arguments: bytes) -> Stream:
        request = self._http.build_request(
            "POST", path, content=arguments, headers={"content-type": "application/json"}
        )
        response = self._tried(lambda: self._http.send(request, stream=True), again=True)
        size = response.headers.get("content-length")
        return Stream(_chunks(response), int(size) if size else None)

    def _tried(self, send: Callable[[], httpx.Response], *, again: bool) -> httpx.Response:
        """Send; when it is worth it, and safe or nothing was sent yet, send again."""
        for turn in range(TRIES):
            try:
                return self._once(send)
            except FalajError as error:
                safe = again or isinstance(error.__cause__, UNSENT)
                wait = _wait(error, turn) if safe and turn + 1 < TRIES else None
                if wait is None:
                    raise
                time.sleep(wait)
        raise Unavailable("no answer", "try again later")

    def _once(self, send: Callable[[], httpx.Response]) -> httpx.Response:
        try:
            response = send()
            if response.status_code == 200:
                return response
            response.read()
        except httpx.TransportError as error:
            raise self._unreachable(error) from error
        raise _raised(response)

    def _unreachable(self, error: httpx.TransportError) -> FalajError:
        if "CERTIFICATE_VERIFY_FAILED" in str(error):
            return Unavailable(
                f"the certificate of {self.address} is signed by nobody we trust",
                "name its authority: --ca FILE, or falaj login --ca FILE",
            )
        if isinstance(error, httpx.ConnectError):
            return Unavailable(f"nothing answers at {self.address}", "start it with: falaj up; or check the address")
        if isinstance(error, httpx.TimeoutException):
            return Unavailable(f"{self.address} did not answer in time", "try again")
        return Unavailable(f"the connection to {self.address} broke", "try again")


class RemoteBytes:
    """The byte channel of a platform somewhere else. A piece that was lost on the way is sent again."""

    def __init__(self, platform: RemotePlatform) -> None:
        self._platform = platform

    def put(self, ticket: str, chunks: Iterable[bytes]) -> Receipt:
        """Send one piece, of at most 64 MiB."""
        body = b"".join(chunks)
        headers = {"content-type": "application/octet-stream", TICKET_HEADER.decode(): ticket}
        answer = self._platform.send(PUT, body, headers)
        receipt: Receipt = from_json(Receipt, answer.content)
        return receipt

    def bundle(self, ticket: str, receipts: tuple[Receipt, ...]) -> Receipt:
        """Tie pieces together."""
        answer = self._platform.send(BUNDLE, to_json(Tied(ticket, receipts)), _JSON)
        receipt: Receipt = from_json(Receipt, answer.content)
        return receipt

    def get(self, ticket: str, digest: str, start: int = 0, stop: int | None = None) -> Iterator[bytes]:
        """Bytes of what the ticket opens."""
        asked = to_json(Wanted(ticket, digest, start, stop))
        return _chunks(self._platform.send(GET, asked, _JSON, stream=True))


_JSON = {"content-type": "application/json"}


def _result(verb: Verb, response: httpx.Response) -> Any:
    if verb.result in (None, type(None)):
        return None
    try:
        return from_json(verb.result, response.content)
    except Invalid as error:
        raise Corrupt(
            f"the answer to {verb.name} is not what this version expects", "use the same version on both sides"
        ) from error


def _raised(response: httpx.Response) -> FalajError:
    try:
        body = response.json()
    except (json.JSONDecodeError, UnicodeDecodeError):
        body = None
    if not isinstance(body, dict) or "code" not in body:
        return Unavailable(
            f"something that is not Falaj answered {response.status_code}", "check the address, and what stands between"
        )
    error = from_wire({name: str(value) for name, value in body.items()})
    after = response.headers.get("retry-after", "")
    error.wait_s = float(after) if after.isdigit() else None  # type: ignore[attr-defined]
    return error


def _wait(error: FalajError, turn: int) -> float | None:
    """Seconds until the same call may work, or None when it will not."""
    if not error.retry or error.status not in (429, 503):
        return None
    told = getattr(error, "wait_s", None)
    # Callers that were turned away together do not come back together.
    spread = 1.0 + 0.5 * random.random()  # noqa: S311 # nosec B311 - no secret
    return min(float(told if told is not None else 0.1 * 2**turn) * spread, LONGEST_WAIT_S)


def _chunks(response: httpx.Response) -> Iterator[bytes]:
    try:
        yield from response.iter_bytes(BLOCK)
    except httpx.TransportError as error:
        raise Unavailable("the answer was cut before its end", "ask again") from error
    finally:
        response.close()
