"""The same bits in any world."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from falaj.core.errors import FalajError, Invalid, UserCodeFailed
from falaj.train import strict_gradients
from falaj.train.options import Options
from falaj.train.run import Run
from tests.train import fork, toys


def _digest(kind: str) -> tuple[str, list[float]]:
    def main(run: Run) -> tuple[str, list[float]]:
        source = toys.samples() | {"w": torch.arange(96) % 7}
        data = run.data(source, 24, micro=4)
        model = run.parallel(toys.net(0.3))
        made: dict[str, Any] = {
            "adamw": lambda: run.adamw(model, lr=1e-2),
            "sgd": lambda: run.sgd(model, lr=1e-1, momentum=0.9),
            "foreach": lambda: run.optimizer(torch.optim.AdamW(model.parameters(), lr=1e-2)),
        }
        optimizer, told = made[kind](), []
        for step in run.steps(6, data):
            for given in step.micro():
                losses = toys.losses(model, given) * given["w"]
                step.backward(losses.sum(), given["w"].sum())
            step.apply(optimizer, clip=0.5)
            told.append(step.values["loss"])
        return toys.digest(run), told

    return toys.start(main, reproducible="strict")  # type: ignore[no-any-return]


@pytest.mark.parametrize("kind", ["adamw", "sgd", "foreach"])
def test_any_world_gives_the_same_bits(kind: str, tmp_path: Path) -> None:
    """Parameters, moments and the losses that were logged."""
    found = [one for size in (1, 2, 3, 6) for one in fork.world(size, tmp_path, lambda: _digest(kind))]
    assert len(found) == 12
    assert all(one == found[0] for one in found)


def test_sums_of_integers_are_close_to_those_of_floats(tmp_path: Path) -> None:
    def go(level: str) -> Any:
        return toys.start(lambda run: toys.train(run, 8), reproducible=level)

    (exact,), (plain,) = (fork.world(1, tmp_path, lambda level=level: go(level)) for level in ("strict", "order"))  # type: ignore[misc]
    assert exact == pytest.approx(plain, abs=1e-5)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 3e4, -3e4])
def test_a_gradient_beyond_the_range_is_loud(value: float) -> None:
    param = nn.Parameter(torch.zeros(3))
    flat = strict_gradients._FlatGradients([param], torch.zeros(1, dtype=torch.int32))
    flat.limit = 2.0**62 / 4
    for good in (1.0, -5.0, 1e-7):
        param.grad = torch.tensor([good, 0.0, 0.0])
        flat.fold(param)
    assert not flat._bad_flag
    assert param.grad is None
    flat.spread()
    assert param.grad is not None
    assert float(param.grad[0]) / strict_gradients.FIXED_POINT_UNIT == pytest.approx(-4 + 1e-7, abs=1e-6)
    param.grad = torch.tensor([0.0, value, 0.0])
    flat.fold(param)
    assert flat._bad_flag


def _with(model: nn.Module, factor: float = 1.0) -> Any:
    def main(run: Run) -> None:
        data = run.data(toys.samples(), 24, micro=4)
        made = run.parallel(model)
        optimizer = run.adamw(made)
        for step in run.steps(3, data):
            for given in step.micro():
                step.backward(toys.losses(made, given) * factor)
            step.apply(optimizer)

    def go() -> None:
        try:
            toys.start(main, reproducible="strict")
        except FalajError as error:
            raise RuntimeError(str(error)) from error

    return go


def test_layers_that_count_what_they_saw_are_refused(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(8, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    (told,) = fork.world(1, tmp_path, _with(model), fine=False)
    assert "changes its buffer '1.running_mean'" in told or "changes its buffer '1.num_batches_tracked'" in told


def test_gradients_that_overflow_end_the_run(tmp_path: Path) -> None:
    for told in fork.world(2, tmp_path, _with(toys.net(), 1e9), fine=False):
        assert "a gradient of step 0" in told or "another process" in told


@pytest.mark.parametrize("wrong", [{"parallel": "fsdp"}, {"parallel": {"tensor": 2}}, {"precision": "fp16"}])
def test_what_cannot_be_exact_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(Invalid, match="strict does not go with"):
        strict_gradients.prepare_strict(Options(reproducible="strict", **wrong))


def test_a_count_that_is_no_whole_number_is_refused(tmp_path: Path) -> None:
    def main(run: Run) -> None:
        data = run.data(toys.samples(), 24, micro=4)
        model = run.parallel(toys.net())
        for step in run.steps(1, data):
            for given in step.micro():
                step.backward(toys.losses(model, given).sum(), 0.1)

    (told,) = fork.world(1, tmp_path, lambda: toys.start(main, reproducible="strict"), fine=False)
    assert told.startswith("Invalid")


def test_running_out_of_memory_is_not_backed_off(tmp_path: Path) -> None:
    def main(run: Run) -> None:
        run.parallel(toys.net())
        for _ in run.steps(1, run.data(toys.samples(), 24, micro=4)):
            raise torch.OutOfMemoryError("too much")

    (told,) = fork.world(1, tmp_path, lambda: toys.start(main, reproducible="strict"), fine=False)
    assert told.startswith(UserCodeFailed.__name__)
    assert "micro=2" in told
