"""Deletes what a job left in folders: those of its ended attempts (logs, files), and its checkpoints once it has ended.

Nothing is decided here: planning.py asks every duty first. A folder of an attempt that runs is never touched.
"""

import shutil
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from falaj.core.context import CallContext
from falaj.core.errors import FalajError
from falaj.fleet.records import Cluster
from falaj.jobs.attempts import build_layout
from falaj.jobs.records import ENDED_STATES, JobBody
from falaj.privacy.plan_objects import CHECKPOINTS
from falaj.privacy.search.data_estate import DataEstate
from falaj.privacy.search.job_files import list_attempt_folders
from falaj.store.records import LedgerRecord


def delete_job_files(estate: DataEstate, ctx: CallContext, record: LedgerRecord, name: str) -> int:
    """Delete the folders of a job that an object of a plan names; gives how many are gone.

    The job's record names the deleted attempts first. A folder that could not be deleted is still searched.
    """
    with estate.ledger.read(ctx) as tx:
        clusters: Mapping[str, Cluster] = estate.service("clusters").known(tx)
    body = record.body
    if name.startswith(CHECKPOINTS):
        folders = list(_list_checkpoints(body, clusters)) if body["state"] in ENDED_STATES else []
    else:
        folders = list(_list_ended(body, clusters))
        _note_deleted(estate, ctx, record, frozenset(folder.name for folder in folders))
        _forget_attempts(estate, ctx, body, clusters)
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)
    return sum(not folder.exists() for folder in folders)


def _list_checkpoints(body: JobBody, clusters: Mapping[str, Cluster]) -> Iterator[Path]:
    for cluster in clusters.values():
        folder = Path(build_layout(cluster, "", body["id"]).checkpoints)
        if cluster.folder and folder.is_dir():
            yield folder


def _list_ended(body: JobBody, clusters: Mapping[str, Cluster]) -> Iterator[Path]:
    """The folders of ended attempts. One that began after this body was read has a higher number, and is left alone."""
    for cluster in clusters.values():
        for folder in (list_attempt_folders(cluster) or {}).get(body["id"][-12:], ()):
            if int(folder.rpartition("-")[2]) <= body["number"] and not _is_running(body, folder):
                yield Path(cluster.folder, folder)


def _is_running(body: JobBody, attempt: str) -> bool:
    return body["attempt"] is not None and body["attempt"]["id"] == attempt


def _forget_attempts(estate: DataEstate, ctx: CallContext, body: JobBody, clusters: Mapping[str, Cluster]) -> None:
    """Let executors delete what they keep of ended attempts, such as logs on clusters without a shared folder."""
    for attempt in body["attempts"]:
        cluster = clusters.get(attempt["cluster"])
        if cluster is not None and attempt["handle"]:
            with suppress(FalajError):  # the next search finds what is left, and lists it
                estate.service("clusters").spoken(ctx, cluster).forget(attempt["handle"])


def _note_deleted(estate: DataEstate, ctx: CallContext, record: LedgerRecord, deleted: frozenset[str]) -> None:
    """Note in the job's record which attempts lose their folder, so that a search does not list them as not read."""
    with estate.ledger.write(ctx) as tx:
        current = tx.need(record.ref.bare)
        old: list[dict[str, Any]] = current.body["attempts"]
        attempts = [{"deleted": ctx.now(), **attempt} if attempt["id"] in deleted else attempt for attempt in old]
        kept = tx.put(current.key, {**current.body, "attempts": attempts}, rev=current.rev)
        tx.emit("jobs.delete_files", kept.ref, attempts=len(deleted))
