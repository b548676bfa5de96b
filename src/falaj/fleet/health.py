"""Health: a score for every node from what went wrong there, half forgotten every week, with its parts told. Pure."""

from collections.abc import Mapping
from typing import ClassVar

from falaj.core.data import dataclass

HALF_LIFE_S = 7 * 86_400
WELL, WATCH, ILL = "well", "watch", "ill"


@dataclass(frozen=True, slots=True)
class HealthCause:
    """One thing that can go wrong with a node: what each costs of a hundred points, and at most."""

    points: float
    most: float
    text: str


HEALTH_CAUSES: Mapping[str, HealthCause] = {
    "xid": HealthCause(25, 80, "hardware errors that the driver reported (XID)"),
    "ecc": HealthCause(15, 70, "memory errors that could not be corrected (ECC)"),
    "throttle_h": HealthCause(4, 40, "hours slowed down by heat"),
    "lost": HealthCause(12, 45, "attempts lost there"),
    "trouble": HealthCause(6, 30, "attempts that failed for no fault of their own"),
    "away": HealthCause(8, 45, "times it went away"),
}
"""No cause that a single job can bring about makes a node ill by itself: those stay at `watch`."""

HealthParts = dict[str, tuple[float, float]]
"""By ailment: how much of it, and as of when."""


@dataclass(frozen=True, slots=True)
class NodeHealth:
    """How well a node looks, why, and what to do."""

    COLUMNS: ClassVar[tuple[str, ...]] = ("node", "verdict", "score", "why", "advice")

    node: str
    verdict: str
    """well, watch or ill"""
    score: int
    """100 is well, 0 is as ill as can be."""
    why: tuple[str, ...]
    parts: Mapping[str, float]
    """Points that each cause takes."""
    advice: str


def add_cause(parts: Mapping[str, tuple[float, float]], cause: str, amount: float, now: float) -> HealthParts:
    """The same with so much more of an ailment."""
    value, changed_at = parts.get(cause, (0.0, now))
    return {**parts, cause: (_compute_decayed_amount(value, changed_at, now) + amount, now)}


def judge_health(node: str, parts: Mapping[str, tuple[float, float]], now: float) -> NodeHealth:
    """How well a node is."""
    amounts = {name: _compute_decayed_amount(*parts[name], now) for name in HEALTH_CAUSES if name in parts}
    points = {
        name: min(HEALTH_CAUSES[name].most, HEALTH_CAUSES[name].points * amount) for name, amount in amounts.items()
    }
    score = max(0, round(100 - sum(points.values())))
    verdict = WELL if score >= 80 else WATCH if score >= 50 else ILL
    ranked = sorted((name for name in points if points[name] >= 1), key=lambda name: -points[name])
    why = tuple(f"{amounts[name]:.1f} {HEALTH_CAUSES[name].text} (-{points[name]:.0f})" for name in ranked)
    advice = {
        WELL: "",
        WATCH: "look again in a day",
        ILL: f"falaj clusters drain {node}, then test it",
    }[verdict]
    return NodeHealth(node, verdict, score, why, {name: round(value, 1) for name, value in points.items()}, advice)


def _compute_decayed_amount(value: float, changed_at: float, now: float) -> float:
    """What is left of it after so long; a clock that went back forgets nothing."""
    return float(value * 0.5 ** (max(0.0, now - changed_at) / HALF_LIFE_S))
