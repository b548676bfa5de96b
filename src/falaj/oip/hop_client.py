"""The gateway's side of the hop: one connection to one replica."""

import asyncio
import json
import secrets
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from falaj.core.errors import Invalid, Unavailable
from falaj.oip import frames as f
from falaj.oip import lot_frames as lots
from falaj.oip.calls import Call, GrpcCall, GrpcReply, Reply

SWEEP_S = 0.025
PING_S, SILENT_S = 3.0, 12.0
_LAST = 0xFFFFFFFF
Ended = Callable[..., Any]
"""Told an answer; of several that were asked as one, streams and what is told those: a Told, or one answer."""


class Missed:
    """Why there is no answer."""

    __slots__ = ("why",)

    def __init__(self, why: str) -> None:
        self.why = why


LOST, LATE = Missed("lost"), Missed("late")
"""LOST: the connection ended before the answer came. LATE: the deadline passed, and the replica was told to stop."""


def _unheard(said: dict[str, Any]) -> None:
    """Nobody listens to what a replica says of itself."""


class HopClient(f.Frames):
    """A gateway's side: one replica. `on_ready` when it may be asked, `on_drain` when no more, `on_lost` at the end."""

    def __init__(
        self,
        key: str,
        *,
        on_ready: Callable[[], Any] | None = None,
        on_drain: Callable[[], Any] | None = None,
        on_lost: Callable[[], Any] | None = None,
        most_bytes: int = f.MOST_BYTES,
    ) -> None:
        super().__init__(most_bytes)
        self._key, self._on_ready, self._on_drain, self._on_lost = key.encode(), on_ready, on_drain, on_lost
        self.on_control: Callable[[dict[str, Any]], Any] = _unheard
        """Told what the replica itself says, which is no answer."""
        self._mine = secrets.token_bytes(f.NONCE_BYTES)
        self._met = 0
        self.about: dict[str, Any] = {}
        self.ready = False
        """It may be asked: the other side has proved itself, is not draining, and takes what we send."""
        self.draining = self._full = self._lots = False
        self._asked: list[lots.Asked] = []
        """What this turn asks, where the replica reads several requests as one."""
        self._waiting: dict[int, tuple[Ended, float, bool]] = {}
        """Whom to tell, until when, and whether several are told by it."""
        self._next, self._pinged_at = 0, 0.0
        self._sweeper: asyncio.TimerHandle | None = None

    @property
    def outstanding(self) -> int:
        """How many requests are not answered yet."""
        return len(self._waiting)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Say hello; nothing is asked before the other side has proved itself."""
        super().connection_made(transport)
        self.put(f.HELLO, 0, bytes((f.VERSION,)) + self._mine)
        self._sweeper = asyncio.get_running_loop().call_later(SWEEP_S, self._sweep)

    def connection_lost(self, exc: Exception | None) -> None:
        """Everybody who waits is told."""
        super().connection_lost(exc)
        self.ready = False
        if self._sweeper is not None:
            self._sweeper.cancel()
        left, self._waiting = self._waiting, {}
        for stream, waiting in left.items():
            _tell(waiting, stream, LOST)
        if self._on_lost is not None:
            self._on_lost()

    def pause_writing(self) -> None:
        """The replica does not take what we send."""
        self._full = True
        self._stand()

    def resume_writing(self) -> None:
        """It does again."""
        self._full = False
        self._stand()

    def ask_rest(self, call: Call, deadline: float, reply: Callable[[Reply | Missed], Any]) -> int:
        """Ask; `reply` is called once, with LOST or LATE where there is no answer. Gives the stream, for `cancel`."""
        stream = self._stream()
        self.send(f.ask_rest(call, stream, self.most_bytes))
        self._waiting[stream] = (reply, deadline, False)
        return stream

    def pass_rest(self, stub: f.Stub, call: Call, deadline: float, reply: Callable[[Reply | Missed], Any]) -> int:
        """`ask_rest` for a call whose head was packed before; in fewer steps, since most calls come by here."""
        waiting, body = self._waiting, call.body
        stream, length = self._next + 1, stub.size + len(body)
        if length > self.most_bytes:
            return self.ask_rest(call, deadline, reply)  # it says why not
        if not self.ready or stream in waiting or stream > _LAST or len(waiting) >= f.MOST_OPEN:
            stream = self._stream()
        self._next = stream
        if self._lots and len(body) <= lots.MOST_BODY:
            if not self._asked:
                self.soon()
            self._asked.append((stub, stream, call.name, body))
            waiting[stream] = (reply, deadline, False)
            return stream
        parts = f.head(length, f.ASK_REST, stream), stub.begin, call.name, stub.end, body
        self.send(parts)
        waiting[stream] = (reply, deadline, False)
        return stream

    def pass_lot(
        self, stub: f.Stub, names: Sequence[bytes], bodies: Sequence[bytes], deadline: float, reply: Callable[..., Any]
    ) -> int:
        """`pass_rest` for several at once; `reply` is called with streams and what is told those, as it comes. Gives
        the first stream, which those of the others follow; 0 where they must be asked one by one."""
        waiting, first, num = self._waiting, self._next + 1, len(names)
        streams = range(first, first + num)
        if not (self.ready and self._lots and lots.FEW <= num <= lots.MOST) or streams[-1] > _LAST:
            return 0
        if len(waiting) + num > f.MOST_OPEN or not waiting.keys().isdisjoint(streams):
            return 0
        if num * (stub.size + max(map(len, bodies))) > self.most_bytes:
            return 0
        self._next = streams[-1]
        self.send(lots.ask_lot(stub.shared, streams, names, bodies))
        waiting.update(dict.fromkeys(streams, (reply, deadline, True)))
        return first

    def send(self, parts: Iterable[bytes]) -> None:
        """The pieces of frames, behind what was asked before."""
        if self._asked:
            self._pack()
        super().send(parts)

    def _pack(self) -> None:
        asked, self._asked = self._asked, []
        self._out += lots.ask_lots(asked)

    def _flush(self) -> None:
        if self._asked:
            self._pack()
        super()._flush()

    def ask_grpc(self, call: GrpcCall, deadline: float, reply: Callable[[GrpcReply | Missed], Any]) -> int:
        """The same for gRPC; of a stream there may be several answers, the last one says so."""
        stream = self._stream()
        self.send(f.ask_grpc(call, stream, self.most_bytes))
        self._waiting[stream] = (reply, deadline, False)
        return stream

    def cancel(self, stream: int) -> None:
        """Nobody waits for it any more."""
        if self._waiting.pop(stream, None) is not None:
            self.put(f.CANCEL, stream)
            self._leave()

    def tell(self, said: Mapping[str, Any]) -> None:
        """A word to the replica itself, not a request."""
        self.put(f.CONTROL, 0, json.dumps(said).encode())

    def leave(self) -> None:
        """Ask no more, and close once everything is answered."""
        self.draining = True
        self._stand()
        self._leave()

    def frame(self, kind: int, stream: int, data: bytes) -> None:
        """One frame of the replica."""
        if self._met < 2:
            self._meet(kind, data)
        elif kind == f.REPLY_LOT:
            self._took_lot(*lots.read_reply_lot(data))
        elif kind == f.REPLY_REST:
            self._took(stream, f.read_reply_rest(data))
        elif kind == f.REPLY_GRPC:
            self._answered(stream, f.read_reply_grpc(data))
        elif kind == f.DRAIN:
            self.leave()
            if self._on_drain is not None:
                self._on_drain()
        elif kind == f.CONTROL:
            self.on_control(f.plain(data, f.REPLICA_ITEMS))
        elif kind != f.PONG:
            raise Invalid(f"a frame of kind {kind}", "speak the same version")

    def _took(self, stream: int, reply: Reply) -> None:
        waiting = self._waiting.pop(stream, None)
        if waiting is not None:
            _tell(waiting, stream, reply)
        if self.draining:
            self._leave()

    def _took_lot(self, streams: Sequence[int], told: lots.Told) -> None:
        """Hand answers on; those to requests that were asked as one as one."""
        pop = self._waiting.pop
        found = [pop(stream, None) for stream in streams]
        first = found[0] if found else None
        if first is not None and first[2] and found.count(first) == len(found):  # what nearly all are
            first[0](streams, told)
        else:
            by: dict[tuple[Ended, float, bool], list[int]] = {}
            for place, waiting in enumerate(found):
                if waiting is not None and waiting[2]:
                    by.setdefault(waiting, []).append(place)
                elif waiting is not None:
                    waiting[0](told.reply(place))
            for waiting, places in by.items():
                waiting[0]([streams[place] for place in places], told.part(places))
        if self.draining:
            self._leave()

    def _answered(self, stream: int, reply: GrpcReply) -> None:
        waiting = self._waiting.get(stream)
        if waiting is None:
            return
        if reply.last:
            del self._waiting[stream]
        waiting[0](reply)
        if self.draining:
            self._leave()

    def _meet(self, kind: int, data: bytes) -> None:
        if kind == f.CHALLENGE and self._met == 0 and len(data) == 2 * f.NONCE_BYTES:
            theirs, shown = data[: f.NONCE_BYTES], data[f.NONCE_BYTES :]
            if not f.same(shown, f.proof(self._key, b"replica", self._mine, theirs)):
                raise Invalid("this is not our replica", "its port has changed hands")
            self._met = 1
            self.proven()
            self.put(f.PROOF, 0, f.proof(self._key, b"gateway", self._mine, theirs))
        elif kind == f.WELCOME and self._met == 1:
            self.about, self._met = f.plain(data, f.REPLICA_ITEMS), 2
            self._lots = self.about.pop("lots", False) is True
            self._stand()
            if self._on_ready is not None:
                self._on_ready()
        else:
            raise Invalid("no replica answers there", "its port has changed hands")

    def _stand(self) -> None:
        self.ready = self._met == 2 and not self.draining and not self._full and self._transport is not None

    def _leave(self) -> None:
        if self.draining and not self._waiting and self._transport is not None:
            self._flush()
            self._transport.close()

    def _stream(self) -> int:
        """The next one that is free."""
        waiting = self._waiting
        if self._transport is None or self._met != 2 or len(waiting) >= f.MOST_OPEN:
            raise Unavailable("the replica is not connected, or has too much to do", "ask another one")
        stream = (self._next + 1) & _LAST
        while stream in waiting:
            stream = (stream + 1) & _LAST
        self._next = stream
        return stream

    def _sweep(self) -> None:
        """One timer for all deadlines; and a replica that says nothing for long is gone."""
        now = time.monotonic()
        late = [stream for stream, (_, deadline, _) in self._waiting.items() if 0.0 < deadline <= now]
        for stream in late:
            waiting = self._waiting.pop(stream, None)
            if waiting is not None:
                self.put(f.CANCEL, stream)
                _tell(waiting, stream, LATE)
        if now - self.heard_at > SILENT_S:
            self.end()
            return
        if now - max(self.heard_at, self._pinged_at) > PING_S:
            self._pinged_at = now
            if self._met == 2:
                self.put(f.PING)
        self._leave()
        if self._transport is not None:
            self._sweeper = asyncio.get_running_loop().call_later(SWEEP_S, self._sweep)


def _tell(waiting: tuple[Ended, float, bool], stream: int, reply: Reply | Missed) -> None:
    if waiting[2]:
        waiting[0]((stream,), reply)
    else:
        waiting[0](reply)
