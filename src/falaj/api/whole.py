"""One write for a whole answer. ASGI servers write head and body apart: two TLS records, two system calls."""

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, RequestResponseCycle

Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


def write_whole(send: Send, status: int, head: bytes, body: bytes) -> bool:
    """Write it and be done; False where the server behind `send` is another one, or must do more than write."""
    cycle = getattr(send, "__self__", None)
    if (
        not isinstance(cycle, RequestResponseCycle)
        or cycle.response_started
        or not cycle.keep_alive
        or cycle.waiting_for_100_continue
        or cycle.scope["method"] == "HEAD"
    ):
        return False
    if cycle.disconnected:
        return True
    defaults = b"".join([b"%s: %s\r\n" % pair for pair in cycle.default_headers])
    cycle.response_started = cycle.response_complete = True
    cycle.transport.write(b"".join((STATUS_LINE[status], defaults, head, b"\r\n", body)))
    cycle.message_event.set()
    cycle.on_response()
    return True
