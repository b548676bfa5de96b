"""What a model takes and gives: as its file says it, held against its sheet."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from falaj.core.errors import Invalid, UserCodeFailed
from falaj.core.model_manifest import ModelManifest, TensorSpec

TensorSpecs = tuple[TensorSpec, ...]


def reconcile_specs(model_specs: TensorSpecs, manifest_specs: TensorSpecs, direction: str) -> TensorSpecs:
    """The model's own, with sizes the sheet knows better; Invalid where the two say different things."""
    if not manifest_specs:
        return model_specs
    by_name = {spec.name: spec for spec in manifest_specs}
    if set(by_name) != {spec.name for spec in model_specs}:
        raise Invalid(
            f"the {direction} of falaj.json are {', '.join(sorted(by_name))[:200]}",
            f"those of the model are {', '.join(spec.name for spec in model_specs)[:200]}",
        )
    return tuple(_reconcile_spec(spec, by_name[spec.name]) for spec in model_specs)


def are_compatible(spec: TensorSpec, other: TensorSpec) -> bool:
    """Whether a tensor can be both."""
    sizes = zip(spec.shape, other.shape, strict=False)
    has_same_type = spec.datatype == other.datatype and len(spec.shape) == len(other.shape)
    return has_same_type and all(a == b or -1 in (a, b) for a, b in sizes)


def require_manifest_specs(manifest: ModelManifest, runtime_kind: str) -> tuple[TensorSpecs, TensorSpecs]:
    """Those of the sheet, for models whose files say nothing."""
    if not manifest.inputs or not manifest.outputs:
        raise Invalid(
            f"a {runtime_kind} model must say what it takes and gives",
            'in falaj.json: {"inputs": [{"name": "x", "datatype": "FP32", "shape": [-1, 32]}], "outputs": […]}',
        )
    return manifest.inputs, manifest.outputs


def can_batch(manifest: ModelManifest, *specs: TensorSpecs) -> bool:
    """Whether requests may be run together: every tensor's first dimension counts rows."""
    return manifest.batches and all(spec.shape[:1] == (-1,) for tensor_specs in specs for spec in tensor_specs)


def to_object_array(value: Any, spec: TensorSpec) -> Any:
    """BYTES as an array of objects in its shape."""
    if isinstance(value, np.ndarray):
        return value
    array = np.empty(len(value), object)
    array[:] = value
    if len(spec.shape) <= 1:
        return array
    if spec.shape.count(-1) > 1:
        return array.reshape(len(array), *(1 if dimension == -1 else dimension for dimension in spec.shape[1:]))
    return array.reshape(spec.shape)


def check_outputs(outputs: Sequence[Any], specs: TensorSpecs, source_kind: str) -> list[Any]:
    """What a model of somebody's code gave, as it travels; UserCodeFailed when it is not what it says it gives."""
    if len(outputs) != len(specs):
        raise UserCodeFailed(f"the {source_kind} gave {len(outputs)} outputs", f"it says that it gives {len(specs)}")
    return [_check_output(output, spec, source_kind) for output, spec in zip(outputs, specs, strict=True)]


def numpy_type(datatype: str) -> "np.dtype[Any]":
    """numpy's type of a datatype; BF16 travels as uint16."""
    return np.dtype(_NUMPY_TYPES[datatype])


_NUMPY_TYPES = {
    "BOOL": "?", "UINT8": "u1", "UINT16": "<u2", "UINT32": "<u4", "UINT64": "<u8", "INT8": "i1", "INT16": "<i2",
    "INT32": "<i4", "INT64": "<i8", "FP16": "<f2", "FP32": "<f4", "FP64": "<f8", "BF16": "<u2", "BYTES": "O",
}  # fmt: skip


def _reconcile_spec(model_spec: TensorSpec, manifest_spec: TensorSpec) -> TensorSpec:
    if not are_compatible(model_spec, manifest_spec):
        raise Invalid(
            f"{model_spec.name!r:.80} is {model_spec.datatype} {list(model_spec.shape)} in the model",
            f"falaj.json says {manifest_spec.datatype} {list(manifest_spec.shape)}",
        )
    shape = tuple(b if a == -1 else a for a, b in zip(model_spec.shape, manifest_spec.shape, strict=True))
    return TensorSpec(model_spec.name, model_spec.datatype, shape)


def _check_output(output: Any, spec: TensorSpec, source_kind: str) -> Any:
    array = np.asarray(output)
    if spec.datatype == "BYTES":
        array = to_object_array(output, spec) if not isinstance(output, np.ndarray) else output.astype(object)
    elif array.dtype != numpy_type(spec.datatype):
        raise UserCodeFailed(
            f"the {source_kind} gave {spec.name!r:.80} as {array.dtype}", f"it says that it gives {spec.datatype}"
        )
    has_shape = array.ndim == len(spec.shape) and all(
        b in (-1, a) for a, b in zip(array.shape, spec.shape, strict=True)
    )
    if not has_shape:
        raise UserCodeFailed(
            f"the {source_kind} gave {spec.name!r:.80} in shape {list(array.shape)}", f"it says {list(spec.shape)}"
        )
    return np.asarray(array, order="C")
