"""What people who run jobs do beside the platform: submit a program, wait for it, follow what it says."""

import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, cast

from falaj.core.client_command import Client, client_command
from falaj.core.errors import Invalid, UserCodeFailed
from falaj.core.event import generate_id
from falaj.core.ref import Ref
from falaj.fleet.amounts import parse_mapping
from falaj.jobs.records import SUCCEEDED, JobView, LogPage
from falaj.jobs.script_defaults import apply_script_defaults
from falaj.jobs.spec import derive_job_name, is_spec_file, parse_spec, read_spec_file

POLL_INTERVAL_S = 0.2
DEFAULT_PROJECT = "default"
_SPEC_NAMES = {"gpu_model": "gpu_models", "secret": "secrets"}  # nosec B105 - names of fields
"""Flags that are called otherwise in a spec."""


@client_command
def submit(
    client: Client,
    what: Annotated[str, "a script, a command line in quotes, or a spec file (YAML, TOML, JSON)"],
    name: Annotated[str, "what to call it; made from the program when left out"] = "",
    project: Annotated[str, "whose job it is"] = "",
    queue: Annotated[str | None, "the queue; the project's own when left out"] = None,
    gpus: Annotated[float | None, "GPUs of each worker: 2, or 0.5 for a part of one"] = None,
    gpu_model: Annotated[tuple[str, ...] | None, "any of these models"] = None,
    gpu_memory: Annotated[str | None, "at least so much on each GPU: 40GiB"] = None,
    cpus: Annotated[float | None, "cores of each worker"] = None,
    memory: Annotated[str | None, "memory of each worker: 64GiB"] = None,
    workers: Annotated[int | None, "how many, each on its own node or not"] = None,
    min_workers: Annotated[int | None, "begin with so many if there is no room for all"] = None,
    max_workers: Annotated[int | None, "grow to so many where there is room"] = None,
    processes: Annotated[int | None, "processes of each worker; one for each GPU when left out"] = None,
    framework: Annotated[str | None, "plain, torch, tensorflow, jax, mpi or horovod"] = None,
    band: Annotated[str | None, "best-effort, low, normal, high or critical"] = None,
    deadline: Annotated[str | None, "must be done by then: 6h, 2027-01-31 (to its end), 2027-01-31T12:00Z"] = None,
    limit: Annotated[str | None, "end it after so long: 2h"] = None,
    retries: Annotated[int | None, "try again so often when it fails"] = None,
    retry_on: Annotated[tuple[int, ...] | None, "only when it ends with one of these exit codes"] = None,
    inputs: Annotated[dict[str, Ref] | None, "what it reads, by role: data=dataset:fraud/tx@v3"] = None,
    outputs: Annotated[dict[str, Ref] | None, "what it writes, by name: model=model:fraud/scorer"] = None,
    env: Annotated[dict[str, str] | None, "variables; never secrets"] = None,
    secret: Annotated[dict[str, str] | None, "variables whose values are secrets: DB=secret:fraud/db"] = None,
    image: Annotated[str | None, "the container image, where the cluster runs containers"] = None,
    topology: Annotated[str | None, "keep workers together: node, island, rack; rack:required"] = None,
    isolation: Annotated[str | None, "of a part of a GPU: none, soft or hard"] = None,
    spot: Annotated[bool | None, "may run on nodes that can be taken away"] = None,
    cluster: Annotated[str | None, "on this cluster only"] = None,
    zone: Annotated[str | None, "in this zone only"] = None,
    checkpoint: Annotated[str | None, "it saves and resumes: every=5m,save=10s,restart=30s"] = None,
    steps: Annotated[int | None, "how many steps it has to do"] = None,
    after: Annotated[tuple[Ref, ...] | None, "jobs that must succeed first"] = None,
    wait: Annotated[bool, "wait until it is over, and show what it says"] = False,
    dry_run: Annotated[bool, "check everything, and submit nothing"] = False,
) -> JobView:
    """Run a program on a cluster. Its folder is kept as a version of code, its inputs are pinned, its run is tracked.

    A script of yours is packed with the folder it lies in. Inputs are found in FALAJ_INPUT_<ROLE>, outputs are written
    to FALAJ_OUTPUT_<NAME> and published when the job succeeds. A spec file says the same as the flags; flags win.

    Example:
        falaj jobs submit train.py --gpus 2 --workers 4 --inputs data=dataset:fraud/tx@v3 --outputs model=model:fraud/m
        falaj jobs submit "python train.py --lr 0.1" --limit 2h --retries 2 --wait
    """
    flags = {
        "queue": queue, "gpus": gpus, "gpu_model": gpu_model, "gpu_memory": gpu_memory, "cpus": cpus,
        "memory": memory, "workers": workers, "min_workers": min_workers, "max_workers": max_workers,
        "processes": processes, "framework": framework, "band": band, "deadline": deadline, "limit": limit,
        "retries": retries, "retry_on": retry_on, "env": env, "secret": secret, "image": image,
        "topology": topology, "isolation": isolation, "spot": spot, "cluster": cluster, "zone": zone,
        "checkpoint": checkpoint, "steps": steps, "inputs": inputs, "outputs": outputs, "after": after,
    }  # fmt: skip
    job = submit_words(client, read_words(what, flags), name, project, dry=dry_run)
    return _follow_job(client, job.ref) if wait and not dry_run else job


@client_command
def wait(
    client: Client,
    jobs: Annotated[tuple[Ref, ...], "which jobs"],
    timeout_s: Annotated[float, "give up after so long; 0 is never"] = 0.0,
) -> tuple[JobView, ...]:
    """Wait until jobs are over. Where no server runs, they are run meanwhile.

    The exit code is 1 unless all of them succeeded in time.

    Example:
        falaj jobs wait job:fraud/train-1 --timeout-s 3600
    """
    return wait_until_over(client, client.jobs.show, jobs, timeout_s)


@client_command
def follow(
    client: Client,
    job: Annotated[Ref, "which job"],
    slot: Annotated[int, "which of its slots"] = 0,
) -> JobView:
    """Show what a job says as it says it, through all its attempts, until it is over.

    Example:
        falaj jobs follow job:fraud/train-1
    """
    return _follow_job(client, job, slot)


class WaitResult(tuple[Any, ...]):
    """What was waited for, as it stands; whether all of it ended well."""

    __slots__ = ()

    @property
    def ok(self) -> bool:
        """False when one failed, was cancelled, or is not over yet."""
        return all(view.state == SUCCEEDED for view in self)


def wait_until_over(
    client: Client, read_view: Callable[[Ref], Any], refs: tuple[Ref, ...], timeout_s: float
) -> WaitResult:
    """How all of them stand, once they are over or it took too long. Where no server runs, they are run meanwhile."""
    if not timeout_s >= 0:
        raise Invalid(f"waiting for {timeout_s} seconds", "a number from 0, which is for ever")
    deadline = time.monotonic() + timeout_s if timeout_s else float("inf")
    with client.working():
        while True:
            result = WaitResult(read_view(ref) for ref in refs)
            if all(view.over for view in result) or time.monotonic() > deadline:
                return result
            time.sleep(POLL_INTERVAL_S)


def read_words(what: str, flags: Mapping[str, Any]) -> dict[str, Any]:
    """A spec file with the flags of submit that are set over it, or a command with these flags."""
    flags = {_SPEC_NAMES.get(name, name): value for name, value in flags.items() if value is not None}
    if is_spec_file(what):
        words = read_spec_file(what)
        words.setdefault("folder", str(Path(what).parent))
        return {**words, **flags}
    if what and Path(what).is_dir():
        raise Invalid(f"{what!r:.200} is a folder", "name the script in it, or the command that runs there")
    return {**flags, "command": what}


def submit_words(here: Client, words: dict[str, Any], name: str, project: str, *, dry: bool) -> JobView:
    """Submit a job that these words describe; its program is published unless the words name a version of it."""
    name, project = name or str(words.pop("name", "")), project or str(words.pop("project", "") or DEFAULT_PROJECT)
    words = {key: value for key, value in words.items() if key not in ("name", "project")}
    folder = Path(str(words.pop("folder", ".")))
    if words.get("deadline") is not None and not isinstance(words["deadline"], int | float):
        words["deadline"] = _parse_deadline(str(words["deadline"]))
    if isinstance(until := words.get("deadline"), int | float) and until <= time.time():
        raise Invalid("its deadline has passed already", "say when from now, 6h, or a later day")
    refs = {key: _parse_refs(key, words.get(key)) for key in ("inputs", "outputs")}
    command, program = _find_program(parse_spec(words).command, folder)
    if program is not None and (script := _find_script(command, program)):
        words = apply_script_defaults(script, words)
    spec = parse_spec(words)
    ref = Ref("job", project, name or f"{derive_job_name(spec)}-{generate_id()[-8:]}")
    code: Ref | None = Ref.parse(str(words["code"])) if words.get("code") else None
    if program is not None and code is None and not dry:
        from falaj.catalog.publishing import publish_code

        code = publish_code(here, Ref("code", project, derive_job_name(spec)), program).ref
    first = words.get("after") or ()
    after = tuple(Ref.parse(str(one)) for one in (first if isinstance(first, list | tuple) else [first]))
    made = here.jobs.add(ref, replace(spec, command=command), code=code, after=after, dry=dry, **refs)
    return cast(JobView, made)


def _find_program(command: tuple[str, ...], folder: Path) -> tuple[tuple[str, ...], Path | None]:
    """The command as it runs in its folder, and that folder, where it names a file of the caller's."""
    for position, argument in enumerate(command[:3]):
        path = folder / argument
        if Path(argument).suffix and path.is_file() and (position or Path(argument).suffix in (".py", ".sh")):
            program_folder = path.resolve().parent
            if program_folder in (Path("/"), Path.home()):
                raise Invalid(
                    f"{path.name} lies in {program_folder}, and a job takes its folder along",
                    "give it a folder of its own",
                )
            runnable = (*command[:position], path.name, *command[position + 1 :])
            if position == 0:
                runnable = ("python3", *runnable) if path.suffix == ".py" else ("sh", *runnable)
            return runnable, program_folder
        if Path(argument).suffix == ".py":
            raise Invalid(f"there is no file {argument!r:.200}", "name a script that exists")
    return command, None


def _find_script(command: tuple[str, ...], folder: Path) -> Path | None:
    return next(
        (folder / argument for argument in command if argument.endswith(".py") and (folder / argument).is_file()), None
    )


def _parse_refs(name: str, named_refs: Any) -> dict[str, Ref]:
    return {
        role: Ref.parse(str(ref))
        for role, ref in parse_mapping(name, named_refs or {}, "data=dataset:fraud/tx").items()
    }


def _parse_deadline(text: str) -> float:
    """A span from now, seconds since the epoch, a day to its end, or a moment of it."""
    from datetime import UTC, datetime, timedelta

    from falaj.fleet.amounts import parse_seconds

    if text.replace(".", "", 1).isdigit():
        value = float(text)
        return value if value > 1e9 else time.time() + value
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return time.time() + parse_seconds(text)
    moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return (moment + timedelta(days=len(text) == 10)).timestamp()


def _follow_job(client: Client, ref: Ref, slot: int = 0) -> JobView:
    """Until it is over: the lines of every attempt, and how far it is."""
    attempt, cursor, steps_shown = 0, "", 0
    with client.working(), client.progress.task(str(ref), None, "steps") as task:
        while True:
            job: JobView = client.jobs.show(ref)
            task.resize(job.steps or None)
            task.advance(job.step - steps_shown)
            steps_shown = job.step
            page: LogPage = client.jobs.logs(ref, slot, attempt, cursor) if job.attempts else LogPage((), "", 0, True)
            sys.stdout.write("".join(f"{line}\n" for line in page.lines))
            sys.stdout.flush()  # whoever reads a pipe follows, too
            attempt, cursor = attempt or page.attempt, page.next
            if page.over and job.attempts and job.attempts[-1].number > attempt:
                attempt, cursor = attempt + 1, ""
            elif job.over and page.over:
                return _raise_if_failed(job)
            elif not page.lines:
                time.sleep(POLL_INTERVAL_S)


def _raise_if_failed(job: JobView) -> JobView:
    """A job that failed is an error of whoever waited for it."""
    if job.state == "failed":
        raise UserCodeFailed(f"{job.ref} failed: {job.note}", f"falaj jobs show {job.ref}", job.ref)
    return job
