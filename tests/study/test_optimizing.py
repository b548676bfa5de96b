"""The errand that optimises, on real models: a child is published, or nothing is; as a job, too."""

import json
import os
import signal
import threading
import time
from pathlib import Path

import pytest

from falaj.cli import main
from falaj.core.client_command import list_client_commands
from falaj.core.errors import Invalid, NotFound, UserCodeFailed
from falaj.core.ref import Ref
from falaj.study import optimize_command
from falaj.study.optimize_command import optimize, parse_fraction
from tests.infer import models
from tests.jobs.lab import Lab
from tests.optimize import nets
from tests.town import refusal

MODEL = Ref.parse("model:lab/reader")


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lab:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FALAJ_TOKEN_OF_OTHERS", "secret")
    return Lab(tmp_path)


def _published(lab: Lab) -> Ref:
    models.encoder(lab.home / "encoder", layers=1, width=128, words=64)
    ref: Ref = lab.here.catalog.publish(MODEL, str(lab.home / "encoder")).ref
    return ref


def _versions(lab: Lab) -> list[str]:
    return [str(one.ref) for one in lab.here.catalog.list(project="lab").versions]


def test_the_errand_teaches() -> None:
    ((verb, _),) = list_client_commands(("falaj.study.optimize_command",)).values()
    assert "falaj optimize" in verb.doc
    assert all(param.help for param in verb.params)


def test_the_fastest_within_the_bound_becomes_the_next_version(lab: Lab, capsys: pytest.CaptureFixture[str]) -> None:
    first = _published(lab)
    words = ["optimize", str(MODEL), "--for", "cpu", "--max-loss=20%", "--methods", "int8-dynamic,sparse", "--json"]
    assert main(["--at", str(lab.home / "house"), *words]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["model"], told["ref"], told["chosen"]) == (str(first), f"{MODEL}@v2", "int8-dynamic")
    assert [one["name"] for one in told["tried"]] == ["as it is", "int8-dynamic", "sparse"]
    child = lab.here.catalog.show(Ref.parse(told["ref"]))
    assert dict(child.inputs) == {"parent": first}
    assert child.card.params["method"] == "int8-dynamic"
    assert child.card.metrics["agreement"] >= 0.8
    assert (child.card.format, child.card.code_bearing) == ("onnx", False)
    evidence = json.loads(b"".join(lab.here.catalog.cat(child.ref, "optimize.json")))
    assert evidence["made_from"] == {"parent": str(first)}
    assert told["lines"][0].split()[:2] == ["variant", "verdict"]
    assert any(line.startswith("→ ") for line in told["lines"])
    assert sorted(one.name for one in lab.home.iterdir()) == ["encoder", "house"]


def test_nothing_is_published_when_nothing_is_within_the_bound(lab: Lab) -> None:
    _published(lab)
    found = optimize(lab.here, MODEL, how={"methods": "sparse"}, max_loss="0")
    assert (found.ref, found.chosen) == (None, "")
    assert found.tried[1]["verdict"] == "refused"
    assert found.lines[-1] == "nothing within 0.00% is faster: nothing is published"
    assert _versions(lab) == [f"{MODEL}@v1"]


def test_a_child_that_is_killed_publishes_nothing(lab: Lab) -> None:
    _published(lab)

    def kill() -> None:
        end = time.monotonic() + 60
        while time.monotonic() < end:
            for child in Path(f"/proc/{os.getpid()}/task").glob("*/children"):
                for pid in child.read_text().split():
                    if b"falaj.optimize" in Path(f"/proc/{pid}/cmdline").read_bytes():
                        assert b"FALAJ_TOKEN_OF_OTHERS" not in Path(f"/proc/{pid}/environ").read_bytes()
                        os.kill(int(pid), signal.SIGKILL)
                        return
            time.sleep(0.01)

    killer = threading.Thread(target=kill)
    killer.start()
    failed = refusal(lambda: optimize(lab.here, MODEL))
    killer.join()
    assert isinstance(failed, UserCodeFailed)
    assert "by signal 9" in failed.message
    assert _versions(lab) == [f"{MODEL}@v1"]


def test_what_is_wrong_is_said_before_anything_runs(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    _published(lab)
    monkeypatch.setattr(optimize_command, "OPTIMIZE_MODULE", "falaj.never")
    wrong: list[dict[str, str]] = [
        {"magic": "1"}, {"seed": "many"}, {"code": "nowhere"}, {"out": "dataset:lab/x"}, {"out": f"{MODEL}@v1"},
    ]  # fmt: skip
    for how in wrong:
        assert isinstance(refusal(lambda how=how: optimize(lab.here, MODEL, how=how)), Invalid), how
    for loss in ("much", "-1%", "101%", "nan"):
        assert isinstance(refusal(lambda loss=loss: optimize(lab.here, MODEL, max_loss=loss)), Invalid), loss
    assert isinstance(refusal(lambda: optimize(lab.here, Ref.parse("dataset:lab/x"))), Invalid)
    assert isinstance(refusal(lambda: optimize(lab.here, Ref.parse("model:lab/none"))), NotFound)
    assert parse_fraction("0.5%") == parse_fraction("0.005") == 0.005


def test_what_the_child_says_is_wrong_is_raised_here(lab: Lab) -> None:
    _published(lab)
    assert isinstance(refusal(lambda: optimize(lab.here, MODEL, aim="tpu")), Invalid)
    assert isinstance(refusal(lambda: optimize(lab.here, MODEL, target="label")), Invalid)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_torch_model_with_code_and_data_here_and_in_a_job(lab: Lab) -> None:
    folder = nets.model(lab.home / "net")
    name = Ref.parse("model:lab/net")
    data = lab.here.catalog.publish(Ref.parse("dataset:lab/rows"), str(folder / "data")).ref
    first = lab.here.catalog.publish(name, str(folder / "model"), code=str(folder / "code")).ref
    how = {"methods": "int8-dynamic,distil", "epochs": "20", "rounds": "2"}
    with lab.here:
        here = optimize(lab.here, name, max_loss="10%", data=data, target="label", how=how)
        there = optimize(lab.here, first, max_loss="10%", data=data, target="label", how={**how, "cluster": "local"})
        (job,) = lab.here.jobs.list(project="lab").jobs
        assert [str(one.ref) for one in (here, there)] == ["model:lab/net@v2", "model:lab/net@v3"]
        assert here.measure == "accuracy"
        child = lab.here.catalog.show(here.ref)
        assert child.inputs["parent"] == first
        assert child.inputs["data"] == data
        assert child.inputs["code"].kind == "code"
        assert lab.here.catalog.show(there.ref).inputs["parent"] == first
        assert job.state == "succeeded"
        digests = [{one["name"]: one["sha256"] for one in found.tried} for found in (here, there)]
        assert digests[0] == digests[1]
