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

from falaj.api.authentication import RequestAuthenticator
from falaj.api.call_executor import CallExecutor
from falaj.api.grpc_messages import (
    PROTO_PACKAGE,
    PROTO_SERVICE,
    STREAMING_BY_METHOD,
    build_proto_text,
    decode_read_request,
    encode_read_response,
)
from falaj.api.http_server import ListenAddress
from falaj.api.identity_cache import get_peer_network
from falaj.api.json_logging import set_log_context
from falaj.api.responses import HttpError, render_error
from falaj.api.routes import RequestContext
from falaj.api.tls import ensure_local_certificate, list_local_names
from falaj.core.context import CallContext
from falaj.core.errors import FalajError, Invalid, NotFound, QuotaExceeded, Unavailable
from falaj.core.operation import get_operation
from falaj.core.settings import TlsSettings

if TYPE_CHECKING:
    from falaj.server import Server

# The library has no word for the lowest version of TLS. Ciphers of 1.3 cannot be chosen, so a list of older ones that
# only parties with a key in common could use leaves 1.3 alone. It is read once, when a process first uses the library.
os.environ["GRPC_SSL_CIPHER_SUITES"] = "ECDHE-PSK-AES256-CBC-SHA"

import grpc  # type: ignore[import-untyped]
from grpc import aio

__all__ = ["FeatureGrpcServer", "build_proto_text", "create_grpc_server"]
FEATURE_SERVICE, READ_OPERATION = "features", "read"
MAX_OPEN_CALLS, MAX_OPEN_CALLS_PER_CALLER, EXECUTOR_THREADS = 1000, 320, 2
"""Calls that are open at once, in sum and of one caller (of one peer while its callers are verified)."""
MAX_CONNECTIONS = 1024
"""Open connections; the library closes further ones at once, and knows no bound for one peer."""
HANDSHAKE_TIMEOUT_S, UNUSED_CONNECTION_TIMEOUT_S = 10.0, 60.0
"""Seconds for a connection's TLS and HTTP/2 handshakes, and without a call after which it is closed."""
IDLE_STREAM_TIMEOUT_S = 300.0
"""A stream in which nothing is asked for so long is ended."""
GRACE_S = 10.0
MAX_TRAILER_TEXT_BYTES = 1000
"""Of a message or hint in the trailers, which have to stay small."""
_STATUS_BY_CODE = {
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


def create_grpc_server(server: "Server", address: str, *, own_ca: bool = False) -> "FeatureGrpcServer":
    """A door at `address` (host:port), not yet open; `own_ca`: with the local authority's certificate."""
    return FeatureGrpcServer(server, ListenAddress.parse(address), own_ca=own_ca)


class FeatureGrpcServer:
    """`start()` opens it and `stop()` lets what runs end; `address` is where it listens."""

    def __init__(self, server: "Server", address: ListenAddress, *, own_ca: bool = False) -> None:
        tls, settings = server.settings.tls, server.settings
        if own_ca and not tls.cert:
            issued_tls = ensure_local_certificate(
                settings.home, (*list_local_names(address.host), *settings.hosts), time.time()
            )
            tls = TlsSettings(issued_tls.cert, issued_tls.key, tls.ca or issued_tls.ca, tls.mutual)
        if not tls.cert and not address.loopback:
            raise Invalid(
                f"{address.host} can be reached from outside and there is no TLS",
                "start with --tls, set tls.cert and tls.key, or listen on 127.0.0.1",
            )
        self.address = address.named(address.host)
        self._server, self._listen_address, self._tls = server, address, tls
        self._credentials = _load_credentials(tls) if tls.cert else None
        self._thread = threading.Thread(target=self._run_event_loop, name="grpc", daemon=True)
        self._started_event, self._loop = threading.Event(), asyncio.new_event_loop()
        self._stop_event = asyncio.Event()
        self._start_error: BaseException | None = None

    def start(self) -> "FeatureGrpcServer":
        """Listen; returns when it does, or raises what is in the way."""
        self._thread.start()
        self._started_event.wait()
        if self._start_error is not None:
            raise self._start_error
        if self._credentials is not None:
            self._reject_old_tls()
        return self

    def stop(self) -> None:
        """Take nothing new, let what runs end, and close."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stop_event.set)
            self._thread.join()

    def __enter__(self) -> "FeatureGrpcServer":
        return self.start()

    def __exit__(self, *exc: object) -> None:
        self.stop()

    def _run_event_loop(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._run_server())

    async def _run_server(self) -> None:
        server = self._server
        call_executor = CallExecutor(
            server.ledger.group, EXECUTOR_THREADS
        )  # never on this loop: a store that does not answer would stop the door
        call_executor.start()
        authenticator = RequestAuthenticator(server, call_executor, ())
        rpc_handler = FeatureRpcHandler(server, call_executor, authenticator)
        max_message_bytes = server.settings.limits.body_bytes
        options = (
            ("grpc.so_reuseport", 0), ("grpc.max_receive_message_length", max_message_bytes),
            ("grpc.max_send_message_length", -1), ("grpc.max_concurrent_streams", MAX_OPEN_CALLS_PER_CALLER),
            ("grpc.max_allowed_incoming_connections", MAX_CONNECTIONS),
            ("grpc.server_handshake_timeout_ms", int(HANDSHAKE_TIMEOUT_S * 1000)),
            ("grpc.max_connection_idle_ms", int(UNUSED_CONNECTION_TIMEOUT_S * 1000)),
        )  # fmt: skip
        grpc_server = aio.server(handlers=(rpc_handler,), options=options, maximum_concurrent_rpcs=MAX_OPEN_CALLS)
        try:
            self.address = (
                self._listen_address.named(self._listen_address.host).rpartition(":")[0]
                + f":{self._bind_port(grpc_server)}"
            )
            await grpc_server.start()
        except (FalajError, RuntimeError) as error:
            self._start_error = error if isinstance(error, FalajError) else self._address_taken_error()
        self._started_event.set()
        if self._start_error is None:
            await self._stop_event.wait()
        await grpc_server.stop(GRACE_S)
        await authenticator.refusals.flush()
        await asyncio.get_running_loop().run_in_executor(None, call_executor.stop)

    def _bind_port(self, grpc_server: Any) -> int:
        if self._credentials is not None:
            return int(grpc_server.add_secure_port(self.address, self._credentials))
        return int(grpc_server.add_insecure_port(self.address))

    def _address_taken_error(self) -> Unavailable:
        return Unavailable(f"{self.address} cannot be listened on", "stop what uses it, or choose another port")

    def _reject_old_tls(self) -> None:
        """Whatever else in this process used the library before us: a door that speaks older TLS is shut again."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE  # only the version is of interest
        context.minimum_version, context.maximum_version = ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_2
        context.set_alpn_protocols(["h2"])
        host, _, port = self.address.rpartition(":")
        try:
            with socket.create_connection((host.strip("[]"), int(port)), timeout=10) as tcp_connection:
                context.wrap_socket(tcp_connection).close()
        except OSError:
            return
        self.stop()
        raise Invalid(
            "gRPC here speaks TLS older than 1.3", "import falaj.api.grpc_server before anything that uses grpc"
        )


class FeatureRpcHandler(grpc.GenericRpcHandler):  # type: ignore[misc]
    """What answers each method, and every other name: nobody learns what exists before we know them."""

    def __init__(self, server: "Server", call_executor: CallExecutor, authenticator: RequestAuthenticator) -> None:
        self._server, self._call_executor, self._authenticator = server, call_executor, authenticator
        self._timeout_s = server.settings.limits.timeout_s
        self._open_calls = Counter[object]()

    def service(self, handler_call_details: Any) -> Any:
        """The handler of a call; bytes in, bytes out, so that nothing is parsed for strangers."""
        method = handler_call_details.method.removeprefix(f"/{PROTO_PACKAGE}.{PROTO_SERVICE}/")
        if STREAMING_BY_METHOD.get(method):
            return grpc.stream_stream_rpc_method_handler(self._read_stream)
        # A unary call is a stream of one message; as such its message is read after its caller is known.
        return grpc.stream_unary_rpc_method_handler(
            self._read_unary if method in STREAMING_BY_METHOD else self._refuse_unknown_method
        )

    async def _read_unary(self, bodies: AsyncIterator[bytes], context: Any, exists: bool = True) -> bytes:
        del bodies
        request = None
        try:
            request = _to_request_context(context)
            with self._limit_open_calls(get_peer_network(request.peer)):
                caller = await self._authenticator.identify(request)
            with self._limit_open_calls((caller.tenant, caller.id)):
                body = await self._next_message(context) if exists else None
                if body is aio.EOF:
                    raise Invalid("the call has no message, or one above limits.body_bytes", "send one ReadRequest")
                return await self._answer_read(request, body)
        except (FalajError, HttpError) as error:
            return await self._abort_with_error(context, request, error)

    async def _refuse_unknown_method(self, bodies: AsyncIterator[bytes], context: Any) -> bytes:
        return await self._read_unary(bodies, context, exists=False)

    async def _read_stream(self, bodies: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
        """One after the other; each asks the gate again, so a token that ends ends its stream."""
        del bodies
        request = None
        try:
            request = _to_request_context(context)
            with self._limit_open_calls(get_peer_network(request.peer)):
                caller = await self._authenticator.admit(request)
            with self._limit_open_calls((caller.tenant, caller.id)):
                while (body := await self._next_message(context)) is not aio.EOF:
                    yield await self._answer_read(request, body)
        except (FalajError, HttpError) as error:
            await self._abort_with_error(context, request, error)

    @contextmanager
    def _limit_open_calls(self, key: object) -> Iterator[None]:
        """Count a call to its peer or caller while it is open; QuotaExceeded above the share of each."""
        if self._open_calls[key] >= MAX_OPEN_CALLS_PER_CALLER:
            raise QuotaExceeded(
                f"{MAX_OPEN_CALLS_PER_CALLER} calls are open at once", "end some of them, and try again"
            )
        self._open_calls[key] += 1
        try:
            yield
        finally:
            self._open_calls[key] -= 1
            if not self._open_calls[key]:
                del self._open_calls[key]

    async def _next_message(self, context: Any) -> Any:
        try:
            async with asyncio.timeout(IDLE_STREAM_TIMEOUT_S):
                return await context.read()
        except TimeoutError:
            raise Unavailable("nothing was asked for a long while", "open a stream anew") from None

    async def _answer_read(self, request: RequestContext, body: bytes | None) -> bytes:
        """Caller, then bytes, then the guarded call."""
        request.request = ""  # of a stream, each has one of its own
        await self._authenticator.admit(request)
        if body is None:
            raise NotFound(
                "there is no such method",
                f"there are: {', '.join(STREAMING_BY_METHOD)} of {PROTO_PACKAGE}.{PROTO_SERVICE}",
            )
        ctx = self._authenticator.context(request, request.caller)
        service_class: Any = type(self._server.desks[FEATURE_SERVICE])
        operation = get_operation(service_class, READ_OPERATION)
        run_in_executor = self._call_executor.outside if operation.outside else self._call_executor.inside
        try:
            async with asyncio.timeout(self._timeout_s):
                outcome = await run_in_executor(self._call_operation, ctx, body)
        except TimeoutError:
            raise Unavailable("no answer in time", "ask for fewer rows, or try again") from None
        if outcome.error is not None:
            raise outcome.error if isinstance(outcome.error, FalajError) else _UnexpectedError(outcome.error)
        response: bytes = outcome.value
        return response

    def _call_operation(self, ctx: CallContext, body: bytes) -> bytes:
        set_log_context(ctx.actor.id, ctx.request)
        return encode_read_response(self._server.call(FEATURE_SERVICE, READ_OPERATION, ctx, decode_read_request(body)))

    async def _abort_with_error(
        self, context: Any, request: RequestContext | None, error: FalajError | HttpError
    ) -> bytes:
        """The one renderer's words, in the trailers; what the door itself refuses leaves an event, as over HTTP."""
        cause: BaseException = error.cause if isinstance(error, _UnexpectedError) else error
        response = render_error(cause, request.request if request is not None else "")
        error_fields = json.loads(response.body)
        if request is not None and not request.request and response.status in (401, 403, 404):
            await self._authenticator.refusals.record(request, error_fields["message"])
        trailers = [
            (f"falaj-{name}-bin", error_fields[name].encode()[:MAX_TRAILER_TEXT_BYTES])
            for name in ("message", "hint", "ref")
        ]
        trailers += [("falaj-code", error_fields["code"]), ("falaj-request", response.request)]
        trailers += [(name.decode(), value.decode()) for name, value in response.headers if name == b"retry-after"]
        code = _STATUS_BY_CODE.get(error_fields["code"], grpc.StatusCode.INTERNAL)
        await context.abort(code, error_fields["message"][:MAX_TRAILER_TEXT_BYTES], tuple(trailers))
        return b""


class _UnexpectedError(FalajError):
    """Something that is not ours broke in a verb; the renderer logs it and tells nobody what."""

    def __init__(self, cause: BaseException) -> None:
        super().__init__("something broke")
        self.cause = cause


def _to_request_context(context: Any) -> RequestContext:
    """The call as the gate knows requests: its metadata are headers, given once each where they decide something."""
    pairs = context.invocation_metadata() or ()
    headers = [(name.encode(), value if isinstance(value, bytes) else value.encode()) for name, value in pairs]
    # ipv4:127.0.0.1:4711, ipv6:%5B::1%5D:4711, unix:...
    peer = unquote(context.peer()).partition(":")[2].rpartition(":")[0].strip("[]")
    path = f"/{PROTO_PACKAGE}.{PROTO_SERVICE}"
    return RequestContext(
        {"method": "GRPC", "path": path, "headers": headers, "client": (peer, 0)}, _unused_channel, _unused_channel
    )


async def _unused_channel(*_: object) -> Any:
    """A call has no body to receive and nothing to send by the ways of HTTP."""
    raise AssertionError


def _load_credentials(tls: TlsSettings) -> Any:
    """The server's certificate, read again when its file changes: a renewed one is shown from the next handshake on."""
    if tls.mutual and not tls.ca:
        raise Invalid("tls.mutual is on and tls.ca is not set", "name the authority of your clients' certificates")
    loaded_mtimes: list[float] = []

    def reload_if_changed() -> Any:
        modified_at = Path(tls.cert).stat().st_mtime
        if loaded_mtimes == [modified_at]:
            return None
        loaded_mtimes[:] = [modified_at]
        return _load_certificate_chain(tls)

    try:
        return grpc.dynamic_ssl_server_credentials(
            reload_if_changed(), reload_if_changed, require_client_authentication=tls.mutual
        )
    except OSError as error:
        raise Invalid("the certificate or its key cannot be loaded", "check tls.cert and tls.key") from error


def _load_certificate_chain(tls: TlsSettings) -> Any:
    cert = Path(tls.cert).read_bytes()
    key = Path(tls.key).read_bytes() if tls.key else cert
    root = Path(tls.ca).read_bytes() if tls.mutual else None
    return grpc.ssl_server_certificate_configuration([(key, cert)], root_certificates=root)
