"""Refusals: people who may not be used, for a purpose or at all, written down and made to count everywhere at once.

First into the online store, where every reader looks in the same round trip as for features; then into the ledger,
which jobs ask. Killed between the two it errs on the side of the person, and the same call again goes on.
"""

import re
from typing import Annotated

from falaj.core.context import Context
from falaj.core.errors import Invalid
from falaj.core.online import pack_rank
from falaj.core.ref import Ref
from falaj.core.verb import verb
from falaj.govern.refusals import EVERY, head_key, heads, space_of
from falaj.privacy.shelf import Shelf, check_text, every, named
from falaj.store.ledger import Writer

KIND = "refusal"
MOST_ASKED, _FEW = 10_000, 100
_ROW = pack_rank(0, 0, 0)
_WHOLE = re.compile(r"-?[0-9]{1,19}")
_INT64 = range(-(1 << 63), 1 << 63)


class Refusing(Shelf):
    """Who may not be used."""

    @verb(group="erase", outside=True)
    def restrict(
        self,
        ctx: Context,
        subject: Annotated[str, "who, by the identifier that the data carries; it is not written down"],
        reason: Annotated[str, "why, for the log; never the person's name"],
        purpose: Annotated[str, "only for this purpose; for all of them when empty"] = "",
    ) -> str:
        """Restrict a person: what is kept of them stays, and nothing reads it. Gives their pseudonym.

        With a purpose it is an objection to that purpose. It counts with the next online read; jobs are refused sets
        of personal data that were made before.

        Example:
            falaj privacy restrict 784-1990-1234567-1 --reason "accuracy contested, request 2027-114"
        """
        check_text("the reason", reason)
        return self._refuse(ctx, subject, _checked(purpose), reason)

    @verb(group="erase", outside=True)
    def lift(
        self,
        ctx: Context,
        subject: Annotated[str, "who, by the identifier that the data carries"],
        reason: Annotated[str, "why, for the log; never the person's name"],
        purpose: Annotated[str, "the purpose; the restriction for all of them when empty"] = "",
    ) -> str:
        """Lift a restriction or an objection. A consent that was taken back is given anew by `consent`.

        Example:
            falaj privacy lift 784-1990-1234567-1 --reason "corrected, request 2027-114"
        """
        check_text("the reason", reason)
        return self._permit(ctx, subject, _checked(purpose), reason)

    @verb(group="read")
    def refused(
        self,
        ctx: Context,
        subjects: Annotated[tuple[str, ...], "who, by the identifiers that the data carries"],
        purpose: Annotated[str, "what for; your own purpose when empty"] = "",
    ) -> tuple[bool, ...]:
        """Say of each of these people whether they may not be used for a purpose.

        Example:
            falaj privacy refused 784-1990-1234567-1 --purpose marketing
        """
        if not 0 < len(subjects) <= MOST_ASKED:
            raise Invalid(f"{len(subjects)} people", f"1 to {MOST_ASKED} at once")
        with self._ledger.read(ctx) as tx:
            asked = _checked(purpose) if purpose else ctx.purpose
            known = [name for name, one in heads(tx, ctx.tenant, asked).items() if one.body["last"]]
            if not known:
                return (False,) * len(subjects)
            people = [self._person(ctx, one) for one in subjects]
            if len(people) > _FEW:
                refusing = {one.key.name for name in known for one in every(tx, KIND, **{_term(name): "yes"})}
                return tuple(one in refusing for one in people)
            found = [tx.get(refusal_of(one)) for one in people]
        return tuple(one is not None and not one.body["purposes"].keys().isdisjoint(known) for one in found)

    @verb(group="erase", outside=True)
    def bar(
        self,
        ctx: Context,
        subjects: Annotated[tuple[str, ...], "who may be there, by the identifiers that the data carries"],
    ) -> int:
        """Put the marks of those among these people online who may not be used. `falaj privacy remark` finds them all.

        Example:
            falaj privacy bar 784-1990-1234567-1
        """
        if not 0 < len(subjects) <= MOST_ASKED:
            raise Invalid(f"{len(subjects)} people", f"1 to {MOST_ASKED} at once")
        with self._ledger.read(ctx) as tx:
            kept = {one.key.name: tuple(one.body["purposes"]) for one in every(tx, KIND)}
        named_here = {subject: kept.get(self._person(ctx, subject), ()) for subject in subjects}
        for subject, purposes in named_here.items():
            for purpose in purposes:
                self._bar(ctx, subject, purpose)
        return sum(bool(purposes) for purposes in named_here.values())

    def _refuse(self, ctx: Context, subject: str, purpose: str, reason: str) -> str:
        person, now = self._person(ctx, subject), ctx.now()
        self._bar(ctx, subject, purpose)
        with self._ledger.write(ctx) as tx:
            old = tx.get(ref := named(KIND, person))
            purposes = {**(old.body["purposes"] if old else {}), purpose: now}
            record = tx.put(ref, {"purposes": purposes}, rev=old.rev if old else None, terms=_terms(purposes))
            mark(tx, ctx, purpose, now)
            tx.emit("privacy.restrict", record.ref, purpose=purpose, reason=reason[:500])
        return person

    def _permit(self, ctx: Context, subject: str, purpose: str, reason: str) -> str:
        person = self._person(ctx, subject)
        with self._ledger.write(ctx) as tx:
            old = tx.get(named(KIND, person))
            if old is not None and purpose in old.body["purposes"]:
                purposes = {one: at for one, at in old.body["purposes"].items() if one != purpose}
                record = tx.put(old.key, {"purposes": purposes}, rev=old.rev, terms=_terms(purposes))
                if old.body["purposes"][purpose] == heads(tx, ctx.tenant, purpose)[purpose].body["last"]:
                    left = [one.body["purposes"][purpose] for one in every(tx, KIND, **{_term(purpose): "yes"})]
                    mark(tx, ctx, purpose, max(left, default=0.0))
                tx.emit("privacy.lift", record.ref, purpose=purpose, reason=reason[:500])
        self._unbar(ctx, subject, purpose)
        return person

    def _bar(self, ctx: Context, subject: str, purpose: str) -> None:
        for kind, key in keys_of(subject).items():
            self._online(ctx.tenant).put(space_of(ctx.tenant, purpose, kind), [(key, _ROW)], round(ctx.now() * 1e6))

    def _unbar(self, ctx: Context, subject: str, *purposes: str) -> None:
        for purpose in purposes:
            for kind, key in keys_of(subject).items():
                self._online(ctx.tenant).delete(space_of(ctx.tenant, purpose, kind), [key])


def mark(tx: Writer, ctx: Context, purpose: str, last: float) -> None:
    """Say since when somebody refuses a purpose; that there may be such people at all, from the first purpose on."""
    for name, at in {EVERY: None, purpose: last}.items():
        old = tx.key(head_key(ctx.tenant, name))
        if old is None or (at is not None and old.body["last"] != at):
            tx.put(head_key(ctx.tenant, name), {"last": at or 0.0}, rev=old.rev if old else None)


def refusal_of(person: str) -> Ref:
    """The record of what a person refuses."""
    return named(KIND, person)


def keys_of(subject: str) -> dict[str, bytes]:
    """The bytes of an identifier as online keys of each type it can be."""
    found = {"string": subject.encode()}
    if _WHOLE.fullmatch(subject) and int(subject) in _INT64:
        found["int64"] = int(subject).to_bytes(8, "little", signed=True)
    return found


def _checked(purpose: str) -> str:
    """A purpose that can be registered; all of them when none is named."""
    return named("purpose", purpose).name if purpose else EVERY


def _term(purpose: str) -> str:
    return f"for.{purpose}"


def _terms(purposes: dict[str, float]) -> dict[str, str]:
    return {_term(purpose): "yes" for purpose in purposes}
