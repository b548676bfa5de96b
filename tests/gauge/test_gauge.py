"""The gauge beside real loops on CPUs: what it tells, what it shows, and that it never raises into training."""

import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from falaj.gauge.gauge import COMMUNICATION, Gauge
from falaj.worker import Here


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Here]:
    monkeypatch.setenv("FALAJ_ATTEMPT", "a-1")
    monkeypatch.setenv("FALAJ_OUTBOX", str(tmp_path / "outbox"))
    torch.set_num_threads(1)
    found = Here()
    yield found
    if found._outbox is not None:
        found._outbox.close()


def _facts(tmp_path: Path) -> list[dict[str, Any]]:
    files = sorted((tmp_path / "outbox").iterdir())
    return [json.loads(line) for file in files for line in file.read_text().splitlines()]


def _train(gauge: Gauge, first: int, last: int) -> None:
    model = torch.nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for number in range(first + 1, last + 1):
        gauge.waited(0.0)
        loss = model(torch.ones(4, 8)).square().sum()
        with gauge.phase(COMMUNICATION):
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        gauge.stepped(number, 4, {"loss": loss.detach(), "lr": 0.01})


def _values(facts: list[dict[str, Any]], key: str) -> list[float]:
    return [fact["value"] for fact in facts if fact["kind"] == "metric" and fact["key"] == key]


def test_it_tells_the_first_step_and_then_at_every_log_point(tmp_path: Path, here: Here) -> None:
    stream = io.StringIO()
    gauge = Gauge(here, rank=0, world=1, device="cpu", first=10, steps=30, log_s=0.0, stream=stream, units="tokens")
    _train(gauge, 10, 30)
    gauge.saved(30, 0.0)
    gauge.close()
    facts = _facts(tmp_path)
    assert [fact["step"] for fact in facts if fact["kind"] == "progress"] == list(range(11, 31))
    assert len(_values(facts, "loss")) == 20
    assert len(_values(facts, "tokens_per_s")) == 19, "the first step's pace says nothing"
    for key in ("lr", "step_s", "memory_peak_bytes", "input_wait", "checkpoint_stall", "phase/communication"):
        assert _values(facts, key), key
    assert all(0 <= value <= 100 for value in _values(facts, "goodput"))
    assert "step 30/30  loss " in stream.getvalue()
    assert "tokens/s" in stream.getvalue()


def test_between_log_points_it_tells_nothing(tmp_path: Path, here: Here) -> None:
    gauge = Gauge(here, rank=0, world=1, device="cpu", first=0, steps=9, log_s=1e9, stream=io.StringIO())
    _train(gauge, 0, 9)
    gauge.close()
    assert [fact["step"] for fact in _facts(tmp_path) if fact["kind"] == "progress"] == [1]


def test_other_ranks_tell_only_their_own_times(tmp_path: Path, here: Here) -> None:
    stream = io.StringIO()
    gauge = Gauge(here, rank=3, world=4, device="cpu", first=0, steps=5, log_s=0.0, stream=stream)
    _train(gauge, 0, 5)
    gauge.close()
    assert stream.getvalue() == ""
    assert {fact.get("key") for fact in _facts(tmp_path)} == {"rank/3/step_s", "rank/3/compute_s"}


def test_a_count_may_be_a_tensor_and_a_loss_no_number(tmp_path: Path, here: Here) -> None:
    gauge = Gauge(here, rank=0, world=2, device="cpu", first=0, steps=3, log_s=0.0, stream=io.StringIO())
    for number in (1, 2, 3):
        gauge.stepped(number, torch.tensor(7.0), {"loss": torch.tensor(float("nan"))})  # type: ignore[arg-type]
    gauge.close()
    assert _values(_facts(tmp_path), "loss") == ["nan"] * 3
    assert len(_values(_facts(tmp_path), "samples_per_s")) == 2
