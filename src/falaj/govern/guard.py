"""The guard: the one place every call passes. Facts, then place(), then Cedar, then the verb, then the event.

Nothing else in the house grants anything. A call that is refused leaves an event too, and an error on the way to a
decision is a refusal.
"""

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import lru_cache
from threading import Lock, local
from typing import Any, NamedTuple

from falaj.core.bind import options
from falaj.core.context import Actor, Context, Decision
from falaj.core.errors import Conflict, Denied, FalajError
from falaj.core.label import Label
from falaj.core.permit import Permit, PermitDesk
from falaj.core.ref import Ref
from falaj.core.stream import Stream
from falaj.core.verb import Verb
from falaj.core.withhold import Withheld
from falaj.govern.accounts import AccountStanding
from falaj.govern.grants import outside_of
from falaj.govern.place import OUTWARD
from falaj.govern.policy import NO_PERMIT, Authorizer, Facts
from falaj.govern.records import Verdict
from falaj.govern.roles import family_of
from falaj.govern.things import Thing, desk_ref, desk_thing, label_of, missing, things_of
from falaj.govern.viewing import Residency, Viewing
from falaj.store.codec import from_json, to_json, to_stable_json
from falaj.store.ledger import Ledger, Writer

TALLY_S = 60.0
MOST_TALLIES = 10_000
JUDGED_S = 0.125
"""So long a judgement on what is called often is good for the same call again, unless something is changed here."""


class _Page(local):
    looks: list[tuple[Context, str, Ref]] | None = None


class _Judged(NamedTuple):
    """That a call may be made, as both judges said: when, and after which change."""

    at: float
    since: int
    pins: Mapping[str, Any]
    things: Sequence[Thing]
    decision: Decision | None


_Admitted = tuple[Mapping[str, Any], Sequence[Thing], Context]


class Guard:
    """Asks the two judges and calls the verb. One instance a house."""

    def __init__(
        self,
        ledger: Ledger,
        authorizer: Authorizer,
        residency: Residency,
        permits: PermitDesk,
        standing: Callable[[Actor], AccountStanding],
        step_up: bool = False,
    ) -> None:
        """`standing` reads whether an actor's tenant and account may act; `step_up` demands a second factor."""
        self._ledger = ledger
        self._authorizer = authorizer
        self._residency = residency
        self._permits = permits
        self._standing = standing
        self._step_up = step_up
        self._tallies: dict[tuple[str, Ref, str, str, str], tuple[Context, float, int]] = {}
        self._judged: dict[tuple[object, ...], _Judged] = {}
        self._changed = 0
        self._counting = Lock()
        self._page = _Page()
        self._viewing = Viewing(
            ledger, authorizer, residency, lambda ctx, thing, placed: self._known(ctx, thing, placed=placed)
        )

    def call(self, desk: str, room: object, verb: Verb, ctx: Context, arguments: Mapping[str, Any]) -> Any:
        """Run one verb for one caller, or raise what forbids it."""
        action = f"{desk}.{verb.name}"
        try:
            admit = self._admit_often if verb.often and not ctx.keyed else self._admit_anew
            arguments, things, ctx = admit(action, verb, ctx, arguments)
        except _Refused as refused:
            self.record_denial(replace(ctx, decision=refused.decision), action, refused.why)
            raise refused.told from None
        except Denied as denied:
            decision = Decision(False, ("label",), reason=denied.message, hint=denied.hint)
            self.record_denial(replace(ctx, decision=decision), action, denied)
            raise
        try:
            return self._run(desk, room, verb, ctx, things, arguments)
        except _Barred as barred:
            # A verb under way was refused a movement and let that stand: as much a fact as a refusal at the door.
            self.record_denial(replace(ctx, decision=barred.decision), action, barred)
            raise
        except Withheld as withheld:
            self.record_denial(ctx, action, withheld)
            raise

    def check(self, desk: str, verb: Verb, ctx: Context, arguments: Mapping[str, Any]) -> None:
        """Raise what forbids a call at this moment, without making it; a refusal is recorded."""
        action = f"{desk}.{verb.name}"
        try:
            self._admit_anew(action, verb, ctx, arguments)
        except _Refused as refused:
            self.record_denial(replace(ctx, decision=refused.decision), action, refused.why)
            raise refused.told from None

    def _run(
        self, desk: str, room: object, verb: Verb, ctx: Context, things: Sequence[Thing], arguments: Mapping[str, Any]
    ) -> Any:
        action, method = f"{desk}.{verb.name}", getattr(room, verb.name)
        subject = next((t.ref for t in things if t.record is not None), None) or desk_ref(desk)
        if verb.often and not ctx.keyed:
            self._tallied(action, ctx, subject)
            return method(ctx, **arguments)

        def run() -> Any:
            return self._viewing.show(action, verb, ctx, things, method(ctx, **arguments))

        if verb.reading and not (ctx.keyed and verb.once):
            # Also where the caller named the request: a repeat is judged and answered anew, and changes nothing.
            return self._read(action, ctx, subject, run)
        if verb.outside:
            return self._outside(action, ctx, subject, run)
        return self._inside(action, verb, ctx, subject, run, arguments)

    def close(self) -> None:
        """Record what was counted and not told yet."""
        with self._counting:
            left, self._tallies = self._tallies, {}
        for (action, subject), (ctx, _, count) in ((key[:2], told) for key, told in left.items()):
            if count:
                with self._ledger.write(ctx) as tx:
                    tx.emit(action, subject, times=count)

    def _tallied(self, action: str, ctx: Context, subject: Ref) -> None:
        """Record the first of many calls before it is answered; those of the next minute are told together."""
        key, now = (action, subject, ctx.tenant, ctx.actor.id, ctx.purpose), ctx.now()
        with self._counting:
            told = self._tallies.get(key)
            if told is not None and 0 <= now - told[1] < TALLY_S:
                self._tallies[key] = (ctx, told[1], told[2] + 1)
                return
        with self._ledger.write(ctx) as tx:
            tx.emit(action, subject, times=1 + (told[2] if told is not None else 0))
        with self._counting:
            if len(self._tallies) >= MOST_TALLIES:
                self._tallies = {one: held for one, held in self._tallies.items() if held[2]}
            self._tallies[key] = (ctx, now, 0)

    def record_denial(self, ctx: Context, action: str, error: Denied) -> None:
        """A refusal is a fact too."""
        with self._ledger.write(ctx) as tx:
            tx.emit("guard.deny", _GUARD, action=action, about=error.ref, reason=error.message[:500])

    def _admit_often(self, action: str, verb: Verb, ctx: Context, arguments: Mapping[str, Any]) -> _Admitted:
        """What was judged a moment ago need not be judged again; a refusal is not kept, and is recorded each time."""
        named = tuple([arguments.get(name) for name in verb.reads])
        if verb.writes or verb.into or verb.purpose or self._ledger.transacting:
            return self._admit_anew(action, verb, ctx, arguments)
        key, now, since = (action, ctx.actor, ctx.tenant, ctx.zone, ctx.purpose, named), ctx.now(), self._ledger.since
        held = self._judged.get(key)
        if held is not None and held.since >= self._changed and 0 <= now - held.at < JUDGED_S:
            return {**arguments, **held.pins}, held.things, self._ruled(action, ctx, held.things, held.decision)
        arguments, things, ruled = self._admit_anew(action, verb, ctx, arguments)
        if len(self._judged) >= MOST_TALLIES:
            self._judged.clear()
        pins = {name: arguments[name] for name in verb.reads if name in arguments}
        self._judged[key] = _Judged(now, since, pins, things, ruled.decision)
        return arguments, things, ruled

    def _change(self, tx: Writer) -> None:
        """Judge anew what is called often when this transaction has ended: it may have changed what decides."""

        def ended(durable: bool) -> None:
            del durable
            with self._counting:
                self._changed = self._ledger.note()

        tx.after(ended)

    def _admit_anew(self, action: str, verb: Verb, ctx: Context, arguments: Mapping[str, Any]) -> _Admitted:
        arguments, things = things_of(self._ledger, verb, ctx, arguments)
        return arguments, things, self._admit(action, verb, ctx, arguments, things)

    def _admit(
        self, action: str, verb: Verb, ctx: Context, arguments: Mapping[str, Any], things: Sequence[Thing]
    ) -> Context:
        """Both judges, for everything the call names; gives the context the verb runs under."""
        into = (arguments.get(verb.into) if verb.into else "") or ctx.zone
        purpose = (arguments.get(verb.purpose) if verb.purpose else "") or ctx.purpose
        label = label_of(arguments.get("label"), verb, things)
        carried = self._viewing.workload_label(verb, ctx, things)
        if carried is not None and label is not None:
            label = label.join(carried)
        if label is not None or purpose != ctx.purpose:
            ctx = ctx.meaning(purpose, label)
        decision: Decision | None = None
        for thing in things or (desk_thing(action.partition(".")[0], ctx.zone),):
            is_input = verb.group == "write" and bool(verb.writes) and not thing.written
            decision = self._ask(action, ctx, thing, self._movement(verb, ctx, thing, into), is_input=is_input)
            if is_input:
                self._viewing.check_use(action, ctx, thing)
        if carried is not None:
            self._viewing.check_workload(action, verb, ctx, things, carried)
        return self._ruled(action, ctx, things, decision)

    def _ruled(self, action: str, ctx: Context, things: Sequence[Thing], decision: Decision | None) -> Context:
        return ctx.ruled(
            decision,
            lambda op, name, zone, label: self._permit(action, _carrying(ctx, label), things, (op, name, zone)),
            lambda kind: self._scope(action, ctx, kind),
            self._viewing.judge(action, ctx, things),
        )

    def _movement(self, verb: Verb, ctx: Context, thing: Thing, into: str) -> Verdict | None:
        """place() about the movement this verb means for this thing: bytes copied, written, or shown."""
        if verb.group == "move" and verb.into:
            move = thing.move(ctx, "copy", into)
        elif thing.written and verb.group not in ("erase", "control"):
            move = thing.move(ctx, "write", into)
        elif verb.group in ("read", "move"):
            move = thing.move(ctx, "view", "", ctx.actor.jurisdiction)
        else:
            return None
        return self._residency.verdict(move, ctx.now())

    def _ask(
        self, action: str, ctx: Context, thing: Thing, verdict: Verdict | None, *, is_input: bool = False
    ) -> Decision:
        """Cedar's answer, with what place() said as one of its facts. Who may not see a thing hears there is none.

        Who may read a piece of work, and is forbidden nothing about it, may make something of it where they may write.
        """
        facts = self._known(ctx, thing, placed=verdict is None or verdict.allowed)
        cell = thing.cell(ctx.label)
        decision = self._authorizer.decide(ctx.actor, action, cell, facts)
        if is_input and facts.placed and decision.rules == NO_PERMIT and family_of(cell.kind) == "work":
            reading = self._viewing.decide_reading(action, ctx, thing)
            decision = reading if reading.allowed else decision
        if decision.allowed:
            return replace(decision, obligations=verdict.obligations) if verdict and verdict.obligations else decision
        anywhere = replace(facts, placed=True)
        here = self._authorizer.decide(ctx.actor, action, cell, anywhere)
        if verdict is not None and here.allowed:
            why = Denied("; ".join(verdict.reasons), verdict.hint, thing.asked)
        else:
            # Who could not do it anywhere hears that, and not what the law says of the place.
            why = Denied(here.reason or "no rule permits it", here.hint, thing.asked)
        seeing = self._authorizer.seeing(action)
        hidden = thing.record is not None and not self._authorizer.decide(ctx.actor, seeing, cell, anywhere).allowed
        raise _Refused(decision, why, missing(thing.asked) if hidden else why)

    def _known(self, ctx: Context, thing: Thing | None, *, placed: bool) -> Facts:
        standing = self._standing(ctx.actor)
        author = thing is not None and thing.record is not None and thing.record.author == ctx.actor.id
        return _facts(ctx.tenant, placed, *standing, author, self._step_up, ctx.purpose)

    def _permit(self, action: str, ctx: Context, things: Sequence[Thing], wanted: tuple[str, str, str]) -> Permit:
        """A permit about a thing the call declared, and no other; place() is asked about exactly this movement."""
        op, name, to = wanted
        thing = next((t for t in things if str(t.asked.bare) == name), None)
        if thing is None:
            raise Denied(f"this call never named {name}", "declare it in the verb's reads or writes", name)
        move = thing.move(ctx, op, "", outside_of(to)) if op in OUTWARD else thing.move(ctx, op, to)
        if op == "delete" and thing.record is not None:
            move = replace(move, facts=self._residency.read_duty_facts(ctx, thing.record))
        verdict = self._residency.verdict(move, ctx.now())
        if not verdict.allowed:
            facts = self._known(ctx, thing, placed=False)
            decision = self._authorizer.decide(ctx.actor, action, thing.cell(ctx.label), facts)
            raise _Barred(decision, Denied("; ".join(verdict.reasons), verdict.hint, name))
        policy = self._authorizer.rules(ctx.tenant).hash
        return self._permits.issue(
            op, name, ctx.tenant, thing.zone, to, label=move.label.digest, policy=policy, now=ctx.now()
        )

    def _scope(self, action: str, ctx: Context, kind: str) -> frozenset[str]:
        with self._ledger.read(ctx) as tx:
            cells = tx.cells(kind)
        return self._authorizer.cells(ctx.actor, action, cells, self._known(ctx, None, placed=True))

    def _inside(
        self, action: str, verb: Verb, ctx: Context, subject: Ref, run: Callable[[], Any], arguments: Mapping[str, Any]
    ) -> Any:
        """One verb, one transaction; a repeat of a named request gives the first outcome."""
        fingerprint = ""
        if ctx.keyed and Stream in options(verb.result):
            ctx = replace(ctx, keyed=False)  # bytes are not kept for a repeat, and reading them twice harms nobody
        if ctx.keyed:
            digest = hashlib.sha256(action.encode() + b"\0" + to_stable_json(dict(arguments))).hexdigest()
            fingerprint = f"{action} {digest}"
            known = self._ledger.outcome(ctx, fingerprint)
            if known is not None and verb.once:
                raise Conflict("this was done, and what it showed is not shown again", "ask for a new one")
            if known is not None:
                return from_json(verb.result, known)

        def work(tx: Writer) -> Any:
            self._change(tx)
            result = run()
            if not tx.emitted:
                tx.emit(action, subject)
            if ctx.keyed:
                tx.remember("null" if verb.once else to_json(result).decode(), fingerprint)
            return result

        # Nothing of it left the ledger, so it may be run again when another writer got in between.
        return self._ledger.retry(ctx, work)

    def _read(self, action: str, ctx: Context, subject: Ref, run: Callable[[], Any]) -> Any:
        """A question: looked up first, recorded after, so that a long look holds no writer; unrecorded, no answer."""
        result = run()
        if self._page.looks is not None:
            self._page.looks.append((ctx, action, subject))
            return result
        with self._ledger.write(ctx) as tx:
            tx.emit(action, subject)
        return result

    @contextmanager
    def one_look(self) -> Iterator[None]:
        """Questions of this thread inside it are recorded together, on exit, by one commit.

        What they gave may not leave before that: it is for a page, which is one answer made of many.
        """
        if self._page.looks is not None:
            yield
            return
        looks = self._page.looks = list[tuple[Context, str, Ref]]()
        try:
            yield
        finally:
            self._page.looks = None
            if looks:
                self._record(looks)

    def _record(self, looks: Sequence[tuple[Context, str, Ref]]) -> None:
        with self._ledger.group():
            for ctx, action, subject in looks:
                with self._ledger.write(ctx) as tx:
                    tx.emit(action, subject)

    def _outside(self, action: str, ctx: Context, subject: Ref, run: Callable[[], Any]) -> Any:
        """An act outside the ledger: its intent is durable before, its outcome after."""
        with self._ledger.write(ctx) as tx:
            tx.emit(action, subject, phase="intent")
        try:
            result = run()
        except FalajError as error:
            with self._ledger.write(ctx) as tx:
                self._change(tx)
                tx.emit(action, subject, phase="outcome", failed=error.code)
            raise
        with self._ledger.write(ctx) as tx:
            self._change(tx)
            tx.emit(action, subject, phase="outcome", result=str(result) if isinstance(result, Ref) else "done")
        return result


def _carrying(ctx: Context, label: Label | None) -> Context:
    """The same call, writing what must carry more by now than when it was let in; never less."""
    if label is None or label is ctx.label:
        return ctx
    return ctx.meaning(ctx.purpose, label if ctx.label is None else ctx.label.join(label))


_GUARD = desk_ref("guard")
_facts = lru_cache(maxsize=4096)(Facts)


class _Barred(Denied):
    """A movement that place() refuses to a verb under way. Verbs that only ask whether it may be take it for Denied."""

    def __init__(self, decision: Decision, why: Denied) -> None:
        super().__init__(why.message, why.hint, why.ref)
        self.decision = decision


class _Refused(Exception):
    """A decision against the call: why, for the log, and what the caller is told."""

    def __init__(self, decision: Decision, why: Denied, told: FalajError) -> None:
        super().__init__(why.message)
        self.decision = decision
        self.why = why
        self.told = told
