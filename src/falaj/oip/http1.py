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
from falaj.oip.answers import render
from falaj.oip.budget import UNKNOWN, ByteBudget, Reservation, over_budget
from falaj.oip.calls import NO_HEADERS, Alike, Call, Reply, RestDoor, Verdict
from falaj.oip.codings import INLINE_BYTES, Inflater, chosen, deflate, inflate_in_steps, inflate_problem
from falaj.oip.listening import Listening, peer_of, vouch_for_all
from falaj.oip.lot_frames import Told
from falaj.oip.requests import END, KNOWN_BYTES, SMALL_BYTES, Head, Heads, Limits, Request, Requests
from falaj.oip.rest import problem, refusal

_LINGER_S = 2.0
"""How long a client that broke the rules is still listened to, so that it can read why."""
_GRACE_S = 0.5
GATHERED_BYTES = 16 << 10
"""Bodies that are larger are asked at once, each by itself: handing them on is not what they cost."""
FEW = 6
"""Fewer requests of one turn than these are asked one by one: putting them together costs more than it saves."""
ENOUGH = 256
"""So many requests are passed on without a look at whether there are more."""


class Exchange(msgspec.Struct, eq=False):
    """One request and the place of its answer."""

    connection: "Http1 | None"
    head: Head
    reply: Reply | None = None
    cancel: Callable[[], None] | None = None
    body: bytes = b""
    """While others of its turn are gathered."""
    lot: Callable[[int], None] | None = None
    place: int = 0
    """What ends it, where it was asked with others, by its place among them."""
    reservation: Reservation | None = None
    """What is counted for its body; released when it is answered."""

    def answer(self, reply: Reply) -> None:
        """Take the answer; the second one, and one for a client that went away, are dropped."""
        connection = self.connection
        if connection is None or self.reply is not None:
            return
        if self.head.accepts and (coding := chosen(self.head.accepts, reply)):
            if sum(map(len, reply.parts)) > INLINE_BYTES:
                connection.aside(partial(deflate, reply, coding), self.answer)
                return
            reply = deflate(reply, coding)
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


class Http1(asyncio.Protocol):
    """One connection."""

    __slots__ = (
        "_began", "_corked", "_deaf", "_draining", "_ended", "_full", "_full_since", "_held",
        "_last_head", "_loop", "_out", "_pending", "_reading", "_requests", "_seen", "_server", "_stuck", "_transport",
        "_waiting", "peer",
    )  # fmt: skip

    def __init__(self, server: "HttpServer") -> None:
        self._server, self._loop = server, server.loop
        self._requests = Requests(server.limits, server.heads, server.budget)
        self._pending = False
        """The door has not decided yet about the sender of the arriving request; nothing is read meanwhile."""
        self._last_head: Head | None = None
        self._waiting: deque[Exchange] = deque()
        self._held: deque[Request] = deque()
        """Requests that are answered in time; requests that were read and must wait for those, or for the client."""
        self._out: list[bytes] = []
        self._transport: asyncio.Transport | None = None
        self._corked = self._deaf = self._ended = self._draining = self._full = False
        """Answers are gathered; no more bytes are taken in; no more requests are; it ends when it is idle; the client
        does not read."""
        self._reading = True
        self._began = self._seen = self._full_since = 0.0
        """When the request that is arriving began, or 0; when something last happened; since when the client does not
        read fast enough."""
        self._stuck = 0
        self.peer = ""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self.peer = peer_of(transport)
        self._seen = self._loop.time()
        if self._server.ends:
            self.drain()
        if not self._server.admit(self):
            self._end(problem(Unavailable("too many connections", "come again later")))

    def connection_lost(self, _: Exception | None) -> None:
        self._server.leave(self)
        self._transport = None
        for exchange in self._waiting:
            exchange.end()
        self._waiting.clear()
        self._drop_held()
        self._requests.drop()

    def data_received(self, data: bytes) -> None:
        requests = self._requests
        if not (self._waiting or self._held or self._deaf or self._full or requests.within):
            # One request that is whole and has a head that came before, on a connection with nothing else to do: what
            # nearly all are.
            end = data.find(END, 0, KNOWN_BYTES) + len(END)
            head = self._server.quick.get(data[:end])
            if head is not None and end + head.length == len(data):
                self._seen = self._loop.time()
                self._take(head, data[end:])
                return
        elif self._deaf:
            return
        whole = requests.feed(data)
        self._held += whole
        if whole or requests.within:  # empty lines keep nobody alive
            self._seen = self._loop.time()
        if requests.within:
            if whole or not self._began:
                self._began = self._seen
            if requests.unjudged:
                self._ask_admission()
        else:
            self._began = 0.0
        self._pump()

    def _ask_admission(self) -> None:
        """The head of a request is here and not all of its body: ask the door whether to take the rest."""
        requests, head = self._requests, self._requests.head
        requests.unjudged = False
        verdict = self._server.judge(head, self.peer, self._decide) if head is not None else None
        if verdict is None:
            self._pending = True
            requests.reserve()
        elif isinstance(verdict, Reply):
            requests.refuse(verdict)
        else:
            requests.admit(verdict)

    def _decide(self, verdict: Verdict) -> None:
        """The door has decided later about the sender of the request that is arriving."""
        self._pending = False
        if self._transport is None or self._requests.refusal is not None:
            return
        if isinstance(verdict, Reply):
            self._requests.refuse(verdict)
        else:
            self._requests.admit(verdict)
        self._pump()

    def eof_received(self) -> bool:
        """A client that sends no more may still read its answers."""
        self._deaf = True
        if self._transport is not None and self._transport.get_extra_info("sslcontext") is not None:
            return False
        return bool(self._waiting or self._held)

    def pause_writing(self) -> None:
        self._full, self._seen, self._stuck = True, self._loop.time(), 0
        self._full_since = self._seen
        self._throttle()

    def resume_writing(self) -> None:
        self._full = False
        self._pump()

    def _pump(self) -> None:
        """Ask what may be asked now, and write what is there."""
        held, waiting, most = self._held, self._waiting, self._server.limits.pipelined
        self._corked = True
        while held and not self._full and len(waiting) < most:
            self._take(*held.popleft())
        requests = self._requests
        if requests.refusal is not None and not held:
            self._end(requests.refusal)
        elif requests.expects and not (waiting or held or self._pending):
            requests.expects = False
            self._out.append(b"HTTP/1.1 100 Continue\r\n\r\n")
        self._corked = False
        if self._out:
            self._flush()
        if held or len(waiting) >= most or self._pending or not self._reading:
            self._throttle()

    def _take(self, head: Head, body: bytes, reservation: Reservation | None = None) -> None:
        if self._ended:
            if reservation is not None:
                reservation.release()
            return
        exchange = Exchange(self, head)
        self._waiting.append(exchange)
        self._last_head = head
        if not head.keep:
            self._deaf = self._ended = True
        if head.coding or (reservation is None and len(body) > SMALL_BYTES):
            self._take_counted(exchange, body, reservation)
        else:
            exchange.reservation = reservation
            self._ask(exchange, head, body)

    def _take_counted(self, exchange: Exchange, body: bytes, reservation: Reservation | None) -> None:
        """Ask a request whose bytes are counted; one that arrived at once is inflated only for whom the door knows."""
        if reservation is not None:
            exchange.reservation = reservation
            self._take_admitted(exchange, body)
            return
        verdict = self._server.judge(exchange.head, self.peer, partial(self._take_judged, exchange, body))
        if isinstance(verdict, Reply):
            exchange.answer(verdict)
            return
        exchange.reservation = reservation = Reservation(self._server.budget, verdict or UNKNOWN)
        if not reservation.grow(len(body)):
            exchange.answer(problem(over_budget()))
        elif verdict is not None:
            self._take_admitted(exchange, body)

    def _take_judged(self, exchange: Exchange, body: bytes, verdict: Verdict) -> None:
        if exchange.connection is None or exchange.reply is not None or exchange.reservation is None:
            return
        if isinstance(verdict, Reply):
            exchange.answer(verdict)
        elif exchange.reservation.assign(verdict):
            self._take_admitted(exchange, body)
        else:
            exchange.answer(problem(over_budget()))

    def _take_admitted(self, exchange: Exchange, body: bytes) -> None:
        if exchange.head.coding:
            self._inflate(exchange, body)
        else:
            self._ask(exchange, exchange.head, body)

    def _inflated(self, exchange: Exchange, body: "bytes | FalajError") -> None:
        if isinstance(body, FalajError):
            exchange.answer(inflate_problem(body))
        else:
            self._ask(exchange, exchange.head, body)

    def _ask(self, exchange: Exchange, head: Head, body: bytes) -> None:
        server = self._server
        if not server.gathers or len(body) > GATHERED_BYTES or not server.gather(exchange, head, body):
            self.ask(exchange, head, body)

    def ask(self, exchange: Exchange, head: Head, body: bytes) -> None:
        """Ask the door for one by itself."""
        call = Call(head.method, head.path, head.headers, body, False, self.peer, head)
        cancel = self._server.door.rest(call, exchange.answer)
        if exchange.reply is None:
            exchange.cancel = cancel

    def _inflate(self, exchange: Exchange, body: bytes) -> None:
        """Inflate the start here, where that is all in most cases, and the rest in a thread."""
        inflater, reservation = (
            Inflater(body, exchange.head.coding, self._server.limits.body_bytes),
            exchange.reservation,
        )
        assert reservation is not None  # noqa: S101 # nosec B101 - bodies that are compressed are counted
        if len(body) <= INLINE_BYTES:
            try:
                plain = inflater.step(INLINE_BYTES)
            except FalajError as error:
                self._inflated(exchange, error)
                return
            if not reservation.grow(inflater.size):
                self._inflated(exchange, over_budget())
                return
            if plain is not None:
                self._inflated(exchange, plain)
                return
        inflate_in_steps(self._loop, inflater, reservation, partial(self._inflated, exchange))

    def aside(self, work: Callable[[], Any], then: Callable[[Any], None]) -> None:
        """Do long work in a thread, and go on with what it gave unless the client went away."""
        future = self._loop.run_in_executor(None, work)
        future.add_done_callback(lambda done: then(done.result()) if self._transport is not None else None)

    def answered(self) -> None:
        """Write the answers that are there, as far as they are next."""
        waiting, out = self._waiting, self._out
        while waiting and (reply := waiting[0].reply) is not None:
            exchange = waiting.popleft()
            last = not exchange.head.keep or ((self._draining or self._server.going) and self._idle())
            render(reply, exchange.head, last, out)
            if last:
                self._deaf = self._ended = True
                self._drop_held()
                break
        if self._corked:
            return
        if self._held:
            self._pump()
        elif out:
            self._flush()
            if not self._reading:
                self._throttle()

    def wrote(self, exchange: Exchange, data: bytes) -> bool:
        """Write an answer that is made already, where nothing else is to be done here; whether that is so."""
        waiting, transport = self._waiting, self._transport
        if len(waiting) != 1 or waiting[0] is not exchange or transport is None:
            return False
        if self._held or self._out or self._corked or self._deaf or self._draining or not self._reading:
            return False
        waiting.clear()
        exchange.connection = exchange.lot = None
        if exchange.reservation is not None:
            exchange.reservation.release()
        transport.write(data)
        return True

    def _flush(self) -> None:
        transport, out = self._transport, self._out
        if transport is None:
            return
        self._out = []
        if len(out) == 1:
            transport.write(out[0])
        else:
            transport.writelines(out)
        if self._deaf and not self._waiting and not self._held:
            self._seen = self._loop.time()
            # Bytes that nobody reads would make the system drop the answer: a client that broke the rules is heard out.
            if self._requests.refusal is not None and transport.can_write_eof():
                transport.write_eof()
            else:
                transport.close()

    def _end(self, reply: Reply) -> None:
        """Answer what waits, then this, then listen no more."""
        if self._ended:
            return
        self._deaf = self._ended = True
        exchange = Exchange(self, _LAST)
        self._waiting.append(exchange)
        self._requests.refusal = reply
        exchange.answer(reply)

    def _throttle(self) -> None:
        transport = self._transport
        may_read = not (self._full or self._held or self._pending)
        may_read = may_read and len(self._waiting) < self._server.limits.pipelined
        if transport is None or may_read == self._reading or transport.is_closing():
            return
        self._reading = may_read
        if may_read:  # what could not be read before is not late
            self._seen = self._loop.time()
            self._began = self._seen if self._requests.within else 0.0
        (transport.resume_reading if may_read else transport.pause_reading)()

    def _drop_held(self) -> None:
        for _, _, reservation in self._held:
            if reservation is not None:
                reservation.release()
        self._held.clear()

    def vouched(self) -> bool:
        """True when the last request came from an authenticated caller."""
        return self._server.vouch(self._last_head.headers if self._last_head is not None else NO_HEADERS)

    def idle_since(self) -> float:
        return self._seen

    def _idle(self) -> bool:
        return not self._waiting and not self._held and not self._requests.within

    def drain(self) -> None:
        """End with the next answer, or when no request comes for a moment: one may be on its way."""
        self._draining = True

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def look(self, now: float) -> None:
        """Once a second: end what takes too long."""
        limits, transport = self._server.limits, self._transport
        if transport is None:
            return
        quiet_s = now - self._seen
        if self._full:
            self._look_at_writes(transport, now)
        elif self._deaf:
            if (
                not self._waiting
                and not self._held
                and quiet_s > (limits.idle_s if transport.is_closing() else _LINGER_S)
            ):
                transport.abort()
        elif self._requests.within and self._reading:
            late = not self._requests.headed and now - self._began > limits.head_s
            if late or quiet_s > limits.idle_s or now - self._began > limits.whole_s:
                self._end(refusal(408, "the request takes too long to arrive", "send it faster"))
        elif self._idle() and self._idle_too_long(quiet_s):
            transport.close()

    def _look_at_writes(self, transport: asyncio.Transport, now: float) -> None:
        """End a client that reads its answers too slowly, or not at all."""
        limits, left = self._server.limits, transport.get_write_buffer_size()
        stalled = self._stuck and left >= self._stuck
        if (stalled and now - self._seen > limits.idle_s) or now - self._full_since > limits.whole_s:
            transport.abort()
        elif not stalled:
            self._stuck, self._seen = left, now

    def _idle_too_long(self, idle_s: float) -> bool:
        limits = self._server.limits
        if self._draining:
            return idle_s > _GRACE_S
        return idle_s > limits.keep_s or (idle_s > limits.unauthenticated_keep_s and not self.vouched())


class Turned:
    """Requests of one turn that a door passes on as one, and where their answers go."""

    __slots__ = ("_here", "_server")

    def __init__(self, server: "HttpServer", here: Sequence[Exchange]) -> None:
        self._server, self._here = server, here

    def tell(self, number: int, reply: Reply) -> None:
        """One answer."""
        self._here[number].answer(reply)

    def tell_whole(self, numbers: Sequence[int], told: Told, answers: Sequence[bytes]) -> list[int]:
        """Answers, and how they are written to clients that ask for nothing special. Gives the places of those that
        must be told by themselves, because there is more to be done for them."""
        here, last, plain, left = self._here, None, False, list[int]()
        for place, number in enumerate(numbers):
            one = here[number]
            if one.head is not last:
                last = one.head
                plain = not self._server.going and _plain(last, told)
            connection = one.connection
            if connection is not None and not (plain and connection.wrote(one, answers[place])):
                left.append(place)
        return left

    def asked(self, numbers: Sequence[int], cancel: Callable[[int], None]) -> None:
        """These were asked as one; `cancel` ends one of them, by its place among them."""
        for place, number in enumerate(numbers):
            one = self._here[number]
            one.place, one.lot = place, cancel


class HttpServer(Listening[Http1]):
    """What listens, and its connections."""

    hurry_s = _GRACE_S / 5

    def __init__(self, door: RestDoor, limits: Limits, budget: ByteBudget | None = None) -> None:
        super().__init__(limits.connections, limits.peer_connections, budget)
        self.door, self.limits = door, limits
        self.judge: Callable[[Head, str, Callable[[Verdict], Any]], Verdict | None]
        self.judge = getattr(door, "judge", _admit_by_address)
        self.vouch: Callable[[Mapping[bytes, bytes]], bool] = getattr(door, "vouch", vouch_for_all)
        self.heads: Heads = {}
        self.quick: Heads = self.heads if limits.pipelined > 1 else {}
        """Those whose requests need not wait for others of their connection."""
        self._alike: Alike | None = getattr(door, "alike", None)
        self._pass: Callable[[Sequence[tuple[Head, bytes]], float, Turned], Sequence[int]] | None
        self._pass = getattr(door, "pass_on", None)
        self.gathers = self._alike is not None or self._pass is not None
        self._joins: Callable[[Head], bool] = getattr(door, "joins", _never)
        self._joining: set[Head] = set()
        self._came: list[Exchange] = []
        self._first = 0.0
        """What this turn of the loop has gathered: by which heads, the requests, and when the first came."""
        self._looked = 0
        """So many there were when they were last looked at."""

    def gather(self, exchange: Exchange, head: Head, body: bytes) -> bool:
        """Keep a request until the end of the turn, to ask it with others; whether that is so."""
        joining = self._joining
        if head not in joining:
            if not self._joins(head):
                return False
            joining.add(head)
            if len(joining) == 1:
                self.loop.call_soon(self._turn)
                # Who comes alone is asked as ever: it is run with the others, should there be some. What is passed on
                # goes at the end of the turn anyway.
                if self._pass is None:
                    return False
        if not self._came:
            self._first = monotonic()
        exchange.body = body
        self._came.append(exchange)
        return True

    def _turn(self) -> None:
        num, self._looked = self._looked, len(self._came)
        if self._pass is not None and FEW <= self._looked - num >= self._looked // 4 and self._looked < ENOUGH:
            # They come faster than they are passed on: those who are here by now may as well go with them. One lot of
            # all costs a replica far less than two.
            self.loop.call_soon(self._turn)
            return
        self._joining.clear()
        if not self._came:
            return
        came, self._came, self._looked = self._came, [], 0
        here = [one for one in came if one.connection is not None]  # who went away is not worked for
        try:
            if len(here) < FEW:
                left: Sequence[Exchange] = here
            else:
                left = self._ask(here, [(one.head, one.body) for one in here])
            for one in left:
                self._by_itself(one)
        except BaseException:  # nothing that we know of; nobody is left to wait for an answer that never comes
            for one in here:
                if one.connection is not None and one.reply is None:
                    one.connection.abort()
            raise

    def _ask(self, here: Sequence[Exchange], asked: Sequence[tuple[Head, bytes]]) -> Sequence[Exchange]:
        """Ask them as one; gives those that are to be asked by themselves."""
        turned = Turned(self, here)
        if self._pass is not None:
            return [here[number] for number in self._pass(asked, self._first, turned)]
        if self._alike is None:
            return here
        for number, cancel in self._alike(asked, self._first, turned.tell):
            one = here[number]
            if one.reply is None:
                one.cancel = cancel
        return ()

    def _by_itself(self, one: Exchange) -> None:
        if one.connection is not None:
            one.connection.ask(one, one.head, one.body)


def _plain(head: Head, told: Told) -> bool:
    """Whether a client with this head is answered as nearly all are. What is not compressed at its largest never is."""
    if not head.keep or not head.modern or head.method == b"HEAD":
        return False
    return not head.accepts or not chosen(head.accepts, told.largest())


def _never(_: Head) -> bool:
    return False


def _admit_by_address(_: Head, peer: str, _decide: Callable[[Verdict], Any]) -> Verdict:
    """For a door that does not authenticate callers: addresses are the principals."""
    return peer or "local"


async def serve_http(
    door: RestDoor,
    host: str,
    port: int,
    *,
    ssl: tls.SSLContext | None = None,
    limits: Limits | None = None,
    budget: ByteBudget | None = None,
) -> HttpServer:
    """Listen for HTTP/1.1 on the running loop and hand every request to the door."""
    server = HttpServer(door, limits or Limits(), budget)
    await server.listen(partial(Http1, server), host, port, ssl=ssl, within_s=server.limits.head_s)
    return server


_LAST = Head(b"GET", b"/", {})
"""Stands for a request that could not be read."""
_LAST.keep = False
