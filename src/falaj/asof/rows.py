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

from falaj.asof.arrow import arrow_type, to_column, typed, whole
from falaj.asof.keys import key_column, typed_key
from falaj.asof.moments import moments
from falaj.asof.records import MISSING, Field
from falaj.asof.segment import File, Ranks, write_segment
from falaj.asof.sources import RANKS, Clustered, OwnRows, Part, cluster, open_part, rows_of
from falaj.asof.spill import Spill
from falaj.core.data import dataclass
from falaj.core.errors import Invalid

__all__ = [
    "RANKS", "Clustered", "OwnRows", "Part", "RowSchema", "Written", "cluster", "face_folder", "normal", "open_part",
    "part_name", "parts_in", "read_name", "rows_of", "write_rows",
]  # fmt: skip
MAX_PARTITIONS = 4096
_PARTITION_BYTES = 64 << 20
_FACE = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
_NAME = re.compile(r"p(\d{4})-of-(\d{4})-([0-9a-f]{16})\.seg")


@dataclass(frozen=True, slots=True)
class RowSchema:
    """What rows are made of. Face "" has keys, ranks and ordinary columns; others hold columns read apart."""

    keys: tuple[Field, ...]
    faces: Mapping[str, tuple[Field, ...]]

    def __post_init__(self) -> None:
        names = [field.name for field in (*self.keys, *self.columns)]
        if not self.keys or "" not in self.faces:
            raise Invalid("rows need a key and an ordinary face", 'give keys, and the face ""')
        if len(set(names)) != len(names) or set(names) & set(RANKS):
            raise Invalid("two columns of these rows have one name", f"{', '.join(RANKS)} are taken; rename the others")
        if any(face and not _FACE.fullmatch(face) for face in self.faces):
            raise Invalid("this face has no usable name", "use small letters, digits, dots and dashes")

    @property
    def columns(self) -> tuple[Field, ...]:
        return tuple(field for fields in self.faces.values() for field in fields)

    def arrow(self) -> pa.Schema:
        """The form in which rows are sorted and spilled."""
        fields = [(field.name, arrow_type(field.type, large=True)) for field in self.keys]
        fields += [(name, pa.int64()) for name in RANKS]
        return pa.schema(fields + [(field.name, arrow_type(field.type, large=True)) for field in self.columns])


@dataclass(frozen=True, slots=True)
class Written:
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
) -> Written:
    """Write rows (key columns, event, perhaps created and seq, features) as one segment a partition and face.

    Rows without a seq get the next ones from `seq`. Rows without created became known at `created`, or at their event.
    """
    if partitions & (partitions - 1) or not 0 <= partitions <= MAX_PARTITIONS:
        raise Invalid(f"rows cannot be cut in {partitions}", f"use a power of two up to {MAX_PARTITIONS}")
    types = tuple(field.type for field in schema.keys)
    spill = Spill(folder / ".spill", schema.arrow(), _bucket(types), max(partitions, 256), memory_bytes)
    num_rows = 0
    try:
        for batch in batches:
            table = normal(batch, schema, seq + num_rows, created)
            num_rows += len(table)
            spill.add(table)
        count = partitions or _partitions_for(spill.total_bytes, min(_PARTITION_BYTES, memory_bytes))
        return _write_parts(spill.parts(count), schema, folder, count, seq)
    finally:
        shutil.rmtree(folder / ".spill", ignore_errors=True)


def part_name(partition: int, of: int, seq: int) -> str:
    return f"p{partition:04d}-of-{of:04d}-{seq:016x}.seg"


def read_name(name: str) -> tuple[int, int, int]:
    """Partition, of how many, and seq, from a file's name."""
    found = _NAME.fullmatch(name)
    if not found:
        raise Invalid("this file is not a segment by its name", "segments are called p0000-of-0001-<16 digits>.seg")
    return int(found[1]), int(found[2]), int(found[3], 16)


def face_folder(face: str) -> str:
    return face or "_"


def parts_in(folder: Path, faces: Sequence[str] = ("",)) -> list[Part]:
    """The segments that `write_rows` left in a folder, with these faces."""
    found = []
    for path in sorted((folder / face_folder("")).glob("p*.seg")):
        partition, of, _ = read_name(path.name)
        found.append(Part(partition, of, {face: File(folder / face_folder(face) / path.name) for face in faces}))
    return found


def normal(batch: pa.RecordBatch | pa.Table, schema: RowSchema, seq: int, created: int | None) -> pa.Table:
    """Incoming rows in the form in which they are kept."""
    have = set(batch.schema.names)
    wanted = {field.name for field in (*schema.keys, *schema.columns)} | {"event"}
    if wanted - have:
        raise Invalid(f"these rows lack the column {min(wanted - have)}", "give every column of the view")
    event = moments(batch.column("event"))
    columns = [typed_key(whole(batch.column(field.name)), field.type) for field in schema.keys]
    if any(column.null_count for column in columns) or bool(np.any(event == MISSING)):
        raise Invalid("a row has no key or no event moment", "such rows are quarantined before they are written")
    known = moments(batch.column("created")) if "created" in have else np.full(len(event), MISSING)
    known = np.where(known == MISSING, event if created is None else created, known)
    order = np.arange(seq, seq + len(event)) if "seq" not in have else moments(batch.column("seq"))
    columns += [pa.array(each, pa.int64()) for each in (event, known, order)]
    columns += [typed(whole(batch.column(field.name)), field.type) for field in schema.columns]
    return pa.table(columns, schema=schema.arrow())


def _bucket(types: Sequence[str]) -> Callable[[pa.Table, int], NDArray[np.uint16]]:
    return lambda table, count: key_column(table.columns[: len(types)], types).partitions(count)


def _partitions_for(total_bytes: int, most_bytes: int) -> int:
    count = 1
    while count < 256 and total_bytes > count * most_bytes:
        count *= 2
    return count


def _write_parts(
    parts: Iterator[tuple[int, pa.Table]], schema: RowSchema, folder: Path, count: int, seq: int
) -> Written:
    files: dict[str, list[Path]] = {face: [] for face in schema.faces}
    for face in files:
        (folder / face_folder(face)).mkdir(parents=True, exist_ok=True)
    num_rows = num_keys = 0
    firsts, lasts = [], []
    for partition, table in parts:
        rows = cluster(table, [field.type for field in schema.keys])
        num_rows += len(rows.event)
        num_keys += len(rows.keys)
        firsts.append(int(rows.event.min()))
        lasts.append(int(rows.event.max()))
        for face, paths in files.items():
            path = folder / face_folder(face) / part_name(partition, count, seq)
            _write_face(path, rows, schema, face)
            paths.append(path)
    done = {face: tuple(paths) for face, paths in files.items()}
    return Written(num_rows, num_keys, min(firsts, default=MISSING), max(lasts, default=MISSING), count, done)


def _write_face(path: Path, rows: Clustered, schema: RowSchema, face: str) -> None:
    columns = {field.name: to_column(rows.column(field.name), field.type) for field in schema.faces[face]}
    if face:
        write_segment(path, len(rows.event), columns)
        return
    keys = [to_column(part, field.type) for part, field in zip(rows.key_parts, schema.keys, strict=True)]
    ranks = Ranks(rows.run_starts, keys, rows.event, rows.created, rows.seq)
    write_segment(path, len(rows.event), columns, schema.keys, ranks)
