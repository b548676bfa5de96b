"""The fused last layer against the plain one."""

import pytest
import torch
from torch.nn import functional

from falaj.train.fused_loss import IGNORED_TARGET, linear_cross_entropy

GPU = pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"))


@pytest.mark.parametrize("chunk", [1, 7, 40, 1000])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("device", ["cpu", GPU])
def test_same_loss_and_gradients_as_plain(chunk: int, dtype: torch.dtype, device: str) -> None:
    generator = torch.Generator().manual_seed(chunk)
    hidden = torch.randn(4, 10, 16, generator=generator).to(device, dtype).requires_grad_()
    weight = torch.randn(30, 16, generator=generator).to(device, dtype).requires_grad_()
    target = torch.randint(0, 30, (4, 10), generator=generator).to(device)
    target[1, 3] = target[2, 0] = IGNORED_TARGET
    total, count = linear_cross_entropy(hidden, weight, target, chunk=chunk)
    (total * 0.5).backward()

    oracle_hidden, oracle_weight = (one.detach().double().requires_grad_() for one in (hidden, weight))
    logits = (oracle_hidden @ oracle_weight.T).view(-1, 30)
    oracle = functional.cross_entropy(logits, target.view(-1), reduction="sum", ignore_index=IGNORED_TARGET)
    (oracle * 0.5).backward()
    near = 1e-5 if dtype == torch.float32 else 2e-2
    assert int(count) == 38
    assert total.item() == pytest.approx(oracle.item(), rel=near)
    for ours, theirs in ((hidden, oracle_hidden), (weight, oracle_weight)):
        assert ours.grad is not None
        assert theirs.grad is not None
        assert float((ours.grad - theirs.grad).norm() / theirs.grad.norm()) < near


def test_no_gradients_where_nobody_asks() -> None:
    with torch.no_grad():
        total, count = linear_cross_entropy(torch.ones(3, 4), torch.ones(5, 4), torch.tensor([0, 1, IGNORED_TARGET]))
    assert not total.requires_grad
    assert total.item() == pytest.approx(2 * float(torch.tensor(5.0).log()), rel=1e-6)
    assert int(count) == 2
