"""Health: a score for every node from what went wrong there, half forgotten every week, with its parts told. Pure."""

from collections.abc import Mapping
from typing import ClassVar

from falaj.core.data import dataclass

HALF_LIFE_S = 7 * 86_400
WELL, WATCH, ILL = "well", "watch", "ill"


@dataclass(frozen=True, slots=True)
class Ailment:
    """One thing that can go wrong with a node: what each costs of a hundred points, and at most."""

    points: float
    most: float
    text: str


AILMENTS: Mapping[str, Ailment] = {
    "xid": Ailment(25, 80, "hardware errors that the driver reported (XID)"),
    "ecc": Ailment(15, 70, "memory errors that could not be corrected (ECC)"),
    "throttle_h": Ailment(4, 40, "hours slowed down by heat"),
    "lost": Ailment(12, 45, "attempts lost there"),
    "trouble": Ailment(6, 30, "attempts that failed for no fault of their own"),
    "away": Ailment(8, 45, "times it went away"),
}
"""No cause that a single job can bring about makes a node ill by itself: those stay at `watch`."""

Parts = dict[str, tuple[float, float]]
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


def more(parts: Mapping[str, tuple[float, float]], what: str, amount: float, now: float) -> Parts:
    """The same with so much more of an ailment."""
    value, at = parts.get(what, (0.0, now))
    return {**parts, what: (_left(value, at, now) + amount, now)}


def judged(node: str, parts: Mapping[str, tuple[float, float]], now: float) -> NodeHealth:
    """How well a node is."""
    amounts = {name: _left(*parts[name], now) for name in AILMENTS if name in parts}
    points = {name: min(AILMENTS[name].most, AILMENTS[name].points * amount) for name, amount in amounts.items()}
    score = max(0, round(100 - sum(points.values())))
    verdict = WELL if score >= 80 else WATCH if score >= 50 else ILL
    ranked = sorted((name for name in points if points[name] >= 1), key=lambda name: -points[name])
    why = tuple(f"{amounts[name]:.1f} {AILMENTS[name].text} (-{points[name]:.0f})" for name in ranked)
    advice = {
        WELL: "",
        WATCH: "look again in a day",
        ILL: f"falaj clusters drain {node}, then test it",
    }[verdict]
    return NodeHealth(node, verdict, score, why, {name: round(value, 1) for name, value in points.items()}, advice)


def _left(value: float, at: float, now: float) -> float:
    """What is left of it after so long; a clock that went back forgets nothing."""
    return float(value * 0.5 ** (max(0.0, now - at) / HALF_LIFE_S))
