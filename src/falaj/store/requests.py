"""Idempotent requests: the outcome of a call its caller named, kept in the transaction that did the work."""

import json
from hashlib import sha256

from falaj.core.context import Context
from falaj.core.errors import Conflict
from falaj.core.ports import Key
from falaj.store.records import Record

KIND = "outcome"


def outcome_key(ctx: Context) -> Key:
    """Where the outcome of this caller's request lies. Hashed: a request id is the client's text, of any length."""
    who = f"{ctx.actor.tenant}\0{ctx.actor.id}\0{ctx.request}"
    return Key(ctx.tenant, KIND, "requests", sha256(who.encode("utf-8", "surrogatepass")).hexdigest())


def recall(record: Record | None, fingerprint: str) -> str | None:
    """The outcome in `record`; Conflict when the same request id now asks for something else."""
    if record is None:
        return None
    known, now = (text.rpartition(" ") for text in (str(record.body["fingerprint"]), fingerprint))
    if fingerprint and known[2] != now[2]:
        other = f"another call of {known[0]}" if known[0] == now[0] else f"another call, {known[0] or 'unnamed'}"
        raise Conflict(f"this request id was used for {other}", "give each call a request id of its own")
    outcome: str = record.body["outcome"]
    return outcome


def day(at: float) -> int:
    """The day of a time; outcomes are forgotten by day."""
    return int(at // 86_400)


def outcome_body(outcome_json: str, fingerprint: str) -> dict[str, str]:
    """What is kept of an outcome."""
    json.loads(outcome_json)
    return {"outcome": outcome_json, "fingerprint": fingerprint}
