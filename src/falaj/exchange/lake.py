"""Delta Lake and Iceberg tables at one snapshot, as plain Parquet: `delta:PATH[@version]`, `iceberg:TABLE[@snapshot]`.

One part is written for each data file of the snapshot, named after it and with pages cut by content. So the same
snapshot always gives the same bytes, and a version published after an append holds only the rows that are new. Whoever
publishes reads the lake, with their own rights and from their own machine; the platform calls no address.
"""

import hashlib
import re
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from importlib import import_module
from operator import itemgetter
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from falaj.catalog.publish_sources import PublishSource, register_source
from falaj.core.errors import FalajError, Invalid, NotFound, Unavailable

_READ_BATCH_ROWS = 1 << 14
_MAX_GROUP_ROWS = 1 << 17
_MAX_GROUP_BYTES = 64 << 20
_FILE_GONE = "a data file of this snapshot is gone: the table was cleaned up since"
_LATER_HINT = "name a later snapshot, or restore the file"


@dataclass(frozen=True, slots=True)
class LakeSnapshot:
    """Which state of a table was read, and what was written of it."""

    source: str
    """For example `delta:12` or `iceberg:8744736658442914487`."""
    num_files: int
    num_rows: int


@register_source("delta")
@contextmanager
def open_delta_source(source_text: str) -> Iterator[PublishSource]:
    """The table at a path or URL, at its newest version, or at a version or time after the last @."""
    table, version = _split_pin(source_text, r"\d+|\d{4}-\d\d-\d\d(T[\d:.]+(Z|[+-]\d\d:\d\d)?)?")
    with tempfile.TemporaryDirectory(prefix="falaj-lake-") as output_folder:
        lake_snapshot = read_delta_table(
            table, int(version) if version.isdigit() else version or None, Path(output_folder)
        )
        yield PublishSource(Path(output_folder), lake_snapshot.source, passing=True)


@register_source("iceberg")
@contextmanager
def open_iceberg_source(source_text: str) -> Iterator[PublishSource]:
    """A metadata file, a table's folder, or CATALOG.NAMESPACE.TABLE of one's catalogs; a snapshot after the last @."""
    table, snapshot = _split_pin(source_text, r"\d+")
    with tempfile.TemporaryDirectory(prefix="falaj-lake-") as output_folder:
        lake_snapshot = read_iceberg_table(table, int(snapshot) if snapshot else None, Path(output_folder))
        yield PublishSource(Path(output_folder), lake_snapshot.source, passing=True)


def read_delta_table(table: str, version: int | str | None, output_folder: Path) -> LakeSnapshot:
    """Write a Delta table as it was at a version (a number, or a time as ISO text) into the folder `output_folder`."""
    deltalake = _import_package("deltalake")
    try:
        opened = deltalake.DeltaTable(table)
        if version is not None:
            opened.load_as_version(_version_at(opened, version) if isinstance(version, str) else version)
        parts = _mapped_parts(opened) if _is_mapped(opened) else _delta_parts(opened)
        return _write_parts(
            f"delta:{opened.version()}", _plain_schema(opened.schema().to_arrow()), parts, output_folder
        )
    except deltalake.exceptions.TableNotFoundError:
        pin = table.rpartition("@")[2] if "@" in table.rpartition("/")[2] else ""
        pin_text = f", and {pin!r:.80} is no version or time" if pin else ""
        hint = "name the folder or URL that holds _delta_log, then @12 or @2027-03-01T12:00:00Z"
        raise NotFound(f"there is no Delta table{pin_text}", hint) from None
    except FileNotFoundError:
        raise NotFound(_FILE_GONE, _LATER_HINT) from None
    except (deltalake.exceptions.DeltaError, OSError, ValueError) as error:
        raise _to_falaj_error(
            error, f"the Delta table has no version {version}" if version is not None else ""
        ) from None


def read_iceberg_table(table: str, snapshot: int | None, output_folder: Path) -> LakeSnapshot:
    """Write an Iceberg table as it was at a snapshot into the folder `output_folder`."""
    _import_package("pyiceberg")
    from pyiceberg.exceptions import NoSuchTableError
    from pyiceberg.io.pyarrow import schema_to_pyarrow

    try:
        opened = _open_iceberg_table(table)
        pinned = opened.snapshot_by_id(snapshot) if snapshot is not None else opened.current_snapshot()
        if pinned is None:
            raise NotFound(f"the Iceberg table has no snapshot {snapshot or ''}".rstrip(), "it may have been expired")
        scan = opened.scan(snapshot_id=pinned.snapshot_id)
        schema = _plain_schema(schema_to_pyarrow(scan.projection(), include_field_ids=False))
        return _write_parts(f"iceberg:{pinned.snapshot_id}", schema, _iceberg_parts(scan), output_folder)
    except NoSuchTableError:
        raise NotFound("there is no such Iceberg table", "check the catalog, the namespace and the name") from None
    except FileNotFoundError:
        raise NotFound(_FILE_GONE, _LATER_HINT) from None
    except (OSError, ValueError, NotImplementedError) as error:
        raise _to_falaj_error(error) from None


def _version_at(table: Any, time: str) -> int | datetime:
    """The newest version at a time, as commits say when they were made: deltalake goes by the times of their files,
    which a copy changes, and takes the oldest version where none is old enough."""
    try:
        version_time = datetime.fromisoformat(time)
    except ValueError:
        raise Invalid(f"{time!r:.80} is no time", "write it as 2027-03-01T12:00:00Z") from None
    version_time = version_time if version_time.tzinfo else version_time.replace(tzinfo=UTC)
    time_by_version = {entry["version"]: entry["timestamp"] for entry in table.history() if "timestamp" in entry}
    if not time_by_version:
        return version_time
    versions = [
        version for version, committed_ms in time_by_version.items() if committed_ms <= version_time.timestamp() * 1000
    ]
    if not versions:
        oldest = f"{datetime.fromtimestamp(min(time_by_version.values()) / 1000, UTC):%FT%TZ}"
        hint = "name a later time, or a version"
        raise NotFound(f"the Delta table has no version of {time} or before; its oldest is of {oldest}", hint)
    return int(max(versions))


TablePart = tuple[str, Callable[[], Iterable[Any]]]
"""The name of a data file, and its rows."""


def _delta_parts(table: Any) -> Iterator[TablePart]:
    import pyarrow as pa
    import pyarrow.dataset as ds
    import pyarrow.fs as fs
    from deltalake.fs import DeltaStorageHandler

    schema, columns = _plain_schema(table.schema().to_arrow()), table.metadata().partition_columns
    files = fs.PyFileSystem(DeltaStorageHandler(table.table_uri))
    kept_rows_by_path = _kept_rows(table)
    actions = pa.table(table.get_add_actions(flatten=True)).select(["path", *(f"partition.{name}" for name in columns)])
    for row in actions.to_pylist():
        path, partition_filter = unquote(row["path"]), ds.scalar(True)
        if "://" in path or path.startswith("/") or ".." in path.split("/"):
            raise Invalid(
                "the Delta table names a data file outside of itself", "copy the table, then publish the copy"
            )
        for name in columns:
            value = row[f"partition.{name}"]
            partition_filter &= ds.field(name).is_null() if value is None else ds.field(name) == value
        fragment = ds.ParquetFileFormat().make_fragment(path, filesystem=files, partition_expression=partition_filter)
        yield path, partial(_read_fragment_rows, fragment, schema, kept_rows_by_path.get(path))


def _read_fragment_rows(fragment: Any, schema: Any, kept_rows: Any) -> Iterator[Any]:
    """The batches of a data file, in order, without the rows that a deletion vector takes away."""
    import pyarrow as pa
    import pyarrow.dataset as ds

    scan = ds.Scanner.from_fragment(fragment, schema=schema, batch_size=_READ_BATCH_ROWS, batch_readahead=2)
    row_offset = 0
    for batch in scan.to_batches():
        start, row_offset = row_offset, row_offset + len(batch)
        if kept_rows is None:
            yield batch
            continue
        mask = kept_rows[start:row_offset]
        # A vector ends with the last row that is deleted.
        yield batch.filter(pa.concat_arrays([mask, pa.repeat(pa.scalar(True), len(batch) - len(mask))]))


def _kept_rows(table: Any) -> dict[str, Any]:
    import pyarrow as pa

    if "deletionVectors" not in (table.protocol().reader_features or ()):
        return {}
    vectors = pa.table(table.deletion_vectors().read_all())
    root = unquote(table.table_uri)
    paths = (unquote(uri).removeprefix(root).lstrip("/") for uri in vectors["filepath"].to_pylist())
    return {path: row.values for path, row in zip(paths, vectors["selection_vector"], strict=True)}


def _is_mapped(table: Any) -> bool:
    return bool(table.metadata().configuration.get("delta.columnMapping.mode", "none") != "none")


def _mapped_parts(table: Any) -> Iterator[TablePart]:
    """Where columns were renamed the engine of deltalake must read, which does not say what lies in which file."""
    from deltalake import QueryBuilder

    single_partition = {"datafusion.execution.target_partitions": "1"}
    yield "all", lambda: QueryBuilder(single_partition).register("rows", table).execute("SELECT * FROM rows")


def _open_iceberg_table(name: str) -> Any:
    from pyiceberg.catalog import load_catalog
    from pyiceberg.table import StaticTable

    path = Path(name).expanduser()
    if path.is_dir():
        newest_metadata = max((path / "metadata").glob("*.metadata.json"), key=_metadata_number, default=None)
        if newest_metadata is None:
            raise NotFound(
                "there is no Iceberg table", "name its metadata file, its folder, or CATALOG.NAMESPACE.TABLE"
            )
        name = str(newest_metadata.absolute())
    if name.endswith(".metadata.json"):
        return StaticTable.from_metadata(name)
    catalog, _, table = name.partition(".")
    if "/" in name or not table:
        raise Invalid(f"{name!r:.200} is no Iceberg table", "name its metadata file, or CATALOG.NAMESPACE.TABLE")
    try:
        catalog_client = load_catalog(catalog)
    except ValueError:
        raise Invalid(f"there is no Iceberg catalog {catalog!r:.80} here", "name it in .pyiceberg.yaml") from None
    return catalog_client.load_table(table)


def _metadata_number(metadata: Path) -> int:
    match = re.match(r"v?(\d+)", metadata.name)
    return int(match[1]) if match else -1


def _iceberg_parts(scan: Any) -> Iterator[TablePart]:
    from pyiceberg.expressions import AlwaysTrue
    from pyiceberg.io.pyarrow import ArrowScan, _read_all_delete_files

    class StreamingArrowScan(ArrowScan):
        """The reader of pyiceberg, but for its list of all batches of a file."""

        def rows(self, task: Any) -> Iterator[Any]:
            """The batches of one data file without what its delete files take away."""
            deletes = _read_all_delete_files(self._io, [task])
            yield from self._record_batches_from_scan_tasks_and_deletes([task], deletes)

    reader = StreamingArrowScan(scan.table_metadata, scan.io, scan.projection(), AlwaysTrue())
    for task in scan.plan_files():
        yield task.file.file_path.removeprefix(scan.table_metadata.location), partial(reader.rows, task)


def _write_parts(source_text: str, schema: Any, parts: Iterable[TablePart], output_folder: Path) -> LakeSnapshot:
    """Each part as a file whose name and bytes depend on the part alone."""
    output_folder.mkdir(parents=True, exist_ok=True)
    counts = {}
    for name, rows in sorted(parts, key=itemgetter(0)):
        path = output_folder / f"{hashlib.sha256(name.encode()).hexdigest()[:32]}.parquet"
        counts[path] = _write_part(path, schema, rows())
    # Of a table without rows one file says what its columns are.
    for path in [path for path, count in counts.items() if not count][not any(counts.values()) :]:
        del counts[path]
        path.unlink()
    if not counts:
        counts[output_folder / "empty.parquet"] = _write_part(output_folder / "empty.parquet", schema, ())
    return LakeSnapshot(source_text, len(counts), sum(counts.values()))


def _write_part(path: Path, schema: Any, batches: Iterable[Any]) -> int:
    import pyarrow as pa
    import pyarrow.parquet as pq

    pending_tables, num_rows = list[Any](), 0
    with pq.ParquetWriter(path, schema, compression="zstd", use_content_defined_chunking=True) as writer:
        for batch in batches:
            # Types differ between files in what they can hold, and not in what they mean.
            pending_tables.append(pa.table(batch).select(schema.names).cast(schema))
            num_rows += len(pending_tables[-1])
            if (
                sum(map(len, pending_tables)) >= _MAX_GROUP_ROWS
                or sum(table.nbytes for table in pending_tables) >= _MAX_GROUP_BYTES
            ):
                writer.write_table(pa.concat_tables(pending_tables))
                pending_tables.clear()
        if pending_tables:
            writer.write_table(pa.concat_tables(pending_tables))
    return num_rows


def _plain_schema(schema: Any) -> Any:
    """A schema without what a tool wrote beside its columns."""
    import pyarrow as pa

    return pa.schema(
        [pa.field(schema_field.name, schema_field.type, schema_field.nullable) for schema_field in pa.schema(schema)]
    )


def _split_pin(text: str, pattern: str) -> tuple[str, str]:
    name, at, pin = text.rpartition("@")
    return (name, pin) if at and re.fullmatch(pattern, pin) else (text, "")


def _to_falaj_error(error: Exception, missing_version: str = "") -> FalajError:
    """What went wrong, in our words: theirs may name hosts, accounts and keys."""
    text = str(error).lower()
    if "equality deletes" in text:
        return Invalid("the Iceberg table holds equality deletes, which pyiceberg cannot read", "compact it first")
    if "not found" in text or "no such file" in text:
        return NotFound(_FILE_GONE, _LATER_HINT)
    if missing_version and "version" in text:
        return NotFound(missing_version, "name one that its log still holds")
    if isinstance(error, OSError):
        return Unavailable("the table's storage does not answer", "check its address and who you are there")
    return Invalid("the table cannot be read", "it may be damaged, or of a newer format than ours")


def _import_package(name: str) -> Any:
    try:
        import_module("pyarrow")
        return import_module(name)
    except ModuleNotFoundError as error:
        raise Invalid(f"this needs the package {error.name}", "pip install 'falaj[tables]'") from None
