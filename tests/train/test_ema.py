"""The moving average of weights."""

from pathlib import Path

import torch

from falaj.train.ema import ExponentialMovingAverage
from falaj.train.run import Run
from tests.train import fork, toys


def test_it_follows_the_weights_and_can_stand_in_for_them() -> None:
    model = toys.net()
    before = [param.detach().clone() for param in model.parameters()]
    ema = ExponentialMovingAverage(model, 0.75)
    with torch.no_grad():
        for param in model.parameters():
            param.add_(1.0)
    ema.update()
    with ema.used():
        for param, old in zip(model.parameters(), before, strict=True):
            torch.testing.assert_close(param.detach(), old + 0.25)
    for param, old in zip(model.parameters(), before, strict=True):
        torch.testing.assert_close(param.detach(), old + 1.0)


def test_weights_of_16_bits_are_averaged_in_32() -> None:
    model = toys.net().to(torch.bfloat16)
    ema = ExponentialMovingAverage(model, 0.999)
    with torch.no_grad():
        for param in model.parameters():
            param.fill_(1.0)
        for shadow in ema.shadow.values():
            shadow.fill_(0.0)
    for _ in range(10):
        ema.update()
    assert all(shadow.dtype == torch.float32 for shadow in ema.shadow.values())
    torch.testing.assert_close(next(iter(ema.shadow.values())).flatten()[0], torch.tensor(1 - 0.999**10))


def _trained(folder: Path, steps: int) -> tuple[int, list[torch.Tensor]]:
    def main(run: Run) -> tuple[int, list[torch.Tensor]]:
        toys.train(run, steps)
        return (run.found.step if run.found else 0), [tensor.clone() for tensor in run.emas[0].shadow.values()]

    return toys.start(main, checkpoints=str(folder), ema=0.9, save_steps=4)  # type: ignore[no-any-return]


def test_it_is_saved_and_comes_back(tmp_path: Path) -> None:
    (whole,) = fork.world(1, tmp_path, lambda: _trained(tmp_path / "whole", 8))
    fork.world(1, tmp_path, lambda: _trained(tmp_path / "parts", 4))
    for first, averages in fork.world(2, tmp_path, lambda: _trained(tmp_path / "parts", 8)):
        assert first == 4
        torch.testing.assert_close(averages, whole[1], atol=2e-6, rtol=0)
