"""Which live jobs may not go on: their tenant, submitter or trust rule lost its standing, or an input is restricted.

The leader asks for every change of a job, so answers are remembered by submitter until an account, a tenant, a sign-in
or a trust rule changes, or until one of the answers ends by itself; and by input until that version changes.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace

from falaj.core.context import CallContext
from falaj.core.ports import RecordKey
from falaj.fleet.records import Cluster, QueueRule
from falaj.jobs import state_machine
from falaj.jobs.records import JobBody
from falaj.jobs.scheduler_facts import list_candidates, read_spec
from falaj.jobs.submitter_standing import (
    RestrictedInputs,
    SubmitterKey,
    SubmitterStanding,
    can_keep_running,
    find_queue_standing,
    make_submitter_key,
    read_job_standing,
    reads_any,
)
from falaj.schedule.model import NEVER
from falaj.store.ledger import Ledger
from falaj.store.records import LedgerRecord

STANDING_KINDS = ("tenant", "person", "sign-in", "trust")
"""Kinds of records whose change may change a standing."""
INPUT_KINDS = ("dataset", "model", "code", "blob")
"""Kinds of versions that jobs read, whose restriction bars them."""
_ACTIVE = SubmitterStanding()


class SubmitterStandings:
    """The standing of the submitters of live jobs, and the jobs that it holds back."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._by_submitter: dict[SubmitterKey, SubmitterStanding] = {}
        self._inputs = RestrictedInputs()
        self._expires: float = NEVER
        self.rules: Mapping[str, QueueRule] = {}
        """The tree of queues, while one of them is stopped; else nothing."""
        self.held_back: dict[str, SubmitterStanding] = {}
        """By job id; jobs that are not in it may go on."""

    def clear(self) -> None:
        """Forget every answer, but not which jobs are held back: those are compared with the next answers."""
        self.forget_submitters()
        self._inputs.forget_all()

    def forget_submitters(self) -> None:
        """Forget what was answered of submitters; what is remembered of inputs stays until their versions change."""
        self._by_submitter, self._expires = {}, NEVER

    def list_affected(self, changed: Iterable[RecordKey], jobs: Iterable[LedgerRecord]) -> list[LedgerRecord]:
        """The jobs that read one of these changed versions; what was remembered of those is forgotten."""
        versions = self._inputs.forget_changed(changed)
        return [record for record in jobs if reads_any(record, versions)] if versions else []

    def expired(self, now: float) -> bool:
        """True when an answer may have ended by itself."""
        return now >= self._expires

    def update(self, ctx: CallContext, record: LedgerRecord) -> bool:
        """Find whether a job is held back, by its submitter, its inputs and its queue; True when that changed."""
        job_id, standing = record.body["id"], self._find_standing(ctx, record)
        if not standing.reason:
            standing = self._inputs.find_standing(record, lambda key: self._read_version(ctx, key))
        if not standing.reason and self.rules:
            standing = find_queue_standing(record, self.rules)
        was_held_back = job_id in self.held_back
        if standing.reason and not can_keep_running(record, standing):
            self.held_back[job_id] = standing
        else:
            self.held_back.pop(job_id, None)
        return was_held_back != (job_id in self.held_back)

    def reread(self, ctx: CallContext, record: LedgerRecord) -> bool:
        """Read the standing of one job from the ledger again; True when the job is held back."""
        self._by_submitter.pop(make_submitter_key(record), None)
        self._inputs.forget_inputs(record)
        self.update(ctx, record)
        return record.body["id"] in self.held_back

    def find_due_stops(self, jobs: Mapping[str, LedgerRecord]) -> list[tuple[str, SubmitterStanding]]:
        """The held-back jobs that have something to be stopped, and were not asked to stop yet."""
        return [
            (job_id, standing)
            for job_id, standing in self.held_back.items()
            if job_id in jobs and state_machine.choose_standing_stop(jobs[job_id].body, removed=standing.removed)
        ]

    def _read_version(self, ctx: CallContext, key: RecordKey) -> LedgerRecord | None:
        with self._ledger.read(ctx) as tx:
            return tx.key(key)

    def _find_standing(self, ctx: CallContext, record: LedgerRecord) -> SubmitterStanding:
        key = make_submitter_key(record)
        standing = self._by_submitter.get(key)
        if standing is None:
            with self._ledger.read(ctx) as tx:
                standing = read_job_standing(tx, record)
            # Most submitters are in good standing: they share one object.
            standing = self._by_submitter[key] = _ACTIVE if standing == _ACTIVE else standing
            if standing.expires > ctx.now():
                self._expires = min(self._expires, standing.expires)
        return standing


def stop_for_standing(record: LedgerRecord, standing: SubmitterStanding, now: float) -> JobBody:
    """The body of a job that may not go on: its attempt gets the grace of one that makes room for another job."""
    if record.body["attempt"] is None:
        return state_machine.cancel_job(record.body, standing.reason, now)
    stop = state_machine.choose_standing_stop(record.body, removed=standing.removed)
    return state_machine.mark_stopping(
        record.body, stop, now, grace_s=state_machine.compute_saving_grace_s(record.body, read_spec(record))
    )


def exclude_cluster(record: LedgerRecord, clusters: Mapping[str, Cluster], reason: str, now: float) -> JobBody:
    """The body of a job whose cluster refuses its submitter: it waits for the other clusters, or fails without one."""
    body = state_machine.refused_person(record.body, reason, now)
    excluded = replace(record, body=body)
    return body if list_candidates(excluded, clusters) else state_machine.fail_job(record.body, reason, now)
