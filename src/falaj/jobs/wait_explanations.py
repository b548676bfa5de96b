"""Why a job waits, told to who asks: names in place of ids, clusters that do not answer, and the fix as it is typed."""

from collections.abc import Mapping
from dataclasses import replace

from falaj.core.context import SYSTEM_TENANT, CallContext
from falaj.core.executor import NodeInfo
from falaj.core.ref import Ref
from falaj.fleet.clusters import ClusterService, is_open_to
from falaj.fleet.elastic_capacity import SCALING_KIND
from falaj.fleet.fleet_use import iter_records
from falaj.fleet.records import Cluster
from falaj.jobs import views
from falaj.jobs.records import ON_HOLD, SUCCEEDED, WAITING, JobBody, WaitExplanation
from falaj.jobs.scheduler_facts import build_snapshot, read_spec, to_node_kind
from falaj.jobs.state_machine import describe_lost_work, format_hold_note
from falaj.jobs.submitter_standing import StandingReader, SubmitterStanding
from falaj.schedule.amount_text import format_budget_amount
from falaj.schedule.model import NEVER, SchedulerSnapshot, WaitReason
from falaj.store.codec import from_plain
from falaj.store.ledger import Ledger, LedgerReader
from falaj.store.records import LedgerRecord

NO_NODES = "no cluster has told of its nodes yet"
_UNSEEN = "another team's job"
_MAX_NAMED = 3
"""So many jobs are named that it could wait for."""


def describe_wait(
    ctx: CallContext, ledger: Ledger, clusters: ClusterService, tx: LedgerReader, record: LedgerRecord
) -> WaitExplanation:
    """One reason, when it starts, and the smallest change that would start it now."""
    body, ref = record.body, record.ref.bare
    if (hold_explanation := _explain_hold(tx, record)) is not None:
        return hold_explanation
    if body["state"] != WAITING:
        return WaitExplanation(ref, body["state"], body["state"], views.describe_state(body))
    facts = build_snapshot(ledger, clusters, tx, ctx.now())
    makers_note = _describe_makers(clusters, tx, record)
    bought_note = clusters.bought_for(tx, body["id"]) if makers_note else ""  # what is made elsewhere is no reason
    silent_clusters = _find_silent_clusters(clusters, tx, record)
    if not facts.nodes:
        text = bought_note or _describe_silent(silent_clusters) or makers_note or NO_NODES
        start_hint = "start the platform, or look: falaj clusters list", ()
        fix, change = _find_affordable_fix(clusters, tx, facts, bought_note and body["id"]) or start_hint
        return WaitExplanation(ref, WAITING, "capacity", text, fix, views.to_commands(ref, change), dict(change))
    from falaj.schedule.why import explain_wait  # arrays: for those who ask why, and not for every list

    reason = explain_wait(facts, body["id"], _list_closed(clusters, tx))
    if reason.code == "backing-off" and body["note"]:
        # The scheduler knows that it rests, and only the job whether it was refused, was lost, or failed.
        reason = replace(reason, text=f"{body['note']}; it waits a while first")
    elif reason.code == "impossible" and (text := bought_note or ("" if silent_clusters else makers_note)):
        reason = replace(reason, code="capacity", text=text, fix="", change=())
    elif bought_note:
        reason = replace(reason, text=f"{reason.text}; {bought_note}")
    elif silent_clusters and reason.code in ("impossible", "place"):
        check_commands = tuple(f"falaj clusters check {name}" for name in silent_clusters)
        return WaitExplanation(
            ref, WAITING, "place", _describe_silent(silent_clusters), "look what it answers", check_commands
        )
    # Whoever would wait for others, or for nothing, may be helped by a node that is only too dear.
    if dict(reason.change).keys() <= {"after"} and (
        affordable_fix := _find_affordable_fix(clusters, tx, facts, bought_note and body["id"])
    ):
        reason = replace(reason, fix=affordable_fix[0], change=affordable_fix[1])
    starts = 0.0 if reason.starts >= NEVER else float(reason.starts)
    reason = _name_jobs(ctx, tx, reason)
    text = f"{reason.text}{_describe_eviction(ctx, tx, body)}"
    commands = views.to_commands(ref, reason.change)
    return WaitExplanation(ref, WAITING, reason.code, text, reason.fix, commands, dict(reason.change), starts)


def _describe_eviction(ctx: CallContext, tx: LedgerReader, body: JobBody) -> str:
    """For whom its last attempt was evicted, why, and what was lost; empty where it ended otherwise."""
    last = body["attempts"][-1] if body["attempts"] else {}
    if "cause" not in last:
        return ""
    return (
        f"; it was evicted for {find_display_name(ctx, tx, last['for'])}: {last['cause']}; {describe_lost_work(last)}"
    )


def _explain_hold(tx: LedgerReader, record: LedgerRecord) -> WaitExplanation | None:
    """Why a job may not start whatever is free: a person holds it, it waits for jobs, its submitter or its queue."""
    body, ref = record.body, record.ref.bare
    if body["state"] == ON_HOLD and (hold := body.get("hold")):
        return WaitExplanation(
            ref, ON_HOLD, ON_HOLD, format_hold_note(hold), "release it", (f"falaj jobs release {ref}",)
        )
    if body["state"] == ON_HOLD:
        return WaitExplanation(ref, ON_HOLD, ON_HOLD, _describe_dependencies(tx, record))
    standing = StandingReader(tx).find(record) if body["state"] == WAITING else SubmitterStanding()
    if standing.queue:
        fix = "the people who run this installation release the queue"
        return WaitExplanation(ref, ON_HOLD, ON_HOLD, standing.reason, fix, (f"falaj queues release {standing.queue}",))
    if standing.restricted_input:
        fix = "cancel it and submit it with a version that is not restricted: falaj catalog list shows the newest"
        return WaitExplanation(ref, ON_HOLD, ON_HOLD, standing.reason, fix, (f"falaj jobs cancel {ref}",))
    if standing.reason:
        fix = "an administrator resumes the account or tenant, or gives the role or project back"
        return WaitExplanation(ref, ON_HOLD, ON_HOLD, standing.reason, fix)
    return None


def _find_affordable_fix(
    clusters: ClusterService, tx: LedgerReader, facts: SchedulerSnapshot, job: str
) -> tuple[str, tuple[tuple[str, str], ...]] | None:
    """What bought nodes must be let cost an hour so that one is bought for a job, tried as the loop that buys would."""
    options, known_clusters = clusters.scale_knobs(tx), clusters.known(tx)
    if not job or not options.hourly:
        return None
    from falaj.simulator.scaling_review import FleetReview  # arrays: as in `why`
    from falaj.simulator.scaling_review import NodeKindState as NodeStanding

    scaling_records = [
        (candidate.key.project, candidate.body)
        for candidate in iter_records(tx, SCALING_KIND, SYSTEM_TENANT)
        if candidate.key.project in known_clusters
    ]
    kinds = [
        to_node_kind(known_clusters[cluster], from_plain(NodeInfo, body["facts"])) for cluster, body in scaling_records
    ]
    states_before = {body["kind"]: from_plain(NodeStanding, body["standing"]) for _, body in scaling_records}
    price = {kind.name: kind.node.price for kind in kinds}

    def try_hourly(hourly: int) -> tuple[str, int]:
        """The kind that it starts on then, and what all of them cost."""
        decision = FleetReview(facts, kinds, replace(options, hourly=hourly, gap_s=0)).review(states_before)
        cost = sum(
            (kind_state.wanted + len(kind_state.gone)) * price[name] for name, kind_state in decision.standings.items()
        )
        return decision.basket.starts.get(job, ""), cost

    kind, max_cost = try_hourly(0)
    hourly_candidates = (try_hourly(options.hourly)[1] + price[kind], max_cost) if kind else ()
    hourly_needed = next(
        (candidate for candidate in hourly_candidates if candidate > options.hourly and try_hourly(candidate)[0]), 0
    )
    fix_text = f"let all bought nodes together cost {format_budget_amount('money', hourly_needed)} an hour"
    return (fix_text, (("hourly", str(hourly_needed)),)) if hourly_needed else None


def _describe_dependencies(tx: LedgerReader, record: LedgerRecord) -> str:
    """Which jobs it waits for, and how they stand."""
    record_by_name = {name: tx.get(Ref.parse(name), record.key.tenant) for name in record.body["after"]}
    states = {name: dependency.body["state"] if dependency else "gone" for name, dependency in record_by_name.items()}
    return "waits for " + ", ".join(f"{name} ({state})" for name, state in states.items() if state != SUCCEEDED)


def _find_silent_clusters(clusters: ClusterService, tx: LedgerReader, record: LedgerRecord) -> dict[str, str]:
    """The clusters it could run on that do not answer, or never told of nodes, and what went wrong."""
    known_clusters = clusters.known(tx)
    reachable = [candidate.name for candidate in known_clusters.values() if _can_take(candidate, record)]
    reporting = {cluster.name for cluster, _, _ in clusters.node_records(tx, known_clusters)}
    reporting |= {cluster.name for cluster, _ in clusters.imagined(tx, known_clusters)}
    troubles = clusters.troubles(tx)
    return {name: troubles.get(name, "") for name in reachable if name in troubles or name not in reporting}


def _describe_makers(clusters: ClusterService, tx: LedgerReader, record: LedgerRecord) -> str:
    """Where nodes for it could be made, until the loop that buys them has looked at it; empty when nowhere."""
    names = sorted({cluster.name for cluster, _ in clusters.imagined(tx) if _can_take(cluster, record)})
    return f"no node is there that could hold it; {', '.join(names)} can make some, if it pays" if names else ""


def _can_take(cluster: Cluster, record: LedgerRecord) -> bool:
    return is_open_to(cluster, record.key.tenant) and read_spec(record).cluster in ("", cluster.name)


def _describe_silent(silent: Mapping[str, str]) -> str:
    return "; ".join(
        f"{name} does not answer: {trouble}" if trouble else f"{name} has told of no nodes yet"
        for name, trouble in silent.items()
    )


def _list_closed(clusters: ClusterService, tx: LedgerReader) -> dict[str, list[str]]:
    """What somebody closed and can open again, with the nodes that take work then."""
    nodes_by_closer: dict[str, list[str]] = {}
    for cluster, facts, _ in clusters.node_records(tx):
        name = f"{cluster.name}/{facts.name}"
        closer = _find_closer(cluster, facts.name)
        if facts.ready and closer:
            nodes_by_closer.setdefault(closer, []).append(name)
    return nodes_by_closer


def _find_closer(cluster: Cluster, node: str) -> str:
    """What keeps a node closed: itself, or its cluster; nothing, or both of them, is none."""
    drained, closed = node in cluster.drained, cluster.state != "open"
    return "" if drained == closed else f"{cluster.name}/{node}" if drained else cluster.name


def find_display_name(ctx: CallContext, tx: LedgerReader, job_id: str) -> str:
    """What to call a job to whoever may see it, or not."""
    records = tx.find("job", tenant=ctx.tenant, terms={"id": job_id}, scopes=ctx.cells("job"), limit=1).records
    return str(records[0].ref.bare) if records else _UNSEEN


def _name_jobs(ctx: CallContext, tx: LedgerReader, reason: WaitReason) -> WaitReason:
    """Jobs by their names, where there are few and they may be seen."""
    ids = dict(reason.change).get("after", "").split(",")
    if ids == [""]:
        return reason
    names = [name for job_id in ids[:_MAX_NAMED] if (name := find_display_name(ctx, tx, job_id)) != _UNSEEN]
    prefix = reason.fix.partition("wait until ")[0]
    if len(names) < len(ids):
        return replace(reason, fix=f"{prefix}wait until {len(ids)} {'job is' if len(ids) == 1 else 'jobs are'} over")
    waiting_text = "it ends, or cancel it" if len(names) == 1 else "they end, or cancel them"
    change = tuple((key, ",".join(names) if key == "after" else value) for key, value in reason.change)
    return replace(reason, fix=f"{prefix}wait for {' and '.join(names)} until {waiting_text}", change=change)
