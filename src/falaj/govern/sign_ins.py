"""What the identity provider last said of people whom it alone knows, for work that goes on in their name.

Such a person has no account whose roles could be asked. So whenever one of their tokens is verified, the roles and
projects in it are remembered, and jobs, flows, triggers and hooks of theirs act with no more than that: a role that the
provider took away is gone with the next sign-in, and who does not sign in for MOST_AGE_S has none left.
"""

import time
from contextlib import suppress
from threading import Lock
from typing import Any

from falaj.core.context import Actor, Context
from falaj.core.errors import Conflict, Unavailable
from falaj.core.ports import Key
from falaj.govern.accounts import PROVIDERS_PEOPLE, Accounts, person_key
from falaj.store.ledger import Ledger, Reader

MOST_AGE_S = 30 * 86_400.0
_FRESH_S = 12 * 3600.0
"""A sign-in with the same rights is written down again when the last one is older than this."""


class SignIns:
    """Writes sign-ins down. Used by many threads."""

    def __init__(self, ledger: Ledger, accounts: Accounts, zone: str) -> None:
        self._ledger, self._accounts, self._zone = ledger, accounts, zone
        self._lock = Lock()
        self._noted: dict[tuple[str, str], tuple[frozenset[str], frozenset[str], float]] = {}

    def note(self, actor: Actor, now: float) -> None:
        """Remember what a verified token says, where an identity provider made it. A store that cannot be written to
        refuses no caller: the last sign-in counts on."""
        if not actor.id.startswith(PROVIDERS_PEOPLE):
            return
        who, rights = (actor.tenant, actor.id), (actor.roles, actor.projects)
        with self._lock:
            *last_rights, at = self._noted.get(who, (None, None, 0.0))
            if (*last_rights,) == rights and now < at + _FRESH_S:
                return
            self._noted[who] = (*rights, now)
        if not self._accounts.standing(actor)[0]:
            return
        body: dict[str, Any] = {"roles": sorted(actor.roles), "projects": sorted(actor.projects), "at": now}
        key = sign_in_key(*who)
        with suppress(Conflict, Unavailable), self._ledger.write(Context(actor, self._zone)) as tx:
            old = tx.key(key)
            record = tx.put(key, body, rev=old.rev if old else None)
            tx.emit("people.sign-in", record.ref, roles=",".join(body["roles"]))


def read_current_roles(tx: Reader, tenant: str, name: str) -> tuple[frozenset[str], frozenset[str]]:
    """Roles and projects of such a person: those of the last sign-in, none when it is long ago or there was none."""
    record = tx.key(sign_in_key(tenant, name))
    if record is None or record.body["at"] + MOST_AGE_S < time.time():
        return frozenset(), frozenset()
    return frozenset(record.body["roles"]), frozenset(record.body["projects"])


def read_sign_in_expiry(tx: Reader, tenant: str, name: str) -> float:
    """When the roles of such a person's last sign-in end, as seconds since 1970; 0 when there was no sign-in."""
    record = tx.key(sign_in_key(tenant, name))
    return 0.0 if record is None else float(record.body["at"]) + MOST_AGE_S


def sign_in_key(tenant: str, name: str) -> Key:
    """Where the last sign-in of a person lies."""
    return person_key(tenant, name)._replace(kind="sign-in")
