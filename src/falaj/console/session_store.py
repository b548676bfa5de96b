"""Stores console sessions in the ledger, so that every replica knows them and any of them can end them.

The browser holds a random session id and nothing else. The record is filed under the id's SHA-256 and holds the
person's token encrypted with a key derived from the id: a reader of the store learns neither. The token is verified
again whenever the session is used, so a session ends with its token, its person or their tenant.
"""

import hashlib
import secrets
import time
from typing import TYPE_CHECKING

from falaj.core.context import SYSTEM_TENANT, Actor
from falaj.core.errors import Unauthenticated
from falaj.core.ports import RecordKey

if TYPE_CHECKING:
    from falaj.server import Server
    from falaj.store.ledger import LedgerWriter

SESSION_LIFETIME_S = 12 * 3600.0
LINK_LIFETIME_S = 900.0
"""Seconds for which the one-time link of `falaj up` can be used."""
_PROJECT = "people"
MAX_SESSIONS_PER_PERSON = 32
"""Sessions that one person may have; signing in once more ends the one that would end first."""


class SessionStore:
    """Creates, reads and ends console sessions."""

    def __init__(self, server: "Server") -> None:
        self._server = server
        # The owner of an embedded platform has no token; these sessions end with the process that printed the link.
        self._owner_sessions: dict[str, tuple[Actor, float]] = {}
        self._link_expiries: dict[str, float] = {}

    def create_link_code(self) -> str:
        """A code that signs in the user who runs this process, once, within `LINK_LIFETIME_S`."""
        code = secrets.token_urlsafe(24)
        self._link_expiries[code] = time.time() + LINK_LIFETIME_S
        return code

    def redeem_link_code(self, code: str) -> str:
        """The id of a new session of the owner; the code is used up, whether or not it was still good."""
        if self._link_expiries.pop(code, 0.0) < time.time():
            hint = "start `falaj up` again for a new one, or use a token"
            raise Unauthenticated("that link was used or is too old", hint)
        session_id = secrets.token_urlsafe(32)
        self._owner_sessions[_hash_session_id(session_id)] = (self._server.owner(), time.time() + SESSION_LIFETIME_S)
        return session_id

    def create(self, actor: Actor, token: str) -> str:
        """The id of a new session of `actor`, whose token was verified."""
        session_id, now = secrets.token_urlsafe(32), time.time()
        expires = min(now + SESSION_LIFETIME_S, actor.expires or now + SESSION_LIFETIME_S)
        body = {
            "tenant": actor.tenant,
            "person": actor.id,
            "token": _encrypt_token(session_id, token),
            "expires": expires,
        }
        terms = {"person": f"{actor.tenant}/{actor.id}"}

        def put_session(tx: "LedgerWriter") -> None:
            earlier_sessions = tx.find(
                "session", tenant=SYSTEM_TENANT, terms=terms, limit=2 * MAX_SESSIONS_PER_PERSON
            ).records
            sessions_by_expiry = sorted(
                earlier_sessions, key=lambda record: float(record.body["expires"]), reverse=True
            )
            for position, record in enumerate(sessions_by_expiry, 1):
                if position >= MAX_SESSIONS_PER_PERSON or record.body["expires"] <= now:
                    tx.delete(record.key, record.rev)
            record = tx.put(_make_record_key(session_id), body, terms=terms)
            tx.emit("console.sign_in", record.ref, expires=expires)

        self._server.ledger.retry(self._server.context(actor), put_session)
        return session_id

    def find_actor(self, session_id: str) -> Actor:
        """Whose session this is, with their token verified now; Unauthenticated when it ended."""
        actor, until = self._owner_sessions.get(_hash_session_id(session_id), (None, 0.0))
        if actor is not None and time.time() < until:
            return actor
        with self._server.ledger.read(self._server.system()) as tx:
            record = tx.key(_make_record_key(session_id))
        if record is None or not time.time() < record.body["expires"]:
            raise Unauthenticated("you were signed out", "sign in again")
        return self._server.authenticate(_decrypt_token(session_id, record.body["token"]))

    def end(self, session_id: str, actor: Actor) -> None:
        """Sign out: no replica takes the id any more."""
        if self._owner_sessions.pop(_hash_session_id(session_id), None) is not None:
            return
        with self._server.ledger.write(self._server.context(actor)) as tx:
            record = tx.key(_make_record_key(session_id))
            if record is not None:
                tx.delete(record.key, record.rev)
                tx.emit("console.sign_out", record.ref)


def _hash_session_id(session_id: str) -> str:
    return hashlib.sha256(session_id.encode()).hexdigest()


def _make_record_key(session_id: str) -> RecordKey:
    return RecordKey(SYSTEM_TENANT, "session", _PROJECT, _hash_session_id(session_id))


def _derive_cipher_key(session_id: str) -> bytes:
    # The id has 256 random bits, so one hash with a purpose of its own is a key.
    return hashlib.sha256(b"falaj console session token\n" + session_id.encode()).digest()


def _encrypt_token(session_id: str, token: str) -> str:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    nonce = secrets.token_bytes(12)
    return (nonce + AESGCM(_derive_cipher_key(session_id)).encrypt(nonce, token.encode(), None)).hex()


def _decrypt_token(session_id: str, sealed_token: str) -> str:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    data = bytes.fromhex(sealed_token)
    return AESGCM(_derive_cipher_key(session_id)).decrypt(data[:12], data[12:], None).decode()
