"""Pools: every model of GPU, and the CPUs. What each has, what is held and waited for, in what pieces it is free."""

from collections.abc import Iterable, Mapping
from typing import Any

from falaj.core.execute import NodeFacts
from falaj.fleet.use import added

Loads = dict[str, dict[str, float]]
NAMES = ("capacity", "held", "waiting", "empty", "largest")


def pool_loads(
    nodes: Mapping[str, NodeFacts], busy: Iterable[Mapping[str, Any]], waiting: Iterable[Mapping[str, Any]]
) -> Loads:
    """In thousandths of a GPU or CPU, from the bodies of jobs that hold something and of those that wait.

    `empty` is free on nodes where nothing runs, `largest` the largest free piece of one node.
    """
    held_by: dict[str, dict[str, int]] = {}
    for body in busy:
        for node, amounts in body["use"]["nodes"].items():
            held_by[node] = added(held_by.get(node, {}), amounts)
    pools: Loads = {}
    for node, facts in nodes.items():
        have = {"cpu": facts.amounts.get("cpu", 0)}
        have = added(have, *({f"gpu:{device.model}": 1000} for device in facts.devices))
        for pool, amount in have.items():
            load = pools.setdefault(pool, dict.fromkeys(NAMES, 0.0))
            held = held_by.get(node, {}).get(pool, 0)
            free = max(0.0, float(amount - held)) if facts.ready else 0.0
            load["capacity"] += amount
            load["held"] += held
            load["empty"] += 0.0 if held else free
            load["largest"] = max(load["largest"], free)
    for body in waiting:
        for role in body["spec"]["roles"]:
            pool = _likely(role, pools)
            if pool:
                pools[pool]["waiting"] += (role["gpus"] or role["cpus"]) * 1000 * role["count"]
    return pools


def _likely(role: Mapping[str, Any], pools: Loads) -> str:
    """Where a waiting role would most likely go."""
    models = [f"gpu:{model}" for model in role["gpu_models"]] or [name for name in pools if name != "cpu"]
    fits = [name for name in (models if role["gpus"] else ["cpu"]) if name in pools]
    return max(fits, key=lambda name: pools[name]["capacity"], default="")
