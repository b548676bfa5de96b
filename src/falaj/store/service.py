"""Storage: the desk of bytes. Named, labelled, versioned blobs in zones, and the upkeep of what lies there."""

import hashlib
import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Annotated

from falaj.core.byte_stream import ByteStream
from falaj.core.context import CallContext
from falaj.core.errors import Conflict, Invalid, NotFound, StaleRevision
from falaj.core.label import Label
from falaj.core.operation import operation
from falaj.core.ref import Ref
from falaj.store.backup_manager import BackupScheduler
from falaj.store.backup_operations import BackupOperations
from falaj.store.blob_store import BlobInfo, BlobStore
from falaj.store.blob_views import BlobPage, BlobVersionView, ProjectUsage, ZoneUsage, choose_read_zone, to_version_view
from falaj.store.collector import CollectionResult, Collector, ScrubResult
from falaj.store.ledger import Ledger, LedgerReader, LedgerWriter
from falaj.store.records import LedgerRecord
from falaj.store.stored_objects import list_objects_after
from falaj.store.stray_operations import StrayOperations

BLOB_KIND = "blob"
_DEFAULT_MEDIA_TYPE = "application/octet-stream"


class StorageService(StrayOperations, BackupOperations):
    """Bytes under labels: put, get, copy between zones, check, take space back."""

    def __init__(
        self,
        ledger: Ledger,
        blobs: BlobStore,
        collector: Collector | None = None,
        backup_manager: BackupScheduler | None = None,
    ) -> None:
        self._ledger = ledger
        self._blobs = blobs
        self.kept = backup_manager
        self.collector = collector or Collector(blobs)

    @operation(writes=("name",), reads=("inputs",), zone_param="zone", has_outside_effects=True)
    def put(
        self,
        ctx: CallContext,
        name: Annotated[Ref, "what to call it, for example blob:fraud/sample"],
        data: Annotated[ByteStream, "the bytes"],
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
        target_zone, resource = zone or ctx.zone, str(name.bare)
        blob = self._blobs.put(ctx, resource, target_zone, data, ctx.permit("write", resource, target_zone))
        # The bytes are part of what was asked, so a repeat of a named request is known only now; it sent nothing twice.
        request_digest = hashlib.sha256(
            f"store.put\0{resource}\0{target_zone}\0{media}\0{blob.digest}".encode()
        ).hexdigest()
        known_outcome = self._ledger.outcome(ctx, request_digest)
        if known_outcome is not None:
            return Ref.parse(json.loads(known_outcome))

        def record_version(tx: LedgerWriter) -> Ref:
            version = self._add_version(tx, ctx, name.bare, (blob, media or _DEFAULT_MEDIA_TYPE), inputs)
            tx.remember(json.dumps(str(version)), request_digest)
            return version

        return self._ledger.retry(ctx, record_version)

    @operation(reads=("name",), group="read", has_outside_effects=True)
    def get(
        self,
        ctx: CallContext,
        name: Annotated[Ref, "which blob; its newest version when none is given"],
        start: Annotated[int, "the first byte wanted"] = 0,
        stop: Annotated[int | None, "the byte after the last one wanted; to the end when left out"] = None,
    ) -> ByteStream:
        """Read the bytes of a blob, or a range of them.

        Every piece is authenticated, with its place and the blob's length, before it is handed out: a reader that got
        everything got what was put.

        Example:
            falaj store get blob:fraud/sample@v3 --out sample.parquet
        """
        with self._ledger.read(ctx) as tx:
            entry = to_version_view(_require_blob(tx, name))
        source_zone, resource = choose_read_zone(entry, ctx.zone), str(name.bare)
        permit = ctx.permit("read", resource, source_zone)
        end = entry.size_bytes if stop is None else min(stop, entry.size_bytes)
        chunks = self._blobs.get(ctx, resource, source_zone, entry.digest, permit, start, stop)
        return ByteStream(chunks, max(0, end - start))

    @operation(reads=("name",))
    def show(
        self, ctx: CallContext, name: Annotated[Ref, "which blob; its newest version when none is given"]
    ) -> BlobVersionView:
        """Show what a blob is and where it lies, without its bytes.

        Example:
            falaj store show blob:fraud/sample
        """
        with self._ledger.read(ctx) as tx:
            return to_version_view(_require_blob(tx, name))

    @operation()
    def list(
        self,
        ctx: CallContext,
        project: Annotated[str, "of one project only"] = "",
        name: Annotated[str, "every version of this one name"] = "",
        after: Annotated[str, "where the page before ended"] = "",
        limit: Annotated[int, "how many at most"] = 100,
    ) -> BlobPage:
        """List the blobs you may see, each at its newest version, or every version of one name.

        Example:
            falaj store list --project fraud
        """
        index_terms = {"live": "yes"} if name else {"newest": "yes"}
        with self._ledger.read(ctx) as tx:
            page = tx.find(
                BLOB_KIND,
                project=project,
                name=name,
                terms=index_terms,
                scopes=ctx.cells(BLOB_KIND),
                after=after,
                limit=limit,
            )
        return BlobPage(tuple(to_version_view(record) for record in page.records), page.next)

    @operation(reads=("name",), group="move", zone_param="to", has_outside_effects=True)
    def copy(
        self,
        ctx: CallContext,
        name: Annotated[Ref, "which blob; its newest version when none is given"],
        to: Annotated[str, "the zone that shall have a copy"],
    ) -> BlobVersionView:
        """Copy the bytes of a blob into another zone, encrypted anew under that zone's keys.

        Allowed only where the blob's label may lie in that zone, or where a transfer grant with two approvers says so.
        A copy that broke off is taken up where it stopped when it is asked for again.

        Example:
            falaj store copy blob:fraud/sample@v3 --to difc
        """
        with self._ledger.read(ctx) as tx:
            entry = to_version_view(_require_blob(tx, name))
        resource, source = str(name.bare), choose_read_zone(entry, ctx.zone)
        if to in entry.zones:
            return entry
        permits = (ctx.permit("read", resource, source), ctx.permit("copy", resource, to))
        self._ledger.retry(
            ctx, lambda tx: tx.emit("store.copy", entry.ref, phase="begin", source=source, to=to, digest=entry.digest)
        )
        self._blobs.copy(ctx, resource, entry.digest, source, to, permits)
        return self._ledger.retry(ctx, lambda tx: self._add_zone(tx, ctx, entry.ref, source, to))

    @operation(writes=("name",), group="erase")
    def delete(
        self,
        ctx: CallContext,
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
            record = _require_blob(tx, self._resolve_newest(tx, name))
            entry = to_version_view(record)
            # The guard asks for every duty to keep the blob before it gives a permit; none is used before all exist.
            permits = {zone: ctx.permit("delete", str(name.bare), zone) for zone in entry.zones}
            for zone, permit in permits.items():
                self._blobs.delete(ctx, str(name.bare), zone, entry.digest, permit)
            tx.put(record.ref, {**record.body, "state": "deleted", "zones": []}, rev=record.rev, terms={})
            self._promote_previous(tx, name.bare, record.ref)
            tx.emit("store.delete", record.ref, digest=entry.digest, size_bytes=entry.size_bytes, reason=reason)
        return record.ref

    @operation()
    def usage(self, ctx: CallContext, project: Annotated[str, "of one project only"] = "") -> tuple[ProjectUsage, ...]:
        """Sum what projects keep in each zone, as far as you may see it.

        Example:
            falaj store usage --project fraud
        """
        sums: dict[tuple[str, str, str], list[int]] = {}
        for kind in self.collector.holders:
            visible_scopes = ctx.cells(kind)
            for record in self._iterate_records(ctx, kind, project, visible_scopes):
                for zone in record.body["zones"]:
                    version_totals = sums.setdefault((record.key.project, zone, kind), [0, 0])
                    version_totals[0] += 1
                    version_totals[1] += record.body["size"]
        return tuple(ProjectUsage(*key, *values) for key, values in sorted(sums.items()))

    @operation(group="operate")
    def space(self, ctx: CallContext) -> tuple[ZoneUsage, ...]:
        """Sum what lies in the stores of the tenant's zones, and what of it is about to go.

        Example:
            falaj store space
        """
        sums: dict[tuple[str, str], list[int]] = {}
        after = ""
        while True:
            with self._ledger.read(ctx) as tx:
                page, after = list_objects_after(tx, ctx.tenant, after, 1000)
            for stored_object in page:
                if not stored_object.parts:  # what is made of parts holds no bytes of its own
                    object_totals = sums.setdefault((stored_object.zone, stored_object.state), [0, 0])
                    object_totals[0] += 1
                    object_totals[1] += stored_object.size
            if not after:
                return tuple(ZoneUsage(*key, *values) for key, values in sorted(sums.items()))

    @operation(group="operate", has_outside_effects=True)
    def scrub(
        self,
        ctx: CallContext,
        after: Annotated[str, "where the last scrub stopped"] = "",
        limit: Annotated[int, "how many objects at most; all when 0"] = 0,
    ) -> ScrubResult:
        """Read every stored object of the tenant, prove it whole, and name what is broken and who needs it.

        A broken object heals when the same bytes are put again. With a limit, `next` says where to go on.

        Example:
            falaj store scrub --limit 1000
        """
        return self.collector.scrub(ctx, after, limit)

    @operation(group="operate", has_outside_effects=True)
    def collect(self, ctx: CallContext) -> CollectionResult:
        """Take back the space of bytes that nothing needs any more; a background loop does this by itself.

        Bytes go in two steps with a grace period before each, and never while any record or any running put or copy
        needs them.

        Example:
            falaj store collect
        """
        return self.collector.collect(ctx)

    def _iterate_records(
        self, ctx: CallContext, kind: str, project: str, visible_scopes: frozenset[str]
    ) -> Iterator[LedgerRecord]:
        """Every record of a kind that keeps bytes."""
        after = ""
        while True:
            with self._ledger.read(ctx) as tx:
                page = tx.find(
                    kind, project=project, terms={"live": "yes"}, scopes=visible_scopes, after=after, limit=1000
                )
            yield from page.records
            after = page.next
            if not after:
                return

    def _add_version(
        self,
        tx: LedgerWriter,
        ctx: CallContext,
        name: Ref,
        blob_and_media: tuple[BlobInfo, str],
        inputs: tuple[Ref, ...],
    ) -> Ref:
        blob, media = blob_and_media
        head = tx.get(name)
        version = name.at(f"v{head.body['count'] + 1 if head else 1}")
        self._write_head(tx, name, head, version.version)
        if head is not None and head.body["newest"]:
            self._mark_newest(tx, name.at(head.body["newest"]), newest=False)
        self._blobs.hold(tx, ctx, blob.zone, blob.digest)
        body = {"digest": blob.digest, "size": blob.size, "media": media, "zones": [blob.zone], "made_at": ctx.now()}
        terms = {"digest": blob.digest, "live": "yes", "newest": "yes", f"at.{blob.zone}": "yes"}
        tx.put(version, body, zone=blob.zone, terms=terms)
        pins = tuple(ref if ref.pinned else tx.need(ref).ref for ref in inputs)
        tx.emit("store.put", version, pins, digest=blob.digest, size_bytes=blob.size, place=blob.zone)
        return version

    def _write_head(self, tx: LedgerWriter, name: Ref, head: LedgerRecord | None, newest: str) -> None:
        """The mutable record of a name: which version is the newest, and how many there ever were."""
        count = max(head.body["count"] if head else 0, int(newest[1:] or 0))
        try:
            tx.put(name, {"newest": newest, "count": count}, rev=head.rev if head else None)
        except Conflict as error:
            raise StaleRevision(f"somebody else put {name} at the same moment", "call again", name) from error

    def _mark_newest(self, tx: LedgerWriter, version: Ref, *, newest: bool) -> None:
        record = tx.need(version)
        terms = {key: value for key, value in record.terms.items() if key != "newest"}
        tx.put(
            version,
            record.body,
            rev=record.rev,
            label=record.label,
            terms={**terms, "newest": "yes"} if newest else terms,
        )

    def _add_zone(self, tx: LedgerWriter, ctx: CallContext, ref: Ref, source: str, target_zone: str) -> BlobVersionView:
        record = _require_blob(tx, ref)
        entry = to_version_view(record)
        self._blobs.hold(tx, ctx, target_zone, entry.digest)
        zones = tuple(dict.fromkeys((*entry.zones, target_zone)))
        tx.put(ref, {**record.body, "zones": zones}, rev=record.rev, terms={**record.terms, f"at.{target_zone}": "yes"})
        tx.emit(
            "store.copy",
            ref,
            phase="done",
            source=source,
            to=target_zone,
            digest=entry.digest,
            size_bytes=entry.size_bytes,
        )
        return replace(entry, zones=zones)

    def _resolve_newest(self, tx: LedgerReader, name: Ref) -> Ref:
        if name.pinned:
            return name
        head = tx.get(name.bare)
        if head is None or not head.body.get("newest"):
            raise NotFound(f"there is no {name}", "list what there is, or check the spelling", name)
        return name.at(head.body["newest"])

    def _promote_previous(self, tx: LedgerWriter, name: Ref, deleted: Ref) -> None:
        """When the newest version goes, the newest of those that are left takes its place."""
        head = tx.need(name)
        if head.body["newest"] != deleted.version:
            return
        remaining = tx.find(
            BLOB_KIND, project=name.project, name=name.name, terms={"live": "yes"}, limit=10_000
        ).records
        newest = max((record.ref for record in remaining), key=lambda ref: int(ref.version[1:]), default=None)
        if newest is not None:
            self._mark_newest(tx, newest, newest=True)
        tx.put(name, {**head.body, "newest": newest.version if newest else ""}, rev=head.rev)


def _check_name(name: Ref) -> None:
    if name.kind != BLOB_KIND or name.version:
        raise Invalid(f"{name} cannot be put", "name a blob without a version, for example blob:fraud/sample", name)


def _require_blob(tx: LedgerReader, ref: Ref) -> LedgerRecord:
    record = tx.get(ref) if ref.pinned else None
    if ref.kind != BLOB_KIND or record is None or record.body.get("state") == "deleted" or not record.key.version:
        raise NotFound(f"there is no {ref}", "list what there is, or check the spelling", ref)
    return record
