"""Rows of a view on disk: clustered, cut into partitions by key, each face in a folder of its own; and read again.

The same rows with the same seqs make the same files, whatever batches they came in and whatever memory there was.
"""

import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from falaj.asof.arrow_columns import cast_to_kind, combine_chunks, to_arrow_type, to_segment_column
from falaj.asof.entity_keys import build_key_column, cast_key_column
from falaj.asof.moments import to_moments
from falaj.asof.records import MISSING_MOMENT, FeatureField
from falaj.asof.row_sources import (
    RANK_COLUMNS,
    ClusteredRows,
    PartitionSegment,
    SegmentRows,
    cluster_table,
    open_partition_segment,
    to_row_table,
)
from falaj.asof.row_spill import RowSpill
from falaj.asof.segment import FileFetcher, SegmentRanks, write_segment
from falaj.core.data import dataclass
from falaj.core.errors import Invalid

__all__ = [
    "RANK_COLUMNS",
    "ClusteredRows",
    "PartitionSegment",
    "RowSchema",
    "SegmentRows",
    "WrittenRows",
    "cluster_table",
    "format_part_name",
    "group_folder_name",
    "list_partition_segments",
    "normalize_rows",
    "open_partition_segment",
    "parse_part_name",
    "to_row_table",
    "write_rows",
]  # fmt: skip
MAX_PARTITIONS = 4096
_PARTITION_BYTES = 64 << 20
_GROUP_PATTERN = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
_FILE_NAME_PATTERN = re.compile(r"p(\d{4})-of-(\d{4})-([0-9a-f]{16})\.seg")


@dataclass(frozen=True, slots=True)
class RowSchema:
    """What rows are made of. Face "" has keys, ranks and ordinary columns; others hold columns read apart."""

    keys: tuple[FeatureField, ...]
    faces: Mapping[str, tuple[FeatureField, ...]]

    def __post_init__(self) -> None:
        names = [field.name for field in (*self.keys, *self.columns)]
        if not self.keys or "" not in self.faces:
            raise Invalid("rows need a key and an ordinary face", 'give keys, and the face ""')
        if len(set(names)) != len(names) or set(names) & set(RANK_COLUMNS):
            raise Invalid(
                "two columns of these rows have one name", f"{', '.join(RANK_COLUMNS)} are taken; rename the others"
            )
        if any(group and not _GROUP_PATTERN.fullmatch(group) for group in self.faces):
            raise Invalid("this face has no usable name", "use small letters, digits, dots and dashes")

    @property
    def columns(self) -> tuple[FeatureField, ...]:
        return tuple(field for group_fields in self.faces.values() for field in group_fields)

    def arrow(self) -> pa.Schema:
        """The form in which rows are sorted and spilled."""
        fields = [(field.name, to_arrow_type(field.type, large=True)) for field in self.keys]
        fields += [(name, pa.int64()) for name in RANK_COLUMNS]
        return pa.schema(fields + [(field.name, to_arrow_type(field.type, large=True)) for field in self.columns])


@dataclass(frozen=True, slots=True)
class WrittenRows:
    """What `write_rows` wrote."""

    num_rows: int
    num_keys: int
    first_event: int
    last_event: int
    """Both MISSING when there are no rows."""
    partitions: int
    files: Mapping[str, tuple[Path, ...]]
    """By face."""


def write_rows(
    batches: Iterable[pa.RecordBatch | pa.Table],
    schema: RowSchema,
    folder: Path,
    *,
    seq: int = 0,
    partitions: int = 0,
    created: int | None = None,
    memory_bytes: int = 256 << 20,
) -> WrittenRows:
    """Write rows (key columns, event, perhaps created and seq, features) as one segment a partition and face.

    Rows without a seq get the next ones from `seq`. Rows without created became known at `created`, or at their event.
    """
    if partitions & (partitions - 1) or not 0 <= partitions <= MAX_PARTITIONS:
        raise Invalid(f"rows cannot be cut in {partitions}", f"use a power of two up to {MAX_PARTITIONS}")
    types = tuple(field.type for field in schema.keys)
    spill = RowSpill(
        folder / ".spill", schema.arrow(), _make_bucket_function(types), max(partitions, 256), memory_bytes
    )
    num_rows = 0
    try:
        for batch in batches:
            table = normalize_rows(batch, schema, seq + num_rows, created)
            num_rows += len(table)
            spill.add(table)
        partition_count = partitions or _choose_partition_count(spill.total_bytes, min(_PARTITION_BYTES, memory_bytes))
        return _write_partitions(spill.parts(partition_count), schema, folder, partition_count, seq)
    finally:
        shutil.rmtree(folder / ".spill", ignore_errors=True)


def format_part_name(partition: int, partition_count: int, seq: int) -> str:
    return f"p{partition:04d}-of-{partition_count:04d}-{seq:016x}.seg"


def parse_part_name(name: str) -> tuple[int, int, int]:
    """Partition, of how many, and seq, from a file's name."""
    match = _FILE_NAME_PATTERN.fullmatch(name)
    if not match:
        raise Invalid("this file is not a segment by its name", "segments are called p0000-of-0001-<16 digits>.seg")
    return int(match[1]), int(match[2]), int(match[3], 16)


def group_folder_name(group: str) -> str:
    return group or "_"


def list_partition_segments(folder: Path, groups: Sequence[str] = ("",)) -> list[PartitionSegment]:
    """The segments that `write_rows` left in a folder, with these faces."""
    segments = []
    for path in sorted((folder / group_folder_name("")).glob("p*.seg")):
        partition, partition_count, _ = parse_part_name(path.name)
        segments.append(
            PartitionSegment(
                partition,
                partition_count,
                {group: FileFetcher(folder / group_folder_name(group) / path.name) for group in groups},
            )
        )
    return segments


def normalize_rows(batch: pa.RecordBatch | pa.Table, schema: RowSchema, seq: int, created: int | None) -> pa.Table:
    """Incoming rows in the form in which they are kept."""
    own_columns = set(batch.schema.names)
    needed_columns = {field.name for field in (*schema.keys, *schema.columns)} | {"event"}
    if needed_columns - own_columns:
        raise Invalid(
            f"these rows lack the column {min(needed_columns - own_columns)}", "give every column of the view"
        )
    event = to_moments(batch.column("event"))
    columns = [cast_key_column(combine_chunks(batch.column(field.name)), field.type) for field in schema.keys]
    if any(column.null_count for column in columns) or bool(np.any(event == MISSING_MOMENT)):
        raise Invalid("a row has no key or no event moment", "such rows are quarantined before they are written")
    known_at = to_moments(batch.column("created")) if "created" in own_columns else np.full(len(event), MISSING_MOMENT)
    known_at = np.where(known_at == MISSING_MOMENT, event if created is None else created, known_at)
    order = np.arange(seq, seq + len(event)) if "seq" not in own_columns else to_moments(batch.column("seq"))
    columns += [pa.array(rank_values, pa.int64()) for rank_values in (event, known_at, order)]
    columns += [cast_to_kind(combine_chunks(batch.column(field.name)), field.type) for field in schema.columns]
    return pa.table(columns, schema=schema.arrow())


def _make_bucket_function(types: Sequence[str]) -> Callable[[pa.Table, int], NDArray[np.uint16]]:
    return lambda table, count: build_key_column(table.columns[: len(types)], types).partitions(count)


def _choose_partition_count(total_bytes: int, max_partition_bytes: int) -> int:
    count = 1
    while count < 256 and total_bytes > count * max_partition_bytes:
        count *= 2
    return count


def _write_partitions(
    parts: Iterator[tuple[int, pa.Table]], schema: RowSchema, folder: Path, count: int, seq: int
) -> WrittenRows:
    files: dict[str, list[Path]] = {group: [] for group in schema.faces}
    for group in files:
        (folder / group_folder_name(group)).mkdir(parents=True, exist_ok=True)
    num_rows = num_keys = 0
    first_events, last_events = [], []
    for partition, table in parts:
        rows = cluster_table(table, [field.type for field in schema.keys])
        num_rows += len(rows.event)
        num_keys += len(rows.keys)
        first_events.append(int(rows.event.min()))
        last_events.append(int(rows.event.max()))
        for group, paths in files.items():
            path = folder / group_folder_name(group) / format_part_name(partition, count, seq)
            _write_group(path, rows, schema, group)
            paths.append(path)
    files_by_group = {group: tuple(paths) for group, paths in files.items()}
    return WrittenRows(
        num_rows,
        num_keys,
        min(first_events, default=MISSING_MOMENT),
        max(last_events, default=MISSING_MOMENT),
        count,
        files_by_group,
    )


def _write_group(path: Path, rows: ClusteredRows, schema: RowSchema, group: str) -> None:
    columns = {field.name: to_segment_column(rows.column(field.name), field.type) for field in schema.faces[group]}
    if group:
        write_segment(path, len(rows.event), columns)
        return
    keys = [to_segment_column(part, field.type) for part, field in zip(rows.key_parts, schema.keys, strict=True)]
    ranks = SegmentRanks(rows.run_starts, keys, rows.event, rows.created, rows.seq)
    write_segment(path, len(rows.event), columns, schema.keys, ranks)
