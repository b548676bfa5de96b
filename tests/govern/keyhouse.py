"""A small house for the tests of keys: a ledger on a real SQLite file, root keys in a folder, a clock set by hand."""

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from falaj.backends.file_root_keys import FileRootKeyProvider
from falaj.backends.sqlite import SqliteLedgerStore
from falaj.core.context import SYSTEM_TENANT, Actor, CallContext
from falaj.core.errors import StaleRevision
from falaj.core.ports import RecordKey
from falaj.core.ref import Ref
from falaj.govern.key_rotation import KeyRotations
from falaj.govern.keyring import Keyring
from falaj.store.ledger import Ledger, LedgerWriter

DAY_S = 86_400.0


class House:
    """One replica; several may stand on one folder."""

    def __init__(
        self, home: Path, *, start: float = 1_000_000.0, store: Any = None, secrets: Any = None, batch: int = 2
    ) -> None:
        self.home = home
        self.time = start
        self.store = store or SqliteLedgerStore(f"sqlite:{home}/ledger.db")
        self.ledger = Ledger(self.store)
        self.secrets = secrets or FileRootKeyProvider(f"file:{home}/keys", {})
        self.ring = Keyring(self.ledger, self.secrets, home_zone="uae", wall_clock=self.now, clock=self.now)
        self.ledger.cipher = self.ring
        self.rotations = KeyRotations(self.ring, batch_size=batch)

    def now(self) -> float:
        return self.time

    def ctx(self, tenant: str = "acme", zone: str = "uae", actor: str = "alice") -> CallContext:
        return CallContext(Actor(actor, tenant), zone=zone, now=self.now, cells=self._cells(tenant))

    def _cells(self, tenant: str) -> Any:
        def cells(kind: str) -> frozenset[str]:
            with self.ledger.read(CallContext(Actor("x", tenant), zone="uae")) as tx:
                return tx.cells(kind)

        return cells

    def write(self, name: str, body: dict[str, Any], tenant: str = "acme", zone: str = "uae", **said: str) -> None:
        """A record and its event; asked for again when another replica was first, as every call is."""

        def keep(tx: LedgerWriter) -> None:
            record = tx.put(Ref("dataset", "fraud", name), body)
            tx.emit("publish", record.ref, **said)

        self.ledger.retry(self.ctx(tenant, zone), keep)

    def read(self, name: str, tenant: str = "acme", zone: str = "uae") -> dict[str, Any]:
        with self.ledger.read(self.ctx(tenant, zone)) as tx:
            return tx.need(Ref("dataset", "fraud", name)).body

    def add_object(self, name: str, tenant: str = "acme", zone: str = "uae") -> bytes:
        """An object's record as the blob store keeps it; gives its plain data key."""
        dek, wrapped = self.ring.new_object_key(tenant, zone)
        kept = False
        while not kept:
            with suppress(StaleRevision):  # another replica was first at something of ours
                with self.ledger.project(self.ctx(tenant, zone)) as tx:
                    tx.put(RecordKey(tenant, "object", "store", name, zone), {"dek": wrapped, "size": 1})
                kept = True
        return dek

    def object_dek(self, name: str, tenant: str = "acme", zone: str = "uae") -> str:
        with self.ledger.read(self.ctx(tenant, zone)) as tx:
            record = tx.key(RecordKey(tenant, "object", "store", name, zone))
            assert record is not None
            return str(record.body["dek"])

    def key_body(self, name: str, tenant: str = "acme") -> dict[str, Any]:
        with self.ledger.read(self.ctx(tenant)) as tx:
            return tx.need(Ref("key", "keys", name), tenant).body

    def house_ctx(self) -> CallContext:
        return self.ctx(SYSTEM_TENANT, "uae", "operator")

    def drain(self, limit: int = 500) -> int:
        """Run the rotation job until it has nothing more to do now; gives the steps it took."""
        for step in range(limit):
            if not self.rotations.step(self.house_ctx()):
                return step
        raise AssertionError("the rotation does not end")

    def finish_rotations(self) -> None:
        """Let the waiting time pass and end every rotation."""
        self.drain()
        self.time += DAY_S + 1
        self.drain()

    def verbs(self, tenant: str = "") -> list[str]:
        return [fact.event.verb for fact in self.ledger.tail(tenant=tenant, limit=10_000)]

    def close(self) -> None:
        self.ledger.close()
        self.secrets.close()


class Crashing:
    """The store of a process that dies at one of its commits, just before or just after it."""

    def __init__(self, store: Any, at: int, *, after: bool, die: Callable[[], None]) -> None:
        self._store, self._left, self._after, self._die = store, at, after, die

    def begin(self, write: bool) -> Any:
        txn = self._store.begin(write)
        return _Doomed(txn, self.commit) if write else txn

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def commit(self, txn: Any) -> None:
        self._left -= 1
        if self._left == 0 and not self._after:
            txn.rollback()
            self._die()
        txn.commit()
        if self._left == 0:
            self._die()


class _Doomed:
    def __init__(self, txn: Any, commit: Callable[[Any], None]) -> None:
        self._txn, self._commit = txn, commit

    def __getattr__(self, name: str) -> Any:
        return getattr(self._txn, name)

    def commit(self) -> None:
        self._commit(self._txn)
