"""What a model takes, as a form: one field for each value where there are few, JSON where there are many. Pure."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from falaj.core.errors import Invalid

MAX_FIELDS, MAX_VALUES = 12, 10_000
_OIP_TYPE_BY_NAME = {
    "float32": "FP32", "float64": "FP64", "float16": "FP16", "int64": "INT64", "int32": "INT32", "bool": "BOOL",
    "str": "BYTES", "object": "BYTES", "string": "BYTES", "double": "FP64", "float": "FP32", "long": "INT64",
    "integer": "INT32", "boolean": "BOOL",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class ModelInput:
    """One input of a model. -1 in a shape is any number; rows come first."""

    name: str
    datatype: str
    shape: tuple[int, ...]

    @property
    def row(self) -> tuple[int, ...]:
        """The shape of one request: one where any number may be."""
        return tuple(1 if size < 0 else size for size in self.shape) or (1,)

    @property
    def few(self) -> bool:
        """Whether every value has a field of its own."""
        return 0 < math.prod(self.row) <= MAX_FIELDS

    @property
    def kind(self) -> str:
        """The kind of its fields."""
        return "text" if self.datatype == "BYTES" else "checkbox" if self.datatype == "BOOL" else "number"

    @property
    def example(self) -> str:
        """One row of it, as JSON."""
        zero_value: Any = "" if self.datatype == "BYTES" else False if self.datatype == "BOOL" else 0
        return json.dumps(_reshape([zero_value] * min(math.prod(self.row), MAX_VALUES), self.row))


def parse_metadata_inputs(metadata: Mapping[str, Any]) -> tuple[ModelInput, ...]:
    """What a server says of its model (Open Inference Protocol)."""
    return tuple(
        ModelInput(str(input_metadata["name"]), str(input_metadata["datatype"]), tuple(input_metadata["shape"]))
        for input_metadata in metadata["inputs"]
    )


def parse_signature_inputs(signature: Mapping[str, Any]) -> tuple[ModelInput, ...]:
    """The same from a signature that was published with a model, as MLflow writes it; nothing where it says nothing."""
    raw_inputs = signature.get("inputs") or []
    try:
        input_list = json.loads(raw_inputs) if isinstance(raw_inputs, str) else raw_inputs
    except (ValueError, RecursionError):
        input_list = []
    inputs = []
    for position, input_spec in enumerate(input_list if isinstance(input_list, list) else []):
        if not isinstance(input_spec, Mapping):
            continue
        tensor_spec = input_spec.get("tensor-spec", input_spec)
        type_name = str(tensor_spec.get("dtype") or tensor_spec.get("type") or "float32")
        shape = tensor_spec.get("shape", [-1])
        if isinstance(shape, list) and all(isinstance(size, int) for size in shape):
            inputs.append(
                ModelInput(
                    str(input_spec.get("name") or f"input-{position}"),
                    _OIP_TYPE_BY_NAME.get(type_name, "FP32"),
                    tuple(shape),
                )
            )
    return tuple(inputs)


def parse_values(inputs: Sequence[ModelInput], form: Mapping[str, str]) -> dict[str, Any]:
    """What a person filled in, by the name of the input."""
    if "whole" in form:
        parsed = _parse_json("the inputs", form["whole"])
        if not isinstance(parsed, dict):
            raise Invalid("the inputs are no object", '{"x": [[0.1, 0.2]]}')
        return parsed
    value_by_name: dict[str, Any] = {}
    for position, model_input in enumerate(inputs):
        if model_input.few:
            flat = [
                _convert_value(model_input, form.get(f"in.{position}.{value_index}", ""))
                for value_index in range(math.prod(model_input.row))
            ]
            value_by_name[model_input.name] = _reshape(flat, model_input.row)
        else:
            value_by_name[model_input.name] = _parse_json(model_input.name, form.get(f"json.{position}", ""))
    return value_by_name


def _convert_value(model_input: ModelInput, input_text: str) -> Any:
    if model_input.datatype == "BYTES":
        return input_text
    if model_input.datatype == "BOOL":
        return input_text == "on"
    try:
        value = float(input_text) if model_input.datatype.startswith(("FP", "BF")) else int(input_text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise Invalid(f"{model_input.name[:80]} cannot be {input_text[:40]!r}", f"a number ({model_input.datatype})")
    return value


def _parse_json(name: str, input_text: str) -> Any:
    try:
        return json.loads(input_text, parse_constant=_reject_constant)
    except (ValueError, RecursionError):
        raise Invalid(f"{name[:80]} is no JSON", "lists in lists, for example [[0.1, 0.2]]") from None


def _reject_constant(constant: str) -> NoReturn:
    raise ValueError(constant)


def _reshape(flat: Sequence[Any], shape: Sequence[int]) -> Any:
    if len(shape) <= 1:
        return list(flat)
    step = len(flat) // shape[0] if shape[0] else 0
    return [_reshape(flat[index * step : (index + 1) * step], shape[1:]) for index in range(shape[0])]
