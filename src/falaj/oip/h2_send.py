"""The half of an HTTP/2 connection that speaks: frames of a turn in one write, never more than the client allows."""

import asyncio
from collections.abc import Sequence

from falaj.core.errors import FalajError
from falaj.oip.budget import ByteBudget
from falaj.oip.calls import GrpcReply
from falaj.oip.h2_stream import Stream
from falaj.oip.h2_wire import (
    DATA,
    END_HEADERS,
    END_STREAM,
    ENHANCE_YOUR_CALM,
    GOAWAY,
    HEADERS,
    LARGEST_WINDOW,
    NO_ERROR,
    PLAIN_FRAME,
    PLAIN_WINDOW,
    RST_STREAM,
    WINDOW_UPDATE,
    Limits,
    Patience,
    before_message,
    frame,
    word,
)
from falaj.oip.hpack_cache import block, message_text

Pairs = Sequence[tuple[bytes, bytes]]
_OPENED = b"\x88" + block(((b"content-type", b"application/grpc"),))
_ENDED = block(((b"grpc-status", b"0"),))
_OPENED_HEAD = frame(HEADERS, END_HEADERS, 0, _OPENED)[:5]
_ENDED_HEAD = frame(HEADERS, END_HEADERS | END_STREAM, 0, _ENDED)[:5]
_ENOUGH_BYTES = 1 << 20
"""Frames gathered for one write; the rest waits for the next turn."""
_MOST_RESET = 1024
_MOST_WAITING = 256
"""Messages of one stream without an answer, beyond which it is not told to go on."""
_TINY_BYTES = 256
"""A frame of fewer bytes, because the client lets us send no more, costs more than it brings."""


class Speaking(asyncio.Protocol):
    """What is sent on one connection."""

    def __init__(self, loop: asyncio.AbstractEventLoop, limits: Limits, budget: ByteBudget) -> None:
        self._loop, self._limits, self._budget = loop, limits, budget
        self._patience = Patience(limits.noise, limits.noise_per_s)
        self._last = self._held = self._draining = 0
        """The newest stream; bytes of messages that are not whole; 1 when we said that we end, 2 when no stream is
        taken any more."""
        self._deaf = False
        """Nothing that comes counts any more."""
        self._now = self._since = self._active = self._full_since = 0.0
        """The time, as of the last second; when something began that is not whole; when something last came; since
        when the client does not read fast enough."""
        self._transport: asyncio.Transport | None = None
        self._streams: dict[int, Stream] = {}
        self._reset: set[int] = set()
        """Streams that we ended before the client did: what still comes for them is no fault of its."""
        self._out: list[bytes] = []
        self._gathered = 0
        self._corked = self._scheduled = self._full = self._more = False
        """Inside a read, which writes at its end; a write is on its way; the client does not read; more can be sent
        after this write."""
        self._room, self._first_room, self._frame_bytes = PLAIN_WINDOW, PLAIN_WINDOW, PLAIN_FRAME
        self._blocked: dict[int, Stream] = {}
        self._resized = b""
        """What must stand before the next headers: that we use no table, where the client made its smaller."""

    def send(self, data: bytes) -> None:
        """Some frames, with all others of this turn."""
        self._out.append(data)
        self._gathered += len(data)
        if not self._corked and not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._scheduled = False
        out, self._out, self._gathered = self._out, [], 0
        if out and self._transport is not None and not self._transport.is_closing():
            self._transport.write(b"".join(out) if len(out) > 1 else out[0])
        if self._more:
            self._more = False
            self._loop.call_soon(self._pump)

    def pause_writing(self) -> None:
        """The client reads too slowly: nothing more is taken from it either."""
        self._full, self._active, self._full_since = True, self._now, self._now
        if self._transport is not None:
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        self._full = False
        if self._transport is not None:
            self._transport.resume_reading()
        self._pump()

    def _reply(self, stream: Stream, reply: GrpcReply) -> None:
        """The only message of a call that has one."""
        message, size = reply.message, len(reply.message) + 5
        if (
            size > self._room
            or size > stream.room
            or size > self._frame_bytes
            or self._full
            or reply.metadata
            or self._resized
        ):
            self._say(stream, reply)
            self._end(stream, _ENDED)
            return
        self._room -= size
        id_ = word(stream.id)
        before = _OPENED_HEAD + id_ + _OPENED + before_message(stream.id, size - 5)
        data = before + message + _ENDED_HEAD + id_ + _ENDED
        if len(self._streams) == 1 and not self._corked:
            self._out.append(data)  # no other answer can come this turn: one turn fewer
            self._flush()
        else:
            self.send(data)
        self._close(stream)

    def _say(self, stream: Stream, reply: GrpcReply) -> None:
        """One message of a call, of which there may be more."""
        if not stream.opened:
            stream.opened = True
            self._headers(stream, _OPENED + self._block(reply.metadata))
        prefix = b"\0" + word(len(reply.message))
        if len(reply.message) < PLAIN_FRAME:
            stream.out.append(memoryview(prefix + reply.message))
        else:
            stream.out.extend((memoryview(prefix), memoryview(reply.message)))
        self._push(stream)

    def _finish(self, stream: Stream, code: int, text: str = "", metadata: Pairs = ()) -> None:
        """The end of a call, with its status; work that is still done for it is given up."""
        said = _ENDED
        if code:
            pairs = ((b"grpc-status", b"%d" % code), (b"grpc-message", message_text(text)))
            said = block(pairs[: 2 if text else 1]) + self._block(metadata)
        if stream.opened:
            out = stream.out.copy()
            self._forget(stream)
            stream.out = out
        else:
            self._forget(stream)
            said = _OPENED + said
        self._end(stream, said)

    def _block(self, metadata: Pairs) -> bytes:
        """Metadata of an answer; what cannot be sent is left out, for the answer is worth more."""
        try:
            return block(metadata)
        except FalajError:
            return b""

    def _end(self, stream: Stream, said: bytes) -> None:
        stream.trailers = said
        self._push(stream)

    def _headers(self, stream: Stream, said: bytes, flags: int = 0) -> None:
        self.send(frame(HEADERS, END_HEADERS | flags, stream.id, self._resized + said))
        self._resized = b""

    def _push(self, stream: Stream) -> None:
        """Send of a stream what may be sent; what may not waits in `_blocked`."""
        out = stream.out
        while out:
            piece = out[0]
            size = min(len(piece), self._room, stream.room, self._frame_bytes)
            if size <= 0 or self._full or self._gathered > _ENOUGH_BYTES:
                self._more |= self._gathered > _ENOUGH_BYTES
                self._blocked[stream.id] = stream
                return
            if size < _TINY_BYTES and size < len(piece) and self._noise():
                return
            self.send(frame(DATA, 0, stream.id, bytes(piece[:size])))
            self._room -= size
            stream.room -= size
            stream.touched = self._now
            if size == len(piece):
                out.popleft()
            else:
                out[0] = piece[size:]
        if stream.trailers:
            self._headers(stream, stream.trailers, END_STREAM)
            self._close(stream)
        elif stream.unacked:
            self._go_on(stream)

    def _go_on(self, stream: Stream) -> None:
        """Let the client send more on a stream, unless it reads too little of what it is sent."""
        enough = stream.unacked > self._limits.window_bytes >> 1
        if enough and stream.waiting < _MOST_WAITING and len(stream.out) < _MOST_WAITING and not stream.half:
            self.send(frame(WINDOW_UPDATE, 0, stream.id, word(stream.unacked)))
            stream.unacked = 0

    def _pump(self) -> None:
        """Go on with those that waited: the one that waited longest is first."""
        for id_ in tuple(self._blocked):
            if self._room <= 0 or self._full or self._gathered > _ENOUGH_BYTES:
                self._more |= self._gathered > _ENOUGH_BYTES
                return
            stream = self._blocked.pop(id_, None)
            if stream is not None:
                self._push(stream)

    def _widen(self, stream: Stream | None, more: int) -> bool:
        """The client lets us send more; False when it lets us send more than there is."""
        if stream is None:
            self._room += more
            if self._room > LARGEST_WINDOW:
                return False
            if self._blocked:
                self._pump()
            return True
        stream.room += more
        if stream.room > LARGEST_WINDOW:
            return False
        if stream.id in self._blocked and stream.room > 0:
            del self._blocked[stream.id]
            self._push(stream)
        return True

    def _close(self, stream: Stream) -> None:
        stream.gone = True
        if stream.reservation is not None:
            self._forget(stream)
        self._patience.left += 1.0
        if self._streams.pop(stream.id, None) is not None and not stream.half:
            self._cut(stream.id, NO_ERROR)
        self._closed()

    def _cut(self, id_: int, code: int) -> None:
        """RST_STREAM."""
        if len(self._reset) >= _MOST_RESET:
            self._reset.clear()
        self._reset.add(id_)
        self.send(frame(RST_STREAM, 0, id_, word(code)))

    def _closed(self) -> None:
        """A stream is no more; whoever waits for the last one hears it."""

    def _forget(self, stream: Stream) -> None:
        """Nobody waits for it any more."""
        self._hold(stream, 0)
        stream.cancel()
        if stream.reservation is not None:
            stream.reservation.release()
            stream.reservation = None

    def _hold(self, stream: Stream, size: int) -> None:
        """Counts what is kept of a stream's messages that are not whole, for the connection."""
        self._held += size - stream.held
        stream.held = size

    def fail(self, code: int, why: str) -> None:
        """End the connection: it broke the rules, and nothing that it says counts any more."""
        if self._deaf:
            return
        self._deaf, self._since = True, self._now
        self.send(frame(GOAWAY, 0, 0, word(self._last) + word(code) + why.encode()))
        self._hang_up()

    def _noise(self) -> bool:
        """Counts a frame that costs and brings nothing; True when there were too many."""
        if self._patience.lost():
            self.fail(ENHANCE_YOUR_CALM, "too many frames that bring nothing")
        return self._deaf

    def _hang_up(self) -> None:
        """Close, once all that was said is out."""
        self._corked = False
        self._flush()
        if self._transport is not None:
            self._transport.close()
