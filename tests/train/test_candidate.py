"""Real scripts, measured in processes of their own: what they say, how they fail, and that nothing is left of them."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

import pytest

from falaj.core.errors import Invalid
from falaj.train.candidate import CandidateBounds, measure_candidate

import_module("torch._dynamo")  # what optimizers load at their first step is here before anybody is forked

MIB = 1 << 20
QUICK = CandidateBounds(steps=3, warm=1, limit_s=300.0)
FRESH = QUICK._replace(fresh=True)
"""For limits of memory: a child that is forked begins with all that this process has."""
SCRIPT = """
import os, sys, time
import torch
from torch import nn
from falaj import train

class Wide(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.scale = nn.Parameter(torch.rand(width))
    def forward(self, x):
        hidden = x * self.scale
        for _ in range(3):
            hidden = hidden.sin()
        return hidden.mean(1)

def main(run):
    torch.set_num_threads(1)
    data = run.data({"x": torch.rand(4096, 1)}, batch=int(sys.argv[1]))
    model = run.parallel(Wide(int(sys.argv[2])))
    opt = run.adamw(model, lr=1e-3)
    for step in run.steps(3, data):
        for batch in step.micro():
            step.backward(model(batch["x"]).square())
        step.apply(opt)
        run.here.progress(step.number)
        if "fail" in sys.argv:
            raise KeyError("no such column: price")
        if "hang" in sys.argv:
            time.sleep(1000)
        if "hoard" in sys.argv:
            kept = torch.ones(1 << 40)
    run.save_model(model)

if __name__ == "__main__":
    train.start(main, checkpoints="checkpoints")
"""


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(SCRIPT)
    return "train.py"


@pytest.mark.parametrize("fresh", [False, True])
def test_a_script_is_measured_and_leaves_nothing(script: str, fresh: bool) -> None:
    """It wants three steps, a folder of checkpoints and a saved model; four are measured, and none of that is made."""
    measured = measure_candidate([script, "24", "4096"], {"micro": 8}, QUICK._replace(fresh=fresh))
    assert measured.failed == ""
    assert measured.good
    assert (measured.batch, measured.micro) == (24, 8)
    assert measured.units_s == pytest.approx(24 / measured.step_s)
    assert 0 < measured.phases["work"] <= measured.step_s
    assert 0 < measured.work_bytes <= measured.free_bytes
    assert measured.options["micro"] == 8
    assert measured.chip["kind"] == "cpu"
    assert _files() == ["train.py"]


def test_shapes_tell_models_and_data_apart(script: str) -> None:
    asked = [["24", "64"], ["24", "64"], ["48", "64"], ["24", "128"]]
    first, again, other_batch, other_model = (measure_candidate([script, *words], {}, QUICK).shape for words in asked)
    assert first == again != ""
    assert len({first, other_batch, other_model}) == 3


def test_in_an_attempt_nobody_is_told(script: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told, kept, made = (tmp_path / name for name in ("outbox", "kept", "made"))
    for name, value in (("ATTEMPT", "a"), ("OUTBOX", told), ("CHECKPOINTS", kept), ("OUTPUT_MODEL", made)):
        monkeypatch.setenv(f"FALAJ_{name}", str(value))
    monkeypatch.setenv("WORLD_SIZE", "4")
    assert measure_candidate([script, "8", "64"], {"save_steps": 1}, QUICK).good
    assert _files() == ["train.py"]


@pytest.mark.parametrize("fresh", [False, True])
def test_a_script_that_fails_says_why(script: str, fresh: bool) -> None:
    measured = measure_candidate([script, "8", "64", "fail"], {}, QUICK._replace(fresh=fresh))
    assert not measured.good
    assert measured.failed.splitlines()[-1] == "KeyError: 'no such column: price'"
    assert "train.py" in measured.failed
    assert "candidate.py" not in measured.failed


def test_a_script_that_is_none_of_ours_says_so(tmp_path: Path) -> None:
    (tmp_path / "other.py").write_text("print('hello')")
    assert (
        measure_candidate([str(tmp_path / "other.py")], {}, QUICK).failed
        == "it took no steps of falaj.train; it said: hello"
    )
    with pytest.raises(Invalid, match="no file"):
        measure_candidate([str(tmp_path / "missing.py")], {}, QUICK)


def test_a_script_that_hangs_is_ended(script: str) -> None:
    measured = measure_candidate([script, "8", "64", "hang"], {}, QUICK._replace(limit_s=8.0))
    assert "not done after 8 s" in measured.failed
    assert _alive(script) == []


def test_memory_that_is_not_there_is_no_failure(script: str) -> None:
    measured = measure_candidate([script, "8", "64", "hoard"], {}, QUICK)
    assert measured.oom
    assert measured.batch == 8


@pytest.mark.slow
def test_a_limit_holds_though_there_is_more(script: str) -> None:
    """Half a gigabyte of activations where there is room for less; a quarter of the samples goes."""
    words, bounds = [script, "256", str(1 << 17)], FRESH._replace(limit_bytes=900 * MIB)
    assert measure_candidate(words, {}, bounds).oom
    less = measure_candidate(words, {"micro": 64}, bounds)
    assert less.good
    assert less.free_bytes <= 900 * MIB


@pytest.mark.parametrize(
    "how", [signal.SIGKILL, *(pytest.param(one, marks=pytest.mark.slow) for one in (signal.SIGTERM, signal.SIGINT))]
)
def test_interrupted_it_leaves_nothing(script: str, tmp_path: Path, how: signal.Signals) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    command = [sys.executable, "-m", "falaj.train.autotune", script, "8", "64", "hang"]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, env={**os.environ, "TMPDIR": str(scratch)})
    _until(lambda: any(pid != child.pid for pid in _alive(script)))
    child.send_signal(how)
    child.communicate(timeout=100)
    _until(lambda: _alive(script) == [])
    assert child.returncode == (-how if how == signal.SIGKILL else 130)
    assert list(scratch.rglob("*")) == []
    assert _files() == ["scratch", "train.py"]


def _files() -> list[str]:
    return sorted(path.name for path in Path().iterdir())


def _alive(script: str) -> list[int]:
    """Processes in the script's folder, but for this one."""
    home, found = Path(script).resolve().parent, []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if (entry / "cwd").readlink() == home and int(entry.name) != os.getpid():
                found.append(int(entry.name))
    return found


def _until(true: Callable[[], bool]) -> None:
    until = time.monotonic() + 100
    while not true():
        assert time.monotonic() < until
        time.sleep(0.05)
