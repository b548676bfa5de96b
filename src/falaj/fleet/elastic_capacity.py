"""Elastic capacity as the house keeps it: the kinds of nodes that clusters can make, how many are wanted, what was
bought and why; and the rules for it. A part of the desk `clusters`; the loop is in dispatch/scaling_loop.py.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Annotated, Any, ClassVar

from falaj.core.context import SYSTEM_TENANT, CallContext
from falaj.core.data import dataclass
from falaj.core.errors import Denied, Invalid
from falaj.core.executor import NodeInfo
from falaj.core.operation import operation
from falaj.fleet.amounts import parse_seconds
from falaj.fleet.fleet_use import iter_records, make_system_context, make_system_key
from falaj.fleet.records import Cluster
from falaj.simulator.node_kinds import HOUR_S, ScalingOptions
from falaj.store.codec import from_plain, to_plain
from falaj.store.ledger import Ledger, LedgerReader

SCALING_KIND = "scaling"
RULES_KEY = make_system_key("elasticity", "rules")
WAITS_KEY = make_system_key(SCALING_KIND, "waits", "-")
"""What was last said of jobs that wait; no cluster can be called so."""
MICRO = 1_000_000


@dataclass(frozen=True, slots=True)
class ScaleStep:
    """One change of how many nodes of a kind are wanted."""

    at: float
    was: int
    wanted: int
    why: str


@dataclass(frozen=True, slots=True)
class ScalingView:
    """A kind of node that can be bought: how many there are, and why."""

    COLUMNS: ClassVar[tuple[str, ...]] = ("kind", "nodes", "wanted", "most", "price", "spent", "saved", "why")

    kind: str
    """cluster/kind"""
    nodes: int
    wanted: int
    most: int
    price: float
    """Of one, an hour."""
    spent: float
    saved: float
    """Against having all of them all the time."""
    why: str
    since: float
    history: tuple[ScaleStep, ...]


@dataclass(frozen=True, slots=True)
class ScalingRules:
    """How nodes are bought and given back."""

    hourly: float
    """All of them together cost at most so much an hour; 0: no limit."""
    wait_s: int
    idle_s: int
    keep_s: int
    gap_s: int


class ScalingOperations:
    """What is bought. The desk of clusters has these verbs, too."""

    _ledger: Ledger

    def known(self, tx: LedgerReader) -> dict[str, Cluster]:
        """Every cluster by name."""
        raise NotImplementedError

    def _mark_node(self, ctx: CallContext, node: str, *, drained: bool) -> Cluster:
        raise NotImplementedError

    @operation()
    def scaling(self, ctx: CallContext) -> tuple[ScalingView, ...]:
        """Show the kinds of nodes that can be bought: how many there are and are wanted, why, what it costs and saves.

        Example:
            falaj clusters scaling
        """
        with self._ledger.read(make_system_context(ctx)) as tx:
            clusters = self.known(tx)
            bodies = [
                record.body
                for record in iter_records(tx, SCALING_KIND, SYSTEM_TENANT)
                if record.key.project in clusters
            ]
        return tuple(_to_scaling_view(body, ctx.now()) for body in bodies)

    @operation(group="operate")
    def tune(
        self,
        ctx: CallContext,
        hourly: Annotated[float | None, "all bought nodes together cost at most so much an hour; 0: no limit"] = None,
        wait: Annotated[str, "nodes are bought for jobs that would wait longer than this"] = "",
        idle: Annotated[str, "a node goes after so long with nothing on it"] = "",
        keep: Annotated[str, "and never sooner after it came"] = "",
        gap: Annotated[str, "between two purchases of one kind"] = "",
    ) -> ScalingRules:
        """Say how nodes are bought and given back; shows the rules as they are then.

        Example:
            falaj clusters tune --hourly 25 --wait 2m --idle 10m
        """
        if ctx.tenant != SYSTEM_TENANT:
            raise Denied("clusters belong to the house", "ask the people who run this installation")
        if hourly is not None and not 0 <= hourly < MICRO**2:
            raise Invalid(f"{hourly} is no sum for an hour", "a number from 0")
        span_texts = {"wait_s": wait, "idle_s": idle, "keep_s": keep, "gap_s": gap}
        changes = {name: parse_seconds(text) for name, text in span_texts.items() if text}
        if hourly is not None:
            changes["hourly"] = round(hourly * MICRO)
        with self._ledger.write(ctx) as tx:
            previous = tx.key(RULES_KEY)
            options = replace(self.scale_knobs(tx), **changes)
            if changes:
                record = tx.put(RULES_KEY, to_plain(options), rev=previous.rev if previous else None)
                tx.emit("clusters.tune", record.ref, (), **{name: str(value) for name, value in changes.items()})
        return ScalingRules(options.hourly / MICRO, options.wait_s, options.idle_s, options.keep_s, options.gap_s)

    # For the loop, and the rooms above.

    def mark(self, ctx: CallContext, node: str, *, drained: bool) -> None:
        """Let nothing new start on a node that goes, or let it be."""
        self._ledger.retry(ctx, lambda _: self._mark_node(ctx, node, drained=drained))  # somebody may mark others

    def scale_knobs(self, tx: LedgerReader) -> ScalingOptions:
        """The rules as they are."""
        record = tx.key(RULES_KEY)
        options: ScalingOptions = from_plain(ScalingOptions, record.body) if record else ScalingOptions()
        return options

    def imagined(
        self, tx: LedgerReader, clusters: Mapping[str, Cluster] | None = None
    ) -> Iterator[tuple[Cluster, NodeInfo]]:
        """Every node that could be bought: what a job may ask for, though it is not there."""
        cluster_by_name = self.known(tx) if clusters is None else clusters
        for record in iter_records(tx, SCALING_KIND, SYSTEM_TENANT):
            cluster = cluster_by_name.get(record.key.project)
            if cluster is not None and cluster.state == "open":
                facts = from_plain(NodeInfo, record.body["facts"])
                for number in range(int(facts.labels["most"])):
                    yield cluster, replace(facts, name=f"{facts.name}~{number}")

    def bought_for(self, tx: LedgerReader, job: str) -> str:
        """What was last decided for a job that waits; empty when there was nothing to."""
        record = tx.key(WAITS_KEY)
        return str(record.body["jobs"].get(job, "")) if record else ""


def _to_scaling_view(body: Mapping[str, Any], now: float) -> ScalingView:
    facts: NodeInfo = from_plain(NodeInfo, body["facts"])
    max_nodes, price = int(facts.labels["most"]), int(facts.labels.get("price", "0") or 0) / MICRO
    node_s = body["held_s"] + body["nodes"] * max(0.0, now - body["at"])
    spent = price * node_s / HOUR_S
    saved = price * max_nodes * max(0.0, now - body["since"]) / HOUR_S - spent
    return ScalingView(
        body["kind"], body["nodes"], body["standing"]["wanted"], max_nodes, price, round(spent, 2), round(saved, 2),
        body["why"], body["since"], tuple(from_plain(ScaleStep, step) for step in body["history"]),
    )  # fmt: skip
