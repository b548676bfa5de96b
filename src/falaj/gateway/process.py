"""The gateway as a process: the house behind it, its doors, and what it writes down every second."""

import asyncio
import gc
import logging
import os
import signal
import ssl as tls
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from falaj.api.server import RENEW_EVERY_S, Address
from falaj.api.tls import load_chain, local_names, local_tls, server_context
from falaj.core import garbage
from falaj.core.errors import FalajError, Invalid, Unavailable
from falaj.core.ref import Ref
from falaj.core.settings import Tls
from falaj.core.trace import tracer
from falaj.gateway import plans
from falaj.gateway.callers import Callers
from falaj.gateway.doors import Doors
from falaj.gateway.holding import Holding
from falaj.gateway.hosts import HostNames
from falaj.gateway.link import Link
from falaj.gateway.metrics import Metrics
from falaj.gateway.streams import CHECK_S
from falaj.gateway.table import Follower, Name, Table
from falaj.gateway.tally import Pages, Tallies
from falaj.gateway.watching import Came, Watching
from falaj.oip.h2 import serve_h2
from falaj.oip.http1 import serve_http
from falaj.serve import books
from falaj.serve import records as serve
from falaj.serve.counts import Counted
from falaj.serve.journal import Logged
from falaj.serve.routes import wake

if TYPE_CHECKING:
    from falaj.platform import House

SECOND_S = 1.0
GRACE_S = 30.0
DOORS_S = 4.0
"""How often a gateway says that it is there, and looks whether the one whose address is shown still is."""
THREADS = 4
TRACED = 0.01
"""The share of requests without a trace of their own that begin one, where a collector is named."""
MOST_ROWS = 20_000
"""Counts that could not be written yet and are kept; older ones go."""
_log = logging.getLogger(__name__)
Page = tuple[serve.Route, list[Logged]]


class Gateway:
    """`start`, then `drain`."""

    def __init__(self, house: "House", *, listen: str = "", grpc: str = "", own_ca: bool = False) -> None:
        settings = house.settings
        self._house = house
        self._http_at = Address.parse(listen or settings.gateway)
        self._grpc_at = Address.parse(grpc or settings.gateway_grpc) if grpc or settings.gateway_grpc else None
        self._tls = _certificates(house, self._http_at, self._grpc_at, own_ca=own_ca)
        self._own_ca = own_ca and not settings.tls.cert
        self._contexts: list[tls.SSLContext] = []
        self._doors: list[Any] = []
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="house")
        self._book = ThreadPoolExecutor(1, thread_name_prefix="book")
        self._rows: list[Counted] = []
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self.addresses = serve.Doors()

    async def start(self) -> serve.Doors:
        """Read the routes once, then open the doors; gives where they are."""
        loop, house = asyncio.get_running_loop(), self._house
        desk, ctx = house.desks["serve"], house.system()
        self.tallies, self.pages = Tallies(house.replica), Pages()
        self.plans = plans.Plans(house, self._pool, loop)
        self.watching = Watching(house.desks["monitor"].baselines.of, desk.sketches, self._pool, loop)
        self.table = Table(self.tallies, self._changed, self._greet, self.watching.heard)
        self.callers = Callers(house, self._pool, loop, self._find)
        self.doors = Doors(house, self.table, self.callers, self._pool, self.pages)
        self.doors.tallies, self.doors.plans = self.tallies, self.plans
        outside = urlsplit(house.settings.gateway_url).hostname or "localhost"
        self.doors.hosts = HostNames((*_names(house, self._http_at, self._grpc_at), outside))
        self.doors.tracer = tracer("falaj-gateway", share=TRACED)
        self.holding = self.doors.holding = Holding(self._wake)
        self.doors.metrics, self.doors.listening = Metrics(self.tallies, self.table, self.holding), self._doors
        self.follower = Follower(lambda: desk.routes(ctx), self.table)
        await loop.run_in_executor(self._pool, self.follower.look)
        await asyncio.sleep(0)
        self.follower.start()
        try:
            await self._open()
        except FalajError:
            await self.drain(0.0)
            raise
        await loop.run_in_executor(self._pool, self._told, True)
        await loop.run_in_executor(self._pool, house.join, "gateway", self.addresses.http)
        self._every("count", SECOND_S, self._second)
        self._every("streams", CHECK_S, lambda: self.doors.streams.check(time.monotonic()))
        self._every("doors", DOORS_S, lambda: self._pool.submit(self._told))
        self._every("plans", plans.EVERY_S, lambda: self.plans.renew(self.table.routes))
        self._every("profiles", plans.EVERY_S, lambda: self.watching.renew(self.table.routes))
        if self._own_ca:
            self._every("certificate", RENEW_EVERY_S, self._renew)
        return self.addresses

    async def leave(self, for_s: float) -> None:
        """Say that we go, and answer on for a while: balancers lead callers elsewhere."""
        self.doors.open = False
        await asyncio.gather(*(door.linger(for_s) for door in self._doors))

    async def drain(self, within_s: float = GRACE_S) -> None:
        """Take nothing new, answer what was asked, write down what was counted."""
        self.doors.open = False
        self.holding.close()
        await asyncio.gather(*(door.drain(within_s) for door in self._doors))
        for timer in self._timers.values():
            timer.cancel()
        self.follower.end()
        self._second()
        self.table.close()
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(self._pool, self._untold)
        self.callers.close()
        await loop.run_in_executor(None, self._book.shutdown)
        await loop.run_in_executor(None, self._pool.shutdown)

    def _told(self, first: bool = False) -> None:
        """Say where endpoints are called: when we begin, and when whoever said so last is gone."""
        ledger, ctx, me = self._house.ledger, self._house.system(), self._house.replica
        try:
            ledger.lease(_lease(self.addresses), me, DOORS_S * 3, ctx.now())
            with ledger.read(ctx) as tx:
                shown = books.doors_in(tx)
            if first or (shown != self.addresses and ledger.lease(_lease(shown), me, DOORS_S, ctx.now())):
                books.tell_doors(ledger, ctx, self.addresses)
        except FalajError as error:
            if first:
                raise
            _log.warning("our address was not told", extra={"why": error.message})

    def _untold(self) -> None:
        try:
            self._house.ledger.release(_lease(self.addresses), self._house.replica)
        except FalajError as error:
            _log.info("a lease runs out by itself", extra={"why": error.message})

    async def _open(self) -> None:
        at, scheme, budget = self._http_at, "https" if self._tls.cert else "http", self.doors.budget
        opening = serve_http(self.doors, at.host, at.port, ssl=self._context(), budget=budget)
        http = await _listening(opening, at, "gateway")
        self._doors.append(http)
        url = f"{scheme}://{_named(at, http.address[1])}"
        grpc_url = ""
        if self._grpc_at is not None:
            at = self._grpc_at
            grpc_opening = serve_h2(self.doors, at.host, at.port, ssl=self._context(), budget=budget)
            grpc = await _listening(grpc_opening, at, "gateway_grpc")
            self._doors.append(grpc)
            grpc_url = _named(at, grpc.address[1])
        self.addresses = serve.Doors(self._house.settings.gateway_url.rstrip("/") or url, grpc_url)

    def _context(self) -> tls.SSLContext | None:
        if not self._tls.cert:
            return None
        self._contexts.append(server_context(self._tls))
        return self._contexts[-1]

    def _renew(self) -> None:
        settings = self._house.settings
        try:
            local_tls(settings.home, _names(self._house, self._http_at, self._grpc_at), time.time(), "gateway")
            for context in self._contexts:
                load_chain(context, self._tls)
        except FalajError as error:
            _log.error("the certificate was not renewed", extra={"why": error.message})

    def _every(self, name: str, every_s: float, act: Callable[[], Any]) -> None:
        def again() -> None:
            act()
            self._every(name, every_s, act)

        self._timers[name] = asyncio.get_running_loop().call_later(every_s, again)

    def _find(self, name: Name) -> Ref | None:
        routed = self.table.routes.get(name)
        return routed.route.ref if routed is not None else None

    def _changed(self) -> None:
        self.holding.release()

    def _greet(self, route: serve.Route, link: Link) -> None:
        """A replica was connected."""
        self.plans.greet(route, link)
        self.watching.greet(route, link)

    def _wake(self, name: Name) -> None:
        ref = self._find(name)
        if ref is not None:
            self.follower.hurry()
            self._pool.submit(self._woken, name[0], ref)

    def _woken(self, tenant: str, ref: Ref) -> None:
        try:
            wake(self._house.ledger, self._house.system(), tenant, ref)
        except FalajError as error:
            _log.warning("an endpoint was not woken", extra={"endpoint": str(ref), "why": error.message})

    def _second(self) -> None:
        self.follower.hurried = bool(len(self.holding))
        self.callers.write_refusals()
        rows, kept = self.tallies.rows(time.time()), list(self.pages.take())
        if self.pages.dropped:
            _log.warning("requests were not kept", extra={"count": self.pages.dropped})
            self.doors.metrics.unkept += self.pages.dropped
            self.pages.dropped = 0
        came = self.watching.take()
        if rows or kept or self._rows or came:
            self._book.submit(self._written, rows, kept, came)

    def _written(self, rows: list[Counted], kept: list[Page], came: list[Came]) -> None:
        """In a thread: what cannot be written now is tried with the next second's."""
        desk = self._house.desks["serve"]
        self._rows = [*self._rows, *rows][-MOST_ROWS:]
        try:
            if self._rows:
                desk.counts.append(self._rows)
                self._rows = []
            for route, some in kept:
                desk.journal.append(route, some)
            self.watching.written(came)
        except FalajError as error:
            _log.warning("counts were not written", extra={"why": error.message})


def run(
    house: "House", on_ready: Callable[[serve.Doors], Any], *, listen: str = "", grpc: str = "", own_ca: bool = False,
    until_eof: bool = False,
) -> None:  # fmt: skip
    """Serve until SIGTERM or SIGINT; with `until_eof` also until whoever started us is gone."""
    import uvloop

    async def main() -> None:
        loop, end = asyncio.get_running_loop(), asyncio.Event()
        gateway = Gateway(house, listen=listen, grpc=grpc, own_ca=own_ca)
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, end.set)
        if until_eof:
            _on_eof(lambda: loop.call_soon_threadsafe(end.set))
        found = await gateway.start()
        gc.collect()
        garbage.settle()
        on_ready(found)
        await end.wait()
        await gateway.leave(house.settings.drain_s)
        await gateway.drain()

    uvloop.run(main())


def _on_eof(act: Callable[[], Any]) -> None:
    def wait() -> None:
        # Not through sys.stdin: a thread inside it keeps the interpreter from ending.
        while os.read(0, 4096):
            pass
        act()

    threading.Thread(target=wait, name="parent", daemon=True).start()


def _certificates(house: "House", http: Address, grpc: Address | None, *, own_ca: bool) -> Tls:
    """As the API's own door does: plain HTTP on loopback only, TLS 1.3 anywhere else."""
    settings = house.settings
    found = settings.tls
    if own_ca and not found.cert:
        made = local_tls(settings.home, _names(house, http, grpc), time.time(), "gateway")
        found = Tls(made.cert, made.key, found.ca or made.ca, found.mutual)
    for address in (http, grpc):
        if address is not None and not address.loopback and not found.cert:
            raise Invalid(
                f"{address.host} can be reached from outside and there is no TLS",
                "start with --tls, set tls.cert and tls.key, or listen on 127.0.0.1",
            )
    return found


def _names(house: "House", http: Address, grpc: Address | None) -> tuple[str, ...]:
    named = local_names(http.host) + (local_names(grpc.host) if grpc is not None else ())
    return tuple(dict.fromkeys((*named, *house.settings.hosts)))


def _lease(doors: serve.Doors) -> str:
    return f"gateway:{doors.http}"


def _named(address: Address, port: int) -> str:
    import socket

    host = socket.gethostname() if address.host in ("0.0.0.0", "::") else address.host  # noqa: S104 # nosec B104 - compared with, not bound to
    return Address(host, port).named(host)


async def _listening(opening: Any, address: Address, setting: str) -> Any:
    """The server that `opening` gives; `setting` names where its address comes from."""
    try:
        return await opening
    except OSError as error:
        raise Unavailable(
            f"the gateway cannot listen on {address.host}:{address.port}: {error.strerror}",
            f"choose another address with the setting {setting} (FALAJ_{setting.upper()}), 127.0.0.1:0 takes any free "
            "port; or stop what uses this one",
        ) from error
