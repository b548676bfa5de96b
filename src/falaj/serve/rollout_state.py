"""Roll-outs as changes of an endpoint's record: what is planned, and the next move. Pure, like life.py.

A trial waits until its revision is ready, goes through its steps, each judged by itself on what came since it began,
and ends promoted, rolled back or inconclusive. While the revision has no replica, the base has all traffic.
"""

from collections.abc import Mapping
from dataclasses import field, replace
from typing import Any, NamedTuple

from falaj.core.data import dataclass
from falaj.core.errors import Conflict, Invalid
from falaj.serve import state_machine
from falaj.serve.endpoint_repository import read_running_rollout
from falaj.serve.late_labels import MATCH, QUALITY_METHODS, QualityMeasure
from falaj.serve.records import (
    AB,
    CANARY,
    INCONCLUSIVE,
    PROMOTED,
    ROLLED_BACK,
    SHADOW,
    Rollout,
    TrialRequest,
)
from falaj.serve.sequential_test import VERDICT_FINE, VERDICT_WORSE, ArmVerdict, JudgedMetric
from falaj.serve.traffic_split import BASE_ARM
from falaj.store.codec import to_plain

RecordFields = dict[str, Any]
METRIC_ERRORS, METRIC_SLOW, METRIC_QUALITY = "errors", "slow", "quality"
CRITERIA_NAMES = (
    METRIC_ERRORS,
    METRIC_SLOW,
    METRIC_QUALITY,
    "alpha",
    "least",
    "steps",
    "most_s",
    "settle_s",
    "slow_ms",
    "goal",
    "output",
    "how",
    "low",
    "high",
    "better",
)
"""All that can be said to the judge (`--watch errors=0.5% --watch output=y`)."""
DEFAULT_MARGINS: Mapping[str, float] = {METRIC_ERRORS: 0.01, METRIC_SLOW: 0.05, METRIC_QUALITY: 0.02}
ARM_BY_KIND = {CANARY: "canary", SHADOW: "shadow", AB: "b"}
DAY_S = 86400.0
MIN_LEARNED_ANSWERS = 200
"""So many answers of the base tell what is slow, where nobody said it."""
SLOW_QUANTILE, LEARN_WINDOW_S = 0.95, 3600.0


@dataclass(frozen=True, slots=True)
class TrialCriteria:
    """What the judge looks at, and when it must be done."""

    margins: Mapping[str, float] = field(default_factory=dict)
    """errors, slow, quality: how much worse than the base is good enough."""
    alpha: float = 0.05
    least: int = 200
    steps: tuple[float, ...] = (0.1, 0.5)
    """Shares one after the other; after the last the new revision has everything."""
    most_s: float = DAY_S
    settle_s: float = 5.0
    """What comes so soon after a step began is not judged: caches are cold, and load is only shifting."""
    slow_ms: float = 0.0
    """What is slow; 0: what only a twentieth of the base's answers exceed."""
    quality: QualityMeasure | None = None
    goal: str = ""
    """Of an A/B test: the metric in which one of the two must be better."""

    @property
    def metrics(self) -> tuple[JudgedMetric, ...]:
        """What is judged."""
        return tuple(
            JudgedMetric(name, 0.0 if name == self.goal else margin, not self.goal or name == self.goal, self.least)
            for name, margin in self.margins.items()
        )


class RolloutMove(NamedTuple):
    """What happens to a trial now."""

    name: str
    """step, pause, learn, promote, rollback or inconclusive."""
    why: str = ""
    bound_us: float = 0.0


def parse_criteria(criteria_fields: Mapping[str, Any], kind: str, share: float) -> TrialCriteria:
    """A plan from what was said, checked; what was not said is as usual for such a trial."""
    if unknown_names := sorted(set(criteria_fields) - set(CRITERIA_NAMES)):
        raise Invalid(f"the judge knows no {unknown_names[0][:40]!r}", f"it knows: {', '.join(CRITERIA_NAMES)}")
    if kind not in ARM_BY_KIND or not 0 < share <= 1 or (kind != SHADOW and share == 1):
        raise Invalid(
            f"a {kind[:20]} with a share of {share:g}", f"{', '.join(ARM_BY_KIND)}, with a share between 0 and 1"
        )
    quality = _parse_quality(criteria_fields)
    names = (METRIC_ERRORS, METRIC_SLOW, *((METRIC_QUALITY,) if quality else ()))
    goal = str(criteria_fields.get("goal", "")) or (
        (METRIC_QUALITY if quality else METRIC_ERRORS) if kind == AB else ""
    )
    if (goal and goal not in names) or (goal and kind != AB):
        raise Invalid(f"the goal cannot be {goal[:40]!r}", f"of an A/B test, one of {', '.join(names)}")
    return TrialCriteria(
        margins={name: _parse_number(criteria_fields, name, DEFAULT_MARGINS[name], (0, 1)) for name in names},
        alpha=_parse_number(criteria_fields, "alpha", 0.05, (1e-9, 0.5)),
        least=int(_parse_number(criteria_fields, "least", 200, (1, 1e9))),
        steps=_parse_steps(criteria_fields.get("steps"), kind, share),
        most_s=_parse_number(criteria_fields, "most_s", DAY_S, (1, 400 * DAY_S)),
        settle_s=_parse_number(criteria_fields, "settle_s", 5.0, (0, DAY_S)),
        slow_ms=_parse_number(criteria_fields, "slow_ms", 0.0, (0, 1e9)),
        quality=quality,
        goal=goal,
    )


def start_rollout(body: RecordFields, trial: TrialRequest, number: int, now: float) -> RecordFields:
    """With a trial of a revision; its base is what has the traffic now."""
    if not body["current"]:
        raise Conflict("there is nothing to compare with", "deploy a first revision whole")
    plan = parse_criteria(trial.plan, trial.kind, trial.share)
    arm = ARM_BY_KIND[trial.kind]
    rollout = Rollout(
        kind=trial.kind,
        arms={BASE_ARM: body["current"], arm: number},
        shares={BASE_ARM: 1.0, arm: 0.0},
        judge=trial.judge,
        plan=dict(trial.plan) | {"steps": ":".join(f"{step_share:g}" for step_share in plan.steps)},
        begun_at=now,
        bound_us=plan.slow_ms * 1000,
    )
    # Where nothing runs while nobody asks, the new revision is woken to show that it works.
    endpoint_fields = {"wanted": body["current"], "stopped": False, "note": "", "woken": now}
    return {**body, **endpoint_fields, "rollout": to_plain(rollout)}


def tried_arm(trial: Rollout) -> tuple[str, int]:
    """The arm that is tried, and its revision."""
    return next((arm, number) for arm, number in trial.arms.items() if arm != BASE_ARM)


def read_criteria(trial: Rollout) -> TrialCriteria:
    """The plan of a trial."""
    return parse_criteria(trial.plan, trial.kind, float(str(trial.plan["steps"]).partition(":")[0]))


def decide_without_judging(
    body: RecordFields, trial: Rollout, ready: Mapping[int, int], now: float
) -> RolloutMove | None:
    """The move that needs no figures: begin, pause, give up. None: go on, and judge if it has begun."""
    _, revision = tried_arm(trial)
    trouble = body["trouble"].get(str(revision))
    if ready.get(revision, 0):
        return RolloutMove("step") if not trial.step_at else None
    if trouble and int(trouble["fails"]) >= state_machine.MAX_FAILED_REPLICAS:
        return RolloutMove("rollback", f"revision {revision} has no replica that works: {trouble['why']}")
    if trial.judge and now > trial.begun_at + read_criteria(trial).most_s:
        return RolloutMove("inconclusive", f"revision {revision} was not ready in time")
    return RolloutMove("pause", f"revision {revision} has no replica") if trial.step_at else None


def decide_from_verdict(trial: Rollout, verdict: ArmVerdict, now: float) -> RolloutMove | None:
    """What follows from a verdict, where the judge may act."""
    plan = read_criteria(trial)
    if verdict.verdict == VERDICT_WORSE:
        return RolloutMove("rollback", verdict.why)
    if verdict.verdict == VERDICT_FINE:
        return RolloutMove("step" if trial.step + 1 < len(plan.steps) else "promote", verdict.why)
    if now > trial.begun_at + plan.most_s:
        return RolloutMove("inconclusive", f"not decided in {plan.most_s:g} s, so the base stays. {verdict.why}")
    return None


def apply_move(body: RecordFields, move: RolloutMove, now: float, *, is_ready: bool = True) -> RecordFields:
    """The body after a move."""
    trial = read_running_rollout(body)
    if trial is None:
        raise Conflict("no roll-out is under way", "deploy one: falaj serve deploy --canary 10%")
    arm, revision = tried_arm(trial)
    if move.name == "pause":
        return _with_rollout(body, replace(trial, shares={BASE_ARM: 1.0, arm: 0.0}, step_at=0.0, why=move.why))
    if move.name == "learn":
        return _with_rollout(body, replace(trial, bound_us=move.bound_us, step_at=now))
    if move.name == "step":
        return _with_rollout(body, _next_step(trial, arm, now, move.why, move.bound_us))
    state = {"promote": PROMOTED, "rollback": ROLLED_BACK}.get(move.name, INCONCLUSIVE)
    ended_body = _with_rollout(body, replace(trial, state=state, why=move.why, ended_at=now))
    if move.name != "promote":
        return {**ended_body, "wanted": ended_body["current"], "note": f"revision {revision}: {state}"}
    return (
        state_machine.switch_traffic(ended_body, revision, now)
        if is_ready
        else state_machine.set_target(ended_body, revision)
    )


def _next_step(trial: Rollout, arm: str, now: float, reason: str, bound_us: float) -> Rollout:
    """At its first step when it was waiting, else at the next one."""
    step = trial.step + 1 if trial.step_at else trial.step
    share = read_criteria(trial).steps[step]
    shares = {BASE_ARM: 1.0, arm: share} if trial.kind == SHADOW else {BASE_ARM: 1 - share, arm: share}
    return replace(trial, step=step, step_at=now, shares=shares, why=reason, bound_us=trial.bound_us or bound_us)


def _with_rollout(body: RecordFields, trial: Rollout) -> RecordFields:
    return {**body, "rollout": to_plain(trial)}


def _parse_quality(criteria_fields: Mapping[str, Any]) -> QualityMeasure | None:
    if "output" not in criteria_fields:
        if orphaned_names := {"how", "low", "high", "better", METRIC_QUALITY} & set(criteria_fields):
            raise Invalid(f"{min(orphaned_names)} of which output?", "name the model's output that is judged: output=y")
        return None
    how, better = str(criteria_fields.get("how", MATCH)), str(criteria_fields.get("better", "high"))
    low, high = (
        _parse_number(criteria_fields, name, bound, (-1e300, 1e300)) for name, bound in (("low", 0.0), ("high", 1.0))
    )
    if how not in QUALITY_METHODS or better not in ("high", "low") or not low < high:
        raise Invalid(
            f"a quality by {how[:40]!r}, from {low:g} to {high:g}", f"how: one of {', '.join(QUALITY_METHODS)}"
        )
    return QualityMeasure(str(criteria_fields["output"])[:200], how, low, high, better)


def _parse_steps(value: Any, kind: str, share: float) -> tuple[float, ...]:
    """Growing shares; as a text, 0.05:0.2:0.5."""
    if value is None:
        return (share, 0.5) if kind == CANARY and share < 0.5 else (share,)
    parts = value if isinstance(value, (list, tuple)) and value else str(value).split(":")
    steps = tuple(_parse_number({"steps": step_part}, "steps", 0.0, (1e-6, 1)) for step_part in parts)
    if list(steps) != sorted(set(steps)) or (kind != SHADOW and steps[-1] == 1) or (kind != CANARY and len(steps) > 1):
        raise Invalid("the steps are no growing shares below 1", "of a canary, for example steps=0.05:0.2:0.5")
    return steps


def _parse_number(criteria_fields: Mapping[str, Any], name: str, default: float, bounds: tuple[float, float]) -> float:
    """A number that was said, as such or as a text, 0.01 or 1%."""
    number_text = str(criteria_fields.get(name, default))
    try:
        value = float(number_text.removesuffix("%")) / (100 if number_text.endswith("%") else 1)
    except ValueError:
        value = float("nan")
    if not bounds[0] <= value <= bounds[1]:
        raise Invalid(f"{name} cannot be {number_text[:40]!r}", f"a number from {bounds[0]:g} to {bounds[1]:g}")
    return value
