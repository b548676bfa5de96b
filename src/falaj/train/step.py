"""The steps of a training: micro-batches in, gradients summed and divided once, parameters moved.

A loss comes as a sum and a number of items, never as a mean: only then is accumulating over micro-batches of different
weight, and over any number of processes, the same as one big batch.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch

from falaj.core.errors import Invalid
from falaj.feed.feed import Batch, Feed, Given
from falaj.gauge.gauge import Gauge

if TYPE_CHECKING:
    from falaj.train.run import Run


class Step:
    """One step: all micro-batches of a batch, then one move of the parameters."""

    def __init__(self, stepping: "Stepping", number: int) -> None:
        self._stepping, self.number = stepping, number

    def micro(self) -> Iterator[Batch]:
        """This process's micro-batches."""
        raise NotImplementedError

    def backward(self, losses: torch.Tensor, count: "int | torch.Tensor | None" = None) -> None:
        """Gradients of the sum of `losses`: those of single items, or, with `count`, their sum."""
        if count is None and losses.ndim == 0:
            raise Invalid("this loss is one number: a sum or a mean?", "give the losses of items, or a sum and a count")
        raise NotImplementedError

    def apply(self, optimizer: torch.optim.Optimizer, clip: float = 0.0) -> None:
        """Move the parameters by the gradients of all processes, divided by the count of all items."""
        raise NotImplementedError

    def log(self, **values: Any) -> None:
        """Say more about this step; numbers, or tensors that are read later."""
        raise NotImplementedError


class Stepping:
    """The machinery below the steps of one run."""

    def __init__(self, run: "Run", feed: Feed, gauge: Gauge) -> None:
        self.run, self.feed, self.gauge = run, feed, gauge

    def steps(self, first: int, last: int) -> Iterator[Step]:
        """Each in turn; between two of them the state is whole, and is saved when it is time or somebody asks."""
        raise NotImplementedError

    def _stream(self, first: int, last: int) -> Iterator[Given]:
        return self.feed.stream(first, last, self.run.mesh.reader, self.run.mesh.readers)
