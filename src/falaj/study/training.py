"""What people who train do beside the platform: find how a script runs fastest, see where its time goes, its curve."""

import json
import shlex
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, ClassVar

from falaj.core.data import dataclass
from falaj.core.errand import Here, errand
from falaj.core.errors import Invalid, UserCodeFailed
from falaj.core.event import new_id
from falaj.core.ref import Ref
from falaj.core.stream import Stream
from falaj.jobs.errands import DEFAULT_PROJECT
from falaj.jobs.records import JobSpec, JobView
from falaj.jobs.report import tabled
from falaj.study.following import Broken, Lines, said_by_child, said_by_job
from falaj.study.page_files import keep_file, shelf

MODULE = "falaj.train.autotune"
SUMMARY = "profile/summary.json"
_MIB = 1 << 20
_JOB_MEMORY, _JOB_LIMIT = "8GiB", "2h"
_OURS = ('{"tried"', '{"tuned"', '{"error"', '{"piece"')
_INSTALL = "pip install 'falaj[train]'"


class Training:
    """Training: what it takes is done beside the caller, by errands, and by jobs."""


@dataclass(frozen=True, slots=True)
class Tuning:
    """How a script runs fastest, and what was tried."""

    TEXT: ClassVar[str] = "lines"

    script: str
    options: Mapping[str, Any]
    units_s: float
    before_units_s: float
    memory_bytes: int
    largest: float
    cached: bool
    tried: tuple[Mapping[str, Any], ...]
    file: str
    """Where the choice is kept, and found by `falaj jobs submit`."""
    submit: str
    lines: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Profiled:
    """Where the time of a training went."""

    TEXT: ClassVar[str] = "lines"

    of: str
    page: str
    split: Mapping[str, float]
    advice: tuple[Mapping[str, Any], ...]
    lines: tuple[str, ...]


@errand
def autotune(
    here: Here,
    script: Annotated[str, "the training script; with arguments in quotes"],
    workers: Annotated[int, "processes that will share a batch, in all"] = 1,
    memory: Annotated[str, "memory of each, of the GPU where there is one: 40GiB; all that is free when left out"] = "",
    gpus: Annotated[float | None, "measure in a job with so many GPUs, not here"] = None,
    cluster: Annotated[str | None, "measure in a job on this cluster, not here"] = None,
    project: Annotated[str, "whose job that is"] = "",
) -> Tuning:
    """Find how a training script runs fastest inside its memory, by running a few steps of it in many ways.

    Precision, compiler, micro-batch, recomputing activations, reading ahead and threads are tried; the batch and what
    the script says itself stay. Nothing is saved or published meanwhile. The choice is written to falaj-train.json
    beside the script, where `falaj jobs submit` finds it.

    Example:
        falaj train autotune train.py
        falaj train autotune "train.py --width 512" --workers 4 --gpus 1 --project fraud
    """
    words = _words(script)
    flags = ["--world", str(workers), *(["--memory-bytes", str(_bytes(memory))] if memory else [])]
    if gpus is None and cluster is None:
        flags += ["--cache", str(shelf("autotune"))]
        said = _child([*flags, *words])
    else:
        needs = {"gpus": gpus, "cluster": cluster, "memory": _JOB_MEMORY, "limit": _JOB_LIMIT}
        said = _job(here, words, flags, needs, project)
    tried, tuned = [], dict[str, Any]()
    # Closed whatever happens: who is interrupted ends what it started.
    with closing(said), here.progress.task(f"measuring {words[0]}", None, "candidates") as task:
        for line in said:
            tried += [line["tried"]] if "tried" in line else []
            tuned = line.get("tuned", tuned)
            task.advance("tried" in line)
    if not tuned:
        raise UserCodeFailed(f"{words[0]} was not tuned, and did not say why", "run it once by itself")
    return _tuning(words, tuned, tried)


@errand
def profile(
    here: Here,
    what: Annotated[str, "a script, or a run or job of one"],
    steps: Annotated[int, "how many steps are looked at"] = 3,
    out: Annotated[str, "the page; made from the name when left out"] = "",
) -> Profiled:
    """Show where the time of a training goes, and what to change: a page with plots, and the advice as a table.

    A script is run here for a few steps. Of a run the profile that was kept with it is shown; where there is none, its
    job is submitted again for a few steps, as it was, and what that finds is kept with the run.

    Example:
        falaj train profile train.py
        falaj train profile run:fraud/0f3c2b5a9d8e4f7180a1b2c3d4e5f607
    """
    from falaj.gauge.advice import advise
    from falaj.gauge.page import render

    if not 0 < steps <= 100:
        raise Invalid(f"a profile of {steps} steps", "1 to 100")
    notes: list[str] = []
    ref = Ref.parse(what) if what.startswith(("run:", "job:")) else None
    found = _of_run(here, ref, steps, notes) if ref else _joined(_child(["--profile", str(steps), *_words(what)]))
    page = keep_file(render(found), out or f"profile-{ref.name if ref else Path(_words(what)[0]).stem}.html")
    span = found["span_s"] or 1.0
    advice = tuple(one._asdict() for one in advise(found))
    split = [(name, f"{seconds:.4f} s", f"{seconds / span:.0%}") for name, seconds in found["split"].items()]
    rows = [(one["title"], one["evidence"], one["change"], f"{one['gain']:.0%}") for one in advice]
    lines = (
        *notes,
        *tabled((f"of {found['steps']} steps", "time", "share"), split),
        "",
        *tabled(("what", "why", "change", "may save"), rows, "nothing stands out: no advice"),
        "",
        f"the page: {page}",
    )
    return Profiled(what, str(page), found["split"], advice, lines)


@errand
def curve(
    here: Here,
    run: Annotated[Ref, "which run, or the job it belongs to"],
    metric: Annotated[str, "which metric"] = "loss",
    log: Annotated[bool, "draw the logarithm of the values"] = False,
) -> str:
    """Draw the loss of a training in the terminal, or another of its metrics.

    Example:
        falaj train curve run:fraud/0f3c2b5a9d8e4f7180a1b2c3d4e5f607
        falaj train curve job:fraud/train-1 --metric valid_loss
    """
    from falaj.track.errands import plot

    ref: Ref = here.jobs.show(run).run if run.kind == "job" else run
    known = sorted(here.track.show(ref).metrics)
    if metric not in known:
        raise Invalid(f"{ref} has no metric {metric[:60]!r}", f"it has {', '.join(known[:30]) or 'none yet'}")
    return plot(here, metric, (ref,), log=log)


def _words(script: str) -> list[str]:
    words = shlex.split(script)
    if words[:1] and Path(words[0]).name.startswith("python"):
        words = words[1:]
    if not words or not Path(words[0]).is_file():
        raise Invalid(f"there is no file {(words or [''])[0]!r:.200}", "name a training script that exists")
    return words


def _bytes(text: str) -> int:
    from falaj.fleet.amounts import mebibytes

    return mebibytes(text) * _MIB


def _tuning(words: Sequence[str], tuned: Mapping[str, Any], tried: Sequence[Mapping[str, Any]]) -> Tuning:
    script, options = Path(words[0]), tuned["changes"]
    file = script.parent / "falaj-train.json"
    try:
        known = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    except ValueError:
        known = {}
    keep_file(json.dumps({**known, script.name: options}, indent=1) + "\n", str(file))
    submit = f"falaj jobs submit {shlex.quote(shlex.join(words)) if words[1:] else shlex.quote(words[0])}"
    rows = [
        (one["name"], f"{one['units_s']:.4g}", f"{one['memory_bytes'] / _MIB:.0f} MiB", one["verdict"]) for one in tried
    ]
    gain = tuned["units_s"] / tuned["before_units_s"] if tuned["before_units_s"] else 0.0
    chosen = ", ".join(f"{key}={value}" for key, value in options.items()) or "as it is"
    more = f", {gain:.2f} times as fast as it is by itself" if gain else ", where it does not fit by itself"
    lines = (
        *tabled(("tried", "samples/s", "memory", "verdict"), rows),
        "",
        f"chosen: {chosen}: {tuned['units_s']:.4g} samples/s" + (more if options else ""),
        f"written to {file}; it is used by",
        f"  {submit}",
    )
    return Tuning(
        words[0], options, tuned["units_s"], tuned["before_units_s"], tuned["memory_bytes"], tuned["largest"],
        tuned["cached"], tuple(tried), str(file), submit, lines,
    )  # fmt: skip


def _of_run(here: Here, ref: Ref, steps: int, notes: list[str]) -> dict[str, Any]:
    """The profile kept with a run; else a new one, of the same job for a few steps."""
    run: Ref = here.jobs.show(ref).run if ref.kind == "job" else ref
    if any(one.path == SUMMARY for one in here.track.artifacts(run, deep=True)):
        return dict(json.loads(b"".join(here.track.fetch(run, SUMMARY))))
    job: JobView = here.jobs.show(ref if ref.kind == "job" else _job_of(here, run))
    at = next((number for number, word in enumerate(job.spec.command) if word.endswith(".py")), None)
    if at is None:
        raise Invalid(f"{job.ref} runs no script that can be profiled", "profile a script", job.ref)
    notes += [f"{run} kept no profile: its job was run again for {steps} steps", ""]
    command = ("python3", "-m", MODULE, "--profile", str(steps), *job.spec.command[at:])
    alone = replace(job.spec.roles[0], count=1, processes=1)
    spec = replace(job.spec, command=command, roles=(alone,), framework="plain", steps=0, every_s=0)
    spec = replace(spec, min_workers=0, max_workers=0)
    made = _added(here, job.ref.project, f"profile-{job.ref.name}", spec, job.code, job.inputs)
    found = _joined(said_by_job(here, made, _OURS))
    here.track.attach(run, SUMMARY, Stream([json.dumps(found).encode()]))
    return found


def _job_of(here: Here, run: Ref) -> Ref:
    job = here.track.show(run).tags.get("job", "")
    if not job:
        raise Invalid(f"{run} belongs to no job, and kept no profile", "profile its script", run)
    return Ref.parse(job)


def _job(here: Here, words: Sequence[str], flags: Sequence[str], needs: Mapping[str, Any], project: str) -> Lines:
    """The same command, in the script's folder, as a job."""
    from falaj.catalog.publishing import publish_code
    from falaj.jobs.spec import spec_of

    script = Path(words[0]).resolve()
    if script.parent in (Path("/"), Path.home()):
        raise Invalid(f"{script.name} lies in {script.parent}, and a job takes its folder along", "give it its own")
    command = ["python3", "-m", MODULE, *flags, script.name, *words[1:]]
    spec = spec_of({"command": command, **{key: value for key, value in needs.items() if value is not None}})
    code = publish_code(here, Ref("code", project or DEFAULT_PROJECT, script.stem), script.parent).ref
    made = _added(here, project or DEFAULT_PROJECT, f"autotune-{script.stem}", spec, code, {})
    return said_by_job(here, made, _OURS)


def _added(here: Here, project: str, name: str, spec: JobSpec, code: Ref | None, inputs: Mapping[str, Ref]) -> Ref:
    ref = Ref("job", project, f"{name[:60]}-{new_id()[-8:]}")
    here.jobs.add(ref, spec, code=code, inputs=dict(inputs))
    return ref


def _child(arguments: Sequence[str]) -> Lines:
    """The same command as a child of ours; it takes along its own."""
    try:
        yield from said_by_child([MODULE, *arguments], _OURS)
    except Broken as error:
        raise UserCodeFailed(f"nothing could be measured: it ended {error.args[1]}", _INSTALL) from error


def _joined(said: Lines) -> dict[str, Any]:
    with closing(said):
        text = "".join(str(line.get("piece", "")) for line in said)
    if not text:
        raise UserCodeFailed("there is no profile, and nobody said why", "run the script once by itself")
    return dict(json.loads(text))
