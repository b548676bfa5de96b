"""Notices to data protection officers: what they must be told, whom it was delivered to, and who has seen it.

A notice is written in the same transaction as what it tells of. Its delivery is the officer's own list of notices
(and the console's approvals page); hooks on the event `approvals.notify` carry it further, for example by mail. Opening
a list changes nothing: an officer confirms a notice, or answers its question; either is recorded as seen.
"""

from dataclasses import field, replace
from typing import Annotated, ClassVar

from falaj.core.context import CallContext
from falaj.core.data import dataclass
from falaj.core.errors import Denied, Invalid
from falaj.core.event import generate_id
from falaj.core.operation import operation
from falaj.core.ref import Ref
from falaj.govern.accounts import PEOPLE_PROJECT, read_person
from falaj.store.codec import from_plain, to_plain
from falaj.store.ledger import Ledger, LedgerReader, LedgerWriter
from falaj.store.records import LedgerRecord, with_next_cursor

NOTICE_KIND, NOTICES_PROJECT = "notice", "approvals"
OFFICER_ROLE = "dpo"
_PAGE_SIZE = 1000


@dataclass(frozen=True, slots=True)
class NoticeDelivery:
    """One officer's copy of a notice."""

    account: str
    delivered_at: float
    seen_at: float = 0.0


@dataclass(frozen=True, slots=True)
class OfficerNotice:
    """What the data protection officers were told, about what, and who has seen it."""

    COLUMNS: ClassVar = ("name", "subject", "about", "sent_at", "deliveries")

    name: Ref
    subject: str
    about: str
    """The thing, for example grant:zones/g-…"""
    approval: str
    """The question that waits for an officer's voice; empty where the notice asks nothing."""
    sent_at: float
    deliveries: tuple[NoticeDelivery, ...] = field(default=())
    more: str = ""
    """On the last of a list that goes on: `after` of what follows."""


class NoticeOperations:
    """A part of the approvals service."""

    _ledger: Ledger

    @operation()
    def notices(
        self,
        ctx: CallContext,
        unseen: Annotated[bool, "only those that you have not confirmed"] = False,
        limit: Annotated[int, "the largest number of notices, newest first"] = 100,
        after: Annotated[str, "`more` of the last one before"] = "",
    ) -> tuple[OfficerNotice, ...]:
        """List what the data protection officers were told, and who has seen it.

        Example:
            falaj approvals notices --unseen
        """
        scopes = ctx.cells(NOTICE_KIND)
        with self._ledger.read(ctx) as tx:
            page = tx.find(NOTICE_KIND, scopes=scopes, newest_first=True, after=after, limit=limit)
        notices = [_read_notice(record) for record in page.records]
        return with_next_cursor(
            [notice_item for notice_item in notices if not unseen or not has_seen(notice_item, ctx.actor.id)], page.next
        )

    @operation(writes=("notice",))
    def confirm(self, ctx: CallContext, notice: Annotated[Ref, "the notice, as notices shows it"]) -> OfficerNotice:
        """Confirm, as a data protection officer, that you have seen a notice.

        Example:
            falaj approvals confirm notice:approvals/0199…
        """
        if notice.kind != NOTICE_KIND:
            raise Invalid(
                f"{notice} is a {notice.kind}: expected a notice", "falaj approvals notices lists them", notice
            )
        if OFFICER_ROLE not in ctx.actor.roles or ctx.actor.behalf:
            raise Denied(
                "a notice is confirmed by a data protection officer, in person", f"role {OFFICER_ROLE}", notice
            )
        with self._ledger.write(ctx) as tx:
            return mark_seen(ctx, tx, tx.need(notice.bare))


def notify_officers(
    ctx: CallContext, tx: LedgerWriter, subject: str, about: Ref, approval: Ref | None = None
) -> OfficerNotice:
    """Write a notice to every active officer of the tenant in the caller's transaction."""
    now = ctx.now()
    deliveries = tuple(NoticeDelivery(account, now) for account in find_officers(tx, ctx.tenant))
    question = str(approval or "")
    notice = OfficerNotice(
        Ref(NOTICE_KIND, NOTICES_PROJECT, generate_id()), subject, str(about.bare), question, now, deliveries
    )
    record = tx.put(notice.name, to_plain(notice), terms={"approval": question})
    accounts = ",".join(delivery.account for delivery in deliveries)
    tx.emit("approvals.notify", record.ref, (about,), text=subject, role=OFFICER_ROLE, accounts=accounts)
    return notice


def find_officers(tx: LedgerReader, tenant: str) -> tuple[str, ...]:
    """Return the active accounts of a tenant that hold the officer's role."""
    officers, after = list[str](), ""
    while True:
        page = tx.find("person", project=PEOPLE_PROJECT, tenant=tenant, after=after, limit=_PAGE_SIZE)
        accounts = [read_person(record) for record in page.records if not record.body.get("removed")]
        officers += [
            account_person.name
            for account_person in accounts
            if OFFICER_ROLE in account_person.roles and not account_person.suspended
        ]
        after = page.next
        if not after:
            return tuple(sorted(officers))


def mark_notices_answered(ctx: CallContext, tx: LedgerWriter, approval: Ref) -> None:
    """Mark the notices about a question as seen by the officer who just answered it."""
    if OFFICER_ROLE in ctx.actor.roles:
        for record in tx.find(NOTICE_KIND, terms={"approval": str(approval.bare)}, limit=_PAGE_SIZE).records:
            mark_seen(ctx, tx, record)


def mark_seen(ctx: CallContext, tx: LedgerWriter, record: LedgerRecord) -> OfficerNotice:
    """Record that the caller has seen a notice; the first time counts."""
    notice = _read_notice(record)
    account, now = ctx.actor.id, ctx.now()
    if has_seen(notice, account):
        return notice
    other_deliveries = tuple(delivery for delivery in notice.deliveries if delivery.account != account)
    own_delivery = next(
        (delivery for delivery in notice.deliveries if delivery.account == account), NoticeDelivery(account, now)
    )
    changed_notice = replace(notice, deliveries=(*other_deliveries, replace(own_delivery, seen_at=now)))
    tx.put(record.ref.bare, to_plain(changed_notice), rev=record.rev, terms=dict(record.terms))
    tx.emit("approvals.seen", record.ref, account=account)
    return changed_notice


def has_seen(notice: OfficerNotice, account: str) -> bool:
    """True when this account has confirmed the notice."""
    return any(delivery.account == account and delivery.seen_at for delivery in notice.deliveries)


def _read_notice(record: LedgerRecord) -> OfficerNotice:
    notice: OfficerNotice = from_plain(OfficerNotice, record.body)
    return notice
