"""Whose turn it is: the neediest leaf first, by one total order that an admission changes only along its path.

From the top down, of all children with something to start: within its guarantee first, then the smaller weighted share
after the start, then who used less lately, then by name. Each inner queue keeps its children in a heap; entries that no
longer hold are dropped when they come up.
"""

from collections.abc import Iterable
from heapq import heapify, heappop, heappush

from falaj.schedule.fair_share import QuotaRow, ShareTree

_Entry = tuple[int, int, int, int]
"""Level, decayed usage, row, and the number by which it is known to hold."""


class FairShareOrder:
    """The leaves of a tree that want something."""

    def __init__(self, tree: ShareTree) -> None:
        self._tree = tree
        self._heaps: list[list[_Entry]] = [[] for _ in range(tree.top + 1)]
        self._valid_entries = [0] * tree.top
        """The number of the entry of each row that holds; 0 when it wants nothing."""
        self._next_amounts: list[QuotaRow | None] = [None] * tree.top
        self._last_entry = 0

    def want(self, queue: str, amount: Iterable[int] | None) -> None:
        """The next thing this leaf would start counts so much; None: nothing now. Again after its use changed."""
        row = self._tree.leaf(queue)
        self._next_amounts[row] = None if amount is None else tuple(map(int, amount))
        for ancestor in self._tree.paths[row]:
            if ancestor != row:
                first_child = self._find_first_child(ancestor)
                self._next_amounts[ancestor] = None if first_child is None else self._next_amounts[first_child]
            self._push_entry(ancestor)

    def first(self) -> str | None:
        """The leaf whose turn it is; None when nobody wants anything."""
        row = self._find_first_child(self._tree.top)
        while row is not None and self._tree.children[row]:
            row = self._find_first_child(row)
        return None if row is None else self._tree.names[row]

    def _push_entry(self, row: int) -> None:
        next_amount = self._next_amounts[row]
        if next_amount is None:
            self._valid_entries[row] = 0
            return
        self._last_entry += 1
        self._valid_entries[row] = self._last_entry
        tree = self._tree
        parent = tree.parent[row]
        heap = self._heaps[parent]
        heappush(heap, (tree.level(row, next_amount), tree.spent[row], row, self._last_entry))
        if len(heap) > 64 + 2 * len(tree.children[parent]):
            heap[:] = [entry for entry in heap if self._valid_entries[entry[2]] == entry[3]]
            heapify(heap)

    def _find_first_child(self, row: int) -> int | None:
        heap = self._heaps[row]
        while heap and self._valid_entries[heap[0][2]] != heap[0][3]:
            heappop(heap)
        return heap[0][2] if heap else None
