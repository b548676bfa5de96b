"""ONNX files: opened as sessions, read and written whole, with what they take and give."""

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from falaj.core.errors import Invalid
from falaj.core.model_manifest import TensorSpec
from falaj.oip.tensors import NUMPY_TYPES
from falaj.optimize.untrusted_code import wrap_user_errors

ArrayList = Sequence[NDArray[Any]]
MAX_MODEL_BYTES = 2_000_000_000
_DATATYPES = {
    "bool": "BOOL", "uint8": "UINT8", "uint16": "UINT16", "uint32": "UINT32", "uint64": "UINT64", "int8": "INT8",
    "int16": "INT16", "int32": "INT32", "int64": "INT64", "float16": "FP16", "float": "FP32", "double": "FP64",
    "bfloat16": "BF16", "string": "BYTES",
}  # fmt: skip


class OnnxSession:
    """A model that can be asked: arrays in, arrays out, in the order of its inputs and outputs."""

    def __init__(self, file: Path, *, threads: int = 1, aim: str = "cpu") -> None:
        import onnxruntime as ort

        options = ort.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        options.log_severity_level = 3
        with wrap_user_errors(f"loading {file.name}", "is it an ONNX model that this ONNX Runtime knows?"):
            self._session = ort.InferenceSession(str(file), options, providers=[find_provider(aim)])
        self.inputs = tuple(_to_tensor_spec(tensor) for tensor in self._session.get_inputs())
        self.outputs = tuple(_to_tensor_spec(tensor) for tensor in self._session.get_outputs())
        self._names = [tensor.name for tensor in self.inputs]

    def run(self, arrays: ArrayList) -> list[NDArray[Any]]:
        """All outputs."""
        return list(self._session.run(None, dict(zip(self._names, arrays, strict=True))))


def find_provider(aim: str) -> str:
    """Who runs it; never another one in its stead."""
    import onnxruntime as ort

    provider_name = "CUDAExecutionProvider" if aim == "cuda" else "CPUExecutionProvider"
    if provider_name not in ort.get_available_providers():
        raise Invalid(f"this ONNX Runtime has no {provider_name}", "pip install onnxruntime-gpu where there is a GPU")
    return provider_name


def load_model(file: Path) -> Any:
    """The model with all its data, checked to be one."""
    import onnx

    if file.stat().st_size > MAX_MODEL_BYTES:
        raise Invalid(f"{file.name} has {file.stat().st_size} bytes", "models of 2 GB at most are optimised")
    with wrap_user_errors(f"reading {file.name}", "export it again"):
        return onnx.load(file)


def save_model(model: Any, file: Path) -> Path:
    """Write a model in one file, without what its maker noted of source files and shapes: that only differs by machine,
    and the shapes clash with what quantisation makes of transposed weights."""
    graph = model.graph
    del graph.value_info[:]
    for part in (model, graph, *graph.node, *graph.input, *graph.output, *graph.initializer, *model.functions):
        if hasattr(part, "metadata_props"):
            del part.metadata_props[:]
        if part.doc_string:
            part.doc_string = ""
    with wrap_user_errors(f"writing {file.name}"):
        file.write_bytes(model.SerializeToString(deterministic=True))
    return file


def hash_file(file: Path) -> str:
    """Of the bytes of a file."""
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def find_vocabulary_sizes(model: Any) -> Mapping[str, int]:
    """How many rows the table has that an input of whole numbers looks up."""
    sizes = {item.name: item.dims[0] for item in model.graph.initializer if item.dims}
    aliases = {item.output[0]: item.input[0] for item in model.graph.node if item.op_type in ("Cast", "Identity")}
    sizes_by_input: dict[str, int] = {}
    for item in model.graph.node:
        if item.op_type == "Gather" and item.input[0] in sizes:
            name = aliases.get(item.input[1], item.input[1])
            sizes_by_input[name] = min(sizes[item.input[0]], sizes_by_input.get(name, 1 << 62))
    return sizes_by_input


def make_inputs(
    specs: Sequence[TensorSpec], rows: int, seed: int, vocabulary_sizes: Mapping[str, int]
) -> list[NDArray[Any]]:
    """Seeded inputs: normal floats; whole numbers below the size of the table they look up, else 0 or 1."""
    generator = np.random.default_rng(seed)
    arrays = []
    for spec in specs:
        if spec.datatype not in NUMPY_TYPES:
            raise Invalid(f"the input {spec.name!r} is of {spec.datatype}", "models of numbers are optimised")
        shape = (rows, *(8 if side < 0 else side for side in spec.shape[1:]))
        dtype = np.dtype(NUMPY_TYPES[spec.datatype])
        values = (
            generator.standard_normal(shape)
            if dtype.kind == "f"
            else generator.integers(0, vocabulary_sizes.get(spec.name, 2), shape)
        )
        arrays.append(values.astype(dtype))
    return arrays


def _to_tensor_spec(tensor: Any) -> TensorSpec:
    kind = tensor.type.removeprefix("tensor(").removesuffix(")")
    if kind not in _DATATYPES:
        raise Invalid(f"{tensor.name!r} of the model is a {tensor.type}", "models whose inputs and outputs are tensors")
    return TensorSpec(
        tensor.name, _DATATYPES[kind], tuple(side if isinstance(side, int) else -1 for side in tensor.shape)
    )
