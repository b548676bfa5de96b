"""A source read in canonical micro-batches, ahead of whoever asks."""

import resource
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, Protocol, TypedDict, Unpack

from falaj.feed.arrays import ArraySource
from falaj.feed.batch_plan import MAX_LOOKUP_SAMPLES, BatchPlan, EpochOrder
from falaj.feed.device_transfer import BatchDevice
from falaj.feed.permutation import Ids
from falaj.feed.read_ahead import ReadAhead

Batch = Any
"""What a source gives for some samples: columns by name, or what the user's own dataset makes of them."""
__all__ = ["ArraySource", "Batch", "BatchLoader", "FeedOptions", "FetchedBatch", "Source"]
_MAX_PAGE_FAULTS = 8
"""More pages that a disk was waited for, in one step, are no accident."""


class Source(Protocol):
    """Samples that can be asked for by number, many at a time. A source may say more about itself: `transform`, what to
    make of a batch; `inline`, that it needs no threads; `chunk`, how many samples are best taken at once; `sequential`,
    that it goes forward only."""

    def __len__(self) -> int:
        """How many there are."""

    def take(self, ids: Ids) -> Batch:
        """These samples, in this order, as one batch."""

    def order(self, seed: int, epoch: int) -> EpochOrder | None:
        """The order of an epoch in which it is read best; None when any is as good."""


class FetchedBatch(NamedTuple):
    """One micro-batch on its way."""

    step: int
    number: int
    batch: Batch
    waited_s: float = 0.0
    """How long the reader waited for it."""


class FeedOptions(TypedDict, total=False):
    """How a source is read. None of it changes what is read."""

    transform: Callable[[Batch], Batch] | None
    """What to make of a batch: of numpy columns, or of what the user's dataset gave."""
    ahead: int
    """How many micro-batches are made ready before they are asked for."""
    threads: int
    workers: int
    """Processes that read and transform instead of threads; for transforms that hold Python's lock."""


class BatchLoader:
    """Any step of it can be asked for, by any number of readers."""

    def __init__(
        self,
        source: Any,
        batch: int,
        *,
        micro: int = 0,
        seed: int = 0,
        shuffle: bool = True,
        device: str = "cpu",
        **feed_options: Unpack[FeedOptions],
    ) -> None:
        self.source: Source = source if hasattr(source, "take") and hasattr(source, "order") else _open_source(source)
        self.device, self._options = device, feed_options
        self._options["transform"] = feed_options.get("transform") or getattr(self.source, "transform", None)
        first_order = self.source.order(seed, 0)
        order_of_epoch = None if first_order is None else lambda epoch: self.source.order(seed, epoch) or first_order
        self.plan = BatchPlan(len(self.source), batch, micro or batch, seed, shuffle, order_of_epoch)

    def stream(self, first_step: int, end_step: int, rank: int = 0, world: int = 1) -> Iterator[FetchedBatch]:
        """The micro-batches of one reader, from step `first_step` up to `end_step`, in their order."""
        steps, own_micros, device = range(first_step, end_step), self.plan.share(rank, world), BatchDevice(self.device)
        is_untransformed = not self._options.get("transform") and not self._options.get("workers")
        is_inline = getattr(self.source, "inline", False) and self.plan.micro <= getattr(
            self.source, "chunk", MAX_LOOKUP_SAMPLES
        )
        if is_untransformed and device.plain and is_inline:
            return self._read_inline(steps, own_micros, device)
        return self._read_ahead(steps, own_micros, device)

    def _read_inline(self, steps: range, own_micros: range, device: BatchDevice) -> Iterator[FetchedBatch]:
        """For what lies in memory, or is mapped and at hand: a thread would cost more than the gather. Once a step has
        to wait for a disk, the rest is read ahead."""
        take, tensors, clock, faults = self.source.take, device.tensors, time.perf_counter, _count_page_faults()
        for micro_keys, rows in self.plan.blocks(steps, own_micros, max(1, MAX_LOOKUP_SAMPLES // self.plan.micro)):
            for (step, number), ids in zip(micro_keys, rows, strict=True):
                started_at = clock()
                batch = tensors(take(ids))
                yield FetchedBatch(step, number, batch, clock() - started_at)
                if number == own_micros[-1]:
                    if (current_faults := _count_page_faults()) - faults > _MAX_PAGE_FAULTS:
                        yield from self._read_ahead(range(step + 1, steps.stop), own_micros, device)
                        return
                    faults = current_faults

    def _read_ahead(self, steps: range, own_micros: range, device: BatchDevice) -> Iterator[FetchedBatch]:
        read_ahead = ReadAhead(self.source, device, self._options)
        blocks = self.plan.blocks(steps, own_micros, read_ahead.together(self.plan.micro))
        try:
            for micro_keys, batches, waited_s in read_ahead.run(blocks, self.plan.micro):
                for (step, number), batch in zip(micro_keys, batches, strict=True):
                    yield FetchedBatch(step, number, device.receive(batch), waited_s)
                    waited_s = 0.0  # noqa: PLW2901 - the others of a block were there already
        finally:
            read_ahead.close()


def _count_page_faults() -> int:
    """How many pages this thread has waited for a disk to give."""
    return resource.getrusage(resource.RUSAGE_THREAD).ru_majflt


def _open_source(data: Any) -> Source:
    from falaj.feed.sources import open_source

    opened: Source = open_source(data)
    return opened
