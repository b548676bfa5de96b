"""torch's fused AdamW with its lists kept: the same kernel and bits, without gathering and grouping them every step."""

import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

_TORCH_STEP = inspect.unwrap(torch.optim.AdamW.step)


class _ParamLists(NamedTuple):
    params: list[torch.Tensor]
    means: list[torch.Tensor]
    squares: list[torch.Tensor]
    steps: list[torch.Tensor]


class CachedAdamW(torch.optim.AdamW):
    """For most steps; torch's own where a step is not like the last."""

    def __init__(self, params: Any, lr: float = 1e-3, **options: Any) -> None:
        super().__init__(params, lr=lr, fused=True, **options)
        self._lists: list[_ParamLists] | None = None

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Move every parameter that has a gradient."""
        lists = self._current_lists() if closure is None else None
        grads: list[list[Any]] = [[param.grad for param in entry.params] for entry in lists or ()]
        if lists is None or any(grad is None for group_grads in grads for grad in group_grads):
            loss: float | None = _TORCH_STEP(self, closure)
            return loss
        scale, found_inf = getattr(self, "grad_scale", None), getattr(self, "found_inf", None)
        for group, entry, group_grads in zip(self.param_groups, lists, grads, strict=True):
            torch._foreach_add_(entry.steps, 1)
            torch._fused_adamw_(
                entry.params, group_grads, entry.means, entry.squares, [], entry.steps, amsgrad=False, lr=group["lr"],
                beta1=group["betas"][0], beta2=group["betas"][1], weight_decay=group["weight_decay"], eps=group["eps"],
                maximize=group["maximize"], grad_scale=scale, found_inf=found_inf,
            )  # fmt: skip
            if found_inf is not None:
                torch._foreach_sub_(entry.steps, [found_inf] * len(entry.steps))
        return None

    def _current_lists(self) -> list[_ParamLists] | None:
        """The lists, if all is as it was when they were made."""
        if self._lists is not None:
            groups = zip(self.param_groups, self._lists, strict=False)
            if len(self.param_groups) == len(self._lists) and all(self._matches_lists(*pair) for pair in groups):
                return self._lists
        built = [self._build_lists(group) for group in self.param_groups]
        self._lists = None if None in built else built  # type: ignore[assignment]
        return self._lists

    def _matches_lists(self, group: dict[str, Any], lists: _ParamLists) -> bool:
        last_param = lists.params[-1]
        return (
            len(group["params"]) == len(lists.params)
            and group["params"][-1] is last_param
            and self.state[last_param].get("exp_avg") is lists.means[-1]
            and not isinstance(group["lr"], torch.Tensor)
        )

    def _build_lists(self, group: dict[str, Any]) -> _ParamLists | None:
        params = group["params"]
        has_special_option = any(group[name] for name in ("amsgrad", "capturable", "differentiable"))
        param_types = {(param.dtype, param.device, type(param.data)) for param in params}
        if (
            has_special_option
            or len(param_types) != 1
            or hasattr(params[0], "to_local")
            or isinstance(group["lr"], torch.Tensor)
        ):
            return None
        states = [self.state[param] for param in params if self.state.get(param)]
        if len(states) != len(params):
            return None
        means, squares, steps = ([state[key] for state in states] for key in ("exp_avg", "exp_avg_sq", "step"))
        return _ParamLists(params[:], means, squares, steps)
