"""What belongs to the state of a training, by name: tensors that are saved as pieces, and small facts."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn


class Keeping:
    """Everything that must be saved; registered once, before the first step."""

    def __init__(self) -> None:
        self._modules: list[nn.Module] = []
        self._optimizers: list[torch.optim.Optimizer] = []
        self._things: dict[str, Any] = {}

    def module(self, module: nn.Module) -> None:
        """Its parameters and buffers."""
        self._modules.append(module)

    def optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        """Its moments, under the names of the parameters they belong to."""
        self._optimizers.append(optimizer)

    def thing(self, name: str, thing: Any) -> None:
        """Something with state_dict and load_state_dict."""
        self._things[name] = thing

    def tensors(self) -> dict[str, torch.Tensor]:
        """Every tensor by name, the live ones: filling them in place restores the state. Moments that an optimizer
        makes at its first step are made here."""
        raise NotImplementedError

    def meta(self) -> dict[str, Any]:
        """Everything else, as JSON values."""
        raise NotImplementedError

    def load_meta(self, meta: Mapping[str, Any]) -> None:
        """Take back what `meta` gave."""
        raise NotImplementedError
