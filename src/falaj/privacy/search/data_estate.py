"""What the search reads from: the ledger, blobs, series and services of this server, with the platform's authority."""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from falaj.catalog.records import OpenedVersion
from falaj.core.context import CallContext
from falaj.core.errors import Unavailable
from falaj.core.ports import RemoteZoneObjects, SeriesStore
from falaj.core.ref import Ref
from falaj.snapshot.records import PublishedTree
from falaj.snapshot.tree_reader import TreeSnapshot
from falaj.store.blob_store import BlobStore
from falaj.store.codec import from_plain
from falaj.store.collector import Collector
from falaj.store.ledger import Ledger
from falaj.store.records import LedgerRecord

PAGE_SIZE = 100


class DataEstate(NamedTuple):
    """The parts of the server that hold data."""

    ledger: Ledger
    blobs: BlobStore
    series: Callable[[], SeriesStore]
    service: Callable[[str], Any]
    """A service of the server by its name: features, serve, jobs, store."""
    collector: Callable[[], Collector]

    def records(
        self, ctx: CallContext, kind: str, after: str = "", page_size: int = PAGE_SIZE, **terms: str
    ) -> Iterator[tuple[LedgerRecord, str]]:
        """Every record of a kind with the cursor behind its page, empty on the last page."""
        while True:
            with self.ledger.read(ctx) as tx:
                page = tx.find(kind, terms=terms, after=after, limit=page_size)
            for record in page.records:
                yield record, page.next
            after = page.next
            if not after:
                return

    def list_kinds(self, ctx: CallContext) -> list[str]:
        """Every kind of which the tenant has records, by name."""
        return self.ledger.store.list_kinds(ctx.tenant)

    def check_zone(self, zone: str) -> None:
        """Unavailable where the platform itself cannot read the bytes of a zone."""
        if isinstance(self.blobs.open_zone(zone), RemoteZoneObjects):
            raise Unavailable(f"the bytes of zone {zone} are read by its own agent only", "search there")

    def snapshot(self, ctx: CallContext, record: LedgerRecord) -> TreeSnapshot:
        """The files of a live version."""
        body = record.body
        tree: PublishedTree = from_plain(
            PublishedTree,
            {
                "root": body["root"], "num_files": body["num_files"], "size_bytes": body["size"],
                "batches": body["batches"],
            },
        )  # fmt: skip
        zone = ctx.zone if ctx.zone in body["zones"] else str(body["zones"][0])
        self.check_zone(zone)

        def fetch_bytes(digest: str, start: int = 0, stop: int | None = None) -> Iterator[bytes]:
            return self.blobs.give(ctx, zone, digest, start, stop)

        return TreeSnapshot(tree, fetch_bytes)


class EstateClient:
    """The few operations with which feature rows are read, answered by the server itself and not through the guard."""

    def __init__(self, estate: DataEstate, ctx: CallContext) -> None:
        self._estate, self._ctx = estate, ctx
        self.address = "estate:"
        self.catalog = _EstateCatalog(estate, ctx)
        self.bytes = self.catalog
        self.features = _EstateFeatures(estate, ctx)


class _EstateCatalog:
    def __init__(self, estate: DataEstate, ctx: CallContext) -> None:
        self._estate, self._ctx = estate, ctx

    def open(self, name: Ref, view: Ref | None = None) -> OpenedVersion:
        """A version with the zone to read it from as its ticket; the view that its rows are of makes no difference."""
        del view
        with self._estate.ledger.read(self._ctx) as tx:
            record = tx.need(name)
        zones = record.body["zones"]
        zone = self._ctx.zone if self._ctx.zone in zones else str(zones[0])
        return OpenedVersion(record.ref, self._estate.snapshot(self._ctx, record).tree, zone)

    def get(self, ticket: str, digest: str, start: int = 0, stop: int | None = None) -> Iterator[bytes]:
        """Bytes in the zone that the ticket names."""
        return self._estate.blobs.give(self._ctx, ticket, digest, start, stop)


class _EstateFeatures:
    def __init__(self, estate: DataEstate, ctx: CallContext) -> None:
        self._service, self._ctx = estate.service("features"), ctx

    def about(self, view: Ref) -> Any:
        """Definition, entity and stream of a view."""
        return self._service.about(self._ctx, view)

    def pseudonyms(self, view: Ref, subjects: tuple[str, ...]) -> tuple[str, ...]:
        """What people are called in the zone of a view."""
        names: tuple[str, ...] = self._service.pseudonyms(self._ctx, view, subjects)
        return names
