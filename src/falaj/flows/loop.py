"""The loop of flows: what is due next in every run.

A run is looked at when one of its jobs changed, somebody touched it, or a gate of it waits; not at every commit. All
that one look brings (results taken in, jobs asked for, verbs called) is written in one transaction over the revision
it was decided on. Killed anywhere, the next turn finds all or nothing of it. Jobs and verbs are asked for through the
guard, in the name of whoever began the run and with what they may do today.
"""

import logging
import time
from dataclasses import replace
from functools import partial
from queue import SimpleQueue
from typing import NamedTuple

from falaj.core.context import Context
from falaj.core.errand import Here
from falaj.core.errors import Conflict, Denied, FalajError, NotFound, QuotaExceeded, Stale, Unavailable
from falaj.core.ref import Ref
from falaj.dispatch.crew import BROKEN
from falaj.fleet.use import every, tenants
from falaj.flows import turns
from falaj.flows.asking import Case, ask
from falaj.flows.decide import next_moves
from falaj.flows.ending import SAID, taken_in
from falaj.flows.plans import MOST_ITEMS
from falaj.flows.records import CANCELLED, FAILED, GATE, RUNNING, WAITING, Body, FlowPlan, StepPlan
from falaj.flows.service import Flows
from falaj.jobs import records as jobs
from falaj.jobs.attempts import in_name_of
from falaj.jobs.standing import Standing, job_standing
from falaj.serve.watch import Watch
from falaj.store.ledger import Ledger, Writer
from falaj.store.loop import Turn
from falaj.store.records import Record

log = logging.getLogger(__name__)
GAP_S = 0.01
"""So long after a look what comes in is gathered."""
SEARCH_S = 5.0
"""A run that another replica began is noticed within so long."""
MOST_STARTS = 16
"""So many items are asked for in one transaction."""
LONGEST_BACKOFF_S = 300.0

Name = tuple[str, Ref]


class Found(NamedTuple):
    """A run as it was read, with its flow, and whether anything may be done for its owner."""

    turn: Record
    flow: Record
    plan: FlowPlan
    standing: Standing


class FlowLoop:
    """Leads the runs of flows, for every tenant."""

    name = "flows"
    every_s = 1.0
    eager = True

    def __init__(self, ledger: Ledger, desk: Flows) -> None:
        self._ledger = ledger
        self._desk = desk
        self._token = 0
        self._watch = Watch(ledger, "job")
        self._searched = 0.0
        self._rested = 0.0
        self._due: set[Name] = set()
        self._later: dict[Name, float] = {}
        """Runs that are looked at again though nothing tells us to: they wait at a gate, or to try again."""
        self._failures: dict[Name, int] = {}
        self._jobs: dict[Name, Ref] = {}
        """The run of each job that is not over."""
        self.minds = {"turn"}
        """Jobs, too, while we wait for one."""
        self._turn: Turn
        self._heard: SimpleQueue[Name] = SimpleQueue()
        desk.watch(lambda tenant, turn: self._heard.put((tenant, turn)))

    def step(self, turn: Turn) -> bool:
        """A look at every run that something happened to; one that is in trouble holds up no other."""
        time.sleep(max(0.0, self._rested - time.monotonic()))
        self._turn = turn
        self._search(turn)
        self._follow()
        now = turn.ctx.now()
        due = self._due | {name for name, at in self._later.items() if at <= now}
        for tenant, ref in sorted(due):
            if not turn.alive():
                return False
            self._due.discard((tenant, ref))
            self._later.pop((tenant, ref), None)
            try:
                self._tend(replace(turn.ctx, tenant=tenant), ref)
            except Conflict:
                self._later[tenant, ref] = now  # somebody wrote first: there is nothing wrong, look again
            except (FalajError, *BROKEN) as error:
                times = self._failures[tenant, ref] = self._failures.get((tenant, ref), 0) + 1
                self._later[tenant, ref] = now + min(LONGEST_BACKOFF_S, 2.0 ** min(times, 10))
                log.warning("run in trouble", extra={"turn": str(ref), "reason": str(error)}, exc_info=True)
            else:
                self._failures.pop((tenant, ref), None)
        self._rested = time.monotonic() + GAP_S
        return self._mind() or bool(self._due)

    def _mind(self) -> bool:
        """Be woken by jobs while we wait for any; True when we begin to, and something may have been said already."""
        if not self._jobs:
            self.minds.discard("job")
            return False
        begins = "job" not in self.minds
        self.minds.add("job")
        return begins

    def _search(self, turn: Turn) -> None:
        """Find the runs that are not over: at first, and now and then, for those that others began."""
        now, first = turn.ctx.now(), turn.token != self._token
        if not first and abs(now - self._searched) < SEARCH_S:
            return
        if first:
            self._token, self._watch = turn.token, Watch(self._ledger, "job")
            self._due, self._later, self._jobs = set(), {}, {}
        self._searched = now
        with self._ledger.read(turn.ctx) as tx:
            found = [one for tenant in tenants(self._ledger) for one in every(tx, "turn", tenant, {"live": "1"})]
        known = {*((tenant, ref) for (tenant, _), ref in self._jobs.items()), *self._later}
        self._due |= {(one.key.tenant, one.ref.bare) for one in found} - known

    def _follow(self) -> None:
        """Which runs were touched, and which of our jobs something happened to."""
        while not self._heard.empty():
            self._due.add(self._heard.get())
        if not self._jobs:
            # Nobody is waited for: what happens meanwhile need not be read.
            self._watch = Watch(self._ledger, "job")
            return
        self._due |= {(job[0], self._jobs[job]) for job in self._watch.changed() & self._jobs.keys()}

    def _tend(self, ctx: Context, ref: Ref) -> None:
        """Everything that is due in one run, until nothing is."""
        for _ in range(MOST_ITEMS):
            found = self._read(ctx, ref)
            if found is None or not self._turn.alive():
                return
            if found.standing.reason and not found.standing.removed:
                # Suspended: the run rests where it stands, as its jobs do, until that is lifted.
                self._later[ctx.tenant, ref] = ctx.now() + self.every_s
                return
            if not self._advance(ctx, found):
                return

    def _read(self, ctx: Context, ref: Ref) -> Found | None:
        with self._ledger.read(ctx) as tx:
            turn = tx.get(ref)
            if turn is None or turns.over(turn.body):
                return None
            flow = tx.need(Ref.parse(turn.body["flow"]))
            return Found(turn, flow, turns.plan_in(flow), job_standing(tx, turn))

    def _advance(self, ctx: Context, found: Found) -> bool:
        """One look; True when there may be more to do at once."""
        try:
            return self._write(ctx, found, MOST_STARTS)
        except (Stale, Unavailable):
            raise
        except FalajError:
            # One of several spoilt the transaction: one at a time, so that only that one fails.
            return self._write(ctx, found, 1)

    def _write(self, ctx: Context, found: Found, most: int, bad: str = "") -> bool:
        """One transaction. Where the only thing that was asked for cannot be, that is written down instead."""
        old = found.turn
        asked, here = self._behalf(ctx, old)
        try:
            with self._ledger.write(asked) as tx:
                body = {**old.body, "steps": _copied(old.body), "cancel": old.body["cancel"] or found.standing.reason}
                case = Case(tx, here, old, found.flow, found.plan, body, ctx.now())
                label = taken_in(self._ledger, case)
                more = self._move(ctx, case, most, bad)
                if body != old.body:
                    terms = turns.turn_terms(body, Ref.parse(body["flow"]))
                    _tell(tx, tx.put(old.key, body, rev=old.rev, label=label, terms=terms), old.body)
        except (Stale, Unavailable):
            raise
        except FalajError as error:
            if most > 1 or bad or isinstance(error, QuotaExceeded):  # a cap on waiting jobs: the step is tried later
                raise
            return self._write(ctx, found, 1, str(error))
        self._note(old, body, found.plan, ctx.now())
        return more and body != old.body

    def _move(self, ctx: Context, case: Case, most: int, bad: str) -> bool:
        """Carry out what is decided, on the body; True when there is more than one transaction should hold."""
        body, plan = case.body, case.plan
        steps = {step.name: step for step in plan.steps}
        left, cancel, met = most, bool(body["cancel"]), partial(_met, case)
        if cancel:
            self._end_jobs(ctx, body)
        while True:
            moves = next_moves(plan, turns.stands_in(body), met, cancel=cancel)
            for name, state, why in moves.over:
                body["steps"][name] |= {"state": state, "note": why}
            for name in moves.begin:
                _begin(body, plan, steps[name])
            for name, at in moves.start[:left]:
                self._ask(case, steps[name], at, bad)
                left -= 1
            if moves.end:
                body |= {"state": moves.end, "ended": case.now, "note": body["cancel"] or _why(body)}
                return False
            if not moves.over and not moves.begin and (not moves.start or not left):
                return bool(moves.start)

    def _ask(self, case: Case, step: StepPlan, at: int, bad: str) -> None:
        items = case.body["steps"][step.name]["items"]
        try:
            if bad:
                raise NotFound(bad)
            items[at] = ask(self._ledger, case, step, at, items[at])
        except (Denied, NotFound) as error:
            # What the guard wrote down of it stays.
            items[at] = _failed(items[at], str(error), case.now)

    def _end_jobs(self, ctx: Context, body: Body) -> None:
        """Cancel what runs; what waits for its turn never begins."""
        for one in body["steps"].values():
            for item in one["items"]:
                if item["state"] == WAITING or (item["state"] == RUNNING and not item["job"]):
                    item |= {"state": CANCELLED, "end": ctx.now()}
                elif item["state"] == RUNNING and not item["mark"]:
                    item["mark"] = "cancelled"
                    self._cancel(ctx, Ref.parse(item["job"]), body["cancel"])

    def _cancel(self, ctx: Context, job: Ref, why: str) -> None:
        with self._ledger.write(ctx) as tx:
            record = tx.get(job)
            if record is not None and record.body["state"] not in jobs.OVER:
                self._desk.jobs.cancel(ctx, job, why)

    def _note(self, old: Record, body: Body, plan: FlowPlan, now: float) -> None:
        """Remember which jobs this run waits for, and when to look at it anyway."""
        tenant, ref = old.key.tenant, old.ref.bare
        items = [item for one in body["steps"].values() for item in one["items"]]
        for item in items:
            if item["job"] and item["state"] == RUNNING:
                self._jobs[tenant, Ref.parse(item["job"])] = ref
            elif item["job"]:
                self._jobs.pop((tenant, Ref.parse(item["job"])), None)
        waits = [step.name for step in plan.steps if step.kind == GATE]
        if any(body["steps"][name]["state"] == RUNNING for name in waits):
            self._later[tenant, ref] = now + self.every_s

    def _behalf(self, ctx: Context, turn: Record) -> tuple[Context, Here]:
        """Whoever began the run, with the rights of that day that they still have today."""
        asked = in_name_of(self._ledger, ctx, turn)
        return asked, self._desk.act(asked.actor, asked.purpose)


def _copied(body: Body) -> Body:
    return {name: {**one, "items": [dict(item) for item in one["items"]]} for name, one in body["steps"].items()}


def _met(case: Case, step: StepPlan) -> bool:
    """Whether the condition of a step holds; one that cannot be read is told when the step begins."""
    try:
        return turns.holds(step, case.body, case.plan)
    except FalajError:
        return True


def _begin(body: Body, plan: FlowPlan, step: StepPlan) -> None:
    """All that the step needs is over: its items are known, and wait for room."""
    one = body["steps"][step.name]
    try:
        turns.holds(step, body, plan)
        count = len(turns.values_of(step, body, plan, MOST_ITEMS))
    except FalajError as error:
        one |= {"state": FAILED, "note": str(error)[: turns.MOST_NOTE]}
        return
    one |= {"state": RUNNING, "items": [turns.new_item() for _ in range(count)]}


def _failed(item: Body, why: str, now: float) -> Body:
    return {**item, "state": FAILED, "note": why[: turns.MOST_NOTE], "at": item["at"] or now, "end": now}


def _why(body: Body, *, public: bool = False) -> str:
    """Why a run failed: the first step that did."""
    for name in body["order"]:
        one = body["steps"][name]
        if one["state"] == FAILED:
            notes = [_public(item) if public else item["note"] for item in one["items"] if item["state"] == FAILED]
            return f"{name}: {one['note'] or next(iter(notes), '')}"[: turns.MOST_NOTE]
    return ""


def _public(item: Body) -> str:
    """Why an item failed, for the log: what its own code said may be about the data, and stays in the run."""
    return item["note"] if item["mark"] != SAID else "its code failed; the run has what it said"


def _tell(tx: Writer, kept: Record, old: Body) -> None:
    """One event for each step that changed, and one for the end."""
    body = kept.body
    for name in body["order"]:
        one, before = body["steps"][name], old["steps"][name]
        if one["state"] != before["state"]:
            done = sum(item["cached"] != "" for item in one["items"])
            note = one["note"] or next((_public(item) for item in one["items"] if item["state"] == FAILED), "")
            tx.emit(
                "flows.step", kept.ref, step=name, state=one["state"], items=len(one["items"]), cached=done, note=note
            )
    if turns.over(body):
        flow, note = Ref.parse(body["flow"]), body["cancel"] or _why(body, public=True)
        tx.emit("flows.end", kept.ref, (flow,), state=body["state"], cause=body["cause"], flow=str(flow), note=note)
    elif not tx.emitted:
        tx.emit("flows.go", kept.ref, state=body["state"])
