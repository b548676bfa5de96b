"""The listener: where Falaj answers. Plain HTTP on loopback only; any other address speaks TLS 1.3 or stays shut."""

import asyncio
import ipaddress
import logging
import signal
import socket
import ssl
import sys
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import urlsplit

import uvicorn
from uvicorn.config import STARTUP_FAILURE

from falaj.api.app import HttpApplication, PageHandler
from falaj.api.connection_table import TlsListener
from falaj.api.http_connection import HttpConnection
from falaj.api.tls import create_server_context, ensure_local_certificate, list_local_names, load_certificate_chain
from falaj.core import garbage_collection
from falaj.core.errors import FalajError, Invalid, Unavailable
from falaj.core.settings import Settings, TlsSettings

if TYPE_CHECKING:
    from falaj.server import Server

SHUTDOWN_GRACE_S = 60
"""As long as a call may take: whatever was asked is answered."""
LAST_CALLS_S = 0.3
"""After the door is shut, whoever came in last may still ask."""
_log = logging.getLogger(__name__)
RENEW_INTERVAL_S = 3600.0
THREAD_SWITCH_S = 0.001
"""So long a thread that comes back from a store waits for Python at most, while loops compute; the default is 5 ms."""
OnReady = Callable[[str], None]
PageHandlerFactory = Callable[[HttpApplication], PageHandler]


@dataclass(frozen=True, slots=True)
class ListenAddress:
    """Where to listen."""

    host: str
    port: int

    @staticmethod
    def parse(text: str) -> "ListenAddress":
        """`host:port`, with an IPv6 host in brackets."""
        host, colon, port = text.rpartition(":")
        host = host[1:-1] if host.startswith("[") and host.endswith("]") else host
        if not colon or not host or not (port.isascii() and port.isdecimal() and len(port) <= 5) or int(port) > 65535:
            raise Invalid(f"{text[:80]!r} is no address to listen on", "write host:port, for example 127.0.0.1:8470")
        return ListenAddress(host, int(port))

    @property
    def loopback(self) -> bool:
        """True when nobody outside this machine can reach it."""
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"

    def named(self, host: str) -> str:
        """The address under another of its names."""
        return f"[{host}]:{self.port}" if ":" in host else f"{host}:{self.port}"


def _do_nothing() -> None:
    """There is nothing to do."""


class HttpServer(uvicorn.Server):
    """A server that goes without being missed, and renews a local certificate while it runs.

    Told to go it says so at /ready and answers on for `drain_s`, each answer the last of its connection, so that a
    balancer leads callers elsewhere. Then it stops listening, ends event streams, and answers what was asked.
    """

    def __init__(self, config: uvicorn.Config, app: HttpApplication, listening_socket: socket.socket, url: str) -> None:
        super().__init__(config)
        self.app = app
        self.url = url
        self._listening_socket = listening_socket
        self._renew_certificate: Callable[[], None] | None = None
        self._on_ready: OnReady | None = None
        self._on_leave: Callable[[], None] = _do_nothing

    def go(
        self,
        on_ready: OnReady | None = None,
        renew: Callable[[], None] | None = None,
        on_leave: Callable[[], None] | None = None,
    ) -> None:
        """Serve until told to stop; `on_leave` is called then, beside the last answers."""
        self._on_ready, self._renew_certificate, self._on_leave = on_ready, renew, on_leave or _do_nothing
        self.run(sockets=[self._listening_socket])

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        if self.config.ssl is None:
            await super().startup(sockets)
        else:
            await self._listen_with_tls(self.config.ssl)
        garbage_collection.freeze_garbage_collector()
        if self._renew_certificate is not None:
            self._renew_periodically()
        if self._on_ready is not None:
            self._on_ready(self.url)

    async def _listen_with_tls(self, context: ssl.SSLContext) -> None:
        """As the parent does, but with each connection bounded before its handshake."""
        await self.lifespan.startup()
        if self.lifespan.should_exit:
            raise SystemExit(STARTUP_FAILURE)
        create_connection = partial(
            HttpConnection, config=self.config, server_state=self.server_state, app_state=self.lifespan.state
        )
        listener = TlsListener(self._listening_socket, context, self.app.connections, create_connection)
        listener.start(self.config.backlog)
        self.servers = [cast(Any, listener)]
        self.started = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        leave_task = asyncio.get_running_loop().run_in_executor(None, self._on_leave)
        await self._drain_connections(self.app.house.settings.drain_s)
        self.app.events.stop()
        self.app.stopping.set()
        await super().shutdown(sockets)
        await leave_task

    async def _drain_connections(self, drain_s: float) -> None:
        """Answer on as one that goes; a second Ctrl-C ends the waiting."""
        self.app.draining = True
        for connection in tuple(self.server_state.connections):
            cast(HttpConnection, connection).part()
        if drain_s <= 0.0:
            return
        loop = asyncio.get_running_loop()
        deadline, tick_number = loop.time() + drain_s, 0
        while loop.time() < deadline and not self.force_exit:
            await self.on_tick(tick_number)  # which keeps the date of answers
            await asyncio.sleep(0.1)
            tick_number += 1
        for server in self.servers:
            server.close()
        await asyncio.sleep(LAST_CALLS_S)

    @contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """As the parent does, without raising the signal again at the end: stopping when asked is a success."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        former_handlers = {
            signal_number: signal.signal(signal_number, self.handle_exit)
            for signal_number in (signal.SIGINT, signal.SIGTERM)
        }
        try:
            yield
        finally:
            for signal_number, handler in former_handlers.items():
                signal.signal(signal_number, handler)

    def _renew_periodically(self) -> None:
        """On the thread of the handshakes: a context that changes under one of them ends the process."""
        asyncio.get_running_loop().call_later(RENEW_INTERVAL_S, self._renew_periodically)
        try:
            (self._renew_certificate or _do_nothing)()
        except FalajError as error:
            _log.error("the certificate was not renewed", extra={"why": error.message})


def run_server(
    server: "Server",
    *,
    listen: str = "",
    own_ca: bool = False,
    on_ready: OnReady | None = None,
    on_leave: Callable[[], None] = _do_nothing,
    create_page_handler: PageHandlerFactory | None = None,
) -> None:
    """Open the house on its address until SIGTERM or Ctrl-C; loops run meanwhile."""
    http_server, renew_certificate = create_http_server(
        server, listen=listen, own_ca=own_ca, create_page_handler=create_page_handler
    )

    def leave_service() -> None:
        on_leave()
        server.stop_loops()  # which gives their leases back: another replica goes on at once

    sys.setswitchinterval(min(THREAD_SWITCH_S, sys.getswitchinterval()))
    server.join("api", http_server.url)
    server.dependencies.start()
    server.start_loops()
    try:
        http_server.go(on_ready, renew_certificate, leave_service)
    finally:
        server.stop_loops()


def create_http_server(
    server: "Server", *, listen: str = "", own_ca: bool = False, create_page_handler: PageHandlerFactory | None = None
) -> tuple[HttpServer, Callable[[], None] | None]:
    """A server bound to its address and not yet running; and, with a local authority, what renews its certificate."""
    settings = server.settings
    address = ListenAddress.parse(listen or settings.listen)
    tls, host_names = settings.tls, list_local_names(address.host)
    if own_ca and not tls.cert:
        issued_tls = ensure_local_certificate(settings.home, (*host_names, *settings.hosts), time.time())
        tls = TlsSettings(issued_tls.cert, issued_tls.key, tls.ca or issued_tls.ca, tls.mutual)
    if not tls.cert and not address.loopback:
        raise Invalid(
            f"{address.host} can be reached from outside and there is no TLS",
            "start with --tls, set tls.cert and tls.key, or listen on 127.0.0.1",
        )
    tls_context = create_server_context(tls) if tls.cert else None
    listening_socket = _bind_socket(address)
    address = ListenAddress(address.host, listening_socket.getsockname()[1])
    app = HttpApplication(server, _list_hosts(address, host_names, settings))
    app.door = create_page_handler(app) if create_page_handler is not None else None
    config = uvicorn.Config(app, **_uvicorn_options())
    config.load()
    config.ssl = tls_context
    url = f"{'https' if tls_context else 'http'}://{address.named(_get_display_host(address))}"
    if tls_context is None or not own_ca or settings.tls.cert:
        return HttpServer(config, app, listening_socket, url), None

    def renew_certificate() -> None:
        ensure_local_certificate(settings.home, (*host_names, *settings.hosts), time.time())
        load_certificate_chain(tls_context, tls)

    return HttpServer(config, app, listening_socket, url), renew_certificate


def _uvicorn_options() -> dict[str, Any]:
    return {
        "http": HttpConnection,
        "ws": "none",
        "loop": "uvloop",
        "lifespan": "on",
        "interface": "asgi3",
        "log_config": None,
        "access_log": False,
        "server_header": False,
        "proxy_headers": False,
        "timeout_keep_alive": 75,
        "timeout_graceful_shutdown": SHUTDOWN_GRACE_S,
        "backlog": 1024,
    }


def _bind_socket(address: ListenAddress) -> socket.socket:
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    listening_socket = socket.socket(family, socket.SOCK_STREAM)
    listening_socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening_socket.bind((address.host, address.port))
    except OSError as error:
        listening_socket.close()
        raise Unavailable(
            f"{address.host}:{address.port} cannot be listened on: {error.strerror}",
            "stop what uses it, or choose another with --listen",
        ) from error
    listening_socket.set_inheritable(False)
    return listening_socket


def _list_hosts(address: ListenAddress, local_names: tuple[str, ...], settings: Settings) -> set[str]:
    """Every Host header that this server answers.

    Names of the machine need the listening port. Names of the setting `hosts` and the authority of `url` are also
    accepted as they are written: a client of a balancer on 443 sends the bare name, whatever port this server has.
    """
    url_authority = urlsplit(settings.url).netloc
    configured = {*settings.hosts, url_authority} - {""}
    hosts = configured | {address.named(name) for name in {*local_names, *configured} if not _has_port(name)}
    return hosts | set(local_names) if address.port in (80, 443) else hosts


def _has_port(name: str) -> bool:
    return name.count(":") == 1


def _get_display_host(address: ListenAddress) -> str:
    return socket.gethostname() if address.host in ("0.0.0.0", "::") else address.host  # noqa: S104 # nosec B104 - compared with, not bound to
