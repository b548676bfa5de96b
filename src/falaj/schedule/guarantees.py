"""What a guarantee promises: with GPUs the same part of all else, and of a parent at least what its children have."""

from collections.abc import Mapping

from falaj.schedule.model import GPU

FULL_SHARE = 1 << 22
"""All of a capacity, as a share. A demand is cut at 2^40, so that a product of both fits 63 bits."""


def expand_guarantee(guarantee: Mapping[str, int], capacity: Mapping[str, int]) -> dict[str, int]:
    """A guarantee and what goes along: GPUs with those of each model, the same part of all that is not GPUs."""
    # A model that no node has any more is as good as one that none ever had.
    available = {quota for quota, quota_capacity in capacity.items() if quota_capacity or not quota.startswith("gpu:")}
    amounts = {quota: amount for quota, amount in guarantee.items() if quota in available}
    models = sum(amount for quota, amount in amounts.items() if quota.startswith("gpu:"))
    gpus = max(amounts.get(GPU, 0), models)
    part = min(
        max((amount * FULL_SHARE // max(capacity[quota], 1) for quota, amount in amounts.items()), default=0),
        FULL_SHARE,
    )
    expanded: dict[str, int] = {}
    for quota, total in capacity.items():
        if quota == GPU:
            expanded[quota] = gpus
        elif quota.startswith("gpu:"):
            expanded[quota] = amounts.get(quota, 0 if models else min(gpus, total))
        else:
            expanded[quota] = amounts.get(quota, total * part // FULL_SHARE)
    return expanded


def compute_promises(
    guarantees: Mapping[str, Mapping[str, int]], capacity: Mapping[str, int]
) -> dict[str, dict[str, int]]:
    """By queue what it is promised in all, `capacity` being all there is by quota."""
    promises = {name: expand_guarantee(guarantee, capacity) for name, guarantee in guarantees.items()}
    below = {name: dict.fromkeys(capacity, 0) for name in promises}
    for name in sorted(promises, key=lambda queue_name: -queue_name.count("/")):
        promises[name] = {
            quota: max(promised_amount, below[name][quota]) for quota, promised_amount in promises[name].items()
        }
        for quota, promised_amount in promises[name].items() if (parent := name.rpartition("/")[0]) in below else ():
            below[parent][quota] += promised_amount
    return promises
