"""What lies in a zone's store and is in no ledger: bytes whose owner and law nobody can say."""

from typing import Annotated

from falaj.core.context import HOUSE, Context
from falaj.core.errors import Denied
from falaj.core.verb import verb
from falaj.store.blobs import BlobStore
from falaj.store.entries import Walked
from falaj.store.ledger import Ledger
from falaj.store.objects import objects_after

MOST_NAMED = 100
_PAGE = 1000


class Strays:
    """A part of the desk of bytes."""

    _ledger: Ledger
    _blobs: BlobStore

    @verb(group="audit", outside=True)
    def strays(self, ctx: Context, zone: Annotated[str, "the zone whose store is walked"]) -> Walked:
        """Walk a zone's store and count what no tenant's ledger accounts for. For whoever runs the installation.

        Example:
            falaj store strays home
        """
        if ctx.tenant != HOUSE:
            raise Denied("a store holds every tenant's bytes", "ask whoever runs this installation")
        # Looked at before and after: what is written or deleted meanwhile is known to one of them.
        known = self._names(ctx, zone)
        found = [stat.key for stat in self._blobs.open_zone(zone).list()]
        known |= self._names(ctx, zone)
        strange = sorted(key for key in found if key not in known)
        return Walked(zone, len(found), len(strange), tuple(strange[:MOST_NAMED]))

    def _names(self, ctx: Context, zone: str) -> set[str]:
        """Every storage name that any tenant's objects in that zone have, had or are about to have."""
        names: set[str] = set()
        for tenant in sorted({tenant for tenant, _ in self._ledger.logs()}):
            after = ""
            while True:
                with self._ledger.read(ctx) as tx:
                    page, after = objects_after(tx, tenant, after, _PAGE)
                names.update(key for thing in page if thing.zone == zone for key in thing.storage_keys)
                if not after:
                    break
        return names
