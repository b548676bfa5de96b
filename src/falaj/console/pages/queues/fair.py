"""Fair shares: what each of some queues has of a resource, and what it would have if all of them wanted all of it."""

from collections.abc import Sequence
from dataclasses import dataclass

from falaj.core.errors import FalajError
from falaj.fleet.amounts import amount
from falaj.fleet.records import NodeView, QueueView

RESOURCES = ("gpu", "cpu")


@dataclass(frozen=True, slots=True)
class Held:
    """One resource, in whole GPUs or CPUs: all there is, and of each queue what it uses, is promised, and weighs."""

    resource: str
    capacity: float
    used: dict[str, float]
    promised: dict[str, float]
    weights: dict[str, int]


def held(below: Sequence[QueueView], nodes: Sequence[NodeView]) -> list[Held]:
    """For each resource that there is, or that somebody has."""
    open_nodes = [node for node in nodes if node.state == "open"]
    capacity = {
        "gpu": float(sum(node.gpus for node in open_nodes)),
        "cpu": sum(node.amounts.get("cpu", 0) for node in open_nodes) / 1000,
    }
    made = [
        Held(
            name, capacity[name], {one.name: _whole(name, one.used) for one in below},
            {one.name: _whole(name, one.guarantee) for one in below}, {one.name: one.weight for one in below},
        )
        for name in RESOURCES
    ]  # fmt: skip
    return [one for one in made if below and (one.capacity or any(one.used.values()))]


def fair(have: Held) -> dict[str, float]:
    """What is promised first; what is left over by weight."""
    promised = sum(have.promised.values())
    scale = min(1.0, have.capacity / promised) if promised else 1.0
    left, weight = max(0.0, have.capacity - promised), sum(have.weights.values())
    return {
        name: scale * have.promised[name] + (left * have.weights[name] / weight if weight else 0.0)
        for name in have.used
    }


def _whole(name: str, given: object) -> float:
    said = given.get(name, "0") if isinstance(given, dict) else "0"
    try:
        return amount(name, said) / 1000
    except FalajError:
        return 0.0
