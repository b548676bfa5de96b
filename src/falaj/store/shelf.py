"""The shelf of backups: what lies in the folder or bucket they go to, and how it is read back.

    backups/<name>          the manifest, JSON, written last: without it there is no such backup
    ledger/<name>           the whole ledger: as its own file where it is one, else as store/backup.py writes it
    series/<name>           measurements, as store/measures.py writes them
    contents/<name>         which bytes belong to it, which stayed behind and why, whose keys are destroyed
    blobs/<zone>/<key>      sealed bytes as they lay in the zone, shared by all backups
    erased/<name>           keys of persons destroyed since the last backup

Nothing here opens without the root keys, which are never here.
"""

import contextlib
import os
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar, cast

import msgspec
from blake3 import blake3

from falaj.core.errors import Corrupt, Invalid, NotFound
from falaj.core.event import new_id
from falaj.core.ports import Blobs, CanPour, Stat
from falaj.store.backup import LogState, Rows, Tally, read
from falaj.store.holding import Left, Tomb

FORMAT, BEFORE = "falaj-shelf-2", "falaj-shelf-1"
ROWS, SQLITE = "rows", "sqlite"
"""How the ledger lies there."""
T = TypeVar("T")
Chunk = TypeVar("Chunk", bytes, memoryview)
_READ = 1 << 20


class Copied(msgspec.Struct, array_like=True, frozen=True):
    """Sealed bytes on the shelf."""

    zone: str
    key: str
    size: int
    sum: bytes
    """BLAKE3 of the sealed form."""


class Contents(msgspec.Struct):
    """What belongs to one backup beside the ledger."""

    blobs: list[Copied]
    left: list[Left]
    erased: list[Tomb]
    certified: list[Tomb]
    """Requests of persons for erasure that were certified: the tenant, the request, when."""


@dataclass(frozen=True, slots=True)
class Manifest:
    """One backup."""

    format: str
    name: str
    at: float
    zone: str
    """Where the house stood."""
    place: str
    """The zone that the shelf stands in."""
    rows: dict[str, int]
    logs: tuple[LogState, ...]
    ledger_bytes: int
    ledger_digest: str
    contents_digest: str
    blobs: int
    blobs_bytes: int
    left: int
    left_first: tuple[Left, ...] = ()
    form: str = ROWS
    series: int = 0
    """Blocks of measurements."""
    series_bytes: int = 0
    series_digest: str = ""
    """Empty when it was made without them."""


class Shelf:
    """Reads and writes what the module says."""

    def __init__(self, store: Blobs) -> None:
        self.store = store

    def names(self, kind: str = "backups") -> list[str]:
        """The names of backups, oldest first; or of other things."""
        return sorted(stat.key.partition("/")[2] for stat in self.store.list(f"{kind}/"))

    def newest(self) -> Manifest | None:
        """The newest backup, if there is one."""
        names = self.names()
        return self.manifest(names[-1]) if names else None

    def manifest(self, name: str = "") -> Manifest:
        """A backup by name; the newest when none is given."""
        if not name:
            found = self.newest()
            if found is None:
                raise NotFound("there is no backup", "make one: falaj store preserve")
            return found
        if not set(name) <= set("abcdefghijklmnopqrstuvwxyz0123456789TZ-") or len(name) > 64:
            raise Invalid(f"{name[:80]!r} is no name of a backup", "falaj store backups lists them")
        made = _decoded(self._all(f"backups/{name}"), Manifest)
        if made.format not in (FORMAT, BEFORE) or made.form not in (ROWS, SQLITE):
            raise Invalid("the backup is of a format this program does not know", "use the program that wrote it")
        if made.name != name:
            raise Corrupt(f"the backup {name} says that it is another", "restore another backup")
        return made

    def contents(self, made: Manifest) -> Contents:
        """What belongs to a backup, held against its manifest."""
        data = self._all(f"contents/{made.name}")
        if blake3(data).hexdigest() != made.contents_digest:
            raise _damaged(made.name, "the list of its bytes is not what was written")
        return _unpacked(data, Contents)

    def rows(self, made: Manifest, tally: Tally) -> Rows:
        """The rows of a ledger that lies there as rows; Corrupt after the last one when anything was not as written."""
        yield from read(self.ledger(made), tally)
        self.check(made, tally)

    def ledger(self, made: Manifest) -> "Lying":
        """The bytes of its ledger, held against the manifest."""
        return self._told(made.name, "ledger", made.ledger_bytes, made.ledger_digest)

    def series(self, made: Manifest) -> "Lying":
        """The bytes of its measurements, likewise."""
        return self._told(made.name, "series", made.series_bytes, made.series_digest)

    def _told(self, name: str, what: str, size: int, digest: str) -> "Lying":
        wrong = _damaged(name, f"its {what} is not the one it was made with")
        try:
            return self._lying(Promise(f"{what}/{name}", size, bytes.fromhex(digest), wrong, wrong))
        except ValueError:
            raise wrong from None

    def check(self, made: Manifest, tally: Tally) -> None:
        """Corrupt unless what was counted is what the manifest says."""
        if (tally.logs(), tally.rows) != (made.logs, made.rows):
            raise _damaged(made.name, "its logs do not give the roots they gave")

    def blob(self, one: Copied) -> "Lying":
        """Sealed bytes chunk by chunk; Corrupt after the last when they are not what was written."""
        there = f"the bytes {one.key[:16]} of zone {one.zone} are"
        gone, wrong = Corrupt(f"{there} not in the backup", _OTHER), Corrupt(f"{there} not what was written", _OTHER)
        return self._lying(Promise(blob_key(one.zone, one.key), one.size, one.sum, gone, wrong))

    def _lying(self, what: "Promise") -> "Lying":
        return LyingFile(self.store, what) if isinstance(self.store, CanPour) else Lying(self.store, what)

    def blobs(self) -> dict[str, Stat]:
        """All sealed bytes on the shelf by their key here."""
        return {stat.key: stat for stat in self.store.list("blobs/")}

    def erased(self) -> tuple[list[Tomb], list[Tomb]]:
        """Every key of a person that the shelf knows to be destroyed, and every certificate."""
        newest = self.newest()
        last = self.contents(newest) if newest is not None else Contents([], [], [], [])
        tombs, certified = list(last.erased), list(last.certified)
        for name in self.names("erased"):
            more = _unpacked(self._all(f"erased/{name}"), Contents)
            tombs, certified = tombs + more.erased, certified + more.certified
        return list(dict.fromkeys(tombs)), list(dict.fromkeys(certified))

    def note_erased(self, tombs: list[Tomb], certified: list[Tomb], now: float) -> None:
        """Keep what was erased just now, before the next backup knows."""
        self.store.put(f"erased/{new_name(now)}", [packed(Contents([], [], tombs, certified))])

    def write(self, made: Manifest) -> None:
        """Make the backup one, after all else of it is there."""
        self.store.put(f"backups/{made.name}", [msgspec.json.format(msgspec.json.encode(made), indent=1)])

    def drop(self, name: str) -> None:
        """Remove a backup, its manifest first; its bytes stay until nothing names them."""
        for kind in ("backups", "ledger", "series", "contents"):
            self.store.delete(f"{kind}/{name}")

    def _all(self, key: str) -> bytes:
        try:
            return b"".join(self.store.open(key))
        except NotFound:
            raise NotFound(f"there is no {key}", "falaj store backups lists what there is") from None


class Passing(Generic[Chunk]):
    """Chunks that are counted and hashed as they go by."""

    def __init__(self, chunks: Iterable[Chunk]) -> None:
        self._chunks: Iterable[Chunk] = chunks
        self.size = 0
        self.digest = blake3()

    def __iter__(self) -> Iterator[Chunk]:
        for chunk in self._chunks:
            self.size += len(chunk)
            self.digest.update(chunk)
            yield chunk


class Promise(NamedTuple):
    """What must lie under a key, and what to say when nothing does, or something else."""

    key: str
    size: int
    sum: bytes
    """BLAKE3."""
    gone: Corrupt
    wrong: Corrupt


class Lying:
    """Bytes on the shelf, held against what was written as they go by."""

    def __init__(self, store: Blobs, what: Promise) -> None:
        self._store, self._what = store, what

    def __iter__(self) -> Iterator[bytes]:
        with self._checked(self._store.open(self._what.key)) as passing:
            yield from passing

    @contextlib.contextmanager
    def _checked(self, chunks: Iterable[Chunk]) -> "Iterator[Passing[Chunk]]":
        passing, what = Passing(chunks), self._what
        try:
            yield passing
        except NotFound:
            raise what.gone from None
        if (passing.size, passing.digest.digest()) != (what.size, what.sum):
            raise what.wrong

    def fill(self, file: int) -> None:
        """All of them into an open file."""
        with os.fdopen(os.dup(file), "wb") as out:
            for chunk in self:
                out.write(chunk)


class LyingFile(Lying):
    """The same in a file of this machine: it goes through the kernel alone, and what arrived is checked."""

    def fill(self, file: int) -> None:
        """All of them into an open file."""
        self.pour(file)

    def pour(self, file: int) -> int:
        """Into a file that is open for both; gives the size."""
        with self._checked(self._poured(file)) as passing:
            for _ in passing:
                pass
        return passing.size

    def _poured(self, file: int) -> Iterator[memoryview]:
        cast(CanPour, self._store).pour(self._what.key, file)
        yield from read_back(file)


def read_back(file: int) -> Iterator[memoryview]:
    """What a file holds, from its beginning, in one buffer: each part is gone when the next one is asked for."""
    held, at = bytearray(_READ), 0
    while size := os.preadv(file, [held], at):
        yield memoryview(held)[:size]
        at += size


def blob_key(zone: str, key: str) -> str:
    """What sealed bytes of a zone are called on the shelf."""
    return f"blobs/{zone}/{key}"


def new_name(now: float) -> str:
    """A name that sorts by time, to the millisecond."""
    moment, thousandths = divmod(round(now * 1000), 1000)
    return f"{time.strftime('%Y%m%dT%H%M%S', time.gmtime(moment))}{thousandths:03d}Z-{new_id()[-8:]}"


def packed(contents: Contents) -> bytes:
    """Contents as they are kept."""
    return msgspec.msgpack.encode(contents)


_OTHER = "restore another backup, or take the bytes from the store they came from"


def _decoded(data: bytes, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise Corrupt("the manifest of a backup cannot be read", "use another backup") from error


def _unpacked(data: bytes, kind: type[T]) -> T:
    try:
        return msgspec.msgpack.decode(data, type=kind)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise Corrupt("the list of a backup's bytes cannot be read", "use another backup") from error


def _damaged(name: str, what: str) -> Corrupt:
    return Corrupt(f"the backup {name} is damaged: {what}", "nothing was restored; use another backup")
