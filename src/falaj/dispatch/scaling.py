"""The loop that asks which nodes to have, writes it down, and then has the clusters make it so.

What is wanted is durable before a cluster hears of it, and said again until it is so: whoever leads next goes on. A
node is given back only after it was closed to new work, at a later look, and if nothing runs on it.
"""

import logging
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from falaj.core.context import HOUSE, Context
from falaj.core.errors import FalajError, NotFound
from falaj.core.execute import CanScale, NodeFacts
from falaj.fleet.clusters import Clusters
from falaj.fleet.elastic import KIND, WAITS
from falaj.fleet.records import Cluster
from falaj.fleet.use import every, house_key
from falaj.jobs.facts import kind_of, snapshot
from falaj.schedule.model import Snapshot
from falaj.simulator.elastic import Look, Review, Standing
from falaj.simulator.kinds import NodeKind, ScaleKnobs
from falaj.store.codec import from_plain, to_plain
from falaj.store.ledger import Ledger
from falaj.store.loop import Turn
from falaj.store.records import Record

log = logging.getLogger(__name__)
EVERY_S = 10.0
REMEMBERED = 50
MOST_WAITS = 500


@dataclass(frozen=True, slots=True)
class Making:
    """A kind of node, and who makes it."""

    kind: NodeKind
    facts: NodeFacts
    cluster: Cluster
    maker: CanScale


class ScalingLoop:
    """Buys nodes and gives them back."""

    name = "scaling"
    every_s = EVERY_S

    def __init__(self, ledger: Ledger, clusters: Clusters) -> None:
        self._ledger, self._clusters = ledger, clusters

    def step(self, turn: Turn) -> bool:
        """One look: decide, write, act."""
        ctx, now = turn.ctx, turn.ctx.now()
        with self._ledger.read(ctx) as tx:
            known, knobs = self._clusters.known(tx), self._clusters.scale_knobs(tx)
        makings = {one.kind.name: one for cluster in known.values() for one in self._kinds(ctx, cluster)}
        if not makings:
            return False
        with self._ledger.read(ctx) as tx:
            old = {record.body["kind"]: record for record in every(tx, KIND, HOUSE) if record.key != WAITS}
            facts = snapshot(self._ledger, self._clusters, tx, now)
        review = self._review(facts, makings, old, knobs)
        # Once it is written that a node went, no later look asks for it to be opened.
        self._mark(ctx, review.open, drained=False)
        self._write(ctx, makings, old, review)
        self._mark(ctx, review.close, drained=True)
        # A cluster is told of all its kinds when one of them changes: some take it for the whole of what is wanted.
        due = {making.cluster.name for name, making in makings.items() if _due(old.get(name), review.standings[name])}
        for name, making in makings.items():
            if making.cluster.name in due and turn.alive():
                self._act(making, review.standings[name])
        return False

    def _kinds(self, ctx: Context, cluster: Cluster) -> list[Making]:
        """What a cluster can make; nothing while it does not answer."""
        try:
            maker = self._clusters.spoken(ctx, cluster)
            if not isinstance(maker, CanScale):
                return []
            return [Making(kind_of(cluster, facts), facts, cluster, maker) for facts in maker.templates()]
        except FalajError as error:
            log.warning("cluster cannot be scaled", extra={"cluster": cluster.name, "reason": str(error)})
            return []

    def _review(
        self, facts: Snapshot, makings: Mapping[str, Making], old: Mapping[str, Record], knobs: ScaleKnobs
    ) -> Review:
        before = {name: from_plain(Standing, old[name].body["standing"]) for name in makings if name in old}
        return Look(facts, [making.kind for making in makings.values()], knobs).review(before)

    # Decisions become writes.

    def _write(self, ctx: Context, makings: Mapping[str, Making], old: Mapping[str, Record], review: Review) -> None:
        names = {name: f"{kind} is being asked for" for name, kind in review.basket.starts.items()}
        waits = dict([*names.items(), *review.waits.items()][:MOST_WAITS])
        for name, making in makings.items():
            known = old.get(name)
            body = _body(making, known, review, ctx.now())
            if known is not None and _same(known.body, body):
                continue
            was, wanted = (known.body["standing"]["wanted"] if known else 0), body["standing"]["wanted"]
            with self._ledger.write(ctx) if was != wanted else self._ledger.project(ctx) as tx:
                key = house_key(KIND, making.facts.name, making.cluster.name)
                record = tx.put(key, body, rev=known.rev if known else None)
                if was != wanted:
                    tx.emit("clusters.scale", record.ref, kind=name, was=was, wanted=wanted, why=body["why"])
        with self._ledger.project(ctx) as tx:
            last = tx.key(WAITS)
            if (last.body["jobs"] if last else {}) != waits:
                tx.put(WAITS, {"kind": "", "jobs": waits}, rev=last.rev if last else None)

    def _mark(self, ctx: Context, nodes: tuple[str, ...], *, drained: bool) -> None:
        for node in nodes:
            with suppress(NotFound):  # it is gone
                self._clusters.mark(ctx, node, drained=drained)

    # Writes become orders.

    def _act(self, making: Making, standing: Standing) -> None:
        """Say which are given back, then how many are wanted."""
        gone = [node.partition("/")[2] for node in standing.gone]
        try:
            if gone:
                making.maker.retire(gone)
            making.maker.scale(making.facts.name, standing.wanted)
        except FalajError as error:
            log.warning("nodes were refused", extra={"kind": making.kind.name, "reason": str(error)})


def _due(old: Record | None, standing: Standing) -> bool:
    """True while it is not as it is wanted."""
    was = old.body["standing"]["wanted"] if old else -1
    return not was == standing.wanted == len(standing.born) or bool(standing.gone)


def _body(making: Making, old: Record | None, review: Review, now: float) -> dict[str, Any]:
    name = making.kind.name
    standing = review.standings[name]
    before: Mapping[str, Any] = old.body if old else {
        "history": [], "held_s": 0.0, "nodes": 0, "at": now, "since": now, "why": "nothing waits for it",
        "standing": {"wanted": 0},
    }  # fmt: skip
    was, why = before["standing"]["wanted"], _why(name, review, before["why"])
    step = [{"at": now, "was": was, "wanted": standing.wanted, "why": why}] if was != standing.wanted else []
    return {
        "kind": name, "facts": to_plain(making.facts), "standing": to_plain(standing), "why": why,
        "nodes": len(standing.born) + len(standing.gone), "since": before["since"], "at": now,
        "held_s": before["held_s"] + before["nodes"] * max(0.0, now - before["at"]),
        "history": [*before["history"], *step][-REMEMBERED:],
    }  # fmt: skip


def _same(old: Mapping[str, Any], new: Mapping[str, Any]) -> bool:
    timeless = ("held_s", "at")
    return all(old[name] == value for name, value in new.items() if name not in timeless)


def _why(name: str, review: Review, before: str) -> str:
    bought = review.basket.counts.get(name, 0)
    if bought:
        jobs = sum(kind == name for kind in review.basket.starts.values())
        return f"{bought} more: cheapest for {jobs} job{'s' if jobs > 1 else ''} that would wait"
    closing = [node for node in review.close if node in review.standings[name].closed]
    if closing:
        return f"{len(closing)} fewer: nothing was on them for long enough"
    refused = [why for why in review.basket.refused.values() if f" {name} " in why]
    if refused:
        return f"for {len(refused)} that wait{'s' if len(refused) == 1 else ''}: {refused[0]}"
    return review.notes.get(name, before)
