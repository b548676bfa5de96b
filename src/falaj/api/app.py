"""The HTTP edge: one ASGI layer that turns a request into one guarded call, and whatever happens into one answer."""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Iterable, Iterator, MutableMapping
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from falaj.api.argument_decoding import ARGUMENTS_HEADER, ArgumentDecoder, check_json_depth
from falaj.api.authentication import AGENT_PATHS, WEBHOOK_PATH_PREFIX, RequestAuthenticator
from falaj.api.body_streams import ReceiveMessage, RequestBodyReader, ResponseStreamWriter
from falaj.api.byte_channel_handler import ByteChannelHandler
from falaj.api.byte_channel_protocol import BUNDLE_PATH, GET_PATH, PUT_PATH
from falaj.api.call_executor import AsyncCommit, CallExecutor, capture_outcome
from falaj.api.connection_table import ConnectionTable
from falaj.api.event_streams import EventStreamHandler
from falaj.api.json_logging import set_log_context
from falaj.api.metrics import EdgeMetrics, MetricFamily, format_families, make_counter, make_gauge, make_labelled_family
from falaj.api.platform_metrics import PlatformMetrics, reports_shared_gauges
from falaj.api.quick import Quick
from falaj.api.request_deadlines import RequestDeadlines
from falaj.api.request_tracing import create_span_starter
from falaj.api.responses import (
    JSON_TYPE,
    METRICS_TEXT_TYPE,
    HttpError,
    HttpResponse,
    Send,
    encode_internal_error,
    render_error,
    send_response,
)
from falaj.api.routes import OPEN_ACTION, SHOW_PATH_PREFIX, HttpRoute, OperationCall, RequestContext, Router
from falaj.api.soon import Taker
from falaj.core.argument_binding import union_members
from falaj.core.byte_stream import ByteStream
from falaj.core.context import SYSTEM_TENANT, CallContext
from falaj.core.errors import Denied, FalajError, Invalid, Unavailable
from falaj.core.event import generate_id
from falaj.core.operation import list_operations
from falaj.core.ports import SupportsAsyncCommit, SupportsPrefetch
from falaj.core.ref import Ref
from falaj.govern.people import GUEST_ACTOR
from falaj.services import SERVICES
from falaj.store.codec import to_json

if TYPE_CHECKING:
    from falaj.server import Server

RENEW_OPERATION = "agents.renew"
"""The one operation whose caller is the TLS certificate of the connection, and no token."""
LARGE_BODY_BYTES = 262_144
"""Bodies above this are parsed beside the event loop."""
MAX_DRAIN_BYTES, DRAIN_TIMEOUT_S = 1 << 20, 2.0
MAX_ANONYMOUS_BODY_BYTES, ANONYMOUS_BODY_TIMEOUT_S = 65_536, 15.0
"""The largest body of a caller without an identity (who joins, exchanges a token or signs in), and its time."""
LEDGER_SILENCE_LIMIT_S = 10.0
"""Seconds without an answer of the ledger store after which calls that need it fail at once."""
ESSENTIAL_DEPENDENCIES = ("store", "version")
"""Dependencies without which this replica can serve nothing; without any other it serves what does not need it."""
LEDGER_FREE_PATHS = frozenset({b"/health", b"/ready", b"/v1/login", b"/v1/openapi.json"})
"""Paths that are answered without the ledger store."""
EXTERNAL_CALL_SPANS = 60
"""A call that acts outside the ledger may take this many times as long as another."""
# An ASGI server runs every request as a task; without one nothing could be ended, and failing here says so.
_NO_TASK: asyncio.Task[object] = None  # type: ignore[assignment]
_log = logging.getLogger(__name__)


class PageHandler(Protocol):
    """Another face of the same house, behind the same gate: pages for people beside calls of programs."""

    def owns(self, path: bytes) -> bool:
        """True when what is asked there is for this door."""

    async def answer(self, request: RequestContext) -> HttpResponse | None:
        """What it says; None when it has said it already."""

    def said(self, request: RequestContext, error: BaseException) -> HttpResponse:
        """An error, as this door's callers read it."""


class HttpApplication:
    """The ASGI application over one house."""

    def __init__(self, server: "Server", hosts: Iterable[str], thread_count: int = 1) -> None:
        self.house = server
        self.metrics, self.figures = EdgeMetrics(), PlatformMetrics(server)
        store = server.ledger.store
        plan_reads = store.ahead if isinstance(store, SupportsPrefetch) else None
        async_commit = None
        if isinstance(store, SupportsAsyncCommit) and not server.settings.embedded:
            async_committer = store.courier()
            async_commit = AsyncCommit(async_committer, partial(server.ledger.aside, async_committer))
        self.lanes = CallExecutor(
            server.ledger.group,
            thread_count,
            runs_inline=server.settings.embedded,
            plan_reads=plan_reads,
            async_commit=async_commit,
        )
        if not server.settings.embedded:
            server.ledger.beside = self.lanes.beside
        self.gate = RequestAuthenticator(server, self.lanes, hosts)
        self.router = Router()
        self._limits = server.settings.limits
        self.connections = ConnectionTable(self._limits.connections, self._limits.connections_per_peer)
        self.deadlines = RequestDeadlines(self._limits.timeout_s, self._is_ledger_silent)
        self.events = EventStreamHandler(server, self.lanes, self.gate, self.metrics, self.deadlines)
        self.carrier = ByteChannelHandler(server, self.lanes)
        self._trace_call = create_span_starter()
        # What is read often is answered at once where nothing of it is far away; a slow store must not stop the door.
        self._runs_frequent_reads_inline = server.settings.embedded and server.settings.online.startswith("lmdb:")
        self._openapi_document = b""
        self.door: PageHandler | None = None
        self.stopping = asyncio.Event()
        self.draining = False
        """True once we go: balancers look elsewhere, and what is asked is still answered."""
        self.takers: dict[bytes, Taker] = {}
        self._add_routes()
        frequent_routes = (route for route in self.router.routes() if route.call is not None and route.call.verb.often)
        self.quick = Quick(
            self,
            {route.path.encode(): route.call for route in frequent_routes if route.call}
            if self._runs_frequent_reads_inline
            else {},
            self.takers,
        )

    async def __call__(self, scope: MutableMapping[str, Any], receive: ReceiveMessage, send: Send) -> None:
        if scope["type"] == "http":
            await self._handle_http(scope, receive, send)
        elif scope["type"] == "websocket":  # no route is one, so every one is closed before it opens
            await receive()
            await send({"type": "websocket.close", "code": 1008})
        else:
            await self._run_lifespan(receive, send)

    async def _run_lifespan(self, receive: ReceiveMessage, send: Send) -> None:
        await receive()
        self.lanes.start()
        self.deadlines.start()
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await self.gate.refusals.flush()
        await asyncio.get_running_loop().run_in_executor(None, self.lanes.stop, self.house.settings.drain_s)
        await send({"type": "lifespan.shutdown.complete"})

    async def _handle_http(self, scope: MutableMapping[str, Any], receive: ReceiveMessage, send: Send) -> None:
        started_at = time.perf_counter()
        task = asyncio.current_task() or _NO_TASK
        self.deadlines.open(task)
        request = None
        try:
            request = RequestContext(scope, receive, send)
            response = await self._route_request(request)
        except (FalajError, HttpError) as error:
            response = await self._handle_error(request, error)
        except asyncio.CancelledError:
            if request is None or not self.deadlines.ended(task):
                raise
            response = _timeout_response(request)
        except Exception as error:
            request_id = request.request if request is not None and request.request else generate_id()
            self.metrics.count(request.action if request is not None else "none", 500)
            error_response = HttpResponse(500, encode_internal_error(request_id), request_id)
            if request is not None and self.door is not None and self.door.owns(request.path):
                error_response = self.door.said(request, error)
            await send_response(
                send, error_response._replace(headers=(*error_response.headers, (b"connection", b"close")))
            )
            raise  # the server logs it, with the trace
        finally:
            self.deadlines.close(task)
            is_timed = self.deadlines.hurried(task)
        if response is not None:
            if request is not None and request.unread and _has_body(request):
                response = await _drain_body(request, response)
            await send_response(send, response)
        duration_s = time.perf_counter() - started_at if is_timed else None
        self.metrics.count(
            request.action if request is not None else "none", 200 if response is None else response.status, duration_s
        )

    async def _route_request(self, request: RequestContext) -> HttpResponse | None:
        """Place, then caller, then path, then what was asked."""
        self.gate.check_place(request)
        if self._is_ledger_silent() and request.path not in LEDGER_FREE_PATHS:
            hint = "calls are answered again within seconds of its first answer; falaj doctor names the reason"
            raise Unavailable(f"the ledger store has not answered for {LEDGER_SILENCE_LIMIT_S:.0f} s", hint)
        if self.house.fence.is_up and (request.path in AGENT_PATHS or request.path.startswith(WEBHOOK_PATH_PREFIX)):
            raise Unavailable("this restored copy is fenced: it answers no agent and no webhook", "ask the old one")
        if self.door is not None and self.door.owns(request.path):
            return await self.door.answer(request)
        route = self.router.open(request)
        if route is None:
            await self.gate.admit(request)
            route = self.router.find(request)
        request.action = route.action
        return await route.serve(request)

    async def _handle_error(self, request: RequestContext | None, error: FalajError | HttpError) -> HttpResponse:
        """Render it. What the edge itself refuses leaves an event; the guard has recorded its own refusals."""
        response = self._render_error(request, error)
        self.metrics.refused[(error.error if isinstance(error, HttpError) else error).code] += 1
        if request is not None and not request.request and response.status in (401, 403, 404, 405, 421):
            await self.gate.refusals.record(
                request, error.error.message if isinstance(error, HttpError) else error.message
            )
        return response

    def _render_error(self, request: RequestContext | None, error: BaseException) -> HttpResponse:
        if request is not None and self.door is not None and self.door.owns(request.path):
            return self.door.said(request, error)
        if request is not None and request.path.startswith(b"/api/"):
            from falaj.api.mlflow.coding import render_mlflow_error

            return render_mlflow_error(
                error, request.request, is_routed=request.action != "none" or request.actor is None
            )
        return render_error(error, request.request if request is not None else "")

    def _add_routes(self) -> None:
        add_route = self.router.add
        add_route(HttpRoute("GET", "/health", OPEN_ACTION, self._serve_health))
        add_route(HttpRoute("GET", "/v1/login", OPEN_ACTION, self._serve_login_info))
        add_route(HttpRoute("GET", "/v1/openapi.json", OPEN_ACTION, self._serve_openapi))
        add_route(HttpRoute("GET", "/ready", OPEN_ACTION, self._serve_readiness))
        add_route(HttpRoute("GET", "/status", "edge.status", self._serve_status))
        add_route(HttpRoute("GET", "/metrics", "edge.metrics", self._serve_metrics))
        for service_name in self.house.desks:
            try:
                service = self.house.desks[service_name]
            except Invalid as error:
                _log.warning(
                    "a desk stays closed", extra={"desk": service_name, "why": error.message, "hint": error.hint}
                )
                continue
            resource_kinds = SERVICES[service_name].kinds if service_name in SERVICES else ()
            service_class: Any = type(service)
            for operation in list_operations(service_class).values():
                bound_call = OperationCall(service_name, operation, ArgumentDecoder(service_name, operation))
                add_route(
                    HttpRoute(
                        "POST",
                        f"/v1/{service_name}/{operation.name}",
                        bound_call.action,
                        partial(self._serve_operation, bound_call),
                        bound_call,
                    )
                )
                if operation.name == "show":
                    self.router.add_show(
                        resource_kinds,
                        HttpRoute(
                            "GET",
                            SHOW_PATH_PREFIX,
                            bound_call.action,
                            partial(self._serve_show, bound_call),
                            bound_call,
                        ),
                    )
        add_route(HttpRoute("GET", "/v1/events", self.events.action, self.events.serve))
        if "flows" in self.house.desks:
            from falaj.api.inbound_webhook import WEBHOOK_ROUTE, InboundWebhookHandler

            webhook_handler = InboundWebhookHandler(self)
            add_route(HttpRoute("POST", WEBHOOK_ROUTE, webhook_handler.action, webhook_handler.serve))
        add_route(HttpRoute("POST", PUT_PATH, "bytes.put", self._put_piece))
        add_route(HttpRoute("POST", BUNDLE_PATH, "bytes.bundle", self._bundle_pieces))
        add_route(HttpRoute("POST", GET_PATH, "bytes.get", self._get_piece))
        if "agents" in self.house.desks:
            from falaj.api.agent_channel import AgentChannelHandler

            AgentChannelHandler(self).mount()
        if "track" in self.house.desks:
            from falaj.api.mlflow.routes import MlflowRoutes

            MlflowRoutes(self).mount()

    async def _serve_operation(self, call: OperationCall, request: RequestContext) -> HttpResponse | None:
        """POST /v1/<desk>/<verb>."""
        if call.action == RENEW_OPERATION and (request.agent is None or request.caller is not request.agent):
            raise Denied("only a zone's agent renews its certificate", "falaj agents invite lets one join")
        arguments = call.arguments
        ctx = self.gate.context(request, request.caller, is_repeatable=not arguments.gives_stream)
        if arguments.stream:
            if get_content_type(request) != b"application/octet-stream":
                hint = f"send application/octet-stream, and the arguments in {ARGUMENTS_HEADER}"
                raise HttpError(Invalid(f"{call.action} takes its bytes as the body", hint), 415)
            return await self.streamed(
                call, request, ctx, arguments.decode_header(request.text(ARGUMENTS_HEADER.encode()))
            )
        body = await self.body(request)
        if len(body) > LARGE_BODY_BYTES:
            operation_arguments = (await self.lanes.outside(self.parsed, arguments, body)).unwrap()
        else:
            operation_arguments = self.parsed(arguments, body)
        if arguments.gives_stream:
            return await self.streamed(call, request, ctx, operation_arguments)
        return await self._run_operation(call, request, ctx, operation_arguments)

    def parsed(self, arguments: ArgumentDecoder, body: bytes) -> dict[str, Any]:
        """What the body says, within its limit of depth."""
        check_json_depth(body, self._limits.body_depth)
        return arguments.decode(body)

    async def _serve_show(self, call: OperationCall, request: RequestContext) -> HttpResponse | None:
        """GET /r/<ref>: the same `show`, for people and links."""
        text = request.path[len(SHOW_PATH_PREFIX) :].decode("ascii", "replace")
        ref = Ref.parse(text.replace("%3A", ":").replace("%40", "@"))
        ctx = self.gate.context(request, request.caller)
        first_param = next(p for p in call.verb.params if p.required)
        return await self._run_operation(
            call, request, ctx, {first_param.name: ref if Ref in union_members(first_param.type) else ref.name}
        )

    async def _run_operation(
        self, call: OperationCall, request: RequestContext, ctx: CallContext, operation_arguments: dict[str, Any]
    ) -> HttpResponse:
        if call.verb.outside:
            self.unhurried(EXTERNAL_CALL_SPANS)
            if request.actor is GUEST_ACTOR:
                body, error = await self.gate.run_for_guest(
                    request, self.within, call, request, ctx, operation_arguments
                )
            else:
                body, error = await self.lanes.outside(self.within, call, request, ctx, operation_arguments)
        elif call.verb.often and self._runs_frequent_reads_inline:
            body, error = capture_outcome(self.within, (call, request, ctx, operation_arguments))
        elif call.verb.reading or call.verb.often:
            body, error = await self.lanes.inside(self.within, call, request, ctx, operation_arguments)
        else:
            body, error = await self.lanes.short(self.within, call, request, ctx, operation_arguments)
        if call.changes_people and error is None:
            self.gate.forget()
        return HttpResponse(200, body, ctx.request) if error is None else render_error(error, ctx.request)

    def within(
        self, call: OperationCall, request: RequestContext, ctx: CallContext, operation_arguments: dict[str, Any]
    ) -> bytes:
        """In a lane: the guarded call and the JSON of its result."""
        set_log_context(ctx.actor.id, ctx.request)
        with self._trace_call(call.action, request.headers, ctx.tenant):
            return to_json(self.house.call(call.desk, call.verb.name, ctx, operation_arguments))

    async def streamed(
        self, call: OperationCall, request: RequestContext, ctx: CallContext, operation_arguments: dict[str, Any]
    ) -> HttpResponse | None:
        """Bytes in, bytes out, or both, on one thread."""
        self.unhurried()
        fill_task = None
        if call.arguments.stream:
            request.unread = False
            body_reader = RequestBodyReader(request.receive, self._limits.stream_bytes)
            fill_task = asyncio.get_running_loop().create_task(body_reader.fill())
            operation_arguments[call.arguments.stream] = ByteStream(body_reader, get_content_length(request))
        response_stream = ResponseStreamWriter(request.send, request.receive, ctx.request)
        try:
            body, error = await self.lanes.streaming(
                ctx.actor, self._call_and_stream, call, request, ctx, operation_arguments, response_stream
            )
        finally:
            response_stream.close()
        if fill_task is not None and not fill_task.done():
            fill_task.cancel()
            request.unread = True
        if error is None:
            return HttpResponse(200, body, ctx.request) if body is not None else None
        if not response_stream.started:
            return self._render_error(request, error)
        _log.warning("stream ended early", extra={"request": ctx.request, "why": str(error)})
        return None  # the server closes a connection whose answer has no end, and the caller sees that it is cut

    def _call_and_stream(
        self,
        call: OperationCall,
        request: RequestContext,
        ctx: CallContext,
        operation_arguments: dict[str, Any],
        response_stream: ResponseStreamWriter,
    ) -> bytes | None:
        set_log_context(ctx.actor.id, ctx.request)
        with self._trace_call(call.action, request.headers, ctx.tenant):
            result = self.house.call(call.desk, call.verb.name, ctx, operation_arguments)
            if not isinstance(result, ByteStream):
                return to_json(result)
            response_stream.push(result)
            return None

    def unhurried(self, span_count: int = 0) -> None:
        """Let this request take so many times as long as another; 0 is a stream, bounded by its idle time alone."""
        self.deadlines.spare(asyncio.current_task() or _NO_TASK, span_count)

    async def _put_piece(self, request: RequestContext) -> HttpResponse:
        self.unhurried()
        return await self.carrier.put(request, self.gate.context(request, request.caller, is_repeatable=False))

    async def _bundle_pieces(self, request: RequestContext) -> HttpResponse:
        ctx = self.gate.context(request, request.caller, is_repeatable=False)
        return await self.carrier.bundle(ctx, await self.body(request))

    async def _get_piece(self, request: RequestContext) -> HttpResponse | None:
        ctx = self.gate.context(request, request.caller, is_repeatable=False)
        body = await self.body(request)
        self.unhurried()
        return await self.carrier.get(request, ctx, body)

    async def body(
        self, request: RequestContext, max_bytes: int = 0, content_types: tuple[bytes, ...] = (JSON_TYPE,)
    ) -> bytes:
        """The whole JSON body, within its limits of size and time."""
        anonymous = request.actor is None or request.actor.kind == "guest"
        limit = min(
            max_bytes or (MAX_ANONYMOUS_BODY_BYTES if anonymous else self._limits.body_bytes), self._limits.body_bytes
        )
        if (get_content_length(request) or 0) > limit:
            raise _body_too_large_error(limit)
        try:
            request.receiving = True
            async with asyncio.timeout(ANONYMOUS_BODY_TIMEOUT_S if anonymous else None):
                body = await self._receive_body(request, limit)
        except TimeoutError:
            raise _slow_body_error() from None
        request.receiving = request.unread = False
        if body and get_content_type(request) not in content_types:
            raise HttpError(Invalid("the body is not declared as JSON", "send content-type: application/json"), 415)
        if b"content-encoding" in request.headers:
            raise HttpError(Invalid("the body is compressed", "send it as it is"), 415)
        return body

    async def _receive_body(self, request: RequestContext, limit: int) -> bytes:
        parts, received_bytes = list[bytes](), 0
        while True:
            message = await request.receive()
            if message["type"] == "http.disconnect":  # before its first byte, too: an empty body is another call
                raise Invalid("the body ended before its end", "send it again")
            parts.append(message.get("body", b""))
            received_bytes += len(parts[-1])
            if received_bytes > limit:
                raise _body_too_large_error(limit)
            if not message.get("more_body", False):
                return parts[0] if len(parts) == 1 else b"".join(parts)

    async def _serve_health(self, request: RequestContext) -> HttpResponse:
        del request
        return HttpResponse(200, b'{"ok":true}', generate_id())

    async def _serve_login_info(self, request: RequestContext) -> HttpResponse:
        """How to sign in here; what a browser-based client needs to begin, all of it public by its nature."""
        del request
        oidc = self.house.settings.oidc
        oidc_fields = ("issuer", "client", "audience", "groups", "scope") if oidc.issuer and oidc.client else ()
        body = {
            "local": "local:" in self.house.settings.identity,
            "provider": {name: getattr(oidc, name) for name in oidc_fields},
            "origin": self.house.fence.origin,
            "fenced": self.house.fence.is_up,
        }
        return HttpResponse(200, to_json(body), generate_id())

    async def _serve_openapi(self, request: RequestContext) -> HttpResponse:
        del request
        from falaj.api.openapi import build_document

        self._openapi_document = self._openapi_document or to_json(build_document(self.router.routes()))
        return HttpResponse(200, self._openapi_document, generate_id())

    async def _serve_readiness(self, request: RequestContext) -> HttpResponse:
        """Whether a balancer should send callers here: whether this replica can serve anything at all.

        A dependency that all replicas share must not take all of them out, so only ESSENTIAL ones count. The answer
        comes from the last background checks and never waits for a dependency.
        """
        del request
        if self.draining:
            raise Unavailable("this replica is going", "another one answers")
        is_ready = not self.house.dependencies.problems(*ESSENTIAL_DEPENDENCIES)
        return HttpResponse(200 if is_ready else 503, b'{"ready":%s}' % (b"false", b"true")[is_ready], generate_id())

    async def _serve_status(self, request: RequestContext) -> HttpResponse:
        """Which dependencies answer this replica, why the others do not, and which replicas there are."""
        del request
        health = self.house.dependencies.health()
        is_ready = all(dependency.answers for dependency in health if dependency.name in ESSENTIAL_DEPENDENCIES)
        is_fenced = self.house.fence.is_up
        body = {"ready": is_ready, "fenced": is_fenced, "dependencies": health, "replicas": self.house.replicas()}
        return HttpResponse(200, to_json(body), generate_id())

    def _is_ledger_silent(self) -> bool:
        return self.house.dependencies.unanswered_s("store") > LEDGER_SILENCE_LIMIT_S

    async def _serve_metrics(self, request: RequestContext) -> HttpResponse:
        """Counts over all tenants, so only the house's own people and services see them."""
        if request.caller.tenant != SYSTEM_TENANT:
            raise Denied("metrics count every tenant's calls", "ask with an account of the tenant `house`")
        call_executor = self.lanes
        families = [
            *self.metrics.families(),
            *self._count_versions(),
            make_gauge("falaj_lane_waiting", "Calls that no lane has taken yet.", call_executor.waiting),
            make_counter("falaj_lane_calls_total", "Calls run in lanes since the start.", call_executor.calls),
            make_counter("falaj_lane_commits_total", "Groups those calls were committed in.", call_executor.batches),
            *(await call_executor.outside(self.figures.families)).unwrap(),
        ]
        return HttpResponse(200, format_families(families), generate_id(), METRICS_TEXT_TYPE)

    def _count_versions(self) -> Iterator[MetricFamily]:
        if reports_shared_gauges(self.house):
            versions = Counter(replica.version for replica in self.house.replicas())
            yield make_labelled_family(
                "version", "falaj_platform_replicas", "Replicas and gateways on this store.", versions
            )


def _timeout_response(request: RequestContext) -> HttpResponse:
    if request.receiving and _has_body(request):
        return render_error(_slow_body_error())
    hint = "ask again with the same Idempotency-Key to learn the outcome"
    return render_error(Unavailable("no answer in time", hint), request.request)


def _slow_body_error() -> HttpError:
    return HttpError(Invalid("the body did not come in time", "send it faster"), 408, (b"connection", b"close"))


def _body_too_large_error(limit: int) -> HttpError:
    return HttpError(
        Invalid(f"the body is larger than {limit} bytes", "send less, or use a verb that takes a stream"), 413
    )


def get_content_length(request: RequestContext) -> int | None:
    """How many bytes the body has, where the caller said so."""
    text = request.headers.get(b"content-length", b"")
    return int(text) if text.isdigit() and len(text) < 19 else None


def get_content_type(request: RequestContext) -> bytes:
    """What the body is declared to be, without parameters."""
    return request.headers.get(b"content-type", b"").partition(b";")[0].strip().lower()


def _has_body(request: RequestContext) -> bool:
    return b"transfer-encoding" in request.headers or bool(get_content_length(request))


async def _drain_body(request: RequestContext, response: HttpResponse) -> HttpResponse:
    """A body we did not want: swallow a little, so that the caller gets to read the answer, and close."""
    if (get_content_length(request) or MAX_DRAIN_BYTES + 1) <= 65_536 and b"expect" not in request.headers:
        return response
    drained_bytes = 0
    if b"expect" not in request.headers:
        with suppress(TimeoutError):
            async with asyncio.timeout(DRAIN_TIMEOUT_S):
                while drained_bytes < MAX_DRAIN_BYTES:
                    message = await request.receive()
                    drained_bytes += len(message.get("body", b""))
                    if not message.get("more_body", False):
                        break
    return response._replace(headers=(*response.headers, (b"connection", b"close")))
