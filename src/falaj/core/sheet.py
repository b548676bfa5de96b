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

FILE = "falaj.json"
DATATYPES = (
    "BOOL", "UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64", "FP16", "FP32", "FP64", "BF16",
    "BYTES",
)  # fmt: skip
RUNTIMES = ("onnx", "torch", "export", "xgboost", "lightgbm", "tflite", "python", "ensemble")
"""torch: safetensors and the code that builds the module. export: a `torch.export` program. python: a function."""
MOST_TENSORS, MOST_DIMENSIONS, MOST_BYTES = 256, 16, 1 << 20
_NAME = re.compile(r"[^\x00-\x1f\x7f]{1,200}")


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One input or output. -1 is a dimension of any size; the first one counts rows where the model takes batches."""

    name: str
    datatype: str
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Step:
    """One step of an ensemble: a model of the same server, or `features` (keys in, the model's inputs out)."""

    model: str
    inputs: Mapping[str, str] = field(default_factory=dict)
    """Its input to the tensor of the ensemble that feeds it."""
    outputs: Mapping[str, str] = field(default_factory=dict)
    """Its output to what the ensemble calls it."""


@dataclass(frozen=True, slots=True)
class Sheet:
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
    steps: tuple[Step, ...] = ()
    parameters: Mapping[str, str] = field(default_factory=dict)


def read_sheet(data: bytes) -> Sheet:
    """The sheet in a file; Invalid, saying what is wrong with it, for anything else."""
    if len(data) > MOST_BYTES:
        raise Invalid(f"{FILE} has {len(data)} bytes", f"{MOST_BYTES} at most")
    try:
        found = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise Invalid(f"{FILE} is not JSON: {str(error)[:200]}", "see docs/serve.md for what it holds") from error
    return sheet_of(found)


def sheet_of(found: Any) -> Sheet:
    """The same from plain values."""
    if not isinstance(found, Mapping):
        raise Invalid(f"{FILE} holds no sheet", 'for example {"runtime": "onnx"}')
    unknown = sorted(set(found) - set(Sheet.__dataclass_fields__))
    if unknown:
        raise Invalid(f"{FILE} has no {unknown[0][:60]!r}", f"it has: {', '.join(Sheet.__dataclass_fields__)}")
    plain = dict(found)
    for name in ("inputs", "outputs"):
        plain[name] = _tensors(plain.get(name) or (), name)
    plain["steps"] = tuple(_step(one) for one in _list(plain.get("steps") or (), "steps"))
    parameters = plain.get("parameters") or {}
    if not isinstance(parameters, Mapping):
        raise Invalid(f"parameters of {FILE} are no names and values", "see docs/serve.md for what it holds")
    plain["parameters"] = {str(key): str(value) for key, value in parameters.items()}
    for name, kind in _KINDS.items():
        if type(plain.get(name, kind())) is not kind:
            raise Invalid(f"{name} of {FILE} is no {_SAID[kind]}", "see docs/serve.md for what it holds")
    sheet = Sheet(**plain)
    _check(sheet)
    return sheet


def to_json(sheet: Sheet) -> bytes:
    """As it lies in its file."""
    plain: dict[str, Any] = {}
    for name in Sheet.__dataclass_fields__:
        value = getattr(sheet, name)
        if name in ("inputs", "outputs"):
            value = [{"name": one.name, "datatype": one.datatype, "shape": list(one.shape)} for one in value]
        elif name == "steps":
            value = [{"model": one.model, "inputs": dict(one.inputs), "outputs": dict(one.outputs)} for one in value]
        plain[name] = value
    kept = {name: value for name, value in plain.items() if value != getattr(_BARE, name) and value != []}
    return json.dumps(kept, indent=1, sort_keys=True).encode()


_BARE = Sheet()
_KINDS: Mapping[str, type] = {
    "runtime": str, "file": str, "code": str, "most_rows": int, "batches": bool, "stateful": bool,
}  # fmt: skip
_SAID = {str: "text", int: "whole number", bool: "true or false"}


def _check(sheet: Sheet) -> None:
    if sheet.runtime and sheet.runtime not in RUNTIMES:
        raise Invalid(f"{sheet.runtime[:40]!r} is no runtime", f"one of {', '.join(RUNTIMES)}")
    if sheet.file.startswith("/") or ".." in sheet.file.split("/"):
        raise Invalid(f"the file {sheet.file[:100]!r} lies outside the model", "name a file below the model's folder")
    if not 0 <= sheet.most_rows <= 1 << 20:
        raise Invalid(f"{sheet.most_rows} rows of one run", "from 0 (measure it) to a million")


def _tensors(found: Any, which: str) -> tuple[TensorSpec, ...]:
    made = tuple(_tensor(one) for one in _list(found, which))
    if len({one.name for one in made}) < len(made) or len(made) > MOST_TENSORS:
        raise Invalid(f"the {which} of {FILE} are too many, or two have one name", f"{MOST_TENSORS} at most")
    return made


def _tensor(found: Any) -> TensorSpec:
    try:
        name, datatype, shape = found["name"], found["datatype"], tuple(found["shape"])
    except (KeyError, TypeError) as error:
        raise Invalid(f"a tensor of {FILE} is not whole", 'name, datatype and shape: ["FP32", [-1, 32]]') from error
    if not isinstance(name, str) or not _NAME.fullmatch(name) or datatype not in DATATYPES:
        raise Invalid(f"a tensor {str(name)[:60]!r} of {str(datatype)[:20]}", f"one of {', '.join(DATATYPES)}")
    if len(shape) > MOST_DIMENSIONS or not all(type(one) is int and -1 <= one < 1 << 31 for one in shape):
        raise Invalid(f"the shape of {name[:60]!r} is no shape", "whole numbers; -1 for any size")
    return TensorSpec(name, datatype, shape)


def _step(found: Any) -> Step:
    try:
        pairs = [{str(k): str(v) for k, v in dict(found.get(name) or {}).items()} for name in ("inputs", "outputs")]
        return Step(str(found["model"]), *pairs)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise Invalid(f"a step of {FILE} is not whole", "model, inputs and outputs by name") from error


def _list(found: Any, which: str) -> Sequence[Any]:
    if not isinstance(found, (list, tuple)):
        raise Invalid(f"{which} of {FILE} is no list", "write [ … ]")
    return found
