"""From records to what the scheduler knows: nodes, queues, jobs, and how long such jobs ran before."""

from collections.abc import Iterable, Mapping
from typing import Any

from falaj.core.executor import NodeInfo
from falaj.fleet.budgets import read_spent
from falaj.fleet.clusters import ClusterService, is_open_to
from falaj.fleet.fleet_use import iter_live_jobs, list_tenants, sum_amounts
from falaj.fleet.queues import list_rules_to_root, read_rules, to_scheduler_queues
from falaj.fleet.records import Cluster, QueueRule
from falaj.jobs.records import ON_HOLD, SUCCEEDED, JobBody, JobSpec
from falaj.jobs.spec import to_job_shape
from falaj.jobs.state_machine import parse_spots
from falaj.jobs.submitter_standing import StandingReader
from falaj.schedule.model import (
    MILLI_PER_UNIT,
    NEVER,
    Job,
    JobShape,
    Node,
    Queue,
    RuntimeQuantiles,
    SchedulerSnapshot,
    SlotPlacement,
    SlotRequest,
)
from falaj.schedule.runtime_forecast import compute_quantiles
from falaj.schedule.runtime_forecast import to_shape_key as shape_key
from falaj.simulator.node_kinds import NodeKind
from falaj.store.codec import from_plain, to_json
from falaj.store.ledger import Ledger, LedgerReader
from falaj.store.records import LedgerRecord

_SPECS: dict[str, tuple[Mapping[str, Any], JobSpec]] = {}
_EQUAL_SPECS: dict[bytes, JobSpec] = {}
"""Specs that say the same, as one: of a thousand jobs that differ in nothing but their names one is read."""
_SHAPES: dict[tuple[Any, ...], tuple[JobSpec, JobShape]] = {}
_EQUAL_SHAPES: dict[JobShape, JobShape] = {}
"""Equal shapes as one, which the scheduler knows by sight."""
_MAX_CACHED = 50_000
"""Of so many jobs we know what their specs say: it stays the same while the rest of a record changes."""
MAX_PAST_JOBS = 500
"""So many of a tenant's last jobs tell how long the next will run."""


def build_snapshot(ledger: Ledger, clusters: ClusterService, tx: LedgerReader, now: float) -> SchedulerSnapshot:
    """Everything a decision rests on, from the ledger alone."""
    known_clusters, standings = clusters.known(tx), StandingReader(tx)
    records = list(iter_live_jobs(ledger, tx))
    jobs = [to_scheduler_job(record, known_clusters) for record in records if is_startable(record, standings)]
    silent_clusters = clusters.troubles(tx)
    nodes = tuple(
        to_scheduler_node(cluster, facts, is_answering=cluster.name not in silent_clusters)
        for cluster, facts, _ in clusters.node_records(tx)
    )
    return SchedulerSnapshot(
        int(now),
        nodes,
        read_queues(tx, [live_record.body for live_record in records], now),
        tuple(jobs),
        read_runtime_quantiles(ledger, tx),
    )


def is_startable(record: LedgerRecord, standings: StandingReader) -> bool:
    """False for a job without an attempt that is held, or whose submitter lost the standing: it waits for no room."""
    body = record.body
    return bool(body["attempt"]) or (body["state"] != ON_HOLD and not standings.reason(record))


def read_queues(tx: LedgerReader, live: Iterable[JobBody], now: float) -> tuple[Queue, ...]:
    """The tree with what is spent and held."""
    rules = {rule.name: rule for rule in read_rules(tx)}
    return to_scheduler_queues(rules.values(), read_spent(tx), sum_reserved(rules, live), now)


def sum_reserved(rules: Mapping[str, QueueRule], live: Iterable[JobBody]) -> dict[str, dict[str, int]]:
    """What live jobs were charged, by queue, with all above it."""
    reserved: dict[str, dict[str, int]] = {}
    for body in live:
        charge = body["use"]["charge"]
        for rule in list_rules_to_root(body["queue"], rules) if charge else ():
            reserved[rule.name] = sum_amounts(reserved.get(rule.name, {}), charge)
    return reserved


def to_scheduler_node(cluster: Cluster, facts: NodeInfo, *, is_answering: bool = True) -> Node:
    """A node with what others leave of it."""
    labels = facts.labels
    is_open = facts.ready and is_answering and cluster.state == "open" and facts.name not in cluster.drained
    return Node(
        name=f"{cluster.name}/{facts.name}",
        cluster=cluster.name,
        zone=cluster.zone,
        amounts={name: max(0, value - facts.taken.get(name, 0)) for name, value in facts.amounts.items()},
        devices=tuple(device for device in facts.devices if device.index not in facts.taken_devices),
        labels=labels,
        leaving=int(facts.leaving) if facts.leaving else NEVER,
        open=is_open,
        **parse_node_labels(labels),
    )


def parse_node_labels(labels: Mapping[str, str]) -> dict[str, Any]:
    """What a node's labels say of its price and of how long it stays."""
    return {
        "spot": labels.get("spot", "").lower() in ("1", "true", "yes"),
        "price": _parse_whole_number(labels.get("price", "")),
        "hazard": _parse_whole_number(labels.get("hazard", "")),
    }


def to_node_kind(cluster: Cluster, facts: NodeInfo) -> NodeKind:
    """A kind of node that a cluster can make."""
    options = {name: int(facts.labels[name]) for name in ("least", "boot_s", "notice_s") if name in facts.labels}
    # What was bought on a cluster that is closed now goes as it falls idle.
    max_count = int(facts.labels["most"]) if cluster.state == "open" else 0
    return NodeKind(f"{cluster.name}/{facts.name}", to_scheduler_node(cluster, facts), max_count, **options)


def to_scheduler_job(record: LedgerRecord, clusters: Mapping[str, Cluster], shape: JobShape | None = None) -> Job:
    """A job as the scheduler sees it; `shape` where it is known."""
    body, attempt = record.body, record.body["attempt"]
    spec = read_spec(record)
    stop = (attempt or {}).get("stop") or {}
    band = attempt["band"] if attempt else body["band"]
    return Job(
        id=body["id"],
        queue=body["queue"],
        shape=shape or read_shape(record, clusters, band),
        submitted=int(body["submitted"]),
        template=body["template"],
        deadline=int(spec.deadline) if spec.deadline else NEVER,
        limit_s=spec.limit_s,
        steps=body["steps"] or spec.steps,
        done=body["step"],
        step_us=body["step_us"],
        seen=int(body["step_at"]),
        served=body["served"] // MILLI_PER_UNIT,
        ran_s=body["ran_s"],
        evictions=body["evictions"],
        not_before=int(body["not_before"]),
        spots=list_held_spots(attempt) if attempt else (),
        started=int(attempt["started"] or attempt["admitted"]) if attempt else 0,
        saved=int(body["saved"]),
        save_s=body["save_s"] or spec.save_s,
        restart_s=spec.restart_s,
        resumes=spec.resumes or bool(body["save_s"]),
        resized=int(attempt["admitted"]) if attempt else 0,
        stopping=int(stop.get("since", 0)),
        stopped_for=stop.get("for", ""),
        charged=tuple(sorted(body["use"]["charge"].items())),
    )


def list_held_spots(attempt: Mapping[str, Any]) -> tuple[SlotPlacement, ...]:
    """The places an attempt holds: those it runs in, and those it will go on in once it is resized."""
    later_rows = [*(attempt["stop"] or {}).get("spots", ())]
    for row in attempt["spots"]:
        if row in later_rows:  # slots of one node without devices of their own look alike: each counts
            later_rows.remove(row)
    return parse_spots([*attempt["spots"], *later_rows])


def read_shape(record: LedgerRecord, clusters: Mapping[str, Cluster], band: int) -> JobShape:
    """The shape of a job: its spec, where the law and its cluster's owners let it run."""
    body, spec = record.body, read_spec(record)
    names = list_open_clusters(record, clusters)
    zones = tuple(body["zones"]) if body["zones"] is not None else None
    if body["avoid"] in names and {*_in_lawful_zones(names, record, clusters)} - {body["avoid"]}:
        names.remove(body["avoid"])  # it was refused there: elsewhere first, where there is an elsewhere
    # Naming all of them would make a shape of its own for every change of the list; naming none means any.
    allowed = () if len(names) == len(clusters) else tuple(names) or ("-",)
    cache_key = id(spec), band, zones, allowed
    cached = _SHAPES.get(cache_key)
    if cached is not None and cached[0] is spec:
        return cached[1]
    if len(_SHAPES) >= _MAX_CACHED:
        _SHAPES.clear()
        _EQUAL_SHAPES.clear()
    shape = to_job_shape(spec, band, zones, allowed)
    shape = _EQUAL_SHAPES.setdefault(shape, shape)
    _SHAPES[cache_key] = spec, shape
    return shape


def list_open_clusters(record: LedgerRecord, clusters: Mapping[str, Cluster]) -> list[str]:
    """The clusters open to a job's tenant, of those the one that it names, but none that refused its submitter."""
    tenant, named, refused_by = record.key.tenant, read_spec(record).cluster, record.body.get("refused_by", ())
    return sorted(
        name
        for name, cluster in clusters.items()
        if is_open_to(cluster, tenant) and named in ("", name) and name not in refused_by
    )


def list_candidates(record: LedgerRecord, clusters: Mapping[str, Cluster]) -> list[str]:
    """Of the open clusters those in zones where the law lets the job run."""
    return _in_lawful_zones(list_open_clusters(record, clusters), record, clusters)


def _in_lawful_zones(names: Iterable[str], record: LedgerRecord, clusters: Mapping[str, Cluster]) -> list[str]:
    zones = record.body["zones"]
    return [name for name in names if zones is None or clusters[name].zone in zones]


def read_spec(record: LedgerRecord) -> JobSpec:
    """The spec a record holds, read once while it stays the same."""
    job, plain = record.body["id"], record.body["spec"]
    cached = _SPECS.get(job)
    if cached is not None and (cached[0] is plain or cached[0] == plain):
        return cached[1]
    if len(_SPECS) >= _MAX_CACHED:
        _SPECS.clear()
        _EQUAL_SPECS.clear()
    spec_json = to_json(plain)
    spec = _EQUAL_SPECS.get(spec_json)
    if spec is None:
        spec = _EQUAL_SPECS[spec_json] = from_plain(JobSpec, plain)
    _SPECS[job] = (plain, spec)
    return spec


def sum_node_use(
    shape: JobShape, spots: Iterable[SlotPlacement], nodes: Mapping[str, Node]
) -> dict[str, dict[str, int]]:
    """What places hold, by node and quota name."""
    use_by_node: dict[str, dict[str, int]] = {}
    for spot in spots:
        request = shape.roles[spot.role].ask
        use_by_node[spot.node] = sum_amounts(
            use_by_node.get(spot.node, {}), dict(request.amounts), _count_gpus(request, spot, nodes.get(spot.node))
        )
    return use_by_node


def _count_gpus(request: SlotRequest, spot: SlotPlacement, node: Node | None) -> dict[str, int]:
    if not spot.devices:
        return {}
    models = {device.index: device.model for device in node.devices} if node else {}
    total: dict[str, int] = {"gpu": spot.milli * len(spot.devices)}
    for index in spot.devices:
        if index in models:
            total = sum_amounts(total, {f"gpu:{models[index]}": spot.milli})
    return total


def read_runtime_quantiles(ledger: Ledger, tx: LedgerReader) -> tuple[RuntimeQuantiles, ...]:
    """Quantiles of how long jobs of one template and shape ran, from each tenant's last ones."""
    times: dict[tuple[str, str], list[int]] = {}
    steps: dict[tuple[str, str], int] = {}
    for tenant in list_tenants(ledger):
        for record in tx.find(
            "job", tenant=tenant, terms={"state": SUCCEEDED}, newest_first=True, limit=MAX_PAST_JOBS
        ).records:
            template_key = (record.body["template"], shape_key(to_job_shape(read_spec(record), record.body["band"])))
            times.setdefault(template_key, []).append(record.body["ran_s"])
            steps.setdefault(template_key, record.body["step_us"])
    return tuple(
        compute_quantiles(template, key, times[template, key], steps[template, key]) for template, key in sorted(times)
    )


def _parse_whole_number(text: str) -> int:
    return int(text) if text.isdigit() else 0
