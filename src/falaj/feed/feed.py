"""A source read in canonical micro-batches, ahead of whoever asks."""

import resource
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, Protocol, TypedDict, Unpack

from falaj.feed.ahead import Ahead
from falaj.feed.arrays import Arrays
from falaj.feed.device import Device
from falaj.feed.order import Ids
from falaj.feed.plan import AT_ONCE, Arranged, Plan

Batch = Any
"""What a source gives for some samples: columns by name, or what the user's own dataset makes of them."""
__all__ = ["Arrays", "Batch", "Feed", "Given", "Reading", "Source"]
_FEW_FAULTS = 8
"""More pages that a disk was waited for, in one step, are no accident."""


class Source(Protocol):
    """Samples that can be asked for by number, many at a time. A source may say more about itself: `transform`, what to
    make of a batch; `inline`, that it needs no threads; `chunk`, how many samples are best taken at once; `sequential`,
    that it goes forward only."""

    def __len__(self) -> int:
        """How many there are."""

    def take(self, ids: Ids) -> Batch:
        """These samples, in this order, as one batch."""

    def order(self, seed: int, epoch: int) -> Arranged | None:
        """The order of an epoch in which it is read best; None when any is as good."""


class Given(NamedTuple):
    """One micro-batch on its way."""

    step: int
    number: int
    batch: Batch
    waited_s: float = 0.0
    """How long the reader waited for it."""


class Reading(TypedDict, total=False):
    """How a source is read. None of it changes what is read."""

    transform: Callable[[Batch], Batch] | None
    """What to make of a batch: of numpy columns, or of what the user's dataset gave."""
    ahead: int
    """How many micro-batches are made ready before they are asked for."""
    threads: int
    workers: int
    """Processes that read and transform instead of threads; for transforms that hold Python's lock."""


class Feed:
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
        **reading: Unpack[Reading],
    ) -> None:
        self.source: Source = source if hasattr(source, "take") and hasattr(source, "order") else _opened(source)
        self.device, self._reading = device, reading
        self._reading["transform"] = reading.get("transform") or getattr(self.source, "transform", None)
        known = self.source.order(seed, 0)
        arrange = None if known is None else lambda epoch: self.source.order(seed, epoch) or known
        self.plan = Plan(len(self.source), batch, micro or batch, seed, shuffle, arrange)

    def stream(self, first: int, last: int, rank: int = 0, world: int = 1) -> Iterator[Given]:
        """The micro-batches of one reader, from step `first` up to `last`, in their order."""
        steps, share, device = range(first, last), self.plan.share(rank, world), Device(self.device)
        plain = not self._reading.get("transform") and not self._reading.get("workers")
        quick = getattr(self.source, "inline", False) and self.plan.micro <= getattr(self.source, "chunk", AT_ONCE)
        if plain and device.plain and quick:
            return self._at_once(steps, share, device)
        return self._ahead(steps, share, device)

    def _at_once(self, steps: range, share: range, device: Device) -> Iterator[Given]:
        """For what lies in memory, or is mapped and at hand: a thread would cost more than the gather. Once a step has
        to wait for a disk, the rest is read ahead."""
        take, tensors, clock, faults = self.source.take, device.tensors, time.perf_counter, _faults()
        for names, rows in self.plan.blocks(steps, share, max(1, AT_ONCE // self.plan.micro)):
            for (step, number), ids in zip(names, rows, strict=True):
                began = clock()
                batch = tensors(take(ids))
                yield Given(step, number, batch, clock() - began)
                if number == share[-1]:
                    if (now := _faults()) - faults > _FEW_FAULTS:
                        yield from self._ahead(range(step + 1, steps.stop), share, device)
                        return
                    faults = now

    def _ahead(self, steps: range, share: range, device: Device) -> Iterator[Given]:
        ahead = Ahead(self.source, device, self._reading)
        blocks = self.plan.blocks(steps, share, ahead.together(self.plan.micro))
        try:
            for names, batches, waited_s in ahead.run(blocks, self.plan.micro):
                for (step, number), batch in zip(names, batches, strict=True):
                    yield Given(step, number, device.receive(batch), waited_s)
                    waited_s = 0.0  # noqa: PLW2901 - the others of a block were there already
        finally:
            ahead.close()


def _faults() -> int:
    """How many pages this thread has waited for a disk to give."""
    return resource.getrusage(resource.RUSAGE_THREAD).ru_majflt


def _opened(what: Any) -> Source:
    from falaj.feed.sources import open_source

    opened: Source = open_source(what)
    return opened
