"""Requests with one way to go: one arm has everybody, and one replica answers it.

What that way is follows from the head of a request and the table of endpoints, so it is found once for both. What may
change in between (the replica, retries that are left) is looked at for each; whatever is not as it should be goes the
ordinary way, and so does all that follows an answer that is none.
"""

import random
import time
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from falaj.core.errors import FalajError
from falaj.gateway.callers import EndpointCaller
from falaj.gateway.inflight_protocols import InflightHttpRequest
from falaj.gateway.inflight_request import RequestGateway
from falaj.gateway.route_table import RoutedEndpoint, SoleArm
from falaj.oip.handler_calls import HttpCall, HttpReply
from falaj.oip.upstream_frames import RequestTemplate

NAME_BYTES = 32
"""Of what the gateway calls a request."""


class Way:
    """Where requests with one head go."""

    __slots__ = (
        "arm",
        "budget",
        "line",
        "link",
        "revision",
        "routed",
        "sample",
        "shadow",
        "stub",
        "tally",
        "timeout_s",
    )

    def __init__(self, routed: RoutedEndpoint, only: SoleArm, stub: RequestTemplate, line: bytes) -> None:
        self.arm, self.revision, self.tally, (self.link,) = only
        self.routed, self.stub, self.budget, self.line = routed, stub, routed.budget, line
        """`line` is what answers say of the revision."""
        self.timeout_s, self.sample = routed.rules.timeout_s, routed.rules.sample
        self.shadow = routed.route.shadow is not None


def way_of(
    routed: RoutedEndpoint, call: HttpCall, headers: Mapping[bytes, bytes], path: bytes, line: Callable[[int], bytes]
) -> Way | None:
    """The way of inferences with this head, which a replica is told by these headers and path; None: by and by. `line`
    is what answers of a revision say."""
    only = routed.only
    if only is None or len(only[3]) != 1 or routed.rules.per_s > 0.0 or routed.sticky in call.headers:
        return None
    try:
        return Way(routed, only, RequestTemplate(call.method, path, headers, NAME_BYTES), line(only[1]))
    except FalajError:  # too long: whoever sends it is told so
        return None


class Straight(msgspec.Struct, eq=False):
    """A request that goes there. Small, because most requests are one: whatever is not as ever makes it a Passing."""

    hall: RequestGateway
    way: Way
    caller: EndpointCaller
    call: HttpCall
    reply: Callable[[Any], Any]
    began: float
    stream: int = 0
    over: bool = False
    passing: InflightHttpRequest | None = None

    def start(self) -> Callable[[], None] | None:
        """Go; gives what ends it."""
        way = self.way
        way.tally.inflight += 1
        try:
            self.stream = way.link.client.pass_rest(way.stub, self.call, self.began + way.timeout_s, self.took)
        except FalajError as error:
            way.tally.inflight -= 1
            one = self._ordinary()
            one.link = None
            one.fail(error)
            return None
        return self.cancel

    def took(self, reply: Any) -> None:
        """An answer of the replica, or that there is none."""
        if self.over:
            return
        way = self.way
        tally = way.tally
        if reply.__class__ is not HttpReply or reply.status >= 429 or way.link.fails:
            self._ordinary().took(way.link, reply)
            return
        self.over, now = True, time.monotonic()
        tally.inflight -= 1
        tally.done(now - self.began, reply.status)
        reply.lines = b"falaj-request: " + self.call.name + way.line
        self.reply(reply)
        kept = way.sample > 0.0 and random.random() < way.sample  # noqa: S311 # nosec B311 - a sample
        if kept or way.shadow:
            self.hall.after(self._ordinary(), reply, now, is_kept=kept)

    def cancel(self) -> None:
        """The caller went away."""
        if self.passing is not None:
            self.passing.cancel()
        elif not self.over:
            self.over = True
            self.way.link.client.cancel(self.stream)
            self.way.tally.inflight -= 1

    def _ordinary(self) -> InflightHttpRequest:
        """The same, as others are."""
        way, one = (
            self.way,
            InflightHttpRequest(self.hall, self.way.routed, self.caller, self.call, self.reply, self.began),
        )
        one.id, one.arm, one.revision, one.tally = self.call.name, way.arm, way.revision, way.tally
        one.link, one.stream, one.over = way.link, self.stream, self.over
        self.passing = one
        return one
