"""Profiles of a real loop on a CPU, and what is asked for in vain."""

import io
import json
import time
from pathlib import Path

import pytest
import torch

from falaj.core.errors import CorruptData, Invalid, NotFound
from falaj.gauge import profile
from falaj.gauge.profile_page import render_profile
from falaj.gauge.step_monitor import COMMUNICATION_PHASE, StepMonitor
from falaj.worker import CurrentAttempt

_LONG_S = 100.0


def _loop(gauge: StepMonitor, first: int, last: int) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for number in range(first, last):
        begun = time.perf_counter()
        while time.perf_counter() - begun < 0.002:
            pass
        gauge.waited(time.perf_counter() - begun)
        loss = model(torch.ones(32, 64)).square().sum()
        loss.backward()
        with gauge.phase(COMMUNICATION_PHASE):
            torch.zeros(10).sum()
        optimizer.step()
        optimizer.zero_grad()
        gauge.stepped(number, 32, {"loss": loss.detach()})


def _gauge(here: CurrentAttempt) -> StepMonitor:
    return StepMonitor(here, rank=0, world=1, device="cpu", first_step=0, steps=20, log_s=0.0, stream=io.StringIO())


def _until_read(place: Path) -> None:
    deadline = time.monotonic() + _LONG_S
    while (place / "trace.json").exists():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_profile_asked_for_before_the_run(here: CurrentAttempt, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FALAJ_PROFILE", '{"first": 6, "steps": 4}')
    gauge = _gauge(here)
    _loop(gauge, 0, 20)
    gauge.close()
    assert here.checkpoints is not None
    (place,) = (here.checkpoints / "profiles").iterdir()
    assert place.name == "step-6"
    _until_read(place)
    assert sorted(file.name for file in place.iterdir()) == ["facts.json", "summary.json", "trace.json.gz"]
    found = profile.read_summary(here.checkpoints / "profiles")
    assert found["steps"] == len(found["step_s"]) == 4
    assert found["waits"]["count"] == 4
    split = found["split"]
    assert sum(split.values()) == pytest.approx(found["span_s"], rel=1e-6)
    assert all(split[part] > 0 for part in ("compute", "communication", "input", "host"))
    assert {"aten::addmm", "aten::mm"} <= {one["name"] for one in found["kernels"]}
    assert found["matmul"]["fp32_s"] == found["matmul"]["seconds"] > 0
    assert found["memory"]
    assert found["facts"]["loss"] >= 0
    assert "The input is too slow" in render_profile(found)


def test_a_run_under_way_is_asked_by_a_file_and_reads_itself_without_a_summary(here: CurrentAttempt) -> None:
    assert here.checkpoints is not None
    folder = here.checkpoints / "profiles"
    gauge = _gauge(here)
    folder.mkdir(parents=True)
    (folder / "ask.json").write_text('{"steps": 1}')
    deadline, last = time.monotonic() + _LONG_S, 0
    while not list(folder.glob("step-*")):
        assert time.monotonic() < deadline
        _loop(gauge, last, last + 5)
        last += 5
    gauge.close()
    (place,) = folder.glob("step-*")
    _until_read(place)
    told = json.loads((place / "summary.json").read_text())
    (place / "summary.json").unlink()
    assert profile.read_summary(place) == told | {"memory": [tuple(point) for point in told["memory"]]}


def test_slow_steps_bring_a_profile_twice_at_most(here: CurrentAttempt, tmp_path: Path) -> None:
    capture = profile.ProfileCapture(tmp_path, "cpu", dict)
    assert [capture.slow() for _ in range(3)] == [True, True, False]
    assert not profile.ProfileCapture(None, "cpu", dict).slow(), "there is nowhere to put it"
    del here


def test_a_folder_that_cannot_be_ends_no_training(
    here: CurrentAttempt, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    said = {"first": 3, "steps": 1, "folder": str(tmp_path / "file" / "profiles")}
    monkeypatch.setenv("FALAJ_PROFILE", json.dumps(said))
    gauge = _gauge(here)
    _loop(gauge, 0, 12)
    gauge.close()
    assert gauge.number == 11


@pytest.mark.parametrize("text", ["{", "[]", '{"first": "soon"}', "7"])
def test_what_asks_for_no_profile_is_refused(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FALAJ_PROFILE", text)
    with pytest.raises(Invalid):
        profile.ProfileCapture(tmp_path, "cpu", dict)


def test_no_profile_and_a_broken_one(tmp_path: Path) -> None:
    with pytest.raises(NotFound):
        profile.read_summary(tmp_path)
    (tmp_path / "facts.json").write_text("{}")
    with pytest.raises(CorruptData):
        profile.read_summary(tmp_path)
    (tmp_path / "trace.json.gz").write_bytes(b"\x1f\x8b torn")
    with pytest.raises(CorruptData):
        profile.read_summary(tmp_path)
