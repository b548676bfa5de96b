"""AdamW in the form that is fastest here: parameters in 16 bits are rounded copies of masters in 32."""

from collections.abc import Callable, Iterable
from typing import Any

import torch

from falaj.train.gradient_step import local_part

LOW_PRECISION_DTYPES = (torch.bfloat16, torch.float16)


def build_adamw(
    params: Iterable[Any], lr: float = 1e-3, *, masters: bool = True, **options: Any
) -> torch.optim.Optimizer:
    """For parameters in 32 bits torch's own, fused; else the one with masters."""
    param_groups = list(params)
    flat = [member for group in param_groups for member in (group["params"] if isinstance(group, dict) else [group])]
    if masters and any(param.dtype in LOW_PRECISION_DTYPES for param in flat):
        return MasterAdamW(param_groups, lr, **options)
    return torch.optim.AdamW(param_groups, lr=lr, fused=True, **options)


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
                    self._update_param(param, param.grad, group)
        return loss

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """As every optimizer's, but that torch would round what comes back to the parameters' 16 bits."""
        super().load_state_dict(state_dict)
        params = [param for group in self.param_groups for param in group["params"]]
        for number, moments in state_dict["state"].items():
            for key, value in moments.items():
                self.state[params[number]][key] = value.detach().to(params[number].device, torch.float32).clone()

    def _update_param(self, param: torch.Tensor, grad: torch.Tensor, group: dict[str, Any]) -> None:
        state, (beta1, beta2) = self.state[param], group["betas"]
        moments = (state["exp_avg"], state["exp_avg_sq"])
        corrections = (1 - beta1 ** group["step"], (1 - beta2 ** group["step"]) ** 0.5)
        if param.is_cuda:
            from falaj.train.kernels import fused_adamw_step as fused

            rates = (group["lr"], beta1, beta2, group["eps"], group["weight_decay"])
            # The kernel knows no others' parts; it writes into this very memory, so nothing is copied on the way.
            master, mean_moment, square_moment = (local_part(tensor) for tensor in (state["master"], *moments))
            fused(
                local_part(param),
                master,
                local_part(grad),
                (mean_moment, square_moment),
                rates,
                corrections,
                self._get_divisor(param),
            )
            return
        wide_grad = grad.float()
        if self.grad_scale is not None:
            wide_grad = wide_grad / self.grad_scale
        state["master"].mul_(1 - group["lr"] * group["weight_decay"])
        moments[0].lerp_(wide_grad, 1 - beta1)
        moments[1].mul_(beta2).addcmul_(wide_grad, wide_grad, value=1 - beta2)
        denominator = (moments[1].sqrt() / corrections[1]).add_(group["eps"])
        state["master"].addcdiv_(moments[0], denominator, value=-group["lr"] / corrections[0])
        param.copy_(state["master"])

    def _get_divisor(self, param: torch.Tensor) -> torch.Tensor:
        if self.grad_scale is not None:
            return self.grad_scale
        if not hasattr(self, "_unit_scale"):
            self._unit_scale = torch.ones((), device=param.device)
        return self._unit_scale
