"""Attempts: a job and its places made ready to run. Where its files lie, which words start it, whose rights it has."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from falaj.core.context import HOUSE, Actor, Context
from falaj.core.execute import JOB, REPLICAS, Attempt, Slot
from falaj.core.ref import Ref
from falaj.fleet.records import Cluster
from falaj.govern.people_records import Workload
from falaj.govern.tokens import WORK_ROLES, delegated
from falaj.jobs import tracing
from falaj.jobs.facts import spec_in
from falaj.jobs.life import spots_of
from falaj.jobs.records import Body, JobSpec
from falaj.jobs.spec import amounts_of, processes_of
from falaj.jobs.standing import submitter_of
from falaj.store.ledger import Ledger, Reader
from falaj.store.records import Record
from falaj.worker.bundle import launcher
from falaj.worker.context import FOLDER, document

AWAY = "/tmp/falaj-checkpoints"  # noqa: S108  # nosec B108 - on the node, in a folder named by an id that cannot be guessed
_UNSAFE = re.compile(r"[^A-Za-z0-9]+")


@dataclass(frozen=True, slots=True)
class Layout:
    """Where an attempt's files lie: in a folder that the platform shares with the node, or on the node alone."""

    base: str
    """Empty on the node alone: there, every slot has a folder of its own, which goes with it."""
    checkpoints: str
    shared: bool

    @property
    def code(self) -> str:
        """Where the program lies."""
        return self.below("code")

    def input(self, role: str) -> str:
        """Where an input lies."""
        return self.below("inputs", role)

    def output(self, name: str) -> str:
        """Where an output is written."""
        return self.below("outputs", name)

    def below(self, *names: str) -> str:
        """A path of the node."""
        return "/".join((self.base, *names) if self.base else names)


def layout_of(cluster: Cluster, attempt: str, job: str) -> Layout:
    """The folders of an attempt. Checkpoints belong to the job: the next attempt finds them."""
    shared, root = bool(cluster.folder), cluster.folder.rstrip("/")  # posixpath takes longer, for every attempt
    kept = cluster.checkpoints or (f"{root}/checkpoints" if shared else AWAY)
    return Layout(f"{root}/{attempt}" if shared else "", f"{kept.rstrip('/')}/{job}", shared)


def attempt_name(name: str, job: str) -> str:
    """What attempts of a job are called, before their number: safe as a folder, a pod and a job name."""
    return f"{_UNSAFE.sub('-', name).strip('-')[:28].lower() or 'job'}-{job[-12:]}"


def who_of(ctx: Context) -> Body:
    """Whoever asks for what goes on in their name, as records remember them; what they may do is asked each time."""
    actor = ctx.actor
    return {
        "id": actor.behalf or actor.id, "roles": sorted(actor.roles), "projects": sorted(actor.projects),
        "purpose": ctx.purpose, "jurisdiction": actor.jurisdiction, "makers": list(actor.makers),
        **({"owns_folder": True} if actor.owns_folder else {}),
        **({"trust": actor.trust} if actor.trust else {}),
    }  # fmt: skip


def actor_of(tx: Reader, record: Record, zone: str, jurisdiction: str) -> Actor:
    """Who an attempt is: its submitter's rights and never more, of today as of then; only work; in one zone."""
    submitter = submitter_of(tx, record)
    work = delegated(submitter, _workload(record, zone, jurisdiction))
    return Actor(
        f"run.{work.run}", work.tenant, "workload", work.roles, work.projects, behalf=work.behalf,
        jurisdiction=jurisdiction, run=work.run, zone=zone, owns_folder=submitter.owns_folder, makers=work.makers,
        trust=work.trust,
    )  # fmt: skip


def at_work(tx: Reader, record: Record) -> Actor:
    """The owner of something that goes on by itself: only roles that do work, of that day and still of today."""
    return replace(actor_of(tx, record, "", record.body["who"]["jurisdiction"]), kind="service")


def in_name_of(ledger: Ledger, ctx: Context, record: Record) -> Context:
    """What a loop does for such an owner runs under this, for the purpose they named."""
    with ledger.read(ctx) as tx:
        return replace(ctx, actor=at_work(tx, record), purpose=record.body["who"]["purpose"])


def workload_of(actor: Actor) -> Workload:
    """What its token says."""
    return Workload(
        actor.run, actor.zone, actor.tenant, actor.roles, actor.projects, actor.behalf, actor.jurisdiction,
        makers=actor.makers, trust=actor.trust,
    )  # fmt: skip


def _workload(record: Record, zone: str, jurisdiction: str) -> Workload:
    who = record.body["who"]
    return Workload(
        record.body["id"], zone, record.key.tenant, WORK_ROLES, frozenset({"*"}), who["id"], jurisdiction,
        trust=who.get("trust", ""),
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class LaunchDetails:
    """What the platform adds to a job when an attempt of it starts."""

    address: str = ""
    """Where launchers on nodes that share no folder with us reach the platform."""
    secrets: Mapping[str, str] = field(default_factory=dict)
    token: str = ""
    single_user: bool = False
    """True when only the owner of the folder uses this installation (fleet.sandbox.is_single_user)."""


def attempt_of(record: Record, cluster: Cluster, details: LaunchDetails) -> Attempt:
    """What the executor is handed."""
    body, spec = record.body, spec_in(record)
    place = layout_of(cluster, body["attempt"]["id"], body["id"])
    slots = []
    for index, spot in enumerate(spots_of(body["attempt"]["spots"])):
        role = spec.roles[spot.role]
        node = spot.node.partition("/")[2]
        slots.append(Slot(index, node, role.name, amounts_of(role), spot.devices, spot.milli, processes_of(role)))
    context: dict[str, object] = {}
    made = Attempt(
        id=body["attempt"]["id"],
        job=str(record.ref.bare),
        tenant=record.key.tenant,
        project=record.key.project,
        slots=tuple(slots),
        command=tuple(spec.command),
        kind=body.get("kind", JOB),
        listen=_listening_host(spec) if body.get("kind") in REPLICAS else "",
        by_owner=details.single_user and bool(body["who"].get("owns_folder")),
        framework=spec.framework,
        folder=place.base,
        env={**tracing.environment(body), **spec.env},
        secret_env=details.secrets,
        platform_env={"FALAJ_URL": details.address, "FALAJ_TOKEN": details.token} if details.token else {},
        image=spec.image,
        user=_user(record, cluster),
        limit_s=spec.limit_s,
        grace_s=spec.grace_s,
        launcher=launcher(),
        options=dict(spec.options),
        context=context,
    )
    # It tells of the attempt that carries it, which is made once.
    context |= _context(made, body, place, details.address)
    return made


def _listening_host(spec: JobSpec) -> str:
    """Where a replica is called. Its kind proves that the service of endpoints wrote its variables."""
    try:
        return str(json.loads(spec.env["FALAJ_PARAM_SERVE"])["hop"]).rpartition(":")[0].strip("[]")
    except (KeyError, TypeError, ValueError):
        return "127.0.0.1"


def _user(record: Record, cluster: Cluster) -> str:
    """Its submitter's name. Where people of several tenants come to one site, the same name may be two people."""
    name, tenant = str(record.body["who"]["id"]), record.key.tenant
    if tenant == HOUSE:
        return name.removeprefix("os-")
    apart = cluster.address.startswith("slurm:") and cluster.tenants != (tenant,)
    return f"{name}@{tenant}" if apart else name


def _context(bare: Attempt, body: Body, place: Layout, address: str) -> dict[str, object]:
    more: dict[str, object] = {
        "run": body["run"],
        "number": body["attempt"]["number"],
        "code": place.code if body["code"] or place.shared else "",
        "inputs": {role: place.input(role) for role in body["inputs"]},
        "outputs": {name: place.output(name) for name in body["outputs"]},
        "checkpoints": place.checkpoints,
    }
    if place.shared:
        more["outbox"] = place.below("outbox")
    else:
        more |= {"address": address, "stage": _stage(body, place), "after": _after(body, place)}
    return document(bare, **more)


def _stage(body: Body, place: Layout) -> list[list[str]]:
    """Commands that bring code and inputs onto the node, into the slot's own folder, with the attempt's own token."""
    wanted = {place.code: body["code"]} if body["code"] else {}
    wanted |= {place.input(role): ref for role, ref in body["inputs"].items()}
    return [[*_falaj(body), "checkout", str(ref), f"{FOLDER}/{path}"] for path, ref in wanted.items()]


def _after(body: Body, place: Layout) -> list[list[str]]:
    """Commands that publish what it made."""
    used = [word for role, ref in sources_of(body).items() for word in ("--inputs", f"{role}={ref}")]
    return [
        [*_falaj(body), "publish", str(Ref.parse(ref).bare), f"{FOLDER}/{place.output(name)}", *used]
        for name, ref in body["outputs"].items()
    ]


def _falaj(body: Body) -> list[str]:
    """The words after the interpreter, which is the launcher's own."""
    purpose = body["who"]["purpose"]
    return ["-m", "falaj", *([f"--purpose={purpose}"] if purpose else []), "catalog"]


def sources_of(body: Body) -> dict[str, str]:
    """What its outputs are made from: inputs and code, pinned, and the run."""
    code = {"code": body["code"]} if body["code"] else {}
    return {**body["inputs"], **code, "run": body["run"]}
