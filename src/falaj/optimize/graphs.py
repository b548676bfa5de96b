"""ONNX files: opened as sessions, read and written whole, with what they take and give."""

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from falaj.core.errors import Invalid
from falaj.core.sheet import TensorSpec
from falaj.oip.tensors import NUMPY
from falaj.optimize.strangers import guarded

Arrays = Sequence[NDArray[Any]]
MOST_BYTES = 2_000_000_000
_KINDS = {
    "bool": "BOOL", "uint8": "UINT8", "uint16": "UINT16", "uint32": "UINT32", "uint64": "UINT64", "int8": "INT8",
    "int16": "INT16", "int32": "INT32", "int64": "INT64", "float16": "FP16", "float": "FP32", "double": "FP64",
    "bfloat16": "BF16", "string": "BYTES",
}  # fmt: skip


class Session:
    """A model that can be asked: arrays in, arrays out, in the order of its inputs and outputs."""

    def __init__(self, file: Path, *, threads: int = 1, aim: str = "cpu") -> None:
        import onnxruntime as ort

        options = ort.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        options.log_severity_level = 3
        with guarded(f"loading {file.name}", "is it an ONNX model that this ONNX Runtime knows?"):
            self._session = ort.InferenceSession(str(file), options, providers=[provider(aim)])
        self.inputs = tuple(_spec(one) for one in self._session.get_inputs())
        self.outputs = tuple(_spec(one) for one in self._session.get_outputs())
        self._names = [one.name for one in self.inputs]

    def run(self, arrays: Arrays) -> list[NDArray[Any]]:
        """All outputs."""
        return list(self._session.run(None, dict(zip(self._names, arrays, strict=True))))


def provider(aim: str) -> str:
    """Who runs it; never another one in its stead."""
    import onnxruntime as ort

    wanted = "CUDAExecutionProvider" if aim == "cuda" else "CPUExecutionProvider"
    if wanted not in ort.get_available_providers():
        raise Invalid(f"this ONNX Runtime has no {wanted}", "pip install onnxruntime-gpu where there is a GPU")
    return wanted


def load(file: Path) -> Any:
    """The model with all its data, checked to be one."""
    import onnx

    if file.stat().st_size > MOST_BYTES:
        raise Invalid(f"{file.name} has {file.stat().st_size} bytes", "models of 2 GB at most are optimised")
    with guarded(f"reading {file.name}", "export it again"):
        return onnx.load(file)


def save(model: Any, file: Path) -> Path:
    """Write a model in one file, without what its maker noted of source files and shapes: that only differs by machine,
    and the shapes clash with what quantisation makes of transposed weights."""
    graph = model.graph
    del graph.value_info[:]
    for one in (model, graph, *graph.node, *graph.input, *graph.output, *graph.initializer, *model.functions):
        if hasattr(one, "metadata_props"):
            del one.metadata_props[:]
        if one.doc_string:
            one.doc_string = ""
    with guarded(f"writing {file.name}"):
        file.write_bytes(model.SerializeToString(deterministic=True))
    return file


def sha256(file: Path) -> str:
    """Of the bytes of a file."""
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def vocabularies(model: Any) -> Mapping[str, int]:
    """How many rows the table has that an input of whole numbers looks up."""
    sizes = {one.name: one.dims[0] for one in model.graph.initializer if one.dims}
    alias = {one.output[0]: one.input[0] for one in model.graph.node if one.op_type in ("Cast", "Identity")}
    found: dict[str, int] = {}
    for one in model.graph.node:
        if one.op_type == "Gather" and one.input[0] in sizes:
            name = alias.get(one.input[1], one.input[1])
            found[name] = min(sizes[one.input[0]], found.get(name, 1 << 62))
    return found


def made_up(specs: Sequence[TensorSpec], rows: int, seed: int, words: Mapping[str, int]) -> list[NDArray[Any]]:
    """Seeded inputs: normal floats; whole numbers below the size of the table they look up, else 0 or 1."""
    draw = np.random.default_rng(seed)
    made = []
    for one in specs:
        if one.datatype not in NUMPY:
            raise Invalid(f"the input {one.name!r} is of {one.datatype}", "models of numbers are optimised")
        shape = (rows, *(8 if side < 0 else side for side in one.shape[1:]))
        kind = np.dtype(NUMPY[one.datatype])
        values = draw.standard_normal(shape) if kind.kind == "f" else draw.integers(0, words.get(one.name, 2), shape)
        made.append(values.astype(kind))
    return made


def _spec(one: Any) -> TensorSpec:
    kind = one.type.removeprefix("tensor(").removesuffix(")")
    if kind not in _KINDS:
        raise Invalid(f"{one.name!r} of the model is a {one.type}", "models whose inputs and outputs are tensors")
    return TensorSpec(one.name, _KINDS[kind], tuple(side if isinstance(side, int) else -1 for side in one.shape))
