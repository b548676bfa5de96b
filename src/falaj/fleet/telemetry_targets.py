"""Whose figures telemetry keeps, and for how long."""

import hashlib
from collections.abc import Mapping

from falaj.core.context import SYSTEM_TENANT
from falaj.core.data import dataclass

DAY_S, HOUR_S, MINUTE_S = 86_400, 3_600, 60
RETENTION_S: Mapping[str, int] = {"raw": DAY_S, "minute": 30 * DAY_S, "hour": 396 * DAY_S}


@dataclass(frozen=True, slots=True)
class TelemetryTarget:
    """Whose figures: a node, a run or a pool; of which tenant, and in which zone they may lie."""

    tenant: str
    kind: str
    name: str
    zone: str

    def series(self, level: str) -> str:
        """Where its figures of a level lie."""
        target_hash = hashlib.blake2b(f"{self.kind}\0{self.name}".encode(), digest_size=12).hexdigest()
        return f"tele.{level}.{target_hash}"


def make_node_target(name: str, zone: str) -> TelemetryTarget:
    """A node, by cluster/node; the house's."""
    return TelemetryTarget(SYSTEM_TENANT, "node", name, zone)


def make_run_target(tenant: str, job: str, zone: str) -> TelemetryTarget:
    """A job, by its id; its tenant's."""
    return TelemetryTarget(tenant, "run", job, zone)


def make_pool_target(pool: str, zone: str) -> TelemetryTarget:
    """A pool: a model of GPU, or the CPUs; the house's."""
    return TelemetryTarget(SYSTEM_TENANT, "pool", pool, zone)
