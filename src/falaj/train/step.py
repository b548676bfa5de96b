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
from falaj.feed.batch_loader import Batch, BatchLoader, FetchedBatch
from falaj.feed.permutation import mix_seeds
from falaj.gauge.step_monitor import COMMUNICATION_PHASE, StepMonitor
from falaj.train.gradient_step import GradientStep
from falaj.train.loss_tally import LossTally, Number

if TYPE_CHECKING:
    from falaj.train.run import Run

_SEED_STEP, _SEED_MASK = 0x9E3779B97F4A7C15, 0x7FFFFFFFFFFFFFFF
_MAX_SHAPES = 64
_MAX_NAMED_SAMPLES = 20
_CHECK_INTERVAL_S = 0.5
"""How often we look what became of saves."""
GradientStart = tuple[torch.Tensor, Callable[[torch.Tensor], Number]]
# What torch.autograd.backward ends in. The shapes and kinds that it looks at before are right by how slopes are made,
# and looking takes longer than many a small layer.
_run_backward = torch.autograd.graph._engine_run_backward  # noqa: SLF001


class Step:
    """One step: all micro-batches of a batch, then one move of the parameters."""

    __slots__ = ("_home", "number", "values")

    def __init__(self, runner: "StepRunner", number: int) -> None:
        self._home, self.number = runner, number
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
        runner = self._home
        if count is None:
            if not losses.ndim:
                raise Invalid("this loss is one number: a sum or a mean?", "give losses of items, or a sum and a count")
            count = losses.numel()
        start_gradient, sum_losses = runner.known.get(losses.shape) or runner.slopes(losses, count)
        if start_gradient.dtype is not losses.dtype:
            start_gradient, sum_losses = runner.slopes(losses, count)
        runner.tally.add(runner.at, sum_losses(losses), count)
        if type(losses) is torch.Tensor:
            _run_backward((losses,), (start_gradient,), False, False, (), allow_unreachable=True, accumulate_grad=True)
        else:
            torch.autograd.backward(losses, start_gradient)

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


class StepRunner:
    """The machinery below the steps of one run."""

    def __init__(self, run: "Run", feed: BatchLoader, gauge: StepMonitor) -> None:
        self.run, self.feed, self.gauge = run, feed, gauge
        self.tally = LossTally(run.mesh, exact=run.strict is not None)
        self.moving = GradientStep(run, feed.plan.batch)
        self.at = 0
        """The number of the micro-batch that is worked on."""
        self._is_applying, self._move_count, self._usual_move_count = False, 0, 0
        """Whether parameters are just moved; how often they were in this step, and are in a whole one."""
        self.done = self._first_step = 0
        self._own_micros = feed.plan.share(run.mesh.reader, run.mesh.readers)
        self._stream: Iterator[FetchedBatch] = iter(())
        self._next_step = -1
        self._totals: tuple[Number, Number] | None = None
        self.known: dict[Any, GradientStart] = {}
        self._is_range_fixed, self._is_save_answered = run.strict is None, False
        self._reads_later = run.mesh.world > 1 or self.tally.late
        """Whether there is anything to read of what was said before."""
        self._is_alone, self._save_every = run.mesh.world == 1, run.options.save_steps
        self._needs_watch = run.saves is not None or run.strict is not None
        self._saved_at = self._checked_at = time.monotonic()
        self._seed_base, self._micro_count = mix_seeds(run.options.seed, 0x5EED), feed.plan.micros
        self._seed_functions: list[Callable[[int], Any]] = [torch.default_generator.manual_seed]
        if run.device.type == "cuda":
            torch.cuda.init()  # type: ignore[no-untyped-call]
            self._seed_functions.append(torch.cuda.default_generators[torch.cuda.current_device()].manual_seed)
        if run.options.random:
            self._seed_functions += [random.seed, lambda key: np.random.seed(key & 0xFFFFFFFF)]
        if run.options.reproducible == "off":
            self._seed_functions = []

    def steps(self, first_step: int, total_steps: int) -> Iterator[Step]:
        """Each in turn; between two of them the state is whole, and is saved when it is time or somebody asks."""
        self.run.here.asked()  # from here on TERM means: save, then end
        if self.run.strict is not None:
            self.run.strict.begin()
        self._stream, self._next_step, self.done, self._first_step = (
            self._open_stream(first_step, total_steps),
            first_step,
            first_step,
            first_step,
        )
        try:
            for number in range(first_step, total_steps):
                step = self._begin_step(number)
                yield step
                self._end_step(step)
            self._check_losses(wait=True)
            if self.run.saves and total_steps > first_step and self.run.saved < total_steps and self._saves_regularly:
                self.run.save(total_steps)
        finally:
            getattr(self._stream, "close", int)()

    def micro(self, number: int) -> Iterator[Batch]:
        """The micro-batches of one step, each with its own random numbers."""
        stream = self._stream if number >= self._next_step else self._open_stream(number, number + 1)
        self._next_step = max(self._next_step, number + 1)
        first_micro, last_micro, mark_last = number * self._micro_count, self._own_micros[-1], self.run.mesh.last
        for micro_index in self._own_micros:
            fetched = next(stream)
            while fetched.step < number:  # somebody left a step before its end
                fetched = next(stream)
            self.at = micro_index
            if self._seed_functions:
                key = (self._seed_base + (first_micro + micro_index) * _SEED_STEP) & _SEED_MASK
                for set_seed in self._seed_functions:
                    set_seed(key)
            if not self._is_alone:
                mark_last(micro_index == last_micro)
            self.gauge.waited(fetched.waited_s)
            yield fetched.batch

    def slopes(self, losses: torch.Tensor, count: Number) -> GradientStart:
        """What the gradient of a sum of losses begins with: 1 / batch, so that sums stay in a range. And how losses
        like these are summed the quickest."""
        if not self._is_range_fixed:
            self.moving.fix(float(count) / self.feed.plan.micro, self.feed.plan.micros)
            self._is_range_fixed = True
        if len(self.known) >= _MAX_SHAPES:
            self.known.clear()
        start = self.moving.slope(losses), self._build_sum(losses)
        if self.moving.scaler is None:  # its scale is another at every step
            self.known[losses.shape] = start
        return start

    def _build_sum(self, losses: torch.Tensor) -> Callable[[torch.Tensor], Number]:
        if losses.device.type == "cpu" and not losses.ndim and self.run.strict is None:
            return torch.Tensor.item
        if losses.device.type == "cpu" and losses.ndim == 1 and losses.dtype == torch.float32:
            ones = torch.ones(losses.shape)
            return lambda values: values.detach().dot(ones)
        wide_dtype = torch.promote_types(losses.dtype, torch.float32)
        return lambda values: values.detach().sum(dtype=wide_dtype)

    def apply(self, step: Step, optimizers: Sequence[torch.optim.Optimizer], clip: float) -> None:
        """Exchange counts, then move."""
        count, loss = self._exchange_totals(step)
        self._is_applying = True
        norm = self.moving.move(optimizers, count, clip)
        self._is_applying = False
        self._move_count += 1
        if self._move_count == self._usual_move_count:
            self.done = step.number + 1
        values = step.values
        values["loss"] = loss / (count.clamp(min=1) if isinstance(count, torch.Tensor) else max(count, 1))
        if norm is not None:
            values["grad_norm"] = norm
        values.setdefault("lr", optimizers[0].param_groups[0]["lr"])

    @property
    def whole(self) -> bool:
        """Whether the state is that after `done` steps: no optimizer is at work, and none has still to follow."""
        return not self._is_applying and self._move_count in (0, self._usual_move_count)

    def _begin_step(self, number: int) -> Step:
        for schedule in self.run.schedules:
            schedule.set(number)
        self.tally.begin(number)
        self._totals = None
        return Step(self, number)

    def _exchange_totals(self, step: Step) -> tuple[Number, Number]:
        spoiled = self.run.strict.bad if self.run.strict is not None else None
        if self._is_alone:
            self._totals = self.tally.total(spoiled=spoiled)
        else:
            save, stop = self._read_requests()
            with self.gauge.phase(COMMUNICATION_PHASE):
                self._totals = self.tally.total(spoiled=spoiled, save=save, stop=stop)
        if isinstance(self._totals[1], float) and not math.isfinite(self._totals[1]):
            self._raise_bad_loss(step.number, self._totals[1])
        return self._totals

    def _end_step(self, step: Step) -> None:
        run, number = self.run, step.number
        if self._totals is None:
            self._exchange_totals(step)
        self.done, self._usual_move_count, self._move_count = number + 1, self._move_count, 0
        for ema in run.emas:
            ema.update()
        self.gauge.stepped(number, self.tally.units, step.values)
        requests = self._check_losses() if self._reads_later else (False, False)
        save, stop = self._read_requests() if self._is_alone else requests
        if self._needs_watch:
            self._watch_saves()
        if save or stop or (self._save_every and self.done % self._save_every == 0):
            self._save_checkpoint(self.done, stop=stop)

    def _watch_saves(self) -> None:
        """What need not be looked at when a run has neither checkpoints nor strict bits."""
        if self.done == self._first_step + 1:
            if self.run.strict is not None:
                self.run.strict.judge()
            if self.run.saves is not None and self._saves_regularly:  # now the optimizer has all that is to be saved
                self.run.saves.warm(self.run.keeping.tensors())
        if time.monotonic() - self._checked_at > _CHECK_INTERVAL_S:
            self._checked_at = time.monotonic()
            self.run.tell_saves()

    def _read_requests(self) -> tuple[bool, bool]:
        """Whether this process wants a save, or to stop."""
        request = self.run.here.asked()
        # A wish stays until what was saved for it is durable, and nobody but the first process tells of that.
        self._is_save_answered = self._is_save_answered and request == "save"
        save_s = self.run.options.save_s
        is_due = save_s > 0 and self.run.mesh.rank == 0 and time.monotonic() - self._saved_at >= save_s
        return is_due or (request == "save" and not self._is_save_answered), request == "stop"

    @property
    def _saves_regularly(self) -> bool:
        return self.run.options.save_s > 0 or self.run.options.save_steps > 0

    def _check_losses(self, *, wait: bool = False) -> tuple[bool, bool]:
        """What the processes said; a loss that is no number ends the run before anything is saved after it."""
        save = stop = False
        for totals in self.tally.read(wait=wait):
            if not math.isfinite(totals.loss):
                self._raise_bad_loss(totals.step, totals.loss)
            save, stop = save or totals.save > 0, stop or totals.stop > 0
        return save, stop

    def _save_checkpoint(self, step: int, *, stop: bool) -> None:
        self._check_losses(wait=True)
        self._saved_at, self._is_save_answered = time.monotonic(), True
        if self.run.saves:
            self.gauge.saved(step, self.run.save(step, wait=stop))
            self.moving.fence = self.run.saves.fence
        if stop:
            self.run.here.yield_place()

    def _raise_bad_loss(self, step: int, loss: float) -> None:
        numbers = self.tally.blame(step)
        ids = [int(sample_id) for number in numbers for sample_id in self.feed.plan.ids(step, number)]
        if not numbers and self.run.strict is not None and self.run.strict.spoiled():
            raise UserCodeFailed(
                f"a gradient of step {step} is no number, or so large that its sum would not be exact",
                "clip inside the model or lower the learning rate; checkpoints before this step are kept",
            )
        omitted = f" and {len(ids) - _MAX_NAMED_SAMPLES} more" if len(ids) > _MAX_NAMED_SAMPLES else ""
        source = (
            f"micro-batch {numbers[0]}, samples {ids[:_MAX_NAMED_SAMPLES]}{omitted}" if numbers else "another process"
        )
        raise UserCodeFailed(
            f"the loss of step {step} is {loss}: {source}",
            "look at these samples, lower the learning rate or clip gradients; checkpoints before this step are kept",
        )

    def _open_stream(self, first_step: int, end_step: int) -> Iterator[FetchedBatch]:
        return self.feed.stream(first_step, end_step, self.run.mesh.reader, self.run.mesh.readers)
