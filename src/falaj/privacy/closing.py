"""The house's part of an erasure: keys destroyed in every zone, steps written down, decisions, the certificate.

The rest runs beside whoever carries it out (erasing.py). Each step is written down when it is done, so whoever runs it
again goes on; and the certificate is given only once every step is there and every derived thing was decided about.
"""

import base64
from dataclasses import replace
from typing import Annotated

from falaj.core.context import Context
from falaj.core.errors import Conflict, Denied, Invalid, NotFound
from falaj.core.ref import Ref
from falaj.core.verb import verb
from falaj.privacy.asking import keep, read, shown
from falaj.privacy.records import ANSWERED, DECISIONS, ERASURE, OPEN, Certificate, Derived, Request, Signature
from falaj.privacy.refusing import Refusing, refusal_of
from falaj.privacy.shelf import check_digest, check_state, check_text, digest_of, named, spelled
from falaj.store.codec import from_plain, to_plain, to_stable_json
from falaj.store.ledger import Reader
from falaj.store.records import Record

CERTIFICATE, FORMAT = "certificate", "falaj-erasure/1"
STEPS = ("restrict", "keys", "features", "tables", "journal", "caches")
"""In this order."""
NOT_SEARCHED = (
    "what programs of jobs printed, and traces: they are kept for a time and then go",
    "what was carried out of the platform: the log says by whom and where to",
    "backups of the ledger: they hold no rows; the wrapped keys in them outlive the key until the tenant's is rotated",
    "weights of models: the decisions say what becomes of each",
)
_SAYS = "Evidence of what this platform did. It is no certification, and no legal opinion."


class Closing(Refusing):
    """How an erasure comes to its end."""

    @verb(reads=("request",), group="erase", outside=True)
    def shred(
        self,
        ctx: Context,
        request: Annotated[Ref, "which erasure"],
        subject: Annotated[str, "who, by the identifier that the data carries"],
    ) -> tuple[str, ...]:
        """Destroy a person's keys in every zone, for ever; gives the zones. Refused while the law keeps something.

        `falaj privacy erase` does this and all the rest.

        Example:
            falaj privacy shred subject-request:privacy/0199d2f0 784-1990-1234567-1
        """
        with self._ledger.read(ctx) as tx:
            found = self._erasure(tx, ctx, request, subject)
        if "restrict" not in found.steps:
            raise Conflict("the person is not restricted yet", f"falaj privacy erase {request} …", request)
        zones = tuple(sorted(self._zones.view(ctx).zones))
        for zone in zones:
            for name in (subject, spelled(subject)):
                self._keyring.subject_forget(ctx, zone, name, holds=found.held)
        return zones

    @verb(reads=("request",), group="erase")
    def step(
        self,
        ctx: Context,
        request: Annotated[Ref, "which erasure"],
        name: Annotated[str, f"what was done: {', '.join(STEPS)}; or holds, when it cannot go on"],
        found: Annotated[str, "what came of it"] = "",
        held: Annotated[tuple[str, ...], "what the law keeps, and why"] = (),
        derived: Annotated[dict[str, str] | None, "what needs a decision, and why"] = None,
    ) -> Request:
        """Write down that a step of an erasure was done. `falaj privacy erase` calls it.

        Example:
            falaj privacy step subject-request:privacy/0199d2f0 caches
        """
        if name not in (*STEPS, "holds"):
            raise Invalid(f"{name[:40]!r} is no step", f"one of {', '.join(STEPS)}")
        check_text("what came of it", found, empty=True)
        with self._ledger.write(ctx) as tx:
            old, record = read(tx, request)
            check_state(request, old.state, OPEN)
            known = {one.ref: one for one in old.derived}
            listed = {ref: known.get(ref, Derived(ref, why)) for ref, why in (derived or {}).items()}
            steps = {**old.steps, name: found} if name != "holds" else dict(old.steps)
            made = replace(old, steps=steps, held=held, derived=tuple({**known, **listed}.values()))
            tx.emit("privacy.step", keep(tx, made, record).ref, step=name, held=len(held), derived=len(listed))
        return shown(made, ctx.now())

    @verb(reads=("request",), group="approve")
    def decide(
        self,
        ctx: Context,
        request: Annotated[Ref, "which erasure"],
        thing: Annotated[str, "the model or dataset, as the request lists it"],
        decision: Annotated[str, "retrain, retire, or accept that it stays"],
        reason: Annotated[str, "why; people and authorities may read it"],
    ) -> Request:
        """Decide what becomes of a model or a dataset that learned from a person who is erased.

        Example:
            falaj privacy decide subject-request:privacy/0199d2f0 model:fraud/scorer@v3 retrain --reason "next week"
        """
        check_text("the reason", reason)
        if decision not in DECISIONS:
            raise Invalid(f"{decision[:40]!r} is no decision", f"one of {', '.join(DECISIONS)}")
        with self._ledger.write(ctx) as tx:
            old, record = read(tx, request)
            check_state(request, old.state, OPEN)
            if thing not in {one.ref for one in old.derived}:
                raise NotFound(f"{request} does not list {thing[:200]}", "falaj privacy request shows what it lists")
            said = {"decision": decision, "reason": reason, "by": ctx.actor.id, "at": ctx.now()}
            derived = tuple(replace(one, **said) if one.ref == thing else one for one in old.derived)  # type: ignore[arg-type]
            made = replace(old, derived=derived)
            tx.emit("privacy.decide", keep(tx, made, record).ref, thing=thing, decision=decision, reason=reason[:500])
        return shown(made, ctx.now())

    @verb(reads=("request",), group="erase", outside=True)
    def certify(
        self,
        ctx: Context,
        request: Annotated[Ref, "which erasure"],
        subject: Annotated[str, "who, by the identifier that the data carries"],
    ) -> Certificate:
        """End an erasure: every step done, every decision taken. Gives the certificate.

        Example:
            falaj privacy certify subject-request:privacy/0199d2f0 784-1990-1234567-1
        """
        with self._ledger.read(ctx) as tx:
            held = tx.get(_certificate(request))
            kept = tx.get(refusal_of(self._person(ctx, subject)))
        if held is None:
            # The person is nowhere any more, so nobody needs to look out for them, and their key may not stay there.
            for purpose in kept.body["purposes"] if kept else ():
                self._permit(ctx, subject, purpose, "erased")
            held = self._close(ctx, request, subject)
        if not held.body["proof"]:
            self._prove(ctx, held)
        return self.certificate(ctx, request)

    @verb(reads=("request",))
    def certificate(self, ctx: Context, request: Annotated[Ref, "which erasure"]) -> Certificate:
        """Show the certificate of an erasure: a signed statement, and the proof that the log holds it.

        Example:
            falaj privacy certificate subject-request:privacy/0199d2f0 --json
        """
        with self._ledger.read(ctx) as tx:
            record = tx.get(_certificate(request))
        if record is None or not record.body["proof"]:
            raise NotFound(f"{request} has no certificate yet", f"falaj privacy erase {request} …", request)
        found: Certificate = from_plain(Certificate, {one: record.body[one] for one in Certificate.__slots__})
        return found

    @verb(reads=("request",), group="write")
    def sign(
        self,
        ctx: Context,
        request: Annotated[Ref, "which request"],
        manifest: Annotated[str, "sha256: of the manifest of what is handed over"],
    ) -> Signature:
        """Sign the manifest of what is handed over to a person. `falaj privacy access` calls it.

        Example:
            falaj privacy sign subject-request:privacy/0199d2f0 sha256:9f…
        """
        check_digest(manifest)
        with self._ledger.write(ctx) as tx:
            _, record = read(tx, request)
            tx.emit("privacy.sign", record.ref, manifest=manifest)
        return self._signed(ctx, ctx.zone, manifest.encode())

    def _signed(self, ctx: Context, zone: str, data: bytes) -> Signature:
        key = self._keyring.log_signer(ctx.tenant, zone)
        public = base64.b64encode(key.public_key().public_bytes_raw()).decode()
        return Signature(digest_of(data), base64.b64encode(key.sign(data)).decode(), public)

    def _erasure(self, tx: Reader, ctx: Context, request: Ref, subject: str) -> Request:
        found, _ = read(tx, request)
        check_state(request, found.state, OPEN)
        if found.type != ERASURE:
            raise Invalid(f"{request} asks for {found.type}", "only an erasure erases", request)
        if "*" not in ctx.actor.projects:
            # What they do not see they would not erase, and the certificate would say too much.
            raise Denied("you see only some projects", "have somebody erase who sees all of them", request)
        if found.person != self._person(ctx, subject):
            raise Denied("this is not the person who asked", "check the identifier, letter by letter", request)
        return found

    def _close(self, ctx: Context, request: Ref, subject: str) -> Record:
        """The statement and the event that names it, together."""
        with self._ledger.write(ctx) as tx:
            old = self._erasure(tx, ctx, request, subject)
            record = tx.need(request.bare)
            _check_whole(old)
            now, due = ctx.now(), old.due
            zones = {one: self._person(ctx, subject, one) for one in sorted(self._zones.view(ctx).zones)}
            statement = to_stable_json({
                "format": FORMAT, "by": ctx.actor.id, "tenant": ctx.tenant, "request": str(old.ref), "people": zones,
                "received": old.received, "due": due, "clocks": to_plain(old.clocks), "closed": now,
                "overdue": bool(due) and now > due, "steps": dict(old.steps), "derived": to_plain(old.derived),
                "not_searched": NOT_SEARCHED, "says": _SAYS,
            })  # fmt: skip
            digest = digest_of(statement)
            made = replace(old, state=ANSWERED, answer=digest, closed_at=now)
            event = tx.emit("privacy.certify", keep(tx, made, record).ref, digest=digest, person=old.person)
            signed = self._signed(ctx, ctx.zone, statement)
            body = {"request": str(old.ref), "statement": statement.decode(), "digest": digest, "event": event.id}
            return tx.put(_certificate(request), {**body, **_kept(signed), "proof": None})

    def _prove(self, ctx: Context, record: Record) -> None:
        """The proof is made once and kept: it stays true for ever, and the certificate is always the same."""
        proof = to_plain(self._audit.prove(ctx, record.body["event"]))
        with self._ledger.write(ctx) as tx:
            kept = tx.put(record.key, {**record.body, "proof": proof}, rev=record.rev)
            tx.emit("privacy.prove", kept.ref, event=record.body["event"])


def _certificate(request: Ref) -> Ref:
    return named(CERTIFICATE, request.name)


def _kept(signed: Signature) -> dict[str, str]:
    return {"signature": signed.signature, "key": signed.key}


def _check_whole(found: Request) -> None:
    """Conflict while something is left to do."""
    if found.held:
        raise Conflict(f"the law keeps {len(found.held)} things: {found.held[0]}", "erase again when that has ended")
    if left := [one for one in STEPS if one not in found.steps]:
        raise Conflict(f"not done yet: {', '.join(left)}", f"falaj privacy erase {found.ref} …", found.ref)
    if open_ := [one.ref for one in found.derived if not one.decision]:
        hint = f"falaj privacy decide {found.ref} {open_[0]} retrain|retire|accept --reason …"
        raise Conflict(f"nobody decided about {', '.join(open_[:5])}", hint, found.ref)
