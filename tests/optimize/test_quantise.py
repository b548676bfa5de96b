"""8 bits: what they change, what they keep, and the 7 bits of CPUs without VNNI."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from falaj.core.errors import Invalid
from falaj.optimize.graph_fusion import fuse_operations, fuse_transformer
from falaj.optimize.half_precision import convert_to_fp16
from falaj.optimize.onnx_files import OnnxSession, find_vocabulary_sizes, load_model, make_inputs, save_model
from falaj.optimize.parity import find_worst_difference
from falaj.optimize.pruning import sparsify_weights
from falaj.optimize.quantisation import quantise_int8_dynamic, quantise_int8_static
from tests.infer import models


@pytest.fixture(scope="module")
def cnn(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return models.cnn(tmp_path_factory.mktemp("cnn")) / "model.onnx"


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return models.encoder(tmp_path_factory.mktemp("encoder"), layers=1, width=32, words=64) / "model.onnx"


def _weights(file: Path) -> list[np.ndarray]:  # type: ignore[type-arg]
    made = [numpy_helper.to_array(one) for one in load_model(file).graph.initializer]
    return [one for one in made if one.dtype == np.int8 and one.ndim > 1]


def _apart(file: Path, other: Path) -> float:
    one, two = OnnxSession(file), OnnxSession(other)
    given = make_inputs(one.inputs, 32, 5, find_vocabulary_sizes(load_model(file)))
    return find_worst_difference(one.run(given), two.run(given)).error


@pytest.mark.parametrize("narrow", [True, False])
def test_dynamic(encoder: Path, tmp_path: Path, narrow: bool) -> None:
    made = quantise_int8_dynamic(encoder, tmp_path / "q.onnx", seven_bits=narrow)
    assert made.stat().st_size < 0.5 * encoder.stat().st_size
    assert max(np.abs(one.astype(int)).max() for one in _weights(made)) in ((64, 63) if narrow else (127, 128))
    assert 0 < _apart(encoder, made) < 0.5
    assert sorted(one.name for one in tmp_path.iterdir()) == ["q.onnx"]


@pytest.mark.parametrize("narrow", [True, False])
def test_static(cnn: Path, tmp_path: Path, narrow: bool) -> None:
    rows = make_inputs(OnnxSession(cnn).inputs, 64, 2, {})
    made = quantise_int8_static(cnn, tmp_path / "q.onnx", rows, seven_bits=narrow)
    assert made.stat().st_size < 0.4 * cnn.stat().st_size
    assert max(np.abs(one.astype(int)).max() for one in _weights(made)) in ((64, 63) if narrow else (127, 128))
    assert 0 < _apart(cnn, made) < 0.5


def test_dynamic_leaves_convolutions_in_floats(cnn: Path, tmp_path: Path) -> None:
    made = load_model(quantise_int8_dynamic(cnn, tmp_path / "q.onnx", seven_bits=True))
    kinds = {one.op_type for one in made.graph.node}
    assert "Conv" in kinds
    assert "ConvInteger" not in kinds
    assert "MatMulInteger" in kinds or "DynamicQuantizeMatMul" in kinds


def test_shapes_that_the_exporter_noted_do_not_stop_it(cnn: Path, tmp_path: Path) -> None:
    """The trap of torch's exporter: a noted shape clashes with the transposed weight of a Gemm."""
    model = onnx.shape_inference.infer_shapes(load_model(cnn))
    model.graph.value_info.append(onnx.helper.make_tensor_value_info(model.graph.node[-1].input[1], 1, [360, 10]))
    model.graph.node[0].doc_string = "somewhere.py"
    (tmp_path / "noted.onnx").write_bytes(model.SerializeToString())
    made = quantise_int8_dynamic(tmp_path / "noted.onnx", tmp_path / "q.onnx", seven_bits=False)
    assert _apart(cnn, made) < 0.5
    assert not load_model(made).graph.value_info


def test_the_same_file_makes_the_same_bytes(cnn: Path, encoder: Path, tmp_path: Path) -> None:
    for nth in (1, 2):
        quantise_int8_dynamic(encoder, tmp_path / f"d{nth}", seven_bits=True)
        quantise_int8_static(
            cnn, tmp_path / f"s{nth}", make_inputs(OnnxSession(cnn).inputs, 32, 2, {}), seven_bits=True
        )
        fuse_operations(encoder, tmp_path / f"f{nth}")
        sparsify_weights(cnn, tmp_path / f"z{nth}", 0.5)
    for kind in "dsfz":
        assert (tmp_path / f"{kind}1").read_bytes() == (tmp_path / f"{kind}2").read_bytes()


def test_fused_models_answer_the_same_with_fewer_operations(encoder: Path, cnn: Path, tmp_path: Path) -> None:
    made = fuse_operations(encoder, tmp_path / "f.onnx")
    assert len(load_model(made).graph.node) < len(load_model(encoder).graph.node)
    assert _apart(encoder, made) < 1e-3
    with pytest.raises(Invalid, match="no transformer"):
        fuse_transformer(cnn, tmp_path / "t.onnx")


def test_fp16_halves_the_file_and_keeps_its_ends(cnn: Path, tmp_path: Path) -> None:
    made = convert_to_fp16(cnn, tmp_path / "h.onnx")
    assert made.stat().st_size < 0.55 * cnn.stat().st_size
    assert OnnxSession(made).inputs == OnnxSession(cnn).inputs
    assert 0 < _apart(cnn, made) < 0.02


def test_half_of_the_weights_are_zero_and_the_file_packs_smaller(cnn: Path, tmp_path: Path) -> None:
    import zlib

    made = sparsify_weights(cnn, tmp_path / "z.onnx", 0.5)
    zero = [
        float((numpy_helper.to_array(one) == 0).mean())
        for one in load_model(made).graph.initializer
        if len(one.dims) > 1
    ]
    assert zero == pytest.approx([0.5] * len(zero), abs=0.02)
    assert made.stat().st_size == cnn.stat().st_size
    assert len(zlib.compress(made.read_bytes())) < 0.65 * len(zlib.compress(cnn.read_bytes()))


def test_a_model_is_saved_without_what_differs_by_machine(cnn: Path, tmp_path: Path) -> None:
    model = load_model(cnn)
    model.graph.node[0].doc_string = "there"
    model.metadata_props.add(key="path", value="there")
    assert b"there" not in save_model(model, tmp_path / "m.onnx").read_bytes()
