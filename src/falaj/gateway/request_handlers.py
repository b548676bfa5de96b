"""The gateway's doors: REST and gRPC in, over the hop to a replica, and back. Bodies pass as they are."""

import random
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from functools import partial
from typing import TYPE_CHECKING, Any

from falaj.core.context import SYSTEM_TENANT
from falaj.core.errors import Denied, FalajError, NotFound
from falaj.core.release import VERSION
from falaj.core.tracing import SPAN_KIND_SERVER, Tracer, parse_traceparent
from falaj.gateway import request_paths
from falaj.gateway.admission import (
    JSON_LENGTH_HEADER,
    UNAUTHENTICATED_METHODS,
    AdmissionControl,
    GrpcHeadContext,
    HttpHeadContext,
    PendingLookup,
)
from falaj.gateway.arm_tally import ArmTallies, ArmTally, JournalBuffer, current_time
from falaj.gateway.callers import CallerDirectory, EndpointCaller, slow_down_error
from falaj.gateway.cold_start_queue import ColdStartQueue
from falaj.gateway.feature_plans import FeaturePlans
from falaj.gateway.gateway_metrics import GatewayMetrics
from falaj.gateway.host_names import HostNames
from falaj.gateway.inflight_protocols import InflightGrpcCall, InflightHttpRequest, grpc_error_reply
from falaj.gateway.inflight_request import DIRECT_ARM, InflightRequest
from falaj.gateway.load_balancer import pick_upstream
from falaj.gateway.lots import Lot
from falaj.gateway.open_streams import OpenGrpcStreams
from falaj.gateway.request_paths import RequestTarget
from falaj.gateway.route_table import EndpointName, RoutedEndpoint, RouteTable
from falaj.gateway.straight import Straight, Way, way_of
from falaj.oip.byte_budget import over_budget_error
from falaj.oip.grpc_messages import METHODS
from falaj.oip.handler_calls import (
    GRPC_STATUS_CODES,
    NO_HEADERS,
    UNIMPLEMENTED,
    GrpcCall,
    GrpcReply,
    HttpCall,
    HttpReply,
)
from falaj.oip.http1_parser import RequestHead
from falaj.oip.http1_server import GatheredExchanges
from falaj.oip.infer_messages import peek_model
from falaj.oip.protobuf import encode_message
from falaj.oip.rest_codec import error_reply, json_reply, status_reply
from falaj.oip.upstream_server import REPLY_LOST, MissingReply
from falaj.serve.request_counts import SHADOW_ARM
from falaj.serve.request_journal import GRPC_ENCODING, JSON_ENCODING, JournalRow, binary_encoding
from falaj.serve.traffic_split import pick_shadow_revision

if TYPE_CHECKING:
    from falaj.server import Server

CancelRequest = Callable[[], None]
EXTENSIONS = ("binary_tensor_data", "model_configuration", "statistics", "sequence")
_UNAUTHENTICATED_PATHS = frozenset(
    {request_paths.TARGET_LIVE, request_paths.TARGET_READY, request_paths.TARGET_UNSUPPORTED}
)
_GATEWAY_PATHS = frozenset(
    {request_paths.TARGET_SERVER, request_paths.TARGET_INDEX, request_paths.TARGET_CHANGE, request_paths.TARGET_METRICS}
)
MAX_CACHED_PATHS, MAX_SHADOW_REQUESTS = 4096, 256
_METRICS_TYPE = b"text/plain; version=0.0.4; charset=utf-8"
_SERVER_METADATA = {"name": "falaj", "version": VERSION, "extensions": list(EXTENSIONS)}
_GATEWAY_METHODS = ("ServerLive", "ServerReady", "ServerMetadata", "RepositoryIndex", "RepositoryModelLoad",
                "RepositoryModelUnload")  # fmt: skip


class GatewayHandlers:
    """A RestDoor and a GrpcDoor. Nothing of a body is looked at before the caller is known."""

    def __init__(
        self,
        server: "Server",
        table: RouteTable,
        callers: CallerDirectory,
        pool: Executor,
        journal_buffer: JournalBuffer,
    ) -> None:
        self._server, self._table, self._callers, self._pool, self._journal_buffer = (
            server,
            table,
            callers,
            pool,
            journal_buffer,
        )
        self.holding: ColdStartQueue
        self.plans: FeaturePlans
        self.tallies: ArmTallies
        self.metrics: GatewayMetrics
        self.listening: list[Any] = []
        """What takes callers' connections."""
        self.hosts = HostNames(("localhost",))
        self.streams = OpenGrpcStreams(callers)
        self.admission = AdmissionControl(callers, self._create_head_context, self.count_refusal)
        self.budget, self.vouch = self.admission.budget, callers.vouch
        self.judge, self.judge_grpc = self.admission.judge, self.admission.judge_grpc
        self.tracer: Tracer | None = None
        self.open = True
        """False while we drain: load balancers look elsewhere."""
        self._targets: dict[bytes, RequestTarget] = {}
        self._id_prefix, self._id_count = secrets.token_hex(4).encode(), 0
        self._id_stamp, self._stamp_expires_at = b"", 0.0
        """How names begin in this millisecond, and when it is over."""
        self._revision_headers: dict[int, tuple[bytes, tuple[bytes, bytes]]] = {}
        """How each is told, in HTTP and in gRPC."""
        self._shadow_count = 0

    # What one request needs of us.

    def routed(self, name: EndpointName) -> RoutedEndpoint | None:
        """The endpoint as it is now."""
        return self._table.routes.get(name)

    def tally(self, routed: RoutedEndpoint, arm: str, revision: int) -> ArmTally:
        """Where an arm is counted that has no share of its own."""
        return self.tallies.of(routed.route, arm, revision)

    def barred(self, routed: RoutedEndpoint, revision: int) -> FalajError | None:
        """Why a revision may not be asked although it runs: its features may not be read."""
        plan_error = self.plans.barred.get((routed.route.tenant, routed.route.ref, revision))
        return (
            Denied("whoever deployed this may not read its features any more", plan_error.message)
            if plan_error
            else None
        )

    def hold(self, inflight: InflightRequest) -> bool:
        """Let it wait for a replica."""
        return self.holding.hold(inflight)

    def answered(self, inflight: InflightRequest, reply: Any, status: int, now: float) -> None:
        """Give the answer back, with what names it; then keep a sample, and ask a shadow."""
        header_line, header_pair = self._revision_headers.get(inflight.revision) or self._create_revision_headers(
            inflight.revision
        )
        request_name = inflight.id or self._create_request_id(now)
        if reply.__class__ is HttpReply:
            reply.lines = b"falaj-request: " + request_name + header_line
        else:
            reply.metadata = (*reply.metadata, (b"falaj-request", request_name), header_pair)
        inflight.reply(reply)
        if inflight.span is not None:
            self.traced(inflight, status)
        if not inflight.counts:
            return
        sample = inflight.routed.rules.sample
        is_kept = sample > 0.0 and random.random() < sample  # noqa: S311 # nosec B311 - a sample
        if is_kept or inflight.routed.route.shadow is not None:
            self.after(inflight, reply, now, is_kept=is_kept)

    def after(self, inflight: InflightRequest, reply: Any, now: float, *, is_kept: bool) -> None:
        """What follows an answer that was given back."""
        if is_kept:
            self._keep_sample(inflight, reply, inflight.status(reply)[0], inflight.arm, now - inflight.began)
        if inflight.routed.route.shadow is not None and inflight.arm != DIRECT_ARM:
            self._send_shadow(inflight, is_kept)

    def traced(self, inflight: InflightRequest, status: int) -> None:
        """The span of a request that is over."""
        span = inflight.span
        if span is None or self.tracer is None:
            return
        span.about = {
            "falaj.endpoint": inflight.name[1], "falaj.revision": inflight.revision, "falaj.arm": inflight.arm,
            "falaj.tries": len(inflight.tried) + 1, "http.response.status_code": status,
        }  # fmt: skip
        span.failed = str(status) if status >= 500 else ""
        self.tracer.end(span)

    def rest(self, call: HttpCall, send_reply: Callable[[HttpReply], Any]) -> CancelRequest | None:
        """Answer one HTTP request, now or later."""
        head_context: HttpHeadContext | None = call.head.lead if call.head is not None else None
        if head_context is None:
            head_context = self._create_head_context(call.method, call.path, call.headers, send_reply)
            if head_context is None:
                return None
            if call.head is not None:
                call.head.lead = head_context
        caller, now = head_context.caller, time.monotonic()
        if caller is None or now >= caller.early:
            caller = head_context.caller = self._callers.known(head_context.key, head_context.who, now)
            head_context.turn = -1
            if caller is None:
                pending = self.admission.hold(len(call.body))
                if pending is None:
                    self._refuse_http(over_budget_error(), send_reply)
                    return None
                on_caller = partial(
                    self._continue_pending, pending, partial(self._dispatch_http, head_context, call, send_reply)
                )
                caller = self._callers.ask(head_context.key, head_context.who, call.peer, on_caller)
                if caller is None:
                    return pending.cancel
                pending.cancel()
                return self._dispatch_http(head_context, call, send_reply, caller, now)
        direct_route = head_context.way
        if direct_route is not None and head_context.turn == self._table.turn:
            upstream = direct_route.link
            is_usable = upstream.client.ready and not upstream.fails and direct_route.budget.full
            if is_usable and call.body.find(request_paths.SEQUENCE_FIELD, 0, request_paths.SEQUENCE_SEARCH_BYTES) < 0:
                call.path, call.headers, call.name = (
                    head_context.path,
                    head_context.headers,
                    self._create_request_id(now),
                )
                return Straight(self, direct_route, caller, call, send_reply, now).start()
        return self._dispatch_http(head_context, call, send_reply, caller, now)

    def joins(self, request_head: RequestHead) -> bool:
        """Whether requests with this head are handed on as one where several come."""
        head_context = request_head.lead
        return (
            isinstance(head_context, HttpHeadContext)
            and head_context.way is not None
            and head_context.turn == self._table.turn
        )

    def pass_on(
        self, requests: Sequence[tuple[RequestHead, bytes]], received_at: float, gathered: GatheredExchanges
    ) -> list[int]:
        """Answer requests that one turn of the loop read; their heads are such as `joins` said yes to. Gives those that
        are to be asked by themselves."""
        groups: dict[Any, tuple[Way, EndpointCaller, HttpCall, list[int], list[bytes]]] = {}
        remaining: list[int] = []
        last_head, group, now = None, None, time.monotonic()
        for position, (request_head, body) in enumerate(requests):
            if request_head is not last_head:
                last_head, group = request_head, self._find_group(request_head, groups, now)
            if group is None or body.find(request_paths.SEQUENCE_FIELD, 0, request_paths.SEQUENCE_SEARCH_BYTES) >= 0:
                remaining.append(position)
            else:
                group[3].append(position)
                group[4].append(body)
        for direct_route, caller, call, positions, bodies in groups.values():
            request_names = self._create_request_ids(now, len(positions))
            cancel = (
                Lot(self, direct_route, caller, call, received_at, gathered).start(positions, request_names, bodies)
                if positions
                else None
            )
            if cancel is None:
                remaining += positions
            else:
                gathered.asked(positions, cancel)
        return remaining

    def _find_group(self, request_head: RequestHead, groups: dict[Any, Any], now: float) -> Any:
        """Where requests with this head belong: heads that differ in the length of a body ask alike. None: nowhere."""
        head_context: Any = request_head.lead
        direct_route: Way | None = head_context.way
        caller: EndpointCaller | None = head_context.caller
        if direct_route is None or caller is None or head_context.turn != self._table.turn or now >= caller.early:
            return None
        if not direct_route.link.client.ready or direct_route.link.fails or not direct_route.budget.full:
            return None
        key = id(caller), direct_route.stub.shared
        group = groups.get(key)
        if group is None:
            call = HttpCall(request_head.method, head_context.path, head_context.headers, b"", False, "", request_head)
            group = groups[key] = direct_route, caller, call, [], []
        return group

    def grpc(self, call: GrpcCall, send_reply: Callable[[GrpcReply], Any]) -> CancelRequest | None:
        """Answer one message of a gRPC call, now or later."""
        method = call.method
        if method in UNAUTHENTICATED_METHODS:
            name = "live" if method == "ServerLive" else "ready"
            send_reply(GrpcReply(encode_message(METHODS[method][1], {name: self.open or name == "live"})))
            return None
        if method not in METHODS:
            send_reply(GrpcReply(code=UNIMPLEMENTED, text=f"{method[:60]} is not offered"))
            return None
        try:
            name, version, _ = ("", "", "") if method in _GATEWAY_METHODS else peek_model(call.message)
            if method not in _GATEWAY_METHODS:
                request_paths.check_endpoint_name(name)
            number = request_paths.parse_revision(version)
        except FalajError as error:
            send_reply(grpc_error_reply(method, GRPC_STATUS_CODES[error.code], str(error)))
            return None
        lead: GrpcHeadContext = (call.head.lead if call.head is not None else None) or self.admission.lead_grpc(call)
        key, caller, now = lead.key_for(name), lead.endpoint_caller, time.monotonic()
        if caller is None or now >= caller.early:
            caller = lead.endpoint_caller = self._callers.known(key, lead.who, now)
        if caller is not None:
            return self._dispatch_grpc(number, call, send_reply, caller, now)
        pending = self.admission.hold(len(call.message))
        if pending is None:
            send_reply(
                GrpcReply(
                    code=GRPC_STATUS_CODES["quota-exceeded"],
                    text=str(over_budget_error()),
                    metadata=((b"retry-after", b"1"),),
                )
            )
            return None
        on_caller = partial(self._continue_pending, pending, partial(self._dispatch_grpc, number, call, send_reply))
        caller = self._callers.ask(key, lead.who, call.peer, on_caller)
        if caller is None:
            return pending.cancel
        pending.cancel()
        return self._dispatch_grpc(number, call, send_reply, caller, now)

    def _continue_pending(
        self,
        pending: PendingLookup,
        continue_request: Callable[[EndpointCaller], CancelRequest | None],
        caller: EndpointCaller,
    ) -> None:
        if not pending.cancelled:
            if pending.reservation is not None:
                pending.reservation.release()
            pending.inner = continue_request(caller)

    def _create_head_context(
        self, method: bytes, path: bytes, headers: Mapping[bytes, bytes], send_reply: Callable[[HttpReply], Any]
    ) -> HttpHeadContext | None:
        """What is asked for, and by whom; None where that is answered already."""
        try:
            target = self._targets.get(path) or self._parse_target(path)
        except FalajError as error:
            self._refuse_http(error, send_reply)
            return None
        if target.method and method != target.method and (method, target.method) != (b"HEAD", b"GET"):
            refusal_reply = status_reply(405, "this address takes another method", target.method.decode())
            refusal_reply.headers = ((b"allow", target.method),)
            send_reply(refusal_reply)
            return None
        if target.what in _UNAUTHENTICATED_PATHS:
            send_reply(self._health_reply(target.what))
            return None
        if not self.hosts.accept(headers.get(b"host")):
            self.metrics.refused["denied"] += 1
            send_reply(
                status_reply(421, "the gateway does not answer to that host name", "add it to the setting `hosts`")
            )
            return None
        return HttpHeadContext(target, headers)

    def _dispatch_http(
        self,
        head_context: HttpHeadContext,
        call: HttpCall,
        send_reply: Callable[[HttpReply], Any],
        caller: EndpointCaller,
        now: float = 0.0,
    ) -> CancelRequest | None:
        target_kind, now = head_context.target.what, now or time.monotonic()
        if caller.refused is not None:
            self._refuse_http(caller.refused, send_reply)
            return None
        try:
            if not head_context.infers and target_kind in _GATEWAY_PATHS:
                return self._answer_http(target_kind, caller, send_reply)
            routed = self._require_routed(caller, now)
        except FalajError as error:
            self._refuse_http(error, send_reply)
            return None
        if target_kind is request_paths.TARGET_MODEL_READY and routed.route.asleep and not head_context.version:
            send_reply(
                json_reply({"name": head_context.target.name, "ready": True})
            )  # whoever asks it is answered, if a little later
            return None
        headers, body = call.headers, call.body
        self._update_direct_route(head_context, call, routed)
        # The request is ours alone: what a replica need not know is taken out of it.
        call.path, call.headers = head_context.path, head_context.headers
        inflight = InflightHttpRequest(self, routed, caller, call, send_reply, now)
        inflight.key = headers.get(routed.sticky)
        if head_context.version:
            inflight.version = head_context.version
        if not head_context.infers:
            inflight.counts = False
        else:
            call.name = inflight.id = self._create_request_id(now)
            if (
                head_context.named
                or body.find(request_paths.SEQUENCE_FIELD, 0, request_paths.SEQUENCE_SEARCH_BYTES) >= 0
            ):
                inflight.sequence = request_paths.find_sequence(headers, body)
                inflight.key = inflight.key or inflight.sequence or inflight.key
        if self.tracer is not None and inflight.counts and (traceparent := self._start_span(inflight, headers)):
            call.headers = {**call.headers, b"traceparent": traceparent}
        return inflight.begin()

    def _answer_http(
        self, target_kind: str, caller: EndpointCaller, send_reply: Callable[[HttpReply], Any]
    ) -> CancelRequest | None:
        """What the gateway answers by itself, by HTTP."""
        if target_kind is request_paths.TARGET_METRICS:
            send_reply(self._render_metrics(caller))
            return None
        return self._answer_by_gateway(
            target_kind, caller, lambda rows: send_reply(json_reply(rows)), lambda error: send_reply(error_reply(error))
        )

    def _answer_grpc(
        self,
        method: str,
        caller: EndpointCaller,
        send_reply: Callable[[GrpcReply], Any],
        refuse: Callable[[FalajError], Any],
    ) -> CancelRequest | None:
        """The same by gRPC; a caller who was refused gets the refusal."""
        if caller.refused is not None:
            refuse(caller.refused)
            return None
        target_kind = {
            "ServerMetadata": request_paths.TARGET_SERVER,
            "RepositoryIndex": request_paths.TARGET_INDEX,
        }.get(method, request_paths.TARGET_CHANGE)
        message = METHODS[method][1]
        wrap_rows: Callable[[Any], Any] = (
            (lambda rows: {"models": rows}) if target_kind is request_paths.TARGET_INDEX else dict
        )
        return self._answer_by_gateway(
            target_kind, caller, lambda rows: send_reply(GrpcReply(encode_message(message, wrap_rows(rows)))), refuse
        )

    def _dispatch_grpc(
        self,
        version: int,
        call: GrpcCall,
        send_reply: Callable[[GrpcReply], Any],
        caller: EndpointCaller,
        now: float = 0.0,
    ) -> CancelRequest | None:
        method, metadata, now = call.method, call.metadata, now or time.monotonic()

        def refuse_call(error: FalajError) -> None:
            self.count_refusal(error)
            send_reply(grpc_error_reply(method, GRPC_STATUS_CODES.get(error.code, 13), str(error)))

        try:
            if method in _GATEWAY_METHODS or caller.refused is not None:
                return self._answer_grpc(method, caller, send_reply, refuse_call)
            routed = self._require_routed(caller, now)
        except FalajError as error:
            refuse_call(error)
            return None
        if method == "ModelReady" and routed.route.asleep and not version:
            send_reply(GrpcReply(encode_message(METHODS[method][1], {"ready": True})))
            return None
        inflight = InflightGrpcCall(self, routed, caller, call, send_reply, now)
        if 0.0 < call.deadline < inflight.deadline:
            inflight.deadline, inflight.own = call.deadline, False
        call.deadline, call.metadata = inflight.deadline, NO_HEADERS
        inflight.key = metadata.get(routed.sticky)
        self.streams.add(inflight, metadata)
        if version:
            inflight.version = version
        if method not in ("ModelInfer", "ModelStreamInfer"):
            inflight.counts = False
        else:
            call.name = inflight.id = self._create_request_id(now)
            if sequence := request_paths.find_grpc_sequence(metadata, call.message):
                inflight.sequence, inflight.key = sequence, inflight.key or sequence
        if self.tracer is not None and inflight.counts and (traceparent := self._start_span(inflight, metadata)):
            call.metadata = {b"traceparent": traceparent}
        return inflight.begin()

    def _update_direct_route(self, head_context: HttpHeadContext, call: HttpCall, routed: RoutedEndpoint) -> None:
        """Find the way of the next ones with this head, where they have one; good for this turn of the table."""
        if head_context.turn == self._table.turn:
            return
        is_plain = head_context.infers and not head_context.version and not head_context.named and self.tracer is None
        head_context.way = (
            way_of(routed, call, head_context.headers, head_context.path, self._revision_line) if is_plain else None
        )
        head_context.turn = self._table.turn

    def _create_request_id(self, now: float) -> bytes:
        """What a request is called by the caller, the replica, the journal and late labels: when it came, by whom."""
        if now >= self._stamp_expires_at:
            self._id_stamp = b"%012x%b" % (time.time_ns() // 1_000_000, self._id_prefix)
            self._stamp_expires_at = now + 0.001
        self._id_count += 1
        return b"%b%012x" % (self._id_stamp, self._id_count)

    def _create_request_ids(self, now: float, id_count: int) -> list[bytes]:
        """The same of several at once."""
        if not id_count:
            return []
        stamp, last_count = self._create_request_id(now)[:20], self._id_count
        self._id_count += id_count - 1
        return [b"%b%012x" % (stamp, count) for count in range(last_count, last_count + id_count)]

    def _start_span(self, inflight: InflightRequest, headers: Mapping[bytes, bytes]) -> bytes:
        """Begin a span where this request is traced; what its replica is told then."""
        assert self.tracer is not None  # noqa: S101 # nosec B101 - looked at by whoever calls
        inflight.span = self.tracer.begin("infer", parse_traceparent(headers.get(b"traceparent")), SPAN_KIND_SERVER)
        return inflight.span.link.header.encode() if inflight.span is not None else b""

    def count_refusal(self, error: FalajError) -> None:
        """One more request that was refused."""
        self.metrics.refused[error.code] += 1

    def _refuse_http(self, error: FalajError, send_reply: Callable[[HttpReply], Any]) -> None:
        self.count_refusal(error)
        send_reply(error_reply(error))

    def _render_metrics(self, caller: EndpointCaller) -> HttpReply:
        """Counts over all tenants, so only the house's own people and services see them; as the platform's are."""
        if caller.actor is None or caller.actor.tenant != SYSTEM_TENANT:
            raise Denied("metrics count every tenant's calls", "ask with an account of the tenant `house`")
        connected = sum(len(listener.connections) for listener in self.listening)
        return HttpReply(200, (self.metrics.text(connected),), kind=_METRICS_TYPE)

    def _require_routed(self, caller: EndpointCaller, now: float) -> RoutedEndpoint:
        routed, table_version = caller.routed, self._table.turn
        if routed is None or caller.turn != table_version:
            routed = self._table.routes.get(caller.name)
            if routed is None:
                hint = "falaj serve list shows those you may call"
                raise NotFound(f"there is no endpoint {caller.name[1][:80]!r}", hint)
            caller.routed, caller.turn = routed, table_version
        if routed.rules.per_s > 0.0:
            wait_s = self._callers.take(caller, routed.rules, now)
            if wait_s > 0.0:
                raise slow_down_error(wait_s, f"more requests than {caller.name[1]} gives one caller")
        return routed

    def _answer_by_gateway(
        self,
        target_kind: str,
        caller: EndpointCaller,
        send_value: Callable[[Any], Any],
        refuse: Callable[[FalajError], Any],
    ) -> CancelRequest | None:
        """What the gateway answers by itself."""
        if target_kind is request_paths.TARGET_CHANGE or caller.actor is None:
            raise Denied("endpoints are not changed by their callers", "revisions change by: falaj serve deploy")
        if target_kind is request_paths.TARGET_SERVER:
            send_value(_SERVER_METADATA)
            return None
        pending, loop = PendingLookup(), self.holding.loop

        def deliver_rows(rows: Any) -> None:
            if not pending.cancelled:
                (refuse if isinstance(rows, FalajError) else send_value)(rows)

        self._pool.submit(lambda: loop.call_soon_threadsafe(deliver_rows, self._list_endpoints(caller)))
        return pending.cancel

    def _list_endpoints(self, caller: EndpointCaller) -> Any:
        """In a thread: the endpoints that this caller may see."""
        assert caller.actor is not None  # noqa: S101 # nosec B101 - looked at by whoever calls
        rows: list[dict[str, str]] = []
        ctx, next_page = self._server.context(caller.actor), ""
        try:
            while True:
                page = self._server.call("serve", "list", ctx, {"after": next_page})
                for endpoint in page.endpoints:
                    ready = "READY" if endpoint.state in ("ready", "asleep") else "UNAVAILABLE"
                    rows += [{"name": endpoint.name, "version": number, "state": ready} for number in endpoint.traffic]
                next_page = page.next
                if not next_page:
                    return rows
        except FalajError as error:
            return error

    def _health_reply(self, target_kind: str) -> HttpReply:
        if target_kind is request_paths.TARGET_UNSUPPORTED:
            return status_reply(501, "this is not offered", "see extensions in GET v2 for what is")
        if target_kind is request_paths.TARGET_READY and not self.open:
            return status_reply(503, "the gateway ends", "ask another one")
        return json_reply({"live": True} if target_kind is request_paths.TARGET_LIVE else {"live": True, "ready": True})

    def _parse_target(self, path: bytes) -> RequestTarget:
        target = request_paths.parse_target(path)
        if len(self._targets) >= MAX_CACHED_PATHS:
            self._targets.clear()
        self._targets[path] = target
        return target

    def _revision_line(self, number: int) -> bytes:
        return (self._revision_headers.get(number) or self._create_revision_headers(number))[0]

    def _create_revision_headers(self, number: int) -> tuple[bytes, tuple[bytes, bytes]]:
        number_text = b"%d" % number
        headers = self._revision_headers[number] = (
            b"\r\nfalaj-revision: " + number_text + b"\r\n",
            (b"falaj-revision", number_text),
        )
        return headers

    def _keep_sample(
        self, inflight: InflightRequest, reply: Any, status: int, arm: str, seconds: float, revision: int = 0
    ) -> None:
        if isinstance(reply, HttpReply):
            request, response = inflight.body.body, b"".join(reply.parts)
            length = inflight.body.headers.get(JSON_LENGTH_HEADER, b"")
            is_plain = not length and not reply.json_bytes
            encoding = (
                JSON_ENCODING if is_plain else binary_encoding(int(length) if length.isdigit() else 0, reply.json_bytes)
            )
        else:
            request, response, encoding = inflight.body.message, reply.message, GRPC_ENCODING
        key = inflight.key.decode("utf-8", "replace") if inflight.key else ""
        latency_us, identity = int(seconds * 1e6), (inflight.id.decode(), key, arm, revision or inflight.revision)
        row = JournalRow(current_time(), *identity, status, latency_us, inflight.caller.id, request, response, encoding)
        self._journal_buffer.add(inflight.routed.route, row)

    def _send_shadow(self, inflight: InflightRequest, is_kept: bool) -> None:
        """Ask another revision the same, now that the caller has the answer; nobody sees what it says."""
        revision = pick_shadow_revision(inflight.routed.route)
        started_at = time.monotonic()
        upstream = pick_upstream(inflight.routed.pools.get(revision, ()), started_at) if revision else None
        if upstream is None or self._shadow_count >= MAX_SHADOW_REQUESTS:
            return
        tally = self.tallies.of(inflight.routed.route, SHADOW_ARM, revision)
        tally.inflight += 1
        self._shadow_count += 1

        def on_shadow_reply(reply: Any) -> None:
            if not getattr(reply, "last", True):
                return  # there is more to come
            tally.inflight -= 1
            self._shadow_count -= 1
            is_missing = isinstance(reply, MissingReply)
            status = 503 if is_missing else inflight.status(reply)[0]
            seconds = time.monotonic() - started_at
            tally.done(seconds, status)
            if is_kept and not is_missing:  # both answers or none: who compares them needs pairs
                self._keep_sample(inflight, reply, status, SHADOW_ARM, seconds, revision)

        deadline = started_at + inflight.routed.route.rules.timeout_s
        send_call = upstream.client.ask_rest if isinstance(inflight, InflightHttpRequest) else upstream.client.ask_grpc
        try:
            send_call(inflight.body, deadline, on_shadow_reply)
        except FalajError:
            on_shadow_reply(REPLY_LOST)
