"""The loops of this room, as a house starts them."""

from collections.abc import Mapping

from falaj.dispatch.loop import JobsLoop
from falaj.dispatch.scaling import ScalingLoop
from falaj.fleet.clusters import Clusters
from falaj.jobs.service import Jobs
from falaj.schedule.model import Knobs
from falaj.store.ledger import Ledger
from falaj.store.loop import Loop
from falaj.track.service import Track


def loops(
    ledger: Ledger, clusters: Clusters, track: Track, desk: Jobs, schedule: Mapping[str, str] | None = None
) -> tuple[Loop, ...]:
    """From decisions to attempts, and from what waits to nodes; `schedule` tunes the decisions."""
    return JobsLoop(ledger, clusters, track, desk, Knobs.of(schedule or {})), ScalingLoop(ledger, clusters)
