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

from falaj.asof.encrypted_online_store import EncryptedOnlineStore
from falaj.asof.label_lookup import to_window_values
from falaj.asof.range_queries import take_cells
from falaj.asof.row_layout import RowLayout
from falaj.asof.row_sources import ClusteredRows, cluster_table, open_partition_segment
from falaj.asof.window_state_operations import build_window_states, merge_states, pack_state, unpack_state
from falaj.asof.window_state_operations import get_state_shape as tiles_shape
from falaj.core.context import CallContext
from falaj.core.data import dataclass
from falaj.core.errors import Conflict, Unavailable
from falaj.core.event import generate_id
from falaj.core.online_rows import RANK_BYTES, pack_rank, unpack_entry, unpack_rank
from falaj.core.operation import operation
from falaj.core.ref import Ref
from falaj.features.row_stream import (
    RowSegment,
    RowStream,
    compute_online_shape,
    compute_space_name,
    list_column_groups,
    make_row_schema,
)
from falaj.features.segment_access import build_row_table, open_segment
from falaj.features.service_base import FeatureServiceBase, StoredView, put_stream
from falaj.features.unsealed_store import CipherFunction, transform_row
from falaj.store.codec import to_json
from falaj.store.ledger import Ledger, LedgerWriter

CALL_BUDGET_S = 5.0
"""How long one call works before it says how far it is."""
RETIRED_SPACE_TTL_S = 180.0
"""Longer than anybody reads by one plan."""
FILL_LEASE_S = 15.0
"""Whoever was killed holds up the next one so long. It is a courtesy: two who fill at once do no harm."""
_POLL_INTERVAL_S = 0.02
ROWS_PER_PUT = 25_000
"""In one transaction: the store keeps rows in the order of hashes, so each put touches pages all over it."""
STATES_PER_PUT = 2_000


@dataclass(frozen=True, slots=True)
class FillProgress:
    """How far the online store has what there is."""

    view: Ref
    generation: int
    rows: int
    """How many rows of the arrivals to fill were looked at."""
    total: int
    complete: bool


@dataclass(frozen=True, slots=True)
class FillMark:
    """How far a space is filled."""

    generation: int = 0
    """Everything up to this arrival is in."""
    part: int = 0
    """Of the next one, so many parts."""
    rows: int = 0
    what: str = ""
    """Which one that is: chapters are settled and merged, and then have other parts."""


@dataclass(frozen=True, slots=True)
class FillTarget:
    """Where an arrival goes."""

    store: EncryptedOnlineStore
    view: StoredView
    era: int
    tenant: str
    now_us: int
    seal: CipherFunction | None = None
    """How rows of a sealed view lie there: what the store's owner sees says nothing."""
    open: CipherFunction | None = None
    """What `seal` was given."""

    def rows(self, space: str, keys: list[bytes]) -> list[bytes | None]:
        """The newest row of each key, opened."""
        entries = self.store.get([(space, keys)])[0]
        stored_rows = [unpack_entry(entry)[-1] if entry else None for entry in entries]
        if self.open is None:
            return stored_rows
        decrypt = self.open
        return [row and transform_row(decrypt, space, key, row) for key, row in zip(keys, stored_rows, strict=True)]

    def put(self, space: str, rows: list[tuple[bytes, bytes]]) -> None:
        """Put rows, sealed where the view is."""
        if self.seal is not None:
            encrypt = self.seal
            rows = [(key, transform_row(encrypt, space, key, row)) for key, row in rows]
        self.store.put(space, rows, self.now_us)

    def space(self, group: str = "") -> str:
        """The space of a face."""
        return compute_space_name(
            self.view.stream, self.tenant, compute_online_shape(self.view.definition), group, self.era
        )

    def mark(self) -> FillMark:
        """How far it is; nowhere when it is new, came back empty, or holds rows whose key was retired."""
        if self.store.is_unreadable(self.space()):
            # Rows of equal rank are not replaced, so what cannot be read any more goes first.
            for group in list_column_groups(self.view.definition):
                self.store.drop(self.space(group))
        stored_mark = self.store.note(self.space())
        return FillMark(*json.loads(stored_mark)) if stored_mark else FillMark()

    def note(self, fill_mark: FillMark) -> None:
        """Remember how far it is."""
        self.store.note(self.space(), to_json([fill_mark.generation, fill_mark.part, fill_mark.rows, fill_mark.what]))


class FillOperations(FeatureServiceBase):
    """How the online store gets what arrived."""

    @operation(writes=("view",), has_outside_effects=True)
    def fill(
        self,
        ctx: CallContext,
        view: Annotated[Ref, "which view"],
        anew: Annotated[bool, "begin a new space, and switch readers to it when it is whole"] = False,
    ) -> FillProgress:
        """Put what arrived since the last time online, for some seconds; call again until it is complete.

        `falaj features materialize` brings in what the source has, does this, and shows how far it is.

        Example:
            falaj features fill view:fraud/spend
        """
        if anew:
            self._begin_epoch(ctx, view)
        registered = self._register_shape(ctx, view)
        with self._lease_fill(ctx, registered.stream):
            return self._fill_target(ctx, registered, CALL_BUDGET_S)

    def _refresh_after_push(self, ctx: CallContext, view: Ref) -> bool:
        """After a push: bring every shape that somebody reads up to date, where that is little; True when it is."""
        registered, deadline = self._register_shape(ctx, view), time.monotonic() + CALL_BUDGET_S / 10
        try:
            while time.monotonic() < deadline:
                with suppress(Conflict), self._lease_fill(ctx, registered.stream):
                    return self._refresh_all_shapes(ctx, registered)
                time.sleep(_POLL_INTERVAL_S)
            # Whoever fills now may have looked before our rows were there, or be dead.
            return self._refresh_all_shapes(ctx, registered)
        except (Conflict, Unavailable):
            return False  # the rows are safe; whoever fills next takes them along

    def _refresh_all_shapes(self, ctx: CallContext, registered: StoredView) -> bool:
        is_fresh = True
        for ref in dict.fromkeys((registered.ref, *registered.stream.shapes.values())):
            with self._ledger.read(ctx) as tx:
                shape_view = self._read_view(tx, ref)
            is_fresh = self._fill_target(ctx, shape_view, CALL_BUDGET_S / 5).complete and is_fresh
        return is_fresh

    def _fill_target(self, ctx: CallContext, view: StoredView, budget_s: float) -> FillProgress:
        target = FillTarget(
            self._get_online_store(ctx.tenant), view, view.stream.era, ctx.tenant, round(ctx.now() * 1e6)
        )
        if view.definition.sealed:
            encrypt, decrypt = (
                partial(method, ctx.tenant, view.zone) for method in (self._keyring.seal, self._keyring.unseal)
            )
            target = replace(target, seal=encrypt, open=decrypt)
        deadline = time.monotonic() + budget_s
        fill_mark = target.mark()
        work_items = self._list_work(ctx, view, fill_mark.generation)
        total_rows = sum(work_item.num_rows for work_item in work_items)
        seen_rows = 0
        for work_item in work_items:
            done_parts = fill_mark.part if fill_mark.what == work_item.what else 0
            seen_rows = fill_mark.rows if done_parts else seen_rows
            for number, arrival_part in enumerate(work_item.parts()):
                if number < done_parts:
                    continue
                seen_rows += _put_arrival(target, arrival_part, work_item.generation)
                fill_mark = FillMark(fill_mark.generation, number + 1, seen_rows, work_item.what)
                target.note(fill_mark)
                if time.monotonic() > deadline:
                    return FillProgress(view.ref, fill_mark.generation, seen_rows, total_rows, complete=False)
            fill_mark = FillMark(work_item.generation)
            target.note(fill_mark)
        if fill_mark == FillMark():
            target.note(fill_mark)
        self._publish_filled(ctx, view, target, fill_mark.generation)
        return FillProgress(view.ref, fill_mark.generation, seen_rows, total_rows, complete=True)

    def _list_work(self, ctx: CallContext, view: StoredView, since_generation: int) -> list["FillWork"]:
        """What is not online yet, oldest arrival first."""
        stream = view.stream
        work_items = [
            FillWork(
                arrival.generation,
                arrival.num_rows,
                str(arrival.faces[""]),
                partial(self._open_segment_rows, ctx, view, arrival),
            )
            for arrival in stream.chapters
            if arrival.generation > since_generation
        ]
        fresh_blocks = [
            arrival for arrival in stream.tail if arrival.generation > since_generation and arrival.num_rows
        ]
        types, schema = [arrival.type for arrival in view.entity.keys], make_row_schema(view.definition, view.entity)
        for arrival, rows in self._open_buffer().read(ctx, stream, fresh_blocks) if fresh_blocks else ():
            arrived_rows = ArrivedRows(
                cluster_table(build_row_table(rows.good, schema, arrival.seq), types),
                ((arrival.generation, arrival.seq),),
            )
            work_items.append(
                FillWork(arrival.generation, arrival.num_rows, arrival.id, partial(iter, (arrived_rows,)))
            )
        return sorted(work_items, key=lambda arrival: arrival.generation)

    def _open_segment_rows(self, ctx: CallContext, view: StoredView, segment: RowSegment) -> Iterator["ArrivedRows"]:
        types = [key.type for key in view.entity.keys]
        with open_segment(
            self._as_caller(ctx), segment, tuple(list_column_groups(view.definition)), view.arrival
        ) as segments:
            for partition_segment in segments:
                yield ArrivedRows(open_partition_segment(partition_segment, types), segment.spans)

    def _register_shape(self, ctx: CallContext, view: Ref) -> StoredView:
        """The view, with its shape among those that are kept fresh."""
        with self._ledger.read(ctx) as tx:
            registered = self._read_view(tx, view)
        shape = compute_online_shape(registered.definition)
        if shape in registered.stream.shapes:
            return registered

        def register_shape(tx: LedgerWriter) -> StoredView:
            current = self._read_view(tx, registered.ref)
            stream = replace(current.stream, shapes={**current.stream.shapes, shape: registered.ref})
            put_stream(tx, current, stream)
            tx.emit("features.shape", registered.ref, shape=shape)
            return self._read_view(tx, registered.ref)

        return self._ledger.retry(ctx, register_shape)

    def _begin_epoch(self, ctx: CallContext, view: Ref) -> None:
        def advance_epoch(tx: LedgerWriter) -> None:
            current = self._read_view(tx, view)
            put_stream(tx, current, replace(current.stream, era=current.stream.era + 1))
            tx.emit("features.refill", current.ref, era=current.stream.era + 1)

        self._ledger.retry(ctx, advance_epoch)

    def _publish_filled(self, ctx: CallContext, view: StoredView, target: FillTarget, generation: int) -> None:
        """Let readers read what was filled. What they read before goes later: they may have it in their plans."""
        shape, stream = compute_online_shape(view.definition), view.stream
        previous_epoch, expired_spaces = (
            stream.online.get(shape),
            [retired_space for retired_space in stream.retired if ctx.now() - retired_space[2] > RETIRED_SPACE_TTL_S],
        )
        for old_shape, epoch, _ in expired_spaces:
            for group in list_column_groups(view.definition):
                target.store.drop(compute_space_name(stream, ctx.tenant, old_shape, group, epoch))
        if previous_epoch == target.era and not expired_spaces and (generation <= stream.filled or not stream.chapters):
            return

        def record_filled(tx: LedgerWriter) -> None:
            current = self._read_view(tx, view.ref)
            retired = [retired_space for retired_space in current.stream.retired if retired_space not in expired_spaces]
            if previous_epoch is not None and previous_epoch != target.era:
                retired.append((shape, previous_epoch, ctx.now()))
            online = {**current.stream.online, shape: target.era}
            put_stream(tx, current, replace(
                current.stream, online=online, retired=tuple(retired), filled=generation, filled_at=ctx.now()
            ))  # fmt: skip
            tx.emit("features.filled", current.ref, generation=generation, era=target.era)

        self._ledger.retry(ctx, record_filled)
        self._clear_plans()

    def _lease_fill(self, ctx: CallContext, stream: RowStream) -> "_FillLease":
        """One fills a view at a time, so that no work is done twice."""
        return _FillLease(self._ledger, f"features/{ctx.tenant}/{stream.view}.{stream.rows}", ctx)


class _FillLease:
    """A lease held for a while."""

    def __init__(self, ledger: Ledger, name: str, ctx: CallContext) -> None:
        self._ledger, self._name, self._owner, self._ctx = ledger, name, generate_id(), ctx

    def __enter__(self) -> None:
        if self._ledger.lease(self._name, self._owner, FILL_LEASE_S, self._ctx.now()) is None:
            raise Conflict("somebody fills this view at the moment", "try again in some seconds")

    def __exit__(self, *exc: object) -> None:
        self._ledger.release(self._name, self._owner)


class FillWork(NamedTuple):
    """An arrival that is not online yet, and a way to its rows."""

    generation: int
    num_rows: int
    what: str
    parts: Callable[[], Iterator["ArrivedRows"]]


@dataclass(frozen=True, slots=True)
class ArrivedRows:
    """Rows of one arrival, clustered; the spans tell which of several arrivals a row came with."""

    rows: ClusteredRows
    spans: tuple[tuple[int, int], ...]


def _put_arrival(target: FillTarget, arrived: ArrivedRows, generation: int) -> int:
    definition = target.view.definition
    for group, fields in list_column_groups(definition).items():
        if not definition.windows:
            _put_rows(target, arrived.rows, group, RowLayout(fields))
        else:
            _put_states(target, arrived, group, generation)
    return len(arrived.rows.event)


def _put_rows(target: FillTarget, rows: ClusteredRows, group: str, layout: RowLayout) -> None:
    """Of each key the row that stands now, and those of later moments."""
    starts = rows.run_starts
    is_due = rows.event <= target.now_us
    counts = np.add.reduceat(is_due, starts[:-1], dtype=np.int64) if len(is_due) else np.zeros(0, np.int64)
    chosen_rows = np.concatenate(((starts[:-1] + counts - 1)[counts > 0], np.flatnonzero(~is_due)))
    key_numbers = np.searchsorted(starts, chosen_rows, side="right") - 1
    keys = rows.keys.packed_bytes()
    columns = {field.name: rows.column(field.name) for field in layout.fields}
    space = target.space(group)
    for start in range(0, len(chosen_rows), ROWS_PER_PUT):
        row_positions = chosen_rows[start : start + ROWS_PER_PUT]
        part_columns = {name: column.take(row_positions) for name, column in columns.items()}
        encoded_rows = layout.encode(
            part_columns, rows.event[row_positions], rows.created[row_positions], rows.seq[row_positions]
        )
        key_bytes = keys.take(key_numbers[start : start + ROWS_PER_PUT]).to_pylist()
        target.put(space, list(zip(key_bytes, encoded_rows, strict=True)))


def _put_states(target: FillTarget, arrived: ArrivedRows, group: str, generation: int) -> None:
    """Of each key what it had and what came; a key that has seen this arrival is left as it is."""
    rows, windows, space = arrived.rows, target.view.windows_of(group), target.space(group)
    shape = tiles_shape(windows)
    if not windows:
        return
    names = sorted({window.of for window in windows if window.of})
    columns = {name: to_window_values(rows.column(name)) for name in names}
    keys, numbers = rows.keys.packed_bytes().to_pylist(), [first for _, first in arrived.spans]
    generations = np.array([window for window, _ in arrived.spans])[
        np.searchsorted(numbers, rows.seq, side="right") - 1
    ]
    for start in range(0, len(keys), STATES_PER_PUT):
        stop = min(start + STATES_PER_PUT, len(keys))
        stored_rows = target.rows(space, keys[start:stop])
        seen_generations = np.array([unpack_rank(row)[2] if row else 0 for row in stored_rows])
        lengths = np.diff(rows.run_starts[start : stop + 1])
        low, high = rows.run_starts[start], rows.run_starts[stop]
        new_rows = low + np.flatnonzero(generations[low:high] > np.repeat(seen_generations, lengths))
        counts = np.bincount(np.repeat(np.arange(stop - start), lengths)[new_rows - low], minlength=stop - start)
        changed_keys = np.flatnonzero(counts)
        runs = np.concatenate(([0], np.cumsum(counts[changed_keys])))
        part_columns = {
            name: (take_cells(values, new_rows), valid[new_rows]) for name, (values, valid) in columns.items()
        }
        new_states = build_window_states(
            runs, rows.event[new_rows], rows.created[new_rows], rows.seq[new_rows], part_columns, windows, target.now_us
        )
        rank = pack_rank(0, 0, generation)
        changed_rows = []
        for key_position, state in zip(changed_keys, new_states, strict=True):
            row = stored_rows[key_position]
            merged_state = (
                state
                if row is None
                else pack_state(merge_states(unpack_state(row[RANK_BYTES:], shape), unpack_state(state, shape)))
            )
            changed_rows.append((keys[start + key_position], rank + merged_state))
        target.put(space, changed_rows)
