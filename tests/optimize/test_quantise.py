"""8 bits: what they change, what they keep, and the 7 bits of CPUs without VNNI."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from falaj.core.errors import Invalid
from falaj.optimize.fuse import fuse, fuse_transformer
from falaj.optimize.graphs import Session, load, made_up, save, vocabularies
from falaj.optimize.half import fp16
from falaj.optimize.parity import worst
from falaj.optimize.prune import sparse_weights
from falaj.optimize.quantise import int8_dynamic, int8_static
from tests.infer import models


@pytest.fixture(scope="module")
def cnn(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return models.cnn(tmp_path_factory.mktemp("cnn")) / "model.onnx"


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return models.encoder(tmp_path_factory.mktemp("encoder"), layers=1, width=32, words=64) / "model.onnx"


def _weights(file: Path) -> list[np.ndarray]:  # type: ignore[type-arg]
    made = [numpy_helper.to_array(one) for one in load(file).graph.initializer]
    return [one for one in made if one.dtype == np.int8 and one.ndim > 1]


def _apart(file: Path, other: Path) -> float:
    one, two = Session(file), Session(other)
    given = made_up(one.inputs, 32, 5, vocabularies(load(file)))
    return worst(one.run(given), two.run(given)).error


@pytest.mark.parametrize("narrow", [True, False])
def test_dynamic(encoder: Path, tmp_path: Path, narrow: bool) -> None:
    made = int8_dynamic(encoder, tmp_path / "q.onnx", narrow=narrow)
    assert made.stat().st_size < 0.5 * encoder.stat().st_size
    assert max(np.abs(one.astype(int)).max() for one in _weights(made)) in ((64, 63) if narrow else (127, 128))
    assert 0 < _apart(encoder, made) < 0.5
    assert sorted(one.name for one in tmp_path.iterdir()) == ["q.onnx"]


@pytest.mark.parametrize("narrow", [True, False])
def test_static(cnn: Path, tmp_path: Path, narrow: bool) -> None:
    rows = made_up(Session(cnn).inputs, 64, 2, {})
    made = int8_static(cnn, tmp_path / "q.onnx", rows, narrow=narrow)
    assert made.stat().st_size < 0.4 * cnn.stat().st_size
    assert max(np.abs(one.astype(int)).max() for one in _weights(made)) in ((64, 63) if narrow else (127, 128))
    assert 0 < _apart(cnn, made) < 0.5


def test_dynamic_leaves_convolutions_in_floats(cnn: Path, tmp_path: Path) -> None:
    made = load(int8_dynamic(cnn, tmp_path / "q.onnx", narrow=True))
    kinds = {one.op_type for one in made.graph.node}
    assert "Conv" in kinds
    assert "ConvInteger" not in kinds
    assert "MatMulInteger" in kinds or "DynamicQuantizeMatMul" in kinds


def test_shapes_that_the_exporter_noted_do_not_stop_it(cnn: Path, tmp_path: Path) -> None:
    """The trap of torch's exporter: a noted shape clashes with the transposed weight of a Gemm."""
    model = onnx.shape_inference.infer_shapes(load(cnn))
    model.graph.value_info.append(onnx.helper.make_tensor_value_info(model.graph.node[-1].input[1], 1, [360, 10]))
    model.graph.node[0].doc_string = "somewhere.py"
    (tmp_path / "noted.onnx").write_bytes(model.SerializeToString())
    made = int8_dynamic(tmp_path / "noted.onnx", tmp_path / "q.onnx", narrow=False)
    assert _apart(cnn, made) < 0.5
    assert not load(made).graph.value_info


def test_the_same_file_makes_the_same_bytes(cnn: Path, encoder: Path, tmp_path: Path) -> None:
    for nth in (1, 2):
        int8_dynamic(encoder, tmp_path / f"d{nth}", narrow=True)
        int8_static(cnn, tmp_path / f"s{nth}", made_up(Session(cnn).inputs, 32, 2, {}), narrow=True)
        fuse(encoder, tmp_path / f"f{nth}")
        sparse_weights(cnn, tmp_path / f"z{nth}", 0.5)
    for kind in "dsfz":
        assert (tmp_path / f"{kind}1").read_bytes() == (tmp_path / f"{kind}2").read_bytes()


def test_fused_models_answer_the_same_with_fewer_operations(encoder: Path, cnn: Path, tmp_path: Path) -> None:
    made = fuse(encoder, tmp_path / "f.onnx")
    assert len(load(made).graph.node) < len(load(encoder).graph.node)
    assert _apart(encoder, made) < 1e-3
    with pytest.raises(Invalid, match="no transformer"):
        fuse_transformer(cnn, tmp_path / "t.onnx")


def test_fp16_halves_the_file_and_keeps_its_ends(cnn: Path, tmp_path: Path) -> None:
    made = fp16(cnn, tmp_path / "h.onnx")
    assert made.stat().st_size < 0.55 * cnn.stat().st_size
    assert Session(made).inputs == Session(cnn).inputs
    assert 0 < _apart(cnn, made) < 0.02


def test_half_of_the_weights_are_zero_and_the_file_packs_smaller(cnn: Path, tmp_path: Path) -> None:
    import zlib

    made = sparse_weights(cnn, tmp_path / "z.onnx", 0.5)
    zero = [
        float((numpy_helper.to_array(one) == 0).mean()) for one in load(made).graph.initializer if len(one.dims) > 1
    ]
    assert zero == pytest.approx([0.5] * len(zero), abs=0.02)
    assert made.stat().st_size == cnn.stat().st_size
    assert len(zlib.compress(made.read_bytes())) < 0.65 * len(zlib.compress(cnn.read_bytes()))


def test_a_model_is_saved_without_what_differs_by_machine(cnn: Path, tmp_path: Path) -> None:
    model = load(cnn)
    model.graph.node[0].doc_string = "there"
    model.metadata_props.add(key="path", value="there")
    assert b"there" not in save(model, tmp_path / "m.onnx").read_bytes()
