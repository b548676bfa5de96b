"""Chains: which run of a flow stands behind an event, so that flows do not begin each other without end."""

from falaj.core.context import Context
from falaj.core.event import Event
from falaj.core.ref import Ref
from falaj.store.ledger import Ledger, Reader
from falaj.store.records import Record


def cause_behind(ledger: Ledger, ctx: Context, event: Event) -> str:
    """The cause of the run that an event comes from; empty when it comes from none."""
    with ledger.read(ctx) as tx:
        turn = _turn(tx, event)
        return "" if turn is None else str(turn.body.get("cause") or turn.ref.bare)


def _turn(tx: Reader, event: Event) -> Record | None:
    if event.subject.kind == "turn":
        return tx.get(event.subject.bare)
    job = tx.get(event.subject.bare) if event.subject.kind == "job" else None
    if job is None and event.actor.startswith("run."):
        # A run of a flow at work, or a job of one: either says who it is by the id in its name.
        id_ = event.actor.removeprefix("run.")
        found = (
            tx.find("turn", terms={"id": id_}, limit=1).records or tx.find("job", terms={"id": id_}, limit=1).records
        )
        if not found or found[0].key.kind == "turn":
            return found[0] if found else None
        job = found[0]
    text = str((job.body["spec"].get("labels") or {}).get("turn", "")) if job is not None else ""
    return tx.get(Ref.parse(text)) if text else None
