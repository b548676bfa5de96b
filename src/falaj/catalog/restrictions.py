"""Restriction of versions: what is restricted is kept and nothing else; every read of it is refused by the guard."""

import hashlib
from typing import Annotated

from falaj.catalog.publish_limits import MAX_MESSAGE, require_short_text
from falaj.catalog.records import CatalogVersion
from falaj.catalog.service_base import CatalogServiceBase, to_version
from falaj.core.context import CallContext
from falaj.core.errors import Conflict, Invalid
from falaj.core.operation import operation
from falaj.core.ref import Ref
from falaj.govern.duty_facts import RESTRICTION_FIELD
from falaj.store.codec import to_stable_json
from falaj.store.ledger import LedgerWriter
from falaj.store.records import LedgerRecord

LIFT_ACTION = "catalog.lift"
_MAX_ERASURES = 1000


class RestrictionOperations(CatalogServiceBase):
    """Puts versions under a restriction and lifts it."""

    @operation(reads=("name",), group="erase")
    def restrict(
        self,
        ctx: CallContext,
        name: Annotated[Ref, "which version; the newest when none is given"],
        reason: Annotated[str, "why, for the log and for whoever is refused"],
        erasure: Annotated[str, "the pseudonym of a person to be erased once no duty keeps the version"] = "",
    ) -> CatalogVersion:
        """Restrict a version: it is kept, and nobody opens, copies, serves or trains on it.

        `falaj privacy erase` restricts what a law or a hold keeps of a person; then it may be deleted once that ended.

        Example:
            falaj catalog restrict dataset:fraud/tx@v3 --reason "accuracy contested, request 2027-114"
        """
        require_short_text("the reason", reason, MAX_MESSAGE)
        if not reason.strip():
            raise Invalid("a restriction needs a reason", "--reason says why, for the log", name)
        with self._ledger.write(ctx) as tx:
            record = self.require_live(tx, name)
            earlier_restriction = record.body.get(RESTRICTION_FIELD) or {}
            erasures = list(dict.fromkeys([*earlier_restriction.get("erasures", ()), *([erasure] if erasure else [])]))
            if record.restricted and erasures == list(earlier_restriction.get("erasures", ())):
                return to_version(record, self.read_aliases(tx, name))
            restriction = {
                "reason": earlier_restriction.get("reason") or reason, "by": ctx.actor.id, "at": ctx.now(),
                "erasures": erasures[:_MAX_ERASURES], "keep": bool(earlier_restriction.get("keep")) or not erasure,
            }  # fmt: skip
            return self._set_restriction(tx, record, restriction, "catalog.restrict", reason)

    @operation(reads=("name",), group="erase")
    def lift(
        self,
        ctx: CallContext,
        name: Annotated[Ref, "which version"],
        reason: Annotated[str, "why, for the log"],
    ) -> CatalogVersion:
        """Lift the restriction of a version. What is retained for an erasure needs the approval of a second person.

        Example:
            falaj catalog lift dataset:fraud/tx@v3 --reason "corrected, request 2027-114"
        """
        require_short_text("the reason", reason, MAX_MESSAGE)
        with self._ledger.write(ctx) as tx:
            record = self.require_live(tx, name)
            if not record.restricted:
                raise Conflict(f"{record.ref} is not restricted", "falaj catalog show says so", record.ref)
            restriction = record.body.get(RESTRICTION_FIELD) or {}
            if restriction.get("erasures"):
                digest = hashlib.sha256(to_stable_json([str(record.ref), restriction])).hexdigest()
                self._approvals.demand(ctx, LIFT_ACTION, f"sha256:{digest}", min_approvers=1, authors=(ctx.actor.id,))
            return self._set_restriction(tx, record, None, "catalog.lift", reason)

    def _set_restriction(
        self,
        tx: LedgerWriter,
        record: LedgerRecord,
        restriction: dict[str, object] | None,
        operation_name: str,
        reason: str,
    ) -> CatalogVersion:
        body = {**record.body, RESTRICTION_FIELD: restriction}
        record = tx.put(
            record.ref, body, rev=record.rev, label=record.label, terms=record.terms, restricted=restriction is not None
        )
        tx.emit(operation_name, record.ref, reason=reason[:500])
        return to_version(record, self.read_aliases(tx, record.ref))
