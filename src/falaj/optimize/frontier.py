"""Which variants nothing beats, and which one is taken."""

from collections.abc import Sequence

from falaj.optimize.records import BEFORE, KEPT, REFUSED, Tried

NEAR = 0.85
"""Speeds so near one another are equal: measured again, the other might be ahead."""
GAIN = 1.1
"""Less is not worth another model."""


def frontier(rows: Sequence[Tried]) -> frozenset[str]:
    """Names of those that no other is at least as good, fast and small as."""
    shown = [one for one in rows if one.verdict in (KEPT, REFUSED) and one.speed]
    return frozenset(one.name for one in shown if not any(_beats(other, one) for other in shown))


def choose(rows: Sequence[Tried]) -> Tried | None:
    """The fastest within the bound; among equals the one that loses least, then the smallest. None: stay as it is."""
    allowed = [one for one in rows if one.verdict == KEPT and one.name != BEFORE and one.speed >= GAIN]
    if not allowed:
        return None
    best = max(one.speed for one in allowed)
    near = [one for one in allowed if one.speed >= NEAR * best]
    return min(near, key=lambda one: (max(0.0, one.loss), one.size_bytes, -one.speed))


def _beats(one: Tried, other: Tried) -> bool:
    a, b = ((each.loss, -each.speed, each.size_bytes) for each in (one, other))
    return one is not other and a != b and all(x <= y for x, y in zip(a, b, strict=True))
