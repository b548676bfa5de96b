"""Flows and their runs. One part of the desk (service.py).

A flow has versions, as what it makes has: `flow:PROJECT/NAME@v3`. Its head counts them, and its runs.
"""

import hashlib
from collections.abc import Callable
from typing import Annotated, Any

from falaj.core.context import Actor, Context
from falaj.core.errand import Here
from falaj.core.errors import Conflict, Invalid, NotFound
from falaj.core.ref import Ref
from falaj.core.settings import Settings
from falaj.core.sketch import kind_of
from falaj.core.verb import verb
from falaj.flows import turns
from falaj.flows.decide import leaves
from falaj.flows.hearing import Hearing
from falaj.flows.plans import check_name, check_params, check_plan
from falaj.flows.records import (
    CANCELLED,
    FAILED,
    FUNCTION,
    JOB,
    RUNNING,
    WAITING,
    Body,
    FlowPlan,
    FlowView,
    RunPage,
    RunView,
)
from falaj.govern.keys import Keyring
from falaj.jobs.service import Jobs
from falaj.store.codec import to_plain, to_stable_json
from falaj.store.ledger import Ledger, Reader, Writer
from falaj.store.records import Record

MOST_PAGE = 1_000
MOST_CAUSE = 500
HEAD = {"head": "yes"}


class Runs:
    """Flows and their runs."""

    def __init__(
        self, ledger: Ledger, jobs: Jobs, act: Callable[[Actor, str], Here], keyring: Keyring, settings: Settings
    ) -> None:
        self._ledger, self.jobs, self.act, self._keyring, self._settings = ledger, jobs, act, keyring, settings
        self._secret: Callable[[Context, str], bytes] | None = None
        self._watchers: tuple[Callable[[str, Ref], None], ...] = ()
        jobs.hear.append(Hearing(ledger, settings.zone))

    @verb(writes=("flow",), reads=("code",))
    def add(
        self,
        ctx: Context,
        flow: Annotated[Ref, "what to call it, for example flow:fraud/retrain"],
        plan: Annotated[FlowPlan, "its steps, and what they give each other"],
        code: Annotated[Ref | None, "the version of the program its functions are in"] = None,
        message: Annotated[str, "what this version brings"] = "",
    ) -> FlowView:
        """Keep a flow as the next version of its name. `falaj flows save` reads the file and calls this.

        The same plan and program again is no new version.

        Example:
            falaj flows add flow:fraud/retrain --plan @plan.json --code code:fraud/retrain@v1
        """
        check_name(flow)
        check_plan(plan)
        if code is None and any(step.kind == FUNCTION for step in plan.steps):
            raise Invalid("its functions are nowhere", "--code names the version of their program", flow)
        with self._ledger.write(ctx) as tx:
            head = tx.get(flow)
            root = str(tx.need(code).body["root"]) if code else ""
            digest = hashlib.sha256(to_stable_json([to_plain(plan), root])).hexdigest()
            newest = tx.get(flow.at(head.body["newest"])) if head and head.body["newest"] else None
            if head is not None and newest is not None and newest.body["digest"] == digest:
                return turns.flow_view(head, newest)
            body: Body = {
                "plan": to_plain(plan), "code": str(code or ""), "root": root, "digest": digest,
                "made_at": ctx.now(), "made_by": ctx.actor.behalf or ctx.actor.id, "message": message[:500],
            }  # fmt: skip
            count = head.body["count"] + 1 if head else 1
            version = tx.put(flow.at(f"v{count}"), body)
            kept = {**(head.body if head else {"runs": 0}), "newest": f"v{count}", "count": count}
            head = tx.put(flow, kept, rev=head.rev if head else None, terms=HEAD)
            tx.emit("flows.add", version.ref, (code,) if code else (), steps=len(plan.steps), digest=digest)
        return turns.flow_view(head, version)

    @verb()
    def list(self, ctx: Context, project: Annotated[str, "of one project only"] = "") -> tuple[FlowView, ...]:
        """List the flows you may see.

        Example:
            falaj flows list --project fraud
        """
        with self._ledger.read(ctx) as tx:
            cells = ctx.cells("flow")
            heads = tx.find("flow", project=project, terms=HEAD, cells=cells, limit=MOST_PAGE).records
            found = [(head, tx.get(head.ref.bare.at(head.body["newest"]))) for head in heads if head.body["newest"]]
            clocks = _clocks(ctx, tx, project)
        return tuple(
            turns.flow_view(head, version, clocks.get(head.ref.bare, ""))
            for head, version in found
            if version is not None
        )

    @verb(reads=("flow",))
    def show(self, ctx: Context, flow: Annotated[Ref, "which flow; its newest version when none is named"]) -> FlowView:
        """Show a flow: its steps, what they give each other, its parameters and its code.

        Example:
            falaj flows show flow:fraud/retrain
        """
        with self._ledger.read(ctx) as tx:
            version = _version(tx, flow)
            return turns.flow_view(tx.need(flow.bare), version, _clocks(ctx, tx, flow.project).get(flow.bare, ""))

    @verb(reads=("flow",), group="write")
    def start(
        self,
        ctx: Context,
        flow: Annotated[Ref, "which flow; its newest version when none is named"],
        params: Annotated[dict[str, Any] | None, "its parameters, over those it says itself"] = None,
        cause: Annotated[str, "why: the same cause finds the same run, and begins no second one"] = "",
        begun_by: Annotated[str, "what began it: a schedule, a trigger, a verdict"] = "",
        fresh: Annotated[bool, "do every step again, though its result is known"] = False,
    ) -> RunView:
        """Begin a run of a flow. `falaj flows run` does this and waits.

        Parameters that name versions are pinned now: all steps see the same data. Every step is a job of yours, with
        the rights you have on the day it runs.

        Example:
            falaj flows start flow:fraud/retrain --params '{"threshold": 0.7}' --cause ticket-4711
        """
        if len(cause) > MOST_CAUSE or "\0" in cause + begun_by:
            raise Invalid(f"a cause of {len(cause)} characters", f"at most {MOST_CAUSE}")
        with self._ledger.write(ctx) as tx:
            version = _version(tx, flow)
            name = flow.bare
            known = tx.find("turn", terms={"cause": turns.cause_term(name, cause)}, limit=1) if cause else None
            if known is not None and known.records:
                return turns.view(known.records[0])
            plan = turns.plan_in(version)
            filled = self._pinned(ctx, plan, check_params(plan, params or {}))
            head = tx.need(name)
            number = head.body["runs"] + 1
            me = ctx.actor.behalf or ctx.actor.id
            # A person says who they are, and not that they are a schedule.
            by = me if ctx.actor.kind == "person" else (begun_by or me)[:200]
            said = {"cause": cause, "begun_by": by, "fresh": fresh, "number": number}
            body = turns.new_turn(ctx, version.ref, plan, filled, said)
            tx.put(name, {**head.body, "runs": number}, rev=head.rev)
            turn = Ref("turn", name.project, f"{name.name}-{number}")
            kept = tx.put(turn, body, label=version.label, zone=version.zone, terms=turns.turn_terms(body, name))
            pins = (version.ref, *(Ref.parse(one) for one in filled.values() if kind_of(one) and Ref.parse(one).pinned))
            tx.emit("flows.start", kept.ref, pins, state=body["state"], cause=cause, flow=str(version.ref), by=by)
            self._stir(tx, ctx.tenant, turn)
        return turns.view(kept)

    @verb(reads=("flow",), heads=("flow",))
    def runs(
        self,
        ctx: Context,
        flow: Annotated[Ref | None, "of one flow only"] = None,
        project: Annotated[str, "of one project only"] = "",
        state: Annotated[str, "running, succeeded, failed or cancelled"] = "",
        after: Annotated[str, "where the page before ended"] = "",
        limit: Annotated[int, "how many at most"] = 100,
    ) -> RunPage:
        """List the runs of flows that you may see, newest first.

        Example:
            falaj flows runs --flow flow:fraud/retrain --state failed
        """
        if not 0 < limit <= MOST_PAGE:
            raise Invalid(f"a page of {limit} runs", f"ask for 1 to {MOST_PAGE} and follow `next`")
        wanted = {"state": state, "flow": f"{flow.project}/{flow.name}" if flow else ""}
        terms = {name: value for name, value in wanted.items() if value}
        with self._ledger.read(ctx) as tx:
            cells = ctx.cells("turn")
            page = tx.find("turn", project=project, terms=terms, cells=cells, newest=True, after=after, limit=limit)
        return RunPage(tuple(turns.view(record) for record in page.records), page.next)

    @verb(reads=("turn",))
    def look(self, ctx: Context, turn: Annotated[Ref, "which run"]) -> RunView:
        """Show a run: its steps, their jobs, what they gave, and why one failed.

        Example:
            falaj flows look turn:fraud/retrain-7
        """
        with self._ledger.read(ctx) as tx:
            record = _turn(tx, turn)
            return turns.view(record, _waiting(tx, record))

    @verb(writes=("turn",))
    def retry(self, ctx: Context, turn: Annotated[Ref, "a run that failed or was cancelled"]) -> RunView:
        """Go on with a run from where it failed: steps that succeeded stay as they are.

        Example:
            falaj flows retry turn:fraud/retrain-7
        """
        with self._ledger.write(ctx) as tx:
            old = _turn(tx, turn)
            if old.body["state"] not in (FAILED, CANCELLED):
                raise Conflict(f"{turn.bare} is {old.body['state']}", "only what failed or was cancelled goes on", turn)
            return self._save(ctx, tx, old, turns.again(old.body), "flows.retry")

    @verb(writes=("turn",), group="control")
    def cancel(
        self, ctx: Context, turn: Annotated[Ref, "which run"], reason: Annotated[str, "why, for the record"] = ""
    ) -> RunView:
        """Cancel a run: no step begins any more, and those that run are cancelled.

        Example:
            falaj flows cancel turn:fraud/retrain-7
        """
        with self._ledger.write(ctx) as tx:
            old = _turn(tx, turn)
            if turns.over(old.body):
                raise Conflict(f"{turn.bare} is over: {old.body['state']}", "there is nothing to cancel", turn)
            why = (reason or f"cancelled by {ctx.actor.behalf or ctx.actor.id}")[:500]
            return self._save(ctx, tx, old, {**old.body, "cancel": why}, "flows.cancel", reason=why)

    @verb(writes=("flow",), group="erase")
    def remove(self, ctx: Context, flow: Annotated[Ref, "which flow, without a version"]) -> Ref:
        """Take a flow away: it can be started no more. Its runs, and what they made, stay.

        Example:
            falaj flows remove flow:fraud/retrain
        """
        with self._ledger.write(ctx) as tx:
            head = tx.need(flow.bare)
            name = f"{flow.project}/{flow.name}"
            if tx.find("turn", terms={"flow": name, "live": "1"}, limit=1).records:
                raise Conflict(f"{flow.bare} has runs that are not over", f"falaj flows runs --flow {flow.bare}", flow)
            kept = tx.put(flow.bare, {**head.body, "newest": ""}, rev=head.rev)
            tx.emit("flows.remove", kept.ref)
        return flow.bare

    def reveals(self, secret: Callable[[Context, str], bytes]) -> Any:
        """How secrets are had by reference; said once, by whoever assembles the house."""
        self._secret = secret
        return self

    def watch(self, callback: Callable[[str, Ref], None]) -> None:
        """Call back with the tenant and the run when there is something for the loop to do, in this process."""
        self._watchers += (callback,)

    def _stir(self, tx: Writer, tenant: str, turn: Ref) -> None:
        def tell(durable: bool) -> None:
            for callback in self._watchers if durable else ():
                callback(tenant, turn)

        tx.after(tell)

    def _save(self, ctx: Context, tx: Writer, old: Record, body: Body, said: str, reason: str = "") -> RunView:
        terms = turns.turn_terms(body, Ref.parse(body["flow"]))
        kept = tx.put(old.key, body, rev=old.rev, terms=terms)
        tx.emit(said, kept.ref, state=body["state"], flow=body["flow"], reason=reason)
        self._stir(tx, ctx.tenant, old.ref.bare)
        return turns.view(kept)

    def _pinned(self, ctx: Context, plan: FlowPlan, params: Body) -> Body:
        """The parameters with what jobs will read pinned, by the caller's own right to see it."""
        steps = [step for step in plan.steps if step.kind in (FUNCTION, JOB)]
        read = {
            leaf["param"]
            for step in steps
            for source in step.takes.values()
            for leaf in leaves(source)
            if "param" in leaf and not leaf.get("text")
        }
        here = self.act(ctx.actor, ctx.purpose)
        floating = [name for name in read if kind_of(params[name]) and not Ref.parse(params[name]).pinned]
        return {**params, **{name: str(here.catalog.show(Ref.parse(params[name])).ref) for name in floating}}


def _clocks(ctx: Context, tx: Reader, project: str) -> dict[Ref, str]:
    """Flows that begin by the clock, and when: of the schedules that the caller may see."""
    cells = ctx.cells("schedule")
    found = tx.find("schedule", project=project, terms={"live": "1"}, cells=cells, limit=MOST_PAGE).records
    return {Ref.parse(one.body["flow"]).bare: f"{one.body['cron']} {one.body['zone']}" for one in found}


def _version(tx: Reader, flow: Ref) -> Record:
    """A version of a flow that can be started; the guard has pinned it."""
    if flow.kind != "flow":
        raise Invalid(f"{flow} names no flow", "for example flow:fraud/retrain", flow)
    head = tx.get(flow.bare)
    if head is None or not head.body["newest"]:
        raise NotFound(f"there is no {flow.bare}", "falaj flows list shows them", flow)
    return tx.need(flow if flow.version else flow.at(head.body["newest"]))


def _waiting(tx: Reader, turn: Record) -> dict[str, str]:
    """Steps whose first job under way waits, and how to hear why."""
    found = {}
    for name, one in turn.body["steps"].items():
        job = next((item["job"] for item in one["items"] if item["state"] == RUNNING and item["job"]), "")
        record = tx.get(Ref.parse(job)) if job else None
        if record is not None and record.body["state"] == WAITING:
            found[name] = f"it waits for a place: falaj jobs why {job}"
    return found


def _turn(tx: Reader, turn: Ref) -> Record:
    if turn.kind != "turn":
        raise Invalid(f"{turn} names no run of a flow", "for example turn:fraud/retrain-7", turn)
    return tx.need(turn.bare)
