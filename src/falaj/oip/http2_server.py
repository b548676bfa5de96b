"""gRPC over our own HTTP/2, on an event loop, for a GrpcDoor: no task and no future for a call, bounds on everything.

With prior knowledge in the clear, or by ALPN. What is sent is in h2_send, how bytes become messages in h2_stream.
"""

import asyncio
import ssl as tls
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import cast

from falaj.oip import http2_frames as w
from falaj.oip.byte_budget import ByteBudget
from falaj.oip.connection_server import ConnectionServer, always_authenticated, peer_network
from falaj.oip.handler_calls import DEADLINE_EXCEEDED, NO_HEADERS, GrpcHandler
from falaj.oip.http2_calls import Http2Calls, is_inside_message, strip_padding
from falaj.oip.http2_frames import Http2Limits
from falaj.oip.http2_stream import Http2Stream

_DRAIN_PING = b"falajend"
_MAX_HEADER_FRAMES = 64
"""Frames of one header block."""


class Http2Connection(Http2Calls):
    """One connection."""

    def __init__(self, server: "Http2GrpcServer") -> None:
        super().__init__(server.loop, server.door, server.limits, server.budget)
        self._server = server
        self._frame_handlers = _FIRST_FRAME_HANDLERS
        self._unparsed = b""
        self._open_header_block: tuple[int, int, list[bytes]] | None = None
        """Flags, stream and pieces of a header block that is not whole."""
        self._has_preface = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self.peer = peer_network(transport)
        self._now = self._last_active_at = self._incomplete_since = time.monotonic()
        ssl_object = transport.get_extra_info("ssl_object")
        if (
            not self._server.admit(self)
            or self._server.ends
            or (ssl_object is not None and ssl_object.selected_alpn_protocol() != "h2")
        ):
            self._transport.abort()
            return
        limits = self._limits
        setting_values = {
            w.MAX_STREAMS: limits.streams,
            w.INITIAL_WINDOW: limits.window_bytes,
            w.MAX_FRAME: limits.frame_bytes,
            w.MAX_HEADERS: limits.head_bytes,
        }
        extra_window = w.pack_uint32(limits.connection_bytes - w.DEFAULT_WINDOW)
        self.send(w.encode_settings(setting_values) + w.encode_frame(w.WINDOW_UPDATE, 0, 0, extra_window))

    def connection_lost(self, _: Exception | None) -> None:
        self._server.leave(self)
        self._transport, self._ignores_input = None, True
        streams, self._streams = self._streams, {}
        self._blocked_streams.clear()
        for stream in streams.values():
            self._release_stream(stream)

    def data_received(self, data: bytes) -> None:
        if self._ignores_input:
            return
        if self._unparsed:
            data = self._unparsed + data
        self._is_corked = True
        offset, end, max_frame_bytes = 0, len(data), self._limits.frame_bytes
        if not self._has_preface:
            offset = self._read_preface(data)
        while end - offset >= 9 and self._has_preface and not self._ignores_input:
            upper_bits, lower_bits, kind, flags, id_ = w.read_head(data, offset)
            payload_bytes = upper_bits << 8 | lower_bits
            if payload_bytes > max_frame_bytes:
                self.fail(w.FRAME_SIZE_ERROR, "a frame is too large")
                break
            frame_end = offset + 9 + payload_bytes
            if frame_end > end:
                break
            self._frame_handlers.get(kind, _skip_unknown_frame)(
                self, flags, id_ & w.MAX_WINDOW, data[offset + 9 : frame_end]
            )
            offset = frame_end
        self._is_corked = False
        self._unparsed = data[offset:] if offset < end else b""
        self._last_active_at = self._now
        if offset or not self._incomplete_since:
            self._incomplete_since = self._now if self._unparsed or self._open_header_block else 0.0
        if self._outgoing:
            self._flush_outgoing()

    def eof_received(self) -> bool:
        """A client that speaks no more waits for nothing."""
        return False

    def drain(self) -> None:
        """Say that we end; what was asked is answered, and what the client asked before it heard so, too."""
        if self._drain_stage or self._ignores_input:
            return
        self._drain_stage = 1
        goaway = w.encode_frame(w.GOAWAY, 0, 0, w.pack_uint32(w.MAX_WINDOW) + w.pack_uint32(w.NO_ERROR))
        self.send(goaway + w.encode_frame(w.PING, 0, 0, _DRAIN_PING))
        if not self._has_preface:
            self._close_transport()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def vouched(self) -> bool:
        """True when the last call came from an authenticated caller."""
        return self._server.vouch(self._last_head.metadata if self._last_head is not None else NO_HEADERS)

    def idle_since(self) -> float:
        return self._last_active_at

    def _idle_too_long(self, idle_s: float) -> bool:
        limits = self._limits
        return idle_s > limits.keep_s or (idle_s > limits.unauthenticated_keep_s and not self.vouched())

    def look(self, now: float) -> None:
        """Once a second: what takes too long is ended."""
        self._now, limits = now, self._limits
        if (
            self._incomplete_since
            and now - self._incomplete_since
            > (limits.head_s if self._open_header_block or not self._has_preface else limits.idle_s)
        ) or (
            self._is_write_paused
            and (now - self._last_active_at > limits.idle_s or now - self._blocked_since > limits.whole_s)
        ):
            self.abort()
        elif self._drain_stage == 1:
            self._refuse_new_streams()
        elif not self._streams and self._idle_too_long(now - self._last_active_at):
            self.drain()
        for stream in tuple(self._streams.values()):
            self._check_stream(stream, now)

    def _check_stream(self, stream: Http2Stream, now: float) -> None:
        is_stuck = now - stream.touched > self._limits.idle_s
        is_slow = is_stuck or now - stream.began > self._limits.whole_s
        if stream.out and is_stuck:
            self._drop_stream(stream, w.CANCEL)
        elif stream.gone:
            return
        elif stream.deadline and now > stream.deadline:
            self._finish_call(stream, DEADLINE_EXCEEDED, "the time of the call is over")
        elif not stream.half and (is_stuck and is_inside_message(stream) if stream.head.streaming else is_slow):
            self._finish_call(stream, DEADLINE_EXCEEDED, "the request did not come whole in time")

    def _read_preface(self, data: bytes) -> int:
        if not data.startswith(w.PREFACE):
            if not w.PREFACE.startswith(data):
                self.fail(w.PROTOCOL_ERROR, "this is no HTTP/2")
            return 0
        self._has_preface, self._frame_handlers = True, _FIRST_FRAME_HANDLERS
        return len(w.PREFACE)

    def on_headers(self, flags: int, id_: int, block: bytes) -> None:
        if flags & (w.PADDED | w.WITH_PRIORITY):
            stripped_block = strip_padding(flags, block)
            if stripped_block is None:
                self.fail(w.PROTOCOL_ERROR, "the padding is longer than its frame")
                return
            block = stripped_block
        if flags & w.END_HEADERS:
            self._start_call(flags, id_, block)
        else:
            self._open_header_block, self._frame_handlers = (flags, id_, [block]), _CONTINUATION_HANDLERS

    def on_continuation(self, flags: int, id_: int, block: bytes) -> None:
        if not self._open_header_block or self._open_header_block[1] != id_:
            self.fail(w.PROTOCOL_ERROR, "a header block goes on that did not begin")
            return
        first_flags, _, pieces = self._open_header_block
        pieces.append(block)
        if sum(map(len, pieces)) > self._limits.head_bytes or len(pieces) > _MAX_HEADER_FRAMES:
            self.fail(w.ENHANCE_YOUR_CALM, "the headers are too large")
        elif flags & w.END_HEADERS:
            self._open_header_block, self._frame_handlers = None, _FRAME_HANDLERS
            self._start_call(first_flags, id_, b"".join(pieces))

    def on_reset(self, _: int, id_: int, payload: bytes) -> None:
        if len(payload) != 4 or not id_ or id_ > self._last_stream_id:
            self.fail(w.FRAME_SIZE_ERROR if len(payload) != 4 else w.PROTOCOL_ERROR, "a reset of no stream")
            return
        stream = self._streams.pop(id_, None)
        self._count_noise()
        if stream is not None:
            self._blocked_streams.pop(id_, None)
            self._release_stream(stream)
            self._on_stream_closed()

    def on_settings(self, flags: int, id_: int, payload: bytes) -> None:
        self._frame_handlers = _FRAME_HANDLERS
        if id_ or len(payload) % 6 or (flags & w.ACK and payload):
            self.fail(w.PROTOCOL_ERROR if id_ else w.FRAME_SIZE_ERROR, "settings that are none")
            return
        if flags & w.ACK or self._count_noise():
            return
        values, error_code = w.decode_settings(payload)
        if error_code:
            self.fail(error_code, "a setting is out of its range")
            return
        self._frame_bytes = values.get(w.MAX_FRAME, self._frame_bytes)
        if values.get(w.HEADER_TABLE_SIZE, w.DEFAULT_TABLE_BYTES) < w.DEFAULT_TABLE_BYTES:
            self._table_size_update = b"\x20"
        window_change = values.get(w.INITIAL_WINDOW, self._initial_window) - self._initial_window
        self._initial_window += window_change
        for stream in tuple(self._streams.values()) if window_change else ():
            if not self._widen_window(stream, window_change):
                self.fail(w.FLOW_CONTROL_ERROR, "a window is too large")
                return
        self.send(w.encode_frame(w.SETTINGS, w.ACK, 0))

    def on_ping(self, flags: int, id_: int, payload: bytes) -> None:
        if id_ or len(payload) != 8:
            self.fail(w.PROTOCOL_ERROR if id_ else w.FRAME_SIZE_ERROR, "a ping that is none")
        elif not flags & w.ACK:
            if not self._count_noise():
                self.send(w.encode_frame(w.PING, w.ACK, 0, payload))
        elif payload == _DRAIN_PING and self._drain_stage == 1:
            self._refuse_new_streams()

    def on_window(self, _: int, id_: int, payload: bytes) -> None:
        increment = int.from_bytes(payload, "big") & w.MAX_WINDOW
        stream = self._streams.get(id_)
        if len(payload) != 4:
            self.fail(w.FRAME_SIZE_ERROR, "a window that is none")
        elif id_ > self._last_stream_id or (not increment and not id_):
            self.fail(w.PROTOCOL_ERROR, "a window of nothing")
        elif not id_:
            if not self._widen_window(None, increment):
                self.fail(w.FLOW_CONTROL_ERROR, "a window is too large")
        elif stream is not None and (not increment or not self._widen_window(stream, increment)):
            self._drop_stream(stream, w.FLOW_CONTROL_ERROR if increment else w.PROTOCOL_ERROR)

    def on_priority(self, _: int, id_: int, payload: bytes) -> None:
        if not id_ or len(payload) != 5:
            self.fail(w.FRAME_SIZE_ERROR if id_ else w.PROTOCOL_ERROR, "a priority that is none")
        else:
            self._count_noise()

    def on_goaway(self, _: int, id_: int, payload: bytes) -> None:
        if id_ or len(payload) < 8:
            self.fail(w.PROTOCOL_ERROR if id_ else w.FRAME_SIZE_ERROR, "a goodbye that is none")
        elif not self._count_noise():
            self.drain()

    def not_now(self, _flags: int, _id: int, _payload: bytes) -> None:
        self.fail(w.PROTOCOL_ERROR, "this frame does not belong here")

    def _refuse_new_streams(self) -> None:
        self._drain_stage = 2
        self.send(w.encode_frame(w.GOAWAY, 0, 0, w.pack_uint32(self._last_stream_id) + w.pack_uint32(w.NO_ERROR)))
        for stream in tuple(self._streams.values()):
            if stream.head.streaming:
                self._continue_stream(stream)
        self._on_stream_closed()

    def _on_stream_closed(self) -> None:
        if self._drain_stage == 2 and not self._streams:
            self._ignores_input, self._incomplete_since = True, self._now
            self._close_transport()


def _skip_unknown_frame(connection: Http2Connection, _flags: int, _id: int, _payload: bytes) -> None:
    """A kind of frame that we do not know is skipped."""
    connection._count_noise()  # noqa: SLF001 - one of its own


_FRAME_HANDLERS: dict[int, Callable[..., None]] = {
    w.DATA: Http2Connection.on_data,
    w.HEADERS: Http2Connection.on_headers,
    w.PRIORITY: Http2Connection.on_priority,
    w.RST_STREAM: Http2Connection.on_reset,
    w.SETTINGS: Http2Connection.on_settings,
    w.PUSH_PROMISE: Http2Connection.not_now,
    w.PING: Http2Connection.on_ping,
    w.GOAWAY: Http2Connection.on_goaway,
    w.WINDOW_UPDATE: Http2Connection.on_window,
    w.CONTINUATION: Http2Connection.not_now,
}
_FIRST_FRAME_HANDLERS: dict[int, Callable[..., None]] = dict.fromkeys(range(256), Http2Connection.not_now) | {
    w.SETTINGS: Http2Connection.on_settings
}
_CONTINUATION_HANDLERS: dict[int, Callable[..., None]] = dict.fromkeys(range(256), Http2Connection.not_now) | {
    w.CONTINUATION: Http2Connection.on_continuation
}


class Http2GrpcServer(ConnectionServer[Http2Connection]):
    """What listens, and its connections."""

    def __init__(self, handler: GrpcHandler, limits: Http2Limits, budget: ByteBudget | None = None) -> None:
        super().__init__(limits.connections, limits.peer_connections, budget)
        self.door, self.limits = handler, limits
        self.vouch: Callable[[Mapping[bytes, bytes]], bool] = getattr(handler, "vouch", always_authenticated)


async def serve_http2(
    handler: GrpcHandler,
    host: str,
    port: int,
    *,
    ssl: tls.SSLContext | None = None,
    body_bytes: int = 64 << 20,
    limits: Http2Limits | None = None,
    budget: ByteBudget | None = None,
) -> Http2GrpcServer:
    """Listen for gRPC on the running loop and hand every message to the door."""
    server = Http2GrpcServer(handler, limits or Http2Limits(body_bytes=body_bytes, held_bytes=2 * body_bytes), budget)
    if ssl is not None:
        ssl.set_alpn_protocols(["h2"])
    await server.listen(partial(Http2Connection, server), host, port, ssl=ssl, handshake_timeout_s=server.limits.head_s)
    return server
