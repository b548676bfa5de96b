"""A ledger from a shelf into an empty store: as the file it was where both can, else row by row."""

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from falaj.core.errors import Invalid
from falaj.core.ports import CanAdopt, CanCopy, LedgerFile
from falaj.store.backup import Rows, Tally, copier
from falaj.store.ledger import Ledger
from falaj.store.shelf import SQLITE, Manifest, Shelf

Values = tuple[Any, ...]
Files = Callable[[str], AbstractContextManager[CanCopy]]


def _nothing() -> None:
    pass


@dataclass(frozen=True)
class Way:
    """What is done on the way."""

    tally: Tally
    files: Files | None = None
    """Opens a ledger's file by its path, for stores that are none."""
    key: Callable[[Values], Values] = lambda values: values
    """What becomes of the row of a key."""
    begin: Callable[[], None] = _nothing
    """Called once the store is known to be empty."""
    ready: Callable[[], None] = _nothing
    """Returns when the ledger may be kept."""


def bring(ledger: Ledger, shelf: Shelf, made: Manifest, way: Way) -> None:
    """All of it or nothing; every digest and root is checked before anything is kept."""
    if made.form == SQLITE and isinstance(ledger.store, CanAdopt):
        _adopted(ledger.store, shelf, made, way)
    else:
        copier(ledger).load(_rows(shelf, made, way))


def _adopted(store: CanAdopt, shelf: Shelf, made: Manifest, way: Way) -> None:
    def fill(file: int) -> None:
        way.begin()
        shelf.ledger(made).fill(file)

    def look(file: LedgerFile) -> None:
        changed = []
        for table, values in file.rows():
            way.tally.row(table, values)
            if _is_key(table, values) and (now := way.key(values)) is not values:
                changed.append(now)
        for tenant, zone, leaves in file.leaves():
            way.tally.leaves(tenant, zone, leaves)
        shelf.check(made, way.tally)
        for values in changed:
            file.replace(values)

    store.adopt(fill, look, way.ready)


def _rows(shelf: Shelf, made: Manifest, way: Way) -> Rows:
    way.begin()
    rows = _of_file(shelf, made, way) if made.form == SQLITE else shelf.rows(made, way.tally)
    for table, values in rows:
        yield table, way.key(values) if _is_key(table, values) else values
    way.ready()


def _of_file(shelf: Shelf, made: Manifest, way: Way) -> Iterator[tuple[str, Values]]:
    if way.files is None:
        raise Invalid("this store takes no ledger that lies there as a file", "restore it: falaj restore")
    with tempfile.TemporaryDirectory(prefix="falaj-restore-") as folder:
        path = Path(folder) / "ledger.db"
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            shelf.ledger(made).fill(file)
        finally:
            os.close(file)
        with way.files(str(path)) as store:
            for table, values in store.dump():
                way.tally.row(table, values)
                yield table, values
    shelf.check(made, way.tally)


def _is_key(table: str, values: Values) -> bool:
    return table == "records" and values[1] == "key"
