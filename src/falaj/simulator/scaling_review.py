"""How many nodes of each kind to have: looked at again and again, with what is remembered from the last look.

More are bought as soon as work needs them, a purchase of one kind at most every `gap_s`. Fewer: a node that was idle
long enough, is old enough and that no turn needs soon is closed at one look, and given back at the next if nothing
slipped in between. So what is bought stays at least `keep_s`, and demand that comes and goes within that changes
nothing.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from falaj.schedule.model import Node, SchedulerSnapshot
from falaj.schedule.scheduler import Scheduler
from falaj.simulator.node_kinds import NodeKind, ScalingOptions
from falaj.simulator.node_purchases import PurchasePlan, PurchasePlanner, list_late_jobs, settle_scheduler

BOOT_PATIENCE = 3
"""A node that did not come after so many times its boot time does not come."""
RETRY_REST_S, MAX_REST_S = 120, 3600
"""A kind that did not deliver is left alone so long, twice as long each time."""
RETURNED_GRACE_S = 1800
"""A node that was given back and is there all the same after so long is one of ours again."""


@dataclass(frozen=True, slots=True)
class NodeKindState:
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
class ScalingDecision:
    """What a look decided."""

    standings: Mapping[str, NodeKindState]
    close: tuple[str, ...] = ()
    """Nodes to let nothing new start on."""
    open: tuple[str, ...] = ()
    """Nodes that are used again, or gone: no longer closed by us."""
    basket: PurchasePlan = field(default_factory=PurchasePlan)
    notes: Mapping[str, str] = field(default_factory=dict)
    """What is worth saying of a kind."""
    waits: Mapping[str, str] = field(default_factory=dict)
    """What is worth saying of a job that waits."""


class FleetReview:
    """One look at the fleet."""

    def __init__(self, facts: SchedulerSnapshot, kinds: Iterable[NodeKind], options: ScalingOptions) -> None:
        self._facts, self._options, self._now = facts, options, facts.now
        self._kinds = {kind.name: kind for kind in kinds}
        self._present_nodes: dict[str, dict[str, Node]] = {name: {} for name in self._kinds}
        for node in facts.nodes:
            self._present_nodes.get(get_node_kind_name(node), {})[node.name] = node
        self._busy_nodes = {spot.node for job in facts.jobs for spot in job.spots}
        self._notes: dict[str, str] = {}
        self._reopened_nodes: list[str] = []

    def review(self, previous: Mapping[str, NodeKindState]) -> ScalingDecision:
        """What to do, and what to remember."""
        state_by_kind = {name: self._recount_nodes(name, previous.get(name, NodeKindState())) for name in self._kinds}
        coming_counts = {name: self._count_coming(name, state_by_kind[name]) for name in self._kinds}
        nodes = [node for name, count in coming_counts.items() for node in self._kinds[name].imagine(count)]
        booting_nodes = {
            node.name: node
            for name, kind_state in state_by_kind.items()
            for node in self._list_booting(name, kind_state)
        }
        present_nodes = tuple(booting_nodes.get(node.name, node) for node in self._facts.nodes)
        scheduler = settle_scheduler(replace(self._facts, nodes=present_nodes), nodes)
        self._busy_nodes |= {spot.node for job in scheduler.running.values() for spot in job.spots}
        for name in self._kinds:
            state_by_kind[name] = self._give_back_nodes(state_by_kind[name])
        facts = scheduler.snapshot(self._now)
        purchases = self._buy_nodes(
            facts, state_by_kind, list_late_jobs(scheduler, self._kinds.values(), self._options)
        )
        for name, count in purchases.counts.items():
            target_count = state_by_kind[name].wanted + count
            state_by_kind[name] = replace(state_by_kind[name], wanted=target_count, bought=self._now)
        closing_nodes = self._list_spare_nodes(scheduler, state_by_kind, purchases)
        for node in closing_nodes:
            name = get_node_kind_name(self._find_node(node))
            state_by_kind[name] = replace(state_by_kind[name], closed={**state_by_kind[name].closed, node: self._now})
        kind_by_node = {node.name: get_node_kind_name(node) for node in (*nodes, *booting_nodes.values())}
        waits = _explain_arrivals(scheduler, kind_by_node) | dict(purchases.refused)
        return ScalingDecision(state_by_kind, closing_nodes, tuple(self._reopened_nodes), purchases, self._notes, waits)

    def _recount_nodes(self, name: str, previous: NodeKindState) -> NodeKindState:
        """Who came, who is lost, who is idle; how many can still be expected."""
        present_nodes, now, kind = self._present_nodes[name], self._now, self._kinds[name]
        returned_nodes = {
            node: since
            for node, since in previous.gone.items()
            if node in present_nodes and now - since < RETURNED_GRACE_S
        }
        closed = {
            node: since
            for node, since in previous.closed.items()
            if node in present_nodes and node not in self._busy_nodes
        }
        self._reopened_nodes += [
            node for node in (*previous.closed, *previous.gone) if node not in closed and node not in returned_nodes
        ]
        # What a job still runs on is not lost, though its cluster forgot to name it.
        own_nodes = {node for node in present_nodes if node not in returned_nodes} | (
            previous.born.keys() & self._busy_nodes
        )
        lost_count = sum(node not in own_nodes and node not in previous.gone for node in previous.born)
        born = {node: previous.born.get(node, now) for node in sorted(own_nodes)}
        idle = {node: previous.idle.get(node, now) for node in sorted(own_nodes - self._busy_nodes)}
        min_count = min(kind.least, kind.most)
        target_count = max(previous.wanted - lost_count, len(own_nodes), min_count)
        bought = now if min_count > max(previous.wanted - lost_count, len(own_nodes)) else previous.bought
        failures, rest_until = (0, 0) if own_nodes - set(previous.born) else (previous.failures, previous.rests)
        if target_count > len(own_nodes) and bought and now - bought > BOOT_PATIENCE * kind.boot_s:
            failures += 1
            rest_until = now + min(RETRY_REST_S << min(failures, 10), MAX_REST_S)
            self._notes[name] = f"{target_count - len(own_nodes)} were asked for and did not come"
            target_count = len(own_nodes)
        return NodeKindState(target_count, bought, failures, rest_until, born, idle, closed, returned_nodes)

    def _count_coming(self, name: str, kind_state: NodeKindState) -> int:
        return max(0, kind_state.wanted - len(kind_state.born))

    def _list_booting(self, name: str, kind_state: NodeKindState) -> list[Node]:
        """Nodes that came only just and are not ready, or show no devices yet: as they will be."""
        kind = self._kinds[name]
        return [
            replace(kind.node, name=node.name, open=True)
            for node in self._present_nodes[name].values()
            if (not node.open or len(node.devices) < len(kind.node.devices))
            and node.name not in kind_state.closed
            and self._now - kind_state.born.get(node.name, 0) <= BOOT_PATIENCE * kind.boot_s
        ]

    def _give_back_nodes(self, kind_state: NodeKindState) -> NodeKindState:
        """Closed at an earlier look, and still empty."""
        leaving_nodes = tuple(
            node for node, since in kind_state.closed.items() if since < self._now and node not in self._busy_nodes
        )
        still_closed = {name: at for name, at in kind_state.closed.items() if name not in leaving_nodes}
        born = {name: at for name, at in kind_state.born.items() if name not in leaving_nodes}
        returned_nodes = {**kind_state.gone, **dict.fromkeys(leaving_nodes, self._now)}
        return replace(
            kind_state,
            wanted=kind_state.wanted - len(leaving_nodes),
            closed=still_closed,
            born=born,
            gone=returned_nodes,
        )

    def _buy_nodes(
        self, facts: SchedulerSnapshot, state_by_kind: Mapping[str, NodeKindState], job_ids: list[str]
    ) -> PurchasePlan:
        if not job_ids:
            return PurchasePlan()
        free_counts: dict[str, int] = {}
        cooling = []
        cost = 0
        for name, kind in self._kinds.items():
            kind_state = state_by_kind[name]
            held_count = kind_state.wanted + len(kind_state.gone)
            cost += held_count * kind.node.price
            free_counts[name] = max(0, kind.most - held_count) if self._now >= kind_state.rests else 0
            if kind_state.bought and self._now - kind_state.bought < self._options.gap_s:
                cooling.append(name)
        money = max(0, self._options.hourly - cost) if self._options.hourly else None
        return PurchasePlanner(facts, self._kinds.values(), free_counts, money, cooling).buy(job_ids)

    def _list_spare_nodes(
        self, scheduler: Scheduler, state_by_kind: Mapping[str, NodeKindState], purchases: PurchasePlan
    ) -> tuple[str, ...]:
        """Nodes that nothing needs: idle long enough, old enough, and in nobody's turn."""
        options, now = self._options, self._now
        spare_nodes: list[str] = []
        for name, kind_state in state_by_kind.items():
            needed_until = now + options.idle_s + self._kinds[name].boot_s
            needed_nodes = {
                spot.node
                for reservation in scheduler.turns.of.values()
                if reservation.at <= needed_until
                for spot in reservation.spots
            }
            needed_nodes |= self._busy_nodes | kind_state.closed.keys()
            removable = [
                node
                for node, since in kind_state.idle.items()
                if now - since >= options.idle_s
                and now - kind_state.born.get(node, now) >= options.keep_s
                and node not in needed_nodes
            ]
            removable_count = (
                kind_state.wanted - len(kind_state.closed) - min(self._kinds[name].least, self._kinds[name].most)
            )
            if not purchases.counts.get(name):
                spare_nodes += sorted(removable, key=lambda node: (kind_state.idle[node], node))[
                    : max(0, removable_count)
                ]
        return tuple(spare_nodes)

    def _find_node(self, name: str) -> Node:
        return next(nodes[name] for nodes in self._present_nodes.values() if name in nodes)


def _explain_arrivals(scheduler: Scheduler, coming_kinds: Mapping[str, str]) -> dict[str, str]:
    """Who starts on nodes that come."""
    kinds_by_job = {
        job.id: [coming_kinds[spot.node] for spot in job.spots if spot.node in coming_kinds]
        for job in scheduler.running.values()
    }
    return {
        job: f"{kinds[0]} was asked for, and it starts when that comes" for job, kinds in kinds_by_job.items() if kinds
    }


def get_node_kind_name(node: Node) -> str:
    """The kind a node says it is of."""
    return f"{node.cluster}/{node.labels.get('template', '')}"
