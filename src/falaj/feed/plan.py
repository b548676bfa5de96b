"""Which samples belong to which micro-batch of which step: a function, the same for one reader and for six.

A step takes `batch` samples, the same number whatever the world. They are cut into micro-batches of `micro`, the
canonical ones, numbered from 0. Reader r of w takes numbers r, r + w, r + 2w, ... so that every world sees the same.
Epochs follow each other without a gap: no sample is left out at an end, none comes twice before all came once.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from falaj.core.errors import Invalid
from falaj.feed.order import Order

Ids = NDArray[np.int64]


class Arranged(Protocol):
    """An order of an epoch."""

    def at(self, positions: Ids) -> Ids:
        """The samples at these positions."""


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
        positions = np.arange(start, start + self.micro, dtype=np.int64)
        epochs, places = np.divmod(positions, self.samples)
        if not self.shuffle:
            return places
        found = np.empty_like(places)
        for epoch in range(int(epochs[0]), int(epochs[-1]) + 1):
            here = epochs == epoch
            found[here] = self._order(epoch).at(places[here])
        return found

    def _order(self, epoch: int) -> Arranged:
        return Order(self.samples, self.seed, epoch) if self.arrange is None else self.arrange(epoch)
