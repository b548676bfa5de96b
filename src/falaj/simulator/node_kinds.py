"""Kinds of nodes that can be bought, and the rules for buying them. Facts only: whoever reads them loads no arrays."""

from dataclasses import replace

from falaj.core.data import dataclass
from falaj.schedule.model import Node

HOUR_S = 3600


@dataclass(frozen=True, slots=True)
class NodeKind:
    """A kind of node that a cluster can make."""

    name: str
    """cluster/template"""
    node: Node
    """One of them."""
    most: int
    least: int = 0
    boot_s: int = 120
    """From asking for one until it takes work."""
    notice_s: int = 120
    """How long before it is taken away that is told, where it is a spot node."""

    def imagine(self, count: int, mark: str = "~") -> list[Node]:
        """So many nodes that are not there."""
        return [replace(self.node, name=f"{self.name}{mark}{number}", open=True) for number in range(count)]


@dataclass(frozen=True, slots=True)
class ScalingOptions:
    """What an installation may tune."""

    hourly: int = 0
    """All nodes that can be bought together cost at most so much an hour, in micro-units of money; 0: no limit."""
    wait_s: int = 60
    """No job should wait longer than this for lack of nodes: for one that starts sooner anyway, none is bought."""
    idle_s: int = 600
    """A node goes when nothing was on it for so long."""
    keep_s: int = 600
    """And never sooner after it came."""
    gap_s: int = 60
    """Between two purchases of one kind."""
