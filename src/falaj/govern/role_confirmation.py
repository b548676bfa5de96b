"""Confirmation of accounts: a second person confirms who holds an account before it approves or reads labelled data.

An administrator makes accounts and their enrolment codes, and could invent people who then approve, or read data. So a
role that decides (`DECIDING_ROLES`) counts, and labelled data may be read (guard-unconfirmed in guardrails.cedar), only
after somebody who already decides, and who neither asked for it nor made the account, has confirmed the holder of this
very enrolment. A tenant's first security officer comes from outside the tenant (`people.appoint_officer`). Not for
people of an identity provider: the provider proves who they are.
"""

import hashlib
from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime

from falaj.core.context import CallContext
from falaj.core.ref import Ref
from falaj.govern.accounts import PEOPLE_PROJECT, AccountDirectory, collect_permissions, make_person_key, read_person
from falaj.govern.approvals import DAY_S, ApprovalService
from falaj.govern.people_records import AccountPerson
from falaj.govern.records import ApprovalQuestion, ApprovalState
from falaj.store.ledger import LedgerWriter

CONFIRM_ACTION = "people.confirm"
DECIDING_ROLES = ("security-officer", "approver", "dpo")
"""Roles that approve what others ask for. Whoever holds one may confirm them for another account."""
CONFIRM_DAYS = 30


def split_roles(roles: Iterable[str], confirmed_roles: Iterable[str] = ()) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """(roles that count at once, deciding roles that wait for confirmation)."""
    waiting_roles = set(roles) & set(DECIDING_ROLES) - set(confirmed_roles)
    return tuple(sorted(set(roles) - waiting_roles)), tuple(sorted(waiting_roles))


def needs_confirmation(person: AccountPerson) -> bool:
    """True for an enrolled account with deciding roles that wait, or with roles that read data and no confirmation."""
    reads_data = any(group in ("read", "move", "erase") for _, group in collect_permissions(person.roles))
    return bool(person.enrolled and (person.requested_roles or (reads_data and not person.confirmed)))


def digest_enrolment(tenant: str, person: AccountPerson) -> str:
    """The digest of one enrolment of an account and of the roles it waits for: another enrolment has another."""
    text = "\0".join((tenant, person.name, ",".join(sorted(person.requested_roles)), repr(person.enrolled)))
    return f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"


def make_fingerprint(digest: str) -> str:
    """The first eight hexadecimal digits of a digest, to be read aloud."""
    start = digest.removeprefix("sha256:")[:8]
    return f"{start[:4]}-{start[4:]}"


class RoleConfirmation:
    """Asks for the confirmation of an enrolled account, and puts it and its deciding roles in force once given."""

    def __init__(self, accounts: AccountDirectory, approvals: ApprovalService) -> None:
        self._accounts = accounts
        self._approvals = approvals
        approvals.on_granted(CONFIRM_ACTION, self._grant_roles)

    def request(
        self,
        ctx: CallContext,
        tx: LedgerWriter,
        person: AccountPerson,
        asker: str,
        asker_makers: tuple[str, ...],
        peer_address: str = "",
    ) -> ApprovalState:
        """Ask for the confirmation of `person`, an enrolled account of the tenant of `ctx`."""
        digest = digest_enrolment(ctx.tenant, person)
        enrolled_text = datetime.fromtimestamp(person.enrolled, UTC).isoformat(" ", "minutes")
        effect_text = f"gets the role {', '.join(person.requested_roles)}" if person.requested_roles else ""
        if not person.confirmed:
            effect_text += f"{' and ' if effect_text else ''}reads labelled data"
        question = ApprovalQuestion(
            action=CONFIRM_ACTION,
            digest=digest,
            needs=1,
            dpo=0,
            roles=DECIDING_ROLES,
            asker=asker,
            barred=(person.name, self._accounts.person_of(ctx.tenant, person.name), asker),
            reason=(
                f"{person.name} {effect_text}: confirm that the real person enrolled at {enrolled_text} "
                f"UTC{f' from {peer_address}' if peer_address else ''} and "
                f"reads you the fingerprint {make_fingerprint(digest)}"
            ),
            asked=ctx.now(),
            expires=ctx.now() + CONFIRM_DAYS * DAY_S,
            about=str(Ref("person", PEOPLE_PROJECT, person.name)),
            asker_makers=asker_makers,
        )
        return self._approvals.propose(ctx, tx, question)

    def _grant_roles(self, ctx: CallContext, tx: LedgerWriter, approval: ApprovalQuestion) -> None:
        """Mark the account as confirmed, unless it was enrolled anew or changed since; its deciding roles count now."""
        name = Ref.parse(approval.about).name
        record = tx.key(make_person_key(ctx.tenant, name))
        if record is None or record.body.get("removed"):
            return
        person = read_person(record)
        if digest_enrolment(ctx.tenant, person) != approval.digest:
            return
        roles = sorted({*person.roles, *person.requested_roles})
        changed_fields = {"roles": roles, "requested_roles": [], "confirmed": ctx.now()}
        tx.put(record.key, {**record.body, **changed_fields}, rev=record.rev)
        self._accounts.changing(tx, record.key)
        tx.emit(CONFIRM_ACTION, record.ref, roles=",".join(person.requested_roles), enrolled=person.enrolled)


def await_confirmation(person: AccountPerson) -> AccountPerson:
    """The person unconfirmed, with every deciding role among those that wait: each enrolment is confirmed anew."""
    roles, waiting = split_roles((*person.roles, *person.requested_roles))
    return replace(person, roles=roles, requested_roles=waiting, confirmed=0.0)
