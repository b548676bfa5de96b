"""Publishing rows: clustered segments, one dataset version for each face; and what was pushed settled into them.

It runs beside whoever brings rows, or in the house for whoever defined the view, with the rights they have today.
"""

import json
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from falaj.asof.column_stats import ColumnStats, measure_table, merge_table_stats, stats_to_plain
from falaj.asof.row_files import RowSchema, group_folder_name, write_rows
from falaj.catalog.publish_sources import PublishSource
from falaj.catalog.publishing import PublishOrder
from falaj.catalog.records import PublishFacts
from falaj.core.client_command import Client
from falaj.core.context import CallContext
from falaj.core.data import dataclass
from falaj.core.label import Label
from falaj.core.ref import Ref
from falaj.features.person_keys import PersonKeyAccess, make_key_access, publish_unshared
from falaj.features.quality import list_personal_columns
from falaj.features.records import EntityDef
from falaj.features.row_stream import (
    STATS_FILE,
    RowSegment,
    RowStream,
    ViewDetails,
    list_first_blocks,
    make_dataset_ref,
    make_quarantine_ref,
    make_row_schema,
    with_settled_blocks,
)
from falaj.features.segment_access import build_row_table
from falaj.features.service_base import StoredView, put_stream
from falaj.features.view_sealing import seal_folder
from falaj.features.write_buffer import BufferedRows, WriteBuffer
from falaj.jobs.attempts import build_work_actor
from falaj.store.ledger import Ledger, LedgerReader


@dataclass(frozen=True, slots=True)
class RowBatch:
    """Rows on their way into a stream."""

    stream: RowStream
    schema: RowSchema
    labels: Mapping[str, Label]
    view: Ref
    """Pinned: what the published rows say they were made for."""
    zone: str = ""
    inputs: Mapping[str, Ref] | None = None
    how: str = "ingest"
    personal: frozenset[str] = frozenset()
    """Columns whose numbers could show a person."""
    lock: PersonKeyAccess | None = None
    """The keys of the people in it, where the view is sealed."""
    entity: EntityDef | None = None


def make_batch(client: Client, details: ViewDetails, how: str, inputs: Mapping[str, Ref] | None = None) -> RowBatch:
    """What bringing rows of a view takes."""
    definition = details.definition
    return RowBatch(
        details.stream,
        make_row_schema(definition, details.entity),
        details.labels,
        details.view,
        details.zone,
        inputs,
        how,
        list_personal_columns(definition),
        make_key_access(client, details) if definition.sealed else None,
        details.entity,
    )


class _RowMeasurement:
    """Statistics of what passes."""

    def __init__(self, names: list[str], personal: frozenset[str]) -> None:
        self._names, self._personal = names, personal
        self.stats: dict[str, ColumnStats] = {}

    def through(self, rows: Iterable[Any]) -> Iterator[Any]:
        """The same rows, measured."""
        for table in rows:
            self.stats = merge_table_stats(self.stats, measure_table(table.select(self._names), self._personal))
            yield table


def publish_rows(client: Client, batch: RowBatch, rows: Iterable[Any], seq: int) -> RowSegment:
    """Cluster rows, write them by face, and publish each; nothing of the view changes until they are recorded."""
    with tempfile.TemporaryDirectory(prefix="falaj-rows-") as scratch:
        folder = Path(scratch)
        measurement = _RowMeasurement([field.name for field in batch.schema.columns], batch.personal)
        written = write_rows(measurement.through(rows), batch.schema, folder, seq=seq)
        if batch.lock is not None and batch.entity is not None:
            seal_folder(client, folder, batch.schema, batch.entity, batch.lock)
        for group, fields in batch.schema.faces.items():
            # Numbers of a column are as much its values as its rows: they lie where the column lies.
            stats_by_column = {
                field.name: stats_to_plain(measurement.stats[field.name])
                for field in fields
                if field.name in measurement.stats
            }
            (folder / group_folder_name(group)).mkdir(exist_ok=True)
            (folder / group_folder_name(group) / STATS_FILE).write_text(json.dumps(stats_by_column))
        published_groups = {
            group: _publish_group(client, batch, group, folder / group_folder_name(group))
            for group in batch.schema.faces
        }
    return RowSegment(
        0,
        written.num_rows,
        published_groups,
        written.first_event,
        written.last_event,
        0.0,
        batch.how,
        erased=len(batch.stream.erased),
    )


def publish_quarantine(client: Client, batch: RowBatch, tables: list[Any]) -> int:
    """Keep rows that broke a rule where their owner can look at them; gives how many."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    count: int = sum(table.num_rows for table in tables)
    if not count:
        return 0
    label = batch.labels[""]
    for group_label in batch.labels.values():
        label = label.join(group_label)
    with tempfile.TemporaryDirectory(prefix="falaj-rows-") as scratch:
        # What broke a rule may be of any type: tables that are not alike become files of their own.
        tables_by_schema: dict[str, list[Any]] = {}
        for table in tables:
            tables_by_schema.setdefault(str(table.schema), []).append(table)
        for number, group in enumerate(tables_by_schema.values()):
            pq.write_table(pa.concat_tables(group), Path(scratch) / f"rows-{number:04d}.parquet")
        facts = PublishFacts(f"{count} rows that broke a rule", tags={"view": str(batch.view)})
        name, inputs = make_quarantine_ref(batch.stream), dict(batch.inputs or {})
        # Without statistics: their numbers would be told to whoever may see that there is a quarantine.
        publish_unshared(client, PublishOrder(name, PublishSource(Path(scratch)), facts, label, inputs, batch.zone))
    return count


def settle_blocks(
    ledger: Ledger,
    act: Callable[..., Client],
    buffer: WriteBuffer,
    ctx: CallContext,
    read_view: Callable[[LedgerReader], StoredView],
) -> Client | None:
    """Make a chapter of the oldest blocks of the tail; of those who settle at the same moment one wins.

    Gives the platform as whoever defined the view sees it, where something was settled.
    """
    with ledger.read(ctx) as tx:
        view = read_view(tx)
        actor = build_work_actor(tx, view.record)
    blocks = list_first_blocks(view.stream)
    if not blocks:
        return None
    client, block_rows = act(actor, view.record.body["who"]["purpose"]), buffer.read(ctx, view.stream, blocks)
    schema = make_row_schema(view.definition, view.entity)
    batch = make_batch(client, view.arrival, "push")
    good_tables = [build_row_table(rows.good, schema, block.seq) for block, rows in block_rows if block.num_rows]
    segment = publish_rows(client, batch, good_tables, 0) if good_tables else None
    publish_quarantine(client, batch, [_to_bad_table(rows) for _, rows in block_rows if rows.bad])
    if segment is not None:
        spans = tuple((block.generation, block.seq) for block in blocks if block.num_rows)
        segment = replace(segment, generation=spans[-1][0], spans=spans, at=ctx.now())
    with ledger.write(ctx) as tx:
        current = read_view(tx)
        if current.stream.tail[: len(blocks)] != blocks or current.stream.erased != view.stream.erased:
            return None  # somebody else settled it, or took a person out of it: what we published is nobody's
        stream = with_settled_blocks(current.stream, len(blocks), segment)
        put_stream(tx, current, stream)
        tx.emit("features.settle", view.ref, tuple(segment.faces.values()) if segment else (), blocks=len(blocks))
        tx.after(lambda durable: buffer.drop(ctx, stream, [block.id for block in blocks]) if durable else None)
    return client


def _publish_group(client: Client, batch: RowBatch, group: str, folder: Path) -> Ref:
    """Apart from the chapters before it: what shares stored bytes with rows of a person must go with them."""
    facts = PublishFacts(f"{batch.how} for {batch.view}", tags={"view": str(batch.view), "face": group})
    name, inputs = make_dataset_ref(batch.stream, group), dict(batch.inputs or {})
    return publish_unshared(
        client, PublishOrder(name, PublishSource(folder), facts, batch.labels[group], inputs, batch.zone)
    )


def _to_bad_table(rows: BufferedRows) -> Any:
    import pyarrow as pa

    return pa.table(rows.bad)
