"""A small house of bytes on real parts: SQLite, folders, the keyring. Opens again on its folder, as after a crash."""

import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from falaj.backends.file_root_keys import FileRootKeyProvider
from falaj.backends.folder_objects import FolderObjectStore
from falaj.backends.postgres import PostgresLedgerStore
from falaj.backends.sqlite import SqliteLedgerStore
from falaj.core.context import Actor, CallContext
from falaj.core.ports import ObjectStore
from falaj.core.ref import Ref
from falaj.core.transfer_permits import PermitAuthority, TransferPermit
from falaj.govern.keyring import Keyring
from falaj.store.blob_store import BlobInfo, BlobStore
from falaj.store.collector import Collector
from falaj.store.ledger import Ledger

THING = "blob:p/n"
HOUR = 3600.0
PERMIT_KEY = b"one permit key for every house!!"


@dataclass
class Clock:
    """Time that moves when told to."""

    at: float = 1_800_000_000.0

    def __call__(self) -> float:
        return self.at


@dataclass
class House:
    """Everything `BlobStore` needs, opened."""

    folder: Path
    clock: Clock = field(default_factory=Clock)
    tenant: str = "acme"
    stores: dict[str, ObjectStore] = field(default_factory=dict)
    url: str = ""
    """The ledger's store; a SQLite file in the folder when empty."""

    def __post_init__(self) -> None:
        store = (
            PostgresLedgerStore(self.url, {})
            if self.url
            else SqliteLedgerStore(f"sqlite:{self.folder / 'ledger.db'}", {})
        )
        self.ledger = Ledger(store)
        self.secrets = FileRootKeyProvider(f"file:{self.folder / 'keys'}", {})
        self.keys = Keyring(self.ledger, self.secrets, "falaj", home_zone="home", wall_clock=self.clock)
        self.ledger.cipher = self.keys
        self.permits = PermitAuthority(PERMIT_KEY)
        self.blobs = BlobStore(self.ledger, self.open_zone, self.keys, self.permits)
        self.collector = Collector(self.blobs, holders=("blob", "dataset"))
        self.ctx = self.context()

    def context(self, tenant: str = "", zone: str = "home") -> CallContext:
        return CallContext(Actor("ada", tenant or self.tenant), zone, now=self.clock)

    def open_zone(self, zone: str) -> ObjectStore:
        if zone not in self.stores:
            self.stores[zone] = FolderObjectStore(f"dir:{self.folder / 'zones' / zone}", {})
        return self.stores[zone]

    def permit(self, op: str, zone: str = "home", thing: str = THING, tenant: str = "") -> TransferPermit:
        tenant = tenant or self.tenant
        return self.permits.issue(op, thing, tenant, zone, zone, label="", policy="", now=self.clock())

    def put(self, data: bytes | Iterable[bytes], zone: str = "home") -> BlobInfo:
        chunks = [data] if isinstance(data, bytes) else data
        return self.blobs.put(self.ctx, THING, zone, chunks, self.permit("write", zone))

    def get(self, digest: str, zone: str = "home", start: int = 0, stop: int | None = None) -> bytes:
        return b"".join(self.blobs.get(self.ctx, THING, zone, digest, self.permit("read", zone), start, stop))

    def copy(self, digest: str, to: str) -> BlobInfo:
        permits = (self.permit("read"), self.permit("copy", to))
        return self.blobs.copy(self.ctx, THING, digest, "home", to, permits)

    def keep(self, name: str, digest: str, *zones: str, kind: str = "dataset", field: str = "digest") -> None:
        """A record that reaches the bytes."""
        ref = Ref(kind, "p", name, "v1")
        with self.ledger.write(self.ctx) as tx:
            tx.put(ref, {}, terms={field: digest, **{f"at.{zone}": "yes" for zone in zones}})
            tx.emit("test.keep", ref)

    def release(self, name: str) -> None:
        ref = Ref("dataset", "p", name, "v1")
        with self.ledger.write(self.ctx) as tx:
            tx.delete(ref, tx.need(ref).rev)
            tx.emit("test.release", ref)

    def collect_all(self) -> int:
        """Collect until nothing more goes, an age between the passes; gives how many objects went."""
        gone = 0
        for _ in range(6):
            self.clock.at += 2 * HOUR
            gone += self.collector.collect(self.ctx).deleted
        return gone

    def files(self, zone: str = "home") -> list[Path]:
        return sorted(p for p in (self.folder / "zones" / zone / "objects").rglob("*") if p.is_file())

    def states(self) -> dict[str, str]:
        """The state of every object by digest and zone."""
        with self.ledger.read(self.ctx) as tx:
            records = tx.find("object", tenant=self.tenant, project="store", limit=1000).records
        return {f"{r.key.name}@{r.key.version}": r.body["state"] for r in records}

    def close(self) -> None:
        for store in self.stores.values():
            store.close()
        self.ledger.close()
        self.secrets.close()


def noise(size: int, seed: int = 0) -> bytes:
    """Bytes that do not compress and are the same for the same seed."""
    return random.Random(seed).randbytes(size)


def stream(size: int, chunk: int = 1 << 20, on: Callable[[int], None] = lambda at: None) -> Iterator[bytes]:
    """`size` bytes that nobody holds at once, each chunk different."""
    block = noise(chunk - 8, 7)
    for at in range(0, size, chunk):
        on(at)
        yield (at.to_bytes(8, "big") + block)[: size - at]
