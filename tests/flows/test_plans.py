"""What cannot be a flow is said when it is saved, one clear error each."""

from dataclasses import replace
from typing import Any

import pytest

from falaj.core.errors import Invalid
from falaj.core.ref import Ref
from falaj.flows.flow_plans import MAX_ITEMS, STEP_COMMAND, build_plan, check_flow_name, check_params, check_plan
from falaj.flows.records import STEP_GATE, STEP_JOB, STEP_OPERATION, FlowPlan, StepPlan
from falaj.jobs.records import JobSpec

SPEC = JobSpec(STEP_COMMAND)
A = StepPlan("a", entry="f.py:a", spec=SPEC, outputs={"rows": "dataset:fraud/rows"})
B = StepPlan("b", entry="f.py:b", spec=SPEC, takes={"rows": {"step": "a", "out": "rows"}, "n": {"param": "n"}})
PLAN = FlowPlan((A, B), {"n": 1, "data": "dataset:fraud/tx"})

BAD: list[tuple[str, StepPlan, str]] = [
    ("two of a name", replace(B, name="a"), "two steps are called a"),
    ("no name", replace(B, name="b-c"), "no name of a step"),
    ("unknown step", replace(B, takes={"x": {"step": "z", "out": ""}}), "no such step"),
    ("unknown parameter", replace(B, takes={"x": {"param": "z"}}), "the parameter z"),
    ("unknown after", replace(B, after=("z",)), "waits for z"),
    ("ring", replace(A, name="c", after=("c",)), "wait for each other"),
    ("no reference", replace(B, takes={"x": {"ref": "dataset:"}}), "not a reference"),
    ("no function", replace(B, entry="../x.py:f"), "names no function"),
    ("another command", replace(B, spec=JobSpec(("sh",))), "names no function"),
    ("no spec", replace(B, kind=STEP_JOB, spec=None), "says nothing of its job"),
    ("output of no kind", replace(B, outputs={"x": "job:fraud/x"}), "cannot be the output"),
    ("output with a version", replace(B, outputs={"x": "dataset:fraud/x@v1"}), "cannot be the output"),
    ("output's name", replace(B, outputs={"x-y": "dataset:fraud/x"}), "cannot name"),
    ("capitals", replace(B, takes={"x": 1, "X": 2}), "capitals"),
    ("retries", replace(B, retries=-1), "retries"),
    ("goes through nothing", replace(B, over="x"), "goes through x"),
    ("goes through too much", replace(B, takes={"x": [0] * (MAX_ITEMS + 1)}, over="x"), "1001 values"),
    ("kind", replace(B, kind="wish"), "is a 'wish'"),
    ("verb", StepPlan("v", STEP_OPERATION, entry="serve.fly"), "no verb"),
    ("verb's arguments", StepPlan("v", STEP_OPERATION, entry="catalog.tag", takes={"colour": 1}), "has no colour"),
    ("verb's needs", StepPlan("v", STEP_OPERATION, entry="serve.add", takes={"endpoint": "x"}), "needs model"),
    ("verb with bytes", StepPlan("v", STEP_OPERATION, entry="jobs.logs", takes={"job": "job:a/b"}), "moves bytes"),
    ("gate", StepPlan("g", STEP_GATE, entry="full-moon"), "waits for"),
    ("secret", replace(B, takes={"x": "AKIA" + "IOSFODNN7EXAMPLE"}), "holds a secret"),
    ("secret in the environment", replace(B, spec=replace(SPEC, env={"FALAJ_HOME": "x"})), "is reserved"),
]  # fmt: skip


@pytest.mark.parametrize(("step", "said"), [one[1:] for one in BAD], ids=[one[0] for one in BAD])
def test_what_cannot_be_is_said(step: StepPlan, said: str) -> None:
    with pytest.raises(Invalid, match=said) as error:
        check_plan(replace(PLAN, steps=(*PLAN.steps, step) if step.name != "b" else (A, step)))
    assert error.value.hint


def test_a_plan_as_a_whole() -> None:
    check_plan(PLAN)
    for bad, said in (
        ({"steps": ()}, "0 steps"),
        ({"at_once": 0}, "0 at once"),
        ({"secrets": {"DB": "hunter2"}}, "names no secret"),
        ({"params": {**PLAN.params, "x": "x" * (1 << 20)}}, "bytes"),
    ):
        with pytest.raises(Invalid, match=said):
            check_plan(replace(PLAN, **bad))
    check_plan(replace(PLAN, secrets={"DB": "secret:fraud/db"}))


@pytest.mark.parametrize("name", ["job:a/b", "flow:a/b@v1", "flow:a/b.c"])
def test_names(name: str) -> None:
    with pytest.raises(Invalid, match="names no flow"):
        check_flow_name(Ref.parse(name))


def test_parameters_of_a_run() -> None:
    assert check_params(PLAN, {"n": 2}) == {"n": 2, "data": "dataset:fraud/tx"}
    bad: list[tuple[dict[str, Any], str]] = [
        ({"m": 1}, "no parameter m"),
        ({"data": "model:fraud/m"}, "is a dataset"),
        ({"data": 3}, "is a dataset"),
        ({"n": "AKIA" + "IOSFODNN7EXAMPLE"}, "secret"),
    ]
    for given, said in bad:
        with pytest.raises(Invalid, match=said):
            check_params(PLAN, given)
    with pytest.raises(Invalid, match="n must be given"):
        check_params(replace(PLAN, params={"n": None}), {})


def test_words_become_specs() -> None:
    step = {
        "name": "a", "kind": "job", "after": [], "entry": "", "takes": {}, "over": "", "when": {}, "outputs": {},
        "retries": 2, "timeout": "10m", "cache": True, "always": False,
        "words": {"command": "python train.py", "gpus": 2, "memory": "4GiB"},
    }  # fmt: skip
    said = {"steps": [step], "params": {}, "queue": "slow", "at_once": 2, "secrets": {}, "message": ""}
    spec = build_plan(said).steps[0].spec
    assert spec is not None
    assert (spec.command, spec.roles[0].gpus, spec.queue) == (("python", "train.py"), 2, "slow")
    assert (spec.limit_s, spec.retries) == (600, 2)
    with pytest.raises(Invalid, match="no colour"):
        build_plan({**said, "steps": [{**step, "words": {"command": "x", "colour": 1}}]})
