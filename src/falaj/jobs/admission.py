"""Asking for a job: everything is pinned and checked before a line is written."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from falaj.catalog.records import KINDS
from falaj.core.context import Context
from falaj.core.data import dataclass
from falaj.core.errors import Denied, Invalid
from falaj.core.event import new_id
from falaj.core.execute import JOB
from falaj.core.ref import Ref
from falaj.fleet.amounts import band
from falaj.fleet.clusters import Clusters, open_to
from falaj.fleet.records import Cluster
from falaj.govern.refusals import check_usable
from falaj.jobs import tracing
from falaj.jobs.attempts import who_of
from falaj.jobs.facts import job_of, node_of, queues_of
from falaj.jobs.records import HELD, WAITING, Body, JobSpec
from falaj.jobs.spec import checked, name_of
from falaj.jobs.staging import Staging
from falaj.schedule.model import LEVELS, Job, Node
from falaj.schedule.words import BUDGETS, spendable
from falaj.store.codec import to_plain
from falaj.store.ledger import Reader
from falaj.store.records import Record


@dataclass(frozen=True, slots=True)
class Asked:
    """A job as it is asked for."""

    job: Ref
    spec: JobSpec
    inputs: Mapping[str, Ref]
    outputs: Mapping[str, Ref]
    code: Ref | None
    after: tuple[Ref, ...]


def check_names(asked: Asked) -> None:
    """Invalid unless every reference can be what it stands for."""
    if asked.job.kind != "job" or asked.job.version:
        raise Invalid(f"{asked.job} names no job", "for example job:fraud/train-1", asked.job)
    for what, refs in (("input", asked.inputs), ("output", asked.outputs)):
        for name, ref in refs.items():
            if not name.isidentifier() or len(name) > 60:
                raise Invalid(f"{name[:60]!r} cannot name an {what}", "letters, digits and _: it becomes a variable")
            if ref.kind not in KINDS:
                raise Invalid(f"{ref} cannot be an {what}", f"a {', '.join(KINDS)}", ref)
            if what == "output" and ref.version:
                raise Invalid(f"{ref} names a version", f"an output becomes the next one: write {ref.bare}", ref)
    if asked.code is not None and asked.code.kind != "code":
        raise Invalid(f"{asked.code} is no program", "a version of kind code", asked.code)
    if any(ref.kind != "job" for ref in asked.after):
        raise Invalid("a job waits for jobs only", "--after job:project/name")


def new_body(
    ctx: Context, known: Mapping[str, Cluster], staging: Staging, asked: Asked, queue: str, tx: Reader
) -> Body:
    """The record of a new job."""
    check_usable(tx, ctx.tenant, ctx.purpose, asked.inputs.values())
    spec, kept_in = _pin_secrets(ctx, staging, asked.spec, asked.job.project)
    zones = _law(ctx, asked, _reachable(known, ctx.tenant, spec), kept_in)
    who = who_of(ctx)
    job_id = new_id()
    return {
        "id": job_id, "kind": ctx.attempt_kind, "spec": to_plain(spec),
        "state": HELD if asked.after else WAITING, "queue": queue,
        "band": band(spec.band), "run": f"run:{asked.job.project}/{job_id}", "code": str(asked.code or ""),
        "inputs": {role: str(ref) for role, ref in asked.inputs.items()},
        "outputs": {name: str(ref.bare) for name, ref in asked.outputs.items()},
        "after": [str(ref.bare) for ref in asked.after], "zones": zones, "who": who, "submitted": ctx.now(),
        "template": f"{ctx.tenant}.{who['id']}/{name_of(spec)}", "number": 0, "failures": 0, "losses": 0, "avoid": "",
        "refusals": 0, "evictions": 0, "served": 0, "ran_s": 0, "not_before": 0, "attempt": None, "attempts": [],
        "note": "", "step": 0, "steps": spec.steps, "step_us": 0, "step_at": 0.0, "saved": 0, "save_s": 0,
        "ended": 0.0, "use": {"queue": queue, "nodes": {}, "charge": {}, "size": 0},
        "trace": tracing.kept(),
    }  # fmt: skip


def check_possible(clusters: Clusters, known: Mapping[str, Cluster], tx: Reader, record: Record, now: float) -> None:
    """Invalid when no state of the fleet would ever let it start, with the nearest that can."""
    found = [(cluster, facts) for cluster, facts, _ in clusters.node_records(tx, known)]
    found += clusters.imagined(tx, known)
    nodes = [node_of(cluster, facts) for cluster, facts in found]
    job = job_of(record, known)
    ask = job.shape.roles[0].ask
    mine = [node for node in nodes if node.cluster in ask.clusters] if ask.clusters else nodes
    mine = [node for node in mine if node.zone in ask.zones] if ask.zones is not None else mine
    _check_level(job.shape.level, mine, record.ref.bare)
    if not mine:
        return  # nobody looked there yet, or its agent only just came; it will wait, and `why` will tell
    _check_declared(job, mine, record.ref.bare)
    from falaj.schedule.budget import beyond, rates
    from falaj.schedule.why import possible  # arrays: loaded by whoever asks for a job, and not for every list

    queues = queues_of(tx, (), now)
    reason = possible(nodes, queues, job)
    if reason is not None:
        if not ask.spot and possible([replace(node, spot=False) for node in nodes], queues, job) is None:
            hint = "--spot, if it may run on those; with --checkpoint it goes on elsewhere when one is taken away"
            raise Invalid("only nodes that can be taken away could hold it", hint, record.ref.bare)
        raise Invalid(reason.text, reason.fix or "ask for less", record.ref.bare)
    if (short := beyond(queues, job)) is not None:
        queue, unit, most = short
        cost = f"{spendable(unit, dict(rates(job.shape))[unit] * job.limit_s)} {BUDGETS[unit][0]}"
        text = f"{job.limit_s} s of it cost {cost}, more than the whole budget of {queue}"
        hint = f"it covers --limit {most}s, or longer with less" if most else "ask for less"
        raise Invalid(text, hint, record.ref.bare)


def loosened(spec: JobSpec, more: Mapping[str, str], kind: str = JOB) -> JobSpec:
    """The spec with other demands; those of a role are the first one's, unless it is named."""
    words = dict(more)
    name = words.pop("role", spec.roles[0].name)
    if name not in [role.name for role in spec.roles]:
        raise Invalid(f"it has no role {name[:40]!r}", f"it has {', '.join(role.name for role in spec.roles)}")
    any_ = {key: "" if value == "any" else value for key, value in words.items()}
    readers: dict[str, tuple[str, Callable[[str], Any]]] = {
        "workers": ("count", _number(int)), "gpus": ("gpus", _number(float)), "cpus": ("cpus", _number(float)),
        "memory": ("memory", str), "gpu_memory": ("gpu_memory", str),
        "gpu_model": ("gpu_models", lambda text: tuple(filter(None, text.split(",")))),
    }  # fmt: skip
    if strange := sorted(set(any_) - {*readers, "topology"}):
        raise Invalid(f"nothing is called {strange[0][:40]!r}", f"topology, role, {', '.join(readers)}")
    changes = {readers[key][0]: readers[key][1](value) for key, value in any_.items() if key in readers}
    if not changes.get("gpus", 1):
        changes |= {"gpu_models": (), "gpu_memory": ""}  # of no GPU nothing can be demanded
    roles = tuple(replace(role, **changes) if role.name == name else role for role in spec.roles)
    return checked(replace(spec, roles=roles, topology=any_.get("topology", spec.topology)), kind)


def _check_level(level: str, nodes: list[Node], job: Ref) -> None:
    """Invalid where slots shall lie together in something that no node is in: a wish for it would count for nothing."""
    if not level:
        return
    said = {name for node in nodes for name, value in node.labels.items() if value}
    # Labels are not known before a node was seen; that there are racks is then taken on trust.
    found = sorted(said, key=lambda name: ("/" in name, name)) if nodes else ["rack"]
    levels = dict.fromkeys((*LEVELS, *found))
    if level not in levels:
        hint = f"choose one of {', '.join(levels):.300}; or leave it out"
        raise Invalid(f"no node that was seen where it may run is in any {level}", hint, job)


def _check_declared(job: Job, nodes: list[Node], ref: Ref) -> None:
    """Invalid where memory is wanted of GPUs of which nobody says how much they have: each would have too little."""
    known = {device.model: device.memory_mib for node in nodes for device in node.devices}
    if known and not any(known.values()) and any(role.ask.device_mib for role in job.shape.roles):
        declared = "gpu_memory=MiB of the cluster or kind of nodes, or the label nvidia.com/gpu.memory of its nodes"
        hint = f"ask without --gpu-memory, or --gpu-model {','.join(sorted(known)):.200}; what declares it: {declared}"
        raise Invalid("no node where it may run declares the memory of its GPUs", hint, ref)


def _number(kind: Callable[[str], Any]) -> Callable[[str], Any]:
    def read(text: str) -> Any:
        try:
            return kind(text)
        except ValueError:
            raise Invalid(f"{text[:40]!r} is no number", "for example 2") from None

    return read


def _reachable(known: Mapping[str, Cluster], tenant: str, spec: JobSpec) -> list[Cluster]:
    mine = [one for one in known.values() if open_to(one, tenant)]
    if spec.cluster and spec.cluster not in known:
        hint = f"your jobs may run on {', '.join(one.name for one in mine) or 'none'}"
        raise Invalid(f"there is no cluster {spec.cluster[:60]!r}", f"{hint:.500}")
    named = [one for one in mine if spec.cluster in ("", one.name)]
    if not named:
        hint = "the people who run this installation open one: falaj clusters change NAME --more tenants=…"
        said = f"the cluster {spec.cluster} takes no jobs" if spec.cluster else "no cluster takes jobs"
        raise Denied(f"{said} of {tenant}", hint)
    fits = [one for one in named if spec.zone in ("", one.zone)]
    if not fits:
        said = f"the cluster {spec.cluster} stands in {named[0].zone}, not" if spec.cluster else "no cluster stands"
        there = ", ".join(f"{one.name} (in {one.zone})" for one in sorted(mine, key=lambda one: (one.zone, one.name)))
        raise Invalid(f"{said} in {spec.zone[:60]!r}", f"your jobs may run on {there:.500}")
    return fits


def _law(ctx: Context, asked: Asked, fits: list[Cluster], secrets: set[str] | None) -> list[str] | None:
    """The zones where every input may be worked on; None where nothing asks."""
    zones = sorted({cluster.zone for cluster in fits})
    read = [*asked.inputs.values(), *((asked.code,) if asked.code else ())]
    if not read and not secrets and not asked.spec.zone:
        return None
    refusal: Denied | None = None
    allowed = []
    for zone in zones:
        try:
            for ref in read:
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


def _pin_secrets(ctx: Context, staging: Staging, spec: JobSpec, project: str) -> tuple[JobSpec, set[str] | None]:
    """Secrets by exact reference, each of which the submitter may use in this project, and the zones they lie in."""
    if not spec.secrets:
        return spec, None
    here = staging.act(ctx.actor, ctx.purpose)
    pinned: dict[str, str] = {}
    zones = set()
    for name, text in spec.secrets.items():
        view = here.secrets.use(_secret(text, ctx.tenant), project)
        pinned[name] = text if text.startswith("secret://") and "#" in text else view.reference
        zones.add(view.zone)
    return replace(spec, secrets=pinned), zones


def _secret(text: str, tenant: str) -> Ref:
    if not text.startswith("secret://"):
        return Ref.parse(text)
    parts = text.removeprefix("secret://").partition("#")[0].split("/")
    if len(parts) != 4 or parts[0] != tenant:
        raise Invalid("that is no reference to a secret of yours", "write secret:project/name")
    return Ref("secret", parts[2], parts[3])
