"""Stages: a version's way from experiment over staging into production and out of it, with people's consent.

Whatever happens between a wish and the consent to it, the evidence is looked at again when the version moves; where it
is not what people consented to, they are asked again.
"""

import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Annotated

from falaj.catalog.demands import Demands
from falaj.catalog.gates import GATED, judge, voices
from falaj.catalog.life_records import Binding, Promotion
from falaj.catalog.limits import MESSAGE, check_text
from falaj.catalog.naming import in_haste
from falaj.catalog.records import STAGES
from falaj.catalog.shelf import Act, check_kind, gone, missing, open_label
from falaj.catalog.wishes import (
    ACTION,
    DONE,
    EMERGENCY,
    KIND,
    LAPSED,
    OVER,
    REFUSED,
    WAITING,
    Wish,
    approval_of,
    as_wish,
    exact,
    heard,
    kept_wish,
    stirred,
    taken_up,
)
from falaj.core.context import Context
from falaj.core.errors import Conflict, Denied, Invalid, NotFound
from falaj.core.ref import Ref
from falaj.core.verb import verb
from falaj.govern.approvals import approval_ref
from falaj.govern.records import Move
from falaj.store.codec import to_plain
from falaj.store.ledger import Reader, Writer
from falaj.store.records import Record

ALIASED = ("staging", "production")
"""The stages that one version holds at a time, by an alias of the same name."""
LEFT = {"production": "retired", "staging": "experiment"}
"""Where the version goes that held a stage before."""
_VERSION = r"v[1-9][0-9]{0,17}"


class Stages(Demands):
    """Promote, roll back, and what a loop does once people have spoken."""

    @verb(reads=("name",), group="write")
    def promote(
        self,
        ctx: Context,
        name: Annotated[Ref, "which version"],
        stage: Annotated[str, "where it shall go: staging, production or retired"],
        reason: Annotated[str, "why, for those who decide and for the history"] = "",
        emergency: Annotated[bool, "one approver suffices for 24 hours; unratified, it is undone"] = False,
        before: Annotated[str, "what becomes of the version that is there now: retired, staging or experiment"] = "",
    ) -> Promotion:
        """Bring a version into a stage: checks what the project demands, asks for approvals, and moves it.

        Refused with the rule that failed; or waiting, with the command an approver runs; or done. A waiting one is
        done by itself as soon as enough people approved, if the evidence is still what they approved. `falaj catalog
        rules` shows what a project demands. The author and whoever asks never approve.

        Example:
            falaj catalog promote model:fraud/scorer@v7 production --reason "passed the March tests"
        """
        check_text("the reason", reason, MESSAGE)
        if stage not in GATED:
            hint = "falaj catalog delete destroys a version" if stage == "destroyed" else f"one of: {', '.join(GATED)}"
            raise Invalid(f"nothing is promoted to {stage[:40]!r}", hint, name)
        left = before or LEFT.get(stage, "")
        if left not in ("", "retired", "staging", "experiment") or left == stage:
            raise Invalid(f"the one before cannot go to {left[:40]!r}", "retired, staging or experiment")
        with self._ledger.write(ctx) as tx:
            record = self._live(tx, name)
            who = (ctx.actor.id, ctx.actor.person)
            wish = Wish(record.ref, stage, WAITING, *who, left, reason, emergency, ctx.purpose)
            return self._advance(tx, ctx, record, taken_up(tx, ctx, wish))

    @verb(reads=("name",), heads=("name",), group="write")
    def rollback(
        self,
        ctx: Context,
        name: Annotated[Ref, "the name; with an alias, that one goes back"],
        alias: Annotated[str, "the stage or alias that goes back"] = "production",
        to: Annotated[str, "the version it goes back to; the one before when left out"] = "",
        reason: Annotated[str, "why, for the history"] = "",
    ) -> Binding:
        """Go back to the version that was there before, at once. Both moves stay in the history.

        It needs no new approval: the version was approved for this stage, and still is what it was. A version that was
        deleted, restricted, put under a hold or never fully approved is refused.

        Example:
            falaj catalog rollback model:fraud/scorer --reason "false alarms since noon"
        """
        check_kind(name)
        check_text("the reason", reason, MESSAGE)
        alias = alias if name.pinned else name.version or alias
        with self._ledger.write(ctx) as tx:
            now = self._aliases(tx, name).get(alias, "")
            target = name.at(self._way_back(tx, name, alias, now, to.rpartition("@")[2]))
            record = tx.get(target)
            if record is None:
                raise missing(target)
            self._check_fit(tx, record, alias)
            hasty = kept_wish(tx, name.at(now), alias) if now else None
            if hasty is not None and hasty.state == EMERGENCY:
                self._close(tx, hasty, LAPSED, "it was rolled back")
            act = Act("rollback", reason, *approval_of(tx, kept_wish(tx, target, alias)))
            self._enter(tx, record, alias, LEFT.get(alias, ""), act)
            tx.emit("catalog.rollback", target, alias=alias, before=now, reason=reason)
        return Binding(alias, target, ctx.now(), 0.0, ctx.actor.id, "rollback", reason, act.approval, act.people)

    def due(self, ctx: Context) -> Iterator[Ref]:
        """The wishes of the context's tenant that have something to be done about them now; for the loop."""
        ready = list[Ref]()
        with self._ledger.read(ctx) as tx:
            for state in (WAITING, EMERGENCY):
                after, more = "", True
                while more:
                    page = tx.find(KIND, terms={"state": state}, after=after, limit=100)
                    ready += [record.ref for record in page.records if stirred(tx, ctx, as_wish(record))]
                    after, more = page.next, bool(page.next)
        return iter(ready)

    def settle(self, ctx: Context, promotion: Ref) -> Promotion | None:
        """Do what people's voices ask for by now: move the version, undo an emergency, or let the wish go."""
        with self._ledger.write(ctx) as tx:
            kept = tx.get(promotion.bare)
            wish = as_wish(kept) if kept is not None and kept.key.kind == KIND else None
            if wish is None or not stirred(tx, ctx, wish):
                return None
            stands, record = heard(tx, ctx, wish), tx.need(wish.ref)
            if wish.state == EMERGENCY:
                return self._ratify(tx, wish) if stands.granted else self._lapse(tx, wish, stands.why)
            if record.body["state"] != "live":
                return self._close(tx, wish, OVER, f"{wish.ref} was deleted")
            if stands.state in ("refused", "expired", "lapsed"):
                return self._close(tx, wish, REFUSED if stands.state == "refused" else OVER, stands.why)
            return self._advance(tx, ctx, record, wish)

    def movement(self, ctx: Context, promotion: Ref, op: str, zone: str) -> Move:
        """The question to place() that whoever wished this promotion would ask; for the loop, which has no guard."""
        with self._ledger.read(ctx) as tx:
            wish = as_wish(tx.need(promotion.bare))
            record = tx.need(wish.ref)
        return Move(
            op, record.label, str(wish.ref), ctx.tenant, record.zone, zone, wish.purpose,
            restricted=record.restricted, size=record.body["size"], since=record.body["made_at"],
        )  # fmt: skip

    def watch(self, callback: Callable[[], None]) -> None:
        """Call back when what people said has changed, in this process."""
        self._approvals.watch(callback)

    def _advance(self, tx: Writer, ctx: Context, record: Record, wish: Wish) -> Promotion:
        """Look at the evidence, ask people where the gate asks for them, and move the version when all is there."""
        holder = self._aliases(tx, record.ref).get(wish.stage, "")
        if record.body["stage"] == wish.stage and (holder == record.key.version or wish.stage not in ALIASED):
            return self._there(tx, wish)
        rules = self._rules(tx, record.key.project, wish.stage)
        rows = judge(rules, self._case(tx, ctx, record, rules, wish.stage))
        before = record.ref.at(holder) if holder else None
        told = Promotion(record.ref, wish.stage, WAITING, evidence=rows, before=before)
        failed = [f"{row.rule}: {row.found}" for row in rows if not row.passed]
        failed += ["it is restricted: it may be kept and nothing else"] if record.restricted else []
        needs = voices(rules)
        hasty = self._hasty(ctx, record.ref, wish) if needs[0] else ()
        if {wish.actor, wish.person} & set(hasty):
            failed.append("nobody ratified your last emergency there; without --emergency people decide first")
        wish = replace(wish, digest="", evidence=rows, needs=needs)
        if failed or not needs[0]:
            return self._refuse(tx, wish, told, failed) if failed else self._move(tx, ctx, record, wish, told)
        barred = (wish.actor, *self._approvals.persons(ctx, record.author), *hasty)
        wish = replace(wish, digest=exact(wish, record, rules, holder), barred=barred)
        return self._consult(tx, ctx, record, wish, told)

    def _hasty(self, ctx: Context, name: Ref, wish: Wish) -> tuple[str, ...]:
        """Who has no part in this emergency: those whose last one for the stage nobody ratified."""
        accounts = sorted(in_haste(self._ledger, ctx.tenant, name, wish.stage)) if wish.emergency else ()
        return tuple(person for account in accounts for person in self._approvals.persons(ctx, account))

    def _there(self, tx: Writer, wish: Wish) -> Promotion:
        """It is where it shall be; a wish that still waits for that is over."""
        kept = kept_wish(tx, wish.ref, wish.stage)
        if kept is not None and kept.state == WAITING:
            self._close(tx, kept, OVER, f"it is in {wish.stage} already")
        return Promotion(wish.ref, wish.stage, DONE, f"it is in {wish.stage} already", before=wish.ref)

    def _consult(self, tx: Writer, ctx: Context, record: Record, wish: Wish, told: Promotion) -> Promotion:
        """Ask the people, or hear what they have said to exactly this."""
        told = replace(told, approval=approval_ref(ACTION, wish.digest), digest=wish.digest)
        stands = heard(tx, ctx, wish)
        if stands.state == "refused":
            return self._refuse(tx, wish, told, [stands.why])
        self._approvals.propose(ctx, tx, wish.question(ctx.now()))
        people, officers = wish.needs
        try:
            self._approvals.demand(
                ctx, ACTION, wish.digest, needs=people, dpo=officers, authors=wish.barred, emergency=wish.emergency
            )
        except Denied as error:
            return self._wait(tx, wish, told, error.message)
        return self._move(tx, ctx, record, wish, told)

    def _wait(self, tx: Writer, wish: Wish, told: Promotion, why: str) -> Promotion:
        if self._keep(tx, wish):
            self._tell(tx, wish, WAITING, wish.reason)
        return replace(told, why=why, next=f"falaj approvals give {told.approval} --digest {wish.digest}")

    def _refuse(self, tx: Writer, wish: Wish, told: Promotion, reasons: list[str]) -> Promotion:
        closed = self._close(tx, wish, REFUSED, "; ".join(reasons))
        return replace(closed, evidence=told.evidence, approval=told.approval, before=told.before)

    def _move(self, tx: Writer, ctx: Context, record: Record, wish: Wish, told: Promotion) -> Promotion:
        """The evidence is good and the people have spoken."""
        approval, people = approval_of(tx, wish)
        stands = heard(tx, ctx, wish) if wish.digest else None
        if stands is None or stands.granted:
            wish, told = replace(wish, state=DONE, cleared=True), replace(told, why=f"it is in {wish.stage}")
        else:
            wish = replace(wish, state=EMERGENCY, until=stands.until)
            again = f"falaj approvals give {told.approval} --digest {wish.digest}"
            told = replace(told, why=stands.why, next=again, until=stands.until)
        self._keep(tx, wish)
        how = "emergency" if wish.state == EMERGENCY else "promote"
        self._enter(tx, record, wish.stage, wish.left, Act(how, wish.reason, approval, people, wish.actor))
        self._tell(tx, wish, DONE, wish.reason, approval, people)
        return replace(told, state=DONE)

    def _enter(self, tx: Writer, record: Record, stage: str, left: str, act: Act) -> None:
        """Bring a version into a stage (or let a plain alias mean it), and the one before out of it."""
        name, version = record.ref.bare, record.key.version
        for alias in ALIASED:
            if alias != stage and stage in STAGES and self._aliases(tx, name).get(alias) == version:
                self._point(tx, name, alias, "", act)
        if stage not in STAGES or stage in ALIASED:
            old = self._point(tx, name, stage, version, act)
            if old and stage in ALIASED:
                self._leave(tx, name.at(old), stage, left, act)
        if stage in STAGES:
            self._set_stage(tx, record.ref, stage)

    def _leave(self, tx: Writer, old: Ref, stage: str, left: str, act: Act) -> None:
        record = tx.get(old)
        if record is None or record.body["state"] != "live" or record.body["stage"] != stage:
            return
        self._set_stage(tx, old, left)
        if left in ALIASED:
            pushed = self._point(tx, old, left, old.version, act)
            if pushed and pushed != old.version:
                self._leave(tx, old.at(pushed), left, LEFT[left], act)

    def _set_stage(self, tx: Writer, version: Ref, stage: str) -> None:
        record = tx.need(version)
        if record.body["stage"] != stage:
            self._rewrite(tx, record, stage=stage)

    def _way_back(self, tx: Reader, name: Ref, alias: str, now: str, to: str) -> str:
        """The version to go back to: the one before, or the one that is named."""
        trail = [version for version in self._trail(tx, name, alias) if version != now]
        said = f"{alias} of {name.bare}"
        if name.pinned or (to and not re.fullmatch(_VERSION, to)):
            raise Invalid(
                f"{to[:40] or str(name)!r} is no way back", f"falaj catalog rollback {name.bare} --to v3", name
            )
        if to and to == now:
            raise Conflict(f"{said} is {to} already", "name another one with --to", name)
        if to and to not in trail and alias not in ALIASED:
            raise Conflict(f"{said} was never {to}", "falaj catalog history shows what it was", name)
        if not to and not trail:
            raise Conflict(f"{said} has nothing before it", "falaj catalog history shows what it was", name)
        return to or trail[-1]

    def _check_fit(self, tx: Reader, record: Record, alias: str) -> None:
        """Denied or NotFound unless it may come back as it is, without asking anybody."""
        if record.body["state"] != "live":
            raise gone(record)
        if record.restricted:
            raise Denied(f"{record.ref} is restricted", "the data protection officer lifts a restriction", record.ref)
        if alias not in ALIASED:
            return
        hint = f"people decide: falaj catalog promote {record.ref} {alias}"
        if record.label.holds:
            held = ", ".join(sorted(record.label.holds))
            raise Denied(f"{record.ref} is under a hold: {held}", hint, record.ref)
        kept = kept_wish(tx, record.ref, alias)
        if kept is None or not kept.cleared:
            raise Denied(f"{record.ref} was not fully approved for {alias} before", hint, record.ref)

    def _ratify(self, tx: Writer, wish: Wish) -> Promotion:
        self._keep(tx, replace(wish, state=DONE, cleared=True))
        approval, people = approval_of(tx, wish)
        if self._aliases(tx, wish.ref).get(wish.stage) == wish.ref.version:
            act = Act("ratify", wish.reason, approval, people, wish.actor)
            self._point(tx, wish.ref, wish.stage, wish.ref.version, act)
        self._tell(tx, wish, "ratified", wish.reason, approval, people)
        return Promotion(wish.ref, wish.stage, DONE, "others ratified it")

    def _lapse(self, tx: Writer, wish: Wish, why: str) -> Promotion:
        """Undo an emergency: back to the nearest version that was approved, or to none."""
        told = self._close(tx, wish, LAPSED, why)
        name = wish.ref.bare
        if self._aliases(tx, name).get(wish.stage) != wish.ref.version:
            return told
        trail = reversed(self._trail(tx, name, wish.stage))
        back = next(filter(None, (self._fitting(tx, name.at(version), wish.stage) for version in trail)), None)
        if back is not None:
            act = Act("lapse", told.why, *approval_of(tx, kept_wish(tx, back.ref, wish.stage)))
            self._enter(tx, back, wish.stage, LEFT[wish.stage], act)
            return replace(told, before=back.ref)
        self._point(tx, name, wish.stage, "", Act("lapse", told.why))
        self._set_stage(tx, wish.ref, LEFT[wish.stage])
        return told

    def _fitting(self, tx: Reader, version: Ref, stage: str) -> Record | None:
        record = tx.need(version)
        with suppress(Denied, NotFound):
            self._check_fit(tx, record, stage)
            return record
        return None

    def _close(self, tx: Writer, wish: Wish, state: str, why: str) -> Promotion:
        # What people refused or did not ratify does not come back by the consent of an earlier day.
        cleared = wish.cleared and not (wish.digest and state in (REFUSED, LAPSED))
        self._keep(tx, replace(wish, state=state, cleared=cleared))
        self._tell(tx, wish, state, why[:MESSAGE])
        rules = f"falaj catalog rules {wish.ref.project}"
        return Promotion(wish.ref, wish.stage, REFUSED, why, rules, digest=wish.digest, ok=False)

    def _keep(self, tx: Writer, wish: Wish) -> bool:
        """Write the wish down; False when exactly this is written already."""
        old, body = tx.get(wish.record), to_plain(wish)
        if old is not None and as_wish(old) == wish:
            return False
        version = tx.need(wish.ref)
        terms = {"state": wish.state, "of": str(wish.ref)}
        tx.put(
            wish.record,
            body,
            rev=old.rev if old else None,
            label=open_label(version.label),
            zone=version.zone,
            terms=terms,
        )
        return True

    def _tell(
        self, tx: Writer, wish: Wish, state: str, reason: str, approval: str = "", people: tuple[str, ...] = ()
    ) -> None:
        found = "; ".join(f"{row.rule}: {row.found}" for row in wish.evidence)
        tx.emit(
            ACTION, wish.ref, (Ref.parse(approval),) if approval else (),
            stage=wish.stage, state=state, digest=wish.digest, evidence=found[:MESSAGE], people=",".join(people),
            reason=reason, emergency=int(wish.emergency), asker=wish.actor,
        )  # fmt: skip
