"""Steps: what accumulating, several processes and wishes come to."""

import os
import re
import signal
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import nn

from falaj.core.errors import Invalid, UserCodeFailed
from falaj.train import gradient_step, loss_tally
from falaj.train.run import Run
from tests.train import fork, toys


def plain(steps: int, batch: int, clip: float) -> tuple[list[float], nn.Module]:
    """The same training by hand, in one batch."""
    torch.manual_seed(0)
    run = toys.begin()
    model, data = toys.net(), run.data(toys.samples(), batch)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    told = []
    for given in data.stream(0, steps):
        loss = toys.losses(model, given.batch).mean()
        optimizer.zero_grad()
        loss.backward()
        if clip:
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
        told.append(loss.item())
    return told, model


@pytest.mark.parametrize("micro", [24, 12, 4, 1])
def test_accumulating_is_one_big_batch(micro: int) -> None:
    expected, reference = plain(8, 24, 1.0)
    torch.manual_seed(0)
    run = toys.begin()
    model = run.parallel(toys.net())
    optimizer = run.adamw(model, lr=1e-2)
    told = []
    for step in run.steps(8, run.data(toys.samples(), 24, micro=micro)):
        for given in step.micro():
            step.backward(toys.losses(model, given))
        step.apply(optimizer, clip=1.0)
        told.append(step.values["loss"])
    assert told == pytest.approx(expected, abs=2e-6)
    for one, other in zip(model.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(one, other, atol=2e-6, rtol=0)


@pytest.mark.parametrize("kind", ["adamw", "plain", "sgd", "foreach"])
def test_items_of_different_weight_count_once_each(kind: str) -> None:
    """Micro-batches with few and many items: the mean is over items, not over micro-batches."""
    weights = torch.arange(96) % 5
    source = toys.samples() | {"w": weights}
    made = {
        "adamw": lambda params: torch.optim.AdamW(params, lr=0.1, fused=True),
        "plain": lambda params: torch.optim.AdamW(params, lr=0.1, foreach=False),
        "sgd": lambda params: torch.optim.SGD(params, lr=0.1, fused=True),
        "foreach": lambda params: torch.optim.RMSprop(params, lr=0.1),
    }[kind]

    def go(micro: int) -> tuple[list[float], nn.Module]:
        torch.manual_seed(1)
        run = toys.begin()
        model = run.parallel(toys.net())
        optimizer = run.optimizer(made(model.parameters()))
        told = []
        for step in run.steps(4, run.data(source, 24, micro=micro)):
            for given in step.micro():
                step.backward((toys.losses(model, given) * given["w"]).sum(), given["w"].sum())
            step.apply(optimizer)
            told.append(step.values["loss"])
        return told, model

    one, model = go(24)
    many, other = go(3)
    assert one == pytest.approx(many, abs=1e-5)
    for left, right in zip(model.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(left, right, atol=1e-5, rtol=0)


def _parallel(plan: str) -> list[float]:
    return toys.start(lambda run: toys.train(run, 6), parallel=plan)  # type: ignore[no-any-return]


@pytest.mark.parametrize("plan", ["none", "ddp"])
@pytest.mark.parametrize("size", [2, 3])
def test_processes_are_one_big_batch(size: int, plan: str, tmp_path: Path) -> None:
    alone = _parallel("auto")
    for told in fork.world(size, tmp_path, lambda: _parallel(plan)):
        assert told == pytest.approx(alone, abs=2e-6)


def test_a_bare_number_is_no_loss() -> None:
    run = toys.begin()
    model = run.parallel(toys.net())
    (step, *_) = run.steps(1, run.data(toys.samples(), 24))
    with pytest.raises(Invalid, match="a sum or a mean"):
        step.backward(toys.losses(model, toys.samples()).mean())


class Own(torch.Tensor):
    """A kind of tensor that wants to know of its gradients, as those of other libraries do."""

    heard: ClassVar[list[Any]] = []

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        cls.heard.append(func)
        return super().__torch_function__(func, types, args, kwargs or {})


def test_losses_of_any_kind_and_shape_move_alike() -> None:
    """One number in 32, 16 or 64 bits, a row, a table, a kind of its own: the same gradients and the same loss."""
    made: list[Any] = [
        lambda one: one, lambda one: one.sum(), lambda one: one.double().sum(), lambda one: one.view(-1, 1),
        lambda one: one.sum().as_subclass(Own), lambda one: one.sum().bfloat16(),
    ]  # fmt: skip
    told = []
    for make in made:
        torch.manual_seed(0)
        run = toys.begin()
        model = run.parallel(toys.net())
        optimizer = run.sgd(model, lr=1e-2)
        for step in run.steps(3, run.data(toys.samples(), 24, micro=8)):
            for given in step.micro():
                step.backward(make(toys.losses(model, given)), 8)
            step.apply(optimizer)
        told.append([float(step.values["loss"]), *(param.detach().sum().item() for param in model.parameters())])
    for found in told[1:-1]:
        assert found == pytest.approx(told[0], abs=1e-5)
    assert told[-1] == pytest.approx(told[0], abs=1e-2)  # of 8 bits
    assert torch.autograd.backward in Own.heard


def _poisoned(run: Run, at: int) -> None:
    source = toys.samples()
    data = run.data(source, 24, micro=4)
    victim = int(data.plan.ids(at, 2)[1])
    source["x"][victim] = float("nan")
    data = run.data(source, 24, micro=4)
    model = run.parallel(toys.net())
    optimizer = run.adamw(model)
    for step in run.steps(20, data):
        for given in step.micro():
            step.backward(toys.losses(model, given))
        step.apply(optimizer)


@pytest.mark.parametrize("level", ["order", "strict"])
def test_a_loss_that_is_no_number_is_one_clear_error(tmp_path: Path, level: str) -> None:
    folder = tmp_path / "saves"
    with pytest.raises(UserCodeFailed) as caught:
        toys.start(lambda run: _poisoned(run, 3), checkpoints=str(folder), save_steps=1, keep=9, reproducible=level)
    torch.use_deterministic_algorithms(False)
    text = str(caught.value)
    assert "step 3" in text
    assert "micro-batch 2" in text
    assert len(re.findall(r"\d+", re.search(r"samples \[(.*?)\]", text)[1])) == 4  # type: ignore[index]
    assert sorted(path.name for path in folder.glob("step-*.json")) == ["step-1.json", "step-2.json", "step-3.json"]


def test_every_process_ends_when_one_has_no_number(tmp_path: Path) -> None:
    told = fork.world(3, tmp_path, lambda: toys.start(lambda run: _poisoned(run, 2)), fine=False)
    assert all("the loss of step 2 is nan" in text for text in told), told
    assert sum("micro-batch 2" in text for text in told) == 1


def test_a_late_answer_is_found_a_step_later_and_never_saved(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As on a GPU: the loss of a step is read when the next one is queued, or before anything is saved."""
    init = loss_tally.LossTally.__init__
    monkeypatch.setattr(
        loss_tally.LossTally, "__init__", lambda self, mesh, **how: init(self, mesh, **{**how, "reads_late": True})
    )
    seen: list[int] = []

    def main(run: Run) -> None:
        step_of = run.steps
        run.steps = lambda last, feed: (seen.append(step.number) or step for step in step_of(last, feed))  # type: ignore[method-assign,misc,func-returns-value]
        _poisoned(run, 3)

    with pytest.raises(UserCodeFailed, match=r"step 3 .*micro-batch 2"):
        toys.start(main)
    assert seen[-1] == 4
    folder = tmp_path / "saves"
    with pytest.raises(UserCodeFailed, match=r"step 3 "):
        toys.start(main, checkpoints=str(folder), save_steps=4)
    assert not list(folder.glob("step-*.json"))


def test_two_optimizers_move_by_the_same_loss() -> None:
    expected, reference = plain(4, 24, 0.0)
    torch.manual_seed(0)
    run = toys.begin()
    model = run.parallel(toys.net())
    head, body = [run.optimizer(torch.optim.AdamW(part.parameters(), lr=1e-2)) for part in (model[3], model[0])]  # type: ignore[index]
    for step in run.steps(4, run.data(toys.samples(), 24, micro=8)):
        for given in step.micro():
            step.backward(toys.losses(model, given))
        step.apply(head)
        step.apply(body)
        assert step.values["loss"] == pytest.approx(expected[step.number], abs=2e-6)
    for one, other in zip(model.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(one, other, atol=2e-6, rtol=0)


def test_random_numbers_are_keyed_by_micro_batch(tmp_path: Path) -> None:
    """Dropout draws the same though the processes are others."""

    def go() -> list[float]:
        return toys.start(lambda run: toys.train(run, 5, dropout=0.5))  # type: ignore[no-any-return]

    alone = go()
    for told in fork.world(3, tmp_path, go):
        assert told == pytest.approx(alone, abs=2e-6)


def test_micro_batches_come_again_within_a_step() -> None:
    run = toys.begin()
    run.parallel(toys.net())
    data = run.data(toys.samples(), 24, micro=8)
    for step in run.steps(3, data):
        first, second = ([given["x"].clone() for given in step.micro()] for _ in range(2))
        assert len(first) == 3
        torch.testing.assert_close(first, second)
        next(iter(step.micro()))  # and who leaves early does no harm
    for step in run.steps(3, data):
        next(iter(step.micro()))


def test_steps_say_where_they_are() -> None:
    run = toys.begin()
    run.parallel(toys.net())
    found = [(step.number, step.epoch, step.every(4)) for step in run.steps(9, run.data(toys.samples(), 24))]
    assert found[3:5] == [(3, 0, True), (4, 1, False)]
    assert found[8] == (8, 2, False)


def _asked(number: int, at: int, steps: int = 50) -> Any:
    def main(run: Run) -> int:
        data = run.data(toys.samples(), 24, micro=4)
        model = run.parallel(toys.net())
        optimizer = run.adamw(model)
        done = 0
        for step in run.steps(steps, data):
            if step.number == at and run.mesh.rank == run.mesh.world - 1 and run.found is None:
                os.kill(os.getpid(), number)
            for given in step.micro():
                step.backward(toys.losses(model, given))
            step.apply(optimizer)
            done = step.number + 1
        return done

    return main


@pytest.mark.parametrize("size", [1, 3])
def test_who_is_asked_to_stop_saves_and_gives_up_its_place(
    size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FALAJ_ATTEMPT", "attempt:x/y")
    folder = tmp_path / "saves"
    go = lambda: toys.start(_asked(signal.SIGTERM, 7), checkpoints=str(folder), save_s=0)  # noqa: E731
    assert fork.world(size, tmp_path, go, fine=False) == [85] * size
    assert [path.name for path in folder.glob("step-*.json")] == ["step-8.json"]
    assert fork.world(2, tmp_path, go) == [50, 50]


def test_a_wish_that_is_read_late_is_read_by_all_after_the_same_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    init = loss_tally.LossTally.__init__
    monkeypatch.setattr(
        loss_tally.LossTally, "__init__", lambda self, mesh, **how: init(self, mesh, **{**how, "reads_late": True})
    )
    monkeypatch.setenv("FALAJ_ATTEMPT", "attempt:x/y")
    folder = tmp_path / "saves"
    go = lambda: toys.start(_asked(signal.SIGTERM, 7), checkpoints=str(folder), save_s=0)  # noqa: E731
    assert fork.world(3, tmp_path, go, fine=False) == [85] * 3
    assert [path.name for path in folder.glob("step-*.json")] == ["step-9.json"]
    assert fork.world(2, tmp_path, go) == [50, 50]


@pytest.mark.parametrize("size", [1, 2])
def test_who_is_asked_to_save_saves_and_goes_on(size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FALAJ_ATTEMPT", "attempt:x/y")
    folder = tmp_path / "saves"
    go = lambda: toys.start(_asked(signal.SIGUSR1, 7, 12), checkpoints=str(folder), save_s=0)  # noqa: E731
    assert fork.world(size, tmp_path, go) == [12] * size
    assert [path.name for path in folder.glob("step-*.json")] == ["step-8.json"]


def test_a_factor_is_folded_into_the_optimizer_that_takes_it() -> None:
    params = [nn.Parameter(torch.ones(3))]
    assert gradient_step.takes_scale(torch.optim.AdamW(params, fused=True))
    assert not gradient_step.takes_scale(torch.optim.AdamW(params))


def test_empty_data_and_wrong_shapes_are_errors_of_the_user() -> None:
    run = toys.begin()
    with pytest.raises(Invalid, match="empty"):
        run.data({"x": torch.zeros(0, 3)}, 8)
    with pytest.raises(Invalid, match="not of one length"):
        run.data({"x": torch.zeros(4, 3), "y": torch.zeros(5)}, 8)
    with pytest.raises(Invalid, match="cannot be cut"):
        run.data(toys.samples(), 24, micro=5)


def test_parameters_that_are_no_numbers_are_never_saved(tmp_path: Path) -> None:
    """The loss of the step is a number, but its gradient is none."""
    folder = tmp_path / "saves"

    def main(run: Run) -> None:
        data = run.data(toys.samples(), 24, micro=24)
        model = run.parallel(toys.net())
        optimizer = run.adamw(model)
        for step in run.steps(6, data):
            for given in step.micro():
                losses = toys.losses(model, given)
                step.backward(losses + (losses * 0).sqrt() if step.number == 3 else losses)
            step.apply(optimizer)

    with pytest.raises(UserCodeFailed, match="no numbers after step 3"):
        toys.start(main, checkpoints=str(folder), save_steps=2)
    assert [path.name for path in folder.glob("step-*.json")] == ["step-2.json"]
