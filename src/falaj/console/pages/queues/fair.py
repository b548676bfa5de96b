"""Fair shares: what each of some queues has of a resource, and what it would have if all of them wanted all of it."""

from collections.abc import Mapping, Sequence
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
    others: float = 0.0
    """In use by queues that the reader does not see."""

    @property
    def free(self) -> float:
        """What nobody uses."""
        return max(0.0, self.capacity - sum(self.used.values()) - self.others)


def held(below: Sequence[QueueView], nodes: Sequence[NodeView], whole: QueueView | None = None) -> list[Held]:
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
            _others(name, below, whole),
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


def _others(name: str, below: Sequence[QueueView], whole: QueueView | None) -> float:
    return max(0.0, round(_whole(name, whole.used) - sum(_whole(name, one.used) for one in below), 3)) if whole else 0.0


def _whole(name: str, given: Mapping[str, str]) -> float:
    try:
        return amount(name, given.get(name, "0")) / 1000
    except FalajError:
        return 0.0
