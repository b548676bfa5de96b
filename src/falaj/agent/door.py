"""The door: where attempts and people of the zone speak to the platform. Verbs are passed on; bytes stay here.

What is passed on is on a list, and is JSON. Bytes that a ticket leads into this zone go to the vault, and the platform
hears their digest, their size and their name. What would carry bytes out by another way is refused before it is read.
"""

import base64
import binascii
import json
import re
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from falaj.agent.link import Link, Said
from falaj.agent.vault import Vault
from falaj.agent.work import Tokens
from falaj.api.channel import FIND, KEEP
from falaj.api.pieces import BUNDLE, GET, PIECE_BYTES, PUT, TICKET_HEADER
from falaj.core.errors import Corrupt, Denied, FalajError, Invalid, Unauthenticated, Unavailable

DESKS = frozenset(
    {"catalog", "jobs", "track", "outputs", "sweeps", "people", "zones", "policy", "approvals", "clusters", "queues"}
)
"""Desks whose verbs are about things, and not their contents. Others are spoken to outside the zone."""
OPEN = ("/health", "/v1/login", "/v1/openapi.json", "/ready")
MOST_JSON = 16 << 20
CONNECTIONS, CONNECTIONS_PER_PEER = 512, 128
"""Open connections, in sum and of one address; a sandboxed attempt calls from an address of its own."""
BODIES = 512 << 20
"""Bytes of bodies that are held at once, in sum."""
IDLE_S, BODY_S = 75.0, 120.0
"""Seconds without a byte after which a connection is closed, and seconds that a body may take."""
HOLD_S, PAUSE_S = 40.0, 1.0
"""So long a request waits for the link before its caller is told to come again."""
_BEARER = re.compile(r"[Bb]earer +([!-~]{1,8192}) *")
_PASSED = ("authorization", "content-type", "idempotency-key", "falaj-purpose", "traceparent")
_ANSWERED = ("content-type", "falaj-request", "retry-after")
_SHOWING = ("low", "high", "mean")
"""What the statistics of a column show of its values."""


@dataclass(frozen=True, slots=True)
class House:
    """What the door stands in."""

    zone: str
    link: Link
    vault: Vault
    tokens: Tokens


class Door(ThreadingHTTPServer):
    """Listens on loopback, for this machine only."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, house: House, host: str, port: int) -> None:
        if host not in ("127.0.0.1", "::1", "localhost"):
            raise Invalid(f"the door would listen on {host[:60]}", "it is plain HTTP: 127.0.0.1 only")
        self.house = house
        self._lock, self._peers, self._body_bytes = threading.Lock(), Counter[str](), 0
        super().__init__((host, port), _Caller)

    @property
    def address(self) -> str:
        """Where it is."""
        return f"http://127.0.0.1:{self.server_address[1]}"

    def process_request(self, request: Any, client_address: Any) -> None:
        """Serve a connection, or close it where its peer has too many."""
        peer = str(client_address[0])
        with self._lock:
            admitted = self._peers.total() < CONNECTIONS and self._peers[peer] < CONNECTIONS_PER_PEER
            if admitted:
                self._peers[peer] += 1
        if admitted:
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Serve it in its thread, and count it no more."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            with self._lock:
                self._peers[str(client_address[0])] -= 1
                self._peers += Counter()  # forgets those at zero

    @contextmanager
    def body_of(self, size: int) -> Iterator[None]:
        """Hold a body of this size for as long as its request is served."""
        with self._lock:
            if self._body_bytes + size > BODIES:
                raise Unavailable("the agent holds as many bytes as it can", "try again shortly")
            self._body_bytes += size
        try:
            yield
        finally:
            with self._lock:
                self._body_bytes -= size


class _Caller(BaseHTTPRequestHandler):
    """One connection."""

    server: Door
    protocol_version = "HTTP/1.1"
    timeout = IDLE_S
    disable_nagle_algorithm = True

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the parent's word
        """Paths hold names; whoever wants a log asks the platform for its own."""

    def do_GET(self) -> None:
        self._guarded()

    def do_POST(self) -> None:
        self._guarded()

    def _guarded(self) -> None:
        try:
            host = self.headers.get("host", "").rpartition(":")[0]
            if host not in ("127.0.0.1", "localhost", "[::1]") or "origin" in self.headers:
                raise Denied("a page may not ask this", "call from your own program")
            self._check_token()
            most = PIECE_BYTES if self.path in (PUT, BUNDLE, GET) and self.command == "POST" else MOST_JSON
            with self.server.body_of(self._length(most)):
                self._serve()
        except FalajError as error:
            told = {"code": error.code, "message": error.message, "hint": error.hint, "ref": ""}
            headers = {"content-type": "application/json", "connection": "close"}  # its body was not read
            self._answer(error.status, json.dumps(told).encode(), headers)

    def _check_token(self) -> None:
        """Unauthenticated without a bearer token: no request is passed on under the agent's own identity."""
        if self.command == "GET" and self.path in OPEN:
            return
        match = _BEARER.fullmatch(self.headers.get("authorization", ""))
        if match is None or not self.server.house.tokens.may_pass(match[1]):
            raise Unauthenticated("the request carries no bearer token", "send Authorization: Bearer <token>")

    def _serve(self) -> None:
        if self.path in (PUT, BUNDLE, GET) and self.command == "POST":
            self._bytes()
            return
        self._check_passes()
        body = self._body(MOST_JSON)
        if self.path == "/v1/catalog/commit":
            body = _without_values(body)
        self._pass_on(body)

    def _check_passes(self) -> None:
        desk = self.path.split("/")[2] if self.path.startswith("/v1/") and self.path.count("/") == 3 else ""
        if self.command == "GET" and (self.path in OPEN or self.path.startswith("/r/")):
            return
        if self.command != "POST" or desk not in DESKS:
            raise Denied("the agent does not pass this on", f"it passes on verbs of {', '.join(sorted(DESKS))}")
        if self.headers.get("content-type", "").partition(";")[0] != "application/json":
            raise Denied("bytes do not leave this zone by a verb", "publish them: falaj catalog publish")

    def _bytes(self) -> None:
        body = self._body(PIECE_BYTES)
        if self.path == PUT:
            ticket = self.headers.get(TICKET_HEADER.decode(), "")
            zone, tenant = _ticket(ticket)
            self._check_zone(zone)
            self._put(ticket, tenant, body)
        elif self.path == BUNDLE:
            self._pass_on(body)
        else:
            self._get(_object(body))

    def _check_zone(self, zone: str) -> None:
        if zone != self.server.house.zone:
            raise Denied(f"these bytes belong to zone {zone}", "call the platform itself, or that zone's agent")

    def _put(self, ticket: str, tenant: str, data: bytes) -> None:
        vault = self.server.house.vault
        digest, name = vault.put(tenant, data)
        kept = False
        try:
            said = self._tell(KEEP, {"ticket": ticket, "digest": digest, "size": len(data), "key": name})
            if said.status != 200:
                self._reply(said)
                return
            told = json.loads(said.body)
            kept = bool(told["kept"])
        except Unavailable:
            kept = True  # it may have heard us: a piece too many is found by a census, one too few is lost
            raise
        finally:
            if not kept:
                vault.store.delete(name)
        self._answer(200, json.dumps(told["receipt"]).encode(), {"content-type": "application/json"})

    def _get(self, wanted: Mapping[str, Any]) -> None:
        self._check_zone(_ticket(str(wanted.get("ticket", "")))[0])
        digest = str(wanted.get("digest", ""))
        said = self._tell(FIND, {"ticket": wanted.get("ticket"), "digest": digest})
        if said.status != 200:
            self._reply(said)
            return
        found = json.loads(said.body)
        size, start = int(found["size"]), int(wanted.get("start") or 0)
        stop = size if wanted.get("stop") is None else min(int(wanted["stop"]), size)
        start = min(start, stop)
        chunks = self.server.house.vault.get(found["tenant"], digest, found["key"], (start, stop, size))
        self._stream(chunks, stop - start)

    def _stream(self, chunks: Iterator[bytes], size: int) -> None:
        first = next(chunks, b"")  # what does not open is still an error, and no answer cut short
        self.send_response_only(200)
        self.send_header("content-type", "application/octet-stream")
        self.send_header("content-length", str(size))
        self.end_headers()
        self.wfile.write(first)
        try:
            for chunk in chunks:
                self.wfile.write(chunk)
        except Corrupt:
            self.close_connection = True  # the caller sees that the answer has no end

    def _tell(self, path: str, body: Mapping[str, Any]) -> Said:
        headers = {**self._headers(), "content-type": "application/json"}
        headers.pop("idempotency-key", None)
        return self._patiently(path, headers, json.dumps(body).encode())

    def _pass_on(self, body: bytes) -> None:
        self._reply(self._patiently(self.path, self._headers(), body))

    def _patiently(self, path: str, headers: Mapping[str, str], body: bytes) -> Said:
        """Send; while the link is down, hold the caller for a while. A request is named, or harmless to repeat."""
        until = time.monotonic() + HOLD_S
        while True:
            try:
                return self._sent(path, headers, body)
            except Unavailable:
                if time.monotonic() + PAUSE_S > until:
                    raise
                self.server.house.link.up.wait(PAUSE_S)
                time.sleep(PAUSE_S / 5)

    def _sent(self, path: str, headers: Mapping[str, str], body: bytes) -> Said:
        """Send; where the token of an attempt ended while the link was down, once more with its next one."""
        house = self.server.house
        said = house.link.send(self.command, path, headers, body)
        local = self.headers.get("authorization", "").partition(" ")[2]
        if said.status == 401 and house.tokens.revive(house.link, local):
            said = house.link.send(self.command, path, {**headers, **self._headers()}, body)
        return said

    def _headers(self) -> dict[str, str]:
        found = {name: self.headers[name] for name in _PASSED if name in self.headers}
        scheme, _, token = found.get("authorization", "").partition(" ")
        if token:
            found["authorization"] = f"{scheme} {self.server.house.tokens.real(token)}"
        return found

    def _body(self, most: int) -> bytes:
        if "chunked" in self.headers.get("transfer-encoding", "").lower():
            raise Invalid("the body has no length", "send content-length")
        length, until = self._length(most), time.monotonic() + BODY_S
        parts = list[bytes]()
        while length and (part := self.rfile.read1(min(length, 1 << 20))):
            parts.append(part)
            length -= len(part)
            if time.monotonic() > until:
                raise Invalid("the body did not come in time", "send it faster")
        if length:
            raise Invalid("the body ended before its end", "send it again")
        return b"".join(parts)

    def _length(self, most: int) -> int:
        length = self.headers.get("content-length", "0")
        if not (length.isascii() and length.isdecimal()) or len(length) > 18 or int(length) > most:
            raise Invalid(f"the body is larger than {most} bytes", "send less at once")
        return int(length)

    def _reply(self, said: Said) -> None:
        self._answer(said.status, said.body, {name: said.headers[name] for name in _ANSWERED if name in said.headers})

    def _answer(self, status: int, body: bytes, headers: Mapping[str, str]) -> None:
        self.send_response_only(status)
        for name, value in {**headers, "content-length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)


def _ticket(text: str) -> tuple[str, str]:
    """The zone and tenant that a ticket says; whether that is true the platform decides, before anything counts."""
    try:
        said = json.loads(base64.urlsafe_b64decode(text.partition(".")[0]))
        return str(said["zone"]), str(said["tenant"])
    except (binascii.Error, ValueError, KeyError, TypeError, RecursionError):
        raise Invalid("that is no ticket", "tickets come from a verb, such as catalog.open") from None


def _object(body: bytes) -> dict[str, Any]:
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise Invalid("the body is no JSON object", "send application/json")
    return found


def _without_values(body: bytes) -> bytes:
    """What a publisher says of a table, without what shows values of its columns."""
    said = _object(body)
    table = (said.get("facts") or {}).get("table") or {}
    for column in table.get("columns") or ():
        for name in _SHOWING:
            column.pop(name, None)
    return json.dumps(said).encode()
