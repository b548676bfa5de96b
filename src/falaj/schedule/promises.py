"""What a guarantee promises: with GPUs the same part of all else, and of a parent at least what its children have."""

from collections.abc import Mapping

from falaj.schedule.model import GPU

ONE = 1 << 22
"""All of a capacity, as a share. A demand is cut at 2^40, so that a product of both fits 63 bits."""


def brought(guarantee: Mapping[str, int], capacity: Mapping[str, int]) -> dict[str, int]:
    """A guarantee and what goes along: GPUs with those of each model, the same part of all that is not GPUs."""
    # A model that no node has any more is as good as one that none ever had.
    there = {quota for quota, most in capacity.items() if most or not quota.startswith("gpu:")}
    given = {quota: amount for quota, amount in guarantee.items() if quota in there}
    models = sum(amount for quota, amount in given.items() if quota.startswith("gpu:"))
    gpus = max(given.get(GPU, 0), models)
    part = min(max((amount * ONE // max(capacity[quota], 1) for quota, amount in given.items()), default=0), ONE)
    out: dict[str, int] = {}
    for quota, whole in capacity.items():
        if quota == GPU:
            out[quota] = gpus
        elif quota.startswith("gpu:"):
            out[quota] = given.get(quota, 0 if models else min(gpus, whole))
        else:
            out[quota] = given.get(quota, whole * part // ONE)
    return out


def promised(guarantees: Mapping[str, Mapping[str, int]], capacity: Mapping[str, int]) -> dict[str, dict[str, int]]:
    """By queue what it is promised in all, `capacity` being all there is by quota."""
    out = {name: brought(mine, capacity) for name, mine in guarantees.items()}
    below = {name: dict.fromkeys(capacity, 0) for name in out}
    for name in sorted(out, key=lambda one: -one.count("/")):
        out[name] = {quota: max(most, below[name][quota]) for quota, most in out[name].items()}
        for quota, most in out[name].items() if (parent := name.rpartition("/")[0]) in below else ():
            below[parent][quota] += most
    return out
