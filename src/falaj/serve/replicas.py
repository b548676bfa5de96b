"""Replicas: the job of each, what it is told, and what it tells when it is ready."""

import json
import os
from collections.abc import Mapping
from dataclasses import replace
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any

from falaj.asof.space_keys import seal_keys
from falaj.core.context import HOUSE
from falaj.core.errand import Here
from falaj.core.errors import Invalid
from falaj.core.execute import FEATURE_REPLICA, REPLICA, REPLICAS
from falaj.core.ports import Key
from falaj.core.ref import Ref
from falaj.fleet.clusters import open_to
from falaj.fleet.records import Cluster
from falaj.fleet.use import every
from falaj.jobs.records import JobSpec, JobView, RoleSpec
from falaj.jobs.spec import check_variables
from falaj.serve import books
from falaj.serve.records import DRAINING, READY, Needs, Rules
from falaj.store.codec import from_plain, to_plain
from falaj.store.ledger import Ledger, Reader, Writer
from falaj.store.loop import house_context
from falaj.store.records import Record

if TYPE_CHECKING:
    from falaj.serve.deploying import Deploying

DRAIN_S, GRACE_S = 20.0, 30
MOST_BYTES = 100_000
"""Of what a replica is told: it travels as a variable."""
EXPERIMENT = "serving"
SMALL_MACHINE_CORES = 8
"""On a machine with fewer cores a replica asks for a part of one, unless its endpoint says how much."""
COMMAND = ("python", "-m", "falaj.infer")
Asked = tuple[books.Body, Record, int]
"""A revision as it is kept, the record of its model, and the number of the replica."""


def ask(here: Here, desk: "Deploying", endpoint: Ref, body: books.Body, of: Asked, dry: bool = False) -> JobView:
    """Ask for the job of one replica, in the name of whoever `here` acts for."""
    kept, model, number = of
    name = books.replica_name(endpoint, kept["number"], number, "job")
    inputs = {"model": Ref.parse(kept["model"])}
    if kept.get("code"):
        inputs["code"] = Ref.parse(kept["code"])
    near = desk.is_near(str(model.key.tenant), books.needs_in(kept).cluster)
    online = desk.admit_reader(here, str(model.key.tenant), body) if kept.get("features") else ""
    secret = "" if dry or not kept.get("features") else desk.endpoint_secret(str(model.key.tenant), body)
    config = _server_config(here, (online, secret), endpoint, kept, (model, books.rules_in(body), near))
    kind = FEATURE_REPLICA if kept.get("features") else REPLICA
    service = desk.act(here.actor, here.purpose, kind)
    view: JobView = service.jobs.add(name, spec_of(body, kept, config, near=near), inputs=inputs, dry=dry)
    return view


def is_near(tx: Reader, tenant: str, cluster: str = "") -> bool:
    """True when replicas run on the machine of the platform alone: gateways reach them by loopback, in the clear."""
    known: list[Cluster] = [from_plain(Cluster, one.body) for one in every(tx, "cluster", HOUSE)]
    fits = [one for one in known if one.state != "gone" and open_to(one, tenant) and cluster in ("", one.name)]
    return all(one.address.startswith("process:") for one in fits)


class Hearing:
    """Hears what replicas say of themselves, and writes it down; whoever leads the loops."""

    def __init__(self, ledger: Ledger, zone: str) -> None:
        self._ledger = ledger
        self._ctx = house_context("serve", zone)

    def __call__(self, job: Record, facts: tuple[Mapping[str, Any], ...]) -> None:
        """Take note of `serving` and `draining`; the newest counts."""
        told = [fact for fact in facts if fact.get("kind") in ("serving", "draining")]
        attempt = job.body["attempt"]
        if told and attempt is not None and job.body.get("kind") in REPLICAS:
            ctx = replace(self._ctx, tenant=job.key.tenant)
            self._ledger.retry(ctx, lambda tx: self._note(tx, job, attempt["id"], told[-1]))

    def _note(self, tx: Writer, job: Record, attempt: str, fact: Mapping[str, Any]) -> None:
        old = tx.key(Key(job.key.tenant, books.REPLICA, job.key.project, job.key.name))
        if old is None or old.body["state"] == DRAINING:
            return
        if fact["kind"] == "draining":
            body = {**old.body, "state": DRAINING, "note": "it was told to end"}
        elif old.body["state"] == READY and old.body["attempt"] == attempt:
            return  # told twice
        else:
            place = place_of(fact, old.body["fingerprint"], job.body["attempt"]["spots"][0][0].partition("/")[2])
            if place is None:
                return
            body = {**old.body, **place, "state": READY, "attempt": attempt, "note": ""}
            body["since"] = self._ctx.now()
        kept = tx.put(old.key, body, rev=old.rev)
        tx.emit(f"serve.{fact['kind']}", kept.ref, attempt=attempt, host=body["host"], port=body["port"])


def _server_config(
    here: Here, store: tuple[str, str], endpoint: Ref, kept: books.Body, of: tuple[Record, Rules, bool]
) -> str:
    """The configuration of the replica's server, as falaj.infer reads it.

    `store` is the address of the online store, and the endpoint's secret under which the keys of its rows are sealed.
    """
    model, rules, near = of
    needs = books.needs_in(kept)
    one: dict[str, Any] = {
        "name": books.public(endpoint),
        "version": str(kept["number"]),
        "folder": "",
        "files": dict(model.body.get("files", {})),
        "device": "cuda" if needs.gpus else "cpu",
        "threads": needs.threads or max(1, int(cpus_of(needs, near=near))),
        "watch": {"flush_s": rules.tell_s},
    }
    if kept.get("features"):
        service, trained = Ref.parse(kept["features"]), Ref.parse(kept["model"])
        plan = to_plain(here.features.open(service, model=trained).plan)
        address, secret = store
        keys = seal_keys(secret, here.features.unlock(service, model=trained).spaces) if secret else ""
        one["features"] = {
            "online": address, "plan": plan, "defaults": kept["defaults"], "isolate": not near, "keys": keys,
        }  # fmt: skip
    hop = "127.0.0.1:0" if near else "0.0.0.0:0"
    config = {"models": [one], "hop": hop, "drain_s": DRAIN_S, "name": books.public(endpoint)}
    text = json.dumps(config, separators=(",", ":"))
    if len(text) > MOST_BYTES:
        hint = "pack small files together: a model of a few files, or an archive of them"
        raise Invalid(f"what a replica of {endpoint} is told has {len(text)} bytes", hint, endpoint)
    return text


def spec_of(body: books.Body, kept: books.Body, told: str, *, near: bool) -> JobSpec:
    """The job of a replica. On another machine it speaks TLS, with the certificate that gateways expect."""
    needs = books.needs_in(kept)
    check_variables((*needs.env, *needs.secret))  # none of those that we set
    secrets = {**needs.secret, "FALAJ_PARAM_HOP_KEY": body["key"]}
    if not near:
        secrets["FALAJ_PARAM_HOP_PRIVATE"] = body["private"]
    role = RoleSpec("replica", 1, cpus_of(needs, near=near), needs.memory, needs.gpus, tuple(needs.gpu_models))
    return JobSpec(
        command=COMMAND,
        roles=(role,),
        queue=needs.queue,
        band=needs.band,
        env={**needs.env, "FALAJ_PARAM_SERVE": told, **({} if near else {books.CERT: body["cert"]})},
        secrets=secrets,
        image=needs.image,
        cluster=needs.cluster,
        zone=body["zone"],
        grace_s=GRACE_S,
        experiment=EXPERIMENT,
    )


def cpus_of(needs: Needs, *, near: bool) -> float:
    """The cores that a replica asks for. `near`: it runs on the machine of the platform."""
    if needs.cpus or not near:
        return needs.cpus or 1.0
    return min(1.0, len(os.sched_getaffinity(0)) / SMALL_MACHINE_CORES)


def place_of(fact: Mapping[str, Any], fingerprint: str, node: str = "") -> books.Body | None:
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
    strange = host.is_link_local or host.is_multicast or host.is_unspecified
    return None if strange or host.is_loopback == bool(fingerprint) else {"host": str(host), "port": port}
