"""Bytes of a connection to whole HTTP/1.1 requests, within limits. No socket is known here.

llhttp (httptools) reads every head once; a head that came before, byte for byte, is looked up instead: clients that
keep a connection send the same one again and again.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import httptools

from falaj.oip.byte_budget import UNKNOWN_PRINCIPAL, ByteBudget, ByteReservation, over_budget_error
from falaj.oip.handler_calls import HttpReply
from falaj.oip.pieces import append_piece
from falaj.oip.rest_codec import error_reply, status_reply


@dataclass(frozen=True, slots=True)
class Http1Limits:
    """What one client may take."""

    head_bytes: int = 16 << 10
    headers: int = 100
    body_bytes: int = 64 << 20
    """Also after it is decompressed."""
    head_s: float = 10.0
    """From the first byte of a request to the end of its head."""
    idle_s: float = 30.0
    """Without a byte in the middle of a request, or without reading in the middle of an answer."""
    whole_s: float = 600.0
    """For one request to arrive."""
    keep_s: float = 120.0
    """Between requests."""
    unauthenticated_keep_s: float = 60.0
    """The same on a connection whose last caller was not authenticated."""
    connections: int = 4096
    peer_connections: int = 2048
    """Connections of one address; of IPv6, of one /64 network."""
    pipelined: int = 64
    """Requests of one connection that are answered at once; the next ones wait, and no more is read."""


class RequestHead:
    """What stands before a body. Shared by all requests that have it, so nobody changes it."""

    __slots__ = ("accepts", "coding", "headers", "keep", "lead", "length", "method", "modern", "path")

    def __init__(self, method: bytes, path: bytes, headers: Mapping[bytes, bytes]) -> None:
        self.method, self.path, self.headers = method, path, headers
        self.keep = self.modern = True
        """Whether the connection lives on after it; whether it is HTTP/1.1."""
        self.length = 0
        """Of the body; -1 when it comes in chunks."""
        coding = headers.get(b"content-encoding", b"").lower()
        self.coding = b"" if coding == b"identity" else coding
        self.accepts = headers.get(b"accept-encoding", b"").lower()
        self.lead: object = None
        """What the door made of it."""


ParsedRequest = tuple[RequestHead, bytes, ByteReservation | None]
"""A request that has arrived: its head, its body, and what is reserved for the body where it came in pieces."""
RequestHeadCache = dict[bytes, RequestHead]
"""Heads that came before, by their bytes; shared by the connections of a server."""
_MAX_CACHED_HEADS, MAX_CACHED_HEAD_BYTES = 1024, 2048
MAX_UNCOUNTED_BYTES = 16 << 10
"""Bodies of no more than this are not counted: connections and what is pipelined bound their sum."""
_CHUNK_SLACK_BYTES = 1 << 20
"""Chunks may waste three times what they carry, and so much besides."""
_ACCEPTED_CODINGS = (b"", b"gzip", b"x-gzip", b"deflate")
_SINGLE_HEADERS = frozenset(
    (
        b"host",
        b"authorization",
        b"content-length",
        b"content-encoding",
        b"content-type",
        b"transfer-encoding",
        b"inference-header-content-length",
        b"expect",
    )
)
HEAD_END = b"\r\n\r\n"


class Http1Parser:
    """One connection's requests. `feed` gives those that are whole; `refusal` is the last answer of a connection that
    broke the rules, and nothing is read after it. While `unjudged` a head has come and its sender is to be asked for;
    `admit` or `refuse` follows."""

    __slots__ = (
        "_body_bytes",
        "_body_bytes_before",
        "_body_bytes_in_feed",
        "_budget",
        "_candidate_head",
        "_completed",
        "_fed_bytes",
        "_head_bytes",
        "_head_cache",
        "_headers",
        "_limits",
        "_parser",
        "_parts",
        "_url",
        "expects",
        "head",
        "headed",
        "principal",
        "refusal",
        "reservation",
        "unjudged",
        "within",
    )

    def __init__(self, limits: Http1Limits, head_cache: RequestHeadCache, budget: ByteBudget | None = None) -> None:
        self._limits, self._head_cache, self._budget = limits, head_cache, budget or ByteBudget()
        self._parser = httptools.HttpRequestParser(self)
        self.refusal: HttpReply | None = None
        self.within = self.headed = self.expects = False
        """In the middle of a request; its head is whole; it waits to be told to go on."""
        self._completed: list[ParsedRequest] = []
        self._candidate_head = self._url = b""
        self._headers: dict[bytes, bytes] = {}
        self._parts: list[bytes] = []
        self._body_bytes = self._fed_bytes = self._head_bytes = self._body_bytes_in_feed = 0
        self._body_bytes_before = -1
        """Body bytes in the data that is fed: of the newest request, and of the last that it completed (-1: none)."""
        self.head: RequestHead | None = None
        self.principal = UNKNOWN_PRINCIPAL
        self.reservation: ByteReservation | None = None
        """Of the request that is arriving: its head once that is whole; who sends it; what is reserved for its body,
        where that is not small."""
        self.unjudged = False

    def feed(self, data: bytes) -> list[ParsedRequest]:
        """The requests that these bytes make whole, in order."""
        completed: list[ParsedRequest] = []
        if not self.within:
            data = self._take_repeated(data, completed)
            if not data:
                return completed
            end = data.find(HEAD_END, 0, MAX_CACHED_HEAD_BYTES)
            self._candidate_head = data[: end + 4] if end > 0 and data[:1].isupper() else b""
        self._completed, self._body_bytes_before, self._body_bytes_in_feed = completed, -1, 0
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            if self.refusal is None:
                if isinstance(error, httptools.HttpParserCallbackError):
                    raise
                self._refuse_with_status(400, f"this is no HTTP/1.1 request: {error}", "check what is sent")
        if self.within and self.refusal is None:
            self._check_overhead(
                len(data) if self._body_bytes_before < 0 else _tail_bytes(data, self._body_bytes_before)
            )
            if self._body_bytes > MAX_UNCOUNTED_BYTES and not self.unjudged:
                self.reserve()
        return completed

    def admit(self, principal: str) -> None:
        """The request that is arriving is taken, and its bytes are counted to `principal`."""
        self.principal = principal
        if self.reservation is not None:
            if not self.reservation.assign(principal):
                self.refuse(error_reply(over_budget_error()))
        elif self._body_bytes > MAX_UNCOUNTED_BYTES:
            self.reserve()

    def refuse(self, reply: HttpReply) -> None:
        """End with this answer: the request that is arriving is not taken, and what came of it is dropped."""
        self.refusal = reply
        self.drop()

    def drop(self) -> None:
        """Drop what came of the request that is arriving. The parser refers to us, so nothing is freed by itself."""
        self._parts = []
        if self.reservation is not None:
            self.reservation.release()
            self.reservation = None

    def reserve(self) -> None:
        """Count what has arrived of a body that is not whole."""
        reservation = self.reservation
        if reservation is None:
            reservation = self.reservation = ByteReservation(self._budget, self.principal)
        if not reservation.grow(self._body_bytes - reservation.size):
            self.refuse(error_reply(over_budget_error()))

    def _take_repeated(self, data: bytes, completed: list[ParsedRequest]) -> bytes:
        """Take the requests whose heads came before and whose bodies are here; what is left."""
        offset, size = 0, len(data)
        while offset < size:
            head_end = data.find(HEAD_END, offset, offset + MAX_CACHED_HEAD_BYTES) + 4
            request_head = self._head_cache.get(data[offset:head_end]) if head_end > 3 else None
            if request_head is None or head_end + request_head.length > size:
                break
            offset = head_end + request_head.length
            completed.append((request_head, data[head_end:offset], None))
            if offset == size or not request_head.keep:
                return b""
        return data[offset:] if offset else data

    def _check_overhead(self, size: int) -> None:
        """Bytes that make neither head nor body: an endless head, or chunks of nothing."""
        self._fed_bytes += size
        if not self.headed and self._fed_bytes > self._limits.head_bytes:
            self._refuse_with_status(431, "the head is too large", f"{self._limits.head_bytes} bytes at most")
        elif self._fed_bytes > self._limits.head_bytes + 4 * self._body_bytes + _CHUNK_SLACK_BYTES:
            self._refuse_with_status(400, "the chunks carry next to nothing", "send larger ones")

    def _refuse_with_status(self, status: int, message: str, hint: str) -> None:
        self.refuse(status_reply(status, message, hint))

    def _parser_error(self, status: int, message: str, hint: str) -> httptools.HttpParserError:
        self._refuse_with_status(status, message, hint)
        return httptools.HttpParserError(message)

    # What the parser calls, by names it knows.

    def on_message_begin(self) -> None:
        self.within, self.headed, self.principal = True, False, UNKNOWN_PRINCIPAL
        self._url, self._headers, self._parts, self.head = b"", {}, [], None
        self._body_bytes = self._fed_bytes = self._head_bytes = self._body_bytes_in_feed = 0

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self._head_bytes += len(name) + len(value) + 4
        if self._head_bytes > self._limits.head_bytes or len(self._headers) >= self._limits.headers:
            raise self._parser_error(431, "the head is too large", f"{self._limits.head_bytes} bytes at most")
        if self.headed:
            return  # a trailer: nobody reads it
        name = name.lower()
        if name in self._headers:
            if name in _SINGLE_HEADERS:
                raise self._parser_error(400, f"two headers {name[:40].decode('latin-1')!r}", "send it once")
            value = self._headers[name] + b", " + value
        self._headers[name] = value

    def on_headers_complete(self) -> None:
        headers, parser, limits = self._headers, self._parser, self._limits
        request_head = RequestHead(parser.get_method(), _parse_path(self._url), headers)
        http_version = parser.get_http_version()
        request_head.keep, request_head.modern = parser.should_keep_alive(), http_version == "1.1"
        transfer_encoding = headers.get(b"transfer-encoding")
        request_head.length = -1 if transfer_encoding is not None else int(headers.get(b"content-length", b"0"))
        expectation = headers.get(b"expect")
        if http_version not in ("1.1", "1.0") or (request_head.modern and b"host" not in headers):
            raise self._parser_error(400, "no HTTP/1.1 with a host", "send HTTP/1.1 and Host")
        if parser.should_upgrade():
            raise self._parser_error(400, "no other protocol is spoken here", "send HTTP/1.1 without Upgrade")
        if transfer_encoding is not None and (transfer_encoding.lower() != b"chunked" or not request_head.modern):
            raise self._parser_error(501, "a transfer encoding that is not known", "chunked, or none")
        if request_head.length > limits.body_bytes:
            raise self._parser_error(413, f"a body of {request_head.length} bytes", f"{limits.body_bytes} at most")
        if request_head.coding not in _ACCEPTED_CODINGS:
            raise self._parser_error(415, "a content encoding that is not known", "gzip, deflate, or none")
        if expectation is not None and expectation.lower() != b"100-continue":
            raise self._parser_error(417, "an expectation that is not known", "100-continue, or none")
        self.unjudged = True
        self.headed, self.head, self.expects = True, request_head, expectation is not None and request_head.modern
        self._cache_head(request_head, is_plain=transfer_encoding is None and expectation is None)

    def _cache_head(self, request_head: RequestHead, *, is_plain: bool) -> None:
        candidate, self._candidate_head = self._candidate_head, b""
        # As many lines as headers and the two around them: so the bytes are this head, and all of it.
        if is_plain and candidate and candidate.count(b"\n") == len(self._headers) + 2:
            # Many clients send a body by itself, so that it was not here with its head; what is known of that still is.
            cached_head = self._head_cache.get(candidate)
            if cached_head is not None:
                self.head = cached_head
                return
            if len(self._head_cache) >= _MAX_CACHED_HEADS:
                self._head_cache.clear()
            self._head_cache[candidate] = request_head

    def on_body(self, body: bytes) -> None:
        self._body_bytes += len(body)
        self._body_bytes_in_feed += len(body)
        if self._body_bytes > self._limits.body_bytes:
            raise self._parser_error(413, f"a body of more than {self._limits.body_bytes} bytes", "send less at once")
        append_piece(self._parts, body)

    def on_message_complete(self) -> None:
        self.within = self.expects = self.unjudged = False
        if self.head is not None:
            body = self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)
            self._completed.append((self.head, body, self.reservation))
            self._body_bytes_before = 0 if self.head.length < 0 else self._body_bytes_in_feed
        self._parts, self.reservation = [], None


def _tail_bytes(data: bytes, body_bytes: int) -> int:
    """How much of the data belongs to the request that begins in it: what follows the end of the last head and the
    body after that. Never more than that, and less where the body itself holds an empty line."""
    return max(0, len(data) - (data.rfind(HEAD_END) + len(HEAD_END) if HEAD_END in data else 0) - body_bytes)


def _parse_path(url: bytes) -> bytes:
    """The path of a target, without the query: of `/v2?x`, and of `http://host/v2?x`."""
    path = url.partition(b"?")[0].partition(b"#")[0]
    if not path.startswith(b"/"):
        path = b"/" + path.partition(b"://")[2].partition(b"/")[2]
    return path
