"""Comparing two versions: which files, which columns, which rows."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from falaj.catalog.records import OpenedVersion
from falaj.catalog.version_reader import decode_path, open_version, to_printable
from falaj.content.records import TableColumn, TableDescription
from falaj.core.client_command import Client
from falaj.core.data import dataclass
from falaj.core.ref import Ref
from falaj.snapshot.compare import TreeChange, compare_trees
from falaj.snapshot.tree_reader import TreeSnapshot

if TYPE_CHECKING:
    from falaj.content.row_diff import RowSample, TableDiff

_VALUE_FIELDS = ("distinct", "low", "high", "mean")


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
        return to_printable(self.path)


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


def compare_versions(client: Client, a: Ref, b: Ref, key: Sequence[str] | None) -> VersionDiff:
    """Everything that differs; rows too where a key (which may be empty) is given."""
    (before_version, before), (after_version, after) = open_version(client, a), open_version(client, b)
    changes: list[TreeChange] = []
    with client.progress.task("comparing", None, "files") as task:
        for change in compare_trees(before, after):
            changes.append(change)
            task.advance(1)
    added, removed, changed = (sum(change.how == how for change in changes) for how in ("added", "removed", "changed"))
    version_diff = VersionDiff(
        before_version.ref,
        after_version.ref,
        added,
        removed,
        changed,
        before_version.table.rows if before_version.table else None,
        after_version.table.rows if after_version.table else None,
        files=tuple(_to_file_change(change) for change in changes),
        columns=tuple(_compare_columns(before_version.table, after_version.table)),
    )
    if key is None:
        return version_diff
    if not changes:
        return replace(version_diff, rows_added=0, rows_removed=0, rows_changed=0)
    rows = _compare_rows(
        client, (before, after), changes, tuple(key), _collect_categories(before_version, after_version)
    )
    return replace(
        version_diff,
        rows_added=rows.rows_added,
        rows_removed=rows.rows_removed,
        rows_changed=rows.rows_changed,
        columns_changed=rows.columns_changed,
        duplicate_keys=rows.duplicate_keys,
        samples=rows.samples,
    )


def _to_file_change(change: TreeChange) -> FileChange:
    before, after = (entry.size if entry else None for entry in (change.before, change.after))
    return FileChange(decode_path(change.path), change.how, before, after)


def _compare_columns(
    before_table: TableDescription | None, after_table: TableDescription | None
) -> Iterator[ColumnChange]:
    before = {column.name: column for column in (before_table.columns if before_table else ())}
    after = {column.name: column for column in (after_table.columns if after_table else ())}
    for name in dict.fromkeys([*before, *after]):
        before_column, after_column = before.get(name), after.get(name)
        if before_column is None or after_column is None:
            yield ColumnChange(
                name, "column", before_column.type if before_column else "", after_column.type if after_column else ""
            )
        else:
            yield from _compare_column(before_column, after_column)


def _compare_column(before_column: TableColumn, after_column: TableColumn) -> Iterator[ColumnChange]:
    # What one version calls personal is not shown from the other, which did not know yet.
    hidden = _VALUE_FIELDS if before_column.category or after_column.category else ()
    for item in fields(TableColumn):
        if item.name in hidden:
            continue
        before, after = getattr(before_column, item.name), getattr(after_column, item.name)
        if before != after:
            yield ColumnChange(
                after_column.name,
                item.name,
                *("" if column_value is None else str(column_value) for column_value in (before, after)),
            )


def _collect_categories(*opened_versions: OpenedVersion) -> dict[str, str]:
    """Which columns are not shown: what either version declares."""
    tables = [opened.table for opened in opened_versions if opened.table is not None]
    return {column.name: column.category for table in tables for column in table.columns if column.category}


def _compare_rows(
    client: Client,
    snapshots: tuple[TreeSnapshot, TreeSnapshot],
    changes: list[TreeChange],
    key: tuple[str, ...],
    categories: Mapping[str, str],
) -> "TableDiff":
    """Fetch the files that differ, and no others, and compare what is in them."""
    import tempfile

    from falaj.content.row_diff import diff_tables
    from falaj.snapshot.checkout import checkout_tree

    entries_by_side = [
        [side_entry for file_change in changes if (side_entry := getattr(file_change, side)) is not None]
        for side in ("before", "after")
    ]
    # The same bytes under another name are the same rows.
    shared_digests = {side_entry.digest for side_entry in entries_by_side[0]} & {
        side_entry.digest for side_entry in entries_by_side[1]
    }
    with tempfile.TemporaryDirectory(prefix="falaj-diff-") as scratch_folder:
        files: list[list[Path]] = []
        for name, snapshot, entries in zip(("before", "after"), snapshots, entries_by_side, strict=True):
            entries_to_fetch = [
                entry for entry in entries if entry.digest not in shared_digests and entry.kind == "file"
            ]
            with client.progress.task(
                f"fetching what differs, {name}", sum(side_entry.size for side_entry in entries_to_fetch)
            ) as task:
                if entries_to_fetch:
                    checkout_tree(
                        snapshot,
                        Path(scratch_folder, name),
                        paths=[side_entry.path for side_entry in entries_to_fetch],
                        advance=task.advance,
                    )
            files.append([Path(scratch_folder, name)] if entries_to_fetch else [])
        return diff_tables(files[0], files[1], key, categories)
