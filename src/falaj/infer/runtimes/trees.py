"""Boosted trees by their own libraries, from XGBoost's JSON or UBJSON and LightGBM's text. Neither format holds code.

One input, the matrix of features, and one output, what `predict` gives; a NaN is a value that is missing. LightGBM can
fall over a broken text and take the process with it, so what is not plainly a whole model is not given to it.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from falaj.core.errors import Invalid
from falaj.core.sheet import Sheet, TensorSpec
from falaj.drift.records import FILE as PROFILE
from falaj.infer.records import Arrays, ModelConfig
from falaj.infer.runtimes.specs import agreed, batches, given_back
from falaj.infer.runtimes.verify import Files

Predict = Callable[[Any], Any]


class TreesRuntime:
    """One booster, which may be asked from several threads."""

    parallel, isolated = True, False

    def __init__(self, predict: Predict, ends: tuple[TensorSpec, TensorSpec], sheet: Sheet, platform: str) -> None:
        self._predict: Predict | None = predict
        self.inputs = _named(ends[0], sheet.inputs, "inputs")
        self.outputs = _named(ends[1], sheet.outputs, "outputs")
        self.batches, self.platform = batches(sheet, self.inputs, self.outputs), platform
        self.size_bytes = 0

    def run(self, inputs: Arrays, parameters: Mapping[str, Any]) -> Arrays:
        """What the trees say of each row."""
        predict, kind = self._predict, self.outputs[0]
        if predict is None:
            raise Invalid("the model was unloaded", "load it again")
        (x,) = inputs
        wanted = np.float64 if kind.datatype == "FP64" else np.float32
        found = np.asarray(predict(x), wanted).reshape(len(x), *kind.shape[1:])
        return given_back([found], self.outputs, "booster")

    def close(self) -> None:
        """Let go of the booster."""
        self._predict = None


def opened(config: ModelConfig, sheet: Sheet, files: Files) -> TreesRuntime:
    """The booster of the model in these files."""
    if config.device not in ("cpu", ""):
        raise Invalid(f"boosted trees do not run on {config.device[:40]} here", "say cpu")
    if sheet.runtime == "lightgbm" or (not sheet.runtime and not _json_like(files, sheet)):
        made = _lightgbm(config, sheet, files)
    else:
        made = _xgboost(config, sheet, files)
    made.size_bytes = files.size_bytes
    return made


def _xgboost(config: ModelConfig, sheet: Sheet, files: Files) -> TreesRuntime:
    import xgboost

    name = files.only(sheet.file, ".json", ".ubj")
    booster: Any = xgboost.Booster({"nthread": config.threads})
    try:
        booster.load_model(bytearray(files.read(name)))
        booster.set_param({"nthread": config.threads})
        columns = booster.num_features()
        first = np.asarray(booster.inplace_predict(np.zeros((1, columns), np.float32), validate_features=False))
    except (xgboost.core.XGBoostError, ValueError, UnicodeError) as error:
        raise Invalid(f"XGBoost does not take {name[:100]}: {str(error)[:200]}", "save it again") from error
    ends = TensorSpec("x", "FP32", (-1, columns)), TensorSpec("y", "FP32", (-1, *first.shape[1:]))
    return TreesRuntime(lambda x: booster.inplace_predict(x, validate_features=False), ends, sheet, "xgboost_json")


def _lightgbm(config: ModelConfig, sheet: Sheet, files: Files) -> TreesRuntime:
    import lightgbm

    name = files.only(sheet.file, ".txt")
    try:
        text = files.read(name).decode()
        if not text.startswith("tree\n") or "\nend of trees" not in text:
            raise Invalid(f"{name[:100]} is no model of LightGBM", "save it with booster.save_model")
        booster: Any = lightgbm.Booster(model_str=text)
        columns = booster.num_feature()
        first = np.asarray(booster.predict(np.zeros((1, columns)), num_threads=config.threads))
    except (lightgbm.basic.LightGBMError, UnicodeError) as error:
        raise Invalid(f"LightGBM does not take {name[:100]}: {str(error)[:200]}", "save it again") from error
    ends = TensorSpec("x", "FP64", (-1, columns)), TensorSpec("y", "FP64", (-1, *first.shape[1:]))
    return TreesRuntime(lambda x: booster.predict(x, num_threads=config.threads), ends, sheet, "lightgbm_text")


def _json_like(files: Files, sheet: Sheet) -> bool:
    names = (sheet.file,) if sheet.file else files.names()
    return any(name.endswith((".json", ".ubj")) and name not in ("falaj.json", PROFILE) for name in names)


def _named(found: TensorSpec, said: tuple[TensorSpec, ...], which: str) -> tuple[TensorSpec, ...]:
    """A booster names neither; the sheet may, and may have numbers travel as FP32 or FP64."""
    if len(said) == 1 and said[0].datatype in ("FP32", "FP64"):
        found = TensorSpec(said[0].name, said[0].datatype, found.shape)
    return agreed((found,), said, which)
