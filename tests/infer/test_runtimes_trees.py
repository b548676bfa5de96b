"""Boosted trees by their own libraries, and TensorFlow Lite where it is."""

import importlib.util
from pathlib import Path
from typing import Any

import lightgbm
import numpy as np
import pytest
import xgboost

from falaj.core.errors import CorruptData, Invalid
from falaj.core.model_manifest import ModelManifest, TensorSpec
from falaj.infer.records import ModelConfig
from falaj.infer.runtimes import load_runtime
from tests.infer import models

X = np.random.default_rng(5).standard_normal((200, 6)).astype(np.float32)
CLASSES = (X[:, 0] + X[:, 1] > 0).astype(int) + (X[:, 2] > 0.5)
ODD = np.array([[np.nan, 1, -1, np.inf, 0, np.nan]], np.float32)


def boosted(classes: int) -> xgboost.Booster:
    kind = {"objective": "multi:softprob", "num_class": classes} if classes > 2 else {"objective": "binary:logistic"}
    data = xgboost.DMatrix(X, np.minimum(CLASSES, classes - 1))
    return xgboost.train({"max_depth": 3, "nthread": 1, **kind}, data, 5)


def grown(classes: int) -> lightgbm.Booster:
    kind = {"objective": "multiclass", "num_class": classes} if classes > 2 else {"objective": "binary"}
    data = lightgbm.Dataset(X.astype(np.float64), np.minimum(CLASSES, classes - 1), params={"verbose": -1})
    return lightgbm.train({"verbose": -1, "num_threads": 1, "num_leaves": 7, **kind}, data, 5)


def config(folder: Path, **more: Any) -> ModelConfig:
    return ModelConfig("m", "1", str(folder), **more)


@pytest.mark.parametrize("suffix", ["json", "ubj"])
@pytest.mark.parametrize("classes", [2, 3])
def test_xgboost_answers_like_its_library(tmp_path: Path, suffix: str, classes: int) -> None:
    booster = boosted(classes)
    booster.save_model(tmp_path / f"model.{suffix}")
    runtime = load_runtime(config(tmp_path, files=models.digests(tmp_path)))
    rows = np.concatenate([X[:7], ODD[:, :6]]) if suffix == "json" else X[:7]
    (y,) = runtime.run([rows], {})
    assert runtime.inputs == (TensorSpec("x", "FP32", (-1, 6)),)
    assert runtime.outputs[0].shape == ((-1,) if classes == 2 else (-1, 3))
    finite = np.isfinite(rows).all(1)
    np.testing.assert_array_equal(y[finite], booster.predict(xgboost.DMatrix(rows[finite])))
    assert np.isfinite(y).all()


@pytest.mark.parametrize("classes", [2, 3])
def test_lightgbm_answers_like_its_library(tmp_path: Path, classes: int) -> None:
    booster = grown(classes)
    booster.save_model(tmp_path / "model.txt")
    runtime = load_runtime(config(tmp_path, files=models.digests(tmp_path)))
    rows = np.concatenate([X[:7], ODD]).astype(np.float64)
    (y,) = runtime.run([rows], {})
    np.testing.assert_array_equal(y, booster.predict(rows))
    assert (runtime.outputs[0].datatype, y.dtype) == ("FP64", np.float64)


def test_a_sheet_names_them_and_says_how_numbers_travel(tmp_path: Path) -> None:
    booster = grown(2)
    booster.save_model(tmp_path / "model.txt")
    sheet = ModelManifest(
        "lightgbm",
        inputs=(TensorSpec("features", "FP32", (-1, 6)),),
        outputs=(TensorSpec("score", "FP32", (-1,)),),
    )
    (y,) = load_runtime(config(tmp_path, sheet=sheet)).run([X[:3]], {})
    np.testing.assert_allclose(y, booster.predict(X[:3]), rtol=1e-6)
    assert y.dtype == np.float32
    with pytest.raises(Invalid, match="6"):
        load_runtime(
            config(tmp_path, sheet=ModelManifest("lightgbm", inputs=(TensorSpec("features", "FP32", (-1, 5)),)))
        )


@pytest.mark.parametrize(
    ("name", "text"),
    [("model.json", '{"learner": 1}'), ("model.json", "{"), ("model.txt", "hello"), ("model.ubj", "{")],
)
def test_what_is_no_model(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(Invalid):
        load_runtime(config(tmp_path))


def test_only_approved_bytes_and_the_device_asked_for(tmp_path: Path) -> None:
    boosted(2).save_model(tmp_path / "model.json")
    approved = models.digests(tmp_path)
    with pytest.raises(Invalid, match="cuda"):
        load_runtime(config(tmp_path, device="cuda"))
    boosted(3).save_model(tmp_path / "model.json")
    with pytest.raises(CorruptData):
        load_runtime(config(tmp_path, files=approved))


def test_two_kinds_of_files_need_a_word(tmp_path: Path) -> None:
    boosted(2).save_model(tmp_path / "model.ubj")
    (tmp_path / "notes.txt").write_text("which is which")
    models.mlp(tmp_path)
    with pytest.raises(Invalid, match="onnx and xgboost"):
        load_runtime(config(tmp_path))
    (tmp_path / "falaj.json").write_text('{"runtime": "xgboost", "file": "model.ubj"}')
    assert load_runtime(config(tmp_path)).platform == "xgboost_json"


def test_notes_beside_a_model_are_no_model(tmp_path: Path) -> None:
    models.mlp(tmp_path)
    (tmp_path / "notes.txt").write_text("trained on a Monday")
    (tmp_path / "about.json").write_text("{}")
    assert load_runtime(config(tmp_path)).platform == "onnxruntime_onnx"


def test_tflite_says_when_it_is_not_there(tmp_path: Path) -> None:
    if any(importlib.util.find_spec(name) for name in ("ai_edge_litert", "tflite_runtime")):
        pytest.skip("TensorFlow Lite is installed")
    (tmp_path / "model.tflite").write_bytes(b"\0\0\0\0TFL3")
    with pytest.raises(Invalid, match="not installed"):
        load_runtime(config(tmp_path))


def test_tflite_answers(tmp_path: Path) -> None:
    schema = pytest.importorskip("ai_edge_litert.schema_py_generated", reason="TensorFlow Lite is not installed")
    (tmp_path / "model.tflite").write_bytes(_doubling(schema))
    runtime = load_runtime(config(tmp_path, files=models.digests(tmp_path)))
    assert (runtime.inputs, runtime.platform) == ((TensorSpec("x", "FP32", (-1, 3)),), "tensorflow_lite")
    for rows in (2, 5, 2):
        (y,) = runtime.run([X[:rows, :3]], {})
        np.testing.assert_array_equal(y, X[:rows, :3] * 2)
    (tmp_path / "model.tflite").write_bytes(b"nothing")
    with pytest.raises(Invalid, match="does not take"):
        load_runtime(config(tmp_path))


def _doubling(schema: Any) -> bytes:
    """x + x, put together by hand: there is no converter without TensorFlow."""
    import flatbuffers

    ends = [schema.TensorT() for _ in range(2)]
    for end, name in zip(ends, (b"x", b"y"), strict=True):
        end.name, end.shape, end.shapeSignature, end.type, end.buffer = name, [1, 3], [-1, 3], 0, 0
    adds, operator, graph, model, code = (
        getattr(schema, f"{name}T")() for name in ("AddOptions", "Operator", "SubGraph", "Model", "OperatorCode")
    )
    operator.inputs, operator.outputs, operator.opcodeIndex = [0, 0], [1], 0
    operator.builtinOptionsType, operator.builtinOptions = schema.BuiltinOptions.AddOptions, adds
    graph.tensors, graph.inputs, graph.outputs, graph.operators = ends, [0], [1], [operator]
    code.builtinCode = code.deprecatedBuiltinCode = schema.BuiltinOperator.ADD
    model.version, model.operatorCodes, model.subgraphs, model.buffers = 3, [code], [graph], [schema.BufferT()]
    builder = flatbuffers.Builder(1024)
    builder.Finish(model.Pack(builder), b"TFL3")
    return bytes(builder.Output())
