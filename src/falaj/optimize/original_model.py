"""The model that is given, whatever it is: as ONNX, checked to answer as it does, with its module where it has code."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from falaj.core.errors import Invalid
from falaj.core.model_manifest import MANIFEST_FILE, ModelManifest, TensorSpec, read_manifest
from falaj.drift.records import PROFILE_FILE as PROFILE
from falaj.optimize import torch_modules
from falaj.optimize.dataset_rows import FEATURE_ORDER_PARAMETER, DatasetRows, read_rows
from falaj.optimize.onnx_files import OnnxSession, find_vocabulary_sizes, load_model, make_inputs, save_model
from falaj.optimize.parity import ArrayFunction, WorstDifference, check_parity
from falaj.optimize.records import OptimizePlan
from falaj.optimize.safetensors_weights import load_weights
from falaj.optimize.untrusted_code import wrap_user_errors

SEEDED_ROWS = 64
_SUFFIXES = {".onnx": "onnx", ".safetensors": "torch", ".pt2": "export", ".skops": "skops"}
_BOOSTER_SUFFIXES = {"xgboost": (".json", ".ubj"), "lightgbm": (".txt",)}


@dataclass(slots=True)
class OriginalModel:
    """A model as it came. `asks` answers as it does; `module` and `builder` are there when its code is."""

    file: Path
    """Of its ONNX."""
    sheet: ModelManifest
    asks: ArrayFunction
    kind: str
    module: Any = None
    builder: Callable[..., Any] | None = None
    parity: WorstDifference | None = None
    size_bytes: int = 0
    """Of its own file."""


def open_model(plan: OptimizePlan, work_folder: Path) -> OriginalModel:
    """The model in the plan's folder; its export is compared with it on seeded inputs and on rows of the data."""
    folder = Path(plan.model)
    manifest = (
        read_manifest((folder / MANIFEST_FILE).read_bytes()) if (folder / MANIFEST_FILE).is_file() else ModelManifest()
    )
    kind, file = _find_model_file(folder, manifest)
    if kind in ("torch", "export") or plan.student:
        torch_modules.set_deterministic(plan.threads)
    original = _OPENERS[kind](plan, manifest, file, work_folder / "export.onnx")
    original.size_bytes = file.stat().st_size
    return original


def make_seeded_inputs(file: Path, session: OnnxSession, seed: int, rows: int = SEEDED_ROWS) -> Any:
    """Made-up inputs that this model can take."""
    return make_inputs(session.inputs, rows, seed, find_vocabulary_sizes(load_model(file)))


def _find_model_file(folder: Path, manifest: ModelManifest) -> tuple[str, Path]:
    if manifest.runtime and manifest.runtime not in _OPENERS:
        raise Invalid(f"models of {manifest.runtime} stay as they are", "ONNX and torch models can be optimised")
    runtimes_by_file = {path: _SUFFIXES.get(path.suffix, "") for path in sorted(folder.rglob("*")) if path.is_file()}
    if manifest.runtime in _BOOSTER_SUFFIXES:
        runtimes_by_file = {
            path: manifest.runtime
            for path in runtimes_by_file
            if path.suffix in _BOOSTER_SUFFIXES[manifest.runtime] and path.name not in (MANIFEST_FILE, PROFILE)
        }
    files = [
        path for path, kind in runtimes_by_file.items() if kind and (not manifest.runtime or kind == manifest.runtime)
    ]
    if manifest.file:
        files = [folder / manifest.file] if folder / manifest.file in runtimes_by_file else []
    if len(files) != 1:
        description = "several models" if files else "no model that can be optimised"
        raise Invalid(
            f"the folder holds {description}",
            f"ONNX, torch (safetensors and code, pt2) or skops; name it in {MANIFEST_FILE}",
        )
    return manifest.runtime or runtimes_by_file[files[0]], files[0]


def _open_onnx(plan: OptimizePlan, manifest: ModelManifest, file: Path, out: Path) -> OriginalModel:
    save_model(load_model(file), out)
    session = OnnxSession(out, threads=plan.threads, aim=plan.aim)
    return OriginalModel(out, _describe_onnx(manifest, session), session.run, "onnx")


def _open_torch(plan: OptimizePlan, manifest: ModelManifest, file: Path, out: Path) -> OriginalModel:
    specs = torch_modules.require_inputs(manifest)
    builder = torch_modules.load_builder(plan.code, manifest.code)
    module = torch_modules.build_module(builder, manifest.parameters)
    load_weights(module, file)
    module.eval()
    rows = read_sample_rows(plan, manifest)
    example = [values[:2] for values in rows.inputs] if rows else make_inputs(specs, 2, plan.seed, {})
    torch_modules.export_to_onnx(module, manifest, example, out)
    original = OriginalModel(out, manifest, torch_modules.to_array_function(module), "torch", module, builder)
    return _compare_export(plan, original, rows)


def _open_export(plan: OptimizePlan, manifest: ModelManifest, file: Path, out: Path) -> OriginalModel:
    import torch

    with wrap_user_errors(f"reading {file.name}", "save it with this version of torch"):
        program = torch.export.load(file)
        exported: Any = torch.onnx.export(program, dynamo=True, verbose=False)
        module = program.module()
    save_model(exported.model_proto, out)
    original = OriginalModel(out, manifest, torch_modules.to_array_function(module), "export")
    return _compare_export(plan, original, None)


def _open_skops(plan: OptimizePlan, manifest: ModelManifest, file: Path, out: Path) -> OriginalModel:
    """scikit-learn without pickle: skops names what it would load, and nothing strange is trusted."""
    with wrap_user_errors("reading a skops file", "pip install skops skl2onnx"):
        model: Any = import_module("skops.io").load(file, trusted=[])
        width = int(model.n_features_in_)
        example = make_inputs((TensorSpec("x", "FP32", (-1, width)),), 2, plan.seed, {})[0]
        convert_options = {id(model): {"zipmap": False}} if hasattr(model, "classes_") else None
        converted = import_module("skl2onnx").to_onnx(model, example, options=convert_options)
    save_model(converted, out)

    def run_estimator(arrays: Sequence[NDArray[Any]]) -> list[NDArray[Any]]:
        if not hasattr(model, "predict_proba"):
            return [np.asarray(model.predict(arrays[0])).reshape(len(arrays[0]), -1)]
        scores = np.asarray(model.predict_proba(arrays[0]))
        return [model.classes_[scores.argmax(1)], scores]

    return _compare_export(plan, OriginalModel(out, manifest, run_estimator, "skops"), None)


def _open_booster(plan: OptimizePlan, manifest: ModelManifest, file: Path, out: Path) -> OriginalModel:
    """Boosters run fastest as they are; as ONNX only where somebody installed what converts them."""
    hint = "boosters are served as they are; pip install onnxmltools to make ONNX of them"
    with wrap_user_errors("making ONNX of a booster", hint):
        tools = import_module("onnxmltools")
        booster: Any = import_module(manifest.runtime).Booster(model_file=str(file))
        count = getattr(booster, "num_features", None) or booster.num_feature
        input_type = import_module("onnxmltools.convert.common.data_types").FloatTensorType([None, count()])
        convert = getattr(tools, f"convert_{manifest.runtime}")
        save_model(convert(booster, initial_types=[("input", input_type)]), out)
    session = OnnxSession(out, threads=plan.threads)
    return OriginalModel(out, _describe_onnx(manifest, session), session.run, manifest.runtime)


_OPENERS: dict[str, Callable[[OptimizePlan, ModelManifest, Path, Path], OriginalModel]] = {
    "onnx": _open_onnx,
    "torch": _open_torch,
    "export": _open_export,
    "skops": _open_skops,
    "xgboost": _open_booster,
    "lightgbm": _open_booster,
}


def _compare_export(plan: OptimizePlan, original: OriginalModel, rows: DatasetRows | None) -> OriginalModel:
    session = OnnxSession(original.file, threads=plan.threads)
    original.sheet = _describe_onnx(original.sheet, session)
    sets = [("seeded inputs", make_seeded_inputs(original.file, session, plan.seed))]
    rows = rows or read_sample_rows(plan, original.sheet)
    sets += [("data", [values[:1024] for values in rows.inputs])] if rows else []
    original.parity = check_parity(original.asks, session.run, sets)
    return original


def read_sample_rows(plan: OptimizePlan, manifest: ModelManifest) -> DatasetRows | None:
    """Some rows of the data, where there is data."""
    folder = plan.data or plan.evaluate
    order = manifest.parameters.get(FEATURE_ORDER_PARAMETER, "")
    return read_rows(folder, manifest.inputs, plan.target, plan.most_rows, plan.seed, order) if folder else None


def _describe_onnx(manifest: ModelManifest, session: OnnxSession) -> ModelManifest:
    """The sheet of its ONNX: what the file says goes before what was said of another file."""
    rows = all(tensor.shape[:1] == (-1,) for tensor in session.inputs)
    return replace(
        manifest,
        runtime="onnx",
        file="model.onnx",
        code="",
        inputs=session.inputs,
        outputs=session.outputs,
        batches=manifest.batches and rows,
    )
