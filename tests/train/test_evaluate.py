"""Judging a model over all processes."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from falaj.core.errors import Invalid
from falaj.train.run import Run
from tests.train import fork, toys

SIZE = 53


def _measure(model: nn.Module, batch: Any) -> dict[str, torch.Tensor]:
    found = model(batch["x"])
    return {
        "loss": nn.functional.cross_entropy(found, batch["y"], reduction="none"),
        "right": (found.argmax(1) == batch["y"]).float(),
    }


def _judged(plan: str) -> tuple[dict[str, float], bool]:
    def main(run: Run) -> tuple[dict[str, float], bool]:
        model = run.parallel(toys.net(0.5), plan)
        found = run.evaluate(model, toys.samples(SIZE), _measure, micro=5)
        return found, model.training

    return toys.start(main)  # type: ignore[no-any-return]


def test_the_value_is_the_same_in_any_world(tmp_path: Path) -> None:
    ((alone, learning),) = fork.world(1, tmp_path, lambda: _judged("none"))
    assert learning
    for size, plan in ((2, "none"), (3, "ddp"), (2, "fsdp")):
        for found, _ in fork.world(size, tmp_path, lambda plan=plan: _judged(plan)):  # type: ignore[misc]
            assert found == alone, (size, plan)


def test_the_mean_is_over_all_samples_once() -> None:
    run = toys.begin()
    model, data = run.parallel(toys.net()), toys.samples(SIZE)
    found = run.evaluate(model, data, _measure, micro=8)
    expected = {name: float(values.detach().double().mean()) for name, values in _measure(model, data).items()}
    assert found == pytest.approx(expected, abs=1e-7)
    assert run.evaluate(model, data, toys.losses)["loss"] == pytest.approx(expected["loss"], abs=1e-7)


def test_what_cannot_be_judged_is_refused() -> None:
    run = toys.begin()
    model = run.parallel(toys.net())
    with pytest.raises(Invalid, match="a sum or a mean"):
        run.evaluate(model, toys.samples(), lambda m, b: toys.losses(m, b).mean())
    with pytest.raises(Invalid, match="nothing to evaluate"):
        run.evaluate(model, {"x": torch.zeros(0, 8), "y": torch.zeros(0)}, toys.losses)
