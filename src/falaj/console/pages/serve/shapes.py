"""What a model takes, as a form: one field for each value where there are few, JSON where there are many. Pure."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from falaj.core.errors import Invalid

FEW, MOST_ROWS = 12, 10_000
_NUMPY = {
    "float32": "FP32", "float64": "FP64", "float16": "FP16", "int64": "INT64", "int32": "INT32", "bool": "BOOL",
    "str": "BYTES", "object": "BYTES", "string": "BYTES", "double": "FP64", "float": "FP32", "long": "INT64",
    "integer": "INT32", "boolean": "BOOL",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Input:
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
        return 0 < math.prod(self.row) <= FEW

    @property
    def kind(self) -> str:
        """The kind of its fields."""
        return "text" if self.datatype == "BYTES" else "checkbox" if self.datatype == "BOOL" else "number"

    @property
    def example(self) -> str:
        """One row of it, as JSON."""
        zero: Any = "" if self.datatype == "BYTES" else False if self.datatype == "BOOL" else 0
        return json.dumps(_laid([zero] * min(math.prod(self.row), MOST_ROWS), self.row))


def inputs_of(metadata: Mapping[str, Any]) -> tuple[Input, ...]:
    """What a server says of its model (Open Inference Protocol)."""
    return tuple(Input(str(one["name"]), str(one["datatype"]), tuple(one["shape"])) for one in metadata["inputs"])


def inputs_in(signature: Mapping[str, Any]) -> tuple[Input, ...]:
    """The same from a signature that was published with a model, as MLflow writes it; nothing where it says nothing."""
    said = signature.get("inputs") or []
    try:
        listed = json.loads(said) if isinstance(said, str) else said
    except (ValueError, RecursionError):
        listed = []
    made = []
    for at, one in enumerate(listed if isinstance(listed, list) else []):
        if not isinstance(one, Mapping):
            continue
        spec = one.get("tensor-spec", one)
        kind = str(spec.get("dtype") or spec.get("type") or "float32")
        shape = spec.get("shape", [-1])
        if isinstance(shape, list) and all(isinstance(size, int) for size in shape):
            made.append(Input(str(one.get("name") or f"input-{at}"), _NUMPY.get(kind, "FP32"), tuple(shape)))
    return tuple(made)


def values_of(inputs: Sequence[Input], form: Mapping[str, str]) -> dict[str, Any]:
    """What a person filled in, by the name of the input."""
    if "whole" in form:
        found = _json("the inputs", form["whole"])
        if not isinstance(found, dict):
            raise Invalid("the inputs are no object", '{"x": [[0.1, 0.2]]}')
        return found
    made: dict[str, Any] = {}
    for at, one in enumerate(inputs):
        if one.few:
            flat = [_typed(one, form.get(f"in.{at}.{n}", "")) for n in range(math.prod(one.row))]
            made[one.name] = _laid(flat, one.row)
        else:
            made[one.name] = _json(one.name, form.get(f"json.{at}", ""))
    return made


def _typed(one: Input, said: str) -> Any:
    if one.datatype == "BYTES":
        return said
    if one.datatype == "BOOL":
        return said == "on"
    try:
        value = float(said) if one.datatype.startswith(("FP", "BF")) else int(said)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise Invalid(f"{one.name[:80]} cannot be {said[:40]!r}", f"a number ({one.datatype})")
    return value


def _json(name: str, said: str) -> Any:
    try:
        return json.loads(said, parse_constant=_refused)
    except (ValueError, RecursionError):
        raise Invalid(f"{name[:80]} is no JSON", "lists in lists, for example [[0.1, 0.2]]") from None


def _refused(word: str) -> NoReturn:
    raise ValueError(word)


def _laid(flat: Sequence[Any], shape: Sequence[int]) -> Any:
    if len(shape) <= 1:
        return list(flat)
    step = len(flat) // shape[0] if shape[0] else 0
    return [_laid(flat[at * step : (at + 1) * step], shape[1:]) for at in range(shape[0])]
