"""Backups of the first format: a zip of one JSON-lines member a table and a manifest. Read, and no longer written."""

import base64
import json
import zipfile
from dataclasses import asdict
from hashlib import sha256
from typing import Any

from falaj.core.errors import Corrupt, Invalid
from falaj.core.ports import TABLES
from falaj.store.backup import Rows, Tally

FORMAT = "falaj-backup-1"
_BYTES = {"records": ("body",), "events": ("leaf", "data"), "leases": ()}


def read_zip(path: str, tally: Tally) -> Rows:
    """Every row; Corrupt after the last one when anything was not as the manifest says, so that a load is undone."""
    try:
        with zipfile.ZipFile(path) as archive:
            manifest = _manifest(archive)
            for table in TABLES:
                digest = sha256()
                with archive.open(f"{table}.jsonl") as member:
                    for line in member:
                        digest.update(line)
                        values = _row(table, line)
                        tally.row(table, values)
                        yield table, values
                if digest.hexdigest() != manifest["digests"][table]:
                    raise _damaged(f"its {table} are not what was written")
            if [asdict(log) for log in tally.logs()] != manifest["logs"]:
                raise _damaged("its logs do not give the roots they gave")
    except (zipfile.BadZipFile, KeyError, ValueError, TypeError, EOFError, OSError) as error:
        raise _damaged("a part of it cannot be read") from error


def _row(table: str, line: bytes) -> tuple[Any, ...]:
    pairs = zip(TABLES[table], json.loads(line), strict=True)
    return tuple(base64.b64decode(v, validate=True) if c in _BYTES[table] else v for c, v in pairs)


def _manifest(archive: zipfile.ZipFile) -> dict[str, Any]:
    manifest: dict[str, Any] = json.loads(archive.read("manifest.json"))
    if manifest.get("format") != FORMAT:
        raise Invalid(
            "the backup is of a format this program does not know", "restore it with the program that wrote it"
        )
    return manifest


def _damaged(what: str) -> Corrupt:
    return Corrupt(f"the backup is damaged: {what}", "nothing was restored; take another copy")
