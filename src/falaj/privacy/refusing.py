"""Refusals: people who may not be used, for a purpose or at all, written down and made to count everywhere at once.

First into the online store, where every reader looks in the same round trip as for features; then into the ledger,
which jobs ask. Killed between the two it errs on the side of the person, and the same call again goes on.
"""

import re
from typing import Annotated

from falaj.core.context import CallContext
from falaj.core.errors import Invalid
from falaj.core.online_rows import pack_rank
from falaj.core.operation import operation
from falaj.core.ref import Ref
from falaj.govern.refusals import EVERY_PURPOSE, hash_refused_space, make_head_key, read_heads
from falaj.privacy.service_base import PrivacyServiceBase, list_records, make_ref, require_text
from falaj.store.ledger import LedgerWriter

REFUSAL_KIND = "refusal"
MAX_SUBJECTS, _LOOKUP_LIMIT = 10_000, 100
_MARK_ROW = pack_rank(0, 0, 0)
_INTEGER_PATTERN = re.compile(r"-?[0-9]{1,19}")
_INT64_RANGE = range(-(1 << 63), 1 << 63)


class RefusalOperations(PrivacyServiceBase):
    """Who may not be used."""

    @operation(group="erase", has_outside_effects=True)
    def restrict(
        self,
        ctx: CallContext,
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
        require_text("the reason", reason)
        return self.add_refusal(ctx, subject, _require_purpose_name(purpose), reason)

    @operation(group="erase", has_outside_effects=True)
    def lift(
        self,
        ctx: CallContext,
        subject: Annotated[str, "who, by the identifier that the data carries"],
        reason: Annotated[str, "why, for the log; never the person's name"],
        purpose: Annotated[str, "the purpose; the restriction for all of them when empty"] = "",
    ) -> str:
        """Lift a restriction or an objection. A consent that was taken back is given anew by `consent`.

        Example:
            falaj privacy lift 784-1990-1234567-1 --reason "corrected, request 2027-114"
        """
        require_text("the reason", reason)
        return self.remove_refusal(ctx, subject, _require_purpose_name(purpose), reason)

    @operation(group="read")
    def refused(
        self,
        ctx: CallContext,
        subjects: Annotated[tuple[str, ...], "who, by the identifiers that the data carries"],
        purpose: Annotated[str, "what for; your own purpose when empty"] = "",
    ) -> tuple[bool, ...]:
        """Say of each of these people whether they may not be used for a purpose.

        Example:
            falaj privacy refused 784-1990-1234567-1 --purpose marketing
        """
        if not 0 < len(subjects) <= MAX_SUBJECTS:
            raise Invalid(f"{len(subjects)} people", f"1 to {MAX_SUBJECTS} at once")
        with self._ledger.read(ctx) as tx:
            checked_purpose = _require_purpose_name(purpose) if purpose else ctx.purpose
            refused_purposes = [
                name
                for name, listed_item in read_heads(tx, ctx.tenant, checked_purpose).items()
                if listed_item.body["last"]
            ]
            if not refused_purposes:
                return (False,) * len(subjects)
            pseudonyms = [self.compute_pseudonym(ctx, listed_item) for listed_item in subjects]
            if len(pseudonyms) > _LOOKUP_LIMIT:
                refusing_pseudonyms = {
                    listed_item.key.name
                    for name in refused_purposes
                    for listed_item in list_records(tx, REFUSAL_KIND, **{_make_term(name): "yes"})
                }
                return tuple(listed_item in refusing_pseudonyms for listed_item in pseudonyms)
            refusal_records = [tx.get(make_refusal_ref(listed_item)) for listed_item in pseudonyms]
        return tuple(
            listed_item is not None and not listed_item.body["purposes"].keys().isdisjoint(refused_purposes)
            for listed_item in refusal_records
        )

    @operation(group="erase", has_outside_effects=True)
    def bar(
        self,
        ctx: CallContext,
        subjects: Annotated[tuple[str, ...], "who may be there, by the identifiers that the data carries"],
    ) -> int:
        """Put the marks of those among these people online who may not be used. `falaj privacy remark` finds them all.

        Example:
            falaj privacy bar 784-1990-1234567-1
        """
        if not 0 < len(subjects) <= MAX_SUBJECTS:
            raise Invalid(f"{len(subjects)} people", f"1 to {MAX_SUBJECTS} at once")
        with self._ledger.read(ctx) as tx:
            purposes_by_pseudonym = {
                refusal_record.key.name: tuple(refusal_record.body["purposes"])
                for refusal_record in list_records(tx, REFUSAL_KIND)
            }
        purposes_by_subject = {
            subject: purposes_by_pseudonym.get(self.compute_pseudonym(ctx, subject), ()) for subject in subjects
        }
        for subject, purposes in purposes_by_subject.items():
            for purpose in purposes:
                self.put_online_marks(ctx, subject, purpose)
        return sum(bool(purposes) for purposes in purposes_by_subject.values())

    def add_refusal(self, ctx: CallContext, subject: str, purpose: str, reason: str) -> str:
        pseudonym, now = self.compute_pseudonym(ctx, subject), ctx.now()
        self.put_online_marks(ctx, subject, purpose)
        with self._ledger.write(ctx) as tx:
            earlier_record = tx.get(ref := make_ref(REFUSAL_KIND, pseudonym))
            purposes = {**(earlier_record.body["purposes"] if earlier_record else {}), purpose: now}
            record = tx.put(
                ref,
                {"purposes": purposes},
                rev=earlier_record.rev if earlier_record else None,
                terms=_make_terms(purposes),
            )
            update_refusal_head(tx, ctx, purpose, now)
            tx.emit("privacy.restrict", record.ref, purpose=purpose, reason=reason[:500])
        return pseudonym

    def remove_refusal(self, ctx: CallContext, subject: str, purpose: str, reason: str) -> str:
        pseudonym = self.compute_pseudonym(ctx, subject)
        with self._ledger.write(ctx) as tx:
            earlier_record = tx.get(make_ref(REFUSAL_KIND, pseudonym))
            if earlier_record is not None and purpose in earlier_record.body["purposes"]:
                purposes = {
                    listed_item: refused_at
                    for listed_item, refused_at in earlier_record.body["purposes"].items()
                    if listed_item != purpose
                }
                record = tx.put(
                    earlier_record.key, {"purposes": purposes}, rev=earlier_record.rev, terms=_make_terms(purposes)
                )
                if (
                    earlier_record.body["purposes"][purpose]
                    == read_heads(tx, ctx.tenant, purpose)[purpose].body["last"]
                ):
                    remaining_times = [
                        listed_item.body["purposes"][purpose]
                        for listed_item in list_records(tx, REFUSAL_KIND, **{_make_term(purpose): "yes"})
                    ]
                    update_refusal_head(tx, ctx, purpose, max(remaining_times, default=0.0))
                tx.emit("privacy.lift", record.ref, purpose=purpose, reason=reason[:500])
        self.delete_online_marks(ctx, subject, purpose)
        return pseudonym

    def put_online_marks(self, ctx: CallContext, subject: str, purpose: str) -> None:
        for kind, key in encode_subject_keys(subject).items():
            self.open_online_store(ctx.tenant).put(
                hash_refused_space(ctx.tenant, purpose, kind), [(key, _MARK_ROW)], round(ctx.now() * 1e6)
            )

    def delete_online_marks(self, ctx: CallContext, subject: str, *purposes: str) -> None:
        for purpose in purposes:
            for kind, key in encode_subject_keys(subject).items():
                self.open_online_store(ctx.tenant).delete(hash_refused_space(ctx.tenant, purpose, kind), [key])


def update_refusal_head(tx: LedgerWriter, ctx: CallContext, purpose: str, last_refused_at: float) -> None:
    """Say since when somebody refuses a purpose; that there may be such people at all, from the first purpose on."""
    for name, refused_at in {EVERY_PURPOSE: None, purpose: last_refused_at}.items():
        head_record = tx.key(make_head_key(ctx.tenant, name))
        if head_record is None or (refused_at is not None and head_record.body["last"] != refused_at):
            tx.put(
                make_head_key(ctx.tenant, name),
                {"last": refused_at or 0.0},
                rev=head_record.rev if head_record else None,
            )


def make_refusal_ref(person: str) -> Ref:
    """The record of what a person refuses."""
    return make_ref(REFUSAL_KIND, person)


def encode_subject_keys(subject: str) -> dict[str, bytes]:
    """The bytes of an identifier as online keys of each type it can be."""
    keys_by_type = {"string": subject.encode()}
    if _INTEGER_PATTERN.fullmatch(subject) and int(subject) in _INT64_RANGE:
        keys_by_type["int64"] = int(subject).to_bytes(8, "little", signed=True)
    return keys_by_type


def _require_purpose_name(purpose: str) -> str:
    """A purpose that can be registered; all of them when none is named."""
    return make_ref("purpose", purpose).name if purpose else EVERY_PURPOSE


def _make_term(purpose: str) -> str:
    return f"for.{purpose}"


def _make_terms(purposes: dict[str, float]) -> dict[str, str]:
    return {_make_term(purpose): "yes" for purpose in purposes}
