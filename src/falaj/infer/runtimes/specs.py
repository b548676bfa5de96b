"""What a model takes and gives: as its file says it, held against its sheet."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from falaj.core.errors import Invalid, UserCodeFailed
from falaj.core.sheet import Sheet, TensorSpec

Specs = tuple[TensorSpec, ...]


def agreed(found: Specs, said: Specs, which: str) -> Specs:
    """The model's own, with sizes the sheet knows better; Invalid where the two say different things."""
    if not said:
        return found
    by_name = {one.name: one for one in said}
    if set(by_name) != {one.name for one in found}:
        raise Invalid(
            f"the {which} of falaj.json are {', '.join(sorted(by_name))[:200]}",
            f"those of the model are {', '.join(one.name for one in found)[:200]}",
        )
    return tuple(_met(one, by_name[one.name]) for one in found)


def meet(one: TensorSpec, other: TensorSpec) -> bool:
    """Whether a tensor can be both."""
    sizes = zip(one.shape, other.shape, strict=False)
    same = one.datatype == other.datatype and len(one.shape) == len(other.shape)
    return same and all(a == b or -1 in (a, b) for a, b in sizes)


def needed(sheet: Sheet, kind: str) -> tuple[Specs, Specs]:
    """Those of the sheet, for models whose files say nothing."""
    if not sheet.inputs or not sheet.outputs:
        raise Invalid(
            f"a {kind} model must say what it takes and gives",
            'in falaj.json: {"inputs": [{"name": "x", "datatype": "FP32", "shape": [-1, 32]}], "outputs": […]}',
        )
    return sheet.inputs, sheet.outputs


def batches(sheet: Sheet, *specs: Specs) -> bool:
    """Whether requests may be run together: every tensor's first dimension counts rows."""
    return sheet.batches and all(one.shape[:1] == (-1,) for each in specs for one in each)


def texts(given: Any, spec: TensorSpec) -> Any:
    """BYTES as an array of objects in its shape."""
    if isinstance(given, np.ndarray):
        return given
    made = np.empty(len(given), object)
    made[:] = given
    if len(spec.shape) <= 1:
        return made
    if spec.shape.count(-1) > 1:
        return made.reshape(len(made), *(1 if one == -1 else one for one in spec.shape[1:]))
    return made.reshape(spec.shape)


def given_back(found: Sequence[Any], specs: Specs, kind: str) -> list[Any]:
    """What a model of somebody's code gave, as it travels; UserCodeFailed when it is not what it says it gives."""
    if len(found) != len(specs):
        raise UserCodeFailed(f"the {kind} gave {len(found)} outputs", f"it says that it gives {len(specs)}")
    return [_checked(one, spec, kind) for one, spec in zip(found, specs, strict=True)]


def dtype(datatype: str) -> "np.dtype[Any]":
    """numpy's type of a datatype; BF16 travels as uint16."""
    return np.dtype(_TYPES[datatype])


_TYPES = {
    "BOOL": "?", "UINT8": "u1", "UINT16": "<u2", "UINT32": "<u4", "UINT64": "<u8", "INT8": "i1", "INT16": "<i2",
    "INT32": "<i4", "INT64": "<i8", "FP16": "<f2", "FP32": "<f4", "FP64": "<f8", "BF16": "<u2", "BYTES": "O",
}  # fmt: skip


def _met(one: TensorSpec, said: TensorSpec) -> TensorSpec:
    if not meet(one, said):
        raise Invalid(
            f"{one.name!r:.80} is {one.datatype} {list(one.shape)} in the model",
            f"falaj.json says {said.datatype} {list(said.shape)}",
        )
    shape = tuple(b if a == -1 else a for a, b in zip(one.shape, said.shape, strict=True))
    return TensorSpec(one.name, one.datatype, shape)


def _checked(one: Any, spec: TensorSpec, kind: str) -> Any:
    made = np.asarray(one)
    if spec.datatype == "BYTES":
        made = texts(one, spec) if not isinstance(one, np.ndarray) else one.astype(object)
    elif made.dtype != dtype(spec.datatype):
        raise UserCodeFailed(
            f"the {kind} gave {spec.name!r:.80} as {made.dtype}", f"it says that it gives {spec.datatype}"
        )
    fits = made.ndim == len(spec.shape) and all(b in (-1, a) for a, b in zip(made.shape, spec.shape, strict=True))
    if not fits:
        raise UserCodeFailed(
            f"the {kind} gave {spec.name!r:.80} in shape {list(made.shape)}", f"it says {list(spec.shape)}"
        )
    return np.asarray(made, order="C")
