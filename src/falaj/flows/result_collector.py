"""What steps say they gave: one fact of their attempt, kept until the loop has taken it into the run."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from falaj.core.ports import RecordKey
from falaj.flows.flow_plans import STEP_COMMAND
from falaj.flows.records import RecordBody
from falaj.govern.secret_service import looks_like_secret
from falaj.store.codec import to_json
from falaj.store.ledger import Ledger, LedgerWriter
from falaj.store.reconcile_loop import system_context
from falaj.store.records import LedgerRecord

RESULT_KIND = "result"
MAX_RESULT_BYTES = 64 << 10
MAX_ERROR_CHARS = 2_000


class ResultCollector:
    """Hears results, whoever leads the loops. Before an attempt is written down as over, what it said is."""

    def __init__(self, ledger: Ledger, zone: str) -> None:
        self._ledger = ledger
        self._ctx = system_context("flows", zone)

    def __call__(self, job: LedgerRecord, facts: tuple[Mapping[str, Any], ...]) -> None:
        """Keep the newest result; what any process writes may be anything."""
        result_facts = [fact for fact in facts if fact.get("kind") == RESULT_KIND]
        if not result_facts or tuple(job.body["spec"]["command"][:3]) != STEP_COMMAND or job.body["attempt"] is None:
            return
        ctx = replace(self._ctx, tenant=job.key.tenant)
        body = {**to_result_body(result_facts[-1]), "attempt": job.body["attempt"]["id"]}
        self._ledger.retry(ctx, lambda tx: _store_result(tx, job, body))


def make_result_key(job: LedgerRecord) -> RecordKey:
    """Where what a job's step gave lies until it is taken."""
    return RecordKey(job.key.tenant, RESULT_KIND, job.key.project, job.key.name)


def to_result_body(fact: Mapping[str, Any]) -> RecordBody:
    """A fact as it is kept: bounded, and without anything that looks like a secret."""
    value, error = fact.get("value"), str(fact.get("error") or "")[:MAX_ERROR_CHARS]
    text = to_json(value).decode()
    if len(text) > MAX_RESULT_BYTES:
        value, error = None, "what it returned is too long: write files to step.output(…)"
    elif looks_like_secret(text):
        value, error = None, "what it returned looks like a secret, and is not kept: return nothing that is one"
    elif looks_like_secret(error):
        error = "it failed with an error whose text looks like a secret; its log has it"
    return {"value": value, "error": error}


def _store_result(tx: LedgerWriter, job: LedgerRecord, body: RecordBody) -> None:
    key = make_result_key(job)
    old_record = tx.key(key)
    if old_record is not None and old_record.body == body:
        return  # told twice
    saved = tx.put(key, body, rev=old_record.rev if old_record else None, label=job.label, zone=job.zone)
    tx.emit("flows.result", saved.ref, job=str(job.ref.bare), failed=int(bool(body["error"])))
