"""What runs models: one file a kind, each reached by name when a model asks for it.

`load` reads every file of a model once, holds its digest against the approved one, and makes the runtime of those very
bytes. Tensors go in and out as numpy arrays in the order of the model's inputs and outputs; BYTES as arrays of
`object` that hold bytes (a plain list is taken where its shape is plain), BF16 as uint16.
"""

import importlib

from falaj.core.errors import FalajError, Invalid
from falaj.core.sheet import FILE, Sheet, read_sheet
from falaj.drift.records import FILE as PROFILE
from falaj.infer.records import Features, ModelConfig, Runtime
from falaj.infer.runtimes.verify import Files

_OPENERS = {
    "onnx": "falaj.infer.runtimes.onnx", "torch": "falaj.infer.runtimes.modules",
    "export": "falaj.infer.runtimes.modules", "xgboost": "falaj.infer.runtimes.trees",
    "lightgbm": "falaj.infer.runtimes.trees", "tflite": "falaj.infer.runtimes.tflite",
    "python": "falaj.infer.runtimes.function", "ensemble": "falaj.infer.ensemble",
}  # fmt: skip
SUFFIXES = {
    ".onnx": "onnx", ".safetensors": "torch", ".pt2": "export", ".ubj": "xgboost", ".json": "xgboost",
    ".txt": "lightgbm", ".tflite": "tflite",
}  # fmt: skip
_ANYTHING = (".json", ".txt")
"""What may as well be notes that lie beside a model."""


def load(config: ModelConfig) -> Runtime:
    """The model in memory. Corrupt when its bytes are not those approved, Invalid when nothing here can run it."""
    files = Files(config.folder, config.files)
    sheet = sheet_of(config, files)
    kind = sheet.runtime or told(files, sheet)
    runtime: Runtime = importlib.import_module(_OPENERS[kind]).opened(config, sheet, files)
    if config.features is None or getattr(runtime, "joins", False):
        return runtime
    return _joined(runtime, config.features, sheet)


def sheet_of(config: ModelConfig, files: Files | None = None) -> Sheet:
    """What the model says of itself: as the config has it, or the file in its folder, or nothing."""
    if config.sheet is not None:
        return config.sheet
    files = files or Files(config.folder, config.files)
    return read_sheet(files.read(FILE)) if FILE in files.names() else Sheet()


def told(files: Files, sheet: Sheet) -> str:
    """Which runtime the files are for."""
    if sheet.steps:
        return "ensemble"
    names = [sheet.file] if sheet.file else [name for name in files.names() if name not in (FILE, PROFILE)]
    found = {suffix for name in names for suffix in SUFFIXES if name.endswith(suffix)}
    kinds = {SUFFIXES[suffix] for suffix in found.difference(_ANYTHING) or found}
    if not kinds and sheet.code:
        return "python"
    if len(kinds) != 1:
        said = f"files for {' and '.join(sorted(kinds))}" if kinds else "no file that a runtime knows"
        raise Invalid(f"the model has {said}", f'say which in {FILE}: {{"runtime": "onnx", "file": "model.onnx"}}')
    return kinds.pop()


def _joined(runtime: Runtime, features: Features, sheet: Sheet) -> Runtime:
    from falaj.infer.features import open_online, with_features

    try:
        return with_features(runtime, features, open_online, order=sheet.parameters.get("features.order", ""))
    except FalajError:
        runtime.close()
        raise
