"""The search for the fastest way to run a script that fits into memory, by measuring.

The batch is the user's and never changes; neither does what the script itself says. Levers are tried one after the
other, each on top of what was kept so far: precision, compiler, micro-batch (a divisor of the batch), recomputing
activations, reading ahead, threads. What is kept at the end is faster than the script as it is, or is the script as it
is.
"""

import json
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from falaj.core.errors import UserCodeFailed
from falaj.train.probe import ScriptMeasurement
from falaj.train.sizing import (
    MAX_FILL_SHARE,
    MemoryPoint,
    SizingResult,
    find_largest,
    find_largest_below,
    list_divisors,
)

OptionChanges = Mapping[str, Any]
MIN_SPEEDUP = 0.02
"""What is faster by less is not faster; nor what is faster by less than twice the doubt in both."""
_INPUT_SHARE = 0.05
"""Reading further ahead is tried where a step waits for samples for more than this share of it."""
_DEFAULT_OPTIONS = {"precision": "auto", "compile": False, "activation": "none", "micro": 0, "threads": 0, "ahead": 0}
_READ_AHEADS, _ACTIVATION_BUDGETS = (4, 16), (0.5,)
_COMPILE_MODES = {"cpu": (True,), "cuda": (True, "blocks", "max-autotune-no-cudagraphs")}
"""Ways to compile by what computes; the last, which takes longest, only where an earlier one was worth it."""
_MICRO_DIVISOR = 4


@dataclass(frozen=True, slots=True)
class TuningTrial:
    """One line of the table."""

    name: str
    units_s: float
    memory_bytes: int
    verdict: str
    changes: OptionChanges = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TuningResult:
    """What was found."""

    changes: OptionChanges
    """Options for FALAJ_TRAIN."""
    units_s: float
    """Samples a second."""
    before_units_s: float
    """The script as it is; 0 when that does not fit into memory."""
    memory_bytes: int
    free_bytes: int
    batch: int
    largest: float
    """The micro-batch that memory is thought to hold with room to spare; 0 when it does not limit it."""
    brim: float
    """The one that would fill it to the last byte; 0 likewise."""
    shape: str
    chip: OptionChanges
    tried: tuple[TuningTrial, ...]
    cached: bool = False


class TuningSearch:
    """A search with what was measured so far. `run` measures options; `tell` hears every line of the table."""

    def __init__(
        self,
        measure_changes: Callable[[OptionChanges], ScriptMeasurement],
        *,
        world: int = 1,
        budget_s: float = 1800.0,
        report_trial: Callable[[TuningTrial], None] = lambda _: None,
    ) -> None:
        self._measure, self._world, self._report_trial = measure_changes, world, report_trial
        self._lone_options: dict[str, Any] = {}
        """What a script does by itself as one of many processes, and must be told when it is measured alone."""
        self._sets_own_micro = False
        self._deadline = time.monotonic() + budget_s
        self._measurements: dict[str, ScriptMeasurement] = {}
        self._trials: list[TuningTrial] = []
        self._best_changes: dict[str, Any] = {}
        self._sizing = SizingResult(0, 0.0, 0.0)

    def found(self) -> TuningResult:
        """Go through the levers."""
        self._measure_baseline()
        for lever in (
            self._try_precisions,
            self._try_compile_modes,
            self._try_micro_sizes,
            self._try_activations,
            self._try_read_aheads,
            self._try_thread_counts,
        ):
            if time.monotonic() < self._deadline:
                lever()
        self._confirm_choice()
        current, sizing = self._current, self._sizing
        return TuningResult(
            self._best_changes,
            current.units_s,
            self._baseline.units_s,
            current.memory_bytes,
            current.free_bytes,
            current.batch,
            _finite_or_zero(sizing.predicted),
            _finite_or_zero(sizing.brim),
            current.shape,
            current.chip,
            tuple(self._trials),
        )

    def _measure_changes(self, changes: OptionChanges) -> ScriptMeasurement:
        return self._measure({**self._lone_options, **changes})

    @property
    def _baseline(self) -> ScriptMeasurement:
        return self._measurements[_changes_key({})]

    @property
    def _current(self) -> ScriptMeasurement:
        return self._measurements[_changes_key(self._best_changes)]

    @property
    def _micro_sizes(self) -> list[int]:
        """The micro-batches that one process can have."""
        return [size for size in list_divisors(self._baseline.batch) if size <= self._baseline.batch / self._world]

    def _measure_baseline(self) -> None:
        """The script as it is, or with the first micro-batch that fits."""
        baseline = self._try_changes("as it is", {})
        if baseline.failed:
            raise UserCodeFailed(f"the script fails by itself:\n{baseline.failed}", "let it run first")
        self._sets_own_micro = baseline.micro != baseline.batch
        if baseline.batch and self._world > 1 and self._is_tunable("micro"):
            self._lone_options = {"micro": self._micro_sizes[-1]}
            self._measurements.clear()
            baseline = self._try_changes(f"as one of {self._world} processes", {})
        size = baseline.micro
        while baseline.batch and self._is_tunable("micro") and not has_memory_to_spare(self._current):
            smaller = find_largest_below(self._micro_sizes, size / _MICRO_DIVISOR)
            if smaller == size:
                break
            size, self._best_changes = smaller, {"micro": smaller}
            self._try_changes(f"micro-batch {size}", self._best_changes)
        if not self._current.good:
            raise UserCodeFailed(
                f"the script runs out of memory {f'with a micro-batch of {size}' if size else 'before its first step'}",
                "more memory, a smaller one if it says its own, or a plan that cuts the model (parallel='fsdp')",
            )

    def _try_precisions(self) -> None:
        # On GPUs "auto" is the best they have already. CPUs that multiply 16-bit floats may still be slower with them.
        if self._is_tunable("precision") and self._current.chip["kind"] == "cpu" and self._current.chip["bf16"]:
            for name in ("bf16", "bf16-autocast"):
                self._try_changes(f"precision {name}", {**self._best_changes, "precision": name})

    def _try_compile_modes(self) -> None:
        modes = _COMPILE_MODES.get(self._current.chip["kind"], ()) if self._is_tunable("compile") else ()
        for number, mode in enumerate(modes):
            if number < 2 or "compile" in self._best_changes:
                self._try_changes(
                    "compiled" if mode is True else f"compiled, {mode}", {**self._best_changes, "compile": mode}
                )

    def _try_micro_sizes(self) -> None:
        """By speed: the largest, half, a quarter, and on as long as smaller is faster."""
        if not self._is_tunable("micro"):
            return
        self._sizing = self._find_largest_micro(self._best_changes)
        divisor, size = 1, 0
        while size != (size := find_largest_below(self._micro_sizes, self._sizing.samples / divisor)):
            self._try_changes(f"micro-batch {size}", {**self._best_changes, "micro": size})
            if divisor >= 4 and self._best_changes.get("micro") != size:
                return
            divisor *= 2

    def _try_activations(self) -> None:
        """Where memory is what keeps micro-batches small."""
        if (
            not self._is_tunable("activation")
            or not self._is_tunable("micro")
            or self._sizing.samples == self._micro_sizes[-1]
        ):
            return
        for name in ("blocks", *(_ACTIVATION_BUDGETS if self._best_changes.get("compile") else ())):
            self._find_largest_micro({**self._best_changes, "activation": name})

    def _try_read_aheads(self) -> None:
        if self._is_tunable("ahead") and self._current.phases["input"] > _INPUT_SHARE * self._current.step_s:
            for ahead in _READ_AHEADS:
                self._try_changes(f"reading {ahead} ahead", {**self._best_changes, "ahead": ahead})

    def _try_thread_counts(self) -> None:
        if self._current.chip["kind"] == "cpu" and self._is_tunable("threads"):
            for threads in sorted({*self._current.chip["choices"]} - {self._current.chip["threads"]}):
                self._try_changes(f"{threads} threads", {**self._best_changes, "threads": threads})

    def _confirm_choice(self) -> None:
        """Both once more, one after the other: what won by the machine's mood is not kept."""
        if not self._best_changes or not self._baseline.good:
            return
        tuned, baseline = self._measure_changes(self._best_changes), self._measure_changes({})
        self._record_trial("the choice, again", tuned, self._best_changes, "measured")
        self._record_trial("as it is, again", baseline, {}, "measured")
        if not has_memory_to_spare(tuned) or baseline.units_s > tuned.units_s:
            self._best_changes = {}
        elif baseline.good:
            self._measurements |= {_changes_key(self._best_changes): tuned, _changes_key({}): baseline}

    def _is_tunable(self, name: str) -> bool:
        """Whether a lever is ours: what the script says itself is left alone."""
        value = {**self._baseline.options, **dict.fromkeys(self._lone_options, 0)}.get(name, _DEFAULT_OPTIONS[name])
        return bool(value == _DEFAULT_OPTIONS[name]) and not (name == "micro" and self._sets_own_micro)

    def _find_largest_micro(self, changes: OptionChanges) -> SizingResult:
        def measure_point(size: int) -> MemoryPoint:
            name = f"micro-batch {size}" + (f", activation {changes['activation']}" if "activation" in changes else "")
            measured = self._try_changes(name, {**changes, "micro": size})
            return MemoryPoint(size, measured.work_bytes, measured.free_bytes, has_memory_to_spare(measured))

        return find_largest(measure_point, self._micro_sizes, self._current.micro)

    def _try_changes(self, name: str, changes: OptionChanges) -> ScriptMeasurement:
        """Measure it, unless it was; keep it where it is the fastest so far."""
        if self._measurements and changes.get("micro") == self._baseline.micro:
            changes = {key: value for key, value in changes.items() if key != "micro"}
        if earlier := self._measurements.get(_changes_key(changes)):
            return earlier
        measured = self._measurements[_changes_key(changes)] = self._measure_changes(changes)
        verdict = _judge_trial(measured, self._current)
        if verdict == "kept":
            self._best_changes = dict(changes)
        self._record_trial(name, measured, changes, verdict)
        return measured

    def _record_trial(self, name: str, measured: ScriptMeasurement, changes: OptionChanges, verdict: str) -> None:
        self._trials.append(TuningTrial(name, round(measured.units_s, 3), measured.memory_bytes, verdict, changes))
        self._report_trial(self._trials[-1])


def has_memory_to_spare(measured: ScriptMeasurement) -> bool:
    """Whether it ran, and not at the very end of memory."""
    return measured.good and measured.memory_bytes <= MAX_FILL_SHARE * measured.free_bytes


def _judge_trial(measured: ScriptMeasurement, best_measurement: ScriptMeasurement) -> str:
    if measured.failed:
        return f"failed: {measured.failed.splitlines()[-1][:200]}"
    if measured.oom:
        return "out of memory"
    if measured is best_measurement:
        return "kept"
    if not has_memory_to_spare(measured):
        return "too near to the end of memory"
    margin = 1 + max(MIN_SPEEDUP, 2 * math.hypot(measured.doubt, best_measurement.doubt))
    return (
        "kept"
        if not has_memory_to_spare(best_measurement) or measured.units_s > best_measurement.units_s * margin
        else "slower"
    )


def _finite_or_zero(samples: float) -> float:
    return samples if samples < float("inf") else 0.0  # JSON has no infinity


def _changes_key(changes: OptionChanges) -> str:
    return json.dumps(changes, sort_keys=True)
