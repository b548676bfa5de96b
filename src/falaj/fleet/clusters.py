"""Clusters: the desk of places where attempts run. Each is one executor's address that an operator declared; nothing
else is ever called. Nodes are what clusters tell of themselves: derived, and written down when they change.
"""

import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Annotated, Any

from falaj.core.context import HOUSE, Actor, Context
from falaj.core.errors import Conflict, Denied, FalajError, Invalid, NotFound
from falaj.core.execute import Executor, NodeFacts
from falaj.core.ports import Series
from falaj.core.settings import Settings
from falaj.core.verb import verb
from falaj.fleet import sandbox
from falaj.fleet.amounts import all_shown
from falaj.fleet.elastic import Elastic
from falaj.fleet.records import Checked, Cluster, NodeView
from falaj.fleet.signs import Signs
from falaj.fleet.use import added, check_tenants, every, house_key, house_of, uses
from falaj.govern.secrets import check_use, contains_secret, names_secret, parse_reference
from falaj.schedule.words import shown
from falaj.store.codec import from_plain, to_plain
from falaj.store.ledger import Ledger, Reader, Writer
from falaj.store.records import Record

Opener = Callable[[str, Mapping[str, Any]], Executor]
_NAME = re.compile(r"[a-z][a-z0-9-]{0,31}")
_ADDRESS = re.compile(r"[a-z][a-z0-9+]{0,15}:[^\s]{0,500}")
_PASSWORD = re.compile(r"//[^/@\s]+:[^/@\s]+@")
_NOTHING: dict[str, str] = {}
_TROUBLE = "trouble"


class Clusters(Signs, Elastic):
    """Where attempts run: declare clusters, look at their nodes, drain them."""

    def __init__(
        self,
        ledger: Ledger,
        opener: Opener,
        resolve: Callable[[Context, str], bytes],
        settings: Settings,
        series: Callable[[], Series],
    ) -> None:
        self._ledger = ledger
        self._series = series
        self._opener = opener
        self._resolve = resolve
        self._zone, self._folder = settings.zone, f"{settings.home}/attempts"
        self._settings, self._caged = settings, sandbox.options_of(settings)
        self._opening = threading.Lock()
        self._open: dict[str, tuple[Cluster, Executor]] = {}

    @verb(group="operate")
    def add(
        self,
        ctx: Context,
        name: Annotated[str, "its name, in small letters"],
        address: Annotated[str, "its executor, for example ray:https://head:8265 or slurm: or kubernetes:"],
        zone: Annotated[str, "the legal zone it stands in; this process' own when left out"] = "",
        more: Annotated[
            dict[str, str], "tenants, folder, checkpoints, and what its executor understands; secrets by reference"
        ] = _NOTHING,
    ) -> Cluster:
        """Declare a cluster: the address of what runs attempts, and the zone it stands in.

        Example:
            falaj clusters add gpu-hall slurm: --zone ae-dubai --more folder=/shared/falaj --more partition=gpu
        """
        if not _NAME.fullmatch(name):
            raise Invalid(f"{name[:60]!r} is no name of a cluster", "small letters, digits and dashes, at most 32")
        made = self._housed(_described(Cluster(name, _checked(address), zone or ctx.zone), more))
        self._try_address(made)
        with self._ledger.write(_house(ctx)) as tx:
            _check_named(tx, made)
            _check_secrets(tx, ctx.actor, made)
            known = _records(tx)
            if not known:
                self._save(tx, self._first(), "clusters.add")
            old = known.get(name)
            if old is not None and old.body["state"] != "gone":
                raise Conflict(f"there is a cluster {name}", f"falaj clusters change {name}")
            return self._save(tx, made, "clusters.add", old)

    @verb(group="operate")
    def change(
        self,
        ctx: Context,
        name: Annotated[str, "the cluster"],
        more: Annotated[dict[str, str], "what to change: address, zone, tenants, folder, state (open, closed), …"],
    ) -> Cluster:
        """Change a cluster: whose jobs it takes, its address, or close it to new ones.

        Example:
            falaj clusters change local --more tenants=bank,clinic --more state=open
        """
        with self._ledger.read(_house(ctx)) as tx:
            planned = self._housed(_described(self._need(tx, name)[0], more))
        if set(more) - {"tenants", "state", "zone"}:
            self._try_address(planned)
        with self._ledger.write(_house(ctx)) as tx:
            old, record = self._need(tx, name)
            made = self._housed(_described(old, more))
            if (made.folder, made.zone) != (old.folder, old.zone):
                self._check_idle(tx, name)
            _check_named(tx, made, old.tenants)
            if (made.address, made.options) != (old.address, old.options):
                _check_secrets(tx, ctx.actor, made)
            return self._save(tx, made, "clusters.change", record)

    @verb(group="operate")
    def remove(self, ctx: Context, name: Annotated[str, "the cluster"]) -> Cluster:
        """Forget a cluster. Nothing may run there.

        Example:
            falaj clusters remove old-hall
        """
        with self._ledger.write(_house(ctx)) as tx:
            old, record = self._need(tx, name)
            self._check_idle(tx, name)
            for node in every(tx, "node", HOUSE, {"cluster": name}):
                tx.delete(node.key, node.rev)
            if (told := tx.key(house_key(_TROUBLE, name))) is not None:
                tx.delete(told.key, told.rev)
            return self._save(tx, replace(old, state="gone"), "clusters.remove", record)

    @verb()
    def list(self, ctx: Context) -> tuple[Cluster, ...]:
        """List the clusters.

        Example:
            falaj clusters list
        """
        with self._ledger.read(house_of(ctx)) as tx:
            known, silent = self.known(tx).values(), self.troubles(tx)
            single_user = sandbox.is_single_user(self._settings, tx)
        return tuple(_shown(ctx, self._seen(cluster, silent, single_user)) for cluster in known)

    @verb()
    def show(self, ctx: Context, name: Annotated[str, "the cluster"]) -> Cluster:
        """Show one cluster.

        Example:
            falaj clusters show local
        """
        with self._ledger.read(house_of(ctx)) as tx:
            found = self._need(tx, name.removeprefix(f"cluster:{HOUSE}/"))[0]
            return _shown(ctx, self._seen(found, self.troubles(tx), sandbox.is_single_user(self._settings, tx)))

    @verb()
    def nodes(self, ctx: Context, cluster: Annotated[str, "of one cluster only"] = "") -> tuple[NodeView, ...]:
        """List nodes: what each has, what of it is in use, and whether it takes work.

        Example:
            falaj clusters nodes --cluster gpu-hall
        """
        with self._ledger.read(house_of(ctx)) as tx:
            known = self.known(tx)
            if cluster and cluster not in known:
                raise _missing(cluster)
            held, silent = uses(self._ledger, tx), self.troubles(tx)
            rows = [row for row in self.node_records(tx) if row[0].name == (cluster or row[0].name)]
        rows = [(where, replace(one, ready=one.ready and where.name not in silent), seen) for where, one, seen in rows]
        return tuple(_node_view(where, facts, seen, held) for where, facts, seen in rows)

    @verb(group="operate")
    def drain(self, ctx: Context, node: Annotated[str, "cluster/node"]) -> Cluster:
        """Let nothing new start on a node; what runs there may end.

        Example:
            falaj clusters drain gpu-hall/node07
        """
        return self._mark(ctx, node, drained=True)

    @verb(group="operate")
    def open(self, ctx: Context, node: Annotated[str, "cluster/node"]) -> Cluster:
        """Let a drained node take work again.

        Example:
            falaj clusters open gpu-hall/node07
        """
        return self._mark(ctx, node, drained=False)

    @verb(group="operate", outside=True)
    def check(self, ctx: Context, name: Annotated[str, "the cluster"]) -> Checked:
        """Talk to a cluster and say what it answers.

        Example:
            falaj clusters check gpu-hall
        """
        with self._ledger.read(_house(ctx)) as tx:
            cluster = self._need(tx, name)[0]
        began = time.monotonic()
        with self._opening:
            self._open.pop(name, None)  # its secrets may be others by now
        try:
            executor = self.executor(ctx, cluster)
            try:
                found, caged = executor.capacity(), sandbox.told(executor)
            finally:
                executor.close()
        except FalajError as error:
            return Checked(name, False, seconds=round(time.monotonic() - began, 3), problem=str(error))
        ready = sum(node.ready for node in found)
        gpus = sum(len(node.devices) for node in found)
        took = round(time.monotonic() - began, 3)
        problem = "" if ready else _no_node(len(found), cluster.address)
        return Checked(name, ready > 0, len(found), ready, gpus, took, problem, sandbox=caged)

    def check_sandbox(self, ctx: Context) -> None:
        """When a server starts: Unavailable where this machine must enforce what it cannot; else what is missing is
        logged, if accounts other than the owner of the folder may run jobs here; so are clusters without a sandbox."""
        with self._ledger.read(_house(ctx)) as tx:
            single_user = sandbox.is_single_user(self._settings, tx)
            known = [self._seen(cluster, {}, single_user) for cluster in self.known(tx).values()]
        for cluster in known:
            if not cluster.address.startswith("process:"):
                sandbox.warn_unsandboxed(cluster.name, cluster.unsandboxed)
            elif self._caged["sandbox"] == "required" or not single_user:
                executor = self.executor(ctx, cluster)
                sandbox.say_at_start(executor)
                executor.close()

    # For the room of jobs.

    def known(self, tx: Reader) -> dict[str, Cluster]:
        """Every cluster by name; a fresh house has one of its own processes."""
        records = _records(tx)
        if not records:
            first = self._first()
            return {first.name: first}
        found = [_cluster(record) for record in records.values()]
        return {cluster.name: cluster for cluster in found if cluster.state != "gone"}

    def node_records(
        self, tx: Reader, clusters: Mapping[str, Cluster] | None = None
    ) -> Iterator[tuple[Cluster, NodeFacts, float]]:
        """Every node, with its cluster and when it was last different; `clusters` where they are known already."""
        known = self.known(tx) if clusters is None else clusters
        for record in every(tx, "node", HOUSE):
            cluster = known.get(record.body["cluster"])
            if cluster is not None:
                yield cluster, from_plain(NodeFacts, record.body["facts"]), record.at

    def write_nodes(self, tx: Writer, cluster: str, facts: Mapping[str, NodeFacts]) -> None:
        """Bring what is kept of a cluster's nodes to what it says now; the same again writes nothing."""
        kept = {record.body["facts"]["name"]: record for record in every(tx, "node", HOUSE, {"cluster": cluster})}
        for name, old in kept.items():
            if name not in facts:
                tx.delete(old.key, old.rev)
        for name, one in facts.items():
            plain, known = to_plain(one), kept.get(name)
            if known is None or known.body["facts"] != plain:
                body = {"cluster": cluster, "facts": plain}
                key = house_key("node", name, cluster)
                tx.put(key, body, rev=known.rev if known else None, terms={"cluster": cluster})

    def troubles(self, tx: Reader) -> dict[str, str]:
        """The clusters that do not answer, and what went wrong."""
        return {record.key.name: record.body["why"] for record in every(tx, _TROUBLE, HOUSE)}

    def write_trouble(self, tx: Writer, cluster: str, why: str) -> None:
        """A cluster does not answer, or (empty) does again; the same again writes nothing."""
        key = house_key(_TROUBLE, cluster)
        old = tx.key(key)
        if why and (old is None or old.body["why"] != why):
            tx.put(key, {"why": why}, rev=old.rev if old else None)
        elif not why and old is not None:
            tx.delete(key, old.rev)

    def executor(self, ctx: Context, cluster: Cluster) -> Executor:
        """The executor of a cluster, opened; secrets in its options are resolved here and kept nowhere. Invalid where
        the installation requires a sandbox and this cluster has none."""
        sandbox.check_requirement(self._caged, cluster.address, cluster.options)
        here = replace(house_of(ctx), zone=cluster.zone)
        options = {
            name: self._resolve(here, value).decode() if value.startswith("secret://") else value
            for name, value in cluster.options.items()
        }
        # Only processes of our own keep their books where attempts lie; others get each attempt's folder with it.
        if not cluster.address.startswith("process:"):
            return self._opener(cluster.address, options)
        own = {"folder": cluster.folder} if cluster.folder else {}
        caged = sandbox.chosen(self._caged, cluster.address, options)
        with self._ledger.read(here) as tx:
            hidden = filter(None, (caged.get("hidden"), *sandbox.find_shared_folders(tx, self.known(tx).values())))
        return self._opener(cluster.address, own | caged | {"hidden": ",".join(hidden)})

    def spoken(self, ctx: Context, cluster: Cluster) -> Executor:
        """The same, opened once and kept, for questions."""
        with self._opening:
            known = self._open.get(cluster.name)
            if known is None or known[0] != cluster:
                known = (cluster, self.executor(ctx, cluster))
                self._open[cluster.name] = known
        return known[1]

    def close(self) -> None:
        """Close what was opened for questions, and write the last telemetry down."""
        if "telemetry" in vars(self):
            self.telemetry.close()
        with self._opening:
            for _, executor in self._open.values():
                executor.close()
            self._open = {}

    def _seen(self, cluster: Cluster, silent: Mapping[str, str], single_user: bool) -> Cluster:
        """A cluster with what is seen of it and never declared."""
        return replace(
            cluster,
            trouble=silent.get(cluster.name, ""),
            unsandboxed=sandbox.unsandboxed(self._caged, cluster.address, cluster.options, single_user),
        )

    def _first(self) -> Cluster:
        """The cluster of a fresh house. It runs where our keys lie, so other tenants may not use it unless an operator
        lets them."""
        return Cluster("local", "process:", self._zone, tenants=(HOUSE,), folder=self._folder)

    def _try_address(self, cluster: Cluster) -> None:
        """Invalid where nothing could ever be run under this address. Nobody is spoken to, and no secret is read."""
        sandbox.check_requirement(self._caged, cluster.address, cluster.options)
        if cluster.address.startswith("slurm:") and not cluster.folder:
            raise Invalid("Slurm needs a folder that its nodes share with the platform", "--more folder=/shared/falaj")
        folder = {"folder": cluster.folder} if cluster.address.startswith("process:") else {}
        try:
            self._opener(cluster.address, {**folder, **cluster.options}).close()
        except Invalid:
            raise
        except FalajError:
            return  # what is missing here may come: the address can be one

    def _check_idle(self, tx: Reader, name: str) -> None:
        busy = sum(any(node.startswith(f"{name}/") for node in use.nodes) for use in uses(self._ledger, tx))
        if busy:
            raise Conflict(f"{busy} jobs run on {name}", f"falaj clusters change {name} --more state=closed, and wait")

    def _housed(self, cluster: Cluster) -> Cluster:
        """Processes of our own machine have their attempts beside ours, unless their address says where; Ray clusters
        belong to a single tenant."""
        scheme, _, rest = cluster.address.partition(":")
        if scheme == "ray":
            alone = sandbox.separate_tenants(cluster.address, cluster.options, cluster.tenants)
            return replace(cluster, tenants=alone)
        if cluster.folder or scheme != "process":
            return cluster
        return replace(cluster, folder=rest.partition("?")[0] or f"{self._folder}-{cluster.name}")

    def _need(self, tx: Reader, name: str) -> tuple[Cluster, Record | None]:
        found = self.known(tx).get(name)
        if found is None:
            raise _missing(name)
        return found, tx.key(house_key("cluster", name))

    def _mark(self, ctx: Context, node: str, *, drained: bool) -> Cluster:
        name, _, which = node.partition("/")
        with self._ledger.write(_house(ctx)) as tx:
            old, record = self._need(tx, name)
            if which not in old.drained and tx.key(house_key("node", which, name)) is None:
                raise NotFound(f"{name} has no node {which[:80]!r}", f"falaj clusters nodes --cluster {name}")
            marked = {*old.drained, which} if drained else {*old.drained} - {which}
            verb_name = "clusters.drain" if drained else "clusters.open"
            return self._save(tx, replace(old, drained=tuple(sorted(marked))), verb_name, record, node=node)

    def _save(self, tx: Writer, cluster: Cluster, said: str, old: Record | None = None, node: str = "") -> Cluster:
        record = tx.put(house_key("cluster", cluster.name), to_plain(cluster), rev=old.rev if old else None)
        tx.emit(said, record.ref, zone=cluster.zone, state=cluster.state, node=node)
        return cluster


def open_to(cluster: Cluster, tenant: str) -> bool:
    """True when this tenant's jobs may run there."""
    return not cluster.tenants or tenant in cluster.tenants or "*" in cluster.tenants


def _check_named(tx: Reader, cluster: Cluster, before: tuple[str, ...] = ()) -> None:
    """NotFound or Invalid where it names a zone or tenants that are not there, or another zone's agent."""
    if tx.key(house_key("zone", cluster.zone)) is None:
        raise NotFound(f"there is no zone {cluster.zone!r:.60}", "falaj zones list shows them")
    check_tenants(tx, set(cluster.tenants) - set(before))
    kind, _, where = cluster.address.partition(":")
    if kind == "agent" and where != cluster.zone:
        raise Invalid(f"the agent of {where[:60]} runs nothing in {cluster.zone}", f"agent:{cluster.zone}, or --zone")


def _check_secrets(tx: Reader, actor: Actor, cluster: Cluster) -> None:
    """Raise Denied unless the caller may use every secret that the executor sends to the cluster's address."""
    for reference in (value for value in cluster.options.values() if value.startswith("secret://")):
        check_use(tx.need(parse_reference(reference), HOUSE), actor, HOUSE)


def _described(cluster: Cluster, more: Mapping[str, str]) -> Cluster:
    changes: dict[str, Any] = {name: more[name] for name in ("zone", "folder", "checkpoints") if name in more}
    for name in ("folder", "checkpoints"):
        if name in more and not more[name].startswith(("/", "~/")) and more[name]:
            raise Invalid(f"the {name} {more[name][:80]!r} begins nowhere", "write the whole path: /shared/falaj")
    if "address" in more:
        changes["address"] = _checked(more["address"])
    if "tenants" in more:
        changes["tenants"] = tuple(sorted(word.strip() for word in more["tenants"].split(",") if word.strip()))
    if "state" in more:
        if more["state"] not in ("open", "closed"):
            raise Invalid(f"{more['state'][:40]!r} is no state of a cluster", "open or closed")
        changes["state"] = more["state"]
    own = ("zone", "folder", "checkpoints", "address", "tenants", "state")
    options = {**cluster.options, **{name: value for name, value in more.items() if name not in own}}
    for name, value in options.items():
        if contains_secret(f"{name}={value}"):
            raise Invalid(f"{name} holds a secret", "put it on the shelf and name it: secret://house/zone/project/name")
        if value.startswith("secret://") and not names_secret(value, HOUSE, zone := changes.get("zone", cluster.zone)):
            raise Invalid(f"{name} names no secret of {zone[:60]}", f"write secret://{HOUSE}/{zone[:60]}/project/name")
    return replace(cluster, options={name: value for name, value in options.items() if value}, **changes)


def _checked(address: str) -> str:
    if not _ADDRESS.fullmatch(address):
        raise Invalid(
            f"{address[:80]!r} is no address", "for example ray:https://head:8265, slurm:, kubernetes:, process:"
        )
    if _PASSWORD.search(address):
        raise Invalid("the address holds a password", "use --more with a reference: secret://house/zone/project/name")
    return address


def _house(ctx: Context) -> Context:
    if ctx.tenant != HOUSE:
        raise Denied("clusters belong to the house", "ask the people who run this installation")
    return ctx


def _missing(name: str) -> NotFound:
    return NotFound(f"there is no cluster {name!r:.60}", "falaj clusters list shows them")


def _records(tx: Reader) -> dict[str, Record]:
    return {record.key.name: record for record in every(tx, "cluster", HOUSE)}


def _no_node(count: int, address: str) -> str:
    """Why a cluster that answers can run nothing."""
    if count:
        return f"it answers, and none of its {count} nodes is ready"
    return f"it answers, and no node has joined it yet ({address.partition(':')[0]}: add nodes to it)"


def _cluster(record: Record) -> Cluster:
    found: Cluster = from_plain(Cluster, record.body)
    return found


def _shown(ctx: Context, cluster: Cluster) -> Cluster:
    """A tenant sees the place; where exactly it answers, and for whom else, is the house's business."""
    if ctx.tenant == HOUSE:
        return cluster
    kind = cluster.address.partition(":")[0]
    tenants = (ctx.tenant,) if cluster.tenants and open_to(cluster, ctx.tenant) else ()
    trouble = "it does not answer" if cluster.trouble else ""
    return Cluster(
        cluster.name, f"{kind}:", cluster.zone, tenants, drained=cluster.drained, state=cluster.state, trouble=trouble
    )  # fmt: skip


def _node_view(cluster: Cluster, facts: NodeFacts, seen: float, held: "list[Any]") -> NodeView:
    name = f"{cluster.name}/{facts.name}"
    here = [use.nodes[name] for use in held if name in use.nodes]
    state = "drained" if facts.name in cluster.drained else "away" if not facts.ready else "open"
    models = ", ".join(sorted({device.model for device in facts.devices}))
    cpu, memory = shown("cpu", facts.amounts.get("cpu", 0)), shown("memory", facts.amounts.get("memory", 0))
    used = {key: value for key, value in added(facts.taken, *here).items() if ":" not in key}
    return NodeView(
        name, "leaving" if facts.leaving and state == "open" else state, cpu, memory, len(facts.devices), models,
        all_shown(used), len(here), cluster.zone, facts.amounts, facts.devices, facts.labels, seen,
    )  # fmt: skip
