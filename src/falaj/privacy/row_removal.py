"""Takes rows that name a person out of tables in which only the search finds them, by the search's own rule.

Parquet, delimited text and JSON lines are written anew on the machine that runs the erasure. Records of other people
keep their bytes, except that Parquet is encoded anew. Archives, JSON documents and free text are not changed: the
search lists them, and the erasure waits for a decision.
"""

import csv
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from falaj.asof.person_sealing import PSEUDONYM_BYTES
from falaj.asof.records import FeatureField
from falaj.catalog.records import CatalogVersion
from falaj.catalog.version_reader import decode_path, open_version
from falaj.content.records import TableDescription
from falaj.content.table_statistics import describe_table
from falaj.core.client_command import Client
from falaj.core.errors import CorruptData, Denied, Invalid, NotFound
from falaj.core.ref import Ref
from falaj.features.erasure_case import ErasureCase
from falaj.features.person_erasure import move_aliases
from falaj.features.person_keys import list_live_versions
from falaj.features.records import EntityDef
from falaj.features.row_removal import Person
from falaj.privacy.person_tables import ClearedTables, add_case, find_person_columns, find_subject_keys
from falaj.privacy.plan_objects import version_of
from falaj.privacy.search.arrow_rows import locate_rows
from falaj.privacy.search.file_formats import encoding_of, find_delimiter, names_by_key, names_in_fields
from falaj.privacy.search.person_pattern import PersonPattern
from falaj.snapshot.tree_reader import TreeSnapshot

_FORMATS = ("parquet", "csv", "tsv", "jsonl")
_SUFFIXES = (".parquet", ".csv", ".tsv", ".tab", ".jsonl", ".ndjson")
_HEAD_BYTES = 1 << 16
_BATCH = 1 << 17  # rows of Parquet that are looked at, and written as one group of rows


def can_remove_rows(here: Client, name: str) -> bool:
    """True for a live version of a dataset all of whose files are of a format that is written anew."""
    ref = version_of(name)
    if ref is None or ref.kind != "dataset":
        return False
    with suppress(NotFound):
        version: CatalogVersion = here.catalog.show(ref)
        if version.state == "live" and not version.restricted:
            try:
                return _can_rewrite(open_version(here, ref)[1])
            except Denied:  # a planner without the right to read it, such as the dpo: by what is known of the table
                table = version.table
                return table is not None and table.format in _FORMATS and table.files == version.num_files
    return False


def remove_rows(here: Client, names: Iterable[str], who: tuple[str, str], reason: str) -> ClearedTables:
    """Put each of these versions aside for one without the person, as far as its format allows.

    `who` is the identifier and the pseudonym. A version that a duty keeps is restricted, and the new one goes on.
    """
    cleared, keys = ClearedTables(), find_subject_keys(here)
    refs = sorted(ref for name in names if (ref := version_of(name)) is not None and ref.kind == "dataset")
    for bare in dict.fromkeys(ref.bare for ref in refs):
        case = _open_case(here, who, bare, reason)
        versions = sorted(list_live_versions(here, bare), key=lambda version: int(version.ref.version[1:]))
        case.know(versions)
        for version in versions:
            if version.ref in refs and not version.restricted:
                with suppress(Denied, NotFound):  # a caller without the right to read it leaves it to one with it
                    _replace_version(case, version, PersonPattern(who[0]), find_person_columns(version, keys))
        add_case(cleared, case)
    return cleared


def _open_case(here: Client, who: tuple[str, str], name: Ref, reason: str) -> ErasureCase:
    key = FeatureField("person", "string")
    person = Person(EntityDef("privacy/person", (key,), key.name), key, who[0])
    return ErasureCase(
        here, Ref("entity", "privacy", "person"), person, {name: who[1][: 2 * PSEUDONYM_BYTES]}, reason, False
    )


def _replace_version(
    case: ErasureCase, version: CatalogVersion, pattern: PersonPattern, columns: Sequence[str]
) -> None:
    if version.ref not in case.made.values():
        snapshot = open_version(case.here, version.ref)[1]
        if not _can_rewrite(snapshot):
            return
        with tempfile.TemporaryDirectory(prefix="falaj-erase-") as scratch:
            folder = Path(scratch) / "files"
            if not _write_files(snapshot, folder, pattern, columns):
                return
            case.publish(version, folder, _describe(folder, version.table))
    move_aliases(case, version)
    case.take(version.ref)


def _can_rewrite(snapshot: TreeSnapshot) -> bool:
    return all(entry.kind == "file" and _suffix_of(decode_path(entry.path)) for entry in snapshot.entries())


def _suffix_of(name: str) -> str:
    return next((suffix for suffix in _SUFFIXES if name.lower().endswith(suffix)), "")


def _write_files(snapshot: TreeSnapshot, folder: Path, pattern: PersonPattern, columns: Sequence[str]) -> int:
    """Write all files of a version into a folder without the person's rows; 0 where there are none, or where a file
    cannot be read as its name says."""
    count = 0
    for entry in snapshot.entries():
        path = folder / decode_path(entry.path)
        path.parent.mkdir(parents=True, exist_ok=True)
        source = folder.parent / "source"
        with source.open("wb") as file:
            file.writelines(snapshot.read(entry))
        removed = remove_from_file(source, path, pattern, columns)
        if removed is None:
            return 0
        count += removed
    return count


def remove_from_file(source: Path, target: Path, pattern: PersonPattern, columns: Sequence[str]) -> int | None:
    """Write a file without the rows that name the person, by the format that the target's name says.

    Gives how many rows are gone; None where the file cannot be read so.
    """
    import pyarrow as pa

    try:
        if target.name.lower().endswith(".parquet"):
            return _remove_from_parquet(source, target, pattern, columns)
        return _remove_from_text(source, target, pattern, columns)
    except (pa.ArrowException, OSError, UnicodeError, csv.Error):
        return None


def _remove_from_parquet(source: Path, target: Path, pattern: PersonPattern, columns: Sequence[str]) -> int:
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

    count = 0
    with pq.ParquetFile(source) as file, pq.ParquetWriter(target, file.schema_arrow) as writer:
        for batch in file.iter_batches(batch_size=_BATCH):
            gone = sorted(locate_rows(batch, pattern, columns))
            count += len(gone)
            left = batch.take(pa.array(np.setdiff1d(np.arange(batch.num_rows), gone))) if gone else batch
            if left.num_rows:
                writer.write_batch(left, row_group_size=left.num_rows)
    return count


def _remove_from_text(source: Path, target: Path, pattern: PersonPattern, columns: Sequence[str]) -> int | None:
    with source.open("rb") as file:
        head = file.read(_HEAD_BYTES)
    encoding = encoding_of(head)
    if not encoding and head:
        return None
    if encoding == "utf-8-sig" and not head.startswith(b"\xef\xbb\xbf"):
        encoding = "utf-8"
    count = 0
    is_lines = target.name.lower().endswith((".jsonl", ".ndjson"))
    with source.open(encoding=encoding, newline="") as text, target.open("w", encoding=encoding, newline="") as out:
        records = _split_lines(text, pattern, columns) if is_lines else _split_records(text, target, pattern, columns)
        for record, names_person in records:
            count += names_person
            out.write("" if names_person else record)
    return count


def _split_lines(text: Any, pattern: PersonPattern, columns: Sequence[str]) -> Iterator[tuple[str, bool]]:
    """The lines of a text, and whether each names the person."""
    for line in text:
        yield line, pattern.is_in(line) or names_by_key(line, pattern, columns)


def _split_records(
    text: Any, target: Path, pattern: PersonPattern, columns: Sequence[str]
) -> Iterator[tuple[str, bool]]:
    """The records of delimited text as they were written, and whether each names the person; the header never does."""
    sign = find_delimiter(text, "\t" if target.name.lower().endswith((".tsv", ".tab")) else "")
    lines: list[str] = []
    header: list[str] | None = None
    for fields in csv.reader(_keep_lines(text, lines.append), delimiter=sign):
        names_person = header is not None and names_in_fields(header, fields, pattern, columns)
        header = header or fields
        yield "".join(lines), names_person
        lines.clear()


def _keep_lines(text: Iterable[str], keep: Callable[[str], None]) -> Iterator[str]:
    for line in text:
        keep(line)
        yield line


def _describe(folder: Path, before: TableDescription | None) -> TableDescription | None:
    """What is known of the rows that are left; columns stay declared as they were."""
    declared = {column.name: column.category for column in (before.columns if before else ()) if column.category}
    with suppress(Invalid, CorruptData, NotFound):  # nothing is left that could be described
        return describe_table(folder, declared, declared)
    return None
