"""The rows of a chapter, as whoever may read its faces gets to them."""

import json
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from falaj.asof.arrow_columns import to_arrow_type
from falaj.asof.column_stats import ColumnStats, stats_from_plain
from falaj.asof.row_files import PartitionSegment, RowSchema, parse_part_name
from falaj.catalog.version_reader import open_version
from falaj.core.client_command import Client
from falaj.core.errors import CorruptData, Denied, NotFound
from falaj.core.ref import Ref
from falaj.features.person_keys import make_key_access
from falaj.features.row_stream import STATS_FILE, RowSegment, ViewDetails, make_row_schema
from falaj.features.view_sealing import unseal_segments
from falaj.snapshot.tree_reader import TreeEntry, TreeSnapshot

SEGMENT = ".seg"


@contextmanager
def open_segment(
    client: Client, segment: RowSegment, groups: Sequence[str], details: ViewDetails
) -> Iterator[list[PartitionSegment]]:
    """Every segment of a chapter; of a sealed view, opened for as long as it is read."""
    segments = list_segment_parts(client, segment, groups, details.view)
    if not details.definition.sealed:
        yield list(segments.values())
        return
    with tempfile.TemporaryDirectory(prefix="falaj-open-") as scratch:
        schema = make_row_schema(details.definition, details.entity)
        yield unseal_segments(client, segments, schema, details.entity, make_key_access(client, details), Path(scratch))


def list_segment_parts(
    client: Client, segment: RowSegment, groups: Sequence[str], view: Ref
) -> dict[str, PartitionSegment]:
    """Every segment of a chapter as it lies there, by name, with a way to the bytes of these faces."""
    fetch_by_name: dict[str, dict[str, Callable[[int, int], bytes]]] = {}
    for group in dict.fromkeys(("", *groups)):
        _, snapshot = open_version(client, segment.faces[group], view)
        for entry in snapshot.entries():
            name = entry.path.decode("utf-8", "replace")
            if name.endswith(SEGMENT):
                fetch_by_name.setdefault(name, {})[group] = make_fetcher(snapshot, entry)
    if any("" not in fetch or len(fetch) != len({"", *groups}) for fetch in fetch_by_name.values()):
        raise CorruptData("the faces of a chapter do not belong together", "ingest the view anew: --full")
    return {name: PartitionSegment(*parse_part_name(name)[:2], fetch) for name, fetch in sorted(fetch_by_name.items())}


def read_segment_stats(client: Client, segment: RowSegment, view: Ref) -> dict[str, ColumnStats]:
    """What is known of a chapter's columns, as far as one may read them."""
    stats_by_column: dict[str, ColumnStats] = {}
    for ref in segment.faces.values():
        with suppress(Denied, NotFound):
            _, snapshot = open_version(client, ref, view)
            data = b"".join(snapshot.read(snapshot.entry(STATS_FILE.encode())))
            stats_by_column |= {name: stats_from_plain(plain) for name, plain in json.loads(data).items()}
    return stats_by_column


def build_row_table(columns: Mapping[str, list[Any]], schema: RowSchema, seq: int) -> Any:
    """Rows of one pushed block, with their numbers, in the order and the types in which rows are clustered."""
    import pyarrow as pa

    count = len(columns["event"])
    ranks = {name: pa.array(columns[name], pa.int64()) for name in ("event", "created")}
    numbers = pa.array(range(seq, seq + count), pa.int64())
    keys = {field.name: pa.array(columns[field.name], to_arrow_type(field.type)) for field in schema.keys}
    values = {field.name: pa.array(columns[field.name], to_arrow_type(field.type)) for field in schema.columns}
    return pa.table({**keys, **ranks, "seq": numbers, **values})


def make_fetcher(snapshot: TreeSnapshot, entry: TreeEntry) -> Callable[[int, int], bytes]:
    """Ranges of one file of a version."""

    def fetch_range(start: int, stop: int) -> bytes:
        return b"".join(snapshot.read(entry, min(start, entry.size), min(stop, entry.size)))

    return fetch_range
