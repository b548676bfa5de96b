"""A flow in one process, for whoever writes it: the same functions, one after the other, and no job.

What is read is checked out for reading; what is written stays in a folder that is named at the end. Verbs and gates are
told and not done: a mistake of a draft changes nothing.
"""

import json
import os
import subprocess  # nosec B404 - the command is the caller's own, run beside them
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from falaj.core.client_command import Client
from falaj.core.context import Actor, CallContext
from falaj.core.errors import UserCodeFailed
from falaj.core.flow_definition import Flow, use_local_outputs
from falaj.core.flow_draft import detect_resource_kind
from falaj.core.ref import Ref
from falaj.flows import flow_runs
from falaj.flows.flow_plans import MAX_ITEMS, check_params
from falaj.flows.records import (
    SKIPPED,
    STEP_FUNCTION,
    STEP_JOB,
    SUCCEEDED,
    FlowPlan,
    RecordBody,
    RunView,
    StepPlan,
    StepView,
)
from falaj.flows.run_decisions import list_needed_steps, sort_steps
from falaj.worker.step_runner import load_step_function, to_plain_json


class LocalRun:
    """Where a flow is tried out: its folder, what was checked out, and what the steps gave so far."""

    def __init__(self, client: Client, plan: FlowPlan, file: Path, params: dict[str, Any]) -> None:
        self._client, self._plan, self._source_file = client, plan, file.resolve()
        self.folder = Path(tempfile.mkdtemp(prefix="falaj-flow-"))
        self._folders_by_ref: dict[str, Path] = {}
        start_facts = {"cause": "", "begun_by": "you", "fresh": True, "number": 0}
        ctx = CallContext(Actor("you", "here"), "here")
        self.body = flow_runs.make_run_body(
            ctx, Ref("flow", "alone", "alone"), plan, check_params(plan, params), start_facts
        )

    def run(self, step: StepPlan) -> None:
        """One step, all its items."""
        step_body, body, plan = self.body["steps"][step.name], self.body, self._plan
        has_failed_need = any(body["steps"][name]["state"] != SUCCEEDED for name in list_needed_steps(step))
        if (has_failed_need and not step.always) or not flow_runs.is_condition_met(step, body, plan):
            step_body |= {"state": SKIPPED}
            return
        sys.stdout.write(f"{step.name}: {step.entry or ' '.join(step.spec.command if step.spec else ())}\n")
        for item_number in range(len(flow_runs.list_mapped_values(step, body, plan, MAX_ITEMS))):
            step_body["items"].append(self._run_item(step, item_number))
        step_body |= {"state": SUCCEEDED}

    def _run_item(self, step: StepPlan, item_number: int) -> RecordBody:
        began = time.time()
        arguments = {
            name: flow_runs.resolve_source(source, self.body, self._plan) for name, source in step.takes.items()
        }
        arguments |= {step.over: arguments[step.over][item_number]} if step.over else {}
        output_paths = {name: str(self.folder / f"{step.name}-{item_number}" / name) for name in step.outputs}
        value = None
        if step.kind not in (STEP_FUNCTION, STEP_JOB):
            sys.stdout.write(f"  not done here: {json.dumps(arguments, default=str)[:500]}\n")
        else:
            text_names = [
                name
                for name, step_source in step.takes.items()
                if isinstance(step_source, dict) and step_source.get("text")
            ]
            opened_arguments = {
                name: value if name in text_names else self._open_files(value) for name, value in arguments.items()
            }
            if step.kind == STEP_FUNCTION:
                value = self._call_function(step, opened_arguments, output_paths)
            else:
                self._run_command(step, opened_arguments, output_paths)
        return {
            **flow_runs.make_item_body(),
            "state": SUCCEEDED,
            "value": value,
            "outputs": output_paths,
            "at": began,
            "end": time.time(),
        }

    def _call_function(self, step: StepPlan, arguments: dict[str, Any], output_paths: dict[str, str]) -> Any:
        function = load_step_function(self._source_file.parent, step.entry)
        with use_local_outputs(output_paths):
            return to_plain_json(function(**arguments), step.entry)

    def _run_command(self, step: StepPlan, arguments: dict[str, Any], output_paths: dict[str, str]) -> None:
        env = {f"FALAJ_OUTPUT_{name.upper()}": path for name, path in output_paths.items()}
        for name, value in arguments.items():
            path_list = value if isinstance(value, list) and isinstance(next(iter(value), None), Path) else None
            kind = "INPUT" if path_list or isinstance(value, Path) else "PARAM"
            variables = (
                {f"{name}_{item_number}": item_value for item_number, item_value in enumerate(path_list)}
                if path_list
                else {name: value}
            )
            env |= {
                f"FALAJ_{kind}_{variable_name.upper()}": str(item_value)
                for variable_name, item_value in variables.items()
            }
        for path in output_paths.values():
            Path(path).mkdir(parents=True, exist_ok=True)
        command = step.spec.command if step.spec else ()
        environment = {**os.environ, **(step.spec.env if step.spec else {}), **env}
        code = subprocess.run(command, check=False, cwd=self._source_file.parent, env=environment).returncode  # noqa: S603  # nosec B603
        if code:
            raise UserCodeFailed(f"{step.name} ended with code {code}", "read what it wrote above")

    def _open_files(self, value: Any) -> Any:
        """A folder for what names a version, or for what a step here has written."""
        if isinstance(value, list) and value and all(map(self._names_file, value)):
            return [self._open_files(item) for item in value]
        if not self._names_file(value):
            return value
        if not detect_resource_kind(value):
            return Path(value)
        if value not in self._folders_by_ref:
            ref = Ref.parse(value)
            self._folders_by_ref[value] = (
                self.folder / "inputs" / f"{ref.kind}-{ref.project}-{ref.name}-{len(self._folders_by_ref)}"
            )
            self._client.catalog.checkout(ref, str(self._folders_by_ref[value]))
        return self._folders_by_ref[value]

    def _names_file(self, value: Any) -> bool:
        return isinstance(value, str) and bool(detect_resource_kind(value) or value.startswith(f"{self.folder}/"))


def run_locally(client: Client, flow: Flow, plan: FlowPlan, file: Path, params: dict[str, Any]) -> RunView:
    """Run a flow in this process; what it gave, as a run that nobody keeps."""
    local_run = LocalRun(client, plan, file, params)
    steps = {step.name: step for step in plan.steps}
    for name in sort_steps(plan):
        local_run.run(steps[name])
    body = local_run.body
    step_views = tuple(
        StepView(name, body["steps"][name]["state"], (), flow_runs.list_step_outputs(steps[name], body["steps"][name]))
        for name in body["order"]
    )
    ref = Ref("turn", flow.ref.project, f"{flow.ref.name}-local")
    return RunView(
        ref, flow.ref, SUCCEEDED, body["params"], step_views, "you", note=f"outputs lie in {local_run.folder}"
    )
