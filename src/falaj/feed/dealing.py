"""Windows of wide rows, dealt out: a piece is decoded, and its rows go at once to where they will be read.

It is near the processor then. Once a whole window is decoded its first pieces are far away, and every batch that is
gathered has its rows fetched from there again. What was read is given away with its memory, and so only once.
"""

import bisect
import itertools
import mmap
import threading
import weakref
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from falaj.feed.permutation import Ids, ShuffleOrder

SHARED = 1 << 24
"""So many bytes are one memory, which is free when the last batch in it is."""
DECKS = 3
"""So many windows are held at most, one of which is being dealt."""
SPARE, PAGE = 3, 1 << 21
"""So many memories that were given back are kept; and how large the pages are of which they are made."""
Batch = dict[str, NDArray[Any]]
Load = Callable[[int], Mapping[str, NDArray[Any]] | None]


class Window:
    """Pieces that are shuffled together, their rows counted on from one to the next; `moved`: from rows to samples."""

    def __init__(self, pieces: list[int], ends: Ids, moved: Ids, order: ShuffleOrder) -> None:
        self.pieces, self.ends, self.moved, self.order = pieces, ends, moved, order

    @cached_property
    def rows(self) -> Ids:
        """In the order in which they are read."""
        return self.order.at(np.arange(self.order.size))

    @cached_property
    def samples(self) -> Ids:
        """The same, by the numbers that all pieces know them by."""
        counts = np.diff(self.ends, prepend=0)
        return np.asarray((np.arange(self.order.size) + np.repeat(self.moved, counts)).take(self.rows))


class Deck:
    """A window that is dealt, or soon will be."""

    def __init__(self, window: Window) -> None:
        self.window, self.places = window, np.empty_like(window.rows)
        self.places[window.rows] = np.arange(len(self.places))
        self.shares: Future[list[tuple[int, int, Batch]]] = Future()
        """From which place to which, and the values there."""
        self._gone = np.zeros(len(self.places), np.bool_)
        self._lock = threading.Lock()

    def draw(self, ids: Ids, piece: int) -> Batch | None:
        """The first of these and all that follow it here as they do there; None where it was drawn before."""
        number = self.window.pieces.index(piece)
        at = int(self.places[ids[0] - self.window.moved[number]])
        share = next((one for one in self.shares.result() if one[0] <= at < one[1]), None)
        if share is None:
            return None
        low, high, values = share
        alike = self.window.samples[at : min(high, at + len(ids))] == ids[: high - at]
        end = at + (len(alike) if alike.all() else int(alike.argmin()))
        with self._lock:
            if self._gone[at:end].any():
                return None
            self._gone[at:end] = True
        return {name: column[at - low : end - low] for name, column in values.items()}


class Dealer:
    """Deals the windows that are `told`, which the lock is for. `load` gives the columns of a piece, or None when some
    are no arrays."""

    def __init__(self, ends: Ids, told: deque[Window], lock: threading.Lock, load: Load) -> None:
        self._ends, self._told, self._lock, self._load = ends.tolist(), told, lock, load
        self._decks: deque[Deck] = deque(maxlen=DECKS)
        self._spare: deque[Any] = deque(maxlen=SPARE)

    def take(self, ids: Ids) -> list[Batch] | None:
        """These samples, in runs that follow each other. None where they are of no window that is known, or were given
        away: they are to be had in another way, then."""
        runs: list[Batch] = []
        at = 0
        while at < len(ids):
            run = self._run(ids[at:])
            if run is None:
                return None
            runs.append(run)
            at += len(next(iter(run.values())))
        return runs

    def _run(self, ids: Ids) -> Batch | None:
        piece, tried = bisect.bisect_right(self._ends, int(ids[0])), list[Deck]()
        while True:
            with self._lock:
                deck = next((one for one in self._decks if piece in one.window.pieces and one not in tried), None)
                mine = self._begun(piece, ids) if deck is None else None
            if mine is not None:
                self._fulfil(mine)
            deck = deck or mine
            if deck is None or (found := deck.draw(ids, piece)) is not None:
                return None if deck is None else found
            tried.append(deck)

    def _begun(self, piece: int, ids: Ids) -> Deck | None:
        """A deck of the window in which these samples follow each other."""
        for window in [one for one in self._told if piece in one.pieces]:
            where = int(np.flatnonzero(window.samples == ids[0])[0])
            if np.array_equal(window.samples[where : where + 2], ids[: len(window.samples) - where][:2]):
                self._told.remove(window)
                self._decks.append(Deck(window))
                return self._decks[-1]
        return None

    def _fulfil(self, deck: Deck) -> None:
        try:
            deck.shares.set_result(self._deal(deck))
        except BaseException as error:
            with self._lock:
                if deck in self._decks:
                    self._decks.remove(deck)
            deck.shares.set_exception(error)
            raise

    def _deal(self, deck: Deck) -> list[tuple[int, int, Batch]]:
        shares: list[tuple[int, int, Batch]] = []
        places = np.split(deck.places, deck.window.ends[:-1])
        for piece, mine in zip(deck.window.pieces, places, strict=True):
            columns = self._load(piece)
            if columns is None:
                return []
            shares = shares or self._shares(columns, len(deck.places))
            for low, high, values in shares:
                _put(columns, values, mine - low, high - low)
            # Let go before the next is decoded: it takes the same memory then, near the processor.
            del columns
        return shares

    def _shares(self, columns: Mapping[str, NDArray[Any]], size: int) -> list[tuple[int, int, Batch]]:
        """Memory for so many rows."""
        width = sum(column[:1].nbytes for column in columns.values())
        each = -(-size // max(1, -(-size * width // SHARED)))
        return [
            (low, high, {name: self._memory((high - low, *c.shape[1:]), c.dtype) for name, c in columns.items()})
            for low, high in itertools.pairwise([*range(0, size, each), size])
        ]

    def _memory(self, shape: tuple[int, ...], kind: np.dtype[Any]) -> NDArray[Any]:
        """Such as nobody holds any more where there is some: what is new has to be cleared first. In large pages, since
        rows go to all places of it."""
        size = int(np.prod(shape)) * kind.itemsize
        if size < PAGE:
            return np.empty(shape, kind)
        size_there = -(-size // PAGE) * PAGE
        there: Any = next((one for one in [*self._spare] if len(one) == size_there), None)
        try:
            self._spare.remove(there)
        except ValueError:  # there was none, or another thread took it
            there = mmap.mmap(-1, size_there, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            there.madvise(mmap.MADV_HUGEPAGE)
        whole = np.frombuffer(there, np.uint8)
        # Batches are views of it, so when it goes nobody has one.
        weakref.finalize(whole, self._spare.append, there).atexit = False
        return whole[:size].view(kind).reshape(shape)


def _put(columns: Mapping[str, NDArray[Any]], values: Batch, places: Ids, size: int) -> None:
    """Rows of a piece to their places, those that are in this memory."""
    here = np.flatnonzero((places >= 0) & (places < size))
    for name, column in columns.items():
        rows = _rows(column)
        # To pick some out is to copy them twice. Mostly all are to go to one memory.
        _rows(values[name])[places.take(here)] = rows if len(here) == len(rows) else rows.take(here)


def _rows(column: NDArray[Any]) -> NDArray[Any]:
    """Each row as one value: numpy moves it whole."""
    if column.ndim == 1 or not column.nbytes:
        return column
    return column.reshape(len(column), -1).view(np.dtype((np.void, column[0].nbytes))).ravel()
