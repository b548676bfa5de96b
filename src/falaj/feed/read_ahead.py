"""Micro-batches made ready in threads, or processes, while others are worked on."""

import itertools
import multiprocessing
import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import Any

import numpy as np

from falaj.core.errors import FalajError, Invalid, Unavailable, UserCodeFailed
from falaj.feed.device_transfer import BatchDevice, DeviceTransfer
from falaj.feed.permutation import Ids

MicroKeys = list[tuple[int, int]]
TakenBatches = list[tuple[Any, int]]
"""Batches that were taken in one go, and how many micro-batches each holds."""
_worker_state: list[Any] = []
"""Of a worker process: the source it reads, and what it makes of a batch."""


class ReadAhead:
    """The background of one reader: gone when it is closed."""

    def __init__(self, source: Any, device: BatchDevice, feed_options: Mapping[str, Any]) -> None:
        self._source, self._device, self._transform = source, device, feed_options.get("transform")
        self._depth, self._workers = max(1, feed_options.get("ahead", 4)), feed_options.get("workers", 0)
        sequential = getattr(source, "sequential", False)
        if sequential and self._workers:
            raise Invalid("a stream that goes forward only has one reader", "leave out workers=")
        # One thread is enough for what is quick, and two would fight over Python's lock; decoding is parallel below it.
        is_fast = getattr(source, "chunk", 0) and not self._transform
        thread_count = (
            1 if sequential else feed_options.get("threads") or (1 if is_fast else min(4, os.cpu_count() or 1))
        )
        self._pool: ThreadPoolExecutor | ProcessPoolExecutor = (
            _build_process_pool(source, self._transform, self._workers)
            if self._workers
            else ThreadPoolExecutor(thread_count, "falaj-feed")
        )
        self.sending = DeviceTransfer(device)
        self._pending: deque[tuple[MicroKeys, Ids, Future[Any]]] = deque()
        # The C library keeps up to twice the largest block that was ever given back to it, before it returns memory to
        # the system: without this, every batch would be made of pages that must be cleared first.
        np.empty(31 << 20, np.uint8)

    def together(self, micro: int) -> int:
        """How many micro-batches one turn in the background makes: several where making one is quick."""
        if self._transform or self._workers or not getattr(self._source, "chunk", 0):
            return 1
        # To hand a turn over costs as much as a tenth of what is best taken in one go.
        rows_per_take = _rows_per_take(self._source, micro)
        return rows_per_take * max(1, min(4, 16 // rows_per_take))

    def run(
        self, blocks: Iterator[tuple[MicroKeys, Ids]], micro: int
    ) -> Iterator[tuple[MicroKeys, Iterable[Any], float]]:
        """Blocks in their order, and how long each was waited for."""
        group_size = self.together(micro)
        # Where a turn is many batches, one that is made while another is read is enough, and less memory.
        max_pending = max(1 if group_size > 16 else 2, -(-self._depth // group_size))
        for micro_keys, ids in blocks:
            self._pending.append((micro_keys, ids, self._submit_block(ids)))
            if len(self._pending) > max_pending:
                yield self._next_block()
        while self._pending:
            yield self._next_block()

    def close(self) -> None:
        """Nothing of it is left."""
        self._pending.clear()
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _submit_block(self, ids: Ids) -> "Future[Any]":
        try:
            if self._workers:
                return self._pool.submit(_gather_in_worker, ids)
            return self._pool.submit(self._make_batches, ids)
        except BrokenProcessPool as error:
            raise _worker_died_error(ids) from error

    def _make_batches(self, ids: Ids) -> Iterable[Any]:
        batches = _cut_batches(gather_samples(self._source, self._transform, ids), ids.shape[1], self._device)
        # Cut by whoever reads them, where that is all: thousands of tensors that wait would be looked through by
        # Python's collector again and again.
        return batches if self._device.plain else self.sending.begin(batches)

    def _next_block(self) -> tuple[MicroKeys, Iterable[Any], float]:
        micro_keys, ids, future = self._pending.popleft()
        started_at = time.perf_counter()
        error = future.exception()
        if isinstance(error, BrokenProcessPool):
            raise _worker_died_error(ids) from error
        if error is not None and (isinstance(error, FalajError) or not isinstance(error, Exception)):
            raise error
        if error is not None:
            raise UserCodeFailed(
                f"samples {_format_ids(ids)} could not be made ready: {type(error).__name__}: {error}",
                "the cause is shown above: the dataset's code or the transform",
            ) from error
        batches = future.result()
        if self._workers:
            batches = self.sending.begin(map(self._device.tensors, batches))
        elif self._device.plain:
            return micro_keys, batches, time.perf_counter() - started_at
        return micro_keys, self.sending.handed(batches), time.perf_counter() - started_at


def gather_samples(source: Any, transform: Callable[[Any], Any] | None, ids: Ids) -> TakenBatches:
    """Samples for each row of ids; those of several rows are taken in one go where the source gives columns."""
    rows_per_take, taken = max(1, _rows_per_take(source, ids.shape[1])), []
    for first_row in range(0, len(ids), rows_per_take):
        row_ids = ids[first_row : first_row + rows_per_take]
        parts = source.lots(row_ids) if hasattr(source, "lots") else [(source.take(row_ids.ravel()), len(row_ids))]
        taken += [
            (taken_batch if transform is None else transform(taken_batch), number) for taken_batch, number in parts
        ]
    return taken


def _cut_batches(taken: TakenBatches, micro: int, device: BatchDevice) -> Iterator[Any]:
    for taken_batch, number in taken:
        if number == 1:
            yield device.tensors(taken_batch)
            continue
        columns = [_split_column(column, number, micro, device.maker(column)) for column in taken_batch.values()]
        # No step of this is Python's own: there are as many tensors as columns in every batch.
        yield from map(dict, map(zip, itertools.repeat(tuple(taken_batch)), zip(*columns, strict=True)))


def _split_column(column: Any, number: int, micro: int, make: Callable[[Any], Any] | None) -> Iterable[Any]:
    if not isinstance(column, np.ndarray):
        return (column[low : low + micro] for low in range(0, number * micro, micro))
    rows = column.reshape(number, micro, *column.shape[1:])
    return map(make, rows) if make else rows


def _rows_per_take(source: Any, micro: int) -> int:
    """How many micro-batches are best taken in one go; 0 when a source has no opinion."""
    chunk = int(getattr(source, "chunk", 0))
    return chunk and max(1, (chunk + micro // 2) // micro)


def _build_process_pool(source: Any, transform: Callable[[Any], Any] | None, workers: int) -> ProcessPoolExecutor:
    # Spawned: a fork of a process with threads, or with a GPU, may hang.
    spawn = multiprocessing.get_context("spawn")
    reopen_source = getattr(source, "opens", None)
    return ProcessPoolExecutor(
        workers, spawn, _init_worker, (None if reopen_source else source, reopen_source, transform)
    )


def _init_worker(source: Any, reopen_source: Callable[[], Any] | None, transform: Callable[[Any], Any] | None) -> None:
    # Files are opened again rather than sent through a pipe.
    _worker_state.extend([reopen_source() if reopen_source else source, transform])


def _gather_in_worker(ids: Ids) -> list[Any]:
    source, transform = _worker_state
    return [batch for batch, _ in gather_samples(source, transform, ids)]


def _worker_died_error(ids: Ids) -> Unavailable:
    return Unavailable(
        f"a worker process died before samples {_format_ids(ids)} were ready",
        "out of memory, perhaps: fewer workers=; and a script's start stands below `if __name__ == '__main__'`",
    )


def _format_ids(ids: Ids) -> str:
    first_ids = ", ".join(str(number) for number in np.ravel(ids)[:8])
    return first_ids if ids.size <= 8 else f"{first_ids}, … ({ids.size} in all)"
