"""What people who search do beside the platform: start a sweep of a program, and wait for what it finds."""

import inspect
import shlex
import time
import typing
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any, TypeVar, cast

from falaj.core.client_command import Client, add_flags, client_command
from falaj.core.errors import Invalid, UserCodeFailed
from falaj.core.event import generate_id
from falaj.core.ref import Ref
from falaj.jobs import client_commands as jobs
from falaj.jobs.records import JobView
from falaj.jobs.spec import derive_job_name, is_spec_file, read_spec_file
from falaj.store.codec import from_plain
from falaj.study.records import FAILED, SweepPlan, SweepView
from falaj.study.search_space import to_space_texts

POLL_INTERVAL_S = 0.5
FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])
_OWN_PARAMETERS = ("client", "what", "name", "project", "after", "wait", "dry_run")
_PLAN_FIELDS = {field.name: field for field in fields(SweepPlan)}


def _add_plan_flags(function: FunctionT) -> FunctionT:
    """Say the flags of a plan and those of a job once, where they are at home: here they stand in the signature."""
    plan_hints = typing.get_type_hints(SweepPlan, include_extras=True)
    flags = {name: _make_optional(plan_hints[name]) for name in _PLAN_FIELDS}
    submit_hints = typing.get_type_hints(jobs.submit, include_extras=True)
    flags |= {name: hint for name, hint in submit_hints.items() if name not in (*_OWN_PARAMETERS, "return")}
    return add_flags(function, flags)


def _make_optional(hint: Any) -> Any:
    kind, text = typing.get_args(hint)[:2]
    return Annotated[kind | None, text]


@client_command
@_add_plan_flags
def start(
    client: Client,
    what: Annotated[str, "a script, a command line in quotes, or a file with the same words (YAML, TOML, JSON)"],
    name: Annotated[str, "what to call it; made from the program when left out"] = "",
    project: Annotated[str, "whose sweep it is"] = "",
    wait: Annotated[bool, "wait until it is over"] = False,
    **flags: Any,
) -> SweepView:
    """Search for the parameters with which a program does best. All other flags are those of `falaj jobs submit`.

    The program gets them as flags (--lr 0.01), as FALAJ_PARAM_LR and together in FALAJ_PARAMS, and reports the metric:
    `worker.attempt().metric("valid_loss", loss, step)`. Trials that fall behind are stopped; the outputs of the best
    become the next versions of the names given. A file says the same as the flags; flags win.

    Example:
        falaj sweeps start train.py --space lr=log:1e-5..1e-1,depth=int:2..8 --metric valid_loss --trials 50
        falaj sweeps start sweep.yaml --at-once 8 --outputs model=model:fraud/scorer
    """
    settings = {key: value for key, value in flags.items() if value is not None}
    folder = Path()
    if is_spec_file(what):
        settings = {**read_spec_file(what), **settings}
        folder = Path(what).parent / str(settings.pop("folder", "."))
        name, project = name or str(settings.pop("name", "")), project or str(settings.pop("project", ""))
        what = settings.pop("command", "")
        settings = {key: value for key, value in settings.items() if key not in ("name", "project")}
    plan = _build_plan({key: settings.pop(key) for key in _PLAN_FIELDS if key in settings})
    unknown = sorted(set(settings) - set(inspect.signature(jobs.submit).parameters))
    if unknown:
        raise Invalid(f"a sweep has no {', '.join(unknown)[:200]}", "see: falaj sweeps start --help")
    ref = _add_sweep(client, _split_command(what, folder), plan, (name, project or jobs.DEFAULT_PROJECT), settings)
    return _wait_for_sweep(client, ref) if wait else cast(SweepView, client.sweeps.show(ref))


@client_command
def wait(client: Client, sweep: Annotated[Ref, "which sweep"]) -> SweepView:
    """Wait until a sweep is over. Where no server runs, its trials are run meanwhile.

    Example:
        falaj sweeps wait sweep:fraud/s1
    """
    return _wait_for_sweep(client, sweep)


def _build_plan(settings: dict[str, Any]) -> SweepPlan:
    if "space" in settings:
        settings["space"] = to_space_texts(settings["space"])
    sweep_plan: SweepPlan = from_plain(SweepPlan, settings)
    return sweep_plan


def _split_command(command: Any, folder: Path) -> list[str]:
    """The words of a command; a program that a file names lies beside the file."""
    arguments = shlex.split(command) if isinstance(command, str) else [str(argument) for argument in command]
    for index, argument in enumerate(arguments[:3]):
        if Path(argument).suffix and (folder / argument).is_file():
            return [*arguments[:index], str(folder / argument), *arguments[index + 1 :]]
    return arguments


def _add_sweep(
    client: Client, command: list[str], plan: SweepPlan, name_and_project: tuple[str, str], job_settings: dict[str, Any]
) -> Ref:
    name, project = name_and_project
    # The job as `falaj jobs submit` would make it, checked to the last word, and not asked for.
    job: JobView = client.jobs.submit(shlex.join(command), project=project, dry_run=True, **job_settings)
    ref = Ref("sweep", project, name or f"{derive_job_name(job.spec)}-{generate_id()[-8:]}")
    program = next(
        (Path(argument) for argument in command[:3] if Path(argument).suffix and Path(argument).is_file()), None
    )
    code: Ref | None = None
    if program is not None:
        from falaj.catalog.publishing import publish_code

        code = publish_code(client, Ref("code", project, derive_job_name(job.spec)), program.resolve().parent).ref
    client.sweeps.add(ref, plan, job.spec, inputs=dict(job.inputs), outputs=dict(job.outputs), code=code)
    return ref


def _wait_for_sweep(client: Client, ref: Ref) -> SweepView:
    """Until it is over, with how many trials are."""
    ended_count = 0
    with client.working(), client.progress.task(str(ref), None, "trials") as task:
        while True:
            sweep: SweepView = client.sweeps.show(ref)
            ended_text, _, total_text = sweep.progress.partition("/")
            task.resize(int(total_text))
            task.advance(int(ended_text) - ended_count)
            ended_count = int(ended_text)
            if sweep.over:
                break
            time.sleep(POLL_INTERVAL_S)
    if sweep.state == FAILED:
        raise UserCodeFailed(f"{ref} failed: {sweep.note}", f"falaj sweeps show {ref}", ref)
    return sweep
