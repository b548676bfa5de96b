"""Numbers of 16 bits. They are faster only where the chip computes with them; elsewhere each is widened first."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from falaj.core.sheet import Sheet
from falaj.optimize.graphs import load, save
from falaj.optimize.modules import export, tensors
from falaj.optimize.strangers import guarded


def fp16(file: Path, out: Path) -> Path:
    """Weights and sums in fp16; what goes in and comes out stays as it is."""
    with guarded("converting to fp16"):
        from onnxruntime.transformers.float16 import convert_float_to_float16

        made: Any = convert_float_to_float16(load(file), keep_io_types=True)
    return save(made, out)


def bf16(module: Any, sheet: Sheet, example: Sequence[NDArray[Any]], out: Path) -> Path:
    """The same in bf16, which keeps the range of fp32; made from the module, since ONNX has no converter."""
    import copy

    import torch

    class Halved(torch.nn.Module):
        """The model inside, floats outside."""

        def __init__(self) -> None:
            super().__init__()
            self.inner = copy.deepcopy(module).to(torch.bfloat16)

        def forward(self, *inputs: Any) -> Any:
            """Floats in, floats out."""
            given = [one.to(torch.bfloat16) if one.is_floating_point() else one for one in inputs]
            return tuple(one.float() if one.is_floating_point() else one for one in tensors(self.inner(*given)))

    return export(Halved(), sheet, example, out)
