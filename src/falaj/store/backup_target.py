"""The shelf of backups: what lies in the folder or bucket they go to, and how it is read back.

    backups/<name>          the manifest, JSON, written last: without it there is no such backup
    ledger/<name>           the whole ledger: as its own file where it is one, else as store/backup.py writes it
    series/<name>           measurements, as store/series_backup.py writes them
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

from falaj.core.errors import CorruptData, Invalid, NotFound
from falaj.core.event import generate_id
from falaj.core.ports import ObjectStat, ObjectStore, SupportsFileCopy
from falaj.store.backup import LogDigest, RowIterator, RowTally, decode_rows
from falaj.store.backup_inventory import DestroyedKey, SkippedObject

TARGET_FORMAT, PREVIOUS_TARGET_FORMAT = "falaj-shelf-2", "falaj-shelf-1"
FORM_ROWS, FORM_SQLITE = "rows", "sqlite"
"""How the ledger lies there."""
T = TypeVar("T")
Chunk = TypeVar("Chunk", bytes, memoryview)
_READ_BYTES = 1 << 20


class BackedUpObject(msgspec.Struct, array_like=True, frozen=True):
    """Sealed bytes on the shelf."""

    zone: str
    key: str
    size: int
    sum: bytes
    """BLAKE3 of the sealed form."""


class BackupContents(msgspec.Struct):
    """What belongs to one backup beside the ledger."""

    blobs: list[BackedUpObject]
    left: list[SkippedObject]
    erased: list[DestroyedKey]
    certified: list[DestroyedKey]
    """Requests of persons for erasure that were certified: the tenant, the request, when."""


@dataclass(frozen=True, slots=True)
class BackupManifest:
    """One backup."""

    format: str
    name: str
    at: float
    zone: str
    """Where the house stood."""
    place: str
    """The zone that the shelf stands in."""
    rows: dict[str, int]
    logs: tuple[LogDigest, ...]
    ledger_bytes: int
    ledger_digest: str
    contents_digest: str
    blobs: int
    blobs_bytes: int
    left: int
    left_first: tuple[SkippedObject, ...] = ()
    form: str = FORM_ROWS
    series: int = 0
    """Blocks of measurements."""
    series_bytes: int = 0
    series_digest: str = ""
    """Empty when it was made without them."""


class BackupTarget:
    """Reads and writes what the module says."""

    def __init__(self, store: ObjectStore) -> None:
        self.store = store

    def names(self, kind: str = "backups") -> list[str]:
        """The names of backups, oldest first; or of other things."""
        return sorted(stat.key.partition("/")[2] for stat in self.store.list(f"{kind}/"))

    def newest(self) -> BackupManifest | None:
        """The newest backup, if there is one."""
        names = self.names()
        return self.manifest(names[-1]) if names else None

    def manifest(self, name: str = "") -> BackupManifest:
        """A backup by name; the newest when none is given."""
        if not name:
            newest = self.newest()
            if newest is None:
                raise NotFound("there is no backup", "make one: falaj store preserve")
            return newest
        if not set(name) <= set("abcdefghijklmnopqrstuvwxyz0123456789TZ-") or len(name) > 64:
            raise Invalid(f"{name[:80]!r} is no name of a backup", "falaj store backups lists them")
        manifest = _decode_manifest(self._read_all(f"backups/{name}"), BackupManifest)
        if manifest.format not in (TARGET_FORMAT, PREVIOUS_TARGET_FORMAT) or manifest.form not in (
            FORM_ROWS,
            FORM_SQLITE,
        ):
            raise Invalid("the backup is of a format this program does not know", "use the program that wrote it")
        if manifest.name != name:
            raise CorruptData(f"the backup {name} says that it is another", "restore another backup")
        return manifest

    def contents(self, manifest: BackupManifest) -> BackupContents:
        """What belongs to a backup, held against its manifest."""
        data = self._read_all(f"contents/{manifest.name}")
        if blake3(data).hexdigest() != manifest.contents_digest:
            raise _damaged_error(manifest.name, "the list of its bytes is not what was written")
        return _decode_contents(data, BackupContents)

    def rows(self, manifest: BackupManifest, row_tally: RowTally) -> RowIterator:
        """The rows of a ledger that lies there as rows; Corrupt after the last one when anything was not as written."""
        yield from decode_rows(self.ledger(manifest), row_tally)
        self.check(manifest, row_tally)

    def ledger(self, manifest: BackupManifest) -> "VerifiedObject":
        """The bytes of its ledger, held against the manifest."""
        return self._open_part(manifest.name, "ledger", manifest.ledger_bytes, manifest.ledger_digest)

    def series(self, manifest: BackupManifest) -> "VerifiedObject":
        """The bytes of its measurements, likewise."""
        return self._open_part(manifest.name, "series", manifest.series_bytes, manifest.series_digest)

    def _open_part(self, name: str, part: str, size: int, digest: str) -> "VerifiedObject":
        mismatch_error = _damaged_error(name, f"its {part} is not the one it was made with")
        try:
            return self._open_verified(
                ExpectedObject(f"{part}/{name}", size, bytes.fromhex(digest), mismatch_error, mismatch_error)
            )
        except ValueError:
            raise mismatch_error from None

    def check(self, manifest: BackupManifest, row_tally: RowTally) -> None:
        """Corrupt unless what was counted is what the manifest says."""
        if (row_tally.logs(), row_tally.rows) != (manifest.logs, manifest.rows):
            raise _damaged_error(manifest.name, "its logs do not give the roots they gave")

    def blob(self, backed_up_object: BackedUpObject) -> "VerifiedObject":
        """Sealed bytes chunk by chunk; Corrupt after the last when they are not what was written."""
        description = f"the bytes {backed_up_object.key[:16]} of zone {backed_up_object.zone} are"
        missing_error, mismatch_error = (
            CorruptData(f"{description} not in the backup", _OTHER_BACKUP_HINT),
            CorruptData(f"{description} not what was written", _OTHER_BACKUP_HINT),
        )
        return self._open_verified(
            ExpectedObject(
                make_blob_key(backed_up_object.zone, backed_up_object.key),
                backed_up_object.size,
                backed_up_object.sum,
                missing_error,
                mismatch_error,
            )
        )

    def _open_verified(self, expected: "ExpectedObject") -> "VerifiedObject":
        return (
            VerifiedFileObject(self.store, expected)
            if isinstance(self.store, SupportsFileCopy)
            else VerifiedObject(self.store, expected)
        )

    def blobs(self) -> dict[str, ObjectStat]:
        """All sealed bytes on the shelf by their key here."""
        return {stat.key: stat for stat in self.store.list("blobs/")}

    def erased(self) -> tuple[list[DestroyedKey], list[DestroyedKey]]:
        """Every key of a person that the shelf knows to be destroyed, and every certificate."""
        newest = self.newest()
        newest_contents = self.contents(newest) if newest is not None else BackupContents([], [], [], [])
        destroyed_keys, certified_requests = list(newest_contents.erased), list(newest_contents.certified)
        for name in self.names("erased"):
            later_contents = _decode_contents(self._read_all(f"erased/{name}"), BackupContents)
            destroyed_keys, certified_requests = (
                destroyed_keys + later_contents.erased,
                certified_requests + later_contents.certified,
            )
        return list(dict.fromkeys(destroyed_keys)), list(dict.fromkeys(certified_requests))

    def note_erased(
        self, destroyed_keys: list[DestroyedKey], certified_requests: list[DestroyedKey], now: float
    ) -> None:
        """Keep what was erased just now, before the next backup knows."""
        self.store.put(
            f"erased/{make_backup_name(now)}",
            [encode_contents(BackupContents([], [], destroyed_keys, certified_requests))],
        )

    def write(self, manifest: BackupManifest) -> None:
        """Make the backup one, after all else of it is there."""
        self.store.put(f"backups/{manifest.name}", [msgspec.json.format(msgspec.json.encode(manifest), indent=1)])

    def drop(self, name: str) -> None:
        """Remove a backup, its manifest first; its bytes stay until nothing names them."""
        for kind in ("backups", "ledger", "series", "contents"):
            self.store.delete(f"{kind}/{name}")

    def _read_all(self, key: str) -> bytes:
        try:
            return b"".join(self.store.open(key))
        except NotFound:
            raise NotFound(f"there is no {key}", "falaj store backups lists what there is") from None


class HashedChunks(Generic[Chunk]):
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


class ExpectedObject(NamedTuple):
    """What must lie under a key, and what to say when nothing does, or something else."""

    key: str
    size: int
    sum: bytes
    """BLAKE3."""
    gone: CorruptData
    wrong: CorruptData


class VerifiedObject:
    """Bytes on the shelf, held against what was written as they go by."""

    def __init__(self, store: ObjectStore, expected: ExpectedObject) -> None:
        self._store, self._expected = store, expected

    def __iter__(self) -> Iterator[bytes]:
        with self._verify_chunks(self._store.open(self._expected.key)) as hashed_chunks:
            yield from hashed_chunks

    @contextlib.contextmanager
    def _verify_chunks(self, chunks: Iterable[Chunk]) -> "Iterator[HashedChunks[Chunk]]":
        hashed_chunks, expected = HashedChunks(chunks), self._expected
        try:
            yield hashed_chunks
        except NotFound:
            raise expected.gone from None
        if (hashed_chunks.size, hashed_chunks.digest.digest()) != (expected.size, expected.sum):
            raise expected.wrong

    def fill(self, fd: int) -> None:
        """All of them into an open file."""
        with os.fdopen(os.dup(fd), "wb") as out:
            for chunk in self:
                out.write(chunk)


class VerifiedFileObject(VerifiedObject):
    """The same in a file of this machine: it goes through the kernel alone, and what arrived is checked."""

    def fill(self, fd: int) -> None:
        """All of them into an open file."""
        self.pour(fd)

    def pour(self, fd: int) -> int:
        """Into a file that is open for both; gives the size."""
        with self._verify_chunks(self._copy_and_read_back(fd)) as hashed_chunks:
            for _ in hashed_chunks:
                pass
        return hashed_chunks.size

    def _copy_and_read_back(self, fd: int) -> Iterator[memoryview]:
        cast(SupportsFileCopy, self._store).pour(self._expected.key, fd)
        yield from read_file_back(fd)


def read_file_back(fd: int) -> Iterator[memoryview]:
    """What a file holds, from its beginning, in one buffer: each part is gone when the next one is asked for."""
    buffer, offset = bytearray(_READ_BYTES), 0
    while size := os.preadv(fd, [buffer], offset):
        yield memoryview(buffer)[:size]
        offset += size


def make_blob_key(zone: str, key: str) -> str:
    """What sealed bytes of a zone are called on the shelf."""
    return f"blobs/{zone}/{key}"


def make_backup_name(now: float) -> str:
    """A name that sorts by time, to the millisecond."""
    moment, thousandths = divmod(round(now * 1000), 1000)
    return f"{time.strftime('%Y%m%dT%H%M%S', time.gmtime(moment))}{thousandths:03d}Z-{generate_id()[-8:]}"


def encode_contents(contents: BackupContents) -> bytes:
    """Contents as they are kept."""
    return msgspec.msgpack.encode(contents)


_OTHER_BACKUP_HINT = "restore another backup, or take the bytes from the store they came from"


def _decode_manifest(data: bytes, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise CorruptData("the manifest of a backup cannot be read", "use another backup") from error


def _decode_contents(data: bytes, kind: type[T]) -> T:
    try:
        return msgspec.msgpack.decode(data, type=kind)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise CorruptData("the list of a backup's bytes cannot be read", "use another backup") from error


def _damaged_error(name: str, problem: str) -> CorruptData:
    return CorruptData(f"the backup {name} is damaged: {problem}", "nothing was restored; use another backup")
