"""What the micro-batches of a step add up to, over all processes, and what somebody wishes: one tiny sum a step.

On CPUs the answer is known at once. A GPU is never waited for: there the answer is read when the next step is queued.
Either way every process acts on the same wish after the same step.
"""

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.distributed as dist

from falaj.core.errors import Invalid

if TYPE_CHECKING:
    from falaj.train.mesh import Mesh

Number = float | torch.Tensor
_FINE = 2.0**20


class Read(NamedTuple):
    """What all processes said in one step."""

    step: int
    items: float = 0.0
    loss: float = 0.0
    save: float = 0.0
    stop: float = 0.0


class Tally:
    """Losses and counts since the last move. `exact`: in steps of 2^-20, whose sums are the same in any order."""

    def __init__(self, mesh: "Mesh", *, exact: bool = False, late: bool | None = None) -> None:
        self._mesh, self._exact = mesh, exact
        self.late = mesh.device.type == "cuda" if late is None else late
        self.parts: list[tuple[int, Number]] = []
        """The losses of this process's micro-batches by number, of this step; those of the step before in `former`."""
        self.former: list[tuple[int, Number]] = []
        self.units: Any = 0
        """The items of this process in this step."""
        self._counted: Any = 0
        self._step, self._from = -1, 0
        self._answer: tuple[Number, Number] | None = None
        self._queue: list[tuple[int, torch.Tensor, torch.cuda.Event | None]] = []

    def begin(self, step: int) -> None:
        """A new step."""
        self.former, self.parts = self.parts, []
        self._step, self._from, self._counted, self._answer, self.units = step, 0, 0, None, 0

    def add(self, number: int, loss: Number, count: Number) -> None:
        """One micro-batch: the sum of its losses, and how many they are."""
        if self._exact:
            count = _fine(count)
            loss = (torch.as_tensor(loss).double() * _FINE).round() / _FINE
        self.parts.append((number, loss))
        self.units = self.units + count

    def total(
        self, *, save: bool = False, stop: bool = False, spoiled: torch.Tensor | None = None
    ) -> tuple[Number, Number]:
        """Count and loss over all processes since the last time, or that of the last time when nothing came since.
        Numbers of a device stay there."""
        if self._answer is not None and self._from == len(self.parts):
            return self._answer
        fresh = self.parts[self._from :]
        loss: Number = fresh[0][1] if fresh else 0.0
        for _, part in fresh[1:]:
            loss = part + loss
        if spoiled is not None:
            loss = torch.where(spoiled[0] != 0, math.nan, loss)
        count: Number = self.units - self._counted
        if self._mesh.world > 1:
            words = self._sum(count, loss, save=save, stop=stop)
            count, loss = words[0], words[1]
        elif self.late and isinstance(loss, torch.Tensor):
            self._put(torch.stack((torch.ones_like(loss), loss)))
        self._answer = (count, loss) if self.late else (float(count), float(loss))
        self._from, self._counted = len(self.parts), self.units
        return self._answer

    def read(self, *, now: bool = False) -> list[Read]:
        """What is known by now; `now`: all of it, though a device has to be waited for."""
        if not self._queue:
            return []
        ready = len(self._queue) if now or not self.late else max(len(self._queue) - 1, 0)
        found = []
        for step, words, event in self._queue[:ready]:
            if event is not None:
                event.synchronize()
            found.append(Read(step, *words.tolist()))
        del self._queue[:ready]
        return found

    def blame(self, step: int) -> list[int]:
        """The numbers of this process's micro-batches of that step, this or the last, whose loss is not finite."""
        parts = self.parts if step == self._step else self.former
        return [number for number, loss in parts if not math.isfinite(float(loss))]

    def _sum(self, count: Number, loss: Number, *, save: bool, stop: bool) -> torch.Tensor:
        words = torch.zeros(4, dtype=torch.float64, device=self._mesh.device)
        for place, word in enumerate((count, loss, float(save), float(stop))):
            if isinstance(word, torch.Tensor):
                words[place].copy_(word)
            elif word:
                words[place].fill_(word)
        dist.all_reduce(words)
        words[:2] /= self._mesh.world // self._mesh.readers  # who shares a model's parts reads the same samples
        self._put(words)
        return words

    def _put(self, words: torch.Tensor) -> None:
        event = None
        if words.is_cuda:
            there = torch.empty(words.shape, dtype=words.dtype, pin_memory=True)
            words = there.copy_(words, non_blocking=True)
            event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            event.record()
        self._queue.append((self._step, words, event))


def _fine(value: Number) -> Number:
    if isinstance(value, torch.Tensor):
        return (value.double() * _FINE).round() / _FINE
    if value * _FINE != math.floor(value * _FINE):
        raise Invalid(f"a count of {value} cannot be summed exactly", "count whole items under reproducible='strict'")
    return value
