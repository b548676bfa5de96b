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
from falaj.core.flow_draft import detect_resource_kind
from falaj.flows.records import STEP_FUNCTION, STEP_JOB, FlowView, StepPlan
from falaj.flows.run_decisions import iterate_leaves, list_needed_steps
from falaj.jobs.records import JobSpec
from falaj.store.codec import to_plain
from falaj.worker.step_runner import STEP_VARIABLE

CONTAINER_IMAGE = "python:3.12-slim"
INSTALL_COMMAND = "pip install --quiet falaj"
EXPORT_TOOLS = ("kubeflow", "github")


class ExportedTask(NamedTuple):
    """What another tool runs: a line of shell, its words, and the tasks before it."""

    line: str
    words: list[str]
    after: list[str]


TasksByName = dict[str, ExportedTask]


def export_flow(flow: FlowView, to: str) -> str:
    """The flow as YAML of another tool, ready to be kept beside its code."""
    if to not in EXPORT_TOOLS:
        raise Invalid(f"nothing is written for {to[:40]!r}", f"one of {', '.join(EXPORT_TOOLS)}")
    reason = next(_find_obstacles(flow), "")
    steps: TasksByName = {step.name: _make_step_task(flow, step) for step in flow.plan.steps if not reason}
    steps |= {"run": _make_single_task(flow, to)} if reason else {}
    document = _to_kubeflow(flow, steps) if to == "kubeflow" else _to_github(flow, steps)
    lines = [
        f"# {flow.ref} as {to} runs it, made by `falaj flows export`. Jobs run where Falaj runs them.",
        "# It needs FALAJ_URL (the platform) and FALAJ_TOKEN (of a service account), as secrets.",
        *(
            [f"# One task for all of it: {reason}."]
            if reason
            else ["# A task takes the newest version of what another made."]
        ),
    ]
    return "\n".join([*lines, *_format_yaml(document, 0), ""])


def _find_obstacles(flow: FlowView) -> Iterator[str]:
    """Why the steps cannot be tasks of their own."""
    steps_by_name = {step.name: step for step in flow.plan.steps}
    for step in flow.plan.steps:
        if step.kind not in (STEP_FUNCTION, STEP_JOB):
            yield f"{step.name} is a {step.kind}"
        if step.when or step.over or step.always:
            yield f"{step.name} has a condition, or goes through a list"
        for leaf in (leaf for source in step.takes.values() for leaf in iterate_leaves(source)):
            if "step" in leaf and leaf.get("out") not in steps_by_name[leaf["step"]].outputs:
                yield f"{step.name} takes what {leaf['step']} returns"
            if "param" in leaf:
                yield f"{step.name} takes the parameter {leaf['param']}"


def _make_single_task(flow: FlowView, to: str) -> ExportedTask:
    """All of it in one; parameters come from the other tool."""
    flag_words = [
        flag_word for name in flow.plan.params for flag_word in ("--params", f"{name}={_format_parameter(name, to)}")
    ]
    return ExportedTask(f'falaj flows run {flow.ref} "$@"', flag_words, [])


def _format_parameter(name: str, to: str) -> str:
    return f"{{{{$.inputs.parameters['{name}']}}}}" if to == "kubeflow" else f"${{{{ inputs.{name} }}}}"


def _make_step_task(flow: FlowView, step: StepPlan) -> ExportedTask:
    """One step as a job that is waited for."""
    spec = step.spec or JobSpec(())
    values: dict[str, Any] = {}
    inputs: dict[str, str] = {}
    for name, source in step.takes.items():
        leaf = next(iterate_leaves(source), None)
        text = "" if leaf is None else _get_output_name(flow, leaf) if "step" in leaf else str(leaf["ref"])
        if detect_resource_kind(text):
            inputs[name] = text
        else:
            values[name] = source.get("value") if isinstance(source, dict) else source
    env = {f"FALAJ_PARAM_{name.upper()}": _to_text(value) for name, value in values.items()}
    if step.kind == STEP_FUNCTION:
        env = {
            STEP_VARIABLE: json.dumps({"entry": step.entry, "args": values, "files": {name: name for name in inputs}})
        }
    default_spec = to_plain(JobSpec(()))
    spec_fields = to_plain(replace(spec, env={**spec.env, **env}))
    arguments = [
        "--spec",
        json.dumps({name: value for name, value in spec_fields.items() if value != default_spec[name]}),
    ]
    for flag, refs_by_name in (("--inputs", inputs), ("--outputs", step.outputs)):
        arguments += [flag_word for name, ref in refs_by_name.items() for flag_word in (flag, f"{name}={ref}")]
    arguments += ["--code", str(flow.code)] if flow.code else []
    name = f"job:{flow.ref.project}/{flow.ref.name}-{step.name}-$(date +%s)"
    return ExportedTask(
        f'job={name} && falaj jobs add "$job" "$@" && falaj jobs follow "$job"',
        arguments,
        sorted(list_needed_steps(step)),
    )


def _get_output_name(flow: FlowView, leaf: Any) -> str:
    """The name that an output of a step gets."""
    step = next(candidate for candidate in flow.plan.steps if candidate.name == leaf["step"])
    return str(step.outputs.get(leaf.get("out", ""), ""))


def _to_kubeflow(flow: FlowView, steps: TasksByName) -> dict[str, Any]:
    """PipelineSpec 2.1.0, as the backend of Kubeflow Pipelines takes it."""
    params = {
        name: {"parameterType": "STRING", "isOptional": True, "defaultValue": _to_text(value)}
        for name, value in flow.plan.params.items()
        if "run" in steps
    }
    input_definitions = {"inputDefinitions": {"parameters": params}} if params else {}
    input_arguments = (
        {"inputs": {"parameters": {name: {"componentInputParameter": name} for name in params}}} if params else {}
    )
    components, executors, tasks = {}, {}, {}
    for step, (shell_line, arguments, task_dependencies) in steps.items():
        name = _to_dashed_name(step)
        components[f"comp-{name}"] = {"executorLabel": f"exec-{name}", **input_definitions}
        command = ["sh", "-c", f"{INSTALL_COMMAND} && {shell_line}", "falaj"]
        executors[f"exec-{name}"] = {"container": {"image": CONTAINER_IMAGE, "command": command, "args": arguments}}
        dependencies = (
            {"dependentTasks": [_to_dashed_name(dependency) for dependency in task_dependencies]}
            if task_dependencies
            else {}
        )
        task_fields = {"taskInfo": {"name": name}, "componentRef": {"name": f"comp-{name}"}, "cachingOptions": {}}
        tasks[name] = {**task_fields, **input_arguments, **dependencies}
    return {
        "components": components,
        "deploymentSpec": {"executors": executors},
        "pipelineInfo": {"name": _to_dashed_name(flow.ref.name)},
        "root": {"dag": {"tasks": tasks}, **input_definitions},
        "schemaVersion": "2.1.0",
        "sdkVersion": "falaj",
    }


def _to_dashed_name(name: str) -> str:
    return name.replace("_", "-").lower()


def _to_github(flow: FlowView, steps: TasksByName) -> dict[str, Any]:
    inputs = {name: {"default": _to_text(value), "required": value is None} for name, value in flow.plan.params.items()}
    env = {name: f"${{{{ secrets.{name} }}}}" for name in ("FALAJ_URL", "FALAJ_TOKEN")}
    jobs = {}
    for name, (shell_line, arguments, task_dependencies) in steps.items():
        # What is given is handed on as a variable: a shell must not read it as words of its own.
        variables = {f"WORD_{position}": argument for position, argument in enumerate(arguments)}
        variable_words = " ".join(f'"$WORD_{position}"' for position in range(len(arguments)))
        job_steps = [
            {"run": INSTALL_COMMAND},
            {"run": f"set -- {variable_words} && {shell_line}", "env": {**env, **variables}},
        ]
        jobs[name] = {
            "runs-on": "ubuntu-latest",
            **({"needs": task_dependencies} if task_dependencies else {}),
            "steps": job_steps,
        }
    return {
        "name": str(flow.ref.bare),
        "on": {"workflow_dispatch": {"inputs": inputs}},
        "permissions": {},
        "jobs": jobs,
    }


def _to_text(value: Any) -> str:
    return "" if value is None else value if isinstance(value, str) else json.dumps(value)


def _format_yaml(value: Any, depth: int) -> Iterator[str]:
    """Plain YAML: every text in quotes, as JSON writes it, which YAML reads the same."""
    indentation = "  " * depth
    for name, item in value.items():
        key = name if name.replace("-", "").replace("_", "").isalnum() and name != "on" else json.dumps(name)
        if isinstance(item, dict) and item:
            yield f"{indentation}{key}:"
            yield from _format_yaml(item, depth + 1)
        elif isinstance(item, list) and item and isinstance(item[0], dict):
            yield f"{indentation}{key}:"
            for list_item in item:
                first_line, *other_lines = _format_yaml(list_item, depth + 2)
                yield f"{indentation}  - {first_line.strip()}"
                yield from other_lines
        else:
            yield f"{indentation}{key}: {json.dumps(item, ensure_ascii=False)}"
