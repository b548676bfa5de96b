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
from falaj.feed.batch_loader import BatchLoader, Source
from falaj.feed.batch_plan import BatchPlan
from falaj.feed.sources import open_source
from falaj.gauge import flops
from falaj.gauge.step_monitor import StepMonitor
from falaj.state.checkpoints import DURABLE_TIMEOUT_S, CheckpointStore, FoundCheckpoint
from falaj.train import evaluate, memory_backoff, precision, weights
from falaj.train.cached_adamw import CachedAdamW
from falaj.train.early_stopping import EarlyStopping
from falaj.train.ema import ExponentialMovingAverage
from falaj.train.gradient_step import local_part
from falaj.train.mesh import ProcessMesh
from falaj.train.optim import LOW_PRECISION_DTYPES, build_adamw
from falaj.train.options import Options
from falaj.train.resume_facts import check_same_facts, collect_facts
from falaj.train.scaler import GradientScaler
from falaj.train.schedule import RateFactor, RateSchedule, build_factor
from falaj.train.step import Step, StepRunner
from falaj.train.strict_gradients import StrictGradients
from falaj.train.training_state import Stateful, TrainingState

_CLOSE_TIMEOUT_S, _FAILED_CLOSE_TIMEOUT_S, _POLL_INTERVAL_S = 2.0, 30.0, 0.005


class Run:
    """What a script is given by `train.start`."""

    def __init__(self, options: Options, mesh: ProcessMesh, folder: Path | None = None) -> None:
        self.options, self.mesh, self.here = options, mesh, worker.attempt()
        self.device, self.folder = mesh.device, folder or self.here.checkpoints
        self.keeping = TrainingState()
        self.emas: list[ExponentialMovingAverage] = []
        self.schedules: list[RateSchedule] = []
        self.strict = StrictGradients(mesh) if options.reproducible == "strict" else None
        self.scaler = _build_scaler(options, mesh)
        for name, part in (("strict", self.strict), ("scaler", self.scaler)):
            if part is not None:
                self.keeping.thing(name, part)
        self.found: FoundCheckpoint | None = None
        self.carried: memory_backoff.CarriedState | None = None
        """The state to go on from, newer than any checkpoint."""
        self.saved = -1
        """The newest step that a save was begun of."""
        self._durable_step = self._settled_step = -1
        self._meta_module: nn.Module | None = None
        self._attempt_id, self.limit = self._broadcast_from_first(
            (uuid.uuid4().hex[:12], memory_backoff.read_micro_limit(self.folder))
        )
        self._step_runner: StepRunner | None = None

    @cached_property
    def saves(self) -> CheckpointStore | None:
        """The checkpoints, if there is a folder for them. Asked for once the plan is known: who holds which part."""
        if self.folder is None:
            return None
        mesh, retention = self.mesh, {"keep": self.options.keep, "keep_every": self.options.keep_every}
        return CheckpointStore(
            self.folder, rank=mesh.rank, world=mesh.world, peers=mesh.peers, attempt=self._attempt_id, **retention
        )

    def data(
        self, source: Any, batch: int, *, shuffle: bool = True, micro: int = 0, **feed_options: Any
    ) -> BatchLoader:
        """Samples in batches of `batch` over all processes. A source is a mapping of arrays, a folder or file, the name
        of a job's input, a torch dataset, or anything with `take`. `feed_options`: `columns`, `transform` and the
        like."""
        max_micro = micro or self.options.micro or find_largest_divisor(batch, batch // self.mesh.readers)
        micro = find_largest_divisor(batch, self.limit) if 0 < self.limit < max_micro else max_micro
        source_options = {
            name: feed_options.pop(name) for name in ("columns", "window", "decode", "cache") if name in feed_options
        }
        for name in ("ahead", "workers"):
            if getattr(self.options, name):
                feed_options.setdefault(name, getattr(self.options, name))
        device_name, seed = str(self.device), self.options.seed
        return BatchLoader(
            self.source(source, **source_options),
            batch,
            micro=micro,
            seed=seed,
            shuffle=shuffle,
            device=device_name,
            **feed_options,
        )

    def source(self, source: Any, **source_options: Any) -> Source:
        """Samples by number: what `data` reads and `evaluate` judges by."""
        resolved = self.here.inputs.get(source, source) if isinstance(source, str) else source
        opened: Source = open_source(resolved, **source_options)
        return opened

    def parallel(self, module: nn.Module, plan: str | dict[str, int] = "", **wrap_options: Any) -> nn.Module:
        """The module on this process's device, in the run's precision, cut and copied as the plan says. `wrap_options`:
        `tensor` (the layers that are split) and `schedule` (how a pipeline works)."""
        plan = plan or self.options.parallel
        if self.strict is not None:
            if plan not in ("auto", "none", "ddp"):
                raise Invalid(f"strict does not go with the plan {plan!r}", "'ddp', or reproducible='order'")
            plan = "none"
        with contextlib.suppress(TypeError, RuntimeError):  # not every module can be copied
            self._meta_module = self._meta_module or flops.copy_to_meta(module)
        wrapped = self.mesh.wrap(module, plan, self.options, **wrap_options)
        self.keeping.module(wrapped)
        if self.strict is not None:
            self.strict.watch(wrapped)
        if self.options.ema:
            self.ema(wrapped, self.options.ema)
        return wrapped

    @property
    def synced(self) -> bool:
        """Whether wrappers add up the gradients of all readers."""
        return self.mesh.sizes is not None and not self.mesh.sizes.copies

    def adamw(self, module: nn.Module, lr: float = 1e-3, **adamw_options: Any) -> torch.optim.Optimizer:
        """AdamW in the form that is fastest here, with 32-bit masters behind 16-bit parameters."""
        masters = precision.resolve_precision(self.options.precision, self.device) != "bf16-pure"
        if masters and any(param.dtype in LOW_PRECISION_DTYPES for param in module.parameters()):
            return self.optimizer(build_adamw(module.parameters(), lr, **adamw_options))
        return self.optimizer(CachedAdamW(module.parameters(), lr, **adamw_options))

    def sgd(self, module: nn.Module, lr: float = 1e-2, **sgd_options: Any) -> torch.optim.Optimizer:
        """Stochastic gradient descent."""
        return self.optimizer(torch.optim.SGD(module.parameters(), lr=lr, fused=True, **sgd_options))

    def optimizer(self, optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
        """Any optimizer of torch's kind becomes part of the run's state."""
        self.keeping.optimizer(optimizer)
        return optimizer

    def schedule(
        self, optimizer: torch.optim.Optimizer, kind: str | RateFactor = "cosine", **factor_options: Any
    ) -> RateSchedule:
        """Let the rate follow the step: constant, linear, cosine or one-cycle with `steps`, `warmup` and `floor`, a
        function of the step, or a `Plateau`."""
        rate_factor = build_factor(kind, **factor_options) if isinstance(kind, str) else kind
        if hasattr(rate_factor, "state_dict"):
            self.keep(f"schedule{len(self.schedules)}", rate_factor)
        rate_schedule = RateSchedule(optimizer, rate_factor)
        self.schedules.append(rate_schedule)
        return rate_schedule

    def ema(self, module: nn.Module, decay: float = 0.999) -> ExponentialMovingAverage:
        """Keep a moving average of the weights; `with ema.used():` the module has it."""
        average = ExponentialMovingAverage(module, decay)
        self.keep(f"ema{len(self.emas)}", average)
        self.emas.append(average)
        return average

    def stopping(
        self, module: nn.Module, patience: int = 5, min_delta: float = 0.0, **stopping_options: Any
    ) -> EarlyStopping:
        """Say when to end early: `if stopping.tell(value, step.number): break`, then `stopping.restore()`."""
        early_stopping = EarlyStopping(module, patience, min_delta, **stopping_options)
        self.keep("stopping", early_stopping)
        return early_stopping

    def keep(self, name: str, part: Stateful | Any) -> None:
        """Something more with state_dict and load_state_dict that belongs to the state: a counter, a vocabulary."""
        self.keeping.thing(name, part)

    def evaluate(
        self, model: nn.Module, source: Any, measure: evaluate.ItemMeasure, *, micro: int = 0, step: int = -1
    ) -> dict[str, float]:
        """Means over all samples of a source. `measure(model, batch)` gives the values of single items: losses, or
        several kinds by name. With `step` they are written down as metrics valid_NAME of the run."""
        micro = micro or (self.plan.micro if self.plan else 0) or 256
        self._average_buffers()
        means = evaluate.evaluate_model(self.mesh, model, self.source(source), measure, micro)
        if self._step_runner:
            self._step_runner.gauge.alive()
        if step >= 0 and self.mesh.rank == 0:
            for name, value in means.items():
                self.here.metric(f"valid_{name}", value, step)
        return means

    def steps(self, last: int, feed: BatchLoader, **gauge_options: Any) -> Iterator[Step]:
        """The steps up to `last`: from the first, or from the one after the last that was saved. `gauge_options` are
        the gauge's: `units` (what `backward` counts: samples, tokens), `flops_per_unit`, `log_s`."""
        self.mesh.expect(feed.plan.micros)
        first = self._resume_from_checkpoint(feed)
        if self.saves is not None and (self.options.save_s or self.options.save_steps):
            self.saves.warm(self.keeping.tensors())  # memory for saves is had before the first step, not in one
        dtype_name = precision.resolve_precision(self.options.precision, self.device).split("-")[0]
        merged_options = {
            "readers": self.mesh.readers,
            "hang_s": self.options.hang_s,
            "dtype": dtype_name,
        } | gauge_options
        rank, world, device_name = self.mesh.rank, self.mesh.world, str(self.device)
        gauge = StepMonitor(
            self.here, rank=rank, world=world, device=device_name, first_step=first, steps=last, **merged_options
        )
        if self._meta_module is not None:
            gauge.watch(self.keeping.modules[0], self._meta_module)
        self._step_runner = StepRunner(self, feed, gauge)
        for note in self.found.passed_over if self.found else ():
            gauge.note(f"a checkpoint was passed over: {note}")
        try:
            yield from self._step_runner.steps(first, last)
        finally:
            gauge.close()

    def save(self, step: int, *, wait: bool = False) -> float:
        """Begin to save the state after `step` steps; gives how long that held the loop up."""
        if self.saves is None:
            raise Invalid("there is no folder for checkpoints", "train.start(main, checkpoints='some/folder')")
        self._average_buffers()
        self._check_parameters(step)
        self.saved = step
        stall_s = self.saves.save(step, self.keeping.tensors(), self.meta(), late_names=self.keeping.steady())
        if wait:
            self._wait_until_durable()
        return stall_s

    def tell_saves(self) -> None:
        """Tell of what became durable since, and of what did not."""
        if self.saves is None:
            return
        for text in self.saves.problems():
            self.here.note(text)
        if (
            self.mesh.rank == 0
            and self._durable_step < self.saved
            and (newest := self.saves.settle(0.0)) > self._durable_step
        ):
            self.here.checkpointed(newest, str(self.folder))
            self._durable_step = newest

    def save_model(self, module: nn.Module, name: str = "model", *, ema: bool | None = None, **metadata: Any) -> Path:
        """Write the weights (their moving average where there is one) as safetensors into the job's output of that
        name, or ./NAME, by one process; beside them config.json with `metadata`: metrics, what was trained."""
        folder = find_output_folder(name, self.here.outputs)
        self._average_buffers()
        path = folder / "model.safetensors" if self.mesh.rank == 0 else None
        average = next((candidate for candidate in self.emas if candidate.module is module and ema is not False), None)
        if average is not None:
            with average.used():
                weights.write_weights(module, path)
        else:
            weights.write_weights(module, path)
        if path is not None:
            inner_module = getattr(module, "module", module)
            config = {
                "model": type(inner_module).__name__,
                "step": self.done,
                "averaged": average is not None,
                **metadata,
            }
            weights.publish_file(folder / "config.json", (json.dumps(config, indent=1, default=str).encode(),))
        return folder

    def meta(self) -> dict[str, Any]:
        """The small facts of the state."""
        meta = {**self.keeping.meta(), "facts": collect_facts(self.options, self.plan)}
        if self.mesh.sizes is not None and self.mesh.sizes.pipeline > 1:  # each stage knows its own moments only
            gathered: list[Any] = [None] * self.mesh.world
            dist.all_gather_object(gathered, meta["moments"])
            for moments in gathered:
                for prefix, names in moments.items():
                    meta["moments"].setdefault(prefix, {}).update(names)
        return meta

    @property
    def plan(self) -> BatchPlan | None:
        """Which samples each step has, once steps are taken."""
        return self._step_runner.feed.plan if self._step_runner else None

    @property
    def done(self) -> int:
        """How many steps are done."""
        return self._step_runner.done if self._step_runner else 0

    @property
    def whole(self) -> bool:
        """Whether the state is that between two steps."""
        return self._step_runner is not None and self._step_runner.whole

    def close(self, *, succeeded: bool = True) -> None:
        """Let what is being saved become durable. Not `succeeded`: other processes may never write their part."""
        if "saves" in vars(self) and self.saves is not None:
            if succeeded and self._settled_step != self.saved:  # the same on all processes
                self._wait_until_durable()
            self.saves.close(
                _CLOSE_TIMEOUT_S if succeeded or self._settled_step == self.saved else _FAILED_CLOSE_TIMEOUT_S
            )

    def let_go(self) -> None:
        """Forget everything that holds memory."""
        self._step_runner, self.keeping, self.emas, self.schedules, self.strict = None, TrainingState(), [], [], None

    def _wait_until_durable(self) -> None:
        """All processes wait until what was begun is durable, or known not to become so: a process whose disk is full
        leaves the others waiting for its part."""
        if self.saves is None:
            return
        while self.saves.busy():
            time.sleep(_POLL_INTERVAL_S)
        problems = self.saves.problems()
        for text in problems:
            self.here.note(text)
        is_fine = self._all_processes(not problems)
        if self.mesh.rank == 0:
            self.saves.settle(DURABLE_TIMEOUT_S if is_fine else _CLOSE_TIMEOUT_S)
        self._all_processes(is_fine)
        self._settled_step = self.saved
        self.tell_saves()

    def _resume_from_checkpoint(self, feed: BatchLoader) -> int:
        run_facts = collect_facts(self.options, feed.plan)
        if self.carried is not None:
            carried, self.carried = self.carried, None
            for name, tensor in self.keeping.prepare(carried.meta).items():
                tensor.copy_(carried.tensors[name])
            self.keeping.load_meta(carried.meta)
            return carried.step
        while self.saves is not None:
            self.found = self._broadcast_from_first(self.saves.newest(verify=False) if self.mesh.rank == 0 else None)
            if self.found is None:
                break
            check_same_facts(self.found.meta.get("facts", {}), run_facts)
            tensors = self.keeping.prepare(self.found.meta)
            if self._all_processes(self.saves.check(self.found, tensors)):
                self.saves.load(self.found, tensors)
                self.keeping.load_meta(self.found.meta)
                self.saved = self._durable_step = self._settled_step = self.found.step
                return self.found.step
            if self.mesh.rank == 0:
                self.saves.reject(self.found)
        return 0

    def _check_parameters(self, step: int) -> None:
        """A gradient that is no number spoils parameters though the loss was one: they must not be saved."""
        params = [local_part(param.detach()) for module in self.keeping.modules for param in module.parameters()]
        checked = [param for param in params if param.numel() and param.is_floating_point()]
        norms = torch._foreach_norm(checked) if checked else [torch.zeros(())]  # noqa: SLF001 - one pass over all
        if not self._all_processes(bool(torch.isfinite(torch.stack([norm.float() for norm in norms])).all())):
            raise UserCodeFailed(
                f"parameters are no numbers after step {step - 1}: a gradient was none, though the loss was",
                "clip gradients, or look for divisions and roots of zero; checkpoints before this step are kept",
            )

    def _average_buffers(self) -> None:
        """Running statistics are what each process saw: from time to time they become the same."""
        for module in self.keeping.modules if self.mesh.readers > 1 else ():
            for child in module.modules():
                if getattr(child, "track_running_stats", False):
                    self.mesh.level(child)

    def _broadcast_from_first(self, value: Any) -> Any:
        """What the first process says."""
        values = [value]
        if self.mesh.world > 1:
            dist.broadcast_object_list(values, 0, device=self.device)
        return values[0]

    def _all_processes(self, is_fine: bool) -> bool:
        failures = torch.tensor([0.0 if is_fine else 1.0], device=self.device)
        if self.mesh.world > 1:
            dist.all_reduce(failures)
        return not float(failures)


def find_largest_divisor(batch: int, max_size: int) -> int:
    """The largest micro-batch of at most `max_size` samples into which a batch can be cut."""
    return next((size for size in range(max(max_size, 1), 0, -1) if batch % size == 0), 1)


def find_output_folder(name: str, outputs: Mapping[str, str]) -> Path:
    """The folder of an output."""
    if outputs and name not in outputs:
        raise Invalid(f"the job has no output {name!r}", f"it has {', '.join(sorted(outputs))}")
    return Path(outputs.get(name) or os.path.join(os.curdir, name))  # noqa: PTH118 - a folder beside the script


def _build_scaler(options: Options, mesh: ProcessMesh) -> GradientScaler | None:
    torch_scaler = precision.build_scaler(options.precision, mesh.device)
    return None if torch_scaler is None else GradientScaler(torch_scaler, mesh.device)
