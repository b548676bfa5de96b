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
from falaj.core.executor import REPLICA_KINDS
from falaj.core.label import Label
from falaj.core.ref import Ref
from falaj.fleet.records import Cluster
from falaj.jobs.attempts import build_layout
from falaj.jobs.staging import KEEP_S
from falaj.jobs.state_machine import MAX_ATTEMPTS_KEPT
from falaj.jobs.views import list_attempts
from falaj.privacy.search.data_estate import DataEstate
from falaj.privacy.search.records import SearchCase, SearchStep
from falaj.privacy.search.version_files import SearchUnit, search_units
from falaj.store.records import LedgerRecord

MAX_FILES = 50_000  # files of one job that are searched; a job with more is listed as unread
_CHUNK_BYTES = 1 << 20
_MADE_FROM_INPUTS = ("inputs/", "code/", "outputs/")
_ATTEMPT_FOLDER_PATTERN = re.compile(r"[a-z0-9-]+-([0-9a-f]{12})-[0-9]+")


class _ClusterFolders(NamedTuple):
    """A cluster, and the folders of attempts on it by the end of their job's id; None where this machine has none."""

    cluster: Cluster
    attempts: Mapping[str, tuple[str, ...]] | None


class _JobFolder(NamedTuple):
    """One folder of a job."""

    ref: str
    label: Label | None
    zone: str
    folder: str
    weights: tuple[str, ...] = ("",)
    """How the names of files begin that are made from the job's inputs alone."""


def search_job_files(estate: DataEstate, case: SearchCase, after: str) -> Iterator[SearchStep]:
    """Search checkpoints and attempts' folders of every job; list what lies on nodes alone."""
    with estate.ledger.read(case.ctx) as tx:
        clusters: Mapping[str, Cluster] = estate.service("clusters").known(tx)
    sites = {name: _ClusterFolders(cluster, list_attempt_folders(cluster)) for name, cluster in clusters.items()}
    yield from search_units(case, _generate_job_units(estate, case, sites, after))


def list_attempt_folders(cluster: Cluster) -> Mapping[str, tuple[str, ...]] | None:
    """The folders of attempts on a cluster by the end of their job's id; None where this machine has none."""
    found: dict[str, tuple[str, ...]] = {}
    if not cluster.folder:
        return None
    try:
        for folder in Path(cluster.folder).iterdir():
            if match := _ATTEMPT_FOLDER_PATTERN.fullmatch(folder.name):
                found[match[1]] = (*found.get(match[1], ()), folder.name)
    except OSError:
        return None
    return found


def _generate_job_units(
    estate: DataEstate, case: SearchCase, sites: Mapping[str, _ClusterFolders], after: str
) -> Iterator[SearchUnit]:
    for record, cursor in estate.records(case.ctx, "job", after):
        is_explained = _is_explained(estate, case, record)
        yield from _generate_unreached_units(case, record, sites, cursor)
        for site in sites.values():
            if site.attempts is not None:
                for job_folder in _list_job_folders(record, site):
                    yield from _generate_folder_units(job_folder, cursor, is_explained)


def _generate_unreached_units(
    case: SearchCase, record: LedgerRecord, sites: Mapping[str, _ClusterFolders], cursor: str
) -> Iterator[SearchUnit]:
    """What attempts left where this machine does not reach."""
    body = record.body
    launched_attempts = [attempt for attempt in list_attempts(body) if attempt["handle"]]
    names = {str(attempt["cluster"]) for attempt in launched_attempts}
    if len(body["attempts"]) >= MAX_ATTEMPTS_KEPT:  # those before are not remembered
        names |= set(sites)
    for name in sorted(names):
        site = sites.get(name)
        if site is None or site.attempts is None:
            cluster_problem = "was removed" if site is None else "shares no folder with this machine"
            reason = (
                f"cluster {name} {cluster_problem}, so checkpoints and folders of jobs on its nodes are not searched"
            )
            yield _make_unread_unit(_JobFolder(f"files of jobs on cluster {name}", None, "", ""), reason, cursor)
            continue
        folders = site.attempts.get(body["id"][-12:], ())
        for attempt in launched_attempts:
            is_kept = not attempt.get("deleted") and (
                not attempt["ended"] or case.ctx.now() - attempt["ended"] < KEEP_S
            )
            if attempt["cluster"] == name and is_kept and attempt["id"] not in folders:
                reason = f"the folder of attempt {attempt['number']} is not on this machine"
                job_folder = _JobFolder(f"files of {record.ref.bare}", record.label, site.cluster.zone, "")
                yield _make_unread_unit(job_folder, reason, cursor)


def _list_job_folders(record: LedgerRecord, site: _ClusterFolders) -> Iterator[_JobFolder]:
    """The folders of one job on one cluster."""
    job, zone = record.body["id"], site.cluster.zone
    yield _JobFolder(
        f"checkpoints of {record.ref.bare}", record.label, zone, build_layout(site.cluster, "", job).checkpoints
    )
    for attempt in (site.attempts or {}).get(job[-12:], ()):
        folder = build_layout(site.cluster, attempt, job).base
        yield _JobFolder(f"files of {record.ref.bare}", record.label, zone, folder, _MADE_FROM_INPUTS)


def _generate_folder_units(job_folder: _JobFolder, cursor: str, is_explained: bool) -> Iterator[SearchUnit]:
    problems: list[OSError] = []
    for number, (name, size) in enumerate(_list_files(job_folder.folder, problems)):
        if number >= MAX_FILES:
            yield _make_unread_unit(
                job_folder, f"it has more than {MAX_FILES} files, and the others are not searched", cursor
            )
            break
        is_weights = name.startswith(job_folder.weights)
        read_chunks = partial(_read_file, job_folder.folder, name)
        yield SearchUnit(
            job_folder.ref,
            job_folder.label,
            job_folder.zone,
            name,
            "",
            size,
            read_chunks,
            "",
            (),
            cursor,
            is_weights,
            is_explained,
        )
    for problem in problems[:1]:
        yield _make_unread_unit(job_folder, f"a folder cannot be read: {problem.strerror}", cursor)


def _make_unread_unit(job_folder: _JobFolder, reason: str, cursor: str) -> SearchUnit:
    return SearchUnit(job_folder.ref, job_folder.label, job_folder.zone, "", "", 0, None, reason, (), cursor)


def _list_files(folder: str, problems: list[OSError]) -> Iterator[tuple[str, int]]:
    """Regular files below a folder with their sizes; what cannot be read is noted."""

    def _note_problem(problem: OSError) -> None:
        if not isinstance(problem, FileNotFoundError):
            problems.append(problem)

    try:
        for path, _, names, descriptor in os.fwalk(folder, onerror=_note_problem, follow_symlinks=False):
            for name in sorted(names):
                with suppress(FileNotFoundError):  # a running job deleted it
                    file_stat = os.stat(name, dir_fd=descriptor, follow_symlinks=False)
                    if stat.S_ISREG(file_stat.st_mode):
                        yield str((Path(path) / name).relative_to(folder)), file_stat.st_size
    except OSError as error:  # of the folder itself
        _note_problem(error)


def _read_file(folder: str, name: str) -> Iterator[bytes]:
    """The bytes of a regular file below a folder; no part of its path is a link."""
    *parents, file_name = Path(name).parts
    open_descriptors: list[int] = []
    try:
        open_descriptors.append(os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC))
        for parent in parents:
            flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
            open_descriptors.append(os.open(parent, flags, dir_fd=open_descriptors[-1]))
        open_descriptors.append(
            os.open(file_name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=open_descriptors[-1])
        )
        if not stat.S_ISREG(os.fstat(open_descriptors[-1]).st_mode):
            raise Unavailable(f"{name[:200]} is no regular file any more", "search again")
        while chunk := os.read(open_descriptors[-1], _CHUNK_BYTES):
            yield chunk
    except FileNotFoundError:
        return
    except OSError as error:
        raise Unavailable(f"{name[:200]} cannot be read: {error.strerror}", "check its owner and its mode") from error
    finally:
        for descriptor in open_descriptors:
            os.close(descriptor)


def _is_explained(estate: DataEstate, case: SearchCase, record: LedgerRecord) -> bool:
    """Whether weights of a job cannot hold the person: all that it was made from is there, and is searched itself."""
    inputs = [*record.body["inputs"].values(), *([record.body["code"]] if record.body["code"] else [])]
    if not record.body["inputs"] and record.body.get("kind") not in REPLICA_KINDS:
        return False
    for name in inputs:
        with estate.ledger.read(case.ctx) as tx:
            source = tx.get(Ref.parse(str(name)))
        if source is None or source.body.get("state") != "live" or source.restricted or str(name) in case.learned:
            return False
    return True
