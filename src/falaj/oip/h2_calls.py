"""The calls of an HTTP/2 connection: how they begin, how their messages come in, how answers find them."""

import asyncio
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from falaj.core.errors import FalajError, Unavailable
from falaj.oip import h2_wire as w
from falaj.oip.budget import UNKNOWN, ByteBudget, Reservation, over_budget
from falaj.oip.calls import CODES, INTERNAL, GrpcCall, GrpcDoor, GrpcReply, GrpcVerdict
from falaj.oip.codings import Inflater, inflate_in_steps
from falaj.oip.h2_send import Speaking
from falaj.oip.h2_stream import Messages, Stream
from falaj.oip.health import Health
from falaj.oip.hpack_cache import Head, Heads, block
from falaj.oip.pieces import append_piece

_UNCOUNTED_BYTES = 1 << 18
"""Messages of one connection that are not whole are not counted in the budget until they are more than this."""
_UNAVAILABLE, _TOO_MUCH = CODES["unavailable"], CODES["quota-exceeded"]


class Calls(Speaking):
    """The calls of one connection."""

    def __init__(self, loop: asyncio.AbstractEventLoop, door: GrpcDoor, limits: w.Limits, budget: ByteBudget) -> None:
        super().__init__(loop, limits, budget)
        self._door, self._health = door, Health(door)
        self._judge: Callable[[Head, str, Callable[[GrpcVerdict], Any]], GrpcVerdict | None]
        self._judge = getattr(door, "judge_grpc", _admit_by_address)
        self._heads = Heads(limits.head_bytes)
        self._unacked = 0
        """Bytes that we have not said to go on after."""
        self.peer = ""
        self._last_head: Head | None = None

    # ---- they begin

    def _begin(self, flags: int, id_: int, said: bytes) -> None:
        """A header block is whole: a new call, or the end of one."""
        if id_ <= self._last or not id_ & 1:
            self._trailers(flags, id_, said)
            return
        self._last = id_
        head = self._heads.known.get(said)
        if head is None:
            head = self._read(said)
            if head is None:
                return
        if len(self._streams) >= self._limits.streams or self._draining == 2:
            self._cut(id_, w.REFUSED_STREAM)
            self._noise()
            return
        deadline = time.monotonic() + head.timeout_s if head.timeout_s else 0.0
        stream = self._streams[id_] = Stream(id_, head, self._first_room, deadline, self._now)
        self._last_head = head
        stream.half = bool(flags & w.END_STREAM)
        if not head.method:
            self._refuse(stream)
        elif stream.half:
            self._ended(stream)

    def _read(self, said: bytes) -> Head | None:
        try:
            head = self._heads.read(said)
        except FalajError:
            self.fail(w.COMPRESSION_ERROR, "the headers cannot be read")
            return None
        if head is None:
            self._cut(self._last, w.PROTOCOL_ERROR)
            self._noise()
        return head

    def _trailers(self, flags: int, id_: int, said: bytes) -> None:
        stream = self._streams.get(id_)
        try:
            whole = self._heads.skip(said)
        except FalajError:
            self.fail(w.COMPRESSION_ERROR, "the headers cannot be read")
            return
        if id_ in self._reset:
            self._noise()
        elif stream is None or stream.half:
            self.fail(w.STREAM_CLOSED if id_ & 1 else w.PROTOCOL_ERROR, "headers for no stream that is open")
        elif not flags & w.END_STREAM or not whole:
            self._drop(stream, w.PROTOCOL_ERROR)
        else:
            stream.half = True
            if stream.early is not None:
                stream.early.append(b"")
            elif not stream.gone:
                self._ended(stream)

    def _refuse(self, stream: Stream) -> None:
        """A request that is no call."""
        if stream.head.status:
            self._headers(stream, block(((b":status", b"%d" % stream.head.status),)), w.END_STREAM)
            self._close(stream)
        else:
            self._finish(
                stream, stream.head.code, stream.head.fault, ((b"grpc-accept-encoding", b"identity,deflate,gzip"),)
            )

    # ---- messages come in

    def on_data(self, flags: int, id_: int, piece: bytes) -> None:
        size = len(piece)
        self._unacked += size
        if self._unacked > self._limits.connection_bytes >> 1:
            self.send(w.frame(w.WINDOW_UPDATE, 0, 0, w.word(self._unacked)))
            self._unacked = 0
        stream = self._streams.get(id_)
        if stream is None or stream.half or stream.gone:
            self._late(id_, stream)
            return
        if flags & w.PADDED:
            bare = stripped(flags, piece)
            if bare is None:
                self.fail(w.PROTOCOL_ERROR, "the padding is longer than its frame")
                return
            piece = bare
        last = bool(flags & w.END_STREAM)
        whole = last and stream.messages is None and piece[:1] == b"\0"
        if whole and int.from_bytes(piece[1:5], "big") == len(piece) - 5:
            # Nearly every call: one message, whole, in one frame.
            stream.half = True
            self._call(stream, piece[5:])
        elif last or piece or not self._noise():
            stream.unacked += size
            if stream.messages is None:
                self._ask_admission(stream)
            if stream.reservation is None and self._held + size <= _UNCOUNTED_BYTES and not stream.gone:
                self._gather(stream, piece, last=last)
            elif not stream.gone:
                self._take_piece(stream, piece, last=last)

    def _ask_admission(self, stream: Stream) -> None:
        """A call whose message did not come whole in one frame, or is compressed: ask the door whether to take it."""
        stream.messages = Messages(stream.head.coding, self._limits.body_bytes)
        verdict = self._judge(stream.head, self.peer, partial(self._decide, stream))
        if verdict is None:
            stream.early, stream.reservation = [], Reservation(self._budget)
        elif isinstance(verdict, str) and verdict:
            stream.principal = verdict
        else:
            self._settle(stream, verdict)

    def _decide(self, stream: Stream, verdict: GrpcVerdict) -> None:
        """The door has decided later about the caller of a stream: take what came meanwhile, or nothing."""
        reservation, early, stream.early = stream.reservation, stream.early, None
        if stream.gone or reservation is None or early is None:
            return
        self._settle(stream, verdict)
        if not self._is_open(stream):
            return
        if not reservation.assign(stream.principal or UNKNOWN):
            self._finish_over_budget(stream)
        is_whole = stream.half
        for number, piece in enumerate(early, 1):
            if not stream.gone:
                self._gather(stream, piece, last=is_whole and number == len(early))

    def _is_open(self, stream: Stream) -> bool:
        return not stream.gone

    def _settle(self, stream: Stream, verdict: GrpcVerdict) -> None:
        if isinstance(verdict, GrpcReply):
            self._finish(stream, verdict.code, verdict.text, verdict.metadata)
            return
        stream.principal = verdict
        if not verdict:
            stream.messages = Messages(stream.head.coding, self._limits.anonymous_bytes)

    def _take_piece(self, stream: Stream, piece: bytes, *, last: bool) -> None:
        """Count a piece, then take it; while the door decides it is kept, within the window of the stream."""
        reservation, early, size = stream.reservation, stream.early, len(piece)
        if reservation is None:
            reservation = stream.reservation = Reservation(self._budget, stream.principal or UNKNOWN)
            size += stream.held
        if not reservation.grow(size):
            stream.half = last
            self._finish_over_budget(stream)
        elif early is None:
            self._gather(stream, piece, last=last)
        elif stream.unacked > self._limits.window_bytes:
            self._drop(stream, w.FLOW_CONTROL_ERROR)
        else:
            stream.half = last
            append_piece(early, piece)

    def _finish_over_budget(self, stream: Stream) -> None:
        self._finish(stream, _TOO_MUCH, str(over_budget()), ((b"retry-after", b"1"),))

    def _gather(self, stream: Stream, piece: bytes, *, last: bool) -> None:
        """A piece of a message, or several messages in one."""
        messages = stream.messages
        if messages is None:
            return
        stream.touched = self._now
        try:
            for packed, message in messages.feed(piece):
                self._came(stream, packed, message)
                if stream.gone:
                    return
        except FalajError as error:
            stream.half = last
            self._finish(stream, CODES.get(error.code, INTERNAL), str(error))
            return
        stream.half = last
        self._hold(stream, messages.held + (len(stream.only[1]) if stream.only else 0))
        if self._held > self._limits.held_bytes:
            self._finish(stream, _TOO_MUCH, "too much is sent at once (send less, or come again)")
        elif last:
            self._ended(stream)
        elif stream.unacked > self._limits.window_bytes:
            self._drop(stream, w.FLOW_CONTROL_ERROR)
        else:
            self._go_on(stream)

    def _came(self, stream: Stream, packed: bool, message: bytes) -> None:
        if stream.head.streaming:
            self._unpack(stream, packed, message)
        elif stream.only is None:
            stream.only = (packed, message)
        else:
            self._finish(stream, INTERNAL, "a call of this method has one message, and two came")

    def _ended(self, stream: Stream) -> None:
        """The client has sent all of a call."""
        if within(stream):
            self._finish(stream, INTERNAL, "the call ends inside a message")
        elif stream.head.streaming:
            if not stream.waiting:
                self._finish(stream, 0)
        elif stream.only is None:
            self._finish(stream, INTERNAL, "a call of this method has one message, and none came")
        else:
            (packed, message), stream.only = stream.only, None
            self._hold(stream, 0)
            self._unpack(stream, packed, message)

    def _unpack(self, stream: Stream, packed: bool, message: bytes) -> None:
        """A message that is whole; a compressed one is unpacked in a thread, for a small one may hold much."""
        reservation, counted = stream.reservation, len(message) + 5
        if not packed:
            self._call(stream, message, counted)
            return
        if reservation is None:
            reservation, counted = Reservation(self._budget, stream.principal or UNKNOWN), 0
            stream.reservation = reservation
        stream.waiting += 1
        most = self._limits.body_bytes if stream.principal else self._limits.anonymous_bytes
        inflater = Inflater(message, stream.head.coding, most)
        inflate_in_steps(self._loop, inflater, reservation, partial(self._unpacked, stream, counted))

    def _unpacked(self, stream: Stream, counted: int, message: bytes | FalajError) -> None:
        stream.waiting -= 1
        if isinstance(message, Unavailable):
            self._finish_over_budget(stream)
        elif isinstance(message, FalajError):
            self._finish(stream, CODES.get(message.code, INTERNAL), str(message))
        else:
            self._call(stream, message, counted + len(message))

    def _late(self, id_: int, stream: Stream | None) -> None:
        """Data for a stream that takes none."""
        if stream is not None:
            if stream.half:
                self._drop(stream, w.STREAM_CLOSED)
        elif id_ > self._last or not id_ & 1:
            self.fail(w.PROTOCOL_ERROR, "data for a stream that did not begin")
        elif not self._noise() and id_ not in self._reset:
            self._cut(id_, w.STREAM_CLOSED)

    # ---- and answers go out

    def _call(self, stream: Stream, message: bytes, counted: int = 0) -> None:
        """Ask the door; `counted` bytes are reserved, where the stream has a reservation, until the last answer."""
        stream.waiting += 1
        stream.calls = number = stream.calls + 1
        if counted and stream.reservation is not None and stream.head.streaming:
            stream.sizes = stream.sizes or {}
            stream.sizes[number] = counted
        head = stream.head
        call = GrpcCall(head.method, message, head.metadata, stream.deadline, False, self.peer, b"", head)
        door: GrpcDoor = self._health if head.health else self._door
        cancel = door.grpc(call, partial(self._answered, stream, number))
        if cancel is not None and not stream.gone:
            stream.cancels[number] = cancel

    def _answered(self, stream: Stream, number: int, reply: GrpcReply) -> None:
        if stream.gone:
            return
        if stream.cancels:
            stream.cancels.pop(number, None)
        if reply.code:
            self._finish(stream, reply.code, reply.text, reply.metadata)
        elif not stream.head.streaming:
            self._reply(stream, reply)
        else:
            self._say(stream, reply)
            if reply.last:
                stream.waiting -= 1
                if stream.sizes and stream.reservation is not None:
                    stream.reservation.shrink(stream.sizes.pop(number, 0))
                self._next(stream)

    def _next(self, stream: Stream) -> None:
        """One message of a stream has all its answers."""
        if stream.waiting or stream.gone:
            return
        if stream.half:
            self._finish(stream, 0)
        elif self._draining == 2:
            self._finish(stream, _UNAVAILABLE, "the server ends (connect again)")
        else:
            self._go_on(stream)

    def _drop(self, stream: Stream, code: int) -> None:
        """Drop a stream that broke the rules, or that the client does not read. It counts as a reset by the client."""
        self._streams.pop(stream.id, None)
        self._blocked.pop(stream.id, None)
        self._forget(stream)
        self._cut(stream.id, code)
        self._closed()
        self._noise()


def _admit_by_address(_: Head, peer: str, _decide: Callable[[GrpcVerdict], Any]) -> GrpcVerdict:
    """For a door that does not authenticate callers: addresses are the principals."""
    return peer or "local"


def within(stream: Stream) -> bool:
    """Whether a message of it has begun that is not whole."""
    return stream.messages is not None and stream.messages.within


def stripped(flags: int, said: bytes) -> bytes | None:
    """A payload without its padding and its priority; None when it is not as long as it says."""
    padding = 0
    if flags & w.PADDED:
        padding, said = (said[0] if said else 256), said[1:]
    if flags & w.WITH_PRIORITY:
        if len(said) < 5:
            return None
        said = said[5:]
    return said[: len(said) - padding] if padding <= len(said) else None
