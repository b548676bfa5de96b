"""Small models for the tests, always the same: an MLP, an encoder, a CNN, and one that gives back what it is given."""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

KINDS: Mapping[str, int] = {
    "BOOL": TensorProto.BOOL, "UINT8": TensorProto.UINT8, "UINT16": TensorProto.UINT16, "UINT32": TensorProto.UINT32,
    "UINT64": TensorProto.UINT64, "INT8": TensorProto.INT8, "INT16": TensorProto.INT16, "INT32": TensorProto.INT32,
    "INT64": TensorProto.INT64, "FP16": TensorProto.FLOAT16, "FP32": TensorProto.FLOAT, "FP64": TensorProto.DOUBLE,
    "BF16": TensorProto.BFLOAT16, "BYTES": TensorProto.STRING,
}  # fmt: skip
ECHOED = ("FP32", "INT64", "BOOL", "BYTES")


def mlp(folder: Path, *, seed: int = 7, wide: int = 64) -> Path:
    """32 -> 64 -> 1: input `x` FP32 [-1, 32], output `y` FP32 [-1, 1]. Another seed is another model."""
    kit = _Kit(seed)
    hidden = kit.add("Relu", kit.add("Gemm", "x", kit.weight(32, wide), kit.weight(wide)))
    kit.add("Gemm", hidden, kit.weight(wide, 1), kit.weight(1), out="y")
    return kit.save(folder, [("x", "FP32", ("batch", 32))], [("y", "FP32", ("batch", 1))])


def mlp_of(x: NDArray[np.float32], *, seed: int = 7, wide: int = 64) -> NDArray[np.float32]:
    """What `mlp` answers, by numpy."""
    kit = _Kit(seed)
    first, first_bias, second, second_bias = (
        kit.values(*shape) for shape in ((32, wide), (wide,), (wide, 1), (1,))
    )  # in the order in which mlp draws them
    return np.asarray(np.maximum(x @ first + first_bias, 0) @ second + second_bias, np.float32)


def encoder(folder: Path, *, layers: int = 6, width: int = 256, heads: int = 4, words: int = 1024) -> Path:
    """Five million parameters as it stands: input `tokens` INT64 [-1, 32], output `logits` FP32 [-1, 8]."""
    kit = _Kit(11)
    flow = kit.add("Gather", kit.weight(words, width, scale=1.0), "tokens")
    flow = kit.add("Add", flow, kit.weight(32, width))
    for _ in range(layers):
        flow = _attention(kit, flow, width, heads)
        inner = kit.add("Gelu", _dense(kit, _norm(kit, flow, width), width, 4 * width))
        flow = kit.add("Add", flow, _dense(kit, inner, 4 * width, width))
    pooled = kit.add("ReduceMean", _norm(kit, flow, width), kit.whole(1), keepdims=0)
    kit.add("Gemm", pooled, kit.weight(width, 8), kit.weight(8), out="logits")
    return kit.save(folder, [("tokens", "INT64", ("batch", 32))], [("logits", "FP32", ("batch", 8))])


def cnn(folder: Path) -> Path:
    """Digits: input `image` FP32 [-1, 1, 8, 8], output `logits` FP32 [-1, 10]; 0.39 million parameters."""
    kit = _Kit(13)
    flow = kit.add("Relu", kit.add("Conv", "image", kit.weight(32, 1, 3, 3), kit.weight(32), pads=[1, 1, 1, 1]))
    flow = kit.add("Relu", kit.add("Conv", flow, kit.weight(64, 32, 3, 3), kit.weight(64), pads=[1, 1, 1, 1]))
    flow = kit.add("Flatten", kit.add("MaxPool", flow, kernel_shape=[2, 2], strides=[2, 2]))
    flow = kit.add("Relu", kit.add("Gemm", flow, kit.weight(1024, 360), kit.weight(360)))
    kit.add("Gemm", flow, kit.weight(360, 10), kit.weight(10), out="logits")
    return kit.save(folder, [("image", "FP32", ("batch", 1, 8, 8))], [("logits", "FP32", ("batch", 10))])


def echo(folder: Path, datatypes: Sequence[str] = ECHOED) -> Path:
    """Inputs `in_fp32`, `in_int64`, … of shape [-1, -1], given back as `out_fp32`, `out_int64`, …"""
    kit = _Kit(0)
    for one in datatypes:
        kit.add("Identity", f"in_{one.lower()}", out=f"out_{one.lower()}")
    ends = [[(f"{end}_{one.lower()}", one, ("batch", f"n_{one}")) for one in datatypes] for end in ("in", "out")]
    return kit.save(folder, *ends)


def same(folder: Path, inputs: Mapping[str, tuple[str, tuple[int, ...]]]) -> Path:
    """Inputs by name, of a datatype and shape, given back as `<name>_out`: what a model was given can be looked at."""
    kit = _Kit(0)
    for name in inputs:
        kit.add("Identity", name, out=f"{name}_out")
    shapes = {
        name: tuple(f"{name}_{at}" if size < 0 else size for at, size in enumerate(one[1]))
        for name, one in inputs.items()
    }
    ends = [[(f"{name}{end}", inputs[name][0], shapes[name]) for name in inputs] for end in ("", "_out")]
    return kit.save(folder, *ends)


def digests(folder: Path) -> dict[str, str]:
    """SHA-256 by path, as a version's files are approved."""
    files = sorted(one for one in folder.rglob("*") if one.is_file())
    return {str(one.relative_to(folder)): hashlib.sha256(one.read_bytes()).hexdigest() for one in files}


class _Kit:
    """A graph while it is put together."""

    def __init__(self, seed: int) -> None:
        self._random = np.random.default_rng(seed)
        self._nodes: list[onnx.NodeProto] = []
        self._weights: list[TensorProto] = []

    def values(self, *shape: int, scale: float = 0.0) -> NDArray[np.float32]:
        spread = scale or 1 / np.sqrt(max(shape[0], 1) if len(shape) > 1 else 16)
        return (self._random.standard_normal(shape) * spread).astype(np.float32)

    def weight(self, *shape: int, scale: float = 0.0) -> str:
        return self._keep(self.values(*shape, scale=scale))

    def ones(self, size: int) -> str:
        return self._keep(np.ones(size, np.float32))

    def whole(self, *values: int) -> str:
        return self._keep(np.array(values, np.int64))

    def scalar(self, value: float) -> str:
        return self._keep(np.array(value, np.float32))

    def add(self, kind: str, *inputs: str, out: str = "", **attributes: object) -> str:
        out = out or f"t{len(self._nodes)}"
        self._nodes.append(helper.make_node(kind, inputs, [out], **attributes))
        return out

    def save(self, folder: Path, inputs: "_Ends", outputs: "_Ends") -> Path:
        graph = helper.make_graph(self._nodes, "test", list(_infos(inputs)), list(_infos(outputs)), self._weights)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "model.onnx").write_bytes(model.SerializeToString())
        return folder

    def _keep(self, values: NDArray[np.generic]) -> str:
        name = f"w{len(self._weights)}"
        self._weights.append(numpy_helper.from_array(values, name))
        return name


_Ends = Sequence[tuple[str, str, tuple[str | int, ...]]]


def _infos(ends: _Ends) -> Iterator[onnx.ValueInfoProto]:
    for name, datatype, shape in ends:
        yield helper.make_tensor_value_info(name, KINDS[datatype], shape)


def _dense(kit: _Kit, flow: str, rows: int, columns: int) -> str:
    return kit.add("Add", kit.add("MatMul", flow, kit.weight(rows, columns)), kit.weight(columns))


def _norm(kit: _Kit, flow: str, width: int) -> str:
    return kit.add("LayerNormalization", flow, kit.ones(width), kit.weight(width, scale=0.01))


def _attention(kit: _Kit, flow: str, width: int, heads: int) -> str:
    normed, each = _norm(kit, flow, width), width // heads
    shape = kit.whole(0, 32, heads, each)
    asked, known, held = (kit.add("Reshape", _dense(kit, normed, width, width), shape) for _ in range(3))
    asked, held = (kit.add("Transpose", one, perm=[0, 2, 1, 3]) for one in (asked, held))
    known = kit.add("Transpose", known, perm=[0, 2, 3, 1])
    scores = kit.add("Mul", kit.add("MatMul", asked, known), kit.scalar(each**-0.5))
    mixed = kit.add("MatMul", kit.add("Softmax", scores, axis=-1), held)
    mixed = kit.add("Reshape", kit.add("Transpose", mixed, perm=[0, 2, 1, 3]), kit.whole(0, 32, width))
    return kit.add("Add", flow, _dense(kit, mixed, width, width))
