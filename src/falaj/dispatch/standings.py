"""Which live jobs may not go on: their tenant, submitter or trust rule lost its standing, or an input is restricted.

The leader asks for every change of a job, so answers are remembered by submitter until an account, a tenant, a sign-in
or a trust rule changes, or until one of the answers ends by itself; and by input until that version changes.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace

from falaj.core.context import Context
from falaj.core.ports import Key
from falaj.fleet.records import Cluster, QueueRule
from falaj.jobs import life
from falaj.jobs.facts import list_candidates, spec_in
from falaj.jobs.records import Body
from falaj.jobs.standing import (
    RestrictedInputs,
    Standing,
    SubmitterKey,
    job_standing,
    queue_standing,
    reads_any,
    runs_on,
    submitter_key,
)
from falaj.schedule.model import NEVER
from falaj.store.ledger import Ledger
from falaj.store.records import Record

STANDING_KINDS = ("tenant", "person", "sign-in", "trust")
"""Kinds of records whose change may change a standing."""
INPUT_KINDS = ("dataset", "model", "code", "blob")
"""Kinds of versions that jobs read, whose restriction bars them."""
_ACTIVE = Standing()


class Standings:
    """The standing of the submitters of live jobs, and the jobs that it holds back."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._by_submitter: dict[SubmitterKey, Standing] = {}
        self._inputs = RestrictedInputs()
        self._expires: float = NEVER
        self.rules: Mapping[str, QueueRule] = {}
        """The tree of queues, while one of them is stopped; else nothing."""
        self.held_back: dict[str, Standing] = {}
        """By job id; jobs that are not in it may go on."""

    def clear(self) -> None:
        """Forget every answer, but not which jobs are held back: those are compared with the next answers."""
        self.forget_submitters()
        self._inputs.forget_all()

    def forget_submitters(self) -> None:
        """Forget what was answered of submitters; what is remembered of inputs stays until their versions change."""
        self._by_submitter, self._expires = {}, NEVER

    def list_affected(self, changed: Iterable[Key], jobs: Iterable[Record]) -> list[Record]:
        """The jobs that read one of these changed versions; what was remembered of those is forgotten."""
        versions = self._inputs.forget_changed(changed)
        return [record for record in jobs if reads_any(record, versions)] if versions else []

    def expired(self, now: float) -> bool:
        """True when an answer may have ended by itself."""
        return now >= self._expires

    def update(self, ctx: Context, record: Record) -> bool:
        """Find whether a job is held back, by its submitter, its inputs and its queue; True when that changed."""
        job_id, standing = record.body["id"], self._find(ctx, record)
        if not standing.reason:
            standing = self._inputs.find_standing(record, lambda key: self._read_version(ctx, key))
        if not standing.reason and self.rules:
            standing = queue_standing(record, self.rules)
        was_held_back = job_id in self.held_back
        if standing.reason and not runs_on(record, standing):
            self.held_back[job_id] = standing
        else:
            self.held_back.pop(job_id, None)
        return was_held_back != (job_id in self.held_back)

    def reread(self, ctx: Context, record: Record) -> bool:
        """Read the standing of one job from the ledger again; True when the job is held back."""
        self._by_submitter.pop(submitter_key(record), None)
        self._inputs.forget_inputs(record)
        self.update(ctx, record)
        return record.body["id"] in self.held_back

    def find_due_stops(self, jobs: Mapping[str, Record]) -> list[tuple[str, Standing]]:
        """The held-back jobs that have something to be stopped, and were not asked to stop yet."""
        return [
            (job_id, standing)
            for job_id, standing in self.held_back.items()
            if job_id in jobs and life.stop_for_standing(jobs[job_id].body, removed=standing.removed)
        ]

    def _read_version(self, ctx: Context, key: Key) -> Record | None:
        with self._ledger.read(ctx) as tx:
            return tx.key(key)

    def _find(self, ctx: Context, record: Record) -> Standing:
        key = submitter_key(record)
        standing = self._by_submitter.get(key)
        if standing is None:
            with self._ledger.read(ctx) as tx:
                standing = job_standing(tx, record)
            # Most submitters are in good standing: they share one object.
            standing = self._by_submitter[key] = _ACTIVE if standing == _ACTIVE else standing
            if standing.expires > ctx.now():
                self._expires = min(self._expires, standing.expires)
        return standing


def stop_for_standing(record: Record, standing: Standing, now: float) -> Body:
    """The body of a job that may not go on: its attempt gets the grace of one that makes room for another job."""
    if record.body["attempt"] is None:
        return life.cancelled(record.body, standing.reason, now)
    stop = life.stop_for_standing(record.body, removed=standing.removed)
    return life.stopping(record.body, stop, now, grace_s=life.saving_grace_s(record.body, spec_in(record)))


def exclude_cluster(record: Record, clusters: Mapping[str, Cluster], reason: str, now: float) -> Body:
    """The body of a job whose cluster refuses its submitter: it waits for the other clusters, or fails without one."""
    body = life.refused_person(record.body, reason, now)
    excluded = replace(record, body=body)
    return body if list_candidates(excluded, clusters) else life.failed(record.body, reason, now)
