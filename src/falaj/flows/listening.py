"""The loop that listens: clocks and events that begin flows.

Reading the log is at least once: the cursor is written down after what it led to. Beginning is once: a run is found
again by its cause, which is the moment of a clock, the id of an event or the id of a verdict.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from falaj.core.context import Context
from falaj.core.errors import Conflict, FalajError, Invalid
from falaj.core.event import Event
from falaj.core.ports import Key
from falaj.core.ref import Ref
from falaj.fleet.use import every, tenants
from falaj.flows.chains import cause_behind
from falaj.flows.delivering import HookLoop
from falaj.flows.ear import Ear
from falaj.flows.owners import Sight, worker_of
from falaj.flows.schedules import due, known_at
from falaj.flows.service import Flows
from falaj.flows.triggers import MOST_DEPTH, depth_of, filled, known_of, matches, trigger_in
from falaj.jobs.standing import barred
from falaj.serve.watch import Watch
from falaj.store.ledger import Ledger
from falaj.store.loop import Turn
from falaj.store.records import Fact, Record

__all__ = ["HookLoop", "StartLoop"]

VERDICT, RETRAIN = "monitor.verdict", "retrain"
GIVE_UP_S, AGAIN_S = 3600.0, 5.0
"""What cannot begin for now (a quota, a store that does not answer) is tried again for so long, so often."""
NEVER = 253_402_214_400.0
"""The last day that calendars know."""
TOLD = ("endpoint", "model", "cause", "since")
"""What a flow that a verdict begins is given, where it has such parameters."""


@dataclass(slots=True)
class Wish:
    """One run that is to begin."""

    owner: Record
    flow: Ref
    params: dict[str, Any]
    cause: str
    begun_by: str
    event: Event | None = None
    again_at: float = 0.0
    until: float = 0.0


class StartLoop:
    """Begins what schedules, triggers and verdicts ask for."""

    name = "starts"
    every_s = 0.5

    def __init__(self, ledger: Ledger, desk: Flows) -> None:
        self._ledger, self._desk = ledger, desk
        self._ear = Ear(ledger, "starts")
        self._sight = Sight(ledger, desk.act)
        self._watch = Watch(ledger, "trigger", "schedule")
        self._triggers: dict[Key, Record] = {}
        self._schedules: dict[Key, Record] = {}
        self._held: dict[tuple[str, str], Wish] = {}
        """By tenant and cause: what could not begin yet. The cursor is not written down before they are done with."""
        self._token = 0
        self._turn: Turn

    def step(self, turn: Turn) -> bool:
        """Everything that is due now; what is in trouble holds up nothing else."""
        self._turn = turn
        if turn.token != self._token:
            self._triggers, self._schedules, self._held = {}, {}, {}
            self._ear.open(turn.ctx)
            self._load(turn.ctx)
            self._token = turn.token
        end = self._ledger.store.end()  # before the triggers are read: whoever comes later hears what is later
        self._refresh(turn.ctx)
        for schedule in list(self._schedules.values()):
            if schedule.body["next_at"] <= turn.ctx.now() and turn.alive():
                self._tick(replace(turn.ctx, tenant=schedule.key.tenant), schedule)
        for wish in [one for one in self._held.values() if one.again_at <= turn.ctx.now()]:
            self._begin(turn.ctx, wish)
        verbs = {VERDICT}.union(*(record.body["events"] for record in self._triggers.values()))
        facts, more = self._ear.hear(verbs, end)
        begun = [self._hear(turn.ctx, fact) for fact in facts if turn.alive()]
        if not turn.alive():
            return False
        self._ear.done()
        if not self._held:
            self._ear.keep(turn.ctx, acted=any(begun))
        return more

    def _load(self, ctx: Context) -> None:
        with self._ledger.read(ctx) as tx:
            for tenant in tenants(self._ledger):
                self._triggers |= {one.key: one for one in every(tx, "trigger", tenant)}
                self._schedules |= {one.key: one for one in every(tx, "schedule", tenant)}

    def _refresh(self, ctx: Context) -> None:
        for tenant, ref in self._watch.changed():
            self._reload(ctx, Key(tenant, ref.kind, ref.project, ref.name))

    def _reload(self, ctx: Context, key: Key) -> None:
        known = self._triggers if key.kind == "trigger" else self._schedules
        with self._ledger.read(ctx) as tx:
            found = tx.key(key)
        known.pop(key, None)
        if found is not None:
            known[key] = found

    def _tick(self, ctx: Context, schedule: Record) -> None:
        """One schedule whose time has come: its runs, then when it comes next."""
        body, now = schedule.body, ctx.now()
        try:
            moments, following = due(body, now)
        except Invalid as error:  # a zone that this machine does not know (any more)
            self._note(ctx, schedule, {"next_at": NEVER, "note": str(error)[:500]}, "flows.refuse")
            return
        said, begun, key = "", 0, f"{schedule.key.project}/{schedule.key.name}"
        for moment in moments:
            known = known_at(moment, body["zone"])
            cause = f"schedule:{key}@{known['moment']}"
            try:
                wish = Wish(schedule, Ref.parse(body["flow"]), filled(body["params"], known), cause, cause)
                begun += self._start(ctx, wish)
            except FalajError as error:
                if error.retry and now - moment < GIVE_UP_S:
                    return  # the next turn finds it due, still
                said = str(error)
        changed = {
            "next_at": following or NEVER,
            "last_at": now,
            "started": body["started"] + begun,
            "note": said[:500],
        }
        self._note(ctx, schedule, changed, "flows.refuse" if said else "flows.tick")

    def _hear(self, ctx: Context, fact: Fact) -> bool:
        """What one event leads to; True when it led to something."""
        event, ctx = fact.event, replace(ctx, tenant=fact.event.tenant)
        wishes = list(self._wishes(ctx, fact))
        if event.verb == VERDICT and event.body.get("action") == RETRAIN and event.body.get("flow"):
            wishes += self._retrain(ctx, fact)
        for wish in wishes:
            self._begin(ctx, wish)
        return bool(wishes)

    def _wishes(self, ctx: Context, fact: Fact) -> Iterable[Wish]:
        event, behind = fact.event, ""
        for key, trigger in list(self._triggers.items()):
            body = trigger.body
            cooling = body["cool_s"] > 0.0 and event.at < body["last_at"] + body["cool_s"]
            early = fact.pos <= body["heard"]
            if key.tenant != event.tenant or early or cooling or not matches(trigger_in(body), event):
                continue
            if not self._sight.sees(ctx, trigger, event.subject):
                continue
            behind = behind or cause_behind(self._ledger, ctx, event)
            depth = depth_of(behind) + 1 if behind else 0
            cause = f"trigger:{key.project}/{key.name}@{event.id}" + (f"~{depth}" if depth else "")
            if depth > MOST_DEPTH:
                self._refused(ctx, trigger, event, f"{behind} and {depth} runs before it began each other")
                continue
            try:
                params = filled(body["params"], known_of(event))
            except Invalid as error:
                self._refused(ctx, trigger, event, str(error))
                continue
            yield Wish(trigger, Ref.parse(body["flow"]), params, cause, f"{cause} {event.verb}", event)

    def _retrain(self, ctx: Context, fact: Fact) -> list[Wish]:
        """The standing trigger: a verdict begins the flow that its watch names, as the owner of the watch."""
        event, body = fact.event, fact.event.body
        try:
            endpoint, flow = Ref.parse(str(body.get("endpoint", ""))), Ref.parse(str(body["flow"]))
        except Invalid:
            return []
        with self._ledger.read(ctx) as tx:
            watch = tx.get(Ref("watch", endpoint.project, endpoint.name))
        if watch is None:
            return []
        id_ = str(body.get("id") or event.id)
        params = {name: body[name] for name in TOLD if name in body} | {"endpoint": str(endpoint)}
        return [Wish(watch, flow, params, id_, f"verdict:{id_}", event)]

    def _begin(self, ctx: Context, wish: Wish) -> None:
        """Begin one run; what cannot be for now is held, and what can never be is said."""
        key, now = (wish.owner.key.tenant, wish.cause), ctx.now()
        ctx = replace(ctx, tenant=wish.owner.key.tenant)
        self._held.pop(key, None)
        try:
            self._start(ctx, wish)
        except FalajError as error:
            wish.until = wish.until or now + GIVE_UP_S
            if (error.retry or isinstance(error, Conflict)) and now < wish.until:
                wish.again_at = now + AGAIN_S
                self._held[key] = wish
            elif wish.event is not None:
                self._refused(ctx, wish.owner, wish.event, str(error), wish)
            return
        if wish.owner.key.kind == "trigger" and wish.event is not None:
            with self._ledger.read(ctx) as tx:
                trigger = tx.key(wish.owner.key)
            if trigger is not None:
                begun = trigger.body["started"] + 1
                changed = {"started": begun, "last_at": wish.event.at, "note": ""}
                self._note(ctx, trigger, changed, "flows.fire", event=wish.event.id, cause=wish.cause)

    def _start(self, ctx: Context, wish: Wish) -> int:
        """Ask for the run as the owner; what is not allowed today is Denied."""
        with self._ledger.read(ctx) as tx:
            now = tx.key(wish.owner.key)
            why = barred(tx, wish.owner)
            actor = worker_of(tx, wish.owner)
        if why:
            raise Invalid(why, "somebody else may take it over: make it again in their name")
        if now is None or now.body.get("removed") or now.body.get("paused"):
            raise Invalid(f"{wish.owner.ref.bare} was paused or taken away", "nothing was begun")
        here = self._desk.act(actor, wish.owner.body["who"]["purpose"])
        params = wish.params
        if wish.owner.key.kind == "watch":
            takes = here.flows.show(wish.flow).plan.params
            extra = wish.owner.body["plan"].get("acting", {}).get("params", {})
            params = {name: value for name, value in params.items() if name in takes} | dict(extra)
        here.flows.start(wish.flow, params, cause=wish.cause, begun_by=wish.begun_by)
        return 1

    def _refused(self, ctx: Context, owner: Record, event: Event, why: str, wish: Wish | None = None) -> None:
        """Say that nothing was begun, and why, where its people look. A verdict hears it as the end of its run."""
        if owner.key.kind == "watch" and wish is not None:
            with self._ledger.write(ctx) as tx:
                tx.emit("flows.end", owner.ref, state="failed", cause=wish.cause, flow=str(wish.flow), note=why[:500])
            return
        with self._ledger.read(ctx) as tx:
            found = tx.key(owner.key)
        if found is not None:
            self._note(ctx, found, {"note": why[:500]}, "flows.refuse", event=event.id)

    def _note(self, ctx: Context, record: Record, changed: dict[str, Any], said: str, **more: str) -> None:
        with self._ledger.write(ctx) as tx:
            kept = tx.put(record.key, {**record.body, **changed}, rev=record.rev)
            tx.emit(said, kept.ref, (), flow=record.body["flow"], note=kept.body["note"], **more)
        (self._triggers if record.key.kind == "trigger" else self._schedules)[record.key] = kept
