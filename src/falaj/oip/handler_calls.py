"""What passes between a connection and whoever answers it. Structs: one of each is made for every request."""

import math
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Protocol

import msgspec

from falaj.core.errors import FalajError

NO_HEADERS: Mapping[bytes, bytes] = MappingProxyType({})
JSON_TYPE, OCTET_STREAM_TYPE, PLAIN_TEXT_TYPE = (
    b"application/json",
    b"application/octet-stream",
    b"text/plain; charset=utf-8",
)


class HttpCall(msgspec.Struct, eq=False):
    """One HTTP request, whole: its body is here and decompressed."""

    method: bytes
    path: bytes
    """As sent, without the query."""
    headers: Mapping[bytes, bytes] = NO_HEADERS
    """Names are in small letters."""
    body: bytes = b""
    trusted: bool = False
    """True when whoever passes it on has proved who they are (a gateway): no token is asked for."""
    peer: str = ""
    head: Any = None
    """What it came with and others come with again; a door keeps in its `lead` what it made of it."""
    name: bytes = b""
    """What the gateway calls the request, and tells the caller; empty where there is none."""


class HttpReply(msgspec.Struct, eq=False):
    """One HTTP answer."""

    status: int
    parts: Sequence[bytes] = ()
    """Written one after the other."""
    kind: bytes = JSON_TYPE
    json_bytes: int = 0
    """The length of the JSON among the parts where tensors follow it (Inference-Header-Content-Length), else 0."""
    headers: Sequence[tuple[bytes, bytes]] = ()
    lines: bytes = b""
    """Headers as they are written: what we made ourselves, where nothing can end one too early."""


class GrpcCall(msgspec.Struct, eq=False):
    """One message of a gRPC call."""

    method: str
    """The name behind the service's, for example ModelInfer."""
    message: bytes
    metadata: Mapping[bytes, bytes] = NO_HEADERS
    deadline: float = 0.0
    """A moment of time.monotonic(); 0: none."""
    trusted: bool = False
    peer: str = ""
    name: bytes = b""
    head: Any = None
    """The headers it shares with other calls; a door keeps in its `lead` what it made of them. None: not shared."""


class GrpcReply(msgspec.Struct, eq=False):
    """One answer: a message, or a code that is not 0 with its text. Of a stream there may be several; the last one
    has `last`."""

    message: bytes = b""
    code: int = 0
    text: str = ""
    last: bool = True
    metadata: Sequence[tuple[bytes, bytes]] = ()


HttpAdmission = str | HttpReply
"""Whether the body of a request is taken: the principal whose it is, or the answer in its place."""
GrpcAdmission = str | GrpcReply


class RestHandler(Protocol):
    """Whoever answers HTTP requests. `reply` is called once, on the event loop, now or later. What is given back ends
    the work when the caller went away; None when it is done already."""

    def rest(self, call: HttpCall, send_reply: Callable[[HttpReply], Any]) -> Callable[[], None] | None: ...

    # A door that asks who its callers are also has
    #   judge(head, peer, decide): gives the verdict, or None and calls decide(verdict) once, later; before a body that
    #     did not arrive with its head is gathered, and before any body is inflated;
    #   vouch(headers): whether these headers were lately those of an authenticated caller.
    # A GrpcDoor has `judge_grpc` in the place of `judge`, with a GrpcVerdict; "" admits a message of a few bytes.


CancelCall = Callable[[], None]
NumberedCall = tuple[int, HttpCall]
SendNumberedReply = Callable[[int, HttpReply], Any]
HandleBatch = Callable[[Sequence[NumberedCall], SendNumberedReply], Sequence[tuple[int, CancelCall | None]]]
"""What a RestDoor may have as well, under the name `many`: answers requests that came in one piece, each told by its
number. What is given back ends those that are not answered yet."""
HandleSimilar = Callable[
    [Sequence[tuple[Any, bytes]], float, SendNumberedReply], Sequence[tuple[int, CancelCall | None]]
]
"""And under the name `alike`: answers requests that one turn of the loop read, the first of them at that moment. Each
is its head and its body, and is told by its place. Which heads are gathered for it is asked of the door's `joins`.
Who passes requests on has `pass_on` in its place, see http1.Turned."""


class GrpcHandler(Protocol):
    """Whoever answers gRPC calls; `reply` as above. Every message of a stream is one call."""

    def grpc(self, call: GrpcCall, send_reply: Callable[[GrpcReply], Any]) -> Callable[[], None] | None: ...


GRPC_STATUS_CODES: Mapping[str, int] = {
    "invalid": 3, "unauthenticated": 16, "denied": 7, "not-found": 5, "conflict": 9, "stale": 10, "quota-exceeded": 8,
    "unavailable": 14, "corrupt": 15, "user-code-failed": 9, "error": 13,
}  # fmt: skip
"""Our errors as gRPC says them."""
DEADLINE_EXCEEDED, CANCELLED, UNIMPLEMENTED, INTERNAL = 4, 1, 12, 13


def retry_after_header(error: FalajError) -> tuple[tuple[bytes, bytes], ...]:
    """The header that says when to ask again, for an error that may be gone by then."""
    if error.status not in (429, 503):
        return ()
    return ((b"retry-after", b"%d" % max(1, math.ceil(getattr(error, "retry_after_s", 1.0)))),)
