"""What people who train do beside the platform: find how a script runs fastest, see where its time goes, its curve."""

import json
import shlex
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, ClassVar

from falaj.core.byte_stream import ByteStream
from falaj.core.client_command import Client, client_command
from falaj.core.data import dataclass
from falaj.core.errors import Invalid, UserCodeFailed
from falaj.core.event import generate_id
from falaj.core.ref import Ref
from falaj.jobs.client_commands import DEFAULT_PROJECT
from falaj.jobs.records import JobSpec, JobView
from falaj.jobs.report import format_table
from falaj.study.command_output import ChildFailed, OutputLines, follow_child, follow_job
from falaj.study.output_files import find_cache_folder, write_text_file

AUTOTUNE_MODULE = "falaj.train.autotune"
SUMMARY_PATH = "profile/summary.json"
_MIB = 1 << 20
_JOB_MEMORY, _JOB_LIMIT = "8GiB", "2h"
_LINE_PREFIXES = ('{"tried"', '{"tuned"', '{"error"', '{"piece"')
_INSTALL_HINT = "pip install 'falaj[train]'"


class TrainService:
    """Training: what it takes is done beside the caller, by errands, and by jobs."""


@dataclass(frozen=True, slots=True)
class AutotuneResult:
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
class ProfileResult:
    """Where the time of a training went."""

    TEXT: ClassVar[str] = "lines"

    of: str
    page: str
    split: Mapping[str, float]
    advice: tuple[Mapping[str, Any], ...]
    lines: tuple[str, ...]


@client_command
def autotune(
    client: Client,
    script: Annotated[str, "the training script; with arguments in quotes"],
    workers: Annotated[int, "processes that will share a batch, in all"] = 1,
    memory: Annotated[str, "memory of each, of the GPU where there is one: 40GiB; all that is free when left out"] = "",
    gpus: Annotated[float | None, "measure in a job with so many GPUs, not here"] = None,
    cluster: Annotated[str | None, "measure in a job on this cluster, not here"] = None,
    project: Annotated[str, "whose job that is"] = "",
) -> AutotuneResult:
    """Find how a training script runs fastest inside its memory, by running a few steps of it in many ways.

    Precision, compiler, micro-batch, recomputing activations, reading ahead and threads are tried; the batch and what
    the script says itself stay. Nothing is saved or published meanwhile. The choice is written to falaj-train.json
    beside the script, where `falaj jobs submit` finds it.

    Example:
        falaj train autotune train.py
        falaj train autotune "train.py --width 512" --workers 4 --gpus 1 --project fraud
    """
    command = _split_script(script)
    flags = ["--world", str(workers), *(["--memory-bytes", str(_parse_bytes(memory))] if memory else [])]
    if gpus is None and cluster is None:
        flags += ["--cache", str(find_cache_folder("autotune"))]
        output_lines = _follow_autotune([*flags, *command])
    else:
        job_needs = {"gpus": gpus, "cluster": cluster, "memory": _JOB_MEMORY, "limit": _JOB_LIMIT}
        output_lines = _run_in_job(client, command, flags, job_needs, project)
    tried, tuned = [], dict[str, Any]()
    # Closed whatever happens: who is interrupted ends what it started.
    with closing(output_lines), client.progress.task(f"measuring {command[0]}", None, "candidates") as task:
        for line in output_lines:
            tried += [line["tried"]] if "tried" in line else []
            tuned = line.get("tuned", tuned)
            task.advance("tried" in line)
    if not tuned:
        raise UserCodeFailed(f"{command[0]} was not tuned, and did not say why", "run it once by itself")
    return _build_result(command, tuned, tried)


@client_command
def profile(
    client: Client,
    what: Annotated[str, "a script, or a run or job of one"],
    steps: Annotated[int, "how many steps are looked at"] = 3,
    out: Annotated[str, "the page; made from the name when left out"] = "",
) -> ProfileResult:
    """Show where the time of a training goes, and what to change: a page with plots, and the advice as a table.

    A script is run here for a few steps. Of a run the profile that was kept with it is shown; where there is none, its
    job is submitted again for a few steps, as it was, and what that finds is kept with the run.

    Example:
        falaj train profile train.py
        falaj train profile run:fraud/0f3c2b5a9d8e4f7180a1b2c3d4e5f607
    """
    from falaj.gauge.advice import list_advice
    from falaj.gauge.profile_page import render_profile

    if not 0 < steps <= 100:
        raise Invalid(f"a profile of {steps} steps", "1 to 100")
    notes: list[str] = []
    ref = Ref.parse(what) if what.startswith(("run:", "job:")) else None
    profile_summary = (
        _profile_run(client, ref, steps, notes)
        if ref
        else _read_pieces(_follow_autotune(["--profile", str(steps), *_split_script(what)]))
    )
    page = write_text_file(
        render_profile(profile_summary), out or f"profile-{ref.name if ref else Path(_split_script(what)[0]).stem}.html"
    )
    span_s = profile_summary["span_s"] or 1.0
    advice = tuple(advice_item._asdict() for advice_item in list_advice(profile_summary))
    split = [
        (name, f"{seconds:.4f} s", f"{seconds / span_s:.0%}") for name, seconds in profile_summary["split"].items()
    ]
    rows = [
        (advice_item["title"], advice_item["evidence"], advice_item["change"], f"{advice_item['gain']:.0%}")
        for advice_item in advice
    ]
    lines = (
        *notes,
        *format_table((f"of {profile_summary['steps']} steps", "time", "share"), split),
        "",
        *format_table(("what", "why", "change", "may save"), rows, "nothing stands out: no advice"),
        "",
        f"the page: {page}",
    )
    return ProfileResult(what, str(page), profile_summary["split"], advice, lines)


@client_command
def curve(
    client: Client,
    run: Annotated[Ref, "which run, or the job it belongs to"],
    metric: Annotated[str, "which metric"] = "loss",
    log: Annotated[bool, "draw the logarithm of the values"] = False,
) -> str:
    """Draw the loss of a training in the terminal, or another of its metrics.

    Example:
        falaj train curve run:fraud/0f3c2b5a9d8e4f7180a1b2c3d4e5f607
        falaj train curve job:fraud/train-1 --metric valid_loss
    """
    from falaj.track.client_commands import plot

    ref: Ref = client.jobs.show(run).run if run.kind == "job" else run
    metric_names = sorted(client.track.show(ref).metrics)
    if metric not in metric_names:
        raise Invalid(f"{ref} has no metric {metric[:60]!r}", f"it has {', '.join(metric_names[:30]) or 'none yet'}")
    return plot(client, metric, (ref,), log=log)


def _split_script(script: str) -> list[str]:
    command = shlex.split(script)
    if command[:1] and Path(command[0]).name.startswith("python"):
        command = command[1:]
    if not command or not Path(command[0]).is_file():
        raise Invalid(f"there is no file {(command or [''])[0]!r:.200}", "name a training script that exists")
    return command


def _parse_bytes(text: str) -> int:
    from falaj.fleet.amounts import parse_mebibytes

    return parse_mebibytes(text) * _MIB


def _build_result(
    command: Sequence[str], tuned: Mapping[str, Any], tried: Sequence[Mapping[str, Any]]
) -> AutotuneResult:
    script, options = Path(command[0]), tuned["changes"]
    file = script.parent / "falaj-train.json"
    try:
        saved_options = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    except ValueError:
        saved_options = {}
    write_text_file(json.dumps({**saved_options, script.name: options}, indent=1) + "\n", str(file))
    submit = f"falaj jobs submit {shlex.quote(shlex.join(command)) if command[1:] else shlex.quote(command[0])}"
    rows = [
        (trial["name"], f"{trial['units_s']:.4g}", f"{trial['memory_bytes'] / _MIB:.0f} MiB", trial["verdict"])
        for trial in tried
    ]
    gain = tuned["units_s"] / tuned["before_units_s"] if tuned["before_units_s"] else 0.0
    chosen_text = ", ".join(f"{key}={value}" for key, value in options.items()) or "as it is"
    comparison = f", {gain:.2f} times as fast as it is by itself" if gain else ", where it does not fit by itself"
    lines = (
        *format_table(("tried", "samples/s", "memory", "verdict"), rows),
        "",
        f"chosen: {chosen_text}: {tuned['units_s']:.4g} samples/s" + (comparison if options else ""),
        f"written to {file}; it is used by",
        f"  {submit}",
    )
    return AutotuneResult(
        command[0], options, tuned["units_s"], tuned["before_units_s"], tuned["memory_bytes"], tuned["largest"],
        tuned["cached"], tuple(tried), str(file), submit, lines,
    )  # fmt: skip


def _profile_run(client: Client, ref: Ref, steps: int, notes: list[str]) -> dict[str, Any]:
    """The profile kept with a run; else a new one, of the same job for a few steps."""
    run: Ref = client.jobs.show(ref).run if ref.kind == "job" else ref
    if any(artifact.path == SUMMARY_PATH for artifact in client.track.artifacts(run, deep=True)):
        return dict(json.loads(b"".join(client.track.fetch(run, SUMMARY_PATH))))
    job: JobView = client.jobs.show(ref if ref.kind == "job" else _find_run_job(client, run))
    script_index = next((number for number, word in enumerate(job.spec.command) if word.endswith(".py")), None)
    if script_index is None:
        raise Invalid(f"{job.ref} runs no script that can be profiled", "profile a script", job.ref)
    notes += [f"{run} kept no profile: its job was run again for {steps} steps", ""]
    command = ("python3", "-m", AUTOTUNE_MODULE, "--profile", str(steps), *job.spec.command[script_index:])
    single_role = replace(job.spec.roles[0], count=1, processes=1)
    spec = replace(job.spec, command=command, roles=(single_role,), framework="plain", steps=0, every_s=0)
    spec = replace(spec, min_workers=0, max_workers=0)
    profile_job = _add_job(client, job.ref.project, f"profile-{job.ref.name}", spec, job.code, job.inputs)
    profile_summary = _read_pieces(follow_job(client, profile_job, _LINE_PREFIXES))
    client.track.attach(run, SUMMARY_PATH, ByteStream([json.dumps(profile_summary).encode()]))
    return profile_summary


def _find_run_job(client: Client, run: Ref) -> Ref:
    job = client.track.show(run).tags.get("job", "")
    if not job:
        raise Invalid(f"{run} belongs to no job, and kept no profile", "profile its script", run)
    return Ref.parse(job)


def _run_in_job(
    client: Client, command: Sequence[str], flags: Sequence[str], job_needs: Mapping[str, Any], project: str
) -> OutputLines:
    """The same command, in the script's folder, as a job."""
    from falaj.catalog.publishing import publish_code
    from falaj.jobs.spec import parse_spec

    script = Path(command[0]).resolve()
    if script.parent in (Path("/"), Path.home()):
        raise Invalid(f"{script.name} lies in {script.parent}, and a job takes its folder along", "give it its own")
    job_command = ["python3", "-m", AUTOTUNE_MODULE, *flags, script.name, *command[1:]]
    spec = parse_spec({"command": job_command, **{key: value for key, value in job_needs.items() if value is not None}})
    code = publish_code(client, Ref("code", project or DEFAULT_PROJECT, script.stem), script.parent).ref
    job_ref = _add_job(client, project or DEFAULT_PROJECT, f"autotune-{script.stem}", spec, code, {})
    return follow_job(client, job_ref, _LINE_PREFIXES)


def _add_job(
    client: Client, project: str, name: str, spec: JobSpec, code: Ref | None, inputs: Mapping[str, Ref]
) -> Ref:
    ref = Ref("job", project, f"{name[:60]}-{generate_id()[-8:]}")
    client.jobs.add(ref, spec, code=code, inputs=dict(inputs))
    return ref


def _follow_autotune(arguments: Sequence[str]) -> OutputLines:
    """The same command as a child of ours; it takes along its own."""
    try:
        yield from follow_child([AUTOTUNE_MODULE, *arguments], _LINE_PREFIXES)
    except ChildFailed as error:
        raise UserCodeFailed(f"nothing could be measured: it ended {error.args[1]}", _INSTALL_HINT) from error


def _read_pieces(output_lines: OutputLines) -> dict[str, Any]:
    with closing(output_lines):
        text = "".join(str(line.get("piece", "")) for line in output_lines)
    if not text:
        raise UserCodeFailed("there is no profile, and nobody said why", "run the script once by itself")
    return dict(json.loads(text))
