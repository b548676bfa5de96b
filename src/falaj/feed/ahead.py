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
from falaj.feed.device import Device, Sending
from falaj.feed.order import Ids

Names = list[tuple[int, int]]
Wholes = list[tuple[Any, int]]
"""Batches that were taken in one go, and how many micro-batches each holds."""
_ours: list[Any] = []
"""Of a worker process: the source it reads, and what it makes of a batch."""


class Ahead:
    """The background of one reader: gone when it is closed."""

    def __init__(self, source: Any, device: Device, reading: Mapping[str, Any]) -> None:
        self._source, self._device, self._transform = source, device, reading.get("transform")
        self._depth, self._workers = max(1, reading.get("ahead", 4)), reading.get("workers", 0)
        sequential = getattr(source, "sequential", False)
        if sequential and self._workers:
            raise Invalid("a stream that goes forward only has one reader", "leave out workers=")
        # One thread is enough for what is quick, and two would fight over Python's lock; decoding is parallel below it.
        quick = getattr(source, "chunk", 0) and not self._transform
        threads = 1 if sequential else reading.get("threads") or (1 if quick else min(4, os.cpu_count() or 1))
        self._pool: ThreadPoolExecutor | ProcessPoolExecutor = (
            _processes(source, self._transform, self._workers)
            if self._workers
            else ThreadPoolExecutor(threads, "falaj-feed")
        )
        self.sending = Sending(device)
        self._waiting: deque[tuple[Names, Ids, Future[Any]]] = deque()
        # The C library keeps up to twice the largest block that was ever given back to it, before it returns memory to
        # the system: without this, every batch would be made of pages that must be cleared first.
        np.empty(31 << 20, np.uint8)

    def together(self, micro: int) -> int:
        """How many micro-batches one turn in the background makes: several where making one is quick."""
        if self._transform or self._workers or not getattr(self._source, "chunk", 0):
            return 1
        # To hand a turn over costs as much as a tenth of what is best taken in one go.
        fitting = _fitting(self._source, micro)
        return fitting * max(1, min(4, 16 // fitting))

    def run(self, blocks: Iterator[tuple[Names, Ids]], micro: int) -> Iterator[tuple[Names, Iterable[Any], float]]:
        """Blocks in their order, and how long each was waited for."""
        together = self.together(micro)
        # Where a turn is many batches, one that is made while another is read is enough, and less memory.
        turns = max(1 if together > 16 else 2, -(-self._depth // together))
        for names, ids in blocks:
            self._waiting.append((names, ids, self._begin(ids)))
            if len(self._waiting) > turns:
                yield self._next()
        while self._waiting:
            yield self._next()

    def close(self) -> None:
        """Nothing of it is left."""
        self._waiting.clear()
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _begin(self, ids: Ids) -> "Future[Any]":
        try:
            if self._workers:
                return self._pool.submit(_work, ids)
            return self._pool.submit(self._make, ids)
        except BrokenProcessPool as error:
            raise _lost(ids) from error

    def _make(self, ids: Ids) -> Iterable[Any]:
        batches = _cut(gather(self._source, self._transform, ids), ids.shape[1], self._device)
        # Cut by whoever reads them, where that is all: thousands of tensors that wait would be looked through by
        # Python's collector again and again.
        return batches if self._device.plain else self.sending.begin(batches)

    def _next(self) -> tuple[Names, Iterable[Any], float]:
        names, ids, future = self._waiting.popleft()
        began = time.perf_counter()
        error = future.exception()
        if isinstance(error, BrokenProcessPool):
            raise _lost(ids) from error
        if error is not None and (isinstance(error, FalajError) or not isinstance(error, Exception)):
            raise error
        if error is not None:
            raise UserCodeFailed(
                f"samples {_some(ids)} could not be made ready: {type(error).__name__}: {error}",
                "the cause is shown above: the dataset's code or the transform",
            ) from error
        batches = future.result()
        if self._workers:
            batches = self.sending.begin(map(self._device.tensors, batches))
        elif self._device.plain:
            return names, batches, time.perf_counter() - began
        return names, self.sending.handed(batches), time.perf_counter() - began


def gather(source: Any, transform: Callable[[Any], Any] | None, ids: Ids) -> Wholes:
    """Samples for each row of ids; those of several rows are taken in one go where the source gives columns."""
    fitting, wholes = max(1, _fitting(source, ids.shape[1])), []
    for nth in range(0, len(ids), fitting):
        some = ids[nth : nth + fitting]
        lots = source.lots(some) if hasattr(source, "lots") else [(source.take(some.ravel()), len(some))]
        wholes += [(whole if transform is None else transform(whole), number) for whole, number in lots]
    return wholes


def _cut(wholes: Wholes, micro: int, device: Device) -> Iterator[Any]:
    for whole, number in wholes:
        if number == 1:
            yield device.tensors(whole)
            continue
        columns = [_rows(column, number, micro, device.maker(column)) for column in whole.values()]
        # No step of this is Python's own: there are as many tensors as columns in every batch.
        yield from map(dict, map(zip, itertools.repeat(tuple(whole)), zip(*columns, strict=True)))


def _rows(column: Any, number: int, micro: int, make: Callable[[Any], Any] | None) -> Iterable[Any]:
    if not isinstance(column, np.ndarray):
        return (column[low : low + micro] for low in range(0, number * micro, micro))
    rows = column.reshape(number, micro, *column.shape[1:])
    return map(make, rows) if make else rows


def _fitting(source: Any, micro: int) -> int:
    """How many micro-batches are best taken in one go; 0 when a source has no opinion."""
    chunk = int(getattr(source, "chunk", 0))
    return chunk and max(1, (chunk + micro // 2) // micro)


def _processes(source: Any, transform: Callable[[Any], Any] | None, workers: int) -> ProcessPoolExecutor:
    # Spawned: a fork of a process with threads, or with a GPU, may hang.
    spawn = multiprocessing.get_context("spawn")
    opens = getattr(source, "opens", None)
    return ProcessPoolExecutor(workers, spawn, _prepare, (None if opens else source, opens, transform))


def _prepare(source: Any, opens: Callable[[], Any] | None, transform: Callable[[Any], Any] | None) -> None:
    # Files are opened again rather than sent through a pipe.
    _ours.extend([opens() if opens else source, transform])


def _work(ids: Ids) -> list[Any]:
    source, transform = _ours
    return [batch for batch, _ in gather(source, transform, ids)]


def _lost(ids: Ids) -> Unavailable:
    return Unavailable(
        f"a worker process died before samples {_some(ids)} were ready",
        "out of memory, perhaps: fewer workers=; and a script's start stands below `if __name__ == '__main__'`",
    )


def _some(ids: Ids) -> str:
    few = ", ".join(str(number) for number in np.ravel(ids)[:8])
    return few if ids.size <= 8 else f"{few}, … ({ids.size} in all)"
