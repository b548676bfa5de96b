"""Control of jobs: cancel, hold, release and requeue, one by name or many by a selection. A part of the desk `jobs`.

Who may do this sees names and states only: inputs, parameters, commands and logs need the rights over data.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import field, replace
from fnmatch import fnmatchcase
from typing import Annotated, Any, ClassVar

from falaj.core.context import HOUSE, Context
from falaj.core.data import dataclass
from falaj.core.errors import Conflict, Invalid
from falaj.core.ref import Ref
from falaj.core.verb import verb
from falaj.fleet.amounts import seconds
from falaj.fleet.clusters import Clusters
from falaj.fleet.use import every, tenants
from falaj.jobs import life, views
from falaj.jobs.facts import spec_in
from falaj.jobs.records import HELD, LIVE_STATES, OVER, WAITING, Body, JobView
from falaj.jobs.standing import StandingReader
from falaj.schedule.model import Reason
from falaj.store.ledger import Ledger, Reader, Writer
from falaj.store.records import Record
from falaj.track.service import Track

CANCEL, HOLD, RELEASE, REQUEUE = "cancel", "hold", "release", "requeue"
ACTIONS = (CANCEL, HOLD, RELEASE, REQUEUE)
MOST_SELECTED = 5000
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
    _clusters: Clusters
    _track: Track
    read_reasons: Callable[[Context, Iterable[Record]], Mapping[str, Reason]]

    @verb(writes=("job",), group="control")
    def cancel(
        self, ctx: Context, job: Annotated[Ref, "which job"], reason: Annotated[str, "why, for the record"] = ""
    ) -> JobView:
        """Cancel a job. One that runs is asked to end, and ended by force after its grace.

        Example:
            falaj jobs cancel job:fraud/train-1
        """
        return self._control(ctx, CANCEL, job, reason)

    @verb(writes=("job",), group="control")
    def hold(
        self, ctx: Context, job: Annotated[Ref, "which job"], reason: Annotated[str, "why; its people see it"] = ""
    ) -> JobView:
        """Hold a job: it does not start until it is released. One that runs saves, stops, and is held then.

        Example:
            falaj jobs hold job:fraud/train-1 --reason "the pool is needed until 18:00"
        """
        return self._control(ctx, HOLD, job, reason)

    @verb(writes=("job",), group="control")
    def release(self, ctx: Context, job: Annotated[Ref, "a job that somebody holds"]) -> JobView:
        """Release a held job: it is back at its place in the queue.

        Example:
            falaj jobs release job:fraud/train-1
        """
        return self._control(ctx, RELEASE, job, "")

    @verb(writes=("job",), group="control")
    def requeue(
        self, ctx: Context, job: Annotated[Ref, "a job that runs"], reason: Annotated[str, "why, for the record"] = ""
    ) -> JobView:
        """Stop a job that runs, and queue it again; one that saves checkpoints goes on from the last.

        Example:
            falaj jobs requeue job:fraud/train-1 --reason "its node is to be repaired"
        """
        return self._control(ctx, REQUEUE, job, reason)

    @verb()
    def overview(
        self,
        ctx: Context,
        where: Annotated[JobSelector | None, "which jobs; all live ones when left out"] = None,
        limit: Annotated[int, "how many at most"] = 100,
    ) -> Selection:
        """List live jobs by name and state, with the reasons why they wait; operators of the platform see all tenants.

        Example:
            falaj jobs overview --where '{"state": "waiting", "older": "1h"}'
        """
        if not 0 < limit <= MOST_SELECTED:
            raise Invalid(f"limit {limit}: expected 1 to {MOST_SELECTED}", "ask for fewer, or narrow the selection")
        records, rows = self._select(ctx, where or JobSelector())
        reasons = self.read_reasons(ctx, records[:limit])
        noted = [
            replace(row, note=reasons[record.body["id"]].text) if record.body["id"] in reasons and not row.note else row
            for record, row in zip(records[:limit], rows, strict=False)
        ]
        return Selection(tuple(noted), len(records))

    @verb(group="control")
    def control(
        self,
        ctx: Context,
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
        records, rows = self._select(ctx, where)
        result = [
            replace(row, outcome=self._control_selected(ctx, action, record, reason, dry=dry))
            for record, row in zip(records[:MOST_SELECTED], rows, strict=False)
        ]
        return Selection(tuple(result), len(records), done=not dry)

    def _select(self, ctx: Context, where: JobSelector) -> tuple[list[Record], list[JobRow]]:
        """The live jobs of a selection in the caller's reach, the oldest first."""
        matches = _matcher(ctx, where)
        with self._ledger.read(ctx) as tx:
            standings = StandingReader(tx)
            found = [(record, _row(record, standings)) for record in self._reachable_jobs(ctx, tx)]
        chosen = [(record, row) for record, row in found if matches(row)]
        chosen.sort(key=lambda pair: (pair[1].submitted_at, pair[1].tenant, str(pair[1].ref)))
        return [record for record, _ in chosen], [row for _, row in chosen]

    def _reachable_jobs(self, ctx: Context, tx: Reader) -> Iterable[Record]:
        """Live jobs of all tenants for operators of the platform; for others those that policy shows them."""
        if is_platform_operator(ctx):
            for tenant in tenants(self._ledger):
                yield from every(tx, "job", tenant, {"live": "1"})
            return
        cells, after = ctx.cells("job"), ""
        while True:
            page = tx.find("job", terms={"live": "1"}, cells=cells, after=after, limit=1000)
            yield from page.records
            after = page.next
            if not after:
                return

    def _control_selected(self, ctx: Context, action: str, record: Record, reason: str, *, dry: bool) -> str:
        """Apply the action to one job of a selection; say what was done, or why it was left alone."""
        try:
            body = _controlled(ctx, action, record, reason)
        except Conflict as error:
            return f"left alone: {error.message}"
        if dry:
            return f"would {action}"
        self._keep(replace(ctx, tenant=record.key.tenant), record, body, action, reason)
        return "done"

    def _control(self, ctx: Context, action: str, job: Ref, reason: str) -> JobView:
        if job.kind != "job":
            raise Invalid(f"{job}: expected a job, got a reference of the kind {job.kind}", "job:fraud/train-1", job)
        with self._ledger.read(ctx) as tx:
            record = tx.need(job.bare)
        return views.job(self._keep(ctx, record, _controlled(ctx, action, record, reason), action, reason))

    def _keep(self, ctx: Context, record: Record, body: Body, action: str, reason: str) -> Record:
        with self._ledger.write(ctx) as tx:
            if body["state"] in OVER:
                self._track.finish(ctx, Ref.parse(body["run"]), "killed")
            kept: Record = tx.put(record.key, body, rev=record.rev, terms=life.terms_of(body))
            self._tell(tx, ctx, kept, action, reason)
        return kept

    def _tell(self, tx: Writer, ctx: Context, record: Record, action: str, reason: str) -> None:
        operator = {"operator": f"{HOUSE}/{ctx.actor.id}"} if ctx.actor.tenant != record.key.tenant else {}
        tx.emit(_EVENTS[action], record.ref, (), reason=reason[:500], **operator)


def is_platform_operator(ctx: Context) -> bool:
    """True for operators of the installation, whose reach is every tenant."""
    return ctx.actor.tenant == HOUSE and ctx.tenant == HOUSE and "operator" in ctx.actor.roles


def _controlled(ctx: Context, action: str, record: Record, reason: str) -> Body:
    """The body after an action; Conflict where the job is in no state for it."""
    body, ref, now = record.body, record.ref.bare, ctx.now()
    if body["state"] in OVER:
        raise Conflict(f"{ref} is over: {body['state']}", "only a job that waits or runs can be changed", ref)
    spec = spec_in(record)
    person = ctx.actor.behalf or ctx.actor.id
    if action == CANCEL:
        return (
            life.cancelled(body, reason or "cancelled", now)
            if body["attempt"] is None
            else life.stopping(body, life.CANCEL, now, grace_s=spec.grace_s)
        )
    if action == HOLD:
        if body.get("hold"):
            raise Conflict(f"{ref} is {life.hold_note(body['hold'])} already", f"falaj jobs release {ref}", ref)
        return life.hold_job(body, person, reason, now, life.saving_grace_s(body, spec))
    if action == RELEASE:
        if not body.get("hold"):
            raise Conflict(f"{ref} is not held by a person: it is {body['state']}", f"falaj jobs why {ref}", ref)
        return life.release_job(body)
    if body["attempt"] is None:
        raise Conflict(f"{ref} does not run: it is {body['state']}", "only a job that runs is queued again", ref)
    return life.stopping(body, life.REQUEUE, now, grace_s=life.saving_grace_s(body, spec))


def _matcher(ctx: Context, where: JobSelector) -> Callable[[JobRow], bool]:
    """Whether a job fits a selection."""
    if where.state and where.state not in LIVE_STATES:
        hint = "jobs that are over cannot be changed; falaj jobs list shows them"
        raise Invalid(f"state {where.state[:40]!r}: expected one of {', '.join(LIVE_STATES)}", hint)
    tenant, slash, project = where.project.rpartition("/")
    if slash and not is_platform_operator(ctx) and tenant != ctx.tenant:
        raise Invalid(f"project {where.project[:80]!r}: expected a project of {ctx.tenant}", f"for example {project}")
    before = ctx.now() - seconds(where.older) if where.older else float("inf")
    conditions: list[Callable[[JobRow], Any]] = [
        lambda row: row.submitted_at <= before,
        lambda row: not where.state or row.state == where.state,
        lambda row: not where.queue or f"{row.queue}/".startswith(f"{where.queue.rstrip('/')}/"),
        lambda row: where.person in ("", row.person),
        lambda row: not where.name or fnmatchcase(row.ref.name, where.name),
        lambda row: project in ("", "*", row.ref.project) and tenant in ("", row.tenant),
    ]
    return lambda row: all(condition(row) for condition in conditions)


def _row(record: Record, standings: StandingReader) -> JobRow:
    """A job as operators see it. A note may repeat what its program wrote, so only the platform's reasons are shown."""
    body, view = record.body, views.job(record)
    refusal = standings.reason(record) if body["state"] == WAITING else ""
    note = refusal or (life.hold_note(body["hold"]) if body.get("hold") else "")
    return JobRow(
        record.key.tenant, record.ref.bare, HELD if refusal else view.state, view.queue, view.band, view.width,
        view.person, view.submitted_at, note,
    )  # fmt: skip
