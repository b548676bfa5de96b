"""Backup and restore: the whole ledger in one file, as ciphertext, proven by the root of every log.

The file is a zip of one JSON-lines member a table and a manifest. The manifest has the SHA-256 of each member and, for
each log, the number of its events and the RFC 6962 root over their leaf hashes. Root keys are not in it: without their
holder a backup opens nothing.
"""

import base64
import json
import os
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from typing import IO, Any

from falaj.core.errors import Corrupt, Invalid, Unavailable
from falaj.core.frontier import Frontier
from falaj.core.ports import TABLES, CanCopy
from falaj.store.ledger import Ledger

FORMAT = "falaj-backup-1"
Progress = Callable[[int], None]
_BYTES = {"records": ("body",), "events": ("leaf", "data"), "leases": ()}
_EVERY = 1000


@dataclass(frozen=True, slots=True)
class LogState:
    """One log as the backup holds it."""

    tenant: str
    zone: str
    size: int
    root: str


@dataclass(frozen=True, slots=True)
class BackupReport:
    """What a backup holds, and what a restore proved to have brought back."""

    rows: dict[str, int]
    logs: tuple[LogState, ...]
    size_bytes: int


def backup(ledger: Ledger, out_path: str, progress: Progress | None = None) -> BackupReport:
    """Write a consistent copy of everything while writers go on. The file appears whole or not at all."""
    store = ledger.store
    if not isinstance(store, CanCopy):
        raise Invalid("this store cannot be copied", "use the engine's own backup")
    part = Path(f"{out_path}.part")
    tally = Tally(progress)
    try:
        descriptor = os.open(part, os.O_CREAT | os.O_WRONLY | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
                _write(store, archive, tally)
            file.flush()
            os.fsync(file.fileno())
        part.replace(out_path)
        _sync_folder(part.parent)
    except OSError as error:
        raise Unavailable(
            f"the backup cannot be written: {error.strerror}", "check the folder and its free space"
        ) from error
    finally:
        part.unlink(missing_ok=True)
    return tally.report(Path(out_path).stat().st_size)


def restore(ledger: Ledger, path: str, progress: Progress | None = None) -> BackupReport:
    """Bring a backup into an empty store of any engine, all or nothing; every digest and root is checked."""
    store = ledger.store
    if not isinstance(store, CanCopy):
        raise Invalid("this store cannot take a backup", "use the engine's own restore")
    tally = Tally(progress)
    with _opened(path) as archive:
        manifest = _manifest(archive)
        store.load(_read(archive, manifest, tally))
    return tally.report(Path(path).stat().st_size)


def check(path: str, progress: Progress | None = None) -> BackupReport:
    """Read a backup through and prove it, without a store."""
    tally = Tally(progress)
    with _opened(path) as archive:
        for _ in _read(archive, _manifest(archive), tally):
            pass
    return tally.report(Path(path).stat().st_size)


class Tally:
    """Counts rows and grows the root of every log while rows go by."""

    def __init__(self, progress: Progress | None) -> None:
        self.rows = dict.fromkeys(TABLES, 0)
        self._logs: dict[tuple[str, str], Frontier] = {}
        self._progress = progress
        self._seen = 0

    def row(self, table: str, values: tuple[Any, ...]) -> None:
        """One more row."""
        self.rows[table] += 1
        if table == "events":
            named = dict(zip(TABLES["events"], values, strict=True))
            self._logs.setdefault((named["tenant"], named["zone"]), Frontier()).append(bytes(named["leaf"]))
        self._seen += 1
        if self._progress is not None and self._seen % _EVERY == 0:
            self._progress(self._seen)

    def logs(self) -> tuple[LogState, ...]:
        """Size and root of every log, by name."""
        return tuple(LogState(*name, log.size, log.root().hex()) for name, log in sorted(self._logs.items()))

    def report(self, size_bytes: int) -> BackupReport:
        """All of it."""
        if self._progress is not None:
            self._progress(self._seen)
        return BackupReport(dict(self.rows), self.logs(), size_bytes)


class _Hashed:
    """A member of the archive on its way in or out, hashed as it passes."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        self.digest = sha256()

    def write(self, line: bytes) -> None:
        self.digest.update(line)
        self._stream.write(line)

    def lines(self) -> Iterator[bytes]:
        for line in self._stream:
            self.digest.update(line)
            yield line


def _write(store: CanCopy, archive: zipfile.ZipFile, tally: Tally) -> None:
    digests: dict[str, str] = {}
    rows = store.dump()
    held = next(rows, None)
    for table in TABLES:
        with archive.open(f"{table}.jsonl", "w", force_zip64=True) as stream:
            member = _Hashed(stream)
            while held is not None and held[0] == table:
                tally.row(*held)
                member.write(_line(*held))
                held = next(rows, None)
        digests[table] = member.digest.hexdigest()
    logs = [asdict(log) for log in tally.logs()]
    manifest = {"format": FORMAT, "digests": digests, "rows": tally.rows, "logs": logs}
    archive.writestr("manifest.json", json.dumps(manifest, indent=1, sort_keys=True))


def _read(archive: zipfile.ZipFile, manifest: dict[str, Any], tally: Tally) -> Iterator[tuple[str, tuple[Any, ...]]]:
    """Every row; Corrupt after the last one when anything was not as the manifest says, so that a load is undone."""
    try:
        for table in TABLES:
            with archive.open(f"{table}.jsonl") as stream:
                member = _Hashed(stream)
                for line in member.lines():
                    row = _row(table, line)
                    tally.row(*row)
                    yield row
            if member.digest.hexdigest() != manifest["digests"][table]:
                raise _damaged(f"its {table} are not what was written")
    except (zipfile.BadZipFile, KeyError, ValueError, TypeError, EOFError, OSError) as error:
        raise _damaged("a part of it cannot be read") from error
    if [asdict(log) for log in tally.logs()] != manifest["logs"]:
        raise _damaged("its logs do not give the roots they gave")


def _line(table: str, values: tuple[Any, ...]) -> bytes:
    plain = [base64.b64encode(v).decode() if isinstance(v, (bytes, memoryview)) else v for v in values]
    return json.dumps(plain, separators=(",", ":"), ensure_ascii=False).encode() + b"\n"


def _row(table: str, line: bytes) -> tuple[str, tuple[Any, ...]]:
    columns = TABLES[table]
    pairs = zip(columns, json.loads(line), strict=True)
    return table, tuple(base64.b64decode(v, validate=True) if c in _BYTES[table] else v for c, v in pairs)


def _opened(path: str) -> zipfile.ZipFile:
    try:
        return zipfile.ZipFile(path)
    except FileNotFoundError as error:
        raise Invalid("there is no such backup", "give the path of a file that a backup wrote") from error
    except (OSError, zipfile.BadZipFile) as error:
        raise _damaged("it is not a whole archive") from error


def _manifest(archive: zipfile.ZipFile) -> dict[str, Any]:
    try:
        manifest: dict[str, Any] = json.loads(archive.read("manifest.json"))
    except (KeyError, ValueError, zipfile.BadZipFile) as error:
        raise _damaged("its manifest cannot be read") from error
    if manifest.get("format") != FORMAT:
        raise Invalid(
            "the backup is of a format this program does not know", "restore it with the program that wrote it"
        )
    return manifest


def _damaged(what: str) -> Corrupt:
    return Corrupt(f"the backup is damaged: {what}", "nothing was restored; take another copy")


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
