"""Whose figures telemetry keeps, and for how long."""

import hashlib
from collections.abc import Mapping

from falaj.core.context import HOUSE
from falaj.core.data import dataclass

DAY_S, HOUR_S, MINUTE_S = 86_400, 3_600, 60
KEPT_S: Mapping[str, int] = {"raw": DAY_S, "minute": 30 * DAY_S, "hour": 396 * DAY_S}


@dataclass(frozen=True, slots=True)
class Subject:
    """Whose figures: a node, a run or a pool; of which tenant, and in which zone they may lie."""

    tenant: str
    kind: str
    name: str
    zone: str

    def series(self, level: str) -> str:
        """Where its figures of a level lie."""
        mark = hashlib.blake2b(f"{self.kind}\0{self.name}".encode(), digest_size=12).hexdigest()
        return f"tele.{level}.{mark}"


def node_subject(name: str, zone: str) -> Subject:
    """A node, by cluster/node; the house's."""
    return Subject(HOUSE, "node", name, zone)


def run_subject(tenant: str, job: str, zone: str) -> Subject:
    """A job, by its id; its tenant's."""
    return Subject(tenant, "run", job, zone)


def pool_subject(pool: str, zone: str) -> Subject:
    """A pool: a model of GPU, or the CPUs; the house's."""
    return Subject(HOUSE, "pool", pool, zone)
