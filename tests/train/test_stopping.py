"""When to end early."""

import math
from pathlib import Path

import pytest
import torch

from falaj.core.errors import Invalid
from falaj.train.early_stopping import EarlyStopping
from falaj.train.run import Run
from tests.train import fork, toys


def _set(model: torch.nn.Module, value: float) -> None:
    with torch.no_grad():
        for param in model.parameters():
            param.fill_(value)


def test_patience_ends_and_the_best_come_back() -> None:
    model = toys.net()
    stopping = EarlyStopping(model, patience=1, min_delta=0.1)
    told = []
    for step, value in enumerate((3.0, 2.0, 1.95, math.nan, 1.0)):
        _set(model, value)
        told.append(stopping.tell(value, step))
    assert told == [False, False, False, True, False]
    assert (stopping.value, stopping.step) == (1.0, 4)
    _set(model, 9.0)
    stopping.restore()
    assert all(bool((param == 1.0).all()) for param in model.parameters())


def test_higher_may_be_better() -> None:
    stopping = EarlyStopping(toys.net(), patience=0, higher=True)
    assert [stopping.tell(value, 0) for value in (0.5, 0.7, 0.7)] == [False, False, True]
    with pytest.raises(Invalid):
        EarlyStopping(toys.net(), patience=-1)


def _run(folder: Path, steps: int) -> tuple[float | None, int, float]:
    def main(run: Run) -> tuple[float | None, int, float]:
        data = run.data(toys.samples(), 24, micro=4)
        model = run.parallel(toys.net())
        optimizer = run.adamw(model, lr=1e-2)
        stopping = run.stopping(model, patience=100)
        for step in run.steps(steps, data):
            for given in step.micro():
                step.backward(toys.losses(model, given))
            step.apply(optimizer)
            stopping.tell(abs(step.number - 2) + 1.0, step.number)
        stopping.restore()
        return stopping.value, stopping.step, sum(float(p.detach().double().sum()) for p in model.parameters())

    return toys.start(main, checkpoints=str(folder), save_steps=4, save_s=0)  # type: ignore[no-any-return]


def test_the_best_survive_a_resume(tmp_path: Path) -> None:
    (whole,) = fork.world(1, tmp_path, lambda: _run(tmp_path / "whole", 8))
    fork.world(2, tmp_path, lambda: _run(tmp_path / "parts", 4))
    (parts,) = fork.world(1, tmp_path, lambda: _run(tmp_path / "parts", 8))
    assert parts[:2] == whole[:2] == (1.0, 2)
    assert parts[2] == pytest.approx(whole[2], abs=1e-5)
