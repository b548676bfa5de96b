"""Bodies that travel compressed: gzip and deflate, both ways, within a bound."""

import asyncio
import zlib
from collections.abc import Callable

from falaj.core.errors import FalajError, Invalid, QuotaExceeded
from falaj.oip.budget import Reservation, over_budget
from falaj.oip.calls import JSON, Reply
from falaj.oip.rest import problem, refusal

INLINE_BYTES = 1 << 20
"""What is larger is done in a thread: a small bomb must not stop the loop."""
STEP_BYTES = 4 << 20
"""A thread inflates so much before the loop counts it and decides whether to go on."""
MOST_RATIO = 200
"""The most that a body may inflate to, as a multiple of its size; INLINE_BYTES where that is more."""
_WORTH_BYTES = 1024
_WINDOWS = {b"gzip": 31, b"x-gzip": 31, b"deflate": 15}


class Inflater:
    """Inflates one body step by step within a bound, so that its owner can count the bytes of each step."""

    __slots__ = ("_coding", "_most", "_parts", "_rest", "_zlib", "size")

    def __init__(self, body: bytes, coding: bytes, most: int) -> None:
        self._rest, self._coding = body, coding
        self._most = min(most, max(INLINE_BYTES, MOST_RATIO * len(body)))
        self._zlib = zlib.decompressobj(_WINDOWS[coding])
        self._parts: list[bytes] = []
        self.size = 0

    def step(self, most: int = STEP_BYTES) -> bytes | None:
        """Inflate up to `most` more bytes; gives all of them at the end, and None before it.

        Raises Invalid for a body that is not compressed as declared, QuotaExceeded for one that holds too much.
        """
        most = min(most, self._most + 1 - self.size)
        name = self._coding.decode()
        try:
            part = self._zlib.decompress(self._rest, most)
        except zlib.error as error:
            raise Invalid(f"the body is no {name}", "compress it again, or send it as it is") from error
        self._rest = self._zlib.unconsumed_tail
        self.size += len(part)
        if self.size > self._most:
            self._parts = []
            raise QuotaExceeded(f"the body holds more than {self._most} bytes", "send less at once")
        self._parts.append(part)
        if self._zlib.eof and not self._zlib.unused_data:
            parts, self._parts = self._parts, []
            return parts[0] if len(parts) == 1 else b"".join(parts)
        if self._zlib.eof or (len(part) < most and not self._rest):
            raise Invalid(f"the {name} of the body ends too early or too late", "send all of it, once")
        return None


Inflated = Callable[[bytes | FalajError], None]


def inflate_in_steps(
    loop: asyncio.AbstractEventLoop, inflater: Inflater, reservation: Reservation, then: Inflated
) -> None:
    """Inflate in a worker thread, reserve the bytes after each step, and call `then` with all of them or the error.

    Nothing is called, and no further step begins, once the reservation was released.
    """

    def take_step(step: "asyncio.Future[bytes | None]", before: int) -> None:
        error = step.exception()
        if reservation.closed:
            return
        if isinstance(error, FalajError):
            then(error)
        elif not reservation.grow(inflater.size - before):
            then(over_budget())
        elif (body := step.result()) is not None:
            then(body)
        else:
            begin_step()

    def begin_step() -> None:
        step, before = loop.run_in_executor(None, inflater.step), inflater.size
        step.add_done_callback(lambda done: take_step(done, before))

    begin_step()


def inflate(body: bytes, coding: bytes, most: int) -> bytes:
    """A small body as it was before it was compressed; raises as `Inflater.step` does."""
    inflater = Inflater(body, coding, most)
    while (plain := inflater.step()) is None:
        pass
    return plain


def inflate_problem(error: FalajError) -> Reply:
    """Why a body was not inflated, as HTTP says it."""
    return refusal(413, error.message, error.hint) if isinstance(error, QuotaExceeded) else problem(error)


def chosen(accepts: bytes, reply: Reply) -> bytes:
    """How an answer is compressed: as the client asks, where it asks for nothing else or where it pays.

    Errors go as they are: Triton's client reads them before it looks at how they are coded.
    """
    if reply.status >= 400 or any(name == b"content-encoding" for name, _ in reply.headers):
        return b""
    if accepts in (b"gzip", b"deflate"):
        return accepts
    if reply.kind != JSON or sum(map(len, reply.parts)) < _WORTH_BYTES:
        return b""
    return next((one for one in (b"gzip", b"deflate") if _takes(accepts, one)), b"")


def deflate(reply: Reply, coding: bytes) -> Reply:
    """The same answer, compressed."""
    packing = zlib.compressobj(1, zlib.DEFLATED, _WINDOWS[coding])
    packed = [packing.compress(part) for part in reply.parts]
    parts = (b"".join([*packed, packing.flush()]),)
    headers = (*reply.headers, (b"content-encoding", coding), (b"vary", b"accept-encoding"))
    return Reply(reply.status, parts, reply.kind, reply.json_bytes, headers, reply.lines)


def _takes(accepts: bytes, coding: bytes) -> bool:
    for one in accepts.split(b","):
        name, _, quality = one.partition(b";")
        if name.strip() == coding:
            return quality.replace(b" ", b"").rstrip(b"0") not in (b"q=", b"q=0.")
    return False
