"""The shelf of backups: what lies in the folder or bucket they go to, and how it is read back.

    backups/<name>          the manifest, JSON, written last: without it there is no such backup
    ledger/<name>           the whole ledger as store/backup.py writes it
    contents/<name>         which bytes belong to it, which stayed behind and why, whose keys are destroyed
    blobs/<zone>/<key>      sealed bytes as they lay in the zone, shared by all backups
    erased/<name>           keys of persons destroyed since the last backup

Nothing here opens without the root keys, which are never here.
"""

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TypeVar

import msgspec
from blake3 import blake3

from falaj.core.errors import Corrupt, Invalid, NotFound
from falaj.core.event import new_id
from falaj.core.ports import Blobs, Stat
from falaj.store.backup import LogState, Rows, Tally, read
from falaj.store.holding import Left, Tomb

FORMAT = "falaj-shelf-1"
T = TypeVar("T")


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
        if made.format != FORMAT:
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
        """The rows of its ledger; Corrupt after the last one when anything was not as written."""
        passing = Passing(self.store.open(f"ledger/{made.name}"))
        yield from read(passing, tally)
        if (passing.size, passing.digest.hexdigest()) != (made.ledger_bytes, made.ledger_digest):
            raise _damaged(made.name, "its ledger is not the one it was made with")
        if tally.logs() != made.logs:
            raise _damaged(made.name, "its logs do not give the roots they gave")

    def blob(self, one: Copied) -> Iterator[bytes]:
        """Sealed bytes chunk by chunk; Corrupt after the last when they are not what was written."""
        passing = Passing(self.store.open(blob_key(one.zone, one.key)))
        try:
            yield from passing
        except NotFound:
            raise Corrupt(f"the bytes {one.key[:16]} of zone {one.zone} are not in the backup", _OTHER) from None
        if (passing.size, passing.digest.digest()) != (one.size, one.sum):
            raise Corrupt(f"the bytes {one.key[:16]} of zone {one.zone} are not what was written", _OTHER)

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
        for kind in ("backups", "ledger", "contents"):
            self.store.delete(f"{kind}/{name}")

    def _all(self, key: str) -> bytes:
        try:
            return b"".join(self.store.open(key))
        except NotFound:
            raise NotFound(f"there is no {key}", "falaj store backups lists what there is") from None


class Passing:
    """Chunks that are counted and hashed as they go by."""

    def __init__(self, chunks: Iterable[bytes]) -> None:
        self._chunks = chunks
        self.size = 0
        self.digest = blake3()

    def __iter__(self) -> Iterator[bytes]:
        for chunk in self._chunks:
            self.size += len(chunk)
            self.digest.update(chunk)
            yield chunk


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
