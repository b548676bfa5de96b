"""AdamW with masters against torch's own in 32 bits."""

import torch

from falaj.train.optim import MasterAdamW, build_adamw


def test_parameters_in_32_bits_take_torchs_own() -> None:
    made = build_adamw([torch.nn.Parameter(torch.ones(3))], lr=0.1, weight_decay=0.0)
    assert type(made) is torch.optim.AdamW


def test_masters_walk_as_parameters_in_32_bits_would() -> None:
    low = torch.nn.Parameter(torch.randn(50, generator=torch.Generator().manual_seed(1)).bfloat16())
    wide = torch.nn.Parameter(low.detach().float())
    ours, theirs = build_adamw([low], lr=1e-2), torch.optim.AdamW([wide], lr=1e-2)
    assert isinstance(ours, MasterAdamW)
    ours.grad_scale = torch.tensor(4.0)
    for seed in range(20):
        slope = torch.randn(50, generator=torch.Generator().manual_seed(seed)).bfloat16()
        low.grad, wide.grad = slope * 4, slope.float()
        ours.step()
        theirs.step()
    torch.testing.assert_close(ours.state[low]["master"], wide.detach(), rtol=1e-5, atol=1e-6)
    assert torch.equal(low.detach(), ours.state[low]["master"].bfloat16())


def test_steps_too_small_for_16_bits_are_not_lost() -> None:
    low = torch.nn.Parameter(torch.ones(1, dtype=torch.bfloat16))
    made = MasterAdamW([low], lr=1e-4, weight_decay=0.0)
    for _ in range(100):
        low.grad = torch.ones_like(low)
        made.step()
    assert abs(float(low.detach()) - 0.99) < 0.004  # bf16 alone would stay at 1: half its step there is 0.004


def test_state_comes_back() -> None:
    low = torch.nn.Parameter(torch.ones(4, dtype=torch.bfloat16))
    made = MasterAdamW([low], lr=1e-3)
    low.grad = torch.ones_like(low)
    made.step()
    other = torch.nn.Parameter(torch.zeros(4, dtype=torch.bfloat16))
    again = MasterAdamW([other], lr=1e-3)
    again.load_state_dict(made.state_dict())
    assert again.param_groups[0]["step"] == 1
    assert again.state[other]["master"].dtype == torch.float32
    torch.testing.assert_close(again.state[other]["master"], made.state[low]["master"], rtol=0, atol=0)
