"""The rows of a chapter, as whoever may read its faces gets to them."""

import json
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from falaj.asof.arrow import arrow_type
from falaj.asof.rows import Part, RowSchema, read_name
from falaj.asof.stats import ColumnStats, from_plain
from falaj.catalog.reading import open_version
from falaj.core.errand import Here
from falaj.core.errors import Corrupt, Denied, NotFound
from falaj.core.ref import Ref
from falaj.features.persons import lock_of
from falaj.features.sealing import unseal
from falaj.features.stream import STATS, Arrival, Chapter, schema_of
from falaj.snapshot.read import Entry, Snapshot

SEGMENT = ".seg"


@contextmanager
def open_chapter(here: Here, chapter: Chapter, faces: Sequence[str], about: Arrival) -> Iterator[list[Part]]:
    """Every segment of a chapter; of a sealed view, opened for as long as it is read."""
    parts = parts_of(here, chapter, faces, about.view)
    if not about.definition.sealed:
        yield list(parts.values())
        return
    with tempfile.TemporaryDirectory(prefix="falaj-open-") as scratch:
        schema = schema_of(about.definition, about.entity)
        yield unseal(here, parts, schema, about.entity, lock_of(here, about), Path(scratch))


def parts_of(here: Here, chapter: Chapter, faces: Sequence[str], view: Ref) -> dict[str, Part]:
    """Every segment of a chapter as it lies there, by name, with a way to the bytes of these faces."""
    found: dict[str, dict[str, Callable[[int, int], bytes]]] = {}
    for face in dict.fromkeys(("", *faces)):
        _, snapshot = open_version(here, chapter.faces[face], view)
        for entry in snapshot.entries():
            name = entry.path.decode("utf-8", "replace")
            if name.endswith(SEGMENT):
                found.setdefault(name, {})[face] = fetcher(snapshot, entry)
    if any("" not in fetch or len(fetch) != len({"", *faces}) for fetch in found.values()):
        raise Corrupt("the faces of a chapter do not belong together", "ingest the view anew: --full")
    return {name: Part(*read_name(name)[:2], fetch) for name, fetch in sorted(found.items())}


def stats_in(here: Here, chapter: Chapter, view: Ref) -> dict[str, ColumnStats]:
    """What is known of a chapter's columns, as far as one may read them."""
    found: dict[str, ColumnStats] = {}
    for ref in chapter.faces.values():
        with suppress(Denied, NotFound):
            _, snapshot = open_version(here, ref, view)
            data = b"".join(snapshot.read(snapshot.entry(STATS.encode())))
            found |= {name: from_plain(plain) for name, plain in json.loads(data).items()}
    return found


def table_of(columns: Mapping[str, list[Any]], schema: RowSchema, seq: int) -> Any:
    """Rows of one pushed block, with their numbers, in the order and the types in which rows are clustered."""
    import pyarrow as pa

    count = len(columns["event"])
    ranks = {name: pa.array(columns[name], pa.int64()) for name in ("event", "created")}
    numbers = pa.array(range(seq, seq + count), pa.int64())
    keys = {one.name: pa.array(columns[one.name], arrow_type(one.type)) for one in schema.keys}
    values = {one.name: pa.array(columns[one.name], arrow_type(one.type)) for one in schema.columns}
    return pa.table({**keys, **ranks, "seq": numbers, **values})


def fetcher(snapshot: Snapshot, entry: Entry) -> Callable[[int, int], bytes]:
    """Ranges of one file of a version."""

    def fetch(start: int, stop: int) -> bytes:
        return b"".join(snapshot.read(entry, min(start, entry.size), min(stop, entry.size)))

    return fetch
