"""Backing off when memory runs out: a module that refuses more than so many samples stands for a GPU's limit."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from falaj.core.errors import UserCodeFailed
from falaj.train import memory_backoff
from falaj.train.run import Run
from tests.train import fork, toys


class Small(nn.Module):
    """Has room for `room` samples, from step to step fewer."""

    def __init__(self, room: int, error: type[Exception] = torch.OutOfMemoryError) -> None:
        super().__init__()
        self.inner, self.room, self.error = toys.net(0.2), room, error

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """As the net inside, or an error."""
        if self.training and len(x) > self.room:
            raise self.error("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes")
        found: torch.Tensor = self.inner(x)
        return found


def _main(room: int, shrinks: int = 0, error: type[Exception] = torch.OutOfMemoryError, steps: int = 8) -> Any:
    """Losses by step, the micro-batches that were tried, and the samples of each step."""
    known: dict[str, Any] = {"losses": {}, "micro": [], "ids": {}}

    def main(run: Run) -> Any:
        data = run.data(toys.samples() | {"id": torch.arange(96)}, 24)
        known["micro"].append(data.plan.micro)
        model = run.parallel(Small(room, error))
        optimizer = run.adamw(model, lr=1e-2)
        for step in run.steps(steps, data):
            if shrinks and step.number == shrinks:
                model.room = 3
            ids: list[int] = []
            for given in step.micro():
                ids += given["id"].tolist()
                step.backward(toys.losses(model, given))
            step.apply(optimizer, clip=1.0)
            known["losses"][step.number] = step.values["loss"]
            known["ids"][step.number] = ids
        return known

    return main


@pytest.mark.parametrize("error", [torch.OutOfMemoryError, RuntimeError])
def test_alone_it_goes_on_with_less_and_the_same_samples(error: type[Exception], tmp_path: Path) -> None:
    (calm,) = fork.world(1, tmp_path, lambda: toys.start(_main(99)))
    (found,) = fork.world(1, tmp_path, lambda: toys.start(_main(9, 5, error)))
    assert found["micro"] == [24, 12, 6, 3]
    assert found["ids"] == calm["ids"]
    assert sorted(found["losses"]) == list(range(8))
    # Dropout is keyed by micro-batch, which is another one: near, not equal.
    assert list(found["losses"].values()) == pytest.approx(list(calm["losses"].values()), abs=0.2)


def test_the_state_is_carried_over_whole(tmp_path: Path) -> None:
    """Running out between two steps changes nothing but the size of micro-batches."""

    def main(fails: bool, late: bool = False) -> Any:
        tried: list[int] = []

        def work(run: Run) -> Any:
            data = run.data(toys.samples(), 24)
            tried.append(data.plan.micro)
            model = run.parallel(toys.net())
            optimizer = run.adamw(model, lr=1e-2)
            told = []
            for step in run.steps(8, data):
                full = fails and step.number == 5 and len(tried) == 1
                if full and not late:
                    raise torch.OutOfMemoryError("too much")
                for given in step.micro():
                    step.backward(toys.losses(model, given))
                step.apply(optimizer)
                told.append(step.values["loss"])
                if full:  # as in an evaluation: the step itself is done
                    raise torch.OutOfMemoryError("too much")
            return told

        return work

    (calm,) = fork.world(1, tmp_path, lambda: toys.start(main(fails=False)))
    (found,) = fork.world(1, tmp_path, lambda: toys.start(main(fails=True)))
    assert len(found) == 3
    assert found == pytest.approx(calm[5:], abs=2e-6)
    (found,) = fork.world(1, tmp_path, lambda: toys.start(main(fails=True, late=True)))
    assert len(found) == 2
    assert found == pytest.approx(calm[6:], abs=2e-6)


def test_one_sample_too_many_is_an_error_of_the_model() -> None:
    with pytest.raises(UserCodeFailed, match="one at a time"):
        toys.start(_main(0))


def test_before_the_first_step_nothing_can_be_smaller() -> None:
    def main(run: Run) -> None:
        raise torch.OutOfMemoryError("too much")

    with pytest.raises(UserCodeFailed, match="before the first step"):
        toys.start(main)


def test_other_errors_pass() -> None:
    def main(run: Run) -> None:
        raise RuntimeError("mat1 and mat2 shapes cannot be multiplied")

    with pytest.raises(RuntimeError, match="mat1 and mat2"):
        toys.start(main)


def test_several_processes_write_the_size_down_and_are_tried_again(tmp_path: Path) -> None:
    folder = tmp_path / "saves"
    go = lambda: toys.start(_main(5), checkpoints=str(folder), save_steps=2)  # noqa: E731
    tried = []
    for _ in range(8):
        found = fork.world(2, tmp_path, go, fine=False)
        if memory_backoff.RETRY_EXIT_CODE not in found:
            break
        tried.append(json.loads((folder / "micro.json").read_bytes())["micro"])
    assert tried == [6, 3]
    assert all(sorted(one["losses"]) == list(range(8)) for one in found), found
    (alone,) = fork.world(1, tmp_path, lambda: toys.start(_main(99), parallel="none"))
    assert sorted(found[0]["ids"][7] + found[1]["ids"][7]) == sorted(alone["ids"][7])
