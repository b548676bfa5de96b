"""Storage: the desk of bytes. Named, labelled, versioned blobs in zones, and the upkeep of what lies there."""

import hashlib
import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Annotated

from falaj.core.context import Context
from falaj.core.errors import Conflict, Invalid, NotFound, Stale
from falaj.core.label import Label
from falaj.core.ref import Ref
from falaj.core.stream import Stream
from falaj.core.verb import verb
from falaj.store.backups import Backups
from falaj.store.blobs import Blob, BlobStore
from falaj.store.collect import Collected, Collector, Scrubbed
from falaj.store.entries import Entry, Listing, Space, Usage, as_entry, nearest
from falaj.store.keeping import Keeping
from falaj.store.ledger import Ledger, Reader, Writer
from falaj.store.objects import objects_after
from falaj.store.records import Record
from falaj.store.strays import Strays

KIND = "blob"
_MEDIA = "application/octet-stream"


class Storage(Strays, Keeping):
    """Bytes under labels: put, get, copy between zones, check, take space back."""

    def __init__(
        self, ledger: Ledger, blobs: BlobStore, collector: Collector | None = None, kept: Backups | None = None
    ) -> None:
        self._ledger = ledger
        self._blobs = blobs
        self.kept = kept
        self.collector = collector or Collector(blobs)

    @verb(writes=("name",), reads=("inputs",), into="zone", outside=True)
    def put(
        self,
        ctx: Context,
        name: Annotated[Ref, "what to call it, for example blob:fraud/sample"],
        data: Annotated[Stream, "the bytes"],
        label: Annotated[Label | None, "what the law says of them, for example AE-PDPL,sensitive"] = None,
        inputs: Annotated[tuple[Ref, ...], "what they were made from; their labels are joined to this one"] = (),
        zone: Annotated[str, "where they shall lie; your own zone when left out"] = "",
        media: Annotated[str, "their media type"] = "",
    ) -> Ref:
        """Store bytes as the next version of a blob, and give that version's name.

        The bytes are encrypted under the zone's keys and kept once, however often they are put. When an upload breaks
        off, put the same bytes again: what has arrived is not sent twice. The label is joined with those of `inputs`
        and of the versions before; only an approved declassification lowers it.

        Example:
            falaj store put blob:fraud/sample ./sample.parquet --label AE-PDPL,sensitive
        """
        del label  # the guard has joined it into ctx.label, which is what counts
        _check_name(name)
        place, thing = zone or ctx.zone, str(name.bare)
        blob = self._blobs.put(ctx, thing, place, data, ctx.permit("write", thing, place))
        # The bytes are part of what was asked, so a repeat of a named request is known only now; it sent nothing twice.
        asked = hashlib.sha256(f"store.put\0{thing}\0{place}\0{media}\0{blob.digest}".encode()).hexdigest()
        known = self._ledger.outcome(ctx, asked)
        if known is not None:
            return Ref.parse(json.loads(known))

        def record(tx: Writer) -> Ref:
            version = self._add_version(tx, ctx, name.bare, (blob, media or _MEDIA), inputs)
            tx.remember(json.dumps(str(version)), asked)
            return version

        return self._ledger.retry(ctx, record)

    @verb(reads=("name",), group="read", outside=True)
    def get(
        self,
        ctx: Context,
        name: Annotated[Ref, "which blob; its newest version when none is given"],
        start: Annotated[int, "the first byte wanted"] = 0,
        stop: Annotated[int | None, "the byte after the last one wanted; to the end when left out"] = None,
    ) -> Stream:
        """Read the bytes of a blob, or a range of them.

        Every piece is authenticated, with its place and the blob's length, before it is handed out: a reader that got
        everything got what was put.

        Example:
            falaj store get blob:fraud/sample@v3 --out sample.parquet
        """
        with self._ledger.read(ctx) as tx:
            entry = as_entry(_need(tx, name))
        place, thing = nearest(entry, ctx.zone), str(name.bare)
        permit = ctx.permit("read", thing, place)
        end = entry.size_bytes if stop is None else min(stop, entry.size_bytes)
        chunks = self._blobs.get(ctx, thing, place, entry.digest, permit, start, stop)
        return Stream(chunks, max(0, end - start))

    @verb(reads=("name",))
    def show(self, ctx: Context, name: Annotated[Ref, "which blob; its newest version when none is given"]) -> Entry:
        """Show what a blob is and where it lies, without its bytes.

        Example:
            falaj store show blob:fraud/sample
        """
        with self._ledger.read(ctx) as tx:
            return as_entry(_need(tx, name))

    @verb()
    def list(
        self,
        ctx: Context,
        project: Annotated[str, "of one project only"] = "",
        name: Annotated[str, "every version of this one name"] = "",
        after: Annotated[str, "where the page before ended"] = "",
        limit: Annotated[int, "how many at most"] = 100,
    ) -> Listing:
        """List the blobs you may see, each at its newest version, or every version of one name.

        Example:
            falaj store list --project fraud
        """
        wanted = {"live": "yes"} if name else {"newest": "yes"}
        with self._ledger.read(ctx) as tx:
            page = tx.find(
                KIND, project=project, name=name, terms=wanted, cells=ctx.cells(KIND), after=after, limit=limit
            )
        return Listing(tuple(as_entry(record) for record in page.records), page.next)

    @verb(reads=("name",), group="move", into="to", outside=True)
    def copy(
        self,
        ctx: Context,
        name: Annotated[Ref, "which blob; its newest version when none is given"],
        to: Annotated[str, "the zone that shall have a copy"],
    ) -> Entry:
        """Copy the bytes of a blob into another zone, encrypted anew under that zone's keys.

        Allowed only where the blob's label may lie in that zone, or where a transfer grant with two approvers says so.
        A copy that broke off is taken up where it stopped when it is asked for again.

        Example:
            falaj store copy blob:fraud/sample@v3 --to difc
        """
        with self._ledger.read(ctx) as tx:
            entry = as_entry(_need(tx, name))
        thing, source = str(name.bare), nearest(entry, ctx.zone)
        if to in entry.zones:
            return entry
        permits = (ctx.permit("read", thing, source), ctx.permit("copy", thing, to))
        self._ledger.retry(
            ctx, lambda tx: tx.emit("store.copy", entry.ref, phase="begin", source=source, to=to, digest=entry.digest)
        )
        self._blobs.copy(ctx, thing, entry.digest, source, to, permits)
        return self._ledger.retry(ctx, lambda tx: self._add_zone(tx, ctx, entry.ref, source, to))

    @verb(writes=("name",), group="erase")
    def delete(
        self,
        ctx: Context,
        name: Annotated[Ref, "which version; the newest when none is given"],
        reason: Annotated[str, "why, for the log"] = "",
    ) -> Ref:
        """Delete one version of a blob: it can no longer be read, and its bytes go when nothing else needs them.

        Refused while a legal hold, a retention period of its label or of a law, or a contract demands that it is kept.
        The name, the label and the digest stay in the log; a version number is never used again.

        Example:
            falaj store delete blob:fraud/sample@v2 --reason "consent withdrawn"
        """
        with self._ledger.write(ctx) as tx:
            record = _need(tx, self._newest(tx, name))
            entry = as_entry(record)
            # The guard asks for every duty to keep the blob before it gives a permit; none is used before all exist.
            permits = {zone: ctx.permit("delete", str(name.bare), zone) for zone in entry.zones}
            for zone, permit in permits.items():
                self._blobs.delete(ctx, str(name.bare), zone, entry.digest, permit)
            tx.put(record.ref, {**record.body, "state": "deleted", "zones": []}, rev=record.rev, terms={})
            self._step_back(tx, name.bare, record.ref)
            tx.emit("store.delete", record.ref, digest=entry.digest, size_bytes=entry.size_bytes, reason=reason)
        return record.ref

    @verb()
    def usage(self, ctx: Context, project: Annotated[str, "of one project only"] = "") -> tuple[Usage, ...]:
        """Sum what projects keep in each zone, as far as you may see it.

        Example:
            falaj store usage --project fraud
        """
        sums: dict[tuple[str, str, str], list[int]] = {}
        for kind in self.collector.holders:
            cells = ctx.cells(kind)
            for record in self._all(ctx, kind, project, cells):
                for zone in record.body["zones"]:
                    known = sums.setdefault((record.key.project, zone, kind), [0, 0])
                    known[0] += 1
                    known[1] += record.body["size"]
        return tuple(Usage(*key, *values) for key, values in sorted(sums.items()))

    @verb(group="operate")
    def space(self, ctx: Context) -> tuple[Space, ...]:
        """Sum what lies in the stores of the tenant's zones, and what of it is about to go.

        Example:
            falaj store space
        """
        sums: dict[tuple[str, str], list[int]] = {}
        after = ""
        while True:
            with self._ledger.read(ctx) as tx:
                page, after = objects_after(tx, ctx.tenant, after, 1000)
            for thing in page:
                if not thing.parts:  # what is made of parts holds no bytes of its own
                    known = sums.setdefault((thing.zone, thing.state), [0, 0])
                    known[0] += 1
                    known[1] += thing.size
            if not after:
                return tuple(Space(*key, *values) for key, values in sorted(sums.items()))

    @verb(group="operate", outside=True)
    def scrub(
        self,
        ctx: Context,
        after: Annotated[str, "where the last scrub stopped"] = "",
        limit: Annotated[int, "how many objects at most; all when 0"] = 0,
    ) -> Scrubbed:
        """Read every stored object of the tenant, prove it whole, and name what is broken and who needs it.

        A broken object heals when the same bytes are put again. With a limit, `next` says where to go on.

        Example:
            falaj store scrub --limit 1000
        """
        return self.collector.scrub(ctx, after, limit)

    @verb(group="operate", outside=True)
    def collect(self, ctx: Context) -> Collected:
        """Take back the space of bytes that nothing needs any more; a background loop does this by itself.

        Bytes go in two steps with a grace period before each, and never while any record or any running put or copy
        needs them.

        Example:
            falaj store collect
        """
        return self.collector.collect(ctx)

    def _all(self, ctx: Context, kind: str, project: str, cells: frozenset[str]) -> Iterator[Record]:
        """Every record of a kind that keeps bytes."""
        after = ""
        while True:
            with self._ledger.read(ctx) as tx:
                page = tx.find(kind, project=project, terms={"live": "yes"}, cells=cells, after=after, limit=1000)
            yield from page.records
            after = page.next
            if not after:
                return

    def _add_version(self, tx: Writer, ctx: Context, name: Ref, made: tuple[Blob, str], inputs: tuple[Ref, ...]) -> Ref:
        blob, media = made
        head = tx.get(name)
        version = name.at(f"v{head.body['count'] + 1 if head else 1}")
        self._write_head(tx, name, head, version.version)
        if head is not None and head.body["newest"]:
            self._mark(tx, name.at(head.body["newest"]), newest=False)
        self._blobs.hold(tx, ctx, blob.zone, blob.digest)
        body = {"digest": blob.digest, "size": blob.size, "media": media, "zones": [blob.zone], "made_at": ctx.now()}
        terms = {"digest": blob.digest, "live": "yes", "newest": "yes", f"at.{blob.zone}": "yes"}
        tx.put(version, body, zone=blob.zone, terms=terms)
        pins = tuple(ref if ref.pinned else tx.need(ref).ref for ref in inputs)
        tx.emit("store.put", version, pins, digest=blob.digest, size_bytes=blob.size, place=blob.zone)
        return version

    def _write_head(self, tx: Writer, name: Ref, head: Record | None, newest: str) -> None:
        """The mutable record of a name: which version is the newest, and how many there ever were."""
        count = max(head.body["count"] if head else 0, int(newest[1:] or 0))
        try:
            tx.put(name, {"newest": newest, "count": count}, rev=head.rev if head else None)
        except Conflict as error:
            raise Stale(f"somebody else put {name} at the same moment", "call again", name) from error

    def _mark(self, tx: Writer, version: Ref, *, newest: bool) -> None:
        record = tx.need(version)
        terms = {key: value for key, value in record.terms.items() if key != "newest"}
        tx.put(
            version,
            record.body,
            rev=record.rev,
            label=record.label,
            terms={**terms, "newest": "yes"} if newest else terms,
        )

    def _add_zone(self, tx: Writer, ctx: Context, ref: Ref, source: str, to: str) -> Entry:
        record = _need(tx, ref)
        entry = as_entry(record)
        self._blobs.hold(tx, ctx, to, entry.digest)
        zones = tuple(dict.fromkeys((*entry.zones, to)))
        tx.put(ref, {**record.body, "zones": zones}, rev=record.rev, terms={**record.terms, f"at.{to}": "yes"})
        tx.emit("store.copy", ref, phase="done", source=source, to=to, digest=entry.digest, size_bytes=entry.size_bytes)
        return replace(entry, zones=zones)

    def _newest(self, tx: Reader, name: Ref) -> Ref:
        if name.pinned:
            return name
        head = tx.get(name.bare)
        if head is None or not head.body.get("newest"):
            raise NotFound(f"there is no {name}", "list what there is, or check the spelling", name)
        return name.at(head.body["newest"])

    def _step_back(self, tx: Writer, name: Ref, deleted: Ref) -> None:
        """When the newest version goes, the newest of those that are left takes its place."""
        head = tx.need(name)
        if head.body["newest"] != deleted.version:
            return
        left = tx.find(KIND, project=name.project, name=name.name, terms={"live": "yes"}, limit=10_000).records
        newest = max((record.ref for record in left), key=lambda ref: int(ref.version[1:]), default=None)
        if newest is not None:
            self._mark(tx, newest, newest=True)
        tx.put(name, {**head.body, "newest": newest.version if newest else ""}, rev=head.rev)


def _check_name(name: Ref) -> None:
    if name.kind != KIND or name.version:
        raise Invalid(f"{name} cannot be put", "name a blob without a version, for example blob:fraud/sample", name)


def _need(tx: Reader, ref: Ref) -> Record:
    record = tx.get(ref) if ref.pinned else None
    if ref.kind != KIND or record is None or record.body.get("state") == "deleted" or not record.key.version:
        raise NotFound(f"there is no {ref}", "list what there is, or check the spelling", ref)
    return record
