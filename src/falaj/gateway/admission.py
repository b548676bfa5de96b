"""Decides by the head of a request, before its body is gathered or inflated, whether its caller is known."""

import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from falaj.core.errors import FalajError
from falaj.gateway import paths
from falaj.gateway.callers import Caller, Callers, Key, key_of
from falaj.gateway.paths import Target
from falaj.gateway.straight import Way
from falaj.oip.budget import ByteBudget, Reservation
from falaj.oip.calls import (
    CODES,
    NO_HEADERS,
    UNIMPLEMENTED,
    GrpcCall,
    GrpcReply,
    GrpcVerdict,
    Reply,
    Verdict,
    retry_after,
)
from falaj.oip.frames import Packed
from falaj.oip.hpack_cache import Head as GrpcHead
from falaj.oip.messages import METHODS
from falaj.oip.requests import Head
from falaj.oip.rest import problem

Cancel = Callable[[], None]
LENGTH = b"inference-header-content-length"
FREE_METHODS = frozenset({"ServerLive", "ServerReady"})
"""Asked by load balancers, without a token."""
COUNTED_BYTES = 1 << 16
"""The connection counts the bytes of larger bodies itself."""


class Pending:
    """A request whose caller is being looked up."""

    __slots__ = ("cancelled", "inner", "reservation")

    def __init__(self, reservation: Reservation | None = None) -> None:
        self.cancelled, self.reservation = False, reservation
        self.inner: Cancel | None = None

    def cancel(self) -> None:
        """The caller went away."""
        self.cancelled = True
        if self.reservation is not None:
            self.reservation.release()
        if self.inner is not None:
            self.inner()


class Lead:
    """What HTTP requests that have one head share, found out once: what they ask for, and who asks."""

    __slots__ = ("caller", "headers", "infers", "key", "named", "path", "target", "turn", "version", "way", "who")

    def __init__(self, target: Target, headers: Mapping[bytes, bytes]) -> None:
        self.target, self.infers = target, target.what is paths.INFER
        self.path, self.version = target.path, target.version
        self.who = headers.get(b"authorization", b"")
        self.key = key_of(headers, self.who, target.name)
        length = headers.get(LENGTH)
        self.headers = NO_HEADERS if length is None else Packed({LENGTH: length})
        """What a replica is told of them."""
        self.named = b"falaj-sequence" in headers
        self.caller: Caller | None = None
        self.way: Way | None = None
        self.turn = -1
        """Where they all go, as it was in that turn of the table; None where each is looked at."""


class GrpcLead:
    """What gRPC calls that have the same headers share: who calls, and which endpoint was called last."""

    __slots__ = ("caller", "endpoint_caller", "endpoint_key", "key", "who")

    def __init__(self, metadata: Mapping[bytes, bytes]) -> None:
        self.who = metadata.get(b"authorization", b"")
        self.endpoint_key = key_of(metadata, self.who, "")
        self.key = key_of(NO_HEADERS, self.who, "")
        self.caller: Caller | None = None
        """Whose token it is; an endpoint may refuse them all the same."""
        self.endpoint_caller: Caller | None = None
        """The caller of the endpoint in `endpoint_key`."""

    def key_for(self, endpoint: str) -> Key:
        """The key of the caller of this endpoint; messages of the same headers mostly name one endpoint."""
        digest, name, purpose = self.endpoint_key
        if name != endpoint:
            self.endpoint_key, self.endpoint_caller = (digest, endpoint, purpose), None
        return self.endpoint_key


FindLead = Callable[[bytes, bytes, Mapping[bytes, bytes], Callable[[Reply], Any]], Lead | None]


class Admission:
    """What connections ask of the gateway before they take a body."""

    def __init__(self, callers: Callers, find_lead: FindLead, count_refusal: Callable[[FalajError], None]) -> None:
        self._callers, self._find_lead, self._count_refusal = callers, find_lead, count_refusal
        self.budget = ByteBudget()

    def judge(self, head: Head, peer: str, decide: Callable[[Verdict], Any]) -> Verdict | None:
        """Decide by the head of a request whether its body is gathered, and inflated."""
        lead: Any = head.lead
        if lead is None:
            answers: list[Reply] = []
            lead = self._find_lead(head.method, head.path, head.headers, answers.append)
            if lead is None:
                return answers[0]
            head.lead = lead
        caller, now = lead.caller, time.monotonic()
        if caller is None or now >= caller.early:
            caller = lead.caller = self._callers.known(lead.key, lead.who, now)
            lead.turn = -1
            if caller is None:
                caller = self._callers.ask(lead.key, lead.who, peer, partial(self._decide, decide))
                if caller is None:
                    return None
        return caller.principal if caller.refused is None else self._verdict(caller)

    def _decide(self, decide: Callable[[Verdict], Any], caller: Caller) -> None:
        decide(self._verdict(caller))

    def _verdict(self, caller: Caller) -> Verdict:
        if caller.refused is None:
            return caller.principal
        self._count_refusal(caller.refused)
        return problem(caller.refused)

    def judge_grpc(self, head: GrpcHead, peer: str, decide: Callable[[GrpcVerdict], Any]) -> GrpcVerdict | None:
        """The same of a gRPC call; which endpoint it asks for stands in its message, so only the token counts."""
        lead: Any = head.lead
        if lead is None:
            if head.health or head.method in FREE_METHODS:
                return ""
            if head.method not in METHODS:
                return GrpcReply(code=UNIMPLEMENTED, text=f"{head.method[:60]} is not offered")
            lead = head.lead = GrpcLead(head.metadata)
        caller, now = lead.caller, time.monotonic()
        if caller is None or now >= caller.early:
            caller = lead.caller = self._callers.known(lead.key, lead.who, now)
            if caller is None:
                then = partial(self._decide_grpc, decide)
                caller = self._callers.ask(lead.key, lead.who, peer, then)
                if caller is None:
                    return None
        return caller.principal if caller.refused is None else self._grpc_verdict(caller)

    def lead_grpc(self, call: GrpcCall) -> GrpcLead:
        """What calls with these headers share; kept with the headers, where other calls share them."""
        lead = GrpcLead(call.metadata)
        if call.head is not None:
            call.head.lead = lead
        return lead

    def _decide_grpc(self, decide: Callable[[GrpcVerdict], Any], caller: Caller) -> None:
        decide(self._grpc_verdict(caller))

    def _grpc_verdict(self, caller: Caller) -> GrpcVerdict:
        error = caller.refused
        if error is None:
            return caller.principal
        self._count_refusal(error)
        return GrpcReply(code=CODES.get(error.code, 13), text=str(error), metadata=retry_after(error))

    def hold(self, size: int) -> Pending | None:
        """A request that arrived whole and waits for the lookup of its caller; None where too many bytes wait so."""
        reservation = Reservation(self.budget)
        return Pending(reservation) if reservation.grow(size if size <= COUNTED_BYTES else 0) else None
