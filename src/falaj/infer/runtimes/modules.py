"""torch: a module built by the model's code with its safetensors in it, or a `torch.export` program.

The code runs in this process: a replica is an attempt, which is the sandbox of its owner's code, and a cage would cost
two copies of every tensor. `"process": "own"` in the sheet's parameters puts it into a cage all the same.
"""

import inspect
import io
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from falaj.core.errors import FalajError, Invalid, Unavailable, UserCodeFailed
from falaj.core.sheet import Sheet, TensorSpec
from falaj.infer.records import Arrays, ModelConfig, Runtime
from falaj.infer.runtimes import cage
from falaj.infer.runtimes.code import Blame, code_folder, failed, imported, said
from falaj.infer.runtimes.specs import Specs, agreed, batches, given_back, needed
from falaj.infer.runtimes.verify import Files
from falaj.infer.runtimes.weights import read

TYPES = {
    torch.bool: "BOOL", torch.uint8: "UINT8", torch.uint16: "UINT16", torch.uint32: "UINT32", torch.uint64: "UINT64",
    torch.int8: "INT8", torch.int16: "INT16", torch.int32: "INT32", torch.int64: "INT64", torch.float16: "FP16",
    torch.float32: "FP32", torch.float64: "FP64", torch.bfloat16: "BF16",
}  # fmt: skip


class ModuleRuntime:
    """A module that is called as it is."""

    isolated = False
    parallel = False

    def __init__(self, module: Any, specs: tuple[Specs, Specs], sheet: Sheet, device: str) -> None:
        self._module, self._device = module, torch.device(device)
        self.inputs, self.outputs = specs
        self.batches = batches(sheet, *specs)
        self.platform = "pytorch_export" if sheet.runtime == "export" else "pytorch_safetensors"
        self.size_bytes = _size(module)

    def run(self, inputs: Arrays, parameters: Mapping[str, Any]) -> Arrays:
        """All outputs for one batch."""
        with torch.inference_mode():
            with Blame(broken):
                tensors = [tensor(one, spec).to(self._device) for one, spec in zip(inputs, self.inputs, strict=True)]
                found = in_order(self._module(*tensors), self.outputs)
            return given_back([array(one) for one in found], self.outputs, "module")

    def close(self) -> None:
        """Let go of the module."""
        self._module = None


def opened(config: ModelConfig, sheet: Sheet, files: Files) -> Runtime:
    """The module on its device, ready to be asked."""
    export = (sheet.runtime or ("torch" if sheet.code else "export")) == "export"
    # Loading a program unpickles what it holds and evaluates its shapes: it is somebody's code, and is kept apart.
    if (export or sheet.parameters.get("process") == "own") and not cage.inside:
        return cage.Cage(config, sheet)
    device = config.device or "cpu"
    if device.partition(":")[0] not in ("cpu", "cuda"):
        raise Invalid(f"torch cannot run on {device[:40]}", "cpu, cuda or cuda:1")
    if device != "cpu" and not torch.cuda.is_available():
        raise Invalid(f"there is no {device[:40]} on this machine", "torch finds no device: say cpu, or move it")
    if device == "cpu" and config.threads:
        torch.set_num_threads(config.threads)
    module, specs = _exported(sheet, files, device) if export else _built(config, sheet, files, device)
    if any(one.datatype == "BYTES" for each in specs for one in each):
        raise Invalid("a torch model takes and gives numbers, no BYTES", "put a python step before it")
    if device != "cpu":
        from falaj.infer.runtimes.cuda import captured, fixed

        graphs = captured(module, specs, sheet, device) if batches(sheet, *specs) and fixed(specs) else None
        if graphs is not None:
            return graphs
    return ModuleRuntime(module, specs, sheet, device)


def tensor(given: Any, spec: TensorSpec) -> torch.Tensor:
    """An array as a tensor of its own: what came from the wire must not be written to."""
    made = torch.from_numpy(np.array(given))
    return made.view(torch.bfloat16) if spec.datatype == "BF16" else made


def array(made: Any) -> Any:
    """A tensor as it travels."""
    if not isinstance(made, torch.Tensor):
        raise UserCodeFailed(
            f"the module gave {type(made).__name__}", "it must give tensors, in the order of its outputs"
        )
    made = made.detach().cpu()
    return (made.view(torch.uint16) if made.dtype == torch.bfloat16 else made).numpy()


def in_order(found: Any, outputs: Specs) -> Sequence[Any]:
    """What a module gave: one tensor, several in order, or a dict by name."""
    if isinstance(found, Mapping):
        lost = [one.name for one in outputs if one.name not in found]
        if lost:
            raise UserCodeFailed(f"the module gave no {lost[0]!r:.80}", f"it gave {', '.join(map(str, found))[:200]}")
        return [found[one.name] for one in outputs]
    return list(found) if isinstance(found, (tuple, list)) else [found]


def broken(error: BaseException) -> FalajError:
    """An error of a module. After one of the device's own nothing more can be run in this process."""
    if "CUDA error" in str(error):
        return Unavailable(f"the device gave up: {said(error)}", "the replica must be started again")
    return UserCodeFailed(f"the module did not run: {said(error)}", "look at the shapes and values of the inputs")


def _built(config: ModelConfig, sheet: Sheet, files: Files, device: str) -> tuple[Any, tuple[Specs, Specs]]:
    specs = needed(sheet, "torch")
    weights = read(files.read(files.only(sheet.file, ".safetensors")))
    with tempfile.TemporaryDirectory(prefix="falaj-code-") as private:
        build = imported(sheet.code, code_folder(config, Path(private)))
        with failed(f"{sheet.code[:100]} did not take its weights", "run it"):
            module = build(dict(sheet.parameters)) if _takes_one(build) else build()
            if not isinstance(module, nn.Module):
                raise Invalid(f"{sheet.code[:100]} gave {type(module).__name__}", "it must give a torch.nn.Module")
            module.load_state_dict(weights, strict=True, assign=True)
            return module.to(device).eval().requires_grad_(False), specs


def _takes_one(build: Any) -> bool:
    try:
        asked = [one for one in inspect.signature(build).parameters.values() if one.default is one.empty]
        return len(asked) == 1 and asked[0].kind <= inspect.Parameter.POSITIONAL_OR_KEYWORD
    except (TypeError, ValueError):
        return False


def _exported(sheet: Sheet, files: Files, device: str) -> tuple[Any, tuple[Specs, Specs]]:
    name = files.only(sheet.file, ".pt2")
    data = io.BytesIO(files.read(name))
    with Blame(lambda error: Invalid(f"torch does not take {name[:100]}: {said(error)}", "export it with this torch")):
        program: Any = torch.export.load(data)
        if device != "cpu":
            from torch.export.passes import move_to_device_pass

            program = move_to_device_pass(program, device)
    specs = _specs(program, sheet.inputs, "user_inputs"), _specs(program, sheet.outputs, "user_outputs")
    return program.module(), specs


def _specs(program: Any, named: Specs, which: str) -> Specs:
    """As the program says them. Outputs in a dict have its names; else the sheet's stand, or those of the graph."""
    values = {node.name: node.meta.get("val") for node in program.graph.nodes}
    nodes = getattr(program.graph_signature, which)
    given = program.call_spec.out_spec if which == "user_outputs" else None
    names = [one.name for one in named]
    if given is not None and given.type is dict and len(given.context) == len(nodes):
        names = list(given.context)
    found = []
    for node, name in zip(nodes, names if len(names) == len(nodes) else nodes, strict=True):
        value = values.get(node)
        if not isinstance(value, torch.Tensor) or value.dtype not in TYPES:
            raise Invalid(f"{str(name)[:80]!r} of the program is no tensor", "export a module of tensors")
        shape = tuple(one if type(one) is int else -1 for one in value.shape)
        found.append(TensorSpec(str(name), TYPES[value.dtype], shape))
    return agreed(tuple(found), named, which.removeprefix("user_"))


def _size(module: Any) -> int:
    held = [*module.parameters(), *module.buffers()]
    return sum(one.numel() * one.element_size() for one in held)
