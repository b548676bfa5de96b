"""The loop that asks which nodes to have, writes it down, and then has the clusters make it so.

What is wanted is durable before a cluster hears of it, and said again until it is so: whoever leads next goes on. A
node is given back only after it was closed to new work, at a later look, and if nothing runs on it.
"""

import logging
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from falaj.core.context import SYSTEM_TENANT, CallContext
from falaj.core.errors import FalajError, NotFound
from falaj.core.executor import NodeInfo, SupportsScaling
from falaj.fleet.clusters import ClusterService
from falaj.fleet.elastic_capacity import SCALING_KIND, WAITS_KEY
from falaj.fleet.fleet_use import iter_records, make_system_key
from falaj.fleet.records import Cluster
from falaj.jobs.scheduler_facts import build_snapshot, to_node_kind
from falaj.schedule.model import SchedulerSnapshot
from falaj.simulator.node_kinds import NodeKind, ScalingOptions
from falaj.simulator.scaling_review import FleetReview, NodeKindState, ScalingDecision
from falaj.store.codec import from_plain, to_plain
from falaj.store.ledger import Ledger
from falaj.store.reconcile_loop import LoopIteration
from falaj.store.records import LedgerRecord

log = logging.getLogger(__name__)
STEP_INTERVAL_S = 10.0
MAX_HISTORY = 50
MAX_WAIT_NOTES = 500


@dataclass(frozen=True, slots=True)
class ScalableKind:
    """A kind of node, and who makes it."""

    kind: NodeKind
    facts: NodeInfo
    cluster: Cluster
    maker: SupportsScaling


class ScalingLoop:
    """Buys nodes and gives them back."""

    name = "scaling"
    every_s = STEP_INTERVAL_S

    def __init__(self, ledger: Ledger, clusters: ClusterService) -> None:
        self._ledger, self._clusters = ledger, clusters

    def step(self, iteration: LoopIteration) -> bool:
        """One look: decide, write, act."""
        ctx, now = iteration.ctx, iteration.ctx.now()
        with self._ledger.read(ctx) as tx:
            clusters, options = self._clusters.known(tx), self._clusters.scale_knobs(tx)
        scalable_kinds = {
            listed_kind.kind.name: listed_kind
            for cluster in clusters.values()
            for listed_kind in self._list_scalable_kinds(ctx, cluster)
        }
        if not scalable_kinds:
            return False
        with self._ledger.read(ctx) as tx:
            previous = {
                record.body["kind"]: record
                for record in iter_records(tx, SCALING_KIND, SYSTEM_TENANT)
                if record.key != WAITS_KEY
            }
            facts = build_snapshot(self._ledger, self._clusters, tx, now)
        review = self._review_kinds(facts, scalable_kinds, previous, options)
        # Once it is written that a node went, no later look asks for it to be opened.
        self._mark_nodes(ctx, review.open, drained=False)
        self._write_decision(ctx, scalable_kinds, previous, review)
        self._mark_nodes(ctx, review.close, drained=True)
        # A cluster is told of all its kinds when one of them changes: some take it for the whole of what is wanted.
        due_clusters = {
            scalable_kind.cluster.name
            for name, scalable_kind in scalable_kinds.items()
            if _is_scale_due(previous.get(name), review.standings[name])
        }
        for name, scalable_kind in scalable_kinds.items():
            if scalable_kind.cluster.name in due_clusters and iteration.alive():
                self._apply_target(scalable_kind, review.standings[name])
        return False

    def _list_scalable_kinds(self, ctx: CallContext, cluster: Cluster) -> list[ScalableKind]:
        """What a cluster can make; nothing while it does not answer."""
        try:
            maker = self._clusters.spoken(ctx, cluster)
            if not isinstance(maker, SupportsScaling):
                return []
            return [ScalableKind(to_node_kind(cluster, facts), facts, cluster, maker) for facts in maker.templates()]
        except FalajError as error:
            log.warning("cluster cannot be scaled", extra={"cluster": cluster.name, "reason": str(error)})
            return []

    def _review_kinds(
        self,
        facts: SchedulerSnapshot,
        scalable_kinds: Mapping[str, ScalableKind],
        previous: Mapping[str, LedgerRecord],
        options: ScalingOptions,
    ) -> ScalingDecision:
        before = {
            name: from_plain(NodeKindState, previous[name].body["standing"])
            for name in scalable_kinds
            if name in previous
        }
        return FleetReview(facts, [scalable_kind.kind for scalable_kind in scalable_kinds.values()], options).review(
            before
        )

    # Decisions become writes.

    def _write_decision(
        self,
        ctx: CallContext,
        scalable_kinds: Mapping[str, ScalableKind],
        previous: Mapping[str, LedgerRecord],
        review: ScalingDecision,
    ) -> None:
        start_notes = {name: f"{kind} is being asked for" for name, kind in review.basket.starts.items()}
        waits = dict([*start_notes.items(), *review.waits.items()][:MAX_WAIT_NOTES])
        for name, scalable_kind in scalable_kinds.items():
            last_record = previous.get(name)
            body = _build_scaling_body(scalable_kind, last_record, review, ctx.now())
            if last_record is not None and _is_unchanged(last_record.body, body):
                continue
            previous_count, target_count = (
                (last_record.body["standing"]["wanted"] if last_record else 0),
                body["standing"]["wanted"],
            )
            with self._ledger.write(ctx) if previous_count != target_count else self._ledger.project(ctx) as tx:
                key = make_system_key(SCALING_KIND, scalable_kind.facts.name, scalable_kind.cluster.name)
                record = tx.put(key, body, rev=last_record.rev if last_record else None)
                if previous_count != target_count:
                    tx.emit(
                        "clusters.scale",
                        record.ref,
                        kind=name,
                        was=previous_count,
                        wanted=target_count,
                        why=body["why"],
                    )
        with self._ledger.project(ctx) as tx:
            last_waits = tx.key(WAITS_KEY)
            if (last_waits.body["jobs"] if last_waits else {}) != waits:
                tx.put(WAITS_KEY, {"kind": "", "jobs": waits}, rev=last_waits.rev if last_waits else None)

    def _mark_nodes(self, ctx: CallContext, nodes: tuple[str, ...], *, drained: bool) -> None:
        for node in nodes:
            with suppress(NotFound):  # it is gone
                self._clusters.mark(ctx, node, drained=drained)

    # Writes become orders.

    def _apply_target(self, scalable_kind: ScalableKind, kind_state: NodeKindState) -> None:
        """Say which are given back, then how many are wanted."""
        returned_nodes = [node.partition("/")[2] for node in kind_state.gone]
        try:
            if returned_nodes:
                scalable_kind.maker.retire(returned_nodes)
            scalable_kind.maker.scale(scalable_kind.facts.name, kind_state.wanted)
        except FalajError as error:
            log.warning("nodes were refused", extra={"kind": scalable_kind.kind.name, "reason": str(error)})


def _is_scale_due(previous: LedgerRecord | None, kind_state: NodeKindState) -> bool:
    """True while it is not as it is wanted."""
    previous_count = previous.body["standing"]["wanted"] if previous else -1
    return not previous_count == kind_state.wanted == len(kind_state.born) or bool(kind_state.gone)


def _build_scaling_body(
    scalable_kind: ScalableKind, previous: LedgerRecord | None, review: ScalingDecision, now: float
) -> dict[str, Any]:
    name = scalable_kind.kind.name
    kind_state = review.standings[name]
    previous_body: Mapping[str, Any] = previous.body if previous else {
        "history": [], "held_s": 0.0, "nodes": 0, "at": now, "since": now, "why": "nothing waits for it",
        "standing": {"wanted": 0},
    }  # fmt: skip
    previous_count, why = (
        previous_body["standing"]["wanted"],
        _describe_scaling_reason(name, review, previous_body["why"]),
    )
    new_history = (
        [{"at": now, "was": previous_count, "wanted": kind_state.wanted, "why": why}]
        if previous_count != kind_state.wanted
        else []
    )
    return {
        "kind": name, "facts": to_plain(scalable_kind.facts), "standing": to_plain(kind_state), "why": why,
        "nodes": len(kind_state.born) + len(kind_state.gone), "since": previous_body["since"], "at": now,
        "held_s": previous_body["held_s"] + previous_body["nodes"] * max(0.0, now - previous_body["at"]),
        "history": [*previous_body["history"], *new_history][-MAX_HISTORY:],
    }  # fmt: skip


def _is_unchanged(previous: Mapping[str, Any], current: Mapping[str, Any]) -> bool:
    timeless = ("held_s", "at")
    return all(previous[name] == value for name, value in current.items() if name not in timeless)


def _describe_scaling_reason(name: str, review: ScalingDecision, previous_reason: str) -> str:
    bought = review.basket.counts.get(name, 0)
    if bought:
        jobs = sum(kind == name for kind in review.basket.starts.values())
        return f"{bought} more: cheapest for {jobs} job{'s' if jobs > 1 else ''} that would wait"
    closing_nodes = [node for node in review.close if node in review.standings[name].closed]
    if closing_nodes:
        return f"{len(closing_nodes)} fewer: nothing was on them for long enough"
    refused = [why for why in review.basket.refused.values() if f" {name} " in why]
    if refused:
        return f"for {len(refused)} that wait{'s' if len(refused) == 1 else ''}: {refused[0]}"
    return review.notes.get(name, previous_reason)
