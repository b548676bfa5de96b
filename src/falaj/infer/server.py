"""The process around an engine: its doors, its end, and who hears that it is ready."""

import asyncio
import gc
import hashlib
import ipaddress
import os
import signal
import socket
import ssl
import sys
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

from falaj import worker
from falaj.asof.space_keys import open_keys
from falaj.core.errors import FalajError, Invalid, Unavailable
from falaj.core.release import VERSION
from falaj.infer.carrying import Carrier
from falaj.infer.engine import Engine
from falaj.infer.records import Config
from falaj.infer.session import Session
from falaj.infer.watch import Watch, end_hung
from falaj.worker.cage_egress import find_own_address
from falaj.worker.outbox import Outbox

FLUSH_S = 0.25
SWITCH_S = 0.0005
"""A thread that comes back from a run waits so long for Python at most; the default is 5 ms."""


class Server:
    """One server: `start`, then `drain`."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.addresses: dict[str, str] = {}
        """Door to host:port."""
        self.exit_code = 0
        self._doors: list[Any] = []
        self._carrier: Carrier | None = None
        self._engine: Engine | None = None

    @property
    def engine(self) -> Engine:
        """There from `start` on."""
        if self._engine is None:
            raise Unavailable("the server has not been started", "await start() first")
        return self._engine

    async def start(self) -> None:
        """Load and warm the models, then open the doors: whoever reaches us can be answered."""
        self._check()
        self._engine = Engine(self.config, on_hung=self._hung)
        try:
            loading = asyncio.gather(*(self.engine.placed(model) for model in self.config.models))
            await asyncio.sleep(0)
            rest, grpc = self._doors_of()  # their modules are read while the models are
            await loading
            await self._open(rest, grpc)
        except FalajError:
            await self.drain(0.0)
            raise
        except OSError as error:
            await self.drain(0.0)
            raise Unavailable(f"an address cannot be listened on: {error.strerror}", "choose another port") from error

    def watch(self) -> None:
        """From now on, end the process when its loop stands still. For whoever owns the process."""
        Watch(self.engine, max([one.timeout_s for one in self.config.models], default=30.0)).start()

    async def drain(self, within_s: float | None = None) -> None:
        """Take nothing new, answer what is here, and end."""
        within_s = self.config.drain_s if within_s is None else within_s
        self.engine.draining = True
        if self._carrier is not None:
            await self._carrier.drain(within_s)
        await asyncio.gather(*(door.drain(within_s) for door in self._doors))
        await self.engine.close(within_s)

    def ready(self) -> dict[str, Any]:
        """What is said when everything listens."""
        return {"ready": True, "pid": os.getpid(), **self.addresses}

    def fact(self) -> dict[str, Any]:
        """What a replica tells whoever started it."""
        address = self.addresses.get("hop") or self.addresses.get("http") or "127.0.0.1:0"
        host, port = place_of(address)
        name, version = self.engine.names()[0] if self.engine.names() else ("", "")
        return {
            "host": self.config.hop_host or find_own_address(host), "port": port,
            "fingerprint": fingerprint(self.config.cert), "model": name, "version": version,
            "pid": os.getpid(), "tls": bool(self.config.cert),
        }  # fmt: skip

    def _doors_of(self) -> tuple[Any, Any]:
        from falaj.infer.keys import Keys

        config, keys = self.config, Keys(self.config.keys, open_to_all=self.config.open)
        rest: Any = None
        grpc: Any = None
        if config.http or config.hop:
            from falaj.infer.rest_door import Rest

            rest = Rest(self.engine, keys, name=config.name, version=VERSION)
        if config.grpc or config.hop:
            from falaj.infer.grpc_door import Grpc

            grpc = Grpc(self.engine, keys, name=config.name, version=VERSION)
        return rest, grpc

    async def _open(self, rest: Any, grpc: Any) -> None:
        if self.config.http:
            await self._open_http(rest)
        if self.config.grpc:
            await self._open_grpc(grpc)
        if self.config.hop:
            await self._open_hop(rest, grpc)

    async def _open_http(self, rest: Any) -> None:
        from falaj.oip.http1 import serve_http
        from falaj.oip.requests import Limits

        host, port = place_of(self.config.http)
        door = await serve_http(rest, host, port, ssl=self._tls(), limits=Limits(body_bytes=self.config.body_bytes))
        self._doors.append(door)
        self.addresses["http"] = _said(door.address)

    async def _open_grpc(self, grpc: Any) -> None:
        config, (host, port) = self.config, place_of(self.config.grpc)
        door: Any
        if config.grpc_with == "grpcio":
            from falaj.oip.grpcio_door import serve_grpcio

            files = {"cert": config.cert, "key": config.key}
            door = await serve_grpcio(grpc, host, port, body_bytes=config.body_bytes, **files)
        else:
            from falaj.oip.h2 import serve_h2

            door = await serve_h2(grpc, host, port, ssl=self._tls(), body_bytes=config.body_bytes)
        self._doors.append(door)
        self.addresses["grpc"] = _said(door.address)

    async def _open_hop(self, rest: Any, grpc: Any) -> None:
        from falaj.oip.hop import HopServer

        host, port = place_of(self.config.hop)
        listener = self._inherited_listener()
        name, version = self.engine.names()[0] if self.engine.names() else ("", "")
        watched = [one.watching.digest for one in self.engine.sessions() if one.watching is not None]
        about = {"name": name, "version": version, "pid": os.getpid(), "profile": watched[0] if watched else ""}
        door = HopServer(rest, grpc, self.config.hop_key, about=about, on_control=self._control)
        self.addresses["hop"] = _said(await door.start(host, port, self._tls(), listener))
        self._doors.append(door)
        self._carrier = Carrier(self.engine.sessions, door)
        self._carrier.start()

    def _inherited_listener(self) -> socket.socket | None:
        """The listening socket that the launcher opened outside of our network; None where we listen by ourselves."""
        if self.config.hop_fd < 0:
            return None
        listener = socket.socket(fileno=self.config.hop_fd)
        listener.set_inheritable(False)
        listener.setblocking(False)
        host = str(listener.getsockname()[0])
        if not _loopback(host) and not self.config.cert:
            raise Invalid(f"the inherited socket at {host} can be reached from elsewhere", "give cert and key")
        return listener

    def _control(self, said: dict[str, Any]) -> None:
        """What the gateway tells: which features a keys-only model reads now, and what it counts by."""
        if self._carrier is not None:
            self._carrier.control(said)
        plan = said.get("features")
        if isinstance(plan, dict):
            sealed = said.get("online_keys")
            self.engine.replan(plan, open_keys(self.config.hop_key, sealed) if isinstance(sealed, str) else None)

    def _check(self) -> None:
        """Nothing that could be overheard, nothing that anybody may call, from elsewhere."""
        config = self.config
        for address in (config.http, config.grpc, config.hop):
            if address and not _loopback(place_of(address)[0]) and not (config.cert and config.key):
                raise Invalid(
                    f"{address} can be reached from elsewhere, without TLS", "give cert and key, or 127.0.0.1"
                )
            if address and not _loopback(place_of(address)[0]) and config.open:
                raise Invalid(f"{address} can be reached from elsewhere, by anybody", "give keys, and not `open`")
        if config.grpc_with not in ("own", "grpcio"):
            raise Invalid(f"grpc_with is {config.grpc_with[:40]!r}", "own or grpcio")

    def _tls(self) -> ssl.SSLContext | None:
        if not self.config.cert:
            return None
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        try:
            context.load_cert_chain(self.config.cert, self.config.key or None)
        except (OSError, ssl.SSLError) as error:
            raise Invalid(f"the certificate cannot be used: {error}", "look at cert and key") from error
        return context

    def _hung(self, session: Session) -> None:
        """Its thread cannot be ended, so the process is: once what waited has been told."""
        said = f"{session.name} {session.version} hangs"
        asyncio.get_running_loop().call_later(FLUSH_S, end_hung, said)


async def begun(config: Config) -> tuple[Server, asyncio.Event]:
    """The server of a process that is nothing else, and what is set when it is told to end."""
    ended = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, ended.set)
    server = Server(config)
    await server.start()
    server.watch()
    gc.collect()
    gc.freeze()  # what is here stays: nobody has to look at it again
    gc.set_threshold(50_000, 20, 20)  # requests leave no circles behind
    return server, ended


def run(work: Coroutine[Any, Any, int]) -> int:
    """All that such a process does, on the faster loop where it is there."""
    sys.setswitchinterval(SWITCH_S)
    try:
        import uvloop
    except ImportError:
        return asyncio.run(work)
    return uvloop.run(work)


def place_of(address: str) -> tuple[str, int]:
    """host:port, or [host]:port."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65535:
        raise Invalid(f"{address[:100]!r} is no address", "host:port, for example 127.0.0.1:0")
    return host.strip("[]"), int(port)


def fingerprint(cert: str) -> str:
    """SHA-256 of a certificate: what a gateway holds us to."""
    if not cert:
        return ""
    return hashlib.sha256(ssl.PEM_cert_to_DER_cert(_first(Path(cert).read_text()))).hexdigest()


def told(kind: str, fact: dict[str, Any]) -> None:
    """A fact for whoever started this attempt; nobody hears it outside of one."""
    here = worker.attempt()
    folder = os.environ.get("FALAJ_OUTBOX", "")
    if here.id and folder:
        Outbox(folder, f"serve-{here.rank}").tell(kind, rank=here.rank, **fact)


def _first(pem: str) -> str:
    end = "-----END CERTIFICATE-----"
    return pem[pem.index("-----BEGIN") : pem.index(end) + len(end)]


def _loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _said(address: tuple[str, int]) -> str:
    return f"[{address[0]}]:{address[1]}" if ":" in address[0] else f"{address[0]}:{address[1]}"
