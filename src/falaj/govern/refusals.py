"""People whose data may not be used: who took back a consent, objected, or is restricted; by pseudonym, by purpose.

The desk of privacy writes it down (privacy/refusing.py); what uses data asks here, in the transaction it has open:

- Online: a plan of features names spaces of the online store that hold the keys of such people. They are asked in the
  same round trip as the features, so whoever reads by a plan, here or beside a model, sees nothing of them.
- Catalog reads and jobs: a set of personal data that was made before the newest refusal of the purpose may hold the
  person, and nobody can tell cheaply; so the read and the job are refused until the set was made anew.

A tenant that never registered a purpose pays one look-up for both.
"""

import re
from collections.abc import Iterable
from hashlib import sha256

from falaj.core.errors import Denied
from falaj.core.ports import RecordKey
from falaj.core.ref import Ref
from falaj.govern.duties import is_personal
from falaj.store.codec import to_stable_json
from falaj.store.ledger import LedgerReader
from falaj.store.records import LedgerRecord

EVERY_PURPOSE = "every-purpose"
"""The name under which restrictions stand: they count for all purposes."""
REFUSALS_KIND, PRIVACY_PROJECT = "refusals", "privacy"
STEWARD_ROLE = "data-steward"
"""The role that carries out what people ask for, and so may open personal data that others may no longer use."""
_VIEW_ROWS_PATTERN = re.compile(r"(.+\.rows[1-9][0-9]*)(\..+)?")


def make_head_key(tenant: str, purpose: str) -> RecordKey:
    """The record that says since when somebody refuses a purpose; there is none while nobody could."""
    return RecordKey(tenant, REFUSALS_KIND, PRIVACY_PROJECT, purpose)


def read_heads(tx: LedgerReader, tenant: str, purpose: str) -> dict[str, LedgerRecord]:
    """What is known of refusals that count for a purpose."""
    every_head = tx.key(make_head_key(tenant, EVERY_PURPOSE))
    if every_head is None:  # the first purpose makes it
        return {}
    purpose_head = tx.key(make_head_key(tenant, purpose)) if purpose else None
    return {EVERY_PURPOSE: every_head, **({purpose: purpose_head} if purpose_head is not None else {})}


def hash_refused_space(tenant: str, purpose: str, kind: str) -> str:
    """Where the keys (of one type) of people lie online who refuse a purpose; the name says nothing."""
    return sha256(to_stable_json(["refused", tenant, purpose, kind])).hexdigest()[:16]


def require_usable(tx: LedgerReader, tenant: str, purpose: str, inputs: Iterable[Ref]) -> None:
    """Raise Denied when one of these is restricted, or is personal data from before somebody refused this use of it."""
    refused_since = max((record.body["last"] for record in read_heads(tx, tenant, purpose).values()), default=0.0)
    for ref in inputs:
        record = tx.key(RecordKey(tenant, ref.kind, ref.project, ref.name, ref.version)) if ref.pinned else None
        if record is not None and record.restricted:
            hint = "a version made without the person can be used: falaj catalog list shows the newest"
            raise Denied(f"{ref} is restricted: it may be kept and nothing else", hint, ref)
        if refused_since and record is not None and ref.kind == "dataset" and _is_stale(record, refused_since):
            purpose_text = f"for {purpose}" if purpose else "at all"
            raise Denied(
                "somebody took back their consent or is restricted since "
                f"{ref} was made: it may not be used {purpose_text}",
                "make it anew without them: falaj features history leaves them out; falaj privacy refused tells who",
                ref,
            )


def is_view_storage(tx: LedgerReader, view: Ref, ref: Ref) -> bool:
    """True when the stream of a feature view has this dataset version as rows or as keys; its name proves nothing."""
    match = _VIEW_ROWS_PATTERN.fullmatch(ref.name) if ref.kind == "dataset" else None
    stream = tx.get(Ref("stream", ref.project, match[1])) if match is not None else None
    if stream is None or stream.body["view"] != str(view.bare):
        return False
    row_versions = {version for segment in stream.body["chapters"] for version in segment["faces"].values()}
    return str(ref) in row_versions | {stream.body["keys"]}


def _is_stale(record: LedgerRecord, since: float) -> bool:
    """True for personal data that was made before a moment."""
    columns = (record.body.get("table") or {}).get("columns", ())
    return is_personal(record.label, columns) and float(record.body.get("made_at", record.at)) < since
