"""Starting a sweep: flags, a file with the same words, the command line; and real trials that fail or say nothing."""

import inspect
import json
from pathlib import Path
from typing import Any

import pytest

from falaj.core.client_command import find_client_command
from falaj.core.errors import Invalid, UserCodeFailed
from falaj.jobs.client_commands import submit
from tests.jobs.lab import Lab
from tests.town import refusal

SMALL: dict[str, Any] = {"cpus": 0.1, "memory": "100MiB"}
GOOD = """
import os
from falaj import worker
worker.attempt().metric("loss", float(os.environ["FALAJ_PARAM_X"]), 1)
"""


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    return Lab(tmp_path)


def test_flags_of_a_job_are_flags_of_a_sweep() -> None:
    found = find_client_command(("falaj.study.client_commands",), "start")
    assert found is not None
    known = {param.name: param for param in found[0].params}
    left_out = {"client", "what", "name", "project", "after", "wait", "dry_run"}
    assert set(inspect.signature(submit).parameters) - left_out <= set(known)
    assert {"space", "metric", "trials", "at_once", "gang"} <= set(known)
    assert all(param.help for param in known.values())
    assert [name for name, param in known.items() if param.required] == ["what"]


def test_a_file_says_the_same_and_flags_win(lab: Lab) -> None:
    script = Path(lab.script(GOOD))
    words = {
        "name": "s1", "project": "lab", "command": f"python3 {script.name} --quick", "metric": "loss", "trials": 5,
        "space": {"x": "float:0..1", "width": [64, 128]}, "at_once": 2, "sampler": "random", "band": "low", **SMALL,
    }  # fmt: skip
    file = script.parent / "sweep.json"
    file.write_text(json.dumps(words))
    with lab.here:
        sweep = lab.here.sweeps.start(str(file), trials=7, outputs={"model": "model:lab/m"})
        assert (str(sweep.ref), sweep.state, sweep.progress) == ("sweep:lab/s1", "running", "0/7")
        assert sweep.plan.space == ("x=float:0..1", "width=64|128")
        assert (sweep.plan.at_once, sweep.spec.band) == (2, "low")
        assert sweep.spec.command == ("python3", "train.py", "--quick")
        assert str(sweep.code) == "code:lab/train@v1"
        assert str(sweep.outputs["model"]) == "model:lab/m"


def test_what_is_wrong_is_said_before_anything_is_kept(lab: Lab) -> None:
    script = lab.script(GOOD)
    with lab.here:
        start = lab.here.sweeps.start
        space = {"space": ("x=float:0..1",), "metric": "loss"}
        for more in ({}, {**space, "goal": "up"}, {"space": ("x=1..2",), "metric": "loss"}, {"space": ("x=1|2",)}):
            assert isinstance(refusal(lambda more=more: start(script, **more)), Invalid), more
        assert isinstance(refusal(lambda: start("nothing.py", **space)), Invalid)
        assert isinstance(refusal(lambda: start(script, **space, gpus=-1)), Invalid)
        file = lab.home / "bad.json"
        for words in ({"colour": "blue"}, {"space": {"optimizer": {"adam": {"lr": "log:1e-5..1"}}}}):
            file.write_text(json.dumps({"command": "true", "metric": "loss", **words}))
            assert isinstance(refusal(lambda: start(str(file))), Invalid), words
        assert lab.here.sweeps.list().sweeps == ()


def test_a_sweep_that_only_fails_stops_with_the_reason(lab: Lab) -> None:
    script = lab.script("raise SystemExit(3)")
    with lab.here:
        error = refusal(
            lambda: lab.here.sweeps.start(
                script, name="s1", space=("x=float:0..1",), metric="loss", at_once=2, wait=True, **SMALL
            )
        )
        assert isinstance(error, UserCodeFailed)
        assert "trials failed, the last: exit code 3" in error.message
        shown = lab.here.sweeps.show("sweep:default/s1")
        assert shown.state == "failed"
        assert 3 <= len(shown.trials) <= 4
        assert {one.state for one in shown.trials} <= {"failed", "cancelled"}


def test_the_greatest_is_best_where_more_is_better_and_who_says_nothing_failed(lab: Lab) -> None:
    script = lab.script("import sys\nif '0.5' in sys.argv: sys.exit()\n" + GOOD)
    with lab.here:
        words = {"goal": "max", "sampler": "grid", "stopper": "none", "wait": True, **SMALL}
        sweep = lab.here.sweeps.start(script, space=("x=0.25|0.5|0.75",), metric="loss", **words)
        assert (sweep.state, sweep.progress, sweep.value) == ("finished", "3/3", 0.75)
        states = {one.params["x"]: (one.state, one.note) for one in sweep.trials}
        assert states[0.5] == ("failed", "it never reported a number as loss")
        assert next(iter(sweep.trials)).params == {"x": 0.75}


def test_any_trial_can_be_kept_by_hand_and_nothing_else(lab: Lab) -> None:
    write = (
        "\nimport pathlib\npathlib.Path(os.environ['FALAJ_OUTPUT_MODEL'], 'm').write_text(os.environ['FALAJ_PARAMS'])\n"
    )
    script = lab.script(GOOD + write)
    with lab.here:
        words = {"name": "s1", "sampler": "grid", "stopper": "none", "wait": True, **SMALL}
        out = {"model": "model:default/m"}
        sweep = lab.here.sweeps.start(script, space=("x=1|2",), metric="loss", outputs=out, **words)
        best, second = sweep.trials
        assert [str(one.outputs["model"].bare) for one in sweep.trials] == ["model:default/m.trials"] * 2
        show = lab.here.catalog.show
        assert show("model:default/m@v1").root == show(best.outputs["model"]).root
        made = lab.here.sweeps.keep(sweep.ref, second.outputs["model"], "model:default/m")
        assert str(made) == "model:default/m@v2"
        assert show(made).root == show(second.outputs["model"]).root
        assert show(made).card.params["x"] == "2"
        with lab.here.house.ledger.read(lab.here.house.system()) as tx:
            kept, published = (tx.need(ref).body for ref in (made, second.outputs["model"]))
        missing = {"key", "signature", "seen", "files"} - set(kept)
        assert not missing, "a gate asks for all of it"
        assert {**kept["seen"], "at": 0} == {**published["seen"], "at": 0}
        keep = lab.here.sweeps.keep
        for version, name in (
            ("model:default/m@v1", "model:default/n"),
            (second.outputs["model"], "model:default/m@v1"),
            (second.outputs["model"], "dataset:default/m"),
        ):
            assert isinstance(refusal(lambda version=version, name=name: keep(sweep.ref, version, name)), Invalid)
        found = lab.here.track.list(where="tags.sweep = 'sweep:default/s1'").runs
        assert {run.ref for run in found} == {one.run for one in sweep.trials}
