"""A moving average of the weights, which often does better than the weights themselves."""

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from falaj.train.gradient_step import local_part
from falaj.train.parallel_plans import strip_wrapper_names


class ExponentialMovingAverage:
    """Of the parameters of one module, in 32 bits at least; buffers are taken as they are."""

    def __init__(self, module: nn.Module, decay: float) -> None:
        self.module, self._decay = module, decay
        self._live_params = {strip_wrapper_names(name): param for name, param in module.named_parameters()}
        self.shadow = {name: _upcast_tensor(param.detach()).clone() for name, param in self._live_params.items()}

    @torch.no_grad()
    def update(self) -> None:
        """Come a little nearer to the weights."""
        shadows = [local_part(shadow_tensor) for shadow_tensor in self.shadow.values()]
        live_tensors = [_upcast_tensor(local_part(param.detach())) for param in self._live_params.values()]
        torch._foreach_lerp_(shadows, live_tensors, 1 - self._decay)

    @contextlib.contextmanager
    def used(self) -> Iterator[None]:
        """Within, the module has the averages for weights: to evaluate or save it."""
        saved = {name: param.detach().clone() for name, param in self._live_params.items()}
        self._copy_into_module(self.shadow)
        try:
            yield
        finally:
            self._copy_into_module(saved)

    def state_dict(self) -> dict[str, Any]:
        """The averages themselves, live."""
        return dict(self.shadow)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take them back."""
        for name, tensor in self.shadow.items():
            if state[name] is not tensor:
                tensor.copy_(state[name])

    @torch.no_grad()
    def _copy_into_module(self, tensors: dict[str, torch.Tensor]) -> None:
        for name, param in self._live_params.items():
            param.copy_(tensors[name])


def _upcast_tensor(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.float() if tensor.dtype in (torch.bfloat16, torch.float16) else tensor
