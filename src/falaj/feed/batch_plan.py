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
from falaj.feed.permutation import Ids, ShuffleOrder

MAX_LOOKUP_SAMPLES = 16384
"""So many samples are looked up in one go: the order costs calls, not samples."""


class EpochOrder(Protocol):
    """An order of an epoch."""

    def at(self, positions: Ids) -> Ids:
        """The samples at these positions."""


class AnyOrderSource:
    """A source that is read as well in any order."""

    transform: Callable[[Any], Any] | None = None

    def order(self, seed: int, epoch: int) -> EpochOrder | None:
        """Any is as good."""
        del seed, epoch
        return None


@dataclass(frozen=True, slots=True)
class BatchPlan:
    """`samples` read in steps of `batch`, each in micro-batches of `micro`."""

    samples: int
    batch: int
    micro: int
    seed: int = 0
    shuffle: bool = True
    arrange: Callable[[int], EpochOrder] | None = None
    """The order of an epoch, for sources that are read best in pieces; a plain shuffle of all when None."""
    _epoch_orders: dict[int, EpochOrder] = field(default_factory=dict, init=False, repr=False, compare=False)

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
        return self._samples_at(np.arange(start, start + self.micro, dtype=np.int64))

    def blocks(
        self, steps: range, own_micros: range, group_size: int = 1
    ) -> Iterator[tuple[list[tuple[int, int]], Ids]]:
        """The micro-batches of one reader, `group_size` at a time: their steps and numbers, and a row of samples
        each."""
        total, within = len(steps) * len(own_micros), np.arange(self.micro, dtype=np.int64)
        stride = max(1, MAX_LOOKUP_SAMPLES // self.micro // group_size) * group_size
        for begin in range(0, total, stride):
            micro_keys = [
                (steps[index // len(own_micros)], own_micros[index % len(own_micros)])
                for index in range(begin, min(begin + stride, total))
            ]
            starts = np.array([step * self.batch + number * self.micro for step, number in micro_keys], np.int64)
            ids = self._samples_at((starts[:, None] + within).ravel()).reshape(-1, self.micro)
            for low in range(0, len(micro_keys), group_size):
                yield micro_keys[low : low + group_size], ids[low : low + group_size]

    def _samples_at(self, positions: Ids) -> Ids:
        """The samples at positions that grow, counted from the first of the first epoch."""
        first_epoch, last_epoch = (int(positions[end]) // self.samples for end in (0, -1))
        if first_epoch == last_epoch:
            return self._samples_in_epoch(first_epoch, positions - first_epoch * self.samples)
        edges = np.searchsorted(positions, [epoch * self.samples for epoch in range(first_epoch + 1, last_epoch + 1)])
        parts = enumerate(np.split(positions, edges), first_epoch)
        return np.concatenate([self._samples_in_epoch(epoch, part - epoch * self.samples) for epoch, part in parts])

    def _samples_in_epoch(self, epoch: int, positions: Ids) -> Ids:
        if not self.shuffle:
            return positions
        epoch_order = self._epoch_orders.get(epoch)
        if epoch_order is None:
            # One thread asks at a time; a few are kept since readers look ahead over the end of an epoch.
            while len(self._epoch_orders) > 3:
                del self._epoch_orders[next(iter(self._epoch_orders))]
            epoch_order = self.arrange(epoch) if self.arrange else ShuffleOrder(self.samples, self.seed, epoch)
            self._epoch_orders[epoch] = epoch_order
        return epoch_order.at(positions)
