"""What is known now, beside windows, and what is done: in the owner's name, and harmless when it is done again."""

from collections.abc import Mapping
from typing import Any

from falaj.core.data import dataclass
from falaj.core.errand import Here
from falaj.core.ref import Ref
from falaj.drift.records import INPUT, PREDICTION, Profile
from falaj.drift.tally import Tally
from falaj.govern.approvals import current_standing, find_approval, stricter
from falaj.monitor.gathering import GLANCE_S, Glance
from falaj.monitor.machine import BEGUN, Doing, Facts, Machine, Sign
from falaj.monitor.records import RETRAIN, WatchPlan
from falaj.serve import books
from falaj.serve.arms import BASE
from falaj.serve.counts import Sum
from falaj.serve.records import SHADOW
from falaj.store.ledger import Ledger, Reader
from falaj.store.records import Record

NEW_S = 86400.0
"""So long a revision is new: should it fail, the one before is better."""
ASKS, NEEDS = "monitor.retrain", 1
SLOW, ODD = 0.05, 0.01
"""What is always allowed: a twentieth of slow answers, a hundredth of those that are no number."""
ALIKE, LEAST_ALIKE, USUAL = 0.999, 100, 0.9
TURN, STARTED, OVER = "turn", "flows.start", "flows.end"


@dataclass(slots=True)
class Heard:
    """What the log said of the flow that a verdict began."""

    cursors: dict[str, str]
    run: str = ""
    ended: str = ""
    note: str = ""


class Ears:
    """Follows the runs of flows for the verdicts under way. What is remembered here can be read again from the log."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._heard: dict[tuple[str, str], Heard] = {}

    def of(self, tenant: str, doing: Doing) -> Heard:
        """What came of an action so far."""
        begun = Heard(dict.fromkeys((STARTED, OVER), doing.cursor), doing.run)
        heard = self._heard.setdefault((tenant, doing.id), begun)
        for verb in (STARTED, OVER):
            while facts := self._ledger.tail(heard.cursors[verb], tenant=tenant, verb=verb):
                heard.cursors[verb] = facts[-1].pos
                for event in (one.event for one in facts if one.event.body.get("cause") == doing.id):
                    # What could not even begin ends, too, and has no run.
                    heard.run = str(event.subject.bare) if event.subject.kind == TURN else heard.run
                    if verb == OVER:
                        heard.ended = str(event.body.get("state", ""))
                        heard.note = str(event.body.get("note", ""))[:500]
        return heard

    def forget(self, tenant: str, id_: str) -> None:
        """It is over."""
        self._heard.pop((tenant, id_), None)


def standing_of(served: books.Body, now: float) -> Facts:
    """How the revisions of an endpoint stand."""
    newest = max((int(one["number"]) for one in served["revisions"]), default=0)
    live = tuple(sorted({revision for revision, share in books.shares_in(served).values() if share}))
    rollout, current = books.rollout_in(served), int(served["current"])
    trial, tried = "", 0
    if rollout is not None:
        tried = next((number for arm, number in rollout.arms.items() if arm != BASE), 0)
        trial = rollout.state if tried == newest else ""
    if rollout is not None and trial == "running" and rollout.kind != SHADOW and tried in live:
        fresh, fresh_at, back = tried, rollout.step_at or rollout.begun_at, rollout.arms[BASE]
    else:
        new = current and served["trail"] and now - served["switched"] < NEW_S
        fresh, fresh_at, back = (current, served["switched"], served["trail"][-1]) if new else (0, 0.0, 0)
    return Facts(current, newest, fresh, fresh_at, back, live, trial)


def signs_of(glances: Mapping[int, Glance], facts: Facts, plan: WatchPlan, sums: Mapping[int, Sum]) -> tuple[Sign, ...]:
    """What the new revision does to its callers, against what is allowed and what the one before did."""
    new, old = glances.get(facts.fresh), glances.get(facts.back)
    if new is None:
        return ()
    was = old.errors / old.requests if old is not None and old.requests else 0.0
    found = [Sign("errors", new.requests, new.errors, max(plan.errors, was))] if plan.errors else []
    if plan.latency_ms and facts.fresh in sums:
        mine, theirs = (_slow(sums.get(number), plan.latency_ms) for number in (facts.fresh, facts.back))
        found.append(Sign("slow", mine[0], mine[1], max(SLOW, theirs[1] / theirs[0] if theirs[0] else 0.0)))
    if new.rows:
        was = old.odd / old.rows if old is not None and old.rows else 0.0
        found.append(Sign("odd", new.rows, new.odd, max(ODD, was)))
    return tuple(found)


def is_alike(glance: Glance) -> bool:
    """True when all answers may be one and the same: then their inputs are worth a look."""
    return glance.same >= ALIKE and glance.rows - glance.odd >= LEAST_ALIKE


def alike(profile: Profile | None, tally: Tally | None) -> tuple[Sign, ...]:
    """That all answers are the same, where the inputs differ and where the answers of the reference did."""
    if profile is None or tally is None:
        return ()
    shares: dict[str, list[float]] = {INPUT: [], PREDICTION: []}
    for at, axis in enumerate(profile.axes):
        counts, then = tally.of(at), profile.counts[at]
        if axis.role == PREDICTION and max(then, default=0) > USUAL * max(1, sum(then)):
            return ()
        if axis.role in shares and counts.sum():
            shares[axis.role].append(float(counts.max() / counts.sum()))
    stuck = shares[PREDICTION] and min(shares[PREDICTION]) >= ALIKE
    varied = shares[INPUT] and min(shares[INPUT]) < USUAL
    return (Sign("same", tally.rows, tally.rows * min(shares[PREDICTION]), 0.45),) if stuck and varied else ()


def sums_of(serve: Any, tenant: str, endpoint: Ref, since: float) -> dict[int, Sum]:
    """What gateways counted of every revision from a moment on."""
    sums: dict[int, Sum] = {}
    for row in serve.counts.rows(tenant, endpoint, since):
        sums.setdefault(row.revision, Sum(row.arm, row.revision)).add(row)
    return sums


def since_of(facts: Facts, now: float) -> float:
    """From when on a new revision is looked at: the last minute, or since it has traffic."""
    return max(facts.fresh_at, now - GLANCE_S)


def answer_to(tx: Reader, watch: Record, doing: Doing, now: float) -> tuple[str, str]:
    """How the question whether an action may begin stands, and why; empty while nobody asked it.

    Whoever the action would be done for has no voice, whoever else wrote the watch.
    """
    tenant, owner = watch.key.tenant, str(watch.body["who"]["id"])
    found = find_approval(tx, ASKS, digest_of(doing), tenant=tenant)
    if found is None:
        return "", ""
    stands = current_standing(stricter(found, (owner, f"{tenant}/{owner}"), NEEDS), now)
    refusal = next((f"{one.actor}: {one.reason}" for one in found.voices if one.says == "refuse"), stands.why)
    return stands.state, refusal[:500]


def ask(here: Here, watch: Ref, machine: Machine, said: str) -> None:
    """Put the question to whoever may approve; the same question again is found, not asked twice."""
    if machine.doing is not None:
        reason = f"retrain for {machine.whose}: {said}"[:500]
        here.approvals.ask(ASKS, digest_of(machine.doing), reason, about=watch, needs=NEEDS)


def go_back(here: Here, served: Record, facts: Facts, doing: Doing, said: str) -> bool:
    """Leave a revision; False where that is so already, or under way."""
    if doing.revision not in facts.live or served.body["wanted"] == facts.back != facts.revision:
        return False
    here.serve.rollback(served.ref.bare, to=facts.back, reason=said[:500])
    return True


def digest_of(doing: Doing) -> str:
    """What people are asked about: this verdict and no other."""
    return f"verdict:{doing.id}"


def is_begun(doing: Doing | None) -> bool:
    """True while a flow is to be heard of."""
    return doing is not None and doing.action == RETRAIN and doing.state == BEGUN


def _slow(found: Sum | None, latency_ms: float) -> tuple[int, int]:
    return (sum(found.latency_us.values()), found.above(latency_ms * 1000)) if found is not None else (0, 0)
