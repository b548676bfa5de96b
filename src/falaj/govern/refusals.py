"""People whose data may not be used: who took back a consent, objected, or is restricted; by pseudonym, by purpose.

The desk of privacy writes it down (privacy/refusing.py); what uses data asks here, in the transaction it has open:

- Online: a plan of features names spaces of the online store that hold the keys of such people. They are asked in the
  same round trip as the features, so whoever reads by a plan, here or beside a model, sees nothing of them.
- Jobs: a set of personal data that was made before the newest refusal of the job's purpose may hold the person, and
  nobody can tell cheaply; so the job is refused until the set was made anew.

A tenant that never registered a purpose pays one look-up for both.
"""

from collections.abc import Iterable
from hashlib import sha256

from falaj.core.errors import Denied
from falaj.core.ports import Key
from falaj.core.ref import Ref
from falaj.store.codec import to_stable_json
from falaj.store.ledger import Reader
from falaj.store.records import Record

EVERY = "every-purpose"
"""The name under which restrictions stand: they count for all purposes."""
HEAD, PROJECT = "refusals", "privacy"


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


def check_inputs(tx: Reader, tenant: str, purpose: str, inputs: Iterable[Ref]) -> None:
    """Denied when personal data among these was made before somebody refused that it is used for this."""
    since = max((record.body["last"] for record in heads(tx, tenant, purpose).values()), default=0.0)
    if not since:
        return
    for ref in inputs:
        found = tx.key(Key(tenant, ref.kind, ref.project, ref.name, ref.version)) if ref.kind == "dataset" else None
        if found is not None and _personal(found) and found.body.get("made_at", found.at) < since:
            said = f"for {purpose}" if purpose else "at all"
            raise Denied(
                f"somebody took back their consent or is restricted since {ref} was made: it may not be used {said}",
                "make it anew without them: falaj features history leaves them out; falaj privacy refused tells who",
                ref,
            )


def _personal(record: Record) -> bool:
    columns = (record.body.get("table") or {}).get("columns", ())
    return bool(record.label.regimes or record.label.categories or any(one.get("category") for one in columns))
