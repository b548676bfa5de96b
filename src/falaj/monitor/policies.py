"""Policies: verdicts, and what is done about them. One part of the desk (service.py).

What was decided is written in one transaction over the revision of the watch that it was decided on: the machine, the
verdicts, incidents and events. What is done comes after, and again where somebody died in between: going back looks at
the endpoint first, a question for approval is found when it is there, and the event of a verdict is what a flow hears.
"""

from dataclasses import replace
from functools import cached_property
from typing import Annotated, Any

from falaj.core.context import Context
from falaj.core.errors import FalajError, Invalid, Stale, Unavailable
from falaj.core.ref import Ref
from falaj.core.verb import verb
from falaj.monitor import acting, decide
from falaj.monitor.challenge import Challenges
from falaj.monitor.incidents import Incidents, closed, gone, open_of, opened, openly
from falaj.monitor.machine import (
    BEGUN,
    FAILED,
    PROPOSED,
    WAITING,
    Facts,
    Machine,
    Sign,
    machine_body,
    machine_in,
)
from falaj.monitor.plans import plan_in
from falaj.monitor.records import ALERT, ROLLBACK, Verdict, WatchView, Window
from falaj.monitor.watches import endpoint_of, need, saved
from falaj.serve import books
from falaj.store.codec import from_plain, to_plain
from falaj.store.ledger import Reader, Writer
from falaj.store.records import Record

VERDICT = "verdict"
MOST_PAGE, SHOWN = 1_000, 10
Body = dict[str, Any]


class Policies(Incidents, Challenges):
    """What follows from what was found."""

    @verb(writes=("endpoint",))
    def pause(
        self,
        ctx: Context,
        endpoint: Annotated[Ref, "which endpoint"],
        reason: Annotated[str, "why, for the record"] = "",
    ) -> WatchView:
        """Stop everything that would be done by itself: no retraining, no going back. People are still told.

        Example:
            falaj monitor pause endpoint:fraud/score --reason "the feed is being changed today"
        """
        with self._ledger.write(ctx) as tx:
            old = need(tx, endpoint)
            said = f"{reason[:500] or 'paused'} ({ctx.actor.behalf or ctx.actor.id})"
            machine = replace(machine_of(old), paused=said)
            return self._turned(ctx, tx, old, machine, "monitor.pause", reason)

    @verb(writes=("endpoint",))
    def resume(
        self,
        ctx: Context,
        endpoint: Annotated[Ref, "which endpoint"],
        reason: Annotated[str, "why, for the record"] = "",
    ) -> WatchView:
        """Let a watch act again: one that was paused, that cools down, or that is frozen after going back.

        Example:
            falaj monitor resume endpoint:fraud/score
        """
        with self._ledger.write(ctx) as tx:
            old = need(tx, endpoint)
            return self._turned(ctx, tx, old, decide.released(machine_of(old), ctx.now()), "monitor.resume", reason)

    @verb(reads=("endpoint",))
    def verdicts(
        self,
        ctx: Context,
        endpoint: Annotated[Ref, "which endpoint"],
        limit: Annotated[int, "how many at most"] = 100,
    ) -> tuple[Verdict, ...]:
        """Show what was decided about an endpoint, newest first: on what evidence, and what came of it.

        Example:
            falaj monitor verdicts endpoint:fraud/score
        """
        if not 0 < limit <= MOST_PAGE:
            raise Invalid(f"a list of {limit} verdicts", f"ask for 1 to {MOST_PAGE}")
        with self._ledger.read(ctx) as tx:
            return verdicts_of(tx, need(tx, endpoint), limit)

    # For the loop.

    def judged(self, ctx: Context, record: Record, window: Window, body: Body | None = None) -> Record:
        """What follows from a new window, written with `body` (the watch as it is to be kept) in one transaction."""
        machine, now = machine_of(record), ctx.now()
        made, verdicts = decide.after(machine, window, plan_in(record.body), now)
        if body is None and made == machine and not verdicts:
            return record
        return self._decided(ctx, replace(record, body=body or record.body), machine, made, verdicts)

    def tend(self, ctx: Context, record: Record, now: float) -> bool:
        """One look at what is under way, and whether a new revision is broken; True when something changed."""
        with self._ledger.read(ctx) as tx:
            served = tx.get(endpoint_of(record.ref))
        if served is None:
            return False
        plan, machine = plan_in(record.body), machine_of(record)
        facts = self._facts(ctx, record, served, machine, now)
        made, verdicts = decide.tick(machine, plan, now, facts)
        changed = made != machine
        if changed:
            record = self._decided(ctx, record, machine, made, verdicts)
        if made.doing is not None and not made.paused:
            changed |= self._act(ctx, record, served, made, facts)
        return changed

    def told(self, tx: Reader, record: Record) -> tuple[tuple[Verdict, ...], tuple[Ref, ...]]:
        """Verdicts and open incidents of a watch, as `show` tells them."""
        return verdicts_of(tx, record, SHOWN), open_of(tx, record)

    @cached_property
    def _ears(self) -> acting.Ears:
        return acting.Ears(self._ledger)

    def _facts(self, ctx: Context, record: Record, served: Record, machine: Machine, now: float) -> Facts:
        facts, doing = acting.standing_of(served.body, now), machine.doing
        tenant = record.key.tenant
        left = doing is not None and doing.action == ROLLBACK
        if facts.fresh and not machine.frozen and not left:
            facts = replace(facts, signs=self._signs(ctx, record, facts, now))
        if doing is not None and acting.is_begun(doing):
            heard = self._ears.of(tenant, doing)
            return replace(facts, run=heard.run, ended=heard.ended, note=heard.note)
        if doing is None or doing.state != WAITING:
            return facts
        with self._ledger.read(ctx) as tx:
            answer, note = acting.answer_to(tx, record, doing, now)
        return replace(facts, approval=answer, note=note)

    def _signs(self, ctx: Context, record: Record, facts: Facts, now: float) -> tuple[Sign, ...]:
        """How a new revision treats its callers in this minute."""
        glances = {one.revision: one for one in self.glance(ctx, record, now)}
        plan, tenant, ref = plan_in(record.body), record.key.tenant, endpoint_of(record.ref)
        since, new = acting.since_of(facts, now), glances.get(facts.fresh)
        sums = acting.sums_of(self.serve, tenant, ref, since) if plan.latency_ms and new is not None else {}
        signs = acting.signs_of(glances, facts, plan, sums)
        if new is not None and acting.is_alike(new):
            profile = self.baselines.profile(tenant, ref, facts.fresh)
            signs += acting.alike(profile, self.gathering.between(tenant, ref, facts.fresh, since, now))
        return signs

    def _act(self, ctx: Context, record: Record, served: Record, machine: Machine, facts: Facts) -> bool:
        """Do what is due of the action under way."""
        doing, plan = machine.doing, plan_in(record.body)
        if doing is None or doing.state not in (PROPOSED, WAITING) or (doing.state == WAITING and facts.approval):
            return False
        try:
            _, here = self.behalf(ctx, record)
            with self._ledger.read(ctx) as tx:
                said = openly(verdict_in(tx.need(_verdict_ref(record, doing.id))))
            if doing.action != ROLLBACK:
                acting.ask(here, record.ref.bare, machine, said)
                return True
            return acting.go_back(here, served, facts, doing, said)
        except (Stale, Unavailable):
            raise
        except FalajError as error:
            # It will not be otherwise the next time: people must look.
            made, verdicts = decide.ended(machine, plan, ctx.now(), FAILED, str(error)[:500])
            self._decided(ctx, record, machine, made, verdicts)
            return True

    def _decided(
        self, ctx: Context, record: Record, old: Machine, new: Machine, verdicts: tuple[Verdict, ...]
    ) -> Record:
        """Write what was decided, all of it or nothing."""
        ctx = replace(ctx, actor=replace(ctx.actor, behalf=record.body["who"]["id"]))
        if new.doing is not None and acting.is_begun(new.doing) and not acting.is_begun(old.doing):
            # What the flow says of itself stands behind this place, and behind the event that it hears.
            new = replace(new, doing=replace(new.doing, cursor=self._ledger.store.end()))
        if old.doing is not None and old.doing.id != (new.doing.id if new.doing else ""):
            self._ears.forget(record.key.tenant, old.doing.id)
        with self._ledger.write(ctx) as tx:
            body = {**record.body, "machine": machine_body(new), "state": new.state}
            kept = saved(tx, record, body)
            for one in verdicts:
                self._told(tx, kept, one, ctx.now())
            for episode in gone(old, new):
                incident = closed(tx, kept, episode, ctx.now())
                if incident is not None:
                    tx.emit("monitor.resolve", incident.ref, endpoint=str(endpoint_of(kept.ref)), reason=episode.why)
            if not tx.emitted:
                tx.emit("monitor.judge", kept.ref, state=new.state)
        return kept

    def _told(self, tx: Writer, watch: Record, verdict: Verdict, now: float) -> None:
        """One verdict: its record, its incident, and the event that others hear."""
        endpoint, old = endpoint_of(watch.ref), tx.get(_verdict_ref(watch, verdict.id))
        if old is not None and verdict.action != ALERT:
            was = verdict_in(old)
            verdict = replace(
                was, state=verdict.state, outcome=verdict.outcome, run=verdict.run or was.run,
                flow=verdict.flow or was.flow,
            )  # fmt: skip
        record = _put(tx, watch, old, verdict)
        if verdict.action == ALERT:
            incident = opened(tx, watch, verdict, now)
            tx.emit(
                "monitor.alert", incident.ref, endpoint=str(endpoint), what=str(incident.body["what"]),
                said=openly(verdict), since=float(incident.body["since"]), incident=str(incident.ref.bare),
            )  # fmt: skip
        elif verdict.state in (PROPOSED, BEGUN):
            inputs, model = _model(tx, endpoint, verdict.revision)
            tx.emit(
                "monitor.verdict", watch.ref, inputs, action=verdict.action, cause=verdict.cause, flow=verdict.flow,
                endpoint=str(endpoint), model=model, id=verdict.id, since=verdict.since, said=openly(verdict),
            )  # fmt: skip
        else:
            said = "monitor.ask" if verdict.state == WAITING else "monitor.act"
            tx.emit(said, record.ref, action=verdict.action, id=verdict.id, state=verdict.state,
                    endpoint=str(endpoint), outcome=verdict.outcome[:500])  # fmt: skip

    def _turned(self, ctx: Context, tx: Writer, old: Record, machine: Machine, said: str, reason: str) -> WatchView:
        """A person changed how the watch stands."""
        machine = replace(machine, state=machine.stated(ctx.now()))
        body = {**old.body, "machine": machine_body(machine), "state": machine.state, "paused": machine.paused}
        record = saved(tx, old, body)
        tx.emit(said, record.ref, reason=reason[:500], state=machine.state)
        tx.after(self._stir)
        return self._view(tx, record)


def machine_of(record: Record) -> Machine:
    """The machine of a watch."""
    return machine_in(record.body, str(endpoint_of(record.ref)))


def verdicts_of(tx: Reader, watch: Record, limit: int) -> tuple[Verdict, ...]:
    """What was decided, newest first."""
    page = tx.find(VERDICT, project=watch.key.project, terms={"watch": watch.body["id"]}, newest=True, limit=limit)
    return tuple(sorted(map(verdict_in, page.records), key=lambda one: -one.at))


def verdict_in(record: Record) -> Verdict:
    """A verdict as it is kept."""
    made: Verdict = from_plain(Verdict, record.body)
    return made


def _put(tx: Writer, watch: Record, old: Record | None, verdict: Verdict) -> Record:
    if old is not None:
        return tx.put(old.key, to_plain(verdict), rev=old.rev)
    terms = {"watch": str(watch.body["id"]), "cause": verdict.cause, "action": verdict.action}
    ref = _verdict_ref(watch, verdict.id)
    return tx.put(ref, to_plain(verdict), label=watch.label, zone=watch.zone, terms=terms)


def _verdict_ref(watch: Record, id_: str) -> Ref:
    return Ref(VERDICT, watch.key.project, id_)


def _model(tx: Reader, endpoint: Ref, revision: int) -> tuple[tuple[Ref, ...], str]:
    """The endpoint and the model that a verdict is about, pinned."""
    served = tx.get(endpoint)
    kept = books.revision_at(served.body, revision) if served is not None else None
    if served is None or kept is None:
        return (), ""
    return (served.ref, Ref.parse(kept["model"])), str(kept["model"])
