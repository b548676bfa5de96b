"""The guard: the one place every call passes. Facts, then place(), then Cedar, then the verb, then the event.

Nothing else in the house grants anything. A call that is refused leaves an event too, and an error on the way to a
decision is a refusal.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from falaj.core.cell import Cell
from falaj.core.context import HOUSE, Actor, Context, Decision
from falaj.core.errors import Denied, FalajError, NotFound
from falaj.core.label import Label, join_all
from falaj.core.permit import Permit, PermitDesk
from falaj.core.ref import Ref
from falaj.core.stream import Stream
from falaj.core.verb import Verb
from falaj.govern.place import place
from falaj.govern.policy import Authorizer
from falaj.govern.records import Move, Verdict
from falaj.store.codec import from_json, to_json
from falaj.store.ledger import Ledger, Reader
from falaj.store.records import Record


class Residency(Protocol):
    """What the guard needs of zones: the places, the rules and the grants that stand now."""

    def verdict(self, tenant: str, move: Move, now: float) -> Verdict: ...


@dataclass(frozen=True, slots=True)
class Thing:
    """One reference of a call with the facts that decide about it."""

    asked: Ref
    written: bool
    record: Record | None
    label: Label
    zone: str
    restricted: bool = False

    @property
    def ref(self) -> Ref:
        """Pinned where the thing exists, else as asked."""
        return self.record.ref if self.record is not None else self.asked

    def cell(self) -> Cell:
        """What policy may look at."""
        return Cell.of(self.asked.kind, self.asked.project, self.zone, self.label, self.restricted)


class Guard:
    """Asks the two judges and calls the verb. One instance a house."""

    def __init__(self, ledger: Ledger, authorizer: Authorizer, residency: Residency, permits: PermitDesk, active: Callable[[Actor], bool]) -> None:
        self._ledger = ledger
        self._authorizer = authorizer
        self._residency = residency
        self._permits = permits
        self._active = active

    def call(self, desk: str, room: object, verb: Verb, ctx: Context, arguments: Mapping[str, Any]) -> Any:
        """Run one verb for one caller, or raise what forbids it."""
        action = f"{desk}.{verb.name}"
        try:
            arguments, things = self._facts(verb, ctx, arguments)
            ctx = self._admit(action, verb, ctx, arguments, things)
        except Denied as error:
            self._record_denial(action, ctx, error)
            if isinstance(error, _Hidden):
                raise NotFound(error.message, error.hint, error.ref) from None
            raise
        method = getattr(room, verb.name)
        subject = _subject(desk, things)
        if verb.outside:
            return self._outside(action, verb, ctx, subject, lambda c: method(c, **arguments))
        return self._inside(action, verb, ctx, subject, arguments, lambda c: method(c, **arguments))

    def _facts(self, verb: Verb, ctx: Context, arguments: Mapping[str, Any]) -> tuple[dict[str, Any], list[Thing]]:
        """Find what the call names. What is read is pinned here, at the edge, so that the log never floats."""
        found: list[Thing] = []
        changed = dict(arguments)
        names = [(name, name in verb.writes) for name in dict.fromkeys((*verb.reads, *verb.writes))]
        if not names:
            return changed, found
        with self._ledger.read(ctx) as tx:
            for name, written in names:
                things = [_thing(tx, ctx, ref, written) for ref in _refs(arguments.get(name))]
                found += things
                if not written:
                    changed[name] = _pinned(arguments.get(name), {t.asked: t.ref for t in things if t.asked.version or t.ref.version[:1] == "v"})
        return changed, found

    def _admit(self, action: str, verb: Verb, ctx: Context, arguments: Mapping[str, Any], things: Sequence[Thing]) -> Context:
        """Both judges, for everything the call names; gives the context the verb runs under."""
        into = str(arguments.get(verb.into) or ctx.zone) if verb.into else ctx.zone
        purpose = str(arguments.get(verb.purpose) or ctx.purpose) if verb.purpose else ctx.purpose
        ctx = replace(ctx, purpose=purpose, label=_label(arguments.get("label"), verb, things))
        decision = Decision(True)
        moved = {t.asked: self._move(verb, ctx, thing=t, into=into) for t in things}
        for thing in things or (_desk_thing(action, ctx),):
            decision = self._ask(action, verb, ctx, thing, moved.get(thing.asked))
        asker = self._window(ctx, things, decision)
        return replace(ctx, decision=decision, asker=asker, cells=lambda kind: self._scope(action, ctx, kind))

    def _ask(self, action: str, verb: Verb, ctx: Context, thing: Thing, verdict: Verdict | None) -> Decision:
        placed = verdict is None or verdict.allowed
        facts = {"placed": placed, "active": self._active(ctx.actor)}
        decision = self._authorizer.decide(ctx.actor, action, thing.cell(), facts)
        if decision.allowed:
            return decision if verdict is None else replace(decision, obligations=verdict.obligations)
        if placed or not self._authorizer.decide(ctx.actor, action, thing.cell(), {**facts, "placed": True}).allowed:
            raise _refusal(verb, thing, decision)
        assert verdict is not None
        raise Denied("; ".join(verdict.reasons), verdict.hint, thing.asked)

    def _move(self, verb: Verb, ctx: Context, *, thing: Thing, into: str) -> Verdict | None:
        """The movement that this verb means for this thing: bytes written, copied, or shown to the caller."""
        if verb.group == "move" and verb.into:
            op, dst, outside = "copy", into, ""
        elif thing.written:
            op, dst, outside = "write", into, ""
        elif verb.group == "read":
            op, dst, outside = "view", "", ctx.actor.jurisdiction
        else:
            return None
        label = ctx.label if thing.written and ctx.label is not None else thing.label
        return self._verdict(ctx, thing, Move(op=op, label=label, thing=str(thing.asked.bare), tenant=ctx.tenant, src=thing.zone, dst=dst, purpose=ctx.purpose, jurisdiction=outside))

    def _verdict(self, ctx: Context, thing: Thing, move: Move) -> Verdict:
        del thing
        return self._residency.verdict(ctx.tenant, move, ctx.now())

    def _window(self, ctx: Context, things: Sequence[Thing], decision: Decision) -> Callable[[str, str, str], Permit]:
        """The verb's way to ask for permits, about the things it declared and nothing else."""
        known = {str(t.asked.bare): t for t in things}

        def ask(op: str, name: str, zone: str) -> Permit:
            thing = known.get(name)
            if thing is None:
                raise Denied(f"this call never named {name}", "declare it in the verb's reads or writes", name)
            label = ctx.label if thing.written and ctx.label is not None else thing.label
            move = Move(op=op, label=label, thing=name, tenant=ctx.tenant, src=thing.zone, dst=zone, purpose=ctx.purpose, jurisdiction="")
            verdict = self._verdict(ctx, thing, move)
            if not verdict.allowed:
                raise Denied("; ".join(verdict.reasons), verdict.hint, name)
            return self._permits.issue(op, name, ctx.tenant, thing.zone, zone, label=label.digest, policy=decision.policy, now=ctx.now())

        return ask

    def _scope(self, action: str, ctx: Context, kind: str) -> frozenset[str]:
        with self._ledger.read(ctx) as tx:
            cells = tx.cells(kind)
        return self._authorizer.cells(ctx.actor, action, cells, {"placed": True, "active": self._active(ctx.actor)})

    def _inside(self, action: str, verb: Verb, ctx: Context, subject: Ref, arguments: Mapping[str, Any], run: Callable[[Context], Any]) -> Any:
        """One verb, one transaction; a repeat of a named request gives the first outcome."""
        fingerprint = ""
        if ctx.keyed:
            fingerprint = hashlib.sha256(action.encode() + b"\0" + to_json(dict(arguments))).hexdigest()
            known = self._ledger.outcome(ctx, fingerprint)
            if known is not None:
                return from_json(verb.result, known)
        with self._ledger.unit(ctx) as tx:
            result = run(ctx)
            if not tx.emitted:
                tx.emit(action, subject)
            if ctx.keyed:
                tx.remember(to_json(result).decode(), fingerprint)
        return result

    def _outside(self, action: str, verb: Verb, ctx: Context, subject: Ref, run: Callable[[Context], Any]) -> Any:
        """An act outside the ledger: its intent is durable before, its outcome after."""
        del verb
        with self._ledger.write(ctx) as tx:
            tx.emit(action, subject, phase="intent")
        try:
            result = run(ctx)
        except FalajError as error:
            with self._ledger.write(ctx) as tx:
                tx.emit(action, subject, phase="outcome", failed=error.code)
            raise
        with self._ledger.write(ctx) as tx:
            tx.emit(action, subject, phase="outcome", result="stream" if isinstance(result, Stream) else str(result)[:200] if isinstance(result, Ref) else "done")
        return result

    def _record_denial(self, action: str, ctx: Context, error: Denied) -> None:
        with self._ledger.write(ctx) as tx:
            tx.emit("guard.deny", _DESK.at("r1"), action=action, about=error.ref, reason=error.message[:500])


_DESK = Ref("desk", HOUSE, "guard")


def _subject(desk: str, things: Sequence[Thing]) -> Ref:
    """What the guard's own event is about: the first existing thing, else the desk that was asked."""
    for thing in things:
        if thing.record is not None:
            return thing.ref
    return Ref("desk", HOUSE, desk, "r1")


def _desk_thing(action: str, ctx: Context) -> Thing:
    return Thing(Ref("desk", HOUSE, action.partition(".")[0]), False, None, Label(), ctx.zone)


def _thing(tx: Reader, ctx: Context, ref: Ref, written: bool) -> Thing:
    record = _resolve(tx, ref)
    if record is None:
        if not written:
            raise NotFound(f"there is no {ref}", "list what there is, or check the spelling", ref)
        return Thing(ref, written, None, Label(), ctx.zone)
    return Thing(ref, written, record, record.label, record.zone or ctx.zone, record.restricted)


def _resolve(tx: Reader, ref: Ref) -> Record | None:
    """The record a reference means now: `@v3` itself, `@r3` the record at that revision, an alias or nothing the newest."""
    if ref.version[:1] == "v" and ref.pinned:
        return tx.get(ref)
    head = tx.get(ref.bare)
    if head is None or (ref.pinned and head.rev != int(ref.version[1:])):
        return None
    newest = head.body.get("newest")
    if newest is None:
        return head if ref.pinned or not ref.version else None
    version = newest if ref.version in ("", "latest") else head.body.get("aliases", {}).get(ref.version)
    return tx.get(ref.at(version)) if version else None


def _refs(value: Any) -> list[Ref]:
    if value is None:
        return []
    if isinstance(value, Ref):
        return [value]
    return [ref for ref in (value.values() if isinstance(value, Mapping) else value) if isinstance(ref, Ref)]


def _pinned(value: Any, pins: Mapping[Ref, Ref]) -> Any:
    if isinstance(value, Ref):
        return pins.get(value, value)
    if isinstance(value, Mapping):
        return {key: pins.get(ref, ref) for key, ref in value.items()}
    return value if value is None else tuple(pins.get(ref, ref) for ref in value)


def _label(declared: Any, verb: Verb, things: Sequence[Thing]) -> Label | None:
    """What a written thing must carry: all it is made from, all it was before, and what its writer declared."""
    if not verb.writes:
        return None
    label = join_all(thing.label for thing in things)
    return label.join(declared) if isinstance(declared, Label) else label


def _refusal(verb: Verb, thing: Thing, decision: Decision) -> FalajError:
    """What the caller hears. Who may not even see a thing hears that there is none."""
    if verb.group in ("see", "read") and thing.record is not None:
        return _Hidden(f"there is no {thing.asked}", "list what there is, or check the spelling", thing.asked)
    return Denied(decision.reason or "no rule permits it", decision.hint, thing.asked)


class _Hidden(Denied):
    """A refusal that is recorded as one and heard as NotFound."""


