"""Numbers of 16 bits. They are faster only where the chip computes with them; elsewhere each is widened first."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from falaj.core.model_manifest import ModelManifest
from falaj.optimize.onnx_files import load_model, save_model
from falaj.optimize.torch_modules import export_to_onnx, flatten_tensors
from falaj.optimize.untrusted_code import wrap_user_errors


def convert_to_fp16(file: Path, out: Path) -> Path:
    """Weights and sums in fp16; what goes in and comes out stays as it is."""
    with wrap_user_errors("converting to fp16"):
        from onnxruntime.transformers.float16 import convert_float_to_float16

        converted: Any = convert_float_to_float16(load_model(file), keep_io_types=True)
    return save_model(converted, out)


def convert_to_bf16(module: Any, manifest: ModelManifest, example: Sequence[NDArray[Any]], out: Path) -> Path:
    """The same in bf16, which keeps the range of fp32; made from the module, since ONNX has no converter."""
    import copy

    import torch

    class Bfloat16Wrapper(torch.nn.Module):
        """The model inside, floats outside."""

        def __init__(self) -> None:
            super().__init__()
            self.inner = copy.deepcopy(module).to(torch.bfloat16)

        def forward(self, *inputs: Any) -> Any:
            """Floats in, floats out."""
            halved_inputs = [tensor.to(torch.bfloat16) if tensor.is_floating_point() else tensor for tensor in inputs]
            return tuple(
                tensor.float() if tensor.is_floating_point() else tensor
                for tensor in flatten_tensors(self.inner(*halved_inputs))
            )

    return export_to_onnx(Bfloat16Wrapper(), manifest, example, out)
