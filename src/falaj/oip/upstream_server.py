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
from falaj.oip import lot_frames as lots
from falaj.oip import upstream_frames as f
from falaj.oip.handler_calls import (
    INTERNAL,
    CancelCall,
    GrpcCall,
    GrpcHandler,
    GrpcReply,
    HandleBatch,
    HttpReply,
    NumberedCall,
    RestHandler,
    SendNumberedReply,
)
from falaj.oip.upstream_client import REPLY_LATE, REPLY_LOST, MissingReply, UpstreamClient

HANDSHAKE_TIMEOUT_S = 5.0
_log = logging.getLogger(__name__)
MAX_CONNECTIONS = 64
StartedCalls = Sequence[tuple[int, CancelCall | None]]
ControlCallback = Callable[[dict[str, Any]], Any]
_STREAM_FLOOD = "a stream that is open already, or too many", "wait for answers"


class UpstreamServer:
    """A replica's side: whoever knows the key may ask these doors."""

    def __init__(
        self,
        rest_handler: RestHandler | None,
        grpc_handler: GrpcHandler | None,
        key: str,
        *,
        server_info: Mapping[str, Any] | None = None,
        on_control: ControlCallback | None = None,
        max_frame_bytes: int = f.MAX_FRAME_BYTES,
    ) -> None:
        if len(key) < 16:
            raise Invalid("the key of the hop is too short", "16 letters or more, by chance")
        self.rest, self.grpc, self.key = rest_handler, grpc_handler, key.encode()
        self.about, self.on_control, self.most_bytes = dict(server_info or {}), on_control, max_frame_bytes
        self.many: HandleBatch | None = getattr(rest_handler, "many", None)
        self.lot: Callable[[lots.Lot, SendNumberedReply, lots.TellLot], StartedCalls] | None = getattr(
            rest_handler, "lot", None
        )
        """Where the door takes several requests at once; and such as have one head."""
        self.connections: set[GatewayConnection] = set()
        self.draining, self._all_closed = False, asyncio.Event()
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
        bound_address = self._server.sockets[0].getsockname()
        return str(bound_address[0]), int(bound_address[1])

    def connection(self) -> "GatewayConnection":
        """What answers one gateway."""
        return GatewayConnection(self)

    def taker(self, other_than: "GatewayConnection | None" = None) -> "GatewayConnection | None":
        """A gateway that takes words from replicas; another one, where there are several."""
        receivers = [connection for connection in self.connections if connection.takes]
        return next(
            (connection for connection in receivers if connection is not other_than),
            receivers[0] if receivers else None,
        )

    def tell(self, control_message: Mapping[str, Any], connection: "GatewayConnection | None") -> None:
        """A word from the replica itself, not an answer."""
        if connection is not None:
            connection.put(f.CONTROL, 0, json.dumps(control_message).encode())

    async def drain(self, timeout_s: float = 30.0) -> None:
        """Tell every gateway to send no more, answer what is on its way, and close once they have gone."""
        self.draining = True
        if self._server is not None:
            self._server.close()
        for connection in tuple(self.connections):
            connection.drain()
        if self.connections:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._all_closed.wait(), timeout_s)
        for connection in tuple(self.connections):
            connection.end()

    def gone(self, connection: "GatewayConnection") -> None:
        """A connection ended."""
        self.connections.discard(connection)
        if self.draining and not self.connections:
            self._all_closed.set()


class GatewayConnection(f.FrameProtocol):
    """One gateway that is connected to us."""

    def __init__(self, server: UpstreamServer) -> None:
        super().__init__(server.most_bytes)
        self._server, self._nonces, self._is_proven = server, (b"", b""), False
        self._open_streams: dict[int, Callable[[], None] | None] = {}
        self._unasked_calls: list[NumberedCall] = []
        """What came in this piece and is not asked yet."""
        self._answers: list[tuple[int, HttpReply]] = []
        self._reads_groups = False
        """Answers that go out together, to a gateway that has shown that it reads them so."""
        self._handshake_timer: asyncio.TimerHandle | None = None
        self.takes = False
        """It said that it takes words from replicas; older ones would hang up."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Whoever does not prove themselves soon is shown out."""
        super().connection_made(transport)
        if len(self._server.connections) >= MAX_CONNECTIONS or self._server.draining:
            self.end()
            return
        self._server.connections.add(self)
        self._handshake_timer = asyncio.get_running_loop().call_later(HANDSHAKE_TIMEOUT_S, self.end)

    def connection_lost(self, exc: Exception | None) -> None:
        """Nobody waits for what is open."""
        super().connection_lost(exc)
        self._server.gone(self)
        if self._handshake_timer is not None:
            self._handshake_timer.cancel()
        open_streams, self._open_streams = self._open_streams, {}
        for cancel in open_streams.values():
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
        if self._is_proven:
            self.put(f.DRAIN)
        else:
            self.end()

    def data_received(self, data: bytes) -> None:
        """Requests that come in one piece are asked as one: the door may run them so."""
        super().data_received(data)
        if self._unasked_calls:
            self._dispatch_calls()

    def frame(self, kind: int, stream: int, data: bytes) -> None:
        """One frame of the gateway."""
        if kind == f.HTTP_REQUEST and self._is_proven:
            if stream in self._open_streams or len(self._open_streams) >= f.MAX_OPEN_STREAMS:
                raise Invalid(*_STREAM_FLOOD)
            self._open_streams[stream] = None
            self._unasked_calls.append((stream, f.decode_http_request(data)))
            return
        if self._unasked_calls:  # what follows them may be about them
            self._dispatch_calls()
        if not self._is_proven:
            self._handle_handshake(kind, data)
        elif kind == f.HTTP_REQUEST_GROUP:
            self._dispatch_group(lots.read_ask_lot(data))
        elif kind == f.GRPC_REQUEST:
            self._dispatch_grpc(stream, f.decode_grpc_request(data))
        elif kind == f.CANCEL:
            (self._open_streams.pop(stream, None) or _do_nothing)()
        elif kind == f.PING:
            self.put(f.PONG, stream)
        elif kind == f.CONTROL:
            self._handle_control(f.decode_json_object(data))
        else:
            raise Invalid(f"a frame of kind {kind}", "speak the same version")

    def _handle_control(self, control_message: dict[str, Any]) -> None:
        """A word to the replica. One that it cannot follow is no reason to lose everybody's requests."""
        if control_message.get("takes") is True:
            self.takes = True
            return
        if self._server.on_control is not None:
            try:
                self._server.on_control(control_message)
            except FalajError as error:
                _log.warning("what the gateway said cannot be done: %s", error)

    def _handle_handshake(self, kind: int, data: bytes) -> None:
        """HELLO with a nonce, our proof with another, theirs, welcome."""
        key = self._server.key
        if kind == f.HELLO and not self._nonces[0] and len(data) == 1 + f.NONCE_BYTES and data[0] == f.PROTOCOL_VERSION:
            self._nonces = data[1:], secrets.token_bytes(f.NONCE_BYTES)
            self.put(f.CHALLENGE, 0, self._nonces[1] + f.compute_proof(key, b"replica", *self._nonces))
        elif (
            kind == f.PROOF
            and self._nonces[0]
            and f.is_same_digest(data, f.compute_proof(key, b"gateway", *self._nonces))
        ):
            self._is_proven = True
            if self._handshake_timer is not None:
                self._handshake_timer.cancel()
            self.proven()
            self.put(f.WELCOME, 0, json.dumps({**self._server.about, "lots": True}).encode())
        else:
            raise Invalid("nobody we know", "check the key")

    def _dispatch_calls(self) -> None:
        calls, self._unasked_calls = self._unasked_calls, []
        handler, handle_batch = self._server.rest, self._server.many
        if handler is None:  # they should ask by gRPC
            self.end()
            return
        if handle_batch is not None and len(calls) > 1:
            started_calls = handle_batch(calls, self._send_http_reply)
        else:
            started_calls = [
                (stream, handler.rest(call, partial(self._send_http_reply, stream))) for stream, call in calls
            ]
        self._record_started(started_calls)

    def _dispatch_group(self, group: lots.Lot) -> None:
        open_streams = self._open_streams
        if len(open_streams) + len(group.streams) > f.MAX_OPEN_STREAMS or not open_streams.keys().isdisjoint(
            group.streams
        ):
            raise Invalid(*_STREAM_FLOOD)
        self._reads_groups = True
        open_streams.update(dict.fromkeys(group.streams))
        if self._server.lot is not None:
            self._record_started(self._server.lot(group, self._send_http_reply, self._send_group_reply))
            return
        self._unasked_calls += group.calls()
        self._dispatch_calls()

    def _record_started(self, started_calls: StartedCalls) -> None:
        for stream, cancel in started_calls:
            if cancel is not None and stream in self._open_streams:
                self._open_streams[stream] = cancel

    def _dispatch_grpc(self, stream: int, call: GrpcCall) -> None:
        if self._server.grpc is None:
            raise Invalid("nobody answers gRPC here", "ask by HTTP")
        if stream in self._open_streams or len(self._open_streams) >= f.MAX_OPEN_STREAMS:
            raise Invalid(*_STREAM_FLOOD)
        self._open_streams[stream] = None
        cancel = self._server.grpc.grpc(call, partial(self._send_grpc_reply, stream))
        if cancel is not None and stream in self._open_streams:
            self._open_streams[stream] = cancel

    def _send_http_reply(self, stream: int, reply: HttpReply) -> None:
        if stream in self._open_streams:
            del self._open_streams[stream]
            if self._reads_groups and lots.fits(reply):
                if not self._answers:
                    self.soon()
                self._answers.append((stream, reply))
                return
            try:
                self.send(f.encode_http_reply(reply, stream, self.most_bytes))
            except Invalid as error:
                self.send(f.encode_http_reply(HttpReply(500, (json.dumps({"error": str(error)}).encode(),)), stream))

    def _send_group_reply(self, streams: Sequence[int], group_reply: lots.Told) -> None:
        """Answers that are one frame where they are many and small."""
        open_streams = self._open_streams
        needs_single_frames = not lots.FEW <= len(streams) <= lots.MOST
        if (
            needs_single_frames
            or not open_streams.keys() >= set(streams)
            or len(max(group_reply.bodies, key=len)) > lots.MOST_BODY
        ):
            for position, stream in enumerate(streams):
                self._send_http_reply(stream, group_reply.reply(position))
            return
        for stream in streams:
            del open_streams[stream]
        self.send(lots.reply_lot(streams, group_reply))

    def _flush_outgoing(self) -> None:
        answers, self._answers = self._answers, []
        if answers:
            self._outgoing += lots.reply_lots(answers)
        super()._flush_outgoing()

    def _send_grpc_reply(self, stream: int, reply: GrpcReply) -> None:
        if stream in self._open_streams:
            if reply.last:
                del self._open_streams[stream]
            try:
                self.send(f.encode_grpc_reply(reply, stream, self.most_bytes))
            except Invalid as error:
                self.send(f.encode_grpc_reply(GrpcReply(code=INTERNAL, text=str(error), last=reply.last), stream))


def _do_nothing() -> None:
    """Of a request that is answered already."""


__all__ = ["REPLY_LATE", "REPLY_LOST", "MissingReply", "UpstreamClient", "UpstreamServer"]
