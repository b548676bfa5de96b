"""Attempts: a job and its places made ready to run. Where its files lie, which words start it, whose rights it has."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from falaj.core.context import SYSTEM_TENANT, Actor, CallContext
from falaj.core.executor import KIND_JOB, REPLICA_KINDS, Attempt, Slot
from falaj.core.ref import Ref
from falaj.fleet.records import Cluster
from falaj.govern.people_records import WorkloadIdentity
from falaj.govern.workload_tokens import WORK_ROLES, limit_to_delegator
from falaj.jobs import job_tracing
from falaj.jobs.records import JobBody, JobSpec
from falaj.jobs.scheduler_facts import read_spec
from falaj.jobs.spec import compute_role_amounts, count_processes
from falaj.jobs.state_machine import parse_spots
from falaj.jobs.submitter_standing import read_submitter
from falaj.store.ledger import Ledger, LedgerReader
from falaj.store.records import LedgerRecord
from falaj.worker.attempt_context import FOLDER_PLACEHOLDER, build_document
from falaj.worker.launcher_archive import get_launcher_archive

NODE_CHECKPOINT_FOLDER = "/tmp/falaj-checkpoints"  # noqa: S108  # nosec B108 - on the node, in a folder named by an id that cannot be guessed
_UNSAFE = re.compile(r"[^A-Za-z0-9]+")


@dataclass(frozen=True, slots=True)
class AttemptLayout:
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


def build_layout(cluster: Cluster, attempt: str, job: str) -> AttemptLayout:
    """The folders of an attempt. Checkpoints belong to the job: the next attempt finds them."""
    is_shared, root = bool(cluster.folder), cluster.folder.rstrip("/")  # posixpath takes longer, for every attempt
    checkpoint_root = cluster.checkpoints or (f"{root}/checkpoints" if is_shared else NODE_CHECKPOINT_FOLDER)
    return AttemptLayout(f"{root}/{attempt}" if is_shared else "", f"{checkpoint_root.rstrip('/')}/{job}", is_shared)


def make_attempt_name(name: str, job: str) -> str:
    """What attempts of a job are called, before their number: safe as a folder, a pod and a job name."""
    return f"{_UNSAFE.sub('-', name).strip('-')[:28].lower() or 'job'}-{job[-12:]}"


def to_submitter(ctx: CallContext) -> JobBody:
    """Whoever asks for what goes on in their name, as records remember them; what they may do is asked each time."""
    actor = ctx.actor
    return {
        "id": actor.behalf or actor.id, "roles": sorted(actor.roles), "projects": sorted(actor.projects),
        "purpose": ctx.purpose, "jurisdiction": actor.jurisdiction, "makers": list(actor.makers),
        **({"owns_folder": True} if actor.owns_folder else {}),
        **({"trust": actor.trust} if actor.trust else {}),
    }  # fmt: skip


def build_attempt_actor(tx: LedgerReader, record: LedgerRecord, zone: str, jurisdiction: str) -> Actor:
    """Who an attempt is: its submitter's rights and never more, of today as of then; only work; in one zone."""
    submitter = read_submitter(tx, record)
    work = limit_to_delegator(submitter, _build_record_workload(record, zone, jurisdiction))
    return Actor(
        f"run.{work.run}", work.tenant, "workload", work.roles, work.projects, behalf=work.behalf,
        jurisdiction=jurisdiction, run=work.run, zone=zone, owns_folder=submitter.owns_folder, makers=work.makers,
        trust=work.trust,
    )  # fmt: skip


def build_work_actor(tx: LedgerReader, record: LedgerRecord) -> Actor:
    """The owner of something that goes on by itself: only roles that do work, of that day and still of today."""
    return replace(build_attempt_actor(tx, record, "", record.body["who"]["jurisdiction"]), kind="service")


def make_owner_context(ledger: Ledger, ctx: CallContext, record: LedgerRecord) -> CallContext:
    """What a loop does for such an owner runs under this, for the purpose they named."""
    with ledger.read(ctx) as tx:
        return replace(ctx, actor=build_work_actor(tx, record), purpose=record.body["who"]["purpose"])


def to_workload(actor: Actor) -> WorkloadIdentity:
    """What its token says."""
    return WorkloadIdentity(
        actor.run, actor.zone, actor.tenant, actor.roles, actor.projects, actor.behalf, actor.jurisdiction,
        makers=actor.makers, trust=actor.trust,
    )  # fmt: skip


def _build_record_workload(record: LedgerRecord, zone: str, jurisdiction: str) -> WorkloadIdentity:
    submitter = record.body["who"]
    return WorkloadIdentity(
        record.body["id"], zone, record.key.tenant, WORK_ROLES, frozenset({"*"}), submitter["id"], jurisdiction,
        trust=submitter.get("trust", ""),
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


def build_attempt(record: LedgerRecord, cluster: Cluster, details: LaunchDetails) -> Attempt:
    """What the executor is handed."""
    body, spec = record.body, read_spec(record)
    layout = build_layout(cluster, body["attempt"]["id"], body["id"])
    slots = []
    for index, spot in enumerate(parse_spots(body["attempt"]["spots"])):
        role = spec.roles[spot.role]
        node = spot.node.partition("/")[2]
        slots.append(
            Slot(index, node, role.name, compute_role_amounts(role), spot.devices, spot.milli, count_processes(role))
        )
    context: dict[str, object] = {}
    attempt = Attempt(
        id=body["attempt"]["id"],
        job=str(record.ref.bare),
        tenant=record.key.tenant,
        project=record.key.project,
        slots=tuple(slots),
        command=tuple(spec.command),
        kind=body.get("kind", KIND_JOB),
        listen=_find_listening_host(spec) if body.get("kind") in REPLICA_KINDS else "",
        by_owner=details.single_user and bool(body["who"].get("owns_folder")),
        framework=spec.framework,
        folder=layout.base,
        env={**job_tracing.build_trace_environment(body), **spec.env},
        secret_env=details.secrets,
        platform_env={"FALAJ_URL": details.address, "FALAJ_TOKEN": details.token} if details.token else {},
        image=spec.image,
        user=_make_user_name(record, cluster),
        limit_s=spec.limit_s,
        grace_s=spec.grace_s,
        launcher=get_launcher_archive(),
        options=dict(spec.options),
        context=context,
    )
    # It tells of the attempt that carries it, which is made once.
    context |= _build_launch_context(attempt, body, layout, details.address)
    return attempt


def _find_listening_host(spec: JobSpec) -> str:
    """Where a replica is called. Its kind proves that the service of endpoints wrote its variables."""
    try:
        return str(json.loads(spec.env["FALAJ_PARAM_SERVE"])["hop"]).rpartition(":")[0].strip("[]")
    except (KeyError, TypeError, ValueError):
        return "127.0.0.1"


def _make_user_name(record: LedgerRecord, cluster: Cluster) -> str:
    """Its submitter's name. Where people of several tenants come to one site, the same name may be two people."""
    name, tenant = str(record.body["who"]["id"]), record.key.tenant
    if tenant == SYSTEM_TENANT:
        return name.removeprefix("os-")
    is_shared_site = cluster.address.startswith("slurm:") and cluster.tenants != (tenant,)
    return f"{name}@{tenant}" if is_shared_site else name


def _build_launch_context(attempt: Attempt, body: JobBody, layout: AttemptLayout, address: str) -> dict[str, object]:
    fields: dict[str, object] = {
        "run": body["run"],
        "number": body["attempt"]["number"],
        "code": layout.code if body["code"] or layout.shared else "",
        "inputs": {role: layout.input(role) for role in body["inputs"]},
        "outputs": {name: layout.output(name) for name in body["outputs"]},
        "checkpoints": layout.checkpoints,
    }
    if layout.shared:
        fields["outbox"] = layout.below("outbox")
    else:
        fields |= {
            "address": address,
            "stage": _build_stage_commands(body, layout),
            "after": _build_publish_commands(body, layout),
        }
    return build_document(attempt, **fields)


def _build_stage_commands(body: JobBody, layout: AttemptLayout) -> list[list[str]]:
    """Commands that bring code and inputs onto the node, into the slot's own folder, with the attempt's own token."""
    ref_by_path = {layout.code: body["code"]} if body["code"] else {}
    ref_by_path |= {layout.input(role): ref for role, ref in body["inputs"].items()}
    return [
        [*_build_catalog_command(body), "checkout", str(ref), f"{FOLDER_PLACEHOLDER}/{path}"]
        for path, ref in ref_by_path.items()
    ]


def _build_publish_commands(body: JobBody, layout: AttemptLayout) -> list[list[str]]:
    """Commands that publish what it made."""
    input_flags = [argument for role, ref in list_sources(body).items() for argument in ("--inputs", f"{role}={ref}")]
    return [
        [
            *_build_catalog_command(body),
            "publish",
            str(Ref.parse(ref).bare),
            f"{FOLDER_PLACEHOLDER}/{layout.output(name)}",
            *input_flags,
        ]
        for name, ref in body["outputs"].items()
    ]


def _build_catalog_command(body: JobBody) -> list[str]:
    """The words after the interpreter, which is the launcher's own."""
    purpose = body["who"]["purpose"]
    return ["-m", "falaj", *([f"--purpose={purpose}"] if purpose else []), "catalog"]


def list_sources(body: JobBody) -> dict[str, str]:
    """What its outputs are made from: inputs and code, pinned, and the run."""
    code = {"code": body["code"]} if body["code"] else {}
    return {**body["inputs"], **code, "run": body["run"]}
