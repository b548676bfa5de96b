"""Rows come in and are found again: by batch, by push, and as the chapters a training set is made from."""

import hashlib
from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any

from falaj.core.context import CallContext
from falaj.core.data import dataclass
from falaj.core.errors import Conflict, Denied, Invalid, StaleRevision
from falaj.core.operation import operation
from falaj.core.ref import Ref
from falaj.features.compaction import compact_view
from falaj.features.online_fill import FillOperations
from falaj.features.row_preparation import EVENT_COLUMN, FindErased, PreparedRows, RowPreparation
from falaj.features.row_publishing import settle_blocks
from falaj.features.row_stream import (
    MAX_BUFFERED_BLOCKS,
    MAX_SEGMENTS,
    SEQUENCE_STEP,
    PushedBlock,
    RowSegment,
    RowStream,
    ViewDetails,
    list_group_labels,
    make_dataset_ref,
    with_merged_segments,
    with_segment,
)
from falaj.features.service_base import FeatureServiceBase, StoredView, put_stream
from falaj.features.write_buffer import BufferedRows as Block
from falaj.store.codec import from_json, to_json, to_stable_json
from falaj.store.ledger import LedgerReader, LedgerWriter

MAX_PUSH_ROWS = 100_000
"""So many rows a push may have."""


@dataclass(frozen=True, slots=True)
class PushResult:
    """What became of pushed rows."""

    view: Ref
    generation: int
    taken: int
    quarantined: int
    findings: tuple[str, ...] = ()
    online: bool = True
    """False when the online store did not answer: it catches up with the next push or `materialize`."""


@dataclass(frozen=True, slots=True)
class ViewRows:
    """The rows of a view as they stand now."""

    view: Ref
    stream: RowStream


class RowOperations(FillOperations, FeatureServiceBase):
    """How rows come in."""

    @operation(writes=("view",))
    def begin(self, ctx: CallContext, view: Annotated[Ref, "which view"]) -> ViewDetails:
        """Ask to bring rows: gives the numbers they carry. `falaj features ingest` does this and all that follows.

        Example:
            falaj features begin view:fraud/spend
        """
        with self._ledger.write(ctx) as tx:
            stored_view = self._read_view(tx, view)
            stream = replace(stored_view.stream, next_seq=stored_view.stream.next_seq + SEQUENCE_STEP)
            put_stream(tx, stored_view, stream)
            tx.emit("features.begin", stored_view.ref, seq=stored_view.stream.next_seq)
        return stored_view.arrival

    @operation(writes=("view",), reads=("faces",))
    def record(
        self,
        ctx: CallContext,
        view: Annotated[Ref, "which view"],
        chapter: Annotated[RowSegment, "what came in"],
        faces: Annotated[dict[str, Ref], "the dataset version of each face"],
        seq: Annotated[int, "the numbers that `begin` gave"],
        anew: Annotated[bool, "these are all rows there are: those before are taken back"] = False,
    ) -> RowStream:
        """Make rows that were published part of a view.

        Example:
            falaj features record view:fraud/spend --chapter @chapter.json --faces @faces.json --seq 0
        """
        with self._ledger.write(ctx) as tx:
            stored_view = self._read_view(tx, view)
            check_segment_groups(tx, stored_view, faces)
            if not 0 <= seq < stored_view.stream.next_seq or seq % SEQUENCE_STEP:
                raise Invalid(f"{seq} was not given to anybody", "begin again", view)
            if any(number == seq for segment in stored_view.stream.chapters for _, number in segment.spans):
                raise Conflict(f"these rows are part of {view.bare} already", "there is nothing to do", view)
            if chapter.erased != len(stored_view.stream.erased):
                raise StaleRevision("somebody was erased since these rows were read", "bring them again", view)
            generation = stored_view.stream.generation + 1
            recorded = replace(chapter, generation=generation, faces=faces, spans=((generation, seq),), at=ctx.now())
            stream = with_segment(stored_view.stream, recorded, is_complete=anew)
            put_stream(tx, stored_view, stream)
            tx.emit(
                "features.record",
                stored_view.ref,
                tuple(faces.values()),
                rows=recorded.num_rows,
                generation=generation,
                quarantined=recorded.quarantined,
                anew=int(anew),
                how=recorded.how,
            )
        return stream

    @operation(writes=("view",), reads=("faces",))
    def merge(
        self,
        ctx: CallContext,
        view: Annotated[Ref, "which view"],
        generations: Annotated[tuple[int, ...], "which chapters, arrived one after the other"],
        chapter: Annotated[RowSegment, "what they became"],
        faces: Annotated[dict[str, Ref], "the dataset version of each of its faces"],
    ) -> RowStream:
        """Put one chapter with the same rows in the place of several. `falaj features compact` does this.

        Example:
            falaj features merge view:fraud/spend 1,2,3 --chapter @chapter.json --faces @faces.json
        """
        with self._ledger.write(ctx) as tx:
            stored_view = self._read_view(tx, view)
            check_segment_groups(tx, stored_view, faces)
            rows_by_generation = {segment.generation: segment.num_rows for segment in stored_view.stream.chapters}
            rows = sum(rows_by_generation.get(segment, 0) for segment in generations)
            if chapter.num_rows != rows or chapter.erased != len(stored_view.stream.erased):
                raise StaleRevision("these are not the same rows any more", "look at the view again", view)
            stream = with_merged_segments(stored_view.stream, generations, replace(chapter, faces=faces, at=ctx.now()))
            if stream is None:
                raise StaleRevision(
                    "these chapters are not there any more, or not in a row", "look at the view again", view
                )
            put_stream(tx, stored_view, stream)
            tx.emit("features.merge", stored_view.ref, tuple(faces.values()), chapters=len(generations), rows=rows)
        return stream

    @operation(writes=("view",), has_outside_effects=True)
    def append(
        self,
        ctx: CallContext,
        view: Annotated[Ref, "which view"],
        columns: Annotated[dict[str, list[Any]], "the rows, column by column: keys, event time, source columns"],
        ready: Annotated[bool, "the columns are features already: the view's function has run"] = False,
    ) -> PushResult:
        """Push rows: durable, then online, before it returns. `falaj features push` does this from files and streams.

        Rows that break a rule are kept apart, never dropped. A repeat of a named request changes nothing.

        Example:
            falaj features append view:fraud/spend --columns '{"customer_id": ["c1"], "at": ["2026-11-01T10:00:00Z"]}'
        """
        request_digest = hashlib.sha256(b"features.append\0" + to_stable_json([str(view), columns, ready])).hexdigest()
        stored_outcome = self._ledger.outcome(ctx, request_digest)
        if stored_outcome is not None:
            first_result: PushResult = from_json(PushResult, stored_outcome)
            return first_result
        with self._ledger.read(ctx) as tx:
            stored_view = self._read_view(tx, view)
        ctx.permit("write", str(view.bare), stored_view.zone)
        rows, findings = self._prepare_rows(ctx, stored_view, columns, ready)
        block_id, good_count = f"{ctx.now():020.6f}-{request_digest[:24]}", rows.good.num_rows
        if good_count or rows.bad.num_rows:
            buffered_rows = Block(rows.good.to_pydict(), rows.bad.to_pydict() if rows.bad.num_rows else {})
            self._open_buffer().write(ctx, stored_view.stream, stored_view.zone, block_id, buffered_rows)
        result = self._register_rows(ctx, stored_view, (block_id, findings, request_digest), rows)
        if len(stored_view.stream.tail) + 1 >= MAX_BUFFERED_BLOCKS:
            self.settle(ctx, stored_view.ref)
        return replace(result, online=self._refresh_after_push(ctx, result.view)) if good_count else result

    @operation(reads=("view",), group="read", has_outside_effects=True)
    def rows(self, ctx: CallContext, view: Annotated[Ref, "which view"]) -> ViewRows:
        """Where the rows of a view lie: the pinned dataset versions of each chapter. What was pushed is settled first.

        Reading them asks for the right to read each face.

        Example:
            falaj features rows view:fraud/spend
        """
        with self._ledger.read(ctx) as tx:
            stored_view = self._read_view(tx, view)
        while stored_view.stream.tail:
            self.settle(ctx, stored_view.ref)
            with self._ledger.read(ctx) as tx:
                stored_view = self._read_view(tx, stored_view.ref)
        return ViewRows(stored_view.ref, stored_view.stream)

    def settle(self, ctx: CallContext, view: Ref) -> None:
        """Make a chapter of the tail; the house does it, for whoever defined the view."""
        client = settle_blocks(
            self._ledger, self._open_client, self._open_buffer(), ctx, lambda tx: self._read_view(tx, view)
        )
        with self._ledger.read(ctx) as tx:
            segments = self._read_view(tx, view).stream.chapters
        if client is not None and len(segments) > MAX_SEGMENTS:
            compact_view(client, view)

    def _prepare_rows(
        self, ctx: CallContext, view: StoredView, columns: Mapping[str, list[Any]], is_ready: bool
    ) -> tuple[PreparedRows, tuple[str, ...]]:
        import pyarrow as pa

        definition = view.definition
        if definition.function and not is_ready:
            hint = "falaj features push, or here.features.push: it runs the function beside you"
            raise Invalid(f"{view.ref} has a function, which the platform does not run", hint, view.ref)
        counts = {len(values) for values in columns.values()}
        if len(counts) != 1 or not 0 < max(counts) <= MAX_PUSH_ROWS:
            raise Invalid("columns of different or of no length", f"1 to {MAX_PUSH_ROWS} rows in each", view.ref)
        try:
            table = pa.table({name: pa.array(values, from_pandas=False) for name, values in columns.items()})
        except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError):
            raise Invalid("a column mixes types", "give each column values of one type", view.ref) from None
        if is_ready:
            plain_features = tuple(replace(feature, express=None) for feature in definition.features)
            definition = replace(definition, features=plain_features, function="")
        erased = self._make_erased_check(ctx, view) if view.stream.erased else None
        preparing = RowPreparation(definition, view.entity, round(ctx.now() * 1e6), arrival=True, erased=erased)
        return preparing.take(table), preparing.finish()

    def _make_erased_check(self, ctx: CallContext, view: StoredView) -> FindErased:
        erased_names = set(view.stream.erased)
        return lambda people: {person for person in people if self._make_pseudonym(ctx, view, person) in erased_names}

    def _register_rows(
        self, ctx: CallContext, view: StoredView, block_facts: tuple[str, tuple[str, ...], str], rows: PreparedRows
    ) -> PushResult:
        """Give the rows their numbers. Until this commits, nobody knows of them."""
        block_id, findings, request_digest = block_facts
        good_count, bad_count = rows.good.num_rows, rows.bad.num_rows
        newest = max(rows.good.column(EVENT_COLUMN).to_pylist(), default=0)

        def register_rows(tx: LedgerWriter) -> PushResult:
            current = self._read_view(tx, view.ref)
            stream = current.stream
            if stream.erased != view.stream.erased:
                raise StaleRevision("somebody was erased at this moment", "push them again", view.ref)
            generation = stream.generation + 1 if good_count else stream.generation
            pushed = PushedBlock(generation, block_id, stream.next_seq, good_count, ctx.now())
            stream = replace(
                stream,
                generation=generation,
                next_seq=stream.next_seq + SEQUENCE_STEP,
                tail=(*stream.tail, pushed),
                pushed_rows=stream.pushed_rows + good_count,
                quarantined=stream.quarantined + bad_count,
                newest_us=max(stream.newest_us, newest),
            )
            put_stream(tx, current, stream)
            tx.emit("features.append", current.ref, rows=good_count, quarantined=bad_count, generation=generation)
            result = PushResult(current.ref, generation, good_count, bad_count, findings)
            if ctx.keyed:
                tx.remember(to_json(result).decode(), request_digest)
            return result

        return self._ledger.retry(ctx, register_rows)


def check_segment_groups(tx: LedgerReader, view: StoredView, groups: Mapping[str, Ref]) -> None:
    """The rows are those of this view's faces, and none is less protected than the definition says."""
    labels = list_group_labels(view.definition)
    expected_names = {group: make_dataset_ref(view.stream, group) for group in labels}
    if {group: ref.bare for group, ref in groups.items()} != expected_names:
        names = ", ".join(map(str, expected_names.values()))
        raise Denied(f"these are not the rows of {view.ref}", f"publish {names}", view.ref)
    for group, ref in groups.items():
        record = tx.need(ref)
        if record.body.get("state") != "live":
            raise StaleRevision(f"{ref} was deleted", "look at the view again", view.ref)
        if not record.label.covers(labels[group]):
            raise Denied(f"{ref} is less protected than {view.ref} demands", "publish it with the label", view.ref)
