"""The whole of it on real scripts: what it predicts, what it keeps, what it says, what it remembers."""

import json
import math
import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from falaj.train.autotune import compute_cache_key, tune_script
from falaj.train.candidate import CandidateBounds, measure_candidate
from falaj.train.search import TuningTrial
from falaj.train.sizing import FILL_SHARE, MemoryPoint, find_largest, list_divisors
from tests.train.test_candidate import MIB, SCRIPT

import_module("torch._dynamo")
QUICK = CandidateBounds(steps=2, warm=1, limit_s=300.0)
SETTLED = """
def main(run):
    data = run.data({"x": torch.rand(64, 1)}, batch=8, micro=4)
    model = run.parallel(nn.Linear(1, 1))
    opt = run.adamw(model, lr=1e-3)
    for step in run.steps(3, data):
        for batch in step.micro():
            step.backward(model(batch["x"]).square().mean(1))
        step.apply(opt)

if __name__ == "__main__":
    train.start(main, precision="fp32", compile="default", threads=1, ahead=2)
"""


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(SCRIPT)
    return "train.py"


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_largest_batch_is_foretold(script: str) -> None:
    """A line through small micro-batches against trying it out: 5 % less goes, and 5 % more does not."""
    bounds = QUICK._replace(steps=1, limit_bytes=1200 * MIB, fresh=True)

    def look(micro: int) -> MemoryPoint:
        got = measure_candidate([script, str(micro), str(1 << 17)], {}, bounds)
        return MemoryPoint(micro, got.work_bytes, got.free_bytes, got.good)

    small = [size for size in list_divisors(5040) if size <= 126]
    foretold = find_largest(look, small, 42).predicted
    assert 126 < foretold < 1000
    less, more = look(int(foretold * 0.95)), look(math.ceil(foretold * 1.05))
    assert less.fits
    assert less.bytes <= FILL_SHARE * less.free_bytes
    assert not more.fits or more.bytes > FILL_SHARE * more.free_bytes


@pytest.mark.slow
def test_what_is_kept_was_measured_and_is_not_slower(script: str) -> None:
    heard: list[TuningTrial] = []
    found = tune_script([script, "64", "2048"], QUICK, report_trial=heard.append)
    assert tuple(heard) == found.tried
    assert found.tried[0].name == "as it is"
    assert found.units_s >= found.before_units_s
    assert 64 % found.changes.get("micro", 64) == 0
    if found.changes:
        again = {one.name: one.units_s for one in found.tried if one.name.endswith("again")}
        assert again["the choice, again"] >= again["as it is, again"]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_script_that_does_not_fit_is_made_to(script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half a gigabyte too much by itself: it gets a micro-batch that divides its batch, and stays inside its memory."""
    monkeypatch.setattr(import_module("torch._dynamo").config, "disable", True)  # or all of it melts into one kernel
    monkeypatch.setenv("FALAJ_TRAIN", '{"precision": "fp32", "threads": 1}')
    bounds = QUICK._replace(limit_bytes=1000 * MIB, fresh=True)
    found = tune_script([script, "360", str(1 << 17)], bounds, report_trial=lambda _: None)
    assert (found.tried[0].name, found.tried[0].verdict) == ("as it is", "out of memory")
    assert found.before_units_s == 0
    assert 360 % found.changes["micro"] == 0
    assert found.changes["micro"] <= 1.05 * found.largest < 360
    assert found.memory_bytes <= 1000 * MIB
    assert found.units_s > 0


def lines(*words: str, cache: Path) -> list[dict[str, Any]]:
    command = [sys.executable, "-m", "falaj.train.autotune", "--steps", "2", "--cache", str(cache), *words]
    known = {**os.environ, "TORCH_COMPILE_DISABLE": "1"}  # what a compiler does takes longer than all the rest
    result = subprocess.run(command, check=False, capture_output=True, text=True, timeout=110, env=known)
    said = [json.loads(line) for line in result.stdout.splitlines()]
    assert said, result.stderr
    assert (result.returncode == 0) == ("tuned" in said[-1]), result.stderr
    return said


@pytest.mark.slow
def test_the_command_says_lines_and_remembers(tmp_path: Path) -> None:
    """A script that says everything itself leaves nothing to try."""
    script, cache = tmp_path / "train.py", tmp_path / "cache"
    script.write_text(SCRIPT.partition("def main")[0] + SETTLED)
    first = lines(str(script), cache=cache)
    assert [one["tried"]["name"] for one in first[:-1]] == ["as it is"]
    assert first[-1]["tuned"]["changes"] == {}
    assert first[-1]["tuned"]["batch"] == 8
    again = lines(str(script), cache=cache)
    assert [one["tried"]["name"] for one in again[:-1]] == ["found before"]
    assert again[-1]["tuned"] == first[-1]["tuned"] | {"cached": True}


@pytest.mark.slow
def test_the_command_fails_with_the_scripts_last_lines(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    (said,) = [one["error"] for one in lines(str(script), "8", "64", "fail", cache=tmp_path / "c") if "error" in one]
    assert said["code"] == "user-code-failed"
    assert "no such column: price" in said["message"]
    assert lines(cache=tmp_path / "c")[-1]["error"]["message"] == "there is no script"


def test_a_result_is_of_this_script_on_this_machine(script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    known = {compute_cache_key([script, "8"], QUICK, 1)}
    assert compute_cache_key([script, "8"], QUICK, 1) in known
    known.add(compute_cache_key([script, "9"], QUICK, 1))
    known.add(compute_cache_key([script, "8"], QUICK, 2))
    known.add(compute_cache_key([script, "8"], QUICK._replace(limit_bytes=MIB), 1))
    Path("model.py").write_text("x = 1")
    known.add(compute_cache_key([script, "8"], QUICK, 1))
    monkeypatch.setitem(os.environ, "FALAJ_TRAIN", '{"precision": "fp32"}')
    known.add(compute_cache_key([script, "8"], QUICK, 1))
    assert len(known) == 6
