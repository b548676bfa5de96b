"""Bodies that travel compressed: gzip and deflate, both ways, within a bound."""

import asyncio
import zlib
from collections.abc import Callable

from falaj.core.errors import FalajError, Invalid, QuotaExceeded
from falaj.oip.byte_budget import ByteReservation, over_budget_error
from falaj.oip.handler_calls import JSON_TYPE, HttpReply
from falaj.oip.rest_codec import error_reply, status_reply

MAX_INLINE_BYTES = 1 << 20
"""What is larger is done in a thread: a small bomb must not stop the loop."""
INFLATE_STEP_BYTES = 4 << 20
"""A thread inflates so much before the loop counts it and decides whether to go on."""
MAX_INFLATE_RATIO = 200
"""The most that a body may inflate to, as a multiple of its size; INLINE_BYTES where that is more."""
_MIN_COMPRESS_BYTES = 1024
_ZLIB_WINDOW_BITS = {b"gzip": 31, b"x-gzip": 31, b"deflate": 15}


class BodyInflater:
    """Inflates one body step by step within a bound, so that its owner can count the bytes of each step."""

    __slots__ = ("_coding", "_max_bytes", "_parts", "_remaining", "_zlib", "size")

    def __init__(self, body: bytes, coding: bytes, max_bytes: int) -> None:
        self._remaining, self._coding = body, coding
        self._max_bytes = min(max_bytes, max(MAX_INLINE_BYTES, MAX_INFLATE_RATIO * len(body)))
        self._zlib = zlib.decompressobj(_ZLIB_WINDOW_BITS[coding])
        self._parts: list[bytes] = []
        self.size = 0

    def step(self, max_step_bytes: int = INFLATE_STEP_BYTES) -> bytes | None:
        """Inflate up to `max_step_bytes` more bytes; gives all of them at the end, and None before it.

        Raises Invalid for a body that is not compressed as declared, QuotaExceeded for one that holds too much.
        """
        max_step_bytes = min(max_step_bytes, self._max_bytes + 1 - self.size)
        coding_name = self._coding.decode()
        try:
            part = self._zlib.decompress(self._remaining, max_step_bytes)
        except zlib.error as error:
            raise Invalid(f"the body is no {coding_name}", "compress it again, or send it as it is") from error
        self._remaining = self._zlib.unconsumed_tail
        self.size += len(part)
        if self.size > self._max_bytes:
            self._parts = []
            raise QuotaExceeded(f"the body holds more than {self._max_bytes} bytes", "send less at once")
        self._parts.append(part)
        if self._zlib.eof and not self._zlib.unused_data:
            parts, self._parts = self._parts, []
            return parts[0] if len(parts) == 1 else b"".join(parts)
        if self._zlib.eof or (len(part) < max_step_bytes and not self._remaining):
            raise Invalid(f"the {coding_name} of the body ends too early or too late", "send all of it, once")
        return None


InflatedCallback = Callable[[bytes | FalajError], None]


def inflate_in_steps(
    loop: asyncio.AbstractEventLoop, inflater: BodyInflater, reservation: ByteReservation, on_inflated: InflatedCallback
) -> None:
    """Inflate in a worker thread, reserve the bytes after each step, and call `on_inflated` with all of them or the
    error.

    Nothing is called, and no further step begins, once the reservation was released.
    """

    def take_step(step_future: "asyncio.Future[bytes | None]", size_before: int) -> None:
        error = step_future.exception()
        if reservation.closed:
            return
        if isinstance(error, FalajError):
            on_inflated(error)
        elif not reservation.grow(inflater.size - size_before):
            on_inflated(over_budget_error())
        elif (body := step_future.result()) is not None:
            on_inflated(body)
        else:
            start_step()

    def start_step() -> None:
        step_future, size_before = loop.run_in_executor(None, inflater.step), inflater.size
        step_future.add_done_callback(lambda done_future: take_step(done_future, size_before))

    start_step()


def inflate_body(body: bytes, coding: bytes, max_bytes: int) -> bytes:
    """A small body as it was before it was compressed; raises as `BodyInflater.step` does."""
    inflater = BodyInflater(body, coding, max_bytes)
    while (inflated := inflater.step()) is None:
        pass
    return inflated


def inflate_error_reply(error: FalajError) -> HttpReply:
    """Why a body was not inflated, as HTTP says it."""
    return status_reply(413, error.message, error.hint) if isinstance(error, QuotaExceeded) else error_reply(error)


def choose_coding(accept_encoding: bytes, reply: HttpReply) -> bytes:
    """How an answer is compressed: as the client asks, where it asks for nothing else or where it pays.

    Errors go as they are: Triton's client reads them before it looks at how they are coded.
    """
    if reply.status >= 400 or any(name == b"content-encoding" for name, _ in reply.headers):
        return b""
    if accept_encoding in (b"gzip", b"deflate"):
        return accept_encoding
    if reply.kind != JSON_TYPE or sum(map(len, reply.parts)) < _MIN_COMPRESS_BYTES:
        return b""
    return next((coding for coding in (b"gzip", b"deflate") if _accepts_coding(accept_encoding, coding)), b"")


def compress_reply(reply: HttpReply, coding: bytes) -> HttpReply:
    """The same answer, compressed."""
    compressor = zlib.compressobj(1, zlib.DEFLATED, _ZLIB_WINDOW_BITS[coding])
    compressed_parts = [compressor.compress(part) for part in reply.parts]
    parts = (b"".join([*compressed_parts, compressor.flush()]),)
    headers = (*reply.headers, (b"content-encoding", coding), (b"vary", b"accept-encoding"))
    return HttpReply(reply.status, parts, reply.kind, reply.json_bytes, headers, reply.lines)


def _accepts_coding(accept_encoding: bytes, coding: bytes) -> bool:
    for offer in accept_encoding.split(b","):
        name, _, quality = offer.partition(b";")
        if name.strip() == coding:
            return quality.replace(b" ", b"").rstrip(b"0") not in (b"q=", b"q=0.")
    return False
