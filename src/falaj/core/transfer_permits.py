"""Permit: a short signed capability to move bytes. Storage opens for nothing else, so no path can forget to ask.

A permit opens storage once. Where many pieces of one thing move, its first spending gives a ticket: good for hours, for
the same act on the same thing, and only in the hands of the person it was given to. For what came in under a ticket
storage gives receipts.
"""

import base64
import binascii
import hashlib
import hmac
import json
import secrets
import threading
from collections import OrderedDict
from dataclasses import asdict

from falaj.core.byte_channel import UploadReceipt
from falaj.core.data import dataclass
from falaj.core.errors import Denied, Invalid

PERMIT_LIFETIME_S = 60.0


@dataclass(frozen=True, slots=True)
class TransferPermit:
    """One operation on one thing from one zone to another, under one label and one policy, until `expires`."""

    op: str
    thing: str
    tenant: str
    src: str
    dst: str
    label: str
    policy: str
    expires: float
    nonce: str
    mac: str = ""

    def message(self) -> bytes:
        """What is signed; lengths first, so that no two permits share a message."""
        fields = (
            self.op,
            self.thing,
            self.tenant,
            self.src,
            self.dst,
            self.label,
            self.policy,
            repr(self.expires),
            self.nonce,
        )
        return b"".join(len(p.encode()).to_bytes(4, "big") + p.encode() for p in fields)


@dataclass(frozen=True, slots=True)
class TransferTicket:
    """Many movements of one thing: what one permit allowed, for one holder, until `expires`."""

    op: str
    thing: str
    """The bare name that is written, or the pinned version that is read."""
    tenant: str
    zone: str
    holder: str
    expires: float
    intent: str = ""
    """The open put that keeps the collector away from what was sent."""
    purpose: str = ""
    label: str = ""
    """The purpose and, of a write, the label that the guard judged: it judges them again while the ticket is used."""


class PermitAuthority:
    """Signs permits and redeems each once. One secret an installation; the guard issues, storage redeems."""

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._spent_nonces: OrderedDict[str, float] = OrderedDict()
        self._lock = threading.Lock()

    def issue(
        self,
        operation: str,
        resource: str,
        tenant: str,
        source_zone: str,
        target_zone: str,
        *,
        label: str,
        policy: str,
        now: float,
    ) -> TransferPermit:
        """A permit that lives for LIFETIME_S seconds."""
        unsigned_permit = TransferPermit(
            operation,
            resource,
            tenant,
            source_zone,
            target_zone,
            label,
            policy,
            now + PERMIT_LIFETIME_S,
            secrets.token_hex(8),
        )
        return _with_mac(unsigned_permit, self._compute_mac(unsigned_permit))

    def redeem(self, permit: TransferPermit, operation: str, resource: str, zone: str, now: float) -> None:
        """Spend the permit on exactly this act, or Denied."""
        if not hmac.compare_digest(permit.mac.encode(errors="surrogatepass"), self._compute_mac(permit).encode()):
            raise Denied("the permit is forged or altered", "permits come from the guard only", resource)
        if (permit.op, permit.thing, permit.dst) != (operation, resource, zone):
            raise Denied(
                f"the permit is for {permit.op} {permit.thing} in {permit.dst}",
                f"ask for {operation} in {zone}",
                resource,
            )
        if not now < permit.expires:
            raise Denied("the permit has expired", "call again", resource)
        with self._lock:
            if permit.nonce in self._spent_nonces:
                raise Denied("the permit was used before", "each permit opens storage once", resource)
            self._spent_nonces[permit.nonce] = permit.expires
            # All live equally long, so the first that was spent is the first that may be forgotten.
            while self._spent_nonces[next(iter(self._spent_nonces))] <= now:
                self._spent_nonces.popitem(last=False)

    def ticket(self, ticket: TransferTicket) -> str:
        """The text of a ticket; whoever asks has spent the permit for it."""
        data = base64.urlsafe_b64encode(json.dumps(asdict(ticket), separators=(",", ":")).encode())
        return f"{data.decode()}.{self._sign_data(b'ticket', data)}"

    def admit(self, ticket_text: str, operation: str, holder_id: str, now: float) -> TransferTicket:
        """The ticket behind a text, or Denied: forged, over, another person's, or for another act."""
        data, _, mac = ticket_text.partition(".")
        if not hmac.compare_digest(
            mac.encode(errors="replace"), self._sign_data(b"ticket", data.encode(errors="replace")).encode()
        ):
            raise Denied("the ticket is forged or altered", "tickets come from a verb, such as catalog.open")
        try:
            ticket = TransferTicket(**json.loads(base64.urlsafe_b64decode(data)))
        except (binascii.Error, ValueError, TypeError) as error:
            raise Invalid("the ticket is of another release", "ask the verb for a new one") from error
        if ticket.holder != holder_id:
            raise Denied("the ticket is another person's", "ask for one of your own", ticket.thing)
        if ticket.op != operation:
            raise Denied(f"the ticket is to {ticket.op}", f"ask for one to {operation}", ticket.thing)
        if not now < ticket.expires:
            raise Denied("the ticket has expired", "ask the verb for a new one", ticket.thing)
        return ticket

    def receipt(self, ticket: TransferTicket, digest: str, size: int) -> UploadReceipt:
        """What proves later that these bytes came in for the ticket's thing."""
        return UploadReceipt(
            digest,
            size,
            self._sign_data(b"receipt", _encode_receipt_scope(ticket.tenant, ticket.zone, ticket.thing, digest)),
        )

    def accept(self, receipt: UploadReceipt, tenant: str, zone: str, resource: str) -> None:
        """Take a receipt as proof, or Denied."""
        expected_mac = self._sign_data(b"receipt", _encode_receipt_scope(tenant, zone, resource, receipt.digest))
        if not hmac.compare_digest(receipt.mac.encode(errors="replace"), expected_mac.encode()):
            raise Denied("a receipt is forged or of another thing", "send the bytes again", resource)

    def _compute_mac(self, permit: TransferPermit) -> str:
        return hmac.new(self._key, permit.message(), hashlib.sha256).hexdigest()

    def _sign_data(self, purpose_tag: bytes, data: bytes) -> str:
        return hmac.new(self._key, purpose_tag + b"\0" + data, hashlib.sha256).hexdigest()


def _with_mac(permit: TransferPermit, mac: str) -> TransferPermit:
    return TransferPermit(
        permit.op,
        permit.thing,
        permit.tenant,
        permit.src,
        permit.dst,
        permit.label,
        permit.policy,
        permit.expires,
        permit.nonce,
        mac,
    )


def _encode_receipt_scope(*parts: str) -> bytes:
    return json.dumps(parts).encode()
