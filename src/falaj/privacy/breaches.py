"""Breaches with each regime's deadline, and assessments of what a purpose may do to people, approved by four eyes."""

from dataclasses import replace
from typing import Annotated

from falaj.core.context import Context
from falaj.core.errors import Conflict, Denied, Invalid, NotFound
from falaj.core.ref import Ref
from falaj.core.verb import verb
from falaj.privacy import decide
from falaj.privacy.records import CLOSED, OPEN, Assessment, Breach
from falaj.privacy.shelf import Shelf, check_state, check_text, every, load, named, same, save
from falaj.store.ledger import Writer
from falaj.store.records import Record

BREACH, DPIA = "breach", "dpia"


class Breaches(Shelf):
    """Breaches and assessments."""

    @verb(group="write")
    def report(
        self,
        ctx: Context,
        nature: Annotated[str, "what happened, without names of people"],
        about: Annotated[
            tuple[str, ...], "the versions, views or endpoints concerned; who reports need not read them"
        ] = (),
        regimes: Annotated[tuple[str, ...], "more regimes than the labels of these say"] = (),
        found: Annotated[str, "when it became known, with offset; now when empty"] = "",
        people: Annotated[int, "how many people are concerned, as far as is known"] = 0,
    ) -> Breach:
        """Record a breach. Each regime of what it is about sets a deadline for telling its authority.

        Example:
            falaj privacy report "a laptop was lost" --about dataset:fraud/tx@v3 --found 2026-11-01T09:00:00+04:00
        """
        check_text("what happened", nature)
        since = decide.moment_of(found, ctx.now())
        with self._ledger.write(ctx) as tx:
            things = [tx.need(Ref.parse(one)) for one in about]
            names = {*regimes, *(regime for one in things for regime in one.label.regimes)}
            clocks = decide.clocks(decide.BREACH, self._regimes(ctx, names), since)
            pins = tuple(one.ref for one in things)
            made = Breach(named(BREACH), OPEN, nature, since, decide.strictest(clocks), clocks, pins, people=people)
            record = save(tx, made.ref, made, None, state=OPEN)
            tx.emit("privacy.report", record.ref, pins, regimes=",".join(one.regime for one in clocks), due=made.due)
        return _breach(made, ctx.now())

    @verb()
    def breaches(self, ctx: Context, state: Annotated[str, "open or closed"] = "") -> tuple[Breach, ...]:
        """List breaches with the deadline that comes first.

        Example:
            falaj privacy breaches --state open
        """
        with self._ledger.read(ctx) as tx:
            found = every(tx, BREACH, **({"state": state} if state else {}))
        return tuple(_breach(load(Breach, one), ctx.now()) for one in found)

    @verb(reads=("breach",))
    def breach(self, ctx: Context, breach: Annotated[Ref, "which breach"]) -> Breach:
        """Show a breach and each regime's deadline; `falaj privacy radius` tells who and what it reaches.

        Example:
            falaj privacy breach breach:privacy/0199d2f0
        """
        with self._ledger.read(ctx) as tx:
            return _breach(load(Breach, tx.need(same(breach, BREACH))), ctx.now())

    @verb(reads=("breach",), group="write")
    def notify(
        self,
        ctx: Context,
        breach: Annotated[Ref, "which breach"],
        regime: Annotated[str, "whose authority was told"],
        reference: Annotated[str, "the authority's number, or the digest of what was sent"],
        at: Annotated[str, "when, with offset; now when empty"] = "",
    ) -> Breach:
        """Record that an authority was told of a breach.

        Example:
            falaj privacy notify breach:privacy/0199d2f0 AE-PDPL --reference 2026/118
        """
        check_text("the reference", reference)
        (known,) = self._regimes(ctx, (regime,))
        when = decide.moment_of(at, ctx.now())
        with self._ledger.write(ctx) as tx:
            record = tx.need(same(breach, BREACH))
            old: Breach = load(Breach, record)
            if known.id not in {one.regime for one in old.clocks}:
                raise NotFound(f"{breach} is not under {known.id}", "falaj privacy breach shows its regimes", breach)
            clocks = tuple(
                replace(one, done=when, reference=reference) if one.regime == known.id else one for one in old.clocks
            )
            made = replace(old, clocks=clocks, due=decide.strictest(clocks))
            record = save(tx, made.ref, made, record, state=made.state)
            tx.emit("privacy.notify", record.ref, regime=known.id, reference=reference[:200], at=when)
        return _breach(made, ctx.now())

    @verb(reads=("breach",), group="write")
    def settle(
        self, ctx: Context, breach: Annotated[Ref, "which breach"], measures: Annotated[str, "what was done about it"]
    ) -> Breach:
        """Close a breach. Refused while a regime that sets a deadline was not told.

        Example:
            falaj privacy settle breach:privacy/0199d2f0 --measures "key rotated, laptop wiped"
        """
        check_text("what was done", measures)
        with self._ledger.write(ctx) as tx:
            record = tx.need(same(breach, BREACH))
            old: Breach = load(Breach, record)
            check_state(breach, old.state, OPEN)
            if waiting := [one.regime for one in old.clocks if one.due and not one.done]:
                raise Conflict(f"nobody told {', '.join(waiting)}", f"falaj privacy notify {breach} …", breach)
            made = replace(old, state=CLOSED, measures=measures, closed_at=ctx.now())
            record = save(tx, made.ref, made, record, state=CLOSED)
            tx.emit("privacy.settle", record.ref, measures=measures[:500])
        return _breach(made, ctx.now())

    @verb(writes=("dpia",))
    def assess(
        self,
        ctx: Context,
        dpia: Annotated[Ref, "its name, in the project it is about: dpia:fraud/scoring"],
        purpose: Annotated[str, "the purpose it is about"],
        content: Annotated[dict[str, str], "description=…, necessity=…, risks=… and measures=…"],
        review_by: Annotated[str, "the day somebody must look again, for example 2027-06-30"],
    ) -> Assessment:
        """Write the next version of an assessment. It counts once somebody else approves it.

        Example:
            falaj privacy assess dpia:fraud/scoring fraud --content @dpia.json --review-by 2027-06-30
        """
        if dpia.kind != DPIA or dpia.version:
            raise Invalid(f"{dpia} names no assessment", "for example dpia:fraud/scoring", dpia)
        wanted = {"description", "necessity", "risks", "measures"}
        if set(content) != wanted:
            raise Invalid("an assessment says four things", ", ".join(f"{one}=…" for one in sorted(wanted)))
        for what, text in content.items():
            check_text(what, text)
        with self._ledger.write(ctx) as tx:
            head = tx.get(dpia)
            number = int(head.body["newest"][1:]) + 1 if head else 1
            ref = dpia.at(f"v{number}")
            made = Assessment(ref, purpose, **content, review_by=decide.day_of(review_by), author=ctx.actor.id)
            tx.put(dpia, {"newest": ref.version}, rev=head.rev if head else None)
            _keep(tx, made)
            tx.emit("privacy.assess", ref, purpose=purpose)
        return made

    @verb(reads=("dpia",), group="approve")
    def approve(
        self,
        ctx: Context,
        dpia: Annotated[Ref, "which version; the newest when none is given"],
        opinion: Annotated[str, "what you found"],
    ) -> Assessment:
        """Approve an assessment, as yourself; its author cannot.

        Example:
            falaj privacy approve dpia:fraud/scoring@v2 --opinion "the measures answer the risks"
        """
        check_text("the opinion", opinion)
        with self._ledger.write(ctx) as tx:
            record = tx.need(dpia)
            old: Assessment = load(Assessment, record)
            check_state(dpia, old.state, "draft")
            if ctx.actor.id == old.author:
                raise Denied("nobody approves what they wrote", "ask a second person", dpia)
            made = replace(old, state="approved", approved_by=ctx.actor.id, opinion=opinion)
            _keep(tx, made, record)
            tx.emit("privacy.approve", record.ref, opinion=opinion[:500])
        return made

    @verb()
    def assessments(self, ctx: Context, project: Annotated[str, "of one project only"] = "") -> tuple[Assessment, ...]:
        """List assessments, each version, with whether it counts.

        Example:
            falaj privacy assessments --project fraud
        """
        with self._ledger.read(ctx) as tx:
            page = tx.find(DPIA, project=project, terms={"dpia": "yes"}, cells=ctx.cells(DPIA), limit=10_000)
        return tuple(_assessment(one, ctx.now()) for one in page.records)


def _breach(found: Breach, now: float) -> Breach:
    late = any(one.due and (one.done or now) > one.due for one in found.clocks)
    return replace(found, overdue=late)


def _assessment(record: Record, now: float) -> Assessment:
    found: Assessment = load(Assessment, record)
    over = found.state == "approved" and found.review_by < decide.today(now)
    return replace(found, state="expired") if over else found


def _keep(tx: Writer, made: Assessment, old: Record | None = None) -> None:
    save(tx, made.ref, made, old, dpia="yes", state=made.state, review_by=made.review_by)
