"""Our way to call torch's fused AdamW gives torch's bits."""

from typing import Any

import pytest
import torch

from falaj.train.cached_adamw import CachedAdamW
from tests.train import toys


def _moved(kind: Any, change: str) -> list[torch.Tensor]:
    torch.manual_seed(0)
    model = toys.net()
    groups = [{"params": [*model[0].parameters()], "lr": 0.02}, {"params": [*model[3].parameters()]}]  # type: ignore[index]
    how: dict[str, Any] = {"fused": True} if kind is torch.optim.AdamW else {}
    optimizer = kind(groups, lr=0.01, weight_decay=0.1, **how)
    for step in range(8):
        optimizer.zero_grad()
        toys.losses(model, toys.samples()).mean().backward()
        if change == "missing" and step in (2, 5):
            model[3].bias.grad = None  # type: ignore[index]
        if change == "scale":
            optimizer.grad_scale = torch.tensor(4.0)
            optimizer.found_inf = torch.tensor(float(step == 3))
        if change == "lr":
            optimizer.param_groups[0]["lr"] = 0.1 / (step + 1)
        if change == "loaded" and step == 4:
            optimizer.load_state_dict(optimizer.state_dict())
        optimizer.step()
    return [*model.parameters(), *(one["exp_avg_sq"] for one in optimizer.state.values())]


@pytest.mark.parametrize("change", ["", "missing", "scale", "lr", "loaded"])
def test_the_bits_are_torchs(change: str) -> None:
    for one, other in zip(_moved(torch.optim.AdamW, change), _moved(CachedAdamW, change), strict=True):
        assert torch.equal(one, other)


def test_hooks_are_called_once() -> None:
    model, seen = toys.net(), []
    optimizer = CachedAdamW(model.parameters())
    torch.optim.AdamW(model.parameters())
    optimizer.register_step_post_hook(lambda *_: seen.append(1))
    for _ in range(3):
        toys.losses(model, toys.samples()).mean().backward()
        optimizer.step()
    assert len(seen) == 3
    assert optimizer.step(lambda: 0.5) == 0.5
