"""A ledger from a shelf into an empty store: as the file it was where both can, else row by row."""

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from falaj.core.errors import Invalid
from falaj.core.ports import LedgerFile, SupportsDump, SupportsFileRestore
from falaj.store.backup import RowIterator, RowTally, require_dump_support
from falaj.store.backup_target import FORM_SQLITE, BackupManifest, BackupTarget
from falaj.store.ledger import Ledger

Values = tuple[Any, ...]
OpenLedgerFile = Callable[[str], AbstractContextManager[SupportsDump]]


def _do_nothing() -> None:
    pass


@dataclass(frozen=True)
class RestoreSteps:
    """What is done on the way."""

    tally: RowTally
    files: OpenLedgerFile | None = None
    """Opens a ledger's file by its path, for stores that are none."""
    key: Callable[[Values], Values] = lambda values: values
    """What becomes of the row of a key."""
    begin: Callable[[], None] = _do_nothing
    """Called once the store is known to be empty."""
    ready: Callable[[], None] = _do_nothing
    """Returns when the ledger may be kept."""


def restore_ledger(ledger: Ledger, target: BackupTarget, manifest: BackupManifest, steps: RestoreSteps) -> None:
    """All of it or nothing; every digest and root is checked before anything is kept."""
    if manifest.form == FORM_SQLITE and isinstance(ledger.store, SupportsFileRestore):
        _restore_from_file(ledger.store, target, manifest, steps)
    else:
        require_dump_support(ledger).load(_read_rows(target, manifest, steps))


def _restore_from_file(
    store: SupportsFileRestore, target: BackupTarget, manifest: BackupManifest, steps: RestoreSteps
) -> None:
    def write_file(fd: int) -> None:
        steps.begin()
        target.ledger(manifest).fill(fd)

    def check_file(file: LedgerFile) -> None:
        changed_rows = []
        for table, values in file.rows():
            steps.tally.row(table, values)
            if _is_key_row(table, values) and (converted := steps.key(values)) is not values:
                changed_rows.append(converted)
        for tenant, zone, leaves in file.leaves():
            steps.tally.leaves(tenant, zone, leaves)
        target.check(manifest, steps.tally)
        for values in changed_rows:
            file.replace(values)

    store.adopt(write_file, check_file, steps.ready)


def _read_rows(target: BackupTarget, manifest: BackupManifest, steps: RestoreSteps) -> RowIterator:
    steps.begin()
    rows = (
        _read_rows_from_file(target, manifest, steps)
        if manifest.form == FORM_SQLITE
        else target.rows(manifest, steps.tally)
    )
    for table, values in rows:
        yield table, steps.key(values) if _is_key_row(table, values) else values
    steps.ready()


def _read_rows_from_file(
    target: BackupTarget, manifest: BackupManifest, steps: RestoreSteps
) -> Iterator[tuple[str, Values]]:
    if steps.files is None:
        raise Invalid("this store takes no ledger that lies there as a file", "restore it: falaj restore")
    with tempfile.TemporaryDirectory(prefix="falaj-restore-") as folder:
        path = Path(folder) / "ledger.db"
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            target.ledger(manifest).fill(fd)
        finally:
            os.close(fd)
        with steps.files(str(path)) as store:
            for table, values in store.dump():
                steps.tally.row(table, values)
                yield table, values
    target.check(manifest, steps.tally)


def _is_key_row(table: str, values: Values) -> bool:
    return table == "records" and values[1] == "key"
