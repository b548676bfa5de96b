"""What the fleet knows: clusters, nodes, queues, budgets. Frozen, plain, the same on the wire."""

from collections.abc import Mapping
from dataclasses import field
from typing import ClassVar

from falaj.core.data import dataclass
from falaj.core.executor import Device


@dataclass(frozen=True, slots=True)
class Cluster:
    """One executor's address, in one zone."""

    COLUMNS: ClassVar[tuple[str, ...]] = ("name", "address", "zone", "state", "tenants", "trouble")

    name: str
    address: str
    zone: str
    tenants: tuple[str, ...] = ()
    """Whose jobs it takes; everybody's when empty. Of Ray clusters a single tenant, unless declared as shared."""
    folder: str = ""
    """Where attempts lie, on a cluster that shares a folder with the platform."""
    checkpoints: str = ""
    """Where checkpoints lie, that all its nodes reach; in the folder when empty, or else on each node alone."""
    options: Mapping[str, str] = field(default_factory=dict)
    """What only its kind of executor understands; secrets by reference."""
    drained: tuple[str, ...] = ()
    state: str = "open"
    """open, or closed: what runs there may end, nothing new starts."""
    trouble: str = ""
    """What went wrong when it was last spoken to; empty when it answered. Seen, never declared."""
    unsandboxed: str = ""
    """Whose jobs run there without a sandbox, a key of fleet.sandbox.UNSANDBOXED; empty: none do. Seen, too."""


@dataclass(frozen=True, slots=True)
class NodeView:
    """A node as its cluster last told of it, and what of it is in use."""

    COLUMNS: ClassVar[tuple[str, ...]] = ("node", "state", "cpu", "memory", "gpus", "model", "used", "jobs")

    node: str
    """cluster/node"""
    state: str
    """open, drained, away (its cluster says it is not ready, or does not answer) or leaving"""
    cpu: str
    memory: str
    gpus: int
    model: str
    used: Mapping[str, str]
    jobs: int
    zone: str
    amounts: Mapping[str, int]
    devices: tuple[Device, ...]
    labels: Mapping[str, str]
    seen_at: float = 0.0


@dataclass(frozen=True, slots=True)
class ClusterCheck:
    """What a cluster answered."""

    cluster: str
    ok: bool
    nodes: int = 0
    ready: int = 0
    gpus: int = 0
    seconds: float = 0.0
    problem: str = ""
    sandbox: str = ""
    """What keeps attempts apart there, and what cannot be enforced; empty where it is the cluster's own business."""


@dataclass(frozen=True, slots=True)
class BudgetRule:
    """What a queue may spend in a window, and what happens then."""

    unit: str
    """gpu-hours, cpu-hours or money"""
    amount: int
    """GPU- and CPU-seconds in thousandths, money in millionths"""
    window: str
    """day, week, month, or so many days: 30d"""
    stops: bool = False

    @property
    def brief(self) -> str:
        """As people write it."""
        scale = 1_000_000 if self.unit == "money" else 3_600_000
        return f"{self.unit}={self.amount / scale:g}/{self.window}:{'stop' if self.stops else 'best-effort'}"


HOLD, DRAIN = "hold", "drain"


@dataclass(frozen=True, slots=True)
class QueueRule:
    """A queue as its operator declared it; amounts as the scheduler counts them."""

    name: str
    weight: int = 1
    guarantee: Mapping[str, int] = field(default_factory=dict)
    limit: Mapping[str, int] = field(default_factory=dict)
    lend: Mapping[str, int] = field(default_factory=dict)
    top_band: int | None = None
    """The highest band of its jobs; None: as the queue above it has it, and normal where no queue above says."""
    projects: tuple[str, ...] = ()
    """Whose jobs it takes: tenant/project, tenant/*, or * for everybody's."""
    budgets: tuple[BudgetRule, ...] = ()
    stop: str = ""
    """HOLD: nothing starts; DRAIN: what runs is stopped, too. Counts for all queues below."""
    stop_reason: str = ""
    max_waiting: int | None = None
    """The most jobs that may wait in it and all queues below; None: no cap."""
    max_waiting_per_person: int | None = None
    """The same of one person."""

    @property
    def is_capped(self) -> bool:
        """Whether the number of its waiting jobs is bounded."""
        return self.max_waiting is not None or self.max_waiting_per_person is not None


@dataclass(frozen=True, slots=True)
class QueueView:
    """A queue with what it has, uses and owes."""

    COLUMNS: ClassVar[tuple[str, ...]] = (
        "name", "weight", "guarantee", "limit", "used", "borrowed", "waiting", "running", "budget", "stop",
    )  # fmt: skip

    name: str
    weight: int
    guarantee: Mapping[str, str]
    limit: Mapping[str, str]
    lend: Mapping[str, str]
    top_band: str
    """The highest band that its jobs may ask for, by itself or by a queue above it."""
    projects: tuple[str, ...]
    used: Mapping[str, str]
    borrowed: Mapping[str, str]
    """What it uses beyond what it is promised: its guarantee, what that brings along, and those of queues below it."""
    waiting: int
    running: int
    budget: tuple[str, ...]
    """Each with what is spent and held of it."""
    stop: str = ""
    """hold, drain, or empty: whether an operator stopped it."""
    stop_reason: str = ""
    max_waiting: int | None = None
    max_waiting_per_person: int | None = None


@dataclass(frozen=True, slots=True)
class QueueChange:
    """One line of a plan: a queue that is new, changed or gone."""

    name: str
    change: str
    was: str = ""
    becomes: str = ""
