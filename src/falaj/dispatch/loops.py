"""The loops of this room, as a house starts them."""

from falaj.dispatch.loop import JobsLoop
from falaj.dispatch.scaling import ScalingLoop
from falaj.fleet.clusters import Clusters
from falaj.jobs.service import Jobs
from falaj.store.ledger import Ledger
from falaj.store.loop import Loop
from falaj.track.service import Track


def loops(ledger: Ledger, clusters: Clusters, track: Track, desk: Jobs) -> tuple[Loop, ...]:
    """From decisions to attempts, and from what waits to nodes."""
    return JobsLoop(ledger, clusters, track, desk), ScalingLoop(ledger, clusters)
