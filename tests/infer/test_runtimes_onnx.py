"""The ONNX runtime: what it says, what it answers, and what it will not load."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from falaj.core.errors import CorruptData, Invalid
from falaj.core.model_manifest import ModelManifest, TensorSpec
from falaj.infer.records import ModelConfig
from falaj.infer.runtimes import load_runtime
from tests.infer import models

GENERATOR = np.random.default_rng(3)


def config(folder: Path, **more: object) -> ModelConfig:
    return ModelConfig("m", "1", str(folder), **more)  # type: ignore[arg-type]


def test_answers_like_numpy_and_says_what_it_takes(tmp_path: Path) -> None:
    runtime = load_runtime(config(models.mlp(tmp_path), files=models.digests(tmp_path)))
    assert runtime.inputs == (TensorSpec("x", "FP32", (-1, 32)),)
    assert runtime.outputs == (TensorSpec("y", "FP32", (-1, 1)),)
    assert runtime.platform == "onnxruntime_onnx"
    for rows in (1, 5, 64):
        x = GENERATOR.standard_normal((rows, 32)).astype(np.float32)
        (y,) = runtime.run([x], {})
        np.testing.assert_allclose(y, models.mlp_of(x), atol=1e-5)


def test_nan_passes_through(tmp_path: Path) -> None:
    x = np.ones((2, 32), np.float32)
    x[0, 3] = np.nan
    (y,) = load_runtime(config(models.mlp(tmp_path))).run([x], {})
    assert np.isfinite(y[1]).all()


def test_every_datatype_comes_back_as_it_went(tmp_path: Path) -> None:
    kinds = [one for one in models.KINDS if one != "BF16"]
    runtime = load_runtime(config(models.echo(tmp_path, kinds)))
    assert [one.datatype for one in runtime.inputs] == kinds
    given = [_values(one) for one in kinds]
    for one, back in zip(given, runtime.run(given, {}), strict=True):
        assert back.dtype == one.dtype
        assert back.tolist() == one.tolist()


def test_texts_are_utf8_or_refused(tmp_path: Path) -> None:
    runtime = load_runtime(config(models.echo(tmp_path, ["BYTES"])))
    (back,) = runtime.run([[b"\xc3\xa9", b"a\0b"]], {})
    assert back.tolist() == [[b"\xc3\xa9"], [b"a\0b"]]
    with pytest.raises(Invalid, match="no UTF-8"):
        runtime.run([[b"\xff"]], {})


def test_wrong_shapes_are_the_callers_fault(tmp_path: Path) -> None:
    with pytest.raises(Invalid, match="did not run"):
        load_runtime(config(models.mlp(tmp_path))).run([np.ones((1, 3), np.float32)], {})


@pytest.mark.parametrize("device", ["cuda", "tensorrt", "cuda:1", "abacus"])
def test_never_another_device_than_asked_for(tmp_path: Path, device: str) -> None:
    import onnxruntime

    if "CUDAExecutionProvider" in onnxruntime.get_available_providers():
        pytest.skip("this machine has the device")
    with pytest.raises(Invalid, match="cannot run on"):
        load_runtime(config(models.mlp(tmp_path), device=device))


def test_only_the_approved_bytes_are_loaded(tmp_path: Path) -> None:
    folder = models.mlp(tmp_path)
    approved = models.digests(folder)
    models.mlp(folder, seed=8)
    with pytest.raises(CorruptData, match="not what was approved"):
        load_runtime(config(folder, files=approved))
    with pytest.raises(CorruptData, match="not among the approved"):
        load_runtime(config(folder, files={"other.onnx": "0" * 64}))
    (folder / "model.onnx").unlink()
    with pytest.raises(CorruptData, match="cannot be read"):
        load_runtime(config(folder, files=approved, sheet=ModelManifest(file="model.onnx")))


def test_a_sheet_slipped_in_is_refused(tmp_path: Path) -> None:
    folder = models.mlp(tmp_path)
    approved = models.digests(folder)
    (folder / "falaj.json").write_text('{"runtime": "python", "code": "evil:run"}')
    with pytest.raises(CorruptData, match=r"falaj\.json"):
        load_runtime(config(folder, files=approved))


def test_a_link_out_of_the_folder_is_refused(tmp_path: Path) -> None:
    models.mlp(tmp_path / "else")
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "model.onnx").symlink_to(tmp_path / "else" / "model.onnx")
    with pytest.raises(Invalid, match="outside"):
        load_runtime(config(tmp_path / "model"))


@pytest.mark.parametrize(
    ("inputs", "match"),
    [
        ([TensorSpec("z", "FP32", (-1, 32))], "inputs"),
        ([TensorSpec("x", "FP64", (-1, 32))], "FP32"),
        ([TensorSpec("x", "FP32", (-1, 31))], "32"),
        ([TensorSpec("x", "FP32", (-1,))], "32"),
    ],
)
def test_a_sheet_must_tell_the_truth(tmp_path: Path, inputs: Sequence[TensorSpec], match: str) -> None:
    with pytest.raises(Invalid, match=match):
        load_runtime(config(models.mlp(tmp_path), sheet=ModelManifest(inputs=tuple(inputs))))


def test_a_sheet_may_know_a_size_better(tmp_path: Path) -> None:
    sheet = ModelManifest(inputs=(TensorSpec("in_fp32", "FP32", (-1, 4)),))
    assert load_runtime(config(models.echo(tmp_path, ["FP32"]), sheet=sheet)).inputs[0].shape == (-1, 4)


def test_bytes_that_are_no_model(tmp_path: Path) -> None:
    (tmp_path / "model.onnx").write_bytes(b"not a model")
    with pytest.raises(Invalid, match="does not take"):
        load_runtime(config(tmp_path))
    (tmp_path / "nothing").mkdir()
    with pytest.raises(Invalid, match="no file"):
        load_runtime(config(tmp_path / "nothing"))


def _external(folder: Path, location: str) -> None:
    """A model whose weight lies in another file."""
    weight = numpy_helper.from_array(np.arange(4, dtype=np.float32), "w")
    onnx.external_data_helper.set_external_data(weight, location, offset=0, length=16)
    weight.ClearField("raw_data")
    weight.data_location = TensorProto.EXTERNAL
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ("n", 4)) for name in ("x", "y")]
    graph = helper.make_graph([helper.make_node("Add", ["x", "w"], ["y"])], "g", ends[:1], ends[1:], [weight])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
    folder.mkdir(exist_ok=True)
    (folder / "model.onnx").write_bytes(model.SerializeToString())


def test_tensors_beside_the_model_are_checked_too(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    _external(folder, "weights.bin")
    (folder / "weights.bin").write_bytes(np.arange(4, dtype=np.float32).tobytes())
    approved = models.digests(folder)
    (y,) = load_runtime(config(folder, files=approved)).run([np.ones((1, 4), np.float32)], {})
    assert y.tolist() == [[1, 2, 3, 4]]
    (folder / "weights.bin").write_bytes(bytes(16))
    with pytest.raises(CorruptData, match=r"weights\.bin"):
        load_runtime(config(folder, files=approved))


@pytest.mark.parametrize("location", ["../secret.bin", "{root}/secret.bin", "secret.bin"])
def test_tensors_elsewhere_are_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, location: str) -> None:
    (tmp_path / "secret.bin").write_bytes(bytes(16))
    monkeypatch.chdir(tmp_path)
    _external(tmp_path / "model", location.format(root=tmp_path))
    with pytest.raises(Invalid, match="does not take"):
        load_runtime(config(tmp_path / "model"))


def _values(datatype: str) -> NDArray[np.generic]:
    if datatype == "BYTES":
        return np.array([[b"one", b""], [b"\xc3\xa9", b"a\0b"]], object)
    if datatype == "BOOL":
        return np.array([[True, False], [False, True]])
    from falaj.infer.runtimes.tensor_specs import numpy_type

    return np.array([[1, 2], [3, 100]]).astype(numpy_type(datatype))
