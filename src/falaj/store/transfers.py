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

from falaj.core.byte_channel import UploadReceipt
from falaj.core.context import Actor, CallContext
from falaj.core.errors import Denied, Invalid, NotFound
from falaj.core.ports import RemoteZoneObjects
from falaj.core.ref import Ref
from falaj.core.transfer_permits import PermitAuthority, TransferPermit, TransferTicket
from falaj.store.blob_store import BlobStore, format_digest, parse_digest
from falaj.store.ledger import LedgerReader, LedgerWriter
from falaj.store.stored_objects import (
    LIVE,
    StoredObject,
    assemble_object,
    close_intent,
    find_stored_object,
    make_intent_key,
    open_intent,
    record_remote_object,
    refresh_intent,
    require_readable,
)

WRITE_TICKET_S, READ_TICKET_S = 24 * 3600.0, 3600.0
MAX_BUNDLE_PIECES = 4096
"""Pieces a bundle may have."""
RECHECK_S = 0.25
"""Seconds for which the guard's last answer about a ticket is used."""
_MAX_CACHED_VERSIONS = 256
_MAX_CACHED_TICKETS = 4096
_REMOTE_KEY_PATTERN = r"[0-9a-f]{64}"


class TransferService:
    """The house's end of the byte channel."""

    def __init__(
        self,
        blobs: BlobStore,
        permits: PermitAuthority,
        authorize: Callable[[CallContext, TransferTicket], None] | None = None,
    ) -> None:
        """`authorize` raises what forbids the use of a ticket at this moment; None where no guard stands (tests)."""
        self._blobs = blobs
        self._permits = permits
        self._authorize = authorize
        self._authorized_until: dict[tuple[str, str], float] = {}
        self._digests_by_version: OrderedDict[tuple[str, str, str], frozenset[str]] = OrderedDict()
        self._lock = Lock()

    def begin(self, ctx: CallContext, resource: str, zone: str, permit: TransferPermit) -> str:
        """A ticket to send pieces of `resource` into a zone; until `end`, what is sent is safe from the collector."""
        self._permits.redeem(permit, "write", resource, zone, ctx.now())
        with self._blobs.ledger.project(ctx) as tx:
            intent = open_intent(tx, ctx, "publish", resource, zone)
        label = json.dumps(ctx.label.to_dict()) if ctx.label is not None else ""
        holder, expires_at = _holder_id(ctx.actor), ctx.now() + WRITE_TICKET_S
        ticket = TransferTicket(
            "write", resource, ctx.tenant, zone, holder, expires_at, intent.name, ctx.purpose, label
        )
        return self._permits.ticket(ticket)

    def grant(self, ctx: CallContext, version: Ref, zone: str, permit: TransferPermit) -> str:
        """A ticket to read all that one pinned version holds in a zone."""
        self._permits.redeem(permit, "read", str(version.bare), zone, ctx.now())
        holder, expires_at = _holder_id(ctx.actor), ctx.now() + READ_TICKET_S
        ticket = TransferTicket("read", str(version), ctx.tenant, zone, holder, expires_at, purpose=ctx.purpose)
        return self._permits.ticket(ticket)

    def put(self, ctx: CallContext, ticket_text: str, chunks: Iterable[bytes]) -> UploadReceipt:
        """Store one piece; durable on return."""
        ticket = self._authorize_ticket(ctx, ticket_text, "write")
        self._blobs.project(ctx, lambda tx: refresh_intent(tx, make_intent_key(ctx.tenant, ticket.intent), ctx.now()))
        blob = self._blobs.take(ctx, ticket.thing, ticket.zone, self._recheck_chunks(ctx, ticket_text, ticket, chunks))
        return self._permits.receipt(ticket, blob.digest, blob.size)

    def keep(
        self, ctx: CallContext, ticket_text: str, remote_piece: tuple[str, int, str], zone: str
    ) -> tuple[UploadReceipt, bool]:
        """Note that the agent of a zone holds (digest, size, its name there), sent under this ticket; False beside the
        receipt when equal bytes lie there already, and these may go. It keeps their key, and we know none."""
        ticket = self._authorize_ticket(ctx, ticket_text, "write")
        digest, size, key = remote_piece
        is_agent_zone = isinstance(self._blobs.open_zone(ticket.zone), RemoteZoneObjects)
        if ticket.zone != zone or not is_agent_zone or size < 0 or not re.fullmatch(_REMOTE_KEY_PATTERN, key):
            raise Denied(f"the ticket leads to zone {ticket.zone}", "send the bytes there", ticket.thing)
        remote_object = StoredObject(ctx.tenant, zone, parse_digest(digest), LIVE, size, key, at=ctx.now())

        def record_object(tx: LedgerWriter) -> bool:
            refresh_intent(tx, make_intent_key(ctx.tenant, ticket.intent), ctx.now())
            return record_remote_object(tx, remote_object)

        is_new = self._blobs.project(ctx, record_object)
        return self._permits.receipt(ticket, digest, size), is_new

    def find(self, ctx: CallContext, ticket_text: str, digest: str, zone: str) -> tuple[str, int]:
        """What the agent of a zone calls bytes that this ticket opens, and how many they are."""
        ticket = self._authorize_ticket(ctx, ticket_text, "read")
        if ticket.zone != zone or parse_digest(digest) not in self._list_digests(ctx, ticket):
            raise Denied(f"{ticket.thing} does not hold {digest[:20]}… there", "ask for what its tree names")
        with self._blobs.ledger.read(ctx) as tx:
            stored_object = require_readable(tx, ctx.tenant, zone, parse_digest(digest))
        return stored_object.key, stored_object.size

    def bundle(self, ctx: CallContext, ticket_text: str, receipts: tuple[UploadReceipt, ...]) -> UploadReceipt:
        """Tie pieces together; the same pieces in the same order are the same bundle."""
        ticket = self._authorize_ticket(ctx, ticket_text, "write")
        if not 0 < len(receipts) <= MAX_BUNDLE_PIECES:
            raise Invalid(f"a bundle of {len(receipts)} pieces", f"1 to {MAX_BUNDLE_PIECES}")
        for receipt in receipts:
            self._permits.accept(receipt, ctx.tenant, ticket.zone, ticket.thing)
        bundle_object = make_bundle_object(
            ctx, ticket.zone, tuple((receipt_item.digest, receipt_item.size) for receipt_item in receipts)
        )
        self._blobs.project(ctx, lambda tx: assemble_object(tx, bundle_object))
        return self._permits.receipt(ticket, format_digest(bundle_object.digest), bundle_object.size)

    def get(
        self, ctx: CallContext, ticket_text: str, digest: str, start: int = 0, stop: int | None = None
    ) -> Iterator[bytes]:
        """Bytes of what the ticket's version holds."""
        ticket = self._authorize_ticket(ctx, ticket_text, "read")
        hex_digest = parse_digest(digest)
        if hex_digest not in self._list_digests(ctx, ticket):
            raise Denied(f"{ticket.thing} does not hold {digest[:20]}…", "ask for what its tree names", ticket.thing)
        return self._recheck_chunks(ctx, ticket_text, ticket, self._blobs.give(ctx, ticket.zone, digest, start, stop))

    def accept(self, receipt: UploadReceipt, ctx: CallContext, resource: str, zone: str) -> None:
        """Denied unless the receipt is of bytes sent for this thing into this zone."""
        self._permits.accept(receipt, ctx.tenant, zone, resource)

    def zone_of(self, ctx: CallContext, ticket_text: str) -> str:
        """Where a ticket to write leads."""
        return self._verify_ticket(ctx, ticket_text, "write").zone

    def thing_of(self, ctx: CallContext, ticket_text: str) -> str:
        """What a ticket to write is for."""
        return self._verify_ticket(ctx, ticket_text, "write").thing

    def end(self, ctx: CallContext, ticket_text: str) -> None:
        """The act is over: what no record holds by now may be collected."""
        ticket = self._verify_ticket(ctx, ticket_text, "write")
        self._blobs.project(ctx, lambda tx: close_intent(tx, make_intent_key(ctx.tenant, ticket.intent)))

    def drop(self, ctx: CallContext, ticket_text: str, receipts: tuple[UploadReceipt, ...]) -> None:
        """The act was refused: bundles that were sent for it, and were nobody else's, go at once."""
        from falaj.store.collector import Collector

        ticket = self._verify_ticket(ctx, ticket_text, "write")
        self.end(ctx, ticket_text)
        collector = Collector(self._blobs)
        for receipt in receipts:
            self._permits.accept(receipt, ctx.tenant, ticket.zone, ticket.thing)
            collector.drop(ctx, ticket.zone, parse_digest(receipt.digest))

    def _verify_ticket(self, ctx: CallContext, ticket_text: str, operation: str) -> TransferTicket:
        return self._permits.admit(ticket_text, operation, _holder_id(ctx.actor), ctx.now())

    def _authorize_ticket(self, ctx: CallContext, ticket_text: str, operation: str) -> TransferTicket:
        """The ticket, if its holder may still do what it was given for."""
        ticket = self._verify_ticket(ctx, ticket_text, operation)
        self._check_authority(ctx, ticket_text, ticket)
        return ticket

    def _recheck_chunks(
        self, ctx: CallContext, ticket_text: str, ticket: TransferTicket, chunks: Iterable[bytes]
    ) -> Iterator[bytes]:
        """The same chunks, until the holder may not have them any more."""
        for chunk in chunks:
            self._check_authority(ctx, ticket_text, ticket)
            yield chunk

    def _check_authority(self, ctx: CallContext, ticket_text: str, ticket: TransferTicket) -> None:
        key, now = (ticket_text, ctx.actor.credential), monotonic()
        if self._authorize is None or now < self._authorized_until.get(key, 0.0):
            return
        self._authorized_until.pop(key, None)
        self._authorize(ctx, ticket)
        if len(self._authorized_until) >= _MAX_CACHED_TICKETS:
            self._authorized_until.clear()
        self._authorized_until[key] = now + RECHECK_S

    def _list_digests(self, ctx: CallContext, ticket: TransferTicket) -> frozenset[str]:
        """Every digest a version holds, itself or in bundles. A version does not change, so it is looked up once."""
        name = (ticket.tenant, ticket.thing, ticket.zone)
        with self._blobs.ledger.read(ctx) as tx:
            # A version that was deleted meanwhile names no digests any more: asked each time, and cheap.
            record = tx.need(Ref.parse(ticket.thing))
            roots = [
                parse_digest(term_digest)
                for term, term_digest in record.terms.items()
                if term == "digest" or term.startswith("digest.")
            ]
            if not roots:
                raise NotFound(f"there is no {ticket.thing}", "it may have been deleted", ticket.thing)
            with self._lock:
                digests = self._digests_by_version.get(name)
            if digests is None:
                digests = _collect_digests(tx, ticket, roots)
        with self._lock:
            self._digests_by_version[name] = digests
            self._digests_by_version.move_to_end(name)
            if len(self._digests_by_version) > _MAX_CACHED_VERSIONS:
                self._digests_by_version.popitem(last=False)
        return digests


def make_bundle_object(ctx: CallContext, zone: str, pieces: tuple[tuple[str, int], ...]) -> StoredObject:
    """The object that holds these (digest, size) together; its own digest is over theirs."""
    parts = tuple(dict.fromkeys(parse_digest(digest) for digest, _ in pieces))
    digest = blake3(b"bundle\0" + "\n".join(parts).encode()).hexdigest()
    size = sum(size for _, size in pieces)
    return StoredObject(ctx.tenant, zone, digest, LIVE, size, parts=parts, at=ctx.now(), bundle=True)


def _collect_digests(tx: LedgerReader, ticket: TransferTicket, roots: list[str]) -> frozenset[str]:
    digests: set[str] = set()
    for root in roots:
        stored_object = find_stored_object(tx, ticket.tenant, ticket.zone, root)
        if stored_object is None:
            raise NotFound(f"{ticket.thing} does not lie in zone {ticket.zone}", "copy it there first", ticket.thing)
        digests.update(stored_object.parts if stored_object.bundle else (root,))
    return frozenset(digests)


def _holder_id(actor: Actor) -> str:
    return f"{actor.tenant}/{actor.id}"
