"""Publishing rows: clustered segments, one dataset version for each face; and what was pushed settled into them.

It runs beside whoever brings rows, or in the house for whoever defined the view, with the rights they have today.
"""

import json
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from falaj.asof.rows import RowSchema, face_folder, write_rows
from falaj.asof.stats import ColumnStats, measured_table, merged_tables, to_plain
from falaj.catalog.publishing import Order
from falaj.catalog.records import Facts
from falaj.catalog.sources import Source
from falaj.core.context import Context
from falaj.core.data import dataclass
from falaj.core.errand import Here
from falaj.core.label import Label
from falaj.core.ref import Ref
from falaj.features.chapters import table_of
from falaj.features.persons import Lock, lock_of, publish_apart
from falaj.features.quality import personal_columns
from falaj.features.records import EntityDef
from falaj.features.sealing import seal_folder
from falaj.features.shelf import View, keep
from falaj.features.stream import (
    STATS,
    Arrival,
    Chapter,
    Stream,
    dataset_of,
    first_blocks,
    quarantine_of,
    schema_of,
    settled,
)
from falaj.features.tail import Rows, Tail
from falaj.jobs.attempts import at_work
from falaj.store.ledger import Ledger, Reader


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows on their way into a stream."""

    stream: Stream
    schema: RowSchema
    labels: Mapping[str, Label]
    view: Ref
    """Pinned: what the published rows say they were made for."""
    zone: str = ""
    inputs: Mapping[str, Ref] | None = None
    how: str = "ingest"
    personal: frozenset[str] = frozenset()
    """Columns whose numbers could show a person."""
    lock: Lock | None = None
    """The keys of the people in it, where the view is sealed."""
    entity: EntityDef | None = None


def batch_of(here: Here, about: Arrival, how: str, inputs: Mapping[str, Ref] | None = None) -> Batch:
    """What bringing rows of a view takes."""
    definition = about.definition
    return Batch(
        about.stream, schema_of(definition, about.entity), about.labels, about.view, about.zone, inputs, how,
        personal_columns(definition), lock_of(here, about) if definition.sealed else None, about.entity,
    )  # fmt: skip


class _Measuring:
    """Statistics of what passes."""

    def __init__(self, names: list[str], personal: frozenset[str]) -> None:
        self._names, self._personal = names, personal
        self.stats: dict[str, ColumnStats] = {}

    def through(self, rows: Iterable[Any]) -> Iterator[Any]:
        """The same rows, measured."""
        for table in rows:
            self.stats = merged_tables(self.stats, measured_table(table.select(self._names), self._personal))
            yield table


def publish_rows(here: Here, batch: Batch, rows: Iterable[Any], seq: int) -> Chapter:
    """Cluster rows, write them by face, and publish each; nothing of the view changes until they are recorded."""
    with tempfile.TemporaryDirectory(prefix="falaj-rows-") as scratch:
        folder = Path(scratch)
        measuring = _Measuring([one.name for one in batch.schema.columns], batch.personal)
        written = write_rows(measuring.through(rows), batch.schema, folder, seq=seq)
        if batch.lock is not None and batch.entity is not None:
            seal_folder(here, folder, batch.schema, batch.entity, batch.lock)
        for face, fields in batch.schema.faces.items():
            # Numbers of a column are as much its values as its rows: they lie where the column lies.
            told = {one.name: to_plain(measuring.stats[one.name]) for one in fields if one.name in measuring.stats}
            (folder / face_folder(face)).mkdir(exist_ok=True)
            (folder / face_folder(face) / STATS).write_text(json.dumps(told))
        faces = {face: _publish(here, batch, face, folder / face_folder(face)) for face in batch.schema.faces}
    return Chapter(
        0, written.num_rows, faces, written.first_event, written.last_event, 0.0, batch.how,
        erased=len(batch.stream.erased),
    )  # fmt: skip


def publish_quarantine(here: Here, batch: Batch, tables: list[Any]) -> int:
    """Keep rows that broke a rule where their owner can look at them; gives how many."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    count: int = sum(table.num_rows for table in tables)
    if not count:
        return 0
    label = batch.labels[""]
    for one in batch.labels.values():
        label = label.join(one)
    with tempfile.TemporaryDirectory(prefix="falaj-rows-") as scratch:
        # What broke a rule may be of any type: tables that are not alike become files of their own.
        alike: dict[str, list[Any]] = {}
        for table in tables:
            alike.setdefault(str(table.schema), []).append(table)
        for number, group in enumerate(alike.values()):
            pq.write_table(pa.concat_tables(group), Path(scratch) / f"rows-{number:04d}.parquet")
        facts = Facts(f"{count} rows that broke a rule", tags={"view": str(batch.view)})
        name, inputs = quarantine_of(batch.stream), dict(batch.inputs or {})
        # Without statistics: their numbers would be told to whoever may see that there is a quarantine.
        publish_apart(here, Order(name, Source(Path(scratch)), facts, label, inputs, batch.zone))
    return count


def settle(
    ledger: Ledger, act: Callable[..., Here], tail: Tail, ctx: Context, look: Callable[[Reader], View]
) -> Here | None:
    """Make a chapter of the oldest blocks of the tail; of those who settle at the same moment one wins.

    Gives the platform as whoever defined the view sees it, where something was settled.
    """
    with ledger.read(ctx) as tx:
        view = look(tx)
        actor = at_work(tx, view.record)
    blocks = first_blocks(view.stream)
    if not blocks:
        return None
    here, read = act(actor, view.record.body["who"]["purpose"]), tail.read(ctx, view.stream, blocks)
    schema = schema_of(view.definition, view.entity)
    batch = batch_of(here, view.arrival, "push")
    good = [table_of(rows.good, schema, one.seq) for one, rows in read if one.num_rows]
    chapter = publish_rows(here, batch, good, 0) if good else None
    publish_quarantine(here, batch, [_bad(rows) for _, rows in read if rows.bad])
    if chapter is not None:
        spans = tuple((one.generation, one.seq) for one in blocks if one.num_rows)
        chapter = replace(chapter, generation=spans[-1][0], spans=spans, at=ctx.now())
    with ledger.write(ctx) as tx:
        now = look(tx)
        if now.stream.tail[: len(blocks)] != blocks or now.stream.erased != view.stream.erased:
            return None  # somebody else settled it, or took a person out of it: what we published is nobody's
        stream = settled(now.stream, len(blocks), chapter)
        keep(tx, now, stream)
        tx.emit("features.settle", view.ref, tuple(chapter.faces.values()) if chapter else (), blocks=len(blocks))
        tx.after(lambda durable: tail.drop(ctx, stream, [one.id for one in blocks]) if durable else None)
    return here


def _publish(here: Here, batch: Batch, face: str, folder: Path) -> Ref:
    """Apart from the chapters before it: what shares stored bytes with rows of a person must go with them."""
    facts = Facts(f"{batch.how} for {batch.view}", tags={"view": str(batch.view), "face": face})
    name, inputs = dataset_of(batch.stream, face), dict(batch.inputs or {})
    return publish_apart(here, Order(name, Source(folder), facts, batch.labels[face], inputs, batch.zone))


def _bad(rows: Rows) -> Any:
    import pyarrow as pa

    return pa.table(rows.bad)
