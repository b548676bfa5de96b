"""The gauge beside a training loop: told of every step, it says now and then how things stand."""

import contextlib
import faulthandler
import signal
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TextIO

from falaj.gauge import hang_watchdog
from falaj.gauge.anomaly import AnomalyDetector
from falaj.gauge.chip_peaks import MFU_FORMULA
from falaj.gauge.chip_sampler import ChipSampler
from falaj.gauge.device_clock import DelayedValues, DeviceClock
from falaj.gauge.process_stats import read_chip_name, read_memory, read_memory_limit, seconds_since_start
from falaj.gauge.profile import ProfileCapture
from falaj.gauge.progress_line import ProgressLine
from falaj.gauge.sampler_thread import SamplerThread
from falaj.gauge.utilization import FlopsUtilization
from falaj.worker import CurrentAttempt

COMMUNICATION_PHASE = "communication"
"""The phase in which a process waits for the others."""
_UNITS_KEY, _SPAN_KEY, _MICROS_KEY = "\0units", "\0span_s", "\0micros"
_MIN_SLOW_STEPS, _MIN_SLOW_S, _FINAL_WAIT_S = 5, 1.0, 5.0
_FIRST_LOG_INTERVAL_S = 0.02


@dataclass(frozen=True, slots=True)
class MonitorOptions:
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


class StepMonitor:
    """One process's. `steps` is how many there will be."""

    def __init__(
        self,
        attempt: CurrentAttempt,
        *,
        rank: int,
        world: int,
        device: str,
        first_step: int,
        steps: int,
        **options: Any,
    ) -> None:
        self.here, self.rank, self.world, self.device, self.steps = attempt, rank, world, device, steps
        self.habits = MonitorOptions(**options)
        self.number, self._first_step = first_step - 1, first_step
        self._clock, self._delayed_values = DeviceClock(device), DelayedValues()
        self._utilization = FlopsUtilization(device, self.habits.dtype, self.habits.matmul_flops)
        self._progress_line = ProgressLine(steps, self.habits.units, self.habits.stream) if rank == 0 else None
        self._latest_figures: dict[str, float] = {}
        self._loss_detector, self._step_detector = (
            AnomalyDetector("the loss", mads=6, share=0.1),
            AnomalyDetector("the time", mads=3, share=1.0),
        )
        self._slow_detector = AnomalyDetector("the time", mads=3, share=0.2)
        self._throttle_reason, self._left_s = "", 0.0
        profiles = attempt.checkpoints / "profiles" if attempt.checkpoints else None
        self._capture = ProfileCapture(profiles, device, self._collect_facts) if rank == 0 else None
        self._last_step_at = self._logged_at = self._clock.mark()
        self._clock.steps()
        self._next_log_at, self._lost_s, self._log_interval_s = 0.0, seconds_since_start(), _FIRST_LOG_INTERVAL_S
        self._unlogged_values: Mapping[str, Any] | None = None
        self._began_at = self._logged_at - self._lost_s
        self._reset_counters()
        self._chip = ChipSampler(device)
        self._dumps_on_signal = hang_watchdog.register_stack_dump()
        self._sampler = SamplerThread(self._build_ticks(), min(1.0, self.habits.hang_s / 4 or 1.0))

    def watch(self, module: Any, meta_module: Any = None) -> None:
        """Count the operations of this module on its first inputs. One that is cut over processes needs a sketch of
        the whole, made before (`flops.sketch`)."""
        self._utilization.watch(module, meta_module)

    def waited(self, seconds: float) -> None:
        """The loop waited so long for its next micro-batch."""
        self._waited_s += seconds
        self._micro_count += 1
        if self._capture is not None:
            self._capture.waited(seconds)

    def stepped(self, number: int, units: float, values: Mapping[str, Any]) -> None:
        """Step `number` (the first is 0) is queued: so many items of this process, and values (loss, norm, lr) that may
        still be on a device, where reading them would make the loop wait."""
        self._last_step_at = now = self._clock.mark()
        self.number = number
        self._step_count += 1
        self._unit_count += units
        if self._capture is not None:
            self._capture.stepped(number)
        if now >= self._next_log_at:
            self._log_step(now, values)
        else:
            self._unlogged_values = values

    def saved(self, number: int, stall_s: float) -> None:
        """The loop stood still so long to save."""
        del number
        self._stalled_s += stall_s
        self.alive()

    def alive(self) -> None:
        """Something long that is no step goes on, such as an evaluation: it is no hang."""
        self._last_step_at = time.perf_counter()

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """A part of a step by a name of its own; `COMMUNICATION_PHASE` is what a process waits for others."""
        begin_event = self._clock.begin()
        try:
            with self._capture.phase(name) if self._capture else contextlib.nullcontext():
                yield
        finally:
            self._clock.end(name, begin_event)

    def note(self, text: str) -> None:
        """Say something in words."""
        self.here.note(text)

    def close(self) -> None:
        """The loop is over."""
        self._sampler.close()
        if self._dumps_on_signal:
            faulthandler.unregister(signal.SIGUSR2)
        with contextlib.suppress(RuntimeError):  # a device that failed has said so already
            if self._unlogged_values is not None:
                self._log_step(self._last_step_at, self._unlogged_values)
            self._report_delayed(_FINAL_WAIT_S)
        if self._capture is not None:
            self._capture.close()
        if self._progress_line is not None:
            self._progress_line.show(self.number + 1, self._latest_figures, is_last=True)
            self._progress_line.close()

    def _build_ticks(self) -> list[Callable[[float], None]]:
        ticks: list[Callable[[float], None]] = [self._chip.tick, self._utilization.tick]
        if self._capture is not None:
            ticks.append(self._capture.tick)
        if self.habits.hang_s > 0:
            watchdog = hang_watchdog.HangWatchdog(
                self.here, self.rank, self._read_progress, self.habits.hang_s, self.habits.first_s
            )
            ticks.insert(0, watchdog.tick)
        return ticks

    def _read_progress(self) -> tuple[float, int]:
        return self._last_step_at, self.number - self._first_step + 1

    def _reset_counters(self) -> None:
        self._step_count, self._unit_count, self._waited_s, self._micro_count, self._stalled_s = 0, 0.0, 0.0, 0, 0.0

    def _log_step(self, now: float, values: Mapping[str, Any]) -> None:
        """A log point: say how the time since the last went, and what values have come."""
        is_first, span_s = not self._next_log_at, now - self._logged_at
        # Short runs have a curve, too: the first points lie close together.
        self._log_interval_s = min(self._log_interval_s * 1.1, self.habits.log_s)
        self._next_log_at, self._logged_at, self._unlogged_values = now + self._log_interval_s, now, None
        steps, phases = self._clock.steps(), self._clock.phases()
        figures: dict[str, float] = {}
        pace_values: dict[str, float] = {}
        if is_first:  # makes kernels and buffers: its pace says nothing, and nor does that of profiled steps
            self._lost_s = now - self._began_at
        elif self._capture is None or not self._capture.took():
            figures = self._compute_figures(span_s, steps, phases)
            pace_values = {_UNITS_KEY: self._unit_count, _SPAN_KEY: span_s, _MICROS_KEY: self._micro_count}
            self._report_anomalies(steps)
            self._left_s = max(0, self.steps - self.number - 1) * span_s / self._step_count
        self._reset_counters()
        if self._progress_line is not None:
            self._delayed_values.put(self.number, {**values, **pace_values})
            self._report_figures(self.number, {**figures, **read_memory(self.device)})
            self._report_delayed()
            self.here.progress(self.number + 1, self.steps)
            self._progress_line.show(self.number + 1, {**self._latest_figures, "left_s": self._left_s})

    def _compute_figures(self, span_s: float, steps: list[float], phases: Mapping[str, float]) -> dict[str, float]:
        """How `span_s` seconds went; what is only this rank's is told here."""
        median_s = statistics.median(steps) if steps else span_s / self._step_count
        away_s = self._waited_s + self._stalled_s + phases.get(COMMUNICATION_PHASE, 0.0)
        self._lost_s += self._waited_s + self._stalled_s
        rank_figures = (
            {"step_s": median_s, "compute_s": max(0.0, span_s - away_s) / self._step_count} if self.world > 1 else {}
        )
        for name, value in {**rank_figures, **self._chip.take()}.items():
            self.here.metric(f"rank/{self.rank}/{name}", value, self.number)
        return {
            "step_s": median_s,
            "input_wait": 100 * self._waited_s / span_s,
            "checkpoint_stall": 100 * self._stalled_s / span_s,
            "goodput": 100 * max(0.0, 1 - self._lost_s / (self._logged_at - self._began_at)),
            **{f"phase/{name}": 100 * seconds / span_s for name, seconds in phases.items()},
        }

    def _report_anomalies(self, steps: list[float]) -> None:
        """Say what is out of the ordinary, once when it begins."""
        self._note_for_rank(self._step_detector.look(steps, self.number))
        self._slow_detector.look(steps, self.number)
        # One slow step is over before a profile could show why.
        is_lasting = (
            self._slow_detector.running >= _MIN_SLOW_STEPS and sum(steps[-self._slow_detector.running :]) >= _MIN_SLOW_S
        )
        if is_lasting and self._capture and self._capture.slow():
            self._note_for_rank(f"{self._slow_detector.running} slow steps one after the other: a profile is taken")
        throttle_reason = self._chip.slowed()
        if throttle_reason and not self._throttle_reason:
            self._note_for_rank(f"the chip is slowed down by {throttle_reason}")
        self._throttle_reason = throttle_reason

    def _note_for_rank(self, text: str) -> None:
        if text:
            self.note(f"rank {self.rank}: {text}")

    def _report_delayed(self, wait_s: float = 0.0) -> None:
        """Tell the values of earlier steps that have come."""
        for step, values in self._delayed_values.take(wait_s):
            units, span_s, micros = (values.pop(name, 0.0) for name in (_UNITS_KEY, _SPAN_KEY, _MICROS_KEY))
            if span_s:
                readers = self.habits.readers or self.world
                values[f"{self.habits.units}_per_s"] = units * readers / span_s
                flops = self.habits.flops_per_unit * units or self._utilization.flops * micros
                values.update(self._utilization.shares(flops * readers / self.world / span_s))
            if "loss" in values:
                self._note_for_rank(self._loss_detector.look([values["loss"]], step))
            self._report_figures(step, values)

    def _report_figures(self, step: int, figures: Mapping[str, float]) -> None:
        self._latest_figures.update(figures)
        for key, value in figures.items():
            self.here.metric(key, value, step)

    def _collect_facts(self) -> dict[str, Any]:
        """What a profile should know of the run."""
        run_facts = {"run": self.here.run, "step": self.number, "world": self.world, "device": self.device}
        chip_facts = {"chip": read_chip_name(self.device), "memory_limit_bytes": read_memory_limit(self.device)}
        return {
            **run_facts,
            **chip_facts,
            "mfu_is": MFU_FORMULA,
            **self._latest_figures,
            **self._chip.last,
            **self._chip.read(),
        }
