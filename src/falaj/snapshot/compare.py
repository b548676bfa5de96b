"""What differs between two trees. Pages that are equal are skipped unread, so the cost is that of the change."""

from collections.abc import Iterator

from falaj.core.data import dataclass
from falaj.snapshot.tree_format import PageRef, TreeEntry
from falaj.snapshot.tree_reader import TreeSnapshot


@dataclass(frozen=True, slots=True)
class TreeChange:
    """One path that is not the same in both trees."""

    path: bytes
    how: str
    """`added`, `removed` or `changed`."""
    before: TreeEntry | None
    after: TreeEntry | None


def compare_trees(old_tree: TreeSnapshot, new_tree: TreeSnapshot) -> Iterator[TreeChange]:
    """The changes that lead from one tree to another, sorted by path."""
    old_cursor, new_cursor = _TreeCursor(old_tree), _TreeCursor(new_tree)
    while old_cursor.items or new_cursor.items:
        old_key, new_key = old_cursor.key(), new_cursor.key()
        if new_key is None or (old_key is not None and old_key < new_key):
            yield from old_cursor.step("removed")
        elif old_key is None or new_key < old_key:
            yield from new_cursor.step("added")
        else:
            yield from _compare_heads(old_cursor, new_cursor)


class _TreeCursor:
    """A tree as a stack of what is still to come: pages nobody has opened yet, and entries."""

    def __init__(self, snapshot: TreeSnapshot) -> None:
        self._snapshot = snapshot
        self.items: list[PageRef | TreeEntry] = []
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

    def step(self, change_kind: str) -> Iterator[TreeChange]:
        """The next item stands alone: look into it, or it is a change."""
        item = self.items.pop()
        if isinstance(item, PageRef):
            self.open(item)
        else:
            yield TreeChange(item.path, change_kind, *((item, None) if change_kind == "removed" else (None, item)))


def _compare_heads(old_cursor: _TreeCursor, new_cursor: _TreeCursor) -> Iterator[TreeChange]:
    """Both sides begin with the same path."""
    old_item, new_item = old_cursor.items[-1], new_cursor.items[-1]
    if isinstance(old_item, PageRef) and isinstance(new_item, PageRef) and old_item.digest == new_item.digest:
        old_cursor.items.pop()
        new_cursor.items.pop()
        return
    heights = (
        old_item.level + 1 if isinstance(old_item, PageRef) else 0,
        new_item.level + 1 if isinstance(new_item, PageRef) else 0,
    )
    if max(heights):
        # The higher of two pages is opened first: its pages may equal the other.
        for cursor, own_height in ((old_cursor, heights[0]), (new_cursor, heights[1])):
            if own_height == max(heights):
                yield from cursor.step("")
        return
    old_entry, new_entry = old_cursor.items.pop(), new_cursor.items.pop()
    if isinstance(old_entry, TreeEntry) and isinstance(new_entry, TreeEntry) and old_entry != new_entry:
        yield TreeChange(new_entry.path, "changed", old_entry, new_entry)
