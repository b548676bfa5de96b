"""Which samples belong to which micro-batch of which step: a function, the same for one reader and for six.

A step takes `batch` samples, the same number whatever the world. They are cut into micro-batches of `micro`, the
canonical ones, numbered from 0. Reader r of w takes numbers r, r + w, r + 2w, ... so that every world sees the same.
Epochs follow each other without a gap: no sample is left out at an end, none comes twice before all came once.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from falaj.core.errors import Invalid
from falaj.feed.order import Ids, Order

AT_ONCE = 16384
"""So many samples are looked up in one go: the order costs calls, not samples."""


class Arranged(Protocol):
    """An order of an epoch."""

    def at(self, positions: Ids) -> Ids:
        """The samples at these positions."""


class Unordered:
    """A source that is read as well in any order."""

    transform: Callable[[Any], Any] | None = None

    def order(self, seed: int, epoch: int) -> Arranged | None:
        """Any is as good."""
        del seed, epoch
        return None


@dataclass(frozen=True, slots=True)
class Plan:
    """`samples` read in steps of `batch`, each in micro-batches of `micro`."""

    samples: int
    batch: int
    micro: int
    seed: int = 0
    shuffle: bool = True
    arrange: Callable[[int], Arranged] | None = None
    """The order of an epoch, for sources that are read best in pieces; a plain shuffle of all when None."""
    _known: dict[int, Arranged] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.samples < 1:
            raise Invalid("the dataset is empty", "look at what its folder or query holds")
        if self.batch < 1 or self.micro < 1 or self.batch % self.micro:
            raise Invalid(
                f"a batch of {self.batch} cannot be cut into micro-batches of {self.micro}",
                "the micro-batch is a divisor of the batch",
            )

    @property
    def micros(self) -> int:
        """How many micro-batches a step has, over all readers."""
        return self.batch // self.micro

    def share(self, rank: int, world: int) -> range:
        """The numbers of the micro-batches of one reader."""
        if world > self.micros:
            raise Invalid(
                f"{world} processes would share {self.micros} micro-batches of {self.micro}: some would have none",
                f"ask for a batch of at least {self.micro * world}, or a smaller micro-batch",
            )
        return range(rank, self.micros, world)

    def ids(self, step: int, number: int) -> Ids:
        """The samples of one micro-batch."""
        start = step * self.batch + number * self.micro
        return self._at(np.arange(start, start + self.micro, dtype=np.int64))

    def blocks(self, steps: range, share: range, together: int = 1) -> Iterator[tuple[list[tuple[int, int]], Ids]]:
        """The micro-batches of one reader, `together` at a time: their steps and numbers, and a row of samples each."""
        total, within = len(steps) * len(share), np.arange(self.micro, dtype=np.int64)
        stride = max(1, AT_ONCE // self.micro // together) * together
        for begin in range(0, total, stride):
            names = [
                (steps[nth // len(share)], share[nth % len(share)]) for nth in range(begin, min(begin + stride, total))
            ]
            starts = np.array([step * self.batch + number * self.micro for step, number in names], np.int64)
            ids = self._at((starts[:, None] + within).ravel()).reshape(-1, self.micro)
            for low in range(0, len(names), together):
                yield names[low : low + together], ids[low : low + together]

    def _at(self, positions: Ids) -> Ids:
        """The samples at positions that grow, counted from the first of the first epoch."""
        first, last = (int(positions[end]) // self.samples for end in (0, -1))
        if first == last:
            return self._within(first, positions - first * self.samples)
        edges = np.searchsorted(positions, [epoch * self.samples for epoch in range(first + 1, last + 1)])
        parts = enumerate(np.split(positions, edges), first)
        return np.concatenate([self._within(epoch, part - epoch * self.samples) for epoch, part in parts])

    def _within(self, epoch: int, places: Ids) -> Ids:
        if not self.shuffle:
            return places
        found = self._known.get(epoch)
        if found is None:
            # One thread asks at a time; a few are kept since readers look ahead over the end of an epoch.
            while len(self._known) > 3:
                del self._known[next(iter(self._known))]
            found = self.arrange(epoch) if self.arrange else Order(self.samples, self.seed, epoch)
            self._known[epoch] = found
        return found.at(places)
