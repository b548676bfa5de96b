"""The gRPC door: online features by their own protocol, through the same gate and the same guard as over HTTP.

Bytes are read only once their sender is known and within a share. An event loop on a thread of its own serves the
door; verbs run in lanes, as they do behind HTTP. Plain on loopback only; any other address speaks TLS 1.3.
"""

import asyncio
import json
import os
import socket
import ssl
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from falaj.api.answers import Refusal, render
from falaj.api.gate import Gate
from falaj.api.identities import peer_network
from falaj.api.lanes import Lanes
from falaj.api.logs import enter
from falaj.api.messages import METHODS, PACKAGE, SERVICE, answered, asked, proto_text
from falaj.api.routes import Ask
from falaj.api.server import Address
from falaj.api.tls import local_names, local_tls
from falaj.core.context import Context
from falaj.core.errors import FalajError, Invalid, NotFound, QuotaExceeded, Unavailable
from falaj.core.settings import Tls
from falaj.core.verb import verb_of

if TYPE_CHECKING:
    from falaj.platform import House

# The library has no word for the lowest version of TLS. Ciphers of 1.3 cannot be chosen, so a list of older ones that
# only parties with a key in common could use leaves 1.3 alone. It is read once, when a process first uses the library.
os.environ["GRPC_SSL_CIPHER_SUITES"] = "ECDHE-PSK-AES256-CBC-SHA"

import grpc  # type: ignore[import-untyped]
from grpc import aio

__all__ = ["FeatureDoor", "proto_text", "serve_grpc"]
DESK, VERB = "features", "read"
AT_ONCE, AT_ONCE_SHARE, LANES = 1000, 320, 2
"""Calls that are open at once, in sum and of one caller (of one peer while its callers are verified)."""
CONNECTIONS = 1024
"""Open connections; the library closes further ones at once, and knows no bound for one peer."""
HANDSHAKE_S, UNUSED_S = 10.0, 60.0
"""Seconds for a connection's TLS and HTTP/2 handshakes, and without a call after which it is closed."""
IDLE_S = 300.0
"""A stream in which nothing is asked for so long is ended."""
GRACE_S = 10.0
TEXT_BYTES = 1000
"""Of a message or hint in the trailers, which have to stay small."""
_CODES = {
    "invalid": grpc.StatusCode.INVALID_ARGUMENT,
    "unauthenticated": grpc.StatusCode.UNAUTHENTICATED,
    "denied": grpc.StatusCode.PERMISSION_DENIED,
    "not-found": grpc.StatusCode.NOT_FOUND,
    "conflict": grpc.StatusCode.FAILED_PRECONDITION,
    "stale": grpc.StatusCode.ABORTED,
    "quota-exceeded": grpc.StatusCode.RESOURCE_EXHAUSTED,
    "unavailable": grpc.StatusCode.UNAVAILABLE,
    "corrupt": grpc.StatusCode.DATA_LOSS,
    "user-code-failed": grpc.StatusCode.FAILED_PRECONDITION,
}


def serve_grpc(house: "House", address: str, *, own_ca: bool = False) -> "FeatureDoor":
    """A door at `address` (host:port), not yet open; `own_ca`: with the local authority's certificate."""
    return FeatureDoor(house, Address.parse(address), own_ca=own_ca)


class FeatureDoor:
    """`start()` opens it and `stop()` lets what runs end; `address` is where it listens."""

    def __init__(self, house: "House", address: Address, *, own_ca: bool = False) -> None:
        tls, settings = house.settings.tls, house.settings
        if own_ca and not tls.cert:
            made = local_tls(settings.home, (*local_names(address.host), *settings.hosts), time.time())
            tls = Tls(made.cert, made.key, tls.ca or made.ca, tls.mutual)
        if not tls.cert and not address.loopback:
            raise Invalid(
                f"{address.host} can be reached from outside and there is no TLS",
                "start with --tls, set tls.cert and tls.key, or listen on 127.0.0.1",
            )
        self.address = address.named(address.host)
        self._house, self._host, self._tls = house, address, tls
        self._credentials = _credentials(tls) if tls.cert else None
        self._thread = threading.Thread(target=self._run, name="grpc", daemon=True)
        self._up, self._loop = threading.Event(), asyncio.new_event_loop()
        self._end = asyncio.Event()
        self._failed: BaseException | None = None

    def start(self) -> "FeatureDoor":
        """Listen; returns when it does, or raises what is in the way."""
        self._thread.start()
        self._up.wait()
        if self._failed is not None:
            raise self._failed
        if self._credentials is not None:
            self._refuses_old_tls()
        return self

    def stop(self) -> None:
        """Take nothing new, let what runs end, and close."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._end.set)
            self._thread.join()

    def __enter__(self) -> "FeatureDoor":
        return self.start()

    def __exit__(self, *exc: object) -> None:
        self.stop()

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._serve())

    async def _serve(self) -> None:
        house = self._house
        lanes = Lanes(house.ledger.group, LANES)  # never on this loop: a store that does not answer would stop the door
        lanes.start()
        gate = Gate(house, lanes, ())
        calls = Calls(house, lanes, gate)
        limit = house.settings.limits.body_bytes
        options = (
            ("grpc.so_reuseport", 0), ("grpc.max_receive_message_length", limit),
            ("grpc.max_send_message_length", -1), ("grpc.max_concurrent_streams", AT_ONCE_SHARE),
            ("grpc.max_allowed_incoming_connections", CONNECTIONS),
            ("grpc.server_handshake_timeout_ms", int(HANDSHAKE_S * 1000)),
            ("grpc.max_connection_idle_ms", int(UNUSED_S * 1000)),
        )  # fmt: skip
        server = aio.server(handlers=(calls,), options=options, maximum_concurrent_rpcs=AT_ONCE)
        try:
            self.address = self._host.named(self._host.host).rpartition(":")[0] + f":{self._bind(server)}"
            await server.start()
        except (FalajError, RuntimeError) as error:
            self._failed = error if isinstance(error, FalajError) else self._taken()
        self._up.set()
        if self._failed is None:
            await self._end.wait()
        await server.stop(GRACE_S)
        await gate.refusals.flush()
        await asyncio.get_running_loop().run_in_executor(None, lanes.stop)

    def _bind(self, server: Any) -> int:
        if self._credentials is not None:
            return int(server.add_secure_port(self.address, self._credentials))
        return int(server.add_insecure_port(self.address))

    def _taken(self) -> Unavailable:
        return Unavailable(f"{self.address} cannot be listened on", "stop what uses it, or choose another port")

    def _refuses_old_tls(self) -> None:
        """Whatever else in this process used the library before us: a door that speaks older TLS is shut again."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE  # only the version is of interest
        context.minimum_version, context.maximum_version = ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_2
        context.set_alpn_protocols(["h2"])
        host, _, port = self.address.rpartition(":")
        try:
            with socket.create_connection((host.strip("[]"), int(port)), timeout=10) as bare:
                context.wrap_socket(bare).close()
        except OSError:
            return
        self.stop()
        raise Invalid("gRPC here speaks TLS older than 1.3", "import falaj.api.grpc before anything that uses grpc")


class Calls(grpc.GenericRpcHandler):  # type: ignore[misc]
    """What answers each method, and every other name: nobody learns what exists before we know them."""

    def __init__(self, house: "House", lanes: Lanes, gate: Gate) -> None:
        self._house, self._lanes, self._gate = house, lanes, gate
        self._timeout_s = house.settings.limits.timeout_s
        self._open = Counter[object]()

    def service(self, handler_call_details: Any) -> Any:
        """The handler of a call; bytes in, bytes out, so that nothing is parsed for strangers."""
        method = handler_call_details.method.removeprefix(f"/{PACKAGE}.{SERVICE}/")
        if METHODS.get(method):
            return grpc.stream_stream_rpc_method_handler(self._stream)
        # A unary call is a stream of one message; as such its message is read after its caller is known.
        return grpc.stream_unary_rpc_method_handler(self._read_unary if method in METHODS else self._nothing)

    async def _read_unary(self, bodies: AsyncIterator[bytes], context: Any, exists: bool = True) -> bytes:
        del bodies
        ask = None
        try:
            ask = _ask(context)
            with self._share(peer_network(ask.peer)):
                caller = await self._gate.identify(ask)
            with self._share((caller.tenant, caller.id)):
                body = await self._next(context) if exists else None
                if body is aio.EOF:
                    raise Invalid("the call has no message, or one above limits.body_bytes", "send one ReadRequest")
                return await self._read(ask, body)
        except (FalajError, Refusal) as error:
            return await self._refuse(context, ask, error)

    async def _nothing(self, bodies: AsyncIterator[bytes], context: Any) -> bytes:
        return await self._read_unary(bodies, context, exists=False)

    async def _stream(self, bodies: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
        """One after the other; each asks the gate again, so a token that ends ends its stream."""
        del bodies
        ask = None
        try:
            ask = _ask(context)
            with self._share(peer_network(ask.peer)):
                caller = await self._gate.admit(ask)
            with self._share((caller.tenant, caller.id)):
                while (body := await self._next(context)) is not aio.EOF:
                    yield await self._read(ask, body)
        except (FalajError, Refusal) as error:
            await self._refuse(context, ask, error)

    @contextmanager
    def _share(self, key: object) -> Iterator[None]:
        """Count a call to its peer or caller while it is open; QuotaExceeded above the share of each."""
        if self._open[key] >= AT_ONCE_SHARE:
            raise QuotaExceeded(f"{AT_ONCE_SHARE} calls are open at once", "end some of them, and try again")
        self._open[key] += 1
        try:
            yield
        finally:
            self._open[key] -= 1
            if not self._open[key]:
                del self._open[key]

    async def _next(self, context: Any) -> Any:
        try:
            async with asyncio.timeout(IDLE_S):
                return await context.read()
        except TimeoutError:
            raise Unavailable("nothing was asked for a long while", "open a stream anew") from None

    async def _read(self, ask: Ask, body: bytes | None) -> bytes:
        """Caller, then bytes, then the guarded call."""
        ask.request = ""  # of a stream, each has one of its own
        await self._gate.admit(ask)
        if body is None:
            raise NotFound("there is no such method", f"there are: {', '.join(METHODS)} of {PACKAGE}.{SERVICE}")
        ctx = self._gate.context(ask, ask.caller)
        desk: Any = type(self._house.desks[DESK])
        verb = verb_of(desk, VERB)
        run = self._lanes.outside if verb.outside else self._lanes.inside
        try:
            async with asyncio.timeout(self._timeout_s):
                outcome = await run(self._within, ctx, body)
        except TimeoutError:
            raise Unavailable("no answer in time", "ask for fewer rows, or try again") from None
        if outcome.error is not None:
            raise outcome.error if isinstance(outcome.error, FalajError) else _Broken(outcome.error)
        found: bytes = outcome.value
        return found

    def _within(self, ctx: Context, body: bytes) -> bytes:
        enter(ctx.actor.id, ctx.request)
        return answered(self._house.call(DESK, VERB, ctx, asked(body)))

    async def _refuse(self, context: Any, ask: Ask | None, error: FalajError | Refusal) -> bytes:
        """The one renderer's words, in the trailers; what the door itself refuses leaves an event, as over HTTP."""
        cause: BaseException = error.cause if isinstance(error, _Broken) else error
        answer = render(cause, ask.request if ask is not None else "")
        said = json.loads(answer.body)
        if ask is not None and not ask.request and answer.status in (401, 403, 404):
            await self._gate.refusals.record(ask, said["message"])
        trailers = [(f"falaj-{name}-bin", said[name].encode()[:TEXT_BYTES]) for name in ("message", "hint", "ref")]
        trailers += [("falaj-code", said["code"]), ("falaj-request", answer.request)]
        trailers += [(name.decode(), value.decode()) for name, value in answer.headers if name == b"retry-after"]
        code = _CODES.get(said["code"], grpc.StatusCode.INTERNAL)
        await context.abort(code, said["message"][:TEXT_BYTES], tuple(trailers))
        return b""


class _Broken(FalajError):
    """Something that is not ours broke in a verb; the renderer logs it and tells nobody what."""

    def __init__(self, cause: BaseException) -> None:
        super().__init__("something broke")
        self.cause = cause


def _ask(context: Any) -> Ask:
    """The call as the gate knows requests: its metadata are headers, given once each where they decide something."""
    pairs = context.invocation_metadata() or ()
    headers = [(name.encode(), value if isinstance(value, bytes) else value.encode()) for name, value in pairs]
    # ipv4:127.0.0.1:4711, ipv6:%5B::1%5D:4711, unix:...
    peer = unquote(context.peer()).partition(":")[2].rpartition(":")[0].strip("[]")
    path = f"/{PACKAGE}.{SERVICE}"
    return Ask({"method": "GRPC", "path": path, "headers": headers, "client": (peer, 0)}, _silent, _silent)


async def _silent(*_: object) -> Any:
    """A call has no body to receive and nothing to send by the ways of HTTP."""
    raise AssertionError


def _credentials(tls: Tls) -> Any:
    """The server's certificate, read again when its file changes: a renewed one is shown from the next handshake on."""
    if tls.mutual and not tls.ca:
        raise Invalid("tls.mutual is on and tls.ca is not set", "name the authority of your clients' certificates")
    seen: list[float] = []

    def current() -> Any:
        newest = Path(tls.cert).stat().st_mtime
        if seen == [newest]:
            return None
        seen[:] = [newest]
        return _chain(tls)

    try:
        return grpc.dynamic_ssl_server_credentials(current(), current, require_client_authentication=tls.mutual)
    except OSError as error:
        raise Invalid("the certificate or its key cannot be loaded", "check tls.cert and tls.key") from error


def _chain(tls: Tls) -> Any:
    cert = Path(tls.cert).read_bytes()
    key = Path(tls.key).read_bytes() if tls.key else cert
    root = Path(tls.ca).read_bytes() if tls.mutual else None
    return grpc.ssl_server_certificate_configuration([(key, cert)], root_certificates=root)
