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

from falaj.core.context import CallContext
from falaj.core.errors import Conflict, CorruptData, Denied, Invalid, NotFound
from falaj.govern.encryption import CIPHER_SUITE, build_aad
from falaj.govern.key_table import KeySlot, KeyTable

MAX_SUBJECT_BYTES = 65_536
_FORMAT_TAG = "s1"
_FORGOTTEN_MESSAGE = "the person it names was forgotten, and the key with them"


class SubjectKeys:
    """Seals, opens and forgets what names a person."""

    def __init__(self, table: KeyTable) -> None:
        self._table = table

    def pseudonym(self, tenant: str, zone: str, subject: str) -> str:
        """What the tables call this person in this tenant and zone; nobody can tell it without the pepper."""
        if not subject or len(subject) > 1024:
            raise Invalid("a subject is named by 1 to 1024 characters", "give the identifier that the data carries")
        _, pepper = self._table.newest(KeySlot(tenant, zone, "pepper"))
        return hmac.new(pepper, subject.encode(), hashlib.sha256).hexdigest()[:40]

    def seal(self, tenant: str, zone: str, subject: str, data: bytes) -> str:
        """`data` under the subject's key, made when there is none; Denied once the subject is forgotten."""
        if len(data) > MAX_SUBJECT_BYTES:
            raise Invalid(
                f"{len(data)} bytes about a subject", f"at most {MAX_SUBJECT_BYTES}; keep the rest in an object"
            )
        name = self.pseudonym(tenant, zone, subject)
        slot = KeySlot(tenant, zone, "subject", name)
        loaded_key = self._table.held(slot)
        if loaded_key.newest == 0:
            raise Denied(
                "this person was forgotten and may not be recorded again",
                "ask the data protection officer",
                loaded_key.slot.ref,
            )
        nonce, key = os.urandom(12), self._table.version(slot, loaded_key.newest)
        sealed = (
            bytes((CIPHER_SUITE,))
            + nonce
            + AESGCM(key).encrypt(nonce, data, _make_subject_aad(slot, loaded_key.newest))
        )
        return f"{_FORMAT_TAG}:{name}:{loaded_key.newest}:{base64.b64encode(sealed).decode()}"

    def open(self, tenant: str, zone: str, sealed: str) -> bytes:
        """What `seal` was given; NotFound once the subject is forgotten, Corrupt when the bytes were altered."""
        slot, version, data = _parse_sealed(tenant, zone, sealed)
        try:
            loaded_key = self._table.held(slot, create_missing=False)
        except NotFound as error:
            raise CorruptData("no subject of this tenant and zone has sealed this", "it belongs to another") from error
        if loaded_key.newest == 0:
            raise NotFound(_FORGOTTEN_MESSAGE, "it cannot be brought back")
        try:
            return AESGCM(self._table.version(slot, version)).decrypt(
                data[1:13], data[13:], _make_subject_aad(slot, version)
            )
        except InvalidTag:
            raise CorruptData(
                "what was sealed for a subject does not open", "it was altered, or belongs to another"
            ) from None

    def forget(
        self, ctx: CallContext, zone: str, subject: str, *, legal_holds: tuple[str, ...] = (), retain_until: float = 0.0
    ) -> str:
        """Destroy the subject's key in this zone, unless what the caller found stands against it."""
        if legal_holds:
            raise Conflict(f"a legal hold stands: {', '.join(legal_holds)}", "release the hold, then ask again")
        if ctx.now() < retain_until:
            raise Conflict("the law demands that this is kept for now", "ask again when the retention has ended")
        slot = KeySlot(ctx.tenant, zone, "subject", self.pseudonym(ctx.tenant, zone, subject))
        destroyed_body = {"versions": {}, "made": {}, "current": 0, "min": 0, "forgotten": ctx.now()}
        with self._table.ledger.write(ctx) as tx:
            record = tx.key(slot.key)
            if record is not None and record.body["current"] == 0:
                return slot.subject
            record = (
                tx.put(slot.key, destroyed_body, zone=zone)
                if record is None
                else tx.put(slot.key, destroyed_body, rev=record.rev)
            )
            tx.emit("subjects.forget", record.ref, pseudonym=slot.subject, zone=zone)
            tx.after(lambda durable: self._table.drop(slot))
        return slot.subject


def _make_subject_aad(slot: KeySlot, version: int) -> bytes:
    return build_aad("payload", slot.tenant, slot.zone, slot.subject, version)


def _parse_sealed(tenant: str, zone: str, sealed: str) -> tuple[KeySlot, int, bytes]:
    format_tag, _, rest = sealed.partition(":")
    try:
        if format_tag != _FORMAT_TAG:
            raise ValueError(format_tag)
        name, version, text = rest.split(":")
        data = base64.b64decode(text, validate=True)
        if len(name) != 40 or len(data) < 29 or data[0] != CIPHER_SUITE:
            raise ValueError(name)
        return KeySlot(tenant, zone, "subject", name), int(version), data
    except ValueError:
        raise CorruptData(
            "what was sealed for a subject has a form that is not known", "it was altered, or is of a newer release"
        ) from None
