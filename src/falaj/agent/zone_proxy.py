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

from falaj.agent.agent_commands import TokenMap
from falaj.agent.platform_link import PlatformLink, PlatformResponse
from falaj.agent.zone_vault import ZoneVault
from falaj.api.agent_channel import FIND_PATH, KEEP_PATH
from falaj.api.byte_channel_protocol import BUNDLE_PATH, GET_PATH, MAX_PIECE_BYTES, PUT_PATH, TICKET_HEADER
from falaj.core.errors import CorruptData, Denied, FalajError, Invalid, Unauthenticated, Unavailable

PROXIED_SERVICES = frozenset(
    {"catalog", "jobs", "track", "outputs", "sweeps", "people", "zones", "policy", "approvals", "clusters", "queues"}
)
"""Desks whose verbs are about things, and not their contents. Others are spoken to outside the zone."""
PUBLIC_PATHS = ("/health", "/v1/login", "/v1/openapi.json", "/ready")
MAX_JSON_BYTES = 16 << 20
MAX_CONNECTIONS, MAX_CONNECTIONS_PER_PEER = 512, 128
"""Open connections, in sum and of one address; a sandboxed attempt calls from an address of its own."""
MAX_BODY_BYTES_TOTAL = 512 << 20
"""Bytes of bodies that are held at once, in sum."""
IDLE_TIMEOUT_S, BODY_TIMEOUT_S = 75.0, 120.0
"""Seconds without a byte after which a connection is closed, and seconds that a body may take."""
MAX_HOLD_S, RETRY_PAUSE_S = 40.0, 1.0
"""So long a request waits for the link before its caller is told to come again."""
_BEARER_PATTERN = re.compile(r"[Bb]earer +([!-~]{1,8192}) *")
_PASSED_HEADERS = ("authorization", "content-type", "idempotency-key", "falaj-purpose", "traceparent")
_RETURNED_HEADERS = ("content-type", "falaj-request", "retry-after")
_VALUE_STATISTICS = ("low", "high", "mean")
"""What the statistics of a column show of its values."""


@dataclass(frozen=True, slots=True)
class ProxyContext:
    """What the door stands in."""

    zone: str
    link: PlatformLink
    vault: ZoneVault
    tokens: TokenMap


class ZoneProxyServer(ThreadingHTTPServer):
    """Listens on loopback, for this machine only."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, proxy_context: ProxyContext, host: str, port: int) -> None:
        if host not in ("127.0.0.1", "::1", "localhost"):
            raise Invalid(f"the door would listen on {host[:60]}", "it is plain HTTP: 127.0.0.1 only")
        self.house = proxy_context
        self._lock, self._connections_by_peer, self._body_bytes = threading.Lock(), Counter[str](), 0
        super().__init__((host, port), _ProxyRequestHandler)

    @property
    def address(self) -> str:
        """Where it is."""
        return f"http://127.0.0.1:{self.server_address[1]}"

    def process_request(self, request: Any, client_address: Any) -> None:
        """Serve a connection, or close it where its peer has too many."""
        peer = str(client_address[0])
        with self._lock:
            is_admitted = (
                self._connections_by_peer.total() < MAX_CONNECTIONS
                and self._connections_by_peer[peer] < MAX_CONNECTIONS_PER_PEER
            )
            if is_admitted:
                self._connections_by_peer[peer] += 1
        if is_admitted:
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Serve it in its thread, and count it no more."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            with self._lock:
                self._connections_by_peer[str(client_address[0])] -= 1
                self._connections_by_peer += Counter()  # forgets those at zero

    @contextmanager
    def body_of(self, size: int) -> Iterator[None]:
        """Hold a body of this size for as long as its request is served."""
        with self._lock:
            if self._body_bytes + size > MAX_BODY_BYTES_TOTAL:
                raise Unavailable("the agent holds as many bytes as it can", "try again shortly")
            self._body_bytes += size
        try:
            yield
        finally:
            with self._lock:
                self._body_bytes -= size


class _ProxyRequestHandler(BaseHTTPRequestHandler):
    """One connection."""

    server: ZoneProxyServer
    protocol_version = "HTTP/1.1"
    timeout = IDLE_TIMEOUT_S
    disable_nagle_algorithm = True

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the parent's word
        """Paths hold names; whoever wants a log asks the platform for its own."""

    def do_GET(self) -> None:
        self._handle_request()

    def do_POST(self) -> None:
        self._handle_request()

    def _handle_request(self) -> None:
        try:
            host = self.headers.get("host", "").rpartition(":")[0]
            if host not in ("127.0.0.1", "localhost", "[::1]") or "origin" in self.headers:
                raise Denied("a page may not ask this", "call from your own program")
            self._check_token()
            max_bytes = (
                MAX_PIECE_BYTES
                if self.path in (PUT_PATH, BUNDLE_PATH, GET_PATH) and self.command == "POST"
                else MAX_JSON_BYTES
            )
            with self.server.body_of(self._get_body_length(max_bytes)):
                self._serve_request()
        except FalajError as error:
            error_fields = {"code": error.code, "message": error.message, "hint": error.hint, "ref": ""}
            headers = {"content-type": "application/json", "connection": "close"}  # its body was not read
            self._send_response(error.status, json.dumps(error_fields).encode(), headers)

    def _check_token(self) -> None:
        """Unauthenticated without a bearer token: no request is passed on under the agent's own identity."""
        if self.command == "GET" and self.path in PUBLIC_PATHS:
            return
        match = _BEARER_PATTERN.fullmatch(self.headers.get("authorization", ""))
        if match is None or not self.server.house.tokens.may_pass(match[1]):
            raise Unauthenticated("the request carries no bearer token", "send Authorization: Bearer <token>")

    def _serve_request(self) -> None:
        if self.path in (PUT_PATH, BUNDLE_PATH, GET_PATH) and self.command == "POST":
            self._serve_byte_channel()
            return
        self._require_proxied_operation()
        body = self._read_body(MAX_JSON_BYTES)
        if self.path == "/v1/catalog/commit":
            body = _remove_value_statistics(body)
        self._forward_request(body)

    def _require_proxied_operation(self) -> None:
        service_name = self.path.split("/")[2] if self.path.startswith("/v1/") and self.path.count("/") == 3 else ""
        if self.command == "GET" and (self.path in PUBLIC_PATHS or self.path.startswith("/r/")):
            return
        if self.command != "POST" or service_name not in PROXIED_SERVICES:
            raise Denied(
                "the agent does not pass this on", f"it passes on verbs of {', '.join(sorted(PROXIED_SERVICES))}"
            )
        if self.headers.get("content-type", "").partition(";")[0] != "application/json":
            raise Denied("bytes do not leave this zone by a verb", "publish them: falaj catalog publish")

    def _serve_byte_channel(self) -> None:
        body = self._read_body(MAX_PIECE_BYTES)
        if self.path == PUT_PATH:
            ticket = self.headers.get(TICKET_HEADER.decode(), "")
            zone, tenant = _read_ticket(ticket)
            self._require_own_zone(zone)
            self._store_piece(ticket, tenant, body)
        elif self.path == BUNDLE_PATH:
            self._forward_request(body)
        else:
            self._send_piece(_parse_json_object(body))

    def _require_own_zone(self, zone: str) -> None:
        if zone != self.server.house.zone:
            raise Denied(f"these bytes belong to zone {zone}", "call the platform itself, or that zone's agent")

    def _store_piece(self, ticket: str, tenant: str, data: bytes) -> None:
        vault = self.server.house.vault
        digest, storage_key = vault.put(tenant, data)
        is_recorded = False
        try:
            platform_response = self._post_to_platform(
                KEEP_PATH, {"ticket": ticket, "digest": digest, "size": len(data), "key": storage_key}
            )
            if platform_response.status != 200:
                self._send_platform_response(platform_response)
                return
            response_fields = json.loads(platform_response.body)
            is_recorded = bool(response_fields["kept"])
        except Unavailable:
            is_recorded = True  # it may have heard us: a piece too many is found by a census, one too few is lost
            raise
        finally:
            if not is_recorded:
                vault.store.delete(storage_key)
        self._send_response(200, json.dumps(response_fields["receipt"]).encode(), {"content-type": "application/json"})

    def _send_piece(self, piece_request: Mapping[str, Any]) -> None:
        self._require_own_zone(_read_ticket(str(piece_request.get("ticket", "")))[0])
        digest = str(piece_request.get("digest", ""))
        platform_response = self._post_to_platform(FIND_PATH, {"ticket": piece_request.get("ticket"), "digest": digest})
        if platform_response.status != 200:
            self._send_platform_response(platform_response)
            return
        piece_location = json.loads(platform_response.body)
        size, start = int(piece_location["size"]), int(piece_request.get("start") or 0)
        stop = size if piece_request.get("stop") is None else min(int(piece_request["stop"]), size)
        start = min(start, stop)
        chunks = self.server.house.vault.get(
            piece_location["tenant"], digest, piece_location["key"], (start, stop, size)
        )
        self._stream_chunks(chunks, stop - start)

    def _stream_chunks(self, chunks: Iterator[bytes], size: int) -> None:
        first_chunk = next(chunks, b"")  # what does not open is still an error, and no answer cut short
        self.send_response_only(200)
        self.send_header("content-type", "application/octet-stream")
        self.send_header("content-length", str(size))
        self.end_headers()
        self.wfile.write(first_chunk)
        try:
            for chunk in chunks:
                self.wfile.write(chunk)
        except CorruptData:
            self.close_connection = True  # the caller sees that the answer has no end

    def _post_to_platform(self, path: str, body: Mapping[str, Any]) -> PlatformResponse:
        headers = {**self._make_headers(), "content-type": "application/json"}
        headers.pop("idempotency-key", None)
        return self._send_with_retry(path, headers, json.dumps(body).encode())

    def _forward_request(self, body: bytes) -> None:
        self._send_platform_response(self._send_with_retry(self.path, self._make_headers(), body))

    def _send_with_retry(self, path: str, headers: Mapping[str, str], body: bytes) -> PlatformResponse:
        """Send; while the link is down, hold the caller for a while. A request is named, or harmless to repeat."""
        deadline = time.monotonic() + MAX_HOLD_S
        while True:
            try:
                return self._send_with_fresh_token(path, headers, body)
            except Unavailable:
                if time.monotonic() + RETRY_PAUSE_S > deadline:
                    raise
                self.server.house.link.up.wait(RETRY_PAUSE_S)
                time.sleep(RETRY_PAUSE_S / 5)

    def _send_with_fresh_token(self, path: str, headers: Mapping[str, str], body: bytes) -> PlatformResponse:
        """Send; where the token of an attempt ended while the link was down, once more with its next one."""
        proxy_context = self.server.house
        platform_response = proxy_context.link.send(self.command, path, headers, body)
        local_token = self.headers.get("authorization", "").partition(" ")[2]
        if platform_response.status == 401 and proxy_context.tokens.revive(proxy_context.link, local_token):
            platform_response = proxy_context.link.send(self.command, path, {**headers, **self._make_headers()}, body)
        return platform_response

    def _make_headers(self) -> dict[str, str]:
        passed_headers = {name: self.headers[name] for name in _PASSED_HEADERS if name in self.headers}
        scheme, _, token = passed_headers.get("authorization", "").partition(" ")
        if token:
            passed_headers["authorization"] = f"{scheme} {self.server.house.tokens.real(token)}"
        return passed_headers

    def _read_body(self, max_bytes: int) -> bytes:
        if "chunked" in self.headers.get("transfer-encoding", "").lower():
            raise Invalid("the body has no length", "send content-length")
        remaining_bytes, deadline = self._get_body_length(max_bytes), time.monotonic() + BODY_TIMEOUT_S
        parts = list[bytes]()
        while remaining_bytes and (part := self.rfile.read1(min(remaining_bytes, 1 << 20))):
            parts.append(part)
            remaining_bytes -= len(part)
            if time.monotonic() > deadline:
                raise Invalid("the body did not come in time", "send it faster")
        if remaining_bytes:
            raise Invalid("the body ended before its end", "send it again")
        return b"".join(parts)

    def _get_body_length(self, max_bytes: int) -> int:
        length = self.headers.get("content-length", "0")
        if not (length.isascii() and length.isdecimal()) or len(length) > 18 or int(length) > max_bytes:
            raise Invalid(f"the body is larger than {max_bytes} bytes", "send less at once")
        return int(length)

    def _send_platform_response(self, platform_response: PlatformResponse) -> None:
        self._send_response(
            platform_response.status,
            platform_response.body,
            {name: platform_response.headers[name] for name in _RETURNED_HEADERS if name in platform_response.headers},
        )

    def _send_response(self, status: int, body: bytes, headers: Mapping[str, str]) -> None:
        self.send_response_only(status)
        for name, value in {**headers, "content-length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)


def _read_ticket(ticket: str) -> tuple[str, str]:
    """The zone and tenant that a ticket says; whether that is true the platform decides, before anything counts."""
    try:
        ticket_fields = json.loads(base64.urlsafe_b64decode(ticket.partition(".")[0]))
        return str(ticket_fields["zone"]), str(ticket_fields["tenant"])
    except (binascii.Error, ValueError, KeyError, TypeError, RecursionError):
        raise Invalid("that is no ticket", "tickets come from a verb, such as catalog.open") from None


def _parse_json_object(body: bytes) -> dict[str, Any]:
    try:
        parsed = json.loads(body)
    except (ValueError, RecursionError):
        parsed = None
    if not isinstance(parsed, dict):
        raise Invalid("the body is no JSON object", "send application/json")
    return parsed


def _remove_value_statistics(body: bytes) -> bytes:
    """What a publisher says of a table, without what shows values of its columns."""
    commit_request = _parse_json_object(body)
    table = (commit_request.get("facts") or {}).get("table") or {}
    for column in table.get("columns") or ():
        for name in _VALUE_STATISTICS:
            column.pop(name, None)
    return json.dumps(commit_request).encode()
