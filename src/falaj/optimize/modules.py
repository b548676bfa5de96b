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
from falaj.core.sheet import Sheet, TensorSpec
from falaj.optimize.graphs import save
from falaj.optimize.strangers import guarded

Builder = Callable[..., Any]


def settle(threads: int) -> None:
    """Torch computes the same every time, with so many threads."""
    try:
        import torch
    except ImportError as error:
        raise Invalid("torch is not installed", "pip install 'falaj[optimize]'") from error
    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(mode=True, warn_only=True)


def builder_of(folder: str, code: str) -> Builder:
    """`module:name` in a folder of code."""
    name, _, member = code.partition(":")
    if not folder or not Path(folder).is_dir():
        raise Invalid("the code of the model is not here", "name its folder or version: --code ./src")
    if not name or not member:
        raise Invalid(f"{code[:100]!r} names no builder", "module:name, for example net:build")
    if folder not in sys.path:
        sys.path.insert(0, folder)
    known = getattr(sys.modules.get(name), "__file__", None)
    if known and Path(folder).resolve() not in Path(known).resolve().parents:
        del sys.modules[name]  # of another folder, and the same name
    with guarded(f"importing {name}", "its code must run where it is optimised"):
        found: Builder = getattr(importlib.import_module(name), member)
    return found


def narrows(builder: Builder, parameters: Mapping[str, str]) -> bool:
    """Whether it can build a narrower one of its kind."""
    names = inspect.signature(builder).parameters
    return "width" in names or (len(names) == 1 and "width" in parameters)


def built(builder: Builder, parameters: Mapping[str, str], width: float = 1.0) -> Any:
    """The module, ready to answer. A builder takes nothing, or `width`, or the sheet's parameters as one mapping."""
    import torch

    names = inspect.signature(builder).parameters
    with guarded("building the model", "its code must build it without arguments"):
        if "width" in names:
            module = builder(width=width)
        elif len(names) == 1:
            wide = {"width": str(float(parameters["width"]) * width)} if "width" in parameters else {}
            module = builder({**parameters, **wide})
        else:
            module = builder()
    if not isinstance(module, torch.nn.Module):
        raise Invalid(f"the code of the model builds a {type(module).__name__}", "it must build a torch.nn.Module")
    return module.eval()


def answers(module: Any) -> Callable[[Sequence[NDArray[Any]]], list[NDArray[Any]]]:
    """A module as something that is asked with arrays."""
    import torch

    def ask(arrays: Sequence[NDArray[Any]]) -> list[NDArray[Any]]:
        with torch.inference_mode(), guarded("the model's own code"):
            return [one.numpy() for one in tensors(module(*map(torch.from_numpy, arrays)))]

    return ask


def tensors(found: Any) -> list[Any]:
    """What a module gives, flat and in order."""
    if isinstance(found, dict):
        found = list(found.values())
    return [one for part in found for one in tensors(part)] if isinstance(found, (list, tuple)) else [found]


def export(module: Any, sheet: Sheet, example: Sequence[NDArray[Any]], file: Path) -> Path:
    """Write a module as ONNX. Dimensions that the sheet leaves open stay open."""
    import torch

    count, shapes = torch.export.Dim("batch"), []
    for one in sheet.inputs:
        dims = {at: torch.export.Dim(f"{one.name}_{at}") for at, side in enumerate(one.shape) if side < 0 and at}
        shapes.append({**({0: count} if one.shape[:1] == (-1,) else {}), **dims})
    names = {"input_names": [one.name for one in sheet.inputs], "output_names": [one.name for one in sheet.outputs]}
    inputs = tuple(torch.from_numpy(np.ascontiguousarray(one)) for one in example)
    with guarded("the export to ONNX", "can torch.export trace the model?"):
        made: Any = torch.onnx.export(
            module.eval(), inputs, dynamo=True, verbose=False, dynamic_shapes=tuple(shapes),
            **{key: value or None for key, value in names.items()},  # type: ignore[arg-type]
        )  # fmt: skip
    return save(made.model_proto, file)


def traced(module: Any, example: Sequence[NDArray[Any]]) -> Any:
    """The module's operations as torch.export sees them."""
    import torch

    with guarded("tracing the model"):
        return torch.export.export(module.eval(), tuple(map(torch.from_numpy, example)))


def needs_inputs(sheet: Sheet) -> tuple[TensorSpec, ...]:
    """What the sheet says a module takes."""
    if not sheet.inputs:
        hint = 'inputs in falaj.json: [{"name": "x", "datatype": "FP32", "shape": [-1, 32]}]'
        raise Invalid("the model does not say what it takes", hint)
    return sheet.inputs
