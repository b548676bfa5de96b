"""How many nodes of each kind to have: looked at again and again, with what is remembered from the last look.

More are bought as soon as work needs them, a purchase of one kind at most every `gap_s`. Fewer: a node that was idle
long enough, is old enough and that no turn needs soon is closed at one look, and given back at the next if nothing
slipped in between. So what is bought stays at least `keep_s`, and demand that comes and goes within that changes
nothing.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from falaj.schedule.decide import Scheduler
from falaj.schedule.model import Node, Snapshot
from falaj.simulator.kinds import NodeKind, ScaleKnobs
from falaj.simulator.scale import Basket, Shop, late, settled

PATIENCE = 3
"""A node that did not come after so many times its boot time does not come."""
REST_S, LONGEST_REST_S = 120, 3600
"""A kind that did not deliver is left alone so long, twice as long each time."""
GONE_S = 1800
"""A node that was given back and is there all the same after so long is one of ours again."""


@dataclass(frozen=True, slots=True)
class Standing:
    """What is remembered of one kind."""

    wanted: int = 0
    """How many were asked for; those that are closed still count."""
    bought: int = 0
    """When more were last asked for."""
    failures: int = 0
    rests: int = 0
    """Until then none is asked for: it did not deliver."""
    born: Mapping[str, int] = field(default_factory=dict)
    """The nodes that came, and when."""
    idle: Mapping[str, int] = field(default_factory=dict)
    """Those on which nothing is, and since when."""
    closed: Mapping[str, int] = field(default_factory=dict)
    """Those that take nothing new any more."""
    gone: Mapping[str, int] = field(default_factory=dict)
    """Those given back that are still seen, and since when."""


@dataclass(frozen=True, slots=True)
class Review:
    """What a look decided."""

    standings: Mapping[str, Standing]
    close: tuple[str, ...] = ()
    """Nodes to let nothing new start on."""
    open: tuple[str, ...] = ()
    """Nodes that are used again, or gone: no longer closed by us."""
    basket: Basket = field(default_factory=Basket)
    notes: Mapping[str, str] = field(default_factory=dict)
    """What is worth saying of a kind."""
    waits: Mapping[str, str] = field(default_factory=dict)
    """What is worth saying of a job that waits."""


class Look:
    """One look at the fleet."""

    def __init__(self, facts: Snapshot, kinds: Iterable[NodeKind], knobs: ScaleKnobs) -> None:
        self._facts, self._knobs, self._now = facts, knobs, facts.now
        self._kinds = {kind.name: kind for kind in kinds}
        self._there: dict[str, dict[str, Node]] = {name: {} for name in self._kinds}
        for node in facts.nodes:
            self._there.get(kind_of(node), {})[node.name] = node
        self._busy = {spot.node for job in facts.jobs for spot in job.spots}
        self._notes: dict[str, str] = {}
        self._open: list[str] = []

    def review(self, before: Mapping[str, Standing]) -> Review:
        """What to do, and what to remember."""
        standing = {name: self._recount(name, before.get(name, Standing())) for name in self._kinds}
        coming = {name: self._coming(name, standing[name]) for name in self._kinds}
        nodes = [node for name, count in coming.items() for node in self._kinds[name].imagine(count)]
        young = {node.name: node for name, mine in standing.items() for node in self._booting(name, mine)}
        there = tuple(young.get(node.name, node) for node in self._facts.nodes)
        board = settled(replace(self._facts, nodes=there), nodes)
        self._busy |= {spot.node for job in board.running.values() for spot in job.spots}
        for name in self._kinds:
            standing[name] = self._give_back(standing[name])
        facts = board.snapshot(self._now)
        basket = self._buy(facts, standing, late(board, self._kinds.values(), self._knobs))
        for name, count in basket.counts.items():
            wanted = standing[name].wanted + count
            standing[name] = replace(standing[name], wanted=wanted, bought=self._now)
        close = self._spare(board, standing, basket)
        for node in close:
            name = kind_of(self._node(node))
            standing[name] = replace(standing[name], closed={**standing[name].closed, node: self._now})
        new = {node.name: kind_of(node) for node in (*nodes, *young.values())}
        waits = _arriving(board, new) | dict(basket.refused)
        return Review(standing, close, tuple(self._open), basket, self._notes, waits)

    def _recount(self, name: str, old: Standing) -> Standing:
        """Who came, who is lost, who is idle; how many can still be expected."""
        there, now, kind = self._there[name], self._now, self._kinds[name]
        gone = {node: since for node, since in old.gone.items() if node in there and now - since < GONE_S}
        closed = {node: since for node, since in old.closed.items() if node in there and node not in self._busy}
        self._open += [node for node in (*old.closed, *old.gone) if node not in closed and node not in gone]
        # What a job still runs on is not lost, though its cluster forgot to name it.
        mine = {node for node in there if node not in gone} | (old.born.keys() & self._busy)
        lost = sum(node not in mine and node not in old.gone for node in old.born)
        born = {node: old.born.get(node, now) for node in sorted(mine)}
        idle = {node: old.idle.get(node, now) for node in sorted(mine - self._busy)}
        least = min(kind.least, kind.most)
        wanted = max(old.wanted - lost, len(mine), least)
        bought = now if least > max(old.wanted - lost, len(mine)) else old.bought
        failures, rests = (0, 0) if mine - set(old.born) else (old.failures, old.rests)
        if wanted > len(mine) and bought and now - bought > PATIENCE * kind.boot_s:
            failures += 1
            rests = now + min(REST_S << min(failures, 10), LONGEST_REST_S)
            self._notes[name] = f"{wanted - len(mine)} were asked for and did not come"
            wanted = len(mine)
        return Standing(wanted, bought, failures, rests, born, idle, closed, gone)

    def _coming(self, name: str, standing: Standing) -> int:
        return max(0, standing.wanted - len(standing.born))

    def _booting(self, name: str, standing: Standing) -> list[Node]:
        """Nodes that came only just and are not ready, or show no devices yet: as they will be."""
        kind = self._kinds[name]
        return [
            replace(kind.node, name=node.name, open=True)
            for node in self._there[name].values()
            if (not node.open or len(node.devices) < len(kind.node.devices))
            and node.name not in standing.closed
            and self._now - standing.born.get(node.name, 0) <= PATIENCE * kind.boot_s
        ]

    def _give_back(self, standing: Standing) -> Standing:
        """Closed at an earlier look, and still empty."""
        going = tuple(node for node, since in standing.closed.items() if since < self._now and node not in self._busy)
        left = {name: at for name, at in standing.closed.items() if name not in going}
        born = {name: at for name, at in standing.born.items() if name not in going}
        gone = {**standing.gone, **dict.fromkeys(going, self._now)}
        return replace(standing, wanted=standing.wanted - len(going), closed=left, born=born, gone=gone)

    def _buy(self, facts: Snapshot, standing: Mapping[str, Standing], names: list[str]) -> Basket:
        if not names:
            return Basket()
        room: dict[str, int] = {}
        cooling = []
        cost = 0
        for name, kind in self._kinds.items():
            mine = standing[name]
            held = mine.wanted + len(mine.gone)
            cost += held * kind.node.price
            room[name] = max(0, kind.most - held) if self._now >= mine.rests else 0
            if mine.bought and self._now - mine.bought < self._knobs.gap_s:
                cooling.append(name)
        money = max(0, self._knobs.hourly - cost) if self._knobs.hourly else None
        return Shop(facts, self._kinds.values(), room, money, cooling).buy(names)

    def _spare(self, board: Scheduler, standing: Mapping[str, Standing], basket: Basket) -> tuple[str, ...]:
        """Nodes that nothing needs: idle long enough, old enough, and in nobody's turn."""
        knobs, now = self._knobs, self._now
        found: list[str] = []
        for name, mine in standing.items():
            soon = now + knobs.idle_s + self._kinds[name].boot_s
            needed = {spot.node for turn in board.turns.of.values() if turn.at <= soon for spot in turn.spots}
            needed |= self._busy | mine.closed.keys()
            may_go = [
                node
                for node, since in mine.idle.items()
                if now - since >= knobs.idle_s and now - mine.born.get(node, now) >= knobs.keep_s and node not in needed
            ]
            left = mine.wanted - len(mine.closed) - min(self._kinds[name].least, self._kinds[name].most)
            if not basket.counts.get(name):
                found += sorted(may_go, key=lambda node: (mine.idle[node], node))[: max(0, left)]
        return tuple(found)

    def _node(self, name: str) -> Node:
        return next(there[name] for there in self._there.values() if name in there)


def _arriving(board: Scheduler, coming: Mapping[str, str]) -> dict[str, str]:
    """Who starts on nodes that come."""
    found = {job.id: [coming[spot.node] for spot in job.spots if spot.node in coming] for job in board.running.values()}
    return {job: f"{kinds[0]} was asked for, and it starts when that comes" for job, kinds in found.items() if kinds}


def kind_of(node: Node) -> str:
    """The kind a node says it is of."""
    return f"{node.cluster}/{node.labels.get('template', '')}"
