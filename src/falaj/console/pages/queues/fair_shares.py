"""Fair shares: what each of some queues has of a resource, and what it would have if all of them wanted all of it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from falaj.core.errors import FalajError
from falaj.fleet.amounts import parse_amount
from falaj.fleet.records import NodeView, QueueView

RESOURCE_NAMES = ("gpu", "cpu")


@dataclass(frozen=True, slots=True)
class ResourceShares:
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


def compute_shares(
    child_queues: Sequence[QueueView], nodes: Sequence[NodeView], parent_queue: QueueView | None = None
) -> list[ResourceShares]:
    """For each resource that there is, or that somebody has."""
    open_nodes = [node for node in nodes if node.state == "open"]
    capacity = {
        "gpu": float(sum(node.gpus for node in open_nodes)),
        "cpu": sum(node.amounts.get("cpu", 0) for node in open_nodes) / 1000,
    }
    resource_shares = [
        ResourceShares(
            name,
            capacity[name],
            {item.name: _to_whole_units(name, item.used) for item in child_queues},
            {item.name: _to_whole_units(name, item.guarantee) for item in child_queues},
            {item.name: item.weight for item in child_queues},
            _compute_hidden_use(name, child_queues, parent_queue),
        )
        for name in RESOURCE_NAMES
    ]
    return [item for item in resource_shares if child_queues and (item.capacity or any(item.used.values()))]


def compute_fair_amounts(shares: ResourceShares) -> dict[str, float]:
    """What is promised first; what is left over by weight."""
    total_guaranteed = sum(shares.promised.values())
    scale = min(1.0, shares.capacity / total_guaranteed) if total_guaranteed else 1.0
    unguaranteed, total_weight = max(0.0, shares.capacity - total_guaranteed), sum(shares.weights.values())
    return {
        name: scale * shares.promised[name]
        + (unguaranteed * shares.weights[name] / total_weight if total_weight else 0.0)
        for name in shares.used
    }


def _compute_hidden_use(name: str, child_queues: Sequence[QueueView], parent_queue: QueueView | None) -> float:
    return (
        max(
            0.0,
            round(
                _to_whole_units(name, parent_queue.used)
                - sum(_to_whole_units(name, queue.used) for queue in child_queues),
                3,
            ),
        )
        if parent_queue
        else 0.0
    )


def _to_whole_units(name: str, amount_texts: Mapping[str, str]) -> float:
    try:
        return parse_amount(name, amount_texts.get(name, "0")) / 1000
    except FalajError:
        return 0.0
