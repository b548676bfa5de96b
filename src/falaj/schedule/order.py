"""Whose turn it is: the neediest leaf first, by one total order that an admission changes only along its path.

From the top down, of all children with something to start: within its guarantee first, then the smaller weighted share
after the start, then who used less lately, then by name. Each inner queue keeps its children in a heap; entries that no
longer hold are dropped when they come up.
"""

from collections.abc import Iterable
from heapq import heapify, heappop, heappush

from falaj.schedule.share import Row, Tree

_Entry = tuple[int, int, int, int]
"""Level, decayed usage, row, and the number by which it is known to hold."""


class Order:
    """The leaves of a tree that want something."""

    def __init__(self, tree: Tree) -> None:
        self._tree = tree
        self._heaps: list[list[_Entry]] = [[] for _ in range(tree.top + 1)]
        self._holds = [0] * tree.top
        """The number of the entry of each row that holds; 0 when it wants nothing."""
        self._wants: list[Row | None] = [None] * tree.top
        self._number = 0

    def want(self, queue: str, amount: Iterable[int] | None) -> None:
        """The next thing this leaf would start counts so much; None: nothing now. Again after its use changed."""
        row = self._tree.leaf(queue)
        self._wants[row] = None if amount is None else tuple(map(int, amount))
        for at in self._tree.paths[row]:
            if at != row:
                first = self._first(at)
                self._wants[at] = None if first is None else self._wants[first]
            self._enter(at)

    def first(self) -> str | None:
        """The leaf whose turn it is; None when nobody wants anything."""
        at = self._first(self._tree.top)
        while at is not None and self._tree.children[at]:
            at = self._first(at)
        return None if at is None else self._tree.names[at]

    def _enter(self, row: int) -> None:
        wants = self._wants[row]
        if wants is None:
            self._holds[row] = 0
            return
        self._number += 1
        self._holds[row] = self._number
        tree = self._tree
        above = tree.parent[row]
        heap = self._heaps[above]
        heappush(heap, (tree.level(row, wants), tree.spent[row], row, self._number))
        if len(heap) > 64 + 2 * len(tree.children[above]):
            heap[:] = [entry for entry in heap if self._holds[entry[2]] == entry[3]]
            heapify(heap)

    def _first(self, row: int) -> int | None:
        heap = self._heaps[row]
        while heap and self._holds[heap[0][2]] != heap[0][3]:
            heappop(heap)
        return heap[0][2] if heap else None
