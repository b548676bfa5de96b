"""Stores console sessions in the ledger, so that every replica knows them and any of them can end them.

The browser holds a random session id and nothing else. The record is filed under the id's SHA-256 and holds the
person's token encrypted with a key derived from the id: a reader of the store learns neither. The token is verified
again whenever the session is used, so a session ends with its token, its person or their tenant.
"""

import hashlib
import secrets
import time
from typing import TYPE_CHECKING

from falaj.core.context import HOUSE, Actor
from falaj.core.errors import Unauthenticated
from falaj.core.ports import Key

if TYPE_CHECKING:
    from falaj.platform import House
    from falaj.store.ledger import Writer

SESSION_S = 12 * 3600.0
LINK_S = 900.0
"""Seconds for which the one-time link of `falaj up` can be used."""
_PROJECT = "people"
SESSIONS_EACH = 32
"""Sessions that one person may have; signing in once more ends the one that would end first."""


class SessionStore:
    """Creates, reads and ends console sessions."""

    def __init__(self, house: "House") -> None:
        self._house = house
        # The owner of an embedded platform has no token; these sessions end with the process that printed the link.
        self._owners: dict[str, tuple[Actor, float]] = {}
        self._links: dict[str, float] = {}

    def create_link_code(self) -> str:
        """A code that signs in the user who runs this process, once, within `LINK_S`."""
        code = secrets.token_urlsafe(24)
        self._links[code] = time.time() + LINK_S
        return code

    def redeem_link_code(self, code: str) -> str:
        """The id of a new session of the owner; the code is used up, whether or not it was still good."""
        if self._links.pop(code, 0.0) < time.time():
            hint = "start `falaj up` again for a new one, or use a token"
            raise Unauthenticated("that link was used or is too old", hint)
        session = secrets.token_urlsafe(32)
        self._owners[_name(session)] = (self._house.owner(), time.time() + SESSION_S)
        return session

    def create(self, actor: Actor, token: str) -> str:
        """The id of a new session of `actor`, whose token was verified."""
        session, now = secrets.token_urlsafe(32), time.time()
        expires = min(now + SESSION_S, actor.expires or now + SESSION_S)
        body = {"tenant": actor.tenant, "person": actor.id, "token": _encrypt(session, token), "expires": expires}
        terms = {"person": f"{actor.tenant}/{actor.id}"}

        def put_session(tx: "Writer") -> None:
            earlier = tx.find("session", tenant=HOUSE, terms=terms, limit=2 * SESSIONS_EACH).records
            latest = sorted(earlier, key=lambda record: float(record.body["expires"]), reverse=True)
            for place, record in enumerate(latest, 1):
                if place >= SESSIONS_EACH or record.body["expires"] <= now:
                    tx.delete(record.key, record.rev)
            record = tx.put(_key(session), body, terms=terms)
            tx.emit("console.sign_in", record.ref, expires=expires)

        self._house.ledger.retry(self._house.context(actor), put_session)
        return session

    def find_actor(self, session: str) -> Actor:
        """Whose session this is, with their token verified now; Unauthenticated when it ended."""
        actor, until = self._owners.get(_name(session), (None, 0.0))
        if actor is not None and time.time() < until:
            return actor
        with self._house.ledger.read(self._house.system()) as tx:
            record = tx.key(_key(session))
        if record is None or not time.time() < record.body["expires"]:
            raise Unauthenticated("you were signed out", "sign in again")
        return self._house.authenticate(_decrypt(session, record.body["token"]))

    def end(self, session: str, actor: Actor) -> None:
        """Sign out: no replica takes the id any more."""
        if self._owners.pop(_name(session), None) is not None:
            return
        with self._house.ledger.write(self._house.context(actor)) as tx:
            record = tx.key(_key(session))
            if record is not None:
                tx.delete(record.key, record.rev)
                tx.emit("console.sign_out", record.ref)


def _name(session: str) -> str:
    return hashlib.sha256(session.encode()).hexdigest()


def _key(session: str) -> Key:
    return Key(HOUSE, "session", _PROJECT, _name(session))


def _cipher_key(session: str) -> bytes:
    # The id has 256 random bits, so one hash with a purpose of its own is a key.
    return hashlib.sha256(b"falaj console session token\n" + session.encode()).digest()


def _encrypt(session: str, token: str) -> str:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    nonce = secrets.token_bytes(12)
    return (nonce + AESGCM(_cipher_key(session)).encrypt(nonce, token.encode(), None)).hex()


def _decrypt(session: str, sealed: str) -> str:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    data = bytes.fromhex(sealed)
    return AESGCM(_cipher_key(session)).decrypt(data[:12], data[12:], None).decode()
