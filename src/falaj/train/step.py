"""The steps of a training: micro-batches in, gradients summed and divided once, parameters moved.

A loss comes as a sum and a number of items, never as a mean: only then is accumulating over micro-batches of different
weight, and over any number of processes, the same as one big batch.
"""

import math
import random
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from falaj.core.errors import Invalid, UserCodeFailed
from falaj.feed.feed import Batch, Feed, Given
from falaj.feed.order import mix
from falaj.gauge.gauge import COMMUNICATION, Gauge
from falaj.train.moving import Moving
from falaj.train.tally import Number, Tally

if TYPE_CHECKING:
    from falaj.train.run import Run

_GOLDEN, _MASK = 0x9E3779B97F4A7C15, 0x7FFFFFFFFFFFFFFF
_SHAPES = 64
_NAMED_SAMPLES = 20
_LOOK_S = 0.5
"""How often we look what became of saves."""
Start = tuple[torch.Tensor, Callable[[torch.Tensor], Number]]
# What torch.autograd.backward ends in. The shapes and kinds that it looks at before are right by how slopes are made,
# and looking takes longer than many a small layer.
_backward = torch.autograd.graph._engine_run_backward  # noqa: SLF001


class Step:
    """One step: all micro-batches of a batch, then one move of the parameters."""

    __slots__ = ("_home", "number", "values")

    def __init__(self, home: "Stepping", number: int) -> None:
        self._home, self.number = home, number
        self.values: dict[str, Any] = {}

    @property
    def epoch(self) -> int:
        """How often all samples were seen before this step."""
        plan = self._home.feed.plan
        return self.number * plan.batch // plan.samples

    def every(self, steps: int) -> bool:
        """Whether this is a step of every so many; the last of each so many is."""
        return (self.number + 1) % steps == 0

    def micro(self) -> Iterator[Batch]:
        """This process's micro-batches. Asked for again within a step, they come again."""
        return self._home.micro(self.number)

    def backward(self, losses: torch.Tensor, count: Number | None = None) -> None:
        """Gradients of the sum of `losses`: those of single items, or, with `count`, their sum."""
        home = self._home
        if count is None:
            if not losses.ndim:
                raise Invalid("this loss is one number: a sum or a mean?", "give losses of items, or a sum and a count")
            count = losses.numel()
        slope, total = home.known.get(losses.shape) or home.slopes(losses, count)
        if slope.dtype is not losses.dtype:
            slope, total = home.slopes(losses, count)
        home.tally.add(home.at, total(losses), count)
        if type(losses) is torch.Tensor:
            _backward((losses,), (slope,), False, False, (), allow_unreachable=True, accumulate_grad=True)
        else:
            torch.autograd.backward(losses, slope)

    def tally(self, loss: torch.Tensor, count: Number) -> None:
        """Count losses whose gradients somebody else makes, as pipelines do."""
        self._home.tally.add(self._home.at, loss.detach(), count)

    @property
    def slope(self) -> torch.Tensor:
        """What the gradient of a sum of losses begins with, for who makes gradients himself."""
        return self._home.slopes(torch.zeros((), device=self._home.run.device), 1)[0]

    def apply(self, optimizer: torch.optim.Optimizer | Sequence[torch.optim.Optimizer], clip: float = 0.0) -> None:
        """Move the parameters by the gradients of all processes, divided by the count of all items."""
        self._home.apply(self, optimizer if isinstance(optimizer, list | tuple) else (optimizer,), clip)

    def log(self, **values: Any) -> None:
        """Say more about this step; numbers, or tensors that are read later."""
        self.values.update(values)


class Stepping:
    """The machinery below the steps of one run."""

    def __init__(self, run: "Run", feed: Feed, gauge: Gauge) -> None:
        self.run, self.feed, self.gauge = run, feed, gauge
        self.tally = Tally(run.mesh, exact=run.strict is not None)
        self.moving = Moving(run, feed.plan.batch)
        self.at = 0
        """The number of the micro-batch that is worked on."""
        self._moving, self._moves, self._usual = False, 0, 0
        """Whether parameters are just moved; how often they were in this step, and are in a whole one."""
        self.done = self._first = 0
        self._share = feed.plan.share(run.mesh.reader, run.mesh.readers)
        self._stream: Iterator[Given] = iter(())
        self._next = -1
        self._moved: tuple[Number, Number] | None = None
        self.known: dict[Any, Start] = {}
        self._fixed, self._answered = run.strict is None, False
        self._lags = run.mesh.world > 1 or self.tally.late
        """Whether there is anything to read of what was said before."""
        self._alone, self._every = run.mesh.world == 1, run.options.save_steps
        self._watched = run.saves is not None or run.strict is not None
        self._saved_s = self._looked_s = time.monotonic()
        self._base, self._micros = mix(run.options.seed, 0x5EED), feed.plan.micros
        self._seeds: list[Callable[[int], Any]] = [torch.default_generator.manual_seed]
        if run.device.type == "cuda":
            torch.cuda.init()  # type: ignore[no-untyped-call]
            self._seeds.append(torch.cuda.default_generators[torch.cuda.current_device()].manual_seed)
        if run.options.random:
            self._seeds += [random.seed, lambda key: np.random.seed(key & 0xFFFFFFFF)]
        if run.options.reproducible == "off":
            self._seeds = []

    def steps(self, first: int, last: int) -> Iterator[Step]:
        """Each in turn; between two of them the state is whole, and is saved when it is time or somebody asks."""
        self.run.here.asked()  # from here on TERM means: save, then end
        if self.run.strict is not None:
            self.run.strict.begin()
        self._stream, self._next, self.done, self._first = self._open(first, last), first, first, first
        try:
            for number in range(first, last):
                step = self._begin(number)
                yield step
                self._end(step)
            self._judge(now=True)
            if self.run.saves and last > first and self.run.saved < last and self._regular:
                self.run.save(last)
        finally:
            getattr(self._stream, "close", int)()

    def micro(self, number: int) -> Iterator[Batch]:
        """The micro-batches of one step, each with its own random numbers."""
        stream = self._stream if number >= self._next else self._open(number, number + 1)
        self._next = max(self._next, number + 1)
        first, last, tell = number * self._micros, self._share[-1], self.run.mesh.last
        for place in self._share:
            given = next(stream)
            while given.step < number:  # somebody left a step before its end
                given = next(stream)
            self.at = place
            if self._seeds:
                key = (self._base + (first + place) * _GOLDEN) & _MASK
                for seed in self._seeds:
                    seed(key)
            if not self._alone:
                tell(place == last)
            self.gauge.waited(given.waited_s)
            yield given.batch

    def slopes(self, losses: torch.Tensor, count: Number) -> Start:
        """What the gradient of a sum of losses begins with: 1 / batch, so that sums stay in a range. And how losses
        like these are summed the quickest."""
        if not self._fixed:
            self.moving.fix(float(count) / self.feed.plan.micro, self.feed.plan.micros)
            self._fixed = True
        if len(self.known) >= _SHAPES:
            self.known.clear()
        found = self.moving.slope(losses), self._sum(losses)
        if self.moving.scaler is None:  # its scale is another at every step
            self.known[losses.shape] = found
        return found

    def _sum(self, losses: torch.Tensor) -> Callable[[torch.Tensor], Number]:
        if losses.device.type == "cpu" and not losses.ndim and self.run.strict is None:
            return torch.Tensor.item
        if losses.device.type == "cpu" and losses.ndim == 1 and losses.dtype == torch.float32:
            ones = torch.ones(losses.shape)
            return lambda given: given.detach().dot(ones)
        wide = torch.promote_types(losses.dtype, torch.float32)
        return lambda given: given.detach().sum(dtype=wide)

    def apply(self, step: Step, optimizers: Sequence[torch.optim.Optimizer], clip: float) -> None:
        """Exchange counts, then move."""
        count, loss = self._exchange(step)
        self._moving = True
        norm = self.moving.move(optimizers, count, clip)
        self._moving = False
        self._moves += 1
        if self._moves == self._usual:
            self.done = step.number + 1
        values = step.values
        values["loss"] = loss / (count.clamp(min=1) if isinstance(count, torch.Tensor) else max(count, 1))
        if norm is not None:
            values["grad_norm"] = norm
        values.setdefault("lr", optimizers[0].param_groups[0]["lr"])

    @property
    def whole(self) -> bool:
        """Whether the state is that after `done` steps: no optimizer is at work, and none has still to follow."""
        return not self._moving and self._moves in (0, self._usual)

    def _begin(self, number: int) -> Step:
        for schedule in self.run.schedules:
            schedule.set(number)
        self.tally.begin(number)
        self._moved = None
        return Step(self, number)

    def _exchange(self, step: Step) -> tuple[Number, Number]:
        spoiled = self.run.strict.bad if self.run.strict is not None else None
        if self._alone:
            self._moved = self.tally.total(spoiled=spoiled)
        else:
            save, stop = self._wishes()
            with self.gauge.phase(COMMUNICATION):
                self._moved = self.tally.total(spoiled=spoiled, save=save, stop=stop)
        if isinstance(self._moved[1], float) and not math.isfinite(self._moved[1]):
            self._refuse(step.number, self._moved[1])
        return self._moved

    def _end(self, step: Step) -> None:
        run, number = self.run, step.number
        if self._moved is None:
            self._exchange(step)
        self.done, self._usual, self._moves = number + 1, self._moves, 0
        for ema in run.emas:
            ema.update()
        self.gauge.stepped(number, self.tally.units, step.values)
        said = self._judge() if self._lags else (False, False)
        save, stop = self._wishes() if self._alone else said
        if self._watched:
            self._watch()
        if save or stop or (self._every and self.done % self._every == 0):
            self._save(self.done, stop=stop)

    def _watch(self) -> None:
        """What need not be looked at when a run has neither checkpoints nor strict bits."""
        if self.done == self._first + 1:
            if self.run.strict is not None:
                self.run.strict.judge()
            if self.run.saves is not None and self._regular:  # now the optimizer has all that is to be saved
                self.run.saves.warm(self.run.keeping.tensors())
        if time.monotonic() - self._looked_s > _LOOK_S:
            self._looked_s = time.monotonic()
            self.run.tell_saves()

    def _wishes(self) -> tuple[bool, bool]:
        """Whether this process wants a save, or to stop."""
        asked = self.run.here.asked()
        # A wish stays until what was saved for it is durable, and nobody but the first process tells of that.
        self._answered = self._answered and asked == "save"
        save_s = self.run.options.save_s
        due = save_s > 0 and self.run.mesh.rank == 0 and time.monotonic() - self._saved_s >= save_s
        return due or (asked == "save" and not self._answered), asked == "stop"

    @property
    def _regular(self) -> bool:
        return self.run.options.save_s > 0 or self.run.options.save_steps > 0

    def _judge(self, *, now: bool = False) -> tuple[bool, bool]:
        """What the processes said; a loss that is no number ends the run before anything is saved after it."""
        save = stop = False
        for read in self.tally.read(now=now):
            if not math.isfinite(read.loss):
                self._refuse(read.step, read.loss)
            save, stop = save or read.save > 0, stop or read.stop > 0
        return save, stop

    def _save(self, step: int, *, stop: bool) -> None:
        self._judge(now=True)
        self._saved_s, self._answered = time.monotonic(), True
        if self.run.saves:
            self.gauge.saved(step, self.run.save(step, settle=stop))
            self.moving.fence = self.run.saves.fence
        if stop:
            self.run.here.yield_place()

    def _refuse(self, step: int, loss: float) -> None:
        numbers = self.tally.blame(step)
        ids = [int(one) for number in numbers for one in self.feed.plan.ids(step, number)]
        if not numbers and self.run.strict is not None and self.run.strict.spoiled():
            raise UserCodeFailed(
                f"a gradient of step {step} is no number, or so large that its sum would not be exact",
                "clip inside the model or lower the learning rate; checkpoints before this step are kept",
            )
        more = f" and {len(ids) - _NAMED_SAMPLES} more" if len(ids) > _NAMED_SAMPLES else ""
        where = f"micro-batch {numbers[0]}, samples {ids[:_NAMED_SAMPLES]}{more}" if numbers else "another process"
        raise UserCodeFailed(
            f"the loss of step {step} is {loss}: {where}",
            "look at these samples, lower the learning rate or clip gradients; checkpoints before this step are kept",
        )

    def _open(self, first: int, last: int) -> Iterator[Given]:
        return self.feed.stream(first, last, self.run.mesh.reader, self.run.mesh.readers)
