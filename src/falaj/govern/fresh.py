"""Fresh: small facts asked on every call, at most `STALE_S` old; forgotten at once where this process changes them.

Where the store is far away they are read again before that time is over, beside the calls that ask for them: else
a call, and all calls queued behind it, would wait for the store again and again.
"""

import threading
from collections.abc import Callable, Hashable
from contextlib import suppress
from time import monotonic
from typing import Generic, TypeVar

from falaj.core.errors import FalajError
from falaj.store.ledger import Ledger, Writer

STALE_S = 0.375
"""Seconds after which a change by another replica is seen here at the latest. With the guard's judgements (`JUDGED_S`)
and the gateway's callers (`KNOWN_S` there) it stays below a second: within that a revocation acts everywhere."""
AHEAD = 0.75
"""When so much of its time is over, what is asked for is read again."""

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Ahead(Generic[K]):
    """Reads again what is still good, beside whoever asks; one reading of a key at a time."""

    def __init__(self, ledger: Ledger, read: Callable[[K], object]) -> None:
        self._ledger = ledger
        self._read = read
        self._under_way: set[K] = set()

    def ask(self, key: K) -> None:
        """Have a key read soon, where somebody does that."""
        beside = self._ledger.beside
        if beside is None or key in self._under_way:
            return
        self._under_way.add(key)
        try:
            beside(lambda: self._run(key))
        except FalajError:  # nobody does any more; who finds it too old reads it
            self._under_way.discard(key)

    def _run(self, key: K) -> None:
        try:
            with suppress(FalajError):  # who finds it too old reads it, and hears why it cannot be read
                self._read(key)
        finally:
            self._under_way.discard(key)


class Fresh(Generic[K, V]):
    """What `load` gave for a key, kept briefly. Inside a transaction nothing is kept: what is read may be undone."""

    def __init__(self, ledger: Ledger, load: Callable[[K], V], limit: int = 10_000) -> None:
        self._ledger = ledger
        self._load = load
        self._limit = limit
        self._kept: dict[K, tuple[V, float]] = {}
        self._changed = 0
        self._lock = threading.Lock()
        self._ahead = Ahead(ledger, self._read)

    def get(self, key: K) -> V:
        """The value as it was not longer than STALE_S ago."""
        kept = self._kept.get(key)
        if kept is not None and (left := kept[1] - monotonic()) > 0.0:
            if left < STALE_S * (1 - AHEAD):
                self._ahead.ask(key)
            return kept[0]
        # A group may yet be undone too, but then `changing` forgets what it changed.
        return self.anew(key)

    def anew(self, key: K) -> V:
        """The value as it is now: for who keeps it a while themselves."""
        return self._load(key) if self._ledger.transacting else self._read(key)

    def changing(self, tx: Writer, key: K) -> None:
        """Forget the key when this transaction has ended."""
        tx.after(lambda durable: self._forget(key))

    def _read(self, key: K) -> V:
        since, until = self._ledger.since, monotonic() + STALE_S
        value = self._load(key)
        with self._lock:
            # Read before a change and kept after it would be a second of the past; such a value is not kept. Nor is one
            # whose reading took longer than that of another which began after it.
            kept = self._kept.get(key)
            if self._changed <= since and (kept is None or kept[1] <= until):
                if len(self._kept) >= self._limit:
                    self._kept.clear()
                self._kept[key] = (value, until)
        return value

    def _forget(self, key: K) -> None:
        with self._lock:
            self._changed = self._ledger.note()
            self._kept.pop(key, None)
