"""Versions without a person: whether rows and training sets hold somebody, and the same files less their rows."""

import io
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from falaj.asof.keys import key_bytes, partition_of, typed_key
from falaj.asof.moments import micros
from falaj.asof.records import Field
from falaj.asof.rows import Part, RowSchema, face_folder, open_part, read_name, rows_of, write_rows
from falaj.asof.segment import Segment
from falaj.asof.stats import ColumnStats, measured_table, merged_tables, to_plain
from falaj.catalog.reading import open_version
from falaj.core.data import dataclass
from falaj.core.errand import Here
from falaj.core.errors import Invalid
from falaj.core.ref import Ref
from falaj.features.chapters import fetcher, open_chapter
from falaj.features.persons import lock_of
from falaj.features.quality import personal_columns
from falaj.features.records import EntityDef
from falaj.features.sealing import seal_folder
from falaj.features.stream import STATS, Arrival, Chapter, schema_of
from falaj.snapshot.read import Entry, Snapshot

SEGMENT, PARQUET = b".seg", b".parquet"
_GROUP_BYTES, _KEPT_BYTES, _FEW = 256 << 20, 64 << 20, 64
Theirs = Mapping[int, tuple[Any, Any] | None]
"""The groups of rows of a file that somebody has rows in: the columns that name people, and which rows; None where that
was not kept."""


@dataclass(frozen=True, slots=True)
class Person:
    """Whom an erasure is about: a value of the key that names people."""

    entity: EntityDef
    field: Field
    value: Any

    @property
    def bytes(self) -> bytes:
        """The person's key in its one form; pseudonyms are made of it."""
        return key_bytes([self.value], [self.field.type]) or b""

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
            typed = typed_key(column, self.field.type)
        except Invalid:  # rows that broke a rule may have the key in another type: as text it is still the person
            return pc.equal(_text(column), str(self.value)).fill_null(False).to_numpy(zero_copy_only=False)
        value = pa.scalar(self.value, pa.int64() if self.field.type == "time" else typed.type).cast(typed.type)
        return pc.equal(typed, value).fill_null(False).to_numpy(zero_copy_only=False)


def person_of(entity: EntityDef, key: str) -> Person:
    """The person that a text names, as the entity's key reads it."""
    named = entity.subject or (entity.keys[0].name if len(entity.keys) == 1 else "")
    field = next((one for one in entity.keys if one.name == named), None)
    if field is None:
        raise Invalid(f"{entity.name} does not say which of its keys names a person", "give the entity a subject")
    if not key:
        raise Invalid("nobody is named", f"give a value of {field.name}")
    readers: Mapping[str, Any] = {"int64": int, "string": str, "bytes": bytes.fromhex, "time": micros}
    try:
        return Person(entity, field, readers[field.type](key))
    except (KeyError, ValueError):
        raise Invalid(f"{field.name} is {field.type}, and this is not", "give it as the data has it") from None


def files_of(snapshot: Snapshot, suffix: bytes) -> list[Entry]:
    """The files of a version that end so."""
    return [entry for entry in snapshot.entries() if entry.kind == "file" and entry.path.endswith(suffix)]


def rows_hold(here: Here, ref: Ref, person: Person) -> bool:
    """Whether rows of a view (the face that has the keys) are about this person; reads keys and nothing else."""
    from falaj.asof.arrow import from_column

    _, snapshot = open_version(here, ref)
    for entry in files_of(snapshot, SEGMENT):
        partition, of, _ = read_name(_name(entry))
        if len(person.entity.keys) == 1 and partition_of(person.bytes, of) != partition:
            continue
        keys = Segment(fetcher(snapshot, entry)).ranks(created=False, seq=False).keys
        if person.among(from_column(keys[person.at])).any():
            return True
    return False


def rows_without(here: Here, about: Arrival, chapter: Chapter, person: Person, folder: Path) -> int:
    """Write the segments of a chapter less a person's rows, each face in a folder of its own; gives the rows left.

    Statistics are made anew: the lowest, the highest or the most frequent value may have been theirs.
    """
    schema, personal = schema_of(about.definition, about.entity), personal_columns(about.definition)
    _, snapshot = open_version(here, chapter.faces[""])
    _, of, seq = max(read_name(_name(entry)) for entry in files_of(snapshot, SEGMENT))
    told: dict[str, ColumnStats] = {}
    with open_chapter(here, chapter, tuple(schema.faces), about) as parts:
        others = _measured(_others(parts, schema, person), schema, personal, told)
        left = write_rows(others, schema, folder, seq=seq, partitions=of).num_rows
    if about.definition.sealed and left:
        seal_folder(here, folder, schema, about.entity, lock_of(here, about))
    for face, fields in schema.faces.items():
        stats = {one.name: to_plain(told[one.name]) for one in fields if one.name in told}
        (folder / face_folder(face) / STATS).write_text(json.dumps(stats))
    return left


def set_holding(snapshot: Snapshot, columns: Sequence[str], person: Person, known: dict[str, Theirs]) -> list[Entry]:
    """The files of a table in Parquet that have a row about this person; `known` remembers files by digest.

    Of a file only its footer is read, and these columns of the groups of rows whose bounds let the person in.
    """
    import pyarrow.parquet as pq

    files = files_of(snapshot, PARQUET)
    for entry in files:
        if entry.digest not in known:
            kept = (held[0].nbytes for one in known.values() for held in one.values() if held)
            room = _KEPT_BYTES - sum(kept)
            with pq.ParquetFile(_Ranges(fetcher(snapshot, entry), entry.size)) as file:
                known[entry.digest] = in_file(file, columns, person, room)
    return [entry for entry in files if known[entry.digest]]


def set_without(
    snapshot: Snapshot, columns: Sequence[str], person: Person, known: Mapping[str, Theirs], folder: Path
) -> tuple[dict[bytes, Path], list[Any]]:
    """Write the files of a table that hold a person, as is `known`, into a folder, less their rows. Gives the files by
    path, and the rows that are gone."""
    import pyarrow.parquet as pq

    changed: dict[bytes, Path] = {}
    gone: list[Any] = []
    for entry in files_of(snapshot, PARQUET):
        if known[entry.digest]:
            changed[entry.path] = folder / f"{len(changed)}.parquet"
            with pq.ParquetFile(_Ranges(fetcher(snapshot, entry), entry.size)) as file:
                gone += _rewrite(file, changed[entry.path], columns, person, known[entry.digest])
    return changed, gone


def _others(parts: Sequence[Part], schema: RowSchema, person: Person) -> Iterator[Any]:
    import numpy as np
    import pyarrow as pa

    types = [field.type for field in schema.keys]
    for part in parts:
        table = rows_of(open_part(part, types), schema.keys, [field.name for field in schema.columns])
        left = table.filter(pa.array(np.logical_not(person.among(table.column(person.field.name)))))
        if left.num_rows:
            yield left


def _measured(
    tables: Iterable[Any], schema: RowSchema, personal: frozenset[str], told: dict[str, ColumnStats]
) -> Iterator[Any]:
    for table in tables:
        told |= merged_tables(told, measured_table(table.select([one.name for one in schema.columns]), personal))
        yield table


def _rewrite(file: Any, path: Path, columns: Sequence[str], person: Person, theirs: Theirs) -> list[Any]:
    """Write a file less a person's rows, which it gives; in the same groups of rows, unless one is too large."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

    gone: list[Any] = []
    there = [name for name in columns if name in file.schema_arrow.names]
    with pq.ParquetWriter(path, file.schema_arrow) as out:
        for number in range(file.num_row_groups):
            keys, known = theirs.get(number) or (None, ())
            for rows in _pieces(file, number, keys=keys):
                look = number in theirs and keys is None
                at = np.flatnonzero(_about(rows, there, person)) if look else known
                gone += [rows.take(pa.array(at))] if len(at) else []
                left = _less(rows, at) if len(at) else rows
                if left.num_rows:
                    out.write_table(left, row_group_size=left.num_rows)
    return gone


def _pieces(file: Any, number: int, columns: Sequence[str] | None = None, keys: Any = None) -> Iterator[Any]:
    """A group of rows as a table, or as several where it is too large for memory; `keys`: what was read of it."""
    import pyarrow as pa

    names = file.schema_arrow.names
    if keys is not None and len(set(names)) == len(names):
        others = [name for name in names if name not in keys.schema.names]
        rest = file.read_row_group(number, others) if others else keys
        found = {name: (keys if name in keys.schema.names else rest).column(name) for name in names}
        yield pa.table(found, schema=file.schema_arrow)
    elif file.metadata.row_group(number).total_byte_size <= _GROUP_BYTES:
        yield file.read_row_group(number, columns)
    else:
        batches = file.iter_batches(row_groups=[number], columns=columns)
        yield from (pa.Table.from_batches([batch]) for batch in batches)


def _less(rows: Any, gone: Any) -> Any:
    """Rows without some: where those are few nothing is copied."""
    import numpy as np
    import pyarrow as pa

    if len(gone) > _FEW:
        return rows.take(pa.array(np.setdiff1d(np.arange(rows.num_rows), gone)))
    starts, ends = [0, *(gone + 1).tolist()], [*gone.tolist(), rows.num_rows]
    return pa.concat_tables([rows.slice(start, end - start) for start, end in zip(starts, ends, strict=True)])


def in_file(file: Any, columns: Sequence[str], person: Person, room: int = 0) -> Theirs:
    """The groups of a file with rows about a person; what was read of them is kept as far as there is room."""
    import numpy as np

    there = [name for name in columns if name in file.schema_arrow.names]
    found: dict[int, tuple[Any, Any] | None] = {}
    for number in range(file.num_row_groups) if there else ():
        group = file.metadata.row_group(number)
        for rows in _pieces(file, number, there) if _lets_in(group, there, person) else ():
            at = np.flatnonzero(_about(rows, there, person))
            if len(at):
                found[number] = (rows, at) if rows.num_rows == group.num_rows and rows.nbytes <= room else None
                room -= rows.nbytes if found[number] else 0
                break
    return found


def _lets_in(group: Any, columns: Sequence[str], person: Person) -> bool:
    """Whether the bounds of a group of rows, where its file tells them, leave room for a person."""
    told = {column.path_in_schema: column for column in map(group.column, range(group.num_columns))}
    for name in columns:
        bounds = told[name].statistics if name in told else None
        if bounds is None or not bounds.has_min_max:
            return True
        value, low, high = person.value, bounds.min, bounds.max
        if isinstance(low, int) and isinstance(value, str) and value.isascii() and value.isdecimal():
            value = int(value)
        if type(value) is not type(low) or type(low) not in (str, int) or low <= value <= high:
            return True
    return False


def _about(batch: Any, columns: Sequence[str], person: Person) -> Any:
    import numpy as np

    masks = [person.among(batch.column(name)) for name in columns]
    return np.logical_or.reduce(masks) if masks else np.zeros(batch.num_rows, bool)


class _Ranges(io.RawIOBase):
    """A file of a version, of which nothing is fetched but what is read, and nothing lies on this machine."""

    def __init__(self, fetch: Callable[[int, int], bytes], size: int) -> None:
        self._fetch, self._size, self._at = fetch, size, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = 0) -> int:
        self._at = offset + (0, self._at, self._size)[whence]
        return self._at

    def readinto(self, buffer: Any) -> int:
        data = self._fetch(self._at, min(self._size, self._at + len(buffer)))
        buffer[: len(data)] = data
        self._at += len(data)
        return len(data)


def _text(column: Any) -> Any:
    import pyarrow as pa

    try:
        return column.cast(pa.large_string())
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        raise Invalid(f"a column of {column.type} cannot be compared with a key", "look at it by hand") from None


def _name(entry: Entry) -> str:
    return entry.path.rpartition(b"/")[2].decode()
