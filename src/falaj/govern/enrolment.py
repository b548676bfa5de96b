"""Enrolment codes: how a person gets a token that no one else ever holds.

An administrator makes a code; the person redeems it once, without any other credential, and only the redeemer sees the
token. The ledger keeps the hash of a code, who made it, and who redeemed it from where. Redeeming a code
a second time is refused with that reason and leaves an event, so that a stolen code is noticed.
"""

import hashlib
import hmac
import re
import secrets
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from falaj.core.context import SYSTEM_TENANT, Actor, CallContext
from falaj.core.errors import Conflict, Unauthenticated
from falaj.core.ports import RecordKey
from falaj.core.ref import Ref
from falaj.govern.accounts import (
    PEOPLE_PROJECT,
    AccountDirectory,
    TokenGrant,
    generate_token_id,
    list_credential_makers,
    make_person_body,
    make_person_key,
    read_person,
)
from falaj.govern.people_records import AccountPerson, EnrolmentTicket, IssuedToken
from falaj.govern.role_confirmation import RoleConfirmation, await_confirmation, make_fingerprint, needs_confirmation
from falaj.store.ledger import Ledger, LedgerWriter
from falaj.store.records import LedgerRecord

CODE_HOURS = 72.0
"""Hours within which a code must be redeemed."""
CODE_PREFIX = "fje_"
_CODE_PATTERN = re.compile(r"fje_([0-9a-z]{16})_([A-Za-z0-9_-]{43})")


class EnrolmentCodes:
    """Makes and redeems enrolment codes."""

    def __init__(self, ledger: Ledger, accounts: AccountDirectory, confirmation: RoleConfirmation) -> None:
        self._ledger = ledger
        self._accounts = accounts
        self._confirmation = confirmation

    def issue_code(
        self,
        tx: LedgerWriter,
        ctx: CallContext,
        tenant: str,
        person: AccountPerson,
        lifetime_hours: tuple[float, float],
        *,
        is_confirmed: bool = False,
    ) -> EnrolmentTicket:
        """Make a code for the person; an older code that was not redeemed ends. `lifetime_hours` is in hours: of the
        token, and of its renewals. `is_confirmed`: the account needs no confirmation when it is redeemed."""
        account_name = f"{tenant}/{person.name}"
        for earlier_code in tx.find(
            "enrolment", tenant=SYSTEM_TENANT, terms={"person": account_name}, limit=1000
        ).records:
            if not earlier_code.body["redeemed"]:
                tx.delete(earlier_code.key, earlier_code.rev)
        code_id, secret = generate_token_id(), secrets.token_urlsafe(32)
        expires = ctx.now() + CODE_HOURS * 3600
        body = {
            "tenant": tenant,
            "person": person.name,
            "hash": _hash_secret(secret),
            "expires": expires,
            "hours": list(lifetime_hours),
            "makers": list(list_credential_makers(ctx.actor)),
            "redeemed": 0.0,
            "peer": "",
            "confirmed": is_confirmed,
        }
        record = tx.put(_make_code_key(code_id), body, terms={"person": account_name})
        tx.emit("people.code", record.ref, tenant=tenant, person=person.name, expires=expires)
        return EnrolmentTicket(
            Ref("person", PEOPLE_PROJECT, person.name), "ready", f"{CODE_PREFIX}{code_id}_{secret}", expires
        )

    def redeem(self, ctx: CallContext, code: str) -> IssuedToken:
        """The token of the person the code was made for. Unauthenticated for a code that is unknown or has ended,
        Conflict for one that was redeemed before."""
        match = _CODE_PATTERN.fullmatch(code.strip())
        issued = (
            self._ledger.retry(ctx, lambda tx: self.redeem_in_transaction(tx, ctx, match[1], match[2]))
            if match
            else None
        )
        if isinstance(issued, LedgerRecord):
            redeemed_at = datetime.fromtimestamp(issued.body["redeemed"], UTC).isoformat(" ", "seconds")
            raise Conflict(
                f"this code was redeemed already, at {redeemed_at} from {issued.body['peer'] or 'an unknown address'}",
                "if that was not you, another person holds your account: have it suspended and reset at once",
            )
        if issued is None:
            raise Unauthenticated("the enrolment code is unknown or has ended", "ask your administrator for a new one")
        return issued if match is None else self._request_confirmation(ctx, issued, _make_code_key(match[1]))

    def _request_confirmation(self, ctx: CallContext, issued: IssuedToken, code_key: RecordKey) -> IssuedToken:
        """Ask a second person to confirm an account that was just enrolled, where its roles decide or read data."""
        with self._ledger.read(ctx) as tx:
            record = tx.key(code_key)
            body = record.body if record is not None else {}
            tenant = str(body.get("tenant", ""))
            account = tx.key(make_person_key(tenant, issued.person.name)) if tenant else None
        person = read_person(account) if account is not None else None
        if person is None or not needs_confirmation(person):
            return issued
        *other_makers, requester = body["makers"]
        holder_context = replace(
            ctx, actor=Actor(person.name, tenant, makers=(*other_makers, requester)), tenant=tenant
        )
        with self._ledger.write(holder_context) as tx:
            state = self._confirmation.request(holder_context, tx, person, requester, tuple(other_makers), ctx.peer)
        fingerprint = make_fingerprint(state.approval.digest)
        return replace(issued, confirmation=str(state.ref), fingerprint=fingerprint)

    def redeem_in_transaction(
        self, tx: LedgerWriter, ctx: CallContext, code_id: str, secret: str
    ) -> IssuedToken | LedgerRecord | None:
        """The token; the record of the code where it was redeemed before; None where it opens nothing."""
        record = tx.key(_make_code_key(code_id))
        if record is None or not hmac.compare_digest(str(record.body["hash"]), _hash_secret(secret)):
            return None
        body: dict[str, Any] = record.body
        tenant, name, code_maker = body["tenant"], body["person"], body["makers"][-1]
        if body["redeemed"]:
            tx.emit("people.enroll-again", record.ref, tenant=tenant, person=name, code_by=code_maker, peer=ctx.peer)
            return record
        account_record = tx.key(make_person_key(tenant, name))
        is_tenant_active = self._accounts.standing(Actor(name, tenant)).tenant_active
        is_barred = (
            account_record is None
            or account_record.body.get("removed")
            or account_record.body.get("suspended")
            or not is_tenant_active
        )
        if account_record is None or is_barred or not ctx.now() < body["expires"]:
            return None
        tx.put(record.key, {**body, "redeemed": ctx.now(), "peer": ctx.peer}, rev=record.rev)
        ended_token_count = self._accounts.end_tokens(tx, tenant, name)
        person = replace(read_person(account_record), enrolled=ctx.now())
        is_confirmed = bool(body.get("confirmed"))
        person = replace(person, confirmed=ctx.now()) if is_confirmed else await_confirmation(person)
        account_record = tx.put(
            account_record.key, {**account_record.body, **make_person_body(person)}, rev=account_record.rev
        )
        self._accounts.changing(tx, account_record.key)
        hours, renewable = body["hours"]
        grant = TokenGrant(hours, renewable, makers=tuple(body["makers"]), peer=ctx.peer)
        issued = self._accounts.issue(tx, ctx, tenant, person, grant)
        tx.emit(
            "people.enroll",
            account_record.ref,
            tenant=tenant,
            person=name,
            token=issued.id,
            code_by=code_maker,
            peer=ctx.peer,
            ended_tokens=ended_token_count,
        )
        return issued


def _make_code_key(code_id: str) -> RecordKey:
    return RecordKey(SYSTEM_TENANT, "enrolment", PEOPLE_PROJECT, code_id)


def _hash_secret(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()
