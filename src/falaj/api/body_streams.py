"""Streams over HTTP: a body on its way to a thread, and a thread's chunks on their way out, in constant memory."""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterable, Iterator, MutableMapping
from typing import Any

from falaj.api.byte_channel_protocol import BLOCK_BYTES
from falaj.api.responses import BYTES_TYPE, REQUEST_HEADER, SECURITY_HEADERS, Send
from falaj.core.byte_stream import ByteStream
from falaj.core.errors import FalajError, Invalid, QuotaExceeded, Unavailable

ReceiveMessage = Callable[[], Awaitable[MutableMapping[str, Any]]]

MAX_BUFFERED_BYTES = 4 << 20
"""Bytes of one body that may wait for the thread that reads it."""
IDLE_TIMEOUT_S = 30.0
"""A caller that neither sends nor takes a byte for so long has left."""


class RequestBodyReader:
    """A request body. The event loop fills it, one thread empties it, and each waits for the other."""

    def __init__(self, receive: ReceiveMessage, limit: int, idle_s: float = IDLE_TIMEOUT_S) -> None:
        self._receive = receive
        self._limit = limit
        self._idle_s = idle_s
        self._loop = asyncio.get_running_loop()
        self._space_available = asyncio.Event()
        self._data_available = threading.Condition()
        self._parts: list[bytes] = []
        self._buffered_bytes = 0
        self._has_ended = False
        self._error: FalajError | None = None

    async def fill(self) -> None:
        """Carry the body in until it ends, is too long, or stops moving."""
        received_bytes = 0
        try:
            while True:
                async with asyncio.timeout(self._idle_s):
                    message = await self._receive()
                if message["type"] == "http.disconnect":
                    return self.end(Unavailable("the body ended before its end", "send it again"))
                body = message.get("body", b"")
                received_bytes += len(body)
                if received_bytes > self._limit:
                    return self.end(
                        QuotaExceeded(
                            f"the body is larger than {self._limit} bytes", "split it, or raise limits.stream_bytes"
                        )
                    )
                buffered_bytes = self._append_chunk(body)
                if not message.get("more_body", False):
                    return self.end(None)
                if buffered_bytes > MAX_BUFFERED_BYTES:
                    await self._wait_for_space()
        except TimeoutError:
            self.end(Invalid(f"no byte of the body came for {self._idle_s:g} s", "send it again, faster"))

    def end(self, error: FalajError | None) -> None:
        """No more will come."""
        with self._data_available:
            self._has_ended, self._error = True, self._error or error
            self._data_available.notify()

    def __iter__(self) -> Iterator[bytes]:
        while True:
            with self._data_available:
                while not self._parts and not self._has_ended:
                    self._data_available.wait()
                parts, self._parts, self._buffered_bytes = self._parts, [], 0
                ended, error = self._has_ended, self._error
            self._loop.call_soon_threadsafe(self._space_available.set)
            if error is not None:
                raise error
            if parts:
                yield b"".join(parts)
            elif ended:
                return

    def _append_chunk(self, body: bytes) -> int:
        with self._data_available:
            if body:
                self._parts.append(body)
                self._buffered_bytes += len(body)
                self._data_available.notify()
            return self._buffered_bytes

    async def _wait_for_space(self) -> None:
        self._space_available.clear()
        while self._buffered_bytes > MAX_BUFFERED_BYTES // 2:
            await self._space_available.wait()
            self._space_available.clear()


class ResponseStreamWriter:
    """An answer of unknown length. A thread pushes blocks; each waits until the caller has taken the one before."""

    def __init__(
        self,
        send: Send,
        receive: ReceiveMessage,
        request_id: str,
        idle_s: float = IDLE_TIMEOUT_S,
        file_name: bytes = b"",
    ) -> None:
        """`file_name`: what a browser is to save it as."""
        self._send = send
        self._receive = receive
        self._request_id = request_id
        self._file_name = file_name
        self._idle_s = idle_s
        self._loop = asyncio.get_running_loop()
        self._disconnect_task: asyncio.Task[Any] | None = None
        self.started = False

    def push(self, stream: ByteStream) -> None:
        """From a thread: all of it. Nothing is sent before the first block exists, so an early error is an answer."""
        previous_block: bytes | None = None
        for block in join_into_blocks(stream):
            if previous_block is not None:
                self._run_on_loop(self._send_block(previous_block, stream.size, more=True))
            previous_block = block
        self._run_on_loop(self._send_block(previous_block or b"", stream.size, more=False))

    def close(self) -> None:
        """Stop listening for the caller's leaving."""
        if self._disconnect_task is not None:
            self._disconnect_task.cancel()

    def _run_on_loop(self, coroutine: Any) -> None:
        asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    async def _send_block(self, block: bytes, size: int | None, *, more: bool) -> None:
        if not self.started:
            await self._send_head(size)
        if self._disconnect_task is not None and self._disconnect_task.done():
            raise Unavailable("the caller left before the end", "ask again")
        try:
            async with asyncio.timeout(self._idle_s):
                await self._send({"type": "http.response.body", "body": block, "more_body": more})
        except TimeoutError:
            raise Unavailable("the caller takes nothing", "ask again") from None

    async def _send_head(self, size: int | None) -> None:
        self.started = True
        headers = [(b"content-type", BYTES_TYPE), (REQUEST_HEADER, self._request_id.encode()), *SECURITY_HEADERS]
        if size is not None:
            headers.append((b"content-length", b"%d" % size))
        if self._file_name:
            headers.append((b"content-disposition", b'attachment; filename="%s"' % self._file_name))
        await self._send({"type": "http.response.start", "status": 200, "headers": headers})
        # Servers drop what is sent to a caller that left without a word; only receiving tells.
        self._disconnect_task = self._loop.create_task(wait_for_disconnect(self._receive))


async def wait_for_disconnect(receive: ReceiveMessage) -> None:
    """Return when the caller has gone."""
    while (await receive())["type"] != "http.disconnect":
        pass


def join_into_blocks(chunks: Iterable[bytes], size: int = BLOCK_BYTES) -> Iterator[bytes]:
    """The same bytes in pieces worth a system call."""
    parts: list[bytes] = []
    buffered_bytes = 0
    for chunk in chunks:
        parts.append(chunk)
        buffered_bytes += len(chunk)
        if buffered_bytes >= size:
            yield b"".join(parts) if len(parts) > 1 else chunk
            parts, buffered_bytes = [], 0
    if parts:
        yield b"".join(parts)
