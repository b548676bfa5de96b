"""Endpoints and replicas as they lie in their records, and as people see them.

A replica is a record of its own beside its job: `replica:PROJECT/ENDPOINT-r3-7` and `job:PROJECT/ENDPOINT-r3-7`. Both
are written in one transaction; the record goes when the replica is over, and the job with its logs stays.
"""

from collections.abc import Iterable, Mapping
from dataclasses import fields
from typing import Any

from falaj.core.context import SYSTEM_TENANT, CallContext
from falaj.core.errors import Invalid
from falaj.core.event import generate_id
from falaj.core.ports import RecordKey
from falaj.core.ref import Ref
from falaj.fleet.fleet_use import iter_records, make_system_key
from falaj.jobs.records import JobView
from falaj.serve.records import (
    READY,
    RUNNING,
    SHADOW,
    STARTING,
    EndpointReplica,
    EndpointRevision,
    EndpointRules,
    EndpointView,
    GatewayAddresses,
    ReplicaNeeds,
    Rollout,
    ScalePolicy,
)
from falaj.serve.replica_certificate import ReplicaCertificate
from falaj.store.codec import from_plain, to_plain
from falaj.store.ledger import Ledger, LedgerReader
from falaj.store.records import LedgerRecord

ENDPOINT_KIND, REPLICA_KIND = "endpoint", "replica"
BASE_ARM = "base"
CERT_VARIABLE = "FALAJ_PARAM_HOP_CERT"
"""Given to replicas that listen for other machines."""
GATEWAY_ADDRESS_KEY = make_system_key("gateway", "doors")
RecordFields = dict[str, Any]
_REVISION_FIELDS = tuple(revision_field.name for revision_field in fields(EndpointRevision))


def public_name(ref: Ref) -> str:
    """What clients call the model."""
    return f"{ref.project}.{ref.name}"


def create_endpoint_body(
    ctx: CallContext,
    zone: str,
    key: Ref,
    key_versions: tuple[int, int] = (1, 1),
    cert: ReplicaCertificate | None = None,
    reader_digest: str = "",
) -> RecordFields:
    """The record of an endpoint that has no revision yet.

    `key` names what gateways and replicas prove themselves with; beside it, with .tls behind its name, lies the private
    key of the replicas' certificate. `key_versions` are their versions: who rotates them changes nothing under way.
    `reader_digest` is the SHA-256 of the password with which replicas sign in at the online store
    (core/online_rows.py).
    """
    secret_prefix = f"secret://{ctx.tenant}/{zone}/{key.project}/{key.name}"
    certificate_fields = {"cert": cert.cert if cert else "", "fingerprint": cert.fingerprint if cert else ""}
    return {
        "id": generate_id(),
        "zone": zone,
        "key": f"{secret_prefix}#{key_versions[0]}",
        "private": f"{secret_prefix}.tls#{key_versions[1]}",
        **certificate_fields,
        "reader": reader_digest,
        "revisions": [],
        "trail": [],
        "asked": 0,
        "current": 0,
        "wanted": 0,
        "before": 0,
        "switched": 0.0,
        "scale": to_plain(ScalePolicy()),
        "rules": to_plain(EndpointRules()),
        "rollout": None,
        "stopped": False,
        "removed": False,
        "note": "",
        "woken": 0.0,
        "trouble": {},
        "made_at": ctx.now(),
    }


def build_endpoint_terms(ref: Ref, body: RecordFields) -> dict[str, str]:
    """What lists, the loop and the gateway can ask for."""
    return {
        "live": "1",
        "id": str(body["id"]),
        "name": public_name(ref),
        "state": "stopped" if body["stopped"] else "open",
    }


def build_revision_body(
    revision: EndpointRevision, submitter: RecordFields, stage: str, defaults: Mapping[str, Any]
) -> RecordFields:
    """A revision as it is kept: with whose rights it runs, and the stage it was approved for, if any."""
    return {**to_plain(revision), "who": submitter, "stage": stage, "defaults": dict(defaults)}


def require_endpoint(reader: LedgerReader, endpoint: Ref) -> LedgerRecord:
    """The endpoint of this name."""
    if endpoint.kind != ENDPOINT_KIND:
        raise Invalid(f"{endpoint} names no endpoint", "for example endpoint:fraud/score", endpoint)
    return reader.need(endpoint.bare)


def find_revision(body: RecordFields, number: int) -> RecordFields | None:
    """A revision as it is kept, by its number."""
    return next((revision_fields for revision_fields in body["revisions"] if revision_fields["number"] == number), None)


def to_revision(revision_fields: RecordFields) -> EndpointRevision:
    """The same as people see it."""
    revision: EndpointRevision = from_plain(
        EndpointRevision, {name: revision_fields[name] for name in _REVISION_FIELDS if name in revision_fields}
    )
    return revision


def read_scale(body: RecordFields) -> ScalePolicy:
    """How an endpoint scales."""
    scale: ScalePolicy = from_plain(ScalePolicy, body["scale"])
    return scale


def read_rules(body: RecordFields) -> EndpointRules:
    """What its callers are held to."""
    rules: EndpointRules = from_plain(EndpointRules, body["rules"])
    return rules


def read_rollout(body: RecordFields) -> Rollout | None:
    """The roll-out that runs, or the one that was last."""
    return from_plain(Rollout, body["rollout"]) if body["rollout"] else None


def read_running_rollout(body: RecordFields) -> Rollout | None:
    """The roll-out that runs."""
    rollout = read_rollout(body)
    return rollout if rollout is not None and rollout.state == RUNNING else None


def read_shares(body: RecordFields) -> dict[str, tuple[int, float]]:
    """Arm to revision and share of the traffic. An endpoint that was never ready has its first revision."""
    trial = read_running_rollout(body)
    if trial is not None and trial.kind != SHADOW:
        return {arm: (trial.arms[arm], share) for arm, share in trial.shares.items() if arm in trial.arms}
    return {BASE_ARM: (body["current"] or body["wanted"], 1.0)}


def read_shadow(body: RecordFields) -> tuple[int, float] | None:
    """The revision whose answers nobody sees, and its share of copies."""
    trial = read_running_rollout(body)
    if trial is None or trial.kind != SHADOW:
        return None
    arm = next((candidate for candidate in trial.arms if candidate != BASE_ARM), "")
    return (trial.arms[arm], trial.shares.get(arm, 1.0)) if arm else None


def replica_name(endpoint: Ref, revision: int, number: int, kind: str = REPLICA_KIND) -> Ref:
    """What a replica, and its job, is called."""
    return Ref(kind, endpoint.project, f"{endpoint.name}-r{revision}-{number}")


def endpoint_of_replica(replica: Ref) -> Ref:
    """The endpoint of a replica, by its name."""
    return Ref(ENDPOINT_KIND, replica.project, replica.name.rsplit("-", 2)[0])


def create_replica_body(endpoint: LedgerRecord, revision: int, number: int, job: JobView, now: float) -> RecordFields:
    """The record of a replica that was just asked for."""
    return {
        "endpoint": endpoint.body["id"],
        "revision": revision,
        "number": number,
        "state": STARTING,
        "attempt": "",
        "run": str(job.run),
        "host": "",
        "port": 0,
        "since": now,
        "note": "",
        "fingerprint": endpoint.body["fingerprint"] if CERT_VARIABLE in job.spec.env else "",
    }


def build_replica_terms(body: RecordFields) -> dict[str, str]:
    """How the replicas of an endpoint are found."""
    return {"endpoint": body["endpoint"]}


def list_replicas(reader: LedgerReader, endpoint: LedgerRecord) -> list[LedgerRecord]:
    """The replicas of an endpoint that are not over, by number."""
    records = iter_records(reader, REPLICA_KIND, endpoint.key.tenant, {"endpoint": str(endpoint.body["id"])})
    return sorted(records, key=lambda record: int(record.body["number"]))


def to_replica(record: LedgerRecord) -> EndpointReplica:
    """A replica as people see it."""
    body = record.body
    address = f"{body['host']}:{body['port']}" if body["port"] else ""
    job = Ref("job", record.key.project, record.key.name)
    return EndpointReplica(record.key.name, body["revision"], body["state"], job, address, body["since"], body["note"])


def describe_state(body: RecordFields, replicas: Iterable[EndpointReplica]) -> str:
    """How an endpoint stands, in one word."""
    replica_list = list(replicas)
    target_revision = body["current"] or body["wanted"]
    if body["stopped"]:
        return "stopped"
    if any(replica.revision == target_revision and replica.state == READY for replica in replica_list):
        return "ready"
    if str(target_revision) in body["trouble"]:
        return "failing"
    return "starting" if replica_list or not body["current"] or body["scale"]["least"] else "asleep"


def to_endpoint_view(
    record: LedgerRecord, replicas: Iterable[LedgerRecord] = (), gateway_addresses: GatewayAddresses | None = None
) -> EndpointView:
    """An endpoint as its people see it."""
    body, shown_replicas, ref = record.body, tuple(map(to_replica, replicas)), record.ref.bare
    url = gateway_addresses.http if gateway_addresses else ""
    return EndpointView(
        ref=ref,
        state=describe_state(body, shown_replicas),
        name=public_name(ref),
        url=f"{url}/v2/models/{public_name(ref)}" if url else "",
        traffic={str(revision): share for revision, share in read_shares(body).values() if share},
        revisions=tuple(map(to_revision, body["revisions"])),
        replicas=shown_replicas,
        scale=read_scale(body),
        rules=read_rules(body),
        rollout=read_rollout(body),
        note=_describe_trouble(body),
        grpc=gateway_addresses.grpc if gateway_addresses else "",
    )


def read_gateway_addresses(reader: LedgerReader) -> GatewayAddresses:
    """Where the gateway is reached, as it last told."""
    record = reader.key(GATEWAY_ADDRESS_KEY)
    addresses: GatewayAddresses = (
        from_plain(GatewayAddresses, {"http": record.body["http"], "grpc": record.body["grpc"]})
        if record
        else GatewayAddresses()
    )
    return addresses


def write_gateway_addresses(ledger: Ledger, ctx: CallContext, addresses: GatewayAddresses) -> None:
    """Write down where a gateway is reached; for the gateway, when it listens."""
    with ledger.write(ctx) as writer:
        old_record = writer.key(GATEWAY_ADDRESS_KEY)
        body = {**to_plain(addresses), "at": ctx.now()}
        new_record = writer.put(GATEWAY_ADDRESS_KEY, body, rev=old_record.rev if old_record else None)
        writer.emit("serve.doors", new_record.ref, tenant=SYSTEM_TENANT, http=addresses.http, grpc=addresses.grpc)


def build_endpoint_key(tenant: str, ref: Ref) -> RecordKey:
    """Under which an endpoint lies."""
    return RecordKey(tenant, ENDPOINT_KIND, ref.project, ref.name)


def read_needs(revision_fields: RecordFields) -> ReplicaNeeds:
    """What replicas of a revision need."""
    needs: ReplicaNeeds = from_plain(ReplicaNeeds, revision_fields["needs"])
    return needs


def _describe_trouble(body: RecordFields) -> str:
    """What its people should know first: what is wrong."""
    notes = [f"revision {number}: {trouble['why']}" for number, trouble in sorted(body["trouble"].items())]
    return "; ".join([*([body["note"]] if body["note"] else []), *notes])
