"""Presence: each replica says who it is under a lease, so that all know which versions work side by side."""

import logging
import threading
import time

from falaj.core.errors import FalajError
from falaj.core.ports import SupportsSchemaUpgrade
from falaj.core.release import VERSION
from falaj.core.replica_info import LEASE_PREFIX, ReplicaInfo
from falaj.store.ledger import Ledger

HEARTBEAT_INTERVAL_S, HEARTBEAT_TTL_S = 5.0, 15.0
MAX_REPLICAS = 256
_log = logging.getLogger(__name__)


class ReplicaPresence(threading.Thread):
    """`start`, then `stop`. On a store that only one version can open there is nobody to tell, and it does nothing."""

    def __init__(self, ledger: Ledger, replica_id: str, role: str, address: str) -> None:
        super().__init__(name="presence", daemon=True)
        self._ledger, self._stop_event = ledger, threading.Event()
        self._identity = replica_id, role, address
        self._slot, self._owner = 0, ""
        self.seen: tuple[ReplicaInfo, ...] = ()
        """Everybody who is there, as of the last beat."""
        self.welcome = True
        """False once the store's schema is beyond what this program knows how to use."""

    def start(self) -> None:
        """Be seen from now on."""
        store = self._ledger.store
        if not isinstance(store, SupportsSchemaUpgrade):
            return
        replica_id, role, address = self._identity
        self._owner = ReplicaInfo(
            replica_id, VERSION, store.standing(time.time()).knows, role, time.time(), address
        ).encode()
        self._send_heartbeat()
        super().start()

    def run(self) -> None:
        """A beat now and then."""
        while not self._stop_event.wait(HEARTBEAT_INTERVAL_S):
            try:
                self._send_heartbeat()
            except FalajError as error:
                _log.warning("presence was not told", extra={"why": error.message})

    def stop(self) -> None:
        """Be seen no more."""
        self._stop_event.set()
        if self.is_alive():
            self.join(HEARTBEAT_INTERVAL_S)
        if self._slot:
            try:
                self._ledger.release(f"{LEASE_PREFIX}{self._slot}", self._owner)
            except FalajError as error:
                _log.info("a lease runs out by itself", extra={"why": error.message})

    def _send_heartbeat(self) -> None:
        now, store = time.time(), self._ledger.store
        if not self._holds_slot(self._slot, now):
            # The same few names are used again and again: there are as many as replicas ever were at once.
            self._slot = next((slot for slot in range(1, MAX_REPLICAS) if self._holds_slot(slot, now)), 0)
        if not isinstance(store, SupportsSchemaUpgrade):
            return
        schema_status = store.standing(now)
        self.seen = tuple(
            sorted((ReplicaInfo.decode(owner) for owner in schema_status.replicas), key=lambda replica: replica.since)
        )
        if self.welcome and schema_status.oldest > schema_status.knows:
            self.welcome = False
            _log.error(
                "the store went on without this version",
                extra={"schema": schema_status.schema, "knows": schema_status.knows},
            )
        if schema_status.schema < schema_status.knows:
            store.settle(now)  # a step that waited until nobody needed what it takes away

    def _holds_slot(self, slot: int, now: float) -> bool:
        return slot > 0 and self._ledger.lease(f"{LEASE_PREFIX}{slot}", self._owner, HEARTBEAT_TTL_S, now) is not None
