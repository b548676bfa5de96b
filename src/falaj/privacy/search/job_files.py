"""Searches the files of jobs: checkpoints and folders of attempts, on clusters whose folder this machine shares.

Programs of jobs wrote these files, so they are copied and read in isolated processes, and links among them are not
followed. Files that lie on nodes alone are listed as unread.
"""

import os
import re
import stat
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import NamedTuple

from falaj.core.errors import Unavailable
from falaj.core.execute import REPLICAS
from falaj.core.label import Label
from falaj.core.ref import Ref
from falaj.fleet.records import Cluster
from falaj.jobs.attempts import layout_of
from falaj.jobs.life import KEPT_ATTEMPTS
from falaj.jobs.staging import KEPT_S
from falaj.jobs.views import attempts
from falaj.privacy.search.estate import Estate
from falaj.privacy.search.records import SearchCase, SearchStep
from falaj.privacy.search.version_files import SearchUnit, search_units
from falaj.store.records import Record

MAX_FILES = 50_000  # files of one job that are searched; a job with more is listed as unread
_CHUNK = 1 << 20
_MADE_FROM_INPUTS = ("inputs/", "code/", "outputs/")
_ATTEMPT = re.compile(r"[a-z0-9-]+-([0-9a-f]{12})-[0-9]+")


class _Site(NamedTuple):
    """A cluster, and the folders of attempts on it by the end of their job's id; None where this machine has none."""

    cluster: Cluster
    attempts: Mapping[str, tuple[str, ...]] | None


class _Part(NamedTuple):
    """One folder of a job."""

    ref: str
    label: Label | None
    zone: str
    folder: str
    weights: tuple[str, ...] = ("",)
    """How the names of files begin that are made from the job's inputs alone."""


def search_job_files(estate: Estate, case: SearchCase, after: str) -> Iterator[SearchStep]:
    """Search checkpoints and attempts' folders of every job; list what lies on nodes alone."""
    with estate.ledger.read(case.ctx) as tx:
        clusters: Mapping[str, Cluster] = estate.service("clusters").known(tx)
    sites = {name: _Site(cluster, list_attempts(cluster)) for name, cluster in clusters.items()}
    yield from search_units(case, _job_units(estate, case, sites, after))


def list_attempts(cluster: Cluster) -> Mapping[str, tuple[str, ...]] | None:
    """The folders of attempts on a cluster by the end of their job's id; None where this machine has none."""
    found: dict[str, tuple[str, ...]] = {}
    if not cluster.folder:
        return None
    try:
        for folder in Path(cluster.folder).iterdir():
            if match := _ATTEMPT.fullmatch(folder.name):
                found[match[1]] = (*found.get(match[1], ()), folder.name)
    except OSError:
        return None
    return found


def _job_units(estate: Estate, case: SearchCase, sites: Mapping[str, _Site], after: str) -> Iterator[SearchUnit]:
    for record, cursor in estate.records(case.ctx, "job", after):
        is_explained = _is_explained(estate, case, record)
        yield from _unreached_units(case, record, sites, cursor)
        for site in sites.values():
            if site.attempts is not None:
                for part in _parts(record, site):
                    yield from _part_units(part, cursor, is_explained)


def _unreached_units(case: SearchCase, record: Record, sites: Mapping[str, _Site], cursor: str) -> Iterator[SearchUnit]:
    """What attempts left where this machine does not reach."""
    body = record.body
    tried = [attempt for attempt in attempts(body) if attempt["handle"]]
    names = {str(attempt["cluster"]) for attempt in tried}
    if len(body["attempts"]) >= KEPT_ATTEMPTS:  # those before are not remembered
        names |= set(sites)
    for name in sorted(names):
        site = sites.get(name)
        if site is None or site.attempts is None:
            place = "was removed" if site is None else "shares no folder with this machine"
            reason = f"cluster {name} {place}, so checkpoints and folders of jobs on its nodes are not searched"
            yield _unread(_Part(f"files of jobs on cluster {name}", None, "", ""), reason, cursor)
            continue
        folders = site.attempts.get(body["id"][-12:], ())
        for attempt in tried:
            is_kept = not attempt.get("deleted") and (
                not attempt["ended"] or case.ctx.now() - attempt["ended"] < KEPT_S
            )
            if attempt["cluster"] == name and is_kept and attempt["id"] not in folders:
                reason = f"the folder of attempt {attempt['number']} is not on this machine"
                part = _Part(f"files of {record.ref.bare}", record.label, site.cluster.zone, "")
                yield _unread(part, reason, cursor)


def _parts(record: Record, site: _Site) -> Iterator[_Part]:
    """The folders of one job on one cluster."""
    job, zone = record.body["id"], site.cluster.zone
    yield _Part(f"checkpoints of {record.ref.bare}", record.label, zone, layout_of(site.cluster, "", job).checkpoints)
    for attempt in (site.attempts or {}).get(job[-12:], ()):
        folder = layout_of(site.cluster, attempt, job).base
        yield _Part(f"files of {record.ref.bare}", record.label, zone, folder, _MADE_FROM_INPUTS)


def _part_units(part: _Part, cursor: str, is_explained: bool) -> Iterator[SearchUnit]:
    problems: list[OSError] = []
    for number, (name, size) in enumerate(_list_files(part.folder, problems)):
        if number >= MAX_FILES:
            yield _unread(part, f"it has more than {MAX_FILES} files, and the others are not searched", cursor)
            break
        is_weights = name.startswith(part.weights)
        read = partial(_read_file, part.folder, name)
        yield SearchUnit(
            part.ref, part.label, part.zone, name, "", size, read, "", (), cursor, is_weights, is_explained
        )
    for problem in problems[:1]:
        yield _unread(part, f"a folder cannot be read: {problem.strerror}", cursor)


def _unread(part: _Part, reason: str, cursor: str) -> SearchUnit:
    return SearchUnit(part.ref, part.label, part.zone, "", "", 0, None, reason, (), cursor)


def _list_files(folder: str, problems: list[OSError]) -> Iterator[tuple[str, int]]:
    """Regular files below a folder with their sizes; what cannot be read is noted."""

    def note(problem: OSError) -> None:
        if not isinstance(problem, FileNotFoundError):
            problems.append(problem)

    try:
        for path, _, names, descriptor in os.fwalk(folder, onerror=note, follow_symlinks=False):
            for name in sorted(names):
                with suppress(FileNotFoundError):  # a running job deleted it
                    facts = os.stat(name, dir_fd=descriptor, follow_symlinks=False)
                    if stat.S_ISREG(facts.st_mode):
                        yield str((Path(path) / name).relative_to(folder)), facts.st_size
    except OSError as error:  # of the folder itself
        note(error)


def _read_file(folder: str, name: str) -> Iterator[bytes]:
    """The bytes of a regular file below a folder; no part of its path is a link."""
    *parents, last = Path(name).parts
    opened: list[int] = []
    try:
        opened.append(os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC))
        for parent in parents:
            flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
            opened.append(os.open(parent, flags, dir_fd=opened[-1]))
        opened.append(os.open(last, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=opened[-1]))
        if not stat.S_ISREG(os.fstat(opened[-1]).st_mode):
            raise Unavailable(f"{name[:200]} is no regular file any more", "search again")
        while chunk := os.read(opened[-1], _CHUNK):
            yield chunk
    except FileNotFoundError:
        return
    except OSError as error:
        raise Unavailable(f"{name[:200]} cannot be read: {error.strerror}", "check its owner and its mode") from error
    finally:
        for descriptor in opened:
            os.close(descriptor)


def _is_explained(estate: Estate, case: SearchCase, record: Record) -> bool:
    """Whether weights of a job cannot hold the person: all that it was made from is there, and is searched itself."""
    inputs = [*record.body["inputs"].values(), *([record.body["code"]] if record.body["code"] else [])]
    if not record.body["inputs"] and record.body.get("kind") not in REPLICAS:
        return False
    for name in inputs:
        with estate.ledger.read(case.ctx) as tx:
            source = tx.get(Ref.parse(str(name)))
        if source is None or source.body.get("state") != "live" or source.restricted or str(name) in case.learned:
            return False
    return True
