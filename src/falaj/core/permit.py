"""Permit: a short signed capability to move bytes. Storage opens for nothing else, so no path can forget to ask."""

import hashlib
import hmac
import secrets
import threading
from dataclasses import dataclass

from falaj.core.errors import Denied

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


class PermitDesk:
    """Signs permits and redeems each once. One secret an installation; the guard issues, storage redeems."""

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._spent: dict[str, float] = {}
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
            if len(self._spent) > 4096:
                self._spent = {n: e for n, e in self._spent.items() if e > now}

    def _mac(self, permit: Permit) -> str:
        return hmac.new(self._key, permit.message(), hashlib.sha256).hexdigest()


def _signed(p: Permit, mac: str) -> Permit:
    return Permit(p.op, p.thing, p.tenant, p.src, p.dst, p.label, p.policy, p.expires, p.nonce, mac)
