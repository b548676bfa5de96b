"""A run of a training script: where it runs, what it has, and the steps it takes."""

import contextlib
import json
import os
import time
import uuid
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from falaj import worker
from falaj.core.errors import Invalid, UserCodeFailed
from falaj.feed.feed import Feed, Source
from falaj.feed.plan import Plan
from falaj.feed.sources import open_source
from falaj.gauge import flops
from falaj.gauge.gauge import Gauge
from falaj.state.checkpoints import SETTLE_S, Checkpoints, Found
from falaj.train import evaluate, memory, precision, weights
from falaj.train.ema import Ema
from falaj.train.facts import facts, same
from falaj.train.keeping import Keeping, Thing
from falaj.train.mesh import Mesh
from falaj.train.moving import local
from falaj.train.optim import LOW, adamw
from falaj.train.options import Options
from falaj.train.quick import QuickAdamW
from falaj.train.scaler import Scaler
from falaj.train.schedule import Factor, Schedule, factor
from falaj.train.step import Step, Stepping
from falaj.train.stopping import Stopping
from falaj.train.strict import Strict

_SOON_S, _LINGER_S, _LOOK_S = 2.0, 30.0, 0.005


class Run:
    """What a script is given by `train.start`."""

    def __init__(self, options: Options, mesh: Mesh, folder: Path | None = None) -> None:
        self.options, self.mesh, self.here = options, mesh, worker.attempt()
        self.device, self.folder = mesh.device, folder or self.here.checkpoints
        self.keeping = Keeping()
        self.emas: list[Ema] = []
        self.schedules: list[Schedule] = []
        self.strict = Strict(mesh) if options.reproducible == "strict" else None
        self.scaler = _scaler(options, mesh)
        for name, thing in (("strict", self.strict), ("scaler", self.scaler)):
            if thing is not None:
                self.keeping.thing(name, thing)
        self.found: Found | None = None
        self.carried: memory.Carried | None = None
        """The state to go on from, newer than any checkpoint."""
        self.saved = -1
        """The newest step that a save was begun of."""
        self._durable = self._settled = -1
        self._sketch: nn.Module | None = None
        self._attempt, self.limit = self._told((uuid.uuid4().hex[:12], memory.limit(self.folder)))
        self._stepping: Stepping | None = None

    @cached_property
    def saves(self) -> Checkpoints | None:
        """The checkpoints, if there is a folder for them. Asked for once the plan is known: who holds which part."""
        if self.folder is None:
            return None
        mesh, how = self.mesh, {"keep": self.options.keep, "keep_every": self.options.keep_every}
        return Checkpoints(
            self.folder, rank=mesh.rank, world=mesh.world, peers=mesh.peers, attempt=self._attempt, **how
        )

    def data(self, source: Any, batch: int, *, shuffle: bool = True, micro: int = 0, **reading: Any) -> Feed:
        """Samples in batches of `batch` over all processes. A source is a mapping of arrays, a folder or file, the name
        of a job's input, a torch dataset, or anything with `take`. `reading`: `columns`, `transform` and the like."""
        most = micro or self.options.micro or divisor(batch, batch // self.mesh.readers)
        micro = divisor(batch, self.limit) if 0 < self.limit < most else most
        opening = {name: reading.pop(name) for name in ("columns", "window", "decode", "cache") if name in reading}
        for name in ("ahead", "workers"):
            if getattr(self.options, name):
                reading.setdefault(name, getattr(self.options, name))
        place, seed = str(self.device), self.options.seed
        return Feed(
            self.source(source, **opening), batch, micro=micro, seed=seed, shuffle=shuffle, device=place, **reading
        )

    def source(self, source: Any, **opening: Any) -> Source:
        """Samples by number: what `data` reads and `evaluate` judges by."""
        known = self.here.inputs.get(source, source) if isinstance(source, str) else source
        opened: Source = open_source(known, **opening)
        return opened

    def parallel(self, module: nn.Module, plan: str | dict[str, int] = "", **how: Any) -> nn.Module:
        """The module on this process's device, in the run's precision, cut and copied as the plan says. `how`: `tensor`
        (the layers that are split) and `schedule` (how a pipeline works)."""
        plan = plan or self.options.parallel
        if self.strict is not None:
            if plan not in ("auto", "none", "ddp"):
                raise Invalid(f"strict does not go with the plan {plan!r}", "'ddp', or reproducible='order'")
            plan = "none"
        with contextlib.suppress(TypeError, RuntimeError):  # not every module can be copied
            self._sketch = self._sketch or flops.sketch(module)
        made = self.mesh.wrap(module, plan, self.options, **how)
        self.keeping.module(made)
        if self.strict is not None:
            self.strict.watch(made)
        if self.options.ema:
            self.ema(made, self.options.ema)
        return made

    @property
    def synced(self) -> bool:
        """Whether wrappers add up the gradients of all readers."""
        return self.mesh.sizes is not None and not self.mesh.sizes.copies

    def adamw(self, module: nn.Module, lr: float = 1e-3, **more: Any) -> torch.optim.Optimizer:
        """AdamW in the form that is fastest here, with 32-bit masters behind 16-bit parameters."""
        masters = precision.chosen(self.options.precision, self.device) != "bf16-pure"
        if masters and any(param.dtype in LOW for param in module.parameters()):
            return self.optimizer(adamw(module.parameters(), lr, **more))
        return self.optimizer(QuickAdamW(module.parameters(), lr, **more))

    def sgd(self, module: nn.Module, lr: float = 1e-2, **more: Any) -> torch.optim.Optimizer:
        """Stochastic gradient descent."""
        return self.optimizer(torch.optim.SGD(module.parameters(), lr=lr, fused=True, **more))

    def optimizer(self, optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
        """Any optimizer of torch's kind becomes part of the run's state."""
        self.keeping.optimizer(optimizer)
        return optimizer

    def schedule(self, optimizer: torch.optim.Optimizer, kind: str | Factor = "cosine", **how: Any) -> Schedule:
        """Let the rate follow the step: constant, linear, cosine or one-cycle with `steps`, `warmup` and `floor`, a
        function of the step, or a `Plateau`."""
        chosen = factor(kind, **how) if isinstance(kind, str) else kind
        if hasattr(chosen, "state_dict"):
            self.keep(f"schedule{len(self.schedules)}", chosen)
        made = Schedule(optimizer, chosen)
        self.schedules.append(made)
        return made

    def ema(self, module: nn.Module, decay: float = 0.999) -> Ema:
        """Keep a moving average of the weights; `with ema.used():` the module has it."""
        made = Ema(module, decay)
        self.keep(f"ema{len(self.emas)}", made)
        self.emas.append(made)
        return made

    def stopping(self, module: nn.Module, patience: int = 5, min_delta: float = 0.0, **how: Any) -> Stopping:
        """Say when to end early: `if stopping.tell(value, step.number): break`, then `stopping.restore()`."""
        made = Stopping(module, patience, min_delta, **how)
        self.keep("stopping", made)
        return made

    def keep(self, name: str, thing: Thing | Any) -> None:
        """Something more with state_dict and load_state_dict that belongs to the state: a counter, a vocabulary."""
        self.keeping.thing(name, thing)

    def evaluate(
        self, model: nn.Module, source: Any, measure: evaluate.Measure, *, micro: int = 0, step: int = -1
    ) -> dict[str, float]:
        """Means over all samples of a source. `measure(model, batch)` gives the values of single items: losses, or
        several kinds by name. With `step` they are written down as metrics valid_NAME of the run."""
        micro = micro or (self.plan.micro if self.plan else 0) or 256
        self._level()
        found = evaluate.evaluate(self.mesh, model, self.source(source), measure, micro)
        if self._stepping:
            self._stepping.gauge.alive()
        if step >= 0 and self.mesh.rank == 0:
            for name, value in found.items():
                self.here.metric(f"valid_{name}", value, step)
        return found

    def steps(self, last: int, feed: Feed, **habits: Any) -> Iterator[Step]:
        """The steps up to `last`: from the first, or from the one after the last that was saved. `habits` are the
        gauge's: `units` (what `backward` counts: samples, tokens), `flops_per_unit`, `log_s`."""
        self.mesh.expect(feed.plan.micros)
        first = self._resume(feed)
        if self.saves is not None and (self.options.save_s or self.options.save_steps):
            self.saves.warm(self.keeping.tensors())  # memory for saves is had before the first step, not in one
        kind = precision.chosen(self.options.precision, self.device).split("-")[0]
        known = {"readers": self.mesh.readers, "hang_s": self.options.hang_s, "dtype": kind} | habits
        rank, world, place = self.mesh.rank, self.mesh.world, str(self.device)
        gauge = Gauge(self.here, rank=rank, world=world, device=place, first=first, steps=last, **known)
        if self._sketch is not None:
            gauge.watch(self.keeping.modules[0], self._sketch)
        self._stepping = Stepping(self, feed, gauge)
        for note in self.found.passed_over if self.found else ():
            gauge.note(f"a checkpoint was passed over: {note}")
        try:
            yield from self._stepping.steps(first, last)
        finally:
            gauge.close()

    def save(self, step: int, *, settle: bool = False) -> float:
        """Begin to save the state after `step` steps; gives how long that held the loop up."""
        if self.saves is None:
            raise Invalid("there is no folder for checkpoints", "train.start(main, checkpoints='some/folder')")
        self._level()
        self._refuse_nonsense(step)
        self.saved = step
        stall_s = self.saves.save(step, self.keeping.tensors(), self.meta(), later=self.keeping.steady())
        if settle:
            self._settle()
        return stall_s

    def tell_saves(self) -> None:
        """Tell of what became durable since, and of what did not."""
        if self.saves is None:
            return
        for text in self.saves.problems():
            self.here.note(text)
        if self.mesh.rank == 0 and self._durable < self.saved and (newest := self.saves.settle(0.0)) > self._durable:
            self.here.checkpointed(newest, str(self.folder))
            self._durable = newest

    def save_model(self, module: nn.Module, name: str = "model", *, ema: bool | None = None, **about: Any) -> Path:
        """Write the weights (their moving average where there is one) as safetensors into the job's output of that
        name, or ./NAME, by one process; beside them config.json with `about`: metrics, what was trained."""
        folder = output(name, self.here.outputs)
        self._level()
        path = folder / "model.safetensors" if self.mesh.rank == 0 else None
        average = next((one for one in self.emas if one.module is module and ema is not False), None)
        if average is not None:
            with average.used():
                weights.write(module, path)
        else:
            weights.write(module, path)
        if path is not None:
            kind = getattr(module, "module", module)
            known = {"model": type(kind).__name__, "step": self.done, "averaged": average is not None, **about}
            weights.publish(folder / "config.json", (json.dumps(known, indent=1, default=str).encode(),))
        return folder

    def meta(self) -> dict[str, Any]:
        """The small facts of the state."""
        known = {**self.keeping.meta(), "facts": facts(self.options, self.plan)}
        if self.mesh.sizes is not None and self.mesh.sizes.pipeline > 1:  # each stage knows its own moments only
            said: list[Any] = [None] * self.mesh.world
            dist.all_gather_object(said, known["moments"])
            for moments in said:
                for prefix, names in moments.items():
                    known["moments"].setdefault(prefix, {}).update(names)
        return known

    @property
    def plan(self) -> Plan | None:
        """Which samples each step has, once steps are taken."""
        return self._stepping.feed.plan if self._stepping else None

    @property
    def done(self) -> int:
        """How many steps are done."""
        return self._stepping.done if self._stepping else 0

    @property
    def whole(self) -> bool:
        """Whether the state is that between two steps."""
        return self._stepping is not None and self._stepping.whole

    def close(self, *, well: bool = True) -> None:
        """Let what is being saved become durable. Not `well`: other processes may never write their part."""
        if "saves" in vars(self) and self.saves is not None:
            if well and self._settled != self.saved:  # the same on all processes
                self._settle()
            self.saves.close(_SOON_S if well or self._settled == self.saved else _LINGER_S)

    def let_go(self) -> None:
        """Forget everything that holds memory."""
        self._stepping, self.keeping, self.emas, self.schedules, self.strict = None, Keeping(), [], [], None

    def _settle(self) -> None:
        """All processes wait until what was begun is durable, or known not to become so: a process whose disk is full
        leaves the others waiting for its part."""
        if self.saves is None:
            return
        while self.saves.busy():
            time.sleep(_LOOK_S)
        problems = self.saves.problems()
        for text in problems:
            self.here.note(text)
        fine = self._all(not problems)
        if self.mesh.rank == 0:
            self.saves.settle(SETTLE_S if fine else _SOON_S)
        self._all(fine)
        self._settled = self.saved
        self.tell_saves()

    def _resume(self, feed: Feed) -> int:
        known = facts(self.options, feed.plan)
        if self.carried is not None:
            carried, self.carried = self.carried, None
            for name, tensor in self.keeping.prepare(carried.meta).items():
                tensor.copy_(carried.tensors[name])
            self.keeping.load_meta(carried.meta)
            return carried.step
        while self.saves is not None:
            self.found = self._told(self.saves.newest(verify=False) if self.mesh.rank == 0 else None)
            if self.found is None:
                break
            same(self.found.meta.get("facts", {}), known)
            into = self.keeping.prepare(self.found.meta)
            if self._all(self.saves.check(self.found, into)):
                self.saves.load(self.found, into)
                self.keeping.load_meta(self.found.meta)
                self.saved = self._durable = self._settled = self.found.step
                return self.found.step
            if self.mesh.rank == 0:
                self.saves.reject(self.found)
        return 0

    def _refuse_nonsense(self, step: int) -> None:
        """A gradient that is no number spoils parameters though the loss was one: they must not be saved."""
        params = [local(param.detach()) for module in self.keeping.modules for param in module.parameters()]
        known = [param for param in params if param.numel() and param.is_floating_point()]
        norms = torch._foreach_norm(known) if known else [torch.zeros(())]  # noqa: SLF001 - one pass over all
        if not self._all(bool(torch.isfinite(torch.stack([norm.float() for norm in norms])).all())):
            raise UserCodeFailed(
                f"parameters are no numbers after step {step - 1}: a gradient was none, though the loss was",
                "clip gradients, or look for divisions and roots of zero; checkpoints before this step are kept",
            )

    def _level(self) -> None:
        """Running statistics are what each process saw: from time to time they become the same."""
        for module in self.keeping.modules if self.mesh.readers > 1 else ():
            for child in module.modules():
                if getattr(child, "track_running_stats", False):
                    self.mesh.level(child)

    def _told(self, value: Any) -> Any:
        """What the first process says."""
        said = [value]
        if self.mesh.world > 1:
            dist.broadcast_object_list(said, 0, device=self.device)
        return said[0]

    def _all(self, fine: bool) -> bool:
        told = torch.tensor([0.0 if fine else 1.0], device=self.device)
        if self.mesh.world > 1:
            dist.all_reduce(told)
        return not float(told)


def divisor(batch: int, most: int) -> int:
    """The largest micro-batch of at most `most` samples into which a batch can be cut."""
    return next((size for size in range(max(most, 1), 0, -1) if batch % size == 0), 1)


def output(name: str, known: Mapping[str, str]) -> Path:
    """The folder of an output."""
    if known and name not in known:
        raise Invalid(f"the job has no output {name!r}", f"it has {', '.join(sorted(known))}")
    return Path(known.get(name) or os.path.join(os.curdir, name))  # noqa: PTH118 - a folder beside the script


def _scaler(options: Options, mesh: Mesh) -> Scaler | None:
    found = precision.scaler(options.precision, mesh.device)
    return None if found is None else Scaler(found, mesh.device)
