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

from falaj.gateway.callers import Caller
from falaj.gateway.passing import Hall
from falaj.gateway.protocols import RestPassing
from falaj.gateway.straight import Way
from falaj.oip.calls import Call, Reply, Tell


class Lot:
    """Some requests of one caller, told by their numbers. `call` is what they have in common."""

    __slots__ = ("_began", "_bodies", "_call", "_caller", "_first", "_hall", "_names", "_numbers", "_over", "_passing",
                 "_tell", "_way")  # fmt: skip

    def __init__(self, hall: Hall, way: Way, caller: Caller, call: Call, began: float, tell: Tell) -> None:
        self._hall, self._way, self._caller, self._call, self._began, self._tell = hall, way, caller, call, began, tell
        self._numbers: Sequence[int] = ()
        self._names: Sequence[bytes] = ()
        self._bodies: Sequence[bytes] = ()
        self._over = bytearray()
        self._passing: dict[int, RestPassing] = {}
        self._first = 0
        """The stream of the first one; the others follow."""

    def start(
        self, numbers: Sequence[int], names: Sequence[bytes], bodies: Sequence[bytes]
    ) -> list[tuple[int, Callable[[], None]]] | None:
        """Go; gives what ends each, or None where they must go one by one."""
        way = self._way
        self._numbers, self._names, self._bodies = numbers, names, bodies
        self._first = way.link.client.pass_lot(way.stub, names, bodies, self._began + way.timeout_s, self._took)
        if not self._first:
            return None
        way.tally.inflight += len(names)
        self._over = bytearray(len(names))
        return [(number, partial(self._cancel, at)) for at, number in enumerate(numbers)]

    def _took(self, streams: Sequence[int], replies: Sequence[Any]) -> None:
        """Answers of the replica to some of them, or that there are none."""
        way, over, first, good, statuses = self._way, self._over, self._first, list[tuple[int, Reply]](), list[int]()
        for stream, reply in zip(streams, replies, strict=True):
            at = stream - first
            if over[at]:
                continue
            if reply.__class__ is not Reply or reply.status >= 429 or way.link.fails:
                self._ordinary(at).took(way.link, reply)
                continue
            over[at] = 1
            good.append((at, reply))
            statuses.append(reply.status)
        now, tally, tell = time.monotonic(), way.tally, self._tell
        tally.inflight -= len(good)
        for status in set(statuses):
            tally.done(now - self._began, status, statuses.count(status))
        for at, reply in good:
            reply.lines = b"falaj-request: " + self._names[at] + way.line
            tell(self._numbers[at], reply)
            kept = way.sample > 0.0 and random.random() < way.sample  # noqa: S311 # nosec B311 - a sample
            if kept or way.shadow:
                self._hall.after(self._ordinary(at), reply, now, kept=kept)

    def _cancel(self, at: int) -> None:
        """The caller of one went away."""
        passing = self._passing.get(at)
        if passing is not None:
            passing.cancel()
        elif not self._over[at]:
            self._over[at] = 1
            self._way.link.client.cancel(self._first + at)
            self._way.tally.inflight -= 1

    def _ordinary(self, at: int) -> RestPassing:
        """One of them, as others are."""
        way, name = self._way, self._names[at]
        call = msgspec.structs.replace(self._call, body=self._bodies[at], name=name)
        reply = partial(self._tell, self._numbers[at])
        one = RestPassing(self._hall, way.routed, self._caller, call, reply, self._began)
        one.id, one.arm, one.revision, one.tally = name, way.arm, way.revision, way.tally
        one.link, one.stream, one.over = way.link, self._first + at, bool(self._over[at])
        self._passing[at] = one
        return one
