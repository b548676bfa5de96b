"""Declassification: the only way a label gets lower. An approved act on one exact version, whose result is a new one.

The old version keeps its label and its place for ever; the new one says that it was made from it.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from falaj.core.context import CallContext
from falaj.core.data import dataclass
from falaj.core.errors import Conflict, Invalid
from falaj.core.event import generate_id
from falaj.core.label import Label
from falaj.core.ref import Ref
from falaj.govern.approvals import APPROVING_ROLES, ApprovalService
from falaj.govern.records import ApprovalQuestion, DeclassificationRecord
from falaj.govern.supporting_documents import find_document
from falaj.store.codec import from_plain, to_plain
from falaj.store.ledger import LedgerWriter
from falaj.store.records import LedgerRecord

DECLASSIFY_ACTION = "zones.declassify"
DECLASSIFICATION_KIND = "declassification"
MIN_APPROVERS, MIN_OFFICERS = 2, 1
REQUEST_LIFETIME_S = 30 * 86_400.0
EVIDENCE_BY_METHOD: Mapping[str, tuple[str, ...]] = {
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
class DeclassificationRequest:
    """What someone asks for."""

    thing: Ref
    target: Label
    method: str
    evidence: Mapping[str, str]
    reason: str


def apply_declassification(label: Label, request: DeclassificationRecord) -> Label:
    """The label after the request: what was asked for, never an origin or a hold less, never anything higher."""
    target = replace(request.target, origin=label.origin, holds=label.holds)
    # To be under no law, said aloud, is lower than to be under one.
    comparable_target = replace(target, regimes=frozenset()) if target.regimes == {"NONE"} else target
    if not label.covers(comparable_target):
        raise Invalid(
            "that would raise the label in part", "a declassification only lowers; label a new version for the rest"
        )
    if target == label:
        raise Invalid("that lowers nothing", "name a label that is lower in at least one way")
    return target


def digest_declassification(request: DeclassificationRecord) -> str:
    """What people approve: the exact version, both labels, the method and the evidence."""
    body = to_plain(replace(request, result=""))
    for name in ("was", "target"):
        body[name] = getattr(request, name).to_dict()
    return "sha256:" + hashlib.sha256(json.dumps(body, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def request_declassification(
    ctx: CallContext, tx: LedgerWriter, approvals: ApprovalService, request_data: DeclassificationRequest
) -> DeclassificationRecord:
    """Write the wish down and ask the people who must agree."""
    record = tx.need(request_data.thing)
    declassification = DeclassificationRecord(
        id=f"d-{generate_id()[:20]}",
        thing=record.ref,
        rev=record.rev,
        was=record.label,
        target=request_data.target,
        method=request_data.method,
        evidence=dict(request_data.evidence),
        author=ctx.actor.person,
        reason=request_data.reason,
    )
    _validate_declassification(declassification, record)
    report = find_document(tx, "report", declassification.evidence["report"])
    declassification = replace(
        declassification, evidence={**declassification.evidence, "report": str(report.body["sha256"])}
    )
    ref = Ref(DECLASSIFICATION_KIND, "zones", declassification.id)
    # The request speaks of the thing, so it lies where the thing may lie.
    record_label = replace(
        record.label, holds=frozenset(), min_retain_s=0, max_retain_s=None, purposes=Label().purposes
    )
    declassification_record = tx.put(ref, to_plain(declassification), label=record_label, zone=record.zone)
    declassification_digest = digest_declassification(declassification)
    tx.emit(
        DECLASSIFY_ACTION,
        declassification_record.ref,
        inputs=(record.ref,),
        method=declassification.method,
        digest=declassification_digest,
    )
    question = ApprovalQuestion(
        action=DECLASSIFY_ACTION,
        digest=declassification_digest,
        needs=MIN_APPROVERS,
        dpo=MIN_OFFICERS,
        roles=APPROVING_ROLES,
        asker=ctx.actor.person,
        barred=(ctx.actor.id, *approvals.persons(ctx, record.author)),
        reason=request_data.reason,
        asked=ctx.now(),
        expires=ctx.now() + REQUEST_LIFETIME_S,
        about=str(declassification_record.ref),
        documents={"report": str(report.ref.bare)},
    )
    approvals.propose(ctx, tx, question)
    return declassification


def publish_declassification(
    ctx: CallContext, tx: LedgerWriter, approvals: ApprovalService, ref: Ref, target_ref: Ref
) -> Ref:
    """Make the new version, once: the same body under the lower label, made from the old version."""
    if ref.kind != DECLASSIFICATION_KIND:
        raise Invalid(f"{ref} is not a declassification", "falaj approvals list shows what waits", ref)
    record = tx.need(ref)
    declassification: DeclassificationRecord = from_plain(DeclassificationRecord, record.body)
    if declassification.result:
        raise Conflict(f"it was published as {declassification.result}", "each request is published once", ref)
    original = tx.need(declassification.thing)
    if original.rev != declassification.rev or original.label != declassification.was:
        raise Conflict(f"{declassification.thing} changed since people were asked", "ask again", declassification.thing)
    if original.restricted:
        raise Conflict(
            f"{declassification.thing} is restricted",
            "the data protection officer lifts a restriction",
            declassification.thing,
        )
    if original.body.get("state") == "deleted":
        raise Conflict(
            f"{declassification.thing} was deleted", "there is nothing left to publish", declassification.thing
        )
    authors = (declassification.author, original.author)
    approvals.demand(
        ctx,
        DECLASSIFY_ACTION,
        digest_declassification(declassification),
        min_approvers=MIN_APPROVERS,
        min_officers=MIN_OFFICERS,
        authors=authors,
    )
    published_ref = _put_next_version(
        tx, original, target_ref, apply_declassification(original.label, declassification)
    )
    changed_record = tx.put(ref, to_plain(replace(declassification, result=str(published_ref))), rev=record.rev)
    tx.emit(
        "zones.lower",
        published_ref,
        inputs=(original.ref, changed_record.ref),
        method=declassification.method,
        digest=digest_declassification(declassification),
    )
    return published_ref


def _validate_declassification(declassification: DeclassificationRecord, record: LedgerRecord) -> None:
    if not record.key.version:
        raise Invalid(f"{record.ref} is not a version", "name an immutable version, such as …@v3", record.ref)
    required_evidence = EVIDENCE_BY_METHOD.get(declassification.method)
    if required_evidence is None:
        raise Invalid(f"{declassification.method!r:.40} is no method", f"one of: {', '.join(EVIDENCE_BY_METHOD)}")
    missing_evidence = [name for name in required_evidence if not declassification.evidence.get(name, "").strip()]
    if missing_evidence:
        raise Invalid(
            f"the method {declassification.method} owes evidence: {', '.join(missing_evidence)}",
            f"--evidence {missing_evidence[0]}=…",
        )
    apply_declassification(record.label, declassification)


def _put_next_version(tx: LedgerWriter, original: LedgerRecord, target_ref: Ref, label: Label) -> Ref:
    """The next version of `target_ref`, and its head moved to it."""
    if target_ref.kind != original.key.kind:
        raise Invalid(
            f"a {original.key.kind} is published as a {original.key.kind}", f"not as {target_ref}", target_ref
        )
    if target_ref == original.ref.bare:
        hint = "whoever follows the old name must not get it unawares"
        raise Invalid("the lowered version needs a name of its own", hint)
    head_record = tx.get(target_ref)
    head_body = head_record.body if head_record is not None else {"newest": ""}
    if "newest" not in head_body:
        raise Conflict(f"{target_ref} has no versions", "name a thing that has, or a new one", target_ref)
    newest = str(head_body["newest"])
    version_count = max(int(head_body.get("count", 0)), int(newest[1:] or 0)) + 1
    version_ref = target_ref.at(f"v{version_count}")
    if newest:
        newest_record = tx.need(target_ref.at(newest))
        remaining_terms = {name: value for name, value in newest_record.terms.items() if name != "newest"}
        tx.put(
            newest_record.ref,
            newest_record.body,
            rev=newest_record.rev,
            label=newest_record.label,
            terms=remaining_terms,
        )
    tx.put(
        version_ref,
        _strip_version_state(original.body),
        label=label,
        zone=original.zone,
        terms={**original.terms, "newest": "yes"},
    )
    # The head says which version is the newest and nothing else; it stays as open as it was.
    head_label = label if head_record is None else head_record.label
    source_head = tx.get(original.ref.bare)
    terms = dict(source_head.terms) if head_record is None and source_head is not None else None
    head_body = {**head_body, "newest": version_ref.version, "count": version_count}
    tx.put(target_ref, head_body, rev=head_record.rev if head_record else None, label=head_label, terms=terms)
    return version_ref


def _strip_version_state(body: Mapping[str, Any]) -> dict[str, Any]:
    """What a version holds without what was said of the old one: its stage, its signature, its place near readers."""
    carried_fields = {name: value for name, value in body.items() if name not in ("signature", "key", "pinned")}
    return {**carried_fields, "stage": "experiment"} if "stage" in carried_fields else carried_fields
