"""Rows of sealed views as they lie online: what the owner of the store sees says nothing of anybody."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from falaj.core.online_rows import RANK_BYTES, pack_entry, unpack_entry
from falaj.core.ports import OnlineStore

CipherFunction = Callable[[bytes, bytes], bytes]
"""From plain to sealed or back: what, and what it is bound to."""


def transform_row(cipher_function: CipherFunction, space: str, key: bytes, row: bytes) -> bytes:
    """A row with all but its rank sealed, or opened; bound to its place, so that it cannot be put under another key."""
    return row[:RANK_BYTES] + cipher_function(row[RANK_BYTES:], b"online\0" + space.encode() + b"\0" + key)


class UnsealedStore:
    """An online store to read from, whose sealed spaces are opened on the way out."""

    def __init__(self, store: OnlineStore, cipher_by_space: Mapping[str, CipherFunction]) -> None:
        self._store, self._cipher_by_space = store, cipher_by_space

    def get(self, requests: Sequence[tuple[str, Sequence[bytes]]]) -> list[list[bytes | None]]:
        """Cells as they were put."""
        stored = self._store.get(requests)
        return [
            [self._decrypt_entry(space, key, entry) for key, entry in zip(keys, entries, strict=True)]
            if space in self._cipher_by_space
            else entries
            for (space, keys), entries in zip(requests, stored, strict=True)
        ]

    def _decrypt_entry(self, space: str, key: bytes, entry: bytes | None) -> bytes | None:
        if entry is None:
            return None
        return pack_entry([transform_row(self._cipher_by_space[space], space, key, row) for row in unpack_entry(entry)])

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)
