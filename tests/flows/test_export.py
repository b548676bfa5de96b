"""Flows as other tools read them."""

import json
from typing import Any

import pytest
import yaml

from falaj.core.errors import Invalid
from falaj.core.ref import Ref
from falaj.flows.export import export_flow
from falaj.flows.records import FlowPlan, FlowView, StepPlan
from tests.flows.yard import function, taken

CLEAN = function("clean", takes={"raw": {"ref": "dataset:fraud/tx"}, "n": 3}, outputs={"rows": "dataset:fraud/rows"})
TRAIN = function("train_it", takes={"rows": taken("clean", "rows")}, outputs={"model": "model:fraud/m"})


def flow(*steps: StepPlan, **params: Any) -> FlowView:
    return FlowView(
        Ref.parse("flow:fraud/re_train@v2"), FlowPlan(steps, params), Ref.parse("code:fraud/x@v1"), 0.0, "me"
    )


def test_steps_that_hand_on_outputs_are_tasks() -> None:
    made = yaml.safe_load(export_flow(flow(CLEAN, TRAIN), "github"))
    assert made["jobs"]["train_it"]["needs"] == ["clean"]
    env = made["jobs"]["clean"]["steps"][1]["env"]
    words = [env[f"WORD_{at}"] for at in range(len(env) - 2)]
    assert {"raw=dataset:fraud/tx", "rows=dataset:fraud/rows", "code:fraud/x@v1"} <= set(words)
    told = json.loads(json.loads(words[1])["env"]["FALAJ_PARAM_STEP"])
    assert told == {"entry": "f.py:clean", "args": {"n": 3}, "files": {"raw": "raw"}}
    made = yaml.safe_load(export_flow(flow(CLEAN, TRAIN), "kubeflow"))
    tasks = made["root"]["dag"]["tasks"]
    assert tasks["train-it"]["dependentTasks"] == ["clean"]
    assert set(made["components"]) == {"comp-clean", "comp-train-it"}
    assert "rows=dataset:fraud/rows" in made["deploymentSpec"]["executors"]["exec-train-it"]["container"]["args"]
    assert (made["schemaVersion"], made["pipelineInfo"]["name"]) == ("2.1.0", "re-train")


@pytest.mark.parametrize(
    ("step", "why"),
    [
        (function("b", takes={"n": taken("clean", "n")}), "b takes what clean returns"),
        (function("b", when=taken("clean", "n")), "b has a condition"),
        (StepPlan("b", "verb", entry="catalog.names"), "b is a verb"),
        (function("b", takes={"n": {"param": "n"}}), "b takes the parameter n"),
    ],
)
def test_anything_else_is_one_task_that_says_why(step: StepPlan, why: str) -> None:
    text = export_flow(flow(CLEAN, step, n=1), "github")
    assert why in text
    made = yaml.safe_load(text)
    assert list(made["jobs"]) == ["run"]
    assert made["on"]["workflow_dispatch"]["inputs"]["n"]["default"] == "1"
    assert made["jobs"]["run"]["steps"][1]["env"]["WORD_1"] == "n=${{ inputs.n }}"
    made = yaml.safe_load(export_flow(flow(CLEAN, step, n=1), "kubeflow"))
    assert made["root"]["dag"]["tasks"]["run"]["inputs"]["parameters"]["n"] == {"componentInputParameter": "n"}


def test_other_tools_are_not_known() -> None:
    with pytest.raises(Invalid, match="nothing is written for 'airflow'"):
        export_flow(flow(CLEAN), "airflow")
