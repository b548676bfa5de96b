"""HTTP/1.1 connections on an event loop, for a RestDoor: answers in order, bounds on everything.

Nothing here makes a task or a future for a request. Times are looked at once a second for all connections together.
"""

import asyncio
import ssl as tls
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from time import monotonic
from typing import Any, cast

import msgspec

from falaj.oip.answers import render
from falaj.oip.calls import Alike, Call, Reply, RestDoor
from falaj.oip.codings import INLINE_BYTES, chosen, deflate, inflate
from falaj.oip.listening import Listening
from falaj.oip.lot_frames import Told
from falaj.oip.requests import END, KNOWN_BYTES, Head, Heads, Limits, Requests
from falaj.oip.rest import refusal

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
        connection.answered()

    def end(self) -> None:
        """The client went away."""
        self.connection = None
        if self.cancel is not None:
            self.cancel()
        elif self.lot is not None:
            self.lot(self.place)


class Http1(asyncio.Protocol):
    """One connection."""

    __slots__ = (
        "_began", "_corked", "_deaf", "_draining", "_ended", "_full", "_held", "_loop", "_out", "_peer", "_reading",
        "_requests", "_seen", "_server", "_stuck", "_transport", "_waiting",
    )  # fmt: skip

    def __init__(self, server: "HttpServer") -> None:
        self._server, self._loop = server, server.loop
        self._requests = Requests(server.limits, server.heads)
        self._waiting: deque[Exchange] = deque()
        self._held: deque[tuple[Head, bytes]] = deque()
        """Requests that are answered in time; requests that were read and must wait for those, or for the client."""
        self._out: list[bytes] = []
        self._transport: asyncio.Transport | None = None
        self._corked = self._deaf = self._ended = self._draining = self._full = False
        """Answers are gathered; no more bytes are taken in; no more requests are; it ends when it is idle; the client
        does not read."""
        self._reading = True
        self._began = self._seen = 0.0
        """When the request that is arriving began, or 0; when something last happened."""
        self._stuck = 0
        self._peer = ""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        name = transport.get_extra_info("peername")
        self._peer = str(name[0]) if name else ""
        self._seen = self._loop.time()
        if self._server.ends:
            self.drain()
        if not self._server.admit(self):
            self._end(refusal(503, "too many connections", "come again later"))

    def connection_lost(self, _: Exception | None) -> None:
        self._server.leave(self)
        self._transport = None
        for exchange in self._waiting:
            exchange.end()
        self._waiting.clear()
        self._held.clear()

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
            if requests.expects and not self._waiting and not self._held:
                requests.expects = False
                self._out.append(b"HTTP/1.1 100 Continue\r\n\r\n")
        else:
            self._began = 0.0
        self._pump()

    def eof_received(self) -> bool:
        """A client that sends no more may still read its answers."""
        self._deaf = True
        if self._transport is not None and self._transport.get_extra_info("sslcontext") is not None:
            return False
        return bool(self._waiting or self._held)

    def pause_writing(self) -> None:
        self._full, self._seen, self._stuck = True, self._loop.time(), 0
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
        if self._requests.refusal is not None and not held:
            self._end(self._requests.refusal)
        self._corked = False
        if self._out:
            self._flush()
        if held or len(waiting) >= most or not self._reading:
            self._throttle()

    def _take(self, head: Head, body: bytes) -> None:
        if self._ended:
            return
        exchange = Exchange(self, head)
        self._waiting.append(exchange)
        if not head.keep:
            self._deaf = self._ended = True
        if head.coding:
            self._inflate(exchange, body)
        else:
            self._ask(exchange, head, body)

    def _inflated(self, exchange: Exchange, body: "bytes | Reply") -> None:
        if isinstance(body, Reply):
            exchange.answer(body)
        else:
            self._ask(exchange, exchange.head, body)

    def _ask(self, exchange: Exchange, head: Head, body: bytes) -> None:
        server = self._server
        if not server.gathers or len(body) > GATHERED_BYTES or not server.gather(exchange, head, body):
            self.ask(exchange, head, body)

    def ask(self, exchange: Exchange, head: Head, body: bytes) -> None:
        """Ask the door for one by itself."""
        call = Call(head.method, head.path, head.headers, body, False, self._peer, head)
        cancel = self._server.door.rest(call, exchange.answer)
        if exchange.reply is None:
            exchange.cancel = cancel

    def _inflate(self, exchange: Exchange, body: bytes) -> None:
        most = self._server.limits.body_bytes
        if len(body) <= INLINE_BYTES:
            plain = inflate(body, exchange.head.coding, min(most, INLINE_BYTES))
            if not isinstance(plain, Reply) or plain.status != 413 or most <= INLINE_BYTES:
                self._inflated(exchange, plain)
                return
        self.aside(partial(inflate, body, exchange.head.coding, most), partial(self._inflated, exchange))

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
                self._held.clear()
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
        wanted = not self._full and not self._held and len(self._waiting) < self._server.limits.pipelined
        if transport is None or wanted == self._reading or transport.is_closing():
            return
        self._reading = wanted
        if wanted:  # what could not be read before is not late
            self._seen = self._loop.time()
            self._began = self._seen if self._requests.within else 0.0
        (transport.resume_reading if wanted else transport.pause_reading)()

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
            left = transport.get_write_buffer_size()
            if left < self._stuck or not self._stuck:
                self._stuck, self._seen = left, now
            elif quiet_s > limits.idle_s:
                transport.abort()
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
        elif self._idle() and quiet_s > (_GRACE_S if self._draining else limits.keep_s):
            transport.close()


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

    def __init__(self, door: RestDoor, limits: Limits) -> None:
        super().__init__(limits.connections)
        self.door, self.limits = door, limits
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


async def serve_http(
    door: RestDoor,
    host: str,
    port: int,
    *,
    ssl: tls.SSLContext | None = None,
    limits: Limits | None = None,
    reuse_port: bool = False,
) -> HttpServer:
    """Listen for HTTP/1.1 on the running loop and hand every request to the door."""
    server = HttpServer(door, limits or Limits())
    within_s = server.limits.head_s if ssl is not None else None
    await server.listen(
        partial(Http1, server), host, port, ssl=ssl, ssl_handshake_timeout=within_s, reuse_port=reuse_port
    )
    return server


_LAST = Head(b"GET", b"/", {})
"""Stands for a request that could not be read."""
_LAST.keep = False
