"""Keys of data subjects. What names a person is sealed under that person's own key; to forget the person is to destroy
the key. The log keeps the sealed bytes, so its hashes and proofs stand, and nobody can open them again.

A subject is known to the table by a pseudonym only: HMAC-SHA-256 of the identifier under a pepper of the tenant in the
zone. The record of a destroyed key stays as a tombstone, so the key cannot be made again behind the subject's back.
"""

import base64
import hashlib
import hmac
import os

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from falaj.core.context import Context
from falaj.core.errors import Conflict, Corrupt, Denied, Invalid, NotFound
from falaj.govern.keytable import KeyTable, Slot
from falaj.govern.sealing import SUITE, bound

MAX_BYTES = 65_536
_FORM = "s1"
_GONE = "the person it names was forgotten, and the key with them"


class Subjects:
    """Seals, opens and forgets what names a person."""

    def __init__(self, table: KeyTable) -> None:
        self._table = table

    def pseudonym(self, tenant: str, zone: str, subject: str) -> str:
        """What the tables call this person in this tenant and zone; nobody can tell it without the pepper."""
        if not subject or len(subject) > 1024:
            raise Invalid("a subject is named by 1 to 1024 characters", "give the identifier that the data carries")
        _, pepper = self._table.newest(Slot(tenant, zone, "pepper"))
        return hmac.new(pepper, subject.encode(), hashlib.sha256).hexdigest()[:40]

    def seal(self, tenant: str, zone: str, subject: str, data: bytes) -> str:
        """`data` under the subject's key, made when there is none; Denied once the subject is forgotten."""
        if len(data) > MAX_BYTES:
            raise Invalid(f"{len(data)} bytes about a subject", f"at most {MAX_BYTES}; keep the rest in an object")
        name = self.pseudonym(tenant, zone, subject)
        slot = Slot(tenant, zone, "subject", name)
        held = self._table.held(slot)
        if held.newest == 0:
            raise Denied(
                "this person was forgotten and may not be recorded again",
                "ask the data protection officer",
                held.slot.ref,
            )
        nonce, key = os.urandom(12), self._table.version(slot, held.newest)
        sealed = bytes((SUITE,)) + nonce + AESGCM(key).encrypt(nonce, data, _aad(slot, held.newest))
        return f"{_FORM}:{name}:{held.newest}:{base64.b64encode(sealed).decode()}"

    def open(self, tenant: str, zone: str, sealed: str) -> bytes:
        """What `seal` was given; NotFound once the subject is forgotten, Corrupt when the bytes were altered."""
        slot, version, data = _parse(tenant, zone, sealed)
        try:
            held = self._table.held(slot, make=False)
        except NotFound as error:
            raise Corrupt("no subject of this tenant and zone has sealed this", "it belongs to another") from error
        if held.newest == 0:
            raise NotFound(_GONE, "it cannot be brought back")
        try:
            return AESGCM(self._table.version(slot, version)).decrypt(data[1:13], data[13:], _aad(slot, version))
        except InvalidTag:
            raise Corrupt(
                "what was sealed for a subject does not open", "it was altered, or belongs to another"
            ) from None

    def forget(
        self, ctx: Context, zone: str, subject: str, *, holds: tuple[str, ...] = (), retain_until: float = 0.0
    ) -> str:
        """Destroy the subject's key in this zone, unless what the caller found stands against it."""
        if holds:
            raise Conflict(f"a legal hold stands: {', '.join(holds)}", "release the hold, then ask again")
        if ctx.now() < retain_until:
            raise Conflict("the law demands that this is kept for now", "ask again when the retention has ended")
        slot = Slot(ctx.tenant, zone, "subject", self.pseudonym(ctx.tenant, zone, subject))
        tomb = {"versions": {}, "made": {}, "current": 0, "min": 0, "forgotten": ctx.now()}
        with self._table.ledger.write(ctx) as tx:
            record = tx.key(slot.key)
            if record is not None and record.body["current"] == 0:
                return slot.subject
            record = tx.put(slot.key, tomb, zone=zone) if record is None else tx.put(slot.key, tomb, rev=record.rev)
            tx.emit("subjects.forget", record.ref, pseudonym=slot.subject, zone=zone)
            tx.after(lambda durable: self._table.drop(slot))
        return slot.subject


def _aad(slot: Slot, version: int) -> bytes:
    return bound("payload", slot.tenant, slot.zone, slot.subject, version)


def _parse(tenant: str, zone: str, sealed: str) -> tuple[Slot, int, bytes]:
    form, _, rest = sealed.partition(":")
    try:
        if form != _FORM:
            raise ValueError(form)
        name, version, text = rest.split(":")
        data = base64.b64decode(text, validate=True)
        if len(name) != 40 or len(data) < 29 or data[0] != SUITE:
            raise ValueError(name)
        return Slot(tenant, zone, "subject", name), int(version), data
    except ValueError:
        raise Corrupt(
            "what was sealed for a subject has a form that is not known", "it was altered, or is of a newer release"
        ) from None
