"""The gauge beside a training loop: told of every step, it says now and then how things stand."""

import contextlib
import statistics
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TextIO

from falaj.gauge.clock import Late, clock_of
from falaj.gauge.line import Line
from falaj.gauge.own import memory, started_s
from falaj.worker import Here

COMMUNICATION = "communication"
"""The phase in which a process waits for the others."""
_UNITS, _SPAN_S = "\0units", "\0span_s"


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
        self.number = first
        self._clock, self._late = clock_of(device), Late()
        self._line = Line(steps, self.habits.units, self.habits.stream) if rank == 0 else None
        self._shown: dict[str, float] = {}
        self._due = 0.0
        self._logged = self.seen = self._clock.mark()
        self._clock.steps()
        self._count, self._units, self._waited, self._micros, self._stalled = 0, 0.0, 0.0, 0, 0.0
        self._lost = started_s()
        self._begun = self._logged - self._lost

    def waited(self, seconds: float) -> None:
        """The loop waited so long for its next micro-batch."""
        self._waited += seconds
        self._micros += 1

    def stepped(self, number: int, units: float, values: Mapping[str, Any]) -> None:
        """Step `number` is queued: so many items of this process, and values (loss, norm, lr) that may still be on a
        device, where reading them would make the loop wait."""
        self.seen = now = self._clock.mark()
        self.number = number
        self._count += 1
        self._units += units
        if now >= self._due:
            self._log(now, values)

    def saved(self, number: int, stall_s: float) -> None:
        """The loop stood still so long to save."""
        del number
        self._stalled += stall_s

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """A part of a step by a name of its own; `COMMUNICATION` is what a process waits for others."""
        begun = self._clock.begin()
        try:
            yield
        finally:
            self._clock.end(name, begun)

    def note(self, text: str) -> None:
        """Say something in words."""
        self.here.note(text)

    def close(self) -> None:
        """The loop is over."""
        self._tell_late(wait=True)
        if self._line is not None:
            self._line.show(self.number, self._shown, last=True)
            self._line.close()

    def _log(self, now: float, values: Mapping[str, Any]) -> None:
        """A log point: say how the time since the last went, and what values have come."""
        first, span_s = not self._due, now - self._logged
        self._due, self._logged = now + self.habits.log_s, now
        figures = self._figures(span_s, self._clock.steps(), self._clock.phases())
        # The first step makes kernels and buffers: its pace says nothing.
        units = {} if first else {_UNITS: self._units, _SPAN_S: span_s}
        self._late.put(self.number, {**values, **units})
        if first:
            self._lost, figures = now - self._begun, {"goodput": 0.0}
        self._count, self._units, self._waited, self._micros, self._stalled = 0, 0.0, 0.0, 0, 0.0
        if self.rank == 0:
            self._tell(self.number, {**figures, **memory(self.device)})
            self.here.progress(self.number, self.steps)
        self._tell_late()
        if self._line is not None:
            self._line.show(self.number, self._shown)

    def _figures(self, span_s: float, steps: list[float], phases: Mapping[str, float]) -> dict[str, float]:
        """How `span_s` seconds went."""
        middle = statistics.median(steps) if steps else span_s / self._count
        away = self._waited + self._stalled + phases.get(COMMUNICATION, 0.0)
        self._lost += self._waited + self._stalled
        if self.world > 1:
            self.here.metric(f"rank/{self.rank}/step_s", middle, self.number)
            self.here.metric(f"rank/{self.rank}/compute_s", max(0.0, middle - away / self._count), self.number)
        share = {name: 100 * seconds / span_s for name, seconds in phases.items()}
        return {
            "step_s": middle,
            "input_wait": 100 * self._waited / span_s,
            "checkpoint_stall": 100 * self._stalled / span_s,
            "goodput": 100 * max(0.0, 1 - self._lost / (self._logged - self._begun)),
            "left_s": max(0, self.steps - self.number) * span_s / self._count,
            **{f"phase/{name}": value for name, value in share.items()},
        }

    def _tell_late(self, *, wait: bool = False) -> None:
        """Tell the values of earlier steps that have come."""
        for step, values in self._late.take(wait=wait):
            units, span_s = values.pop(_UNITS, 0.0), values.pop(_SPAN_S, 0.0)
            if span_s:
                values[f"{self.habits.units}_per_s"] = units * (self.habits.readers or self.world) / span_s
            self._tell(step, values)

    def _tell(self, step: int, figures: Mapping[str, float]) -> None:
        if self.rank == 0:
            self._shown.update(figures)
            for key, value in figures.items():
                self.here.metric(key, value, step)
