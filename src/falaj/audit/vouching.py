"""What people put into the log for others to hold them to: digests of what they made, and answers to access reviews."""

import re
from dataclasses import replace
from typing import Annotated

from falaj.audit import note, prove
from falaj.audit.records import Answer, Proof
from falaj.audit.seal import Log, Sealer, ShortReads
from falaj.core.context import Context
from falaj.core.errors import Denied, Invalid, NotFound
from falaj.core.ref import Ref
from falaj.core.verb import verb
from falaj.govern.accounts import PROJECT, person_key
from falaj.store.ledger import Ledger, Writer
from falaj.store.records import Fact, Record

ANSWERS = ("kept", "removed")
MOST_TEXT = 1000
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")


class Vouching:
    """A part of the audit desk."""

    _ledger: Ledger
    sealer: Sealer

    @verb(group="audit", outside=True)
    def attest(
        self,
        ctx: Context,
        digest: Annotated[str, "sha256:… of what you vouch for"],
        about: Annotated[str, "what it is, in a few words"] = "",
        zone: Annotated[str, "the zone whose log is meant; your own when empty"] = "",
    ) -> Proof:
        """Put a digest into the log under your name, and give the proof of it.

        The log does not say that what has this digest is true: it says who vouched for it, and when. The same digest
        again gives the same proof.

        Example:
            falaj audit attest sha256:9f… --about "evidence for AE-PDPL" --json > proof.json
        """
        zone = zone or ctx.zone
        if not _DIGEST.fullmatch(digest) or len(about) > MOST_TEXT:
            raise Invalid("this is no digest, or the text is too long", "sha256: and 64 hex digits; 1000 letters")
        ref = Ref("voucher", zone, digest.removeprefix("sha256:"))

        def keep(tx: Writer) -> str:
            known = tx.get(ref)
            if known is not None:
                return str(known.body["event"])
            event = tx.emit("audit.attest", ref.at("r1"), digest=digest, about=about)
            tx.put(ref, {"event": event.id, "about": about})
            return event.id

        fact = self._fact(ctx, self._ledger.retry(replace(ctx, zone=zone), keep))
        if fact.pos > self._log(ctx, zone).head.pos:
            self.sealer.seal_all(ctx, ctx.tenant, zone)
        return _first_proof(self._log(ctx, zone), fact)

    @verb(group="audit")
    def answer(
        self,
        ctx: Context,
        person: Annotated[str, "whose access was looked at"],
        decision: Annotated[str, "kept or removed"],
        reason: Annotated[str, "why"] = "",
    ) -> Answer:
        """Record what an access review decided about an account. Nobody reviews their own.

        `removed` is a decision: whoever governs people carries it out, and until then it is a finding.

        Example:
            falaj audit answer layla kept --reason "still on the fraud team"
        """
        if decision not in ANSWERS or len(reason) > MOST_TEXT:
            raise Invalid(f"{decision[:40]!r} is no answer, or the reason is too long", f"one of: {', '.join(ANSWERS)}")
        ref = Ref("review", PROJECT, person)
        with self._ledger.write(ctx) as tx:
            account = tx.key(person_key(ctx.tenant, person))
            if account is None or account.body.get("removed"):
                raise NotFound(f"there is no account {person[:64]!r}", "falaj people list shows those there are")
            _not_oneself(ctx, person, str(account.body["subject"]))
            old = tx.get(ref)
            body = {
                "decision": decision, "reason": reason, "by": ctx.actor.id, "at": ctx.now(),
                "roles": list(account.body["roles"]),
            }  # fmt: skip
            record = tx.put(ref, body, rev=old.rev if old else None)
            tx.emit("audit.answer", record.ref, person=person, decision=decision, reason=reason)
        return _answer(record)

    @verb(group="audit")
    def answers(self, ctx: Context) -> tuple[Answer, ...]:
        """List the newest answer of access reviews about each account.

        Example:
            falaj audit answers
        """
        with self._ledger.read(ctx) as tx:
            page = tx.find("review", project=PROJECT, cells=ctx.cells("review"), limit=10_000)
        return tuple(_answer(record) for record in page.records)

    def _log(self, ctx: Context, zone: str) -> Log:
        zone = zone or ctx.zone
        return Log(ShortReads(self._ledger, replace(ctx, zone=zone)), ctx.tenant, zone)

    def _fact(self, ctx: Context, event: str) -> Fact:
        found = self._ledger.tail(tenant=ctx.tenant, id=event, limit=1) if event else []
        if not found:
            raise NotFound("there is no such event", "check the id; falaj audit log shows those you may see")
        return found[0]


def _first_proof(log: Log, fact: Fact) -> Proof:
    """The proof under the first checkpoint that covers the event, by the log's own signatures: always the same one."""
    index, low, high = prove.index_of(log, fact.pos), 1, log.head.number
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if log.checkpoint(middle).size > index else (middle + 1, high)
    under = log.checkpoint(low)
    text, lines = note.split(under.note)
    own = [line for line in lines if line.split(" ")[1] == under.origin]
    return replace(prove.prove(log, fact, under), note=note.join(text, *own))


def _not_oneself(ctx: Context, person: str, subject: str) -> None:
    actor = ctx.actor
    if actor.kind != "person" or actor.behalf:
        raise Denied("only people answer a review, as themselves", "sign in with your own account")
    if actor.id == person or (subject and subject == actor.subject):
        raise Denied("nobody reviews their own access", "ask another auditor or security officer")


def _answer(record: Record) -> Answer:
    body = record.body
    return Answer(record.key.name, body["decision"], body["by"], body["at"], body["reason"], tuple(body["roles"]))
