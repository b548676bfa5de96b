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

from falaj.api.http_server import RENEW_INTERVAL_S, ListenAddress
from falaj.api.tls import create_server_context, ensure_local_certificate, list_local_names, load_certificate_chain
from falaj.core import garbage_collection
from falaj.core.errors import FalajError, Invalid, Unavailable
from falaj.core.ref import Ref
from falaj.core.settings import TlsSettings
from falaj.core.tracing import get_tracer
from falaj.gateway import feature_plans
from falaj.gateway.arm_tally import ArmTallies, JournalBuffer
from falaj.gateway.callers import CallerDirectory
from falaj.gateway.cold_start_queue import ColdStartQueue
from falaj.gateway.delta_receiver import DeltaReceiver, ReceivedDelta
from falaj.gateway.gateway_metrics import GatewayMetrics
from falaj.gateway.host_names import HostNames
from falaj.gateway.open_streams import CHECK_INTERVAL_S
from falaj.gateway.request_handlers import GatewayHandlers
from falaj.gateway.route_table import EndpointName, RouteFollower, RouteTable
from falaj.gateway.upstream_connection import UpstreamConnection
from falaj.oip.http1_server import serve_http
from falaj.oip.http2_server import serve_http2
from falaj.serve import endpoint_repository
from falaj.serve import records as serve
from falaj.serve.request_counts import CountRow
from falaj.serve.request_journal import JournalRow
from falaj.serve.routes import wake_endpoint

if TYPE_CHECKING:
    from falaj.server import Server

TICK_INTERVAL_S = 1.0
DRAIN_TIMEOUT_S = 30.0
ADDRESS_INTERVAL_S = 4.0
"""How often a gateway says that it is there, and looks whether the one whose address is shown still is."""
SERVER_THREADS = 4
TRACED_SHARE = 0.01
"""The share of requests without a trace of their own that begin one, where a collector is named."""
MAX_PENDING_ROWS = 20_000
"""Counts that could not be written yet and are kept; older ones go."""
_log = logging.getLogger(__name__)
JournalPage = tuple[serve.EndpointRoute, list[JournalRow]]


class GatewayProcess:
    """`start`, then `drain`."""

    def __init__(self, server: "Server", *, listen: str = "", grpc: str = "", own_ca: bool = False) -> None:
        settings = server.settings
        self._server = server
        self._http_address = ListenAddress.parse(listen or settings.gateway)
        self._grpc_address = (
            ListenAddress.parse(grpc or settings.gateway_grpc) if grpc or settings.gateway_grpc else None
        )
        self._tls = _load_certificates(server, self._http_address, self._grpc_address, own_ca=own_ca)
        self._own_ca = own_ca and not settings.tls.cert
        self._tls_contexts: list[tls.SSLContext] = []
        self._listeners: list[Any] = []
        self._pool = ThreadPoolExecutor(SERVER_THREADS, thread_name_prefix="house")
        self._writer_pool = ThreadPoolExecutor(1, thread_name_prefix="book")
        self._pending_rows: list[CountRow] = []
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self.addresses = serve.GatewayAddresses()

    async def start(self) -> serve.GatewayAddresses:
        """Read the routes once, then open the doors; gives where they are."""
        loop, server = asyncio.get_running_loop(), self._server
        serve_service, context = server.desks["serve"], server.system()
        self.tallies, self.pages = ArmTallies(server.replica), JournalBuffer()
        self.plans = feature_plans.FeaturePlans(server, self._pool, loop)
        self.watching = DeltaReceiver(server.desks["monitor"].baselines.of, serve_service.sketches, self._pool, loop)
        self.table = RouteTable(self.tallies, self._on_routes_changed, self._greet_replica, self.watching.heard)
        self.callers = CallerDirectory(server, self._pool, loop, self._find_endpoint)
        self.doors = GatewayHandlers(server, self.table, self.callers, self._pool, self.pages)
        self.doors.tallies, self.doors.plans = self.tallies, self.plans
        public_host = urlsplit(server.settings.gateway_url).hostname or "localhost"
        self.doors.hosts = HostNames((*_list_host_names(server, self._http_address, self._grpc_address), public_host))
        self.doors.tracer = get_tracer("falaj-gateway", default_ratio=TRACED_SHARE)
        self.holding = self.doors.holding = ColdStartQueue(self._wake_endpoint)
        self.doors.metrics, self.doors.listening = (
            GatewayMetrics(self.tallies, self.table, self.holding),
            self._listeners,
        )
        self.follower = RouteFollower(lambda: serve_service.routes(context), self.table)
        await loop.run_in_executor(self._pool, self.follower.look)
        await asyncio.sleep(0)
        self.follower.start()
        try:
            await self._open_listeners()
        except FalajError:
            await self.drain(0.0)
            raise
        await loop.run_in_executor(self._pool, self._announce_address, True)
        await loop.run_in_executor(self._pool, server.join, "gateway", self.addresses.http)
        self._repeat_every("count", TICK_INTERVAL_S, self._run_tick)
        self._repeat_every("streams", CHECK_INTERVAL_S, lambda: self.doors.streams.check(time.monotonic()))
        self._repeat_every("doors", ADDRESS_INTERVAL_S, lambda: self._pool.submit(self._announce_address))
        self._repeat_every("plans", feature_plans.RENEW_INTERVAL_S, lambda: self.plans.renew(self.table.routes))
        self._repeat_every("profiles", feature_plans.RENEW_INTERVAL_S, lambda: self.watching.renew(self.table.routes))
        if self._own_ca:
            self._repeat_every("certificate", RENEW_INTERVAL_S, self._renew_certificate)
        return self.addresses

    async def leave(self, duration_s: float) -> None:
        """Say that we go, and answer on for a while: balancers lead callers elsewhere."""
        self.doors.open = False
        await asyncio.gather(*(listener.linger(duration_s) for listener in self._listeners))

    async def drain(self, timeout_s: float = DRAIN_TIMEOUT_S) -> None:
        """Take nothing new, answer what was asked, write down what was counted."""
        self.doors.open = False
        self.holding.close()
        await asyncio.gather(*(listener.drain(timeout_s) for listener in self._listeners))
        for timer in self._timers.values():
            timer.cancel()
        self.follower.end()
        self._run_tick()
        self.table.close()
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(self._pool, self._release_address)
        self.callers.close()
        await loop.run_in_executor(None, self._writer_pool.shutdown)
        await loop.run_in_executor(None, self._pool.shutdown)

    def _announce_address(self, is_first: bool = False) -> None:
        """Say where endpoints are called: when we begin, and when whoever said so last is gone."""
        ledger, context, replica_id = self._server.ledger, self._server.system(), self._server.replica
        try:
            ledger.lease(_address_lease(self.addresses), replica_id, ADDRESS_INTERVAL_S * 3, context.now())
            with ledger.read(context) as reader:
                shown_address = endpoint_repository.read_gateway_addresses(reader)
            if is_first or (
                shown_address != self.addresses
                and ledger.lease(_address_lease(shown_address), replica_id, ADDRESS_INTERVAL_S, context.now())
            ):
                endpoint_repository.write_gateway_addresses(ledger, context, self.addresses)
        except FalajError as error:
            if is_first:
                raise
            _log.warning("our address was not told", extra={"why": error.message})

    def _release_address(self) -> None:
        try:
            self._server.ledger.release(_address_lease(self.addresses), self._server.replica)
        except FalajError as error:
            _log.info("a lease runs out by itself", extra={"why": error.message})

    async def _open_listeners(self) -> None:
        address, scheme, budget = self._http_address, "https" if self._tls.cert else "http", self.doors.budget
        opening = serve_http(self.doors, address.host, address.port, ssl=self._create_tls_context(), budget=budget)
        http = await _open_listener(opening, address, "gateway")
        self._listeners.append(http)
        url = f"{scheme}://{_format_named_address(address, http.address[1])}"
        grpc_url = ""
        if self._grpc_address is not None:
            address = self._grpc_address
            grpc_opening = serve_http2(
                self.doors, address.host, address.port, ssl=self._create_tls_context(), budget=budget
            )
            grpc = await _open_listener(grpc_opening, address, "gateway_grpc")
            self._listeners.append(grpc)
            grpc_url = _format_named_address(address, grpc.address[1])
        self.addresses = serve.GatewayAddresses(self._server.settings.gateway_url.rstrip("/") or url, grpc_url)

    def _create_tls_context(self) -> tls.SSLContext | None:
        if not self._tls.cert:
            return None
        self._tls_contexts.append(create_server_context(self._tls))
        return self._tls_contexts[-1]

    def _renew_certificate(self) -> None:
        settings = self._server.settings
        try:
            ensure_local_certificate(
                settings.home,
                _list_host_names(self._server, self._http_address, self._grpc_address),
                time.time(),
                "gateway",
            )
            for context in self._tls_contexts:
                load_certificate_chain(context, self._tls)
        except FalajError as error:
            _log.error("the certificate was not renewed", extra={"why": error.message})

    def _repeat_every(self, name: str, interval_s: float, action: Callable[[], Any]) -> None:
        def run_again() -> None:
            action()
            self._repeat_every(name, interval_s, action)

        self._timers[name] = asyncio.get_running_loop().call_later(interval_s, run_again)

    def _find_endpoint(self, name: EndpointName) -> Ref | None:
        routed = self.table.routes.get(name)
        return routed.route.ref if routed is not None else None

    def _on_routes_changed(self) -> None:
        self.holding.release()

    def _greet_replica(self, route: serve.EndpointRoute, upstream: UpstreamConnection) -> None:
        """A replica was connected."""
        self.plans.greet(route, upstream)
        self.watching.greet(route, upstream)

    def _wake_endpoint(self, name: EndpointName) -> None:
        ref = self._find_endpoint(name)
        if ref is not None:
            self.follower.hurry()
            self._pool.submit(self._wake_in_thread, name[0], ref)

    def _wake_in_thread(self, tenant: str, ref: Ref) -> None:
        try:
            wake_endpoint(self._server.ledger, self._server.system(), tenant, ref)
        except FalajError as error:
            _log.warning("an endpoint was not woken", extra={"endpoint": str(ref), "why": error.message})

    def _run_tick(self) -> None:
        self.follower.hurried = bool(len(self.holding))
        self.callers.write_refusals()
        rows, pages = self.tallies.rows(time.time()), list(self.pages.take())
        if self.pages.dropped:
            _log.warning("requests were not kept", extra={"count": self.pages.dropped})
            self.doors.metrics.unkept += self.pages.dropped
            self.pages.dropped = 0
        deltas = self.watching.take()
        if rows or pages or self._pending_rows or deltas:
            self._writer_pool.submit(self._write_tick, rows, pages, deltas)

    def _write_tick(self, rows: list[CountRow], pages: list[JournalPage], deltas: list[ReceivedDelta]) -> None:
        """In a thread: what cannot be written now is tried with the next second's."""
        serve_service = self._server.desks["serve"]
        self._pending_rows = [*self._pending_rows, *rows][-MAX_PENDING_ROWS:]
        try:
            if self._pending_rows:
                serve_service.counts.append(self._pending_rows)
                self._pending_rows = []
            for route, page_rows in pages:
                serve_service.journal.append(route, page_rows)
            self.watching.written(deltas)
        except FalajError as error:
            _log.warning("counts were not written", extra={"why": error.message})


def run_gateway(
    server: "Server",
    on_ready: Callable[[serve.GatewayAddresses], Any],
    *,
    listen: str = "",
    grpc: str = "",
    own_ca: bool = False,
    until_eof: bool = False,
) -> None:
    """Serve until SIGTERM or SIGINT; with `until_eof` also until whoever started us is gone."""
    import uvloop

    async def serve_until_signal() -> None:
        loop, end_event = asyncio.get_running_loop(), asyncio.Event()
        gateway = GatewayProcess(server, listen=listen, grpc=grpc, own_ca=own_ca)
        for signal_number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(signal_number, end_event.set)
        if until_eof:
            _call_on_eof(lambda: loop.call_soon_threadsafe(end_event.set))
        addresses = await gateway.start()
        gc.collect()
        garbage_collection.freeze_garbage_collector()
        on_ready(addresses)
        await end_event.wait()
        await gateway.leave(server.settings.drain_s)
        await gateway.drain()

    uvloop.run(serve_until_signal())


def _call_on_eof(on_eof: Callable[[], Any]) -> None:
    def wait_for_eof() -> None:
        # Not through sys.stdin: a thread inside it keeps the interpreter from ending.
        while os.read(0, 4096):
            pass
        on_eof()

    threading.Thread(target=wait_for_eof, name="parent", daemon=True).start()


def _load_certificates(
    server: "Server", http: ListenAddress, grpc: ListenAddress | None, *, own_ca: bool
) -> TlsSettings:
    """As the API's own door does: plain HTTP on loopback only, TLS 1.3 anywhere else."""
    settings = server.settings
    tls_settings = settings.tls
    if own_ca and not tls_settings.cert:
        local_certificate = ensure_local_certificate(
            settings.home, _list_host_names(server, http, grpc), time.time(), "gateway"
        )
        tls_settings = TlsSettings(
            local_certificate.cert, local_certificate.key, tls_settings.ca or local_certificate.ca, tls_settings.mutual
        )
    for address in (http, grpc):
        if address is not None and not address.loopback and not tls_settings.cert:
            raise Invalid(
                f"{address.host} can be reached from outside and there is no TLS",
                "start with --tls, set tls.cert and tls.key, or listen on 127.0.0.1",
            )
    return tls_settings


def _list_host_names(server: "Server", http: ListenAddress, grpc: ListenAddress | None) -> tuple[str, ...]:
    local_host_names = list_local_names(http.host) + (list_local_names(grpc.host) if grpc is not None else ())
    return tuple(dict.fromkeys((*local_host_names, *server.settings.hosts)))


def _address_lease(addresses: serve.GatewayAddresses) -> str:
    return f"gateway:{addresses.http}"


def _format_named_address(address: ListenAddress, port: int) -> str:
    import socket

    host = socket.gethostname() if address.host in ("0.0.0.0", "::") else address.host  # noqa: S104 # nosec B104 - compared with, not bound to
    return ListenAddress(host, port).named(host)


async def _open_listener(opening: Any, address: ListenAddress, setting: str) -> Any:
    """The server that `opening` gives; `setting` names where its address comes from."""
    try:
        return await opening
    except OSError as error:
        raise Unavailable(
            f"the gateway cannot listen on {address.host}:{address.port}: {error.strerror}",
            f"choose another address with the setting {setting} (FALAJ_{setting.upper()}), 127.0.0.1:0 takes any free "
            "port; or stop what uses this one",
        ) from error
