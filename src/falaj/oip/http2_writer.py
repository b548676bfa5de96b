"""The half of an HTTP/2 connection that speaks: frames of a turn in one write, never more than the client allows."""

import asyncio
from collections.abc import Sequence

from falaj.core.errors import FalajError
from falaj.oip.byte_budget import ByteBudget
from falaj.oip.handler_calls import GrpcReply
from falaj.oip.hpack_cache import encode_headers, encode_status_text
from falaj.oip.http2_frames import (
    DATA,
    DEFAULT_FRAME_BYTES,
    DEFAULT_WINDOW,
    END_HEADERS,
    END_STREAM,
    ENHANCE_YOUR_CALM,
    GOAWAY,
    HEADERS,
    MAX_WINDOW,
    NO_ERROR,
    RST_STREAM,
    WINDOW_UPDATE,
    Http2Limits,
    NoiseLimiter,
    encode_frame,
    encode_message_head,
    pack_uint32,
)
from falaj.oip.http2_stream import Http2Stream

HeaderPairs = Sequence[tuple[bytes, bytes]]
_RESPONSE_HEADERS = b"\x88" + encode_headers(((b"content-type", b"application/grpc"),))
_OK_TRAILERS = encode_headers(((b"grpc-status", b"0"),))
_RESPONSE_FRAME_HEAD = encode_frame(HEADERS, END_HEADERS, 0, _RESPONSE_HEADERS)[:5]
_TRAILERS_FRAME_HEAD = encode_frame(HEADERS, END_HEADERS | END_STREAM, 0, _OK_TRAILERS)[:5]
_MAX_GATHERED_BYTES = 1 << 20
"""Frames gathered for one write; the rest waits for the next turn."""
_MAX_RESET_STREAMS = 1024
_MAX_UNANSWERED = 256
"""Messages of one stream without an answer, beyond which it is not told to go on."""
_MIN_FRAME_BYTES = 256
"""A frame of fewer bytes, because the client lets us send no more, costs more than it brings."""


class Http2Writer(asyncio.Protocol):
    """What is sent on one connection."""

    def __init__(self, loop: asyncio.AbstractEventLoop, limits: Http2Limits, budget: ByteBudget) -> None:
        self._loop, self._limits, self._budget = loop, limits, budget
        self._noise_limiter = NoiseLimiter(limits.noise, limits.noise_per_s)
        self._last_stream_id = self._buffered_bytes = self._drain_stage = 0
        """The newest stream; bytes of messages that are not whole; 1 when we said that we end, 2 when no stream is
        taken any more."""
        self._ignores_input = False
        """Nothing that comes counts any more."""
        self._now = self._incomplete_since = self._last_active_at = self._blocked_since = 0.0
        """The time, as of the last second; when something began that is not whole; when something last came; since
        when the client does not read fast enough."""
        self._transport: asyncio.Transport | None = None
        self._streams: dict[int, Http2Stream] = {}
        self._reset_streams: set[int] = set()
        """Streams that we ended before the client did: what still comes for them is no fault of its."""
        self._outgoing: list[bytes] = []
        self._gathered_bytes = 0
        self._is_corked = self._is_flush_scheduled = self._is_write_paused = self._has_more = False
        """Inside a read, which writes at its end; a write is on its way; the client does not read; more can be sent
        after this write."""
        self._send_window, self._initial_window, self._frame_bytes = DEFAULT_WINDOW, DEFAULT_WINDOW, DEFAULT_FRAME_BYTES
        self._blocked_streams: dict[int, Http2Stream] = {}
        self._table_size_update = b""
        """What must stand before the next headers: that we use no table, where the client made its smaller."""

    def send(self, data: bytes) -> None:
        """Some frames, with all others of this turn."""
        self._outgoing.append(data)
        self._gathered_bytes += len(data)
        if not self._is_corked and not self._is_flush_scheduled:
            self._is_flush_scheduled = True
            self._loop.call_soon(self._flush_outgoing)

    def _flush_outgoing(self) -> None:
        self._is_flush_scheduled = False
        outgoing, self._outgoing, self._gathered_bytes = self._outgoing, [], 0
        if outgoing and self._transport is not None and not self._transport.is_closing():
            self._transport.write(b"".join(outgoing) if len(outgoing) > 1 else outgoing[0])
        if self._has_more:
            self._has_more = False
            self._loop.call_soon(self._resume_blocked)

    def pause_writing(self) -> None:
        """The client reads too slowly: nothing more is taken from it either."""
        self._is_write_paused, self._last_active_at, self._blocked_since = True, self._now, self._now
        if self._transport is not None:
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        self._is_write_paused = False
        if self._transport is not None:
            self._transport.resume_reading()
        self._resume_blocked()

    def _send_unary_reply(self, stream: Http2Stream, reply: GrpcReply) -> None:
        """The only message of a call that has one."""
        message, size = reply.message, len(reply.message) + 5
        if (
            size > self._send_window
            or size > stream.room
            or size > self._frame_bytes
            or self._is_write_paused
            or reply.metadata
            or self._table_size_update
        ):
            self._send_message(stream, reply)
            self._queue_trailers(stream, _OK_TRAILERS)
            return
        self._send_window -= size
        id_ = pack_uint32(stream.id)
        message_head = _RESPONSE_FRAME_HEAD + id_ + _RESPONSE_HEADERS + encode_message_head(stream.id, size - 5)
        data = message_head + message + _TRAILERS_FRAME_HEAD + id_ + _OK_TRAILERS
        if len(self._streams) == 1 and not self._is_corked:
            self._outgoing.append(data)  # no other answer can come this turn: one turn fewer
            self._flush_outgoing()
        else:
            self.send(data)
        self._close_stream(stream)

    def _send_message(self, stream: Http2Stream, reply: GrpcReply) -> None:
        """One message of a call, of which there may be more."""
        if not stream.opened:
            stream.opened = True
            self._send_headers(stream, _RESPONSE_HEADERS + self._encode_metadata(reply.metadata))
        prefix = b"\0" + pack_uint32(len(reply.message))
        if len(reply.message) < DEFAULT_FRAME_BYTES:
            stream.out.append(memoryview(prefix + reply.message))
        else:
            stream.out.extend((memoryview(prefix), memoryview(reply.message)))
        self._send_queued(stream)

    def _finish_call(self, stream: Http2Stream, code: int, text: str = "", metadata: HeaderPairs = ()) -> None:
        """The end of a call, with its status; work that is still done for it is given up."""
        trailers = _OK_TRAILERS
        if code:
            status_pairs = ((b"grpc-status", b"%d" % code), (b"grpc-message", encode_status_text(text)))
            trailers = encode_headers(status_pairs[: 2 if text else 1]) + self._encode_metadata(metadata)
        if stream.opened:
            queued = stream.out.copy()
            self._release_stream(stream)
            stream.out = queued
        else:
            self._release_stream(stream)
            trailers = _RESPONSE_HEADERS + trailers
        self._queue_trailers(stream, trailers)

    def _encode_metadata(self, metadata: HeaderPairs) -> bytes:
        """Metadata of an answer; what cannot be sent is left out, for the answer is worth more."""
        try:
            return encode_headers(metadata)
        except FalajError:
            return b""

    def _queue_trailers(self, stream: Http2Stream, trailers: bytes) -> None:
        stream.trailers = trailers
        self._send_queued(stream)

    def _send_headers(self, stream: Http2Stream, block: bytes, flags: int = 0) -> None:
        self.send(encode_frame(HEADERS, END_HEADERS | flags, stream.id, self._table_size_update + block))
        self._table_size_update = b""

    def _send_queued(self, stream: Http2Stream) -> None:
        """Send of a stream what may be sent; what may not waits in `_blocked_streams`."""
        queued = stream.out
        while queued:
            piece = queued[0]
            size = min(len(piece), self._send_window, stream.room, self._frame_bytes)
            if size <= 0 or self._is_write_paused or self._gathered_bytes > _MAX_GATHERED_BYTES:
                self._has_more |= self._gathered_bytes > _MAX_GATHERED_BYTES
                self._blocked_streams[stream.id] = stream
                return
            if size < _MIN_FRAME_BYTES and size < len(piece) and self._count_noise():
                return
            self.send(encode_frame(DATA, 0, stream.id, bytes(piece[:size])))
            self._send_window -= size
            stream.room -= size
            stream.touched = self._now
            if size == len(piece):
                queued.popleft()
            else:
                queued[0] = piece[size:]
        if stream.trailers:
            self._send_headers(stream, stream.trailers, END_STREAM)
            self._close_stream(stream)
        elif stream.unacked:
            self._extend_window(stream)

    def _extend_window(self, stream: Http2Stream) -> None:
        """Let the client send more on a stream, unless it reads too little of what it is sent."""
        has_consumed_enough = stream.unacked > self._limits.window_bytes >> 1
        if (
            has_consumed_enough
            and stream.waiting < _MAX_UNANSWERED
            and len(stream.out) < _MAX_UNANSWERED
            and not stream.half
        ):
            self.send(encode_frame(WINDOW_UPDATE, 0, stream.id, pack_uint32(stream.unacked)))
            stream.unacked = 0

    def _resume_blocked(self) -> None:
        """Go on with those that waited: the one that waited longest is first."""
        for id_ in tuple(self._blocked_streams):
            if self._send_window <= 0 or self._is_write_paused or self._gathered_bytes > _MAX_GATHERED_BYTES:
                self._has_more |= self._gathered_bytes > _MAX_GATHERED_BYTES
                return
            stream = self._blocked_streams.pop(id_, None)
            if stream is not None:
                self._send_queued(stream)

    def _widen_window(self, stream: Http2Stream | None, increment: int) -> bool:
        """The client lets us send more; False when it lets us send more than there is."""
        if stream is None:
            self._send_window += increment
            if self._send_window > MAX_WINDOW:
                return False
            if self._blocked_streams:
                self._resume_blocked()
            return True
        stream.room += increment
        if stream.room > MAX_WINDOW:
            return False
        if stream.id in self._blocked_streams and stream.room > 0:
            del self._blocked_streams[stream.id]
            self._send_queued(stream)
        return True

    def _close_stream(self, stream: Http2Stream) -> None:
        stream.gone = True
        if stream.reservation is not None:
            self._release_stream(stream)
        self._noise_limiter.left += 1.0
        if self._streams.pop(stream.id, None) is not None and not stream.half:
            self._reset_stream(stream.id, NO_ERROR)
        self._on_stream_closed()

    def _reset_stream(self, id_: int, error_code: int) -> None:
        """RST_STREAM."""
        if len(self._reset_streams) >= _MAX_RESET_STREAMS:
            self._reset_streams.clear()
        self._reset_streams.add(id_)
        self.send(encode_frame(RST_STREAM, 0, id_, pack_uint32(error_code)))

    def _on_stream_closed(self) -> None:
        """A stream is no more; whoever waits for the last one hears it."""

    def _release_stream(self, stream: Http2Stream) -> None:
        """Nobody waits for it any more."""
        self._count_buffered(stream, 0)
        stream.cancel()
        if stream.reservation is not None:
            stream.reservation.release()
            stream.reservation = None

    def _count_buffered(self, stream: Http2Stream, size: int) -> None:
        """Counts what is kept of a stream's messages that are not whole, for the connection."""
        self._buffered_bytes += size - stream.held
        stream.held = size

    def fail(self, error_code: int, reason: str) -> None:
        """End the connection: it broke the rules, and nothing that it says counts any more."""
        if self._ignores_input:
            return
        self._ignores_input, self._incomplete_since = True, self._now
        self.send(
            encode_frame(GOAWAY, 0, 0, pack_uint32(self._last_stream_id) + pack_uint32(error_code) + reason.encode())
        )
        self._close_transport()

    def _count_noise(self) -> bool:
        """Counts a frame that costs and brings nothing; True when there were too many."""
        if self._noise_limiter.lost():
            self.fail(ENHANCE_YOUR_CALM, "too many frames that bring nothing")
        return self._ignores_input

    def _close_transport(self) -> None:
        """Close, once all that was said is out."""
        self._is_corked = False
        self._flush_outgoing()
        if self._transport is not None:
            self._transport.close()
