"""Windows: how time is cut, and where what was found in each stretch of it lies.

Cutting is pure. Windows end at whole multiples of the plan's length, so that the same hour of two days compares; one
with too few rows grows, up to a bound. Kept ones lie in sealed blocks on the Series port, under ids that are fixed by
revision and number: the same window twice is kept once.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from falaj.core.ports import SeriesStore
from falaj.core.ref import Ref
from falaj.monitor.records import MonitorWindow
from falaj.serve.sealed_blocks import RowOwner, SealedBlocks
from falaj.store.ledger import Ledger

SERIES_PREFIX = "monitor.windows."
MAX_GROWN_LENGTHS = 24
"""So many lengths a window of too few rows grows to at most."""
MAX_LATE_S = 3600.0
"""What comes later than this after the end of its window is not counted any more."""
MAX_CLOCK_SKEW_S = 5.0
"""A clock that is ahead by more is told of."""
CountedRanges = dict[str, Any]
"""Replica to when its newest delta ended, and the numbers of those that were counted, as ranges."""


class SlotPart(NamedTuple):
    """How much there is in one slot of time."""

    rows: int = 0
    requests: int = 0
    errors: int = 0


class WindowCut(NamedTuple):
    """Where the next window lies."""

    since: float
    until: float
    few: bool = False
    """It grew as far as windows may, and has too few rows still."""


class WindowStore:
    """Windows of all endpoints."""

    def __init__(self, series: Callable[[], SeriesStore], ledger: Ledger) -> None:
        self._block_store = SealedBlocks(SERIES_PREFIX, MonitorWindow, series, ledger)

    def append(self, owner_key: RowOwner, window: MonitorWindow) -> None:
        """Keep a window, in the place of one of its number that was kept and never judged; durable on return."""
        block_name = f"w{window.revision}-{window.number}"
        sealed_block = self._block_store.sealed(owner_key, [window], (window.until, window.until), block_name)
        if not self._block_store.swap(owner_key.tenant, owner_key.ref, [block_name], [sealed_block]):
            self._block_store.append([sealed_block])

    def read(self, tenant: str, ref: Ref, since: float, until: float = math.inf) -> Sequence[MonitorWindow]:
        """Windows that ended in this time, oldest first."""
        windows_found = [
            window for block in self._block_store.blocks(tenant, ref, since) for window in self._block_store.rows(block)
        ]
        return sorted(
            (window for window in windows_found if since <= window.until < until),
            key=lambda window: (window.until, window.revision),
        )

    def expire(self, tenant: str, ref: Ref, before: float) -> int:
        """Remove windows older than a moment."""
        return self._block_store.expire(tenant, ref, before)

    def delete(self, tenant: str, ref: Ref) -> None:
        """All of an endpoint."""
        self._block_store.delete(tenant, ref)


def find_slot_start(moment_s: float, every_s: float) -> float:
    """When the slot of a moment begins."""
    return math.floor(moment_s / every_s) * every_s


def compute_grace_s(every_s: float) -> float:
    """How long a window waits after its end for what is on its way."""
    return min(60.0, max(2.0, every_s / 20))


def find_last_closed_end(every_s: float, now: float) -> float:
    """The end of the newest slot that is closed now."""
    return find_slot_start(now - compute_grace_s(every_s), every_s)


def cut_window(
    since: float,
    every_s: float,
    end: float,
    part_by_slot: Mapping[float, SlotPart],
    has_enough: Callable[[SlotPart], bool],
) -> WindowCut | None:
    """The next window from `since` on, of slots that are closed at `end`; None while there is none.

    `part_by_slot` are the slots in which something came, by their beginning. Slots without anything before the first
    one are passed over: nobody asked.
    """
    busy_slots = sorted(
        slot_start for slot_start, busy_part in part_by_slot.items() if busy_part.rows or busy_part.requests
    )
    if not busy_slots or busy_slots[0] + every_s > end:
        return None
    window_start, total_part, first_slot = max(since, busy_slots[0]), SlotPart(), busy_slots[0]
    for number in range(MAX_GROWN_LENGTHS):
        slot_start = first_slot + number * every_s
        if slot_start + every_s > end + 1e-6:
            return None  # it may still grow
        slot_part = part_by_slot.get(slot_start, SlotPart())
        total_part = SlotPart(
            total_part.rows + slot_part.rows,
            total_part.requests + slot_part.requests,
            total_part.errors + slot_part.errors,
        )
        if has_enough(total_part):
            return WindowCut(window_start, slot_start + every_s)
    return WindowCut(window_start, first_slot + MAX_GROWN_LENGTHS * every_s, few=True)


def mark_counted(counted_ranges: CountedRanges, rows: Iterable[tuple[str, int, float]], before: float) -> CountedRanges:
    """What was counted, with these (replica, number, until) more; replicas that ended before a moment are forgotten."""
    marks = dict(counted_ranges)
    for replica, number, until in rows:
        last_until, pairs = marks.get(replica, (0.0, []))
        marks[replica] = [max(last_until, until), _join_ranges([*pairs, [number, number]])]
    return {replica: replica_marks for replica, replica_marks in marks.items() if replica_marks[0] >= before}


def is_counted(counted_ranges: CountedRanges, replica: str, number: int) -> bool:
    """Whether this was counted already."""
    return any(first <= number <= last for first, last in counted_ranges.get(replica, (0.0, []))[1])


def _join_ranges(pairs: Iterable[Sequence[int]]) -> list[list[int]]:
    joined: list[list[int]] = []
    for first, last in sorted(map(list, pairs)):
        if joined and first <= joined[-1][1] + 1:
            joined[-1][1] = max(joined[-1][1], last)
        else:
            joined.append([first, last])
    return joined
