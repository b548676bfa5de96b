"""Rows come in and are found again: by batch, by push, and as the chapters a training set is made from."""

import hashlib
from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any

from falaj.core.context import Context
from falaj.core.data import dataclass
from falaj.core.errors import Conflict, Denied, Invalid, Stale
from falaj.core.ref import Ref
from falaj.core.verb import verb
from falaj.features.compacting import compact_view
from falaj.features.filling import Filling
from falaj.features.preparing import EVENT, Erased, Prepared, Preparing
from falaj.features.settling import settle
from falaj.features.shelf import Shelf, View, keep
from falaj.features.stream import (
    MANY_BLOCKS,
    MANY_CHAPTERS,
    SEQ_STEP,
    Arrival,
    Chapter,
    Pushed,
    Stream,
    arrived,
    dataset_of,
    labels_of,
    merged,
)
from falaj.features.tail import Rows as Block
from falaj.store.codec import from_json, to_json, to_stable_json
from falaj.store.ledger import Reader, Writer

MOST_ROWS = 100_000
"""So many rows a push may have."""


@dataclass(frozen=True, slots=True)
class Appended:
    """What became of pushed rows."""

    view: Ref
    generation: int
    taken: int
    quarantined: int
    findings: tuple[str, ...] = ()
    online: bool = True
    """False when the online store did not answer: it catches up with the next push or `materialize`."""


@dataclass(frozen=True, slots=True)
class Edition:
    """The rows of a view as they stand now."""

    view: Ref
    stream: Stream


class Rows(Filling, Shelf):
    """How rows come in."""

    @verb(writes=("view",))
    def begin(self, ctx: Context, view: Annotated[Ref, "which view"]) -> Arrival:
        """Ask to bring rows: gives the numbers they carry. `falaj features ingest` does this and all that follows.

        Example:
            falaj features begin view:fraud/spend
        """
        with self._ledger.write(ctx) as tx:
            found = self._view(tx, view)
            stream = replace(found.stream, next_seq=found.stream.next_seq + SEQ_STEP)
            keep(tx, found, stream)
            tx.emit("features.begin", found.ref, seq=found.stream.next_seq)
        return found.arrival

    @verb(writes=("view",), reads=("faces",))
    def record(
        self,
        ctx: Context,
        view: Annotated[Ref, "which view"],
        chapter: Annotated[Chapter, "what came in"],
        faces: Annotated[dict[str, Ref], "the dataset version of each face"],
        seq: Annotated[int, "the numbers that `begin` gave"],
        anew: Annotated[bool, "these are all rows there are: those before are taken back"] = False,
    ) -> Stream:
        """Make rows that were published part of a view.

        Example:
            falaj features record view:fraud/spend --chapter @chapter.json --faces @faces.json --seq 0
        """
        with self._ledger.write(ctx) as tx:
            found = self._view(tx, view)
            check_faces(tx, found, faces)
            if not 0 <= seq < found.stream.next_seq or seq % SEQ_STEP:
                raise Invalid(f"{seq} was not given to anybody", "begin again", view)
            if any(number == seq for one in found.stream.chapters for _, number in one.spans):
                raise Conflict(f"these rows are part of {view.bare} already", "there is nothing to do", view)
            if chapter.erased != len(found.stream.erased):
                raise Stale("somebody was erased since these rows were read", "bring them again", view)
            generation = found.stream.generation + 1
            kept = replace(chapter, generation=generation, faces=faces, spans=((generation, seq),), at=ctx.now())
            stream = arrived(found.stream, kept, anew=anew)
            keep(tx, found, stream)
            tx.emit(
                "features.record", found.ref, tuple(faces.values()),
                rows=kept.num_rows, generation=generation, quarantined=kept.quarantined, anew=int(anew), how=kept.how,
            )  # fmt: skip
        return stream

    @verb(writes=("view",), reads=("faces",))
    def merge(
        self,
        ctx: Context,
        view: Annotated[Ref, "which view"],
        generations: Annotated[tuple[int, ...], "which chapters, arrived one after the other"],
        chapter: Annotated[Chapter, "what they became"],
        faces: Annotated[dict[str, Ref], "the dataset version of each of its faces"],
    ) -> Stream:
        """Put one chapter with the same rows in the place of several. `falaj features compact` does this.

        Example:
            falaj features merge view:fraud/spend 1,2,3 --chapter @chapter.json --faces @faces.json
        """
        with self._ledger.write(ctx) as tx:
            found = self._view(tx, view)
            check_faces(tx, found, faces)
            held = {one.generation: one.num_rows for one in found.stream.chapters}
            rows = sum(held.get(one, 0) for one in generations)
            if chapter.num_rows != rows or chapter.erased != len(found.stream.erased):
                raise Stale("these are not the same rows any more", "look at the view again", view)
            stream = merged(found.stream, generations, replace(chapter, faces=faces, at=ctx.now()))
            if stream is None:
                raise Stale("these chapters are not there any more, or not in a row", "look at the view again", view)
            keep(tx, found, stream)
            tx.emit("features.merge", found.ref, tuple(faces.values()), chapters=len(generations), rows=rows)
        return stream

    @verb(writes=("view",), outside=True)
    def append(
        self,
        ctx: Context,
        view: Annotated[Ref, "which view"],
        columns: Annotated[dict[str, list[Any]], "the rows, column by column: keys, event time, source columns"],
        ready: Annotated[bool, "the columns are features already: the view's function has run"] = False,
    ) -> Appended:
        """Push rows: durable, then online, before it returns. `falaj features push` does this from files and streams.

        Rows that break a rule are kept apart, never dropped. A repeat of a named request changes nothing.

        Example:
            falaj features append view:fraud/spend --columns '{"customer_id": ["c1"], "at": ["2026-11-01T10:00:00Z"]}'
        """
        marked = hashlib.sha256(b"features.append\0" + to_stable_json([str(view), columns, ready])).hexdigest()
        known = self._ledger.outcome(ctx, marked)
        if known is not None:
            first: Appended = from_json(Appended, known)
            return first
        with self._ledger.read(ctx) as tx:
            found = self._view(tx, view)
        ctx.permit("write", str(view.bare), found.zone)
        rows, findings = self._prepared(ctx, found, columns, ready)
        block, good = f"{ctx.now():020.6f}-{marked[:24]}", rows.good.num_rows
        if good or rows.bad.num_rows:
            held = Block(rows.good.to_pydict(), rows.bad.to_pydict() if rows.bad.num_rows else {})
            self._tail().write(ctx, found.stream, found.zone, block, held)
        done = self._register(ctx, found, (block, findings, marked), rows)
        if len(found.stream.tail) + 1 >= MANY_BLOCKS:
            self.settle(ctx, found.ref)
        return replace(done, online=self._freshen(ctx, done.view)) if good else done

    @verb(reads=("view",), group="read", outside=True)
    def rows(self, ctx: Context, view: Annotated[Ref, "which view"]) -> Edition:
        """Where the rows of a view lie: the pinned dataset versions of each chapter. What was pushed is settled first.

        Reading them asks for the right to read each face.

        Example:
            falaj features rows view:fraud/spend
        """
        with self._ledger.read(ctx) as tx:
            found = self._view(tx, view)
        while found.stream.tail:
            self.settle(ctx, found.ref)
            with self._ledger.read(ctx) as tx:
                found = self._view(tx, found.ref)
        return Edition(found.ref, found.stream)

    def settle(self, ctx: Context, view: Ref) -> None:
        """Make a chapter of the tail; the house does it, for whoever defined the view."""
        here = settle(self._ledger, self._act, self._tail(), ctx, lambda tx: self._view(tx, view))
        with self._ledger.read(ctx) as tx:
            chapters = self._view(tx, view).stream.chapters
        if here is not None and len(chapters) > MANY_CHAPTERS:
            compact_view(here, view)

    def _prepared(
        self, ctx: Context, view: View, columns: Mapping[str, list[Any]], ready: bool
    ) -> tuple[Prepared, tuple[str, ...]]:
        import pyarrow as pa

        definition = view.definition
        if definition.function and not ready:
            hint = "falaj features push, or here.features.push: it runs the function beside you"
            raise Invalid(f"{view.ref} has a function, which the platform does not run", hint, view.ref)
        counts = {len(values) for values in columns.values()}
        if len(counts) != 1 or not 0 < max(counts) <= MOST_ROWS:
            raise Invalid("columns of different or of no length", f"1 to {MOST_ROWS} rows in each", view.ref)
        try:
            table = pa.table({name: pa.array(values, from_pandas=False) for name, values in columns.items()})
        except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError):
            raise Invalid("a column mixes types", "give each column values of one type", view.ref) from None
        if ready:
            plain = tuple(replace(one, express=None) for one in definition.features)
            definition = replace(definition, features=plain, function="")
        erased = self._erased(ctx, view) if view.stream.erased else None
        preparing = Preparing(definition, view.entity, round(ctx.now() * 1e6), arrival=True, erased=erased)
        return preparing.take(table), preparing.finish()

    def _erased(self, ctx: Context, view: View) -> Erased:
        known = set(view.stream.erased)
        return lambda people: {one for one in people if self._pseudonym(ctx, view, one) in known}

    def _register(self, ctx: Context, view: View, what: tuple[str, tuple[str, ...], str], rows: Prepared) -> Appended:
        """Give the rows their numbers. Until this commits, nobody knows of them."""
        block, findings, marked = what
        good, bad = rows.good.num_rows, rows.bad.num_rows
        newest = max(rows.good.column(EVENT).to_pylist(), default=0)

        def work(tx: Writer) -> Appended:
            now = self._view(tx, view.ref)
            stream = now.stream
            if stream.erased != view.stream.erased:
                raise Stale("somebody was erased at this moment", "push them again", view.ref)
            generation = stream.generation + 1 if good else stream.generation
            pushed = Pushed(generation, block, stream.next_seq, good, ctx.now())
            stream = replace(
                stream, generation=generation, next_seq=stream.next_seq + SEQ_STEP, tail=(*stream.tail, pushed),
                pushed_rows=stream.pushed_rows + good, quarantined=stream.quarantined + bad,
                newest_us=max(stream.newest_us, newest),
            )  # fmt: skip
            keep(tx, now, stream)
            tx.emit("features.append", now.ref, rows=good, quarantined=bad, generation=generation)
            done = Appended(now.ref, generation, good, bad, findings)
            if ctx.keyed:
                tx.remember(to_json(done).decode(), marked)
            return done

        return self._ledger.retry(ctx, work)


def check_faces(tx: Reader, view: View, faces: Mapping[str, Ref]) -> None:
    """The rows are those of this view's faces, and none is less protected than the definition says."""
    labels = labels_of(view.definition)
    wanted = {face: dataset_of(view.stream, face) for face in labels}
    if {face: ref.bare for face, ref in faces.items()} != wanted:
        names = ", ".join(map(str, wanted.values()))
        raise Denied(f"these are not the rows of {view.ref}", f"publish {names}", view.ref)
    for face, ref in faces.items():
        record = tx.need(ref)
        if record.body.get("state") != "live":
            raise Stale(f"{ref} was deleted", "look at the view again", view.ref)
        if not record.label.covers(labels[face]):
            raise Denied(f"{ref} is less protected than {view.ref} demands", "publish it with the label", view.ref)
