"""Breaches with each regime's deadline, and assessments of what a purpose may do to people, approved by four eyes."""

from dataclasses import replace
from typing import Annotated

from falaj.core.context import Context
from falaj.core.errors import Conflict, Denied, Invalid, NotFound
from falaj.core.ref import Ref
from falaj.core.verb import verb
from falaj.govern.applicability import LabelFacts, controller_of, decide_applicability
from falaj.govern.legal_periods import BREACH as AUTHORITY_DUTY
from falaj.govern.legal_periods import BREACH_PEOPLE as PEOPLE_DUTY
from falaj.govern.officer_notices import notify_officers
from falaj.privacy import decide
from falaj.privacy.clocks import due_at_once, exempt_clocks, first_due, is_overdue, open_clocks
from falaj.privacy.records import CLOSED, LANGUAGES, OPEN, Assessment, Breach, Clock
from falaj.privacy.risks import parse_risks
from falaj.privacy.shelf import Shelf, check_state, check_text, every, load, named, same, save
from falaj.store.ledger import Writer
from falaj.store.records import Record

BREACH, DPIA = "breach", "dpia"
RECIPIENTS = {"authority": AUTHORITY_DUTY, "people": PEOPLE_DUTY}
_SUBJECT = 200  # characters of what happened that the notice to the officers carries
_CONTENT = ("description", "necessity", "risks", "measures")
_TRANSLATED = frozenset(f"{name}.{language}" for name in _CONTENT for language in LANGUAGES)


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
        """Record a breach. Each regime that applies sets when its authority, and the people concerned, are notified.

        Each label of what it is about decides by itself which of its regimes apply. Regimes named here apply as named.
        A law that says "at once" is shown as due now, without a number of hours. The data protection officers get a
        notice, which `falaj approvals notices` lists.

        Example:
            falaj privacy report "a laptop was lost" --about dataset:fraud/tx@v3 --found 2026-11-01T09:00:00+04:00
        """
        check_text("what happened", nature)
        since = decide.moment_of(found, ctx.now())
        with self._ledger.write(ctx) as tx:
            records = [tx.need(Ref.parse(ref)) for ref in about]
            clocks = self._breach_clocks(ctx, records, regimes, since)
            pins = tuple(record.ref for record in records)
            breach = Breach(named(BREACH), OPEN, nature, since, first_due(clocks), clocks, pins, people=people)
            saved = save(tx, breach.ref, breach, None, state=OPEN)
            names = ",".join(dict.fromkeys(clock.regime for clock in clocks))
            tx.emit("privacy.report", saved.ref, pins, regimes=names, due=breach.due)
            notify_officers(ctx, tx, f"breach reported: {nature[:_SUBJECT]}", saved.ref)
        return _breach(breach, ctx.now())

    def _breach_clocks(
        self, ctx: Context, records: list[Record], regimes: tuple[str, ...], since: float
    ) -> tuple[Clock, ...]:
        places = self._zones.view(ctx)
        labels = [
            LabelFacts(record.label.regimes, record.label.categories, controller_of(places.zones.get(record.zone)))
            for record in records
        ]
        self._regimes(ctx, {name for label in labels for name in label.regimes})  # Invalid for one without a profile
        applying, exempt = decide_applicability(labels, places.regimes)
        by_id = {regime.id: regime for regime in (*applying, *self._regimes(ctx, regimes))}
        left = {name: exemption for name, exemption in exempt.items() if name not in by_id}
        calendar_of = self._calendar_of(ctx)
        return (
            *open_clocks(AUTHORITY_DUTY, by_id.values(), since, calendar_of),
            *open_clocks(PEOPLE_DUTY, by_id.values(), since, calendar_of),
            *exempt_clocks(AUTHORITY_DUTY, left, places.regimes),
        )

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
        regime: Annotated[str, "under which regime"],
        reference: Annotated[str, "the authority's number, the digest of what was sent, or why no notice is owed"],
        to: Annotated[str, "authority or people"] = "authority",
        not_owed: Annotated[bool, "record that no notice is owed, for the reason that `reference` says"] = False,
        at: Annotated[str, "when, with offset; now when empty"] = "",
    ) -> Breach:
        """Record that an authority, or the people concerned, were notified of a breach, or why that is not owed.

        Example:
            falaj privacy notify breach:privacy/0199d2f0 AE-PDPL --reference 2026/118
            falaj privacy notify breach:privacy/0199d2f0 EU-GDPR --to people --not-owed --reference "no high risk"
        """
        check_text("the reference", reference)
        if to not in RECIPIENTS:
            raise Invalid(f"to {to[:40]!r}: expected {' or '.join(RECIPIENTS)}", "name one of the two")
        (law,) = self._regimes(ctx, (regime,))
        when = decide.moment_of(at, ctx.now())
        with self._ledger.write(ctx) as tx:
            record = tx.need(same(breach, BREACH))
            old: Breach = load(Breach, record)
            duties = {(clock.regime, clock.duty) for clock in old.clocks if clock.rule is not None}
            if (law.id, RECIPIENTS[to]) not in duties:
                raise NotFound(
                    f"{breach}: {law.id} sets no notice to {to}", "falaj privacy breach shows its clocks", breach
                )
            clocks = _mark_notified(old.clocks, law.id, RECIPIENTS[to], 0.0 if not_owed else when, reference)
            updated = replace(old, clocks=clocks, due=first_due(clocks))
            saved = save(tx, updated.ref, updated, record, state=updated.state)
            owed = "no" if not_owed else "yes"
            tx.emit("privacy.notify", saved.ref, regime=law.id, to=to, owed=owed, reference=reference[:200], at=when)
        return _breach(updated, ctx.now())

    @verb(reads=("breach",), group="write")
    def settle(
        self, ctx: Context, breach: Annotated[Ref, "which breach"], measures: Annotated[str, "what was done about it"]
    ) -> Breach:
        """Close a breach. Refused while a notice that a regime asks for is neither sent nor recorded as not owed.

        Example:
            falaj privacy settle breach:privacy/0199d2f0 --measures "key rotated, laptop wiped"
        """
        check_text("what was done", measures)
        with self._ledger.write(ctx) as tx:
            record = tx.need(same(breach, BREACH))
            old: Breach = load(Breach, record)
            check_state(breach, old.state, OPEN)
            if waiting := [_notice(clock) for clock in old.clocks if clock.due and clock.is_open]:
                hint = f"falaj privacy notify {breach} REGIME [--to people] [--not-owed] --reference …"
                raise Conflict(f"notices not recorded yet: {', '.join(waiting)}", hint, breach)
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
        content: Annotated[
            dict[str, str], "description=…, necessity=…, risks=… and measures=…, and in one language description.ar=…"
        ],
        review_by: Annotated[str, "the day somebody must look again, for example 2027-06-30"],
        matrix: Annotated[
            tuple[str, ...], "each risk: '4x5>2x3 | risk | measure', likelihood x severity (1 to 5) before > after"
        ] = (),
    ) -> Assessment:
        """Write the next version of an assessment. It counts once somebody else approves it.

        Example:
            falaj privacy assess dpia:fraud/scoring fraud --content @dpia.json --review-by 2027-06-30
        """
        if dpia.kind != DPIA or dpia.version:
            raise Invalid(f"{dpia} names no assessment", "for example dpia:fraud/scoring", dpia)
        translations = {name: text for name, text in content.items() if name in _TRANSLATED}
        if content.keys() - translations.keys() != set(_CONTENT):
            raise Invalid(
                f"content: expected {', '.join(_CONTENT)}; got {', '.join(sorted(content))[:200] or 'nothing'}",
                f"add each, and translations of it as {_CONTENT[0]}.ar=… or {_CONTENT[0]}.en=…",
            )
        for what, text in content.items():
            check_text(what, text)
        risks = parse_risks(check_text("a risk", line) for line in matrix)
        with self._ledger.write(ctx) as tx:
            head = tx.get(dpia)
            number = int(head.body["newest"][1:]) + 1 if head else 1
            ref = dpia.at(f"v{number}")
            day = decide.day_of(review_by)
            texts = (content["description"], content["necessity"], content["risks"], content["measures"])
            assessment = Assessment(
                ref, purpose, *texts, day, author=ctx.actor.id, matrix=risks, written_at=ctx.now(),
                translations=translations,
            )  # fmt: skip
            tx.put(dpia, {"newest": ref.version}, rev=head.rev if head else None)
            _keep(tx, assessment)
            tx.emit("privacy.assess", ref, purpose=purpose)
        return assessment

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
            if {ctx.actor.id, ctx.actor.person} & {*self._approvals.persons(ctx, old.author)}:
                raise Denied("nobody approves what they wrote", "ask a second person", dpia)
            approved = replace(
                old, state="approved", approved_by=ctx.actor.id, opinion=opinion, approved_at=ctx.now(),
                approver_roles=tuple(sorted(ctx.actor.roles)),
            )  # fmt: skip
            _keep(tx, approved, record)
            tx.emit("privacy.approve", record.ref, opinion=opinion[:500])
        return approved

    @verb()
    def assessments(self, ctx: Context, project: Annotated[str, "of one project only"] = "") -> tuple[Assessment, ...]:
        """List assessments, each version, with whether it counts.

        Example:
            falaj privacy assessments --project fraud
        """
        with self._ledger.read(ctx) as tx:
            page = tx.find(DPIA, project=project, terms={"dpia": "yes"}, cells=ctx.cells(DPIA), limit=10_000)
        return tuple(_assessment(one, ctx.now()) for one in page.records)


def _breach(breach: Breach, now: float) -> Breach:
    """Return the breach with what depends on the time: which clocks are over, which notices are due at once."""
    overdue = any(is_overdue(clock, now) for clock in breach.clocks)
    return replace(breach, overdue=overdue, due_now=due_at_once(breach.clocks))


def _mark_notified(clocks: tuple[Clock, ...], regime: str, duty: str, done: float, reference: str) -> tuple[Clock, ...]:
    """Record on the clocks of one regime and duty when the notice was sent; `done` 0: it is not owed."""
    return tuple(
        replace(clock, done_at=done, waived=not done, reference=reference)
        if (clock.regime, clock.duty) == (regime, duty) and clock.rule is not None
        else clock
        for clock in clocks
    )


def _notice(clock: Clock) -> str:
    return f"{clock.regime} ({'people' if clock.duty == PEOPLE_DUTY else 'authority'})"


def _assessment(record: Record, now: float) -> Assessment:
    found: Assessment = load(Assessment, record)
    over = found.state == "approved" and found.review_by < decide.today(now)
    return replace(found, state="expired") if over else found


def _keep(tx: Writer, made: Assessment, old: Record | None = None) -> None:
    save(tx, made.ref, made, old, dpia="yes", state=made.state, review_by=made.review_by)
