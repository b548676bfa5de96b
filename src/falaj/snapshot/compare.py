"""What differs between two trees. Pages that are equal are skipped unread, so the cost is that of the change."""

from collections.abc import Iterator

from falaj.core.data import dataclass
from falaj.snapshot.format import Entry, PageRef
from falaj.snapshot.read import Snapshot


@dataclass(frozen=True, slots=True)
class Change:
    """One path that is not the same in both trees."""

    path: bytes
    how: str
    """`added`, `removed` or `changed`."""
    before: Entry | None
    after: Entry | None


def compare(a: Snapshot, b: Snapshot) -> Iterator[Change]:
    """The changes that lead from one tree to another, sorted by path."""
    left, right = _Cursor(a), _Cursor(b)
    while left.items or right.items:
        x, y = left.key(), right.key()
        if y is None or (x is not None and x < y):
            yield from left.step("removed")
        elif x is None or y < x:
            yield from right.step("added")
        else:
            yield from _meet(left, right)


class _Cursor:
    """A tree as a stack of what is still to come: pages nobody has opened yet, and entries."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self.items: list[PageRef | Entry] = []
        self.open(snapshot.root())

    def key(self) -> bytes | None:
        """The path that the next item begins with."""
        if not self.items:
            return None
        item = self.items[-1]
        return item.first if isinstance(item, PageRef) else item.path

    def open(self, ref: PageRef) -> None:
        """Put what a page lists in its place."""
        page = self._snapshot.page(ref)
        self.items.extend(reversed(page.pages if page.level else page.entries))

    def step(self, how: str) -> Iterator[Change]:
        """The next item stands alone: look into it, or it is a change."""
        item = self.items.pop()
        if isinstance(item, PageRef):
            self.open(item)
        else:
            yield Change(item.path, how, *((item, None) if how == "removed" else (None, item)))


def _meet(left: _Cursor, right: _Cursor) -> Iterator[Change]:
    """Both sides begin with the same path."""
    x, y = left.items[-1], right.items[-1]
    if isinstance(x, PageRef) and isinstance(y, PageRef) and x.digest == y.digest:
        left.items.pop()
        right.items.pop()
        return
    height = (x.level + 1 if isinstance(x, PageRef) else 0, y.level + 1 if isinstance(y, PageRef) else 0)
    if max(height):
        # The higher of two pages is opened first: its pages may equal the other.
        for side, own in ((left, height[0]), (right, height[1])):
            if own == max(height):
                yield from side.step("")
        return
    before, after = left.items.pop(), right.items.pop()
    if isinstance(before, Entry) and isinstance(after, Entry) and before != after:
        yield Change(after.path, "changed", before, after)
