"""When to end early: what is measured has not become better for a while; the best weights are kept."""

import math
from typing import Any

import torch
from torch import nn

from falaj.core.errors import Invalid
from falaj.train.parallel_plans import strip_wrapper_names


class EarlyStopping:
    """Told of a value now and then, says when enough is enough. `higher`: larger values are better."""

    def __init__(
        self,
        module: nn.Module,
        patience: int = 5,
        min_delta: float = 0.0,
        *,
        higher: bool = False,
        restore: bool = True,
    ) -> None:
        if patience < 0 or min_delta < 0:
            raise Invalid("patience and min_delta are not below 0", "patience=0 stops at the first that is no better")
        self._patience, self._min_delta, self._sign = patience, min_delta, -1.0 if higher else 1.0
        self._live_tensors = (
            {strip_wrapper_names(name): tensor for name, tensor in module.state_dict(keep_vars=True).items()}
            if restore
            else {}
        )
        self._best_tensors = {name: tensor.detach().clone() for name, tensor in self._live_tensors.items()}
        self.value: float | None = None
        """The best so far."""
        self.step, self.waited = -1, 0

    def tell(self, value: float, step: int) -> bool:
        """The value after `step`; gives whether to stop. One that is no number is never better."""
        if math.isfinite(value) and (self.value is None or self._sign * (self.value - value) > self._min_delta):
            self.value, self.step, self.waited = float(value), step, 0
            _copy_tensors(self._live_tensors, self._best_tensors)
        else:
            self.waited += 1
        return self.waited > self._patience

    def restore(self) -> None:
        """Give the module its best weights back."""
        if self.value is not None:
            _copy_tensors(self._best_tensors, self._live_tensors)

    def state_dict(self) -> dict[str, Any]:
        """What was best, the weights among it."""
        return {"=value": self.value, "=step": self.step, "=waited": self.waited, **self._best_tensors}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take it back."""
        self.value, self.step, self.waited = state["=value"], state["=step"], state["=waited"]
        _copy_tensors({name: state[name] for name in self._best_tensors}, self._best_tensors)


@torch.no_grad()
def _copy_tensors(source: dict[str, torch.Tensor], target: dict[str, torch.Tensor]) -> None:
    for name, tensor in target.items():
        if source[name] is not tensor:
            tensor.copy_(source[name])
