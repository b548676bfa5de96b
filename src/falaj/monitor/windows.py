"""Windows: how time is cut, and where what was found in each stretch of it lies.

Cutting is pure. Windows end at whole multiples of the plan's length, so that the same hour of two days compares; one
with too few rows grows, up to a bound. Kept ones lie in sealed blocks on the Series port, under ids that are fixed by
revision and number: the same window twice is kept once.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from falaj.core.ports import Series
from falaj.core.ref import Ref
from falaj.monitor.records import Window
from falaj.serve.blocks import Blocks, Whose
from falaj.store.ledger import Ledger

PREFIX = "monitor.windows."
MOST_GROWN = 24
"""So many lengths a window of too few rows grows to at most."""
LATE_S = 3600.0
"""What comes later than this after the end of its window is not counted any more."""
SKEW_S = 5.0
"""A clock that is ahead by more is told of."""
Done = dict[str, Any]
"""Replica to when its newest delta ended, and the numbers of those that were counted, as ranges."""


class Part(NamedTuple):
    """How much there is in one slot of time."""

    rows: int = 0
    requests: int = 0
    errors: int = 0


class Cut(NamedTuple):
    """Where the next window lies."""

    since: float
    until: float
    few: bool = False
    """It grew as far as windows may, and has too few rows still."""


class Windows:
    """Windows of all endpoints."""

    def __init__(self, series: Callable[[], Series], ledger: Ledger) -> None:
        self._blocks = Blocks(PREFIX, Window, series, ledger)

    def append(self, whose: Whose, window: Window) -> None:
        """Keep a window, in the place of one of its number that was kept and never judged; durable on return."""
        name = f"w{window.revision}-{window.number}"
        made = self._blocks.sealed(whose, [window], (window.until, window.until), name)
        if not self._blocks.swap(whose.tenant, whose.ref, [name], [made]):
            self._blocks.append([made])

    def read(self, tenant: str, ref: Ref, since: float, until: float = math.inf) -> Sequence[Window]:
        """Windows that ended in this time, oldest first."""
        found = [one for block in self._blocks.blocks(tenant, ref, since) for one in self._blocks.rows(block)]
        return sorted((one for one in found if since <= one.until < until), key=lambda one: (one.until, one.revision))

    def expire(self, tenant: str, ref: Ref, before: float) -> int:
        """Remove windows older than a moment."""
        return self._blocks.expire(tenant, ref, before)

    def delete(self, tenant: str, ref: Ref) -> None:
        """All of an endpoint."""
        self._blocks.delete(tenant, ref)


def slot_of(at: float, every_s: float) -> float:
    """When the slot of a moment begins."""
    return math.floor(at / every_s) * every_s


def grace_s(every_s: float) -> float:
    """How long a window waits after its end for what is on its way."""
    return min(60.0, max(2.0, every_s / 20))


def last_end(every_s: float, now: float) -> float:
    """The end of the newest slot that is closed now."""
    return slot_of(now - grace_s(every_s), every_s)


def cut(
    since: float, every_s: float, end: float, parts: Mapping[float, Part], enough: Callable[[Part], bool]
) -> Cut | None:
    """The next window from `since` on, of slots that are closed at `end`; None while there is none.

    `parts` are the slots in which something came, by their beginning. Slots without anything before the first one are
    passed over: nobody asked.
    """
    there = sorted(at for at, part in parts.items() if part.rows or part.requests)
    if not there or there[0] + every_s > end:
        return None
    begin, whole, first = max(since, there[0]), Part(), there[0]
    for number in range(MOST_GROWN):
        at = first + number * every_s
        if at + every_s > end + 1e-6:
            return None  # it may still grow
        more = parts.get(at, Part())
        whole = Part(whole.rows + more.rows, whole.requests + more.requests, whole.errors + more.errors)
        if enough(whole):
            return Cut(begin, at + every_s)
    return Cut(begin, first + MOST_GROWN * every_s, few=True)


def marked(done: Done, rows: Iterable[tuple[str, int, float]], before: float) -> Done:
    """What was counted, with these (replica, number, until) more; replicas that ended before a moment are forgotten."""
    made = dict(done)
    for replica, number, until in rows:
        at, pairs = made.get(replica, (0.0, []))
        made[replica] = [max(at, until), _joined([*pairs, [number, number]])]
    return {replica: one for replica, one in made.items() if one[0] >= before}


def is_marked(done: Done, replica: str, number: int) -> bool:
    """Whether this was counted already."""
    return any(first <= number <= last for first, last in done.get(replica, (0.0, []))[1])


def _joined(pairs: Iterable[Sequence[int]]) -> list[list[int]]:
    made: list[list[int]] = []
    for first, last in sorted(map(list, pairs)):
        if made and first <= made[-1][1] + 1:
            made[-1][1] = max(made[-1][1], last)
        else:
            made.append([first, last])
    return made
