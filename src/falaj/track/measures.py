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

from falaj.core.context import Context
from falaj.core.crowd import OneForAll
from falaj.core.errors import Corrupt, FalajError, Unavailable
from falaj.core.event import new_id
from falaj.core.ports import Block, Series
from falaj.store.fits import can_ride
from falaj.store.ledger import Ledger, Writer
from falaj.store.records import Record
from falaj.track.points import (
    BLOCK,
    FOLD,
    Columns,
    Head,
    Point,
    Span,
    Spot,
    bounds,
    by_metric,
    distinct,
    newer,
    newest,
    pack_columns,
    pack_heads,
    pack_points,
    place,
    rank,
    read_cursor,
    unpack_columns,
    unpack_heads,
    unpack_points,
    write_cursor,
)
from falaj.track.records import Curve, Metric

TAIL, HEAD = "", "head"
MANY_BLOCKS, MANY_POINTS = 256, 16_384
_APART = 64
"""Runs that are begun together are settled so many blocks apart, some a little before they would have to be: all at
once they would hold up every call."""
_TOGETHER = 64
"""So many runs at once are looked at for what there is to settle of them."""
_THIN = 16
"""With fewer points than so many a metric, settling would rewrite more than it settles: they are only put together."""
_LONG = 16
"""A shelf of so many blocks is folded."""
_FINE = 4
"""At least so many folds make a bin; below that, every spot is looked at."""
_WATCHED = 100_000
_ALL = 1 << 62
_LOG = logging.getLogger(__name__)


class Measures:
    """Points in, curves and heads out. One instance a house; threads share it."""

    def __init__(self, series: Series, ledger: Ledger) -> None:
        self._series = series
        self._ledger = ledger
        self._local = _Staged()
        self._writes = OneForAll(self._write_all)
        self._mutex = threading.Lock()
        self._tails: OrderedDict[tuple[str, str], list[int]] = OrderedDict()
        self._settler = Settler(self.settle, self._with_tail)
        self._folder = Settler(self.fold)

    def stage(self, tx: Writer, ctx: Context, run: Record, points: Sequence[Point]) -> None:
        """Write points with the transaction or, where they lie elsewhere, once it is durable and before its caller
        hears of it.

        A named request is remembered in that transaction and a repeat of it writes nothing: its points go first.
        """
        block = self._sealed(
            (run.key.tenant, run.key.name, run.zone), TAIL, pack_points(points), len(points), ctx.now()
        )
        if tx.ride(self._series, (block,)):
            tx.after(lambda durable: self._count((block,)) if durable else None)
            return
        staged = self._local.early if ctx.keyed else self._local.blocks
        staged[block.id] = block
        if ctx.keyed:
            tx.before(lambda: self._write_staged(staged))
        tx.after(lambda durable: self._staged(staged, block, durable))

    def rides(self) -> bool:
        """Whether points are durable with the transaction that logs them, and nobody waits for them after it."""
        txn = self._ledger.store.begin(write=True)
        try:
            return can_ride(self._series) and self._series.ride((), txn)
        finally:
            txn.rollback()

    def write(self, blocks: Sequence[Block]) -> None:
        """Durable on return. Whoever comes while another writes waits, and then one writes for all that wait."""
        try:
            self._writes.do(blocks)
        except FalajError as error:
            raise Unavailable(error.message, error.hint) from error
        self._count(blocks)

    def heads(self, tenant: str, run: str) -> dict[str, Metric]:
        """The newest of each metric of one run."""
        return as_metrics(self.heads_of(tenant, (run,), strict=True).get(run, {}))

    def heads_of(self, tenant: str, runs: Sequence[str], *, strict: bool = False) -> dict[str, dict[str, Head]]:
        """The newest of each metric of many runs; strict: a damaged block is an error, and not only left out."""
        tails = self._tail(tenant, runs)
        found: dict[str, dict[str, Head]] = {}
        for block in (*self._series.read(tenant, runs, HEAD), *tails):
            found[block.series] = newer(found.get(block.series, {}), self.heads_in(block, strict=strict))
        return found

    def told(self, tenant: str, after: str) -> tuple[list[Block], str]:
        """What arrived since a cursor, sealed, and the cursor of now."""
        return self._series.changes(tenant, after)

    def heads_in(self, block: Block, *, strict: bool = False) -> dict[str, Head]:
        """The newest of each metric in a block."""
        try:
            plain = self._opened(block)
            return unpack_heads(plain) if block.shelf == HEAD else newest({}, unpack_points(plain))
        except Corrupt as error:
            if strict:
                raise
            # One run's damage must not hide all the others; whoever asks for that run hears of it.
            _LOG.warning("a block of points is damaged", extra={"run": block.series, "why": error.message})
            return {}

    def curve(
        self, run: tuple[str, str], metric: str, after: str, limit: int, bins: int, span: Span | None = None
    ) -> Curve:
        """The points of a metric by step and time: a page of them; or all of them, or of a span, down-sampled."""
        if bins:
            return self.curves(run, (metric,), bins, span)[0]
        columns = self._columns(self._arrived(run), metric, read_cursor(after), limit + 1)
        page = columns[:limit]
        more = len(columns) > limit
        points, whole = tuple(_metric(metric, one) for one in page), not after and not more
        return Curve(metric, points, write_cursor(page.spot(-1)) if more else "", len(points) if whole else None)

    def curves(
        self, run: tuple[str, str], metrics: Sequence[str], bins: int, span: Span | None = None
    ) -> tuple[Curve, ...]:
        """Several curves of a run, down-sampled; what has just arrived is read once for all of them."""
        arrived, found = self._arrived(run), list[Curve]()
        for metric in metrics:
            spots, total = self._from_folds(arrived, metric, bins, span) or self._from_spots(
                arrived, metric, bins, span
            )
            found.append(Curve(metric, tuple(_metric(metric, one) for one in spots), total=total))
        return tuple(found)

    def settle_soon(self, tenant: str, run: str) -> None:
        """Settle a run's points beside whoever works."""
        self._settler.ask((tenant, run))

    def settle(self, tenant: str, run: str) -> bool:
        """Move what lies on the shelf of arrivals to where it stays; False when another was first or nothing is due."""
        tail = self._series.read(tenant, (run,), TAIL)
        self._tails.pop((tenant, run), None)
        points = [point for block in tail for point in unpack_points(self._opened(block))]
        thin = len(points) < _THIN * len({point[0] for point in points})
        if not tail or (thin and len(tail) == 1):
            return False
        where, at = (tenant, run, tail[0].zone), tail[-1].at
        gone = [block.id for block in tail]
        if thin:
            unique = distinct(points)
            made = [self._sealed(where, TAIL, pack_points(unique), len(unique), at)]
        else:
            replaced, made = self._by_metric(where, points, at)
            gone += replaced
        return self._series.swap(tenant, run, gone, made)

    def _with_tail(self, tenant: str, runs: Sequence[str]) -> set[str]:
        """Those of these runs of which something lies on the shelf of arrivals; of most that are short nothing does."""
        return {block.series for block in self._series.read(tenant, runs, TAIL)}

    def fold(self, tenant: str, run: str) -> bool:
        """Fold the long curves of a run that have no folds; False when another was first or nothing is due."""
        old = self._series.read(tenant, (run,), HEAD)
        heads, made = unpack_heads(self._opened(old[-1])) if old else {}, list[Block]()
        for number in sorted(head[0] for head in heads.values()):
            if self._series.read(tenant, (run,), f"f{number}", "", 1):
                continue
            if len(self._series.read(tenant, (run,), f"m{number}", "", _LONG)) == _LONG:
                for block in self._series.read(tenant, (run,), f"m{number}"):
                    made.append(self._fold(block, unpack_columns(self._opened(block))))
        if not made:
            return False
        # Whoever settles replaces the head: what was read is still so if it is still there.
        head = self._sealed((tenant, run, old[-1].zone), HEAD, pack_heads(heads), len(heads), old[-1].at)
        return self._series.swap(tenant, run, [block.id for block in old], [*made, head])

    def close(self) -> None:
        """End the settling."""
        self._settler.close()
        self._folder.close()

    def _arrived(self, run: tuple[str, str]) -> "_Arrived":
        """What is not settled, by metric, and the heads of what is. In this order: nothing is missed between both."""
        tail = self._tail(run[0], (run[1],))
        heads = self._series.read(run[0], (run[1],), HEAD)
        points = [point for block in tail for point in unpack_points(self._opened(block))]
        return _Arrived(run, by_metric(points), unpack_heads(self._opened(heads[-1])) if heads else {})

    def _from_spots(self, arrived: "_Arrived", metric: str, bins: int, span: Span | None) -> tuple[Sequence[Spot], int]:
        """A curve of so many bins, every spot looked at, and how many there are."""
        whole = self._columns(arrived, metric, None, _ALL)
        if len(whole) >= _LONG * BLOCK:
            self._folder.ask(arrived.run)
        whole = whole.within(span) if span else whole
        return whole.binned(bins), len(whole)

    def _from_folds(
        self, arrived: "_Arrived", metric: str, bins: int, span: Span | None
    ) -> tuple[Sequence[Spot], int] | None:
        """The same without reading all of a long curve; None where it has no folds, or they would not do."""
        head = arrived.heads.get(metric)
        if head is None or (span and span[0]):
            return None
        low, high = bounds(span) if span else ("", "~")
        folds = [one for one in self._series.read(arrived.run[0], (arrived.run[1],), f"f{head[0]}", low)
                 if one.low <= high]  # fmt: skip
        inside = {one.id for one in folds if one.low >= low and one.high <= high}
        coarse = sum(one.length for one in folds if one.id in inside) >= _FINE * FOLD * bins
        if not folds or not (coarse or span):
            return None
        pieces, total = list[Columns](), 0
        for fold in folds:
            if coarse and fold.id in inside:
                pieces.append(unpack_columns(self._opened(fold)))
                total += fold.length
                continue
            spots = self._unfolded(fold)
            if spots is None:
                return None
            spots = spots.within(span) if span else spots
            pieces.append(spots.folded() if coarse else spots)
            total += len(spots)
        late = Columns.of(arrived.late.get(metric, ()))
        late = late.within(span) if span else late
        whole = Columns.joined(pieces)
        if len(late) and len(whole) and rank(late.spot(0)) <= rank(whole.spot(-1)):
            return None
        whole = Columns.joined((whole, late.folded() if coarse else late))
        return (whole.refolded(bins) if coarse else whole.binned(bins)), total + len(late)

    def _unfolded(self, fold: Block) -> Columns | None:
        """The spots that a fold stands for; None when they have just been settled anew."""
        near = self._series.read(fold.tenant, (fold.series,), f"m{fold.shelf[1:]}", fold.low, 3)
        return next((unpack_columns(self._opened(one)) for one in near if f"{one.id}f" == fold.id), None)

    def _fold(self, block: Block, spots: Columns) -> Block:
        """What stands beside a block."""
        where, plain = (block.tenant, block.series, block.zone), pack_columns(spots.folded())
        return self._sealed(where, f"f{block.shelf[1:]}", plain, spots, block.at, f"{block.id}f")

    def _columns(self, arrived: "_Arrived", metric: str, spot: Spot | None, least: int) -> Columns:
        """The spots of a metric after one, at least so many of them where there are so many."""
        late, head = Columns.of(arrived.late.get(metric, ())), arrived.heads.get(metric)
        if head is None:
            return late.after(spot)
        settled = self._settled(arrived.run, f"m{head[0]}", spot, least)
        return late.merged([columns.after(spot) for columns in settled]).after(spot)

    def _settled(self, run: tuple[str, str], shelf: str, spot: Spot | None, least: int) -> list[Columns]:
        """Blocks of a shelf from a spot on, in order: enough for `least` spots after it, or all there are."""
        low, most = place(spot) if spot else "", least // BLOCK + 8
        while True:
            blocks = self._series.read(run[0], (run[1],), shelf, low, most)
            # The first one may lie wholly before the spot, all but its end.
            if len(blocks) < most or sum(block.length for block in blocks[1:]) >= least:
                return [unpack_columns(self._opened(block)) for block in blocks]
            most *= 4

    def _by_metric(
        self, where: tuple[str, str, str], points: Sequence[Point], at: float
    ) -> tuple[list[str], list[Block]]:
        """Points sorted onto the shelves of their metrics, and a new head: which blocks go, and what comes."""
        old = self._series.read(where[0], (where[1],), HEAD)
        before = unpack_heads(self._opened(old[-1])) if old else {}
        heads = newest(before, points)
        gone, made = [block.id for block in old], list[Block]()
        for metric, spots in by_metric(points).items():
            known = before.get(metric)
            fresh = Columns.of(spots)
            first = place(fresh.spot(0))
            shelf, low = f"m{heads[metric][0]}", first if known is None else min(first, place(known[1:]))
            blocks = self._series.read(where[0], (where[1],), shelf, low)
            # Blocks must not overlap; and a small last one grows, like the tiles of a game that join in pairs.
            small = min(2 * len(fresh), BLOCK - 1)
            joined = [b for n, b in enumerate(blocks, 1) if b.high >= first or (n == len(blocks) and b.length <= small)]
            whole = fresh.merged([unpack_columns(self._opened(block)) for block in joined])
            pieces = [(self._sealed(where, shelf, pack_columns(one), one, at), one) for one in whole.cut(BLOCK)]
            made += [block for block, _ in pieces]
            names = {block.id for block in joined}
            # The last block reaches up to the newest spot: if any is folded, it is.
            if known and (folds := self._series.read(where[0], (where[1],), f"f{known[0]}", low)):
                made += [self._fold(*piece) for piece in pieces]
                gone += [fold.id for fold in folds if fold.id[:-1] in names]
            gone += names
        made.append(self._sealed(where, HEAD, pack_heads(heads), len(heads), at))
        return gone, made

    def _tail(self, tenant: str, runs: Sequence[str]) -> list[Block]:
        """What arrived and is not settled; a reader that meets too much of it has it settled."""
        tail = self._series.read(tenant, runs, TAIL)
        if len(tail) > MANY_BLOCKS:
            counts = Counter(block.series for block in tail)
            for run in [run for run, count in counts.items() if count > MANY_BLOCKS]:
                self.settle_soon(tenant, run)
        return tail

    def _sealed(
        self, where: tuple[str, str, str], shelf: str, plain: bytes, held: Columns | int, at: float, name: str = ""
    ) -> Block:
        tenant, run, zone = where
        low = high = ""
        if isinstance(held, Columns):
            low, high = place(held.spot(0)), place(held.spot(-1))
        told = shelf in (TAIL, HEAD)
        count = held if isinstance(held, int) else len(held)
        bare = Block(tenant, run, shelf, name or new_id(), zone, low, high, count, at, b"", told)
        cipher = self._ledger.cipher
        return bare._replace(data=plain if cipher is None else cipher.seal(tenant, zone, plain, _aad(bare)))

    def _opened(self, block: Block) -> bytes:
        cipher = self._ledger.cipher
        return block.data if cipher is None else cipher.unseal(block.tenant, block.zone, block.data, _aad(block))

    def _staged(self, staged: dict[str, Block], block: Block, durable: bool) -> None:
        """A transaction has ended. Those that end together write together: the first of them writes for all."""
        if not durable:
            staged.pop(block.id, None)
        elif block.id in staged:
            self._write_staged(staged)

    def _write_staged(self, staged: dict[str, Block]) -> None:
        blocks = list(staged.values())
        staged.clear()
        if blocks:
            self.write(blocks)

    def _write_all(self, jobs: Sequence[Sequence[Block]]) -> Sequence[FalajError | None]:
        try:
            self._series.append([block for blocks in jobs for block in blocks])
        except FalajError as error:
            return [error] * len(jobs)
        return [None] * len(jobs)

    def _count(self, blocks: Sequence[Block]) -> None:
        """Have a run settled once enough of it has arrived."""
        for block in blocks:
            name = (block.tenant, block.series)
            with self._mutex:
                arrived = self._tails.setdefault(name, [crc32(block.series.encode()) % _APART, 0])
                arrived[0] += 1
                arrived[1] += block.length
                due = arrived[0] >= MANY_BLOCKS or arrived[1] >= MANY_POINTS
                if due or len(self._tails) > _WATCHED:
                    self._tails.popitem(last=False) if not due else self._tails.pop(name)
            if due:
                self._settler.ask(name)


class _Arrived(NamedTuple):
    """Of one run: the points that are not settled, and the newest of each metric of those that are."""

    run: tuple[str, str]
    late: dict[str, list[Spot]]
    heads: dict[str, Head]


class _Staged(threading.local):
    def __init__(self) -> None:
        self.blocks: dict[str, Block] = {}
        self.early: dict[str, Block] = {}


class Settler:
    """One thread that settles what it is asked to, begun when it is first asked."""

    def __init__(
        self, settle: Callable[[str, str], bool], due: Callable[[str, Sequence[str]], set[str]] | None = None
    ) -> None:
        """`due` finds among several of a tenant, at once, those that there is something to settle of."""
        self._settle, self._due = settle, due
        self._asked: dict[tuple[str, str], None] = {}
        self._change = threading.Condition()
        self._thread: threading.Thread | None = None
        self._closed = False

    def ask(self, name: tuple[str, str]) -> None:
        """Settle this one soon; being asked twice before that is being asked once."""
        with self._change:
            if self._closed:
                return
            self._asked[name] = None
            if self._thread is None:
                self._thread = threading.Thread(target=self._drive, name="settler", daemon=True)
                self._thread.start()
            self._change.notify()

    def close(self) -> None:
        """End after what is under way; what is left is settled when it is next met."""
        with self._change:
            self._closed = True
            self._change.notify()
        if self._thread is not None:
            self._thread.join(timeout=30)

    def _drive(self) -> None:
        while True:
            with self._change:
                self._change.wait_for(lambda: self._asked or self._closed)
                if self._closed:
                    return
                tenant = next(iter(self._asked))[0]
                runs = [run for of, run in islice(self._asked, _TOGETHER) if of == tenant]
                for run in runs:
                    del self._asked[tenant, run]
            for run in self._chosen(tenant, runs):
                try:
                    self._settle(tenant, run)
                except FalajError as error:
                    # Nothing is lost: the points stay where they arrived, and are settled when there are more of them.
                    _LOG.warning("points of a run were not settled", extra={"tenant": tenant, "why": error.message})

    def _chosen(self, tenant: str, runs: Sequence[str]) -> Iterable[str]:
        if self._due is not None and len(runs) > 1:
            with suppress(FalajError):  # then each finds out for itself
                return sorted(self._due(tenant, runs))
        return runs


def as_metrics(heads: Mapping[str, Head]) -> dict[str, Metric]:
    """Heads as readers see them."""
    return {key: Metric(key, value, at, step) for key, (_, step, at, value) in heads.items()}


def _metric(key: str, spot: Spot) -> Metric:
    step, at, value = spot
    return Metric(key, value, at, step)


def _aad(block: Block) -> bytes:
    """What the ciphertext is bound to: all that stands beside it in the clear. No part can hold a NUL."""
    parts = ("measures", *block[:7], str(block.length), repr(block.at))
    return "\0".join(parts).encode()
