"""torch's fused AdamW with its lists kept: the same kernel and bits, without gathering and grouping them every step."""

import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

_PLAIN = inspect.unwrap(torch.optim.AdamW.step)


class _Lists(NamedTuple):
    params: list[torch.Tensor]
    means: list[torch.Tensor]
    squares: list[torch.Tensor]
    steps: list[torch.Tensor]


class QuickAdamW(torch.optim.AdamW):
    """For most steps; torch's own where a step is not like the last."""

    def __init__(self, params: Any, lr: float = 1e-3, **more: Any) -> None:
        super().__init__(params, lr=lr, fused=True, **more)
        self._lists: list[_Lists] | None = None

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Move every parameter that has a gradient."""
        lists = self._known() if closure is None else None
        grads: list[list[Any]] = [[param.grad for param in one.params] for one in lists or ()]
        if lists is None or any(grad is None for some in grads for grad in some):
            found: float | None = _PLAIN(self, closure)
            return found
        scale, bad = getattr(self, "grad_scale", None), getattr(self, "found_inf", None)
        for group, one, some in zip(self.param_groups, lists, grads, strict=True):
            torch._foreach_add_(one.steps, 1)
            torch._fused_adamw_(
                one.params, some, one.means, one.squares, [], one.steps, amsgrad=False, lr=group["lr"],
                beta1=group["betas"][0], beta2=group["betas"][1], weight_decay=group["weight_decay"], eps=group["eps"],
                maximize=group["maximize"], grad_scale=scale, found_inf=bad,
            )  # fmt: skip
            if bad is not None:
                torch._foreach_sub_(one.steps, [bad] * len(one.steps))
        return None

    def _known(self) -> list[_Lists] | None:
        """The lists, if all is as it was when they were made."""
        if self._lists is not None:
            groups = zip(self.param_groups, self._lists, strict=False)
            if len(self.param_groups) == len(self._lists) and all(self._holds(*one) for one in groups):
                return self._lists
        made = [self._made(group) for group in self.param_groups]
        self._lists = None if None in made else made  # type: ignore[assignment]
        return self._lists

    def _holds(self, group: dict[str, Any], known: _Lists) -> bool:
        last = known.params[-1]
        return (
            len(group["params"]) == len(known.params)
            and group["params"][-1] is last
            and self.state[last].get("exp_avg") is known.means[-1]
            and not isinstance(group["lr"], torch.Tensor)
        )

    def _made(self, group: dict[str, Any]) -> _Lists | None:
        params = group["params"]
        special = any(group[name] for name in ("amsgrad", "capturable", "differentiable"))
        kinds = {(param.dtype, param.device, type(param.data)) for param in params}
        if special or len(kinds) != 1 or hasattr(params[0], "to_local") or isinstance(group["lr"], torch.Tensor):
            return None
        held = [self.state[param] for param in params if self.state.get(param)]
        if len(held) != len(params):
            return None
        means, squares, steps = ([one[key] for one in held] for key in ("exp_avg", "exp_avg_sq", "step"))
        return _Lists(params[:], means, squares, steps)
