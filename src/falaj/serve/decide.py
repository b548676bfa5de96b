"""How many replicas of each revision are wanted, which start, which end, and when the traffic moves. Pure.

More at once, fewer slowly: the target is the most that was wanted within the last minute, so that load which comes and
goes starts and ends nothing.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import ceil

from falaj.serve.counts import Load
from falaj.serve.records import DRAINING, READY, STARTING, Scale

DOWN_S = 60.0
"""So long fewer must be enough before there are fewer."""
STUCK_S = 30.0
"""A switch waits so long for the last replicas; with one that is ready it then goes on."""
Past = tuple[tuple[float, int], ...]
"""What was wanted when, newest last, each less than the one before."""


@dataclass(frozen=True, slots=True)
class Seen:
    """A replica as decisions see it."""

    name: str
    revision: int
    state: str
    since: float


@dataclass(frozen=True, slots=True)
class World:
    """One endpoint, now."""

    now: float
    scale: Scale
    shares: Mapping[int, float]
    """Revision to its share of requests, copies among them."""
    current: int
    wanted: int
    before: int = 0
    switched: float = 0.0
    woken: float = 0.0
    stopped: bool = False
    replicas: tuple[Seen, ...] = ()
    loads: Mapping[int, Load] = field(default_factory=dict)
    rests: Mapping[int, float] = field(default_factory=dict)
    """Revision to when the next replica of it may be tried."""
    past: Mapping[int, Past] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Decision:
    """What to do, and what to remember of it."""

    start: Mapping[int, int] = field(default_factory=dict)
    drain: tuple[str, ...] = ()
    switch: int = 0
    """The revision that gets the traffic now; 0: as it is."""
    targets: Mapping[int, int] = field(default_factory=dict)
    past: Mapping[int, Past] = field(default_factory=dict)


def decide(world: World) -> Decision:
    """The next moves for one endpoint."""
    if world.stopped:
        return Decision(drain=tuple(one.name for one in world.replicas if one.state != DRAINING))
    targets, past = _targets(world)
    switch = _switch(world, targets)
    start: dict[int, int] = {}
    drain: list[str] = []
    for revision in sorted({*targets, *(one.revision for one in world.replicas)}):
        have = [one for one in world.replicas if one.revision == revision and one.state != DRAINING]
        lack = targets.get(revision, 0) - len(have)
        if lack > 0 and world.now >= world.rests.get(revision, 0.0):
            start[revision] = lack
        drain += [one.name for one in _dispensable(have)[: max(0, -lack)]]
    return Decision(start, tuple(drain), switch, targets, past)


def wanted_now(world: World, revision: int) -> int:
    """How many replicas of a revision that gets requests this very moment asks for."""
    scale, load = world.scale, world.loads.get(revision)
    share = world.shares.get(revision, 0.0)
    # While revisions are compared each has one: nobody learns anything of one that sleeps.
    least = scale.least if len(world.shares) == 1 else max(1, ceil(scale.least * share - 1e-9))
    busy = load.inflight + load.held if load else 0
    wanted = ceil(busy / scale.concurrency)
    mine = [one for one in world.replicas if one.revision == revision and one.state != DRAINING]
    if load and scale.latency_ms and load.p95_us > scale.latency_ms * 1000 and busy:
        # One more at a time: what is starting has not helped yet.
        wanted = max(wanted, len(mine) + all(one.state == READY for one in mine))
    # Gateways tell of requests a second later: one that was just woken is not idle.
    asked = max((load.last_at if load else 0.0, world.woken, *(one.since for one in mine)))
    awake = asked > 0 and world.now - asked < scale.idle_s
    return min(max(wanted, least, int(awake)), scale.most)


def _targets(world: World) -> tuple[dict[int, int], dict[int, Past]]:
    targets: dict[int, int] = {}
    past: dict[int, Past] = {}
    for revision in world.shares:
        now = wanted_now(world, revision)
        # None at all is wanted only after a time of its own without requests.
        past[revision] = _remembered(world.past.get(revision, ()) if now else (), world.now, now)
        targets[revision] = min(past[revision][0][1], world.scale.most)
    if world.wanted != world.current or world.wanted not in targets:
        # A revision shows that it works before it gets a request, also where nobody asks just now.
        targets[world.wanted] = max(1, targets.get(world.current, 0), targets.get(world.wanted, 0))
    keeps = world.before and world.before not in targets and world.now < world.switched + world.scale.keep_s
    if keeps:
        kept = sum(one.revision == world.before and one.state == READY for one in world.replicas)
        targets[world.before] = min(kept, max(1, world.scale.least, targets.get(world.current, 0)))
    return targets, past


def _remembered(past: Past, now: float, wanted: int) -> Past:
    """Only what could still be the most of the last minute."""
    fresh = [(at, count) for at, count in past if now - at < DOWN_S and count > wanted and at <= now]
    return (*fresh, (now, wanted))


def _switch(world: World, targets: Mapping[int, int]) -> int:
    if world.wanted == world.current:
        return 0
    mine = [one for one in world.replicas if one.revision == world.wanted]
    ready = [one for one in mine if one.state == READY]
    if not ready:
        return 0
    waits = [one.since for one in mine if one.state == STARTING]
    stuck = bool(waits) and world.now - min(waits) > STUCK_S
    enough = len(ready) >= targets.get(world.wanted, 1) or not world.current
    return world.wanted if enough or stuck else 0


def _dispensable(have: list[Seen]) -> list[Seen]:
    """Those to end first: what does not answer yet, and the youngest."""
    return sorted(have, key=lambda one: (one.state == READY, -one.since, one.name))
