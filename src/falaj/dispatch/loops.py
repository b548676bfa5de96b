"""The loops of this room, as a house starts them."""

from collections.abc import Mapping

from falaj.dispatch.jobs_loop import JobsLoop
from falaj.dispatch.scaling_loop import ScalingLoop
from falaj.fleet.clusters import ClusterService
from falaj.jobs.service import JobService
from falaj.schedule.model import SchedulerOptions
from falaj.store.ledger import Ledger
from falaj.store.reconcile_loop import ReconcileLoop
from falaj.track.service import TrackService


def build_loops(
    ledger: Ledger,
    clusters: ClusterService,
    track: TrackService,
    service: JobService,
    schedule: Mapping[str, str] | None = None,
) -> tuple[ReconcileLoop, ...]:
    """From decisions to attempts, and from what waits to nodes; `schedule` tunes the decisions."""
    return JobsLoop(ledger, clusters, track, service, SchedulerOptions.of(schedule or {})), ScalingLoop(
        ledger, clusters
    )
