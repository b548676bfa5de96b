"""Flows in the words of other tools: a pipeline of Kubeflow Pipelines 2, or a workflow of GitHub Actions.

The jobs stay here, with their data and their rules: what is exported is the order in which they are asked for. Between
tasks of other tools only outputs travel, by name. A flow whose steps take what others return, or that has conditions,
lists, verbs or gates, goes out as one task that runs it here, and the file says why.
"""

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NamedTuple

from falaj.core.errors import Invalid
from falaj.core.sketch import kind_of
from falaj.flows.decide import leaves, needs
from falaj.flows.records import FUNCTION, JOB, FlowView, StepPlan
from falaj.jobs.records import JobSpec
from falaj.store.codec import to_plain
from falaj.worker.steps import TOLD

IMAGE = "python:3.12-slim"
INSTALL = "pip install --quiet falaj"
TOOLS = ("kubeflow", "github")


class Task(NamedTuple):
    """What another tool runs: a line of shell, its words, and the tasks before it."""

    line: str
    words: list[str]
    after: list[str]


Steps = dict[str, Task]


def exported(flow: FlowView, to: str) -> str:
    """The flow as YAML of another tool, ready to be kept beside its code."""
    if to not in TOOLS:
        raise Invalid(f"nothing is written for {to[:40]!r}", f"one of {', '.join(TOOLS)}")
    why = next(_whole(flow), "")
    steps: Steps = {one.name: _submit(flow, one) for one in flow.plan.steps if not why}
    steps |= {"run": _run(flow, to)} if why else {}
    made = _kubeflow(flow, steps) if to == "kubeflow" else _github(flow, steps)
    lines = [
        f"# {flow.ref} as {to} runs it, made by `falaj flows export`. Jobs run where Falaj runs them.",
        "# It needs FALAJ_URL (the platform) and FALAJ_TOKEN (of a service account), as secrets.",
        *(
            [f"# One task for all of it: {why}."]
            if why
            else ["# A task takes the newest version of what another made."]
        ),
    ]
    return "\n".join([*lines, *_yaml(made, 0), ""])


def _whole(flow: FlowView) -> Iterator[str]:
    """Why the steps cannot be tasks of their own."""
    known = {step.name: step for step in flow.plan.steps}
    for step in flow.plan.steps:
        if step.kind not in (FUNCTION, JOB):
            yield f"{step.name} is a {step.kind}"
        if step.when or step.over or step.always:
            yield f"{step.name} has a condition, or goes through a list"
        for leaf in (leaf for source in step.takes.values() for leaf in leaves(source)):
            if "step" in leaf and leaf.get("out") not in known[leaf["step"]].outputs:
                yield f"{step.name} takes what {leaf['step']} returns"
            if "param" in leaf:
                yield f"{step.name} takes the parameter {leaf['param']}"


def _run(flow: FlowView, to: str) -> Task:
    """All of it in one; parameters come from the other tool."""
    given = [word for name in flow.plan.params for word in ("--params", f"{name}={_param(name, to)}")]
    return Task(f'falaj flows run {flow.ref} "$@"', given, [])


def _param(name: str, to: str) -> str:
    return f"{{{{$.inputs.parameters['{name}']}}}}" if to == "kubeflow" else f"${{{{ inputs.{name} }}}}"


def _submit(flow: FlowView, step: StepPlan) -> Task:
    """One step as a job that is waited for."""
    spec = step.spec or JobSpec(())
    given: dict[str, Any] = {}
    inputs: dict[str, str] = {}
    for name, source in step.takes.items():
        leaf = next(leaves(source), None)
        text = "" if leaf is None else _output(flow, leaf) if "step" in leaf else str(leaf["ref"])
        if kind_of(text):
            inputs[name] = text
        else:
            given[name] = source.get("value") if isinstance(source, dict) else source
    env = {f"FALAJ_PARAM_{name.upper()}": _plain(value) for name, value in given.items()}
    if step.kind == FUNCTION:
        env = {TOLD: json.dumps({"entry": step.entry, "args": given, "files": {name: name for name in inputs}})}
    usual = to_plain(JobSpec(()))
    said = to_plain(replace(spec, env={**spec.env, **env}))
    words = ["--spec", json.dumps({name: value for name, value in said.items() if value != usual[name]})]
    for flag, named in (("--inputs", inputs), ("--outputs", step.outputs)):
        words += [word for name, ref in named.items() for word in (flag, f"{name}={ref}")]
    words += ["--code", str(flow.code)] if flow.code else []
    name = f"job:{flow.ref.project}/{flow.ref.name}-{step.name}-$(date +%s)"
    return Task(f'job={name} && falaj jobs add "$job" "$@" && falaj jobs follow "$job"', words, sorted(needs(step)))


def _output(flow: FlowView, leaf: Any) -> str:
    """The name that an output of a step gets."""
    made = next(one for one in flow.plan.steps if one.name == leaf["step"])
    return str(made.outputs.get(leaf.get("out", ""), ""))


def _kubeflow(flow: FlowView, steps: Steps) -> dict[str, Any]:
    """PipelineSpec 2.1.0, as the backend of Kubeflow Pipelines takes it."""
    params = {
        name: {"parameterType": "STRING", "isOptional": True, "defaultValue": _plain(value)}
        for name, value in flow.plan.params.items()
        if "run" in steps
    }
    takes = {"inputDefinitions": {"parameters": params}} if params else {}
    handed = {"inputs": {"parameters": {name: {"componentInputParameter": name} for name in params}}} if params else {}
    components, executors, tasks = {}, {}, {}
    for step, (line, words, after) in steps.items():
        name = _dashed(step)
        components[f"comp-{name}"] = {"executorLabel": f"exec-{name}", **takes}
        command = ["sh", "-c", f"{INSTALL} && {line}", "falaj"]
        executors[f"exec-{name}"] = {"container": {"image": IMAGE, "command": command, "args": words}}
        before = {"dependentTasks": [_dashed(one) for one in after]} if after else {}
        about = {"taskInfo": {"name": name}, "componentRef": {"name": f"comp-{name}"}, "cachingOptions": {}}
        tasks[name] = {**about, **handed, **before}
    return {
        "components": components,
        "deploymentSpec": {"executors": executors},
        "pipelineInfo": {"name": _dashed(flow.ref.name)},
        "root": {"dag": {"tasks": tasks}, **takes},
        "schemaVersion": "2.1.0",
        "sdkVersion": "falaj",
    }


def _dashed(name: str) -> str:
    return name.replace("_", "-").lower()


def _github(flow: FlowView, steps: Steps) -> dict[str, Any]:
    inputs = {name: {"default": _plain(value), "required": value is None} for name, value in flow.plan.params.items()}
    env = {name: f"${{{{ secrets.{name} }}}}" for name in ("FALAJ_URL", "FALAJ_TOKEN")}
    jobs = {}
    for name, (line, words, after) in steps.items():
        # What is given is handed on as a variable: a shell must not read it as words of its own.
        given = {f"WORD_{at}": word for at, word in enumerate(words)}
        taken = " ".join(f'"$WORD_{at}"' for at in range(len(words)))
        done = [{"run": INSTALL}, {"run": f"set -- {taken} && {line}", "env": {**env, **given}}]
        jobs[name] = {"runs-on": "ubuntu-latest", **({"needs": after} if after else {}), "steps": done}
    return {
        "name": str(flow.ref.bare),
        "on": {"workflow_dispatch": {"inputs": inputs}},
        "permissions": {},
        "jobs": jobs,
    }


def _plain(value: Any) -> str:
    return "" if value is None else value if isinstance(value, str) else json.dumps(value)


def _yaml(value: Any, depth: int) -> Iterator[str]:
    """Plain YAML: every text in quotes, as JSON writes it, which YAML reads the same."""
    pad = "  " * depth
    for name, one in value.items():
        key = name if name.replace("-", "").replace("_", "").isalnum() and name != "on" else json.dumps(name)
        if isinstance(one, dict) and one:
            yield f"{pad}{key}:"
            yield from _yaml(one, depth + 1)
        elif isinstance(one, list) and one and isinstance(one[0], dict):
            yield f"{pad}{key}:"
            for part in one:
                first, *rest = _yaml(part, depth + 2)
                yield f"{pad}  - {first.strip()}"
                yield from rest
        else:
            yield f"{pad}{key}: {json.dumps(one, ensure_ascii=False)}"
