"""Results that are known: a step whose code, arguments and inputs are the same, byte for byte, need not run again.

The key is made of the digests of what goes in (roots of trees, not numbers of versions). A result is taken only while
all its outputs live, and only by somebody who may read, today, everything it was made from and all it made.
"""

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any

from falaj.core.client_command import Client
from falaj.core.errors import Denied, NotFound
from falaj.core.label import Label
from falaj.core.ports import RecordKey
from falaj.core.ref import Ref
from falaj.flows.records import RecordBody, StepPlan
from falaj.store.codec import to_plain, to_stable_json
from falaj.store.ledger import LedgerReader, LedgerWriter

MEMO_KIND = "memo"
_RESULT_SPEC_FIELDS = ("command", "env", "image", "framework")
"""What of a spec can change a result; how many cores it got cannot."""


def compute_step_key(step: StepPlan, code: str, args: Mapping[str, Any], roots: Mapping[str, str]) -> str:
    """The name of a result: the program's root, what is called, its values, and the roots of its inputs."""
    spec = to_plain(step.spec)
    spec_fields = {name: spec[name] for name in _RESULT_SPEC_FIELDS}
    key_parts = [
        "falaj-step-1",
        code,
        step.kind,
        step.entry,
        spec_fields,
        dict(args),
        dict(roots),
        sorted(step.outputs.items()),
    ]
    return hashlib.sha256(to_stable_json(key_parts)).hexdigest()


def make_memo_key(tenant: str, project: str, key: str) -> RecordKey:
    """Where a result is remembered."""
    return RecordKey(tenant, MEMO_KIND, project, key)


def find_result(tx: LedgerReader, client: Client, memo_ref: RecordKey, inputs: Iterable[Ref]) -> RecordBody | None:
    """The result of the same step before, where it may be taken; else nothing."""
    memo_record = tx.key(memo_ref)
    if memo_record is None:
        return None
    output_refs = [Ref.parse(ref) for ref in memo_record.body["outputs"].values()]
    if any((record := tx.get(ref)) is None or record.body.get("state") != "live" for ref in output_refs):
        return None
    try:
        for ref in (*inputs, *output_refs):
            client.catalog.open(ref)
    except (Denied, NotFound):
        return None  # what the guard wrote down of it stays
    return memo_record.body


def store_result(tx: LedgerWriter, memo_ref: RecordKey, body: RecordBody, label: Label) -> None:
    """Keep what a step gave; the newest counts."""
    old_record = tx.key(memo_ref)
    tx.put(
        memo_ref,
        body,
        rev=old_record.rev if old_record else None,
        label=label if old_record is None else old_record.label.join(label),
    )
