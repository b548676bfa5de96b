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
from falaj.core.ports import Key
from falaj.core.ref import Ref
from falaj.govern.duties import is_personal
from falaj.store.codec import to_stable_json
from falaj.store.ledger import Reader
from falaj.store.records import Record

EVERY = "every-purpose"
"""The name under which restrictions stand: they count for all purposes."""
HEAD, PROJECT = "refusals", "privacy"
STEWARD = "data-steward"
"""The role that carries out what people ask for, and so may open personal data that others may no longer use."""
_VIEW_ROWS = re.compile(r"(.+\.rows[1-9][0-9]*)(\..+)?")


def head_key(tenant: str, purpose: str) -> Key:
    """The record that says since when somebody refuses a purpose; there is none while nobody could."""
    return Key(tenant, HEAD, PROJECT, purpose)


def heads(tx: Reader, tenant: str, purpose: str) -> dict[str, Record]:
    """What is known of refusals that count for a purpose."""
    every = tx.key(head_key(tenant, EVERY))
    if every is None:  # the first purpose makes it
        return {}
    own = tx.key(head_key(tenant, purpose)) if purpose else None
    return {EVERY: every, **({purpose: own} if own is not None else {})}


def space_of(tenant: str, purpose: str, kind: str) -> str:
    """Where the keys (of one type) of people lie online who refuse a purpose; the name says nothing."""
    return sha256(to_stable_json(["refused", tenant, purpose, kind])).hexdigest()[:16]


def check_usable(tx: Reader, tenant: str, purpose: str, inputs: Iterable[Ref]) -> None:
    """Raise Denied when one of these is restricted, or is personal data from before somebody refused this use of it."""
    since = max((record.body["last"] for record in heads(tx, tenant, purpose).values()), default=0.0)
    for ref in inputs:
        record = tx.key(Key(tenant, ref.kind, ref.project, ref.name, ref.version)) if ref.pinned else None
        if record is not None and record.restricted:
            hint = "a version made without the person can be used: falaj catalog list shows the newest"
            raise Denied(f"{ref} is restricted: it may be kept and nothing else", hint, ref)
        if since and record is not None and ref.kind == "dataset" and _is_stale(record, since):
            said = f"for {purpose}" if purpose else "at all"
            raise Denied(
                f"somebody took back their consent or is restricted since {ref} was made: it may not be used {said}",
                "make it anew without them: falaj features history leaves them out; falaj privacy refused tells who",
                ref,
            )


def is_view_storage(tx: Reader, view: Ref, ref: Ref) -> bool:
    """True when the stream of a feature view has this dataset version as rows or as keys; its name proves nothing."""
    match = _VIEW_ROWS.fullmatch(ref.name) if ref.kind == "dataset" else None
    stream = tx.get(Ref("stream", ref.project, match[1])) if match is not None else None
    if stream is None or stream.body["view"] != str(view.bare):
        return False
    rows = {version for chapter in stream.body["chapters"] for version in chapter["faces"].values()}
    return str(ref) in rows | {stream.body["keys"]}


def _is_stale(record: Record, since: float) -> bool:
    """True for personal data that was made before a moment."""
    columns = (record.body.get("table") or {}).get("columns", ())
    return is_personal(record.label, columns) and float(record.body.get("made_at", record.at)) < since
