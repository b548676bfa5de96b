"""Job arrays: one program submitted as many jobs that differ in an index."""

import re
import typing
from collections.abc import Callable
from typing import Annotated, Any, TypeVar

from falaj.core.client_command import Client, add_flags, client_command
from falaj.core.errors import Invalid
from falaj.core.event import generate_id
from falaj.jobs import client_commands
from falaj.jobs.records import JobView
from falaj.jobs.spec import derive_job_name, parse_spec

F = TypeVar("F", bound=Callable[..., Any])
MOST_JOBS = 10_000
INDEX_VARIABLE = "FALAJ_PARAM_INDEX"
_RANGE = re.compile(r"(\d{1,9})(?:-(\d{1,9})(?::(\d{1,9}))?)?", re.ASCII)
_OWN = ("client", "what", "name", "project", "wait", "return")


def _with_job_flags(function: F) -> F:
    """Add the flags of `falaj jobs submit` to the signature."""
    hints = typing.get_type_hints(client_commands.submit, include_extras=True)
    return add_flags(function, {name: hint for name, hint in hints.items() if name not in _OWN})


@client_command
@_with_job_flags
def array(
    here: Client,
    indices: Annotated[str, "one job for each: 0-99, 0-99:10 (every tenth), or 1,3,7"],
    what: Annotated[str, "a script, a command line in quotes, or a spec file, as for submit"],
    name: Annotated[str, "what the names begin with; made from the program when left out"] = "",
    project: Annotated[str, "whose jobs they are"] = "",
    wait: Annotated[bool, "wait until all are over; the exit code is 1 unless all succeeded"] = False,
    **flags: Any,
) -> tuple[JobView, ...]:
    """Submit a program as one job for each index. All other flags are those of `falaj jobs submit`.

    Each finds its index in FALAJ_PARAM_INDEX. The jobs are called NAME-INDEX, so that `falaj jobs bulk cancel --name
    'NAME-*'` reaches all of them.

    Example:
        falaj jobs array 0-99 score.py --name score --cpus 1 --limit 30m
    """
    numbers, dry_run = parse_indices(indices), bool(flags.pop("dry_run", False))
    words = client_commands.read_words(what, flags)
    name = name or str(words.get("name", "")) or f"{derive_job_name(parse_spec(dict(words)))}-{generate_id()[-8:]}"
    jobs: list[JobView] = []
    for number in numbers[:1] if dry_run else numbers:
        of_index = {**words, "env": {**words.get("env", {}), INDEX_VARIABLE: str(number)}}
        if jobs and jobs[0].code is not None:
            of_index["code"] = str(jobs[0].code)
        jobs.append(client_commands.submit_words(here, of_index, f"{name}-{number}", project, dry=dry_run))
    if wait and not dry_run:
        return client_commands.wait_until_over(here, here.jobs.show, tuple(job.ref for job in jobs), 0.0)
    return tuple(jobs)


def parse_indices(text: str) -> tuple[int, ...]:
    """The numbers of a list of ranges, in its order; Invalid where one comes twice."""
    numbers: list[int] = []
    for part in text.split(","):
        match = _RANGE.fullmatch(part.strip())
        first, last, step = (int(group or 0) for group in match.groups()) if match else (0, 0, 0)
        last = last if match and match[2] else first
        if match is None or last < first or (match[3] and not step):
            raise Invalid(f"indices {part[:40]!r}: expected a number or a range", "for example 0-99, 0-99:10 or 1,3,7")
        if (last - first) // (step or 1) >= MOST_JOBS - len(numbers):
            raise Invalid(
                f"indices {text[:40]!r}: expected at most {MOST_JOBS} numbers, got more", "submit several arrays"
            )
        numbers += range(first, last + 1, step or 1)
    if len(set(numbers)) < len(numbers):
        raise Invalid(f"indices {text[:40]!r}: expected each number once", "ranges must not overlap")
    return tuple(numbers)
