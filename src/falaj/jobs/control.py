"""Control of jobs: cancel, hold, release and requeue, one by name or many by a selection. A part of the desk `jobs`.

Who may do this sees names and states only: inputs, parameters, commands and logs need the rights over data.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import field, replace
from fnmatch import fnmatchcase
from typing import Annotated, Any, ClassVar

from falaj.core.context import SYSTEM_TENANT, CallContext
from falaj.core.data import dataclass
from falaj.core.errors import Conflict, Invalid
from falaj.core.operation import operation
from falaj.core.ref import Ref
from falaj.fleet.amounts import parse_seconds
from falaj.fleet.clusters import ClusterService
from falaj.fleet.fleet_use import iter_records, list_tenants
from falaj.jobs import state_machine, views
from falaj.jobs.records import ENDED_STATES, LIVE_STATES, ON_HOLD, WAITING, JobBody, JobView
from falaj.jobs.scheduler_facts import read_spec
from falaj.jobs.submitter_standing import StandingReader
from falaj.schedule.model import WaitReason
from falaj.store.ledger import Ledger, LedgerReader, LedgerWriter
from falaj.store.records import LedgerRecord
from falaj.track.service import TrackService

CANCEL, HOLD, RELEASE, REQUEUE = "cancel", "hold", "release", "requeue"
ACTIONS = (CANCEL, HOLD, RELEASE, REQUEUE)
MAX_SELECTED = 5000
"""Jobs that one selection changes; more are changed by saying it again."""
_EVENTS = {CANCEL: "jobs.cancel", HOLD: "jobs.hold", RELEASE: "jobs.release-hold", REQUEUE: "jobs.requeue"}


@dataclass(frozen=True, slots=True)
class JobSelector:
    """Which live jobs; of several conditions all hold. At least one is given."""

    STRUCTURE: ClassVar = ("queue", "state", "older", "person", "project", "name")

    queue: str = ""
    """A queue, with all below it."""
    state: str = ""
    """waiting, held, starting, running or stopping"""
    older: str = ""
    """Submitted longer ago than this: 30m, 1h, 7d."""
    person: str = ""
    project: str = ""
    """A project; for operators of the platform TENANT/PROJECT or TENANT/*."""
    name: str = ""
    """A name, or a pattern with stars: train-*."""


@dataclass(frozen=True, slots=True)
class JobRow:
    """One live job as operators see it: its name and its state in the queue, and nothing of what it works on."""

    STRUCTURE: ClassVar = (
        "tenant", "ref", "state", "queue", "band", "width", "person", "submitted_at", "note", "outcome",
    )  # fmt: skip
    COLUMNS: ClassVar[tuple[str, ...]] = (
        "tenant", "ref", "state", "queue", "band", "width", "person", "submitted_at", "outcome", "note",
    )  # fmt: skip

    tenant: str
    ref: Ref
    state: str
    queue: str
    band: str
    width: int
    person: str
    submitted_at: float
    note: str = ""
    """Why it waits or is held, in the platform's words."""
    outcome: str = ""
    """What was done with it, or would be; empty in an overview."""


@dataclass(frozen=True, slots=True)
class Selection:
    """The jobs that a selection hits."""

    STRUCTURE: ClassVar = ("jobs", "matched", "done")
    MARKER: ClassVar = "done"

    jobs: tuple[JobRow, ...]
    matched: int
    """All that the selection fits; no more than the first are in `jobs`."""
    done: bool = field(default=False)
    """False where nothing was changed yet."""


class JobControl:
    """Stopping, holding and requeueing of jobs. The desk of jobs has these verbs, too."""

    _ledger: Ledger
    _clusters: ClusterService
    _track: TrackService
    read_reasons: Callable[[CallContext, Iterable[LedgerRecord]], Mapping[str, WaitReason]]

    @operation(writes=("job",), group="control")
    def cancel(
        self, ctx: CallContext, job: Annotated[Ref, "which job"], reason: Annotated[str, "why, for the record"] = ""
    ) -> JobView:
        """Cancel a job. One that runs is asked to end, and ended by force after its grace.

        Example:
            falaj jobs cancel job:fraud/train-1
        """
        return self._control_job(ctx, CANCEL, job, reason)

    @operation(writes=("job",), group="control")
    def hold(
        self, ctx: CallContext, job: Annotated[Ref, "which job"], reason: Annotated[str, "why; its people see it"] = ""
    ) -> JobView:
        """Hold a job: it does not start until it is released. One that runs saves, stops, and is held then.

        Example:
            falaj jobs hold job:fraud/train-1 --reason "the pool is needed until 18:00"
        """
        return self._control_job(ctx, HOLD, job, reason)

    @operation(writes=("job",), group="control")
    def release(self, ctx: CallContext, job: Annotated[Ref, "a job that somebody holds"]) -> JobView:
        """Release a held job: it is back at its place in the queue.

        Example:
            falaj jobs release job:fraud/train-1
        """
        return self._control_job(ctx, RELEASE, job, "")

    @operation(writes=("job",), group="control")
    def requeue(
        self,
        ctx: CallContext,
        job: Annotated[Ref, "a job that runs"],
        reason: Annotated[str, "why, for the record"] = "",
    ) -> JobView:
        """Stop a job that runs, and queue it again; one that saves checkpoints goes on from the last.

        Example:
            falaj jobs requeue job:fraud/train-1 --reason "its node is to be repaired"
        """
        return self._control_job(ctx, REQUEUE, job, reason)

    @operation()
    def overview(
        self,
        ctx: CallContext,
        where: Annotated[JobSelector | None, "which jobs; all live ones when left out"] = None,
        limit: Annotated[int, "how many at most"] = 100,
    ) -> Selection:
        """List live jobs by name and state, with the reasons why they wait; operators of the platform see all tenants.

        Example:
            falaj jobs overview --where '{"state": "waiting", "older": "1h"}'
        """
        if not 0 < limit <= MAX_SELECTED:
            raise Invalid(f"limit {limit}: expected 1 to {MAX_SELECTED}", "ask for fewer, or narrow the selection")
        records, rows = self._select_jobs(ctx, where or JobSelector())
        reasons = self.read_reasons(ctx, records[:limit])
        noted = [
            replace(row, note=reasons[record.body["id"]].text) if record.body["id"] in reasons and not row.note else row
            for record, row in zip(records[:limit], rows, strict=False)
        ]
        return Selection(tuple(noted), len(records))

    @operation(group="control")
    def control(
        self,
        ctx: CallContext,
        action: Annotated[str, "cancel, hold, release or requeue"],
        where: Annotated[JobSelector, "which jobs"],
        reason: Annotated[str, "why, for the record and for their people"] = "",
        dry: Annotated[bool, "say what would be hit, and change nothing"] = False,
    ) -> Selection:
        """Cancel, hold, release or requeue all live jobs of a selection; `falaj jobs bulk` calls this.

        Operators of the platform reach the jobs of every tenant, and see names and states only.

        Example:
            falaj jobs control cancel --where '{"queue": "root/default", "state": "waiting"}' --dry
        """
        if action not in ACTIONS:
            raise Invalid(f"action {action[:40]!r}: expected one of {', '.join(ACTIONS)}", "falaj jobs bulk --help")
        if where == JobSelector():
            hint = "give at least one of queue, state, older, person, project, name"
            raise Invalid("the selection is empty: expected a condition, got none", hint)
        records, rows = self._select_jobs(ctx, where)
        result = [
            replace(row, outcome=self._control_selected(ctx, action, record, reason, dry=dry))
            for record, row in zip(records[:MAX_SELECTED], rows, strict=False)
        ]
        return Selection(tuple(result), len(records), done=not dry)

    def _select_jobs(self, ctx: CallContext, where: JobSelector) -> tuple[list[LedgerRecord], list[JobRow]]:
        """The live jobs of a selection in the caller's reach, the oldest first."""
        matches = _build_matcher(ctx, where)
        with self._ledger.read(ctx) as tx:
            standings = StandingReader(tx)
            candidates = [(record, _to_row(record, standings)) for record in self._iter_reachable_jobs(ctx, tx)]
        chosen = [(record, row) for record, row in candidates if matches(row)]
        chosen.sort(key=lambda pair: (pair[1].submitted_at, pair[1].tenant, str(pair[1].ref)))
        return [record for record, _ in chosen], [row for _, row in chosen]

    def _iter_reachable_jobs(self, ctx: CallContext, tx: LedgerReader) -> Iterable[LedgerRecord]:
        """Live jobs of all tenants for operators of the platform; for others those that policy shows them."""
        if is_platform_operator(ctx):
            for tenant in list_tenants(self._ledger):
                yield from iter_records(tx, "job", tenant, {"live": "1"})
            return
        visible_scopes, after = ctx.cells("job"), ""
        while True:
            page = tx.find("job", terms={"live": "1"}, scopes=visible_scopes, after=after, limit=1000)
            yield from page.records
            after = page.next
            if not after:
                return

    def _control_selected(self, ctx: CallContext, action: str, record: LedgerRecord, reason: str, *, dry: bool) -> str:
        """Apply the action to one job of a selection; say what was done, or why it was left alone."""
        try:
            body = _apply_action(ctx, action, record, reason)
        except Conflict as error:
            return f"left alone: {error.message}"
        if dry:
            return f"would {action}"
        self._write_change(replace(ctx, tenant=record.key.tenant), record, body, action, reason)
        return "done"

    def _control_job(self, ctx: CallContext, action: str, job: Ref, reason: str) -> JobView:
        if job.kind != "job":
            raise Invalid(f"{job}: expected a job, got a reference of the kind {job.kind}", "job:fraud/train-1", job)
        with self._ledger.read(ctx) as tx:
            record = tx.need(job.bare)
        return views.to_job_view(
            self._write_change(ctx, record, _apply_action(ctx, action, record, reason), action, reason)
        )

    def _write_change(
        self, ctx: CallContext, record: LedgerRecord, body: JobBody, action: str, reason: str
    ) -> LedgerRecord:
        with self._ledger.write(ctx) as tx:
            if body["state"] in ENDED_STATES:
                self._track.finish(ctx, Ref.parse(body["run"]), "killed")
            changed_record: LedgerRecord = tx.put(
                record.key, body, rev=record.rev, terms=state_machine.build_index_terms(body)
            )
            self._emit_event(tx, ctx, changed_record, action, reason)
        return changed_record

    def _emit_event(self, tx: LedgerWriter, ctx: CallContext, record: LedgerRecord, action: str, reason: str) -> None:
        operator = {"operator": f"{SYSTEM_TENANT}/{ctx.actor.id}"} if ctx.actor.tenant != record.key.tenant else {}
        tx.emit(_EVENTS[action], record.ref, (), reason=reason[:500], **operator)


def is_platform_operator(ctx: CallContext) -> bool:
    """True for operators of the installation, whose reach is every tenant."""
    return ctx.actor.tenant == SYSTEM_TENANT and ctx.tenant == SYSTEM_TENANT and "operator" in ctx.actor.roles


def _apply_action(ctx: CallContext, action: str, record: LedgerRecord, reason: str) -> JobBody:
    """The body after an action; Conflict where the job is in no state for it."""
    body, ref, now = record.body, record.ref.bare, ctx.now()
    if body["state"] in ENDED_STATES:
        raise Conflict(f"{ref} is over: {body['state']}", "only a job that waits or runs can be changed", ref)
    spec = read_spec(record)
    person = ctx.actor.behalf or ctx.actor.id
    if action == CANCEL:
        return (
            state_machine.cancel_job(body, reason or "cancelled", now)
            if body["attempt"] is None
            else state_machine.mark_stopping(body, state_machine.CANCEL, now, grace_s=spec.grace_s)
        )
    if action == HOLD:
        if body.get("hold"):
            raise Conflict(
                f"{ref} is {state_machine.format_hold_note(body['hold'])} already", f"falaj jobs release {ref}", ref
            )
        return state_machine.hold_job(body, person, reason, now, state_machine.compute_saving_grace_s(body, spec))
    if action == RELEASE:
        if not body.get("hold"):
            raise Conflict(f"{ref} is not held by a person: it is {body['state']}", f"falaj jobs why {ref}", ref)
        return state_machine.release_job(body)
    if body["attempt"] is None:
        raise Conflict(f"{ref} does not run: it is {body['state']}", "only a job that runs is queued again", ref)
    return state_machine.mark_stopping(
        body, state_machine.REQUEUE, now, grace_s=state_machine.compute_saving_grace_s(body, spec)
    )


def _build_matcher(ctx: CallContext, where: JobSelector) -> Callable[[JobRow], bool]:
    """Whether a job fits a selection."""
    if where.state and where.state not in LIVE_STATES:
        hint = "jobs that are over cannot be changed; falaj jobs list shows them"
        raise Invalid(f"state {where.state[:40]!r}: expected one of {', '.join(LIVE_STATES)}", hint)
    tenant, slash, project = where.project.rpartition("/")
    if slash and not is_platform_operator(ctx) and tenant != ctx.tenant:
        raise Invalid(f"project {where.project[:80]!r}: expected a project of {ctx.tenant}", f"for example {project}")
    submitted_before = ctx.now() - parse_seconds(where.older) if where.older else float("inf")
    conditions: list[Callable[[JobRow], Any]] = [
        lambda row: row.submitted_at <= submitted_before,
        lambda row: not where.state or row.state == where.state,
        lambda row: not where.queue or f"{row.queue}/".startswith(f"{where.queue.rstrip('/')}/"),
        lambda row: where.person in ("", row.person),
        lambda row: not where.name or fnmatchcase(row.ref.name, where.name),
        lambda row: project in ("", "*", row.ref.project) and tenant in ("", row.tenant),
    ]
    return lambda row: all(condition(row) for condition in conditions)


def _to_row(record: LedgerRecord, standings: StandingReader) -> JobRow:
    """A job as operators see it. A note may repeat what its program wrote, so only the platform's reasons are shown."""
    body, view = record.body, views.to_job_view(record)
    refusal = standings.reason(record) if body["state"] == WAITING else ""
    note = refusal or (state_machine.format_hold_note(body["hold"]) if body.get("hold") else "")
    return JobRow(
        record.key.tenant, record.ref.bare, ON_HOLD if refusal else view.state, view.queue, view.band, view.width,
        view.person, view.submitted_at, note,
    )  # fmt: skip
