"""The ports: what Falaj asks of a technology. Backends implement them; everything clever is written once, above."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import field
from typing import Any, NamedTuple, Protocol, runtime_checkable

from falaj.core.context import Actor
from falaj.core.data import dataclass
from falaj.core.errors import FalajError


class RecordKey(NamedTuple):
    """The primary key of a record. A version of "" is the one mutable record of that name."""

    tenant: str
    kind: str
    project: str
    name: str
    version: str = ""


@dataclass(frozen=True, slots=True)
class StoredRow:
    """A record as stores keep it: the body is ciphertext, `cell` and `terms` are what queries may name."""

    key: RecordKey
    rev: int
    cell: str
    body: bytes
    at: float
    terms: tuple[tuple[str, str], ...] = ()
    before: "tuple[str, tuple[tuple[str, str], ...]] | None" = field(default=None, compare=False)
    """Cell and terms of the revision that is written over, where its writer knows: a store need not look."""


class EventRow(NamedTuple):
    """An event as stores keep it. `pos` is an opaque cursor given by the store; texts sort as the log is read."""

    id: str
    tenant: str
    zone: str
    verb: str
    actor: str
    subject: RecordKey
    at: float
    request: str
    leaf: bytes
    data: bytes
    inputs: tuple[str, ...] = ()
    pos: str = ""
    part: int = 0
    """Which line of the plain `data` it is. Of events sealed together and appended together only the first has `data`;
    every one that is read has it."""


@dataclass(frozen=True, slots=True)
class RecordQuery:
    """What `find` may ask; every field is an index. `cells` None means no scope (only the house itself asks so)."""

    tenant: str
    kind: str
    project: str = ""
    name: str = ""
    prefix: str = ""
    terms: Mapping[str, str] = field(default_factory=dict)
    cells: frozenset[str] | None = None
    newest: bool = False
    """Newest first by write time instead of by name."""
    after: str = ""
    """The cursor (`Found.next`) where the previous page ended."""
    limit: int = 100


@dataclass(frozen=True, slots=True)
class RowPage:
    """A page of rows and the cursor of the next page, empty at the end."""

    rows: tuple[StoredRow, ...]
    next: str = ""


class StoreTransaction(Protocol):
    """One transaction. Reads see one snapshot; writes are all or nothing, durable when `commit` returns."""

    def get(self, key: RecordKey) -> StoredRow | None: ...
    def find(self, query: RecordQuery) -> RowPage: ...
    def cells(self, tenant: str, kind: str) -> frozenset[str]:
        """The distinct cells of a tenant's records of one kind."""
        ...

    def put(self, row: StoredRow, rev: int) -> None:
        """Write `row` over revision `rev` (0: it must not exist), or StaleRevision."""
        ...

    def delete(self, key: RecordKey, rev: int) -> None: ...
    def append(self, events: Sequence[EventRow]) -> None: ...
    def commit(self) -> None: ...
    def rollback(self) -> None: ...


class LedgerStore(Protocol):
    """Small facts, transactional."""

    def begin(self, write: bool) -> StoreTransaction: ...
    def events(
        self, after: str = "", *, tenant: str = "", zone: str = "", limit: int = 1000, **filters: str
    ) -> list[EventRow]:
        """The log after a cursor, never skipping what commits late.

        `filters` may name: id, verb, actor, request, kind, project, name, version. A verb may be several, with blanks
        between; `inputs`, whatever it says, asks for events that have some.
        """
        ...

    def lease(self, name: str, owner: str, ttl_s: float, now: float) -> int | None:
        """Take or extend a lease: a fencing token that only grows, or None while another holds it."""
        ...

    def release(self, name: str, owner: str) -> None: ...
    def end(self) -> str:
        """The cursor of now: what commits later lies behind it, and all before it can be read."""
        ...

    def logs(self) -> list[tuple[str, str]]:
        """Every (tenant, zone) that has events."""
        ...

    def list_kinds(self, tenant: str) -> list[str]:
        """Every kind of which the tenant has records, by name."""
        ...

    def close(self) -> None: ...


@runtime_checkable
class SupportsRemoteTime(Protocol):
    """A store on another machine that says what its clock shows."""

    def remote_time(self) -> float:
        """Its Unix time in seconds; Unavailable when it does not answer."""
        ...


@runtime_checkable
class SupportsGroupCommit(Protocol):
    """A store that can make many transactions durable at once."""

    def group(self) -> "CommitGroup": ...
    def look(self) -> StoreTransaction:
        """A snapshot of what is committed now, also inside a group, whose own may be older."""
        ...


@runtime_checkable
class SupportsPrefetch(Protocol):
    """A store that can be told what a group is about to read, and then reads all of it at once."""

    def ahead(self, keys: Sequence["RecordKey"]) -> None:
        """Say what the group of this thread will ask for; nothing is read before somebody does. A transaction that
        asks for more than that may find it changed: StaleRevision."""
        ...


@runtime_checkable
class SupportsAsyncCommit(Protocol):
    """A store that can make what an event loop tells durable without having it wait."""

    def courier(self) -> "AsyncCommitter": ...


class CommitGroup(Protocol):
    """While entered, commits on this thread wait; leaving makes them all durable, or raises for all of them."""

    def __enter__(self) -> "CommitGroup": ...
    def __exit__(self, *exc: object) -> None: ...
    def fail(self, error: FalajError) -> None:
        """Have leaving it raise this, and make nothing durable."""
        ...


class AsyncCommitter(Protocol):
    """Carries groups of an event loop to a store. All but `open` and `fetch` is for the thread of that event loop."""

    def open(self) -> None:
        """Make the connections that are missing; this may take its time."""
        ...

    def close(self) -> None: ...
    @property
    def stands(self) -> bool:
        """False where it has to be opened, for the first time or again."""
        ...

    @property
    def free(self) -> bool:
        """Whether a group can be sent now."""
        ...

    def at_hand(self, keys: Sequence["RecordKey"]) -> bool:
        """Whether a group could look at these without asking anybody."""
        ...

    def fetch(self, keys: Sequence["RecordKey"]) -> None:
        """Have these at hand. From any thread; this may take its time."""
        ...

    def group(self) -> CommitGroup:
        """A group of transactions that change no record but those that they looked at. One that asks for what is not at
        hand ends with StaleRevision."""
        ...

    def send(self, on_done: Callable[[FalajError | None], None]) -> None:
        """Make the group that was left last durable, and call back: with the reason where it is not. StaleRevision:
        nothing of it happened."""
        ...


LEDGER_TABLES: Mapping[str, tuple[str, ...]] = {
    "records": ("tenant", "kind", "project", "name", "version", "rev", "cell", "body", "at", "terms"),
    "events": (
        *("epoch", "xid", "seq", "id", "tenant", "zone", "verb", "actor", "kind", "project", "name", "version"),
        *("at", "request", "leaf", "data", "inputs", "part"),
    ),
    "leases": ("name", "owner", "token", "until"),
}
"""What a store holds, as backups name it. Any index beside these is made again on load."""


@runtime_checkable
class SupportsDump(Protocol):
    """A store that gives out all it holds, and takes it back."""

    def dump(self) -> Iterator[tuple[str, tuple[Any, ...]]]:
        """(table, values in the order of TABLES) of every row, from one snapshot; events in the order of the log."""
        ...

    def load(self, rows: Iterable[tuple[str, tuple[Any, ...]]]) -> None:
        """Take a dump into an empty store (Conflict otherwise), all or nothing. Cursors of the log stay true."""
        ...


class LedgerFile(Protocol):
    """A ledger as one file that nobody uses."""

    path: str

    def rows(self) -> Iterator[tuple[str, tuple[Any, ...]]]:
        """Every row but those of the log, as `dump` gives them."""
        ...

    def leaves(self) -> Iterator[tuple[str, str, list[bytes]]]:
        """Tenant and zone, and leaves of events that follow each other in their log; all of all logs."""
        ...

    def replace(self, values: tuple[Any, ...]) -> None:
        """Another body for a record that is there."""
        ...


@runtime_checkable
class SupportsFileRestore(Protocol):
    """A store that is a file, and can be copied as one: faster by far than row by row."""

    def snapshot(self) -> AbstractContextManager[LedgerFile]:
        """All that is committed in a file that is gone afterwards."""
        ...

    def adopt(
        self,
        write_file: Callable[[int], object],
        check_file: Callable[[LedgerFile], None],
        wait_until_ready: Callable[[], None],
    ) -> None:
        """Take a file that `snapshot` made into an empty store (Conflict otherwise), all or nothing. `write_file`
        writes it into an open file, `check_file` checks and may change it; nothing is taken before `wait_until_ready`
        returned."""
        ...


@runtime_checkable
class SupportsFileCopy(Protocol):
    """A store of blobs whose objects are files of this machine."""

    def pour(self, key: str, fd: int) -> int:
        """A whole object into an open file, from file to file inside the kernel; gives the size."""
        ...


@runtime_checkable
class FileWritable(Protocol):
    """Chunks for `put` that would rather write themselves into the file, and check there what they wrote."""

    def pour(self, fd: int) -> int:
        """All of them into a file that is open for both; gives the size."""
        ...


@runtime_checkable
class SupportsEventBundles(Protocol):
    """A store that keeps events sealed together once, instead of once for each."""

    def bundles(self, after: str, *, tenant: str, zone: str, limit: int) -> Iterator[tuple[str, list[EventRow]]]:
        """One log after a cursor as it lies, each part with the cursor of its last; for whoever reads much of it. Rows
        have no cursors of their own, and of those sealed together only the first has `data`."""
        ...


@runtime_checkable
class SupportsCommitWatch(Protocol):
    """A store that can tell of commits made by other processes."""

    def watch(self, callback: Callable[[], None]) -> None: ...


@runtime_checkable
class SupportsSharedPolling(Protocol):
    """A store whose pollers share what they learn, so that many of them cost it hardly more than one."""

    def polling(self) -> AbstractContextManager[None]:
        """While entered, reads of the log and of leases by this thread may be a second or two old."""
        ...


class SchemaStatus(NamedTuple):
    """A store as a program finds it: how far its schema is, and who works with it."""

    schema: int
    """0: there is none yet."""
    oldest: int
    """A program that knows less than this schema may not work with it."""
    knows: int
    """What this program knows."""
    replicas: tuple[str, ...]
    """Those that are there now, as `core.replica` writes them."""
    rows: int
    """Records and events, about."""


@runtime_checkable
class SupportsSchemaUpgrade(Protocol):
    """A store that programs of neighbouring versions share. Opened with the option `settle` false it is not changed."""

    def standing(self, now: float) -> SchemaStatus: ...
    def settle(self, now: float) -> None:
        """Take what steps may be taken now."""
        ...


@dataclass(frozen=True, slots=True)
class ObjectStat:
    """What a blob store knows of one object."""

    key: str
    size: int


class ObjectStore(Protocol):
    """Large immutable bytes by key (letters, digits, `-`, `_` and `/` only, made by us, never by a client)."""

    def put(self, key: str, chunks: Iterable[bytes | memoryview]) -> int:
        """Write all or nothing, durable on return; gives the size. The same key again is the same bytes.

        A chunk is valid until the next is asked for: copy what must be kept longer.
        """
        ...

    def open(self, key: str, start: int = 0, stop: int | None = None) -> Iterator[bytes]: ...
    def stat(self, keys: Iterable[str]) -> dict[str, ObjectStat]: ...
    def list(self, prefix: str = "") -> Iterator[ObjectStat]: ...
    def delete(self, key: str) -> None: ...
    def close(self) -> None: ...


@runtime_checkable
class SupportsProbe(Protocol):
    """A backend that can say cheaply, and within about a second, whether it can be used."""

    def probe(self) -> None:
        """Return if it answers; raise the reason it cannot be used otherwise."""
        ...


class SeriesBlock(NamedTuple):
    """Measurements or lines as series keep them: `data` is ciphertext, all else stands in the clear."""

    tenant: str
    series: str
    """Whose measurements, as an id that says nothing."""
    shelf: str
    """Empty where appends land; what compaction makes lies on shelves of other names."""
    id: str
    """Made by the writer, unique in the series; ids sort by birth."""
    zone: str
    low: str
    high: str
    """The first and the last place inside, as texts that sort as places do."""
    length: int
    """How many points or lines are inside."""
    at: float
    data: bytes
    told: bool = True
    """False for what `changes` need not tell of."""


class SeriesStore(Protocol):
    """Append-only measurements and log lines, in blocks. Nothing acknowledged is ever lost."""

    def append(self, blocks: Sequence[SeriesBlock]) -> None:
        """Add blocks, of any series, all or nothing; durable on return. One whose id is there already is left out."""
        ...

    def read(
        self, tenant: str, series: Sequence[str], tier: str, from_position: str = "", limit: int = 1_000_000
    ) -> list[SeriesBlock]:
        """Blocks of a shelf whose `high` is not below `from_position`, ordered by series, low, high, id; from one
        snapshot."""
        ...

    def changes(self, tenant: str, after: str = "") -> tuple[list[SeriesBlock], str]:
        """What was added since a cursor and is still there, and the cursor of now; from nothing, only the cursor.

        Nothing that commits late is skipped; therefore a block may be told more than once.
        """
        ...

    def swap(self, tenant: str, series: str, removed_ids: Sequence[str], new_blocks: Sequence[SeriesBlock]) -> bool:
        """Put blocks in the place of others, all or nothing; False, and nothing happened, when one of them is gone."""
        ...

    def delete(self, tenant: str, series: str) -> None:
        """Remove a series whole."""
        ...

    def expire(self, tenant: str, prefix: str, written_before: float) -> int:
        """Remove the blocks written before a moment of all series whose name begins so; gives how many."""
        ...

    def dump(self) -> Iterator[SeriesBlock]:
        """Every block of everybody, from one snapshot; whoever appends goes on."""
        ...

    def close(self) -> None: ...


@runtime_checkable
class SupportsTransactionalAppend(Protocol):
    """A series that may lie in the ledger's own database."""

    def ride(self, blocks: Sequence[SeriesBlock], transaction: StoreTransaction) -> bool:
        """Have blocks written and committed with this transaction; False, and nothing happened, where they cannot."""
        ...


class SupportsOnlineReaders(Protocol):
    """Who may read an online store beside the platform: replicas of its tenant."""

    def admit_reader(self, password_digest: str) -> str:
        """The address at which a replica reads this store and nothing else; Denied where the store has no such wall.

        `password_digest` is the SHA-256 of the password that the replica signs in with, where the store has users.
        """
        ...

    def dismiss_reader(self, password_digest: str) -> None:
        """Take back what `admit_reader` gave to this password."""
        ...


class OnlineStore(SupportsOnlineReaders, Protocol):
    """The newest row of features by key, in spaces. Of a row it knows the first 24 bytes: its rank
    (core/online_rows.py), which orders the rows of one key. Whatever order rows arrive in, repeated or late, the same
    one stands.
    """

    def put(self, space: str, rows: Sequence[tuple[bytes, bytes]], now_us: int) -> int:
        """Take (key, row) in, each atomically; durable on return; gives how many changed something.

        Of each key it keeps the highest rank whose moment is not after `now_us`, and every row of a later moment.
        """
        ...

    def get(self, requests: Sequence[tuple[str, Sequence[bytes]]]) -> list[list[bytes | None]]:
        """What lies under keys of several spaces, in one round trip: cells as core/online_rows.py packs them."""
        ...

    def scan(self, space: str, after: bytes | None = None, limit: int = 10_000) -> list[tuple[bytes, bytes]]:
        """(key, cell) of a space behind a cursor (the last key given; from the beginning without), in a fixed order."""
        ...

    def delete(self, space: str, keys: Sequence[bytes]) -> int: ...
    def drop(self, space: str) -> None:
        """Remove a space whole."""
        ...

    def note(self, space: str, value: bytes | None = None) -> bytes | None:
        """Read, or write, the one mark that belongs to a space: how far it is filled. Gone with the space."""
        ...

    def close(self) -> None: ...


@runtime_checkable
class SupportsPinning(Protocol):
    """Blobs with a cache before them, where some can be kept for good."""

    def pin(self, keys: Iterable[str]) -> None: ...
    def unpin(self, keys: Iterable[str]) -> None: ...


@runtime_checkable
class RemoteZoneObjects(Protocol):
    """Blobs that nobody reads or writes from here: they lie with the agent of their zone, who has their keys."""

    def refusal(self) -> FalajError:
        """Why not, and where to go."""
        ...

    def look(self, inspection: Mapping[str, Any]) -> Any:
        """What the agent finds in the files of a tree; nothing of them comes along."""
        ...


class RemoteZoneObjectsBase:
    """What such blobs share wherever they lie: no byte is written or read from here."""

    def refusal(self) -> FalajError:
        """Why not, and where to go."""
        raise NotImplementedError

    def put(self, key: str, chunks: Iterable[bytes | memoryview]) -> int:
        """Not here."""
        raise self.refusal()

    def open(self, key: str, start: int = 0, stop: int | None = None) -> Iterator[bytes]:
        """Not here."""
        raise self.refusal()


class IdentityProvider(Protocol):
    """Who a bearer token is."""

    def whois(self, token: str, now: float) -> Actor | None:
        """The actor, None when the token is not of this provider's making, or Unauthenticated when it is and is bad."""
        ...

    def close(self) -> None: ...


class RootKeyProvider(Protocol):
    """The holder of root keys. Root key material never leaves it; zone keys are wrapped under it."""

    def wrap(self, name: str, key: bytes, context: bytes) -> bytes:
        """Wrap under the newest version of root key `name`, made on first use; unwrapping needs the same `context`."""
        ...

    def unwrap(self, name: str, wrapped: bytes, context: bytes) -> bytes: ...
    def rotate(self, name: str) -> int:
        """Make a new version of the root key; what older versions wrapped still unwraps."""
        ...

    def close(self) -> None: ...


@runtime_checkable
class SupportsKeyRetirement(Protocol):
    """A holder of root keys that can end old versions."""

    def newest(self, name: str) -> int:
        """The version that wraps now; 0 when there is none."""
        ...

    def version(self, wrapped: bytes) -> int:
        """The version of the root key that these bytes are wrapped under."""
        ...

    def retire(self, name: str, below_version: int) -> None:
        """Make every version under `below_version` useless for ever, never the newest."""
        ...


class RecordCipher(Protocol):
    """What the ledger needs of key keeping."""

    def seal(self, tenant: str, zone: str, data: bytes, aad: bytes) -> bytes: ...
    def unseal(self, tenant: str, zone: str, ciphertext: bytes, aad: bytes) -> bytes: ...


def split_backend_url(url: str) -> tuple[str, str]:
    """Split a backend address into scheme and rest."""
    scheme, _, rest = url.partition(":")
    return scheme, rest
