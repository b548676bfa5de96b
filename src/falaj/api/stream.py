"""Streams over HTTP: a body on its way to a thread, and a thread's chunks on their way out, in constant memory."""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterable, Iterator, MutableMapping
from typing import Any

from falaj.api.answers import BYTES, REQUEST_HEADER, SECURITY, Send
from falaj.api.pieces import BLOCK
from falaj.core.errors import FalajError, Invalid, QuotaExceeded, Unavailable
from falaj.core.stream import Stream

Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]

HELD = 4 << 20
"""Bytes of one body that may wait for the thread that reads it."""
IDLE_S = 30.0
"""A caller that neither sends nor takes a byte for so long has left."""


class Inlet:
    """A request body. The event loop fills it, one thread empties it, and each waits for the other."""

    def __init__(self, receive: Receive, limit: int, idle_s: float = IDLE_S) -> None:
        self._receive = receive
        self._limit = limit
        self._idle_s = idle_s
        self._loop = asyncio.get_running_loop()
        self._room = asyncio.Event()
        self._filled = threading.Condition()
        self._parts: list[bytes] = []
        self._held = 0
        self._ended = False
        self._error: FalajError | None = None

    async def fill(self) -> None:
        """Carry the body in until it ends, is too long, or stops moving."""
        total = 0
        try:
            while True:
                async with asyncio.timeout(self._idle_s):
                    message = await self._receive()
                if message["type"] == "http.disconnect":
                    return self.end(Unavailable("the body ended before its end", "send it again"))
                body = message.get("body", b"")
                total += len(body)
                if total > self._limit:
                    return self.end(
                        QuotaExceeded(
                            f"the body is larger than {self._limit} bytes", "split it, or raise limits.stream_bytes"
                        )
                    )
                held = self._put(body)
                if not message.get("more_body", False):
                    return self.end(None)
                if held > HELD:
                    await self._wait_for_room()
        except TimeoutError:
            self.end(Invalid(f"no byte of the body came for {self._idle_s:g} s", "send it again, faster"))

    def end(self, error: FalajError | None) -> None:
        """No more will come."""
        with self._filled:
            self._ended, self._error = True, self._error or error
            self._filled.notify()

    def __iter__(self) -> Iterator[bytes]:
        while True:
            with self._filled:
                while not self._parts and not self._ended:
                    self._filled.wait()
                parts, self._parts, self._held = self._parts, [], 0
                ended, error = self._ended, self._error
            self._loop.call_soon_threadsafe(self._room.set)
            if error is not None:
                raise error
            if parts:
                yield b"".join(parts)
            elif ended:
                return

    def _put(self, body: bytes) -> int:
        with self._filled:
            if body:
                self._parts.append(body)
                self._held += len(body)
                self._filled.notify()
            return self._held

    async def _wait_for_room(self) -> None:
        self._room.clear()
        while self._held > HELD // 2:
            await self._room.wait()
            self._room.clear()


class Outlet:
    """An answer of unknown length. A thread pushes blocks; each waits until the caller has taken the one before."""

    def __init__(self, send: Send, receive: Receive, request: str, idle_s: float = IDLE_S, name: bytes = b"") -> None:
        """`name`: what a browser is to save it as."""
        self._send = send
        self._receive = receive
        self._request = request
        self._name = name
        self._idle_s = idle_s
        self._loop = asyncio.get_running_loop()
        self._gone: asyncio.Task[Any] | None = None
        self.started = False

    def push(self, stream: Stream) -> None:
        """From a thread: all of it. Nothing is sent before the first block exists, so an early error is an answer."""
        last: bytes | None = None
        for block in blocks(stream):
            if last is not None:
                self._wait(self._block(last, stream.size, more=True))
            last = block
        self._wait(self._block(last or b"", stream.size, more=False))

    def close(self) -> None:
        """Stop listening for the caller's leaving."""
        if self._gone is not None:
            self._gone.cancel()

    def _wait(self, work: Any) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result()

    async def _block(self, block: bytes, size: int | None, *, more: bool) -> None:
        if not self.started:
            await self._start(size)
        if self._gone is not None and self._gone.done():
            raise Unavailable("the caller left before the end", "ask again")
        try:
            async with asyncio.timeout(self._idle_s):
                await self._send({"type": "http.response.body", "body": block, "more_body": more})
        except TimeoutError:
            raise Unavailable("the caller takes nothing", "ask again") from None

    async def _start(self, size: int | None) -> None:
        self.started = True
        headers = [(b"content-type", BYTES), (REQUEST_HEADER, self._request.encode()), *SECURITY]
        if size is not None:
            headers.append((b"content-length", b"%d" % size))
        if self._name:
            headers.append((b"content-disposition", b'attachment; filename="%s"' % self._name))
        await self._send({"type": "http.response.start", "status": 200, "headers": headers})
        # Servers drop what is sent to a caller that left without a word; only receiving tells.
        self._gone = self._loop.create_task(left(self._receive))


async def left(receive: Receive) -> None:
    """Return when the caller has gone."""
    while (await receive())["type"] != "http.disconnect":
        pass


def blocks(chunks: Iterable[bytes], size: int = BLOCK) -> Iterator[bytes]:
    """The same bytes in pieces worth a system call."""
    parts: list[bytes] = []
    held = 0
    for chunk in chunks:
        parts.append(chunk)
        held += len(chunk)
        if held >= size:
            yield b"".join(parts) if len(parts) > 1 else chunk
            parts, held = [], 0
    if parts:
        yield b"".join(parts)
