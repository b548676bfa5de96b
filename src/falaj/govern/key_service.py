"""The desk of keys: what there is, how old it is, rotation and its progress. Never a byte of key material."""

from typing import Annotated

from falaj.core.context import SYSTEM_TENANT, CallContext
from falaj.core.errors import Denied, Invalid, NotFound
from falaj.core.operation import operation
from falaj.core.ref import Ref
from falaj.govern.key_records import KeyPage, KeyView, Rotation
from falaj.govern.key_rotation import WRAPPING_SCOPES, KeyRotations
from falaj.govern.key_table import KEYS_PROJECT, KeySlot
from falaj.store.ledger import Ledger
from falaj.store.reconcile_loop import LoopIteration, ReconcileLoop
from falaj.store.records import LedgerRecord

DAY_S = 86_400.0
_SYSTEM_SCOPES = ("root", "zone")


class KeyService:
    """The key hierarchy: root, zones, tenants, data. The keys themselves stay where they are."""

    def __init__(self, ledger: Ledger, rotations: KeyRotations, custody: str = "file") -> None:
        self._ledger = ledger
        self._rotations = rotations
        self._custody = custody

    @operation()
    def list(
        self,
        ctx: CallContext,
        purpose: Annotated[str, "only keys of this purpose: zone, tenant, meta, secret, log, online, subject, …"] = "",
        after: Annotated[str, "the cursor where the previous page ended"] = "",
        limit: Annotated[int, "how many at most"] = 100,
    ) -> KeyPage:
        """List your tenant's keys with their versions and ages.

        Example:
            falaj keys list --purpose tenant
        """
        prefix = f"{purpose}." if purpose else ""
        with self._ledger.read(ctx) as tx:
            page = tx.find(
                "key",
                project=KEYS_PROJECT,
                prefix=prefix,
                scopes=ctx.cells("key"),
                after=after,
                limit=max(1, min(limit, 1000)),
            )
        return KeyPage(tuple(_to_key_view(record, ctx.now()) for record in page.records), self._custody, page.next)

    @operation(reads=("key",))
    def show(self, ctx: CallContext, key: Annotated[Ref, "for example key:keys/tenant.uae"]) -> KeyView:
        """Show one key: its versions, its age and what wraps it.

        Example:
            falaj keys show key:keys/tenant.uae
        """
        with self._ledger.read(ctx) as tx:
            return _to_key_view(tx.need(key.bare), ctx.now())

    @operation(group="govern")
    def rotate(
        self,
        ctx: CallContext,
        scope: Annotated[str, "root, zone, tenant, meta, secret, log, model or online"],
        zone: Annotated[str, "the zone of the key; yours when left out"] = "",
    ) -> Rotation:
        """Make a new version of a key; everything it wraps is carried over in the background.

        The new version encrypts at once and the old ones still decrypt. When all is carried over and a day has passed,
        the old versions of root, zone and tenant keys end for ever. No bulk data is rewritten. `root` and `zone` are
        for the house itself.

        Example:
            falaj keys rotate tenant --zone uae
        """
        tenant, key_zone = _resolve_key_owner(ctx, scope, zone)
        return self._rotations.begin(ctx, scope, tenant, key_zone)

    @operation()
    def status(self, ctx: CallContext) -> tuple[Rotation, ...]:
        """Show every rotation of your tenant's keys, finished or under way.

        Example:
            falaj keys status
        """
        with self._ledger.read(ctx) as tx:
            return tuple(rotation for _, rotation in self._rotations.find(tx, tenant=ctx.tenant))

    @operation(group="govern")
    def retire(
        self,
        ctx: CallContext,
        scope: Annotated[str, "root, zone, tenant or online"],
        zone: Annotated[str, "the zone of the key; yours when left out"] = "",
    ) -> Rotation:
        """End the old versions of a key that is being rotated now, without waiting the day.

        For when a key is feared to be known. An upload that began before the rotation and still goes on will have to be
        repeated. Features online that were filled before `keys rotate online` cannot be read until they are filled
        again: run `falaj features materialize VIEW --full` for each view between the two.

        Example:
            falaj keys retire tenant --zone uae
        """
        tenant, key_zone = _resolve_key_owner(ctx, scope, zone)
        if scope == "online":
            return self._rotations.retire_online(ctx, tenant, key_zone)
        if scope not in WRAPPING_SCOPES:
            hint = ", ".join((*WRAPPING_SCOPES, "online"))
            raise Invalid(f"old versions of a {scope[:40]} key are kept to read what they sealed", hint)
        return self._rotations.hurry(ctx, scope, tenant, key_zone)


class KeyRotationLoop(ReconcileLoop):
    """Carries rotations on, a batch a turn."""

    name = "rotate-keys"
    every_s = 60.0

    def __init__(self, rotations: KeyRotations) -> None:
        self._rotations = rotations

    def step(self, iteration: LoopIteration) -> bool:
        """One batch of each rotation under way."""
        return self._rotations.step(iteration.ctx, iteration.alive)


def _resolve_key_owner(ctx: CallContext, scope: str, zone: str) -> tuple[str, str]:
    if scope in _SYSTEM_SCOPES and ctx.tenant != SYSTEM_TENANT:
        raise Denied(
            f"the {scope} key is the house's own", "rotate your tenant's key, or ask the operator of the house"
        )
    return ctx.tenant, "" if scope == "root" else zone or ctx.zone


def _to_key_view(record: LedgerRecord, now: float) -> KeyView:
    slot, body = KeySlot.of(record.key), record.body
    try:
        current = int(body["current"])
        made_at = float(body["made"].get(str(current), record.at))
        versions = tuple(sorted(int(version) for version in body["versions"]))
    except (KeyError, ValueError, TypeError, AttributeError):
        raise NotFound(f"there is no key {record.key.name}", "falaj keys list shows what there is") from None
    wrapping_key = "root" if slot.parent is None else slot.parent.purpose
    age_days = round(max(0.0, now - made_at) / DAY_S, 2)
    return KeyView(
        record.ref, slot.purpose, slot.zone, current, versions, made_at, age_days, wrapping_key, current == 0
    )
