"""Asking for a job: everything is pinned and checked before a line is written."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from falaj.catalog.records import VERSION_KINDS
from falaj.core.context import CallContext
from falaj.core.data import dataclass
from falaj.core.errors import Denied, Invalid
from falaj.core.event import generate_id
from falaj.core.executor import KIND_JOB
from falaj.core.ref import Ref
from falaj.fleet.amounts import parse_band
from falaj.fleet.clusters import ClusterService, is_open_to
from falaj.fleet.records import Cluster
from falaj.govern.refusals import require_usable
from falaj.jobs import job_tracing
from falaj.jobs.attempts import to_submitter
from falaj.jobs.records import ON_HOLD, WAITING, JobBody, JobSpec
from falaj.jobs.scheduler_facts import read_queues, to_scheduler_job, to_scheduler_node
from falaj.jobs.spec import derive_job_name, validate_spec
from falaj.jobs.staging import AttemptStaging
from falaj.schedule.amount_text import BUDGET_UNITS, format_budget_amount
from falaj.schedule.model import TOPOLOGY_LEVELS, Job, Node
from falaj.store.codec import to_plain
from falaj.store.ledger import LedgerReader
from falaj.store.records import LedgerRecord


@dataclass(frozen=True, slots=True)
class JobRequest:
    """A job as it is asked for."""

    job: Ref
    spec: JobSpec
    inputs: Mapping[str, Ref]
    outputs: Mapping[str, Ref]
    code: Ref | None
    after: tuple[Ref, ...]


def check_names(request: JobRequest) -> None:
    """Invalid unless every reference can be what it stands for."""
    if request.job.kind != "job" or request.job.version:
        raise Invalid(f"{request.job} names no job", "for example job:fraud/train-1", request.job)
    for role, refs in (("input", request.inputs), ("output", request.outputs)):
        for name, ref in refs.items():
            if not name.isidentifier() or len(name) > 60:
                raise Invalid(f"{name[:60]!r} cannot name an {role}", "letters, digits and _: it becomes a variable")
            if ref.kind not in VERSION_KINDS:
                raise Invalid(f"{ref} cannot be an {role}", f"a {', '.join(VERSION_KINDS)}", ref)
            if role == "output" and ref.version:
                raise Invalid(f"{ref} names a version", f"an output becomes the next one: write {ref.bare}", ref)
    if request.code is not None and request.code.kind != "code":
        raise Invalid(f"{request.code} is no program", "a version of kind code", request.code)
    if any(ref.kind != "job" for ref in request.after):
        raise Invalid("a job waits for jobs only", "--after job:project/name")


def build_job_body(
    ctx: CallContext,
    clusters: Mapping[str, Cluster],
    staging: AttemptStaging,
    request: JobRequest,
    queue: str,
    tx: LedgerReader,
) -> JobBody:
    """The record of a new job."""
    require_usable(tx, ctx.tenant, ctx.purpose, request.inputs.values())
    spec, secret_zones = _pin_secrets(ctx, staging, request.spec, request.job.project)
    zones = _find_allowed_zones(ctx, request, _find_reachable_clusters(clusters, ctx.tenant, spec), secret_zones)
    submitter = to_submitter(ctx)
    job_id = generate_id()
    return {
        "id": job_id,
        "kind": ctx.attempt_kind,
        "spec": to_plain(spec),
        "state": ON_HOLD if request.after else WAITING,
        "queue": queue,
        "band": parse_band(spec.band),
        "run": f"run:{request.job.project}/{job_id}",
        "code": str(request.code or ""),
        "inputs": {role: str(ref) for role, ref in request.inputs.items()},
        "outputs": {name: str(ref.bare) for name, ref in request.outputs.items()},
        "after": [str(ref.bare) for ref in request.after],
        "zones": zones,
        "who": submitter,
        "submitted": ctx.now(),
        "template": f"{ctx.tenant}.{submitter['id']}/{derive_job_name(spec)}",
        "number": 0,
        "failures": 0,
        "losses": 0,
        "avoid": "",
        "refusals": 0,
        "evictions": 0,
        "served": 0,
        "ran_s": 0,
        "not_before": 0,
        "attempt": None,
        "attempts": [],
        "note": "",
        "step": 0,
        "steps": spec.steps,
        "step_us": 0,
        "step_at": 0.0,
        "saved": 0,
        "save_s": 0,
        "ended": 0.0,
        "use": {"queue": queue, "nodes": {}, "charge": {}, "size": 0},
        "trace": job_tracing.get_trace_header(),
    }


def check_possible(
    clusters: ClusterService, known_clusters: Mapping[str, Cluster], tx: LedgerReader, record: LedgerRecord, now: float
) -> None:
    """Invalid when no state of the fleet would ever let it start, with the nearest that can."""
    node_facts = [(cluster, facts) for cluster, facts, _ in clusters.node_records(tx, known_clusters)]
    node_facts += clusters.imagined(tx, known_clusters)
    nodes = [to_scheduler_node(cluster, facts) for cluster, facts in node_facts]
    job = to_scheduler_job(record, known_clusters)
    request = job.shape.roles[0].ask
    allowed_nodes = [node for node in nodes if node.cluster in request.clusters] if request.clusters else nodes
    allowed_nodes = (
        [node for node in allowed_nodes if node.zone in request.zones] if request.zones is not None else allowed_nodes
    )
    _check_level(job.shape.level, allowed_nodes, record.ref.bare)
    if not allowed_nodes:
        return  # nobody looked there yet, or its agent only just came; it will wait, and `why` will tell
    _check_declared(job, allowed_nodes, record.ref.bare)
    from falaj.schedule.budget import compute_charge_rates, find_insufficient_budget
    from falaj.schedule.why import (
        find_impossible_reason,  # arrays: loaded by whoever asks for a job, and not for every list
    )

    queues = read_queues(tx, (), now)
    reason = find_impossible_reason(nodes, queues, job)
    if reason is not None:
        if (
            not request.spot
            and find_impossible_reason([replace(node, spot=False) for node in nodes], queues, job) is None
        ):
            hint = "--spot, if it may run on those; with --checkpoint it goes on elsewhere when one is taken away"
            raise Invalid("only nodes that can be taken away could hold it", hint, record.ref.bare)
        raise Invalid(reason.text, reason.fix or "ask for less", record.ref.bare)
    if (shortfall := find_insufficient_budget(queues, job)) is not None:
        queue, unit, covered_s = shortfall
        cost = (
            f"{format_budget_amount(unit, dict(compute_charge_rates(job.shape))[unit] * job.limit_s)} "
            f"{BUDGET_UNITS[unit][0]}"
        )
        text = f"{job.limit_s} s of it cost {cost}, more than the whole budget of {queue}"
        hint = f"it covers --limit {covered_s}s, or longer with less" if covered_s else "ask for less"
        raise Invalid(text, hint, record.ref.bare)


def relax_spec(spec: JobSpec, demands: Mapping[str, str], kind: str = KIND_JOB) -> JobSpec:
    """The spec with other demands; those of a role are the first one's, unless it is named."""
    remaining = dict(demands)
    name = remaining.pop("role", spec.roles[0].name)
    if name not in [role.name for role in spec.roles]:
        raise Invalid(f"it has no role {name[:40]!r}", f"it has {', '.join(role.name for role in spec.roles)}")
    values = {key: "" if value == "any" else value for key, value in remaining.items()}
    readers: dict[str, tuple[str, Callable[[str], Any]]] = {
        "workers": ("count", _number_parser(int)),
        "gpus": ("gpus", _number_parser(float)),
        "cpus": ("cpus", _number_parser(float)),
        "memory": ("memory", str),
        "gpu_memory": ("gpu_memory", str),
        "gpu_model": ("gpu_models", lambda text: tuple(filter(None, text.split(",")))),
    }
    if unknown := sorted(set(values) - {*readers, "topology"}):
        raise Invalid(f"nothing is called {unknown[0][:40]!r}", f"topology, role, {', '.join(readers)}")
    changes = {readers[key][0]: readers[key][1](value) for key, value in values.items() if key in readers}
    if not changes.get("gpus", 1):
        changes |= {"gpu_models": (), "gpu_memory": ""}  # of no GPU nothing can be demanded
    roles = tuple(replace(role, **changes) if role.name == name else role for role in spec.roles)
    return validate_spec(replace(spec, roles=roles, topology=values.get("topology", spec.topology)), kind)


def _check_level(level: str, nodes: list[Node], job: Ref) -> None:
    """Invalid where slots shall lie together in something that no node is in: a wish for it would count for nothing."""
    if not level:
        return
    labels_seen = {name for node in nodes for name, value in node.labels.items() if value}
    # Labels are not known before a node was seen; that there are racks is then taken on trust.
    label_names = sorted(labels_seen, key=lambda name: ("/" in name, name)) if nodes else ["rack"]
    levels = dict.fromkeys((*TOPOLOGY_LEVELS, *label_names))
    if level not in levels:
        hint = f"choose one of {', '.join(levels):.300}; or leave it out"
        raise Invalid(f"no node that was seen where it may run is in any {level}", hint, job)


def _check_declared(job: Job, nodes: list[Node], ref: Ref) -> None:
    """Invalid where memory is wanted of GPUs of which nobody says how much they have: each would have too little."""
    memory_by_model = {device.model: device.memory_mib for node in nodes for device in node.devices}
    if memory_by_model and not any(memory_by_model.values()) and any(role.ask.device_mib for role in job.shape.roles):
        declared = "gpu_memory=MiB of the cluster or kind of nodes, or the label nvidia.com/gpu.memory of its nodes"
        hint = (
            "ask without --gpu-memory, or --gpu-model "
            f"{','.join(sorted(memory_by_model)):.200}; what declares it: {declared}"
        )
        raise Invalid("no node where it may run declares the memory of its GPUs", hint, ref)


def _number_parser(number_type: Callable[[str], Any]) -> Callable[[str], Any]:
    def parse_number(text: str) -> Any:
        try:
            return number_type(text)
        except ValueError:
            raise Invalid(f"{text[:40]!r} is no number", "for example 2") from None

    return parse_number


def _find_reachable_clusters(clusters: Mapping[str, Cluster], tenant: str, spec: JobSpec) -> list[Cluster]:
    open_clusters = [cluster for cluster in clusters.values() if is_open_to(cluster, tenant)]
    if spec.cluster and spec.cluster not in clusters:
        hint = f"your jobs may run on {', '.join(cluster.name for cluster in open_clusters) or 'none'}"
        raise Invalid(f"there is no cluster {spec.cluster[:60]!r}", f"{hint:.500}")
    named = [cluster for cluster in open_clusters if spec.cluster in ("", cluster.name)]
    if not named:
        hint = "the people who run this installation open one: falaj clusters change NAME --more tenants=…"
        problem = f"the cluster {spec.cluster} takes no jobs" if spec.cluster else "no cluster takes jobs"
        raise Denied(f"{problem} of {tenant}", hint)
    fits = [cluster for cluster in named if spec.zone in ("", cluster.zone)]
    if not fits:
        problem = f"the cluster {spec.cluster} stands in {named[0].zone}, not" if spec.cluster else "no cluster stands"
        places = ", ".join(
            f"{cluster.name} (in {cluster.zone})"
            for cluster in sorted(open_clusters, key=lambda cluster: (cluster.zone, cluster.name))
        )
        raise Invalid(f"{problem} in {spec.zone[:60]!r}", f"your jobs may run on {places:.500}")
    return fits


def _find_allowed_zones(
    ctx: CallContext, request: JobRequest, fits: list[Cluster], secrets: set[str] | None
) -> list[str] | None:
    """The zones where every input may be worked on; None where nothing asks."""
    zones = sorted({cluster.zone for cluster in fits})
    refs = [*request.inputs.values(), *((request.code,) if request.code else ())]
    if not refs and not secrets and not request.spec.zone:
        return None
    refusal: Denied | None = None
    allowed = []
    for zone in zones:
        try:
            for ref in refs:
                ctx.permit("schedule", str(ref.bare), zone)
        except Denied as error:
            refusal = error
        else:
            if secrets is None or secrets <= {zone}:
                allowed.append(zone)
    if allowed:
        return allowed
    raise refusal or Denied(
        "its secrets lie where no cluster is", "put them where the job can run: falaj secrets put --zone"
    )


def _pin_secrets(
    ctx: CallContext, staging: AttemptStaging, spec: JobSpec, project: str
) -> tuple[JobSpec, set[str] | None]:
    """Secrets by exact reference, each of which the submitter may use in this project, and the zones they lie in."""
    if not spec.secrets:
        return spec, None
    client = staging.act(ctx.actor, ctx.purpose)
    pinned: dict[str, str] = {}
    zones = set()
    for name, text in spec.secrets.items():
        view = client.secrets.use(_parse_secret_ref(text, ctx.tenant), project)
        pinned[name] = text if text.startswith("secret://") and "#" in text else view.reference
        zones.add(view.zone)
    return replace(spec, secrets=pinned), zones


def _parse_secret_ref(text: str, tenant: str) -> Ref:
    if not text.startswith("secret://"):
        return Ref.parse(text)
    parts = text.removeprefix("secret://").partition("#")[0].split("/")
    if len(parts) != 4 or parts[0] != tenant:
        raise Invalid("that is no reference to a secret of yours", "write secret:project/name")
    return Ref("secret", parts[2], parts[3])
