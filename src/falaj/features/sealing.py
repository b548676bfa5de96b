"""Sealed views: before rows are published, what they say of a person is sealed under that person's own key.

A sealed face keeps its rows and their order; instead of columns it has one, which holds at the first row of each key
the block of that key's rows and nothing at the others. Keys and times stay as they are: they are what finds a row.
Opening gives plain segments in a folder of the reader's own, without the rows of people whose keys are gone.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from falaj.asof.arrow import from_column, to_column
from falaj.asof.keys import key_bytes
from falaj.asof.rows import Part, RowSchema, parts_in, write_rows
from falaj.asof.sealed import bound_to, open_runs, seal_runs
from falaj.asof.segment import File, Segment, write_segment
from falaj.core.errand import Here
from falaj.core.errors import Corrupt, Invalid
from falaj.features.persons import Lock, ensure_keys, names_of, read_keys
from falaj.features.records import EntityDef

SEALED = "sealed"
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[list[Any]]).decode


def seal_folder(here: Here, folder: Path, schema: RowSchema, entity: EntityDef, lock: Lock) -> None:
    """Seal every segment that `write_rows` left in a folder."""
    for part in parts_in(folder, tuple(schema.faces)):
        name = _path(part, "").name
        main = Segment(part.fetch_by_face[""])
        ranks = main.ranks()
        people = names_of(lock, _subjects([from_column(one) for one in ranks.keys], entity))
        keys = ensure_keys(here, lock, people)
        for face, fields in schema.faces.items():
            path = _path(part, face)
            held = Segment(part.fetch_by_face[face])
            columns = [from_column(held.column(one.name)) for one in fields]
            spans = list(zip(ranks.run_starts[:-1].tolist(), ranks.run_starts[1:].tolist(), strict=True))
            runs = [_encode([one[start:stop].to_pylist() for one in columns]) for start, stop in spans]
            blocks = seal_runs(runs, people, keys, _bound(lock, face, name))
            sealed = {SEALED: _column(blocks, ranks.run_starts, main.num_rows)}
            scratch = path.with_suffix(".tmp")
            if face:
                write_segment(scratch, main.num_rows, sealed)
            else:
                write_segment(scratch, main.num_rows, sealed, schema.keys, ranks)
            scratch.replace(path)


def unseal(
    here: Here, parts: Mapping[str, Part], schema: RowSchema, entity: EntityDef, lock: Lock, folder: Path
) -> list[Part]:
    """The same rows (segments by name) as plain segments in a folder: for as long as somebody reads them."""
    faces = tuple(next(iter(parts.values())).fetch_by_face) if parts else ("",)
    kept = RowSchema(schema.keys, {face: schema.faces[face] for face in faces})
    keys = read_keys(here, lock)

    def tables() -> Iterator[Any]:
        for name, part in parts.items():
            yield _opened(part, name, kept, entity, lock, keys)

    write_rows(tables(), kept, folder)
    return parts_in(folder, faces)


def _opened(part: Part, name: str, schema: RowSchema, entity: EntityDef, lock: Lock, keys: Any) -> Any:
    import pyarrow as pa

    from falaj.asof.arrow import arrow_type

    ranks = Segment(part.fetch_by_face[""]).ranks()
    own = [from_column(one) for one in ranks.keys]
    people = names_of(lock, _subjects(own, entity))
    lengths = np.diff(ranks.run_starts)
    there = np.ones(len(people), bool)
    columns: dict[str, list[Any]] = {}
    for face, fields in schema.faces.items():
        held = from_column(Segment(part.fetch_by_face[face]).column(SEALED))
        blocks = held.take(pa.array(ranks.run_starts[:-1])).to_pylist()
        found = open_runs(blocks, people, keys, _bound(lock, face, name))
        there &= np.array([one is not None for one in found], bool)
        read = [_decode(one) if one is not None else None for one in found]
        for at, field in enumerate(fields):
            columns[field.name] = [value for run in read if run is not None for value in _values(run, at)]
    rows = np.flatnonzero(np.repeat(there, lengths))
    run = pa.array(np.repeat(np.arange(len(people)), lengths)[rows])
    taken = {one.name: column.take(run) for one, column in zip(schema.keys, own, strict=True)}
    times = {"event": ranks.event[rows], "created": ranks.created[rows], "seq": ranks.seq[rows]}
    values = {one.name: pa.array(columns[one.name], arrow_type(one.type)) for one in schema.columns}
    if any(len(one) != len(rows) for one in values.values()):
        raise Corrupt("what was sealed has another number of rows than its keys", "restore it from a backup")
    return pa.table({**taken, **times, **values})


def _values(run: list[list[Any]], at: int) -> list[Any]:
    if at >= len(run):
        raise Corrupt("what was sealed lacks a column", "ingest the view anew")
    return run[at]


def _subjects(keys: Sequence[Any], entity: EntityDef) -> list[bytes]:
    """Whom each run is about, as bytes."""
    wanted = [at for at, one in enumerate(entity.keys) if one.name == entity.subject]
    if not wanted:
        raise Invalid(f"{entity.name} does not say which of its keys names a person", "give the entity a subject")
    field, column = entity.keys[wanted[0]], keys[wanted[0]]
    return [key_bytes([value], [field.type]) or b"" for value in column.to_pylist()]


def _column(blocks: Sequence[bytes], starts: Any, num_rows: int) -> Any:
    """One value a row: the block at the first row of each run, nothing at the others."""
    import pyarrow as pa

    sizes = np.zeros(num_rows, np.int64)
    sizes[starts[:-1]] = [len(block) for block in blocks]
    offsets = np.concatenate(([0], np.cumsum(sizes)))
    data = b"".join(blocks)
    array = pa.Array.from_buffers(pa.large_binary(), num_rows, [None, pa.py_buffer(offsets), pa.py_buffer(data)])
    return to_column(array, "bytes")


def _bound(lock: Lock, face: str, name: str) -> bytes:
    return bound_to(str(lock.table), lock.zone, face, name)


def _path(part: Part, face: str) -> Path:
    fetch = part.fetch_by_face[face]
    assert isinstance(fetch, File)  # noqa: S101 - parts_in gives files
    return fetch.path
