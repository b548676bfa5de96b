"""A source read in canonical micro-batches, ahead of whoever asks."""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, Protocol

from falaj.feed.plan import Arranged, Ids, Plan

Batch = Any
"""What a source gives for some samples: columns by name, or what the user's own dataset makes of them."""


class Source(Protocol):
    """Samples that can be asked for by number, many at a time."""

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


class Feed:
    """Any step of it can be asked for, by any number of readers."""

    def __init__(
        self, source: Source, batch: int, *, micro: int = 0, seed: int = 0, shuffle: bool = True, device: str = "cpu"
    ) -> None:
        self.source, self.device = source, device
        known = source.order(seed, 0)
        arrange = None if known is None else lambda epoch: source.order(seed, epoch) or known
        self.plan = Plan(len(source), batch, micro or batch, seed, shuffle, arrange)

    def stream(self, first: int, last: int, rank: int = 0, world: int = 1) -> Iterator[Given]:
        """The micro-batches of one reader, from step `first` up to `last`, in their order."""
        share = self.plan.share(rank, world)
        for step in range(first, last):
            for number in share:
                yield Given(step, number, self.source.take(self.plan.ids(step, number)))


class Arrays:
    """Columns in memory, or mapped from files: a batch is one gather a column."""

    def __init__(self, columns: Mapping[str, Any]) -> None:
        self.columns = dict(columns)

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    def take(self, ids: Ids) -> Batch:
        return {name: column[ids] for name, column in self.columns.items()}

    def order(self, seed: int, epoch: int) -> Arranged | None:
        del seed, epoch
        return None
