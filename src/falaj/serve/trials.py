"""Roll-outs as changes of an endpoint's record: what is planned, and the next move. Pure, like life.py.

A trial waits until its revision is ready, goes through its steps, each judged by itself on what came since it began,
and ends promoted, rolled back or inconclusive. While the revision has no replica, the base has all traffic.
"""

from collections.abc import Mapping
from dataclasses import field, replace
from typing import Any, NamedTuple

from falaj.core.data import dataclass
from falaj.core.errors import Conflict, Invalid
from falaj.serve import life
from falaj.serve.arms import BASE
from falaj.serve.books import trial_in
from falaj.serve.judge import FINE, WORSE, Metric, Verdict
from falaj.serve.labels import HOW, MATCH, Quality
from falaj.serve.records import (
    AB,
    CANARY,
    INCONCLUSIVE,
    PROMOTED,
    ROLLED_BACK,
    SHADOW,
    Rollout,
    Trial,
)
from falaj.store.codec import to_plain

Body = dict[str, Any]
ERRORS, SLOW, QUALITY = "errors", "slow", "quality"
WORDS = (
    ERRORS, SLOW, QUALITY, "alpha", "least", "steps", "most_s", "settle_s", "slow_ms", "goal", "output", "how", "low",
    "high", "better",
)  # fmt: skip
"""All that can be said to the judge (`--watch errors=0.5% --watch output=y`)."""
MARGINS: Mapping[str, float] = {ERRORS: 0.01, SLOW: 0.05, QUALITY: 0.02}
ARM = {CANARY: "canary", SHADOW: "shadow", AB: "b"}
DAY_S = 86400.0
LEARN = 200
"""So many answers of the base tell what is slow, where nobody said it."""
SLOW_SHARE, LOOK_BACK_S = 0.95, 3600.0


@dataclass(frozen=True, slots=True)
class Plan:
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
    quality: Quality | None = None
    goal: str = ""
    """Of an A/B test: the metric in which one of the two must be better."""

    @property
    def metrics(self) -> tuple[Metric, ...]:
        """What is judged."""
        return tuple(
            Metric(name, 0.0 if name == self.goal else margin, not self.goal or name == self.goal, self.least)
            for name, margin in self.margins.items()
        )


class Move(NamedTuple):
    """What happens to a trial now."""

    name: str
    """step, pause, learn, promote, rollback or inconclusive."""
    why: str = ""
    bound_us: float = 0.0


def plan_of(found: Mapping[str, Any], kind: str, share: float) -> Plan:
    """A plan from what was said, checked; what was not said is as usual for such a trial."""
    if unknown := sorted(set(found) - set(WORDS)):
        raise Invalid(f"the judge knows no {unknown[0][:40]!r}", f"it knows: {', '.join(WORDS)}")
    if kind not in ARM or not 0 < share <= 1 or (kind != SHADOW and share == 1):
        raise Invalid(f"a {kind[:20]} with a share of {share:g}", f"{', '.join(ARM)}, with a share between 0 and 1")
    quality = _quality(found)
    names = (ERRORS, SLOW, *((QUALITY,) if quality else ()))
    goal = str(found.get("goal", "")) or ((QUALITY if quality else ERRORS) if kind == AB else "")
    if (goal and goal not in names) or (goal and kind != AB):
        raise Invalid(f"the goal cannot be {goal[:40]!r}", f"of an A/B test, one of {', '.join(names)}")
    return Plan(
        margins={name: _number(found, name, MARGINS[name], (0, 1)) for name in names},
        alpha=_number(found, "alpha", 0.05, (1e-9, 0.5)),
        least=int(_number(found, "least", 200, (1, 1e9))),
        steps=_steps(found.get("steps"), kind, share),
        most_s=_number(found, "most_s", DAY_S, (1, 400 * DAY_S)),
        settle_s=_number(found, "settle_s", 5.0, (0, DAY_S)),
        slow_ms=_number(found, "slow_ms", 0.0, (0, 1e9)),
        quality=quality,
        goal=goal,
    )


def begun(body: Body, trial: Trial, number: int, now: float) -> Body:
    """With a trial of a revision; its base is what has the traffic now."""
    if not body["current"]:
        raise Conflict("there is nothing to compare with", "deploy a first revision whole")
    plan = plan_of(trial.plan, trial.kind, trial.share)
    arm = ARM[trial.kind]
    made = Rollout(
        kind=trial.kind,
        arms={BASE: body["current"], arm: number},
        shares={BASE: 1.0, arm: 0.0},
        judge=trial.judge,
        plan=dict(trial.plan) | {"steps": ":".join(f"{one:g}" for one in plan.steps)},
        begun_at=now,
        bound_us=plan.slow_ms * 1000,
    )
    # Where nothing runs while nobody asks, the new revision is woken to show that it works.
    open_ = {"wanted": body["current"], "stopped": False, "note": "", "woken": now}
    return {**body, **open_, "rollout": to_plain(made)}


def arm_in(trial: Rollout) -> tuple[str, int]:
    """The arm that is tried, and its revision."""
    return next((arm, number) for arm, number in trial.arms.items() if arm != BASE)


def plan_in(trial: Rollout) -> Plan:
    """The plan of a trial."""
    return plan_of(trial.plan, trial.kind, float(str(trial.plan["steps"]).partition(":")[0]))


def waiting(body: Body, trial: Rollout, ready: Mapping[int, int], now: float) -> Move | None:
    """The move that needs no figures: begin, pause, give up. None: go on, and judge if it has begun."""
    _, revision = arm_in(trial)
    trouble = body["trouble"].get(str(revision))
    if ready.get(revision, 0):
        return Move("step") if not trial.step_at else None
    if trouble and int(trouble["fails"]) >= life.GIVE_UP:
        return Move("rollback", f"revision {revision} has no replica that works: {trouble['why']}")
    if trial.judge and now > trial.begun_at + plan_in(trial).most_s:
        return Move("inconclusive", f"revision {revision} was not ready in time")
    return Move("pause", f"revision {revision} has no replica") if trial.step_at else None


def decided(trial: Rollout, verdict: Verdict, now: float) -> Move | None:
    """What follows from a verdict, where the judge may act."""
    plan = plan_in(trial)
    if verdict.verdict == WORSE:
        return Move("rollback", verdict.why)
    if verdict.verdict == FINE:
        return Move("step" if trial.step + 1 < len(plan.steps) else "promote", verdict.why)
    if now > trial.begun_at + plan.most_s:
        return Move("inconclusive", f"not decided in {plan.most_s:g} s, so the base stays. {verdict.why}")
    return None


def moved(body: Body, move: Move, now: float, *, ready: bool = True) -> Body:
    """The body after a move."""
    trial = trial_in(body)
    if trial is None:
        raise Conflict("no roll-out is under way", "deploy one: falaj serve deploy --canary 10%")
    arm, revision = arm_in(trial)
    if move.name == "pause":
        return _kept(body, replace(trial, shares={BASE: 1.0, arm: 0.0}, step_at=0.0, why=move.why))
    if move.name == "learn":
        return _kept(body, replace(trial, bound_us=move.bound_us, step_at=now))
    if move.name == "step":
        return _kept(body, _stepped(trial, arm, now, move.why, move.bound_us))
    state = {"promote": PROMOTED, "rollback": ROLLED_BACK}.get(move.name, INCONCLUSIVE)
    over = _kept(body, replace(trial, state=state, why=move.why, ended_at=now))
    if move.name != "promote":
        return {**over, "wanted": over["current"], "note": f"revision {revision}: {state}"}
    return life.switched(over, revision, now) if ready else life.heading(over, revision)


def _stepped(trial: Rollout, arm: str, now: float, why: str, bound_us: float) -> Rollout:
    """At its first step when it was waiting, else at the next one."""
    step = trial.step + 1 if trial.step_at else trial.step
    share = plan_in(trial).steps[step]
    shares = {BASE: 1.0, arm: share} if trial.kind == SHADOW else {BASE: 1 - share, arm: share}
    return replace(trial, step=step, step_at=now, shares=shares, why=why, bound_us=trial.bound_us or bound_us)


def _kept(body: Body, trial: Rollout) -> Body:
    return {**body, "rollout": to_plain(trial)}


def _quality(found: Mapping[str, Any]) -> Quality | None:
    if "output" not in found:
        if said := {"how", "low", "high", "better", QUALITY} & set(found):
            raise Invalid(f"{min(said)} of which output?", "name the model's output that is judged: output=y")
        return None
    how, better = str(found.get("how", MATCH)), str(found.get("better", "high"))
    low, high = (_number(found, name, bound, (-1e300, 1e300)) for name, bound in (("low", 0.0), ("high", 1.0)))
    if how not in HOW or better not in ("high", "low") or not low < high:
        raise Invalid(f"a quality by {how[:40]!r}, from {low:g} to {high:g}", f"how: one of {', '.join(HOW)}")
    return Quality(str(found["output"])[:200], how, low, high, better)


def _steps(found: Any, kind: str, share: float) -> tuple[float, ...]:
    """Growing shares; as a text, 0.05:0.2:0.5."""
    if found is None:
        return (share, 0.5) if kind == CANARY and share < 0.5 else (share,)
    parts = found if isinstance(found, (list, tuple)) and found else str(found).split(":")
    steps = tuple(_number({"steps": one}, "steps", 0.0, (1e-6, 1)) for one in parts)
    if list(steps) != sorted(set(steps)) or (kind != SHADOW and steps[-1] == 1) or (kind != CANARY and len(steps) > 1):
        raise Invalid("the steps are no growing shares below 1", "of a canary, for example steps=0.05:0.2:0.5")
    return steps


def _number(found: Mapping[str, Any], name: str, otherwise: float, bounds: tuple[float, float]) -> float:
    """A number that was said, as such or as a text, 0.01 or 1%."""
    said = str(found.get(name, otherwise))
    try:
        value = float(said.removesuffix("%")) / (100 if said.endswith("%") else 1)
    except ValueError:
        value = float("nan")
    if not bounds[0] <= value <= bounds[1]:
        raise Invalid(f"{name} cannot be {said[:40]!r}", f"a number from {bounds[0]:g} to {bounds[1]:g}")
    return value
