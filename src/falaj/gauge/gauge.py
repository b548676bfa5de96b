"""The gauge beside a training loop: told of every step, it says now and then how things stand."""

import contextlib
import faulthandler
import signal
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TextIO

from falaj.gauge import hang
from falaj.gauge.beside import Beside
from falaj.gauge.chip import Chip
from falaj.gauge.clock import Clock, Late
from falaj.gauge.line import Line
from falaj.gauge.odd import Odd
from falaj.gauge.own import chip_name, limit_bytes, memory, started_s
from falaj.gauge.peaks import FORMULA
from falaj.gauge.profile import Capture
from falaj.gauge.work import Work
from falaj.worker import Here

COMMUNICATION = "communication"
"""The phase in which a process waits for the others."""
_UNITS, _SPAN_S, _MICROS = "\0units", "\0span_s", "\0micros"
_SLOW_STEPS, _SLOW_S, _LAST_S = 5, 1.0, 5.0
_FIRST_GAP_S = 0.02


@dataclass(frozen=True, slots=True)
class Habits:
    """How a gauge goes about it."""

    units: str = "samples"
    flops_per_unit: float = 0.0
    """By your own formula; else they are counted on the model that `watch` was shown."""
    hang_s: float = 0.0
    """No step for so long is a hang; 0: nobody looks."""
    first_s: float = 1800.0
    """The first steps may take so long: kernels are compiled."""
    log_s: float = 2.0
    dtype: str = "bf16"
    """Of matrix products, on a device: what its peak is told for."""
    matmul_flops: float = 0.0
    """FLOP/s of a matrix product as measured here (`flops.matmul`), where somebody did."""
    readers: int = 0
    """How many processes read other data; 0: all."""
    stream: TextIO | None = None


class Gauge:
    """One process's. `steps` is how many there will be."""

    def __init__(
        self, here: Here, *, rank: int, world: int, device: str, first: int, steps: int, **habits: Any
    ) -> None:
        self.here, self.rank, self.world, self.device, self.steps = here, rank, world, device, steps
        self.habits = Habits(**habits)
        self.number, self._first = first - 1, first
        self._clock, self._late = Clock(device), Late()
        self._work = Work(device, self.habits.dtype, self.habits.matmul_flops)
        self._line = Line(steps, self.habits.units, self.habits.stream) if rank == 0 else None
        self._shown: dict[str, float] = {}
        self._odd_loss, self._odd_step = Odd("the loss", mads=6, share=0.1), Odd("the time", mads=3, share=1.0)
        self._slow = Odd("the time", mads=3, share=0.2)
        self._slowed, self._left_s = "", 0.0
        profiles = here.checkpoints / "profiles" if here.checkpoints else None
        self._capture = Capture(profiles, device, self._facts) if rank == 0 else None
        self._seen = self._logged = self._clock.mark()
        self._clock.steps()
        self._due, self._lost, self._gap_s = 0.0, started_s(), _FIRST_GAP_S
        self._untold: Mapping[str, Any] | None = None
        self._begun = self._logged - self._lost
        self._forget()
        self._chip = Chip(device)
        self._heard = hang.listen()
        self._beside = Beside(self._ticks(), min(1.0, self.habits.hang_s / 4 or 1.0))

    def watch(self, module: Any, drawn: Any = None) -> None:
        """Count the operations of this module on its first inputs. One that is cut over processes needs a sketch of
        the whole, made before (`flops.sketch`)."""
        self._work.watch(module, drawn)

    def waited(self, seconds: float) -> None:
        """The loop waited so long for its next micro-batch."""
        self._waited += seconds
        self._micros += 1
        if self._capture is not None:
            self._capture.waited(seconds)

    def stepped(self, number: int, units: float, values: Mapping[str, Any]) -> None:
        """Step `number` (the first is 0) is queued: so many items of this process, and values (loss, norm, lr) that may
        still be on a device, where reading them would make the loop wait."""
        self._seen = now = self._clock.mark()
        self.number = number
        self._count += 1
        self._units += units
        if self._capture is not None:
            self._capture.stepped(number)
        if now >= self._due:
            self._log(now, values)
        else:
            self._untold = values

    def saved(self, number: int, stall_s: float) -> None:
        """The loop stood still so long to save."""
        del number
        self._stalled += stall_s
        self.alive()

    def alive(self) -> None:
        """Something long that is no step goes on, such as an evaluation: it is no hang."""
        self._seen = time.perf_counter()

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """A part of a step by a name of its own; `COMMUNICATION` is what a process waits for others."""
        begun = self._clock.begin()
        try:
            with self._capture.phase(name) if self._capture else contextlib.nullcontext():
                yield
        finally:
            self._clock.end(name, begun)

    def note(self, text: str) -> None:
        """Say something in words."""
        self.here.note(text)

    def close(self) -> None:
        """The loop is over."""
        self._beside.close()
        if self._heard:
            faulthandler.unregister(signal.SIGUSR2)
        with contextlib.suppress(RuntimeError):  # a device that failed has said so already
            if self._untold is not None:
                self._log(self._seen, self._untold)
            self._tell_late(_LAST_S)
        if self._capture is not None:
            self._capture.close()
        if self._line is not None:
            self._line.show(self.number + 1, self._shown, last=True)
            self._line.close()

    def _ticks(self) -> list[Callable[[float], None]]:
        ticks: list[Callable[[float], None]] = [self._chip.tick, self._work.tick]
        if self._capture is not None:
            ticks.append(self._capture.tick)
        if self.habits.hang_s > 0:
            watchdog = hang.Watchdog(self.here, self.rank, self._pulse, self.habits.hang_s, self.habits.first_s)
            ticks.insert(0, watchdog.tick)
        return ticks

    def _pulse(self) -> tuple[float, int]:
        return self._seen, self.number - self._first + 1

    def _forget(self) -> None:
        self._count, self._units, self._waited, self._micros, self._stalled = 0, 0.0, 0.0, 0, 0.0

    def _log(self, now: float, values: Mapping[str, Any]) -> None:
        """A log point: say how the time since the last went, and what values have come."""
        first, span_s = not self._due, now - self._logged
        # Short runs have a curve, too: the first points lie close together.
        self._gap_s = min(self._gap_s * 1.1, self.habits.log_s)
        self._due, self._logged, self._untold = now + self._gap_s, now, None
        steps, phases = self._clock.steps(), self._clock.phases()
        figures: dict[str, float] = {}
        pace: dict[str, float] = {}
        if first:  # makes kernels and buffers: its pace says nothing, and nor does that of profiled steps
            self._lost = now - self._begun
        elif self._capture is None or not self._capture.took():
            figures = self._figures(span_s, steps, phases)
            pace = {_UNITS: self._units, _SPAN_S: span_s, _MICROS: self._micros}
            self._look(steps)
            self._left_s = max(0, self.steps - self.number - 1) * span_s / self._count
        self._forget()
        if self._line is not None:
            self._late.put(self.number, {**values, **pace})
            self._tell(self.number, {**figures, **memory(self.device)})
            self._tell_late()
            self.here.progress(self.number + 1, self.steps)
            self._line.show(self.number + 1, {**self._shown, "left_s": self._left_s})

    def _figures(self, span_s: float, steps: list[float], phases: Mapping[str, float]) -> dict[str, float]:
        """How `span_s` seconds went; what is only this rank's is told here."""
        middle = statistics.median(steps) if steps else span_s / self._count
        away = self._waited + self._stalled + phases.get(COMMUNICATION, 0.0)
        self._lost += self._waited + self._stalled
        own = {"step_s": middle, "compute_s": max(0.0, span_s - away) / self._count} if self.world > 1 else {}
        for name, value in {**own, **self._chip.take()}.items():
            self.here.metric(f"rank/{self.rank}/{name}", value, self.number)
        return {
            "step_s": middle,
            "input_wait": 100 * self._waited / span_s,
            "checkpoint_stall": 100 * self._stalled / span_s,
            "goodput": 100 * max(0.0, 1 - self._lost / (self._logged - self._begun)),
            **{f"phase/{name}": 100 * seconds / span_s for name, seconds in phases.items()},
        }

    def _look(self, steps: list[float]) -> None:
        """Say what is out of the ordinary, once when it begins."""
        self._say(self._odd_step.look(steps, self.number))
        self._slow.look(steps, self.number)
        # One slow step is over before a profile could show why.
        lasting = self._slow.running >= _SLOW_STEPS and sum(steps[-self._slow.running :]) >= _SLOW_S
        if lasting and self._capture and self._capture.slow():
            self._say(f"{self._slow.running} slow steps one after the other: a profile is taken")
        slowed = self._chip.slowed()
        if slowed and not self._slowed:
            self._say(f"the chip is slowed down by {slowed}")
        self._slowed = slowed

    def _say(self, text: str) -> None:
        if text:
            self.note(f"rank {self.rank}: {text}")

    def _tell_late(self, wait_s: float = 0.0) -> None:
        """Tell the values of earlier steps that have come."""
        for step, values in self._late.take(wait_s):
            units, span_s, micros = (values.pop(name, 0.0) for name in (_UNITS, _SPAN_S, _MICROS))
            if span_s:
                readers = self.habits.readers or self.world
                values[f"{self.habits.units}_per_s"] = units * readers / span_s
                flops = self.habits.flops_per_unit * units or self._work.flops * micros
                values.update(self._work.shares(flops * readers / self.world / span_s))
            if "loss" in values:
                self._say(self._odd_loss.look([values["loss"]], step))
            self._tell(step, values)

    def _tell(self, step: int, figures: Mapping[str, float]) -> None:
        self._shown.update(figures)
        for key, value in figures.items():
            self.here.metric(key, value, step)

    def _facts(self) -> dict[str, Any]:
        """What a profile should know of the run."""
        about = {"run": self.here.run, "step": self.number, "world": self.world, "device": self.device}
        chip = {"chip": chip_name(self.device), "memory_limit_bytes": limit_bytes(self.device)}
        return {**about, **chip, "mfu_is": FORMULA, **self._shown, **self._chip.last, **self._chip.read()}
