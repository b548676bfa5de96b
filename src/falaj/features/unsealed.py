"""Rows of sealed views as they lie online: what the owner of the store sees says nothing of anybody."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from falaj.core.online import RANK_BYTES, pack_cell, rows_in
from falaj.core.ports import Online

Way = Callable[[bytes, bytes], bytes]
"""From plain to sealed or back: what, and what it is bound to."""


def through(way: Way, space: str, key: bytes, row: bytes) -> bytes:
    """A row with all but its rank sealed, or opened; bound to its place, so that it cannot be put under another key."""
    return row[:RANK_BYTES] + way(row[RANK_BYTES:], b"online\0" + space.encode() + b"\0" + key)


class Unsealed:
    """An online store to read from, whose sealed spaces are opened on the way out."""

    def __init__(self, store: Online, ways: Mapping[str, Way]) -> None:
        self._store, self._ways = store, ways

    def get(self, asks: Sequence[tuple[str, Sequence[bytes]]]) -> list[list[bytes | None]]:
        """Cells as they were put."""
        found = self._store.get(asks)
        return [
            [self._cell(space, key, cell) for key, cell in zip(keys, cells, strict=True)]
            if space in self._ways
            else cells
            for (space, keys), cells in zip(asks, found, strict=True)
        ]

    def _cell(self, space: str, key: bytes, cell: bytes | None) -> bytes | None:
        if cell is None:
            return None
        return pack_cell([through(self._ways[space], space, key, row) for row in rows_in(cell)])

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)
