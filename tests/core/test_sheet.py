"""Sheets of models: what is read is what was written, and anything else is refused in words."""

import json

import pytest

from falaj.core.errors import Invalid
from falaj.core.model_manifest import (
    EnsembleStep,
    ModelManifest,
    TensorSpec,
    encode_manifest,
    parse_manifest,
    read_manifest,
)

WHOLE = ModelManifest(
    runtime="torch",
    file="model.safetensors",
    inputs=(TensorSpec("x", "FP32", (-1, 32)),),
    outputs=(TensorSpec("y", "FP32", (-1, 1)),),
    code="model:build",
    batches=False,
    most_rows=64,
    stateful=True,
    steps=(EnsembleStep("scorer", {"x": "x"}, {"y": "score"}),),
    parameters={"a": "1"},
)


@pytest.mark.parametrize("sheet", [WHOLE, ModelManifest(), ModelManifest(runtime="onnx")])
def test_there_and_back(sheet: ModelManifest) -> None:
    assert read_manifest(encode_manifest(sheet)) == sheet


@pytest.mark.parametrize(
    "found",
    [
        [],
        {"runtime": "magic"},
        {"runtime": 1},
        {"strange": 1},
        {"batches": "yes"},
        {"most_rows": -1},
        {"most_rows": True},
        {"file": "../../etc/passwd"},
        {"file": "/etc/passwd"},
        {"inputs": {"x": 1}},
        {"inputs": [{"name": "x"}]},
        {"inputs": [{"name": "x", "datatype": "FP31", "shape": [1]}]},
        {"inputs": [{"name": "x", "datatype": "FP32", "shape": [-2]}]},
        {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1.5]}]},
        {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1] * 17}]},
        {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1]}] * 2},
        {"steps": [{"inputs": {}}]},
    ],
)
def test_what_is_no_sheet(found: object) -> None:
    with pytest.raises(Invalid):
        parse_manifest(found)


def test_what_is_no_json() -> None:
    for data in (b"{", b"[" * 100_000, b" " * ((1 << 20) + 1)):
        with pytest.raises(Invalid):
            read_manifest(data)
    assert json.loads(encode_manifest(ModelManifest(runtime="onnx"))) == {"runtime": "onnx"}
