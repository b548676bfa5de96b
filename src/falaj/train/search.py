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
from falaj.train.probe import Measured
from falaj.train.sizing import TIGHT, Point, Sized, below, divisors, largest

Changes = Mapping[str, Any]
NOISE = 0.02
"""What is faster by less is not faster; nor what is faster by less than twice the doubt in both."""
_INPUT = 0.05
"""Reading further ahead is tried where a step waits for samples for more than this share of it."""
_NOT_SAID = {"precision": "auto", "compile": False, "activation": "none", "micro": 0, "threads": 0, "ahead": 0}
_AHEADS, _BUDGETS = (4, 16), (0.5,)
_MODES = {"cpu": (True,), "cuda": (True, "blocks", "max-autotune-no-cudagraphs")}
"""Ways to compile by what computes; the last, which takes longest, only where an earlier one was worth it."""
_DOWN = 4


@dataclass(frozen=True, slots=True)
class Tried:
    """One line of the table."""

    name: str
    units_s: float
    memory_bytes: int
    verdict: str
    changes: Changes = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Tuned:
    """What was found."""

    changes: Changes
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
    chip: Changes
    tried: tuple[Tried, ...]
    cached: bool = False


class Search:
    """A search with what was measured so far. `run` measures options; `tell` hears every line of the table."""

    def __init__(
        self,
        run: Callable[[Changes], Measured],
        *,
        world: int = 1,
        budget_s: float = 1800.0,
        tell: Callable[[Tried], None] = lambda _: None,
    ) -> None:
        self._measure, self._world, self._tell = run, world, tell
        self._alone: dict[str, Any] = {}
        """What a script does by itself as one of many processes, and must be told when it is measured alone."""
        self._its_own = False
        self._until = time.monotonic() + budget_s
        self._seen: dict[str, Measured] = {}
        self._tried: list[Tried] = []
        self._best: dict[str, Any] = {}
        self._sized = Sized(0, 0.0, 0.0)

    def found(self) -> Tuned:
        """Go through the levers."""
        self._begin()
        for lever in (self._precision, self._compile, self._micro, self._activation, self._ahead, self._threads):
            if time.monotonic() < self._until:
                lever()
        self._duel()
        now, sized = self._now, self._sized
        return Tuned(
            self._best, now.units_s, self._first.units_s, now.memory_bytes, now.free_bytes, now.batch,
            _known(sized.predicted), _known(sized.brim), now.shape, now.chip, tuple(self._tried),
        )  # fmt: skip

    def _run(self, changes: Changes) -> Measured:
        return self._measure({**self._alone, **changes})

    @property
    def _first(self) -> Measured:
        return self._seen[_key({})]

    @property
    def _now(self) -> Measured:
        return self._seen[_key(self._best)]

    @property
    def _sizes(self) -> list[int]:
        """The micro-batches that one process can have."""
        return [one for one in divisors(self._first.batch) if one <= self._first.batch / self._world]

    def _begin(self) -> None:
        """The script as it is, or with the first micro-batch that fits."""
        first = self._try("as it is", {})
        if first.failed:
            raise UserCodeFailed(f"the script fails by itself:\n{first.failed}", "let it run first")
        self._its_own = first.micro != first.batch
        if first.batch and self._world > 1 and self._open("micro"):
            self._alone = {"micro": self._sizes[-1]}
            self._seen.clear()
            first = self._try(f"as one of {self._world} processes", {})
        size = first.micro
        while first.batch and self._open("micro") and not fits(self._now):
            smaller = below(self._sizes, size / _DOWN)
            if smaller == size:
                break
            size, self._best = smaller, {"micro": smaller}
            self._try(f"micro-batch {size}", self._best)
        if not self._now.good:
            raise UserCodeFailed(
                f"the script runs out of memory {f'with a micro-batch of {size}' if size else 'before its first step'}",
                "more memory, a smaller one if it says its own, or a plan that cuts the model (parallel='fsdp')",
            )

    def _precision(self) -> None:
        # On GPUs "auto" is the best they have already. CPUs that multiply 16-bit floats may still be slower with them.
        if self._open("precision") and self._now.chip["kind"] == "cpu" and self._now.chip["bf16"]:
            for name in ("bf16", "bf16-autocast"):
                self._try(f"precision {name}", {**self._best, "precision": name})

    def _compile(self) -> None:
        modes = _MODES.get(self._now.chip["kind"], ()) if self._open("compile") else ()
        for number, mode in enumerate(modes):
            if number < 2 or "compile" in self._best:
                self._try("compiled" if mode is True else f"compiled, {mode}", {**self._best, "compile": mode})

    def _micro(self) -> None:
        """By speed: the largest, half, a quarter, and on as long as smaller is faster."""
        if not self._open("micro"):
            return
        self._sized = self._largest(self._best)
        part, size = 1, 0
        while size != (size := below(self._sizes, self._sized.samples / part)):
            self._try(f"micro-batch {size}", {**self._best, "micro": size})
            if part >= 4 and self._best.get("micro") != size:
                return
            part *= 2

    def _activation(self) -> None:
        """Where memory is what keeps micro-batches small."""
        if not self._open("activation") or not self._open("micro") or self._sized.samples == self._sizes[-1]:
            return
        for name in ("blocks", *(_BUDGETS if self._best.get("compile") else ())):
            self._largest({**self._best, "activation": name})

    def _ahead(self) -> None:
        if self._open("ahead") and self._now.phases["input"] > _INPUT * self._now.step_s:
            for ahead in _AHEADS:
                self._try(f"reading {ahead} ahead", {**self._best, "ahead": ahead})

    def _threads(self) -> None:
        if self._now.chip["kind"] == "cpu" and self._open("threads"):
            for threads in sorted({*self._now.chip["choices"]} - {self._now.chip["threads"]}):
                self._try(f"{threads} threads", {**self._best, "threads": threads})

    def _duel(self) -> None:
        """Both once more, one after the other: what won by the machine's mood is not kept."""
        if not self._best or not self._first.good:
            return
        mine, theirs = self._run(self._best), self._run({})
        self._note("the choice, again", mine, self._best, "measured")
        self._note("as it is, again", theirs, {}, "measured")
        if not fits(mine) or theirs.units_s > mine.units_s:
            self._best = {}
        elif theirs.good:
            self._seen |= {_key(self._best): mine, _key({}): theirs}

    def _open(self, name: str) -> bool:
        """Whether a lever is ours: what the script says itself is left alone."""
        said = {**self._first.options, **dict.fromkeys(self._alone, 0)}.get(name, _NOT_SAID[name])
        return bool(said == _NOT_SAID[name]) and not (name == "micro" and self._its_own)

    def _largest(self, known: Changes) -> Sized:
        def look(size: int) -> Point:
            name = f"micro-batch {size}" + (f", activation {known['activation']}" if "activation" in known else "")
            got = self._try(name, {**known, "micro": size})
            return Point(size, got.work_bytes, got.free_bytes, fits(got))

        return largest(look, self._sizes, self._now.micro)

    def _try(self, name: str, changes: Changes) -> Measured:
        """Measure it, unless it was; keep it where it is the fastest so far."""
        if self._seen and changes.get("micro") == self._first.micro:
            changes = {key: value for key, value in changes.items() if key != "micro"}
        if known := self._seen.get(_key(changes)):
            return known
        measured = self._seen[_key(changes)] = self._run(changes)
        verdict = _verdict(measured, self._now)
        if verdict == "kept":
            self._best = dict(changes)
        self._note(name, measured, changes, verdict)
        return measured

    def _note(self, name: str, measured: Measured, changes: Changes, verdict: str) -> None:
        self._tried.append(Tried(name, round(measured.units_s, 3), measured.memory_bytes, verdict, changes))
        self._tell(self._tried[-1])


def fits(measured: Measured) -> bool:
    """Whether it ran, and not at the very end of memory."""
    return measured.good and measured.memory_bytes <= TIGHT * measured.free_bytes


def _verdict(measured: Measured, best: Measured) -> str:
    if measured.failed:
        return f"failed: {measured.failed.splitlines()[-1][:200]}"
    if measured.oom:
        return "out of memory"
    if measured is best:
        return "kept"
    if not fits(measured):
        return "too near to the end of memory"
    margin = 1 + max(NOISE, 2 * math.hypot(measured.doubt, best.doubt))
    return "kept" if not fits(best) or measured.units_s > best.units_s * margin else "slower"


def _known(samples: float) -> float:
    return samples if samples < float("inf") else 0.0  # JSON has no infinity


def _key(changes: Changes) -> str:
    return json.dumps(changes, sort_keys=True)
