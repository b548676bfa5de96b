"""What nodes and pools show: figures, alerts, health, and how full they were. A part of the desk `clusters`."""

from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, ClassVar

from falaj.core.context import HOUSE, Context
from falaj.core.data import dataclass
from falaj.core.errors import Invalid, NotFound
from falaj.core.execute import NodeFacts
from falaj.core.ports import Series
from falaj.core.verb import verb
from falaj.fleet.alerts import Alert, healths, listed
from falaj.fleet.amounts import seconds
from falaj.fleet.health import NodeHealth
from falaj.fleet.records import Cluster
from falaj.fleet.subjects import DAY_S, HOUR_S, KEPT_S, Subject, node_subject, pool_subject
from falaj.fleet.use import house_of, tenants
from falaj.store.ledger import Ledger, Reader

if TYPE_CHECKING:
    from falaj.fleet.telemetry import Telemetry

NOW_S = 60
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


class Signs:
    """What nodes show. The desk of clusters has these verbs, too."""

    _ledger: Ledger
    _series: Callable[[], Series]

    @cached_property
    def telemetry(self) -> "Telemetry":
        """What nodes and runs did; made when it is first asked for, since most commands never do."""
        from falaj.fleet.telemetry import Telemetry

        return Telemetry(self._series, self._ledger)

    def node_records(self, tx: Reader) -> Iterator[tuple[Cluster, NodeFacts, float]]:
        """Every node, with its cluster and when it was last different."""
        raise NotImplementedError

    @verb()
    def figures(
        self, ctx: Context, since: Annotated[str, "seen at most so long ago: 60s, 15m"] = f"{NOW_S}s"
    ) -> tuple[NodeFigures, ...]:
        """Show what nodes do now: load, memory, disk, network, and every GPU.

        Example:
            falaj clusters figures
        """
        subjects = self._subjects(ctx)
        frames = self.telemetry.read(subjects, ctx.now() - min(window(since), DAY_S))
        known = ((subject.name, frames[subject]) for subject in subjects if len(frames[subject]))
        return tuple(NodeFigures(name, float(frame.times[-1]), frame.newest()) for name, frame in known)

    @verb()
    def history(
        self,
        ctx: Context,
        node: Annotated[str, "cluster/node"],
        since: Annotated[str, "how far back: 6h, 7d"] = "6h",
    ) -> tuple[Figure, ...]:
        """Show the figures of one node over time.

        Example:
            falaj clusters history gpu-hall/node07 --since 7d
        """
        subject = next((one for one in self._subjects(ctx) if one.name == node), None)
        if subject is None:
            raise NotFound(f"there is no node {node[:80]!r}", "falaj clusters nodes shows them")
        from falaj.fleet.curves import curves

        return curves(self.telemetry, subject, ctx.now(), window(since))

    @verb()
    def alerts(
        self,
        ctx: Context,
        every: Annotated[bool, "also those that are over"] = False,
        since: Annotated[str, "of those, how far back: 24h, 7d"] = "7d",
    ) -> tuple[Alert, ...]:
        """List what looks wrong: idle GPUs that are held, leaks, heat, hardware errors, stragglers, full disks.

        Example:
            falaj clusters alerts --every --since 24h
        """
        with self._ledger.read(ctx) as tx:
            asked = sorted({HOUSE, *tenants(self._ledger)}) if ctx.tenant == HOUSE else [ctx.tenant]
            found = listed(ctx, tx, asked, ctx.now() - window(since), lasting=not every)
        return tuple(found)

    @verb()
    def health(
        self, ctx: Context, every: Annotated[bool, "also the nodes that look well"] = False
    ) -> tuple[NodeHealth, ...]:
        """List the nodes that look ill, why, and what to do.

        Example:
            falaj clusters health --every
        """
        with self._ledger.read(house_of(ctx)) as tx:
            found = healths(tx, [subject.name for subject in self._subjects(ctx)], ctx.now())
        return tuple(one for one in found if every or one.verdict != "well")

    @verb()
    def pools(self, ctx: Context, since: Annotated[str, "how far back: 24h, 28d"] = "28d") -> tuple[PoolLoad, ...]:
        """Show how full each pool is, and was: every model of GPU, and the CPUs.

        Example:
            falaj clusters pools --since 7d
        """
        now = ctx.now()
        start = (now - window(since)) // HOUR_S * HOUR_S
        with self._ledger.read(house_of(ctx)) as tx:
            models = {device.model for _, facts, _ in self.node_records(tx) for device in facts.devices}
        subjects = [pool_subject(name, ctx.zone) for name in (*sorted(f"gpu:{m}" for m in models), "cpu")]
        hours = self.telemetry.read(subjects, start, "hour")
        newest = self.telemetry.read(subjects, now - 20 * NOW_S)
        from falaj.fleet.curves import pool_load

        return tuple(pool_load(one.name, newest[one], hours[one], (start, now)) for one in subjects if len(hours[one]))

    def _subjects(self, ctx: Context) -> "list[Subject]":
        with self._ledger.read(house_of(ctx)) as tx:
            found = [(cluster, facts) for cluster, facts, _ in self.node_records(tx)]
        return [node_subject(f"{cluster.name}/{facts.name}", cluster.zone) for cluster, facts in found]


def window(since: str) -> int:
    """A span of time that is kept."""
    span = seconds(since)
    if not 0 < span <= KEPT_S["hour"]:
        raise Invalid(f"{since!r:.40} is not kept", f"at most {KEPT_S['hour'] // DAY_S}d")
    return span
