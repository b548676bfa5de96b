"""What is known now, beside windows, and what is done: in the owner's name, and harmless when it is done again."""

from collections.abc import Mapping
from typing import Any

from falaj.core.client_command import Client
from falaj.core.data import dataclass
from falaj.core.ref import Ref
from falaj.drift.records import ROLE_INPUT, ROLE_PREDICTION, DataProfile
from falaj.drift.tally import DataTally
from falaj.govern.approvals import compute_current_standing, find_approval, with_stricter_rules
from falaj.monitor.gathering import GLANCE_WINDOW_S, RevisionGlance
from falaj.monitor.records import ACTION_RETRAIN, WatchPlan
from falaj.monitor.watch_machine import ACTION_BEGUN, EndpointFacts, PendingAction, ServiceSign, WatchMachine
from falaj.serve import endpoint_repository
from falaj.serve.records import SHADOW
from falaj.serve.request_counts import ArmSum
from falaj.serve.traffic_split import BASE_ARM
from falaj.store.ledger import Ledger, LedgerReader
from falaj.store.records import LedgerRecord

NEW_REVISION_S = 86400.0
"""So long a revision is new: should it fail, the one before is better."""
APPROVAL_ACTION, REQUIRED_APPROVALS = "monitor.retrain", 1
ALLOWED_SLOW_SHARE, ALLOWED_ODD_SHARE = 0.05, 0.01
"""What is always allowed: a twentieth of slow answers, a hundredth of those that are no number."""
ALIKE_SHARE, MIN_ALIKE_ROWS, USUAL_SHARE = 0.999, 100, 0.9
FLOW_RUN_KIND, FLOW_STARTED_EVENT, FLOW_ENDED_EVENT = "turn", "flows.start", "flows.end"


@dataclass(slots=True)
class FlowProgress:
    """What the log said of the flow that a verdict began."""

    cursors: dict[str, str]
    run: str = ""
    ended: str = ""
    note: str = ""


class FlowFollower:
    """Follows the runs of flows for the verdicts under way. What is remembered here can be read again from the log."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._progress_by_action: dict[tuple[str, str], FlowProgress] = {}

    def of(self, tenant: str, action: PendingAction) -> FlowProgress:
        """What came of an action so far."""
        initial = FlowProgress(dict.fromkeys((FLOW_STARTED_EVENT, FLOW_ENDED_EVENT), action.cursor), action.run)
        progress = self._progress_by_action.setdefault((tenant, action.id), initial)
        for event_name in (FLOW_STARTED_EVENT, FLOW_ENDED_EVENT):
            while facts := self._ledger.tail(progress.cursors[event_name], tenant=tenant, verb=event_name):
                progress.cursors[event_name] = facts[-1].pos
                for event in (fact.event for fact in facts if fact.event.body.get("cause") == action.id):
                    # What could not even begin ends, too, and has no run.
                    progress.run = str(event.subject.bare) if event.subject.kind == FLOW_RUN_KIND else progress.run
                    if event_name == FLOW_ENDED_EVENT:
                        progress.ended = str(event.body.get("state", ""))
                        progress.note = str(event.body.get("note", ""))[:500]
        return progress

    def forget(self, tenant: str, id_: str) -> None:
        """It is over."""
        self._progress_by_action.pop((tenant, id_), None)


def read_endpoint_facts(endpoint_body: endpoint_repository.RecordFields, now: float) -> EndpointFacts:
    """How the revisions of an endpoint stand."""
    newest = max((int(revision_body["number"]) for revision_body in endpoint_body["revisions"]), default=0)
    live_revisions = tuple(
        sorted({revision for revision, share in endpoint_repository.read_shares(endpoint_body).values() if share})
    )
    rollout, current = endpoint_repository.read_rollout(endpoint_body), int(endpoint_body["current"])
    rollout_state, tried_revision = "", 0
    if rollout is not None:
        tried_revision = next((number for arm_name, number in rollout.arms.items() if arm_name != BASE_ARM), 0)
        rollout_state = rollout.state if tried_revision == newest else ""
    if (
        rollout is not None
        and rollout_state == "running"
        and rollout.kind != SHADOW
        and tried_revision in live_revisions
    ):
        new_revision, new_since, previous_revision = (
            tried_revision,
            rollout.step_at or rollout.begun_at,
            rollout.arms[BASE_ARM],
        )
    else:
        is_new = current and endpoint_body["trail"] and now - endpoint_body["switched"] < NEW_REVISION_S
        new_revision, new_since, previous_revision = (
            (current, endpoint_body["switched"], endpoint_body["trail"][-1]) if is_new else (0, 0.0, 0)
        )
    return EndpointFacts(current, newest, new_revision, new_since, previous_revision, live_revisions, rollout_state)


def list_signs(
    glance_by_revision: Mapping[int, RevisionGlance],
    facts: EndpointFacts,
    plan: WatchPlan,
    sums_by_revision: Mapping[int, ArmSum],
) -> tuple[ServiceSign, ...]:
    """What the new revision does to its callers, against what is allowed and what the one before did."""
    new_glance, old_glance = glance_by_revision.get(facts.fresh), glance_by_revision.get(facts.back)
    if new_glance is None:
        return ()
    old_share = old_glance.errors / old_glance.requests if old_glance is not None and old_glance.requests else 0.0
    signs = (
        [ServiceSign("errors", new_glance.requests, new_glance.errors, max(plan.errors, old_share))]
        if plan.errors
        else []
    )
    if plan.latency_ms and facts.fresh in sums_by_revision:
        new_slow, old_slow = (
            _count_slow(sums_by_revision.get(number), plan.latency_ms) for number in (facts.fresh, facts.back)
        )
        signs.append(
            ServiceSign(
                "slow",
                new_slow[0],
                new_slow[1],
                max(ALLOWED_SLOW_SHARE, old_slow[1] / old_slow[0] if old_slow[0] else 0.0),
            )
        )
    if new_glance.rows:
        old_share = old_glance.odd / old_glance.rows if old_glance is not None and old_glance.rows else 0.0
        signs.append(ServiceSign("odd", new_glance.rows, new_glance.odd, max(ALLOWED_ODD_SHARE, old_share)))
    return tuple(signs)


def has_alike_answers(glance: RevisionGlance) -> bool:
    """True when all answers may be one and the same: then their inputs are worth a look."""
    return glance.same >= ALIKE_SHARE and glance.rows - glance.odd >= MIN_ALIKE_ROWS


def find_alike_sign(profile: DataProfile | None, tally: DataTally | None) -> tuple[ServiceSign, ...]:
    """That all answers are the same, where the inputs differ and where the answers of the reference did."""
    if profile is None or tally is None:
        return ()
    shares: dict[str, list[float]] = {ROLE_INPUT: [], ROLE_PREDICTION: []}
    for axis_number, axis in enumerate(profile.axes):
        counts, reference_counts = tally.of(axis_number), profile.counts[axis_number]
        if axis.role == ROLE_PREDICTION and max(reference_counts, default=0) > USUAL_SHARE * max(
            1, sum(reference_counts)
        ):
            return ()
        if axis.role in shares and counts.sum():
            shares[axis.role].append(float(counts.max() / counts.sum()))
    is_stuck = shares[ROLE_PREDICTION] and min(shares[ROLE_PREDICTION]) >= ALIKE_SHARE
    is_varied = shares[ROLE_INPUT] and min(shares[ROLE_INPUT]) < USUAL_SHARE
    return (
        (ServiceSign("same", tally.rows, tally.rows * min(shares[ROLE_PREDICTION]), 0.45),)
        if is_stuck and is_varied
        else ()
    )


def sum_counts(serve: Any, tenant: str, endpoint: Ref, since: float) -> dict[int, ArmSum]:
    """What gateways counted of every revision from a moment on."""
    sums: dict[int, ArmSum] = {}
    for row in serve.counts.rows(tenant, endpoint, since):
        sums.setdefault(row.revision, ArmSum(row.arm, row.revision)).add(row)
    return sums


def compute_glance_start(facts: EndpointFacts, now: float) -> float:
    """From when on a new revision is looked at: the last minute, or since it has traffic."""
    return max(facts.fresh_at, now - GLANCE_WINDOW_S)


def read_approval(tx: LedgerReader, watch: LedgerRecord, action: PendingAction, now: float) -> tuple[str, str]:
    """How the question whether an action may begin stands, and why; empty while nobody asked it.

    Whoever the action would be done for has no voice, whoever else wrote the watch.
    """
    tenant, owner = watch.key.tenant, str(watch.body["who"]["id"])
    approval = find_approval(tx, APPROVAL_ACTION, make_approval_digest(action), tenant=tenant)
    if approval is None:
        return "", ""
    approval_standing = compute_current_standing(
        with_stricter_rules(approval, (owner, f"{tenant}/{owner}"), REQUIRED_APPROVALS), now
    )
    refusal = next(
        (f"{vote.actor}: {vote.reason}" for vote in approval.voices if vote.says == "refuse"), approval_standing.why
    )
    return approval_standing.state, refusal[:500]


def request_approval(client: Client, watch: Ref, machine: WatchMachine, reason_text: str) -> None:
    """Put the question to whoever may approve; the same question again is found, not asked twice."""
    if machine.doing is not None:
        reason = f"retrain for {machine.whose}: {reason_text}"[:500]
        client.approvals.ask(
            APPROVAL_ACTION, make_approval_digest(machine.doing), reason, about=watch, needs=REQUIRED_APPROVALS
        )


def roll_back(
    client: Client, endpoint_record: LedgerRecord, facts: EndpointFacts, action: PendingAction, reason_text: str
) -> bool:
    """Leave a revision; False where that is so already, or under way."""
    if action.revision not in facts.live or endpoint_record.body["wanted"] == facts.back != facts.revision:
        return False
    client.serve.rollback(endpoint_record.ref.bare, to=facts.back, reason=reason_text[:500])
    return True


def make_approval_digest(action: PendingAction) -> str:
    """What people are asked about: this verdict and no other."""
    return f"verdict:{action.id}"


def is_flow_running(action: PendingAction | None) -> bool:
    """True while a flow is to be heard of."""
    return action is not None and action.action == ACTION_RETRAIN and action.state == ACTION_BEGUN


def _count_slow(counts: ArmSum | None, latency_ms: float) -> tuple[int, int]:
    return (sum(counts.latency_us.values()), counts.above(latency_ms * 1000)) if counts is not None else (0, 0)
