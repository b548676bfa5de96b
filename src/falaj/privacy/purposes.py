"""Purposes and consent: what data is used for, on which basis, and who agreed to what and when they took it back."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated

from falaj.core.context import CallContext
from falaj.core.errors import Conflict, Invalid, NotFound
from falaj.core.operation import operation
from falaj.core.ref import Ref
from falaj.govern.supporting_documents import find_document
from falaj.privacy.input_checks import list_missing_languages, parse_moment, require_known_basis
from falaj.privacy.records import LANGUAGES, ConsentPage, ConsentRecord, ProcessingPurpose
from falaj.privacy.refusing import RefusalOperations, update_refusal_head
from falaj.privacy.service_base import (
    MAX_PAGE_SIZE,
    list_records,
    load_record,
    make_ref,
    require_digest,
    require_text,
    save_record,
)
from falaj.store.ledger import LedgerReader

PURPOSE_KIND, CONSENT_KIND = "purpose", "consent"
CONSENT_BASIS = "consent"
"""The basis under which people must agree, and can take that back."""
MAX_RETENTION_DAYS = 36_525


class PurposeOperations(RefusalOperations):
    """What data is used for."""

    @operation(group="govern")
    def add_purpose(
        self,
        ctx: CallContext,
        name: Annotated[str, "one word, as labels and --purpose say it"],
        basis: Annotated[str, "why it is lawful: a basis that every regime knows"],
        regimes: Annotated[tuple[str, ...], "the regimes it stands under"],
        text: Annotated[dict[str, str], "what people are told: ar=… and en=…"],
        retention_days: Annotated[int, "how long data is kept for it"],
        dpia: Annotated[str, "the assessment it rests on, for example dpia:fraud/scoring"] = "",
    ) -> ProcessingPurpose:
        """Register a purpose. Its lawful basis must be one that each of its regimes allows.

        Example:
            falaj privacy add-purpose marketing consent --regimes AE-PDPL --text ar=… --text en=… --retention-days 365
        """
        new_purpose = ProcessingPurpose(name, basis, regimes, text, retention_days, dpia, ctx.now())
        return self.save_purpose(ctx, new_purpose, is_new=True)

    @operation(group="govern")
    def change_purpose(
        self,
        ctx: CallContext,
        name: Annotated[str, "which purpose"],
        basis: Annotated[str, "another basis"] = "",
        regimes: Annotated[tuple[str, ...], "other regimes"] = (),
        text: Annotated[dict[str, str] | None, "other words, by language"] = None,
        retention_days: Annotated[int, "another time"] = 0,
        dpia: Annotated[str, "another assessment"] = "",
    ) -> ProcessingPurpose:
        """Change a purpose: what is not given stays. Consents keep the hash of the words they were given on.

        Example:
            falaj privacy change-purpose marketing --retention-days 180
        """
        with self._ledger.read(ctx) as tx:
            current_purpose = require_purpose(tx, name)
        return self.save_purpose(
            ctx,
            replace(
                current_purpose,
                basis=basis or current_purpose.basis,
                regimes=regimes or current_purpose.regimes,
                text={**current_purpose.text, **(text or {})},
                retention_days=retention_days or current_purpose.retention_days,
                dpia=dpia or current_purpose.dpia,
            ),
            is_new=False,
        )

    @operation()
    def purposes(self, ctx: CallContext) -> tuple[ProcessingPurpose, ...]:
        """List the purposes that are registered.

        Example:
            falaj privacy purposes
        """
        with self._ledger.read(ctx) as tx:
            return tuple(load_record(ProcessingPurpose, record) for record in list_records(tx, PURPOSE_KIND))

    @operation()
    def purpose(self, ctx: CallContext, name: Annotated[str, "which purpose"]) -> ProcessingPurpose:
        """Show a purpose: its basis, its words in Arabic and English, how long data is kept for it.

        Example:
            falaj privacy purpose marketing
        """
        with self._ledger.read(ctx) as tx:
            return require_purpose(tx, name)

    @operation(group="write", has_outside_effects=True)
    def consent(
        self,
        ctx: CallContext,
        purpose: Annotated[str, "what they agree to"],
        subject: Annotated[str, "who, by the identifier that the data carries; it is not written down"],
        text: Annotated[str, "sha256: of the exact words they saw"],
        language: Annotated[str, "ar or en"],
        channel: Annotated[str, "where they agreed, for example app or branch"],
        at: Annotated[str, "when, with offset: 2026-11-01T09:00:00+04:00; now when empty"] = "",
        document: Annotated[str, "what proves it, where something does: document:privacy/signed-form-71"] = "",
    ) -> ConsentRecord:
        """Record that a person agreed to a purpose. One who took it back before may be used again from now on.

        Example:
            falaj privacy consent marketing 784-1990-1234567-1 sha256:9f… ar app
        """
        person, consented_at = self.compute_pseudonym(ctx, subject), parse_moment(at, ctx.now())
        if language not in LANGUAGES:
            raise Invalid(f"{language[:20]!r} is no language of a notice here", f"one of {', '.join(LANGUAGES)}")
        require_text("the channel", channel)
        require_digest(text)
        with self._ledger.write(ctx) as tx:
            self.require_consent_basis(tx, purpose)
            if _find_standing_consent(tx, person, purpose) is not None:
                raise Conflict("they agreed to this already", "falaj privacy consents shows it")
            document_digest = str(find_document(tx, "proof of consent", document).body["sha256"]) if document else ""
            new_consent = ConsentRecord(
                make_ref(CONSENT_KIND), person, purpose, text, language, channel, consented_at, document=document_digest
            )
            record = save_record(
                tx,
                new_consent.ref,
                new_consent,
                None,
                person=person,
                purpose=purpose,
                state=new_consent.state,
                text=text,
            )
            tx.emit("privacy.consent", record.ref, purpose=purpose, person=person, text=text, language=language)
        self.remove_refusal(ctx, subject, purpose, "they agreed")
        return new_consent

    @operation(group="write", has_outside_effects=True)
    def withdraw(
        self,
        ctx: CallContext,
        purpose: Annotated[str, "what they no longer agree to"],
        subject: Annotated[str, "who, by the identifier that the data carries; it is not written down"],
        channel: Annotated[str, "where they said so"] = "",
    ) -> ConsentRecord:
        """Record that a person takes their consent back: it counts with the next run and the next online score.

        What was lawful before stays lawful and recorded.

        Example:
            falaj privacy withdraw marketing 784-1990-1234567-1 --channel app
        """
        person = self.compute_pseudonym(ctx, subject)
        with self._ledger.read(ctx) as tx:
            self.require_consent_basis(tx, purpose)
            standing_consent = _find_standing_consent(tx, person, purpose)
        # Also for one whose consent is not known here: what they say now is clear.
        self.add_refusal(ctx, subject, purpose, "consent withdrawn")
        now = ctx.now()
        current_consent = standing_consent or ConsentRecord(
            make_ref(CONSENT_KIND), person, purpose, "", "", channel, now
        )
        withdrawn_consent = replace(current_consent, state="withdrawn", withdrawn_at=now)
        with self._ledger.write(ctx) as tx:
            record = save_record(
                tx,
                withdrawn_consent.ref,
                withdrawn_consent,
                tx.get(withdrawn_consent.ref),
                person=person,
                purpose=purpose,
                state=withdrawn_consent.state,
            )
            tx.emit("privacy.withdraw", record.ref, purpose=purpose, person=person, channel=channel[:200])
        return withdrawn_consent

    @operation()
    def consents(
        self,
        ctx: CallContext,
        purpose: Annotated[str, "of one purpose only"] = "",
        subject: Annotated[str, "of one person only, by the identifier that the data carries"] = "",
        state: Annotated[str, "given or withdrawn"] = "",
        after: Annotated[str, "where the page before ended"] = "",
        limit: Annotated[int, "how many at most"] = 100,
    ) -> ConsentPage:
        """List consents, newest first; people are shown by pseudonym.

        Example:
            falaj privacy consents --purpose marketing --state withdrawn
        """
        if not 0 < limit <= MAX_PAGE_SIZE:
            raise Invalid(f"a page of {limit} consents", f"ask for 1 to {MAX_PAGE_SIZE} and follow `next`")
        person = self.compute_pseudonym(ctx, subject) if subject else ""
        filters = {"purpose": purpose, "person": person, "state": state}
        terms = {name: value for name, value in filters.items() if value}
        with self._ledger.read(ctx) as tx:
            page = tx.find(
                CONSENT_KIND, terms=terms, scopes=ctx.cells(CONSENT_KIND), newest_first=True, after=after, limit=limit
            )
        return ConsentPage(
            tuple(load_record(ConsentRecord, consent_record) for consent_record in page.records), page.next
        )

    def save_purpose(self, ctx: CallContext, purpose: ProcessingPurpose, *, is_new: bool) -> ProcessingPurpose:
        regimes = self.resolve_regimes(ctx, purpose.regimes)
        require_known_basis(purpose.basis, regimes)
        if missing_languages := list_missing_languages(purpose.text, LANGUAGES):
            raise Invalid(
                f"{purpose.name} has no words in {', '.join(missing_languages)}",
                "people are told in Arabic and in English",
            )
        if not 0 < purpose.retention_days <= MAX_RETENTION_DAYS or not regimes:
            raise Invalid(
                f"{purpose.retention_days} days, {len(regimes)} regimes", f"1 to {MAX_RETENTION_DAYS} days, one regime"
            )
        checked_purpose = replace(
            purpose, regimes=tuple(regime_item.id for regime_item in regimes), text=_require_texts(purpose.text)
        )
        if checked_purpose.dpia:
            Ref.parse(checked_purpose.dpia)
        with self._ledger.write(ctx) as tx:
            earlier_record = tx.get(make_ref(PURPOSE_KIND, purpose.name))
            if is_new and earlier_record is not None:
                raise Conflict(f"the purpose {purpose.name} exists already", "falaj privacy change-purpose changes it")
            record = save_record(tx, make_ref(PURPOSE_KIND, purpose.name), checked_purpose, earlier_record)
            if is_new:
                update_refusal_head(tx, ctx, purpose.name, 0.0)
            operation_name = "privacy.add_purpose" if is_new else "privacy.change_purpose"
            tx.emit(
                operation_name,
                record.ref,
                basis=checked_purpose.basis,
                regimes=",".join(checked_purpose.regimes),
                days=checked_purpose.retention_days,
            )
        return checked_purpose

    def require_consent_basis(self, tx: LedgerReader, purpose: str) -> None:
        basis = require_purpose(tx, purpose).basis
        if basis != CONSENT_BASIS:
            hint = "an objection or a restriction stops it: falaj privacy restrict --purpose"
            raise Conflict(f"{purpose} rests on {basis}, not on consent", hint)


def require_purpose(tx: LedgerReader, name: str) -> ProcessingPurpose:
    """A purpose that is registered, or NotFound."""
    record = tx.get(make_ref(PURPOSE_KIND, name))
    if record is None:
        raise NotFound(f"the purpose {name[:60]!r} is not registered", "falaj privacy add-purpose registers it")
    loaded_purpose: ProcessingPurpose = load_record(ProcessingPurpose, record)
    return loaded_purpose


def _find_standing_consent(tx: LedgerReader, person: str, purpose: str) -> ConsentRecord | None:
    matches = tx.find(CONSENT_KIND, terms={"person": person, "purpose": purpose, "state": "given"}, limit=1).records
    return load_record(ConsentRecord, matches[0]) if matches else None


def _require_texts(texts_by_language: Mapping[str, str]) -> dict[str, str]:
    return {
        language: require_text(f"what is said in {language}", language_text)
        for language, language_text in texts_by_language.items()
    }
