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
    from falaj.train.mesh import ProcessMesh

Number = float | torch.Tensor
_EXACT_SCALE = 2.0**20


class StepTotals(NamedTuple):
    """What all processes said in one step."""

    step: int
    items: float = 0.0
    loss: float = 0.0
    save: float = 0.0
    stop: float = 0.0


class LossTally:
    """Losses and counts since the last move. `exact`: in steps of 2^-20, whose sums are the same in any order."""

    def __init__(self, mesh: "ProcessMesh", *, exact: bool = False, reads_late: bool | None = None) -> None:
        self._mesh, self._exact = mesh, exact
        self.late = mesh.device.type == "cuda" if reads_late is None else reads_late
        self.parts: list[tuple[int, Number]] = []
        """The losses of this process's micro-batches by number, of this step; those of the step before in `former`."""
        self.former: list[tuple[int, Number]] = []
        self.units: Any = 0
        """The items of this process in this step."""
        self._counted_units: Any = 0
        self._step, self._counted_parts = -1, 0
        self._totals: tuple[Number, Number] | None = None
        self._queue: list[tuple[int, torch.Tensor, torch.cuda.Event | None]] = []

    def begin(self, step: int) -> None:
        """A new step."""
        self.former, self.parts = self.parts, []
        self._step, self._counted_parts, self._counted_units, self._totals, self.units = step, 0, 0, None, 0

    def add(self, number: int, loss: Number, count: Number) -> None:
        """One micro-batch: the sum of its losses, and how many they are."""
        if self._exact:
            count = _round_exact(count)
            loss = (torch.as_tensor(loss).double() * _EXACT_SCALE).round() / _EXACT_SCALE
        self.parts.append((number, loss))
        self.units = self.units + count

    def total(
        self, *, save: bool = False, stop: bool = False, spoiled: torch.Tensor | None = None
    ) -> tuple[Number, Number]:
        """Count and loss over all processes since the last time, or that of the last time when nothing came since.
        Numbers of a device stay there."""
        if self._totals is not None and self._counted_parts == len(self.parts):
            return self._totals
        new_parts = self.parts[self._counted_parts :]
        loss: Number = new_parts[0][1] if new_parts else 0.0
        for _, micro_loss in new_parts[1:]:
            loss = micro_loss + loss
        if spoiled is not None:
            loss = torch.where(spoiled[0] != 0, math.nan, loss)
        count: Number = self.units - self._counted_units
        if self._mesh.world > 1:
            totals = self._sum_over_processes(count, loss, save=save, stop=stop)
            count, loss = totals[0], totals[1]
        elif self.late and isinstance(loss, torch.Tensor):
            self._queue_totals(torch.stack((torch.ones_like(loss), loss)))
        self._totals = (count, loss) if self.late else (float(count), float(loss))
        self._counted_parts, self._counted_units = len(self.parts), self.units
        return self._totals

    def read(self, *, wait: bool = False) -> list[StepTotals]:
        """What is known by now; `wait`: all of it, though a device has to be waited for."""
        if not self._queue:
            return []
        ready_count = len(self._queue) if wait or not self.late else max(len(self._queue) - 1, 0)
        step_totals = []
        for step, totals, event in self._queue[:ready_count]:
            if event is not None:
                event.synchronize()
            step_totals.append(StepTotals(step, *totals.tolist()))
        del self._queue[:ready_count]
        return step_totals

    def blame(self, step: int) -> list[int]:
        """The numbers of this process's micro-batches of that step, this or the last, whose loss is not finite."""
        micro_losses = self.parts if step == self._step else self.former
        return [number for number, loss in micro_losses if not math.isfinite(float(loss))]

    def _sum_over_processes(self, count: Number, loss: Number, *, save: bool, stop: bool) -> torch.Tensor:
        totals = torch.zeros(4, dtype=torch.float64, device=self._mesh.device)
        for index, value in enumerate((count, loss, float(save), float(stop))):
            if isinstance(value, torch.Tensor):
                totals[index].copy_(value)
            elif value:
                totals[index].fill_(value)
        dist.all_reduce(totals)
        totals[:2] /= self._mesh.world // self._mesh.readers  # who shares a model's parts reads the same samples
        self._queue_totals(totals)
        return totals

    def _queue_totals(self, totals: torch.Tensor) -> None:
        event = None
        if totals.is_cuda:
            host_copy = torch.empty(totals.shape, dtype=totals.dtype, pin_memory=True)
            totals = host_copy.copy_(totals, non_blocking=True)
            event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            event.record()
        self._queue.append((self._step, totals, event))


def _round_exact(value: Number) -> Number:
    if isinstance(value, torch.Tensor):
        return (value.double() * _EXACT_SCALE).round() / _EXACT_SCALE
    if value * _EXACT_SCALE != math.floor(value * _EXACT_SCALE):
        raise Invalid(f"a count of {value} cannot be summed exactly", "count whole items under reproducible='strict'")
    return value
