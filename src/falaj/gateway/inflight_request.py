"""One request on its way: an arm, a replica, another one where that failed, and the answer back."""

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Protocol

from falaj.core.errors import FalajError, NotFound, Unavailable
from falaj.core.tracing import TraceSpan
from falaj.gateway.arm_tally import ArmTally
from falaj.gateway.callers import EndpointCaller
from falaj.gateway.load_balancer import pick_for_sequence, pick_upstream
from falaj.gateway.route_table import EndpointName, RoutedEndpoint
from falaj.gateway.upstream_connection import BREAKER_FAILURES, UpstreamConnection
from falaj.oip.upstream_server import REPLY_LATE, MissingReply, UpstreamClient

DIRECT_ARM = "direct"
"""The arm of requests that name their revision: they are no sample of the traffic, so no judge looks at them."""
MAX_ATTEMPTS = 4
REPLICA_BUSY, REPLICA_UNABLE, REPLICA_OK = "busy", "unable", "fine"
_RETRY_HINT = "try again shortly; falaj serve show says why"


class RequestGateway(Protocol):
    """What a request needs of the gateway."""

    def routed(self, name: tuple[str, str]) -> RoutedEndpoint | None: ...
    def tally(self, routed: RoutedEndpoint, arm: str, revision: int) -> ArmTally: ...
    def hold(self, inflight: "InflightRequest") -> bool: ...
    def barred(self, routed: RoutedEndpoint, revision: int) -> FalajError | None: ...
    def answered(self, inflight: "InflightRequest", reply: Any, status: int, now: float) -> None: ...
    def after(self, inflight: "InflightRequest", reply: Any, now: float, *, is_kept: bool) -> None: ...
    def traced(self, inflight: "InflightRequest", status: int) -> None: ...


class InflightRequest:
    """A request. REST and gRPC differ in what they ask and how they say no."""

    body: Any
    # What most requests never change lies here once.
    own = True
    """The deadline is ours: a replica that misses it is not well. One that the caller set says nothing."""
    version = revision = stream = 0
    key: bytes | None = None
    sequence = b""
    arm, id = "", b""
    counts = True
    over = asleep = held = False
    link: UpstreamConnection | None = None
    rival: tuple[UpstreamConnection, int] | None = None
    tally: ArmTally | None = None
    tried: tuple[UpstreamConnection, ...] = ()
    hedge: asyncio.TimerHandle | None = None
    span: TraceSpan | None = None

    def __init__(
        self,
        gateway: RequestGateway,
        routed: RoutedEndpoint,
        caller: EndpointCaller,
        call: Any,
        send_reply: Callable[[Any], Any],
        now: float,
    ) -> None:
        self.hall, self.routed, self.caller, self.body, self.reply = gateway, routed, caller, call, send_reply
        self.began, self.deadline = now, now + routed.rules.timeout_s

    @property
    def name(self) -> EndpointName:
        """The endpoint."""
        return self.routed.name

    @property
    def until(self) -> float:
        """So long it waits for a replica."""
        hold_until = self.began + self.routed.route.rules.hold_s
        return hold_until if self.own else min(hold_until, self.deadline)

    @property
    def size(self) -> int:
        """How many bytes it holds."""
        raise NotImplementedError

    def ask(self, client: UpstreamClient, on_reply: Callable[[Any], Any]) -> int:
        """Send it; gives the stream."""
        raise NotImplementedError

    def status(self, reply: Any) -> tuple[int, str]:
        """The HTTP status an answer amounts to, and whether the replica could."""
        raise NotImplementedError

    def say(self, error: FalajError) -> Any:
        """An error as an answer."""
        raise NotImplementedError

    def late(self) -> Any:
        """The answer to a deadline that passed."""
        raise NotImplementedError

    def begin(self) -> "Callable[[], None] | None":
        """Go; gives what ends it."""
        routed = self.routed
        if not routed.budget.full:
            routed.budget.earn(routed.rules.retries)
        self._choose_and_send(routed)
        return None if self.over else self.cancel

    def go(self) -> None:
        """Go again: it was held, or the replica could not."""
        if self.held:
            self._leave_queue()
            if self.own:  # it was not the replica's time
                self.deadline = time.monotonic() + self.routed.route.rules.timeout_s
        self._choose_and_send(self.hall.routed(self.name))

    def _choose_and_send(self, routed: RoutedEndpoint | None) -> None:
        """Choose an arm and a replica, and ask; or wait for one."""
        upstreams: Sequence[UpstreamConnection]
        if routed is not None and routed.only is not None and not self.version:
            self.arm, self.revision, tally, upstreams = routed.only
        else:
            if routed is None or (self.version and self.version not in routed.route.live):
                description = f"revision {self.version}" if routed else "an endpoint"
                self.fail(NotFound(f"{description} of {self.name[1]} does not run", "see: falaj serve show"))
                return
            self.arm, self.revision = (DIRECT_ARM, self.version) if self.version else routed.arms.pick(self.key)
            tally = routed.tallies.get(self.arm) or self.hall.tally(routed, self.arm, self.revision)
            upstreams = routed.pools.get(self.revision, ())
        self.routed, self.tally = routed, tally
        if routed.route.features and (barred := self.hall.barred(routed, self.revision)):
            self.fail(barred)
            return
        upstream = upstreams[0] if len(upstreams) == 1 else None
        if upstream is None or upstream.fails or not upstream.client.ready:
            upstream = self._pick_upstream(upstreams)
            if upstream is None:
                self._hold_or_fail(upstreams)
                return
        tally.inflight += 1
        self.link = upstream
        try:
            self.stream = self.ask(upstream.client, self.took_first)
        except FalajError as error:
            self._leave_upstream()
            self.fail(error)
            return
        hedge_ms = routed.rules.hedge_ms
        if hedge_ms > 0.0 and len(upstreams) > 1 and not self.sequence:
            self.hedge = asyncio.get_running_loop().call_later(hedge_ms / 1000, self._send_hedge)

    def _pick_upstream(self, upstreams: Sequence[UpstreamConnection]) -> UpstreamConnection | None:
        now = time.monotonic()
        upstream = (
            pick_for_sequence(upstreams, self.sequence) if self.sequence else pick_upstream(upstreams, now, self.tried)
        )
        if upstream is None and self.tried:
            upstream = pick_upstream(upstreams, now)  # better the same one again than none
        if upstream is not None:
            upstream.chosen(now)
        return upstream

    def took_first(self, reply: Any) -> None:
        """An answer of the replica that was asked first, or that there is none."""
        if self.link is not None:
            self.took(self.link, reply)

    def took(self, upstream: UpstreamConnection, reply: Any) -> None:
        """An answer, or that there is none."""
        if self.over:
            return
        now = time.monotonic()
        if isinstance(reply, MissingReply):
            self._on_missing_reply(upstream, reply, now)
            return
        status, replica_outcome = self.status(reply)
        if replica_outcome is not REPLICA_OK and self.rival is not None:
            self._drop_upstream(upstream)  # the other one may
            return
        if replica_outcome is not REPLICA_OK and self._retry_elsewhere(upstream, now, replica_outcome):
            return
        if replica_outcome is REPLICA_UNABLE:
            upstream.failed(now)
        elif upstream.fails:
            upstream.fails = 0
        self.end(reply, status, now)

    def end(self, reply: Any, status: int, now: float) -> None:
        """Give the answer; whoever else was asked need not answer."""
        tally = self.tally
        if self.rival is None and self.hedge is None and tally is not None:
            self.over, self.link = True, None
            tally.inflight -= 1
        else:
            self._close_request(self.link)
        if tally is not None and self.counts:
            tally.done(now - self.began, status)
        self.hall.answered(self, reply, status, now)

    def fail(self, error: FalajError) -> None:
        """Say no."""
        if not self.over:
            self._count_failure(error.status)
            self.reply(self.say(error))

    def tired(self) -> None:
        """Nobody came to answer it."""
        self._leave_queue()
        self.fail(Unavailable(f"no replica of {self.name[1]} was ready in time", _RETRY_HINT))

    def cancel(self) -> None:
        """The caller went away."""
        if not self.over:
            self._leave_queue()
            self._close_request(None)

    def _on_missing_reply(self, upstream: UpstreamConnection, missed: MissingReply, now: float) -> None:
        if missed is REPLY_LATE:
            if self.own:
                upstream.failed(now)
            self._count_failure(504)
            self.reply(self.late())
            return
        upstream.failed(now)
        if self.rival is not None:
            self._drop_upstream(upstream)
        elif not self._retry_elsewhere(upstream, now, REPLICA_UNABLE):
            hint = "try again" if not self.sequence else "begin the sequence again: its state is gone"
            self.fail(Unavailable("the replica went away before it answered", hint))

    def _retry_elsewhere(self, upstream: UpstreamConnection, now: float, replica_outcome: str) -> bool:
        """Ask another replica, where that may help and may be done: inference changes nothing, sequences do."""
        if self.sequence or self.rival is not None or len(self.tried) + 1 >= MAX_ATTEMPTS or now >= self.deadline:
            return False
        if (
            replica_outcome is REPLICA_BUSY
            and pick_upstream(self.routed.pools.get(self.revision, ()), now, (*self.tried, upstream)) is None
        ):
            return False
        if not self.routed.budget.take():
            return False
        if replica_outcome is REPLICA_UNABLE and upstream.client.ready:
            upstream.failed(now)
        self._leave_upstream()
        self.tried = (*self.tried, upstream)
        self.go()
        return True

    def _hold_or_fail(self, upstreams: Sequence[UpstreamConnection]) -> None:
        """No replica may be asked: some are broken, or none is there yet."""
        if any(upstream.client.ready and upstream.fails >= BREAKER_FAILURES for upstream in upstreams):
            self.fail(Unavailable(f"the replicas of {self.name[1]} fail", _RETRY_HINT))
            return
        self.asleep = self.routed.route.asleep
        if not self.hall.hold(self):
            self.fail(Unavailable(f"too many requests wait for {self.name[1]}", "try again shortly"))
            return
        self.held = True
        if self.tally is not None:
            self.tally.held += 1

    def _send_hedge(self) -> None:
        """It takes long: ask another one as well, and take the first answer."""
        self.hedge, now = None, time.monotonic()
        if self.over or self.link is None or self.rival is not None:
            return
        second_upstream = pick_upstream(self.routed.pools.get(self.revision, ()), now, (*self.tried, self.link))
        if second_upstream is not None and self.routed.budget.take():
            second_upstream.chosen(now)
            with suppress(FalajError):  # then there is one
                self.rival = (second_upstream, self.ask(second_upstream.client, partial(self.took, second_upstream)))

    def _drop_upstream(self, upstream: UpstreamConnection) -> None:
        """One of two went away: the other one is waited for."""
        hedged_upstream, self.rival = self.rival, None
        if hedged_upstream is not None and hedged_upstream[0] is not upstream:
            self.link, self.stream = hedged_upstream

    def _count_failure(self, status: int) -> None:
        tally = self.tally
        self._close_request(None)
        if tally is not None and self.counts:
            tally.done(time.monotonic() - self.began, status)
        if self.span is not None:
            self.hall.traced(self, status)

    def _close_request(self, answered: UpstreamConnection | None) -> None:
        """It is over. `answered`: who needs no word about it."""
        self.over = True
        if self.hedge is not None:
            self.hedge.cancel()
        if self.rival is not None:
            # Streams that were answered are not known any more, so it does no harm to give up both.
            self.rival[0].client.cancel(self.rival[1])
            if self.link is not None:
                self.link.client.cancel(self.stream)
        elif self.link is not None and answered is None:
            self.link.client.cancel(self.stream)
        self._leave_upstream()

    def _leave_upstream(self) -> None:
        if self.link is not None and self.tally is not None:
            self.tally.inflight -= 1
        self.link = None

    def _leave_queue(self) -> None:
        if self.held and self.tally is not None:
            self.tally.held -= 1
        self.held = False
