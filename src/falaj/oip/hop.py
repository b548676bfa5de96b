"""The hop from a gateway to a replica: many requests on one connection, answered in any order.

Both sides prove that they know the key before anything else is said, and neither tells it: whoever listens on a port
that a replica had once learns nothing, and gets no request.
"""

import asyncio
import json
import logging
import secrets
import socket
import ssl as tls
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from falaj.core.errors import FalajError, Invalid, Unavailable
from falaj.oip import frames as f
from falaj.oip import lot_frames as lots
from falaj.oip.calls import INTERNAL, Asked, Cancel, GrpcCall, GrpcDoor, GrpcReply, Many, Reply, RestDoor, Tell
from falaj.oip.hop_client import LATE, LOST, HopClient, Missed

HANDSHAKE_S = 5.0
_log = logging.getLogger(__name__)
MOST_CONNECTIONS = 64
Left = Sequence[tuple[int, Cancel | None]]
Control = Callable[[dict[str, Any]], Any]
_FLOOD = "a stream that is open already, or too many", "wait for answers"


class HopServer:
    """A replica's side: whoever knows the key may ask these doors."""

    def __init__(
        self,
        rest: RestDoor | None,
        grpc: GrpcDoor | None,
        key: str,
        *,
        about: Mapping[str, Any] | None = None,
        on_control: Control | None = None,
        most_bytes: int = f.MOST_BYTES,
    ) -> None:
        if len(key) < 16:
            raise Invalid("the key of the hop is too short", "16 letters or more, by chance")
        self.rest, self.grpc, self.key = rest, grpc, key.encode()
        self.about, self.on_control, self.most_bytes = dict(about or {}), on_control, most_bytes
        self.many: Many | None = getattr(rest, "many", None)
        self.lot: Callable[[lots.Lot, Tell, lots.TellLot], Left] | None = getattr(rest, "lot", None)
        """Where the door takes several requests at once; and such as have one head."""
        self.connections: set[HopConnection] = set()
        self.draining, self._empty = False, asyncio.Event()
        self._server: asyncio.Server | None = None

    async def start(
        self, host: str, port: int, ssl: tls.SSLContext | None = None, listener: socket.socket | None = None
    ) -> tuple[str, int]:
        """Listen at an address, or with a socket that listens already; gives where."""
        loop = asyncio.get_running_loop()
        try:
            if listener is not None:
                self._server = await loop.create_server(self.connection, sock=listener, ssl=ssl, backlog=64)
            else:
                self._server = await loop.create_server(self.connection, host, port, ssl=ssl, backlog=64)
        except OSError as error:
            raise Unavailable(
                f"{host}:{port} cannot be listened on: {error.strerror}", "choose another port"
            ) from error
        found = self._server.sockets[0].getsockname()
        return str(found[0]), int(found[1])

    def connection(self) -> "HopConnection":
        """What answers one gateway."""
        return HopConnection(self)

    def taker(self, other_than: "HopConnection | None" = None) -> "HopConnection | None":
        """A gateway that takes words from replicas; another one, where there are several."""
        found = [one for one in self.connections if one.takes]
        return next((one for one in found if one is not other_than), found[0] if found else None)

    def tell(self, said: Mapping[str, Any], to: "HopConnection | None") -> None:
        """A word from the replica itself, not an answer."""
        if to is not None:
            to.put(f.CONTROL, 0, json.dumps(said).encode())

    async def drain(self, within_s: float = 30.0) -> None:
        """Tell every gateway to send no more, answer what is on its way, and close once they have gone."""
        self.draining = True
        if self._server is not None:
            self._server.close()
        for one in tuple(self.connections):
            one.drain()
        if self.connections:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._empty.wait(), within_s)
        for one in tuple(self.connections):
            one.end()

    def gone(self, one: "HopConnection") -> None:
        """A connection ended."""
        self.connections.discard(one)
        if self.draining and not self.connections:
            self._empty.set()


class HopConnection(f.Frames):
    """One gateway that is connected to us."""

    def __init__(self, server: HopServer) -> None:
        super().__init__(server.most_bytes)
        self._server, self._nonces, self._known = server, (b"", b""), False
        self._open: dict[int, Callable[[], None] | None] = {}
        self._asked: list[Asked] = []
        """What came in this piece and is not asked yet."""
        self._answers: list[tuple[int, Reply]] = []
        self._lots = False
        """Answers that go out together, to a gateway that has shown that it reads them so."""
        self._shy: asyncio.TimerHandle | None = None
        self.takes = False
        """It said that it takes words from replicas; older ones would hang up."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Whoever does not prove themselves soon is shown out."""
        super().connection_made(transport)
        if len(self._server.connections) >= MOST_CONNECTIONS or self._server.draining:
            self.end()
            return
        self._server.connections.add(self)
        self._shy = asyncio.get_running_loop().call_later(HANDSHAKE_S, self.end)

    def connection_lost(self, exc: Exception | None) -> None:
        """Nobody waits for what is open."""
        super().connection_lost(exc)
        self._server.gone(self)
        if self._shy is not None:
            self._shy.cancel()
        left, self._open = self._open, {}
        for cancel in left.values():
            if cancel is not None:
                cancel()

    def pause_writing(self) -> None:
        """The gateway does not take answers: take no requests meanwhile."""
        if self._transport is not None:
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        """It does again."""
        if self._transport is not None:
            self._transport.resume_reading()

    def drain(self) -> None:
        """Ask for no more; those who said nothing yet are shown out."""
        if self._known:
            self.put(f.DRAIN)
        else:
            self.end()

    def data_received(self, data: bytes) -> None:
        """Requests that come in one piece are asked as one: the door may run them so."""
        super().data_received(data)
        if self._asked:
            self._ask()

    def frame(self, kind: int, stream: int, data: bytes) -> None:
        """One frame of the gateway."""
        if kind == f.ASK_REST and self._known:
            if stream in self._open or len(self._open) >= f.MOST_OPEN:
                raise Invalid(*_FLOOD)
            self._open[stream] = None
            self._asked.append((stream, f.read_ask_rest(data)))
            return
        if self._asked:  # what follows them may be about them
            self._ask()
        if not self._known:
            self._meet(kind, data)
        elif kind == f.ASK_LOT:
            self._ask_lot(lots.read_ask_lot(data))
        elif kind == f.ASK_GRPC:
            self._ask_grpc(stream, f.read_ask_grpc(data))
        elif kind == f.CANCEL:
            (self._open.pop(stream, None) or _nothing)()
        elif kind == f.PING:
            self.put(f.PONG, stream)
        elif kind == f.CONTROL:
            self._told(f.plain(data))
        else:
            raise Invalid(f"a frame of kind {kind}", "speak the same version")

    def _told(self, said: dict[str, Any]) -> None:
        """A word to the replica. One that it cannot follow is no reason to lose everybody's requests."""
        if said.get("takes") is True:
            self.takes = True
            return
        if self._server.on_control is not None:
            try:
                self._server.on_control(said)
            except FalajError as error:
                _log.warning("what the gateway said cannot be done: %s", error)

    def _meet(self, kind: int, data: bytes) -> None:
        """HELLO with a nonce, our proof with another, theirs, welcome."""
        key = self._server.key
        if kind == f.HELLO and not self._nonces[0] and len(data) == 1 + f.NONCE_BYTES and data[0] == f.VERSION:
            self._nonces = data[1:], secrets.token_bytes(f.NONCE_BYTES)
            self.put(f.CHALLENGE, 0, self._nonces[1] + f.proof(key, b"replica", *self._nonces))
        elif kind == f.PROOF and self._nonces[0] and f.same(data, f.proof(key, b"gateway", *self._nonces)):
            self._known = True
            if self._shy is not None:
                self._shy.cancel()
            self.proven()
            self.put(f.WELCOME, 0, json.dumps({**self._server.about, "lots": True}).encode())
        else:
            raise Invalid("nobody we know", "check the key")

    def _ask(self) -> None:
        asked, self._asked = self._asked, []
        door, many = self._server.rest, self._server.many
        if door is None:  # they should ask by gRPC
            self.end()
            return
        if many is not None and len(asked) > 1:
            began = many(asked, self._answer)
        else:
            began = [(stream, door.rest(call, partial(self._answer, stream))) for stream, call in asked]
        self._begun(began)

    def _ask_lot(self, lot: lots.Lot) -> None:
        opened = self._open
        if len(opened) + len(lot.streams) > f.MOST_OPEN or not opened.keys().isdisjoint(lot.streams):
            raise Invalid(*_FLOOD)
        self._lots = True
        opened.update(dict.fromkeys(lot.streams))
        if self._server.lot is not None:
            self._begun(self._server.lot(lot, self._answer, self._answer_lot))
            return
        self._asked += lot.calls()
        self._ask()

    def _begun(self, began: Left) -> None:
        for stream, cancel in began:
            if cancel is not None and stream in self._open:
                self._open[stream] = cancel

    def _ask_grpc(self, stream: int, call: GrpcCall) -> None:
        if self._server.grpc is None:
            raise Invalid("nobody answers gRPC here", "ask by HTTP")
        if stream in self._open or len(self._open) >= f.MOST_OPEN:
            raise Invalid(*_FLOOD)
        self._open[stream] = None
        cancel = self._server.grpc.grpc(call, partial(self._answer_grpc, stream))
        if cancel is not None and stream in self._open:
            self._open[stream] = cancel

    def _answer(self, stream: int, reply: Reply) -> None:
        if stream in self._open:
            del self._open[stream]
            if self._lots and lots.fits(reply):
                if not self._answers:
                    self.soon()
                self._answers.append((stream, reply))
                return
            try:
                self.send(f.reply_rest(reply, stream, self.most_bytes))
            except Invalid as error:
                self.send(f.reply_rest(Reply(500, (json.dumps({"error": str(error)}).encode(),)), stream))

    def _answer_lot(self, streams: Sequence[int], told: lots.Told) -> None:
        """Answers that are one frame where they are many and small."""
        opened = self._open
        few = not lots.FEW <= len(streams) <= lots.MOST
        if few or not opened.keys() >= set(streams) or len(max(told.bodies, key=len)) > lots.MOST_BODY:
            for place, stream in enumerate(streams):
                self._answer(stream, told.reply(place))
            return
        for stream in streams:
            del opened[stream]
        self.send(lots.reply_lot(streams, told))

    def _flush(self) -> None:
        answers, self._answers = self._answers, []
        if answers:
            self._out += lots.reply_lots(answers)
        super()._flush()

    def _answer_grpc(self, stream: int, reply: GrpcReply) -> None:
        if stream in self._open:
            if reply.last:
                del self._open[stream]
            try:
                self.send(f.reply_grpc(reply, stream, self.most_bytes))
            except Invalid as error:
                self.send(f.reply_grpc(GrpcReply(code=INTERNAL, text=str(error), last=reply.last), stream))


def _nothing() -> None:
    """Of a request that is answered already."""


__all__ = ["LATE", "LOST", "HopClient", "HopServer", "Missed"]
