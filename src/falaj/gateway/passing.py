"""One request on its way: an arm, a replica, another one where that failed, and the answer back."""

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Protocol

from falaj.core.errors import FalajError, NotFound, Unavailable
from falaj.core.trace import Span
from falaj.gateway.callers import Caller
from falaj.gateway.link import TRIP, Link
from falaj.gateway.pick import pick, pinned
from falaj.gateway.table import Name, Routed
from falaj.gateway.tally import Tally
from falaj.oip.hop import LATE, HopClient, Missed

DIRECT = "direct"
"""The arm of requests that name their revision: they are no sample of the traffic, so no judge looks at them."""
MOST_TRIES = 4
BUSY, UNABLE, FINE = "busy", "unable", "fine"
_SEE = "try again shortly; falaj serve show says why"


class Hall(Protocol):
    """What a request needs of the gateway."""

    def routed(self, name: tuple[str, str]) -> Routed | None: ...
    def tally(self, routed: Routed, arm: str, revision: int) -> Tally: ...
    def hold(self, one: "Passing") -> bool: ...
    def barred(self, routed: Routed, revision: int) -> FalajError | None: ...
    def answered(self, one: "Passing", reply: Any, status: int, now: float) -> None: ...
    def after(self, one: "Passing", reply: Any, now: float, *, kept: bool) -> None: ...
    def traced(self, one: "Passing", status: int) -> None: ...


class Passing:
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
    link: Link | None = None
    rival: tuple[Link, int] | None = None
    tally: Tally | None = None
    tried: tuple[Link, ...] = ()
    hedge: asyncio.TimerHandle | None = None
    span: Span | None = None

    def __init__(
        self, hall: Hall, routed: Routed, caller: Caller, body: Any, reply: Callable[[Any], Any], now: float
    ) -> None:
        self.hall, self.routed, self.caller, self.body, self.reply = hall, routed, caller, body, reply
        self.began, self.deadline = now, now + routed.rules.timeout_s

    @property
    def name(self) -> Name:
        """The endpoint."""
        return self.routed.name

    @property
    def until(self) -> float:
        """So long it waits for a replica."""
        until = self.began + self.routed.route.rules.hold_s
        return until if self.own else min(until, self.deadline)

    @property
    def size(self) -> int:
        """How many bytes it holds."""
        raise NotImplementedError

    def ask(self, client: HopClient, then: Callable[[Any], Any]) -> int:
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
        self._go(routed)
        return None if self.over else self.cancel

    def go(self) -> None:
        """Go again: it was held, or the replica could not."""
        if self.held:
            self._unheld()
            if self.own:  # it was not the replica's time
                self.deadline = time.monotonic() + self.routed.route.rules.timeout_s
        self._go(self.hall.routed(self.name))

    def _go(self, routed: Routed | None) -> None:
        """Choose an arm and a replica, and ask; or wait for one."""
        pool: Sequence[Link]
        if routed is not None and routed.only is not None and not self.version:
            self.arm, self.revision, tally, pool = routed.only
        else:
            if routed is None or (self.version and self.version not in routed.route.live):
                what = f"revision {self.version}" if routed else "an endpoint"
                self.fail(NotFound(f"{what} of {self.name[1]} does not run", "see: falaj serve show"))
                return
            self.arm, self.revision = (DIRECT, self.version) if self.version else routed.arms.pick(self.key)
            tally = routed.tallies.get(self.arm) or self.hall.tally(routed, self.arm, self.revision)
            pool = routed.pools.get(self.revision, ())
        self.routed, self.tally = routed, tally
        if routed.route.features and (barred := self.hall.barred(routed, self.revision)):
            self.fail(barred)
            return
        link = pool[0] if len(pool) == 1 else None
        if link is None or link.fails or not link.client.ready:
            link = self._link(pool)
            if link is None:
                self._wait(pool)
                return
        tally.inflight += 1
        self.link = link
        try:
            self.stream = self.ask(link.client, self.took_first)
        except FalajError as error:
            self._left()
            self.fail(error)
            return
        hedge_ms = routed.rules.hedge_ms
        if hedge_ms > 0.0 and len(pool) > 1 and not self.sequence:
            self.hedge = asyncio.get_running_loop().call_later(hedge_ms / 1000, self._hedged)

    def _link(self, pool: Sequence[Link]) -> Link | None:
        now = time.monotonic()
        link = pinned(pool, self.sequence) if self.sequence else pick(pool, now, self.tried)
        if link is None and self.tried:
            link = pick(pool, now)  # better the same one again than none
        if link is not None:
            link.chosen(now)
        return link

    def took_first(self, reply: Any) -> None:
        """An answer of the replica that was asked first, or that there is none."""
        if self.link is not None:
            self.took(self.link, reply)

    def took(self, link: Link, reply: Any) -> None:
        """An answer, or that there is none."""
        if self.over:
            return
        now = time.monotonic()
        if isinstance(reply, Missed):
            self._missed(link, reply, now)
            return
        status, could = self.status(reply)
        if could is not FINE and self.rival is not None:
            self._drop(link)  # the other one may
            return
        if could is not FINE and self._again(link, now, could):
            return
        if could is UNABLE:
            link.failed(now)
        elif link.fails:
            link.fails = 0
        self.end(reply, status, now)

    def end(self, reply: Any, status: int, now: float) -> None:
        """Give the answer; whoever else was asked need not answer."""
        tally = self.tally
        if self.rival is None and self.hedge is None and tally is not None:
            self.over, self.link = True, None
            tally.inflight -= 1
        else:
            self._close(self.link)
        if tally is not None and self.counts:
            tally.done(now - self.began, status)
        self.hall.answered(self, reply, status, now)

    def fail(self, error: FalajError) -> None:
        """Say no."""
        if not self.over:
            self._count(error.status)
            self.reply(self.say(error))

    def tired(self) -> None:
        """Nobody came to answer it."""
        self._unheld()
        self.fail(Unavailable(f"no replica of {self.name[1]} was ready in time", _SEE))

    def cancel(self) -> None:
        """The caller went away."""
        if not self.over:
            self._unheld()
            self._close(None)

    def _missed(self, link: Link, missed: Missed, now: float) -> None:
        if missed is LATE:
            if self.own:
                link.failed(now)
            self._count(504)
            self.reply(self.late())
            return
        link.failed(now)
        if self.rival is not None:
            self._drop(link)
        elif not self._again(link, now, UNABLE):
            hint = "try again" if not self.sequence else "begin the sequence again: its state is gone"
            self.fail(Unavailable("the replica went away before it answered", hint))

    def _again(self, link: Link, now: float, could: str) -> bool:
        """Ask another replica, where that may help and may be done: inference changes nothing, sequences do."""
        if self.sequence or self.rival is not None or len(self.tried) + 1 >= MOST_TRIES or now >= self.deadline:
            return False
        if could is BUSY and pick(self.routed.pools.get(self.revision, ()), now, (*self.tried, link)) is None:
            return False
        if not self.routed.budget.take():
            return False
        if could is UNABLE and link.client.ready:
            link.failed(now)
        self._left()
        self.tried = (*self.tried, link)
        self.go()
        return True

    def _wait(self, pool: Sequence[Link]) -> None:
        """No replica may be asked: some are broken, or none is there yet."""
        if any(link.client.ready and link.fails >= TRIP for link in pool):
            self.fail(Unavailable(f"the replicas of {self.name[1]} fail", _SEE))
            return
        self.asleep = self.routed.route.asleep
        if not self.hall.hold(self):
            self.fail(Unavailable(f"too many requests wait for {self.name[1]}", "try again shortly"))
            return
        self.held = True
        if self.tally is not None:
            self.tally.held += 1

    def _hedged(self) -> None:
        """It takes long: ask another one as well, and take the first answer."""
        self.hedge, now = None, time.monotonic()
        if self.over or self.link is None or self.rival is not None:
            return
        other = pick(self.routed.pools.get(self.revision, ()), now, (*self.tried, self.link))
        if other is not None and self.routed.budget.take():
            other.chosen(now)
            with suppress(FalajError):  # then there is one
                self.rival = (other, self.ask(other.client, partial(self.took, other)))

    def _drop(self, link: Link) -> None:
        """One of two went away: the other one is waited for."""
        rival, self.rival = self.rival, None
        if rival is not None and rival[0] is not link:
            self.link, self.stream = rival

    def _count(self, status: int) -> None:
        tally = self.tally
        self._close(None)
        if tally is not None and self.counts:
            tally.done(time.monotonic() - self.began, status)
        if self.span is not None:
            self.hall.traced(self, status)

    def _close(self, answered: Link | None) -> None:
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
        self._left()

    def _left(self) -> None:
        if self.link is not None and self.tally is not None:
            self.tally.inflight -= 1
        self.link = None

    def _unheld(self) -> None:
        if self.held and self.tally is not None:
            self.tally.held -= 1
        self.held = False
