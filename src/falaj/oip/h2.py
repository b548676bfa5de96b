"""gRPC over our own HTTP/2, on an event loop, for a GrpcDoor: no task and no future for a call, bounds on everything.

With prior knowledge in the clear, or by ALPN. What is sent is in h2_send, how bytes become messages in h2_stream.
"""

import asyncio
import ssl as tls
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import cast

from falaj.oip import h2_wire as w
from falaj.oip.budget import ByteBudget
from falaj.oip.calls import DEADLINE_EXCEEDED, NO_HEADERS, GrpcDoor
from falaj.oip.h2_calls import Calls, stripped, within
from falaj.oip.h2_stream import Stream
from falaj.oip.h2_wire import Limits
from falaj.oip.listening import Listening, peer_of, vouch_for_all

_LAST_PING = b"falajend"
_MOST_PIECES = 64
"""Frames of one header block."""


class Http2(Calls):
    """One connection."""

    def __init__(self, server: "GrpcServer") -> None:
        super().__init__(server.loop, server.door, server.limits, server.budget)
        self._server = server
        self._frames = _FIRST
        self._rest = b""
        self._opening: tuple[int, int, list[bytes]] | None = None
        """Flags, stream and pieces of a header block that is not whole."""
        self._greeted = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self.peer = peer_of(transport)
        self._now = self._active = self._since = time.monotonic()
        secured = transport.get_extra_info("ssl_object")
        if (
            not self._server.admit(self)
            or self._server.ends
            or (secured is not None and secured.selected_alpn_protocol() != "h2")
        ):
            self._transport.abort()
            return
        limits = self._limits
        pairs = {
            w.MAX_STREAMS: limits.streams, w.INITIAL_WINDOW: limits.window_bytes, w.MAX_FRAME: limits.frame_bytes,
            w.MAX_HEADERS: limits.head_bytes,
        }  # fmt: skip
        more = w.word(limits.connection_bytes - w.PLAIN_WINDOW)
        self.send(w.settings(pairs) + w.frame(w.WINDOW_UPDATE, 0, 0, more))

    def connection_lost(self, _: Exception | None) -> None:
        self._server.leave(self)
        self._transport, self._deaf = None, True
        streams, self._streams = self._streams, {}
        self._blocked.clear()
        for stream in streams.values():
            self._forget(stream)

    def data_received(self, data: bytes) -> None:
        if self._deaf:
            return
        if self._rest:
            data = self._rest + data
        self._corked = True
        at, end, most = 0, len(data), self._limits.frame_bytes
        if not self._greeted:
            at = self._greet(data)
        while end - at >= 9 and self._greeted and not self._deaf:
            upper, lower, kind, flags, id_ = w.read_head(data, at)
            size = upper << 8 | lower
            if size > most:
                self.fail(w.FRAME_SIZE_ERROR, "a frame is too large")
                break
            stop = at + 9 + size
            if stop > end:
                break
            self._frames.get(kind, _unknown)(self, flags, id_ & w.LARGEST_WINDOW, data[at + 9 : stop])
            at = stop
        self._corked = False
        self._rest = data[at:] if at < end else b""
        self._active = self._now
        if at or not self._since:
            self._since = self._now if self._rest or self._opening else 0.0
        if self._out:
            self._flush()

    def eof_received(self) -> bool:
        """A client that speaks no more waits for nothing."""
        return False

    def drain(self) -> None:
        """Say that we end; what was asked is answered, and what the client asked before it heard so, too."""
        if self._draining or self._deaf:
            return
        self._draining = 1
        goaway = w.frame(w.GOAWAY, 0, 0, w.word(w.LARGEST_WINDOW) + w.word(w.NO_ERROR))
        self.send(goaway + w.frame(w.PING, 0, 0, _LAST_PING))
        if not self._greeted:
            self._hang_up()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def vouched(self) -> bool:
        """True when the last call came from an authenticated caller."""
        return self._server.vouch(self._last_head.metadata if self._last_head is not None else NO_HEADERS)

    def idle_since(self) -> float:
        return self._active

    def _idle_too_long(self, idle_s: float) -> bool:
        limits = self._limits
        return idle_s > limits.keep_s or (idle_s > limits.unauthenticated_keep_s and not self.vouched())

    def look(self, now: float) -> None:
        """Once a second: what takes too long is ended."""
        self._now, limits = now, self._limits
        if (
            self._since and now - self._since > (limits.head_s if self._opening or not self._greeted else limits.idle_s)
        ) or (self._full and (now - self._active > limits.idle_s or now - self._full_since > limits.whole_s)):
            self.abort()
        elif self._draining == 1:
            self._take_no_more()
        elif not self._streams and self._idle_too_long(now - self._active):
            self.drain()
        for stream in tuple(self._streams.values()):
            self._look_at(stream, now)

    def _look_at(self, stream: Stream, now: float) -> None:
        stuck = now - stream.touched > self._limits.idle_s
        slow = stuck or now - stream.began > self._limits.whole_s
        if stream.out and stuck:
            self._drop(stream, w.CANCEL)
        elif stream.gone:
            return
        elif stream.deadline and now > stream.deadline:
            self._finish(stream, DEADLINE_EXCEEDED, "the time of the call is over")
        elif not stream.half and (stuck and within(stream) if stream.head.streaming else slow):
            self._finish(stream, DEADLINE_EXCEEDED, "the request did not come whole in time")

    def _greet(self, data: bytes) -> int:
        if not data.startswith(w.PREFACE):
            if not w.PREFACE.startswith(data):
                self.fail(w.PROTOCOL_ERROR, "this is no HTTP/2")
            return 0
        self._greeted, self._frames = True, _FIRST
        return len(w.PREFACE)

    def on_headers(self, flags: int, id_: int, said: bytes) -> None:
        if flags & (w.PADDED | w.WITH_PRIORITY):
            bare = stripped(flags, said)
            if bare is None:
                self.fail(w.PROTOCOL_ERROR, "the padding is longer than its frame")
                return
            said = bare
        if flags & w.END_HEADERS:
            self._begin(flags, id_, said)
        else:
            self._opening, self._frames = (flags, id_, [said]), _ONLY_CONTINUATION

    def on_continuation(self, flags: int, id_: int, said: bytes) -> None:
        if not self._opening or self._opening[1] != id_:
            self.fail(w.PROTOCOL_ERROR, "a header block goes on that did not begin")
            return
        first, _, pieces = self._opening
        pieces.append(said)
        if sum(map(len, pieces)) > self._limits.head_bytes or len(pieces) > _MOST_PIECES:
            self.fail(w.ENHANCE_YOUR_CALM, "the headers are too large")
        elif flags & w.END_HEADERS:
            self._opening, self._frames = None, _FRAMES
            self._begin(first, id_, b"".join(pieces))

    def on_reset(self, _: int, id_: int, said: bytes) -> None:
        if len(said) != 4 or not id_ or id_ > self._last:
            self.fail(w.FRAME_SIZE_ERROR if len(said) != 4 else w.PROTOCOL_ERROR, "a reset of no stream")
            return
        stream = self._streams.pop(id_, None)
        self._noise()
        if stream is not None:
            self._blocked.pop(id_, None)
            self._forget(stream)
            self._closed()

    def on_settings(self, flags: int, id_: int, said: bytes) -> None:
        self._frames = _FRAMES
        if id_ or len(said) % 6 or (flags & w.ACK and said):
            self.fail(w.PROTOCOL_ERROR if id_ else w.FRAME_SIZE_ERROR, "settings that are none")
            return
        if flags & w.ACK or self._noise():
            return
        found, wrong = w.read_settings(said)
        if wrong:
            self.fail(wrong, "a setting is out of its range")
            return
        self._frame_bytes = found.get(w.MAX_FRAME, self._frame_bytes)
        if found.get(w.HEADER_TABLE_SIZE, w.PLAIN_TABLE) < w.PLAIN_TABLE:
            self._resized = b"\x20"
        more = found.get(w.INITIAL_WINDOW, self._first_room) - self._first_room
        self._first_room += more
        for stream in tuple(self._streams.values()) if more else ():
            if not self._widen(stream, more):
                self.fail(w.FLOW_CONTROL_ERROR, "a window is too large")
                return
        self.send(w.frame(w.SETTINGS, w.ACK, 0))

    def on_ping(self, flags: int, id_: int, said: bytes) -> None:
        if id_ or len(said) != 8:
            self.fail(w.PROTOCOL_ERROR if id_ else w.FRAME_SIZE_ERROR, "a ping that is none")
        elif not flags & w.ACK:
            if not self._noise():
                self.send(w.frame(w.PING, w.ACK, 0, said))
        elif said == _LAST_PING and self._draining == 1:
            self._take_no_more()

    def on_window(self, _: int, id_: int, said: bytes) -> None:
        more = int.from_bytes(said, "big") & w.LARGEST_WINDOW
        stream = self._streams.get(id_)
        if len(said) != 4:
            self.fail(w.FRAME_SIZE_ERROR, "a window that is none")
        elif id_ > self._last or (not more and not id_):
            self.fail(w.PROTOCOL_ERROR, "a window of nothing")
        elif not id_:
            if not self._widen(None, more):
                self.fail(w.FLOW_CONTROL_ERROR, "a window is too large")
        elif stream is not None and (not more or not self._widen(stream, more)):
            self._drop(stream, w.FLOW_CONTROL_ERROR if more else w.PROTOCOL_ERROR)

    def on_priority(self, _: int, id_: int, said: bytes) -> None:
        if not id_ or len(said) != 5:
            self.fail(w.FRAME_SIZE_ERROR if id_ else w.PROTOCOL_ERROR, "a priority that is none")
        else:
            self._noise()

    def on_goaway(self, _: int, id_: int, said: bytes) -> None:
        if id_ or len(said) < 8:
            self.fail(w.PROTOCOL_ERROR if id_ else w.FRAME_SIZE_ERROR, "a goodbye that is none")
        elif not self._noise():
            self.drain()

    def not_now(self, _flags: int, _id: int, _said: bytes) -> None:
        self.fail(w.PROTOCOL_ERROR, "this frame does not belong here")

    def _take_no_more(self) -> None:
        self._draining = 2
        self.send(w.frame(w.GOAWAY, 0, 0, w.word(self._last) + w.word(w.NO_ERROR)))
        for stream in tuple(self._streams.values()):
            if stream.head.streaming:
                self._next(stream)
        self._closed()

    def _closed(self) -> None:
        if self._draining == 2 and not self._streams:
            self._deaf, self._since = True, self._now
            self._hang_up()


def _unknown(connection: Http2, _flags: int, _id: int, _said: bytes) -> None:
    """A kind of frame that we do not know is skipped."""
    connection._noise()  # noqa: SLF001 - one of its own


_FRAMES: dict[int, Callable[..., None]] = {
    w.DATA: Http2.on_data, w.HEADERS: Http2.on_headers, w.PRIORITY: Http2.on_priority, w.RST_STREAM: Http2.on_reset,
    w.SETTINGS: Http2.on_settings, w.PUSH_PROMISE: Http2.not_now, w.PING: Http2.on_ping, w.GOAWAY: Http2.on_goaway,
    w.WINDOW_UPDATE: Http2.on_window, w.CONTINUATION: Http2.not_now,
}  # fmt: skip
_FIRST = dict.fromkeys(range(256), Http2.not_now) | {w.SETTINGS: Http2.on_settings}
_ONLY_CONTINUATION = dict.fromkeys(range(256), Http2.not_now) | {w.CONTINUATION: Http2.on_continuation}


class GrpcServer(Listening[Http2]):
    """What listens, and its connections."""

    def __init__(self, door: GrpcDoor, limits: Limits, budget: ByteBudget | None = None) -> None:
        super().__init__(limits.connections, limits.peer_connections, budget)
        self.door, self.limits = door, limits
        self.vouch: Callable[[Mapping[bytes, bytes]], bool] = getattr(door, "vouch", vouch_for_all)


async def serve_h2(
    door: GrpcDoor,
    host: str,
    port: int,
    *,
    ssl: tls.SSLContext | None = None,
    body_bytes: int = 64 << 20,
    limits: Limits | None = None,
    budget: ByteBudget | None = None,
) -> GrpcServer:
    """Listen for gRPC on the running loop and hand every message to the door."""
    server = GrpcServer(door, limits or Limits(body_bytes=body_bytes, held_bytes=2 * body_bytes), budget)
    if ssl is not None:
        ssl.set_alpn_protocols(["h2"])
    await server.listen(partial(Http2, server), host, port, ssl=ssl, within_s=server.limits.head_s)
    return server
