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
from falaj.optimize import cpu_features, pruning
from falaj.optimize.dataset_rows import FEATURE_ORDER_PARAMETER, DatasetRows, read_rows, split_rows
from falaj.optimize.graph_fusion import fuse_operations, fuse_transformer
from falaj.optimize.half_precision import convert_to_bf16, convert_to_fp16
from falaj.optimize.model_quality import AGREEMENT, choose_measure, compute_loss, compute_quality
from falaj.optimize.module_training import LearningPlan, train_module
from falaj.optimize.onnx_files import OnnxSession, hash_file
from falaj.optimize.original_model import OriginalModel, make_seeded_inputs, open_model
from falaj.optimize.parity import ArrayFunction, run_in_batches
from falaj.optimize.quantisation import quantise_int8_dynamic, quantise_int8_static
from falaj.optimize.records import (
    EXPORT_NAME,
    FAILED,
    METHODS,
    ORIGINAL_NAME,
    REFUSED,
    SKIPPED,
    WITHIN_BOUND,
    OptimizePlan,
    VariantResult,
)
from falaj.optimize.timing import measure_footprints, measure_variants
from falaj.optimize.torch_modules import build_module, can_build_narrower, export_to_onnx, load_builder
from falaj.optimize.untrusted_code import wrap_user_errors

JUDGED_ROWS, CALIBRATED_ROWS = 512, 512
_TUNE_RATE, _TEACH_RATE = 3e-4, 3e-3
_HALF_NAMES = {"fp16": "16-bit floats", "bf16": "brain floats"}
VariantMaker = Callable[[Path], Path]


class OptimizationTrial:
    """`variants()` makes them one by one; `measured()` times all that could be made."""

    def __init__(self, plan: OptimizePlan, work_folder: Path, report_step: Callable[[str], None]) -> None:
        self.plan, self._work_folder, self._report_step = plan, work_folder, report_step
        self.flags = cpu_features.read_cpu_flags()
        report_step(EXPORT_NAME)
        self.original: OriginalModel = open_model(plan, work_folder)
        session = OnnxSession(self.original.file, threads=plan.threads, aim=plan.aim)
        self.grows = session.inputs[0].shape[:1] == (-1,)
        self._batch_rows = 256 if self.grows else session.inputs[0].shape[0]
        self._score_output = _find_score_output(session)
        self.learns, self.judge = self._load_rows(session)
        self._original_scores = run_in_batches(self.original.asks, self.judge.inputs, self._batch_rows)[
            self._score_output
        ]
        self.kind = choose_measure(self._original_scores, self.judge.target)
        self.was = compute_quality(self.kind, self._original_scores, self._original_scores, self.judge.target)
        self.files: dict[str, Path] = {}
        self._kept_variants: set[str] = set()

    def variants(self) -> Iterator[VariantResult]:
        """The model as it is, then every variant; those that cannot be made say why."""
        first_name = ORIGINAL_NAME if self.original.kind == "onnx" else EXPORT_NAME
        if first_name == EXPORT_NAME:
            exporter = {"torch": "by torch", "export": "by torch", "skops": "by scikit-learn"}.get(
                self.original.kind, ""
            )
            yield VariantResult(ORIGINAL_NAME, WITHIN_BOUND, exporter, self.was, size_bytes=self.original.size_bytes)
        yield self._try_variant(first_name, lambda _: self.original.file)
        methods = [method_name for method_name in METHODS if method_name in (self.plan.methods or METHODS)]
        for method in methods:
            for name, make_file in self._list_makers(method, self.original.file).items():
                yield self._try_variant(name, make_file)
        for base in sorted(self._kept_variants & {"prune", "distil"}):
            for method in (method_name for method_name in methods if method_name.startswith("int8")):
                for name, make_file in self._list_makers(method, self.files[base]).items():
                    yield self._try_variant(f"{base}+{name}", make_file)

    def measured(self, variants: Sequence[VariantResult]) -> list[VariantResult]:
        """The same with times, sizes and memory."""
        runners: dict[str, ArrayFunction] = {} if ORIGINAL_NAME in self.files else {ORIGINAL_NAME: self.original.asks}
        for name, file in self.files.items():
            runners[name] = OnnxSession(file, threads=self.plan.threads, aim=self.plan.aim).run
        self._report_step("measuring")
        times_by_name = measure_variants(
            runners, [item[: self._batch_rows] for item in self.judge.inputs], self.plan, accepts_any_batch=self.grows
        )
        footprint_bytes = measure_footprints(
            {name: (file, times_by_name[name].batch) for name, file in self.files.items()}, self.plan
        )
        return [
            replace(
                item,
                **times_by_name[item.name]._asdict(),
                speed=round(times_by_name[ORIGINAL_NAME].cost / times_by_name[item.name].cost, 3),
                memory_bytes=footprint_bytes.get(item.name, 0),
            )
            if item.name in times_by_name
            else item
            for item in variants
        ]

    def _list_makers(self, method: str, base: Path) -> Mapping[str, VariantMaker]:
        seven_bits = cpu_features.needs_seven_bits(self.flags, self.plan.aim)
        makers: dict[str, Mapping[str, VariantMaker]] = {
            "fuse": {"fuse": partial(fuse_operations, base), "fuse-transformer": partial(fuse_transformer, base)},
            "int8-dynamic": {"int8-dynamic": partial(quantise_int8_dynamic, base, seven_bits=seven_bits)},
            "int8-static": {"int8-static": partial(self._make_int8_static, base, seven_bits=seven_bits)},
            "fp16": {"fp16": self._make_fp16},
            "bf16": {"bf16": self._make_bf16},
            "sparse": {"sparse": self._make_sparse},
            "prune": {"prune": self._make_pruned},
            "distil": {"distil": self._make_student},
        }
        return makers[method]

    def _try_variant(self, name: str, make_file: VariantMaker) -> VariantResult:
        """Make a variant and judge it. One that cannot be made is no reason to stop."""
        self._report_step(name)
        try:
            file = make_file(self._work_folder / f"{name}.onnx")
            session = OnnxSession(file, threads=self.plan.threads, aim=self.plan.aim)
            with wrap_user_errors("running it"):
                scores = run_in_batches(session.run, self.judge.inputs, self._batch_rows)[self._score_output]
        except Invalid as error:
            return VariantResult(name, SKIPPED, error.message)
        except FalajError as error:
            return VariantResult(name, FAILED, error.message)
        new_quality = compute_quality(self.kind, scores, self._original_scores, self.judge.target)
        quality_loss = compute_loss(self.kind, self.was, new_quality)
        verdict = WITHIN_BOUND if quality_loss <= self.plan.max_loss + 1e-9 else REFUSED
        self.files[name] = file
        self._kept_variants |= {name} if verdict == WITHIN_BOUND else set()
        refusal = (
            f"loses {quality_loss:.2%}, more than {self.plan.max_loss:.2%}"
            if math.isfinite(quality_loss)
            else "gives no numbers"
        )
        note = refusal if verdict == REFUSED else ""
        data = file.read_bytes()
        return VariantResult(
            name,
            verdict,
            note,
            0.0 if math.isnan(new_quality) else new_quality,
            quality_loss,
            size_bytes=len(data),
            packed_bytes=len(zlib.compress(data, 6)),
            sha256=hash_file(file),
        )

    def _load_rows(self, session: OnnxSession) -> tuple[DatasetRows | None, DatasetRows]:
        plan = self.plan

        def load_rows(folder: str) -> DatasetRows:
            order = self.original.sheet.parameters.get(FEATURE_ORDER_PARAMETER, "")
            return read_rows(folder, session.inputs, plan.target, plan.most_rows, plan.seed, order)

        training_rows = load_rows(plan.data) if plan.data else None
        if plan.evaluate:
            judging_rows = load_rows(plan.evaluate)
        elif training_rows is not None:
            training_rows, judging_rows = split_rows(training_rows, plan.seed)
        else:
            judging_rows = DatasetRows(tuple(make_seeded_inputs(self.original.file, session, plan.seed, JUDGED_ROWS)))
        full_count = len(judging_rows) - len(judging_rows) % (1 if self.grows else self._batch_rows)
        if not full_count:
            raise Invalid(
                f"the model takes {self._batch_rows} rows at a time, and there are {len(judging_rows)}",
                "name more data",
            )
        return training_rows, judging_rows.take(slice(0, full_count))

    def _make_int8_static(self, base: Path, out: Path, *, seven_bits: bool) -> Path:
        if self.learns is None:
            raise Invalid("there are no rows to calibrate with", "--data dataset:…")
        batch_rows = min(32, len(self.learns)) if self.grows else self._batch_rows
        return quantise_int8_static(
            base,
            out,
            [values[:CALIBRATED_ROWS] for values in self.learns.inputs],
            seven_bits=seven_bits,
            step=batch_rows,
        )

    def _make_fp16(self, out: Path) -> Path:
        self._require_compute("fp16")
        return convert_to_fp16(self.original.file, out)

    def _make_bf16(self, out: Path) -> Path:
        self._require_compute("bf16")
        return convert_to_bf16(self._require_module(), self.original.sheet, self._build_example(), out)

    def _require_compute(self, number_type: str) -> None:
        if (
            number_type not in cpu_features.list_half_types(self.flags, self.plan.aim)
            and number_type not in self.plan.methods
        ):
            raise Invalid(f"this CPU does not compute with {_HALF_NAMES[number_type]}", "")

    def _make_sparse(self, out: Path) -> Path:
        """On the weights alone, or on the module and learnt again where there is code and something to learn from."""
        if self.original.module is None or self.learns is None:
            return pruning.sparsify_weights(self.original.file, out, self.plan.share)
        import torch

        module = copy.deepcopy(self.original.module)
        masks = {
            name: torch.from_numpy(pruning.build_keep_mask(parameter.detach().numpy(), self.plan.share))
            for name, parameter in module.named_parameters()
            if parameter.ndim >= 2
        }
        for name, keep_mask in masks.items():
            module.get_parameter(name).data.mul_(keep_mask)
        return self._export_module(self._retrain_module(module, masks), out)

    def _make_pruned(self, out: Path) -> Path:
        module = copy.deepcopy(self._require_module())
        pruning.remove_units(
            module, pruning.require_pairs(pruning.find_layer_pairs(module, self._build_example())), self.plan.share
        )
        return self._export_module(self._retrain_module(module, {}), out)

    def _make_student(self, out: Path) -> Path:
        if self.learns is None:
            raise Invalid("there are no rows to learn from", "--data dataset:…")
        import torch

        torch.manual_seed(self.plan.seed)
        builder, parameters = self.original.builder, self.original.sheet.parameters
        if self.plan.student:
            student = build_module(load_builder(self.plan.code, self.plan.student), parameters)
        elif builder is not None and can_build_narrower(builder, parameters):
            student = build_module(builder, parameters, self.plan.width)
        else:
            raise Invalid("the model's code builds no narrower one", "give it a width=, or name a --student")
        learning_plan = LearningPlan(
            self.plan.epochs, _TEACH_RATE, self.plan.seed, self.original.asks, score=self._score_output
        )
        return self._export_module(train_module(student, self.learns, learning_plan), out)

    def _retrain_module(self, module: Any, masks: Any) -> Any:
        """Learnt again from the model as it was, where there are rows."""
        if self.learns is None:
            return module
        epochs = max(1, self.plan.epochs // 3)
        learning_plan = LearningPlan(epochs, _TUNE_RATE, self.plan.seed, self.original.asks, masks, self._score_output)
        return train_module(module, self.learns, learning_plan)

    def _export_module(self, module: Any, out: Path) -> Path:
        return export_to_onnx(module, self.original.sheet, self._build_example(), out)

    def _build_example(self) -> list[Any]:
        return [
            np.ascontiguousarray(values[:2] if self.grows else values[: self._batch_rows])
            for values in self.judge.inputs
        ]

    def _require_module(self) -> Any:
        if self.original.module is None:
            raise Invalid("this needs the model as torch code and safetensors", "")
        return self.original.module


def _find_score_output(session: OnnxSession) -> int:
    """The first output of floats is what a model is judged by."""
    for index, tensor in enumerate(session.outputs):
        if tensor.datatype.startswith("FP"):
            return index
    raise Invalid("the model gives no floats", "it is judged by scores: give them, too")


def list_warnings(trial: OptimizationTrial) -> list[str]:
    """What the figures cannot tell."""
    rows, bound = len(trial.judge), trial.plan.max_loss
    warning_texts = []
    if trial.kind == AGREEMENT:
        basis = "rows without answers" if trial.plan.data or trial.plan.evaluate else "made-up inputs"
        warning_texts.append(f"judged by agreement with the model as it is on {rows} {basis}: name --data and --target")
    if 0 < bound * rows < 1:
        warning_texts.append(f"{bound:.2%} of {rows} rows is less than one row: judge by more")
    return warning_texts
