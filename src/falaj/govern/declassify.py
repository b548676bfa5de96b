"""Declassification: the only way a label gets lower. An approved act on one exact version, whose result is a new one.

The old version keeps its label and its place for ever; the new one says that it was made from it.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from falaj.core.context import Context
from falaj.core.data import dataclass
from falaj.core.errors import Conflict, Invalid
from falaj.core.event import new_id
from falaj.core.label import Label
from falaj.core.ref import Ref
from falaj.govern.approvals import ROLES, Approvals
from falaj.govern.records import Approval, Declassification
from falaj.govern.supporting_documents import find_document
from falaj.store.codec import from_plain, to_plain
from falaj.store.ledger import Writer
from falaj.store.records import Record

ACTION = "zones.declassify"
KIND = "declassification"
VOICES, OFFICERS = 2, 1
LIFE_S = 30 * 86_400.0
METHODS: Mapping[str, tuple[str, ...]] = {
    "anonymised": ("report",),
    "aggregated": ("smallest-group", "report"),
    "k-anonymity": ("k", "report"),
    "differential-privacy": ("epsilon", "report"),
    "synthetic": ("membership-inference", "report"),
    "model": ("membership-inference", "report"),
    "mislabelled": ("report",),
}
"""Each method with the evidence it owes. `report` is a stored document."""


@dataclass(frozen=True, slots=True)
class Wish:
    """What someone asks for."""

    thing: Ref
    target: Label
    method: str
    evidence: Mapping[str, str]
    reason: str


def lowered(label: Label, request: Declassification) -> Label:
    """The label after the request: what was asked for, never an origin or a hold less, never anything higher."""
    target = replace(request.target, origin=label.origin, holds=label.holds)
    # To be under no law, said aloud, is lower than to be under one.
    named = replace(target, regimes=frozenset()) if target.regimes == {"NONE"} else target
    if not label.covers(named):
        raise Invalid(
            "that would raise the label in part", "a declassification only lowers; label a new version for the rest"
        )
    if target == label:
        raise Invalid("that lowers nothing", "name a label that is lower in at least one way")
    return target


def digest(request: Declassification) -> str:
    """What people approve: the exact version, both labels, the method and the evidence."""
    body = to_plain(replace(request, result=""))
    for name in ("was", "target"):
        body[name] = getattr(request, name).to_dict()
    return "sha256:" + hashlib.sha256(json.dumps(body, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def request(ctx: Context, tx: Writer, approvals: Approvals, wish: Wish) -> Declassification:
    """Write the wish down and ask the people who must agree."""
    record = tx.need(wish.thing)
    asked = Declassification(
        id=f"d-{new_id()[:20]}",
        thing=record.ref,
        rev=record.rev,
        was=record.label,
        target=wish.target,
        method=wish.method,
        evidence=dict(wish.evidence),
        author=ctx.actor.person,
        reason=wish.reason,
    )
    _check(asked, record)
    report = find_document(tx, "report", asked.evidence["report"])
    asked = replace(asked, evidence={**asked.evidence, "report": str(report.body["sha256"])})
    ref = Ref(KIND, "zones", asked.id)
    # The request speaks of the thing, so it lies where the thing may lie.
    kept = replace(record.label, holds=frozenset(), min_retain_s=0, max_retain_s=None, purposes=Label().purposes)
    written = tx.put(ref, to_plain(asked), label=kept, zone=record.zone)
    exact = digest(asked)
    tx.emit(ACTION, written.ref, inputs=(record.ref,), method=asked.method, digest=exact)
    question = Approval(
        action=ACTION,
        digest=exact,
        needs=VOICES,
        dpo=OFFICERS,
        roles=ROLES,
        asker=ctx.actor.person,
        barred=(ctx.actor.id, *approvals.persons(ctx, record.author)),
        reason=wish.reason,
        asked=ctx.now(),
        expires=ctx.now() + LIFE_S,
        about=str(written.ref),
        documents={"report": str(report.ref.bare)},
    )
    approvals.propose(ctx, tx, question)
    return asked


def publish(ctx: Context, tx: Writer, approvals: Approvals, ref: Ref, into: Ref) -> Ref:
    """Make the new version, once: the same body under the lower label, made from the old version."""
    if ref.kind != KIND:
        raise Invalid(f"{ref} is not a declassification", "falaj approvals list shows what waits", ref)
    record = tx.need(ref)
    asked: Declassification = from_plain(Declassification, record.body)
    if asked.result:
        raise Conflict(f"it was published as {asked.result}", "each request is published once", ref)
    original = tx.need(asked.thing)
    if original.rev != asked.rev or original.label != asked.was:
        raise Conflict(f"{asked.thing} changed since people were asked", "ask again", asked.thing)
    if original.restricted:
        raise Conflict(f"{asked.thing} is restricted", "the data protection officer lifts a restriction", asked.thing)
    if original.body.get("state") == "deleted":
        raise Conflict(f"{asked.thing} was deleted", "there is nothing left to publish", asked.thing)
    authors = (asked.author, original.author)
    approvals.demand(ctx, ACTION, digest(asked), needs=VOICES, dpo=OFFICERS, authors=authors)
    made = _next(tx, original, into, lowered(original.label, asked))
    changed = tx.put(ref, to_plain(replace(asked, result=str(made))), rev=record.rev)
    tx.emit("zones.lower", made, inputs=(original.ref, changed.ref), method=asked.method, digest=digest(asked))
    return made


def _check(asked: Declassification, record: Record) -> None:
    if not record.key.version:
        raise Invalid(f"{record.ref} is not a version", "name an immutable version, such as …@v3", record.ref)
    owed = METHODS.get(asked.method)
    if owed is None:
        raise Invalid(f"{asked.method!r:.40} is no method", f"one of: {', '.join(METHODS)}")
    missing = [name for name in owed if not asked.evidence.get(name, "").strip()]
    if missing:
        raise Invalid(f"the method {asked.method} owes evidence: {', '.join(missing)}", f"--evidence {missing[0]}=…")
    lowered(record.label, asked)


def _next(tx: Writer, original: Record, into: Ref, label: Label) -> Ref:
    """The next version of `into`, and its head moved to it."""
    if into.kind != original.key.kind:
        raise Invalid(f"a {original.key.kind} is published as a {original.key.kind}", f"not as {into}", into)
    if into == original.ref.bare:
        hint = "whoever follows the old name must not get it unawares"
        raise Invalid("the lowered version needs a name of its own", hint)
    head = tx.get(into)
    body = head.body if head is not None else {"newest": ""}
    if "newest" not in body:
        raise Conflict(f"{into} has no versions", "name a thing that has, or a new one", into)
    newest = str(body["newest"])
    count = max(int(body.get("count", 0)), int(newest[1:] or 0)) + 1
    made = into.at(f"v{count}")
    if newest:
        old = tx.need(into.at(newest))
        rest = {name: value for name, value in old.terms.items() if name != "newest"}
        tx.put(old.ref, old.body, rev=old.rev, label=old.label, terms=rest)
    tx.put(made, _afresh(original.body), label=label, zone=original.zone, terms={**original.terms, "newest": "yes"})
    # The head says which version is the newest and nothing else; it stays as open as it was.
    kept = label if head is None else head.label
    known = tx.get(original.ref.bare)
    terms = dict(known.terms) if head is None and known is not None else None
    body = {**body, "newest": made.version, "count": count}
    tx.put(into, body, rev=head.rev if head else None, label=kept, terms=terms)
    return made


def _afresh(body: Mapping[str, Any]) -> dict[str, Any]:
    """What a version holds without what was said of the old one: its stage, its signature, its place near readers."""
    kept = {name: value for name, value in body.items() if name not in ("signature", "key", "pinned")}
    return {**kept, "stage": "experiment"} if "stage" in kept else kept
