"""What people put into the log for others to hold them to: digests of what they made, and answers to access reviews."""

import re
from dataclasses import replace
from typing import Annotated

from falaj.audit import proofs, signed_note
from falaj.audit.log_sealing import LogSealer, SealedLog, ShortTransactionReads
from falaj.audit.records import InclusionProof, ReviewAnswer
from falaj.core.context import CallContext
from falaj.core.errors import Denied, Invalid, NotFound
from falaj.core.operation import operation
from falaj.core.ref import Ref
from falaj.govern.accounts import PEOPLE_PROJECT, make_person_key
from falaj.store.ledger import Ledger, LedgerWriter
from falaj.store.records import LedgerRecord, LoggedEvent

REVIEW_DECISIONS = ("kept", "removed")
MAX_TEXT_CHARS = 1000
_DIGEST_PATTERN = re.compile(r"sha256:[0-9a-f]{64}")


class AttestationOperations:
    """A part of the audit desk."""

    _ledger: Ledger
    sealer: LogSealer

    @operation(group="audit", has_outside_effects=True)
    def attest(
        self,
        ctx: CallContext,
        digest: Annotated[str, "sha256:… of what you vouch for"],
        about: Annotated[str, "what it is, in a few words"] = "",
        zone: Annotated[str, "the zone whose log is meant; your own when empty"] = "",
    ) -> InclusionProof:
        """Put a digest into the log under your name, and give the proof of it.

        The log does not say that what has this digest is true: it says who vouched for it, and when. The same digest
        again gives the same proof.

        Example:
            falaj audit attest sha256:9f… --about "evidence for AE-PDPL" --json > proof.json
        """
        zone = zone or ctx.zone
        if not _DIGEST_PATTERN.fullmatch(digest) or len(about) > MAX_TEXT_CHARS:
            raise Invalid("this is no digest, or the text is too long", "sha256: and 64 hex digits; 1000 letters")
        ref = Ref("voucher", zone, digest.removeprefix("sha256:"))

        def record_digest(tx: LedgerWriter) -> str:
            earlier_record = tx.get(ref)
            if earlier_record is not None:
                return str(earlier_record.body["event"])
            event = tx.emit("audit.attest", ref.at("r1"), digest=digest, about=about)
            tx.put(ref, {"event": event.id, "about": about})
            return event.id

        logged_event = self.find_event(ctx, self._ledger.retry(replace(ctx, zone=zone), record_digest))
        if logged_event.pos > self.open_log(ctx, zone).head.pos:
            self.sealer.seal_all(ctx, ctx.tenant, zone)
        return _create_first_proof(self.open_log(ctx, zone), logged_event)

    @operation(group="audit")
    def answer(
        self,
        ctx: CallContext,
        person: Annotated[str, "whose access was looked at"],
        decision: Annotated[str, "kept or removed"],
        reason: Annotated[str, "why"] = "",
    ) -> ReviewAnswer:
        """Record what an access review decided about an account. Nobody reviews their own.

        `removed` is a decision: whoever governs people carries it out, and until then it is a finding.

        Example:
            falaj audit answer layla kept --reason "still on the fraud team"
        """
        if decision not in REVIEW_DECISIONS or len(reason) > MAX_TEXT_CHARS:
            raise Invalid(
                f"{decision[:40]!r} is no answer, or the reason is too long", f"one of: {', '.join(REVIEW_DECISIONS)}"
            )
        ref = Ref("review", PEOPLE_PROJECT, person)
        with self._ledger.write(ctx) as tx:
            account_record = tx.key(make_person_key(ctx.tenant, person))
            if account_record is None or account_record.body.get("removed"):
                raise NotFound(f"there is no account {person[:64]!r}", "falaj people list shows those there are")
            _require_other_reviewer(ctx, person, str(account_record.body["subject"]))
            earlier_record = tx.get(ref)
            body = {
                "decision": decision, "reason": reason, "by": ctx.actor.id, "at": ctx.now(),
                "roles": list(account_record.body["roles"]),
            }  # fmt: skip
            record = tx.put(ref, body, rev=earlier_record.rev if earlier_record else None)
            tx.emit("audit.answer", record.ref, person=person, decision=decision, reason=reason)
        return _read_answer(record)

    @operation(group="audit")
    def answers(self, ctx: CallContext) -> tuple[ReviewAnswer, ...]:
        """List the newest answer of access reviews about each account.

        Example:
            falaj audit answers
        """
        with self._ledger.read(ctx) as tx:
            page = tx.find("review", project=PEOPLE_PROJECT, scopes=ctx.cells("review"), limit=10_000)
        return tuple(_read_answer(record) for record in page.records)

    def open_log(self, ctx: CallContext, zone: str) -> SealedLog:
        zone = zone or ctx.zone
        return SealedLog(ShortTransactionReads(self._ledger, replace(ctx, zone=zone)), ctx.tenant, zone)

    def find_event(self, ctx: CallContext, event_id: str) -> LoggedEvent:
        matches = self._ledger.tail(tenant=ctx.tenant, id=event_id, limit=1) if event_id else []
        if not matches:
            raise NotFound("there is no such event", "check the id; falaj audit log shows those you may see")
        return matches[0]


def _create_first_proof(log: SealedLog, logged_event: LoggedEvent) -> InclusionProof:
    """The proof under the first checkpoint that covers the event, by the log's own signatures: always the same one."""
    index, low, high = proofs.find_event_index(log, logged_event.pos), 1, log.head.number
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if log.checkpoint(middle).size > index else (middle + 1, high)
    checkpoint = log.checkpoint(low)
    text, lines = signed_note.split_note(checkpoint.note)
    log_lines = [line for line in lines if line.split(" ")[1] == checkpoint.origin]
    return replace(proofs.prove_event(log, logged_event, checkpoint), note=signed_note.join_note(text, *log_lines))


def _require_other_reviewer(ctx: CallContext, person: str, subject: str) -> None:
    actor = ctx.actor
    if actor.kind != "person" or actor.behalf:
        raise Denied("only people answer a review, as themselves", "sign in with your own account")
    if actor.id == person or (subject and subject == actor.subject):
        raise Denied("nobody reviews their own access", "ask another auditor or security officer")


def _read_answer(record: LedgerRecord) -> ReviewAnswer:
    body = record.body
    return ReviewAnswer(record.key.name, body["decision"], body["by"], body["at"], body["reason"], tuple(body["roles"]))
