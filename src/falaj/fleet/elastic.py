"""Elastic capacity as the house keeps it: the kinds of nodes that clusters can make, how many are wanted, what was
bought and why; and the rules for it. A part of the desk `clusters`; the loop is in dispatch/scaling.py.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Annotated, Any, ClassVar

from falaj.core.context import HOUSE, Context
from falaj.core.data import dataclass
from falaj.core.errors import Denied, Invalid
from falaj.core.execute import NodeFacts
from falaj.core.verb import verb
from falaj.fleet.amounts import seconds
from falaj.fleet.records import Cluster
from falaj.fleet.use import every, house_key, house_of
from falaj.simulator.kinds import HOUR_S, ScaleKnobs
from falaj.store.codec import from_plain, to_plain
from falaj.store.ledger import Ledger, Reader

KIND = "scaling"
RULES = house_key("elasticity", "rules")
WAITS = house_key(KIND, "waits", "-")
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


class Elastic:
    """What is bought. The desk of clusters has these verbs, too."""

    _ledger: Ledger

    def known(self, tx: Reader) -> dict[str, Cluster]:
        """Every cluster by name."""
        raise NotImplementedError

    def _mark(self, ctx: Context, node: str, *, drained: bool) -> Cluster:
        raise NotImplementedError

    @verb()
    def scaling(self, ctx: Context) -> tuple[ScalingView, ...]:
        """Show the kinds of nodes that can be bought: how many there are and are wanted, why, what it costs and saves.

        Example:
            falaj clusters scaling
        """
        with self._ledger.read(house_of(ctx)) as tx:
            known = self.known(tx)
            found = [record.body for record in every(tx, KIND, HOUSE) if record.key.project in known]
        return tuple(_view(body, ctx.now()) for body in found)

    @verb(group="operate")
    def tune(
        self,
        ctx: Context,
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
        if ctx.tenant != HOUSE:
            raise Denied("clusters belong to the house", "ask the people who run this installation")
        if hourly is not None and not 0 <= hourly < MICRO**2:
            raise Invalid(f"{hourly} is no sum for an hour", "a number from 0")
        said = {"wait_s": wait, "idle_s": idle, "keep_s": keep, "gap_s": gap}
        changes = {name: seconds(text) for name, text in said.items() if text}
        if hourly is not None:
            changes["hourly"] = round(hourly * MICRO)
        with self._ledger.write(ctx) as tx:
            old = tx.key(RULES)
            knobs = replace(self.scale_knobs(tx), **changes)
            if changes:
                record = tx.put(RULES, to_plain(knobs), rev=old.rev if old else None)
                tx.emit("clusters.tune", record.ref, (), **{name: str(value) for name, value in changes.items()})
        return ScalingRules(knobs.hourly / MICRO, knobs.wait_s, knobs.idle_s, knobs.keep_s, knobs.gap_s)

    # For the loop, and the rooms above.

    def mark(self, ctx: Context, node: str, *, drained: bool) -> None:
        """Let nothing new start on a node that goes, or let it be."""
        self._ledger.retry(ctx, lambda _: self._mark(ctx, node, drained=drained))  # somebody may mark others

    def scale_knobs(self, tx: Reader) -> ScaleKnobs:
        """The rules as they are."""
        record = tx.key(RULES)
        found: ScaleKnobs = from_plain(ScaleKnobs, record.body) if record else ScaleKnobs()
        return found

    def imagined(
        self, tx: Reader, clusters: Mapping[str, Cluster] | None = None
    ) -> Iterator[tuple[Cluster, NodeFacts]]:
        """Every node that could be bought: what a job may ask for, though it is not there."""
        known = self.known(tx) if clusters is None else clusters
        for record in every(tx, KIND, HOUSE):
            cluster = known.get(record.key.project)
            if cluster is not None and cluster.state == "open":
                facts = from_plain(NodeFacts, record.body["facts"])
                for number in range(int(facts.labels["most"])):
                    yield cluster, replace(facts, name=f"{facts.name}~{number}")

    def bought_for(self, tx: Reader, job: str) -> str:
        """What was last decided for a job that waits; empty when there was nothing to."""
        record = tx.key(WAITS)
        return str(record.body["jobs"].get(job, "")) if record else ""


def _view(body: Mapping[str, Any], now: float) -> ScalingView:
    facts: NodeFacts = from_plain(NodeFacts, body["facts"])
    most, price = int(facts.labels["most"]), int(facts.labels.get("price", "0") or 0) / MICRO
    held_s = body["held_s"] + body["nodes"] * max(0.0, now - body["at"])
    spent = price * held_s / HOUR_S
    saved = price * most * max(0.0, now - body["since"]) / HOUR_S - spent
    return ScalingView(
        body["kind"], body["nodes"], body["standing"]["wanted"], most, price, round(spent, 2), round(saved, 2),
        body["why"], body["since"], tuple(from_plain(ScaleStep, one) for one in body["history"]),
    )  # fmt: skip
