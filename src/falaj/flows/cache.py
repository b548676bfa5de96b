"""Results that are known: a step whose code, arguments and inputs are the same, byte for byte, need not run again.

The key is made of the digests of what goes in (roots of trees, not numbers of versions). A result is taken only while
all its outputs live, and only by somebody who may read, today, everything it was made from and all it made.
"""

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any

from falaj.core.errand import Here
from falaj.core.errors import Denied, NotFound
from falaj.core.label import Label
from falaj.core.ports import Key
from falaj.core.ref import Ref
from falaj.flows.records import Body, StepPlan
from falaj.store.codec import to_plain, to_stable_json
from falaj.store.ledger import Reader, Writer

MEMO = "memo"
_NEEDS = ("command", "env", "image", "framework")
"""What of a spec can change a result; how many cores it got cannot."""


def key_of(step: StepPlan, code: str, args: Mapping[str, Any], roots: Mapping[str, str]) -> str:
    """The name of a result: the program's root, what is called, its values, and the roots of its inputs."""
    spec = to_plain(step.spec)
    needs = {name: spec[name] for name in _NEEDS}
    whole = ["falaj-step-1", code, step.kind, step.entry, needs, dict(args), dict(roots), sorted(step.outputs.items())]
    return hashlib.sha256(to_stable_json(whole)).hexdigest()


def memo_key(tenant: str, project: str, key: str) -> Key:
    """Where a result is remembered."""
    return Key(tenant, MEMO, project, key)


def known(tx: Reader, here: Here, memo: Key, inputs: Iterable[Ref]) -> Body | None:
    """The result of the same step before, where it may be taken; else nothing."""
    found = tx.key(memo)
    if found is None:
        return None
    made = [Ref.parse(ref) for ref in found.body["outputs"].values()]
    if any((record := tx.get(ref)) is None or record.body.get("state") != "live" for ref in made):
        return None
    try:
        for ref in (*inputs, *made):
            here.catalog.open(ref)
    except (Denied, NotFound):
        return None  # what the guard wrote down of it stays
    return found.body


def remember(tx: Writer, memo: Key, body: Body, label: Label) -> None:
    """Keep what a step gave; the newest counts."""
    old = tx.key(memo)
    tx.put(memo, body, rev=old.rev if old else None, label=label if old is None else old.label.join(label))
