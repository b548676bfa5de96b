"""Samples that lie in pieces: row groups of Parquet, batches of Arrow, shards. Pieces are held while they are needed.

Shuffled in three levels: the pieces, `window` of them at a time, and the samples inside a window. Which window a
position falls into is a function, so any step can be begun at once, and only a window or two is ever in memory.
"""

import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from falaj.feed.order import Ids, Order, mix
from falaj.feed.plan import Arranged


class Listed(Protocol):
    """A column whose values are no array: texts, bytes, lists, numbers with gaps."""

    def pick(self, rows: Ids) -> list[Any]:
        """The values of these rows."""


Column = NDArray[Any] | Listed
Columns = Mapping[str, Column]


class Pieces:
    """`load(n)` gives the columns of piece n, which has `counts[n]` samples."""

    transform: Callable[[Any], Any] | None = None
    inline = False

    def __init__(
        self, counts: Sequence[int], load: Callable[[int], Columns], *, window: int = 0, chunk: int = 1024
    ) -> None:
        self.counts, self.load, self.chunk = np.asarray(counts, np.int64), load, chunk
        self.window = window if 0 < window < len(counts) else 0
        self._ends = np.cumsum(self.counts)
        self._starts = self._ends - self.counts
        self._held: dict[int, Future[Columns]] = {}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return int(self._ends[-1]) if len(self._ends) else 0

    def order(self, seed: int, epoch: int) -> Arranged | None:
        """Windows of pieces, or any order where all pieces are at hand."""
        return Windows(self.counts, self.window, seed, epoch) if self.window else None

    def take(self, ids: Ids) -> dict[str, Any]:
        """One gather a column, out of each piece that has some of these samples."""
        if len(self.counts) == 1:
            return {name: _pick(column, ids) for name, column in self._get([0])[0].items()}
        owners = np.searchsorted(self._ends, ids, side="right")
        needed = np.unique(owners)
        held = self._get(needed.tolist())
        places = [np.flatnonzero(owners == piece) for piece in needed]
        rows = [ids[place] - self._starts[piece] for place, piece in zip(places, needed, strict=True)]
        return {
            name: _join([_pick(columns[name], row) for columns, row in zip(held, rows, strict=True)], places, len(ids))
            for name in held[0]
        }

    def _get(self, needed: list[int]) -> list[Columns]:
        """Threads that want the same pieces share the loading: each takes the next that nobody loads yet."""
        found: list[Future[Columns]] = []
        for piece in needed:
            with self._lock:
                future = self._held.pop(piece, None)
                mine = future is None
                future = future or Future()
                self._held[piece] = future
                while self.window and len(self._held) > max(2 * self.window, len(needed)):
                    del self._held[next(iter(self._held))]
            found.append(future)
            if mine:
                self._load(piece, future)
        return [future.result() for future in found]

    def _load(self, piece: int, future: "Future[Columns]") -> None:
        try:
            future.set_result(self.load(piece))
        except BaseException as error:
            with self._lock:
                self._held.pop(piece, None)
            future.set_exception(error)
            raise


class Windows:
    """An order of an epoch that stays inside `window` pieces for as long as it can."""

    def __init__(self, counts: Ids, window: int, seed: int, epoch: int) -> None:
        self._starts, self._window, self._key = np.cumsum(counts) - counts, window, mix(seed, epoch)
        self._pieces = Order(len(counts), self._key).at(np.arange(len(counts)))
        self._ends = np.cumsum(counts[self._pieces])
        self._orders: dict[int, Order] = {}

    def at(self, positions: Ids) -> Ids:
        """The samples at these positions, which grow."""
        windows = np.searchsorted(self._ends, positions, side="right") // self._window
        edges = np.flatnonzero(np.diff(windows)) + 1
        parts = zip(np.split(windows, edges), np.split(positions, edges), strict=True)
        return np.concatenate([self._inside(int(window[0]), part) for window, part in parts])

    def _inside(self, window: int, positions: Ids) -> Ids:
        low, high = window * self._window, min((window + 1) * self._window, len(self._ends))
        begin = int(self._ends[low - 1]) if low else 0
        order = self._orders.get(window)
        if order is None:
            self._orders = {window: (order := Order(int(self._ends[high - 1]) - begin, self._key, window + 1))}
        found = order.at(positions - begin) + begin
        spots = np.searchsorted(self._ends[low:high], found, side="right") + low
        before = np.where(spots > 0, self._ends[spots - 1], 0)
        return np.asarray(self._starts[self._pieces[spots]] + found - before)


def _pick(column: Column, rows: Ids) -> Any:
    # take, not [rows]: several times faster for narrow rows.
    return column.take(rows, axis=0) if isinstance(column, np.ndarray) else column.pick(rows)


def _join(parts: list[Any], places: list[Ids], size: int) -> Any:
    if len(parts) == 1:
        return parts[0]
    if isinstance(parts[0], np.ndarray):
        whole = np.empty((size, *parts[0].shape[1:]), parts[0].dtype)
        for part, place in zip(parts, places, strict=True):
            whole[place] = part
        return whole
    listed: list[Any] = [None] * size
    for part, place in zip(parts, places, strict=True):
        for value, where in zip(part, place.tolist(), strict=True):
            listed[where] = value
    return listed
