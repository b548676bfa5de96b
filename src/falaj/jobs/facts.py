"""From records to what the scheduler knows: nodes, queues, jobs, and how long such jobs ran before."""

from collections.abc import Iterable, Mapping
from typing import Any

from falaj.core.execute import NodeFacts
from falaj.fleet.budgets import read_spent
from falaj.fleet.clusters import Clusters, open_to
from falaj.fleet.queues import as_queues, read_rules, way_up
from falaj.fleet.records import Cluster, QueueRule
from falaj.fleet.use import added, live_jobs, tenants
from falaj.jobs.life import spots_of
from falaj.jobs.records import HELD, SUCCEEDED, Body, JobSpec
from falaj.jobs.spec import shape_of
from falaj.jobs.standing import StandingReader
from falaj.schedule.forecast import key as shape_key
from falaj.schedule.forecast import quantiles
from falaj.schedule.model import NEVER, WHOLE, Ask, Job, Node, Past, Queue, Shape, Snapshot, Spot
from falaj.simulator.kinds import NodeKind
from falaj.store.codec import from_plain, to_json
from falaj.store.ledger import Ledger, Reader
from falaj.store.records import Record

_SPECS: dict[str, tuple[Mapping[str, Any], JobSpec]] = {}
_ALIKE: dict[bytes, JobSpec] = {}
"""Specs that say the same, as one: of a thousand jobs that differ in nothing but their names one is read."""
_SHAPES: dict[tuple[Any, ...], tuple[JobSpec, Shape]] = {}
_EQUAL: dict[Shape, Shape] = {}
"""Equal shapes as one, which the scheduler knows by sight."""
_KEPT = 50_000
"""Of so many jobs we know what their specs say: it stays the same while the rest of a record changes."""
REMEMBERED = 500
"""So many of a tenant's last jobs tell how long the next will run."""


def snapshot(ledger: Ledger, clusters: Clusters, tx: Reader, now: float) -> Snapshot:
    """Everything a decision rests on, from the ledger alone."""
    known, standings = clusters.known(tx), StandingReader(tx)
    records = list(live_jobs(ledger, tx))
    jobs = [job_of(record, known) for record in records if is_startable(record, standings)]
    silent = clusters.troubles(tx)
    nodes = tuple(
        node_of(cluster, facts, answers=cluster.name not in silent) for cluster, facts, _ in clusters.node_records(tx)
    )
    return Snapshot(int(now), nodes, queues_of(tx, [r.body for r in records], now), tuple(jobs), past_of(ledger, tx))


def is_startable(record: Record, standings: StandingReader) -> bool:
    """False for a job without an attempt that is held, or whose submitter lost the standing: it waits for no room."""
    body = record.body
    return bool(body["attempt"]) or (body["state"] != HELD and not standings.reason(record))


def queues_of(tx: Reader, live: Iterable[Body], now: float) -> tuple[Queue, ...]:
    """The tree with what is spent and held."""
    rules = {rule.name: rule for rule in read_rules(tx)}
    return as_queues(rules.values(), read_spent(tx), held_of(rules, live), now)


def held_of(rules: Mapping[str, QueueRule], live: Iterable[Body]) -> dict[str, dict[str, int]]:
    """What live jobs were charged, by queue, with all above it."""
    held: dict[str, dict[str, int]] = {}
    for body in live:
        charge = body["use"]["charge"]
        for rule in way_up(body["queue"], rules) if charge else ():
            held[rule.name] = added(held.get(rule.name, {}), charge)
    return held


def node_of(cluster: Cluster, facts: NodeFacts, *, answers: bool = True) -> Node:
    """A node with what others leave of it."""
    labels = facts.labels
    open_ = facts.ready and answers and cluster.state == "open" and facts.name not in cluster.drained
    return Node(
        name=f"{cluster.name}/{facts.name}",
        cluster=cluster.name,
        zone=cluster.zone,
        amounts={name: max(0, value - facts.taken.get(name, 0)) for name, value in facts.amounts.items()},
        devices=tuple(device for device in facts.devices if device.index not in facts.taken_devices),
        labels=labels,
        leaving=int(facts.leaving) if facts.leaving else NEVER,
        open=open_,
        **marks_of(labels),
    )


def marks_of(labels: Mapping[str, str]) -> dict[str, Any]:
    """What a node's labels say of its price and of how long it stays."""
    return {
        "spot": labels.get("spot", "").lower() in ("1", "true", "yes"),
        "price": _whole(labels.get("price", "")),
        "hazard": _whole(labels.get("hazard", "")),
    }


def kind_of(cluster: Cluster, facts: NodeFacts) -> NodeKind:
    """A kind of node that a cluster can make."""
    words = {name: int(facts.labels[name]) for name in ("least", "boot_s", "notice_s") if name in facts.labels}
    # What was bought on a cluster that is closed now goes as it falls idle.
    most = int(facts.labels["most"]) if cluster.state == "open" else 0
    return NodeKind(f"{cluster.name}/{facts.name}", node_of(cluster, facts), most, **words)


def job_of(record: Record, clusters: Mapping[str, Cluster], shape: Shape | None = None) -> Job:
    """A job as the scheduler sees it; `shape` where it is known."""
    body, attempt = record.body, record.body["attempt"]
    spec = spec_in(record)
    stop = (attempt or {}).get("stop") or {}
    band = attempt["band"] if attempt else body["band"]
    return Job(
        id=body["id"],
        queue=body["queue"],
        shape=shape or shape_in(record, clusters, band),
        submitted=int(body["submitted"]),
        template=body["template"],
        deadline=int(spec.deadline) if spec.deadline else NEVER,
        limit_s=spec.limit_s,
        steps=body["steps"] or spec.steps,
        done=body["step"],
        step_us=body["step_us"],
        seen=int(body["step_at"]),
        served=body["served"] // WHOLE,
        ran_s=body["ran_s"],
        evictions=body["evictions"],
        not_before=int(body["not_before"]),
        spots=held_spots(attempt) if attempt else (),
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


def held_spots(attempt: Mapping[str, Any]) -> tuple[Spot, ...]:
    """The places an attempt holds: those it runs in, and those it will go on in once it is resized."""
    more = [*(attempt["stop"] or {}).get("spots", ())]
    for row in attempt["spots"]:
        if row in more:  # slots of one node without devices of their own look alike: each counts
            more.remove(row)
    return spots_of([*attempt["spots"], *more])


def shape_in(record: Record, clusters: Mapping[str, Cluster], band: int) -> Shape:
    """The shape of a job: its spec, where the law and its cluster's owners let it run."""
    body, spec = record.body, spec_in(record)
    names = list_open_clusters(record, clusters)
    zones = tuple(body["zones"]) if body["zones"] is not None else None
    if body["avoid"] in names and {*_in_lawful_zones(names, record, clusters)} - {body["avoid"]}:
        names.remove(body["avoid"])  # it was refused there: elsewhere first, where there is an elsewhere
    # Naming all of them would make a shape of its own for every change of the list; naming none means any.
    allowed = () if len(names) == len(clusters) else tuple(names) or ("-",)
    asked = id(spec), band, zones, allowed
    last = _SHAPES.get(asked)
    if last is not None and last[0] is spec:
        return last[1]
    if len(_SHAPES) >= _KEPT:
        _SHAPES.clear()
        _EQUAL.clear()
    made = shape_of(spec, band, zones, allowed)
    made = _EQUAL.setdefault(made, made)
    _SHAPES[asked] = spec, made
    return made


def list_open_clusters(record: Record, clusters: Mapping[str, Cluster]) -> list[str]:
    """The clusters open to a job's tenant, of those the one that it names, but none that refused its submitter."""
    tenant, named, refused_by = record.key.tenant, spec_in(record).cluster, record.body.get("refused_by", ())
    return sorted(
        name
        for name, cluster in clusters.items()
        if open_to(cluster, tenant) and named in ("", name) and name not in refused_by
    )


def list_candidates(record: Record, clusters: Mapping[str, Cluster]) -> list[str]:
    """Of the open clusters those in zones where the law lets the job run."""
    return _in_lawful_zones(list_open_clusters(record, clusters), record, clusters)


def _in_lawful_zones(names: Iterable[str], record: Record, clusters: Mapping[str, Cluster]) -> list[str]:
    zones = record.body["zones"]
    return [name for name in names if zones is None or clusters[name].zone in zones]


def spec_in(record: Record) -> JobSpec:
    """The spec a record holds, read once while it stays the same."""
    job, plain = record.body["id"], record.body["spec"]
    last = _SPECS.get(job)
    if last is not None and (last[0] is plain or last[0] == plain):
        return last[1]
    if len(_SPECS) >= _KEPT:
        _SPECS.clear()
        _ALIKE.clear()
    said = to_json(plain)
    found = _ALIKE.get(said)
    if found is None:
        found = _ALIKE[said] = from_plain(JobSpec, plain)
    _SPECS[job] = (plain, found)
    return found


def use_of(shape: Shape, spots: Iterable[Spot], nodes: Mapping[str, Node]) -> dict[str, dict[str, int]]:
    """What places hold, by node and quota name."""
    held: dict[str, dict[str, int]] = {}
    for spot in spots:
        ask = shape.roles[spot.role].ask
        held[spot.node] = added(held.get(spot.node, {}), dict(ask.amounts), _gpus(ask, spot, nodes.get(spot.node)))
    return held


def _gpus(ask: Ask, spot: Spot, node: Node | None) -> dict[str, int]:
    if not spot.devices:
        return {}
    models = {device.index: device.model for device in node.devices} if node else {}
    total: dict[str, int] = {"gpu": spot.milli * len(spot.devices)}
    for index in spot.devices:
        if index in models:
            total = added(total, {f"gpu:{models[index]}": spot.milli})
    return total


def past_of(ledger: Ledger, tx: Reader) -> tuple[Past, ...]:
    """Quantiles of how long jobs of one template and shape ran, from each tenant's last ones."""
    times: dict[tuple[str, str], list[int]] = {}
    steps: dict[tuple[str, str], int] = {}
    for tenant in tenants(ledger):
        for record in tx.find("job", tenant=tenant, terms={"state": SUCCEEDED}, newest=True, limit=REMEMBERED).records:
            name = (record.body["template"], shape_key(shape_of(spec_in(record), record.body["band"])))
            times.setdefault(name, []).append(record.body["ran_s"])
            steps.setdefault(name, record.body["step_us"])
    return tuple(
        quantiles(template, key, times[template, key], steps[template, key]) for template, key in sorted(times)
    )


def _whole(text: str) -> int:
    return int(text) if text.isdigit() else 0
