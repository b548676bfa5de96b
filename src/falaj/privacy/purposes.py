"""Purposes and consent: what data is used for, on which basis, and who agreed to what and when they took it back."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated

from falaj.core.context import Context
from falaj.core.errors import Conflict, Invalid, NotFound
from falaj.core.ref import Ref
from falaj.core.verb import verb
from falaj.govern.supporting_documents import find_document
from falaj.privacy.decide import check_basis, missing_texts, moment_of
from falaj.privacy.records import LANGUAGES, Consent, ConsentPage, Purpose
from falaj.privacy.refusing import Refusing, mark
from falaj.privacy.shelf import MOST_PAGE, check_digest, check_text, every, load, named, save
from falaj.store.ledger import Reader

PURPOSE, CONSENT = "purpose", "consent"
CONSENTED = "consent"
"""The basis under which people must agree, and can take that back."""
MOST_DAYS = 36_525


class Purposes(Refusing):
    """What data is used for."""

    @verb(group="govern")
    def add_purpose(
        self,
        ctx: Context,
        name: Annotated[str, "one word, as labels and --purpose say it"],
        basis: Annotated[str, "why it is lawful: a basis that every regime knows"],
        regimes: Annotated[tuple[str, ...], "the regimes it stands under"],
        text: Annotated[dict[str, str], "what people are told: ar=… and en=…"],
        retention_days: Annotated[int, "how long data is kept for it"],
        dpia: Annotated[str, "the assessment it rests on, for example dpia:fraud/scoring"] = "",
    ) -> Purpose:
        """Register a purpose. Its lawful basis must be one that each of its regimes allows.

        Example:
            falaj privacy add-purpose marketing consent --regimes AE-PDPL --text ar=… --text en=… --retention-days 365
        """
        made = Purpose(name, basis, regimes, text, retention_days, dpia, ctx.now())
        return self._keep_purpose(ctx, made, new=True)

    @verb(group="govern")
    def change_purpose(
        self,
        ctx: Context,
        name: Annotated[str, "which purpose"],
        basis: Annotated[str, "another basis"] = "",
        regimes: Annotated[tuple[str, ...], "other regimes"] = (),
        text: Annotated[dict[str, str] | None, "other words, by language"] = None,
        retention_days: Annotated[int, "another time"] = 0,
        dpia: Annotated[str, "another assessment"] = "",
    ) -> Purpose:
        """Change a purpose: what is not given stays. Consents keep the hash of the words they were given on.

        Example:
            falaj privacy change-purpose marketing --retention-days 180
        """
        with self._ledger.read(ctx) as tx:
            old = need_purpose(tx, name)
        return self._keep_purpose(
            ctx,
            replace(
                old, basis=basis or old.basis, regimes=regimes or old.regimes, text={**old.text, **(text or {})},
                retention_days=retention_days or old.retention_days, dpia=dpia or old.dpia,
            ),
            new=False,
        )  # fmt: skip

    @verb()
    def purposes(self, ctx: Context) -> tuple[Purpose, ...]:
        """List the purposes that are registered.

        Example:
            falaj privacy purposes
        """
        with self._ledger.read(ctx) as tx:
            return tuple(load(Purpose, record) for record in every(tx, PURPOSE))

    @verb()
    def purpose(self, ctx: Context, name: Annotated[str, "which purpose"]) -> Purpose:
        """Show a purpose: its basis, its words in Arabic and English, how long data is kept for it.

        Example:
            falaj privacy purpose marketing
        """
        with self._ledger.read(ctx) as tx:
            return need_purpose(tx, name)

    @verb(group="write", outside=True)
    def consent(
        self,
        ctx: Context,
        purpose: Annotated[str, "what they agree to"],
        subject: Annotated[str, "who, by the identifier that the data carries; it is not written down"],
        text: Annotated[str, "sha256: of the exact words they saw"],
        language: Annotated[str, "ar or en"],
        channel: Annotated[str, "where they agreed, for example app or branch"],
        at: Annotated[str, "when, with offset: 2026-11-01T09:00:00+04:00; now when empty"] = "",
        document: Annotated[str, "what proves it, where something does: document:privacy/signed-form-71"] = "",
    ) -> Consent:
        """Record that a person agreed to a purpose. One who took it back before may be used again from now on.

        Example:
            falaj privacy consent marketing 784-1990-1234567-1 sha256:9f… ar app
        """
        person, moment = self._person(ctx, subject), moment_of(at, ctx.now())
        if language not in LANGUAGES:
            raise Invalid(f"{language[:20]!r} is no language of a notice here", f"one of {', '.join(LANGUAGES)}")
        check_text("the channel", channel)
        check_digest(text)
        with self._ledger.write(ctx) as tx:
            self._need_consent_basis(tx, purpose)
            if _standing(tx, person, purpose) is not None:
                raise Conflict("they agreed to this already", "falaj privacy consents shows it")
            proof = str(find_document(tx, "proof of consent", document).body["sha256"]) if document else ""
            made = Consent(named(CONSENT), person, purpose, text, language, channel, moment, document=proof)
            record = save(tx, made.ref, made, None, person=person, purpose=purpose, state=made.state, text=text)
            tx.emit("privacy.consent", record.ref, purpose=purpose, person=person, text=text, language=language)
        self._permit(ctx, subject, purpose, "they agreed")
        return made

    @verb(group="write", outside=True)
    def withdraw(
        self,
        ctx: Context,
        purpose: Annotated[str, "what they no longer agree to"],
        subject: Annotated[str, "who, by the identifier that the data carries; it is not written down"],
        channel: Annotated[str, "where they said so"] = "",
    ) -> Consent:
        """Record that a person takes their consent back: it counts with the next run and the next online score.

        What was lawful before stays lawful and recorded.

        Example:
            falaj privacy withdraw marketing 784-1990-1234567-1 --channel app
        """
        person = self._person(ctx, subject)
        with self._ledger.read(ctx) as tx:
            self._need_consent_basis(tx, purpose)
            held = _standing(tx, person, purpose)
        # Also for one whose consent is not known here: what they say now is clear.
        self._refuse(ctx, subject, purpose, "consent withdrawn")
        now = ctx.now()
        old = held or Consent(named(CONSENT), person, purpose, "", "", channel, now)
        gone = replace(old, state="withdrawn", withdrawn_at=now)
        with self._ledger.write(ctx) as tx:
            record = save(tx, gone.ref, gone, tx.get(gone.ref), person=person, purpose=purpose, state=gone.state)
            tx.emit("privacy.withdraw", record.ref, purpose=purpose, person=person, channel=channel[:200])
        return gone

    @verb()
    def consents(
        self,
        ctx: Context,
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
        if not 0 < limit <= MOST_PAGE:
            raise Invalid(f"a page of {limit} consents", f"ask for 1 to {MOST_PAGE} and follow `next`")
        person = self._person(ctx, subject) if subject else ""
        wanted = {"purpose": purpose, "person": person, "state": state}
        terms = {name: value for name, value in wanted.items() if value}
        with self._ledger.read(ctx) as tx:
            page = tx.find(CONSENT, terms=terms, cells=ctx.cells(CONSENT), newest=True, after=after, limit=limit)
        return ConsentPage(tuple(load(Consent, one) for one in page.records), page.next)

    def _keep_purpose(self, ctx: Context, made: Purpose, *, new: bool) -> Purpose:
        regimes = self._regimes(ctx, made.regimes)
        check_basis(made.basis, regimes)
        if lost := missing_texts(made.text, LANGUAGES):
            raise Invalid(f"{made.name} has no words in {', '.join(lost)}", "people are told in Arabic and in English")
        if not 0 < made.retention_days <= MOST_DAYS or not regimes:
            raise Invalid(f"{made.retention_days} days, {len(regimes)} regimes", f"1 to {MOST_DAYS} days, one regime")
        kept = replace(made, regimes=tuple(one.id for one in regimes), text=_checked(made.text))
        if kept.dpia:
            Ref.parse(kept.dpia)
        with self._ledger.write(ctx) as tx:
            old = tx.get(named(PURPOSE, made.name))
            if new and old is not None:
                raise Conflict(f"the purpose {made.name} exists already", "falaj privacy change-purpose changes it")
            record = save(tx, named(PURPOSE, made.name), kept, old)
            if new:
                mark(tx, ctx, made.name, 0.0)
            said = "privacy.add_purpose" if new else "privacy.change_purpose"
            tx.emit(said, record.ref, basis=kept.basis, regimes=",".join(kept.regimes), days=kept.retention_days)
        return kept

    def _need_consent_basis(self, tx: Reader, purpose: str) -> None:
        basis = need_purpose(tx, purpose).basis
        if basis != CONSENTED:
            hint = "an objection or a restriction stops it: falaj privacy restrict --purpose"
            raise Conflict(f"{purpose} rests on {basis}, not on consent", hint)


def need_purpose(tx: Reader, name: str) -> Purpose:
    """A purpose that is registered, or NotFound."""
    record = tx.get(named(PURPOSE, name))
    if record is None:
        raise NotFound(f"the purpose {name[:60]!r} is not registered", "falaj privacy add-purpose registers it")
    found: Purpose = load(Purpose, record)
    return found


def _standing(tx: Reader, person: str, purpose: str) -> Consent | None:
    found = tx.find(CONSENT, terms={"person": person, "purpose": purpose, "state": "given"}, limit=1).records
    return load(Consent, found[0]) if found else None


def _checked(text: Mapping[str, str]) -> dict[str, str]:
    return {language: check_text(f"what is said in {language}", said) for language, said in text.items()}
