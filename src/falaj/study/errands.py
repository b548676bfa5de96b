"""What people who search do beside the platform: start a sweep of a program, and wait for what it finds."""

import inspect
import shlex
import time
import typing
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any, TypeVar, cast

from falaj.core.errand import Here, errand, with_flags
from falaj.core.errors import Invalid, UserCodeFailed
from falaj.core.event import new_id
from falaj.core.ref import Ref
from falaj.jobs import errands as jobs
from falaj.jobs.records import JobView
from falaj.jobs.spec import is_spec, name_of, read_file
from falaj.store.codec import from_plain
from falaj.study.records import FAILED, SweepPlan, SweepView
from falaj.study.space import as_texts

LOOK_S = 0.5
F = TypeVar("F", bound=Callable[..., Any])
_NOT_OURS = ("here", "what", "name", "project", "after", "wait", "dry_run")
_PLAN = {field.name: field for field in fields(SweepPlan)}


def _with_flags(function: F) -> F:
    """Say the flags of a plan and those of a job once, where they are at home: here they stand in the signature."""
    hints = typing.get_type_hints(SweepPlan, include_extras=True)
    flags = {name: _optional(hints[name]) for name in _PLAN}
    theirs = typing.get_type_hints(jobs.submit, include_extras=True)
    flags |= {name: hint for name, hint in theirs.items() if name not in (*_NOT_OURS, "return")}
    return with_flags(function, flags)


def _optional(hint: Any) -> Any:
    kind, text = typing.get_args(hint)[:2]
    return Annotated[kind | None, text]


@errand
@_with_flags
def start(
    here: Here,
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
    words = {key: value for key, value in flags.items() if value is not None}
    folder = Path()
    if is_spec(what):
        words = {**read_file(what), **words}
        folder = Path(what).parent / str(words.pop("folder", "."))
        name, project = name or str(words.pop("name", "")), project or str(words.pop("project", ""))
        what = words.pop("command", "")
        words = {key: value for key, value in words.items() if key not in ("name", "project")}
    plan = _plan({key: words.pop(key) for key in _PLAN if key in words})
    unknown = sorted(set(words) - set(inspect.signature(jobs.submit).parameters))
    if unknown:
        raise Invalid(f"a sweep has no {', '.join(unknown)[:200]}", "see: falaj sweeps start --help")
    ref = _start(here, _command(what, folder), plan, (name, project or jobs.DEFAULT_PROJECT), words)
    return _waited(here, ref) if wait else cast(SweepView, here.sweeps.show(ref))


@errand
def wait(here: Here, sweep: Annotated[Ref, "which sweep"]) -> SweepView:
    """Wait until a sweep is over. Where no server runs, its trials are run meanwhile.

    Example:
        falaj sweeps wait sweep:fraud/s1
    """
    return _waited(here, sweep)


def _plan(words: dict[str, Any]) -> SweepPlan:
    if "space" in words:
        words["space"] = as_texts(words["space"])
    made: SweepPlan = from_plain(SweepPlan, words)
    return made


def _command(given: Any, folder: Path) -> list[str]:
    """The words of a command; a program that a file names lies beside the file."""
    words = shlex.split(given) if isinstance(given, str) else [str(word) for word in given]
    for at, word in enumerate(words[:3]):
        if Path(word).suffix and (folder / word).is_file():
            return [*words[:at], str(folder / word), *words[at + 1 :]]
    return words


def _start(here: Here, command: list[str], plan: SweepPlan, called: tuple[str, str], words: dict[str, Any]) -> Ref:
    name, project = called
    # The job as `falaj jobs submit` would make it, checked to the last word, and not asked for.
    job: JobView = here.jobs.submit(shlex.join(command), project=project, dry_run=True, **words)
    ref = Ref("sweep", project, name or f"{name_of(job.spec)}-{new_id()[-8:]}")
    program = next((Path(word) for word in command[:3] if Path(word).suffix and Path(word).is_file()), None)
    code: Ref | None = None
    if program is not None:
        from falaj.catalog.publishing import publish_code

        code = publish_code(here, Ref("code", project, name_of(job.spec)), program.resolve().parent).ref
    here.sweeps.add(ref, plan, job.spec, inputs=dict(job.inputs), outputs=dict(job.outputs), code=code)
    return ref


def _waited(here: Here, ref: Ref) -> SweepView:
    """Until it is over, with how many trials are."""
    seen = 0
    with here.working(), here.progress.task(str(ref), None, "trials") as task:
        while True:
            sweep: SweepView = here.sweeps.show(ref)
            over, _, whole = sweep.progress.partition("/")
            task.resize(int(whole))
            task.advance(int(over) - seen)
            seen = int(over)
            if sweep.over:
                break
            time.sleep(LOOK_S)
    if sweep.state == FAILED:
        raise UserCodeFailed(f"{ref} failed: {sweep.note}", f"falaj sweeps show {ref}", ref)
    return sweep
