"""One optimisation: every method tried on the model, each variant judged against the bound."""

import copy
import math
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from falaj.core.errors import FalajError, Invalid
from falaj.optimize import cpu, prune
from falaj.optimize.fuse import fuse, fuse_transformer
from falaj.optimize.graphs import Session, sha256
from falaj.optimize.half import bf16, fp16
from falaj.optimize.learn import Lesson, learn
from falaj.optimize.measure import footprints, measure
from falaj.optimize.modules import builder_of, built, export, narrows
from falaj.optimize.original import Original, open_model, seeded
from falaj.optimize.parity import Ask, asked
from falaj.optimize.quality import AGREEMENT, kind_of, loss, quality
from falaj.optimize.quantise import int8_dynamic, int8_static
from falaj.optimize.records import BEFORE, EXPORT, FAILED, KEPT, METHODS, REFUSED, SKIPPED, Plan, Tried
from falaj.optimize.rows import ORDER, Rows, read_rows, split
from falaj.optimize.strangers import guarded

JUDGED, CALIBRATED = 512, 512
_TUNE_RATE, _TEACH_RATE = 3e-4, 3e-3
_HALVES = {"fp16": "16-bit floats", "bf16": "brain floats"}
Make = Callable[[Path], Path]


class Trial:
    """`variants()` makes them one by one; `measured()` times all that could be made."""

    def __init__(self, plan: Plan, work: Path, tell: Callable[[str], None]) -> None:
        self.plan, self._work, self._tell = plan, work, tell
        self.flags = cpu.flags()
        tell(EXPORT)
        self.original: Original = open_model(plan, work)
        session = Session(self.original.file, threads=plan.threads, aim=plan.aim)
        self.grows = session.inputs[0].shape[:1] == (-1,)
        self._step = 256 if self.grows else session.inputs[0].shape[0]
        self._score = _scores(session)
        self.learns, self.judge = self._rows(session)
        self._before = asked(self.original.asks, self.judge.inputs, self._step)[self._score]
        self.kind = kind_of(self._before, self.judge.target)
        self.was = quality(self.kind, self._before, self._before, self.judge.target)
        self.files: dict[str, Path] = {}
        self._kept: set[str] = set()

    def variants(self) -> Iterator[Tried]:
        """The model as it is, then every variant; those that cannot be made say why."""
        first = BEFORE if self.original.kind == "onnx" else EXPORT
        if first == EXPORT:
            by = {"torch": "by torch", "export": "by torch", "skops": "by scikit-learn"}.get(self.original.kind, "")
            yield Tried(BEFORE, KEPT, by, self.was, size_bytes=self.original.size_bytes)
        yield self._tried(first, lambda _: self.original.file)
        wanted = [one for one in METHODS if one in (self.plan.methods or METHODS)]
        for method in wanted:
            for name, make in self._makers(method, self.original.file).items():
                yield self._tried(name, make)
        for base in sorted(self._kept & {"prune", "distil"}):
            for method in (one for one in wanted if one.startswith("int8")):
                for name, make in self._makers(method, self.files[base]).items():
                    yield self._tried(f"{base}+{name}", make)

    def measured(self, rows: Sequence[Tried]) -> list[Tried]:
        """The same with times, sizes and memory."""
        asks: dict[str, Ask] = {} if BEFORE in self.files else {BEFORE: self.original.asks}
        for name, file in self.files.items():
            asks[name] = Session(file, threads=self.plan.threads, aim=self.plan.aim).run
        self._tell("measuring")
        found = measure(asks, [one[: self._step] for one in self.judge.inputs], self.plan, grows=self.grows)
        memory = footprints({name: (file, found[name].batch) for name, file in self.files.items()}, self.plan)
        return [
            replace(
                one, **found[one.name]._asdict(), speed=round(found[BEFORE].cost / found[one.name].cost, 3),
                memory_bytes=memory.get(one.name, 0),
            )
            if one.name in found
            else one
            for one in rows
        ]  # fmt: skip

    def _makers(self, method: str, base: Path) -> Mapping[str, Make]:
        narrow = cpu.narrow(self.flags, self.plan.aim)
        makers: dict[str, Mapping[str, Make]] = {
            "fuse": {"fuse": partial(fuse, base), "fuse-transformer": partial(fuse_transformer, base)},
            "int8-dynamic": {"int8-dynamic": partial(int8_dynamic, base, narrow=narrow)},
            "int8-static": {"int8-static": partial(self._static, base, narrow=narrow)},
            "fp16": {"fp16": self._fp16},
            "bf16": {"bf16": self._bf16},
            "sparse": {"sparse": self._sparse},
            "prune": {"prune": self._prune},
            "distil": {"distil": self._distil},
        }
        return makers[method]

    def _tried(self, name: str, make: Make) -> Tried:
        """Make a variant and judge it. One that cannot be made is no reason to stop."""
        self._tell(name)
        try:
            file = make(self._work / f"{name}.onnx")
            session = Session(file, threads=self.plan.threads, aim=self.plan.aim)
            with guarded("running it"):
                scores = asked(session.run, self.judge.inputs, self._step)[self._score]
        except Invalid as error:
            return Tried(name, SKIPPED, error.message)
        except FalajError as error:
            return Tried(name, FAILED, error.message)
        now = quality(self.kind, scores, self._before, self.judge.target)
        lost = loss(self.kind, self.was, now)
        verdict = KEPT if lost <= self.plan.max_loss + 1e-9 else REFUSED
        self.files[name] = file
        self._kept |= {name} if verdict == KEPT else set()
        why = f"loses {lost:.2%}, more than {self.plan.max_loss:.2%}" if math.isfinite(lost) else "gives no numbers"
        note = why if verdict == REFUSED else ""
        data = file.read_bytes()
        return Tried(
            name, verdict, note, 0.0 if math.isnan(now) else now, lost, size_bytes=len(data),
            packed_bytes=len(zlib.compress(data, 6)), sha256=sha256(file),
        )  # fmt: skip

    def _rows(self, session: Session) -> tuple[Rows | None, Rows]:
        plan = self.plan

        def rows(folder: str) -> Rows:
            order = self.original.sheet.parameters.get(ORDER, "")
            return read_rows(folder, session.inputs, plan.target, plan.most_rows, plan.seed, order)

        learns = rows(plan.data) if plan.data else None
        if plan.evaluate:
            judge = rows(plan.evaluate)
        elif learns is not None:
            learns, judge = split(learns, plan.seed)
        else:
            judge = Rows(tuple(seeded(self.original.file, session, plan.seed, JUDGED)))
        whole = len(judge) - len(judge) % (1 if self.grows else self._step)
        if not whole:
            raise Invalid(f"the model takes {self._step} rows at a time, and there are {len(judge)}", "name more data")
        return learns, judge.take(slice(0, whole))

    def _static(self, base: Path, out: Path, *, narrow: bool) -> Path:
        if self.learns is None:
            raise Invalid("there are no rows to calibrate with", "--data dataset:…")
        step = min(32, len(self.learns)) if self.grows else self._step
        return int8_static(base, out, [one[:CALIBRATED] for one in self.learns.inputs], narrow=narrow, step=step)

    def _fp16(self, out: Path) -> Path:
        self._computed("fp16")
        return fp16(self.original.file, out)

    def _bf16(self, out: Path) -> Path:
        self._computed("bf16")
        return bf16(self._module(), self.original.sheet, self._example(), out)

    def _computed(self, what: str) -> None:
        if what not in cpu.halves(self.flags, self.plan.aim) and what not in self.plan.methods:
            raise Invalid(f"this CPU does not compute with {_HALVES[what]}", "")

    def _sparse(self, out: Path) -> Path:
        """On the weights alone, or on the module and learnt again where there is code and something to learn from."""
        if self.original.module is None or self.learns is None:
            return prune.sparse_weights(self.original.file, out, self.plan.share)
        import torch

        module = copy.deepcopy(self.original.module)
        masks = {
            name: torch.from_numpy(prune.masked(one.detach().numpy(), self.plan.share))
            for name, one in module.named_parameters()
            if one.ndim >= 2
        }
        for name, stays in masks.items():
            module.get_parameter(name).data.mul_(stays)
        return self._export(self._tuned(module, masks), out)

    def _prune(self, out: Path) -> Path:
        module = copy.deepcopy(self._module())
        prune.take_units(module, prune.need(prune.pairs(module, self._example())), self.plan.share)
        return self._export(self._tuned(module, {}), out)

    def _distil(self, out: Path) -> Path:
        if self.learns is None:
            raise Invalid("there are no rows to learn from", "--data dataset:…")
        import torch

        torch.manual_seed(self.plan.seed)
        own, told = self.original.builder, self.original.sheet.parameters
        if self.plan.student:
            student = built(builder_of(self.plan.code, self.plan.student), told)
        elif own is not None and narrows(own, told):
            student = built(own, told, self.plan.width)
        else:
            raise Invalid("the model's code builds no narrower one", "give it a width=, or name a --student")
        lesson = Lesson(self.plan.epochs, _TEACH_RATE, self.plan.seed, self.original.asks, score=self._score)
        return self._export(learn(student, self.learns, lesson), out)

    def _tuned(self, module: Any, masks: Any) -> Any:
        """Learnt again from the model as it was, where there are rows."""
        if self.learns is None:
            return module
        epochs = max(1, self.plan.epochs // 3)
        lesson = Lesson(epochs, _TUNE_RATE, self.plan.seed, self.original.asks, masks, self._score)
        return learn(module, self.learns, lesson)

    def _export(self, module: Any, out: Path) -> Path:
        return export(module, self.original.sheet, self._example(), out)

    def _example(self) -> list[Any]:
        return [np.ascontiguousarray(one[:2] if self.grows else one[: self._step]) for one in self.judge.inputs]

    def _module(self) -> Any:
        if self.original.module is None:
            raise Invalid("this needs the model as torch code and safetensors", "")
        return self.original.module


def _scores(session: Session) -> int:
    """The first output of floats is what a model is judged by."""
    for nth, one in enumerate(session.outputs):
        if one.datatype.startswith("FP"):
            return nth
    raise Invalid("the model gives no floats", "it is judged by scores: give them, too")


def warnings_of(trial: Trial) -> list[str]:
    """What the figures cannot tell."""
    rows, bound = len(trial.judge), trial.plan.max_loss
    said = []
    if trial.kind == AGREEMENT:
        where = "rows without answers" if trial.plan.data or trial.plan.evaluate else "made-up inputs"
        said.append(f"judged by agreement with the model as it is on {rows} {where}: name --data and --target")
    if 0 < bound * rows < 1:
        said.append(f"{bound:.2%} of {rows} rows is less than one row: judge by more")
    return said
