"""The house's part of an erasure: keys destroyed in every zone, steps written down, decisions, the certificate.

The rest runs beside whoever carries it out (erasing.py). Each step is written down when it is done, so whoever runs it
again goes on; and the certificate is given only once every step is there and every derived thing was decided about.

A certificate says what was read back: its last step searches everything for the person once more, and none is issued
while a search finds them. It is *partial*, and says so in its title and state, where something could not be searched.
"""

import base64
from dataclasses import replace
from typing import Annotated

from falaj.core.context import Context
from falaj.core.errors import Conflict, Denied, Invalid, NotFound
from falaj.core.ref import Ref
from falaj.core.verb import verb
from falaj.privacy.asking import keep, read, shown
from falaj.privacy.plan_records import DONE
from falaj.privacy.planning import Planning, need_plan, plan_ref
from falaj.privacy.records import ACCEPT, ANSWERED, DECISIONS, OPEN, Certificate, Derived, Request, Signature
from falaj.privacy.refusing import refusal_of
from falaj.privacy.searching import SearchPage, forget_answers, read_search, save_search
from falaj.privacy.shelf import check_digest, check_state, check_text, digest_of, named, save, spelled
from falaj.store.codec import from_plain, to_plain, to_stable_json
from falaj.store.ledger import Reader
from falaj.store.records import Record

CERTIFICATE, FORMAT = "certificate", "falaj-erasure/2"
STEPS = ("restrict", "keys", "features", "tables", "journal", "caches")
"""In this order."""
OUTSIDE = (
    "what was carried out of the platform: the log says by whom and where to",
    "copies of stores and ledgers that operators made outside the platform's own backups",
    "space that stores and disks freed and did not write over",
)
"""What no search by the platform can reach."""
COMPLETE, PARTIAL = "complete", "partial"
TITLES = {
    COMPLETE: {
        "en": "Certificate of erasure: everything was searched after the erasure, and the person was not found",
        "ar": "شهادة محو كاملة: جرى البحث في جميع البيانات بعد المحو ولم يُعثر على أي بيانات تخص صاحب الطلب",
    },
    PARTIAL: {
        "en": "Partial certificate of erasure: the items listed were not searched, or are retained",
        "ar": "شهادة محو جزئية: العناصر المدرجة لم يشملها البحث أو يُحتفظ بها",
    },
}
_SAYS = "Evidence of what this platform did. It is no certification, and no legal opinion."


class Closing(Planning):
    """How an erasure comes to its end."""

    @verb(reads=("request",), group="erase", outside=True)
    def shred(
        self,
        ctx: Context,
        request: Annotated[Ref, "which erasure"],
        subject: Annotated[str, "who, by the identifier that the data carries"],
    ) -> tuple[str, ...]:
        """Destroy a person's keys in every zone, for ever; gives the zones. Refused while a duty keeps any of theirs.

        `falaj privacy erase` does this and all the rest.

        Example:
            falaj privacy shred subject-request:privacy/0199d2f0 784-1990-1234567-1
        """
        with self._ledger.read(ctx) as tx:
            found = self._erasure(tx, ctx, request, subject)
        if "restrict" not in found.steps:
            raise Conflict("the person is not restricted yet", f"falaj privacy erase {request} …", request)
        with self._ledger.read(ctx) as tx:
            self._check_unretained(tx, ctx, found)
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
        name: Annotated[str, f"what was done: {', '.join(STEPS)}"],
        found: Annotated[str, "what came of it"] = "",
        derived: Annotated[dict[str, str] | None, "what needs a decision, and why"] = None,
    ) -> Request:
        """Write down that a step of an erasure was done. `falaj privacy erase` calls it.

        Example:
            falaj privacy step subject-request:privacy/0199d2f0 caches
        """
        if name not in STEPS:
            raise Invalid(f"{name[:40]!r} is no step", f"one of {', '.join(STEPS)}")
        check_text("what came of it", found, empty=True)
        with self._ledger.write(ctx) as tx:
            old, record = read(tx, request)
            check_state(request, old.state, OPEN)
            known = {one.ref: one for one in old.derived}
            listed = {ref: known.get(ref, Derived(ref, why)) for ref, why in (derived or {}).items()}
            steps, derivations = {**old.steps, name: found}, tuple({**known, **listed}.values())
            made = replace(old, steps=steps, derived=derivations)
            tx.emit("privacy.step", keep(tx, made, record).ref, step=name, derived=len(listed))
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

        What is accepted unsearched makes the certificate partial, and it names who accepted. Where the person was found
        nothing is accepted.

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
            if decision == ACCEPT:
                _check_acceptable(tx, request, thing)
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
        """End an erasure: every step done, every decision taken, everything read back. Gives the certificate.

        Refused while anything that can be searched still holds the person. The certificate is partial where something
        could not be searched.

        Example:
            falaj privacy certify subject-request:privacy/0199d2f0 784-1990-1234567-1
        """
        with self._ledger.read(ctx) as tx:
            held = tx.get(_certificate(request))
            kept = tx.get(refusal_of(self._person(ctx, subject)))
        if held is None:
            page = self._read_back(ctx, request, subject)
            # The person is nowhere any more, so nobody needs to look out for them, and their key may not stay there.
            for purpose in kept.body["purposes"] if kept else ():
                self._permit(ctx, subject, purpose, "erased")
            held = self._close(ctx, request, subject, page)
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

    @verb(reads=("request",), group="write", outside=True)
    def sign(
        self,
        ctx: Context,
        request: Annotated[Ref, "which request"],
        manifest: Annotated[str, "sha256: of the manifest of what is handed over"],
    ) -> Signature:
        """Sign the manifest of what is handed over to a person, and prove that the log holds the event that names it.

        `falaj privacy access` calls it.

        Example:
            falaj privacy sign subject-request:privacy/0199d2f0 sha256:9f…
        """
        check_digest(manifest)
        with self._ledger.write(ctx) as tx:
            _, record = read(tx, request)
            event = tx.emit("privacy.sign", record.ref, manifest=manifest)
        signed = self._signed(ctx, ctx.zone, manifest.encode())
        return replace(signed, event=event.id, proof=self._audit.prove(ctx, event.id))

    def _signed(self, ctx: Context, zone: str, data: bytes) -> Signature:
        key = self._keyring.log_signer(ctx.tenant, zone)
        public = base64.b64encode(key.public_key().public_bytes_raw()).decode()
        return Signature(digest_of(data), base64.b64encode(key.sign(data)).decode(), public)

    def _erasure(self, tx: Reader, ctx: Context, request: Ref, subject: str) -> Request:
        found, _ = read(tx, request)
        check_state(request, found.state, OPEN)
        self._check_eraser(ctx, found, subject)
        return found

    def _read_back(self, ctx: Context, request: Ref, subject: str) -> SearchPage:
        """Search everything once more; Conflict where the person is still found."""
        with self._ledger.read(ctx) as tx:
            asked = self._erasure(tx, ctx, request, subject)
        _check_whole(asked)
        page = self.search_all(self.search_case(ctx, asked, subject), request)
        with self._ledger.write(ctx) as tx:
            page = forget_answers(tx, page)
            save_search(tx, page)
        if page.matches:
            first = page.matches[0]
            raise Conflict(
                f"{len(page.matches)} sources still hold the person, the first is {first.ref}: {first.reason}",
                f"delete or correct them, then falaj privacy erase {request} …", request,
            )  # fmt: skip
        return page

    def _close(self, ctx: Context, request: Ref, subject: str, page: SearchPage) -> Record:
        """The statement and the event that names it, together."""
        with self._ledger.write(ctx) as tx:
            old = self._erasure(tx, ctx, request, subject)
            record = tx.need(request.bare)
            _check_whole(old)
            self._check_unretained(tx, ctx, old)
            now, due = ctx.now(), old.due
            zones = {one: self._person(ctx, subject, one) for one in sorted(self._zones.view(ctx).zones)}
            accepted = [one for one in old.derived if one.decision == ACCEPT]
            state = PARTIAL if page.unread or page.unlisted or accepted else COMPLETE
            statement = to_stable_json({
                "format": FORMAT, "state": state, "title": TITLES[state], "by": ctx.actor.id, "tenant": ctx.tenant,
                "request": str(old.ref), "people": zones,
                "received": old.received, "due": due, "clocks": to_plain(old.clocks), "closed": now,
                "overdue": bool(due) and now > due, "steps": dict(old.steps), "derived": to_plain(old.derived),
                "read_back": {"at": now, "searched": page.searched, "found": 0},
                "not_searched": to_plain(page.unread), "not_listed": page.unlisted, "accepted": to_plain(accepted),
                "outside": OUTSIDE, "says": _SAYS,
            })  # fmt: skip
            digest = digest_of(statement)
            made = replace(old, state=ANSWERED, answer=digest, closed_at=now)
            written = keep(tx, made, record).ref
            event = tx.emit("privacy.certify", written, digest=digest, person=old.person, state=state)
            signed = self._signed(ctx, ctx.zone, statement)
            plan = replace(need_plan(tx, request), state=DONE)
            save(tx, plan_ref(request), plan, tx.need(plan_ref(request)))
            body = {
                "request": str(old.ref),
                "state": state,
                "statement": statement.decode(),
                "digest": digest,
                "event": event.id,
            }
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


def _check_acceptable(tx: Reader, request: Ref, thing: str) -> None:
    """Refuse to accept what was never searched for, and what holds the person."""
    page = read_search(tx, request)
    if page is None:
        raise Conflict(f"{request} was not searched to its end yet", f"falaj privacy erase {request} …", request)
    if thing in {found.ref for found in page.matches}:
        hint = f"take the person out of it, or delete it: falaj catalog delete {thing}"
        raise Denied(f"the person was found in {thing}, so it cannot be accepted", hint, request)


def _check_whole(found: Request) -> None:
    """Conflict while something is left to do."""
    if found.held:
        raise Conflict(f"the law keeps {len(found.held)} things: {found.held[0]}", "erase again when that has ended")
    if left := [one for one in STEPS if one not in found.steps]:
        raise Conflict(f"not done yet: {', '.join(left)}", f"falaj privacy erase {found.ref} …", found.ref)
    if open_ := [one.ref for one in found.derived if not one.decision]:
        hint = f"falaj privacy decide {found.ref} {open_[0]} retrain|retire|accept --reason …"
        raise Conflict(f"nobody decided about {', '.join(open_[:5])}", hint, found.ref)
