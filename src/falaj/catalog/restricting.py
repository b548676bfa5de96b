"""Restriction of versions: what is restricted is kept and nothing else; every read of it is refused by the guard."""

import hashlib
from typing import Annotated

from falaj.catalog.limits import MESSAGE, check_text
from falaj.catalog.records import Version
from falaj.catalog.shelf import Shelf, as_version
from falaj.core.context import Context
from falaj.core.errors import Conflict, Invalid
from falaj.core.ref import Ref
from falaj.core.verb import verb
from falaj.govern.duty_facts import RESTRICTION
from falaj.store.codec import to_stable_json
from falaj.store.ledger import Writer
from falaj.store.records import Record

LIFT_ACTION = "catalog.lift"
_MOST_ERASURES = 1000


class Restricting(Shelf):
    """Puts versions under a restriction and lifts it."""

    @verb(reads=("name",), group="erase")
    def restrict(
        self,
        ctx: Context,
        name: Annotated[Ref, "which version; the newest when none is given"],
        reason: Annotated[str, "why, for the log and for whoever is refused"],
        erasure: Annotated[str, "the pseudonym of a person to be erased once no duty keeps the version"] = "",
    ) -> Version:
        """Restrict a version: it is kept, and nobody opens, copies, serves or trains on it.

        `falaj privacy erase` restricts what a law or a hold keeps of a person; then it may be deleted once that ended.

        Example:
            falaj catalog restrict dataset:fraud/tx@v3 --reason "accuracy contested, request 2027-114"
        """
        check_text("the reason", reason, MESSAGE)
        if not reason.strip():
            raise Invalid("a restriction needs a reason", "--reason says why, for the log", name)
        with self._ledger.write(ctx) as tx:
            record = self._live(tx, name)
            before = record.body.get(RESTRICTION) or {}
            erasures = list(dict.fromkeys([*before.get("erasures", ()), *([erasure] if erasure else [])]))
            if record.restricted and erasures == list(before.get("erasures", ())):
                return as_version(record, self._aliases(tx, name))
            restriction = {
                "reason": before.get("reason") or reason, "by": ctx.actor.id, "at": ctx.now(),
                "erasures": erasures[:_MOST_ERASURES], "keep": bool(before.get("keep")) or not erasure,
            }  # fmt: skip
            return self._set_restriction(tx, record, restriction, "catalog.restrict", reason)

    @verb(reads=("name",), group="erase")
    def lift(
        self,
        ctx: Context,
        name: Annotated[Ref, "which version"],
        reason: Annotated[str, "why, for the log"],
    ) -> Version:
        """Lift the restriction of a version. What is retained for an erasure needs the approval of a second person.

        Example:
            falaj catalog lift dataset:fraud/tx@v3 --reason "corrected, request 2027-114"
        """
        check_text("the reason", reason, MESSAGE)
        with self._ledger.write(ctx) as tx:
            record = self._live(tx, name)
            if not record.restricted:
                raise Conflict(f"{record.ref} is not restricted", "falaj catalog show says so", record.ref)
            restriction = record.body.get(RESTRICTION) or {}
            if restriction.get("erasures"):
                digest = hashlib.sha256(to_stable_json([str(record.ref), restriction])).hexdigest()
                self._approvals.demand(ctx, LIFT_ACTION, f"sha256:{digest}", needs=1, authors=(ctx.actor.id,))
            return self._set_restriction(tx, record, None, "catalog.lift", reason)

    def _set_restriction(
        self, tx: Writer, record: Record, restriction: dict[str, object] | None, event: str, reason: str
    ) -> Version:
        body = {**record.body, RESTRICTION: restriction}
        record = tx.put(
            record.ref, body, rev=record.rev, label=record.label, terms=record.terms, restricted=restriction is not None
        )
        tx.emit(event, record.ref, reason=reason[:500])
        return as_version(record, self._aliases(tx, record.ref))
