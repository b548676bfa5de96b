"""Rates as functions of the step."""

import pytest
import torch
from torch import nn

from falaj.core.errors import Invalid
from falaj.train.schedule import Plateau, RateSchedule, build_factor
from tests.train import toys


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("constant", [0.25, 0.5, 0.75, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0]),
        ("linear", [0.25, 0.5, 0.75, 1.0, 1.0, 0.775, 0.55, 0.325, 0.1]),
        ("cosine", [0.25, 0.5, 0.75, 1.0, 1.0, 0.868198, 0.55, 0.231802, 0.1]),
    ],
)
def test_rise_and_fall(kind: str, expected: list[float]) -> None:
    rate = build_factor(kind, 8, warmup=4, floor=0.1)
    assert [rate(step) for step in range(9)] == pytest.approx(expected, abs=1e-6)
    assert rate(1000) == pytest.approx(expected[-1])


def test_one_cycle_has_one_top() -> None:
    rate = build_factor("one-cycle", 100)
    rates = [rate(step) for step in range(100)]
    assert rates[0] == pytest.approx(1 / 25)
    assert max(rates) == rates[30] == 1.0
    assert rates[:31] == sorted(rates[:31])
    assert rates[30:] == sorted(rates[30:], reverse=True)
    assert rates[-1] < 0.01


def test_an_unknown_kind_is_refused() -> None:
    with pytest.raises(Invalid, match="no schedule 'sine'"):
        build_factor("sine", 10)


def test_every_group_keeps_its_own_full_rate() -> None:
    params = [nn.Parameter(torch.ones(2)) for _ in range(2)]
    optimizer = torch.optim.SGD([{"params": params[:1], "lr": 1.0}, {"params": params[1:], "lr": 0.1}])
    schedule = RateSchedule(optimizer, build_factor("linear", 10))
    schedule.set(5)
    assert [group["lr"] for group in optimizer.param_groups] == pytest.approx([0.5, 0.05])
    schedule.set(0)
    assert [group["lr"] for group in optimizer.param_groups] == pytest.approx([1.0, 0.1])


def test_a_plateau_listens_and_remembers() -> None:
    plateau = Plateau(patience=1, by=0.5, floor=0.2)
    for value in (3.0, 2.0, 2.0, 2.1):
        plateau.tell(value)
    assert plateau(0) == 0.5
    other = Plateau(patience=1, by=0.5, floor=0.2)
    other.load_state_dict(plateau.state_dict())
    for value in (2.0, 2.0, 2.0, 2.0):
        plateau.tell(value)
        other.tell(value)
        assert plateau(0) == other(0)
    assert plateau(0) == 0.2


def test_the_rate_of_a_step_is_the_same_after_a_resume() -> None:
    run = toys.begin()
    model = run.parallel(toys.net())
    optimizer = run.adamw(model, lr=1.0)
    run.schedule(optimizer, "linear", steps=10)
    rates = []
    for step in run.steps(4, run.data(toys.samples(), 24)):
        for given in step.micro():
            step.backward(toys.losses(model, given))
        step.apply(optimizer)
        rates.append(step.values["lr"])
    assert rates == pytest.approx([1.0, 0.9, 0.8, 0.7])
