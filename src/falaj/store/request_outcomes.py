"""Idempotent requests: the outcome of a call its caller named, kept in the transaction that did the work."""

import json
from hashlib import sha256

from falaj.core.context import CallContext
from falaj.core.errors import Conflict
from falaj.core.ports import RecordKey
from falaj.store.records import LedgerRecord

OUTCOME_KIND = "outcome"


def make_outcome_key(ctx: CallContext) -> RecordKey:
    """Where the outcome of this caller's request lies. Hashed: a request id is the client's text, of any length."""
    requester = f"{ctx.actor.tenant}\0{ctx.actor.id}\0{ctx.request}"
    return RecordKey(
        ctx.tenant, OUTCOME_KIND, "requests", sha256(requester.encode("utf-8", "surrogatepass")).hexdigest()
    )


def read_outcome(record: LedgerRecord | None, fingerprint: str) -> str | None:
    """The outcome in `record`; Conflict when the same request id now asks for something else."""
    if record is None:
        return None
    first_call, this_call = (text.rpartition(" ") for text in (str(record.body["fingerprint"]), fingerprint))
    if fingerprint and first_call[2] != this_call[2]:
        description = (
            f"another call of {first_call[0]}"
            if first_call[0] == this_call[0]
            else f"another call, {first_call[0] or 'unnamed'}"
        )
        raise Conflict(f"this request id was used for {description}", "give each call a request id of its own")
    outcome: str = record.body["outcome"]
    return outcome


def to_day_number(unix_time: float) -> int:
    """The day of a time; outcomes are forgotten by day."""
    return int(unix_time // 86_400)


def make_outcome_body(outcome_json: str, fingerprint: str) -> dict[str, str]:
    """What is kept of an outcome."""
    json.loads(outcome_json)
    return {"outcome": outcome_json, "fingerprint": fingerprint}
