"""What the identity provider last said of people whom it alone knows, for work that goes on in their name.

Such a person has no account whose roles could be asked. So whenever one of their tokens is verified, the roles and
projects in it are remembered, and jobs, flows, triggers and hooks of theirs act with no more than that: a role that the
provider took away is gone with the next sign-in, and who does not sign in for MOST_AGE_S has none left.
"""

import time
from contextlib import suppress
from threading import Lock
from typing import Any

from falaj.core.context import Actor, CallContext
from falaj.core.errors import Conflict, Unavailable
from falaj.core.ports import RecordKey
from falaj.govern.accounts import PROVIDER_NAME_PREFIX, AccountDirectory, make_person_key
from falaj.store.ledger import Ledger, LedgerReader

MAX_SIGN_IN_AGE_S = 30 * 86_400.0
_REWRITE_AFTER_S = 12 * 3600.0
"""A sign-in with the same rights is written down again when the last one is older than this."""


class SignInRecorder:
    """Writes sign-ins down. Used by many threads."""

    def __init__(self, ledger: Ledger, accounts: AccountDirectory, zone: str) -> None:
        self._ledger, self._accounts, self._zone = ledger, accounts, zone
        self._lock = Lock()
        self.recent_sign_ins: dict[tuple[str, str], tuple[frozenset[str], frozenset[str], float]] = {}

    def note(self, actor: Actor, now: float) -> None:
        """Remember what a verified token says, where an identity provider made it. A store that cannot be written to
        refuses no caller: the last sign-in counts on."""
        if not actor.id.startswith(PROVIDER_NAME_PREFIX):
            return
        actor_key, rights = (actor.tenant, actor.id), (actor.roles, actor.projects)
        with self._lock:
            *last_rights, noted_at = self.recent_sign_ins.get(actor_key, (None, None, 0.0))
            if (*last_rights,) == rights and now < noted_at + _REWRITE_AFTER_S:
                return
            self.recent_sign_ins[actor_key] = (*rights, now)
        if not self._accounts.standing(actor)[0]:
            return
        body: dict[str, Any] = {"roles": sorted(actor.roles), "projects": sorted(actor.projects), "at": now}
        key = make_sign_in_key(*actor_key)
        with suppress(Conflict, Unavailable), self._ledger.write(CallContext(actor, self._zone)) as tx:
            earlier_record = tx.key(key)
            record = tx.put(key, body, rev=earlier_record.rev if earlier_record else None)
            tx.emit("people.sign-in", record.ref, roles=",".join(body["roles"]))


def read_current_roles(tx: LedgerReader, tenant: str, name: str) -> tuple[frozenset[str], frozenset[str]]:
    """Roles and projects of such a person: those of the last sign-in, none when it is long ago or there was none."""
    record = tx.key(make_sign_in_key(tenant, name))
    if record is None or record.body["at"] + MAX_SIGN_IN_AGE_S < time.time():
        return frozenset(), frozenset()
    return frozenset(record.body["roles"]), frozenset(record.body["projects"])


def read_sign_in_expiry(tx: LedgerReader, tenant: str, name: str) -> float:
    """When the roles of such a person's last sign-in end, as seconds since 1970; 0 when there was no sign-in."""
    record = tx.key(make_sign_in_key(tenant, name))
    return 0.0 if record is None else float(record.body["at"]) + MAX_SIGN_IN_AGE_S


def make_sign_in_key(tenant: str, name: str) -> RecordKey:
    """Where the last sign-in of a person lies."""
    return make_person_key(tenant, name)._replace(kind="sign-in")
