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
from falaj.core.model_manifest import ModelManifest, TensorSpec
from falaj.infer.records import Arrays, ModelConfig, ModelRuntime
from falaj.infer.runtimes import isolated_runtime
from falaj.infer.runtimes.model_code import (
    UserCodeGuard,
    describe_error,
    guard_user_code,
    import_callable,
    prepare_code_folder,
)
from falaj.infer.runtimes.model_files import ModelFiles
from falaj.infer.runtimes.safetensors_weights import read_tensors
from falaj.infer.runtimes.tensor_specs import (
    TensorSpecs,
    can_batch,
    check_outputs,
    reconcile_specs,
    require_manifest_specs,
)

DATATYPE_BY_TORCH_TYPE = {
    torch.bool: "BOOL", torch.uint8: "UINT8", torch.uint16: "UINT16", torch.uint32: "UINT32", torch.uint64: "UINT64",
    torch.int8: "INT8", torch.int16: "INT16", torch.int32: "INT32", torch.int64: "INT64", torch.float16: "FP16",
    torch.float32: "FP32", torch.float64: "FP64", torch.bfloat16: "BF16",
}  # fmt: skip


class ModuleRuntime:
    """A module that is called as it is."""

    isolated = False
    parallel = False

    def __init__(
        self, module: Any, specs: tuple[TensorSpecs, TensorSpecs], manifest: ModelManifest, device: str
    ) -> None:
        self._module, self._device = module, torch.device(device)
        self.inputs, self.outputs = specs
        self.batches = can_batch(manifest, *specs)
        self.platform = "pytorch_export" if manifest.runtime == "export" else "pytorch_safetensors"
        self.size_bytes = _module_bytes(module)

    def run(self, inputs: Arrays, parameters: Mapping[str, Any]) -> Arrays:
        """All outputs for one batch."""
        with torch.inference_mode():
            with UserCodeGuard(module_error):
                tensors = [
                    to_tensor(item, spec).to(self._device) for item, spec in zip(inputs, self.inputs, strict=True)
                ]
                outputs = order_outputs(self._module(*tensors), self.outputs)
            return check_outputs([to_array(item) for item in outputs], self.outputs, "module")

    def close(self) -> None:
        """Let go of the module."""
        self._module = None


def open_runtime(config: ModelConfig, manifest: ModelManifest, files: ModelFiles) -> ModelRuntime:
    """The module on its device, ready to be asked."""
    is_export = (manifest.runtime or ("torch" if manifest.code else "export")) == "export"
    # Loading a program unpickles what it holds and evaluates its shapes: it is somebody's code, and is kept apart.
    if (is_export or manifest.parameters.get("process") == "own") and not isolated_runtime.is_inside:
        return isolated_runtime.IsolatedRuntime(config, manifest)
    device = config.device or "cpu"
    if device.partition(":")[0] not in ("cpu", "cuda"):
        raise Invalid(f"torch cannot run on {device[:40]}", "cpu, cuda or cuda:1")
    if device != "cpu" and not torch.cuda.is_available():
        raise Invalid(f"there is no {device[:40]} on this machine", "torch finds no device: say cpu, or move it")
    if device == "cpu" and config.threads:
        torch.set_num_threads(config.threads)
    module, specs = (
        _load_exported(manifest, files, device) if is_export else _build_module(config, manifest, files, device)
    )
    if any(spec.datatype == "BYTES" for tensor_specs in specs for spec in tensor_specs):
        raise Invalid("a torch model takes and gives numbers, no BYTES", "put a python step before it")
    if device != "cpu":
        from falaj.infer.runtimes.cuda_graphs import capture_module, has_fixed_shapes

        graphs = (
            capture_module(module, specs, manifest, device)
            if can_batch(manifest, *specs) and has_fixed_shapes(specs)
            else None
        )
        if graphs is not None:
            return graphs
    return ModuleRuntime(module, specs, manifest, device)


def to_tensor(array_value: Any, spec: TensorSpec) -> torch.Tensor:
    """An array as a tensor of its own: what came from the wire must not be written to."""
    tensor_value = torch.from_numpy(np.array(array_value))
    return tensor_value.view(torch.bfloat16) if spec.datatype == "BF16" else tensor_value


def to_array(output: Any) -> Any:
    """A tensor as it travels."""
    if not isinstance(output, torch.Tensor):
        raise UserCodeFailed(
            f"the module gave {type(output).__name__}", "it must give tensors, in the order of its outputs"
        )
    output = output.detach().cpu()
    return (output.view(torch.uint16) if output.dtype == torch.bfloat16 else output).numpy()


def order_outputs(module_output: Any, outputs: TensorSpecs) -> Sequence[Any]:
    """What a module gave: one tensor, several in order, or a dict by name."""
    if isinstance(module_output, Mapping):
        missing = [spec.name for spec in outputs if spec.name not in module_output]
        if missing:
            raise UserCodeFailed(
                f"the module gave no {missing[0]!r:.80}", f"it gave {', '.join(map(str, module_output))[:200]}"
            )
        return [module_output[spec.name] for spec in outputs]
    return list(module_output) if isinstance(module_output, (tuple, list)) else [module_output]


def module_error(error: BaseException) -> FalajError:
    """An error of a module. After one of the device's own nothing more can be run in this process."""
    if "CUDA error" in str(error):
        return Unavailable(f"the device gave up: {describe_error(error)}", "the replica must be started again")
    return UserCodeFailed(
        f"the module did not run: {describe_error(error)}", "look at the shapes and values of the inputs"
    )


def _build_module(
    config: ModelConfig, manifest: ModelManifest, files: ModelFiles, device: str
) -> tuple[Any, tuple[TensorSpecs, TensorSpecs]]:
    specs = require_manifest_specs(manifest, "torch")
    weights = read_tensors(files.read(files.only(manifest.file, ".safetensors")))
    with tempfile.TemporaryDirectory(prefix="falaj-code-") as private:
        build = import_callable(manifest.code, prepare_code_folder(config, Path(private)))
        with guard_user_code(f"{manifest.code[:100]} did not take its weights", "run it"):
            module = build(dict(manifest.parameters)) if _takes_one_argument(build) else build()
            if not isinstance(module, nn.Module):
                raise Invalid(f"{manifest.code[:100]} gave {type(module).__name__}", "it must give a torch.nn.Module")
            module.load_state_dict(weights, strict=True, assign=True)
            return module.to(device).eval().requires_grad_(False), specs


def _takes_one_argument(build: Any) -> bool:
    try:
        required = [
            parameter
            for parameter in inspect.signature(build).parameters.values()
            if parameter.default is parameter.empty
        ]
        return len(required) == 1 and required[0].kind <= inspect.Parameter.POSITIONAL_OR_KEYWORD
    except (TypeError, ValueError):
        return False


def _load_exported(
    manifest: ModelManifest, files: ModelFiles, device: str
) -> tuple[Any, tuple[TensorSpecs, TensorSpecs]]:
    name = files.only(manifest.file, ".pt2")
    data = io.BytesIO(files.read(name))
    with UserCodeGuard(
        lambda error: Invalid(f"torch does not take {name[:100]}: {describe_error(error)}", "export it with this torch")
    ):
        program: Any = torch.export.load(data)
        if device != "cpu":
            from torch.export.passes import move_to_device_pass

            program = move_to_device_pass(program, device)
    specs = (
        _program_specs(program, manifest.inputs, "user_inputs"),
        _program_specs(program, manifest.outputs, "user_outputs"),
    )
    return program.module(), specs


def _program_specs(program: Any, manifest_specs: TensorSpecs, signature_part: str) -> TensorSpecs:
    """As the program says them. Outputs in a dict have its names; else the sheet's stand, or those of the graph."""
    values = {node.name: node.meta.get("val") for node in program.graph.nodes}
    nodes = getattr(program.graph_signature, signature_part)
    out_spec = program.call_spec.out_spec if signature_part == "user_outputs" else None
    names = [item.name for item in manifest_specs]
    if out_spec is not None and out_spec.type is dict and len(out_spec.context) == len(nodes):
        names = list(out_spec.context)
    specs = []
    for node, name in zip(nodes, names if len(names) == len(nodes) else nodes, strict=True):
        value = values.get(node)
        if not isinstance(value, torch.Tensor) or value.dtype not in DATATYPE_BY_TORCH_TYPE:
            raise Invalid(f"{str(name)[:80]!r} of the program is no tensor", "export a module of tensors")
        shape = tuple(item if type(item) is int else -1 for item in value.shape)
        specs.append(TensorSpec(str(name), DATATYPE_BY_TORCH_TYPE[value.dtype], shape))
    return reconcile_specs(tuple(specs), manifest_specs, signature_part.removeprefix("user_"))


def _module_bytes(module: Any) -> int:
    tensors = [*module.parameters(), *module.buffers()]
    return sum(item.numel() * item.element_size() for item in tensors)
