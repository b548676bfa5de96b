"""Bytes of a connection to whole HTTP/1.1 requests, within limits. No socket is known here.

llhttp (httptools) reads every head once; a head that came before, byte for byte, is looked up instead: clients that
keep a connection send the same one again and again.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import httptools

from falaj.oip.budget import UNKNOWN, ByteBudget, Reservation, over_budget
from falaj.oip.calls import Reply
from falaj.oip.pieces import append_piece
from falaj.oip.rest import problem, refusal


@dataclass(frozen=True, slots=True)
class Limits:
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


class Head:
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


Request = tuple[Head, bytes, Reservation | None]
"""A request that has arrived: its head, its body, and what is reserved for the body where it came in pieces."""
Heads = dict[bytes, Head]
"""Heads that came before, by their bytes; shared by the connections of a server."""
_MOST_HEADS, KNOWN_BYTES = 1024, 2048
SMALL_BYTES = 16 << 10
"""Bodies of no more than this are not counted: connections and what is pipelined bound their sum."""
_SLACK_BYTES = 1 << 20
"""Chunks may waste three times what they carry, and so much besides."""
_CODINGS = (b"", b"gzip", b"x-gzip", b"deflate")
_ONCE = frozenset((
    b"host", b"authorization", b"content-length", b"content-encoding", b"content-type", b"transfer-encoding",
    b"inference-header-content-length", b"expect",
))  # fmt: skip
END = b"\r\n\r\n"


class Requests:
    """One connection's requests. `feed` gives those that are whole; `refusal` is the last answer of a connection that
    broke the rules, and nothing is read after it. While `unjudged` a head has come and its sender is to be asked for;
    `admit` or `refuse` follows."""

    __slots__ = (
        "_before", "_budget", "_candidate", "_done", "_fed", "_head_bytes", "_headers", "_heads", "_limits", "_parser",
        "_parts", "_piece", "_size", "_url", "expects", "head", "headed", "principal", "refusal",
        "reservation", "unjudged", "within",
    )  # fmt: skip

    def __init__(self, limits: Limits, heads: Heads, budget: ByteBudget | None = None) -> None:
        self._limits, self._heads, self._budget = limits, heads, budget or ByteBudget()
        self._parser = httptools.HttpRequestParser(self)
        self.refusal: Reply | None = None
        self.within = self.headed = self.expects = False
        """In the middle of a request; its head is whole; it waits to be told to go on."""
        self._done: list[Request] = []
        self._candidate = self._url = b""
        self._headers: dict[bytes, bytes] = {}
        self._parts: list[bytes] = []
        self._size = self._fed = self._head_bytes = self._piece = 0
        self._before = -1
        """Body bytes in the data that is fed: of the newest request, and of the last that it completed (-1: none)."""
        self.head: Head | None = None
        self.principal = UNKNOWN
        self.reservation: Reservation | None = None
        """Of the request that is arriving: its head once that is whole; who sends it; what is reserved for its body,
        where that is not small."""
        self.unjudged = False

    def feed(self, data: bytes) -> list[Request]:
        """The requests that these bytes make whole, in order."""
        completed: list[Request] = []
        if not self.within:
            data = self._take_repeated(data, completed)
            if not data:
                return completed
            end = data.find(END, 0, KNOWN_BYTES)
            self._candidate = data[: end + 4] if end > 0 and data[:1].isupper() else b""
        self._done, self._before, self._piece = completed, -1, 0
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            if self.refusal is None:
                if isinstance(error, httptools.HttpParserCallbackError):
                    raise
                self._refuse(400, f"this is no HTTP/1.1 request: {error}", "check what is sent")
        if self.within and self.refusal is None:
            self._weigh(len(data) if self._before < 0 else _tail_bytes(data, self._before))
            if self._size > SMALL_BYTES and not self.unjudged:
                self.reserve()
        return completed

    def admit(self, principal: str) -> None:
        """The request that is arriving is taken, and its bytes are counted to `principal`."""
        self.principal = principal
        if self.reservation is not None:
            if not self.reservation.assign(principal):
                self.refuse(problem(over_budget()))
        elif self._size > SMALL_BYTES:
            self.reserve()

    def refuse(self, reply: Reply) -> None:
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
            reservation = self.reservation = Reservation(self._budget, self.principal)
        if not reservation.grow(self._size - reservation.size):
            self.refuse(problem(over_budget()))

    def _take_repeated(self, data: bytes, completed: list[Request]) -> bytes:
        """Take the requests whose heads came before and whose bodies are here; what is left."""
        at, size = 0, len(data)
        while at < size:
            end = data.find(END, at, at + KNOWN_BYTES) + 4
            head = self._heads.get(data[at:end]) if end > 3 else None
            if head is None or end + head.length > size:
                break
            at = end + head.length
            completed.append((head, data[end:at], None))
            if at == size or not head.keep:
                return b""
        return data[at:] if at else data

    def _weigh(self, size: int) -> None:
        """Bytes that make neither head nor body: an endless head, or chunks of nothing."""
        self._fed += size
        if not self.headed and self._fed > self._limits.head_bytes:
            self._refuse(431, "the head is too large", f"{self._limits.head_bytes} bytes at most")
        elif self._fed > self._limits.head_bytes + 4 * self._size + _SLACK_BYTES:
            self._refuse(400, "the chunks carry next to nothing", "send larger ones")

    def _refuse(self, status: int, message: str, hint: str) -> None:
        self.refuse(refusal(status, message, hint))

    def _stop(self, status: int, message: str, hint: str) -> httptools.HttpParserError:
        self._refuse(status, message, hint)
        return httptools.HttpParserError(message)

    # What the parser calls, by names it knows.

    def on_message_begin(self) -> None:
        self.within, self.headed, self.principal = True, False, UNKNOWN
        self._url, self._headers, self._parts, self.head = b"", {}, [], None
        self._size = self._fed = self._head_bytes = self._piece = 0

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self._head_bytes += len(name) + len(value) + 4
        if self._head_bytes > self._limits.head_bytes or len(self._headers) >= self._limits.headers:
            raise self._stop(431, "the head is too large", f"{self._limits.head_bytes} bytes at most")
        if self.headed:
            return  # a trailer: nobody reads it
        name = name.lower()
        if name in self._headers:
            if name in _ONCE:
                raise self._stop(400, f"two headers {name[:40].decode('latin-1')!r}", "send it once")
            value = self._headers[name] + b", " + value
        self._headers[name] = value

    def on_headers_complete(self) -> None:
        headers, parser, limits = self._headers, self._parser, self._limits
        head = Head(parser.get_method(), _path(self._url), headers)
        version = parser.get_http_version()
        head.keep, head.modern = parser.should_keep_alive(), version == "1.1"
        chunked = headers.get(b"transfer-encoding")
        head.length = -1 if chunked is not None else int(headers.get(b"content-length", b"0"))
        expects = headers.get(b"expect")
        if version not in ("1.1", "1.0") or (head.modern and b"host" not in headers):
            raise self._stop(400, "no HTTP/1.1 with a host", "send HTTP/1.1 and Host")
        if parser.should_upgrade():
            raise self._stop(400, "no other protocol is spoken here", "send HTTP/1.1 without Upgrade")
        if chunked is not None and (chunked.lower() != b"chunked" or not head.modern):
            raise self._stop(501, "a transfer encoding that is not known", "chunked, or none")
        if head.length > limits.body_bytes:
            raise self._stop(413, f"a body of {head.length} bytes", f"{limits.body_bytes} at most")
        if head.coding not in _CODINGS:
            raise self._stop(415, "a content encoding that is not known", "gzip, deflate, or none")
        if expects is not None and expects.lower() != b"100-continue":
            raise self._stop(417, "an expectation that is not known", "100-continue, or none")
        self.unjudged = True
        self.headed, self.head, self.expects = True, head, expects is not None and head.modern
        self._keep(head, plain=chunked is None and expects is None)

    def _keep(self, head: Head, *, plain: bool) -> None:
        candidate, self._candidate = self._candidate, b""
        # As many lines as headers and the two around them: so the bytes are this head, and all of it.
        if plain and candidate and candidate.count(b"\n") == len(self._headers) + 2:
            # Many clients send a body by itself, so that it was not here with its head; what is known of that still is.
            known = self._heads.get(candidate)
            if known is not None:
                self.head = known
                return
            if len(self._heads) >= _MOST_HEADS:
                self._heads.clear()
            self._heads[candidate] = head

    def on_body(self, body: bytes) -> None:
        self._size += len(body)
        self._piece += len(body)
        if self._size > self._limits.body_bytes:
            raise self._stop(413, f"a body of more than {self._limits.body_bytes} bytes", "send less at once")
        append_piece(self._parts, body)

    def on_message_complete(self) -> None:
        self.within = self.expects = self.unjudged = False
        if self.head is not None:
            body = self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)
            self._done.append((self.head, body, self.reservation))
            self._before = 0 if self.head.length < 0 else self._piece
        self._parts, self.reservation = [], None


def _tail_bytes(data: bytes, body_bytes: int) -> int:
    """How much of the data belongs to the request that begins in it: what follows the end of the last head and the
    body after that. Never more than that, and less where the body itself holds an empty line."""
    return max(0, len(data) - (data.rfind(END) + len(END) if END in data else 0) - body_bytes)


def _path(url: bytes) -> bytes:
    """The path of a target, without the query: of `/v2?x`, and of `http://host/v2?x`."""
    path = url.partition(b"?")[0].partition(b"#")[0]
    if not path.startswith(b"/"):
        path = b"/" + path.partition(b"://")[2].partition(b"/")[2]
    return path
