"""Endpoints and replicas as they lie in their records, and as people see them.

A replica is a record of its own beside its job: `replica:PROJECT/ENDPOINT-r3-7` and `job:PROJECT/ENDPOINT-r3-7`. Both
are written in one transaction; the record goes when the replica is over, and the job with its logs stays.
"""

from collections.abc import Iterable, Mapping
from dataclasses import fields
from typing import Any

from falaj.core.context import HOUSE, Context
from falaj.core.errors import Invalid
from falaj.core.event import new_id
from falaj.core.ports import Key
from falaj.core.ref import Ref
from falaj.fleet.use import every, house_key
from falaj.jobs.records import JobView
from falaj.serve.hopcert import HopCert
from falaj.serve.records import (
    READY,
    RUNNING,
    SHADOW,
    STARTING,
    Doors,
    EndpointView,
    Needs,
    Replica,
    Revision,
    Rollout,
    Rules,
    Scale,
)
from falaj.store.codec import from_plain, to_plain
from falaj.store.ledger import Ledger, Reader
from falaj.store.records import Record

ENDPOINT, REPLICA = "endpoint", "replica"
BASE = "base"
CERT = "FALAJ_PARAM_HOP_CERT"
"""Given to replicas that listen for other machines."""
GATEWAY = house_key("gateway", "doors")
Body = dict[str, Any]
_REVISION = tuple(field.name for field in fields(Revision))


def public(ref: Ref) -> str:
    """What clients call the model."""
    return f"{ref.project}.{ref.name}"


def new_endpoint(
    ctx: Context, zone: str, key: Ref, pins: tuple[int, int] = (1, 1), cert: HopCert | None = None, reader: str = ""
) -> Body:
    """The record of an endpoint that has no revision yet.

    `key` names what gateways and replicas prove themselves with; beside it, with .tls behind its name, lies the private
    key of the replicas' certificate. `pins` are their versions: who rotates them changes nothing under way.
    `reader` is the SHA-256 of the password with which replicas sign in at the online store (core/online.py).
    """
    shelf = f"secret://{ctx.tenant}/{zone}/{key.project}/{key.name}"
    shown = {"cert": cert.cert if cert else "", "fingerprint": cert.fingerprint if cert else ""}
    return {
        "id": new_id(), "zone": zone, "key": f"{shelf}#{pins[0]}", "private": f"{shelf}.tls#{pins[1]}", **shown,
        "reader": reader,
        "revisions": [], "trail": [], "asked": 0, "current": 0, "wanted": 0, "before": 0,
        "switched": 0.0, "scale": to_plain(Scale()), "rules": to_plain(Rules()), "rollout": None,
        "stopped": False, "removed": False, "note": "", "woken": 0.0, "trouble": {}, "made_at": ctx.now(),
    }  # fmt: skip


def endpoint_terms(ref: Ref, body: Body) -> dict[str, str]:
    """What lists, the loop and the gateway can ask for."""
    return {"live": "1", "id": str(body["id"]), "name": public(ref), "state": "stopped" if body["stopped"] else "open"}


def revision_body(revision: Revision, who: Body, stage: str, defaults: Mapping[str, Any]) -> Body:
    """A revision as it is kept: with whose rights it runs, and the stage it was approved for, if any."""
    return {**to_plain(revision), "who": who, "stage": stage, "defaults": dict(defaults)}


def need_endpoint(tx: Reader, endpoint: Ref) -> Record:
    """The endpoint of this name."""
    if endpoint.kind != ENDPOINT:
        raise Invalid(f"{endpoint} names no endpoint", "for example endpoint:fraud/score", endpoint)
    return tx.need(endpoint.bare)


def revision_at(body: Body, number: int) -> Body | None:
    """A revision as it is kept, by its number."""
    return next((one for one in body["revisions"] if one["number"] == number), None)


def as_revision(kept: Body) -> Revision:
    """The same as people see it."""
    made: Revision = from_plain(Revision, {name: kept[name] for name in _REVISION if name in kept})
    return made


def scale_in(body: Body) -> Scale:
    """How an endpoint scales."""
    made: Scale = from_plain(Scale, body["scale"])
    return made


def rules_in(body: Body) -> Rules:
    """What its callers are held to."""
    made: Rules = from_plain(Rules, body["rules"])
    return made


def rollout_in(body: Body) -> Rollout | None:
    """The roll-out that runs, or the one that was last."""
    return from_plain(Rollout, body["rollout"]) if body["rollout"] else None


def trial_in(body: Body) -> Rollout | None:
    """The roll-out that runs."""
    found = rollout_in(body)
    return found if found is not None and found.state == RUNNING else None


def shares_in(body: Body) -> dict[str, tuple[int, float]]:
    """Arm to revision and share of the traffic. An endpoint that was never ready has its first revision."""
    trial = trial_in(body)
    if trial is not None and trial.kind != SHADOW:
        return {arm: (trial.arms[arm], share) for arm, share in trial.shares.items() if arm in trial.arms}
    return {BASE: (body["current"] or body["wanted"], 1.0)}


def shadow_in(body: Body) -> tuple[int, float] | None:
    """The revision whose answers nobody sees, and its share of copies."""
    trial = trial_in(body)
    if trial is None or trial.kind != SHADOW:
        return None
    arm = next((one for one in trial.arms if one != BASE), "")
    return (trial.arms[arm], trial.shares.get(arm, 1.0)) if arm else None


def replica_name(endpoint: Ref, revision: int, number: int, kind: str = REPLICA) -> Ref:
    """What a replica, and its job, is called."""
    return Ref(kind, endpoint.project, f"{endpoint.name}-r{revision}-{number}")


def endpoint_of(replica: Ref) -> Ref:
    """The endpoint of a replica, by its name."""
    return Ref(ENDPOINT, replica.project, replica.name.rsplit("-", 2)[0])


def new_replica(endpoint: Record, revision: int, number: int, job: JobView, now: float) -> Body:
    """The record of a replica that was just asked for."""
    return {
        "endpoint": endpoint.body["id"], "revision": revision, "number": number, "state": STARTING, "attempt": "",
        "run": str(job.run), "host": "", "port": 0, "since": now, "note": "",
        "fingerprint": endpoint.body["fingerprint"] if CERT in job.spec.env else "",
    }  # fmt: skip


def replica_terms(body: Body) -> dict[str, str]:
    """How the replicas of an endpoint are found."""
    return {"endpoint": body["endpoint"]}


def replicas_of(tx: Reader, endpoint: Record) -> list[Record]:
    """The replicas of an endpoint that are not over, by number."""
    found = every(tx, REPLICA, endpoint.key.tenant, {"endpoint": str(endpoint.body["id"])})
    return sorted(found, key=lambda one: int(one.body["number"]))


def as_replica(record: Record) -> Replica:
    """A replica as people see it."""
    body = record.body
    address = f"{body['host']}:{body['port']}" if body["port"] else ""
    job = Ref("job", record.key.project, record.key.name)
    return Replica(record.key.name, body["revision"], body["state"], job, address, body["since"], body["note"])


def state_of(body: Body, replicas: Iterable[Replica]) -> str:
    """How an endpoint stands, in one word."""
    known = list(replicas)
    wanted = body["current"] or body["wanted"]
    if body["stopped"]:
        return "stopped"
    if any(one.revision == wanted and one.state == READY for one in known):
        return "ready"
    if str(wanted) in body["trouble"]:
        return "failing"
    return "starting" if known or not body["current"] or body["scale"]["least"] else "asleep"


def view(record: Record, replicas: Iterable[Record] = (), doors: Doors | None = None) -> EndpointView:
    """An endpoint as its people see it."""
    body, shown, ref = record.body, tuple(map(as_replica, replicas)), record.ref.bare
    url = doors.http if doors else ""
    return EndpointView(
        ref=ref,
        state=state_of(body, shown),
        name=public(ref),
        url=f"{url}/v2/models/{public(ref)}" if url else "",
        traffic={str(revision): share for revision, share in shares_in(body).values() if share},
        revisions=tuple(map(as_revision, body["revisions"])),
        replicas=shown,
        scale=scale_in(body),
        rules=rules_in(body),
        rollout=rollout_in(body),
        note=_note(body),
        grpc=doors.grpc if doors else "",
    )


def doors_in(tx: Reader) -> Doors:
    """Where the gateway is reached, as it last told."""
    found = tx.key(GATEWAY)
    made: Doors = from_plain(Doors, {"http": found.body["http"], "grpc": found.body["grpc"]}) if found else Doors()
    return made


def tell_doors(ledger: Ledger, ctx: Context, doors: Doors) -> None:
    """Write down where a gateway is reached; for the gateway, when it listens."""
    with ledger.write(ctx) as tx:
        old = tx.key(GATEWAY)
        body = {**to_plain(doors), "at": ctx.now()}
        kept = tx.put(GATEWAY, body, rev=old.rev if old else None)
        tx.emit("serve.doors", kept.ref, tenant=HOUSE, http=doors.http, grpc=doors.grpc)


def endpoint_key(tenant: str, ref: Ref) -> Key:
    """Under which an endpoint lies."""
    return Key(tenant, ENDPOINT, ref.project, ref.name)


def needs_in(kept: Body) -> Needs:
    """What replicas of a revision need."""
    made: Needs = from_plain(Needs, kept["needs"])
    return made


def _note(body: Body) -> str:
    """What its people should know first: what is wrong."""
    said = [f"revision {number}: {one['why']}" for number, one in sorted(body["trouble"].items())]
    return "; ".join([*([body["note"]] if body["note"] else []), *said])
