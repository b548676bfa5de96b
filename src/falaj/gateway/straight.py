"""Requests with one way to go: one arm has everybody, and one replica answers it.

What that way is follows from the head of a request and the table of endpoints, so it is found once for both. What may
change in between (the replica, retries that are left) is looked at for each; whatever is not as it should be goes the
ordinary way, and so does all that follows an answer that is none.
"""

from collections.abc import Callable, Mapping
from typing import Any

from falaj.core.errors import FalajError
from falaj.gateway.callers import Caller
from falaj.gateway.passing import Hall
from falaj.gateway.protocols import RestPassing
from falaj.gateway.table import Only, Routed
from falaj.oip.calls import Call
from falaj.oip.frames import Stub

NAME_BYTES = 32
"""Of what the gateway calls a request."""


class Way:
    """Where requests with one head go."""

    __slots__ = ("arm", "budget", "link", "revision", "routed", "stub", "tally", "timeout_s")

    def __init__(self, routed: Routed, only: Only, stub: Stub) -> None:
        self.arm, self.revision, self.tally, (self.link,) = only
        self.routed, self.stub, self.budget, self.timeout_s = routed, stub, routed.budget, routed.rules.timeout_s


def way_of(routed: Routed, call: Call, headers: Mapping[bytes, bytes], path: bytes) -> Way | None:
    """The way of inferences with this head, which a replica is told by these headers and path; None: by and by."""
    only = routed.only
    if only is None or len(only[3]) != 1 or routed.rules.per_s > 0.0 or routed.sticky in call.headers:
        return None
    try:
        return Way(routed, only, Stub(call.method, path, headers, NAME_BYTES))
    except FalajError:  # too long: whoever sends it is told so
        return None


class Straight(RestPassing):
    """A request that goes there."""

    def __init__(
        self, hall: Hall, way: Way, caller: Caller, call: Call, reply: Callable[[Any], Any], now: float
    ) -> None:
        self.hall, self.routed, self.caller, self.body, self.reply = hall, way.routed, caller, call, reply
        self.began, self.deadline, self.id = now, now + way.timeout_s, call.name
        self.arm, self.revision, self.tally, self.link = way.arm, way.revision, way.tally, way.link

    def start(self, way: Way) -> Callable[[], None] | None:
        """Go; gives what ends it."""
        way.tally.inflight += 1
        try:
            self.stream = way.link.client.pass_rest(way.stub, self.body, self.deadline, self.took_first)
        except FalajError as error:
            self._left()
            self.fail(error)
            return None
        return self.cancel
