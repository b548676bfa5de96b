"""The jobs of one line by the seconds they are charged for: who of it is best among those that a budget still covers.

Of one leaf and shape, what a job is charged grows with those seconds and with nothing else. A line has this only when a
budget refused one of it: the others are then found however many stand before them.
"""

from collections.abc import Mapping
from heapq import heappop, heappush
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from falaj.schedule.pending_queues import Rank


class ChargeHeaps:
    """One line of heaps, each of those charged for as long. They forget lazily, as the line's own does."""

    __slots__ = ("_heaps", "_seconds")

    def __init__(self) -> None:
        self._heaps: dict[int, list[Rank]] = {}
        self._seconds: dict[str, int] = {}

    def put(self, rank: "Rank", seconds: int) -> None:
        """A job stands in the line, or stands elsewhere in it."""
        self._seconds[rank[-1]] = seconds
        heappush(self._heaps.setdefault(seconds, []), rank)

    def best(self, ranks: "Mapping[str, Rank]", below: int) -> "Rank | None":
        """The first that is charged for less than so many seconds."""
        heads = []
        for seconds in [charged_s for charged_s in self._heaps if charged_s < below]:
            heap = self._heaps[seconds]
            while heap and (ranks.get(heap[0][-1]) != heap[0] or self._seconds[heap[0][-1]] != seconds):
                heappop(heap)
            if heap:
                heads.append(heap[0])
            else:
                del self._heaps[seconds]
        return min(heads, default=None)
