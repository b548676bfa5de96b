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
from falaj.asof.space_keys import decrypt_space_keys
from falaj.core.errors import FalajError, Invalid, Unavailable
from falaj.core.release import VERSION
from falaj.infer.engine import InferenceEngine
from falaj.infer.loop_watchdog import LoopWatchdog, exit_hung_process
from falaj.infer.model_session import ModelSession
from falaj.infer.records import ServerConfig
from falaj.infer.tally_carrier import TallyCarrier
from falaj.worker.outbox import Outbox
from falaj.worker.sandbox_egress import find_own_address

HUNG_FLUSH_S = 0.25
SWITCH_INTERVAL_S = 0.0005
"""A thread that comes back from a run waits so long for Python at most; the default is 5 ms."""


class InferenceServer:
    """One server: `start`, then `drain`."""

    def __init__(self, config: ServerConfig) -> None:
        self.config = config
        self.addresses: dict[str, str] = {}
        """Door to host:port."""
        self.exit_code = 0
        self._listeners: list[Any] = []
        self._carrier: TallyCarrier | None = None
        self._engine: InferenceEngine | None = None

    @property
    def engine(self) -> InferenceEngine:
        """There from `start` on."""
        if self._engine is None:
            raise Unavailable("the server has not been started", "await start() first")
        return self._engine

    async def start(self) -> None:
        """Load and warm the models, then open the doors: whoever reaches us can be answered."""
        self._check_exposure()
        self._engine = InferenceEngine(self.config, on_hung=self._on_hung)
        try:
            loading = asyncio.gather(*(self.engine.placed(model) for model in self.config.models))
            await asyncio.sleep(0)
            rest_handler, grpc_handler = self._create_handlers()  # their modules are read while the models are
            await loading
            await self._open_listeners(rest_handler, grpc_handler)
        except FalajError:
            await self.drain(0.0)
            raise
        except OSError as error:
            await self.drain(0.0)
            raise Unavailable(f"an address cannot be listened on: {error.strerror}", "choose another port") from error

    def watch(self) -> None:
        """From now on, end the process when its loop stands still. For whoever owns the process."""
        LoopWatchdog(self.engine, max([model.timeout_s for model in self.config.models], default=30.0)).start()

    async def drain(self, timeout_s: float | None = None) -> None:
        """Take nothing new, answer what is here, and end."""
        timeout_s = self.config.drain_s if timeout_s is None else timeout_s
        self.engine.draining = True
        if self._carrier is not None:
            await self._carrier.drain(timeout_s)
        await asyncio.gather(*(listener.drain(timeout_s) for listener in self._listeners))
        await self.engine.close(timeout_s)

    def ready(self) -> dict[str, Any]:
        """What is said when everything listens."""
        return {"ready": True, "pid": os.getpid(), **self.addresses}

    def fact(self) -> dict[str, Any]:
        """What a replica tells whoever started it."""
        address = self.addresses.get("hop") or self.addresses.get("http") or "127.0.0.1:0"
        host, port = parse_address(address)
        name, version = self.engine.names()[0] if self.engine.names() else ("", "")
        return {
            "host": self.config.hop_host or find_own_address(host), "port": port,
            "fingerprint": certificate_fingerprint(self.config.cert), "model": name, "version": version,
            "pid": os.getpid(), "tls": bool(self.config.cert),
        }  # fmt: skip

    def _create_handlers(self) -> tuple[Any, Any]:
        from falaj.infer.token_keys import TokenKeys

        config, token_keys = self.config, TokenKeys(self.config.keys, open_to_all=self.config.open)
        rest_handler: Any = None
        grpc_handler: Any = None
        if config.http or config.hop:
            from falaj.infer.rest_handler import RestInferHandler

            rest_handler = RestInferHandler(self.engine, token_keys, name=config.name, version=VERSION)
        if config.grpc or config.hop:
            from falaj.infer.grpc_handler import GrpcInferHandler

            grpc_handler = GrpcInferHandler(self.engine, token_keys, name=config.name, version=VERSION)
        return rest_handler, grpc_handler

    async def _open_listeners(self, rest_handler: Any, grpc_handler: Any) -> None:
        if self.config.http:
            await self._open_http(rest_handler)
        if self.config.grpc:
            await self._open_grpc(grpc_handler)
        if self.config.hop:
            await self._open_upstream(rest_handler, grpc_handler)

    async def _open_http(self, rest_handler: Any) -> None:
        from falaj.oip.http1_parser import Http1Limits
        from falaj.oip.http1_server import serve_http

        host, port = parse_address(self.config.http)
        listener = await serve_http(
            rest_handler,
            host,
            port,
            ssl=self._create_tls_context(),
            limits=Http1Limits(body_bytes=self.config.body_bytes),
        )
        self._listeners.append(listener)
        self.addresses["http"] = _format_address(listener.address)

    async def _open_grpc(self, grpc_handler: Any) -> None:
        config, (host, port) = self.config, parse_address(self.config.grpc)
        listener: Any
        if config.grpc_with == "grpcio":
            from falaj.oip.grpcio_server import serve_grpcio

            files = {"cert": config.cert, "key": config.key}
            listener = await serve_grpcio(grpc_handler, host, port, body_bytes=config.body_bytes, **files)
        else:
            from falaj.oip.http2_server import serve_http2

            listener = await serve_http2(
                grpc_handler, host, port, ssl=self._create_tls_context(), body_bytes=config.body_bytes
            )
        self._listeners.append(listener)
        self.addresses["grpc"] = _format_address(listener.address)

    async def _open_upstream(self, rest_handler: Any, grpc_handler: Any) -> None:
        from falaj.oip.upstream_server import UpstreamServer

        host, port = parse_address(self.config.hop)
        inherited_socket = self._inherited_listener()
        name, version = self.engine.names()[0] if self.engine.names() else ("", "")
        profile_digests = [
            session.watching.digest for session in self.engine.sessions() if session.watching is not None
        ]
        server_info = {
            "name": name,
            "version": version,
            "pid": os.getpid(),
            "profile": profile_digests[0] if profile_digests else "",
        }
        upstream_listener = UpstreamServer(
            rest_handler, grpc_handler, self.config.hop_key, server_info=server_info, on_control=self._handle_control
        )
        self.addresses["hop"] = _format_address(
            await upstream_listener.start(host, port, self._create_tls_context(), inherited_socket)
        )
        self._listeners.append(upstream_listener)
        self._carrier = TallyCarrier(self.engine.sessions, upstream_listener)
        self._carrier.start()

    def _inherited_listener(self) -> socket.socket | None:
        """The listening socket that the launcher opened outside of our network; None where we listen by ourselves."""
        if self.config.hop_fd < 0:
            return None
        listener = socket.socket(fileno=self.config.hop_fd)
        listener.set_inheritable(False)
        listener.setblocking(False)
        host = str(listener.getsockname()[0])
        if not _is_loopback(host) and not self.config.cert:
            raise Invalid(f"the inherited socket at {host} can be reached from elsewhere", "give cert and key")
        return listener

    def _handle_control(self, message: dict[str, Any]) -> None:
        """What the gateway tells: which features a keys-only model reads now, and what it counts by."""
        if self._carrier is not None:
            self._carrier.control(message)
        plan = message.get("features")
        if isinstance(plan, dict):
            sealed_keys = message.get("online_keys")
            self.engine.replan(
                plan, decrypt_space_keys(self.config.hop_key, sealed_keys) if isinstance(sealed_keys, str) else None
            )

    def _check_exposure(self) -> None:
        """Nothing that could be overheard, nothing that anybody may call, from elsewhere."""
        config = self.config
        for address in (config.http, config.grpc, config.hop):
            if address and not _is_loopback(parse_address(address)[0]) and not (config.cert and config.key):
                raise Invalid(
                    f"{address} can be reached from elsewhere, without TLS", "give cert and key, or 127.0.0.1"
                )
            if address and not _is_loopback(parse_address(address)[0]) and config.open:
                raise Invalid(f"{address} can be reached from elsewhere, by anybody", "give keys, and not `open`")
        if config.grpc_with not in ("own", "grpcio"):
            raise Invalid(f"grpc_with is {config.grpc_with[:40]!r}", "own or grpcio")

    def _create_tls_context(self) -> ssl.SSLContext | None:
        if not self.config.cert:
            return None
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        try:
            context.load_cert_chain(self.config.cert, self.config.key or None)
        except (OSError, ssl.SSLError) as error:
            raise Invalid(f"the certificate cannot be used: {error}", "look at cert and key") from error
        return context

    def _on_hung(self, session: ModelSession) -> None:
        """Its thread cannot be ended, so the process is: once what waited has been told."""
        description = f"{session.name} {session.version} hangs"
        asyncio.get_running_loop().call_later(HUNG_FLUSH_S, exit_hung_process, description)


async def start_process_server(config: ServerConfig) -> tuple[InferenceServer, asyncio.Event]:
    """The server of a process that is nothing else, and what is set when it is told to end."""
    end_event = asyncio.Event()
    for signal_number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(signal_number, end_event.set)
    server = InferenceServer(config)
    await server.start()
    server.watch()
    gc.collect()
    gc.freeze()  # what is here stays: nobody has to look at it again
    gc.set_threshold(50_000, 20, 20)  # requests leave no circles behind
    return server, end_event


def run_event_loop(work: Coroutine[Any, Any, int]) -> int:
    """All that such a process does, on the faster loop where it is there."""
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    try:
        import uvloop
    except ImportError:
        return asyncio.run(work)
    return uvloop.run(work)


def parse_address(address: str) -> tuple[str, int]:
    """host:port, or [host]:port."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65535:
        raise Invalid(f"{address[:100]!r} is no address", "host:port, for example 127.0.0.1:0")
    return host.strip("[]"), int(port)


def certificate_fingerprint(cert: str) -> str:
    """SHA-256 of a certificate: what a gateway holds us to."""
    if not cert:
        return ""
    return hashlib.sha256(ssl.PEM_cert_to_DER_cert(_first_certificate(Path(cert).read_text()))).hexdigest()


def report_fact(fact_kind: str, fact: dict[str, Any]) -> None:
    """A fact for whoever started this attempt; nobody hears it outside of one."""
    attempt = worker.attempt()
    folder = os.environ.get("FALAJ_OUTBOX", "")
    if attempt.id and folder:
        Outbox(folder, f"serve-{attempt.rank}").tell(fact_kind, rank=attempt.rank, **fact)


def _first_certificate(pem: str) -> str:
    end_marker = "-----END CERTIFICATE-----"
    return pem[pem.index("-----BEGIN") : pem.index(end_marker) + len(end_marker)]


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _format_address(address: tuple[str, int]) -> str:
    return f"[{address[0]}]:{address[1]}" if ":" in address[0] else f"{address[0]}:{address[1]}"
