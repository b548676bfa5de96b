"""The house's part of an erasure: keys destroyed in every zone, steps written down, decisions, the certificate.

The rest runs beside whoever carries it out (erasing.py). Each step is written down when it is done, so whoever runs it
again goes on; and the certificate is given only once every step is there and every derived thing was decided about.

A certificate says what was read back: its last step searches everything for the person once more, and none is issued
while a search finds them. It is *partial*, and says so in its title and state, where something could not be searched.
"""

import base64
from dataclasses import replace
from typing import Annotated

from falaj.core.context import CallContext
from falaj.core.errors import Conflict, Denied, Invalid, NotFound
from falaj.core.operation import operation
from falaj.core.ref import Ref
from falaj.privacy.person_search import SearchPage, forget_answers, read_search, save_search
from falaj.privacy.plan_records import DONE
from falaj.privacy.planning import ErasurePlanning, make_plan_ref, require_plan
from falaj.privacy.records import (
    ACCEPT,
    ANSWERED,
    DECISIONS,
    OPEN,
    DerivedItem,
    ErasureCertificate,
    SignedDigest,
    SubjectRequest,
)
from falaj.privacy.refusing import make_refusal_ref
from falaj.privacy.service_base import (
    compute_digest,
    encode_subject_hex,
    make_ref,
    require_digest,
    require_state,
    require_text,
    save_record,
)
from falaj.privacy.subject_requests import read_request, save_request, with_overdue
from falaj.store.codec import from_plain, to_plain, to_stable_json
from falaj.store.ledger import LedgerReader
from falaj.store.records import LedgerRecord

CERTIFICATE_KIND, STATEMENT_FORMAT = "certificate", "falaj-erasure/2"
ERASURE_STEPS = ("restrict", "keys", "features", "tables", "journal", "caches")
"""In this order."""
UNREACHABLE_PLACES = (
    "what was carried out of the platform: the log says by whom and where to",
    "copies of stores and ledgers that operators made outside the platform's own backups",
    "space that stores and disks freed and did not write over",
)
"""What no search by the platform can reach."""
STATE_COMPLETE, STATE_PARTIAL = "complete", "partial"
TITLES_BY_STATE = {
    STATE_COMPLETE: {
        "en": "Certificate of erasure: everything was searched after the erasure, and the person was not found",
        "ar": "شهادة محو كاملة: جرى البحث في جميع البيانات بعد المحو ولم يُعثر على أي بيانات تخص صاحب الطلب",
    },
    STATE_PARTIAL: {
        "en": "Partial certificate of erasure: the items listed were not searched, or are retained",
        "ar": "شهادة محو جزئية: العناصر المدرجة لم يشملها البحث أو يُحتفظ بها",
    },
}
_DISCLAIMER = "Evidence of what this platform did. It is no certification, and no legal opinion."


class ErasureCompletion(ErasurePlanning):
    """How an erasure comes to its end."""

    @operation(reads=("request",), group="erase", has_outside_effects=True)
    def shred(
        self,
        ctx: CallContext,
        request: Annotated[Ref, "which erasure"],
        subject: Annotated[str, "who, by the identifier that the data carries"],
    ) -> tuple[str, ...]:
        """Destroy a person's keys in every zone, for ever; gives the zones. Refused while a duty keeps any of theirs.

        `falaj privacy erase` does this and all the rest.

        Example:
            falaj privacy shred subject-request:privacy/0199d2f0 784-1990-1234567-1
        """
        with self._ledger.read(ctx) as tx:
            current_request = self.require_open_erasure(tx, ctx, request, subject)
        if "restrict" not in current_request.steps:
            raise Conflict("the person is not restricted yet", f"falaj privacy erase {request} …", request)
        with self._ledger.read(ctx) as tx:
            self.require_nothing_retained(tx, ctx, current_request)
        zones = tuple(sorted(self._zones.view(ctx).zones))
        for zone in zones:
            for name in (subject, encode_subject_hex(subject)):
                self._keyring.subject_forget(ctx, zone, name, legal_holds=current_request.held)
        return zones

    @operation(reads=("request",), group="erase")
    def step(
        self,
        ctx: CallContext,
        request: Annotated[Ref, "which erasure"],
        name: Annotated[str, f"what was done: {', '.join(ERASURE_STEPS)}"],
        found: Annotated[str, "what came of it"] = "",
        derived: Annotated[dict[str, str] | None, "what needs a decision, and why"] = None,
    ) -> SubjectRequest:
        """Write down that a step of an erasure was done. `falaj privacy erase` calls it.

        Example:
            falaj privacy step subject-request:privacy/0199d2f0 caches
        """
        if name not in ERASURE_STEPS:
            raise Invalid(f"{name[:40]!r} is no step", f"one of {', '.join(ERASURE_STEPS)}")
        require_text("what came of it", found, allow_empty=True)
        with self._ledger.write(ctx) as tx:
            current_request, record = read_request(tx, request)
            require_state(request, current_request.state, OPEN)
            derived_by_ref = {derived_item.ref: derived_item for derived_item in current_request.derived}
            listed_items = {
                ref: derived_by_ref.get(ref, DerivedItem(ref, item_reason))
                for ref, item_reason in (derived or {}).items()
            }
            steps, derivations = (
                {**current_request.steps, name: found},
                tuple({**derived_by_ref, **listed_items}.values()),
            )
            changed_request = replace(current_request, steps=steps, derived=derivations)
            tx.emit("privacy.step", save_request(tx, changed_request, record).ref, step=name, derived=len(listed_items))
        return with_overdue(changed_request, ctx.now())

    @operation(reads=("request",), group="approve")
    def decide(
        self,
        ctx: CallContext,
        request: Annotated[Ref, "which erasure"],
        thing: Annotated[str, "the model or dataset, as the request lists it"],
        decision: Annotated[str, "retrain, retire, or accept that it stays"],
        reason: Annotated[str, "why; people and authorities may read it"],
    ) -> SubjectRequest:
        """Decide what becomes of a model or a dataset that learned from a person who is erased.

        What is accepted unsearched makes the certificate partial, and it names who accepted. Where the person was found
        nothing is accepted.

        Example:
            falaj privacy decide subject-request:privacy/0199d2f0 model:fraud/scorer@v3 retrain --reason "next week"
        """
        require_text("the reason", reason)
        if decision not in DECISIONS:
            raise Invalid(f"{decision[:40]!r} is no decision", f"one of {', '.join(DECISIONS)}")
        with self._ledger.write(ctx) as tx:
            current_request, record = read_request(tx, request)
            require_state(request, current_request.state, OPEN)
            if thing not in {derived_item.ref for derived_item in current_request.derived}:
                raise NotFound(f"{request} does not list {thing[:200]}", "falaj privacy request shows what it lists")
            if decision == ACCEPT:
                _require_acceptable(tx, request, thing)
            decision_fields = {"decision": decision, "reason": reason, "by": ctx.actor.id, "at": ctx.now()}
            derived = tuple(
                replace(derived_item, **decision_fields) if derived_item.ref == thing else derived_item  # type: ignore[arg-type]
                for derived_item in current_request.derived
            )
            changed_request = replace(current_request, derived=derived)
            tx.emit(
                "privacy.decide",
                save_request(tx, changed_request, record).ref,
                thing=thing,
                decision=decision,
                reason=reason[:500],
            )
        return with_overdue(changed_request, ctx.now())

    @operation(reads=("request",), group="erase", has_outside_effects=True)
    def certify(
        self,
        ctx: CallContext,
        request: Annotated[Ref, "which erasure"],
        subject: Annotated[str, "who, by the identifier that the data carries"],
    ) -> ErasureCertificate:
        """End an erasure: every step done, every decision taken, everything read back. Gives the certificate.

        Refused while anything that can be searched still holds the person. The certificate is partial where something
        could not be searched.

        Example:
            falaj privacy certify subject-request:privacy/0199d2f0 784-1990-1234567-1
        """
        with self._ledger.read(ctx) as tx:
            certificate_record = tx.get(_make_certificate_ref(request))
            refusal_record = tx.get(make_refusal_ref(self.compute_pseudonym(ctx, subject)))
        if certificate_record is None:
            page = self.search_again(ctx, request, subject)
            # The person is nowhere any more, so nobody needs to look out for them, and their key may not stay there.
            for purpose in refusal_record.body["purposes"] if refusal_record else ():
                self.remove_refusal(ctx, subject, purpose, "erased")
            certificate_record = self.close_erasure(ctx, request, subject, page)
        if not certificate_record.body["proof"]:
            self.store_proof(ctx, certificate_record)
        return self.certificate(ctx, request)

    @operation(reads=("request",))
    def certificate(self, ctx: CallContext, request: Annotated[Ref, "which erasure"]) -> ErasureCertificate:
        """Show the certificate of an erasure: a signed statement, and the proof that the log holds it.

        Example:
            falaj privacy certificate subject-request:privacy/0199d2f0 --json
        """
        with self._ledger.read(ctx) as tx:
            record = tx.get(_make_certificate_ref(request))
        if record is None or not record.body["proof"]:
            raise NotFound(f"{request} has no certificate yet", f"falaj privacy erase {request} …", request)
        loaded_certificate: ErasureCertificate = from_plain(
            ErasureCertificate, {field_name: record.body[field_name] for field_name in ErasureCertificate.__slots__}
        )
        return loaded_certificate

    @operation(reads=("request",), group="write", has_outside_effects=True)
    def sign(
        self,
        ctx: CallContext,
        request: Annotated[Ref, "which request"],
        manifest: Annotated[str, "sha256: of the manifest of what is handed over"],
    ) -> SignedDigest:
        """Sign the manifest of what is handed over to a person, and prove that the log holds the event that names it.

        `falaj privacy access` calls it.

        Example:
            falaj privacy sign subject-request:privacy/0199d2f0 sha256:9f…
        """
        require_digest(manifest)
        with self._ledger.write(ctx) as tx:
            _, record = read_request(tx, request)
            event = tx.emit("privacy.sign", record.ref, manifest=manifest)
        signed_manifest = self.sign_data(ctx, ctx.zone, manifest.encode())
        return replace(signed_manifest, event=event.id, proof=self._audit.prove(ctx, event.id))

    def sign_data(self, ctx: CallContext, zone: str, data: bytes) -> SignedDigest:
        key = self._keyring.log_signer(ctx.tenant, zone)
        public = base64.b64encode(key.public_key().public_bytes_raw()).decode()
        return SignedDigest(compute_digest(data), base64.b64encode(key.sign(data)).decode(), public)

    def require_open_erasure(self, tx: LedgerReader, ctx: CallContext, request: Ref, subject: str) -> SubjectRequest:
        current_request, _ = read_request(tx, request)
        require_state(request, current_request.state, OPEN)
        self.require_eraser(ctx, current_request, subject)
        return current_request

    def search_again(self, ctx: CallContext, request: Ref, subject: str) -> SearchPage:
        """Search everything once more; Conflict where the person is still found."""
        with self._ledger.read(ctx) as tx:
            subject_request = self.require_open_erasure(tx, ctx, request, subject)
        _require_all_done(subject_request)
        page = self.search_all(self.search_case(ctx, subject_request, subject), request)
        with self._ledger.write(ctx) as tx:
            page = forget_answers(tx, page)
            save_search(tx, page)
        if page.matches:
            first_match = page.matches[0]
            raise Conflict(
                f"{len(page.matches)} sources still hold the person, the "
                f"first is {first_match.ref}: {first_match.reason}",
                f"delete or correct them, then falaj privacy erase {request} …",
                request,
            )
        return page

    def close_erasure(self, ctx: CallContext, request: Ref, subject: str, page: SearchPage) -> LedgerRecord:
        """The statement and the event that names it, together."""
        with self._ledger.write(ctx) as tx:
            current_request = self.require_open_erasure(tx, ctx, request, subject)
            record = tx.need(request.bare)
            _require_all_done(current_request)
            self.require_nothing_retained(tx, ctx, current_request)
            now, due = ctx.now(), current_request.due
            zones = {
                listed_item: self.compute_pseudonym(ctx, subject, listed_item)
                for listed_item in sorted(self._zones.view(ctx).zones)
            }
            accepted = [listed_item for listed_item in current_request.derived if listed_item.decision == ACCEPT]
            state = STATE_PARTIAL if page.unread or page.unlisted or accepted else STATE_COMPLETE
            statement = to_stable_json(
                {
                    "format": STATEMENT_FORMAT,
                    "state": state,
                    "title": TITLES_BY_STATE[state],
                    "by": ctx.actor.id,
                    "tenant": ctx.tenant,
                    "request": str(current_request.ref),
                    "people": zones,
                    "received": current_request.received,
                    "due": due,
                    "clocks": to_plain(current_request.clocks),
                    "closed": now,
                    "overdue": bool(due) and now > due,
                    "steps": dict(current_request.steps),
                    "derived": to_plain(current_request.derived),
                    "read_back": {"at": now, "searched": page.searched, "found": 0},
                    "not_searched": to_plain(page.unread),
                    "not_listed": page.unlisted,
                    "accepted": to_plain(accepted),
                    "outside": UNREACHABLE_PLACES,
                    "says": _DISCLAIMER,
                }
            )
            digest = compute_digest(statement)
            closed_request = replace(current_request, state=ANSWERED, answer=digest, closed_at=now)
            request_ref = save_request(tx, closed_request, record).ref
            event = tx.emit("privacy.certify", request_ref, digest=digest, person=current_request.person, state=state)
            signed_statement = self.sign_data(ctx, ctx.zone, statement)
            plan = replace(require_plan(tx, request), state=DONE)
            save_record(tx, make_plan_ref(request), plan, tx.need(make_plan_ref(request)))
            body = {
                "request": str(current_request.ref),
                "state": state,
                "statement": statement.decode(),
                "digest": digest,
                "event": event.id,
            }
            return tx.put(
                _make_certificate_ref(request), {**body, **_to_signature_fields(signed_statement), "proof": None}
            )

    def store_proof(self, ctx: CallContext, record: LedgerRecord) -> None:
        """The proof is made once and kept: it stays true for ever, and the certificate is always the same."""
        proof = to_plain(self._audit.prove(ctx, record.body["event"]))
        with self._ledger.write(ctx) as tx:
            saved_record = tx.put(record.key, {**record.body, "proof": proof}, rev=record.rev)
            tx.emit("privacy.prove", saved_record.ref, event=record.body["event"])


def _make_certificate_ref(request: Ref) -> Ref:
    return make_ref(CERTIFICATE_KIND, request.name)


def _to_signature_fields(signed: SignedDigest) -> dict[str, str]:
    return {"signature": signed.signature, "key": signed.key}


def _require_acceptable(tx: LedgerReader, request: Ref, resource_name: str) -> None:
    """Refuse to accept what was never searched for, and what holds the person."""
    page = read_search(tx, request)
    if page is None:
        raise Conflict(f"{request} was not searched to its end yet", f"falaj privacy erase {request} …", request)
    if resource_name in {search_match.ref for search_match in page.matches}:
        hint = f"take the person out of it, or delete it: falaj catalog delete {resource_name}"
        raise Denied(f"the person was found in {resource_name}, so it cannot be accepted", hint, request)


def _require_all_done(subject_request: SubjectRequest) -> None:
    """Conflict while something is left to do."""
    if subject_request.held:
        raise Conflict(
            f"the law keeps {len(subject_request.held)} things: {subject_request.held[0]}",
            "erase again when that has ended",
        )
    if missing_steps := [listed_item for listed_item in ERASURE_STEPS if listed_item not in subject_request.steps]:
        raise Conflict(
            f"not done yet: {', '.join(missing_steps)}",
            f"falaj privacy erase {subject_request.ref} …",
            subject_request.ref,
        )
    if undecided := [listed_item.ref for listed_item in subject_request.derived if not listed_item.decision]:
        hint = f"falaj privacy decide {subject_request.ref} {undecided[0]} retrain|retire|accept --reason …"
        raise Conflict(f"nobody decided about {', '.join(undecided[:5])}", hint, subject_request.ref)
