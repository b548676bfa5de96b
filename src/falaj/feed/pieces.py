"""Samples that lie in pieces: row groups of Parquet, batches of Arrow, shards. Pieces are held while they are needed.

Shuffled in three levels: the pieces, `window` of them at a time, and the samples inside a window. Which window a
position falls into is a function, so any step can be begun at once, and only a window or two is ever in memory.
"""

import itertools
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from falaj.feed.dealing import Dealer, Window
from falaj.feed.order import Ids, Order, mix
from falaj.feed.plan import Arranged


class Listed(Protocol):
    """A column whose values are no array: texts, bytes, lists, numbers with gaps."""

    def pick(self, rows: Ids) -> list[Any]:
        """The values of these rows."""


Column = NDArray[Any] | Listed
Told = Callable[[Window], None]
_TOLD = 64
"""So many windows that were looked up and not yet loaded are known of, at most."""


class Block:
    """Columns of some pieces, of one after the other."""

    def __init__(self, columns: Mapping[str, Column]) -> None:
        self.columns = columns

    def pick(self, rows: Ids) -> dict[str, Any]:
        """The values of these rows."""
        # take, not [rows]: several times faster for narrow rows.
        return {
            name: column.take(rows, axis=0) if isinstance(column, np.ndarray) else column.pick(rows)
            for name, column in self.columns.items()
        }


class Pieces:
    """`load(pieces)` gives some pieces, `joined` ones in one go; piece n has `counts[n]` samples. Where they are
    `dealt`, each is loaded alone, and goes to the batches of its window."""

    transform: Callable[[Any], Any] | None = None

    def __init__(
        self,
        counts: Sequence[int],
        load: Callable[[list[int]], Block],
        *,
        size_bytes: int,
        window: int = 0,
        joined: bool = False,
        dealt: bool = False,
        inline: bool = False,
    ) -> None:
        self.counts, self._load, self._joined = np.asarray(counts, np.int64), load, joined
        self.inline = inline
        """Whether loading only maps a file, so that taking is a mere copy."""
        # About two megabytes: enough to forget what a turn costs, little enough to stay near the processor.
        self.chunk = max(1, min(4096, (sum(counts) << 21) // max(1, size_bytes)))
        self.window = window if 0 < window < len(counts) else 0
        self._ends = np.cumsum(self.counts)
        self._starts = self._ends - self.counts
        even = len(counts) > 0 and 0 < counts[-1] <= counts[0] and set(counts[:-1]) <= {counts[0]}
        self._even = counts[0] if even else 0
        self._held: dict[int, tuple[Future[Block], int]] = {}
        self._told: deque[Window] = deque(maxlen=_TOLD)
        self._lock = threading.Lock()
        self._dealer = Dealer(self._ends, self._told, self._lock, self._arrays) if dealt and self.window else None

    def __len__(self) -> int:
        return int(self._ends[-1]) if len(self._ends) else 0

    def order(self, seed: int, epoch: int) -> Arranged | None:
        """Windows of pieces, or any order where all pieces are at hand."""
        told = self._tell if self.window else None
        return Windows(self.counts, self.window, seed, epoch, told, whole=self._dealer is not None) if told else None

    def take(self, ids: Ids) -> dict[str, Any]:
        """These samples, out of each block that has some of them."""
        return self.lots(ids[None])[0][0]

    def lots(self, ids: Ids) -> list[tuple[dict[str, Any], int]]:
        """A batch for each row of ids, many in one lot, and how many."""
        runs = self._dealer.take(ids.ravel()) if self._dealer else None
        if runs is None:
            return self._gathered(ids)
        ends = np.cumsum([len(next(iter(run.values()))) for run in runs])
        return [(_out_of(runs, ends.tolist(), some), number) for some, number in _parts(ends[:-1], *ids.shape)]

    def _arrays(self, piece: int) -> dict[str, NDArray[Any]] | None:
        """The columns of a piece, to be dealt. Where some are no arrays nothing is."""
        columns = self._load([piece]).columns
        arrays = {name: column for name, column in columns.items() if isinstance(column, np.ndarray)}
        if len(arrays) < len(columns):
            self._dealer = None
        return arrays if self._dealer else None

    def _gathered(self, ids: Ids) -> list[tuple[dict[str, Any], int]]:
        """Out of each block that has some. A batch over the edge of two is a lot of its own: the others are taken
        whole, and nothing of them is copied."""
        if len(self.counts) == 1:
            return [(self._get([0])[0][0].pick(ids.ravel()), len(ids))]
        blocks, mine, rows = self._found(ids.ravel())
        if len(blocks) == 1:
            return [(blocks[0].pick(rows), len(ids))]
        turns = np.flatnonzero(np.diff(mine)) + 1
        # What is shuffled over all blocks is not cut.
        parts = _parts(turns if len(turns) < len(blocks) else turns[:0], *ids.shape)
        return [(_merged(blocks, mine[some], rows[some]), number) for some, number in parts]

    def _found(self, ids: Ids) -> tuple[list[Block], Ids, Ids]:
        """The blocks that these samples lie in; for each of them which, and where there."""
        pieces = ids // self._even if self._even else np.searchsorted(self._ends, ids, side="right")
        needed = np.flatnonzero(np.bincount(pieces))
        held = self._get(needed.tolist())
        blocks = {id(block): block for block, _ in held}
        places = {block: place for place, block in enumerate(blocks)}
        moved, owners = np.zeros((2, needed[-1] + 1), np.int64)
        moved[needed] = np.array([base for _, base in held]) - self._starts[needed]
        owners[needed] = [places[id(block)] for block, _ in held]
        return list(blocks.values()), owners.take(pieces) if len(blocks) > 1 else owners, ids + moved.take(pieces)

    def _tell(self, window: Window) -> None:
        """A window of pieces was looked up: they will be needed together."""
        with self._lock:
            self._told.append(window)

    def _together(self, missing: list[int]) -> list[list[int]]:
        """What is loaded in one go. A window as a whole, also where a batch at its edge needs only some of its pieces
        yet, or where others are held from the epoch before: a window in two blocks would be gathered from twice, by
        every batch."""
        if not self._joined:
            return [[piece] for piece in missing]
        found, left = [], set(missing)
        while left and self._told:
            window = max(self._told, key=lambda one: len(left.intersection(one.pieces)))
            if left.isdisjoint(window.pieces):
                break
            self._told.remove(window)
            found.append(window.pieces)
            left.difference_update(window.pieces)
        return [*found, sorted(left)] if left else found

    def _get(self, needed: list[int]) -> list[tuple[Block, int]]:
        """The block that each piece lies in, and where it begins there. Pieces that nobody loads yet are loaded here,
        in one go where that is cheaper; for others their loader is waited for."""
        mine: list[tuple[list[int], Future[Block]]] = []
        with self._lock:
            if missing := [piece for piece in needed if piece not in self._held]:
                for some in self._together(missing):
                    mine.append((some, Future()))
                    bases = np.cumsum([0, *self.counts[some]]).tolist()
                    for piece in some:
                        self._held.pop(piece, None)
                    self._held.update((piece, (mine[-1][1], base)) for piece, base in zip(some, bases, strict=False))
            found = [self._held[piece] for piece in needed]
            for piece, where in zip(needed, found, strict=True) if self.window else ():
                del self._held[piece]
                self._held[piece] = where
            wanted = {*needed, *(piece for some, _ in mine for piece in some)}
            while self.window and len(self._held) > max(2 * self.window, len(wanted)):
                del self._held[next(iter(self._held))]
        for some, future in mine:
            self._fulfil(some, future)
        return [(future.result(), base) for future, base in found]

    def _fulfil(self, pieces: list[int], future: "Future[Block]") -> None:
        try:
            future.set_result(self._load(pieces))
        except BaseException as error:
            with self._lock:
                for piece in pieces:
                    self._held.pop(piece, None)
            future.set_exception(error)
            raise


class Windows:
    """An order of an epoch that stays inside `window` pieces for as long as it can."""

    def __init__(
        self, counts: Ids, window: int, seed: int, epoch: int, told: Told | None = None, *, whole: bool = False
    ) -> None:
        self._key, self._told, self._whole = mix(seed, epoch), told, whole
        self._pieces = pieces = Order(len(counts), self._key).at(np.arange(len(counts)))
        self._counts, self._starts = counts[pieces], (np.cumsum(counts) - counts)[pieces]
        self._window, self._ends = window, np.cumsum(np.add.reduceat(self._counts, np.arange(0, len(counts), window)))
        self._known: tuple[int, Window, int] | None = None

    def at(self, positions: Ids) -> Ids:
        """The samples at these positions, which grow."""
        first, last = np.searchsorted(self._ends, positions[[0, -1]], side="right").tolist()
        if first == last:
            return self._inside(first, positions)
        parts = np.split(positions, np.searchsorted(positions, self._ends[first:last]))
        return np.concatenate([self._inside(window, part) for window, part in enumerate(parts, first)])

    def _inside(self, window: int, positions: Ids) -> Ids:
        if self._known is None or self._known[0] != window:
            some = slice(window * self._window, (window + 1) * self._window)
            ends = np.cumsum(self._counts[some])
            moved = self._starts[some] - ends + self._counts[some]
            known = Window(self._pieces[some].tolist(), ends, moved, Order(int(ends[-1]), self._key, window + 1))
            if self._told:
                self._told(known)
            # Where all but the last are as large as the first, a division finds the piece sooner than a search.
            even = (ends[:-1] == ends[0] * np.arange(1, len(ends))).all() and ends[-1] <= ends[0] * len(ends)
            self._known = window, known, int(ends[0]) * bool(even)
        _, known, each = self._known
        places = positions - (int(self._ends[window]) - known.order.size)
        if self._whole:
            return np.asarray(known.samples.take(places))
        found = known.order.at(places)
        return np.asarray(
            found + known.moved.take(found // each if each else np.searchsorted(known.ends, found, side="right"))
        )


def _parts(turns: Ids, number: int, micro: int) -> list[tuple[slice, int]]:
    """So many batches of `micro` in as few lots as there can be: one that a turn falls into is a lot of its own."""
    ends = np.unique([0, *(turns // micro).tolist(), *(-(-turns // micro)).tolist(), number]).tolist()
    return [(slice(low * micro, high * micro), high - low) for low, high in itertools.pairwise(ends)]


def _out_of(runs: list[dict[str, Any]], ends: list[int], some: slice) -> dict[str, Any]:
    """Some rows of runs that follow each other: of one of them nothing is copied."""
    starts = [0, *ends[:-1]]
    inside = [
        (run, low) for run, low, end in zip(runs, starts, ends, strict=True) if low < some.stop and end > some.start
    ]
    return {
        name: _following([run[name][max(0, some.start - low) : some.stop - low] for run, low in inside])
        for name in runs[0]
    }


def _merged(blocks: list[Block], mine: Ids, rows: Ids) -> dict[str, Any]:
    """Rows out of the block that each lies in."""
    turns = np.flatnonzero(np.diff(mine)) + 1
    if len(turns) < len(blocks):
        # One block after the other, as windows are read.
        ordered = [blocks[block] for block in mine[[0, *turns]].tolist()]
        parts = [block.pick(some) for block, some in zip(ordered, np.split(rows, turns), strict=True)]
        return {name: _following([part[name] for part in parts]) for name in parts[0]}
    places = [np.flatnonzero(mine == block) for block in range(len(blocks))]
    parts = [block.pick(rows[place]) for block, place in zip(blocks, places, strict=True)]
    return {name: _joined([part[name] for part in parts], places, len(rows)) for name in parts[0]}


def _following(parts: list[Any]) -> Any:
    if len(parts) == 1:
        return parts[0]
    return np.concatenate(parts) if isinstance(parts[0], np.ndarray) else [value for part in parts for value in part]


def _joined(parts: list[Any], places: list[Ids], size: int) -> Any:
    if isinstance(parts[0], np.ndarray):
        whole = np.empty((size, *parts[0].shape[1:]), parts[0].dtype)
        for part, place in zip(parts, places, strict=True):
            whole[place] = part
        return whole
    values = [value for part in parts for value in part]
    return [values[place] for place in np.argsort(np.concatenate(places)).tolist()]
