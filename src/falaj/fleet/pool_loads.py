"""Pools: every model of GPU, and the CPUs. What each has, what is held and waited for, in what pieces it is free."""

from collections.abc import Iterable, Mapping
from typing import Any

from falaj.core.executor import NodeInfo
from falaj.fleet.fleet_use import sum_amounts

PoolLoads = dict[str, dict[str, float]]
LOAD_FIGURES = ("capacity", "held", "waiting", "empty", "largest")


def compute_pool_loads(
    nodes: Mapping[str, NodeInfo], busy: Iterable[Mapping[str, Any]], waiting: Iterable[Mapping[str, Any]]
) -> PoolLoads:
    """In thousandths of a GPU or CPU, from the bodies of jobs that hold something and of those that wait.

    `empty` is free on nodes where nothing runs, `largest` the largest free piece of one node.
    """
    held_by_node: dict[str, dict[str, int]] = {}
    for body in busy:
        for node, amounts in body["use"]["nodes"].items():
            held_by_node[node] = sum_amounts(held_by_node.get(node, {}), amounts)
    pools: PoolLoads = {}
    for node, facts in nodes.items():
        node_amounts = {"cpu": facts.amounts.get("cpu", 0)}
        node_amounts = sum_amounts(node_amounts, *({f"gpu:{device.model}": 1000} for device in facts.devices))
        for pool, amount in node_amounts.items():
            load = pools.setdefault(pool, dict.fromkeys(LOAD_FIGURES, 0.0))
            held_amount = held_by_node.get(node, {}).get(pool, 0)
            free = max(0.0, float(amount - held_amount)) if facts.ready else 0.0
            load["capacity"] += amount
            load["held"] += held_amount
            load["empty"] += 0.0 if held_amount else free
            load["largest"] = max(load["largest"], free)
    for body in waiting:
        for role in body["spec"]["roles"]:
            pool = _find_likely_pool(role, pools)
            if pool:
                pools[pool]["waiting"] += (role["gpus"] or role["cpus"]) * 1000 * role["count"]
    return pools


def _find_likely_pool(role: Mapping[str, Any], pools: PoolLoads) -> str:
    """Where a waiting role would most likely go."""
    models = [f"gpu:{model}" for model in role["gpu_models"]] or [name for name in pools if name != "cpu"]
    fits = [name for name in (models if role["gpus"] else ["cpu"]) if name in pools]
    return max(fits, key=lambda name: pools[name]["capacity"], default="")
