"""Versions without a person: whether rows and training sets hold somebody, and the same files less their rows."""

import io
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from falaj.asof.column_stats import ColumnStats, measure_table, merge_table_stats, stats_to_plain
from falaj.asof.entity_keys import cast_key_column, compute_partition, encode_key
from falaj.asof.moments import to_micros
from falaj.asof.records import FeatureField
from falaj.asof.row_files import (
    PartitionSegment,
    RowSchema,
    group_folder_name,
    open_partition_segment,
    parse_part_name,
    to_row_table,
    write_rows,
)
from falaj.asof.segment import Segment
from falaj.catalog.version_reader import open_version
from falaj.core.client_command import Client
from falaj.core.data import dataclass
from falaj.core.errors import Invalid
from falaj.core.ref import Ref
from falaj.features.person_keys import make_key_access
from falaj.features.quality import list_personal_columns
from falaj.features.records import EntityDef
from falaj.features.row_stream import STATS_FILE, RowSegment, ViewDetails, make_row_schema
from falaj.features.segment_access import make_fetcher, open_segment
from falaj.features.view_sealing import seal_folder
from falaj.snapshot.tree_reader import TreeEntry, TreeSnapshot

SEGMENT_SUFFIX, PARQUET_SUFFIX = b".seg", b".parquet"
_MAX_GROUP_BYTES, _MAX_REMEMBERED_BYTES, _MAX_SLICED_ROWS = 256 << 20, 64 << 20, 64
PersonRows = Mapping[int, tuple[Any, Any] | None]
"""The groups of rows of a file that somebody has rows in: the columns that name people, and which rows; None where that
was not kept."""


@dataclass(frozen=True, slots=True)
class Person:
    """Whom an erasure is about: a value of the key that names people."""

    entity: EntityDef
    field: FeatureField
    value: Any

    @property
    def bytes(self) -> bytes:
        """The person's key in its one form; pseudonyms are made of it."""
        return encode_key([self.value], [self.field.type]) or b""

    @property
    def at(self) -> int:
        """Which part of the entity's key it is."""
        return self.entity.keys.index(self.field)

    def among(self, column: Any) -> Any:
        """Which values of a column are this person, as a numpy mask; Invalid when the column cannot hold them."""
        import pyarrow as pa
        import pyarrow.compute as pc

        column = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
        if self.field.type == "string" and pa.types.is_string(column.type):  # as most are: nothing needs a cast
            return pc.equal(column, self.value).fill_null(False).to_numpy(zero_copy_only=False)
        try:
            cast_column = cast_key_column(column, self.field.type)
        except Invalid:  # rows that broke a rule may have the key in another type: as text it is still the person
            return pc.equal(_to_text(column), str(self.value)).fill_null(False).to_numpy(zero_copy_only=False)
        value = pa.scalar(self.value, pa.int64() if self.field.type == "time" else cast_column.type).cast(
            cast_column.type
        )
        return pc.equal(cast_column, value).fill_null(False).to_numpy(zero_copy_only=False)


def parse_person(entity: EntityDef, key: str) -> Person:
    """The person that a text names, as the entity's key reads it."""
    key_name = entity.subject or (entity.keys[0].name if len(entity.keys) == 1 else "")
    field = next((key_field for key_field in entity.keys if key_field.name == key_name), None)
    if field is None:
        raise Invalid(f"{entity.name} does not say which of its keys names a person", "give the entity a subject")
    if not key:
        raise Invalid("nobody is named", f"give a value of {field.name}")
    parsers: Mapping[str, Any] = {"int64": int, "string": str, "bytes": bytes.fromhex, "time": to_micros}
    try:
        return Person(entity, field, parsers[field.type](key))
    except (KeyError, ValueError):
        raise Invalid(f"{field.name} is {field.type}, and this is not", "give it as the data has it") from None


def list_files(snapshot: TreeSnapshot, suffix: bytes) -> list[TreeEntry]:
    """The files of a version that end so."""
    return [entry for entry in snapshot.entries() if entry.kind == "file" and entry.path.endswith(suffix)]


def holds_person(client: Client, ref: Ref, person: Person) -> bool:
    """Whether rows of a view (the face that has the keys) are about this person; reads keys and nothing else."""
    from falaj.asof.arrow_columns import from_segment_column

    _, snapshot = open_version(client, ref)
    for entry in list_files(snapshot, SEGMENT_SUFFIX):
        partition, partition_count, _ = parse_part_name(_get_file_name(entry))
        if len(person.entity.keys) == 1 and compute_partition(person.bytes, partition_count) != partition:
            continue
        keys = Segment(make_fetcher(snapshot, entry)).ranks(created=False, seq=False).keys
        if person.among(from_segment_column(keys[person.at])).any():
            return True
    return False


def write_rows_without(client: Client, details: ViewDetails, segment: RowSegment, person: Person, folder: Path) -> int:
    """Write the segments of a chapter less a person's rows, each face in a folder of its own; gives the rows left.

    Statistics are made anew: the lowest, the highest or the most frequent value may have been theirs.
    """
    schema, personal = make_row_schema(details.definition, details.entity), list_personal_columns(details.definition)
    _, snapshot = open_version(client, segment.faces[""])
    _, partition_count, seq = max(
        parse_part_name(_get_file_name(entry)) for entry in list_files(snapshot, SEGMENT_SUFFIX)
    )
    stats_by_column: dict[str, ColumnStats] = {}
    with open_segment(client, segment, tuple(schema.faces), details) as segments:
        other_rows = _measure_tables(_iterate_other_rows(segments, schema, person), schema, personal, stats_by_column)
        remaining_rows = write_rows(other_rows, schema, folder, seq=seq, partitions=partition_count).num_rows
    if details.definition.sealed and remaining_rows:
        seal_folder(client, folder, schema, details.entity, make_key_access(client, details))
    for group, fields in schema.faces.items():
        stats = {
            field.name: stats_to_plain(stats_by_column[field.name]) for field in fields if field.name in stats_by_column
        }
        (folder / group_folder_name(group) / STATS_FILE).write_text(json.dumps(stats))
    return remaining_rows


def find_files_holding(
    snapshot: TreeSnapshot, columns: Sequence[str], person: Person, known_files: dict[str, PersonRows]
) -> list[TreeEntry]:
    """The files of a table in Parquet that have a row about this person; `known_files` remembers files by digest.

    Of a file only its footer is read, and these columns of the groups of rows whose bounds let the person in.
    """
    import pyarrow.parquet as pq

    files = list_files(snapshot, PARQUET_SUFFIX)
    for entry in files:
        if entry.digest not in known_files:
            remembered_sizes = (
                group_rows[0].nbytes
                for file_rows in known_files.values()
                for group_rows in file_rows.values()
                if group_rows
            )
            free_bytes = _MAX_REMEMBERED_BYTES - sum(remembered_sizes)
            with pq.ParquetFile(_RemoteFile(make_fetcher(snapshot, entry), entry.size)) as file:
                known_files[entry.digest] = find_person_rows(file, columns, person, free_bytes)
    return [entry for entry in files if known_files[entry.digest]]


def write_files_without(
    snapshot: TreeSnapshot, columns: Sequence[str], person: Person, known_files: Mapping[str, PersonRows], folder: Path
) -> tuple[dict[bytes, Path], list[Any]]:
    """Write the files of a table that hold a person, as is `known_files`, into a folder, less their rows. Gives the
    files by path, and the rows that are gone."""
    import pyarrow.parquet as pq

    changed: dict[bytes, Path] = {}
    removed_rows: list[Any] = []
    for entry in list_files(snapshot, PARQUET_SUFFIX):
        if known_files[entry.digest]:
            changed[entry.path] = folder / f"{len(changed)}.parquet"
            with pq.ParquetFile(_RemoteFile(make_fetcher(snapshot, entry), entry.size)) as file:
                removed_rows += _rewrite_file(file, changed[entry.path], columns, person, known_files[entry.digest])
    return changed, removed_rows


def _iterate_other_rows(segments: Sequence[PartitionSegment], schema: RowSchema, person: Person) -> Iterator[Any]:
    import numpy as np
    import pyarrow as pa

    types = [field.type for field in schema.keys]
    for segment in segments:
        table = to_row_table(
            open_partition_segment(segment, types), schema.keys, [field.name for field in schema.columns]
        )
        remaining = table.filter(pa.array(np.logical_not(person.among(table.column(person.field.name)))))
        if remaining.num_rows:
            yield remaining


def _measure_tables(
    tables: Iterable[Any], schema: RowSchema, personal: frozenset[str], stats_by_column: dict[str, ColumnStats]
) -> Iterator[Any]:
    for table in tables:
        stats_by_column |= merge_table_stats(
            stats_by_column, measure_table(table.select([field.name for field in schema.columns]), personal)
        )
        yield table


def _rewrite_file(file: Any, path: Path, columns: Sequence[str], person: Person, person_rows: PersonRows) -> list[Any]:
    """Write a file less a person's rows, which it gives; in the same groups of rows, unless one is too large."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

    removed_rows: list[Any] = []
    present_columns = [name for name in columns if name in file.schema_arrow.names]
    with pq.ParquetWriter(path, file.schema_arrow) as writer:
        for number in range(file.num_row_groups):
            keys, known_positions = person_rows.get(number) or (None, ())
            for rows in _iterate_group_tables(file, number, keys=keys):
                must_search = number in person_rows and keys is None
                positions = (
                    np.flatnonzero(_match_any_column(rows, present_columns, person)) if must_search else known_positions
                )
                removed_rows += [rows.take(pa.array(positions))] if len(positions) else []
                remaining = _remove_positions(rows, positions) if len(positions) else rows
                if remaining.num_rows:
                    writer.write_table(remaining, row_group_size=remaining.num_rows)
    return removed_rows


def _iterate_group_tables(
    file: Any, number: int, columns: Sequence[str] | None = None, keys: Any = None
) -> Iterator[Any]:
    """A group of rows as a table, or as several where it is too large for memory; `keys`: what was read of it."""
    import pyarrow as pa

    names = file.schema_arrow.names
    if keys is not None and len(set(names)) == len(names):
        other_names = [name for name in names if name not in keys.schema.names]
        other_columns = file.read_row_group(number, other_names) if other_names else keys
        columns_by_name = {name: (keys if name in keys.schema.names else other_columns).column(name) for name in names}
        yield pa.table(columns_by_name, schema=file.schema_arrow)
    elif file.metadata.row_group(number).total_byte_size <= _MAX_GROUP_BYTES:
        yield file.read_row_group(number, columns)
    else:
        batches = file.iter_batches(row_groups=[number], columns=columns)
        yield from (pa.Table.from_batches([batch]) for batch in batches)


def _remove_positions(rows: Any, positions: Any) -> Any:
    """Rows without some: where those are few nothing is copied."""
    import numpy as np
    import pyarrow as pa

    if len(positions) > _MAX_SLICED_ROWS:
        return rows.take(pa.array(np.setdiff1d(np.arange(rows.num_rows), positions)))
    starts, ends = [0, *(positions + 1).tolist()], [*positions.tolist(), rows.num_rows]
    return pa.concat_tables([rows.slice(start, end - start) for start, end in zip(starts, ends, strict=True)])


def find_person_rows(file: Any, columns: Sequence[str], person: Person, free_bytes: int = 0) -> PersonRows:
    """The groups of a file with rows about a person; what was read of them is kept as far as there is room."""
    import numpy as np

    present_columns = [name for name in columns if name in file.schema_arrow.names]
    rows_by_group: dict[int, tuple[Any, Any] | None] = {}
    for number in range(file.num_row_groups) if present_columns else ():
        group = file.metadata.row_group(number)
        for rows in (
            _iterate_group_tables(file, number, present_columns)
            if _may_hold_person(group, present_columns, person)
            else ()
        ):
            positions = np.flatnonzero(_match_any_column(rows, present_columns, person))
            if len(positions):
                rows_by_group[number] = (
                    (rows, positions) if rows.num_rows == group.num_rows and rows.nbytes <= free_bytes else None
                )
                free_bytes -= rows.nbytes if rows_by_group[number] else 0
                break
    return rows_by_group


def _may_hold_person(group: Any, columns: Sequence[str], person: Person) -> bool:
    """Whether the bounds of a group of rows, where its file tells them, leave room for a person."""
    column_by_name = {column.path_in_schema: column for column in map(group.column, range(group.num_columns))}
    for name in columns:
        statistics = column_by_name[name].statistics if name in column_by_name else None
        if statistics is None or not statistics.has_min_max:
            return True
        value, low, high = person.value, statistics.min, statistics.max
        if isinstance(low, int) and isinstance(value, str) and value.isascii() and value.isdecimal():
            value = int(value)
        if type(value) is not type(low) or type(low) not in (str, int) or low <= value <= high:
            return True
    return False


def _match_any_column(batch: Any, columns: Sequence[str], person: Person) -> Any:
    import numpy as np

    masks = [person.among(batch.column(name)) for name in columns]
    return np.logical_or.reduce(masks) if masks else np.zeros(batch.num_rows, bool)


class _RemoteFile(io.RawIOBase):
    """A file of a version, of which nothing is fetched but what is read, and nothing lies on this machine."""

    def __init__(self, fetch: Callable[[int, int], bytes], size: int) -> None:
        self._fetch, self._size, self._position = fetch, size, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = 0) -> int:
        self._position = offset + (0, self._position, self._size)[whence]
        return self._position

    def readinto(self, buffer: Any) -> int:
        data = self._fetch(self._position, min(self._size, self._position + len(buffer)))
        buffer[: len(data)] = data
        self._position += len(data)
        return len(data)


def _to_text(column: Any) -> Any:
    import pyarrow as pa

    try:
        return column.cast(pa.large_string())
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        raise Invalid(f"a column of {column.type} cannot be compared with a key", "look at it by hand") from None


def _get_file_name(entry: TreeEntry) -> str:
    return entry.path.rpartition(b"/")[2].decode()
