"""A moving average of the weights, which often does better than the weights themselves."""

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from falaj.train.moving import local
from falaj.train.plans import plain


class Ema:
    """Of the parameters of one module, in 32 bits at least; buffers are taken as they are."""

    def __init__(self, module: nn.Module, decay: float) -> None:
        self.module, self._decay = module, decay
        self._live = {plain(name): param for name, param in module.named_parameters()}
        self.shadow = {name: _wide(param.detach()).clone() for name, param in self._live.items()}

    @torch.no_grad()
    def update(self) -> None:
        """Come a little nearer to the weights."""
        shadows = [local(one) for one in self.shadow.values()]
        live = [_wide(local(param.detach())) for param in self._live.values()]
        torch._foreach_lerp_(shadows, live, 1 - self._decay)

    @contextlib.contextmanager
    def used(self) -> Iterator[None]:
        """Within, the module has the averages for weights: to evaluate or save it."""
        before = {name: param.detach().clone() for name, param in self._live.items()}
        self._fill(self.shadow)
        try:
            yield
        finally:
            self._fill(before)

    def state_dict(self) -> dict[str, Any]:
        """The averages themselves, live."""
        return dict(self.shadow)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take them back."""
        for name, tensor in self.shadow.items():
            if state[name] is not tensor:
                tensor.copy_(state[name])

    @torch.no_grad()
    def _fill(self, tensors: dict[str, torch.Tensor]) -> None:
        for name, param in self._live.items():
            param.copy_(tensors[name])


def _wide(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.float() if tensor.dtype in (torch.bfloat16, torch.float16) else tensor
