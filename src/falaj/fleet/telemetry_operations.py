"""What nodes and pools show: figures, alerts, health, and how full they were. A part of the desk `clusters`."""

from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, ClassVar

from falaj.core.context import SYSTEM_TENANT, CallContext
from falaj.core.data import dataclass
from falaj.core.errors import Invalid, NotFound
from falaj.core.executor import NodeInfo
from falaj.core.operation import operation
from falaj.core.ports import SeriesStore
from falaj.fleet.alerts import Alert, list_alerts, list_healths
from falaj.fleet.amounts import parse_seconds
from falaj.fleet.fleet_use import list_tenants, make_system_context
from falaj.fleet.health import NodeHealth
from falaj.fleet.records import Cluster
from falaj.fleet.telemetry_targets import (
    DAY_S,
    HOUR_S,
    RETENTION_S,
    TelemetryTarget,
    make_node_target,
    make_pool_target,
)
from falaj.store.ledger import Ledger, LedgerReader

if TYPE_CHECKING:
    from falaj.fleet.telemetry import TelemetryStore

CURRENT_S = 60
"""What was told longer ago is not `now`."""


@dataclass(frozen=True, slots=True)
class NodeFigures:
    """A node as it was last seen."""

    node: str
    at: float
    figures: Mapping[str, float]
    """load; available, disk (MiB left); received, sent (KiB a second); of GPU 0: 0.busy (percent), 0.memory (MiB),
    0.temperature, 0.power (watts), 0.clock, …"""


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure over a window of time."""

    COLUMNS: ClassVar[tuple[str, ...]] = ("name", "shape", "newest", "mean", "highest")

    name: str
    shape: str
    """The curve in one line."""
    newest: float
    mean: float
    highest: float
    curve: tuple[float | None, ...]
    """In sixty steps; nothing where nobody looked."""


@dataclass(frozen=True, slots=True)
class PoolLoad:
    """A model of GPU, or the CPUs: how many there are, in use, waited for, and hour by hour what was in use."""

    COLUMNS: ClassVar[tuple[str, ...]] = ("pool", "capacity", "held", "waiting", "empty", "largest")

    pool: str
    capacity: float
    held: float
    waiting: float
    empty: float
    """Free on nodes where nothing runs."""
    largest: float
    """The largest free piece on one node."""
    since: float
    hours: tuple[float | None, ...]


class TelemetryOperations:
    """What nodes show. The desk of clusters has these verbs, too."""

    _ledger: Ledger
    _series: Callable[[], SeriesStore]

    @cached_property
    def telemetry(self) -> "TelemetryStore":
        """What nodes and runs did; made when it is first asked for, since most commands never do."""
        from falaj.fleet.telemetry import TelemetryStore

        return TelemetryStore(self._series, self._ledger)

    def node_records(self, tx: LedgerReader) -> Iterator[tuple[Cluster, NodeInfo, float]]:
        """Every node, with its cluster and when it was last different."""
        raise NotImplementedError

    @operation()
    def figures(
        self, ctx: CallContext, since: Annotated[str, "seen at most so long ago: 60s, 15m"] = f"{CURRENT_S}s"
    ) -> tuple[NodeFigures, ...]:
        """Show what nodes do now: load, memory, disk, network, and every GPU.

        Example:
            falaj clusters figures
        """
        targets = self._list_targets(ctx)
        frames = self.telemetry.read(targets, ctx.now() - min(parse_window(since), DAY_S))
        frame_by_name = ((target.name, frames[target]) for target in targets if len(frames[target]))
        return tuple(NodeFigures(name, float(frame.times[-1]), frame.newest()) for name, frame in frame_by_name)

    @operation()
    def history(
        self,
        ctx: CallContext,
        node: Annotated[str, "cluster/node"],
        since: Annotated[str, "how far back: 6h, 7d"] = "6h",
    ) -> tuple[Figure, ...]:
        """Show the figures of one node over time.

        Example:
            falaj clusters history gpu-hall/node07 --since 7d
        """
        target = next((candidate for candidate in self._list_targets(ctx) if candidate.name == node), None)
        if target is None:
            raise NotFound(f"there is no node {node[:80]!r}", "falaj clusters nodes shows them")
        from falaj.fleet.curves import build_figures

        return build_figures(self.telemetry, target, ctx.now(), parse_window(since))

    @operation()
    def alerts(
        self,
        ctx: CallContext,
        every: Annotated[bool, "also those that are over"] = False,
        since: Annotated[str, "of those, how far back: 24h, 7d"] = "7d",
    ) -> tuple[Alert, ...]:
        """List what looks wrong: idle GPUs that are held, leaks, heat, hardware errors, stragglers, full disks.

        Example:
            falaj clusters alerts --every --since 24h
        """
        with self._ledger.read(ctx) as tx:
            tenant_names = (
                sorted({SYSTEM_TENANT, *list_tenants(self._ledger)}) if ctx.tenant == SYSTEM_TENANT else [ctx.tenant]
            )
            alert_list = list_alerts(ctx, tx, tenant_names, ctx.now() - parse_window(since), lasting=not every)
        return tuple(alert_list)

    @operation()
    def health(
        self, ctx: CallContext, every: Annotated[bool, "also the nodes that look well"] = False
    ) -> tuple[NodeHealth, ...]:
        """List the nodes that look ill, why, and what to do.

        Example:
            falaj clusters health --every
        """
        with self._ledger.read(make_system_context(ctx)) as tx:
            healths = list_healths(tx, [target.name for target in self._list_targets(ctx)], ctx.now())
        return tuple(node_health for node_health in healths if every or node_health.verdict != "well")

    @operation()
    def pools(self, ctx: CallContext, since: Annotated[str, "how far back: 24h, 28d"] = "28d") -> tuple[PoolLoad, ...]:
        """Show how full each pool is, and was: every model of GPU, and the CPUs.

        Example:
            falaj clusters pools --since 7d
        """
        now = ctx.now()
        start = (now - parse_window(since)) // HOUR_S * HOUR_S
        with self._ledger.read(make_system_context(ctx)) as tx:
            models = {device.model for _, facts, _ in self.node_records(tx) for device in facts.devices}
        targets = [make_pool_target(name, ctx.zone) for name in (*sorted(f"gpu:{model}" for model in models), "cpu")]
        hours = self.telemetry.read(targets, start, "hour")
        newest = self.telemetry.read(targets, now - 20 * CURRENT_S)
        from falaj.fleet.curves import build_pool_load

        return tuple(
            build_pool_load(target.name, newest[target], hours[target], (start, now))
            for target in targets
            if len(hours[target])
        )

    def _list_targets(self, ctx: CallContext) -> "list[TelemetryTarget]":
        with self._ledger.read(make_system_context(ctx)) as tx:
            node_facts = [(cluster, facts) for cluster, facts, _ in self.node_records(tx)]
        return [make_node_target(f"{cluster.name}/{facts.name}", cluster.zone) for cluster, facts in node_facts]


def parse_window(since: str) -> int:
    """A span of time that is kept."""
    window_s = parse_seconds(since)
    if not 0 < window_s <= RETENTION_S["hour"]:
        raise Invalid(f"{since!r:.40} is not kept", f"at most {RETENTION_S['hour'] // DAY_S}d")
    return window_s
