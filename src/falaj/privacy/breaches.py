"""Breaches with each regime's deadline, and assessments of what a purpose may do to people, approved by four eyes."""

from dataclasses import replace
from typing import Annotated

from falaj.core.context import CallContext
from falaj.core.errors import Conflict, Denied, Invalid, NotFound
from falaj.core.operation import operation
from falaj.core.ref import Ref
from falaj.govern.applicability import LabelFacts, decide_applicability, find_controller_jurisdiction
from falaj.govern.legal_periods import BREACH as AUTHORITY_DUTY
from falaj.govern.legal_periods import BREACH_PEOPLE as PEOPLE_DUTY
from falaj.govern.officer_notices import notify_officers
from falaj.privacy import input_checks
from falaj.privacy.duty_clocks import find_first_due, is_overdue, list_due_at_once, make_exempt_clocks, open_clocks
from falaj.privacy.records import CLOSED, LANGUAGES, OPEN, DataBreach, DutyClock, ImpactAssessment
from falaj.privacy.risks import parse_risks
from falaj.privacy.service_base import (
    PrivacyServiceBase,
    list_records,
    load_record,
    make_ref,
    require_kind,
    require_state,
    require_text,
    save_record,
)
from falaj.store.ledger import LedgerWriter
from falaj.store.records import LedgerRecord

BREACH_KIND, DPIA_KIND = "breach", "dpia"
DUTY_BY_RECIPIENT = {"authority": AUTHORITY_DUTY, "people": PEOPLE_DUTY}
_SUBJECT = 200  # characters of what happened that the notice to the officers carries
_CONTENT = ("description", "necessity", "risks", "measures")
_TRANSLATED = frozenset(f"{name}.{language}" for name in _CONTENT for language in LANGUAGES)


class BreachOperations(PrivacyServiceBase):
    """Breaches and assessments."""

    @operation(group="write")
    def report(
        self,
        ctx: CallContext,
        nature: Annotated[str, "what happened, without names of people"],
        about: Annotated[
            tuple[str, ...], "the versions, views or endpoints concerned; who reports need not read them"
        ] = (),
        regimes: Annotated[tuple[str, ...], "more regimes than the labels of these say"] = (),
        found: Annotated[str, "when it became known, with offset; now when empty"] = "",
        people: Annotated[int, "how many people are concerned, as far as is known"] = 0,
    ) -> DataBreach:
        """Record a breach. Each regime that applies sets when its authority, and the people concerned, are notified.

        Each label of what it is about decides by itself which of its regimes apply. Regimes named here apply as named.
        A law that says "at once" is shown as due now, without a number of hours. The data protection officers get a
        notice, which `falaj approvals notices` lists.

        Example:
            falaj privacy report "a laptop was lost" --about dataset:fraud/tx@v3 --found 2026-11-01T09:00:00+04:00
        """
        require_text("what happened", nature)
        found_at = input_checks.parse_moment(found, ctx.now())
        with self._ledger.write(ctx) as tx:
            records = [tx.need(Ref.parse(ref)) for ref in about]
            clocks = self.open_breach_clocks(ctx, records, regimes, found_at)
            pinned_refs = tuple(record.ref for record in records)
            breach = DataBreach(
                make_ref(BREACH_KIND),
                OPEN,
                nature,
                found_at,
                find_first_due(clocks),
                clocks,
                pinned_refs,
                people=people,
            )
            saved_record = save_record(tx, breach.ref, breach, None, state=OPEN)
            names = ",".join(dict.fromkeys(clock.regime for clock in clocks))
            tx.emit("privacy.report", saved_record.ref, pinned_refs, regimes=names, due=breach.due)
            notify_officers(ctx, tx, f"breach reported: {nature[:_SUBJECT]}", saved_record.ref)
        return _with_current_state(breach, ctx.now())

    def open_breach_clocks(
        self, ctx: CallContext, records: list[LedgerRecord], regimes: tuple[str, ...], found_at: float
    ) -> tuple[DutyClock, ...]:
        residency = self._zones.view(ctx)
        labels = [
            LabelFacts(
                record.label.regimes,
                record.label.categories,
                find_controller_jurisdiction(residency.zones.get(record.zone)),
            )
            for record in records
        ]
        self.resolve_regimes(
            ctx, {name for label in labels for name in label.regimes}
        )  # Invalid for one without a profile
        applying, exemptions = decide_applicability(labels, residency.regimes)
        by_id = {regime.id: regime for regime in (*applying, *self.resolve_regimes(ctx, regimes))}
        remaining_exemptions = {name: exemption for name, exemption in exemptions.items() if name not in by_id}
        calendar_of = self.create_calendar_finder(ctx)
        return (
            *open_clocks(AUTHORITY_DUTY, by_id.values(), found_at, calendar_of),
            *open_clocks(PEOPLE_DUTY, by_id.values(), found_at, calendar_of),
            *make_exempt_clocks(AUTHORITY_DUTY, remaining_exemptions, residency.regimes),
        )

    @operation()
    def breaches(self, ctx: CallContext, state: Annotated[str, "open or closed"] = "") -> tuple[DataBreach, ...]:
        """List breaches with the deadline that comes first.

        Example:
            falaj privacy breaches --state open
        """
        with self._ledger.read(ctx) as tx:
            breach_records = list_records(tx, BREACH_KIND, **({"state": state} if state else {}))
        return tuple(
            _with_current_state(load_record(DataBreach, breach_record), ctx.now()) for breach_record in breach_records
        )

    @operation(reads=("breach",))
    def breach(self, ctx: CallContext, breach: Annotated[Ref, "which breach"]) -> DataBreach:
        """Show a breach and each regime's deadline; `falaj privacy radius` tells who and what it reaches.

        Example:
            falaj privacy breach breach:privacy/0199d2f0
        """
        with self._ledger.read(ctx) as tx:
            return _with_current_state(load_record(DataBreach, tx.need(require_kind(breach, BREACH_KIND))), ctx.now())

    @operation(reads=("breach",), group="write")
    def notify(
        self,
        ctx: CallContext,
        breach: Annotated[Ref, "which breach"],
        regime: Annotated[str, "under which regime"],
        reference: Annotated[str, "the authority's number, the digest of what was sent, or why no notice is owed"],
        to: Annotated[str, "authority or people"] = "authority",
        not_owed: Annotated[bool, "record that no notice is owed, for the reason that `reference` says"] = False,
        at: Annotated[str, "when, with offset; now when empty"] = "",
    ) -> DataBreach:
        """Record that an authority, or the people concerned, were notified of a breach, or why that is not owed.

        Example:
            falaj privacy notify breach:privacy/0199d2f0 AE-PDPL --reference 2026/118
            falaj privacy notify breach:privacy/0199d2f0 EU-GDPR --to people --not-owed --reference "no high risk"
        """
        require_text("the reference", reference)
        if to not in DUTY_BY_RECIPIENT:
            raise Invalid(f"to {to[:40]!r}: expected {' or '.join(DUTY_BY_RECIPIENT)}", "name one of the two")
        (notified_regime,) = self.resolve_regimes(ctx, (regime,))
        notified_at = input_checks.parse_moment(at, ctx.now())
        with self._ledger.write(ctx) as tx:
            record = tx.need(require_kind(breach, BREACH_KIND))
            current_breach: DataBreach = load_record(DataBreach, record)
            duties = {(clock.regime, clock.duty) for clock in current_breach.clocks if clock.rule is not None}
            if (notified_regime.id, DUTY_BY_RECIPIENT[to]) not in duties:
                raise NotFound(
                    f"{breach}: {notified_regime.id} sets no notice to {to}",
                    "falaj privacy breach shows its clocks",
                    breach,
                )
            clocks = _mark_notified(
                current_breach.clocks,
                notified_regime.id,
                DUTY_BY_RECIPIENT[to],
                0.0 if not_owed else notified_at,
                reference,
            )
            updated = replace(current_breach, clocks=clocks, due=find_first_due(clocks))
            saved_record = save_record(tx, updated.ref, updated, record, state=updated.state)
            owed_text = "no" if not_owed else "yes"
            tx.emit(
                "privacy.notify",
                saved_record.ref,
                regime=notified_regime.id,
                to=to,
                owed=owed_text,
                reference=reference[:200],
                at=notified_at,
            )
        return _with_current_state(updated, ctx.now())

    @operation(reads=("breach",), group="write")
    def settle(
        self,
        ctx: CallContext,
        breach: Annotated[Ref, "which breach"],
        measures: Annotated[str, "what was done about it"],
    ) -> DataBreach:
        """Close a breach. Refused while a notice that a regime asks for is neither sent nor recorded as not owed.

        Example:
            falaj privacy settle breach:privacy/0199d2f0 --measures "key rotated, laptop wiped"
        """
        require_text("what was done", measures)
        with self._ledger.write(ctx) as tx:
            record = tx.need(require_kind(breach, BREACH_KIND))
            current_breach: DataBreach = load_record(DataBreach, record)
            require_state(breach, current_breach.state, OPEN)
            if open_notices := [
                _describe_notice(clock) for clock in current_breach.clocks if clock.due and clock.is_open
            ]:
                hint = f"falaj privacy notify {breach} REGIME [--to people] [--not-owed] --reference …"
                raise Conflict(f"notices not recorded yet: {', '.join(open_notices)}", hint, breach)
            closed_breach = replace(current_breach, state=CLOSED, measures=measures, closed_at=ctx.now())
            record = save_record(tx, closed_breach.ref, closed_breach, record, state=CLOSED)
            tx.emit("privacy.settle", record.ref, measures=measures[:500])
        return _with_current_state(closed_breach, ctx.now())

    @operation(writes=("dpia",))
    def assess(
        self,
        ctx: CallContext,
        dpia: Annotated[Ref, "its name, in the project it is about: dpia:fraud/scoring"],
        purpose: Annotated[str, "the purpose it is about"],
        content: Annotated[
            dict[str, str], "description=…, necessity=…, risks=… and measures=…, and in one language description.ar=…"
        ],
        review_by: Annotated[str, "the day somebody must look again, for example 2027-06-30"],
        matrix: Annotated[
            tuple[str, ...], "each risk: '4x5>2x3 | risk | measure', likelihood x severity (1 to 5) before > after"
        ] = (),
    ) -> ImpactAssessment:
        """Write the next version of an assessment. It counts once somebody else approves it.

        Example:
            falaj privacy assess dpia:fraud/scoring fraud --content @dpia.json --review-by 2027-06-30
        """
        if dpia.kind != DPIA_KIND or dpia.version:
            raise Invalid(f"{dpia} names no assessment", "for example dpia:fraud/scoring", dpia)
        translations = {name: text for name, text in content.items() if name in _TRANSLATED}
        if content.keys() - translations.keys() != set(_CONTENT):
            raise Invalid(
                f"content: expected {', '.join(_CONTENT)}; got {', '.join(sorted(content))[:200] or 'nothing'}",
                f"add each, and translations of it as {_CONTENT[0]}.ar=… or {_CONTENT[0]}.en=…",
            )
        for field_label, text in content.items():
            require_text(field_label, text)
        risks = parse_risks(require_text("a risk", line) for line in matrix)
        with self._ledger.write(ctx) as tx:
            head_record = tx.get(dpia)
            version_number = int(head_record.body["newest"][1:]) + 1 if head_record else 1
            ref = dpia.at(f"v{version_number}")
            review_day = input_checks.parse_day(review_by)
            texts = (content["description"], content["necessity"], content["risks"], content["measures"])
            assessment = ImpactAssessment(
                ref, purpose, *texts, review_day, author=ctx.actor.id, matrix=risks, written_at=ctx.now(),
                translations=translations,
            )  # fmt: skip
            tx.put(dpia, {"newest": ref.version}, rev=head_record.rev if head_record else None)
            _save_assessment(tx, assessment)
            tx.emit("privacy.assess", ref, purpose=purpose)
        return assessment

    @operation(reads=("dpia",), group="approve")
    def approve(
        self,
        ctx: CallContext,
        dpia: Annotated[Ref, "which version; the newest when none is given"],
        opinion: Annotated[str, "what you found"],
    ) -> ImpactAssessment:
        """Approve an assessment, as yourself; its author cannot.

        Example:
            falaj privacy approve dpia:fraud/scoring@v2 --opinion "the measures answer the risks"
        """
        require_text("the opinion", opinion)
        with self._ledger.write(ctx) as tx:
            record = tx.need(dpia)
            current_assessment: ImpactAssessment = load_record(ImpactAssessment, record)
            require_state(dpia, current_assessment.state, "draft")
            if {ctx.actor.id, ctx.actor.person} & {*self._approvals.persons(ctx, current_assessment.author)}:
                raise Denied("nobody approves what they wrote", "ask a second person", dpia)
            approved = replace(
                current_assessment, state="approved", approved_by=ctx.actor.id, opinion=opinion, approved_at=ctx.now(),
                approver_roles=tuple(sorted(ctx.actor.roles)),
            )  # fmt: skip
            _save_assessment(tx, approved, record)
            tx.emit("privacy.approve", record.ref, opinion=opinion[:500])
        return approved

    @operation()
    def assessments(
        self, ctx: CallContext, project: Annotated[str, "of one project only"] = ""
    ) -> tuple[ImpactAssessment, ...]:
        """List assessments, each version, with whether it counts.

        Example:
            falaj privacy assessments --project fraud
        """
        with self._ledger.read(ctx) as tx:
            page = tx.find(DPIA_KIND, project=project, terms={"dpia": "yes"}, scopes=ctx.cells(DPIA_KIND), limit=10_000)
        return tuple(_load_assessment(assessment_record, ctx.now()) for assessment_record in page.records)


def _with_current_state(breach: DataBreach, now: float) -> DataBreach:
    """Return the breach with what depends on the time: which clocks are over, which notices are due at once."""
    overdue = any(is_overdue(clock, now) for clock in breach.clocks)
    return replace(breach, overdue=overdue, due_now=list_due_at_once(breach.clocks))


def _mark_notified(
    clocks: tuple[DutyClock, ...], regime: str, duty: str, done_at: float, reference: str
) -> tuple[DutyClock, ...]:
    """Record on the clocks of one regime and duty when the notice was sent; `done_at` 0: it is not owed."""
    return tuple(
        replace(clock, done_at=done_at, waived=not done_at, reference=reference)
        if (clock.regime, clock.duty) == (regime, duty) and clock.rule is not None
        else clock
        for clock in clocks
    )


def _describe_notice(clock: DutyClock) -> str:
    return f"{clock.regime} ({'people' if clock.duty == PEOPLE_DUTY else 'authority'})"


def _load_assessment(record: LedgerRecord, now: float) -> ImpactAssessment:
    assessment: ImpactAssessment = load_record(ImpactAssessment, record)
    is_expired = assessment.state == "approved" and assessment.review_by < input_checks.format_day(now)
    return replace(assessment, state="expired") if is_expired else assessment


def _save_assessment(
    tx: LedgerWriter, assessment: ImpactAssessment, earlier_record: LedgerRecord | None = None
) -> None:
    save_record(
        tx,
        assessment.ref,
        assessment,
        earlier_record,
        dpia="yes",
        state=assessment.state,
        review_by=assessment.review_by,
    )
