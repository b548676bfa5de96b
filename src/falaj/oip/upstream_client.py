"""The gateway's side of the hop: one connection to one replica."""

import asyncio
import json
import secrets
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from falaj.core.errors import Invalid, Unavailable
from falaj.oip import lot_frames as lots
from falaj.oip import upstream_frames as f
from falaj.oip.handler_calls import GrpcCall, GrpcReply, HttpCall, HttpReply

SWEEP_INTERVAL_S = 0.025
PING_INTERVAL_S, SILENCE_TIMEOUT_S = 3.0, 12.0
_MAX_STREAM_ID = 0xFFFFFFFF
ReplyCallback = Callable[..., Any]
"""Told an answer; of several that were asked as one, streams and what is told those: a Told, or one answer."""


class MissingReply:
    """Why there is no answer."""

    __slots__ = ("why",)

    def __init__(self, reason: str) -> None:
        self.why = reason


REPLY_LOST, REPLY_LATE = MissingReply("lost"), MissingReply("late")
"""LOST: the connection ended before the answer came. LATE: the deadline passed, and the replica was told to stop."""


def _ignore_control(control_message: dict[str, Any]) -> None:
    """Nobody listens to what a replica says of itself."""


class UpstreamClient(f.FrameProtocol):
    """A gateway's side: one replica. `on_ready` when it may be asked, `on_drain` when no more, `on_lost` at the end."""

    def __init__(
        self,
        key: str,
        *,
        on_ready: Callable[[], Any] | None = None,
        on_drain: Callable[[], Any] | None = None,
        on_lost: Callable[[], Any] | None = None,
        max_frame_bytes: int = f.MAX_FRAME_BYTES,
    ) -> None:
        super().__init__(max_frame_bytes)
        self._key, self._on_ready, self._on_drain, self._on_lost = key.encode(), on_ready, on_drain, on_lost
        self.on_control: Callable[[dict[str, Any]], Any] = _ignore_control
        """Told what the replica itself says, which is no answer."""
        self._own_nonce = secrets.token_bytes(f.NONCE_BYTES)
        self._handshake_stage = 0
        self.about: dict[str, Any] = {}
        self.ready = False
        """It may be asked: the other side has proved itself, is not draining, and takes what we send."""
        self.draining = self._is_write_paused = self._reads_groups = False
        self._queued_requests: list[lots.Asked] = []
        """What this turn asks, where the replica reads several requests as one."""
        self._pending_replies: dict[int, tuple[ReplyCallback, float, bool]] = {}
        """Whom to tell, until when, and whether several are told by it."""
        self._last_stream_id, self._pinged_at = 0, 0.0
        self._sweeper: asyncio.TimerHandle | None = None

    @property
    def outstanding(self) -> int:
        """How many requests are not answered yet."""
        return len(self._pending_replies)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Say hello; nothing is asked before the other side has proved itself."""
        super().connection_made(transport)
        self.put(f.HELLO, 0, bytes((f.PROTOCOL_VERSION,)) + self._own_nonce)
        self._sweeper = asyncio.get_running_loop().call_later(SWEEP_INTERVAL_S, self._sweep_deadlines)

    def connection_lost(self, exc: Exception | None) -> None:
        """Everybody who waits is told."""
        super().connection_lost(exc)
        self.ready = False
        if self._sweeper is not None:
            self._sweeper.cancel()
        pending_replies, self._pending_replies = self._pending_replies, {}
        for stream, pending in pending_replies.items():
            _notify_pending(pending, stream, REPLY_LOST)
        if self._on_lost is not None:
            self._on_lost()

    def pause_writing(self) -> None:
        """The replica does not take what we send."""
        self._is_write_paused = True
        self._update_readiness()

    def resume_writing(self) -> None:
        """It does again."""
        self._is_write_paused = False
        self._update_readiness()

    def ask_rest(self, call: HttpCall, deadline: float, on_reply: Callable[[HttpReply | MissingReply], Any]) -> int:
        """Ask; `on_reply` is called once, with LOST or LATE where there is no answer. Gives the stream, for
        `cancel`."""
        stream = self._allocate_stream()
        self.send(f.encode_http_request(call, stream, self.most_bytes))
        self._pending_replies[stream] = (on_reply, deadline, False)
        return stream

    def pass_rest(
        self,
        template: f.RequestTemplate,
        call: HttpCall,
        deadline: float,
        on_reply: Callable[[HttpReply | MissingReply], Any],
    ) -> int:
        """`ask_rest` for a call whose head was packed before; in fewer steps, since most calls come by here."""
        pending_replies, body = self._pending_replies, call.body
        stream, frame_length = self._last_stream_id + 1, template.size + len(body)
        if frame_length > self.most_bytes:
            return self.ask_rest(call, deadline, on_reply)  # it says why not
        if (
            not self.ready
            or stream in pending_replies
            or stream > _MAX_STREAM_ID
            or len(pending_replies) >= f.MAX_OPEN_STREAMS
        ):
            stream = self._allocate_stream()
        self._last_stream_id = stream
        if self._reads_groups and len(body) <= lots.MOST_BODY:
            if not self._queued_requests:
                self.soon()
            self._queued_requests.append((template, stream, call.name, body))
            pending_replies[stream] = (on_reply, deadline, False)
            return stream
        parts = f.pack_frame_head(frame_length, f.HTTP_REQUEST, stream), template.begin, call.name, template.end, body
        self.send(parts)
        pending_replies[stream] = (on_reply, deadline, False)
        return stream

    def pass_lot(
        self,
        template: f.RequestTemplate,
        request_names: Sequence[bytes],
        bodies: Sequence[bytes],
        deadline: float,
        on_reply: Callable[..., Any],
    ) -> int:
        """`pass_rest` for several at once; `on_reply` is called with streams and what is told those, as it comes. Gives
        the first stream, which those of the others follow; 0 where they must be asked one by one."""
        pending_replies, first_stream, call_count = self._pending_replies, self._last_stream_id + 1, len(request_names)
        streams = range(first_stream, first_stream + call_count)
        if (
            not (self.ready and self._reads_groups and lots.FEW <= call_count <= lots.MOST)
            or streams[-1] > _MAX_STREAM_ID
        ):
            return 0
        if len(pending_replies) + call_count > f.MAX_OPEN_STREAMS or not pending_replies.keys().isdisjoint(streams):
            return 0
        if call_count * (template.size + max(map(len, bodies))) > self.most_bytes:
            return 0
        self._last_stream_id = streams[-1]
        self.send(lots.ask_lot(template.shared, streams, request_names, bodies))
        pending_replies.update(dict.fromkeys(streams, (on_reply, deadline, True)))
        return first_stream

    def send(self, parts: Iterable[bytes]) -> None:
        """The pieces of frames, behind what was asked before."""
        if self._queued_requests:
            self._pack_queued()
        super().send(parts)

    def _pack_queued(self) -> None:
        queued_requests, self._queued_requests = self._queued_requests, []
        self._outgoing += lots.ask_lots(queued_requests)

    def _flush_outgoing(self) -> None:
        if self._queued_requests:
            self._pack_queued()
        super()._flush_outgoing()

    def ask_grpc(self, call: GrpcCall, deadline: float, on_reply: Callable[[GrpcReply | MissingReply], Any]) -> int:
        """The same for gRPC; of a stream there may be several answers, the last one says so."""
        stream = self._allocate_stream()
        self.send(f.encode_grpc_request(call, stream, self.most_bytes))
        self._pending_replies[stream] = (on_reply, deadline, False)
        return stream

    def cancel(self, stream: int) -> None:
        """Nobody waits for it any more."""
        if self._pending_replies.pop(stream, None) is not None:
            self.put(f.CANCEL, stream)
            self._close_if_drained()

    def tell(self, control_message: Mapping[str, Any]) -> None:
        """A word to the replica itself, not a request."""
        self.put(f.CONTROL, 0, json.dumps(control_message).encode())

    def leave(self) -> None:
        """Ask no more, and close once everything is answered."""
        self.draining = True
        self._update_readiness()
        self._close_if_drained()

    def frame(self, kind: int, stream: int, data: bytes) -> None:
        """One frame of the replica."""
        if self._handshake_stage < 2:
            self._handle_handshake(kind, data)
        elif kind == f.HTTP_REPLY_GROUP:
            self._deliver_group_reply(*lots.read_reply_lot(data))
        elif kind == f.HTTP_REPLY:
            self._deliver_http_reply(stream, f.decode_http_reply(data))
        elif kind == f.GRPC_REPLY:
            self._deliver_grpc_reply(stream, f.decode_grpc_reply(data))
        elif kind == f.DRAIN:
            self.leave()
            if self._on_drain is not None:
                self._on_drain()
        elif kind == f.CONTROL:
            self.on_control(f.decode_json_object(data, f.REPLICA_ITEMS))
        elif kind != f.PONG:
            raise Invalid(f"a frame of kind {kind}", "speak the same version")

    def _deliver_http_reply(self, stream: int, reply: HttpReply) -> None:
        pending = self._pending_replies.pop(stream, None)
        if pending is not None:
            _notify_pending(pending, stream, reply)
        if self.draining:
            self._close_if_drained()

    def _deliver_group_reply(self, streams: Sequence[int], group_reply: lots.Told) -> None:
        """Hand answers on; those to requests that were asked as one as one."""
        pop_pending = self._pending_replies.pop
        pendings = [pop_pending(stream, None) for stream in streams]
        first_pending = pendings[0] if pendings else None
        if (
            first_pending is not None and first_pending[2] and pendings.count(first_pending) == len(pendings)
        ):  # what nearly all are
            first_pending[0](streams, group_reply)
        else:
            positions_by_pending: dict[tuple[ReplyCallback, float, bool], list[int]] = {}
            for position, pending in enumerate(pendings):
                if pending is not None and pending[2]:
                    positions_by_pending.setdefault(pending, []).append(position)
                elif pending is not None:
                    pending[0](group_reply.reply(position))
            for pending, positions in positions_by_pending.items():
                pending[0]([streams[position] for position in positions], group_reply.part(positions))
        if self.draining:
            self._close_if_drained()

    def _deliver_grpc_reply(self, stream: int, reply: GrpcReply) -> None:
        pending = self._pending_replies.get(stream)
        if pending is None:
            return
        if reply.last:
            del self._pending_replies[stream]
        pending[0](reply)
        if self.draining:
            self._close_if_drained()

    def _handle_handshake(self, kind: int, data: bytes) -> None:
        if kind == f.CHALLENGE and self._handshake_stage == 0 and len(data) == 2 * f.NONCE_BYTES:
            replica_nonce, received_proof = data[: f.NONCE_BYTES], data[f.NONCE_BYTES :]
            if not f.is_same_digest(
                received_proof, f.compute_proof(self._key, b"replica", self._own_nonce, replica_nonce)
            ):
                raise Invalid("this is not our replica", "its port has changed hands")
            self._handshake_stage = 1
            self.proven()
            self.put(f.PROOF, 0, f.compute_proof(self._key, b"gateway", self._own_nonce, replica_nonce))
        elif kind == f.WELCOME and self._handshake_stage == 1:
            self.about, self._handshake_stage = f.decode_json_object(data, f.REPLICA_ITEMS), 2
            self._reads_groups = self.about.pop("lots", False) is True
            self._update_readiness()
            if self._on_ready is not None:
                self._on_ready()
        else:
            raise Invalid("no replica answers there", "its port has changed hands")

    def _update_readiness(self) -> None:
        self.ready = (
            self._handshake_stage == 2
            and not self.draining
            and not self._is_write_paused
            and self._transport is not None
        )

    def _close_if_drained(self) -> None:
        if self.draining and not self._pending_replies and self._transport is not None:
            self._flush_outgoing()
            self._transport.close()

    def _allocate_stream(self) -> int:
        """The next one that is free."""
        pending_replies = self._pending_replies
        if self._transport is None or self._handshake_stage != 2 or len(pending_replies) >= f.MAX_OPEN_STREAMS:
            raise Unavailable("the replica is not connected, or has too much to do", "ask another one")
        stream = (self._last_stream_id + 1) & _MAX_STREAM_ID
        while stream in pending_replies:
            stream = (stream + 1) & _MAX_STREAM_ID
        self._last_stream_id = stream
        return stream

    def _sweep_deadlines(self) -> None:
        """One timer for all deadlines; and a replica that says nothing for long is gone."""
        now = time.monotonic()
        late_streams = [stream for stream, (_, deadline, _) in self._pending_replies.items() if 0.0 < deadline <= now]
        for stream in late_streams:
            pending = self._pending_replies.pop(stream, None)
            if pending is not None:
                self.put(f.CANCEL, stream)
                _notify_pending(pending, stream, REPLY_LATE)
        if now - self.heard_at > SILENCE_TIMEOUT_S:
            self.end()
            return
        if now - max(self.heard_at, self._pinged_at) > PING_INTERVAL_S:
            self._pinged_at = now
            if self._handshake_stage == 2:
                self.put(f.PING)
        self._close_if_drained()
        if self._transport is not None:
            self._sweeper = asyncio.get_running_loop().call_later(SWEEP_INTERVAL_S, self._sweep_deadlines)


def _notify_pending(pending: tuple[ReplyCallback, float, bool], stream: int, reply: HttpReply | MissingReply) -> None:
    if pending[2]:
        pending[0]((stream,), reply)
    else:
        pending[0](reply)
