"""Requests of one turn of the loop that go one way, handed to the replica as one: most of what a small request costs is
what is made for each. Each is still answered, counted, named and kept by itself, and whatever is not as ever makes one
of them a Passing, as in straight.py.
"""

import random
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import msgspec

from falaj.gateway.callers import EndpointCaller
from falaj.gateway.inflight_protocols import InflightHttpRequest
from falaj.gateway.inflight_request import RequestGateway
from falaj.gateway.straight import Way
from falaj.oip.handler_calls import HttpCall, HttpReply
from falaj.oip.http1_server import GatheredExchanges
from falaj.oip.http_responses import render_group
from falaj.oip.lot_frames import Told

_NAMED = b"falaj-request: "


class Lot:
    """Some requests of one caller, told by their numbers. `call` is what they have in common."""

    __slots__ = ("_began", "_bodies", "_call", "_caller", "_first", "_hall", "_names", "_numbers", "_over", "_passing",
                 "_turned", "_way")  # fmt: skip

    def __init__(
        self,
        hall: RequestGateway,
        way: Way,
        caller: EndpointCaller,
        call: HttpCall,
        began: float,
        turned: GatheredExchanges,
    ) -> None:
        self._hall, self._way, self._caller, self._call, self._began = hall, way, caller, call, began
        self._turned = turned
        self._numbers: Sequence[int] = ()
        self._names: Sequence[bytes] = ()
        self._bodies: Sequence[bytes] = ()
        self._over = bytearray()
        self._passing: dict[int, InflightHttpRequest] = {}
        self._first = 0
        """The stream of the first one; the others follow."""

    def start(
        self, numbers: Sequence[int], names: Sequence[bytes], bodies: Sequence[bytes]
    ) -> Callable[[int], None] | None:
        """Go; gives what ends one, by its place, or None where they must go one by one."""
        way = self._way
        self._numbers, self._names, self._bodies = numbers, names, bodies
        self._first = way.link.client.pass_lot(way.stub, names, bodies, self._began + way.timeout_s, self._took)
        if not self._first:
            return None
        way.tally.inflight += len(names)
        self._over = bytearray(len(names))
        return self._cancel

    def _took(self, streams: Sequence[int], told: Any) -> None:
        """Answers of the replica to some of them; or one, or that there is none."""
        first = self._first
        if told.__class__ is not Told:
            self._took_one(streams[0] - first, told)
        elif told.status >= 429 or self._way.link.fails:
            for place, stream in enumerate(streams):
                self._took_one(stream - first, told.reply(place))
        else:
            self._took_all([stream - first for stream in streams], told)

    def _took_one(self, at: int, reply: Any) -> None:
        way = self._way
        if self._over[at]:
            return
        if reply.__class__ is not HttpReply or reply.status >= 429 or way.link.fails:
            self._ordinary(at).took(way.link, reply)
            return
        now = self._count((at,), reply.status)
        self._tell(at, reply)
        self._after((at,), (reply,), now)

    def _took_all(self, those: Sequence[int], told: Told) -> None:
        way, over = self._way, self._over
        if any(over):
            left = [place for place, at in enumerate(those) if not over[at]]
            those, told = [those[place] for place in left], told.part(left)
        now = self._count(those, told.status)
        numbers, names = [self._numbers[at] for at in those], [self._names[at] for at in those]
        for place in self._turned.tell_whole(numbers, told, render_group(told, _NAMED, names, way.line)):
            self._tell(those[place], told.reply(place))
        if way.sample > 0.0 or way.shadow:
            self._after(those, [told.reply(place) for place in range(len(those))], now)

    def _count(self, those: Sequence[int], status: int) -> float:
        """These are answered, now."""
        now, tally = time.monotonic(), self._way.tally
        for at in those:
            self._over[at] = 1
        tally.inflight -= len(those)
        tally.done(now - self._began, status, len(those))
        return now

    def _tell(self, at: int, reply: HttpReply) -> None:
        reply.lines = _NAMED + self._names[at] + self._way.line
        self._turned.tell(self._numbers[at], reply)

    def _after(self, those: Sequence[int], replies: Sequence[HttpReply], now: float) -> None:
        way = self._way
        for at, reply in zip(those, replies, strict=True):
            kept = way.sample > 0.0 and random.random() < way.sample  # noqa: S311 # nosec B311 - a sample
            if kept or way.shadow:
                self._hall.after(self._ordinary(at), reply, now, is_kept=kept)

    def _cancel(self, at: int) -> None:
        """The caller of one went away."""
        passing = self._passing.get(at)
        if passing is not None:
            passing.cancel()
        elif not self._over[at]:
            self._over[at] = 1
            self._way.link.client.cancel(self._first + at)
            self._way.tally.inflight -= 1

    def _ordinary(self, at: int) -> InflightHttpRequest:
        """One of them, as others are."""
        way, name = self._way, self._names[at]
        call = msgspec.structs.replace(self._call, body=self._bodies[at], name=name)
        reply = partial(self._turned.tell, self._numbers[at])
        one = InflightHttpRequest(self._hall, way.routed, self._caller, call, reply, self._began)
        one.id, one.arm, one.revision, one.tally = name, way.arm, way.revision, way.tally
        one.link, one.stream, one.over = way.link, self._first + at, bool(self._over[at])
        self._passing[at] = one
        return one
