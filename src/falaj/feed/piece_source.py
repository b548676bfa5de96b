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

from falaj.feed.batch_plan import EpochOrder
from falaj.feed.dealing import Dealer, Window
from falaj.feed.permutation import Ids, ShuffleOrder, mix_seeds


class ListColumn(Protocol):
    """A column whose values are no array: texts, bytes, lists, numbers with gaps."""

    def pick(self, rows: Ids) -> list[Any]:
        """The values of these rows."""


Column = NDArray[Any] | ListColumn
WindowListener = Callable[[Window], None]
_MAX_PENDING_WINDOWS = 64
"""So many windows that were looked up and not yet loaded are known of, at most."""


class ColumnBlock:
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


class PieceSource:
    """`load(pieces)` gives some pieces, `joined` ones in one go; piece n has `counts[n]` samples. Where they are
    `dealt`, each is loaded alone, and goes to the batches of its window."""

    transform: Callable[[Any], Any] | None = None

    def __init__(
        self,
        counts: Sequence[int],
        load: Callable[[list[int]], ColumnBlock],
        *,
        size_bytes: int,
        window: int = 0,
        loads_together: bool = False,
        dealt: bool = False,
        inline: bool = False,
    ) -> None:
        self.counts, self._load, self._loads_together = np.asarray(counts, np.int64), load, loads_together
        self.inline = inline
        """Whether loading only maps a file, so that taking is a mere copy."""
        # About two megabytes: enough to forget what a turn costs, little enough to stay near the processor.
        self.chunk = max(1, min(4096, (sum(counts) << 21) // max(1, size_bytes)))
        self.window = window if 0 < window < len(counts) else 0
        self._piece_ends = np.cumsum(self.counts)
        self._piece_starts = self._piece_ends - self.counts
        is_even = len(counts) > 0 and 0 < counts[-1] <= counts[0] and set(counts[:-1]) <= {counts[0]}
        self._even_count = counts[0] if is_even else 0
        self._block_futures: dict[int, tuple[Future[ColumnBlock], int]] = {}
        self._pending_windows: deque[Window] = deque(maxlen=_MAX_PENDING_WINDOWS)
        self._lock = threading.Lock()
        self._dealer = (
            Dealer(self._piece_ends, self._pending_windows, self._lock, self._load_arrays)
            if dealt and self.window
            else None
        )

    def __len__(self) -> int:
        return int(self._piece_ends[-1]) if len(self._piece_ends) else 0

    def order(self, seed: int, epoch: int) -> EpochOrder | None:
        """Windows of pieces, or any order where all pieces are at hand."""
        on_window = self._add_window if self.window else None
        return (
            WindowOrder(self.counts, self.window, seed, epoch, on_window, uses_samples=self._dealer is not None)
            if on_window
            else None
        )

    def take(self, ids: Ids) -> dict[str, Any]:
        """These samples, out of each block that has some of them."""
        return self.lots(ids[None])[0][0]

    def lots(self, ids: Ids) -> list[tuple[dict[str, Any], int]]:
        """A batch for each row of ids, many in one lot, and how many."""
        runs = self._dealer.take(ids.ravel()) if self._dealer else None
        if runs is None:
            return self._gather_blocks(ids)
        run_ends = np.cumsum([len(next(iter(run.values()))) for run in runs])
        return [
            (_slice_runs(runs, run_ends.tolist(), part), number)
            for part, number in _split_parts(run_ends[:-1], *ids.shape)
        ]

    def _load_arrays(self, piece: int) -> dict[str, NDArray[Any]] | None:
        """The columns of a piece, to be dealt. Where some are no arrays nothing is."""
        columns = self._load([piece]).columns
        arrays = {name: column for name, column in columns.items() if isinstance(column, np.ndarray)}
        if len(arrays) < len(columns):
            self._dealer = None
        return arrays if self._dealer else None

    def _gather_blocks(self, ids: Ids) -> list[tuple[dict[str, Any], int]]:
        """Out of each block that has some. A batch over the edge of two is a lot of its own: the others are taken
        whole, and nothing of them is copied."""
        if len(self.counts) == 1:
            return [(self._get_blocks([0])[0][0].pick(ids.ravel()), len(ids))]
        blocks, owners, rows = self._locate_samples(ids.ravel())
        if len(blocks) == 1:
            return [(blocks[0].pick(rows), len(ids))]
        edges = np.flatnonzero(np.diff(owners)) + 1
        # What is shuffled over all blocks is not cut.
        parts = _split_parts(edges if len(edges) < len(blocks) else edges[:0], *ids.shape)
        return [(_merge_rows(blocks, owners[part], rows[part]), number) for part, number in parts]

    def _locate_samples(self, ids: Ids) -> tuple[list[ColumnBlock], Ids, Ids]:
        """The blocks that these samples lie in; for each of them which, and where there."""
        pieces = ids // self._even_count if self._even_count else np.searchsorted(self._piece_ends, ids, side="right")
        needed = np.flatnonzero(np.bincount(pieces))
        located = self._get_blocks(needed.tolist())
        blocks = {id(block): block for block, _ in located}
        block_indexes = {block: index for index, block in enumerate(blocks)}
        shifts, owners = np.zeros((2, needed[-1] + 1), np.int64)
        shifts[needed] = np.array([base for _, base in located]) - self._piece_starts[needed]
        owners[needed] = [block_indexes[id(block)] for block, _ in located]
        return list(blocks.values()), owners.take(pieces) if len(blocks) > 1 else owners, ids + shifts.take(pieces)

    def _add_window(self, window: Window) -> None:
        """A window of pieces was looked up: they will be needed together."""
        with self._lock:
            self._pending_windows.append(window)

    def _group_missing(self, missing: list[int]) -> list[list[int]]:
        """What is loaded in one go. A window as a whole, also where a batch at its edge needs only some of its pieces
        yet, or where others are held from the epoch before: a window in two blocks would be gathered from twice, by
        every batch."""
        if not self._loads_together:
            return [[piece] for piece in missing]
        groups, remaining = [], set(missing)
        while remaining and self._pending_windows:
            window = max(self._pending_windows, key=lambda candidate: len(remaining.intersection(candidate.pieces)))
            if remaining.isdisjoint(window.pieces):
                break
            self._pending_windows.remove(window)
            groups.append(window.pieces)
            remaining.difference_update(window.pieces)
        return [*groups, sorted(remaining)] if remaining else groups

    def _get_blocks(self, needed: list[int]) -> list[tuple[ColumnBlock, int]]:
        """The block that each piece lies in, and where it begins there. Pieces that nobody loads yet are loaded here,
        in one go where that is cheaper; for others their loader is waited for."""
        own_loads: list[tuple[list[int], Future[ColumnBlock]]] = []
        with self._lock:
            if missing := [piece for piece in needed if piece not in self._block_futures]:
                for group in self._group_missing(missing):
                    own_loads.append((group, Future()))
                    bases = np.cumsum([0, *self.counts[group]]).tolist()
                    for piece in group:
                        self._block_futures.pop(piece, None)
                    self._block_futures.update(
                        (piece, (own_loads[-1][1], base)) for piece, base in zip(group, bases, strict=False)
                    )
            entries = [self._block_futures[piece] for piece in needed]
            for piece, entry in zip(needed, entries, strict=True) if self.window else ():
                del self._block_futures[piece]
                self._block_futures[piece] = entry
            needed_pieces = {*needed, *(piece for group, _ in own_loads for piece in group)}
            while self.window and len(self._block_futures) > max(2 * self.window, len(needed_pieces)):
                del self._block_futures[next(iter(self._block_futures))]
        for group, future in own_loads:
            self._load_into_future(group, future)
        return [(future.result(), base) for future, base in entries]

    def _load_into_future(self, pieces: list[int], future: "Future[ColumnBlock]") -> None:
        try:
            future.set_result(self._load(pieces))
        except BaseException as error:
            with self._lock:
                for piece in pieces:
                    self._block_futures.pop(piece, None)
            future.set_exception(error)
            raise


class WindowOrder:
    """An order of an epoch that stays inside `window` pieces for as long as it can."""

    def __init__(
        self,
        counts: Ids,
        window: int,
        seed: int,
        epoch: int,
        on_window: WindowListener | None = None,
        *,
        uses_samples: bool = False,
    ) -> None:
        self._key, self._on_window, self._uses_samples = mix_seeds(seed, epoch), on_window, uses_samples
        self._pieces = pieces = ShuffleOrder(len(counts), self._key).at(np.arange(len(counts)))
        self._counts, self._starts = counts[pieces], (np.cumsum(counts) - counts)[pieces]
        self._window, self._window_ends = (
            window,
            np.cumsum(np.add.reduceat(self._counts, np.arange(0, len(counts), window))),
        )
        self._current: tuple[int, Window, int] | None = None

    def at(self, positions: Ids) -> Ids:
        """The samples at these positions, which grow."""
        first_window, last_window = np.searchsorted(self._window_ends, positions[[0, -1]], side="right").tolist()
        if first_window == last_window:
            return self._samples_in_window(first_window, positions)
        parts = np.split(positions, np.searchsorted(positions, self._window_ends[first_window:last_window]))
        return np.concatenate(
            [self._samples_in_window(window, part) for window, part in enumerate(parts, first_window)]
        )

    def _samples_in_window(self, window: int, positions: Ids) -> Ids:
        if self._current is None or self._current[0] != window:
            piece_slice = slice(window * self._window, (window + 1) * self._window)
            piece_ends = np.cumsum(self._counts[piece_slice])
            shifts = self._starts[piece_slice] - piece_ends + self._counts[piece_slice]
            current_window = Window(
                self._pieces[piece_slice].tolist(),
                piece_ends,
                shifts,
                ShuffleOrder(int(piece_ends[-1]), self._key, window + 1),
            )
            if self._on_window:
                self._on_window(current_window)
            # Where all but the last are as large as the first, a division finds the piece sooner than a search.
            is_even = (piece_ends[:-1] == piece_ends[0] * np.arange(1, len(piece_ends))).all() and piece_ends[
                -1
            ] <= piece_ends[0] * len(piece_ends)
            self._current = window, current_window, int(piece_ends[0]) * bool(is_even)
        _, current_window, piece_size = self._current
        offsets = positions - (int(self._window_ends[window]) - current_window.order.size)
        if self._uses_samples:
            return np.asarray(current_window.samples.take(offsets))
        samples = current_window.order.at(offsets)
        return np.asarray(
            samples
            + current_window.moved.take(
                samples // piece_size if piece_size else np.searchsorted(current_window.ends, samples, side="right")
            )
        )


def _split_parts(edges: Ids, number: int, micro: int) -> list[tuple[slice, int]]:
    """So many batches of `micro` in as few lots as there can be: one that a turn falls into is a lot of its own."""
    part_ends = np.unique([0, *(edges // micro).tolist(), *(-(-edges // micro)).tolist(), number]).tolist()
    return [(slice(low * micro, high * micro), high - low) for low, high in itertools.pairwise(part_ends)]


def _slice_runs(runs: list[dict[str, Any]], run_ends: list[int], part: slice) -> dict[str, Any]:
    """Some rows of runs that follow each other: of one of them nothing is copied."""
    starts = [0, *run_ends[:-1]]
    overlapping = [
        (run, run_start)
        for run, run_start, run_end in zip(runs, starts, run_ends, strict=True)
        if run_start < part.stop and run_end > part.start
    ]
    return {
        name: _concat_parts(
            [run[name][max(0, part.start - run_start) : part.stop - run_start] for run, run_start in overlapping]
        )
        for name in runs[0]
    }


def _merge_rows(blocks: list[ColumnBlock], owners: Ids, rows: Ids) -> dict[str, Any]:
    """Rows out of the block that each lies in."""
    edges = np.flatnonzero(np.diff(owners)) + 1
    if len(edges) < len(blocks):
        # One block after the other, as windows are read.
        ordered = [blocks[block] for block in owners[[0, *edges]].tolist()]
        parts = [block.pick(row_part) for block, row_part in zip(ordered, np.split(rows, edges), strict=True)]
        return {name: _concat_parts([part[name] for part in parts]) for name in parts[0]}
    positions = [np.flatnonzero(owners == block) for block in range(len(blocks))]
    parts = [block.pick(rows[position]) for block, position in zip(blocks, positions, strict=True)]
    return {name: _scatter_parts([part[name] for part in parts], positions, len(rows)) for name in parts[0]}


def _concat_parts(parts: list[Any]) -> Any:
    if len(parts) == 1:
        return parts[0]
    return np.concatenate(parts) if isinstance(parts[0], np.ndarray) else [value for part in parts for value in part]


def _scatter_parts(parts: list[Any], positions: list[Ids], size: int) -> Any:
    if isinstance(parts[0], np.ndarray):
        merged = np.empty((size, *parts[0].shape[1:]), parts[0].dtype)
        for part, position in zip(parts, positions, strict=True):
            merged[position] = part
        return merged
    values = [value for part in parts for value in part]
    return [values[position] for position in np.argsort(np.concatenate(positions)).tolist()]
