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

from falaj.feed.feed import Feed
from falaj.feed.plan import Plan
from falaj.train import cpus
from falaj.train.mesh import Mesh
from falaj.train.options import Options
from falaj.train.run import Run
from falaj.train.step import Step

_LEAST = 3
"""Steps that are measured at least, though time is up."""
_NO_MEMORY = ("out of memory", "can't allocate memory", "alloc_failed", "cannot allocate memory")
_SLACK = 1 << 28
"""Beyond its limit a process keeps room for stacks, and for what is mapped and never touched."""
_CLEAR_PEAK = "5"  # proc(5): forget the highest resident size


class Order(NamedTuple):
    """What is to be measured, and where the answer goes."""

    out: str
    steps: int = 10
    warm: int = 3
    limit_bytes: int = 0
    """Memory it may use; 0: all that is free."""
    seconds: float = 60.0
    """No further steps after so long; the first does not count, for that is where compilers work."""


@dataclass(frozen=True, slots=True)
class Measured:
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


def asked(environ: Mapping[str, str] = os.environ) -> "Probe":
    """What somebody wants measured of this process."""
    return Probe(Order(**json.loads(environ["FALAJ_PROBE"])))


def out_of_memory(error: BaseException) -> bool:
    """Whether this error says that memory is used up, of a GPU or of the machine."""
    text = str(error).lower()
    known = isinstance(error, MemoryError | torch.OutOfMemoryError)
    return known or (isinstance(error, RuntimeError) and any(words in text for words in _NO_MEMORY))


class Probe:
    """The stop-watch in a process."""

    def __init__(self, order: Order) -> None:
        self.order = order
        self.facts: dict[str, Any] = {}
        self._memory: Memory = Resident()
        self._steps: list[dict[str, Any]] = []
        self._now: dict[str, Any] = {}
        self._shape = hashlib.sha256()
        self._waited = 0.0
        self._since = 0.0

    def began(self, options: Options, device: torch.device) -> None:
        """A run with these options is about to begin. A second one in this process is what follows a lack of memory."""
        if self.facts:
            self.end(oom=True)
        self._memory = Allocated(device) if device.type == "cuda" else Resident()
        free = self._memory.free(self.order.limit_bytes)
        self.facts = {"options": asdict(options), "chip": chip(device), "free_bytes": free}
        optimizers.register_optimizer_step_pre_hook(lambda *_: self._worked())
        optimizers.register_optimizer_step_post_hook(lambda *_: self._applied())

    def shaped(self, module: nn.Module) -> None:
        """The run has this model."""
        sizes = [(name, tuple(one.shape), str(one.dtype)) for name, one in module.named_parameters()]
        self._shape.update(repr(sizes).encode())

    def fed(self, plan: Plan) -> None:
        """The run reads this."""
        self._shape.update(repr((plan.samples, plan.batch)).encode())
        self.facts |= {"batch": plan.batch, "micro": plan.micro, "shape": self._shape.hexdigest()}
        self._write(self.facts)  # whoever is killed has said so much

    def waited(self, seconds: float) -> None:
        """The run waited so long for samples."""
        self._waited += seconds

    def stepped(self, number: int, units: float = 0.0) -> None:
        """Step `number` begins, and with it the one before is over. Ends the process when it has seen enough."""
        del units
        self._close()
        done = len(self._steps) - self.order.warm
        late = time.monotonic() - self._since > self.order.seconds if self._steps else False
        if done >= self.order.steps or (late and done >= min(_LEAST, self.order.steps)):
            self.end()
        if len(self._steps) <= 1:
            self._since = time.monotonic()
        self._memory.forget()
        self._now = {"number": number, "begin": self._memory.mark(), "waited": self._waited}

    def end(self, *, oom: bool = False) -> None:
        """Say what was measured, and end the process."""
        self._write({**self.facts, "oom": True} if oom else {**self.facts, **self._figures()})
        raise SystemExit(0)

    def _worked(self) -> None:
        # The gradients are there: what memory peaks at from here on is the optimizer's.
        if self._now and "worked" not in self._now:
            self._now |= {"worked": self._memory.mark(), "work_bytes": self._memory.peak()}
            self._memory.forget()

    def _applied(self) -> None:
        if self._now:
            self._now["applied"] = self._memory.mark()

    def _close(self) -> None:
        if not self._now:
            return
        peak = self._memory.peak()
        now = {"work_bytes": peak, "apply_bytes": peak, "end": self._memory.mark(), **self._now}
        self._steps.append(now | {"input": self._waited - now["waited"]})

    def _figures(self) -> dict[str, Any]:
        told = self._steps[self.order.warm :]
        spent = self._memory.between

        def seconds(begin: str, end: str) -> list[float]:
            return [spent(one[begin], one[end]) for one in told if begin in one and end in one] or [0.0]

        middle = statistics.median
        steps = seconds("begin", "end")
        step_s = max(middle(steps), 1e-9)
        doubt = middle(abs(one - step_s) for one in steps) / step_s / len(steps) ** 0.5
        phases = {
            "input": middle(one["input"] for one in told),
            "work": middle(seconds("begin", "worked")),
            "apply": middle(seconds("worked", "applied")),
        }
        peaks = {name: max(one[name] for one in told) for name in ("work_bytes", "apply_bytes")}
        speed = {"step_s": step_s, "doubt": doubt, "units_s": self.facts["batch"] / step_s}
        return {**speed, "phases": phases, **peaks}

    def _write(self, known: Mapping[str, Any]) -> None:
        with Path(self.order.out).open("r+b", buffering=0) as file:
            file.truncate(0)
            file.write(json.dumps(known).encode())


class Probed(Run):
    """A run that is measured: it is what it is, but for saving and saying anything."""

    probe: Probe

    def __init__(self, options: Options, mesh: Mesh, folder: Path | None = None) -> None:
        del folder
        self.probe.began(options, mesh.device)
        super().__init__(options, mesh, None)

    def data(self, *given: Any, **named: Any) -> Feed:
        """As it is, with a watch on how long it makes the run wait."""
        feed = super().data(*given, **named)
        inner = feed.stream

        def stream(*given: Any, **named: Any) -> Iterator[Any]:
            coming = inner(*given, **named)
            while True:
                begun = time.perf_counter()
                one = next(coming, None)
                self.probe.waited(time.perf_counter() - begun)
                if one is None:
                    return
                yield one

        feed.stream = stream  # type: ignore[method-assign]
        return feed

    def parallel(self, module: nn.Module, *given: Any, **named: Any) -> Any:
        """As it is; its sizes are part of what a measurement is true of."""
        self.probe.shaped(module)
        return super().parallel(module, *given, **named)

    def steps(self, last: int, feed: Feed, *given: Any, **named: Any) -> Iterator[Step]:
        """As many as are to be measured, however many the script wants."""
        del last
        self.probe.fed(feed.plan)
        order = self.probe.order
        inner: Any = super().steps(order.warm + order.steps + 1, feed, *given, **named)
        with contextlib.closing(inner):  # at once: what watches the run has an end of its own to make
            for step in inner:
                self.probe.stepped(step.number)
                yield step

    def save_model(self, module: nn.Module, name: str = "model", **about: Any) -> Path:
        """Nothing: what is measured is not kept."""
        del module, about
        return Path(name)


class Memory:
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


class Resident(Memory):
    """The memory of a machine: what is resident of this process."""

    def free(self, limit_bytes: int) -> int:
        mine = _kilobytes("/proc/self/status", "VmRSS:")
        known = [_kilobytes("/proc/meminfo", "MemAvailable:") + mine, *([limit_bytes] if limit_bytes else [])]
        known += [left + mine for folder in cpus.groups() if (left := _left(folder)) is not None]
        # Whoever asks for more is refused, before the machine begins to end others for its sake.
        fence = _kilobytes("/proc/self/status", "VmData:") + min(known) - mine + _SLACK
        hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
        resource.setrlimit(resource.RLIMIT_DATA, (fence if hard < 0 else min(fence, hard), hard))
        return max(0, min(known))

    def forget(self) -> None:
        with contextlib.suppress(OSError):
            Path("/proc/self/clear_refs").write_text(_CLEAR_PEAK, encoding="ascii")

    def peak(self) -> int:
        return _kilobytes("/proc/self/status", "VmHWM:")


class Allocated(Memory):
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


def chip(device: torch.device) -> dict[str, Any]:
    """What computes, and whether it has 16-bit floats of a wide range."""
    if device.type == "cuda":
        known = torch.cuda.get_device_properties(device)
        return {"kind": "cuda", "name": known.name, "bf16": torch.cuda.is_bf16_supported()}
    return {"kind": device.type, "bf16": cpus.has_bf16(), "threads": torch.get_num_threads(), "choices": cpus.choices()}


def _left(group: Path) -> int | None:
    """What a control group may still use; files it holds in memory give way. None: it has no limit."""
    for most, used, files in (
        ("memory.max", "memory.current", "inactive_file "),
        ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file "),
    ):
        limit = _read(group / most).strip()
        if limit.isdigit() and int(limit) < 1 << 60:
            reclaimed = [int(line.split()[1]) for line in _read(group / "memory.stat").splitlines() if files in line]
            return int(limit) - int(_read(group / used) or 0) + (reclaimed[-1] if reclaimed else 0)
    return None


def _kilobytes(path: str, name: str) -> int:
    lines = (line.split() for line in _read(Path(path)).splitlines() if line.startswith(name))
    return next((int(words[1]) * 1024 for words in lines), 0)


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""
