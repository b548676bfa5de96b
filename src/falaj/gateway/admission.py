"""Decides by the head of a request, before its body is gathered or inflated, whether its caller is known."""

import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from falaj.core.errors import FalajError
from falaj.gateway import request_paths
from falaj.gateway.callers import CallerDirectory, CallerKey, EndpointCaller, caller_key
from falaj.gateway.request_paths import RequestTarget
from falaj.gateway.straight import Way
from falaj.oip.byte_budget import ByteBudget, ByteReservation
from falaj.oip.grpc_messages import METHODS
from falaj.oip.handler_calls import (
    GRPC_STATUS_CODES,
    NO_HEADERS,
    UNIMPLEMENTED,
    GrpcAdmission,
    GrpcCall,
    GrpcReply,
    HttpAdmission,
    HttpReply,
    retry_after_header,
)
from falaj.oip.hpack_cache import CallHead as GrpcHead
from falaj.oip.http1_parser import RequestHead
from falaj.oip.rest_codec import error_reply
from falaj.oip.upstream_frames import PackedHeaders

CancelRequest = Callable[[], None]
JSON_LENGTH_HEADER = b"inference-header-content-length"
UNAUTHENTICATED_METHODS = frozenset({"ServerLive", "ServerReady"})
"""Asked by load balancers, without a token."""
MAX_COUNTED_BYTES = 1 << 16
"""The connection counts the bytes of larger bodies itself."""


class PendingLookup:
    """A request whose caller is being looked up."""

    __slots__ = ("cancelled", "inner", "reservation")

    def __init__(self, reservation: ByteReservation | None = None) -> None:
        self.cancelled, self.reservation = False, reservation
        self.inner: CancelRequest | None = None

    def cancel(self) -> None:
        """The caller went away."""
        self.cancelled = True
        if self.reservation is not None:
            self.reservation.release()
        if self.inner is not None:
            self.inner()


class HttpHeadContext:
    """What HTTP requests that have one head share, found out once: what they ask for, and who asks."""

    __slots__ = ("caller", "headers", "infers", "key", "named", "path", "target", "turn", "version", "way", "who")

    def __init__(self, target: RequestTarget, headers: Mapping[bytes, bytes]) -> None:
        self.target, self.infers = target, target.what is request_paths.TARGET_INFER
        self.path, self.version = target.path, target.version
        self.who = headers.get(b"authorization", b"")
        self.key = caller_key(headers, self.who, target.name)
        length = headers.get(JSON_LENGTH_HEADER)
        self.headers = NO_HEADERS if length is None else PackedHeaders({JSON_LENGTH_HEADER: length})
        """What a replica is told of them."""
        self.named = b"falaj-sequence" in headers
        self.caller: EndpointCaller | None = None
        self.way: Way | None = None
        self.turn = -1
        """Where they all go, as it was in that turn of the table; None where each is looked at."""


class GrpcHeadContext:
    """What gRPC calls that have the same headers share: who calls, and which endpoint was called last."""

    __slots__ = ("caller", "endpoint_caller", "endpoint_key", "key", "who")

    def __init__(self, metadata: Mapping[bytes, bytes]) -> None:
        self.who = metadata.get(b"authorization", b"")
        self.endpoint_key = caller_key(metadata, self.who, "")
        self.key = caller_key(NO_HEADERS, self.who, "")
        self.caller: EndpointCaller | None = None
        """Whose token it is; an endpoint may refuse them all the same."""
        self.endpoint_caller: EndpointCaller | None = None
        """The caller of the endpoint in `endpoint_key`."""

    def key_for(self, endpoint: str) -> CallerKey:
        """The key of the caller of this endpoint; messages of the same headers mostly name one endpoint."""
        digest, name, purpose = self.endpoint_key
        if name != endpoint:
            self.endpoint_key, self.endpoint_caller = (digest, endpoint, purpose), None
        return self.endpoint_key


FindHeadContext = Callable[[bytes, bytes, Mapping[bytes, bytes], Callable[[HttpReply], Any]], HttpHeadContext | None]


class AdmissionControl:
    """What connections ask of the gateway before they take a body."""

    def __init__(
        self, callers: CallerDirectory, find_head_context: FindHeadContext, count_refusal: Callable[[FalajError], None]
    ) -> None:
        self._callers, self._find_head_context, self._count_refusal = callers, find_head_context, count_refusal
        self.budget = ByteBudget()

    def judge(
        self, request_head: RequestHead, peer_address: str, on_decision: Callable[[HttpAdmission], Any]
    ) -> HttpAdmission | None:
        """Decide by the head of a request whether its body is gathered, and inflated."""
        head_context: Any = request_head.lead
        if head_context is None:
            answers: list[HttpReply] = []
            head_context = self._find_head_context(
                request_head.method, request_head.path, request_head.headers, answers.append
            )
            if head_context is None:
                return answers[0]
            request_head.lead = head_context
        caller, now = head_context.caller, time.monotonic()
        if caller is None or now >= caller.early:
            caller = head_context.caller = self._callers.known(head_context.key, head_context.who, now)
            head_context.turn = -1
            if caller is None:
                caller = self._callers.ask(
                    head_context.key, head_context.who, peer_address, partial(self._report_decision, on_decision)
                )
                if caller is None:
                    return None
        return caller.principal if caller.refused is None else self._to_admission(caller)

    def _report_decision(self, on_decision: Callable[[HttpAdmission], Any], caller: EndpointCaller) -> None:
        on_decision(self._to_admission(caller))

    def _to_admission(self, caller: EndpointCaller) -> HttpAdmission:
        if caller.refused is None:
            return caller.principal
        self._count_refusal(caller.refused)
        return error_reply(caller.refused)

    def judge_grpc(
        self, call_head: GrpcHead, peer_address: str, on_decision: Callable[[GrpcAdmission], Any]
    ) -> GrpcAdmission | None:
        """The same of a gRPC call; which endpoint it asks for stands in its message, so only the token counts."""
        head_context: Any = call_head.lead
        if head_context is None:
            if call_head.health or call_head.method in UNAUTHENTICATED_METHODS:
                return ""
            if call_head.method not in METHODS:
                return GrpcReply(code=UNIMPLEMENTED, text=f"{call_head.method[:60]} is not offered")
            head_context = call_head.lead = GrpcHeadContext(call_head.metadata)
        caller, now = head_context.caller, time.monotonic()
        if caller is None or now >= caller.early:
            caller = head_context.caller = self._callers.known(head_context.key, head_context.who, now)
            if caller is None:
                on_caller = partial(self._decide_grpc, on_decision)
                caller = self._callers.ask(head_context.key, head_context.who, peer_address, on_caller)
                if caller is None:
                    return None
        return caller.principal if caller.refused is None else self._to_grpc_admission(caller)

    def lead_grpc(self, call: GrpcCall) -> GrpcHeadContext:
        """What calls with these headers share; kept with the headers, where other calls share them."""
        lead = GrpcHeadContext(call.metadata)
        if call.head is not None:
            call.head.lead = lead
        return lead

    def _decide_grpc(self, on_decision: Callable[[GrpcAdmission], Any], caller: EndpointCaller) -> None:
        on_decision(self._to_grpc_admission(caller))

    def _to_grpc_admission(self, caller: EndpointCaller) -> GrpcAdmission:
        error = caller.refused
        if error is None:
            return caller.principal
        self._count_refusal(error)
        return GrpcReply(
            code=GRPC_STATUS_CODES.get(error.code, 13), text=str(error), metadata=retry_after_header(error)
        )

    def hold(self, size: int) -> PendingLookup | None:
        """A request that arrived whole and waits for the lookup of its caller; None where too many bytes wait so."""
        reservation = ByteReservation(self.budget)
        return PendingLookup(reservation) if reservation.grow(size if size <= MAX_COUNTED_BYTES else 0) else None
