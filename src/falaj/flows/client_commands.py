"""What people who run flows do beside the platform: save a file, run it, wait, read logs, go through days.

The file of a flow is Python, and is executed here, beside its writer, and in its own attempts; never by the platform.
"""

import json
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date, timedelta
from pathlib import Path
from typing import Annotated, Any, ClassVar, cast

from falaj.core.client_command import Client, client_command
from falaj.core.errors import Invalid, UserCodeFailed
from falaj.core.flow_definition import Flow
from falaj.core.ref import Ref
from falaj.flows.flow_plans import build_plan, check_plan
from falaj.flows.records import ENDED_STATES, FAILED, STEP_FUNCTION, FlowPlan, FlowView, RunView
from falaj.jobs.client_commands import POLL_INTERVAL_S, wait_until_over
from falaj.jobs.records import JobView
from falaj.worker.step_runner import load_python_file

MAX_BACKFILL_VALUES = 10_000


@dataclass(frozen=True, slots=True)
class BackfillResult:
    """One run of a backfill."""

    COLUMNS: ClassVar[tuple[str, ...]] = ("value", "run", "state", "note")

    value: str
    run: Ref
    state: str
    note: str = ""


@client_command
def save(
    client: Client,
    file: Annotated[str, "the Python file of the flow; FILE:NAME where it has several"],
    name: Annotated[str, "which of its flows, said apart"] = "",
    message: Annotated[str, "what this version brings"] = "",
) -> FlowView:
    """Keep the flow of a file: its folder as a version of code, its plan as a version of the flow.

    Example:
        falaj flows save retrain.py
    """
    flow_object, plan, path = _load_flow(f"{file}:{name}" if name else file)
    return _save_flow(client, flow_object, plan, path, message)


@client_command
def run(
    client: Client,
    what: Annotated[str, "the Python file of a flow (FILE:NAME where it has several), or a flow that was saved"],
    params: Annotated[dict[str, str] | None, "its parameters: data=dataset:fraud/tx,threshold=0.7"] = None,
    cause: Annotated[str, "why: the same cause finds the same run"] = "",
    fresh: Annotated[bool, "do every step again, though its result is known"] = False,
    follow: Annotated[bool, "wait until it is over, and show how far it is"] = True,
    local: Annotated[bool, "run the functions in this process, without jobs, to look for mistakes"] = False,
) -> RunView:
    """Run a flow. A file is saved first; where nothing in it changed, that is no new version.

    With --local nothing is kept: functions run here, one after the other, on inputs that are checked out for reading;
    verbs and gates are told and not done.

    Example:
        falaj flows run retrain.py --params threshold=0.7
        falaj flows run flow:fraud/retrain --fresh
    """
    if what.startswith("flow:"):
        if local:
            raise Invalid("only a file can be run here", "name the file of the flow: falaj flows run FILE --local")
        flow_view: FlowView = client.flows.show(Ref.parse(what))
    else:
        flow_object, plan, path = _load_flow(what)
        if local:
            from falaj.flows.local_run import run_locally

            return run_locally(client, flow_object, plan, path, parse_parameters(plan, params or {}))
        flow_view = _save_flow(client, flow_object, plan, path, "")
    run_view: RunView = client.flows.start(
        flow_view.ref, params=parse_parameters(flow_view.plan, params or {}), cause=cause, fresh=fresh
    )
    return _wait_for_run(client, run_view.ref) if follow else run_view


@client_command
def wait(
    client: Client,
    turns: Annotated[tuple[Ref, ...], "which runs"],
    timeout_s: Annotated[float, "give up after so long; 0 is never"] = 0.0,
) -> tuple[RunView, ...]:
    """Wait until runs are over. Where no server runs, their steps are run meanwhile.

    The exit code is 1 unless all of them succeeded in time.

    Example:
        falaj flows wait turn:fraud/retrain-7 --timeout-s 3600
    """
    return wait_until_over(client, client.flows.look, turns, timeout_s)


@client_command
def logs(
    client: Client,
    turn: Annotated[Ref, "which run"],
    step: Annotated[str, "of one step only"] = "",
) -> tuple[JobView, ...]:
    """Show what the steps of a run wrote, one after the other.

    Example:
        falaj flows logs turn:fraud/retrain-7 --step train
    """
    jobs: list[JobView] = []
    for step_view in client.flows.look(turn).steps:
        for job in step_view.jobs if step in ("", step_view.name) else ():
            jobs.append(client.jobs.show(job))
            sys.stdout.write(f"--- {step_view.name}: {job} ({jobs[-1].state})\n")
            after, is_over = "", not jobs[-1].attempts
            while not is_over:
                page = client.jobs.logs(job, after=after)
                sys.stdout.write("".join(f"{line}\n" for line in page.lines))
                after, is_over = page.next, not page.lines
    return tuple(jobs)


@client_command
def backfill(
    client: Client,
    flow: Annotated[Ref, "which flow"],
    over: Annotated[dict[str, str], "what is gone through: day=2026-01-01..2026-01-31, or n=1..10, or x=a,b,c"],
    params: Annotated[dict[str, str] | None, "the other parameters, the same for all"] = None,
    at_once: Annotated[int, "so many runs at a time"] = 4,
    fresh: Annotated[bool, "do every step again, though its result is known"] = False,
) -> tuple[BackfillResult, ...]:
    """Run a flow once for every value of a parameter. Broken off and called again, it goes on: a value has one run.

    Example:
        falaj flows backfill flow:fraud/daily --over day=2026-01-01..2026-01-31 --at-once 4
    """
    if len(over) != 1 or not 0 < at_once <= 100:
        raise Invalid(f"{len(over)} parameters to go through, {at_once} at once", "one parameter; 1 to 100 at once")
    flow_view: FlowView = client.flows.show(flow)
    ((name, text),) = over.items()
    values = list(expand_values(text))
    if not 0 < len(values) <= MAX_BACKFILL_VALUES:
        raise Invalid(f"{text[:60]} has {len(values)} values", f"1 to {MAX_BACKFILL_VALUES}")
    runs_by_value: dict[str, RunView] = {}
    other_parameters = "".join(f" {key}={value}" for key, value in sorted((params or {}).items()))[:400]
    with client.working(), client.progress.task(str(flow), len(values), "runs") as task:
        while len(runs_by_value) < len(values):
            for value in [pending_value for pending_value in values if pending_value not in runs_by_value][:at_once]:
                run_parameters = parse_parameters(flow_view.plan, {**(params or {}), name: value})
                run_view = client.flows.start(
                    flow_view.ref, run_parameters, cause=f"backfill {name}={value}{other_parameters}", fresh=fresh
                )
                if run_view.over:
                    runs_by_value[value] = run_view
                    task.advance(1)
            time.sleep(0.0 if len(runs_by_value) == len(values) else POLL_INTERVAL_S)
    return tuple(
        BackfillResult(value, runs_by_value[value].ref, runs_by_value[value].state, runs_by_value[value].note)
        for value in values
    )


@client_command
def export(
    client: Client,
    flow: Annotated[Ref, "which flow"],
    to: Annotated[str, "kubeflow (an Argo workflow, as Kubeflow Pipelines runs) or github (an Actions workflow)"],
    out: Annotated[str, "the file to write"] = "",
) -> str:
    """Write a flow as YAML of another tool. Its jobs still run here; what has no counterpart is said in it.

    Example:
        falaj flows export flow:fraud/retrain kubeflow --out retrain.yaml
    """
    from falaj.flows.export import export_flow

    text = export_flow(client.flows.show(flow), to)
    if out:
        Path(out).write_text(text, encoding="utf-8")
    return out or text


def expand_values(text: str) -> Iterator[str]:
    """The values of `2026-01-01..2026-01-31` (days), `1..10` (whole numbers) or `a,b,c`."""
    first, separator, last = text.partition("..")
    if not separator:
        yield from dict.fromkeys(listed_value.strip() for listed_value in text.split(",") if listed_value.strip())
        return
    try:
        if first.lstrip("-").isdigit():
            yield from (str(number) for number in range(int(first), int(last) + 1))
            return
        day, end = date.fromisoformat(first), date.fromisoformat(last)
    except ValueError:
        raise Invalid(f"{text[:60]!r} is no range", "2026-01-01..2026-01-31, 1..10, or a,b,c") from None
    while day <= end:
        yield day.isoformat()
        day += timedelta(days=1)


def parse_parameters(plan: FlowPlan, parameter_texts: dict[str, str]) -> dict[str, Any]:
    """Texts of the command line as what a flow's parameters are: where its default is no text, JSON."""
    return {name: _parse_parameter(plan.params.get(name), value) for name, value in parameter_texts.items()}


def _parse_parameter(default: Any, value: Any) -> Any:
    if isinstance(default, str) or not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except ValueError:
        return value


def _load_flow(flow_source: str) -> tuple[Flow, FlowPlan, Path]:
    """A flow of a file, and its plan, checked as the platform will check it."""
    file, _, name = flow_source.partition(".py:")
    file = f"{file}.py" if name else file
    path = Path(file)
    if not path.is_file():
        raise Invalid(f"there is no file {file!r:.200}", "name the Python file of the flow")
    flows = [candidate for candidate in vars(load_python_file(path.resolve())).values() if isinstance(candidate, Flow)]
    matching_flows = [candidate for candidate in flows if name in ("", candidate.name, candidate.ref.name)]
    if len(matching_flows) != 1:
        flow_names = (
            ", ".join(candidate.name for candidate in flows) or 'none: mark a function with @flow("project/name")'
        )
        raise Invalid(
            f"{path.name} has {len(matching_flows)} flows of that name", f"{path.name}:NAME says which: {flow_names}"
        )
    plan = build_plan(matching_flows[0].plan())
    unexpected = next(
        (
            candidate
            for candidate in plan.steps
            if candidate.kind == STEP_FUNCTION and candidate.entry.partition(":")[0] != path.name
        ),
        None,
    )
    if unexpected is not None:
        raise Invalid(
            f"{unexpected.name} is a step of another file", f"write it in {path.name}, and call the other there"
        )
    check_plan(plan)
    return matching_flows[0], plan, path


def _save_flow(client: Client, flow_object: Flow, plan: FlowPlan, file: Path, message: str) -> FlowView:
    from falaj.catalog.git_facts import list_tracked_files
    from falaj.catalog.publishing import publish_code

    flow_folder = file.resolve().parent
    tracked_files = list_tracked_files(flow_folder)
    if tracked_files is not None and file.name.encode() not in tracked_files:
        raise Invalid(f"git ignores {file.name}, and so it would not be kept", "take it out of .gitignore, or move it")
    if flow_folder in (Path("/"), Path.home()):
        raise Invalid(
            f"{file.name} lies in {flow_folder}, and a flow takes its folder along", "give it a folder of its own"
        )
    code = publish_code(client, Ref("code", flow_object.ref.project, flow_object.ref.name), flow_folder).ref
    return cast(FlowView, client.flows.add(flow_object.ref, plan, code=code, message=message))


def _wait_for_run(client: Client, run: Ref) -> RunView:
    """Until it is over, with how many steps are."""
    shown_steps = 0
    with client.working(), client.progress.task(str(run), None, "steps") as task:
        while True:
            run_view: RunView = client.flows.look(run)
            ended_steps = sum(step_view.state in ENDED_STATES for step_view in run_view.steps)
            task.resize(len(run_view.steps))
            task.advance(ended_steps - shown_steps)
            shown_steps = ended_steps
            if run_view.over:
                break
            time.sleep(POLL_INTERVAL_S)
    if run_view.state == FAILED:
        raise UserCodeFailed(f"{run} failed: {run_view.note}", f"falaj flows look {run}", run)
    return run_view
