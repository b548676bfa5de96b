"""Torch modules: built by the model's own code, asked with arrays, exported to ONNX."""

import importlib
import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from falaj.core.errors import Invalid
from falaj.core.model_manifest import ModelManifest, TensorSpec
from falaj.optimize.onnx_files import save_model
from falaj.optimize.untrusted_code import wrap_user_errors

ModuleBuilder = Callable[..., Any]


def set_deterministic(threads: int) -> None:
    """Torch computes the same every time, with so many threads."""
    try:
        import torch
    except ImportError as error:
        raise Invalid("torch is not installed", "pip install 'falaj[optimize]'") from error
    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(mode=True, warn_only=True)


def load_builder(folder: str, code: str) -> ModuleBuilder:
    """`module:name` in a folder of code."""
    name, _, member = code.partition(":")
    if not folder or not Path(folder).is_dir():
        raise Invalid("the code of the model is not here", "name its folder or version: --code ./src")
    if not name or not member:
        raise Invalid(f"{code[:100]!r} names no builder", "module:name, for example net:build")
    if folder not in sys.path:
        sys.path.insert(0, folder)
    loaded_file = getattr(sys.modules.get(name), "__file__", None)
    if loaded_file and Path(folder).resolve() not in Path(loaded_file).resolve().parents:
        del sys.modules[name]  # of another folder, and the same name
    with wrap_user_errors(f"importing {name}", "its code must run where it is optimised"):
        builder: ModuleBuilder = getattr(importlib.import_module(name), member)
    return builder


def can_build_narrower(builder: ModuleBuilder, parameters: Mapping[str, str]) -> bool:
    """Whether it can build a narrower one of its kind."""
    names = inspect.signature(builder).parameters
    return "width" in names or (len(names) == 1 and "width" in parameters)


def build_module(builder: ModuleBuilder, parameters: Mapping[str, str], width: float = 1.0) -> Any:
    """The module, ready to answer. A builder takes nothing, or `width`, or the sheet's parameters as one mapping."""
    import torch

    names = inspect.signature(builder).parameters
    with wrap_user_errors("building the model", "its code must build it without arguments"):
        if "width" in names:
            module = builder(width=width)
        elif len(names) == 1:
            width_params = {"width": str(float(parameters["width"]) * width)} if "width" in parameters else {}
            module = builder({**parameters, **width_params})
        else:
            module = builder()
    if not isinstance(module, torch.nn.Module):
        raise Invalid(f"the code of the model builds a {type(module).__name__}", "it must build a torch.nn.Module")
    return module.eval()


def to_array_function(module: Any) -> Callable[[Sequence[NDArray[Any]]], list[NDArray[Any]]]:
    """A module as something that is asked with arrays."""
    import torch

    def run_module(arrays: Sequence[NDArray[Any]]) -> list[NDArray[Any]]:
        with torch.inference_mode(), wrap_user_errors("the model's own code"):
            return [tensor.numpy() for tensor in flatten_tensors(module(*map(torch.from_numpy, arrays)))]

    return run_module


def flatten_tensors(outputs: Any) -> list[Any]:
    """What a module gives, flat and in order."""
    if isinstance(outputs, dict):
        outputs = list(outputs.values())
    return (
        [tensor for part in outputs for tensor in flatten_tensors(part)]
        if isinstance(outputs, (list, tuple))
        else [outputs]
    )


def export_to_onnx(module: Any, manifest: ModelManifest, example: Sequence[NDArray[Any]], file: Path) -> Path:
    """Write a module as ONNX. Dimensions that the sheet leaves open stay open."""
    import torch

    count, shapes = torch.export.Dim("batch"), []
    for item in manifest.inputs:
        dims = {
            dimension: torch.export.Dim(f"{item.name}_{dimension}")
            for dimension, side in enumerate(item.shape)
            if side < 0 and dimension
        }
        shapes.append({**({0: count} if item.shape[:1] == (-1,) else {}), **dims})
    names = {
        "input_names": [item.name for item in manifest.inputs],
        "output_names": [item.name for item in manifest.outputs],
    }
    inputs = tuple(torch.from_numpy(np.ascontiguousarray(item)) for item in example)
    with wrap_user_errors("the export to ONNX", "can torch.export trace the model?"):
        exported: Any = torch.onnx.export(
            module.eval(), inputs, dynamo=True, verbose=False, dynamic_shapes=tuple(shapes),
            **{key: value or None for key, value in names.items()},  # type: ignore[arg-type]
        )  # fmt: skip
    return save_model(exported.model_proto, file)


def trace_module(module: Any, example: Sequence[NDArray[Any]]) -> Any:
    """The module's operations as torch.export sees them."""
    import torch

    with wrap_user_errors("tracing the model"):
        return torch.export.export(module.eval(), tuple(map(torch.from_numpy, example)))


def require_inputs(manifest: ModelManifest) -> tuple[TensorSpec, ...]:
    """What the sheet says a module takes."""
    if not manifest.inputs:
        hint = 'inputs in falaj.json: [{"name": "x", "datatype": "FP32", "shape": [-1, 32]}]'
        raise Invalid("the model does not say what it takes", hint)
    return manifest.inputs
