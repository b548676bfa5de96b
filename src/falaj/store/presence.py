"""Presence: each replica says who it is under a lease, so that all know which versions work side by side."""

import logging
import threading
import time

from falaj.core.errors import FalajError
from falaj.core.ports import CanJoin
from falaj.core.release import VERSION
from falaj.core.replica import LEASES, Replica
from falaj.store.ledger import Ledger

BEAT_S, LIVES_S = 5.0, 15.0
MOST = 256
_log = logging.getLogger(__name__)


class Presence(threading.Thread):
    """`start`, then `stop`. On a store that only one version can open there is nobody to tell, and it does nothing."""

    def __init__(self, ledger: Ledger, id_: str, role: str, at: str) -> None:
        super().__init__(name="presence", daemon=True)
        self._ledger, self._ending = ledger, threading.Event()
        self._named = id_, role, at
        self._slot, self._owner = 0, ""
        self.seen: tuple[Replica, ...] = ()
        """Everybody who is there, as of the last beat."""
        self.welcome = True
        """False once the store's schema is beyond what this program knows how to use."""

    def start(self) -> None:
        """Be seen from now on."""
        store = self._ledger.store
        if not isinstance(store, CanJoin):
            return
        id_, role, at = self._named
        self._owner = Replica(id_, VERSION, store.standing(time.time()).knows, role, time.time(), at).encode()
        self._beat()
        super().start()

    def run(self) -> None:
        """A beat now and then."""
        while not self._ending.wait(BEAT_S):
            try:
                self._beat()
            except FalajError as error:
                _log.warning("presence was not told", extra={"why": error.message})

    def stop(self) -> None:
        """Be seen no more."""
        self._ending.set()
        if self.is_alive():
            self.join(BEAT_S)
        if self._slot:
            try:
                self._ledger.release(f"{LEASES}{self._slot}", self._owner)
            except FalajError as error:
                _log.info("a lease runs out by itself", extra={"why": error.message})

    def _beat(self) -> None:
        now, store = time.time(), self._ledger.store
        if not self._holds(self._slot, now):
            # The same few names are used again and again: there are as many as replicas ever were at once.
            self._slot = next((slot for slot in range(1, MOST) if self._holds(slot, now)), 0)
        if not isinstance(store, CanJoin):
            return
        found = store.standing(now)
        self.seen = tuple(sorted((Replica.decode(owner) for owner in found.replicas), key=lambda one: one.since))
        if self.welcome and found.oldest > found.knows:
            self.welcome = False
            _log.error("the store went on without this version", extra={"schema": found.schema, "knows": found.knows})
        if found.schema < found.knows:
            store.settle(now)  # a step that waited until nobody needed what it takes away

    def _holds(self, slot: int, now: float) -> bool:
        return slot > 0 and self._ledger.lease(f"{LEASES}{slot}", self._owner, LIVES_S, now) is not None
