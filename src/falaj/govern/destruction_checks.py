"""Decides whether a call may destroy a record, or what is held of people. Every service that destroys asks here.

Two questions: does a duty keep the record (duties.py), and did a second person agree to erase these people? The second
is answered by an erasure request whose approved plan was started (privacy/planning.py), or by an approval of this call.
"""

import hashlib
from collections.abc import Sequence

from falaj.core.context import CallContext
from falaj.core.data import dataclass
from falaj.core.errors import Denied, NotFound
from falaj.core.ref import Ref
from falaj.govern.approvals import ApprovalService
from falaj.govern.duty_facts import CanSee
from falaj.govern.keyring import Keyring
from falaj.govern.records import KeepingDuty
from falaj.govern.refusals import PRIVACY_PROJECT
from falaj.govern.zones import ZoneService
from falaj.store.codec import to_stable_json
from falaj.store.ledger import Ledger
from falaj.store.records import LedgerRecord

HOLD_RULES = ("hold", "breach")
"""Duties that keep journals too."""
EXECUTING_STATE = "executing"
"""The state of the plan of an erasure from its start to its certificate."""


@dataclass(frozen=True, slots=True)
class ErasureOrder:
    """A call that would destroy what is held of people."""

    action: str
    """What approvers approve, for example serve.forget."""
    about: Ref
    """Where the people are erased from, without a version."""
    identifiers: tuple[str, ...]
    """The people, as the data names them."""
    request: Ref | None = None
    """The erasure request that it belongs to, where there is one."""


class DestructionChecks:
    """What stands before every destruction."""

    def __init__(self, ledger: Ledger, zones: ZoneService, approvals: ApprovalService, keyring: Keyring) -> None:
        self._ledger, self._zones, self._approvals, self._keyring = ledger, zones, approvals, keyring

    def is_held(self, ctx: CallContext, record: LedgerRecord) -> bool:
        """True while a legal hold or an open breach stands on this record, or on what it was made from."""
        return any(duty.rule in HOLD_RULES for duty in self._zones.find_duties(ctx, (record,))[record.ref])

    def check_holds(self, ctx: CallContext, record: LedgerRecord) -> None:
        """Raise Denied while a legal hold or an open breach stands on this record: for samples, which no law keeps."""
        self.raise_for_duties(
            record, [duty for duty in self._zones.find_duties(ctx, (record,))[record.ref] if duty.rule in HOLD_RULES]
        )

    def check_duties(self, ctx: CallContext, record: LedgerRecord, can_see: CanSee | None = None) -> None:
        """Raise Denied while a law, a hold, a contract or an open breach keeps this record, and say until when.

        What it was made from is named where `can_see` lets the caller know of it.
        """
        self.raise_for_duties(record, self._zones.find_duties(ctx, (record,), can_see=can_see)[record.ref])

    def raise_for_duties(self, record: LedgerRecord, duties: Sequence[KeepingDuty]) -> None:
        if duties:
            reasons, hints = (
                dict.fromkeys(texts)
                for texts in zip(*((duty_item.reason, duty_item.hint) for duty_item in duties), strict=True)
            )
            raise Denied("; ".join(reasons), "; ".join(hints), record.ref)

    def check_erasure(self, ctx: CallContext, order: ErasureOrder) -> None:
        """Raise Denied unless a started erasure request covers these people, or a second person approved the call."""
        pseudonyms = {
            self._keyring.subjects.pseudonym(ctx.tenant, ctx.zone, identifier.encode().hex())
            for identifier in order.identifiers
        }
        if order.request is not None:
            self.require_started_request(ctx, order.request, pseudonyms)
            return
        digest = hashlib.sha256(to_stable_json([str(order.about.bare), sorted(pseudonyms)])).hexdigest()
        try:
            self._approvals.demand(ctx, order.action, f"sha256:{digest}", min_approvers=1, authors=(ctx.actor.id,))
        except Denied as error:
            hint = f"{error.hint}; or ask for an erasure: falaj privacy ask erasure WHO, then falaj privacy erase"
            raise Denied(f"one person alone erases nobody: {error.message}", hint, order.about) from error

    def require_started_request(self, ctx: CallContext, request: Ref, pseudonyms: set[str]) -> None:
        with self._ledger.read(ctx) as tx:
            record = tx.get(Ref("subject-request", PRIVACY_PROJECT, request.name))
            plan = tx.get(Ref("erasure-plan", PRIVACY_PROJECT, request.name))
        if record is None or request.kind != "subject-request":
            raise NotFound(f"{request} does not exist", "falaj privacy requests lists what people asked for", request)
        if pseudonyms != {record.body["person"]}:
            raise Denied(f"{request} is about another person", "each person needs a request of their own", request)
        if plan is None or plan.body["state"] != EXECUTING_STATE:
            hint = f"falaj privacy erase {request} WHO plans it, asks for the approval, and starts it"
            raise Denied(f"the erasure {request} was not started", hint, request)
