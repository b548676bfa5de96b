"""What runs models: one file a kind, each reached by name when a model asks for it.

`load` reads every file of a model once, holds its digest against the approved one, and makes the runtime of those very
bytes. Tensors go in and out as numpy arrays in the order of the model's inputs and outputs; BYTES as arrays of
`object` that hold bytes (a plain list is taken where its shape is plain), BF16 as uint16.
"""

import importlib

from falaj.core.errors import FalajError, Invalid
from falaj.core.model_manifest import MANIFEST_FILE, ModelManifest, read_manifest
from falaj.drift.records import PROFILE_FILE as PROFILE
from falaj.infer.records import FeatureConfig, ModelConfig, ModelRuntime
from falaj.infer.runtimes.model_files import ModelFiles

_RUNTIME_MODULES = {
    "onnx": "falaj.infer.runtimes.onnx", "torch": "falaj.infer.runtimes.torch_modules",
    "export": "falaj.infer.runtimes.torch_modules", "xgboost": "falaj.infer.runtimes.boosted_trees",
    "lightgbm": "falaj.infer.runtimes.boosted_trees", "tflite": "falaj.infer.runtimes.tflite",
    "python": "falaj.infer.runtimes.python_function", "ensemble": "falaj.infer.ensemble",
}  # fmt: skip
RUNTIME_BY_SUFFIX = {
    ".onnx": "onnx", ".safetensors": "torch", ".pt2": "export", ".ubj": "xgboost", ".json": "xgboost",
    ".txt": "lightgbm", ".tflite": "tflite",
}  # fmt: skip
_AMBIGUOUS_SUFFIXES = (".json", ".txt")
"""What may as well be notes that lie beside a model."""


def load_runtime(config: ModelConfig) -> ModelRuntime:
    """The model in memory. Corrupt when its bytes are not those approved, Invalid when nothing here can run it."""
    files = ModelFiles(config.folder, config.files)
    manifest = read_model_manifest(config, files)
    runtime_kind = manifest.runtime or detect_runtime_kind(files, manifest)
    runtime: ModelRuntime = importlib.import_module(_RUNTIME_MODULES[runtime_kind]).open_runtime(
        config, manifest, files
    )
    if config.features is None or getattr(runtime, "joins", False):
        return runtime
    return _attach_features(runtime, config.features, manifest)


def read_model_manifest(config: ModelConfig, files: ModelFiles | None = None) -> ModelManifest:
    """What the model says of itself: as the config has it, or the file in its folder, or nothing."""
    if config.sheet is not None:
        return config.sheet
    files = files or ModelFiles(config.folder, config.files)
    return read_manifest(files.read(MANIFEST_FILE)) if MANIFEST_FILE in files.names() else ModelManifest()


def detect_runtime_kind(files: ModelFiles, manifest: ModelManifest) -> str:
    """Which runtime the files are for."""
    if manifest.steps:
        return "ensemble"
    names = (
        [manifest.file] if manifest.file else [name for name in files.names() if name not in (MANIFEST_FILE, PROFILE)]
    )
    suffixes = {suffix for name in names for suffix in RUNTIME_BY_SUFFIX if name.endswith(suffix)}
    kinds = {RUNTIME_BY_SUFFIX[suffix] for suffix in suffixes.difference(_AMBIGUOUS_SUFFIXES) or suffixes}
    if not kinds and manifest.code:
        return "python"
    if len(kinds) != 1:
        description = f"files for {' and '.join(sorted(kinds))}" if kinds else "no file that a runtime knows"
        raise Invalid(
            f"the model has {description}", f'say which in {MANIFEST_FILE}: {{"runtime": "onnx", "file": "model.onnx"}}'
        )
    return kinds.pop()


def _attach_features(runtime: ModelRuntime, features: FeatureConfig, manifest: ModelManifest) -> ModelRuntime:
    from falaj.infer.feature_lookup import attach_features, open_online_store

    try:
        return attach_features(
            runtime, features, open_online_store, feature_order=manifest.parameters.get("features.order", "")
        )
    except FalajError:
        runtime.close()
        raise
