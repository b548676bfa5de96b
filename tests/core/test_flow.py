"""How a flow is written: what calls of steps become, and what is said to whoever writes what cannot be."""

from pathlib import Path
from typing import Any

import pytest

from falaj import flow, step
from falaj.core.errors import Invalid
from falaj.core.flow_definition import Dataset, Model, use_local_outputs
from falaj.core.flow_draft import detect_resource_kind
from falaj.core.ref import Ref


@step(cpus=2, retries=1, outputs={"rows": "dataset:fraud/rows"})
def clean(raw: Dataset, threshold: float = 0.5) -> dict[str, Any]:
    (step.output("rows") / "n").write_text(str(threshold))
    return {"n": 1}


@step(outputs={"model": "model:fraud/m", "report": "dataset:fraud/r"})
def train(rows: Dataset, name: str = "") -> dict[str, Any]:
    del rows
    return {"name": name}


@step
def score(part: int, model: Model) -> int:
    del model
    return part * 2


def written(function: Any, **params: Any) -> dict[str, dict[str, Any]]:
    plan = flow("fraud/x", params=params)(function).plan()
    return {one["name"]: one for one in plan["steps"]}


def test_calls_are_written_down() -> None:
    def retrain(data: Any, threshold: Any = 0.7) -> None:
        made = clean(data, threshold=threshold)
        trained = train(made, "model:fraud/m@v1")
        parts = score.map([1, 2], model=trained["model"])
        with flow.when(made["n"]), flow.unless(trained["name"]):
            flow.verb("serve.add", endpoint="endpoint:fraud/s", model=trained["model"], plan={"needs": {"cpus": 1}})
        with flow.after(parts):
            flow.job("python tell.py", inputs={"rows": made["rows"]}, params={"n": made["n"]}, name="tell", gpus=1)
        flow.approval("Shall it?", about=trained["model"])
        clean(data)

    steps = written(retrain, data="dataset:fraud/tx")
    assert list(steps) == ["clean", "train", "score", "serve_add", "tell", "approval", "clean_2"]
    assert steps["clean"]["takes"] == {"raw": {"param": "data"}, "threshold": {"param": "threshold"}}
    assert steps["clean"]["entry"] == "test_flow.py:clean"
    assert (steps["clean"]["retries"], steps["clean"]["words"]) == (1, {"cpus": 2})
    assert steps["train"]["takes"]["rows"] == {"step": "clean", "out": "rows"}
    # The function says that it wants a text: the reference is not opened.
    assert steps["train"]["takes"]["name"] == {"ref": "model:fraud/m@v1", "text": True}
    assert steps["score"]["over"] == "part"
    assert steps["score"]["takes"] == {"part": [1, 2], "model": {"step": "train", "out": "model"}}
    assert [bool(one.get("not")) for one in steps["serve_add"]["when"]["all"]] == [False, True]
    assert steps["serve_add"]["takes"]["plan"] == {"map": {"needs": {"value": {"cpus": 1}}}}
    assert (steps["tell"]["after"], steps["tell"]["kind"], steps["tell"]["when"]) == (["score"], "job", {})
    assert steps["tell"]["words"] == {"command": "python tell.py", "gpus": 1}


def test_what_stands_for_files() -> None:
    texts = ("dataset:a/b", "model:a/b@v3", "job:a/b", "model: see docs/x", "dataset:", "code", 3, None)
    assert [detect_resource_kind(one) for one in texts] == ["dataset", "model", "", "", "", "", "", ""]


def test_outside_a_flow_a_step_is_its_function(tmp_path: Path) -> None:
    with use_local_outputs({"rows": str(tmp_path / "rows")}):
        assert clean(Path(), 0.9) == {"n": 1}
    assert (tmp_path / "rows" / "n").read_text() == "0.9"
    assert score.map([1, 2], Path()) == [2, 4]
    assert clean(Path()) == {"n": 1}  # nobody said where: a folder of its own


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (lambda data: train(train(data)), "train has several outputs"),
        (lambda data: clean(train(data)["model"]), "wants a dataset as raw, and train"),
        (lambda data: score(1, data), "wants a model as model, and data is a dataset"),
        (lambda data: clean(), "missing a required argument"),
        (lambda data: clean(data, data and 1), "not known while the flow is written"),
        (lambda data: [clean(one) for one in clean(data)], "goes through a list"),
        (lambda data: clean(data, threshold=Path()), "cannot be given a"),
        (lambda data: clean.options(cpus=data)(data), "fixed when the flow is saved"),
        (lambda data: flow.when(data).__enter__(), "what a step gives"),
        (lambda data: None, "has no step"),
    ],
    ids=lambda one: one if isinstance(one, str) else "",
)
def test_mistakes_are_said(function: Any, said: str) -> None:
    with pytest.raises(Invalid, match=said):
        written(function, data="dataset:fraud/tx")


def test_flows_and_their_parameters() -> None:
    def some(data: Any, n: Any = 3) -> None:
        clean(data, n)

    made = flow("fraud/some", params={"data": Ref.parse("dataset:fraud/tx")}, at_once=2)(some)
    assert (str(made.ref), made.plan()["params"]) == ("flow:fraud/some", {"data": "dataset:fraud/tx", "n": 3})
    assert flow("fraud/some")(some).plan()["params"]["data"] is None
    with pytest.raises(Invalid, match="no parameter colour"):
        flow("fraud/some", params={"colour": 1})(some).plan()
    with pytest.raises(Invalid, match="no name of a flow"):
        _ = flow("some")(some).ref
    with pytest.raises(Invalid, match="outside a flow"):
        flow.verb("serve.add")
