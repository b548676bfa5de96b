"""Measures: the points of runs on the Series port. Sealed, written together, settled into blocks by metric.

What is logged lands on the shelf "" as it came, one block a call. Once a run has many of those they are settled: its
points go, sorted, onto one shelf for each metric, in blocks of up to 4096 that do not overlap, and the newest of each
metric onto the shelf "head". A reader reads "" first and the rest after: what moves meanwhile it meets twice, and never
misses.

A long curve has folds, from the first time that somebody wants it drawn: beside each block of its shelf a small one
with the lowest, the highest and the last of every 64 spots. A shelf has folds for all its blocks or for none.
"""

import logging
import threading
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from typing import NamedTuple
from zlib import crc32

from falaj.core.coalescer import WriteCoalescer
from falaj.core.context import CallContext
from falaj.core.errors import CorruptData, FalajError, Unavailable
from falaj.core.event import generate_id
from falaj.core.ports import SeriesBlock, SeriesStore
from falaj.store.ledger import Ledger, LedgerWriter
from falaj.store.records import LedgerRecord
from falaj.store.store_capabilities import supports_transactional_append
from falaj.track.metric_points import (
    MAX_BLOCK_SPOTS,
    SPOTS_PER_FOLD,
    CurveSpan,
    CurveSpot,
    LatestPoint,
    MetricPoint,
    SpotColumns,
    distinct_points,
    format_cursor,
    format_place,
    group_by_metric,
    merge_latest,
    pack_columns,
    pack_heads,
    pack_points,
    parse_cursor,
    span_places,
    spot_rank,
    unpack_columns,
    unpack_heads,
    unpack_points,
    update_latest,
)
from falaj.track.records import Curve, Metric

ARRIVALS_TIER, HEADS_TIER = "", "head"
COMPACT_AFTER_BLOCKS, COMPACT_AFTER_POINTS = 256, 16_384
_COMPACTION_SPREAD_BLOCKS = 64
"""Runs that are begun together are settled so many blocks apart, some a little before they would have to be: all at
once they would hold up every call."""
_COMPACTION_BATCH_RUNS = 64
"""So many runs at once are looked at for what there is to settle of them."""
_MIN_POINTS_PER_METRIC = 16
"""With fewer points than so many a metric, settling would rewrite more than it settles: they are only put together."""
_MIN_FOLDED_BLOCKS = 16
"""A shelf of so many blocks is folded."""
_MIN_FOLDS_PER_BIN = 4
"""At least so many folds make a bin; below that, every spot is looked at."""
_MAX_WATCHED_RUNS = 100_000
_NO_LIMIT = 1 << 62
_LOG = logging.getLogger(__name__)


class MetricStore:
    """Points in, curves and heads out. One instance a house; threads share it."""

    def __init__(self, series: SeriesStore, ledger: Ledger) -> None:
        self._series = series
        self._ledger = ledger
        self._staged_by_thread = _StagedBlocks()
        self._write_coalescer = WriteCoalescer(self._write_all)
        self._tails_lock = threading.Lock()
        self._arrived_counts: OrderedDict[tuple[str, str], list[int]] = OrderedDict()
        self._compaction_worker = CompactionWorker(self.settle, self._runs_with_arrivals)
        self._fold_worker = CompactionWorker(self.fold)

    def stage(self, writer: LedgerWriter, ctx: CallContext, run: LedgerRecord, points: Sequence[MetricPoint]) -> None:
        """Write points with the transaction or, where they lie elsewhere, once it is durable and before its caller
        hears of it.

        A named request is remembered in that transaction and a repeat of it writes nothing: its points go first.
        """
        block = self._seal_block(
            (run.key.tenant, run.key.name, run.zone), ARRIVALS_TIER, pack_points(points), len(points), ctx.now()
        )
        if writer.ride(self._series, (block,)):
            writer.after(lambda is_durable: self._count_arrived((block,)) if is_durable else None)
            return
        staged_blocks = self._staged_by_thread.early if ctx.keyed else self._staged_by_thread.blocks
        staged_blocks[block.id] = block
        if ctx.keyed:
            writer.before(lambda: self._write_staged(staged_blocks))
        writer.after(lambda is_durable: self._on_transaction_end(staged_blocks, block, is_durable))

    def rides(self) -> bool:
        """Whether points are durable with the transaction that logs them, and nobody waits for them after it."""
        transaction = self._ledger.store.begin(write=True)
        try:
            return supports_transactional_append(self._series) and self._series.ride((), transaction)
        finally:
            transaction.rollback()

    def write(self, blocks: Sequence[SeriesBlock]) -> None:
        """Durable on return. Whoever comes while another writes waits, and then one writes for all that wait."""
        try:
            self._write_coalescer.do(blocks)
        except FalajError as error:
            raise Unavailable(error.message, error.hint) from error
        self._count_arrived(blocks)

    def heads(self, tenant: str, run: str) -> dict[str, Metric]:
        """The newest of each metric of one run."""
        return to_metrics(self.heads_of(tenant, (run,), raises_on_damage=True).get(run, {}))

    def heads_of(
        self, tenant: str, runs: Sequence[str], *, raises_on_damage: bool = False
    ) -> dict[str, dict[str, LatestPoint]]:
        """The newest of each metric of many runs; strict: a damaged block is an error, and not only left out."""
        arrived_blocks = self._read_tail(tenant, runs)
        heads_by_run: dict[str, dict[str, LatestPoint]] = {}
        for block in (*self._series.read(tenant, runs, HEADS_TIER), *arrived_blocks):
            heads_by_run[block.series] = merge_latest(
                heads_by_run.get(block.series, {}), self.heads_in(block, raises_on_damage=raises_on_damage)
            )
        return heads_by_run

    def told(self, tenant: str, after: str) -> tuple[list[SeriesBlock], str]:
        """What arrived since a cursor, sealed, and the cursor of now."""
        return self._series.changes(tenant, after)

    def heads_in(self, block: SeriesBlock, *, raises_on_damage: bool = False) -> dict[str, LatestPoint]:
        """The newest of each metric in a block."""
        try:
            decrypted = self._open_block(block)
            return unpack_heads(decrypted) if block.shelf == HEADS_TIER else update_latest({}, unpack_points(decrypted))
        except CorruptData as error:
            if raises_on_damage:
                raise
            # One run's damage must not hide all the others; whoever asks for that run hears of it.
            _LOG.warning("a block of points is damaged", extra={"run": block.series, "why": error.message})
            return {}

    def curve(
        self, run: tuple[str, str], metric: str, after: str, limit: int, bins: int, span: CurveSpan | None = None
    ) -> Curve:
        """The points of a metric by step and time: a page of them; or all of them, or of a span, down-sampled."""
        if bins:
            return self.curves(run, (metric,), bins, span)[0]
        columns = self._read_columns(self._read_arrived(run), metric, parse_cursor(after), limit + 1)
        page = columns[:limit]
        has_more = len(columns) > limit
        points, is_whole_curve = tuple(_to_metric(metric, spot) for spot in page), not after and not has_more
        return Curve(
            metric, points, format_cursor(page.spot(-1)) if has_more else "", len(points) if is_whole_curve else None
        )

    def curves(
        self, run: tuple[str, str], metrics: Sequence[str], bins: int, span: CurveSpan | None = None
    ) -> tuple[Curve, ...]:
        """Several curves of a run, down-sampled; what has just arrived is read once for all of them."""
        arrived, drawn_curves = self._read_arrived(run), list[Curve]()
        for metric in metrics:
            spots, total = self._bin_folds(arrived, metric, bins, span) or self._bin_spots(arrived, metric, bins, span)
            drawn_curves.append(Curve(metric, tuple(_to_metric(metric, spot) for spot in spots), total=total))
        return tuple(drawn_curves)

    def settle_soon(self, tenant: str, run: str) -> None:
        """Settle a run's points beside whoever works."""
        self._compaction_worker.ask((tenant, run))

    def settle(self, tenant: str, run: str) -> bool:
        """Move what lies on the shelf of arrivals to where it stays; False when another was first or nothing is due."""
        arrived_blocks = self._series.read(tenant, (run,), ARRIVALS_TIER)
        self._arrived_counts.pop((tenant, run), None)
        points = [point for block in arrived_blocks for point in unpack_points(self._open_block(block))]
        is_thin = len(points) < _MIN_POINTS_PER_METRIC * len({point[0] for point in points})
        if not arrived_blocks or (is_thin and len(arrived_blocks) == 1):
            return False
        run_and_zone, newest_at = (tenant, run, arrived_blocks[0].zone), arrived_blocks[-1].at
        replaced_ids = [block.id for block in arrived_blocks]
        if is_thin:
            deduplicated = distinct_points(points)
            new_blocks = [
                self._seal_block(run_and_zone, ARRIVALS_TIER, pack_points(deduplicated), len(deduplicated), newest_at)
            ]
        else:
            metric_block_ids, new_blocks = self._compact_by_metric(run_and_zone, points, newest_at)
            replaced_ids += metric_block_ids
        return self._series.swap(tenant, run, replaced_ids, new_blocks)

    def _runs_with_arrivals(self, tenant: str, runs: Sequence[str]) -> set[str]:
        """Those of these runs of which something lies on the shelf of arrivals; of most that are short nothing does."""
        return {block.series for block in self._series.read(tenant, runs, ARRIVALS_TIER)}

    def fold(self, tenant: str, run: str) -> bool:
        """Fold the long curves of a run that have no folds; False when another was first or nothing is due."""
        old_heads = self._series.read(tenant, (run,), HEADS_TIER)
        heads, new_blocks = unpack_heads(self._open_block(old_heads[-1])) if old_heads else {}, list[SeriesBlock]()
        for metric_number in sorted(head[0] for head in heads.values()):
            if self._series.read(tenant, (run,), f"f{metric_number}", "", 1):
                continue
            if (
                len(self._series.read(tenant, (run,), f"m{metric_number}", "", _MIN_FOLDED_BLOCKS))
                == _MIN_FOLDED_BLOCKS
            ):
                for block in self._series.read(tenant, (run,), f"m{metric_number}"):
                    new_blocks.append(self._create_fold(block, unpack_columns(self._open_block(block))))
        if not new_blocks:
            return False
        # Whoever settles replaces the head: what was read is still so if it is still there.
        head = self._seal_block(
            (tenant, run, old_heads[-1].zone), HEADS_TIER, pack_heads(heads), len(heads), old_heads[-1].at
        )
        return self._series.swap(tenant, run, [block.id for block in old_heads], [*new_blocks, head])

    def close(self) -> None:
        """End the settling."""
        self._compaction_worker.close()
        self._fold_worker.close()

    def _read_arrived(self, run: tuple[str, str]) -> "_ArrivedPoints":
        """What is not settled, by metric, and the heads of what is. In this order: nothing is missed between both."""
        arrived_blocks = self._read_tail(run[0], (run[1],))
        heads = self._series.read(run[0], (run[1],), HEADS_TIER)
        points = [point for block in arrived_blocks for point in unpack_points(self._open_block(block))]
        return _ArrivedPoints(run, group_by_metric(points), unpack_heads(self._open_block(heads[-1])) if heads else {})

    def _bin_spots(
        self, arrived: "_ArrivedPoints", metric: str, bins: int, span: CurveSpan | None
    ) -> tuple[Sequence[CurveSpot], int]:
        """A curve of so many bins, every spot looked at, and how many there are."""
        all_spots = self._read_columns(arrived, metric, None, _NO_LIMIT)
        if len(all_spots) >= _MIN_FOLDED_BLOCKS * MAX_BLOCK_SPOTS:
            self._fold_worker.ask(arrived.run)
        all_spots = all_spots.within(span) if span else all_spots
        return all_spots.binned(bins), len(all_spots)

    def _bin_folds(
        self, arrived: "_ArrivedPoints", metric: str, bins: int, span: CurveSpan | None
    ) -> tuple[Sequence[CurveSpot], int] | None:
        """The same without reading all of a long curve; None where it has no folds, or they would not do."""
        head = arrived.heads.get(metric)
        if head is None or (span and span[0]):
            return None
        low_place, high_place = span_places(span) if span else ("", "~")
        folds = [
            fold_block
            for fold_block in self._series.read(arrived.run[0], (arrived.run[1],), f"f{head[0]}", low_place)
            if fold_block.low <= high_place
        ]
        inside_ids = {
            fold_block.id for fold_block in folds if fold_block.low >= low_place and fold_block.high <= high_place
        }
        uses_folds = (
            sum(fold_block.length for fold_block in folds if fold_block.id in inside_ids)
            >= _MIN_FOLDS_PER_BIN * SPOTS_PER_FOLD * bins
        )
        if not folds or not (uses_folds or span):
            return None
        pieces, total = list[SpotColumns](), 0
        for fold in folds:
            if uses_folds and fold.id in inside_ids:
                pieces.append(unpack_columns(self._open_block(fold)))
                total += fold.length
                continue
            spots = self._read_unfolded(fold)
            if spots is None:
                return None
            spots = spots.within(span) if span else spots
            pieces.append(spots.folded() if uses_folds else spots)
            total += len(spots)
        late_spots = SpotColumns.of(arrived.late.get(metric, ()))
        late_spots = late_spots.within(span) if span else late_spots
        joined_columns = SpotColumns.joined(pieces)
        if (
            len(late_spots)
            and len(joined_columns)
            and spot_rank(late_spots.spot(0)) <= spot_rank(joined_columns.spot(-1))
        ):
            return None
        joined_columns = SpotColumns.joined((joined_columns, late_spots.folded() if uses_folds else late_spots))
        return (joined_columns.refolded(bins) if uses_folds else joined_columns.binned(bins)), total + len(late_spots)

    def _read_unfolded(self, fold: SeriesBlock) -> SpotColumns | None:
        """The spots that a fold stands for; None when they have just been settled anew."""
        nearby_blocks = self._series.read(fold.tenant, (fold.series,), f"m{fold.shelf[1:]}", fold.low, 3)
        return next(
            (
                unpack_columns(self._open_block(candidate))
                for candidate in nearby_blocks
                if f"{candidate.id}f" == fold.id
            ),
            None,
        )

    def _create_fold(self, block: SeriesBlock, spots: SpotColumns) -> SeriesBlock:
        """What stands beside a block."""
        run_and_zone, packed = (block.tenant, block.series, block.zone), pack_columns(spots.folded())
        return self._seal_block(run_and_zone, f"f{block.shelf[1:]}", packed, spots, block.at, f"{block.id}f")

    def _read_columns(
        self, arrived: "_ArrivedPoints", metric: str, after_spot: CurveSpot | None, min_spots: int
    ) -> SpotColumns:
        """The spots of a metric after one, at least so many of them where there are so many."""
        late_spots, head = SpotColumns.of(arrived.late.get(metric, ())), arrived.heads.get(metric)
        if head is None:
            return late_spots.after(after_spot)
        settled = self._read_compacted(arrived.run, f"m{head[0]}", after_spot, min_spots)
        return late_spots.merged([columns.after(after_spot) for columns in settled]).after(after_spot)

    def _read_compacted(
        self, run: tuple[str, str], tier: str, spot: CurveSpot | None, min_spots: int
    ) -> list[SpotColumns]:
        """Blocks of a shelf from a spot on, in order: enough for `min_spots` spots after it, or all there are."""
        from_place, block_limit = format_place(spot) if spot else "", min_spots // MAX_BLOCK_SPOTS + 8
        while True:
            blocks = self._series.read(run[0], (run[1],), tier, from_place, block_limit)
            # The first one may lie wholly before the spot, all but its end.
            if len(blocks) < block_limit or sum(block.length for block in blocks[1:]) >= min_spots:
                return [unpack_columns(self._open_block(block)) for block in blocks]
            block_limit *= 4

    def _compact_by_metric(
        self, run_and_zone: tuple[str, str, str], points: Sequence[MetricPoint], newest_at: float
    ) -> tuple[list[str], list[SeriesBlock]]:
        """Points sorted onto the shelves of their metrics, and a new head: which blocks go, and what comes."""
        old_heads = self._series.read(run_and_zone[0], (run_and_zone[1],), HEADS_TIER)
        heads_before = unpack_heads(self._open_block(old_heads[-1])) if old_heads else {}
        heads = update_latest(heads_before, points)
        replaced_ids, new_blocks = [block.id for block in old_heads], list[SeriesBlock]()
        for metric, spots in group_by_metric(points).items():
            known_head = heads_before.get(metric)
            new_columns = SpotColumns.of(spots)
            first_place = format_place(new_columns.spot(0))
            tier, from_place = (
                f"m{heads[metric][0]}",
                first_place if known_head is None else min(first_place, format_place(known_head[1:])),
            )
            blocks = self._series.read(run_and_zone[0], (run_and_zone[1],), tier, from_place)
            # Blocks must not overlap; and a small last one grows, like the tiles of a game that join in pairs.
            small_limit = min(2 * len(new_columns), MAX_BLOCK_SPOTS - 1)
            joined_blocks = [
                block_candidate
                for block_number, block_candidate in enumerate(blocks, 1)
                if block_candidate.high >= first_place
                or (block_number == len(blocks) and block_candidate.length <= small_limit)
            ]
            merged_columns = new_columns.merged([unpack_columns(self._open_block(block)) for block in joined_blocks])
            pieces = [
                (
                    self._seal_block(run_and_zone, tier, pack_columns(column_piece), column_piece, newest_at),
                    column_piece,
                )
                for column_piece in merged_columns.cut(MAX_BLOCK_SPOTS)
            ]
            new_blocks += [block for block, _ in pieces]
            names = {block.id for block in joined_blocks}
            # The last block reaches up to the newest spot: if any is folded, it is.
            if known_head and (
                folds := self._series.read(run_and_zone[0], (run_and_zone[1],), f"f{known_head[0]}", from_place)
            ):
                new_blocks += [self._create_fold(*piece) for piece in pieces]
                replaced_ids += [fold.id for fold in folds if fold.id[:-1] in names]
            replaced_ids += names
        new_blocks.append(self._seal_block(run_and_zone, HEADS_TIER, pack_heads(heads), len(heads), newest_at))
        return replaced_ids, new_blocks

    def _read_tail(self, tenant: str, runs: Sequence[str]) -> list[SeriesBlock]:
        """What arrived and is not settled; a reader that meets too much of it has it settled."""
        arrived_blocks = self._series.read(tenant, runs, ARRIVALS_TIER)
        if len(arrived_blocks) > COMPACT_AFTER_BLOCKS:
            counts = Counter(block.series for block in arrived_blocks)
            for run in [run for run, count in counts.items() if count > COMPACT_AFTER_BLOCKS]:
                self.settle_soon(tenant, run)
        return arrived_blocks

    def _seal_block(
        self,
        run_and_zone: tuple[str, str, str],
        tier: str,
        packed: bytes,
        columns_or_count: SpotColumns | int,
        newest_at: float,
        name: str = "",
    ) -> SeriesBlock:
        tenant, run, zone = run_and_zone
        low = high = ""
        if isinstance(columns_or_count, SpotColumns):
            low, high = format_place(columns_or_count.spot(0)), format_place(columns_or_count.spot(-1))
        is_in_changes = tier in (ARRIVALS_TIER, HEADS_TIER)
        count = columns_or_count if isinstance(columns_or_count, int) else len(columns_or_count)
        unsealed_block = SeriesBlock(
            tenant, run, tier, name or generate_id(), zone, low, high, count, newest_at, b"", is_in_changes
        )
        cipher = self._ledger.cipher
        return unsealed_block._replace(
            data=packed if cipher is None else cipher.seal(tenant, zone, packed, _associated_data(unsealed_block))
        )

    def _open_block(self, block: SeriesBlock) -> bytes:
        cipher = self._ledger.cipher
        return (
            block.data
            if cipher is None
            else cipher.unseal(block.tenant, block.zone, block.data, _associated_data(block))
        )

    def _on_transaction_end(self, staged_blocks: dict[str, SeriesBlock], block: SeriesBlock, is_durable: bool) -> None:
        """A transaction has ended. Those that end together write together: the first of them writes for all."""
        if not is_durable:
            staged_blocks.pop(block.id, None)
        elif block.id in staged_blocks:
            self._write_staged(staged_blocks)

    def _write_staged(self, staged_blocks: dict[str, SeriesBlock]) -> None:
        blocks = list(staged_blocks.values())
        staged_blocks.clear()
        if blocks:
            self.write(blocks)

    def _write_all(self, jobs: Sequence[Sequence[SeriesBlock]]) -> Sequence[FalajError | None]:
        try:
            self._series.append([block for blocks in jobs for block in blocks])
        except FalajError as error:
            return [error] * len(jobs)
        return [None] * len(jobs)

    def _count_arrived(self, blocks: Sequence[SeriesBlock]) -> None:
        """Have a run settled once enough of it has arrived."""
        for block in blocks:
            name = (block.tenant, block.series)
            with self._tails_lock:
                arrived_counts = self._arrived_counts.setdefault(
                    name, [crc32(block.series.encode()) % _COMPACTION_SPREAD_BLOCKS, 0]
                )
                arrived_counts[0] += 1
                arrived_counts[1] += block.length
                is_due = arrived_counts[0] >= COMPACT_AFTER_BLOCKS or arrived_counts[1] >= COMPACT_AFTER_POINTS
                if is_due or len(self._arrived_counts) > _MAX_WATCHED_RUNS:
                    self._arrived_counts.popitem(last=False) if not is_due else self._arrived_counts.pop(name)
            if is_due:
                self._compaction_worker.ask(name)


class _ArrivedPoints(NamedTuple):
    """Of one run: the points that are not settled, and the newest of each metric of those that are."""

    run: tuple[str, str]
    late: dict[str, list[CurveSpot]]
    heads: dict[str, LatestPoint]


class _StagedBlocks(threading.local):
    def __init__(self) -> None:
        self.blocks: dict[str, SeriesBlock] = {}
        self.early: dict[str, SeriesBlock] = {}


class CompactionWorker:
    """One thread that settles what it is asked to, begun when it is first asked."""

    def __init__(
        self, compact_run: Callable[[str, str], bool], find_due: Callable[[str, Sequence[str]], set[str]] | None = None
    ) -> None:
        """`find_due` finds among several of a tenant, at once, those that there is something to settle of."""
        self._compact_run, self._find_due = compact_run, find_due
        self._queued_runs: dict[tuple[str, str], None] = {}
        self._condition = threading.Condition()
        self._thread: threading.Thread | None = None
        self._is_closed = False

    def ask(self, name: tuple[str, str]) -> None:
        """Settle this one soon; being asked twice before that is being asked once."""
        with self._condition:
            if self._is_closed:
                return
            self._queued_runs[name] = None
            if self._thread is None:
                self._thread = threading.Thread(target=self._run_worker, name="settler", daemon=True)
                self._thread.start()
            self._condition.notify()

    def close(self) -> None:
        """End after what is under way; what is left is settled when it is next met."""
        with self._condition:
            self._is_closed = True
            self._condition.notify()
        if self._thread is not None:
            self._thread.join(timeout=30)

    def _run_worker(self) -> None:
        while True:
            with self._condition:
                self._condition.wait_for(lambda: self._queued_runs or self._is_closed)
                if self._is_closed:
                    return
                tenant = next(iter(self._queued_runs))[0]
                runs = [
                    run for run_tenant, run in islice(self._queued_runs, _COMPACTION_BATCH_RUNS) if run_tenant == tenant
                ]
                for run in runs:
                    del self._queued_runs[tenant, run]
            for run in self._choose_due(tenant, runs):
                try:
                    self._compact_run(tenant, run)
                except FalajError as error:
                    # Nothing is lost: the points stay where they arrived, and are settled when there are more of them.
                    _LOG.warning("points of a run were not settled", extra={"tenant": tenant, "why": error.message})

    def _choose_due(self, tenant: str, runs: Sequence[str]) -> Iterable[str]:
        if self._find_due is not None and len(runs) > 1:
            with suppress(FalajError):  # then each finds out for itself
                return sorted(self._find_due(tenant, runs))
        return runs


def to_metrics(heads: Mapping[str, LatestPoint]) -> dict[str, Metric]:
    """Heads as readers see them."""
    return {key: Metric(key, value, logged_at, step) for key, (_, step, logged_at, value) in heads.items()}


def _to_metric(key: str, spot: CurveSpot) -> Metric:
    step, logged_at, value = spot
    return Metric(key, value, logged_at, step)


def _associated_data(block: SeriesBlock) -> bytes:
    """What the ciphertext is bound to: all that stands beside it in the clear. No part can hold a NUL."""
    parts = ("measures", *block[:7], str(block.length), repr(block.at))
    return "\0".join(parts).encode()
