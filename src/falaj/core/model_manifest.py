"""The sheet of a model: what it takes and gives, and what runs it. `falaj.json` in a model's folder says it; where a
file says it itself (ONNX), the sheet may be left out.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Any

from falaj.core.data import dataclass
from falaj.core.errors import Invalid

MANIFEST_FILE = "falaj.json"
DATATYPES = (
    "BOOL", "UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64", "FP16", "FP32", "FP64", "BF16",
    "BYTES",
)  # fmt: skip
RUNTIMES = ("onnx", "torch", "export", "xgboost", "lightgbm", "tflite", "python", "ensemble")
"""torch: safetensors and the code that builds the module. export: a `torch.export` program. python: a function."""
MAX_TENSORS, MAX_DIMENSIONS, MAX_MANIFEST_BYTES = 256, 16, 1 << 20
_TENSOR_NAME_PATTERN = re.compile(r"[^\x00-\x1f\x7f]{1,200}")


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One input or output. -1 is a dimension of any size; the first one counts rows where the model takes batches."""

    name: str
    datatype: str
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class EnsembleStep:
    """One step of an ensemble: a model of the same server, or `features` (keys in, the model's inputs out)."""

    model: str
    inputs: Mapping[str, str] = field(default_factory=dict)
    """Its input to the tensor of the ensemble that feeds it."""
    outputs: Mapping[str, str] = field(default_factory=dict)
    """Its output to what the ensemble calls it."""


@dataclass(frozen=True, slots=True)
class ModelManifest:
    """What a model says of itself."""

    runtime: str = ""
    """One of RUNTIMES; told by the files when empty."""
    file: str = ""
    """The file that is loaded, below the model's folder; the only one of its kind when empty."""
    inputs: tuple[TensorSpec, ...] = ()
    outputs: tuple[TensorSpec, ...] = ()
    code: str = ""
    """`module:name` in the folder of the model's code: what builds the module (torch), or the function (python)."""
    batches: bool = True
    """Whether the first dimension counts rows, so that requests may be run together."""
    most_rows: int = 0
    """Rows of one run at most; 0: found by measuring."""
    stateful: bool = False
    """Whether requests of one sequence must be run in order, on one replica, with its state."""
    steps: tuple[EnsembleStep, ...] = ()
    parameters: Mapping[str, str] = field(default_factory=dict)


def read_manifest(data: bytes) -> ModelManifest:
    """The sheet in a file; Invalid, saying what is wrong with it, for anything else."""
    if len(data) > MAX_MANIFEST_BYTES:
        raise Invalid(f"{MANIFEST_FILE} has {len(data)} bytes", f"{MAX_MANIFEST_BYTES} at most")
    try:
        plain_manifest = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise Invalid(
            f"{MANIFEST_FILE} is not JSON: {str(error)[:200]}", "see docs/serve.md for what it holds"
        ) from error
    return parse_manifest(plain_manifest)


def parse_manifest(plain_manifest: Any) -> ModelManifest:
    """The same from plain values."""
    if not isinstance(plain_manifest, Mapping):
        raise Invalid(f"{MANIFEST_FILE} holds no sheet", 'for example {"runtime": "onnx"}')
    unknown = sorted(set(plain_manifest) - set(ModelManifest.__dataclass_fields__))
    if unknown:
        raise Invalid(
            f"{MANIFEST_FILE} has no {unknown[0][:60]!r}", f"it has: {', '.join(ModelManifest.__dataclass_fields__)}"
        )
    plain = dict(plain_manifest)
    for name in ("inputs", "outputs"):
        plain[name] = _parse_tensors(plain.get(name) or (), name)
    plain["steps"] = tuple(_parse_step(plain_step) for plain_step in _require_list(plain.get("steps") or (), "steps"))
    parameters = plain.get("parameters") or {}
    if not isinstance(parameters, Mapping):
        raise Invalid(f"parameters of {MANIFEST_FILE} are no names and values", "see docs/serve.md for what it holds")
    plain["parameters"] = {str(key): str(value) for key, value in parameters.items()}
    for name, expected_type in _SCALAR_TYPES.items():
        if type(plain.get(name, expected_type())) is not expected_type:
            raise Invalid(
                f"{name} of {MANIFEST_FILE} is no {_TYPE_DESCRIPTIONS[expected_type]}",
                "see docs/serve.md for what it holds",
            )
    manifest = ModelManifest(**plain)
    _check_manifest(manifest)
    return manifest


def encode_manifest(manifest: ModelManifest) -> bytes:
    """As it lies in its file."""
    plain: dict[str, Any] = {}
    for name in ModelManifest.__dataclass_fields__:
        value = getattr(manifest, name)
        if name in ("inputs", "outputs"):
            value = [{"name": item.name, "datatype": item.datatype, "shape": list(item.shape)} for item in value]
        elif name == "steps":
            value = [
                {"model": item.model, "inputs": dict(item.inputs), "outputs": dict(item.outputs)} for item in value
            ]
        plain[name] = value
    changed_fields = {
        name: value for name, value in plain.items() if value != getattr(_DEFAULT_MANIFEST, name) and value != []
    }
    return json.dumps(changed_fields, indent=1, sort_keys=True).encode()


_DEFAULT_MANIFEST = ModelManifest()
_SCALAR_TYPES: Mapping[str, type] = {
    "runtime": str, "file": str, "code": str, "most_rows": int, "batches": bool, "stateful": bool,
}  # fmt: skip
_TYPE_DESCRIPTIONS = {str: "text", int: "whole number", bool: "true or false"}


def _check_manifest(manifest: ModelManifest) -> None:
    if manifest.runtime and manifest.runtime not in RUNTIMES:
        raise Invalid(f"{manifest.runtime[:40]!r} is no runtime", f"one of {', '.join(RUNTIMES)}")
    if manifest.file.startswith("/") or ".." in manifest.file.split("/"):
        raise Invalid(
            f"the file {manifest.file[:100]!r} lies outside the model", "name a file below the model's folder"
        )
    if not 0 <= manifest.most_rows <= 1 << 20:
        raise Invalid(f"{manifest.most_rows} rows of one run", "from 0 (measure it) to a million")


def _parse_tensors(plain_tensors: Any, field_name: str) -> tuple[TensorSpec, ...]:
    tensors = tuple(_parse_tensor(tensor) for tensor in _require_list(plain_tensors, field_name))
    if len({tensor.name for tensor in tensors}) < len(tensors) or len(tensors) > MAX_TENSORS:
        raise Invalid(
            f"the {field_name} of {MANIFEST_FILE} are too many, or two have one name", f"{MAX_TENSORS} at most"
        )
    return tensors


def _parse_tensor(plain_tensor: Any) -> TensorSpec:
    try:
        name, datatype, shape = plain_tensor["name"], plain_tensor["datatype"], tuple(plain_tensor["shape"])
    except (KeyError, TypeError) as error:
        raise Invalid(
            f"a tensor of {MANIFEST_FILE} is not whole", 'name, datatype and shape: ["FP32", [-1, 32]]'
        ) from error
    if not isinstance(name, str) or not _TENSOR_NAME_PATTERN.fullmatch(name) or datatype not in DATATYPES:
        raise Invalid(f"a tensor {str(name)[:60]!r} of {str(datatype)[:20]}", f"one of {', '.join(DATATYPES)}")
    if len(shape) > MAX_DIMENSIONS or not all(type(size) is int and -1 <= size < 1 << 31 for size in shape):
        raise Invalid(f"the shape of {name[:60]!r} is no shape", "whole numbers; -1 for any size")
    return TensorSpec(name, datatype, shape)


def _parse_step(plain_step: Any) -> EnsembleStep:
    try:
        pairs = [
            {str(k): str(v) for k, v in dict(plain_step.get(name) or {}).items()} for name in ("inputs", "outputs")
        ]
        return EnsembleStep(str(plain_step["model"]), *pairs)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise Invalid(f"a step of {MANIFEST_FILE} is not whole", "model, inputs and outputs by name") from error


def _require_list(value: Any, field_name: str) -> Sequence[Any]:
    if not isinstance(value, (list, tuple)):
        raise Invalid(f"{field_name} of {MANIFEST_FILE} is no list", "write [ … ]")
    return value
