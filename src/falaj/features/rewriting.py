"""Versions without a person: whether rows and training sets hold somebody, and the same files less their rows."""

import io
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from falaj.asof.keys import key_bytes, partition_of, typed_key
from falaj.asof.moments import micros
from falaj.asof.records import Field
from falaj.asof.rows import Part, RowSchema, face_folder, open_part, read_name, rows_of, write_rows
from falaj.asof.segment import Segment
from falaj.asof.stats import ColumnStats, measured_table, merged_tables, to_plain
from falaj.catalog.reading import open_version
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


def set_holds(snapshot: Snapshot, columns: Sequence[str], person: Person, known: dict[str, bool]) -> bool:
    """Whether a table in Parquet files has a row about this person; `known` remembers files by digest.

    Of a file only its footer is read, and these columns of the groups of rows whose bounds let the person in.
    """
    import pyarrow.parquet as pq

    files = files_of(snapshot, PARQUET)
    for entry in files:
        if entry.digest not in known:
            with pq.ParquetFile(_Ranges(fetcher(snapshot, entry), entry.size)) as file:
                known[entry.digest] = in_file(file, columns, person)
    return any(known[entry.digest] for entry in files)


def set_without(
    here: Here, ref: Ref, where: tuple[Sequence[str], Mapping[str, bool]], person: Person, folder: Path
) -> list[Any]:
    """Write the files of a version, those in Parquet less the person's rows; what does not hold them stays as it is.
    `where` names the columns, and files by digest of which it is known. Gives the rows that are gone, in batches."""
    from falaj.snapshot.checkout import checkout

    columns, known = where
    _, snapshot = open_version(here, ref)
    checkout(snapshot, folder)
    gone: list[Any] = []
    for entry in files_of(snapshot, PARQUET):
        if known.get(entry.digest, True):
            gone += _rewrite(folder / os.fsdecode(entry.path), columns, person)
    return gone


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


def _rewrite(path: Path, columns: Sequence[str], person: Person) -> list[Any]:
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

    part = path.with_name(f"{path.name}.part")
    gone: list[Any] = []
    with pq.ParquetFile(path) as file, pq.ParquetWriter(part, file.schema_arrow) as out:
        there = [name for name in columns if name in file.schema_arrow.names]
        for batch in file.iter_batches():
            theirs = _about(batch, there, person)
            gone += [batch.filter(pa.array(theirs))] if theirs.any() else []
            out.write_batch(batch.filter(pa.array(np.logical_not(theirs))) if theirs.any() else batch)
    if gone:
        part.replace(path)
    else:
        part.unlink()
    return gone


def in_file(file: Any, columns: Sequence[str], person: Person) -> bool:
    """Whether a row of a file is about a person."""
    there = [name for name in columns if name in file.schema_arrow.names]
    groups = [
        number for number in range(file.num_row_groups) if _lets_in(file.metadata.row_group(number), there, person)
    ]
    batches = file.iter_batches(row_groups=groups, columns=there) if there and groups else ()
    return any(_about(batch, there, person).any() for batch in batches)


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
