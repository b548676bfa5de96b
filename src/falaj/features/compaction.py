"""Compacting: many small chapters become one, row for row, so that reading stays as quick as after the first.

Which arrival each row came with is kept. What was published before stays in the catalogue, where lineage names it.
"""

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from falaj.asof.row_files import open_partition_segment, to_row_table
from falaj.core.client_command import Client
from falaj.core.errors import StaleRevision
from falaj.core.ref import Ref
from falaj.features.row_publishing import make_batch, publish_rows
from falaj.features.row_stream import MAX_SEGMENTS, RowSegment, ViewDetails, group_adjacent_segments, make_row_schema
from falaj.features.segment_access import open_segment


def compact_view(client: Client, view: Ref, max_segments: int = MAX_SEGMENTS) -> int:
    """Merge chapters until there are no more than `max_segments` that could be one; gives how many are left."""
    details: ViewDetails = client.features.about(view)
    for segments in group_adjacent_segments(details.stream):
        if len(segments) > max_segments:
            # Others may have settled or erased meanwhile: what we published is nobody's then, and the next one tries.
            with suppress(StaleRevision):
                _merge_segments(client, details, segments)
    remaining: ViewDetails = client.features.about(view)
    return len(remaining.stream.chapters)


def _merge_segments(client: Client, details: ViewDetails, segments: tuple[RowSegment, ...]) -> None:
    merged = publish_rows(
        client, make_batch(client, details, segments[0].how), _iterate_rows(client, details, segments), 0
    )
    client.features.merge(details.view, tuple(segment.generation for segment in segments), merged, dict(merged.faces))


def _iterate_rows(client: Client, details: ViewDetails, segments: tuple[RowSegment, ...]) -> Iterator[Any]:
    schema = make_row_schema(details.definition, details.entity)
    types, names = [field.type for field in schema.keys], [field.name for field in schema.columns]
    for segment in segments:
        with open_segment(client, segment, tuple(schema.faces), details) as partition_segments:
            for partition_segment in partition_segments:
                yield to_row_table(open_partition_segment(partition_segment, types), schema.keys, names)
