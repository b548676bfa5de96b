"""What passes between a connection and whoever answers it. Plain slots: one of each is made for every request."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from falaj.core.errors import FalajError

NO_HEADERS: Mapping[bytes, bytes] = {}
JSON, OCTETS, PLAIN = b"application/json", b"application/octet-stream", b"text/plain; charset=utf-8"


class Call:
    """One HTTP request, whole: its body is here and decompressed."""

    __slots__ = ("body", "headers", "method", "name", "path", "peer", "trusted")

    def __init__(
        self,
        method: bytes,
        path: bytes,
        headers: Mapping[bytes, bytes] = NO_HEADERS,
        body: bytes = b"",
        *,
        trusted: bool = False,
        peer: str = "",
    ) -> None:
        self.method, self.path, self.headers, self.body = method, path, headers, body
        """Names of headers are in small letters. The path is as sent, without the query."""
        self.trusted = trusted
        """True when whoever passes it on has proved who they are (a gateway): no token is asked for."""
        self.peer = peer
        self.name = b""
        """What the gateway calls the request, and tells the caller; empty where there is none."""


class Reply:
    """One HTTP answer. `parts` are written one after the other; `json_bytes` is the length of the JSON among them where
    tensors follow it (Inference-Header-Content-Length), else 0."""

    __slots__ = ("headers", "json_bytes", "kind", "parts", "status")

    def __init__(
        self,
        status: int,
        parts: Sequence[bytes] = (),
        *,
        kind: bytes = JSON,
        json_bytes: int = 0,
        headers: Sequence[tuple[bytes, bytes]] = (),
    ) -> None:
        self.status, self.parts, self.kind, self.json_bytes, self.headers = status, parts, kind, json_bytes, headers


class GrpcCall:
    """One message of a gRPC call. `method` is the name behind the service's, for example ModelInfer."""

    __slots__ = ("deadline", "message", "metadata", "method", "name", "peer", "trusted")

    def __init__(
        self,
        method: str,
        message: bytes,
        metadata: Mapping[bytes, bytes] = NO_HEADERS,
        deadline: float = 0.0,
        *,
        trusted: bool = False,
        peer: str = "",
    ) -> None:
        self.method, self.message, self.metadata, self.deadline = method, message, metadata, deadline
        """`deadline` is a moment of time.monotonic(); 0: none."""
        self.trusted, self.peer, self.name = trusted, peer, b""


class GrpcReply:
    """One answer: a message, or a code that is not 0 with its text. Of a stream there may be several; the last one
    has `last`."""

    __slots__ = ("code", "last", "message", "metadata", "text")

    def __init__(
        self,
        message: bytes = b"",
        *,
        code: int = 0,
        text: str = "",
        last: bool = True,
        metadata: Sequence[tuple[bytes, bytes]] = (),
    ) -> None:
        self.message, self.code, self.text, self.last, self.metadata = message, code, text, last, metadata


class RestDoor(Protocol):
    """Whoever answers HTTP requests. `reply` is called once, on the event loop, now or later. What is given back ends
    the work when the caller went away; None when it is done already."""

    def rest(self, call: Call, reply: Callable[[Reply], Any]) -> Callable[[], None] | None: ...


class GrpcDoor(Protocol):
    """Whoever answers gRPC calls; `reply` as above. Every message of a stream is one call."""

    def grpc(self, call: GrpcCall, reply: Callable[[GrpcReply], Any]) -> Callable[[], None] | None: ...


CODES: Mapping[str, int] = {
    "invalid": 3, "unauthenticated": 16, "denied": 7, "not-found": 5, "conflict": 9, "stale": 10, "quota-exceeded": 8,
    "unavailable": 14, "corrupt": 15, "user-code-failed": 9, "error": 13,
}  # fmt: skip
"""Our errors as gRPC says them."""
DEADLINE_EXCEEDED, CANCELLED, UNIMPLEMENTED, INTERNAL = 4, 1, 12, 13


def retry_after(error: FalajError) -> tuple[tuple[bytes, bytes], ...]:
    """The header that says when to ask again, for an error that may be gone by then."""
    if error.status not in (429, 503):
        return ()
    return ((b"retry-after", b"%d" % max(1, math.ceil(getattr(error, "retry_after_s", 1.0)))),)
