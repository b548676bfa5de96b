"""Fresh: small facts asked on every call, at most a second old; forgotten at once where this process changes them."""

import threading
from collections.abc import Callable, Hashable
from time import monotonic
from typing import Generic, TypeVar

from falaj.store.ledger import Ledger, Writer

STALE_S = 1.0
"""What another replica changed is seen here after so long at most."""

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Fresh(Generic[K, V]):
    """What `load` gave for a key, kept briefly. Inside a transaction nothing is kept: what is read may be undone."""

    def __init__(self, ledger: Ledger, load: Callable[[K], V], limit: int = 10_000) -> None:
        self._ledger = ledger
        self._load = load
        self._limit = limit
        self._kept: dict[K, tuple[V, float]] = {}
        self._changed = 0
        self._lock = threading.Lock()

    def get(self, key: K) -> V:
        """The value as it was not longer than STALE_S ago."""
        kept = self._kept.get(key)
        if kept is not None and monotonic() < kept[1]:
            return kept[0]
        # A group may yet be undone too, but then `changing` forgets what it changed.
        if self._ledger.transacting:
            return self._load(key)
        since, until = self._ledger.since, monotonic() + STALE_S
        value = self._load(key)
        with self._lock:
            # Read before a change and kept after it would be a second of the past; such a value is not kept.
            if self._changed <= since:
                if len(self._kept) >= self._limit:
                    self._kept.clear()
                self._kept[key] = (value, until)
        return value

    def changing(self, tx: Writer, key: K) -> None:
        """Forget the key when this transaction has ended."""
        tx.after(lambda durable: self._forget(key))

    def _forget(self, key: K) -> None:
        with self._lock:
            self._changed = self._ledger.note()
            self._kept.pop(key, None)
