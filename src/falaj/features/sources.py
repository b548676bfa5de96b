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

from falaj.catalog.reading import open_version, path_of
from falaj.core.errand import Here
from falaj.core.errors import Invalid, Unavailable, UserCodeFailed
from falaj.core.ref import Ref
from falaj.features.isolated_query import query_database, query_files
from falaj.features.records import SourceDef
from falaj.features.tabling import tabled

BATCH_ROWS = 1 << 20
"""Rules about a whole table look at so many rows at a time."""
_ROWS = 65_536
_FORMATS = (".parquet", ".parq", ".pq", ".csv", ".jsonl", ".ndjson", ".arrow", ".feather", ".ipc")


@dataclass(frozen=True, slots=True)
class Found:
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
def open_rows(here: Here, source: SourceDef, since: str = "") -> Iterator[Found]:
    """The rows of a source; only what is new since a state, where the source can tell."""
    if source.kind == "dataset":
        with tempfile.TemporaryDirectory(prefix="falaj-source-") as scratch:
            yield _dataset(here, source, since, Path(scratch))
    elif source.kind == "sql":
        yield Found(_sql(source))
    elif source.kind == "kafka":
        from falaj.features.kafka import open_topic

        topic = open_topic(source, since)
        yield Found(topic.tables, topic.state, anew=not since, notes=topic.notes)
    else:
        raise Invalid("rows of this view are pushed", "falaj features push VIEW FILE")


def read_files(paths: Sequence[Path]) -> Iterator[Any]:
    """Tables of a file each, or of a part of it."""
    for path in paths:
        yield from _grouped(_batches(path))


def _dataset(here: Here, source: SourceDef, since: str, folder: Path) -> Found:
    opened, snapshot = open_version(here, Ref.parse(source.address))
    entries = {one.path: one for one in snapshot.entries() if one.kind == "file" and _readable(one.path)}
    if not entries:
        hint = f"publish {', '.join(_FORMATS)} files"
        raise Invalid(f"{opened.ref} holds no table", hint, opened.ref)
    chosen, anew = dict(entries), True
    if since and not source.query:
        _, before = open_version(here, Ref.parse(since))
        known = {one.path: one.digest for one in before.entries() if one.kind == "file" and _readable(one.path)}
        # What only grew is read from where it ended; anything else that changed means that rows may be gone.
        if all(path in entries and entries[path].digest == digest for path, digest in known.items()):
            chosen, anew = {path: one for path, one in entries.items() if path not in known}, False
    size = sum(one.size for one in chosen.values())

    def fetched() -> Iterator[Path]:
        with here.progress.task(f"reading {opened.ref}", size) as task:
            for number, (path, entry) in enumerate(sorted(chosen.items())):
                target = folder / f"{number:06d}{_suffix(path)}"
                with target.open("wb") as file:
                    for chunk in snapshot.read(entry):
                        file.write(chunk)
                        task.advance(len(chunk))
                yield target
                if not source.query:
                    target.unlink()

    tables = _grouped(query_files(source.query, list(fetched()))) if source.query else _each(fetched())
    return Found(tables, str(opened.ref), opened.ref, anew, size)


def _each(files: Iterable[Path]) -> Iterator[Any]:
    for file in files:
        yield from _grouped(_batches(file))


def _sql(source: SourceDef) -> Iterator[Any]:
    """Rows of a database, asked by the caller's own machine, with the caller's own credentials."""
    scheme, _, rest = source.address.partition(":")
    if scheme == "duckdb":
        yield from _grouped(query_database(source.query, Path(rest)))
    elif scheme == "adbc":
        yield from _adbc(rest, source)
    else:
        raise Invalid(f"{scheme!r:.40} is no kind of database", "duckdb:FILE, or adbc:DRIVER with $FALAJ_ADBC_URI")


def _adbc(driver: str, source: SourceDef) -> Iterator[Any]:
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
            yield from _grouped(cursor.fetch_record_batch())
        except module.Error as error:
            raise UserCodeFailed(f"the query failed: {str(error)[:300]}", "correct it in the definition") from error


def _batches(path: Path) -> Iterator[Any]:
    """Record batches of one file, by its suffix."""
    import pyarrow as pa
    import pyarrow.csv
    import pyarrow.parquet

    suffix = path.suffix.lower()
    try:
        if suffix in (".parquet", ".parq", ".pq"):
            with pyarrow.parquet.ParquetFile(path) as file:
                yield from file.iter_batches(_ROWS)
        elif suffix == ".csv":
            yield from pyarrow.csv.open_csv(path)
        elif suffix in (".jsonl", ".ndjson"):
            yield from _lines(path)
        else:
            with pa.memory_map(str(path)) as held:
                yield from pa.ipc.open_file(held).read_all().to_batches(_ROWS)
    except (pa.ArrowInvalid, pa.ArrowTypeError, ValueError) as error:
        raise Invalid(f"{path.name} cannot be read as a table", "check it with the tool that wrote it") from error


def _lines(path: Path) -> Iterator[Any]:
    """Batches of JSON lines. Texts stay texts: Arrow's own reader takes moments of any zone for moments of none."""
    with path.open("rb") as file:
        while rows := [json.loads(line) for line in itertools.islice(file, _ROWS) if line.strip()]:
            yield from tabled(rows).to_batches()


def _grouped(batches: Iterable[Any]) -> Iterator[Any]:
    import pyarrow as pa

    held: list[Any] = []
    count = 0
    for batch in batches:
        if held and batch.schema != held[0].schema:  # records of a later part may have other columns
            yield pa.Table.from_batches(held)
            held, count = [], 0
        held.append(batch)
        count += batch.num_rows
        if count >= BATCH_ROWS:
            yield pa.Table.from_batches(held)
            held, count = [], 0
    if held:
        yield pa.Table.from_batches(held)


def _readable(path: bytes) -> bool:
    return _suffix(path) in _FORMATS and not path.rpartition(b"/")[2].startswith((b".", b"_"))


def _suffix(path: bytes) -> str:
    return Path(os.fsdecode(path)).suffix.lower()


__all__ = ["BATCH_ROWS", "Found", "open_rows", "path_of", "read_files"]
