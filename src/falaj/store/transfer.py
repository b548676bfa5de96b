"""Transfers: many pieces of one thing in or out under one ticket, without a verb for each.

In: `begin` spends the permit to write and opens an intent, pieces come in and earn receipts, `bundle` ties pieces into
one object that holds them all, and the verb that ends the act holds that object. Out: `grant` spends the permit to read
and the ticket opens whatever the version's record names in its terms, and what those objects are made of; no more.

A ticket is no right of its own: while it is used the guard is asked again, every `RECHECK_S`, whether its holder may
still do what it was given for.
"""

import json
import re
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from threading import Lock
from time import monotonic

from blake3 import blake3

from falaj.core.context import Actor, Context
from falaj.core.errors import Denied, Invalid, NotFound
from falaj.core.permit import Permit, PermitDesk, Ticket
from falaj.core.ports import KeepsOut
from falaj.core.ref import Ref
from falaj.core.transfer import Receipt
from falaj.store.blobs import BlobStore, digest_of, hex_of
from falaj.store.ledger import Reader, Writer
from falaj.store.objects import (
    LIVE,
    Object,
    assemble,
    close_intent,
    find_object,
    intent_key,
    open_intent,
    readable,
    refresh_intent,
    take_note,
)

WRITE_S, READ_S = 24 * 3600.0, 3600.0
MOST = 4096
"""Pieces a bundle may have."""
RECHECK_S = 0.25
"""Seconds for which the guard's last answer about a ticket is used."""
_KNOWN = 256
_TICKETS = 4096
_AWAY = r"[0-9a-f]{64}"


class Transfers:
    """The house's end of the byte channel."""

    def __init__(
        self, blobs: BlobStore, permits: PermitDesk, authorize: Callable[[Context, Ticket], None] | None = None
    ) -> None:
        """`authorize` raises what forbids the use of a ticket at this moment; None where no guard stands (tests)."""
        self._blobs = blobs
        self._permits = permits
        self._authorize = authorize
        self._authorized: dict[tuple[str, str], float] = {}
        self._opened: OrderedDict[tuple[str, str, str], frozenset[str]] = OrderedDict()
        self._lock = Lock()

    def begin(self, ctx: Context, thing: str, zone: str, permit: Permit) -> str:
        """A ticket to send pieces of `thing` into a zone; until `end`, what is sent is safe from the collector."""
        self._permits.redeem(permit, "write", thing, zone, ctx.now())
        with self._blobs.ledger.project(ctx) as tx:
            intent = open_intent(tx, ctx, "publish", thing, zone)
        label = json.dumps(ctx.label.to_dict()) if ctx.label is not None else ""
        holder, until = _holder(ctx.actor), ctx.now() + WRITE_S
        ticket = Ticket("write", thing, ctx.tenant, zone, holder, until, intent.name, ctx.purpose, label)
        return self._permits.ticket(ticket)

    def grant(self, ctx: Context, version: Ref, zone: str, permit: Permit) -> str:
        """A ticket to read all that one pinned version holds in a zone."""
        self._permits.redeem(permit, "read", str(version.bare), zone, ctx.now())
        holder, until = _holder(ctx.actor), ctx.now() + READ_S
        ticket = Ticket("read", str(version), ctx.tenant, zone, holder, until, purpose=ctx.purpose)
        return self._permits.ticket(ticket)

    def put(self, ctx: Context, text: str, chunks: Iterable[bytes]) -> Receipt:
        """Store one piece; durable on return."""
        ticket = self._use(ctx, text, "write")
        self._blobs.project(ctx, lambda tx: refresh_intent(tx, intent_key(ctx.tenant, ticket.intent), ctx.now()))
        blob = self._blobs.take(ctx, ticket.thing, ticket.zone, self._recheck(ctx, text, ticket, chunks))
        return self._permits.receipt(ticket, blob.digest, blob.size)

    def keep(self, ctx: Context, text: str, lying: tuple[str, int, str], zone: str) -> tuple[Receipt, bool]:
        """Note that the agent of a zone holds (digest, size, its name there), sent under this ticket; False beside the
        receipt when equal bytes lie there already, and these may go. It keeps their key, and we know none."""
        ticket = self._use(ctx, text, "write")
        digest, size, key = lying
        own = isinstance(self._blobs.open_zone(ticket.zone), KeepsOut)
        if ticket.zone != zone or not own or size < 0 or not re.fullmatch(_AWAY, key):
            raise Denied(f"the ticket leads to zone {ticket.zone}", "send the bytes there", ticket.thing)
        made = Object(ctx.tenant, zone, hex_of(digest), LIVE, size, key, at=ctx.now())

        def note(tx: Writer) -> bool:
            refresh_intent(tx, intent_key(ctx.tenant, ticket.intent), ctx.now())
            return take_note(tx, made)

        won = self._blobs.project(ctx, note)
        return self._permits.receipt(ticket, digest, size), won

    def find(self, ctx: Context, text: str, digest: str, zone: str) -> tuple[str, int]:
        """What the agent of a zone calls bytes that this ticket opens, and how many they are."""
        ticket = self._use(ctx, text, "read")
        if ticket.zone != zone or hex_of(digest) not in self._held(ctx, ticket):
            raise Denied(f"{ticket.thing} does not hold {digest[:20]}… there", "ask for what its tree names")
        with self._blobs.ledger.read(ctx) as tx:
            found = readable(tx, ctx.tenant, zone, hex_of(digest))
        return found.key, found.size

    def bundle(self, ctx: Context, text: str, receipts: tuple[Receipt, ...]) -> Receipt:
        """Tie pieces together; the same pieces in the same order are the same bundle."""
        ticket = self._use(ctx, text, "write")
        if not 0 < len(receipts) <= MOST:
            raise Invalid(f"a bundle of {len(receipts)} pieces", f"1 to {MOST}")
        for receipt in receipts:
            self._permits.accept(receipt, ctx.tenant, ticket.zone, ticket.thing)
        whole = bundle_of(ctx, ticket.zone, tuple((r.digest, r.size) for r in receipts))
        self._blobs.project(ctx, lambda tx: assemble(tx, whole))
        return self._permits.receipt(ticket, digest_of(whole.digest), whole.size)

    def get(self, ctx: Context, text: str, digest: str, start: int = 0, stop: int | None = None) -> Iterator[bytes]:
        """Bytes of what the ticket's version holds."""
        ticket = self._use(ctx, text, "read")
        hexa = hex_of(digest)
        if hexa not in self._held(ctx, ticket):
            raise Denied(f"{ticket.thing} does not hold {digest[:20]}…", "ask for what its tree names", ticket.thing)
        return self._recheck(ctx, text, ticket, self._blobs.give(ctx, ticket.zone, digest, start, stop))

    def accept(self, receipt: Receipt, ctx: Context, thing: str, zone: str) -> None:
        """Denied unless the receipt is of bytes sent for this thing into this zone."""
        self._permits.accept(receipt, ctx.tenant, zone, thing)

    def zone_of(self, ctx: Context, text: str) -> str:
        """Where a ticket to write leads."""
        return self._admit(ctx, text, "write").zone

    def thing_of(self, ctx: Context, text: str) -> str:
        """What a ticket to write is for."""
        return self._admit(ctx, text, "write").thing

    def end(self, ctx: Context, text: str) -> None:
        """The act is over: what no record holds by now may be collected."""
        ticket = self._admit(ctx, text, "write")
        self._blobs.project(ctx, lambda tx: close_intent(tx, intent_key(ctx.tenant, ticket.intent)))

    def drop(self, ctx: Context, text: str, receipts: tuple[Receipt, ...]) -> None:
        """The act was refused: bundles that were sent for it, and were nobody else's, go at once."""
        from falaj.store.collect import Collector

        ticket = self._admit(ctx, text, "write")
        self.end(ctx, text)
        collector = Collector(self._blobs)
        for receipt in receipts:
            self._permits.accept(receipt, ctx.tenant, ticket.zone, ticket.thing)
            collector.drop(ctx, ticket.zone, hex_of(receipt.digest))

    def _admit(self, ctx: Context, text: str, op: str) -> Ticket:
        return self._permits.admit(text, op, _holder(ctx.actor), ctx.now())

    def _use(self, ctx: Context, text: str, op: str) -> Ticket:
        """The ticket, if its holder may still do what it was given for."""
        ticket = self._admit(ctx, text, op)
        self._check_authority(ctx, text, ticket)
        return ticket

    def _recheck(self, ctx: Context, text: str, ticket: Ticket, chunks: Iterable[bytes]) -> Iterator[bytes]:
        """The same chunks, until the holder may not have them any more."""
        for chunk in chunks:
            self._check_authority(ctx, text, ticket)
            yield chunk

    def _check_authority(self, ctx: Context, text: str, ticket: Ticket) -> None:
        key, now = (text, ctx.actor.credential), monotonic()
        if self._authorize is None or now < self._authorized.get(key, 0.0):
            return
        self._authorized.pop(key, None)
        self._authorize(ctx, ticket)
        if len(self._authorized) >= _TICKETS:
            self._authorized.clear()
        self._authorized[key] = now + RECHECK_S

    def _held(self, ctx: Context, ticket: Ticket) -> frozenset[str]:
        """Every digest a version holds, itself or in bundles. A version does not change, so it is looked up once."""
        name = (ticket.tenant, ticket.thing, ticket.zone)
        with self._blobs.ledger.read(ctx) as tx:
            # A version that was deleted meanwhile names no digests any more: asked each time, and cheap.
            record = tx.need(Ref.parse(ticket.thing))
            roots = [hex_of(d) for term, d in record.terms.items() if term == "digest" or term.startswith("digest.")]
            if not roots:
                raise NotFound(f"there is no {ticket.thing}", "it may have been deleted", ticket.thing)
            with self._lock:
                known = self._opened.get(name)
            if known is None:
                known = _pieces(tx, ticket, roots)
        with self._lock:
            self._opened[name] = known
            self._opened.move_to_end(name)
            if len(self._opened) > _KNOWN:
                self._opened.popitem(last=False)
        return known


def bundle_of(ctx: Context, zone: str, pieces: tuple[tuple[str, int], ...]) -> Object:
    """The object that holds these (digest, size) together; its own digest is over theirs."""
    parts = tuple(dict.fromkeys(hex_of(digest) for digest, _ in pieces))
    digest = blake3(b"bundle\0" + "\n".join(parts).encode()).hexdigest()
    size = sum(size for _, size in pieces)
    return Object(ctx.tenant, zone, digest, LIVE, size, parts=parts, at=ctx.now(), bundle=True)


def _pieces(tx: Reader, ticket: Ticket, roots: list[str]) -> frozenset[str]:
    held: set[str] = set()
    for root in roots:
        found = find_object(tx, ticket.tenant, ticket.zone, root)
        if found is None:
            raise NotFound(f"{ticket.thing} does not lie in zone {ticket.zone}", "copy it there first", ticket.thing)
        held.update(found.parts if found.bundle else (root,))
    return frozenset(held)


def _holder(actor: Actor) -> str:
    return f"{actor.tenant}/{actor.id}"
