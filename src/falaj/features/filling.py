"""Filling the online store: chapters and pushed blocks, oldest arrival first, a part at a time.

The mark of a space says up to which arrival it has everything, and how far the next one came. A row carries its rank
and a window's state the arrival it has seen, so whatever is put again changes nothing: killed anywhere and run again,
it ends the same. A store that came back empty has no mark, and is filled from the beginning.
"""

import json
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Annotated, NamedTuple

import numpy as np

from falaj.asof.encrypted_online import EncryptedOnline
from falaj.asof.layout import Layout
from falaj.asof.looking import numbers_of
from falaj.asof.ranges import take
from falaj.asof.sources import Clustered, cluster, open_part
from falaj.asof.tiles import build, merge, pack, unpack
from falaj.asof.tiles import shape_of as tiles_shape
from falaj.core.context import Context
from falaj.core.data import dataclass
from falaj.core.errors import Conflict, Unavailable
from falaj.core.event import new_id
from falaj.core.online import RANK_BYTES, pack_rank, rank_of, rows_in
from falaj.core.ref import Ref
from falaj.core.verb import verb
from falaj.features.chapters import open_chapter, table_of
from falaj.features.shelf import Shelf, View, keep
from falaj.features.stream import Chapter, Stream, faces_of, schema_of, shape_of, space_of
from falaj.features.unsealed import Way, through
from falaj.store.codec import to_json
from falaj.store.ledger import Ledger, Writer

BUDGET_S = 5.0
"""How long one call works before it says how far it is."""
RETIRED_S = 180.0
"""Longer than anybody reads by one plan."""
LEASE_S = 15.0
"""Whoever was killed holds up the next one so long. It is a courtesy: two who fill at once do no harm."""
_LOOK_S = 0.02
PUT_ROWS = 25_000
"""In one transaction: the store keeps rows in the order of hashes, so each put touches pages all over it."""
STATE_ROWS = 2_000


@dataclass(frozen=True, slots=True)
class Filled:
    """How far the online store has what there is."""

    view: Ref
    generation: int
    rows: int
    """How many rows of the arrivals to fill were looked at."""
    total: int
    complete: bool


@dataclass(frozen=True, slots=True)
class Mark:
    """How far a space is filled."""

    generation: int = 0
    """Everything up to this arrival is in."""
    part: int = 0
    """Of the next one, so many parts."""
    rows: int = 0
    what: str = ""
    """Which one that is: chapters are settled and merged, and then have other parts."""


@dataclass(frozen=True, slots=True)
class Target:
    """Where an arrival goes."""

    store: EncryptedOnline
    view: View
    era: int
    tenant: str
    now_us: int
    seal: Way | None = None
    """How rows of a sealed view lie there: what the store's owner sees says nothing."""
    open: Way | None = None
    """What `seal` was given."""

    def rows(self, space: str, keys: list[bytes]) -> list[bytes | None]:
        """The newest row of each key, opened."""
        cells = self.store.get([(space, keys)])[0]
        held = [rows_in(cell)[-1] if cell else None for cell in cells]
        if self.open is None:
            return held
        opened = self.open
        return [row and through(opened, space, key, row) for key, row in zip(keys, held, strict=True)]

    def put(self, space: str, rows: list[tuple[bytes, bytes]]) -> None:
        """Put rows, sealed where the view is."""
        if self.seal is not None:
            seal = self.seal
            rows = [(key, through(seal, space, key, row)) for key, row in rows]
        self.store.put(space, rows, self.now_us)

    def space(self, face: str = "") -> str:
        """The space of a face."""
        return space_of(self.view.stream, self.tenant, shape_of(self.view.definition), face, self.era)

    def mark(self) -> Mark:
        """How far it is; nowhere when it is new, came back empty, or holds rows whose key was retired."""
        if self.store.is_unreadable(self.space()):
            # Rows of equal rank are not replaced, so what cannot be read any more goes first.
            for face in faces_of(self.view.definition):
                self.store.drop(self.space(face))
        noted = self.store.note(self.space())
        return Mark(*json.loads(noted)) if noted else Mark()

    def note(self, mark: Mark) -> None:
        """Remember how far it is."""
        self.store.note(self.space(), to_json([mark.generation, mark.part, mark.rows, mark.what]))


class Filling(Shelf):
    """How the online store gets what arrived."""

    @verb(writes=("view",), outside=True)
    def fill(
        self,
        ctx: Context,
        view: Annotated[Ref, "which view"],
        anew: Annotated[bool, "begin a new space, and switch readers to it when it is whole"] = False,
    ) -> Filled:
        """Put what arrived since the last time online, for some seconds; call again until it is complete.

        `falaj features materialize` brings in what the source has, does this, and shows how far it is.

        Example:
            falaj features fill view:fraud/spend
        """
        if anew:
            self._begin_era(ctx, view)
        found = self._registered(ctx, view)
        with self._led(ctx, found.stream):
            return self._fill(ctx, found, BUDGET_S)

    def _freshen(self, ctx: Context, view: Ref) -> bool:
        """After a push: bring every shape that somebody reads up to date, where that is little; True when it is."""
        found, until = self._registered(ctx, view), time.monotonic() + BUDGET_S / 10
        try:
            while time.monotonic() < until:
                with suppress(Conflict), self._led(ctx, found.stream):
                    return self._freshened(ctx, found)
                time.sleep(_LOOK_S)
            # Whoever fills now may have looked before our rows were there, or be dead.
            return self._freshened(ctx, found)
        except (Conflict, Unavailable):
            return False  # the rows are safe; whoever fills next takes them along

    def _freshened(self, ctx: Context, found: View) -> bool:
        fresh = True
        for ref in dict.fromkeys((found.ref, *found.stream.shapes.values())):
            with self._ledger.read(ctx) as tx:
                one = self._view(tx, ref)
            fresh = self._fill(ctx, one, BUDGET_S / 5).complete and fresh
        return fresh

    def _fill(self, ctx: Context, view: View, budget_s: float) -> Filled:
        target = Target(self._online(ctx.tenant), view, view.stream.era, ctx.tenant, round(ctx.now() * 1e6))
        if view.definition.sealed:
            seal, unseal = (partial(way, ctx.tenant, view.zone) for way in (self._keyring.seal, self._keyring.unseal))
            target = replace(target, seal=seal, open=unseal)
        until = time.monotonic() + budget_s
        mark = target.mark()
        work = self._work(ctx, view, mark.generation)
        total = sum(one.num_rows for one in work)
        seen = 0
        for one in work:
            done = mark.part if mark.what == one.what else 0
            seen = mark.rows if done else seen
            for number, part in enumerate(one.parts()):
                if number < done:
                    continue
                seen += _put(target, part, one.generation)
                mark = Mark(mark.generation, number + 1, seen, one.what)
                target.note(mark)
                if time.monotonic() > until:
                    return Filled(view.ref, mark.generation, seen, total, complete=False)
            mark = Mark(one.generation)
            target.note(mark)
        if mark == Mark():
            target.note(mark)
        self._completed(ctx, view, target, mark.generation)
        return Filled(view.ref, mark.generation, seen, total, complete=True)

    def _work(self, ctx: Context, view: View, since: int) -> list["Work"]:
        """What is not online yet, oldest arrival first."""
        stream = view.stream
        found = [
            Work(one.generation, one.num_rows, str(one.faces[""]), partial(self._chapter, ctx, view, one))
            for one in stream.chapters
            if one.generation > since
        ]
        fresh = [one for one in stream.tail if one.generation > since and one.num_rows]
        types, schema = [one.type for one in view.entity.keys], schema_of(view.definition, view.entity)
        for one, rows in self._tail().read(ctx, stream, fresh) if fresh else ():
            arrived = Arrived(cluster(table_of(rows.good, schema, one.seq), types), ((one.generation, one.seq),))
            found.append(Work(one.generation, one.num_rows, one.id, partial(iter, (arrived,))))
        return sorted(found, key=lambda one: one.generation)

    def _chapter(self, ctx: Context, view: View, chapter: Chapter) -> Iterator["Arrived"]:
        types = [one.type for one in view.entity.keys]
        with open_chapter(self._as(ctx), chapter, tuple(faces_of(view.definition)), view.arrival) as parts:
            for part in parts:
                yield Arrived(open_part(part, types), chapter.spans)

    def _registered(self, ctx: Context, view: Ref) -> View:
        """The view, with its shape among those that are kept fresh."""
        with self._ledger.read(ctx) as tx:
            found = self._view(tx, view)
        shape = shape_of(found.definition)
        if shape in found.stream.shapes:
            return found

        def work(tx: Writer) -> View:
            now = self._view(tx, found.ref)
            stream = replace(now.stream, shapes={**now.stream.shapes, shape: found.ref})
            keep(tx, now, stream)
            tx.emit("features.shape", found.ref, shape=shape)
            return self._view(tx, found.ref)

        return self._ledger.retry(ctx, work)

    def _begin_era(self, ctx: Context, view: Ref) -> None:
        def work(tx: Writer) -> None:
            now = self._view(tx, view)
            keep(tx, now, replace(now.stream, era=now.stream.era + 1))
            tx.emit("features.refill", now.ref, era=now.stream.era + 1)

        self._ledger.retry(ctx, work)

    def _completed(self, ctx: Context, view: View, target: Target, generation: int) -> None:
        """Let readers read what was filled. What they read before goes later: they may have it in their plans."""
        shape, stream = shape_of(view.definition), view.stream
        before, gone = stream.online.get(shape), [one for one in stream.retired if ctx.now() - one[2] > RETIRED_S]
        for old, era, _ in gone:
            for face in faces_of(view.definition):
                target.store.drop(space_of(stream, ctx.tenant, old, face, era))
        if before == target.era and not gone and (generation <= stream.filled or not stream.chapters):
            return

        def work(tx: Writer) -> None:
            now = self._view(tx, view.ref)
            retired = [one for one in now.stream.retired if one not in gone]
            if before is not None and before != target.era:
                retired.append((shape, before, ctx.now()))
            online = {**now.stream.online, shape: target.era}
            keep(tx, now, replace(
                now.stream, online=online, retired=tuple(retired), filled=generation, filled_at=ctx.now()
            ))  # fmt: skip
            tx.emit("features.filled", now.ref, generation=generation, era=target.era)

        self._ledger.retry(ctx, work)
        self._moved()

    def _led(self, ctx: Context, stream: Stream) -> "_Led":
        """One fills a view at a time, so that no work is done twice."""
        return _Led(self._ledger, f"features/{ctx.tenant}/{stream.view}.{stream.rows}", ctx)


class _Led:
    """A lease held for a while."""

    def __init__(self, ledger: Ledger, name: str, ctx: Context) -> None:
        self._ledger, self._name, self._owner, self._ctx = ledger, name, new_id(), ctx

    def __enter__(self) -> None:
        if self._ledger.lease(self._name, self._owner, LEASE_S, self._ctx.now()) is None:
            raise Conflict("somebody fills this view at the moment", "try again in some seconds")

    def __exit__(self, *exc: object) -> None:
        self._ledger.release(self._name, self._owner)


class Work(NamedTuple):
    """An arrival that is not online yet, and a way to its rows."""

    generation: int
    num_rows: int
    what: str
    parts: Callable[[], Iterator["Arrived"]]


@dataclass(frozen=True, slots=True)
class Arrived:
    """Rows of one arrival, clustered; the spans tell which of several arrivals a row came with."""

    rows: Clustered
    spans: tuple[tuple[int, int], ...]


def _put(target: Target, arrived: Arrived, generation: int) -> int:
    definition = target.view.definition
    for face, fields in faces_of(definition).items():
        if not definition.windows:
            _put_rows(target, arrived.rows, face, Layout(fields))
        else:
            _put_states(target, arrived, face, generation)
    return len(arrived.rows.event)


def _put_rows(target: Target, rows: Clustered, face: str, layout: Layout) -> None:
    """Of each key the row that stands now, and those of later moments."""
    starts = rows.run_starts
    due = rows.event <= target.now_us
    counts = np.add.reduceat(due, starts[:-1], dtype=np.int64) if len(due) else np.zeros(0, np.int64)
    chosen = np.concatenate(((starts[:-1] + counts - 1)[counts > 0], np.flatnonzero(~due)))
    run = np.searchsorted(starts, chosen, side="right") - 1
    keys = rows.keys.packed_bytes()
    columns = {one.name: rows.column(one.name) for one in layout.fields}
    space = target.space(face)
    for start in range(0, len(chosen), PUT_ROWS):
        part = chosen[start : start + PUT_ROWS]
        taken = {name: column.take(part) for name, column in columns.items()}
        made = layout.encode(taken, rows.event[part], rows.created[part], rows.seq[part])
        named = keys.take(run[start : start + PUT_ROWS]).to_pylist()
        target.put(space, list(zip(named, made, strict=True)))


def _put_states(target: Target, arrived: Arrived, face: str, generation: int) -> None:
    """Of each key what it had and what came; a key that has seen this arrival is left as it is."""
    rows, windows, space = arrived.rows, target.view.windows_of(face), target.space(face)
    shape = tiles_shape(windows)
    if not windows:
        return
    names = sorted({one.of for one in windows if one.of})
    columns = {name: numbers_of(rows.column(name)) for name in names}
    keys, numbers = rows.keys.packed_bytes().to_pylist(), [first for _, first in arrived.spans]
    generations = np.array([one for one, _ in arrived.spans])[np.searchsorted(numbers, rows.seq, side="right") - 1]
    for start in range(0, len(keys), STATE_ROWS):
        stop = min(start + STATE_ROWS, len(keys))
        held = target.rows(space, keys[start:stop])
        seen = np.array([rank_of(row)[2] if row else 0 for row in held])
        lengths = np.diff(rows.run_starts[start : stop + 1])
        low, high = rows.run_starts[start], rows.run_starts[stop]
        wanted = low + np.flatnonzero(generations[low:high] > np.repeat(seen, lengths))
        counts = np.bincount(np.repeat(np.arange(stop - start), lengths)[wanted - low], minlength=stop - start)
        some = np.flatnonzero(counts)
        runs = np.concatenate(([0], np.cumsum(counts[some])))
        taken = {name: (take(values, wanted), valid[wanted]) for name, (values, valid) in columns.items()}
        made = build(runs, rows.event[wanted], rows.created[wanted], rows.seq[wanted], taken, windows, target.now_us)
        rank = pack_rank(0, 0, generation)
        fresh = []
        for at, state in zip(some, made, strict=True):
            row = held[at]
            whole = state if row is None else pack(merge(unpack(row[RANK_BYTES:], shape), unpack(state, shape)))
            fresh.append((keys[start + at], rank + whole))
        target.put(space, fresh)
