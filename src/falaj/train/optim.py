"""AdamW in the form that is fastest here: parameters in 16 bits are rounded copies of masters in 32."""

from collections.abc import Callable, Iterable
from typing import Any

import torch

from falaj.train.moving import local

LOW = (torch.bfloat16, torch.float16)


def adamw(params: Iterable[Any], lr: float = 1e-3, *, masters: bool = True, **more: Any) -> torch.optim.Optimizer:
    """For parameters in 32 bits torch's own, fused; else the one with masters."""
    given = list(params)
    flat = [one for group in given for one in (group["params"] if isinstance(group, dict) else [group])]
    if masters and any(param.dtype in LOW for param in flat):
        return MasterAdamW(given, lr, **more)
    return torch.optim.AdamW(given, lr=lr, fused=True, **more)


class MasterAdamW(torch.optim.Optimizer):
    """AdamW whose weights and moments are kept in 32 bits, whatever the parameters are.

    `grad_scale`, when set, is a tensor by which gradients are divided on the way, as in torch's fused optimizers.
    """

    def __init__(
        self, params: Iterable[Any], lr: float = 1e-3, betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8,
        weight_decay: float = 1e-2,
    ) -> None:  # fmt: skip
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})
        self.grad_scale: torch.Tensor | None = None
        self.found_inf: torch.Tensor | None = None
        for group in self.param_groups:
            group["step"] = group.get("step", 0)
            for param in group["params"]:
                master = param.detach().float().clone()
                self.state[param] = {
                    "master": master, "exp_avg": torch.zeros_like(master), "exp_avg_sq": torch.zeros_like(master),
                }  # fmt: skip

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Move every parameter that has a gradient."""
        loss = closure() if closure is not None else None
        for group in self.param_groups:
            group["step"] += 1
            for param in group["params"]:
                if param.grad is not None:
                    self._move(param, param.grad, group)
        return loss

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """As every optimizer's, but that torch would round what comes back to the parameters' 16 bits."""
        super().load_state_dict(state_dict)
        params = [param for group in self.param_groups for param in group["params"]]
        for number, held in state_dict["state"].items():
            for key, value in held.items():
                self.state[params[number]][key] = value.detach().to(params[number].device, torch.float32).clone()

    def _move(self, param: torch.Tensor, grad: torch.Tensor, group: dict[str, Any]) -> None:
        held, (beta1, beta2) = self.state[param], group["betas"]
        moments = (held["exp_avg"], held["exp_avg_sq"])
        corrections = (1 - beta1 ** group["step"], (1 - beta2 ** group["step"]) ** 0.5)
        if param.is_cuda:
            from falaj.train.kernels import adamw as fused

            rates = (group["lr"], beta1, beta2, group["eps"], group["weight_decay"])
            # The kernel knows no others' parts; it writes into this very memory, so nothing is copied on the way.
            master, first, second = (local(one) for one in (held["master"], *moments))
            fused(local(param), master, local(grad), (first, second), rates, corrections, self._divisor(param))
            return
        slope = grad.float()
        if self.grad_scale is not None:
            slope = slope / self.grad_scale
        held["master"].mul_(1 - group["lr"] * group["weight_decay"])
        moments[0].lerp_(slope, 1 - beta1)
        moments[1].mul_(beta2).addcmul_(slope, slope, value=1 - beta2)
        below = (moments[1].sqrt() / corrections[1]).add_(group["eps"])
        held["master"].addcdiv_(moments[0], below, value=-group["lr"] / corrections[0])
        param.copy_(held["master"])

    def _divisor(self, param: torch.Tensor) -> torch.Tensor:
        if self.grad_scale is not None:
            return self.grad_scale
        if not hasattr(self, "_one"):
            self._one = torch.ones((), device=param.device)
        return self._one
