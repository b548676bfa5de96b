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

from falaj.core.data import dataclass
from falaj.core.errors import Denied, Invalid
from falaj.core.transfer import Receipt

LIFETIME_S = 60.0


@dataclass(frozen=True, slots=True)
class Permit:
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
        parts = (
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
        return b"".join(len(p.encode()).to_bytes(4, "big") + p.encode() for p in parts)


@dataclass(frozen=True, slots=True)
class Ticket:
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


class PermitDesk:
    """Signs permits and redeems each once. One secret an installation; the guard issues, storage redeems."""

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._spent: OrderedDict[str, float] = OrderedDict()
        self._lock = threading.Lock()

    def issue(
        self, op: str, thing: str, tenant: str, src: str, dst: str, *, label: str, policy: str, now: float
    ) -> Permit:
        """A permit that lives for LIFETIME_S seconds."""
        bare = Permit(op, thing, tenant, src, dst, label, policy, now + LIFETIME_S, secrets.token_hex(8))
        return _signed(bare, self._mac(bare))

    def redeem(self, permit: Permit, op: str, thing: str, zone: str, now: float) -> None:
        """Spend the permit on exactly this act, or Denied."""
        if not hmac.compare_digest(permit.mac.encode(errors="surrogatepass"), self._mac(permit).encode()):
            raise Denied("the permit is forged or altered", "permits come from the guard only", thing)
        if (permit.op, permit.thing, permit.dst) != (op, thing, zone):
            raise Denied(
                f"the permit is for {permit.op} {permit.thing} in {permit.dst}", f"ask for {op} in {zone}", thing
            )
        if not now < permit.expires:
            raise Denied("the permit has expired", "call again", thing)
        with self._lock:
            if permit.nonce in self._spent:
                raise Denied("the permit was used before", "each permit opens storage once", thing)
            self._spent[permit.nonce] = permit.expires
            # All live equally long, so the first that was spent is the first that may be forgotten.
            while self._spent[next(iter(self._spent))] <= now:
                self._spent.popitem(last=False)

    def ticket(self, ticket: Ticket) -> str:
        """The text of a ticket; whoever asks has spent the permit for it."""
        data = base64.urlsafe_b64encode(json.dumps(asdict(ticket), separators=(",", ":")).encode())
        return f"{data.decode()}.{self._sign(b'ticket', data)}"

    def admit(self, text: str, op: str, holder: str, now: float) -> Ticket:
        """The ticket behind a text, or Denied: forged, over, another person's, or for another act."""
        data, _, mac = text.partition(".")
        if not hmac.compare_digest(
            mac.encode(errors="replace"), self._sign(b"ticket", data.encode(errors="replace")).encode()
        ):
            raise Denied("the ticket is forged or altered", "tickets come from a verb, such as catalog.open")
        try:
            ticket = Ticket(**json.loads(base64.urlsafe_b64decode(data)))
        except (binascii.Error, ValueError, TypeError) as error:
            raise Invalid("the ticket is of another release", "ask the verb for a new one") from error
        if ticket.holder != holder:
            raise Denied("the ticket is another person's", "ask for one of your own", ticket.thing)
        if ticket.op != op:
            raise Denied(f"the ticket is to {ticket.op}", f"ask for one to {op}", ticket.thing)
        if not now < ticket.expires:
            raise Denied("the ticket has expired", "ask the verb for a new one", ticket.thing)
        return ticket

    def receipt(self, ticket: Ticket, digest: str, size: int) -> Receipt:
        """What proves later that these bytes came in for the ticket's thing."""
        return Receipt(digest, size, self._sign(b"receipt", _sent(ticket.tenant, ticket.zone, ticket.thing, digest)))

    def accept(self, receipt: Receipt, tenant: str, zone: str, thing: str) -> None:
        """Take a receipt as proof, or Denied."""
        wanted = self._sign(b"receipt", _sent(tenant, zone, thing, receipt.digest))
        if not hmac.compare_digest(receipt.mac.encode(errors="replace"), wanted.encode()):
            raise Denied("a receipt is forged or of another thing", "send the bytes again", thing)

    def _mac(self, permit: Permit) -> str:
        return hmac.new(self._key, permit.message(), hashlib.sha256).hexdigest()

    def _sign(self, what: bytes, data: bytes) -> str:
        return hmac.new(self._key, what + b"\0" + data, hashlib.sha256).hexdigest()


def _signed(p: Permit, mac: str) -> Permit:
    return Permit(p.op, p.thing, p.tenant, p.src, p.dst, p.label, p.policy, p.expires, p.nonce, mac)


def _sent(*parts: str) -> bytes:
    return json.dumps(parts).encode()
