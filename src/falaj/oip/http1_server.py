"""HTTP/1.1 connections on an event loop, for a RestDoor: answers in order, bounds on everything.

Nothing here makes a task or a future for a request. Times are looked at once a second for all connections together.
"""

import asyncio
import ssl as tls
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from time import monotonic
from typing import Any, cast

import msgspec

from falaj.core.errors import FalajError, Unavailable
from falaj.oip.byte_budget import UNKNOWN_PRINCIPAL, ByteBudget, ByteReservation, over_budget_error
from falaj.oip.compression import (
    MAX_INLINE_BYTES,
    BodyInflater,
    choose_coding,
    compress_reply,
    inflate_error_reply,
    inflate_in_steps,
)
from falaj.oip.connection_server import ConnectionServer, always_authenticated, peer_network
from falaj.oip.handler_calls import NO_HEADERS, HandleSimilar, HttpAdmission, HttpCall, HttpReply, RestHandler
from falaj.oip.http1_parser import (
    HEAD_END,
    MAX_CACHED_HEAD_BYTES,
    MAX_UNCOUNTED_BYTES,
    Http1Limits,
    Http1Parser,
    ParsedRequest,
    RequestHead,
    RequestHeadCache,
)
from falaj.oip.http_responses import render_response
from falaj.oip.lot_frames import Told
from falaj.oip.rest_codec import error_reply, status_reply

_LINGER_TIMEOUT_S = 2.0
"""How long a client that broke the rules is still listened to, so that it can read why."""
_DRAIN_GRACE_S = 0.5
MAX_GATHERED_BYTES = 16 << 10
"""Bodies that are larger are asked at once, each by itself: handing them on is not what they cost."""
MIN_GROUP_SIZE = 6
"""Fewer requests of one turn than these are asked one by one: putting them together costs more than it saves."""
FULL_GROUP_SIZE = 256
"""So many requests are passed on without a look at whether there are more."""


class HttpExchange(msgspec.Struct, eq=False):
    """One request and the place of its answer."""

    connection: "Http1Connection | None"
    head: RequestHead
    reply: HttpReply | None = None
    cancel: Callable[[], None] | None = None
    body: bytes = b""
    """While others of its turn are gathered."""
    lot: Callable[[int], None] | None = None
    place: int = 0
    """What ends it, where it was asked with others, by its place among them."""
    reservation: ByteReservation | None = None
    """What is counted for its body; released when it is answered."""

    def answer(self, reply: HttpReply) -> None:
        """Take the answer; the second one, and one for a client that went away, are dropped."""
        connection = self.connection
        if connection is None or self.reply is not None:
            return
        if self.head.accepts and (coding := choose_coding(self.head.accepts, reply)):
            if sum(map(len, reply.parts)) > MAX_INLINE_BYTES:
                connection.aside(partial(compress_reply, reply, coding), self.answer)
                return
            reply = compress_reply(reply, coding)
        self.reply, self.cancel, self.lot = reply, None, None
        if self.reservation is not None:
            self.reservation.release()
        connection.answered()

    def end(self) -> None:
        """The client went away."""
        self.connection = None
        if self.reservation is not None:
            self.reservation.release()
        if self.cancel is not None:
            self.cancel()
        elif self.lot is not None:
            self.lot(self.place)


class Http1Connection(asyncio.Protocol):
    """One connection."""

    __slots__ = (
        "_blocked_since",
        "_exchanges",
        "_ignores_input",
        "_is_admission_pending",
        "_is_corked",
        "_is_draining",
        "_is_reading",
        "_is_write_paused",
        "_last_active_at",
        "_last_head",
        "_loop",
        "_outgoing",
        "_queued_requests",
        "_request_started_at",
        "_requests",
        "_server",
        "_stalled_bytes",
        "_takes_no_requests",
        "_transport",
        "peer",
    )

    def __init__(self, server: "Http1Server") -> None:
        self._server, self._loop = server, server.loop
        self._requests = Http1Parser(server.limits, server.heads, server.budget)
        self._is_admission_pending = False
        """The door has not decided yet about the sender of the arriving request; nothing is read meanwhile."""
        self._last_head: RequestHead | None = None
        self._exchanges: deque[HttpExchange] = deque()
        self._queued_requests: deque[ParsedRequest] = deque()
        """Requests that are answered in time; requests that were read and must wait for those, or for the client."""
        self._outgoing: list[bytes] = []
        self._transport: asyncio.Transport | None = None
        self._is_corked = self._ignores_input = self._takes_no_requests = self._is_draining = self._is_write_paused = (
            False
        )
        """Answers are gathered; no more bytes are taken in; no more requests are; it ends when it is idle; the client
        does not read."""
        self._is_reading = True
        self._request_started_at = self._last_active_at = self._blocked_since = 0.0
        """When the request that is arriving began, or 0; when something last happened; since when the client does not
        read fast enough."""
        self._stalled_bytes = 0
        self.peer = ""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self.peer = peer_network(transport)
        self._last_active_at = self._loop.time()
        if self._server.ends:
            self.drain()
        if not self._server.admit(self):
            self._end_with_reply(error_reply(Unavailable("too many connections", "come again later")))

    def connection_lost(self, _: Exception | None) -> None:
        self._server.leave(self)
        self._transport = None
        for exchange in self._exchanges:
            exchange.end()
        self._exchanges.clear()
        self._drop_queued()
        self._requests.drop()

    def data_received(self, data: bytes) -> None:
        requests = self._requests
        if not (
            self._exchanges or self._queued_requests or self._ignores_input or self._is_write_paused or requests.within
        ):
            # One request that is whole and has a head that came before, on a connection with nothing else to do: what
            # nearly all are.
            end = data.find(HEAD_END, 0, MAX_CACHED_HEAD_BYTES) + len(HEAD_END)
            request_head = self._server.quick.get(data[:end])
            if request_head is not None and end + request_head.length == len(data):
                self._last_active_at = self._loop.time()
                self._take_request(request_head, data[end:])
                return
        elif self._ignores_input:
            return
        completed = requests.feed(data)
        self._queued_requests += completed
        if completed or requests.within:  # empty lines keep nobody alive
            self._last_active_at = self._loop.time()
        if requests.within:
            if completed or not self._request_started_at:
                self._request_started_at = self._last_active_at
            if requests.unjudged:
                self._request_admission()
        else:
            self._request_started_at = 0.0
        self._process_queue()

    def _request_admission(self) -> None:
        """The head of a request is here and not all of its body: ask the door whether to take the rest."""
        requests, request_head = self._requests, self._requests.head
        requests.unjudged = False
        admission = (
            self._server.judge(request_head, self.peer, self._on_admission) if request_head is not None else None
        )
        if admission is None:
            self._is_admission_pending = True
            requests.reserve()
        elif isinstance(admission, HttpReply):
            requests.refuse(admission)
        else:
            requests.admit(admission)

    def _on_admission(self, admission: HttpAdmission) -> None:
        """The door has decided later about the sender of the request that is arriving."""
        self._is_admission_pending = False
        if self._transport is None or self._requests.refusal is not None:
            return
        if isinstance(admission, HttpReply):
            self._requests.refuse(admission)
        else:
            self._requests.admit(admission)
        self._process_queue()

    def eof_received(self) -> bool:
        """A client that sends no more may still read its answers."""
        self._ignores_input = True
        if self._transport is not None and self._transport.get_extra_info("sslcontext") is not None:
            return False
        return bool(self._exchanges or self._queued_requests)

    def pause_writing(self) -> None:
        self._is_write_paused, self._last_active_at, self._stalled_bytes = True, self._loop.time(), 0
        self._blocked_since = self._last_active_at
        self._update_reading()

    def resume_writing(self) -> None:
        self._is_write_paused = False
        self._process_queue()

    def _process_queue(self) -> None:
        """Ask what may be asked now, and write what is there."""
        queued_requests, exchanges, max_pipelined = (
            self._queued_requests,
            self._exchanges,
            self._server.limits.pipelined,
        )
        self._is_corked = True
        while queued_requests and not self._is_write_paused and len(exchanges) < max_pipelined:
            self._take_request(*queued_requests.popleft())
        requests = self._requests
        if requests.refusal is not None and not queued_requests:
            self._end_with_reply(requests.refusal)
        elif requests.expects and not (exchanges or queued_requests or self._is_admission_pending):
            requests.expects = False
            self._outgoing.append(b"HTTP/1.1 100 Continue\r\n\r\n")
        self._is_corked = False
        if self._outgoing:
            self._flush_outgoing()
        if queued_requests or len(exchanges) >= max_pipelined or self._is_admission_pending or not self._is_reading:
            self._update_reading()

    def _take_request(self, request_head: RequestHead, body: bytes, reservation: ByteReservation | None = None) -> None:
        if self._takes_no_requests:
            if reservation is not None:
                reservation.release()
            return
        exchange = HttpExchange(self, request_head)
        self._exchanges.append(exchange)
        self._last_head = request_head
        if not request_head.keep:
            self._ignores_input = self._takes_no_requests = True
        if request_head.coding or (reservation is None and len(body) > MAX_UNCOUNTED_BYTES):
            self._take_counted(exchange, body, reservation)
        else:
            exchange.reservation = reservation
            self._dispatch_request(exchange, request_head, body)

    def _take_counted(self, exchange: HttpExchange, body: bytes, reservation: ByteReservation | None) -> None:
        """Ask a request whose bytes are counted; one that arrived at once is inflated only for whom the door knows."""
        if reservation is not None:
            exchange.reservation = reservation
            self._take_admitted_body(exchange, body)
            return
        admission = self._server.judge(exchange.head, self.peer, partial(self._apply_admission, exchange, body))
        if isinstance(admission, HttpReply):
            exchange.answer(admission)
            return
        exchange.reservation = reservation = ByteReservation(self._server.budget, admission or UNKNOWN_PRINCIPAL)
        if not reservation.grow(len(body)):
            exchange.answer(error_reply(over_budget_error()))
        elif admission is not None:
            self._take_admitted_body(exchange, body)

    def _apply_admission(self, exchange: HttpExchange, body: bytes, admission: HttpAdmission) -> None:
        if exchange.connection is None or exchange.reply is not None or exchange.reservation is None:
            return
        if isinstance(admission, HttpReply):
            exchange.answer(admission)
        elif exchange.reservation.assign(admission):
            self._take_admitted_body(exchange, body)
        else:
            exchange.answer(error_reply(over_budget_error()))

    def _take_admitted_body(self, exchange: HttpExchange, body: bytes) -> None:
        if exchange.head.coding:
            self._inflate_body(exchange, body)
        else:
            self._dispatch_request(exchange, exchange.head, body)

    def _on_inflated(self, exchange: HttpExchange, body: "bytes | FalajError") -> None:
        if isinstance(body, FalajError):
            exchange.answer(inflate_error_reply(body))
        else:
            self._dispatch_request(exchange, exchange.head, body)

    def _dispatch_request(self, exchange: HttpExchange, request_head: RequestHead, body: bytes) -> None:
        server = self._server
        if not server.gathers or len(body) > MAX_GATHERED_BYTES or not server.gather(exchange, request_head, body):
            self.ask(exchange, request_head, body)

    def ask(self, exchange: HttpExchange, request_head: RequestHead, body: bytes) -> None:
        """Ask the door for one by itself."""
        call = HttpCall(
            request_head.method, request_head.path, request_head.headers, body, False, self.peer, request_head
        )
        cancel_call = self._server.door.rest(call, exchange.answer)
        if exchange.reply is None:
            exchange.cancel = cancel_call

    def _inflate_body(self, exchange: HttpExchange, body: bytes) -> None:
        """Inflate the start here, where that is all in most cases, and the rest in a thread."""
        inflater, reservation = (
            BodyInflater(body, exchange.head.coding, self._server.limits.body_bytes),
            exchange.reservation,
        )
        assert reservation is not None  # noqa: S101 # nosec B101 - bodies that are compressed are counted
        if len(body) <= MAX_INLINE_BYTES:
            try:
                inflated = inflater.step(MAX_INLINE_BYTES)
            except FalajError as error:
                self._on_inflated(exchange, error)
                return
            if not reservation.grow(inflater.size):
                self._on_inflated(exchange, over_budget_error())
                return
            if inflated is not None:
                self._on_inflated(exchange, inflated)
                return
        inflate_in_steps(self._loop, inflater, reservation, partial(self._on_inflated, exchange))

    def aside(self, work: Callable[[], Any], on_done: Callable[[Any], None]) -> None:
        """Do long work in a thread, and go on with what it gave unless the client went away."""
        future = self._loop.run_in_executor(None, work)
        future.add_done_callback(
            lambda done_future: on_done(done_future.result()) if self._transport is not None else None
        )

    def answered(self) -> None:
        """Write the answers that are there, as far as they are next."""
        exchanges, outgoing = self._exchanges, self._outgoing
        while exchanges and (reply := exchanges[0].reply) is not None:
            exchange = exchanges.popleft()
            is_last = not exchange.head.keep or ((self._is_draining or self._server.going) and self._is_idle())
            render_response(reply, exchange.head, is_last, outgoing)
            if is_last:
                self._ignores_input = self._takes_no_requests = True
                self._drop_queued()
                break
        if self._is_corked:
            return
        if self._queued_requests:
            self._process_queue()
        elif outgoing:
            self._flush_outgoing()
            if not self._is_reading:
                self._update_reading()

    def wrote(self, exchange: HttpExchange, data: bytes) -> bool:
        """Write an answer that is made already, where nothing else is to be done here; whether that is so."""
        exchanges, transport = self._exchanges, self._transport
        if len(exchanges) != 1 or exchanges[0] is not exchange or transport is None:
            return False
        if (
            self._queued_requests
            or self._outgoing
            or self._is_corked
            or self._ignores_input
            or self._is_draining
            or not self._is_reading
        ):
            return False
        exchanges.clear()
        exchange.connection = exchange.lot = None
        if exchange.reservation is not None:
            exchange.reservation.release()
        transport.write(data)
        return True

    def _flush_outgoing(self) -> None:
        transport, outgoing = self._transport, self._outgoing
        if transport is None:
            return
        self._outgoing = []
        if len(outgoing) == 1:
            transport.write(outgoing[0])
        else:
            transport.writelines(outgoing)
        if self._ignores_input and not self._exchanges and not self._queued_requests:
            self._last_active_at = self._loop.time()
            # Bytes that nobody reads would make the system drop the answer: a client that broke the rules is heard out.
            if self._requests.refusal is not None and transport.can_write_eof():
                transport.write_eof()
            else:
                transport.close()

    def _end_with_reply(self, reply: HttpReply) -> None:
        """Answer what waits, then this, then listen no more."""
        if self._takes_no_requests:
            return
        self._ignores_input = self._takes_no_requests = True
        exchange = HttpExchange(self, _UNREADABLE_HEAD)
        self._exchanges.append(exchange)
        self._requests.refusal = reply
        exchange.answer(reply)

    def _update_reading(self) -> None:
        transport = self._transport
        may_read = not (self._is_write_paused or self._queued_requests or self._is_admission_pending)
        may_read = may_read and len(self._exchanges) < self._server.limits.pipelined
        if transport is None or may_read == self._is_reading or transport.is_closing():
            return
        self._is_reading = may_read
        if may_read:  # what could not be read before is not late
            self._last_active_at = self._loop.time()
            self._request_started_at = self._last_active_at if self._requests.within else 0.0
        (transport.resume_reading if may_read else transport.pause_reading)()

    def _drop_queued(self) -> None:
        for _, _, reservation in self._queued_requests:
            if reservation is not None:
                reservation.release()
        self._queued_requests.clear()

    def vouched(self) -> bool:
        """True when the last request came from an authenticated caller."""
        return self._server.vouch(self._last_head.headers if self._last_head is not None else NO_HEADERS)

    def idle_since(self) -> float:
        return self._last_active_at

    def _is_idle(self) -> bool:
        return not self._exchanges and not self._queued_requests and not self._requests.within

    def drain(self) -> None:
        """End with the next answer, or when no request comes for a moment: one may be on its way."""
        self._is_draining = True

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def look(self, now: float) -> None:
        """Once a second: end what takes too long."""
        limits, transport = self._server.limits, self._transport
        if transport is None:
            return
        quiet_s = now - self._last_active_at
        if self._is_write_paused:
            self._check_writes(transport, now)
        elif self._ignores_input:
            if (
                not self._exchanges
                and not self._queued_requests
                and quiet_s > (limits.idle_s if transport.is_closing() else _LINGER_TIMEOUT_S)
            ):
                transport.abort()
        elif self._requests.within and self._is_reading:
            is_late = not self._requests.headed and now - self._request_started_at > limits.head_s
            if is_late or quiet_s > limits.idle_s or now - self._request_started_at > limits.whole_s:
                self._end_with_reply(status_reply(408, "the request takes too long to arrive", "send it faster"))
        elif self._is_idle() and self._idle_too_long(quiet_s):
            transport.close()

    def _check_writes(self, transport: asyncio.Transport, now: float) -> None:
        """End a client that reads its answers too slowly, or not at all."""
        limits, buffered_bytes = self._server.limits, transport.get_write_buffer_size()
        is_stalled = self._stalled_bytes and buffered_bytes >= self._stalled_bytes
        if (is_stalled and now - self._last_active_at > limits.idle_s) or now - self._blocked_since > limits.whole_s:
            transport.abort()
        elif not is_stalled:
            self._stalled_bytes, self._last_active_at = buffered_bytes, now

    def _idle_too_long(self, idle_s: float) -> bool:
        limits = self._server.limits
        if self._is_draining:
            return idle_s > _DRAIN_GRACE_S
        return idle_s > limits.keep_s or (idle_s > limits.unauthenticated_keep_s and not self.vouched())


class GatheredExchanges:
    """Requests of one turn that a door passes on as one, and where their answers go."""

    __slots__ = ("_exchanges", "_server")

    def __init__(self, server: "Http1Server", exchanges: Sequence[HttpExchange]) -> None:
        self._server, self._exchanges = server, exchanges

    def tell(self, position: int, reply: HttpReply) -> None:
        """One answer."""
        self._exchanges[position].answer(reply)

    def tell_whole(self, positions: Sequence[int], group_reply: Told, rendered_replies: Sequence[bytes]) -> list[int]:
        """Answers, and how they are written to clients that ask for nothing special. Gives the places of those that
        must be told by themselves, because there is more to be done for them."""
        exchanges, last_head, is_simple, remaining = self._exchanges, None, False, list[int]()
        for index_in_group, position in enumerate(positions):
            exchange = exchanges[position]
            if exchange.head is not last_head:
                last_head = exchange.head
                is_simple = not self._server.going and _is_simple_response(last_head, group_reply)
            connection = exchange.connection
            if connection is not None and not (
                is_simple and connection.wrote(exchange, rendered_replies[index_in_group])
            ):
                remaining.append(index_in_group)
        return remaining

    def asked(self, positions: Sequence[int], cancel: Callable[[int], None]) -> None:
        """These were asked as one; `cancel` ends one of them, by its place among them."""
        for index_in_group, position in enumerate(positions):
            exchange = self._exchanges[position]
            exchange.place, exchange.lot = index_in_group, cancel


class Http1Server(ConnectionServer[Http1Connection]):
    """What listens, and its connections."""

    hurry_s = _DRAIN_GRACE_S / 5

    def __init__(self, handler: RestHandler, limits: Http1Limits, budget: ByteBudget | None = None) -> None:
        super().__init__(limits.connections, limits.peer_connections, budget)
        self.door, self.limits = handler, limits
        self.judge: Callable[[RequestHead, str, Callable[[HttpAdmission], Any]], HttpAdmission | None]
        self.judge = getattr(handler, "judge", _admit_by_address)
        self.vouch: Callable[[Mapping[bytes, bytes]], bool] = getattr(handler, "vouch", always_authenticated)
        self.heads: RequestHeadCache = {}
        self.quick: RequestHeadCache = self.heads if limits.pipelined > 1 else {}
        """Those whose requests need not wait for others of their connection."""
        self._handle_similar: HandleSimilar | None = getattr(handler, "alike", None)
        self._pass_group: (
            Callable[[Sequence[tuple[RequestHead, bytes]], float, GatheredExchanges], Sequence[int]] | None
        )
        self._pass_group = getattr(handler, "pass_on", None)
        self.gathers = self._handle_similar is not None or self._pass_group is not None
        self._can_join: Callable[[RequestHead], bool] = getattr(handler, "joins", _never_join)
        self._joining_heads: set[RequestHead] = set()
        self._gathered: list[HttpExchange] = []
        self._first_gathered_at = 0.0
        """What this turn of the loop has gathered: by which heads, the requests, and when the first came."""
        self._last_gathered_count = 0
        """So many there were when they were last looked at."""

    def gather(self, exchange: HttpExchange, request_head: RequestHead, body: bytes) -> bool:
        """Keep a request until the end of the turn, to ask it with others; whether that is so."""
        joining_heads = self._joining_heads
        if request_head not in joining_heads:
            if not self._can_join(request_head):
                return False
            joining_heads.add(request_head)
            if len(joining_heads) == 1:
                self.loop.call_soon(self._dispatch_gathered)
                # Who comes alone is asked as ever: it is run with the others, should there be some. What is passed on
                # goes at the end of the turn anyway.
                if self._pass_group is None:
                    return False
        if not self._gathered:
            self._first_gathered_at = monotonic()
        exchange.body = body
        self._gathered.append(exchange)
        return True

    def _dispatch_gathered(self) -> None:
        previous_count, self._last_gathered_count = self._last_gathered_count, len(self._gathered)
        if (
            self._pass_group is not None
            and MIN_GROUP_SIZE <= self._last_gathered_count - previous_count >= self._last_gathered_count // 4
            and self._last_gathered_count < FULL_GROUP_SIZE
        ):
            # They come faster than they are passed on: those who are here by now may as well go with them. One lot of
            # all costs a replica far less than two.
            self.loop.call_soon(self._dispatch_gathered)
            return
        self._joining_heads.clear()
        if not self._gathered:
            return
        gathered, self._gathered, self._last_gathered_count = self._gathered, [], 0
        exchanges = [
            exchange for exchange in gathered if exchange.connection is not None
        ]  # who went away is not worked for
        try:
            if len(exchanges) < MIN_GROUP_SIZE:
                remaining: Sequence[HttpExchange] = exchanges
            else:
                remaining = self._dispatch_group(exchanges, [(exchange.head, exchange.body) for exchange in exchanges])
            for exchange in remaining:
                self._dispatch_single(exchange)
        except BaseException:  # nothing that we know of; nobody is left to wait for an answer that never comes
            for exchange in exchanges:
                if exchange.connection is not None and exchange.reply is None:
                    exchange.connection.abort()
            raise

    def _dispatch_group(
        self, exchanges: Sequence[HttpExchange], requests: Sequence[tuple[RequestHead, bytes]]
    ) -> Sequence[HttpExchange]:
        """Ask them as one; gives those that are to be asked by themselves."""
        group = GatheredExchanges(self, exchanges)
        if self._pass_group is not None:
            return [exchanges[position] for position in self._pass_group(requests, self._first_gathered_at, group)]
        if self._handle_similar is None:
            return exchanges
        for position, cancel in self._handle_similar(requests, self._first_gathered_at, group.tell):
            exchange = exchanges[position]
            if exchange.reply is None:
                exchange.cancel = cancel
        return ()

    def _dispatch_single(self, exchange: HttpExchange) -> None:
        if exchange.connection is not None:
            exchange.connection.ask(exchange, exchange.head, exchange.body)


def _is_simple_response(request_head: RequestHead, group_reply: Told) -> bool:
    """Whether a client with this head is answered as nearly all are. What is not compressed at its largest never is."""
    if not request_head.keep or not request_head.modern or request_head.method == b"HEAD":
        return False
    return not request_head.accepts or not choose_coding(request_head.accepts, group_reply.largest())


def _never_join(_: RequestHead) -> bool:
    return False


def _admit_by_address(_: RequestHead, peer_address: str, _decide: Callable[[HttpAdmission], Any]) -> HttpAdmission:
    """For a door that does not authenticate callers: addresses are the principals."""
    return peer_address or "local"


async def serve_http(
    handler: RestHandler,
    host: str,
    port: int,
    *,
    ssl: tls.SSLContext | None = None,
    limits: Http1Limits | None = None,
    budget: ByteBudget | None = None,
) -> Http1Server:
    """Listen for HTTP/1.1 on the running loop and hand every request to the door."""
    server = Http1Server(handler, limits or Http1Limits(), budget)
    await server.listen(partial(Http1Connection, server), host, port, ssl=ssl, handshake_timeout_s=server.limits.head_s)
    return server


_UNREADABLE_HEAD = RequestHead(b"GET", b"/", {})
"""Stands for a request that could not be read."""
_UNREADABLE_HEAD.keep = False
