"""Fresh: small facts asked on every call, at most `MAX_AGE_S` old; forgotten at once where this process changes them.

Where the store is far away they are read again before that time is over, beside the calls that ask for them: else
a call, and all calls queued behind it, would wait for the store again and again.
"""

import threading
from collections.abc import Callable, Hashable
from contextlib import suppress
from time import monotonic
from typing import Generic, TypeVar

from falaj.core.errors import FalajError
from falaj.store.ledger import Ledger, LedgerWriter

MAX_AGE_S = 0.375
"""Seconds after which a change by another replica is seen here at the latest. With the guard's judgements
(`ADMISSION_CACHE_S`) and the gateway's callers (`KNOWN_S` there) it stays below a second: within that a revocation acts
everywhere."""
REFRESH_AHEAD_RATIO = 0.75
"""When so much of its time is over, what is asked for is read again."""

KeyT = TypeVar("KeyT", bound=Hashable)
ValueT = TypeVar("ValueT")


class BackgroundRefresher(Generic[KeyT]):
    """Reads again what is still good, beside whoever asks; one reading of a key at a time."""

    def __init__(self, ledger: Ledger, read_value: Callable[[KeyT], object]) -> None:
        self._ledger = ledger
        self.read_value = read_value
        self.refreshing_keys: set[KeyT] = set()

    def ask(self, key: KeyT) -> None:
        """Have a key read soon, where somebody does that."""
        prefetcher = self._ledger.beside
        if prefetcher is None or key in self.refreshing_keys:
            return
        self.refreshing_keys.add(key)
        try:
            prefetcher(lambda: self.refresh_key(key))
        except FalajError:  # nobody does any more; who finds it too old reads it
            self.refreshing_keys.discard(key)

    def refresh_key(self, key: KeyT) -> None:
        try:
            with suppress(FalajError):  # who finds it too old reads it, and hears why it cannot be read
                self.read_value(key)
        finally:
            self.refreshing_keys.discard(key)


class TimedCache(Generic[KeyT, ValueT]):
    """What `load` gave for a key, kept briefly. Inside a transaction nothing is kept: what is read may be undone."""

    def __init__(self, ledger: Ledger, load_value: Callable[[KeyT], ValueT], max_entries: int = 10_000) -> None:
        self._ledger = ledger
        self.load_value = load_value
        self.max_entries = max_entries
        self.entries: dict[KeyT, tuple[ValueT, float]] = {}
        self.last_change = 0
        self._lock = threading.Lock()
        self.refresher = BackgroundRefresher(ledger, self.read_value)

    def get(self, key: KeyT) -> ValueT:
        """The value as it was not longer than STALE_S ago."""
        entry = self.entries.get(key)
        if entry is not None and (remaining_s := entry[1] - monotonic()) > 0.0:
            if remaining_s < MAX_AGE_S * (1 - REFRESH_AHEAD_RATIO):
                self.refresher.ask(key)
            return entry[0]
        # A group may yet be undone too, but then `changing` forgets what it changed.
        return self.anew(key)

    def anew(self, key: KeyT) -> ValueT:
        """The value as it is now: for who keeps it a while themselves."""
        return self.load_value(key) if self._ledger.transacting else self.read_value(key)

    def changing(self, tx: LedgerWriter, key: KeyT) -> None:
        """Forget the key when this transaction has ended."""
        tx.after(lambda durable: self.forget_key(key))

    def read_value(self, key: KeyT) -> ValueT:
        change_count, expires_at = self._ledger.since, monotonic() + MAX_AGE_S
        value = self.load_value(key)
        with self._lock:
            # Read before a change and kept after it would be a second of the past; such a value is not kept. Nor is one
            # whose reading took longer than that of another which began after it.
            entry = self.entries.get(key)
            if self.last_change <= change_count and (entry is None or entry[1] <= expires_at):
                if len(self.entries) >= self.max_entries:
                    self.entries.clear()
                self.entries[key] = (value, expires_at)
        return value

    def forget_key(self, key: KeyT) -> None:
        with self._lock:
            self.last_change = self._ledger.note()
            self.entries.pop(key, None)
