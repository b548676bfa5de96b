"""The calls of an HTTP/2 connection: how they begin, how their messages come in, how answers find them."""

import asyncio
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from falaj.core.errors import FalajError, Unavailable
from falaj.oip import http2_frames as w
from falaj.oip.byte_budget import UNKNOWN_PRINCIPAL, ByteBudget, ByteReservation, over_budget_error
from falaj.oip.compression import BodyInflater, inflate_in_steps
from falaj.oip.grpc_health import HealthHandler
from falaj.oip.handler_calls import GRPC_STATUS_CODES, INTERNAL, GrpcAdmission, GrpcCall, GrpcHandler, GrpcReply
from falaj.oip.hpack_cache import CallHead, CallHeadCache, encode_headers
from falaj.oip.http2_stream import Http2Stream, MessageReader
from falaj.oip.http2_writer import Http2Writer
from falaj.oip.pieces import append_piece

_UNCOUNTED_BYTES = 1 << 18
"""Messages of one connection that are not whole are not counted in the budget until they are more than this."""
_UNAVAILABLE, _QUOTA_EXCEEDED = GRPC_STATUS_CODES["unavailable"], GRPC_STATUS_CODES["quota-exceeded"]


class Http2Calls(Http2Writer):
    """The calls of one connection."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, handler: GrpcHandler, limits: w.Http2Limits, budget: ByteBudget
    ) -> None:
        super().__init__(loop, limits, budget)
        self._handler, self._health = handler, HealthHandler(handler)
        self._decide_admission: Callable[[CallHead, str, Callable[[GrpcAdmission], Any]], GrpcAdmission | None]
        self._decide_admission = getattr(handler, "judge_grpc", _admit_by_address)
        self._head_cache = CallHeadCache(limits.head_bytes)
        self._unacked_bytes = 0
        """Bytes that we have not said to go on after."""
        self.peer = ""
        self._last_head: CallHead | None = None

    # ---- they begin

    def _start_call(self, flags: int, id_: int, block: bytes) -> None:
        """A header block is whole: a new call, or the end of one."""
        if id_ <= self._last_stream_id or not id_ & 1:
            self._read_trailers(flags, id_, block)
            return
        self._last_stream_id = id_
        call_head = self._head_cache.known.get(block)
        if call_head is None:
            call_head = self._read_head(block)
            if call_head is None:
                return
        if len(self._streams) >= self._limits.streams or self._drain_stage == 2:
            self._reset_stream(id_, w.REFUSED_STREAM)
            self._count_noise()
            return
        deadline = time.monotonic() + call_head.timeout_s if call_head.timeout_s else 0.0
        stream = self._streams[id_] = Http2Stream(id_, call_head, self._initial_window, deadline, self._now)
        self._last_head = call_head
        stream.half = bool(flags & w.END_STREAM)
        if not call_head.method:
            self._refuse_call(stream)
        elif stream.half:
            self._on_request_end(stream)

    def _read_head(self, block: bytes) -> CallHead | None:
        try:
            call_head = self._head_cache.read(block)
        except FalajError:
            self.fail(w.COMPRESSION_ERROR, "the headers cannot be read")
            return None
        if call_head is None:
            self._reset_stream(self._last_stream_id, w.PROTOCOL_ERROR)
            self._count_noise()
        return call_head

    def _read_trailers(self, flags: int, id_: int, block: bytes) -> None:
        stream = self._streams.get(id_)
        try:
            are_valid = self._head_cache.skip(block)
        except FalajError:
            self.fail(w.COMPRESSION_ERROR, "the headers cannot be read")
            return
        if id_ in self._reset_streams:
            self._count_noise()
        elif stream is None or stream.half:
            self.fail(w.STREAM_CLOSED if id_ & 1 else w.PROTOCOL_ERROR, "headers for no stream that is open")
        elif not flags & w.END_STREAM or not are_valid:
            self._drop_stream(stream, w.PROTOCOL_ERROR)
        else:
            stream.half = True
            if stream.early is not None:
                stream.early.append(b"")
            elif not stream.gone:
                self._on_request_end(stream)

    def _refuse_call(self, stream: Http2Stream) -> None:
        """A request that is no call."""
        if stream.head.status:
            self._send_headers(stream, encode_headers(((b":status", b"%d" % stream.head.status),)), w.END_STREAM)
            self._close_stream(stream)
        else:
            self._finish_call(
                stream, stream.head.code, stream.head.fault, ((b"grpc-accept-encoding", b"identity,deflate,gzip"),)
            )

    # ---- messages come in

    def on_data(self, flags: int, id_: int, piece: bytes) -> None:
        size = len(piece)
        self._unacked_bytes += size
        if self._unacked_bytes > self._limits.connection_bytes >> 1:
            self.send(w.encode_frame(w.WINDOW_UPDATE, 0, 0, w.pack_uint32(self._unacked_bytes)))
            self._unacked_bytes = 0
        stream = self._streams.get(id_)
        if stream is None or stream.half or stream.gone:
            self._reject_data(id_, stream)
            return
        if flags & w.PADDED:
            stripped_piece = strip_padding(flags, piece)
            if stripped_piece is None:
                self.fail(w.PROTOCOL_ERROR, "the padding is longer than its frame")
                return
            piece = stripped_piece
        is_last = bool(flags & w.END_STREAM)
        is_single_frame = is_last and stream.messages is None and piece[:1] == b"\0"
        if is_single_frame and int.from_bytes(piece[1:5], "big") == len(piece) - 5:
            # Nearly every call: one message, whole, in one frame.
            stream.half = True
            self._dispatch_message(stream, piece[5:])
        elif is_last or piece or not self._count_noise():
            stream.unacked += size
            if stream.messages is None:
                self._request_admission(stream)
            if stream.reservation is None and self._buffered_bytes + size <= _UNCOUNTED_BYTES and not stream.gone:
                self._gather_messages(stream, piece, is_last=is_last)
            elif not stream.gone:
                self._reserve_piece(stream, piece, is_last=is_last)

    def _request_admission(self, stream: Http2Stream) -> None:
        """A call whose message did not come whole in one frame, or is compressed: ask the door whether to take it."""
        stream.messages = MessageReader(stream.head.coding, self._limits.body_bytes)
        admission = self._decide_admission(stream.head, self.peer, partial(self._on_admission, stream))
        if admission is None:
            stream.early, stream.reservation = [], ByteReservation(self._budget)
        elif isinstance(admission, str) and admission:
            stream.principal = admission
        else:
            self._apply_admission(stream, admission)

    def _on_admission(self, stream: Http2Stream, admission: GrpcAdmission) -> None:
        """The door has decided later about the caller of a stream: take what came meanwhile, or nothing."""
        reservation, early_pieces, stream.early = stream.reservation, stream.early, None
        if stream.gone or reservation is None or early_pieces is None:
            return
        self._apply_admission(stream, admission)
        if not self._is_open(stream):
            return
        if not reservation.assign(stream.principal or UNKNOWN_PRINCIPAL):
            self._finish_over_budget(stream)
        is_whole = stream.half
        for number, piece in enumerate(early_pieces, 1):
            if not stream.gone:
                self._gather_messages(stream, piece, is_last=is_whole and number == len(early_pieces))

    def _is_open(self, stream: Http2Stream) -> bool:
        return not stream.gone

    def _apply_admission(self, stream: Http2Stream, admission: GrpcAdmission) -> None:
        if isinstance(admission, GrpcReply):
            self._finish_call(stream, admission.code, admission.text, admission.metadata)
            return
        stream.principal = admission
        if not admission:
            stream.messages = MessageReader(stream.head.coding, self._limits.anonymous_bytes)

    def _reserve_piece(self, stream: Http2Stream, piece: bytes, *, is_last: bool) -> None:
        """Count a piece, then take it; while the door decides it is kept, within the window of the stream."""
        reservation, early_pieces, size = stream.reservation, stream.early, len(piece)
        if reservation is None:
            reservation = stream.reservation = ByteReservation(self._budget, stream.principal or UNKNOWN_PRINCIPAL)
            size += stream.held
        if not reservation.grow(size):
            stream.half = is_last
            self._finish_over_budget(stream)
        elif early_pieces is None:
            self._gather_messages(stream, piece, is_last=is_last)
        elif stream.unacked > self._limits.window_bytes:
            self._drop_stream(stream, w.FLOW_CONTROL_ERROR)
        else:
            stream.half = is_last
            append_piece(early_pieces, piece)

    def _finish_over_budget(self, stream: Http2Stream) -> None:
        self._finish_call(stream, _QUOTA_EXCEEDED, str(over_budget_error()), ((b"retry-after", b"1"),))

    def _gather_messages(self, stream: Http2Stream, piece: bytes, *, is_last: bool) -> None:
        """A piece of a message, or several messages in one."""
        messages = stream.messages
        if messages is None:
            return
        stream.touched = self._now
        try:
            for is_compressed, message in messages.feed(piece):
                self._on_message(stream, is_compressed, message)
                if stream.gone:
                    return
        except FalajError as error:
            stream.half = is_last
            self._finish_call(stream, GRPC_STATUS_CODES.get(error.code, INTERNAL), str(error))
            return
        stream.half = is_last
        self._count_buffered(stream, messages.held + (len(stream.only[1]) if stream.only else 0))
        if self._buffered_bytes > self._limits.held_bytes:
            self._finish_call(stream, _QUOTA_EXCEEDED, "too much is sent at once (send less, or come again)")
        elif is_last:
            self._on_request_end(stream)
        elif stream.unacked > self._limits.window_bytes:
            self._drop_stream(stream, w.FLOW_CONTROL_ERROR)
        else:
            self._extend_window(stream)

    def _on_message(self, stream: Http2Stream, is_compressed: bool, message: bytes) -> None:
        if stream.head.streaming:
            self._inflate_message(stream, is_compressed, message)
        elif stream.only is None:
            stream.only = (is_compressed, message)
        else:
            self._finish_call(stream, INTERNAL, "a call of this method has one message, and two came")

    def _on_request_end(self, stream: Http2Stream) -> None:
        """The client has sent all of a call."""
        if is_inside_message(stream):
            self._finish_call(stream, INTERNAL, "the call ends inside a message")
        elif stream.head.streaming:
            if not stream.waiting:
                self._finish_call(stream, 0)
        elif stream.only is None:
            self._finish_call(stream, INTERNAL, "a call of this method has one message, and none came")
        else:
            (is_compressed, message), stream.only = stream.only, None
            self._count_buffered(stream, 0)
            self._inflate_message(stream, is_compressed, message)

    def _inflate_message(self, stream: Http2Stream, is_compressed: bool, message: bytes) -> None:
        """A message that is whole; a compressed one is unpacked in a thread, for a small one may hold much."""
        reservation, counted_bytes = stream.reservation, len(message) + 5
        if not is_compressed:
            self._dispatch_message(stream, message, counted_bytes)
            return
        if reservation is None:
            reservation, counted_bytes = ByteReservation(self._budget, stream.principal or UNKNOWN_PRINCIPAL), 0
            stream.reservation = reservation
        stream.waiting += 1
        max_bytes = self._limits.body_bytes if stream.principal else self._limits.anonymous_bytes
        inflater = BodyInflater(message, stream.head.coding, max_bytes)
        inflate_in_steps(self._loop, inflater, reservation, partial(self._on_inflated, stream, counted_bytes))

    def _on_inflated(self, stream: Http2Stream, counted_bytes: int, message: bytes | FalajError) -> None:
        stream.waiting -= 1
        if isinstance(message, Unavailable):
            self._finish_over_budget(stream)
        elif isinstance(message, FalajError):
            self._finish_call(stream, GRPC_STATUS_CODES.get(message.code, INTERNAL), str(message))
        else:
            self._dispatch_message(stream, message, counted_bytes + len(message))

    def _reject_data(self, id_: int, stream: Http2Stream | None) -> None:
        """Data for a stream that takes none."""
        if stream is not None:
            if stream.half:
                self._drop_stream(stream, w.STREAM_CLOSED)
        elif id_ > self._last_stream_id or not id_ & 1:
            self.fail(w.PROTOCOL_ERROR, "data for a stream that did not begin")
        elif not self._count_noise() and id_ not in self._reset_streams:
            self._reset_stream(id_, w.STREAM_CLOSED)

    # ---- and answers go out

    def _dispatch_message(self, stream: Http2Stream, message: bytes, counted_bytes: int = 0) -> None:
        """Ask the door; `counted_bytes` bytes are reserved, where the stream has a reservation, until the last
        answer."""
        stream.waiting += 1
        stream.calls = call_number = stream.calls + 1
        if counted_bytes and stream.reservation is not None and stream.head.streaming:
            stream.sizes = stream.sizes or {}
            stream.sizes[call_number] = counted_bytes
        call_head = stream.head
        call = GrpcCall(
            call_head.method, message, call_head.metadata, stream.deadline, False, self.peer, b"", call_head
        )
        handler: GrpcHandler = self._health if call_head.health else self._handler
        cancel = handler.grpc(call, partial(self._on_reply, stream, call_number))
        if cancel is not None and not stream.gone:
            stream.cancels[call_number] = cancel

    def _on_reply(self, stream: Http2Stream, call_number: int, reply: GrpcReply) -> None:
        if stream.gone:
            return
        if stream.cancels:
            stream.cancels.pop(call_number, None)
        if reply.code:
            self._finish_call(stream, reply.code, reply.text, reply.metadata)
        elif not stream.head.streaming:
            self._send_unary_reply(stream, reply)
        else:
            self._send_message(stream, reply)
            if reply.last:
                stream.waiting -= 1
                if stream.sizes and stream.reservation is not None:
                    stream.reservation.shrink(stream.sizes.pop(call_number, 0))
                self._continue_stream(stream)

    def _continue_stream(self, stream: Http2Stream) -> None:
        """One message of a stream has all its answers."""
        if stream.waiting or stream.gone:
            return
        if stream.half:
            self._finish_call(stream, 0)
        elif self._drain_stage == 2:
            self._finish_call(stream, _UNAVAILABLE, "the server ends (connect again)")
        else:
            self._extend_window(stream)

    def _drop_stream(self, stream: Http2Stream, error_code: int) -> None:
        """Drop a stream that broke the rules, or that the client does not read. It counts as a reset by the client."""
        self._streams.pop(stream.id, None)
        self._blocked_streams.pop(stream.id, None)
        self._release_stream(stream)
        self._reset_stream(stream.id, error_code)
        self._on_stream_closed()
        self._count_noise()


def _admit_by_address(_: CallHead, peer_address: str, _decide: Callable[[GrpcAdmission], Any]) -> GrpcAdmission:
    """For a door that does not authenticate callers: addresses are the principals."""
    return peer_address or "local"


def is_inside_message(stream: Http2Stream) -> bool:
    """Whether a message of it has begun that is not whole."""
    return stream.messages is not None and stream.messages.within


def strip_padding(flags: int, payload: bytes) -> bytes | None:
    """A payload without its padding and its priority; None when it is not as long as it says."""
    padding = 0
    if flags & w.PADDED:
        padding, payload = (payload[0] if payload else 256), payload[1:]
    if flags & w.WITH_PRIORITY:
        if len(payload) < 5:
            return None
        payload = payload[5:]
    return payload[: len(payload) - padding] if padding <= len(payload) else None
