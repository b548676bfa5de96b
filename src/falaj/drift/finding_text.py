"""A finding in words: which column, in which segment, from what to what, in its own units."""

from collections.abc import Mapping

import numpy as np

from falaj.drift.measures import Ints, compute_shares
from falaj.drift.profile_matrix import estimate_quantiles
from falaj.drift.records import KIND_NUMBER, ProfileAxis


def describe_column(
    axis: ProfileAxis, group: str, segment: str, counts: tuple[Ints, Ints], measure_values: Mapping[str, float]
) -> str:
    """Of one column: counts of its bins now and then."""
    current, reference = counts
    segment_text = f" where {segment} is {group}" if group else ""
    if not current.sum():
        return f"{axis.name}{segment_text}: no values"
    if not reference.sum():
        return f"{axis.name}{segment_text}: the reference had no values"
    description = (
        _describe_number(axis, current, reference, measure_values)
        if axis.kind == KIND_NUMBER
        else _describe_category(axis, current, reference)
    )
    return f"{axis.name}{segment_text}: {description}"


def _describe_number(axis: ProfileAxis, current: Ints, reference: Ints, measure_values: Mapping[str, float]) -> str:
    current_quantiles, reference_quantiles = estimate_quantiles(current, axis), estimate_quantiles(reference, axis)
    shift = measure_values.get("distance", 0.0)
    text = f"median {current_quantiles[1]:.4g}, before {reference_quantiles[1]:.4g}"
    unit = axis.std or 1.0
    median_shift, width_change = (
        (current_quantiles[1] - reference_quantiles[1]) / unit,
        ((current_quantiles[2] - current_quantiles[0]) - (reference_quantiles[2] - reference_quantiles[0])) / unit,
    )
    if abs(median_shift) >= abs(width_change) and abs(median_shift) > 1e-9:
        return f"{text} ({'higher' if median_shift > 0 else 'lower'}; {shift:.2f} sd apart)"
    if abs(width_change) > 1e-9:
        return f"{text}, {'wider' if width_change > 0 else 'narrower'} ({shift:.2f} sd apart)"
    return f"{text} ({shift:.2f} sd apart)"


def _describe_category(axis: ProfileAxis, current: Ints, reference: Ints) -> str:
    current_shares, reference_shares = compute_shares(current), compute_shares(reference)
    largest_change = int(np.abs(current_shares - reference_shares).argmax())
    name = repr(axis.values[largest_change][:40]) if largest_change < len(axis.values) else "any other value"
    return f"{current_shares[largest_change]:.1%} are {name}, before {reference_shares[largest_change]:.1%}"
