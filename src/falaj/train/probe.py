"""One way to run a script, measured: the user's own script for a few steps, in a process that leaves nothing behind.

Whoever measures says so in FALAJ_PROBE (a JSON object, the fields of `Order`). The run then takes `warm` + `steps`
steps, saves and publishes nothing, writes what it measured to `out`, and ends.
"""

import contextlib
import hashlib
import json
import os
import resource
import statistics
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.optim import optimizer as optimizers

from falaj.feed.batch_loader import BatchLoader
from falaj.feed.batch_plan import BatchPlan
from falaj.train import cpus
from falaj.train.mesh import ProcessMesh
from falaj.train.options import Options
from falaj.train.run import Run
from falaj.train.step import Step

_MIN_STEPS = 3
"""Steps that are measured at least, though time is up."""
_OUT_OF_MEMORY_TEXTS = ("out of memory", "can't allocate memory", "alloc_failed", "cannot allocate memory")
_LIMIT_SLACK_BYTES = 1 << 28
"""Beyond its limit a process keeps room for stacks, and for what is mapped and never touched."""
_CLEAR_PEAK = "5"  # proc(5): forget the highest resident size


class ProbeRequest(NamedTuple):
    """What is to be measured, and where the answer goes."""

    out: str
    steps: int = 10
    warm: int = 3
    limit_bytes: int = 0
    """Memory it may use; 0: all that is free."""
    seconds: float = 60.0
    """No further steps after so long; the first does not count, for that is where compilers work."""


@dataclass(frozen=True, slots=True)
class ScriptMeasurement:
    """What came of it. Times are of one step, the middle one of those measured."""

    units_s: float = 0.0
    """Samples a second."""
    step_s: float = 0.0
    doubt: float = 0.0
    """By what share of it another measurement may differ."""
    phases: Mapping[str, float] = field(default_factory=dict)
    """Seconds of a step: input (waiting for samples), work (forward and backward), apply (the optimizer)."""
    work_bytes: int = 0
    """The peak of memory in forward and backward, with the optimizer's state there."""
    apply_bytes: int = 0
    free_bytes: int = 0
    """What one process may use here."""
    batch: int = 0
    micro: int = 0
    options: Mapping[str, Any] = field(default_factory=dict)
    """Those the script ran with."""
    shape: str = ""
    """A digest of the sizes of the model and the data."""
    chip: Mapping[str, Any] = field(default_factory=dict)
    oom: bool = False
    failed: str = ""
    """Why there is no answer: the last lines it said."""

    @property
    def memory_bytes(self) -> int:
        """The peak of memory."""
        return max(self.work_bytes, self.apply_bytes)

    @property
    def good(self) -> bool:
        """Whether it ran."""
        return not self.oom and not self.failed


def read_probe(environ: Mapping[str, str] = os.environ) -> "ScriptProbe":
    """What somebody wants measured of this process."""
    return ScriptProbe(ProbeRequest(**json.loads(environ["FALAJ_PROBE"])))


def is_out_of_memory_error(error: BaseException) -> bool:
    """Whether this error says that memory is used up, of a GPU or of the machine."""
    text = str(error).lower()
    is_memory_error = isinstance(error, MemoryError | torch.OutOfMemoryError)
    return is_memory_error or (
        isinstance(error, RuntimeError) and any(message_part in text for message_part in _OUT_OF_MEMORY_TEXTS)
    )


class ScriptProbe:
    """The stop-watch in a process."""

    def __init__(self, request: ProbeRequest) -> None:
        self.order = request
        self.facts: dict[str, Any] = {}
        self._memory: MemoryMeter = HostMemoryMeter()
        self._steps: list[dict[str, Any]] = []
        self._current_step: dict[str, Any] = {}
        self._shape_digest = hashlib.sha256()
        self._waited_s = 0.0
        self._measured_since = 0.0

    def began(self, options: Options, device: torch.device) -> None:
        """A run with these options is about to begin. A second one in this process is what follows a lack of memory."""
        if self.facts:
            self.end(oom=True)
        self._memory = GpuMemoryMeter(device) if device.type == "cuda" else HostMemoryMeter()
        free_bytes = self._memory.free(self.order.limit_bytes)
        self.facts = {"options": asdict(options), "chip": describe_device(device), "free_bytes": free_bytes}
        optimizers.register_optimizer_step_pre_hook(lambda *_: self._record_backward())
        optimizers.register_optimizer_step_post_hook(lambda *_: self._record_apply())

    def shaped(self, module: nn.Module) -> None:
        """The run has this model."""
        sizes = [(name, tuple(param.shape), str(param.dtype)) for name, param in module.named_parameters()]
        self._shape_digest.update(repr(sizes).encode())

    def fed(self, plan: BatchPlan) -> None:
        """The run reads this."""
        self._shape_digest.update(repr((plan.samples, plan.batch)).encode())
        self.facts |= {"batch": plan.batch, "micro": plan.micro, "shape": self._shape_digest.hexdigest()}
        self._write_result(self.facts)  # whoever is killed has said so much

    def waited(self, seconds: float) -> None:
        """The run waited so long for samples."""
        self._waited_s += seconds

    def stepped(self, number: int, units: float = 0.0) -> None:
        """Step `number` begins, and with it the one before is over. Ends the process when it has seen enough."""
        del units
        self._finish_step()
        measured_steps = len(self._steps) - self.order.warm
        is_late = time.monotonic() - self._measured_since > self.order.seconds if self._steps else False
        if measured_steps >= self.order.steps or (is_late and measured_steps >= min(_MIN_STEPS, self.order.steps)):
            self.end()
        if len(self._steps) <= 1:
            self._measured_since = time.monotonic()
        self._memory.forget()
        self._current_step = {"number": number, "begin": self._memory.mark(), "waited": self._waited_s}

    def end(self, *, oom: bool = False) -> None:
        """Say what was measured, and end the process."""
        self._write_result({**self.facts, "oom": True} if oom else {**self.facts, **self._compute_figures()})
        raise SystemExit(0)

    def _record_backward(self) -> None:
        # The gradients are there: what memory peaks at from here on is the optimizer's.
        if self._current_step and "worked" not in self._current_step:
            self._current_step |= {"worked": self._memory.mark(), "work_bytes": self._memory.peak()}
            self._memory.forget()

    def _record_apply(self) -> None:
        if self._current_step:
            self._current_step["applied"] = self._memory.mark()

    def _finish_step(self) -> None:
        if not self._current_step:
            return
        peak = self._memory.peak()
        step_record = {"work_bytes": peak, "apply_bytes": peak, "end": self._memory.mark(), **self._current_step}
        self._steps.append(step_record | {"input": self._waited_s - step_record["waited"]})

    def _compute_figures(self) -> dict[str, Any]:
        measured = self._steps[self.order.warm :]
        measure_elapsed = self._memory.between

        def list_durations(begin: str, end: str) -> list[float]:
            return [
                measure_elapsed(step_record[begin], step_record[end])
                for step_record in measured
                if begin in step_record and end in step_record
            ] or [0.0]

        median = statistics.median
        steps = list_durations("begin", "end")
        step_s = max(median(steps), 1e-9)
        doubt = median(abs(step_record - step_s) for step_record in steps) / step_s / len(steps) ** 0.5
        phases = {
            "input": median(step_record["input"] for step_record in measured),
            "work": median(list_durations("begin", "worked")),
            "apply": median(list_durations("worked", "applied")),
        }
        peaks = {name: max(step_record[name] for step_record in measured) for name in ("work_bytes", "apply_bytes")}
        speed = {"step_s": step_s, "doubt": doubt, "units_s": self.facts["batch"] / step_s}
        return {**speed, "phases": phases, **peaks}

    def _write_result(self, result: Mapping[str, Any]) -> None:
        with Path(self.order.out).open("r+b", buffering=0) as file:
            file.truncate(0)
            file.write(json.dumps(result).encode())


class ProbedRun(Run):
    """A run that is measured: it is what it is, but for saving and saying anything."""

    probe: ScriptProbe

    def __init__(self, options: Options, mesh: ProcessMesh, folder: Path | None = None) -> None:
        del folder
        self.probe.began(options, mesh.device)
        super().__init__(options, mesh, None)

    def data(self, *args: Any, **kwargs: Any) -> BatchLoader:
        """As it is, with a watch on how long it makes the run wait."""
        feed = super().data(*args, **kwargs)
        inner_stream = feed.stream

        def measured_stream(*args: Any, **kwargs: Any) -> Iterator[Any]:
            batches = inner_stream(*args, **kwargs)
            while True:
                started_at = time.perf_counter()
                batch = next(batches, None)
                self.probe.waited(time.perf_counter() - started_at)
                if batch is None:
                    return
                yield batch

        feed.stream = measured_stream  # type: ignore[method-assign]
        return feed

    def parallel(self, module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        """As it is; its sizes are part of what a measurement is true of."""
        self.probe.shaped(module)
        return super().parallel(module, *args, **kwargs)

    def steps(self, last: int, feed: BatchLoader, *args: Any, **kwargs: Any) -> Iterator[Step]:
        """As many as are to be measured, however many the script wants."""
        del last
        self.probe.fed(feed.plan)
        request = self.probe.order
        steps: Any = super().steps(request.warm + request.steps + 1, feed, *args, **kwargs)
        with contextlib.closing(steps):  # at once: what watches the run has an end of its own to make
            for step in steps:
                self.probe.stepped(step.number)
                yield step

    def save_model(self, module: nn.Module, name: str = "model", **metadata: Any) -> Path:
        """Nothing: what is measured is not kept."""
        del module, metadata
        return Path(name)


class MemoryMeter:
    """Peaks of memory, and marks in time."""

    def free(self, limit_bytes: int) -> int:
        """What this process may use, all it has included; no more than a limit that is not 0."""
        raise NotImplementedError

    def forget(self) -> None:
        """Peaks count from here."""

    def peak(self) -> int:
        """The highest since then."""
        raise NotImplementedError

    def mark(self) -> Any:
        """This moment."""
        return time.perf_counter()

    def between(self, begin: Any, end: Any) -> float:
        """Seconds from one moment to the other."""
        return float(end - begin)


class HostMemoryMeter(MemoryMeter):
    """The memory of a machine: what is resident of this process."""

    def free(self, limit_bytes: int) -> int:
        resident_bytes = _read_kilobytes("/proc/self/status", "VmRSS:")
        limits = [
            _read_kilobytes("/proc/meminfo", "MemAvailable:") + resident_bytes,
            *([limit_bytes] if limit_bytes else []),
        ]
        limits += [
            remaining + resident_bytes
            for folder in cpus.find_cgroups()
            if (remaining := _read_cgroup_remaining(folder)) is not None
        ]
        # Whoever asks for more is refused, before the machine begins to end others for its sake.
        data_limit = _read_kilobytes("/proc/self/status", "VmData:") + min(limits) - resident_bytes + _LIMIT_SLACK_BYTES
        hard_limit = resource.getrlimit(resource.RLIMIT_DATA)[1]
        resource.setrlimit(
            resource.RLIMIT_DATA, (data_limit if hard_limit < 0 else min(data_limit, hard_limit), hard_limit)
        )
        return max(0, min(limits))

    def forget(self) -> None:
        with contextlib.suppress(OSError):
            Path("/proc/self/clear_refs").write_text(_CLEAR_PEAK, encoding="ascii")

    def peak(self) -> int:
        return _read_kilobytes("/proc/self/status", "VmHWM:")


class GpuMemoryMeter(MemoryMeter):
    """The memory of a GPU: what torch gave out. Moments are marks in its queue, so that nobody waits for it."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def free(self, limit_bytes: int) -> int:
        free, total = torch.cuda.mem_get_info(self._device)
        if limit_bytes and limit_bytes < free:
            torch.cuda.set_per_process_memory_fraction(limit_bytes / total, self._device)
        return min(free, limit_bytes or free)

    def forget(self) -> None:
        torch.cuda.reset_peak_memory_stats(self._device)

    def peak(self) -> int:
        return torch.cuda.max_memory_allocated(self._device)

    def mark(self) -> Any:
        event: Any = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event

    def between(self, begin: Any, end: Any) -> float:
        end.synchronize()
        return float(begin.elapsed_time(end)) / 1000


def describe_device(device: torch.device) -> dict[str, Any]:
    """What computes, and whether it has 16-bit floats of a wide range."""
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        return {"kind": "cuda", "name": properties.name, "bf16": torch.cuda.is_bf16_supported()}
    return {
        "kind": device.type,
        "bf16": cpus.has_bf16(),
        "threads": torch.get_num_threads(),
        "choices": cpus.thread_choices(),
    }


def _read_cgroup_remaining(group: Path) -> int | None:
    """What a control group may still use; files it holds in memory give way. None: it has no limit."""
    for limit_file, usage_file, cache_field in (
        ("memory.max", "memory.current", "inactive_file "),
        ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file "),
    ):
        limit = _read_text(group / limit_file).strip()
        if limit.isdigit() and int(limit) < 1 << 60:
            reclaimed = [
                int(line.split()[1]) for line in _read_text(group / "memory.stat").splitlines() if cache_field in line
            ]
            return int(limit) - int(_read_text(group / usage_file) or 0) + (reclaimed[-1] if reclaimed else 0)
    return None


def _read_kilobytes(path: str, name: str) -> int:
    lines = (line.split() for line in _read_text(Path(path)).splitlines() if line.startswith(name))
    return next((int(line_fields[1]) * 1024 for line_fields in lines), 0)


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""
