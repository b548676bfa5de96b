"""Comparing two versions: which files, which columns, which rows."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from falaj.catalog.reading import open_version, printable, text_of
from falaj.catalog.records import Opened
from falaj.content.records import Column, Table
from falaj.core.data import dataclass
from falaj.core.errand import Here
from falaj.core.ref import Ref
from falaj.snapshot.compare import Change, compare
from falaj.snapshot.read import Snapshot

if TYPE_CHECKING:
    from falaj.content.rowdiff import RowSample, TableDiff

_VALUES = ("distinct", "low", "high", "mean")


@dataclass(frozen=True, slots=True)
class FileChange:
    """One file that is not the same in both."""

    COLUMNS: ClassVar[tuple[str, ...]] = ("how", "name", "before_bytes", "after_bytes")

    path: str
    how: str
    before_bytes: int | None
    after_bytes: int | None

    @property
    def name(self) -> str:
        """The path as a terminal may show it."""
        return printable(self.path)


@dataclass(frozen=True, slots=True)
class ColumnChange:
    """One thing about a column that is not the same in both: its type, its nulls, its range, that it exists."""

    column: str
    what: str
    before: str
    after: str


@dataclass(frozen=True, slots=True)
class VersionDiff:
    """What lies between two versions; what is said of rows is None where nobody asked for it."""

    before: Ref
    after: Ref
    added: int
    removed: int
    changed: int
    rows_before: int | None = None
    rows_after: int | None = None
    rows_added: int | None = None
    rows_removed: int | None = None
    rows_changed: int | None = None
    columns_changed: Mapping[str, int] = field(default_factory=dict)
    """In how many of the changed rows each column differs."""
    duplicate_keys: int = 0
    files: tuple[FileChange, ...] = ()
    columns: tuple[ColumnChange, ...] = ()
    samples: "tuple[RowSample, ...]" = ()


def compare_versions(here: Here, a: Ref, b: Ref, key: Sequence[str] | None) -> VersionDiff:
    """Everything that differs; rows too where a key (which may be empty) is given."""
    (first, before), (second, after) = open_version(here, a), open_version(here, b)
    changes: list[Change] = []
    with here.progress.task("comparing", None, "files") as task:
        for change in compare(before, after):
            changes.append(change)
            task.advance(1)
    added, removed, changed = (sum(change.how == how for change in changes) for how in ("added", "removed", "changed"))
    found = VersionDiff(
        first.ref,
        second.ref,
        added,
        removed,
        changed,
        first.table.rows if first.table else None,
        second.table.rows if second.table else None,
        files=tuple(_file(change) for change in changes),
        columns=tuple(_columns(first.table, second.table)),
    )
    if key is None:
        return found
    if not changes:
        return replace(found, rows_added=0, rows_removed=0, rows_changed=0)
    rows = _rows(here, (before, after), changes, tuple(key), _categories(first, second))
    return replace(
        found,
        rows_added=rows.rows_added,
        rows_removed=rows.rows_removed,
        rows_changed=rows.rows_changed,
        columns_changed=rows.columns_changed,
        duplicate_keys=rows.duplicate_keys,
        samples=rows.samples,
    )


def _file(change: Change) -> FileChange:
    before, after = (entry.size if entry else None for entry in (change.before, change.after))
    return FileChange(text_of(change.path), change.how, before, after)


def _columns(a: Table | None, b: Table | None) -> Iterator[ColumnChange]:
    before = {column.name: column for column in (a.columns if a else ())}
    after = {column.name: column for column in (b.columns if b else ())}
    for name in dict.fromkeys([*before, *after]):
        old, new = before.get(name), after.get(name)
        if old is None or new is None:
            yield ColumnChange(name, "column", old.type if old else "", new.type if new else "")
        else:
            yield from _about(old, new)


def _about(old: Column, new: Column) -> Iterator[ColumnChange]:
    # What one version calls personal is not shown from the other, which did not know yet.
    hidden = _VALUES if old.category or new.category else ()
    for item in fields(Column):
        if item.name in hidden:
            continue
        before, after = getattr(old, item.name), getattr(new, item.name)
        if before != after:
            yield ColumnChange(new.name, item.name, *("" if v is None else str(v) for v in (before, after)))


def _categories(*both: Opened) -> dict[str, str]:
    """Which columns are not shown: what either version declares."""
    tables = [opened.table for opened in both if opened.table is not None]
    return {column.name: column.category for table in tables for column in table.columns if column.category}


def _rows(
    here: Here,
    both: tuple[Snapshot, Snapshot],
    changes: list[Change],
    key: tuple[str, ...],
    categories: Mapping[str, str],
) -> "TableDiff":
    """Fetch the files that differ, and no others, and compare what is in them."""
    import tempfile

    from falaj.content.rowdiff import diff_tables
    from falaj.snapshot.checkout import checkout

    sides = [[e for c in changes if (e := getattr(c, side)) is not None] for side in ("before", "after")]
    # The same bytes under another name are the same rows.
    moved = {e.digest for e in sides[0]} & {e.digest for e in sides[1]}
    with tempfile.TemporaryDirectory(prefix="falaj-diff-") as scratch:
        files: list[list[Path]] = []
        for name, snapshot, entries in zip(("before", "after"), both, sides, strict=True):
            wanted = [entry for entry in entries if entry.digest not in moved and entry.kind == "file"]
            with here.progress.task(f"fetching what differs, {name}", sum(e.size for e in wanted)) as task:
                if wanted:
                    checkout(snapshot, Path(scratch, name), paths=[e.path for e in wanted], advance=task.advance)
            files.append([Path(scratch, name)] if wanted else [])
        return diff_tables(files[0], files[1], key, categories)
