"""How many replicas of each revision are wanted, which start, which end, and when the traffic moves. Pure.

More at once, fewer slowly: the target is the most that was wanted within the last minute, so that load which comes and
goes starts and ends nothing.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import ceil

from falaj.serve.records import DRAINING, READY, STARTING, ScalePolicy
from falaj.serve.request_counts import RevisionLoad

SCALE_DOWN_WINDOW_S = 60.0
"""So long fewer must be enough before there are fewer."""
SWITCH_TIMEOUT_S = 30.0
"""A switch waits so long for the last replicas; with one that is ready it then goes on."""
DemandHistory = tuple[tuple[float, int], ...]
"""What was wanted when, newest last, each less than the one before."""


@dataclass(frozen=True, slots=True)
class ReplicaState:
    """A replica as decisions see it."""

    name: str
    revision: int
    state: str
    since: float


@dataclass(frozen=True, slots=True)
class EndpointState:
    """One endpoint, now."""

    now: float
    scale: ScalePolicy
    shares: Mapping[int, float]
    """Revision to its share of requests, copies among them."""
    current: int
    wanted: int
    before: int = 0
    switched: float = 0.0
    woken: float = 0.0
    stopped: bool = False
    replicas: tuple[ReplicaState, ...] = ()
    loads: Mapping[int, RevisionLoad] = field(default_factory=dict)
    rests: Mapping[int, float] = field(default_factory=dict)
    """Revision to when the next replica of it may be tried."""
    past: Mapping[int, DemandHistory] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ReplicaDecision:
    """What to do, and what to remember of it."""

    start: Mapping[int, int] = field(default_factory=dict)
    drain: tuple[str, ...] = ()
    switch: int = 0
    """The revision that gets the traffic now; 0: as it is."""
    targets: Mapping[int, int] = field(default_factory=dict)
    past: Mapping[int, DemandHistory] = field(default_factory=dict)


def decide_replicas(endpoint_state: EndpointState) -> ReplicaDecision:
    """The next moves for one endpoint."""
    if endpoint_state.stopped:
        return ReplicaDecision(
            drain=tuple(replica.name for replica in endpoint_state.replicas if replica.state != DRAINING)
        )
    targets, demand_history = _compute_targets(endpoint_state)
    switch = _choose_switch(endpoint_state, targets)
    start: dict[int, int] = {}
    drain: list[str] = []
    for revision in sorted({*targets, *(replica.revision for replica in endpoint_state.replicas)}):
        present = [
            replica for replica in endpoint_state.replicas if replica.revision == revision and replica.state != DRAINING
        ]
        missing_count = targets.get(revision, 0) - len(present)
        if missing_count > 0 and endpoint_state.now >= endpoint_state.rests.get(revision, 0.0):
            start[revision] = missing_count
        drain += [replica.name for replica in _sort_dispensable(present)[: max(0, -missing_count)]]
    return ReplicaDecision(start, tuple(drain), switch, targets, demand_history)


def count_wanted(endpoint_state: EndpointState, revision: int) -> int:
    """How many replicas of a revision that gets requests this very moment asks for."""
    scale, load = endpoint_state.scale, endpoint_state.loads.get(revision)
    share = endpoint_state.shares.get(revision, 0.0)
    # While revisions are compared each has one: nobody learns anything of one that sleeps.
    min_replicas = scale.least if len(endpoint_state.shares) == 1 else max(1, ceil(scale.least * share - 1e-9))
    busy_requests = load.inflight + load.held if load else 0
    wanted_count = ceil(busy_requests / scale.concurrency)
    own_replicas = [
        replica for replica in endpoint_state.replicas if replica.revision == revision and replica.state != DRAINING
    ]
    if load and scale.latency_ms and load.p95_us > scale.latency_ms * 1000 and busy_requests:
        # One more at a time: what is starting has not helped yet.
        wanted_count = max(wanted_count, len(own_replicas) + all(replica.state == READY for replica in own_replicas))
    # Gateways tell of requests a second later: one that was just woken is not idle.
    last_asked_at = max(
        (load.last_at if load else 0.0, endpoint_state.woken, *(replica.since for replica in own_replicas))
    )
    is_awake = last_asked_at > 0 and endpoint_state.now - last_asked_at < scale.idle_s
    return min(max(wanted_count, min_replicas, int(is_awake)), scale.most)


def _compute_targets(endpoint_state: EndpointState) -> tuple[dict[int, int], dict[int, DemandHistory]]:
    targets: dict[int, int] = {}
    demand_history: dict[int, DemandHistory] = {}
    for revision in endpoint_state.shares:
        wanted_count = count_wanted(endpoint_state, revision)
        # None at all is wanted only after a time of its own without requests.
        demand_history[revision] = _remember_demand(
            endpoint_state.past.get(revision, ()) if wanted_count else (), endpoint_state.now, wanted_count
        )
        targets[revision] = min(demand_history[revision][0][1], endpoint_state.scale.most)
    if endpoint_state.wanted != endpoint_state.current or endpoint_state.wanted not in targets:
        # A revision shows that it works before it gets a request, also where nobody asks just now.
        targets[endpoint_state.wanted] = max(
            1, targets.get(endpoint_state.current, 0), targets.get(endpoint_state.wanted, 0)
        )
    keeps_previous = (
        endpoint_state.before
        and endpoint_state.before not in targets
        and endpoint_state.now < endpoint_state.switched + endpoint_state.scale.keep_s
    )
    if keeps_previous:
        kept_count = sum(
            replica.revision == endpoint_state.before and replica.state == READY for replica in endpoint_state.replicas
        )
        targets[endpoint_state.before] = min(
            kept_count, max(1, endpoint_state.scale.least, targets.get(endpoint_state.current, 0))
        )
    return targets, demand_history


def _remember_demand(demand_history: DemandHistory, now: float, wanted_count: int) -> DemandHistory:
    """Only what could still be the most of the last minute."""
    recent = [
        (demanded_at, count)
        for demanded_at, count in demand_history
        if now - demanded_at < SCALE_DOWN_WINDOW_S and count > wanted_count and demanded_at <= now
    ]
    return (*recent, (now, wanted_count))


def _choose_switch(endpoint_state: EndpointState, targets: Mapping[int, int]) -> int:
    if endpoint_state.wanted == endpoint_state.current:
        return 0
    own_replicas = [replica for replica in endpoint_state.replicas if replica.revision == endpoint_state.wanted]
    ready_replicas = [replica for replica in own_replicas if replica.state == READY]
    if not ready_replicas:
        return 0
    starting_since = [replica.since for replica in own_replicas if replica.state == STARTING]
    is_stuck = bool(starting_since) and endpoint_state.now - min(starting_since) > SWITCH_TIMEOUT_S
    has_enough = len(ready_replicas) >= targets.get(endpoint_state.wanted, 1) or not endpoint_state.current
    return endpoint_state.wanted if has_enough or is_stuck else 0


def _sort_dispensable(replicas: list[ReplicaState]) -> list[ReplicaState]:
    """Those to end first: what does not answer yet, and the youngest."""
    return sorted(replicas, key=lambda replica: (replica.state == READY, -replica.since, replica.name))
