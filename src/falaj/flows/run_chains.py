"""Chains: which run of a flow stands behind an event, so that flows do not begin each other without end."""

from falaj.core.context import CallContext
from falaj.core.event import Event
from falaj.core.ref import Ref
from falaj.store.ledger import Ledger, LedgerReader
from falaj.store.records import LedgerRecord

MAX_RECENT_RUNS = 500
"""Among so many runs the one is looked for that called a verb itself."""


def find_cause(ledger: Ledger, ctx: CallContext, event: Event) -> str:
    """The cause of the run that an event comes from; empty when it comes from none."""
    with ledger.read(ctx) as tx:
        run = _find_run(tx, event)
        return "" if run is None else str(run.body.get("cause") or run.ref.bare)


def _find_run(tx: LedgerReader, event: Event) -> LedgerRecord | None:
    subject, actor = event.subject.bare, event.actor
    if subject.kind == "turn":
        return tx.get(subject)
    if subject.kind == "job":
        return _find_run_of_job(tx, subject)
    if not actor.startswith("run."):
        return None
    # Whoever works for somebody is called by the id of its record: a job of a run, or the run itself.
    id_ = actor.removeprefix("run.")
    jobs = tx.find("job", terms={"id": id_}, limit=1).records
    if jobs:
        return _find_run_of_job(tx, jobs[0].ref.bare)
    run_records = tx.find("turn", newest_first=True, limit=MAX_RECENT_RUNS).records
    return next((run_record for run_record in run_records if run_record.body.get("id") == id_), None)


def _find_run_of_job(tx: LedgerReader, job: Ref) -> LedgerRecord | None:
    """A job of a run is called by the run, the step, and the item and the try where there are several (turns.py)."""
    name_parts = job.name.split(".")
    names = (".".join(name_parts[:-part_count]) for part_count in (1, 2, 3) if len(name_parts) > part_count)
    return next(
        (run_record for name in names if (run_record := tx.get(Ref("turn", job.project, name))) is not None), None
    )
