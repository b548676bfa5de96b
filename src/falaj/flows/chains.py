"""Chains: which run of a flow stands behind an event, so that flows do not begin each other without end."""

from falaj.core.context import Context
from falaj.core.event import Event
from falaj.core.ref import Ref
from falaj.store.ledger import Ledger, Reader
from falaj.store.records import Record

RECENT = 500
"""Among so many runs the one is looked for that called a verb itself."""


def cause_behind(ledger: Ledger, ctx: Context, event: Event) -> str:
    """The cause of the run that an event comes from; empty when it comes from none."""
    with ledger.read(ctx) as tx:
        turn = _turn(tx, event)
        return "" if turn is None else str(turn.body.get("cause") or turn.ref.bare)


def _turn(tx: Reader, event: Event) -> Record | None:
    subject, actor = event.subject.bare, event.actor
    if subject.kind == "turn":
        return tx.get(subject)
    if subject.kind == "job":
        return _of_job(tx, subject)
    if not actor.startswith("run."):
        return None
    # Whoever works for somebody is called by the id of its record: a job of a run, or the run itself.
    id_ = actor.removeprefix("run.")
    jobs = tx.find("job", terms={"id": id_}, limit=1).records
    if jobs:
        return _of_job(tx, jobs[0].ref.bare)
    turns = tx.find("turn", newest=True, limit=RECENT).records
    return next((one for one in turns if one.body.get("id") == id_), None)


def _of_job(tx: Reader, job: Ref) -> Record | None:
    """A job of a run is called by the run, the step, and the item and the try where there are several (turns.py)."""
    parts = job.name.split(".")
    names = (".".join(parts[:-cut]) for cut in (1, 2, 3) if len(parts) > cut)
    return next((found for name in names if (found := tx.get(Ref("turn", job.project, name))) is not None), None)
