"""What steps say they gave: one fact of their attempt, kept until the loop has taken it into the run."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from falaj.core.ports import Key
from falaj.flows.plans import COMMAND
from falaj.flows.records import Body
from falaj.govern.secrets import contains_secret
from falaj.store.codec import to_json
from falaj.store.ledger import Ledger, Writer
from falaj.store.loop import house_context
from falaj.store.records import Record

RESULT = "result"
MOST_BYTES = 64 << 10
MOST_ERROR = 2_000


class Hearing:
    """Hears results, whoever leads the loops. Before an attempt is written down as over, what it said is."""

    def __init__(self, ledger: Ledger, zone: str) -> None:
        self._ledger = ledger
        self._ctx = house_context("flows", zone)

    def __call__(self, job: Record, facts: tuple[Mapping[str, Any], ...]) -> None:
        """Keep the newest result; what any process writes may be anything."""
        told = [fact for fact in facts if fact.get("kind") == RESULT]
        if not told or tuple(job.body["spec"]["command"][:3]) != COMMAND or job.body["attempt"] is None:
            return
        ctx = replace(self._ctx, tenant=job.key.tenant)
        body = {**heard(told[-1]), "attempt": job.body["attempt"]["id"]}
        self._ledger.retry(ctx, lambda tx: _keep(tx, job, body))


def result_key(job: Record) -> Key:
    """Where what a job's step gave lies until it is taken."""
    return Key(job.key.tenant, RESULT, job.key.project, job.key.name)


def heard(fact: Mapping[str, Any]) -> Body:
    """A fact as it is kept: bounded, and without anything that looks like a secret."""
    value, error = fact.get("value"), str(fact.get("error") or "")[:MOST_ERROR]
    text = to_json(value).decode()
    if len(text) > MOST_BYTES:
        value, error = None, "what it returned is too long: write files to step.output(…)"
    elif contains_secret(text):
        value, error = None, "what it returned looks like a secret, and is not kept: return nothing that is one"
    elif contains_secret(error):
        error = "it failed with an error whose text looks like a secret; its log has it"
    return {"value": value, "error": error}


def _keep(tx: Writer, job: Record, body: Body) -> None:
    key = result_key(job)
    old = tx.key(key)
    if old is not None and old.body == body:
        return  # told twice
    kept = tx.put(key, body, rev=old.rev if old else None, label=job.label, zone=job.zone)
    tx.emit("flows.result", kept.ref, job=str(job.ref.bare), failed=int(bool(body["error"])))
