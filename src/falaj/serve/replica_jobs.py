"""Replicas: the job of each, what it is told, and what it tells when it is ready."""

import json
import os
from collections.abc import Mapping
from dataclasses import replace
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any

from falaj.asof.space_keys import encrypt_space_keys
from falaj.core.client_command import Client
from falaj.core.context import SYSTEM_TENANT
from falaj.core.errors import Invalid
from falaj.core.executor import KIND_FEATURE_REPLICA, KIND_REPLICA, REPLICA_KINDS
from falaj.core.ports import RecordKey
from falaj.core.ref import Ref
from falaj.fleet.clusters import is_open_to
from falaj.fleet.fleet_use import iter_records
from falaj.fleet.records import Cluster
from falaj.jobs.records import JobSpec, JobView, RoleSpec
from falaj.jobs.spec import check_variables
from falaj.serve import endpoint_repository
from falaj.serve.records import DRAINING, READY, EndpointRules, ReplicaNeeds
from falaj.store.codec import from_plain, to_plain
from falaj.store.ledger import Ledger, LedgerReader, LedgerWriter
from falaj.store.reconcile_loop import system_context
from falaj.store.records import LedgerRecord

if TYPE_CHECKING:
    from falaj.serve.deploy_operations import DeployOperations

REPLICA_DRAIN_S, JOB_GRACE_S = 20.0, 30
MAX_CONFIG_BYTES = 100_000
"""Of what a replica is told: it travels as a variable."""
EXPERIMENT_NAME = "serving"
SMALL_MACHINE_CORES = 8
"""On a machine with fewer cores a replica asks for a part of one, unless its endpoint says how much."""
REPLICA_COMMAND = ("python", "-m", "falaj.infer")
RequestedReplica = tuple[endpoint_repository.RecordFields, LedgerRecord, int]
"""A revision as it is kept, the record of its model, and the number of the replica."""


def submit_replica_job(
    client: Client,
    serve_service: "DeployOperations",
    endpoint: Ref,
    body: endpoint_repository.RecordFields,
    requested: RequestedReplica,
    is_dry_run: bool = False,
) -> JobView:
    """Ask for the job of one replica, in the name of whoever `client` acts for."""
    revision_fields, model, number = requested
    name = endpoint_repository.replica_name(endpoint, revision_fields["number"], number, "job")
    inputs = {"model": Ref.parse(revision_fields["model"])}
    if revision_fields.get("code"):
        inputs["code"] = Ref.parse(revision_fields["code"])
    is_near_platform = serve_service.is_near(
        str(model.key.tenant), endpoint_repository.read_needs(revision_fields).cluster
    )
    online_address = (
        serve_service.admit_reader(client, str(model.key.tenant), body) if revision_fields.get("features") else ""
    )
    secret = (
        ""
        if is_dry_run or not revision_fields.get("features")
        else serve_service.endpoint_secret(str(model.key.tenant), body)
    )
    config = _build_server_config(
        client,
        (online_address, secret),
        endpoint,
        revision_fields,
        (model, endpoint_repository.read_rules(body), is_near_platform),
    )
    kind = KIND_FEATURE_REPLICA if revision_fields.get("features") else KIND_REPLICA
    act_as = serve_service.act(client.actor, client.purpose, kind)
    job_view: JobView = act_as.jobs.add(
        name,
        build_job_spec(body, revision_fields, config, is_near_platform=is_near_platform),
        inputs=inputs,
        dry=is_dry_run,
    )
    return job_view


def runs_near_platform(reader: LedgerReader, tenant: str, cluster: str = "") -> bool:
    """True when replicas run on the machine of the platform alone: gateways reach them by loopback, in the clear."""
    clusters: list[Cluster] = [
        from_plain(Cluster, cluster_info.body) for cluster_info in iter_records(reader, "cluster", SYSTEM_TENANT)
    ]
    matching = [
        cluster_info
        for cluster_info in clusters
        if cluster_info.state != "gone" and is_open_to(cluster_info, tenant) and cluster in ("", cluster_info.name)
    ]
    return all(cluster_info.address.startswith("process:") for cluster_info in matching)


class ReplicaFactListener:
    """Hears what replicas say of themselves, and writes it down; whoever leads the loops."""

    def __init__(self, ledger: Ledger, zone: str) -> None:
        self._ledger = ledger
        self._context = system_context("serve", zone)

    def __call__(self, job: LedgerRecord, facts: tuple[Mapping[str, Any], ...]) -> None:
        """Take note of `serving` and `draining`; the newest counts."""
        serving_facts = [fact for fact in facts if fact.get("kind") in ("serving", "draining")]
        attempt = job.body["attempt"]
        if serving_facts and attempt is not None and job.body.get("kind") in REPLICA_KINDS:
            ctx = replace(self._context, tenant=job.key.tenant)
            self._ledger.retry(ctx, lambda writer: self._record_fact(writer, job, attempt["id"], serving_facts[-1]))

    def _record_fact(self, writer: LedgerWriter, job: LedgerRecord, attempt_id: str, fact: Mapping[str, Any]) -> None:
        old_replica = writer.key(
            RecordKey(job.key.tenant, endpoint_repository.REPLICA_KIND, job.key.project, job.key.name)
        )
        if old_replica is None or old_replica.body["state"] == DRAINING:
            return
        if fact["kind"] == "draining":
            body = {**old_replica.body, "state": DRAINING, "note": "it was told to end"}
        elif old_replica.body["state"] == READY and old_replica.body["attempt"] == attempt_id:
            return  # told twice
        else:
            replica_address = parse_replica_address(
                fact, old_replica.body["fingerprint"], job.body["attempt"]["spots"][0][0].partition("/")[2]
            )
            if replica_address is None:
                return
            body = {**old_replica.body, **replica_address, "state": READY, "attempt": attempt_id, "note": ""}
            body["since"] = self._context.now()
        new_replica_record = writer.put(old_replica.key, body, rev=old_replica.rev)
        writer.emit(
            f"serve.{fact['kind']}", new_replica_record.ref, attempt=attempt_id, host=body["host"], port=body["port"]
        )


def _build_server_config(
    client: Client,
    address_and_secret: tuple[str, str],
    endpoint: Ref,
    revision_fields: endpoint_repository.RecordFields,
    model_rules_near: tuple[LedgerRecord, EndpointRules, bool],
) -> str:
    """The configuration of the replica's server, as falaj.infer reads it.

    `address_and_secret` is the address of the online store, and the endpoint's secret under which the keys of its rows
    are sealed.
    """
    model, rules, is_near_platform = model_rules_near
    needs = endpoint_repository.read_needs(revision_fields)
    model_config: dict[str, Any] = {
        "name": endpoint_repository.public_name(endpoint),
        "version": str(revision_fields["number"]),
        "folder": "",
        "files": dict(model.body.get("files", {})),
        "device": "cuda" if needs.gpus else "cpu",
        "threads": needs.threads or max(1, int(requested_cpus(needs, is_near_platform=is_near_platform))),
        "watch": {"flush_s": rules.tell_s},
    }
    if revision_fields.get("features"):
        service, model_ref = Ref.parse(revision_fields["features"]), Ref.parse(revision_fields["model"])
        plan = to_plain(client.features.open(service, model=model_ref).plan)
        address, secret = address_and_secret
        keys = encrypt_space_keys(secret, client.features.unlock(service, model=model_ref).spaces) if secret else ""
        model_config["features"] = {
            "online": address,
            "plan": plan,
            "defaults": revision_fields["defaults"],
            "isolate": not is_near_platform,
            "keys": keys,
        }
    upstream_address = "127.0.0.1:0" if is_near_platform else "0.0.0.0:0"
    config = {
        "models": [model_config],
        "hop": upstream_address,
        "drain_s": REPLICA_DRAIN_S,
        "name": endpoint_repository.public_name(endpoint),
    }
    text = json.dumps(config, separators=(",", ":"))
    if len(text) > MAX_CONFIG_BYTES:
        hint = "pack small files together: a model of a few files, or an archive of them"
        raise Invalid(f"what a replica of {endpoint} is told has {len(text)} bytes", hint, endpoint)
    return text


def build_job_spec(
    body: endpoint_repository.RecordFields,
    revision_fields: endpoint_repository.RecordFields,
    config_text: str,
    *,
    is_near_platform: bool,
) -> JobSpec:
    """The job of a replica. On another machine it speaks TLS, with the certificate that gateways expect."""
    needs = endpoint_repository.read_needs(revision_fields)
    check_variables((*needs.env, *needs.secret))  # none of those that we set
    secrets = {**needs.secret, "FALAJ_PARAM_HOP_KEY": body["key"]}
    if not is_near_platform:
        secrets["FALAJ_PARAM_HOP_PRIVATE"] = body["private"]
    role = RoleSpec(
        "replica",
        1,
        requested_cpus(needs, is_near_platform=is_near_platform),
        needs.memory,
        needs.gpus,
        tuple(needs.gpu_models),
    )
    return JobSpec(
        command=REPLICA_COMMAND,
        roles=(role,),
        queue=needs.queue,
        band=needs.band,
        env={
            **needs.env,
            "FALAJ_PARAM_SERVE": config_text,
            **({} if is_near_platform else {endpoint_repository.CERT_VARIABLE: body["cert"]}),
        },
        secrets=secrets,
        image=needs.image,
        cluster=needs.cluster,
        zone=body["zone"],
        grace_s=JOB_GRACE_S,
        experiment=EXPERIMENT_NAME,
    )


def requested_cpus(needs: ReplicaNeeds, *, is_near_platform: bool) -> float:
    """The cores that a replica asks for. `is_near_platform`: it runs on the machine of the platform."""
    if needs.cpus or not is_near_platform:
        return needs.cpus or 1.0
    return min(1.0, len(os.sched_getaffinity(0)) / SMALL_MACHINE_CORES)


def parse_replica_address(
    fact: Mapping[str, Any], fingerprint: str, node: str = ""
) -> endpoint_repository.RecordFields | None:
    """Where a replica says it listens. It runs somebody's model: what it says may be anything.

    One that listens on all addresses of its machine is reached by the name its cluster has for the node.
    """
    try:
        host, port = ip_address(str(fact.get("host", ""))), int(fact.get("port", 0))
    except (ValueError, TypeError):
        return None
    if not 0 < port < 65_536:
        return None
    if host.is_unspecified and fingerprint and node:
        return {"host": node, "port": port}
    is_unusable = host.is_link_local or host.is_multicast or host.is_unspecified
    return None if is_unusable or host.is_loopback == bool(fingerprint) else {"host": str(host), "port": port}
