"""The gauge beside real loops on CPUs: what it tells, what it shows, and that it never raises into training."""

import io
import subprocess
import sys
import time
from typing import Any

import torch

from falaj.gauge.step_monitor import COMMUNICATION_PHASE, StepMonitor
from falaj.worker import CurrentAttempt
from tests.gauge.conftest import Facts


def _train(gauge: StepMonitor, first: int, last: int) -> None:
    model = torch.nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for number in range(first, last):
        gauge.waited(0.0)
        loss = model(torch.ones(4, 8)).square().sum()
        with gauge.phase(COMMUNICATION_PHASE):
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        gauge.stepped(number, 4, {"loss": loss.detach(), "lr": 0.01})


def _values(told: list[dict[str, Any]], key: str) -> list[float]:
    return [fact["value"] for fact in told if fact["kind"] == "metric" and fact["key"] == key]


def test_it_tells_the_first_step_and_then_at_every_log_point(here: CurrentAttempt, facts: Facts) -> None:
    stream = io.StringIO()
    gauge = StepMonitor(
        here, rank=0, world=1, device="cpu", first_step=10, steps=30, log_s=0.0, stream=stream, units="tokens"
    )
    _train(gauge, 10, 30)
    gauge.saved(30, 0.0)
    gauge.close()
    told = facts()
    assert [fact["step"] for fact in told if fact["kind"] == "progress"] == list(range(11, 31))
    assert len(_values(told, "loss")) == 20
    assert len(_values(told, "tokens_per_s")) == 19, "the first step's pace says nothing"
    for key in ("lr", "step_s", "memory_peak_bytes", "input_wait", "checkpoint_stall", "phase/communication"):
        assert _values(told, key), key
    assert all(0 <= value <= 100 for value in _values(told, "goodput"))
    assert "step 30/30  loss " in stream.getvalue()
    assert "tokens/s" in stream.getvalue()


def test_between_log_points_it_tells_nothing_and_the_last_step_is_one(here: CurrentAttempt, facts: Facts) -> None:
    gauge = StepMonitor(here, rank=0, world=1, device="cpu", first_step=0, steps=9000, log_s=1e9, stream=io.StringIO())
    _train(gauge, 0, 9000)
    gauge.close()
    told = [fact["step"] for fact in facts() if fact["kind"] == "progress"]
    assert (told[0], told[-1]) == (1, 9000)
    assert len(told) < 900, "points lie further and further apart"


def test_other_ranks_tell_only_their_own_times(here: CurrentAttempt, facts: Facts) -> None:
    stream = io.StringIO()
    gauge = StepMonitor(here, rank=3, world=4, device="cpu", first_step=0, steps=5, log_s=0.0, stream=stream)
    _train(gauge, 0, 5)
    gauge.close()
    assert stream.getvalue() == ""
    keys = {str(fact.get("key")) for fact in facts()}
    assert {key for key in keys if key.endswith("_s")} == {"rank/3/step_s", "rank/3/compute_s"}


def test_a_count_may_be_a_tensor_and_a_loss_no_number(here: CurrentAttempt, facts: Facts) -> None:
    gauge = StepMonitor(here, rank=0, world=2, device="cpu", first_step=0, steps=3, log_s=0.0, stream=io.StringIO())
    for number in (0, 1, 2):
        gauge.stepped(number, torch.tensor(7.0), {"loss": torch.tensor(float("nan"))})  # type: ignore[arg-type]
    gauge.close()
    assert _values(facts(), "loss") == ["nan"] * 3
    assert len(_values(facts(), "samples_per_s")) == 2


def test_notes_tell_of_a_loss_out_of_the_ordinary_once(here: CurrentAttempt, facts: Facts) -> None:
    gauge = StepMonitor(here, rank=0, world=1, device="cpu", first_step=0, steps=50, log_s=0.0, stream=io.StringIO())
    for number in range(50):
        gauge.stepped(number, 1, {"loss": float("nan") if number in (40, 41, 42) else 2.0})
    gauge.close()
    notes = [fact["text"] for fact in facts() if fact["kind"] == "note"]
    assert [text for text in notes if "loss" in text] == ["rank 0: the loss of step 40 is nan; usual is 2"]


def test_use_of_the_chip_by_a_formula_and_by_counting(here: CurrentAttempt, facts: Facts) -> None:
    for habits in ({"flops_per_unit": 1e6}, {}):
        gauge = StepMonitor(
            here, rank=0, world=1, device="cpu", first_step=0, steps=0, log_s=0.0, stream=io.StringIO(), **habits
        )
        model = torch.nn.Linear(64, 64)
        gauge.watch(model)
        deadline = time.monotonic() + 60
        number = -1
        while gauge._utilization.flops == 0 and time.monotonic() < deadline:
            number += 1
            gauge.waited(0.0)
            model(torch.ones(16, 64)).sum().backward()
            gauge.stepped(number, 16, {})
        gauge.waited(0.0)
        gauge.stepped(number + 1, 16, {})
        gauge.close()
        assert gauge._utilization.flops == 2 * 2 * 16 * 64 * 64, (
            "an input that needs no gradient has no backward of its own"
        )
    assert all(value > 0 for value in _values(facts(), "mfu"))
    assert len(_values(facts(), "mfu")) >= 2


def test_boosters_are_watched_without_torch_and_pages_drawn_without_it() -> None:
    script = (
        "import sys, falaj.gauge.step_monitor, falaj.gauge.profile_page, "
        "falaj.gauge.straggler; print('torch' in sys.modules)"
    )
    told = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True, timeout=100)
    assert told.stdout.strip() == "False"
