"""What lies in a zone's store and is in no ledger: bytes whose owner and law nobody can say."""

from typing import Annotated

from falaj.core.context import SYSTEM_TENANT, CallContext
from falaj.core.errors import Denied
from falaj.core.operation import operation
from falaj.store.blob_store import BlobStore
from falaj.store.blob_views import StrayReport
from falaj.store.ledger import Ledger
from falaj.store.stored_objects import list_objects_after

MAX_LISTED_NAMES = 100
_PAGE_SIZE = 1000


class StrayOperations:
    """A part of the desk of bytes."""

    _ledger: Ledger
    _blobs: BlobStore

    @operation(group="audit", has_outside_effects=True)
    def strays(self, ctx: CallContext, zone: Annotated[str, "the zone whose store is walked"]) -> StrayReport:
        """Walk a zone's store and count what no tenant's ledger accounts for. For whoever runs the installation.

        Example:
            falaj store strays home
        """
        if ctx.tenant != SYSTEM_TENANT:
            raise Denied("a store holds every tenant's bytes", "ask whoever runs this installation")
        # Looked at before and after: what is written or deleted meanwhile is known to one of them.
        known_keys = self._list_storage_names(ctx, zone)
        stored_keys = [stat.key for stat in self._blobs.open_zone(zone).list()]
        known_keys |= self._list_storage_names(ctx, zone)
        stray_keys = sorted(key for key in stored_keys if key not in known_keys)
        return StrayReport(zone, len(stored_keys), len(stray_keys), tuple(stray_keys[:MAX_LISTED_NAMES]))

    def _list_storage_names(self, ctx: CallContext, zone: str) -> set[str]:
        """Every storage name that any tenant's objects in that zone have, had or are about to have."""
        names: set[str] = set()
        for tenant in sorted({tenant for tenant, _ in self._ledger.logs()}):
            after = ""
            while True:
                with self._ledger.read(ctx) as tx:
                    page, after = list_objects_after(tx, tenant, after, _PAGE_SIZE)
                names.update(
                    key for stored_object in page if stored_object.zone == zone for key in stored_object.storage_keys
                )
                if not after:
                    break
        return names
