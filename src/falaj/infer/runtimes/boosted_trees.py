"""Boosted trees by their own libraries, from XGBoost's JSON or UBJSON and LightGBM's text. Neither format holds code.

One input, the matrix of features, and one output, what `predict` gives; a NaN is a value that is missing. LightGBM can
fall over a broken text and take the process with it, so what is not plainly a whole model is not given to it.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from falaj.core.errors import Invalid
from falaj.core.model_manifest import ModelManifest, TensorSpec
from falaj.drift.records import PROFILE_FILE as PROFILE
from falaj.infer.records import Arrays, ModelConfig
from falaj.infer.runtimes.model_files import ModelFiles
from falaj.infer.runtimes.tensor_specs import can_batch, check_outputs, reconcile_specs

Predict = Callable[[Any], Any]


class TreesRuntime:
    """One booster, which may be asked from several threads."""

    parallel, isolated = True, False

    def __init__(
        self, predict: Predict, specs: tuple[TensorSpec, TensorSpec], manifest: ModelManifest, platform: str
    ) -> None:
        self._predict: Predict | None = predict
        self.inputs = _name_spec(specs[0], manifest.inputs, "inputs")
        self.outputs = _name_spec(specs[1], manifest.outputs, "outputs")
        self.batches, self.platform = can_batch(manifest, self.inputs, self.outputs), platform
        self.size_bytes = 0

    def run(self, inputs: Arrays, parameters: Mapping[str, Any]) -> Arrays:
        """What the trees say of each row."""
        predict, output_spec = self._predict, self.outputs[0]
        if predict is None:
            raise Invalid("the model was unloaded", "load it again")
        (x,) = inputs
        result_type = np.float64 if output_spec.datatype == "FP64" else np.float32
        predictions = np.asarray(predict(x), result_type).reshape(len(x), *output_spec.shape[1:])
        return check_outputs([predictions], self.outputs, "booster")

    def close(self) -> None:
        """Let go of the booster."""
        self._predict = None


def open_runtime(config: ModelConfig, manifest: ModelManifest, files: ModelFiles) -> TreesRuntime:
    """The booster of the model in these files."""
    if config.device not in ("cpu", ""):
        raise Invalid(f"boosted trees do not run on {config.device[:40]} here", "say cpu")
    if manifest.runtime == "lightgbm" or (not manifest.runtime and not _has_json_model(files, manifest)):
        runtime = _open_lightgbm(config, manifest, files)
    else:
        runtime = _open_xgboost(config, manifest, files)
    runtime.size_bytes = files.size_bytes
    return runtime


def _open_xgboost(config: ModelConfig, manifest: ModelManifest, files: ModelFiles) -> TreesRuntime:
    import xgboost

    name = files.only(manifest.file, ".json", ".ubj")
    booster: Any = xgboost.Booster({"nthread": config.threads})
    try:
        booster.load_model(bytearray(files.read(name)))
        booster.set_param({"nthread": config.threads})
        columns = booster.num_features()
        sample_prediction = np.asarray(
            booster.inplace_predict(np.zeros((1, columns), np.float32), validate_features=False)
        )
    except (xgboost.core.XGBoostError, ValueError, UnicodeError) as error:
        raise Invalid(f"XGBoost does not take {name[:100]}: {str(error)[:200]}", "save it again") from error
    specs = TensorSpec("x", "FP32", (-1, columns)), TensorSpec("y", "FP32", (-1, *sample_prediction.shape[1:]))
    return TreesRuntime(lambda x: booster.inplace_predict(x, validate_features=False), specs, manifest, "xgboost_json")


def _open_lightgbm(config: ModelConfig, manifest: ModelManifest, files: ModelFiles) -> TreesRuntime:
    import lightgbm

    name = files.only(manifest.file, ".txt")
    try:
        text = files.read(name).decode()
        if not text.startswith("tree\n") or "\nend of trees" not in text:
            raise Invalid(f"{name[:100]} is no model of LightGBM", "save it with booster.save_model")
        booster: Any = lightgbm.Booster(model_str=text)
        columns = booster.num_feature()
        sample_prediction = np.asarray(booster.predict(np.zeros((1, columns)), num_threads=config.threads))
    except (lightgbm.basic.LightGBMError, UnicodeError) as error:
        raise Invalid(f"LightGBM does not take {name[:100]}: {str(error)[:200]}", "save it again") from error
    specs = TensorSpec("x", "FP64", (-1, columns)), TensorSpec("y", "FP64", (-1, *sample_prediction.shape[1:]))
    return TreesRuntime(lambda x: booster.predict(x, num_threads=config.threads), specs, manifest, "lightgbm_text")


def _has_json_model(files: ModelFiles, manifest: ModelManifest) -> bool:
    names = (manifest.file,) if manifest.file else files.names()
    return any(name.endswith((".json", ".ubj")) and name not in ("falaj.json", PROFILE) for name in names)


def _name_spec(
    booster_spec: TensorSpec, manifest_specs: tuple[TensorSpec, ...], direction: str
) -> tuple[TensorSpec, ...]:
    """A booster names neither; the sheet may, and may have numbers travel as FP32 or FP64."""
    if len(manifest_specs) == 1 and manifest_specs[0].datatype in ("FP32", "FP64"):
        booster_spec = TensorSpec(manifest_specs[0].name, manifest_specs[0].datatype, booster_spec.shape)
    return reconcile_specs((booster_spec,), manifest_specs, direction)
