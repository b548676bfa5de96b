"""The model that is given, whatever it is: as ONNX, checked to answer as it does, with its module where it has code."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from falaj.core.errors import Invalid
from falaj.core.sheet import FILE, Sheet, TensorSpec, read_sheet
from falaj.drift.records import FILE as PROFILE
from falaj.optimize import modules
from falaj.optimize.graphs import Session, load, made_up, save, vocabularies
from falaj.optimize.parity import Ask, Worst, check
from falaj.optimize.records import Plan
from falaj.optimize.rows import ORDER, Rows, read_rows
from falaj.optimize.strangers import guarded
from falaj.optimize.weights import fill

SEEDED = 64
_SUFFIXES = {".onnx": "onnx", ".safetensors": "torch", ".pt2": "export", ".skops": "skops"}
_TREES = {"xgboost": (".json", ".ubj"), "lightgbm": (".txt",)}


@dataclass(slots=True)
class Original:
    """A model as it came. `asks` answers as it does; `module` and `builder` are there when its code is."""

    file: Path
    """Of its ONNX."""
    sheet: Sheet
    asks: Ask
    kind: str
    module: Any = None
    builder: Callable[..., Any] | None = None
    parity: Worst | None = None
    size_bytes: int = 0
    """Of its own file."""


def open_model(plan: Plan, work: Path) -> Original:
    """The model in the plan's folder; its export is compared with it on seeded inputs and on rows of the data."""
    folder = Path(plan.model)
    sheet = read_sheet((folder / FILE).read_bytes()) if (folder / FILE).is_file() else Sheet()
    kind, file = _found(folder, sheet)
    if kind in ("torch", "export") or plan.student:
        modules.settle(plan.threads)
    found = _OPENED[kind](plan, sheet, file, work / "export.onnx")
    found.size_bytes = file.stat().st_size
    return found


def seeded(file: Path, session: Session, seed: int, rows: int = SEEDED) -> Any:
    """Made-up inputs that this model can take."""
    return made_up(session.inputs, rows, seed, vocabularies(load(file)))


def _found(folder: Path, sheet: Sheet) -> tuple[str, Path]:
    if sheet.runtime and sheet.runtime not in _OPENED:
        raise Invalid(f"models of {sheet.runtime} stay as they are", "ONNX and torch models can be optimised")
    names = {one: _SUFFIXES.get(one.suffix, "") for one in sorted(folder.rglob("*")) if one.is_file()}
    if sheet.runtime in _TREES:
        names = {
            one: sheet.runtime
            for one in names
            if one.suffix in _TREES[sheet.runtime] and one.name not in (FILE, PROFILE)
        }
    files = [one for one, kind in names.items() if kind and (not sheet.runtime or kind == sheet.runtime)]
    if sheet.file:
        files = [folder / sheet.file] if folder / sheet.file in names else []
    if len(files) != 1:
        said = "several models" if files else "no model that can be optimised"
        raise Invalid(
            f"the folder holds {said}", f"ONNX, torch (safetensors and code, pt2) or skops; name it in {FILE}"
        )
    return sheet.runtime or names[files[0]], files[0]


def _onnx(plan: Plan, sheet: Sheet, file: Path, out: Path) -> Original:
    save(load(file), out)
    session = Session(out, threads=plan.threads, aim=plan.aim)
    return Original(out, _told(sheet, session), session.run, "onnx")


def _torch(plan: Plan, sheet: Sheet, file: Path, out: Path) -> Original:
    specs = modules.needs_inputs(sheet)
    builder = modules.builder_of(plan.code, sheet.code)
    module = modules.built(builder, sheet.parameters)
    fill(module, file)
    module.eval()
    rows = sample(plan, sheet)
    example = [one[:2] for one in rows.inputs] if rows else made_up(specs, 2, plan.seed, {})
    modules.export(module, sheet, example, out)
    found = Original(out, sheet, modules.answers(module), "torch", module, builder)
    return _compared(plan, found, rows)


def _export(plan: Plan, sheet: Sheet, file: Path, out: Path) -> Original:
    import torch

    with guarded(f"reading {file.name}", "save it with this version of torch"):
        program = torch.export.load(file)
        made: Any = torch.onnx.export(program, dynamo=True, verbose=False)
        module = program.module()
    save(made.model_proto, out)
    found = Original(out, sheet, modules.answers(module), "export")
    return _compared(plan, found, None)


def _skops(plan: Plan, sheet: Sheet, file: Path, out: Path) -> Original:
    """scikit-learn without pickle: skops names what it would load, and nothing strange is trusted."""
    with guarded("reading a skops file", "pip install skops skl2onnx"):
        model: Any = import_module("skops.io").load(file, trusted=[])
        width = int(model.n_features_in_)
        example = made_up((TensorSpec("x", "FP32", (-1, width)),), 2, plan.seed, {})[0]
        plain = {id(model): {"zipmap": False}} if hasattr(model, "classes_") else None
        made = import_module("skl2onnx").to_onnx(model, example, options=plain)
    save(made, out)

    def ask(given: Sequence[NDArray[Any]]) -> list[NDArray[Any]]:
        if not hasattr(model, "predict_proba"):
            return [np.asarray(model.predict(given[0])).reshape(len(given[0]), -1)]
        scores = np.asarray(model.predict_proba(given[0]))
        return [model.classes_[scores.argmax(1)], scores]

    return _compared(plan, Original(out, sheet, ask, "skops"), None)


def _trees(plan: Plan, sheet: Sheet, file: Path, out: Path) -> Original:
    """Boosters run fastest as they are; as ONNX only where somebody installed what converts them."""
    hint = "boosters are served as they are; pip install onnxmltools to make ONNX of them"
    with guarded("making ONNX of a booster", hint):
        tools = import_module("onnxmltools")
        booster: Any = import_module(sheet.runtime).Booster(model_file=str(file))
        count = getattr(booster, "num_features", None) or booster.num_feature
        kind = import_module("onnxmltools.convert.common.data_types").FloatTensorType([None, count()])
        convert = getattr(tools, f"convert_{sheet.runtime}")
        save(convert(booster, initial_types=[("input", kind)]), out)
    session = Session(out, threads=plan.threads)
    return Original(out, _told(sheet, session), session.run, sheet.runtime)


_OPENED: dict[str, Callable[[Plan, Sheet, Path, Path], Original]] = {
    "onnx": _onnx, "torch": _torch, "export": _export, "skops": _skops, "xgboost": _trees, "lightgbm": _trees,
}  # fmt: skip


def _compared(plan: Plan, found: Original, rows: Rows | None) -> Original:
    session = Session(found.file, threads=plan.threads)
    found.sheet = _told(found.sheet, session)
    sets = [("seeded inputs", seeded(found.file, session, plan.seed))]
    rows = rows or sample(plan, found.sheet)
    sets += [("data", [one[:1024] for one in rows.inputs])] if rows else []
    found.parity = check(found.asks, session.run, sets)
    return found


def sample(plan: Plan, sheet: Sheet) -> Rows | None:
    """Some rows of the data, where there is data."""
    where = plan.data or plan.evaluate
    order = sheet.parameters.get(ORDER, "")
    return read_rows(where, sheet.inputs, plan.target, plan.most_rows, plan.seed, order) if where else None


def _told(sheet: Sheet, session: Session) -> Sheet:
    """The sheet of its ONNX: what the file says goes before what was said of another file."""
    rows = all(one.shape[:1] == (-1,) for one in session.inputs)
    return replace(
        sheet, runtime="onnx", file="model.onnx", code="", inputs=session.inputs, outputs=session.outputs,
        batches=sheet.batches and rows,
    )  # fmt: skip
