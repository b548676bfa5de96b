"""State by name: of any plan, into any plan."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from falaj.core.errors import Invalid
from falaj.train.pipeline import learn
from falaj.train.run import Run
from falaj.train.training_state import TrainingState
from tests.train import fork, toys


def _run(folder: Path, plan: str, steps: int) -> tuple[int, list[float]]:
    def main(run: Run) -> tuple[int, list[float]]:
        told = toys.train(run, steps)
        return (run.found.step if run.found else 0), told

    return toys.start(main, checkpoints=str(folder), parallel=plan, save_steps=4, save_s=0)  # type: ignore[no-any-return]


@pytest.mark.parametrize(("before", "after"), [("ddp", "fsdp"), ("fsdp", "none"), ("none", "ddp")])
def test_a_checkpoint_of_any_plan_loads_into_any_other(before: str, after: str, tmp_path: Path) -> None:
    (calm,) = fork.world(1, tmp_path, lambda: _run(tmp_path / "calm", "none", 12))
    fork.world(2, tmp_path, lambda: _run(tmp_path / "saves", before, 4))
    for first, told in fork.world(3, tmp_path, lambda: _run(tmp_path / "saves", after, 12)):
        assert first == 4
        assert told == pytest.approx(calm[1][4:], abs=5e-6)


def _piped(folder: Path, plan: Any, steps: int) -> tuple[int, list[float]]:
    def main(run: Run) -> tuple[int, list[float]]:
        data = run.data(toys.samples(), 24, micro=4)
        model = run.parallel(nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 2)))
        optimizer = run.adamw(model, lr=1e-2)
        told = []
        for step in run.steps(steps, data):
            if plan == "none":
                for given in step.micro():
                    step.backward(toys.losses(model, given))
            else:
                learn(
                    step, model, lambda batch: batch["x"],
                    lambda found, batch: nn.functional.cross_entropy(found, batch["y"], reduction="none"),
                )  # fmt: skip
            step.apply(optimizer, clip=1.0)
            told.append(float(step.values["loss"]))
        return (run.found.step if run.found else 0), told

    return toys.start(main, checkpoints=str(folder), parallel=plan, save_steps=4, save_s=0)  # type: ignore[no-any-return]


def test_a_checkpoint_of_a_pipeline_loads_into_one_process_and_back(tmp_path: Path) -> None:
    (calm,) = fork.world(1, tmp_path, lambda: _piped(tmp_path / "calm", "none", 12))
    stages = {"pipeline": 2}
    fork.world(2, tmp_path, lambda: _piped(tmp_path / "saves", stages, 4))
    ((first, told),) = fork.world(1, tmp_path, lambda: _piped(tmp_path / "saves", "none", 8))
    assert first == 4
    assert told == pytest.approx(calm[1][4:8], abs=5e-6)
    for first, told in fork.world(2, tmp_path, lambda: _piped(tmp_path / "saves", stages, 12)):
        assert first == 8
        assert told == pytest.approx(calm[1][8:], abs=5e-6)


def test_names_are_those_of_the_users_module() -> None:
    keeping = TrainingState()
    model = toys.net()
    keeping.module(model)
    optimizer = torch.optim.AdamW(model.parameters())
    keeping.optimizer(optimizer)
    toys.losses(model, toys.samples()).sum().backward()
    optimizer.step()
    assert set(keeping.tensors()) == {
        *(f"model.{name}" for name, _ in model.named_parameters()),
        *(
            f"optimizer.model.{name}.{key}"
            for name, _ in model.named_parameters()
            for key in ("step", "exp_avg", "exp_avg_sq")
        ),
    }


OPTIMIZERS: dict[str, Any] = {
    "adamw": lambda params: torch.optim.AdamW(params, lr=0.01, fused=True),
    "sgd": lambda params: torch.optim.SGD(params, lr=0.01, momentum=0.9),
    "plain sgd": lambda params: torch.optim.SGD(params, lr=0.01),
    "rmsprop": lambda params: torch.optim.RMSprop(params, lr=0.01, momentum=0.5),
    "adagrad": lambda params: torch.optim.Adagrad(params, lr=0.01),
    "nadam": lambda params: torch.optim.NAdam(params, lr=0.01),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_any_optimizer_comes_back(name: str) -> None:
    def make() -> tuple[nn.Module, torch.optim.Optimizer, TrainingState]:
        torch.manual_seed(0)
        model, keeping = toys.net(), TrainingState()
        optimizer = OPTIMIZERS[name](model.parameters())
        keeping.module(model)
        keeping.optimizer(optimizer)
        return model, optimizer, keeping

    def move(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        optimizer.zero_grad()
        toys.losses(model, toys.samples()).sum().backward()
        optimizer.step()

    model, optimizer, keeping = make()
    for _ in range(3):
        move(model, optimizer)
    optimizer.param_groups[0]["lr"] = 0.003
    saved, meta = {key: one.clone() for key, one in keeping.tensors().items()}, keeping.meta()
    other, again, kept = make()
    into = kept.prepare(meta)
    assert into.keys() == saved.keys()
    for key, tensor in into.items():
        tensor.copy_(saved[key])
    kept.load_meta(meta)
    for _ in range(2):
        move(model, optimizer)
        move(other, again)
    assert again.param_groups[0]["lr"] == 0.003
    for one, two in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(one, two)


class Counter:
    """A thing of the user's, with a number and a tensor."""

    def __init__(self) -> None:
        self.seen, self.sums = 0, torch.zeros(3)

    def state_dict(self) -> dict[str, Any]:
        """Both."""
        return {"seen": self.seen, "sums": self.sums}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Both."""
        self.seen, self.sums = state["seen"], state["sums"]


def test_things_of_the_user_come_back() -> None:
    keeping, counter = TrainingState(), Counter()
    keeping.thing("counter", counter)
    counter.seen, counter.sums = 7, torch.tensor([1.0, 2.0, 3.0])
    saved, meta = keeping.tensors(), keeping.meta()
    other, again = TrainingState(), Counter()
    other.thing("counter", again)
    for name, tensor in other.prepare(meta).items():
        tensor.copy_(saved[name])
    other.load_meta(meta)
    assert again.seen == 7
    assert torch.equal(again.sums, counter.sums)
    with pytest.raises(Invalid, match="two things"):
        keeping.thing("counter", counter)


def test_what_the_checkpoint_lacks_is_named() -> None:
    keeping = TrainingState()
    meta = keeping.meta()
    keeping.thing("vocabulary", Counter())
    with pytest.raises(Invalid, match="has no vocabulary"):
        keeping.prepare(meta)
    with pytest.raises(Invalid, match="no checkpoint of a training run"):
        keeping.prepare({})


def test_tied_weights_are_kept_once() -> None:
    model = nn.ModuleDict({"a": nn.Linear(3, 3), "b": nn.Linear(3, 3)})
    model["b"].weight = model["a"].weight
    keeping = TrainingState()
    keeping.module(model)
    assert set(keeping.tensors()) == {"model.a.weight", "model.a.bias", "model.b.bias"}
