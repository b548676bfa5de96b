"""Stages: a version's way from experiment over staging into production and out of it, with people's consent.

A wish to promote is a record `promotion`, one for each version and stage:

    waiting --approved--> done                      refused, expired: it is over, and can be wished again
       '--one voice, emergency--> emergency --ratified--> done
                                      '--not in time, or refused--> lapsed: what it did is undone

Whatever happens between the wish and the consent, the evidence is looked at again when the version moves; where it is
not what people consented to, they are asked again.
"""

import hashlib
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Annotated

from falaj.catalog.demands import Demands
from falaj.catalog.gates import GATED, Rule, digest_of_rules, judge, voices
from falaj.catalog.life_records import Binding, Promotion
from falaj.catalog.limits import MESSAGE, check_text
from falaj.catalog.records import STAGES
from falaj.catalog.shelf import Act, check_kind, gone, missing, open_label
from falaj.core.context import Context
from falaj.core.errors import Conflict, Denied, Invalid
from falaj.core.ref import Ref
from falaj.core.verb import verb
from falaj.govern.approvals import ROLES, approval_ref, find_approval, standing
from falaj.govern.records import Approval, Move, Standing
from falaj.store.codec import from_plain, to_plain, to_stable_json
from falaj.store.ledger import Reader, Writer
from falaj.store.records import Record

ACTION = "catalog.promote"
KIND = "promotion"
ASK_S = 7 * 86_400.0
ALIASED = ("staging", "production")
"""The stages that one version holds at a time, by an alias of the same name."""
LEFT = {"production": "retired", "staging": "experiment"}
"""Where the version goes that held a stage before."""
WAITING, EMERGENCY, DONE, REFUSED, LAPSED, OVER = "waiting", "emergency", "done", "refused", "lapsed", "over"
_VERSION = re.compile(r"v[1-9][0-9]{0,17}")


@dataclass(frozen=True, slots=True)
class Wish:
    """What somebody wants, kept until it is done or over."""

    ref: Ref
    stage: str
    state: str
    actor: str
    person: str
    before: str
    """The stage of the version that holds this one now, afterwards."""
    reason: str = ""
    emergency: bool = False
    purpose: str = ""
    digest: str = ""
    """What people are asked; empty where the gate asks nobody."""
    cleared: bool = False
    """True once the version was in the stage with everybody's consent: it may come back without asking."""

    @property
    def record(self) -> Ref:
        """Where it is written: one wish for each version and stage."""
        return promotion_ref(self.ref, self.stage)


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
            return self._advance(tx, ctx, record, _taken_up(tx, ctx, wish))

    @verb(reads=("name",), heads=("name",), group="write")
    def rollback(
        self,
        ctx: Context,
        name: Annotated[Ref, "the name, without a version"],
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
        with self._ledger.write(ctx) as tx:
            now = self._aliases(tx, name).get(alias, "")
            record = tx.get(name.at(self._way_back(tx, name, alias, now, to.rpartition("@")[2])))
            if record is None:
                raise missing(name.at(to))
            self._check_fit(tx, record, alias)
            self._withdraw(tx, ctx, name.bare, now, alias)
            act = Act("rollback", reason, *approval_of(tx, record.ref, alias))
            self._enter(tx, record, alias, LEFT.get(alias, ""), act)
            tx.emit("catalog.rollback", record.ref, alias=alias, before=now, reason=reason)
        return Binding(alias, record.ref, ctx.now(), 0.0, ctx.actor.id, "rollback", reason, act.approval, act.people)

    def due(self, ctx: Context) -> Iterator[Ref]:
        """The wishes of the context's tenant that have something to be done about them now; for the loop."""
        for state in (WAITING, EMERGENCY):
            after = ""
            while True:
                with self._ledger.read(ctx) as tx:
                    page = tx.find(KIND, terms={"state": state}, after=after, limit=100)
                    ready = [record.ref for record in page.records if _stirred(tx, ctx, _wish(record))]
                yield from ready
                after = page.next
                if not after:
                    break

    def settle(self, ctx: Context, promotion: Ref) -> Promotion | None:
        """Do what people's voices ask for by now: move the version, undo an emergency, or let the wish go."""
        with self._ledger.write(ctx) as tx:
            kept = tx.get(promotion.bare)
            wish = _wish(kept) if kept else None
            if wish is None or wish.state not in (WAITING, EMERGENCY) or not _stirred(tx, ctx, wish):
                return None
            stands = _stands(tx, ctx, wish)
            record = tx.get(wish.ref)
            if record is None or record.body["state"] != "live":
                return self._close(tx, ctx, wish, OVER, f"{wish.ref} was deleted")
            if wish.state == EMERGENCY:
                return self._ratify(tx, ctx, wish) if stands.granted else self._lapse(tx, ctx, wish, stands.why)
            if stands.state in ("refused", "expired", "lapsed"):
                return self._close(tx, ctx, wish, REFUSED if stands.state == "refused" else OVER, stands.why)
            return self._advance(tx, ctx, record, wish)

    def movement(self, ctx: Context, promotion: Ref, op: str, zone: str) -> Move:
        """The question to place() that whoever wished this promotion would ask; for the loop, which has no guard."""
        with self._ledger.read(ctx) as tx:
            wish = _wish(tx.need(promotion.bare))
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
        before = record.ref.at(holder) if holder else None
        if record.body["stage"] == wish.stage and (holder == record.key.version or wish.stage not in ALIASED):
            return self._there(tx, wish)
        rules = self._rules(tx, record.key.project, wish.stage)
        rows = judge(rules, self._case(tx, ctx, record, rules, holder))
        told = Promotion(record.ref, wish.stage, WAITING, evidence=rows, before=before)
        failed = [f"{row.rule}: {row.found}" for row in rows if not row.passed]
        failed += ["it is restricted: it may be kept and nothing else"] if record.restricted else []
        if failed:
            return self._refuse(tx, ctx, replace(wish, digest=""), told, "; ".join(failed))
        needs, officers = voices(rules)
        if not needs:
            return self._move(tx, ctx, record, replace(wish, digest=""), told, Act("promote", wish.reason))
        wish = replace(wish, digest=_digest(record, wish, rules, told))
        return self._consult(tx, ctx, record, wish, told, (needs, officers))

    def _there(self, tx: Writer, wish: Wish) -> Promotion:
        """It is where it shall be; a wish that still waits for that is over."""
        kept = tx.get(wish.record)
        if kept is not None and _wish(kept).state == WAITING:
            self._keep(tx, replace(_wish(kept), state=DONE))
            tx.emit(ACTION, wish.ref, stage=wish.stage, state=DONE, asker=wish.actor)
        return Promotion(wish.ref, wish.stage, DONE, f"it is in {wish.stage} already", before=wish.ref)

    def _consult(
        self, tx: Writer, ctx: Context, record: Record, wish: Wish, told: Promotion, needs: tuple[int, int]
    ) -> Promotion:
        """Ask the people, or hear what they have said to exactly this."""
        question = self._question(ctx, record, wish, needs)
        ref = approval_ref(ACTION, wish.digest)
        told = replace(told, approval=ref, digest=wish.digest)
        known = find_approval(tx, ACTION, wish.digest, tenant=ctx.tenant)
        heard = standing(known, ctx.now()) if known else None
        if heard is not None and heard.state == "refused":
            return self._refuse(tx, ctx, wish, told, heard.why)
        self._approvals.propose(ctx, tx, question)
        try:
            approval = self._approvals.demand(
                ctx, ACTION, wish.digest,
                needs=needs[0], dpo=needs[1], authors=(wish.actor, record.author), emergency=wish.emergency,
            )  # fmt: skip
        except Denied as error:
            return self._wait(tx, ctx, wish, told, error)
        people = tuple(voice.actor for voice in approval.voices if voice.says == "give")
        act = Act("promote", wish.reason, str(tx.need(ref).ref), people, wish.actor)
        return self._move(tx, ctx, record, wish, told, act)

    def _question(self, ctx: Context, record: Record, wish: Wish, needs: tuple[int, int]) -> Approval:
        return Approval(
            action=ACTION,
            digest=wish.digest,
            needs=needs[0],
            dpo=needs[1],
            roles=ROLES,
            asker=wish.person,
            barred=(wish.actor, *self._approvals.persons(ctx, record.author)),
            reason=wish.reason or f"{record.ref} to {wish.stage}",
            asked=ctx.now(),
            expires=ctx.now() + ASK_S,
            about=str(record.ref),
            emergency=wish.emergency,
        )

    def _wait(self, tx: Writer, ctx: Context, wish: Wish, told: Promotion, missing_: Denied) -> Promotion:
        if self._keep(tx, wish):
            tx.emit(
                ACTION, wish.ref, stage=wish.stage, state=WAITING, digest=wish.digest, approval=str(told.approval),
                reason=wish.reason, emergency=int(wish.emergency), asker=wish.actor,
            )  # fmt: skip
        command = f"falaj approvals give {told.approval} --digest {wish.digest}"
        return replace(told, why=missing_.message, next=command)

    def _refuse(self, tx: Writer, ctx: Context, wish: Wish, told: Promotion, why: str) -> Promotion:
        self._close(tx, ctx, wish, REFUSED, why)
        return replace(told, state=REFUSED, why=why, next=f"falaj catalog rules {wish.ref.project}", ok=False)

    def _move(self, tx: Writer, ctx: Context, record: Record, wish: Wish, told: Promotion, act: Act) -> Promotion:
        """The evidence is good and the people have spoken."""
        stands = _stands(tx, ctx, wish) if wish.digest else None
        urgent = stands is not None and not stands.granted
        self._keep(tx, replace(wish, state=EMERGENCY if urgent else DONE, cleared=not urgent))
        self._enter(tx, record, wish.stage, wish.before, act)
        seen = hashlib.sha256(to_stable_json(told.evidence)).hexdigest()
        approval = (tx.need(told.approval).ref,) if told.approval else ()
        tx.emit(
            ACTION, wish.ref, approval, stage=wish.stage, state=DONE, before=str(told.before or ""), digest=wish.digest,
            evidence=seen, people=",".join(act.people), reason=wish.reason, emergency=int(urgent), asker=wish.actor,
        )  # fmt: skip
        if stands is not None and urgent:
            again = f"falaj approvals give {told.approval} --digest {wish.digest}"
            return replace(told, state=DONE, why=stands.why, next=again, until=stands.until)
        return replace(told, state=DONE, why=f"it is in {wish.stage}")

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
        if to and not _VERSION.fullmatch(to):
            raise Invalid(f"{to[:40]!r} is no version", "--to v3", name)
        if to and to == now:
            raise Conflict(f"{alias} of {name.bare} is {to} already", "name another one with --to", name)
        if to and to not in trail and alias not in ALIASED:
            raise Conflict(f"{alias} of {name.bare} was never {to}", "falaj catalog history shows what it was", name)
        if not to and not trail:
            raise Conflict(
                f"there is nothing before the {alias} of {name.bare}", "falaj catalog history shows it", name
            )
        return to or trail[-1]

    def _check_fit(self, tx: Reader, record: Record, alias: str) -> None:
        """Denied unless it may come back as it is, without asking anybody."""
        if record.body["state"] != "live":
            raise gone(record)
        if record.restricted:
            raise Denied(f"{record.ref} is restricted", "the data protection officer lifts a restriction", record.ref)
        if alias not in ALIASED:
            return
        if record.label.holds:
            held = ", ".join(sorted(record.label.holds))
            raise Denied(f"{record.ref} is under a hold: {held}", "promote it: then people decide", record.ref)
        if not self._approved(tx, record.ref, alias):
            hint = f"falaj catalog promote {record.ref} {alias}"
            raise Denied(f"{record.ref} was not fully approved for {alias} before", hint, record.ref)

    def _approved(self, tx: Reader, version: Ref, stage: str) -> bool:
        kept = tx.get(promotion_ref(version, stage))
        return kept is not None and _wish(kept).cleared

    def _withdraw(self, tx: Writer, ctx: Context, name: Ref, version: str, stage: str) -> None:
        """An emergency that is rolled back needs nobody to ratify it any more."""
        kept = tx.get(promotion_ref(name.at(version), stage)) if version else None
        if kept is not None and _wish(kept).state == EMERGENCY:
            self._close(tx, ctx, _wish(kept), LAPSED, "it was rolled back")

    def _ratify(self, tx: Writer, ctx: Context, wish: Wish) -> Promotion:
        self._keep(tx, replace(wish, state=DONE, cleared=True))
        approval, people = approval_of(tx, wish.ref, wish.stage)
        if self._aliases(tx, wish.ref).get(wish.stage) == wish.ref.version:
            act = Act("ratify", wish.reason, approval, people, wish.actor)
            self._point(tx, wish.ref, wish.stage, wish.ref.version, act)
        tx.emit(
            ACTION, wish.ref, (Ref.parse(approval),), stage=wish.stage, state="ratified", digest=wish.digest,
            people=",".join(people), asker=wish.actor,
        )  # fmt: skip
        return Promotion(wish.ref, wish.stage, DONE, "others ratified it")

    def _lapse(self, tx: Writer, ctx: Context, wish: Wish, why: str) -> Promotion:
        """Undo an emergency: back to the nearest version that was approved, or to none."""
        told = self._close(tx, ctx, wish, LAPSED, why)
        name = wish.ref.bare
        if self._aliases(tx, name).get(wish.stage) != wish.ref.version:
            return told
        trail = reversed(self._trail(tx, name, wish.stage))
        back = next(filter(None, (self._fitting(tx, name.at(version), wish.stage) for version in trail)), None)
        act = Act("lapse", why, *(approval_of(tx, back.ref, wish.stage) if back else ("", ())))
        if back is not None:
            self._enter(tx, back, wish.stage, LEFT[wish.stage], act)
        else:
            self._point(tx, name, wish.stage, "", act)
            self._set_stage(tx, wish.ref, LEFT[wish.stage])
        return replace(told, before=back.ref if back else None)

    def _fitting(self, tx: Reader, version: Ref, stage: str) -> Record | None:
        record = tx.get(version)
        with suppress(Denied, Conflict):
            if record is not None:
                self._check_fit(tx, record, stage)
                return record
        return None

    def _close(self, tx: Writer, ctx: Context, wish: Wish, state: str, why: str) -> Promotion:
        # What people refused does not come back by the consent of an earlier day.
        cleared = wish.cleared and not (state == REFUSED and wish.digest)
        self._keep(tx, replace(wish, state=state, cleared=cleared))
        tx.emit(
            ACTION, wish.ref, stage=wish.stage, state=state, digest=wish.digest, reason=why[:2000], asker=wish.actor
        )
        return Promotion(wish.ref, wish.stage, REFUSED, why, ok=False)

    def _keep(self, tx: Writer, wish: Wish) -> bool:
        """Write the wish down; False when exactly this is written already."""
        old = tx.get(wish.record)
        body = to_plain(wish)
        if old is not None and old.body == body:
            return False
        version = tx.need(wish.ref)
        label = open_label(version.label)
        terms = {"state": wish.state, "of": str(wish.ref)}
        tx.put(wish.record, body, rev=old.rev if old else None, label=label, zone=version.zone, terms=terms)
        return True


def promotion_ref(version: Ref, stage: str) -> Ref:
    """The one name of the wish to bring exactly this version into that stage."""
    tail = hashlib.sha256(f"{version}\0{stage}".encode()).hexdigest()[:32]
    return Ref(KIND, version.project, f"{stage}.{tail}")


def approval_of(tx: Reader, version: Ref, stage: str) -> tuple[str, tuple[str, ...]]:
    """The approval by which a version entered a stage, pinned, and who gave it."""
    kept = tx.get(promotion_ref(version, stage))
    digest = _wish(kept).digest if kept is not None else ""
    record = tx.get(approval_ref(ACTION, digest)) if digest else None
    if record is None:
        return "", ()
    asked: Approval = from_plain(Approval, record.body)
    return str(record.ref), tuple(voice.actor for voice in asked.voices if voice.says == "give")


def _wish(record: Record) -> Wish:
    wish: Wish = from_plain(Wish, record.body)
    return wish


def _taken_up(tx: Reader, ctx: Context, wish: Wish) -> Wish:
    """The same wish as it was asked before, where people are still deciding on it: asking again takes no voice away."""
    kept = tx.get(wish.record)
    if kept is None:
        return wish
    old = _wish(kept)
    same = old.state == WAITING and (old.before, old.emergency) == (wish.before, wish.emergency)
    if same and _stands(tx, ctx, old).state in ("waiting", "granted", "emergency"):
        return old
    return replace(wish, cleared=old.cleared)


def _stands(tx: Reader, ctx: Context, wish: Wish) -> Standing:
    approval = find_approval(tx, ACTION, wish.digest, tenant=ctx.tenant)
    if approval is None:
        return Standing("expired", 0, 0, 0, 0.0, "nobody knows of the question any more")
    return standing(approval, ctx.now())


def _stirred(tx: Reader, ctx: Context, wish: Wish) -> bool:
    """True when the people said something that this wish has to follow."""
    state = _stands(tx, ctx, wish).state
    return state != "waiting" and (wish.state, state) != (EMERGENCY, "emergency")


def _digest(record: Record, wish: Wish, rules: tuple[Rule, ...], told: Promotion) -> str:
    """What people approve: exactly this version in the place of that one, under these rules, on this evidence."""
    body = {
        "ref": str(record.ref), "root": record.body["root"], "label": record.label.digest, "stage": wish.stage,
        "before": (str(told.before), wish.before), "emergency": wish.emergency, "gate": digest_of_rules(rules),
        "evidence": told.evidence,
    }  # fmt: skip
    return "sha256:" + hashlib.sha256(to_stable_json(body)).hexdigest()
