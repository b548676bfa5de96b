"""Which variants nothing beats, and which one is taken."""

from collections.abc import Sequence

from falaj.optimize.records import ORIGINAL_NAME, REFUSED, WITHIN_BOUND, VariantResult

NEAR_SPEED_SHARE = 0.85
"""Speeds so near one another are equal: measured again, the other might be ahead."""
MIN_SPEEDUP = 1.1
"""Less is not worth another model."""


def find_pareto_front(variants: Sequence[VariantResult]) -> frozenset[str]:
    """Names of those that no other is at least as good, fast and small as."""
    candidates = [variant for variant in variants if variant.verdict in (WITHIN_BOUND, REFUSED) and variant.speed]
    return frozenset(
        variant.name for variant in candidates if not any(_is_better(other, variant) for other in candidates)
    )


def choose_variant(variants: Sequence[VariantResult]) -> VariantResult | None:
    """The fastest within the bound; among equals the one that loses least, then the smallest. None: stay as it is."""
    allowed = [
        variant
        for variant in variants
        if variant.verdict == WITHIN_BOUND and variant.name != ORIGINAL_NAME and variant.speed >= MIN_SPEEDUP
    ]
    if not allowed:
        return None
    best_speed = max(variant.speed for variant in allowed)
    near_best = [variant for variant in allowed if variant.speed >= NEAR_SPEED_SHARE * best_speed]
    return min(near_best, key=lambda variant: (max(0.0, variant.loss), variant.size_bytes, -variant.speed))


def _is_better(first: VariantResult, second: VariantResult) -> bool:
    a, b = ((variant.loss, -variant.speed, variant.size_bytes) for variant in (first, second))
    return first is not second and a != b and all(x <= y for x, y in zip(a, b, strict=True))
