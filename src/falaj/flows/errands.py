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

from falaj.core.errand import Here, errand
from falaj.core.errors import Invalid, UserCodeFailed
from falaj.core.flow import Flow
from falaj.core.ref import Ref
from falaj.flows.plans import check_plan, plan_of
from falaj.flows.records import FAILED, FUNCTION, OVER, FlowPlan, FlowView, RunView
from falaj.jobs.errands import LOOK_S, until_over
from falaj.jobs.records import JobView
from falaj.worker.steps import load_file

MOST_BACKFILL = 10_000


@dataclass(frozen=True, slots=True)
class Filled:
    """One run of a backfill."""

    COLUMNS: ClassVar[tuple[str, ...]] = ("value", "run", "state", "note")

    value: str
    run: Ref
    state: str
    note: str = ""


@errand
def save(
    here: Here,
    file: Annotated[str, "the Python file of the flow; FILE:NAME where it has several"],
    name: Annotated[str, "which of its flows, said apart"] = "",
    message: Annotated[str, "what this version brings"] = "",
) -> FlowView:
    """Keep the flow of a file: its folder as a version of code, its plan as a version of the flow.

    Example:
        falaj flows save retrain.py
    """
    found, plan, path = _opened(f"{file}:{name}" if name else file)
    return _saved(here, found, plan, path, message)


@errand
def run(
    here: Here,
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
        saved: FlowView = here.flows.show(Ref.parse(what))
    else:
        found, plan, path = _opened(what)
        if local:
            from falaj.flows.alone import run_alone

            return run_alone(here, found, plan, path, typed(plan, params or {}))
        saved = _saved(here, found, plan, path, "")
    begun: RunView = here.flows.start(saved.ref, params=typed(saved.plan, params or {}), cause=cause, fresh=fresh)
    return _waited(here, begun.ref) if follow else begun


@errand
def wait(
    here: Here,
    turns: Annotated[tuple[Ref, ...], "which runs"],
    timeout_s: Annotated[float, "give up after so long; 0 is never"] = 0.0,
) -> tuple[RunView, ...]:
    """Wait until runs are over. Where no server runs, their steps are run meanwhile.

    The exit code is 1 unless all of them succeeded in time.

    Example:
        falaj flows wait turn:fraud/retrain-7 --timeout-s 3600
    """
    return until_over(here, here.flows.look, turns, timeout_s)


@errand
def logs(
    here: Here,
    turn: Annotated[Ref, "which run"],
    step: Annotated[str, "of one step only"] = "",
) -> tuple[JobView, ...]:
    """Show what the steps of a run wrote, one after the other.

    Example:
        falaj flows logs turn:fraud/retrain-7 --step train
    """
    jobs: list[JobView] = []
    for one in here.flows.look(turn).steps:
        for job in one.jobs if step in ("", one.name) else ():
            jobs.append(here.jobs.show(job))
            sys.stdout.write(f"--- {one.name}: {job} ({jobs[-1].state})\n")
            after, over = "", not jobs[-1].attempts
            while not over:
                page = here.jobs.logs(job, after=after)
                sys.stdout.write("".join(f"{line}\n" for line in page.lines))
                after, over = page.next, not page.lines
    return tuple(jobs)


@errand
def backfill(
    here: Here,
    flow: Annotated[Ref, "which flow"],
    over: Annotated[dict[str, str], "what is gone through: day=2026-01-01..2026-01-31, or n=1..10, or x=a,b,c"],
    params: Annotated[dict[str, str] | None, "the other parameters, the same for all"] = None,
    at_once: Annotated[int, "so many runs at a time"] = 4,
    fresh: Annotated[bool, "do every step again, though its result is known"] = False,
) -> tuple[Filled, ...]:
    """Run a flow once for every value of a parameter. Broken off and called again, it goes on: a value has one run.

    Example:
        falaj flows backfill flow:fraud/daily --over day=2026-01-01..2026-01-31 --at-once 4
    """
    if len(over) != 1 or not 0 < at_once <= 100:
        raise Invalid(f"{len(over)} parameters to go through, {at_once} at once", "one parameter; 1 to 100 at once")
    saved: FlowView = here.flows.show(flow)
    ((name, text),) = over.items()
    values = list(spread(text))
    if not 0 < len(values) <= MOST_BACKFILL:
        raise Invalid(f"{text[:60]} has {len(values)} values", f"1 to {MOST_BACKFILL}")
    done: dict[str, RunView] = {}
    others = "".join(f" {key}={value}" for key, value in sorted((params or {}).items()))[:400]
    with here.working(), here.progress.task(str(flow), len(values), "runs") as task:
        while len(done) < len(values):
            for value in [one for one in values if one not in done][:at_once]:
                given = typed(saved.plan, {**(params or {}), name: value})
                begun = here.flows.start(saved.ref, given, cause=f"backfill {name}={value}{others}", fresh=fresh)
                if begun.over:
                    done[value] = begun
                    task.advance(1)
            time.sleep(0.0 if len(done) == len(values) else LOOK_S)
    return tuple(Filled(value, done[value].ref, done[value].state, done[value].note) for value in values)


@errand
def export(
    here: Here,
    flow: Annotated[Ref, "which flow"],
    to: Annotated[str, "kubeflow (an Argo workflow, as Kubeflow Pipelines runs) or github (an Actions workflow)"],
    out: Annotated[str, "the file to write"] = "",
) -> str:
    """Write a flow as YAML of another tool. Its jobs still run here; what has no counterpart is said in it.

    Example:
        falaj flows export flow:fraud/retrain kubeflow --out retrain.yaml
    """
    from falaj.flows.export import exported

    text = exported(here.flows.show(flow), to)
    if out:
        Path(out).write_text(text, encoding="utf-8")
    return out or text


def spread(text: str) -> Iterator[str]:
    """The values of `2026-01-01..2026-01-31` (days), `1..10` (whole numbers) or `a,b,c`."""
    first, dots, last = text.partition("..")
    if not dots:
        yield from dict.fromkeys(part.strip() for part in text.split(",") if part.strip())
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


def typed(plan: FlowPlan, given: dict[str, str]) -> dict[str, Any]:
    """Texts of the command line as what a flow's parameters are: where its default is no text, JSON."""
    return {name: _typed(plan.params.get(name), value) for name, value in given.items()}


def _typed(default: Any, value: Any) -> Any:
    if isinstance(default, str) or not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except ValueError:
        return value


def _opened(what: str) -> tuple[Flow, FlowPlan, Path]:
    """A flow of a file, and its plan, checked as the platform will check it."""
    file, _, name = what.partition(".py:")
    file = f"{file}.py" if name else file
    path = Path(file)
    if not path.is_file():
        raise Invalid(f"there is no file {file!r:.200}", "name the Python file of the flow")
    flows = [one for one in vars(load_file(path.resolve())).values() if isinstance(one, Flow)]
    found = [one for one in flows if name in ("", one.name, one.ref.name)]
    if len(found) != 1:
        known = ", ".join(one.name for one in flows) or 'none: mark a function with @flow("project/name")'
        raise Invalid(f"{path.name} has {len(found)} flows of that name", f"{path.name}:NAME says which: {known}")
    plan = plan_of(found[0].plan())
    strange = next(
        (one for one in plan.steps if one.kind == FUNCTION and one.entry.partition(":")[0] != path.name), None
    )
    if strange is not None:
        raise Invalid(f"{strange.name} is a step of another file", f"write it in {path.name}, and call the other there")
    check_plan(plan)
    return found[0], plan, path


def _saved(here: Here, found: Flow, plan: FlowPlan, file: Path, message: str) -> FlowView:
    from falaj.catalog.gitfacts import tracked
    from falaj.catalog.publishing import publish_code

    home = file.resolve().parent
    listed = tracked(home)
    if listed is not None and file.name.encode() not in listed:
        raise Invalid(f"git ignores {file.name}, and so it would not be kept", "take it out of .gitignore, or move it")
    if home in (Path("/"), Path.home()):
        raise Invalid(f"{file.name} lies in {home}, and a flow takes its folder along", "give it a folder of its own")
    code = publish_code(here, Ref("code", found.ref.project, found.ref.name), home).ref
    return cast(FlowView, here.flows.add(found.ref, plan, code=code, message=message))


def _waited(here: Here, turn: Ref) -> RunView:
    """Until it is over, with how many steps are."""
    seen = 0
    with here.working(), here.progress.task(str(turn), None, "steps") as task:
        while True:
            found: RunView = here.flows.look(turn)
            over = sum(one.state in OVER for one in found.steps)
            task.resize(len(found.steps))
            task.advance(over - seen)
            seen = over
            if found.over:
                break
            time.sleep(LOOK_S)
    if found.state == FAILED:
        raise UserCodeFailed(f"{turn} failed: {found.note}", f"falaj flows look {turn}", turn)
    return found
