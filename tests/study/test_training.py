"""The errands of those who train, on real scripts: here, and in jobs of an embedded platform."""

import json
from pathlib import Path
from typing import Any

import pytest

from falaj.cli.output import to_plain
from falaj.core.client_command import list_client_commands
from falaj.core.errors import Invalid, UserCodeFailed
from falaj.study import training_commands
from tests.jobs.lab import Lab
from tests.town import refusal

SCRIPT = """
import sys
import torch
from torch import nn
from falaj import train

def main(run):
    data = run.data({"x": torch.rand(64, 1)}, batch=8, micro=4)
    model = run.parallel(nn.Sequential(nn.Linear(1, 64), nn.ReLU(), nn.Linear(64, 1)))
    opt = run.adamw(model, lr=1e-3)
    for step in run.steps(4, data):
        for batch in step.micro():
            if "--fail" in sys.argv:
                raise KeyError("no such column: price")
            step.backward(model(batch["x"]).square().mean(1))
        step.apply(opt)

if __name__ == "__main__":
    train.start(main, precision="fp32", compile="default", threads=1, ahead=2)
"""


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lab:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("TORCH_COMPILE_DISABLE", "1")  # a compiler takes longer than all the rest
    return Lab(tmp_path)


def test_every_errand_teaches() -> None:
    found = list_client_commands(("falaj.study.training_commands",))
    assert list(found) == ["autotune", "profile", "curve"]
    for verb, _ in found.values():
        assert f"falaj train {verb.name}" in verb.doc
        assert verb.summary.endswith(".")
        assert all(param.help for param in verb.params)


def test_a_script_is_tuned_here_and_the_choice_lies_beside_it(lab: Lab) -> None:
    script = lab.script(SCRIPT)
    file = Path(script).parent / "falaj-train.json"
    file.write_text('{"other.py": {"micro": 2}}')
    tuned = training_commands.autotune(lab.here, f"python {script} --width 3")
    assert tuned.options == {}
    assert [one["name"] for one in tuned.tried] == ["as it is"]
    assert json.loads(file.read_text()) == {"other.py": {"micro": 2}, "train.py": {}}
    assert tuned.submit == f"falaj jobs submit '{script} --width 3'"
    assert tuned.lines[0].split() == ["tried", "samples/s", "memory", "verdict"]
    assert json.loads(json.dumps(to_plain(tuned)))["before_units_s"] == tuned.before_units_s
    again = training_commands.autotune(lab.here, f"{script} --width 3")
    assert (again.cached, again.tried[0]["name"]) == (True, "found before")
    assert sorted(path.name for path in Path(script).parent.iterdir()) == ["falaj-train.json", "train.py"]


def test_what_is_wrong_is_one_clear_error(lab: Lab) -> None:
    script = lab.script(SCRIPT)
    failed = refusal(lambda: training_commands.autotune(lab.here, f"{script} --fail"))
    assert isinstance(failed, UserCodeFailed)
    assert "no such column: price" in failed.message
    for what in ("missing.py", "", "python missing.py"):
        assert isinstance(refusal(lambda what=what: training_commands.autotune(lab.here, what)), Invalid)
        assert isinstance(refusal(lambda what=what: training_commands.profile(lab.here, what)), Invalid)
    assert isinstance(refusal(lambda: training_commands.profile(lab.here, script, steps=0)), Invalid)
    assert not (Path(script).parent / "falaj-train.json").exists()


def test_a_script_is_profiled_here(lab: Lab) -> None:
    found = training_commands.profile(lab.here, lab.script(SCRIPT))
    page = Path(found.page).read_text()
    assert found.page == "profile-train.html"
    assert "<svg" in page
    assert "Where the time went" in page
    assert {"compute", "input"} <= set(found.split)
    assert found.lines[-1] == "the page: profile-train.html"
    assert json.loads(json.dumps(to_plain(found)))["split"] == found.split
    assert sorted(path.name for path in Path("code-train").iterdir()) == ["train.py"]


@pytest.mark.slow
def test_a_script_is_tuned_in_a_job(lab: Lab) -> None:
    with lab.here:
        tuned = training_commands.autotune(lab.here, lab.script(SCRIPT), cluster="local", project="lab")
        (job,) = lab.here.jobs.list(project="lab").jobs
    assert tuned.options == {}
    assert tuned.units_s > 0
    assert job.state == "succeeded"
    assert job.ref.name.startswith("autotune-train-")
    assert str(job.code) == "code:lab/train@v1"


@pytest.mark.slow
def test_a_run_without_a_profile_is_run_again_and_keeps_it(lab: Lab) -> None:
    needs: dict[str, Any] = {"cpus": 0.5, "memory": "4GiB", "project": "lab"}
    with lab.here:
        job = lab.done(lab.submit(SCRIPT, **needs))
        assert job.state == "succeeded", lab.lines(job)
        first = training_commands.profile(lab.here, str(job.run))
        assert "was run again" in first.lines[0]
        assert "<svg" in Path(first.page).read_text()
        again = training_commands.profile(lab.here, str(job.ref), out="other.html")
        assert again.split == first.split
        assert "was run again" not in again.lines[0]
        assert len(lab.here.jobs.list(project="lab").jobs) == 2


def test_a_curve_is_drawn(lab: Lab) -> None:
    text = "from falaj import worker\nfor n in range(50): worker.attempt().metric('loss', 1 / (n + 1), n)"
    with lab.here:
        job = lab.done(lab.submit(text, project="lab"))
        drawn = training_commands.curve(lab.here, job.run)
        assert drawn == training_commands.curve(lab.here, job.ref)
        assert drawn.startswith("loss\n")
        assert len(drawn.splitlines()) > 10
        wrong = refusal(lambda: training_commands.curve(lab.here, job.run, metric="accuracy"))
        assert isinstance(wrong, Invalid)
        assert "it has loss" in wrong.hint
