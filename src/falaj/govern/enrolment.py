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

from falaj.core.context import HOUSE, Actor, Context
from falaj.core.errors import Conflict, Unauthenticated
from falaj.core.ports import Key
from falaj.core.ref import Ref
from falaj.govern.accounts import (
    PROJECT,
    Accounts,
    Grant,
    body_of,
    makers_of,
    new_token_id,
    person_key,
    read_person,
)
from falaj.govern.people_records import Enrolment, Issued, Person
from falaj.govern.role_confirmation import RoleConfirmation, await_confirmation, fingerprint_of, needs_confirmation
from falaj.store.ledger import Ledger, Writer
from falaj.store.records import Record

CODE_HOURS = 72.0
"""Hours within which a code must be redeemed."""
CODE_PREFIX = "fje_"
_CODE = re.compile(r"fje_([0-9a-z]{16})_([A-Za-z0-9_-]{43})")


class EnrolmentCodes:
    """Makes and redeems enrolment codes."""

    def __init__(self, ledger: Ledger, accounts: Accounts, confirmation: RoleConfirmation) -> None:
        self._ledger = ledger
        self._accounts = accounts
        self._confirmation = confirmation

    def issue_code(
        self,
        tx: Writer,
        ctx: Context,
        tenant: str,
        person: Person,
        lifetime: tuple[float, float],
        *,
        confirmed: bool = False,
    ) -> Enrolment:
        """Make a code for the person; an older code that was not redeemed ends. `lifetime` is in hours: of the token,
        and of its renewals. `confirmed`: the account needs no confirmation when it is redeemed."""
        account = f"{tenant}/{person.name}"
        for old in tx.find("enrolment", tenant=HOUSE, terms={"person": account}, limit=1000).records:
            if not old.body["redeemed"]:
                tx.delete(old.key, old.rev)
        code_id, secret = new_token_id(), secrets.token_urlsafe(32)
        expires = ctx.now() + CODE_HOURS * 3600
        body = {
            "tenant": tenant, "person": person.name, "hash": _digest(secret), "expires": expires,
            "hours": list(lifetime), "makers": list(makers_of(ctx.actor)), "redeemed": 0.0, "peer": "",
            "confirmed": confirmed,
        }  # fmt: skip
        record = tx.put(_code_key(code_id), body, terms={"person": account})
        tx.emit("people.code", record.ref, tenant=tenant, person=person.name, expires=expires)
        return Enrolment(Ref("person", PROJECT, person.name), "ready", f"{CODE_PREFIX}{code_id}_{secret}", expires)

    def redeem(self, ctx: Context, code: str) -> Issued:
        """The token of the person the code was made for. Unauthenticated for a code that is unknown or has ended,
        Conflict for one that was redeemed before."""
        match = _CODE.fullmatch(code.strip())
        issued = self._ledger.retry(ctx, lambda tx: self._redeem(tx, ctx, match[1], match[2])) if match else None
        if isinstance(issued, Record):
            at = datetime.fromtimestamp(issued.body["redeemed"], UTC).isoformat(" ", "seconds")
            raise Conflict(
                f"this code was redeemed already, at {at} from {issued.body['peer'] or 'an unknown address'}",
                "if that was not you, another person holds your account: have it suspended and reset at once",
            )
        if issued is None:
            raise Unauthenticated("the enrolment code is unknown or has ended", "ask your administrator for a new one")
        return issued if match is None else self._request_confirmation(ctx, issued, _code_key(match[1]))

    def _request_confirmation(self, ctx: Context, issued: Issued, code: Key) -> Issued:
        """Ask a second person to confirm an account that was just enrolled, where its roles decide or read data."""
        with self._ledger.read(ctx) as tx:
            record = tx.key(code)
            body = record.body if record is not None else {}
            tenant = str(body.get("tenant", ""))
            account = tx.key(person_key(tenant, issued.person.name)) if tenant else None
        person = read_person(account) if account is not None else None
        if person is None or not needs_confirmation(person):
            return issued
        *makers, asker = body["makers"]
        own = replace(ctx, actor=Actor(person.name, tenant, makers=(*makers, asker)), tenant=tenant)
        with self._ledger.write(own) as tx:
            state = self._confirmation.request(own, tx, person, asker, tuple(makers), ctx.peer)
        digest = fingerprint_of(state.approval.digest)
        return replace(issued, confirmation=str(state.ref), fingerprint=digest)

    def _redeem(self, tx: Writer, ctx: Context, code_id: str, secret: str) -> Issued | Record | None:
        """The token; the record of the code where it was redeemed before; None where it opens nothing."""
        record = tx.key(_code_key(code_id))
        if record is None or not hmac.compare_digest(str(record.body["hash"]), _digest(secret)):
            return None
        body: dict[str, Any] = record.body
        tenant, name, maker = body["tenant"], body["person"], body["makers"][-1]
        if body["redeemed"]:
            tx.emit("people.enroll-again", record.ref, tenant=tenant, person=name, code_by=maker, peer=ctx.peer)
            return record
        account = tx.key(person_key(tenant, name))
        active = self._accounts.standing(Actor(name, tenant)).tenant_active
        barred = account is None or account.body.get("removed") or account.body.get("suspended") or not active
        if account is None or barred or not ctx.now() < body["expires"]:
            return None
        tx.put(record.key, {**body, "redeemed": ctx.now(), "peer": ctx.peer}, rev=record.rev)
        ended = self._accounts.end_tokens(tx, tenant, name)
        person = replace(read_person(account), enrolled=ctx.now())
        confirmed = bool(body.get("confirmed"))
        person = replace(person, confirmed=ctx.now()) if confirmed else await_confirmation(person)
        account = tx.put(account.key, {**account.body, **body_of(person)}, rev=account.rev)
        self._accounts.changing(tx, account.key)
        hours, renewable = body["hours"]
        grant = Grant(hours, renewable, makers=tuple(body["makers"]), peer=ctx.peer)
        issued = self._accounts.issue(tx, ctx, tenant, person, grant)
        tx.emit(
            "people.enroll", account.ref, tenant=tenant, person=name, token=issued.id, code_by=maker, peer=ctx.peer,
            ended_tokens=ended,
        )  # fmt: skip
        return issued


def _code_key(code_id: str) -> Key:
    return Key(HOUSE, "enrolment", PROJECT, code_id)


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()
