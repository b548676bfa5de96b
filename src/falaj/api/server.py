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

from falaj.api.app import App, Door
from falaj.api.connection import Connection
from falaj.api.connections import TlsListener
from falaj.api.tls import load_chain, local_names, local_tls, server_context
from falaj.core import garbage
from falaj.core.errors import FalajError, Invalid, Unavailable
from falaj.core.settings import Settings, Tls

if TYPE_CHECKING:
    from falaj.platform import House

GRACE_S = 60
"""As long as a call may take: whatever was asked is answered."""
LAST_S = 0.3
"""After the door is shut, whoever came in last may still ask."""
_log = logging.getLogger(__name__)
RENEW_EVERY_S = 3600.0
SWITCH_S = 0.001
"""So long a thread that comes back from a store waits for Python at most, while loops compute; the default is 5 ms."""
Ready = Callable[[str], None]
Face = Callable[[App], Door]


@dataclass(frozen=True, slots=True)
class Address:
    """Where to listen."""

    host: str
    port: int

    @staticmethod
    def parse(text: str) -> "Address":
        """`host:port`, with an IPv6 host in brackets."""
        host, colon, port = text.rpartition(":")
        host = host[1:-1] if host.startswith("[") and host.endswith("]") else host
        if not colon or not host or not (port.isascii() and port.isdecimal() and len(port) <= 5) or int(port) > 65535:
            raise Invalid(f"{text[:80]!r} is no address to listen on", "write host:port, for example 127.0.0.1:8470")
        return Address(host, int(port))

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


def _nothing() -> None:
    """There is nothing to do."""


class Server(uvicorn.Server):
    """A server that goes without being missed, and renews a local certificate while it runs.

    Told to go it says so at /ready and answers on for `drain_s`, each answer the last of its connection, so that a
    balancer leads callers elsewhere. Then it stops listening, ends event streams, and answers what was asked.
    """

    def __init__(self, config: uvicorn.Config, app: App, bound: socket.socket, url: str) -> None:
        super().__init__(config)
        self.app = app
        self.url = url
        self._bound = bound
        self._renew: Callable[[], None] | None = None
        self._on_ready: Ready | None = None
        self._on_leave: Callable[[], None] = _nothing

    def go(
        self,
        on_ready: Ready | None = None,
        renew: Callable[[], None] | None = None,
        on_leave: Callable[[], None] | None = None,
    ) -> None:
        """Serve until told to stop; `on_leave` is called then, beside the last answers."""
        self._on_ready, self._renew, self._on_leave = on_ready, renew, on_leave or _nothing
        self.run(sockets=[self._bound])

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        if self.config.ssl is None:
            await super().startup(sockets)
        else:
            await self._listen_with_tls(self.config.ssl)
        garbage.settle()
        if self._renew is not None:
            self._tick()
        if self._on_ready is not None:
            self._on_ready(self.url)

    async def _listen_with_tls(self, context: ssl.SSLContext) -> None:
        """As the parent does, but with each connection bounded before its handshake."""
        await self.lifespan.startup()
        if self.lifespan.should_exit:
            raise SystemExit(STARTUP_FAILURE)
        create = partial(Connection, config=self.config, server_state=self.server_state, app_state=self.lifespan.state)
        listener = TlsListener(self._bound, context, self.app.connections, create)
        listener.start(self.config.backlog)
        self.servers = [cast(Any, listener)]
        self.started = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        left = asyncio.get_running_loop().run_in_executor(None, self._on_leave)
        await self._linger(self.app.house.settings.drain_s)
        self.app.events.stop()
        self.app.stopping.set()
        await super().shutdown(sockets)
        await left

    async def _linger(self, for_s: float) -> None:
        """Answer on as one that goes; a second Ctrl-C ends the waiting."""
        self.app.draining = True
        for connection in tuple(self.server_state.connections):
            cast(Connection, connection).part()
        if for_s <= 0.0:
            return
        loop = asyncio.get_running_loop()
        until, turn = loop.time() + for_s, 0
        while loop.time() < until and not self.force_exit:
            await self.on_tick(turn)  # which keeps the date of answers
            await asyncio.sleep(0.1)
            turn += 1
        for server in self.servers:
            server.close()
        await asyncio.sleep(LAST_S)

    @contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """As the parent does, without raising the signal again at the end: stopping when asked is a success."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, self.handle_exit) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, former in before.items():
                signal.signal(number, former)

    def _tick(self) -> None:
        """On the thread of the handshakes: a context that changes under one of them ends the process."""
        asyncio.get_running_loop().call_later(RENEW_EVERY_S, self._tick)
        try:
            (self._renew or _nothing)()
        except FalajError as error:
            _log.error("the certificate was not renewed", extra={"why": error.message})


def serve(
    house: "House",
    *,
    listen: str = "",
    own_ca: bool = False,
    on_ready: Ready | None = None,
    on_leave: Callable[[], None] = _nothing,
    face: Face | None = None,
) -> None:
    """Open the house on its address until SIGTERM or Ctrl-C; loops run meanwhile."""
    server, renew = make_server(house, listen=listen, own_ca=own_ca, face=face)

    def leave() -> None:
        on_leave()
        house.stop_loops()  # which gives their leases back: another replica goes on at once

    sys.setswitchinterval(min(SWITCH_S, sys.getswitchinterval()))
    house.join("api", server.url)
    house.dependencies.start()
    house.start_loops()
    try:
        server.go(on_ready, renew, leave)
    finally:
        house.stop_loops()


def make_server(
    house: "House", *, listen: str = "", own_ca: bool = False, face: Face | None = None
) -> tuple[Server, Callable[[], None] | None]:
    """A server bound to its address and not yet running; and, with a local authority, what renews its certificate."""
    settings = house.settings
    address = Address.parse(listen or settings.listen)
    tls, names = settings.tls, local_names(address.host)
    if own_ca and not tls.cert:
        made = local_tls(settings.home, (*names, *settings.hosts), time.time())
        tls = Tls(made.cert, made.key, tls.ca or made.ca, tls.mutual)
    if not tls.cert and not address.loopback:
        raise Invalid(
            f"{address.host} can be reached from outside and there is no TLS",
            "start with --tls, set tls.cert and tls.key, or listen on 127.0.0.1",
        )
    context = server_context(tls) if tls.cert else None
    bound = _bind(address)
    address = Address(address.host, bound.getsockname()[1])
    app = App(house, _list_hosts(address, names, settings))
    app.door = face(app) if face is not None else None
    config = uvicorn.Config(app, **_options())
    config.load()
    config.ssl = context
    url = f"{'https' if context else 'http'}://{address.named(_shown(address))}"
    if context is None or not own_ca or settings.tls.cert:
        return Server(config, app, bound, url), None

    def renew() -> None:
        local_tls(settings.home, (*names, *settings.hosts), time.time())
        load_chain(context, tls)

    return Server(config, app, bound, url), renew


def _options() -> dict[str, Any]:
    return {
        "http": Connection,
        "ws": "none",
        "loop": "uvloop",
        "lifespan": "on",
        "interface": "asgi3",
        "log_config": None,
        "access_log": False,
        "server_header": False,
        "proxy_headers": False,
        "timeout_keep_alive": 75,
        "timeout_graceful_shutdown": GRACE_S,
        "backlog": 1024,
    }


def _bind(address: Address) -> socket.socket:
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    bound = socket.socket(family, socket.SOCK_STREAM)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        bound.bind((address.host, address.port))
    except OSError as error:
        bound.close()
        raise Unavailable(
            f"{address.host}:{address.port} cannot be listened on: {error.strerror}",
            "stop what uses it, or choose another with --listen",
        ) from error
    bound.set_inheritable(False)
    return bound


def _list_hosts(address: Address, local_names: tuple[str, ...], settings: Settings) -> set[str]:
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


def _shown(address: Address) -> str:
    return socket.gethostname() if address.host in ("0.0.0.0", "::") else address.host  # noqa: S104 # nosec B104 - compared with, not bound to
