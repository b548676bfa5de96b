"""Sources: rows from the catalogue, from a database or from a stream, batch by batch, beside the caller."""

import itertools
import json
import os
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from falaj.catalog.version_reader import encode_path, open_version
from falaj.core.client_command import Client
from falaj.core.errors import Invalid, Unavailable, UserCodeFailed
from falaj.core.ref import Ref
from falaj.features.isolated_query import query_database, query_files
from falaj.features.record_tables import build_table
from falaj.features.records import SourceDef

BATCH_ROWS = 1 << 20
"""Rules about a whole table look at so many rows at a time."""
_ROWS_PER_BATCH = 65_536
_TABLE_SUFFIXES = (".parquet", ".parq", ".pq", ".csv", ".jsonl", ".ndjson", ".arrow", ".feather", ".ipc")


@dataclass(frozen=True, slots=True)
class OpenedSource:
    """What there is to read: tables, and which state of the source they are."""

    tables: Iterable[Any]
    """pyarrow Tables of up to BATCH_ROWS rows."""
    pinned: str = ""
    ref: Ref | None = None
    anew: bool = True
    """False when these are only what came since the state that was read last."""
    size_bytes: int = 0
    notes: Sequence[str] = ()
    """What its owner should know; complete when the tables were read."""


@contextmanager
def open_source_rows(client: Client, source: SourceDef, since: str = "") -> Iterator[OpenedSource]:
    """The rows of a source; only what is new since a state, where the source can tell."""
    if source.kind == "dataset":
        with tempfile.TemporaryDirectory(prefix="falaj-source-") as scratch:
            yield _open_dataset(client, source, since, Path(scratch))
    elif source.kind == "sql":
        yield OpenedSource(_read_database(source))
    elif source.kind == "kafka":
        from falaj.features.kafka_source import open_topic

        topic = open_topic(source, since)
        yield OpenedSource(topic.tables, topic.state, anew=not since, notes=topic.notes)
    else:
        raise Invalid("rows of this view are pushed", "falaj features push VIEW FILE")


def read_tables(paths: Sequence[Path]) -> Iterator[Any]:
    """Tables of a file each, or of a part of it."""
    for path in paths:
        yield from _group_batches(_iterate_batches(path))


def _open_dataset(client: Client, source: SourceDef, since: str, folder: Path) -> OpenedSource:
    version_info, snapshot = open_version(client, Ref.parse(source.address))
    entries = {entry.path: entry for entry in snapshot.entries() if entry.kind == "file" and _is_readable(entry.path)}
    if not entries:
        hint = f"publish {', '.join(_TABLE_SUFFIXES)} files"
        raise Invalid(f"{version_info.ref} holds no table", hint, version_info.ref)
    chosen_entries, is_complete = dict(entries), True
    if since and not source.query:
        _, previous_snapshot = open_version(client, Ref.parse(since))
        previous_digests = {
            entry.path: entry.digest
            for entry in previous_snapshot.entries()
            if entry.kind == "file" and _is_readable(entry.path)
        }
        # What only grew is read from where it ended; anything else that changed means that rows may be gone.
        if all(path in entries and entries[path].digest == digest for path, digest in previous_digests.items()):
            chosen_entries, is_complete = (
                {path: entry for path, entry in entries.items() if path not in previous_digests},
                False,
            )
    size = sum(entry.size for entry in chosen_entries.values())

    def fetch_files() -> Iterator[Path]:
        with client.progress.task(f"reading {version_info.ref}", size) as task:
            for number, (path, entry) in enumerate(sorted(chosen_entries.items())):
                target_path = folder / f"{number:06d}{_get_suffix(path)}"
                with target_path.open("wb") as file:
                    for chunk in snapshot.read(entry):
                        file.write(chunk)
                        task.advance(len(chunk))
                yield target_path
                if not source.query:
                    target_path.unlink()

    tables = (
        _group_batches(query_files(source.query, list(fetch_files())))
        if source.query
        else _read_each_file(fetch_files())
    )
    return OpenedSource(tables, str(version_info.ref), version_info.ref, is_complete, size)


def _read_each_file(files: Iterable[Path]) -> Iterator[Any]:
    for file in files:
        yield from _group_batches(_iterate_batches(file))


def _read_database(source: SourceDef) -> Iterator[Any]:
    """Rows of a database, asked by the caller's own machine, with the caller's own credentials."""
    scheme, _, location = source.address.partition(":")
    if scheme == "duckdb":
        yield from _group_batches(query_database(source.query, Path(location)))
    elif scheme == "adbc":
        yield from _read_adbc(location, source)
    else:
        raise Invalid(f"{scheme!r:.40} is no kind of database", "duckdb:FILE, or adbc:DRIVER with $FALAJ_ADBC_URI")


def _read_adbc(driver: str, source: SourceDef) -> Iterator[Any]:
    try:
        from importlib import import_module

        module = import_module(f"adbc_driver_{driver}.dbapi")
    except ModuleNotFoundError:
        raise Invalid(f"the ADBC driver {driver!r:.40} is not installed", f"pip install adbc-driver-{driver}") from None
    # The address of a database may hold a password: it comes from the environment, never from a definition.
    variable = source.more.get("uri", "FALAJ_ADBC_URI")
    try:
        connection = module.connect(os.environ.get(variable, ""))
    except module.Error:
        # Its words may name hosts and people.
        raise Unavailable("the database does not answer", f"check ${variable}, and who you are there") from None
    with connection, connection.cursor() as cursor:
        try:
            cursor.execute(source.query)
            yield from _group_batches(cursor.fetch_record_batch())
        except module.Error as error:
            raise UserCodeFailed(f"the query failed: {str(error)[:300]}", "correct it in the definition") from error


def _iterate_batches(path: Path) -> Iterator[Any]:
    """Record batches of one file, by its suffix."""
    import pyarrow as pa
    import pyarrow.csv
    import pyarrow.parquet

    suffix = path.suffix.lower()
    try:
        if suffix in (".parquet", ".parq", ".pq"):
            with pyarrow.parquet.ParquetFile(path) as file:
                yield from file.iter_batches(_ROWS_PER_BATCH)
        elif suffix == ".csv":
            yield from pyarrow.csv.open_csv(path)
        elif suffix in (".jsonl", ".ndjson"):
            yield from _read_json_lines(path)
        else:
            with pa.memory_map(str(path)) as mapped_file:
                yield from pa.ipc.open_file(mapped_file).read_all().to_batches(_ROWS_PER_BATCH)
    except (pa.ArrowInvalid, pa.ArrowTypeError, ValueError) as error:
        raise Invalid(f"{path.name} cannot be read as a table", "check it with the tool that wrote it") from error


def _read_json_lines(path: Path) -> Iterator[Any]:
    """Batches of JSON lines. Texts stay texts: Arrow's own reader takes moments of any zone for moments of none."""
    with path.open("rb") as file:
        while rows := [json.loads(line) for line in itertools.islice(file, _ROWS_PER_BATCH) if line.strip()]:
            yield from build_table(rows).to_batches()


def _group_batches(batches: Iterable[Any]) -> Iterator[Any]:
    import pyarrow as pa

    pending: list[Any] = []
    count = 0
    for batch in batches:
        if pending and batch.schema != pending[0].schema:  # records of a later part may have other columns
            yield pa.Table.from_batches(pending)
            pending, count = [], 0
        pending.append(batch)
        count += batch.num_rows
        if count >= BATCH_ROWS:
            yield pa.Table.from_batches(pending)
            pending, count = [], 0
    if pending:
        yield pa.Table.from_batches(pending)


def _is_readable(path: bytes) -> bool:
    return _get_suffix(path) in _TABLE_SUFFIXES and not path.rpartition(b"/")[2].startswith((b".", b"_"))


def _get_suffix(path: bytes) -> str:
    return Path(os.fsdecode(path)).suffix.lower()


__all__ = ["BATCH_ROWS", "OpenedSource", "encode_path", "open_source_rows", "read_tables"]
