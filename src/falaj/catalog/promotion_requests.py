"""Wishes: what somebody wants done with a version, kept as a record `promotion` until people have spoken.

    waiting --approved--> done                      refused, over: it ended, and can be wished again
       '--one voice, emergency--> emergency --ratified in time--> done
                                      '--not ratified, or refused--> lapsed: what it did is undone

What people said is judged here again, by the rules of the wish and not by those of the question: whoever asked the same
question in a softer way, later, has gained nothing.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import replace

from falaj.catalog.gate_rules import GateRule, hash_rules
from falaj.catalog.lifecycle_records import RuleResult
from falaj.core.context import CallContext
from falaj.core.data import dataclass
from falaj.core.ref import Ref
from falaj.govern.approvals import (
    APPROVING_ROLES,
    evaluate_approval,
    find_approval,
    latest_time,
    make_approval_ref,
    with_stricter_rules,
)
from falaj.govern.records import ApprovalQuestion, ApprovalStanding
from falaj.store.codec import from_plain, to_stable_json
from falaj.store.ledger import LedgerReader
from falaj.store.records import LedgerRecord

PROMOTE_ACTION = "catalog.promote"
PROMOTION_KIND = "promotion"
APPROVAL_LIFETIME_S = 7 * 86_400.0
STATE_WAITING, STATE_EMERGENCY, STATE_DONE, STATE_REFUSED, STATE_LAPSED, STATE_OVER = (
    "waiting",
    "emergency",
    "done",
    "refused",
    "lapsed",
    "over",
)


@dataclass(frozen=True, slots=True)
class PromotionRequest:
    """What somebody wants."""

    ref: Ref
    stage: str
    state: str
    actor: str
    person: str
    left: str
    """The stage that the version which is there now shall have afterwards."""
    reason: str = ""
    emergency: bool = False
    purpose: str = ""
    digest: str = ""
    """What people are asked; empty where the gate asks nobody."""
    needs: tuple[int, int] = (0, 0)
    """How many people, and how many of them data protection officers."""
    barred: tuple[str, ...] = ()
    evidence: tuple[RuleResult, ...] = ()
    until: float = 0.0
    """Of an emergency: when it ends, unless others ratify it."""
    cleared: bool = False
    """True once the version was in the stage with everybody's consent: it may come back without asking."""

    @property
    def record(self) -> Ref:
        """Where it is written: one wish for each version and stage."""
        return make_promotion_ref(self.ref, self.stage)

    def question(self, now: float) -> ApprovalQuestion:
        """What people are asked."""
        return ApprovalQuestion(
            action=PROMOTE_ACTION,
            digest=self.digest,
            needs=self.needs[0],
            dpo=self.needs[1],
            roles=APPROVING_ROLES,
            asker=self.person,
            barred=self.barred,
            reason=self.reason or f"{self.ref} to {self.stage}",
            asked=now,
            expires=now + APPROVAL_LIFETIME_S,
            about=str(self.ref),
            emergency=self.emergency,
        )


def make_promotion_ref(version: Ref, stage: str) -> Ref:
    """The one name of the wish to bring exactly this version into that stage."""
    digest_tail = hashlib.sha256(f"{version}\0{stage}".encode()).hexdigest()[:32]
    return Ref(PROMOTION_KIND, version.project, f"{stage}.{digest_tail}")


def read_request(record: LedgerRecord) -> PromotionRequest:
    """The wish that a record holds."""
    promotion_request: PromotionRequest = from_plain(PromotionRequest, record.body)
    return promotion_request


def find_request(tx: LedgerReader, version: Ref, stage: str) -> PromotionRequest | None:
    """What was last wished for this version and stage."""
    record = tx.get(make_promotion_ref(version, stage))
    return read_request(record) if record is not None else None


def hash_request(
    promotion_request: PromotionRequest, record: LedgerRecord, rules: Sequence[GateRule], holder: str
) -> str:
    """What people approve: exactly this version in the place of that one, under these rules, on this evidence."""
    body = {
        "ref": str(record.ref),
        "root": record.body["root"],
        "label": record.label.digest,
        "stage": promotion_request.stage,
        "holder": holder,
        "left": promotion_request.left,
        "emergency": promotion_request.emergency,
        "gate": hash_rules(rules),
        "evidence": promotion_request.evidence,
    }
    return "sha256:" + hashlib.sha256(to_stable_json(body)).hexdigest()


def evaluate_request(tx: LedgerReader, ctx: CallContext, promotion_request: PromotionRequest) -> ApprovalStanding:
    """Where the people stand to a wish now; to an emergency: where they stood when its time was over."""
    approval = find_approval(tx, PROMOTE_ACTION, promotion_request.digest, tenant=ctx.tenant)
    if approval is None:
        return ApprovalStanding("expired", 0, 0, 0, 0.0, "nobody knows of the question any more")
    judged_at = latest_time(approval, ctx.now())
    if promotion_request.state == STATE_EMERGENCY:
        judged_at = min(judged_at, promotion_request.until)
    return evaluate_approval(
        with_stricter_rules(approval, promotion_request.barred, *promotion_request.needs), judged_at
    )


def needs_action(tx: LedgerReader, ctx: CallContext, promotion_request: PromotionRequest) -> bool:
    """True when there is something to do: people spoke, or the time is over."""
    state = evaluate_request(tx, ctx, promotion_request).state
    if promotion_request.state == STATE_EMERGENCY:
        return state != "emergency" or ctx.now() >= promotion_request.until
    return promotion_request.state == STATE_WAITING and state != "waiting"


def resume_request(tx: LedgerReader, ctx: CallContext, promotion_request: PromotionRequest) -> PromotionRequest:
    """The same wish as it was wished before, where people still decide on it: asking again takes no voice away."""
    stored_request = find_request(tx, promotion_request.ref, promotion_request.stage)
    if stored_request is None:
        return promotion_request
    is_same_request = stored_request.state == STATE_WAITING and (stored_request.left, stored_request.emergency) == (
        promotion_request.left,
        promotion_request.emergency,
    )
    if is_same_request and evaluate_request(tx, ctx, stored_request).state in ("waiting", "granted", "emergency"):
        return stored_request
    return replace(promotion_request, cleared=stored_request.cleared)


def find_given_approval(tx: LedgerReader, promotion_request: PromotionRequest | None) -> tuple[str, tuple[str, ...]]:
    """The approval by which a wish was fulfilled, pinned, and who gave it."""
    record = (
        tx.get(make_approval_ref(PROMOTE_ACTION, promotion_request.digest))
        if promotion_request is not None and promotion_request.digest
        else None
    )
    if record is None:
        return "", ()
    approval_question: ApprovalQuestion = from_plain(ApprovalQuestion, record.body)
    return str(record.ref), tuple(vote.actor for vote in approval_question.voices if vote.says == "give")
