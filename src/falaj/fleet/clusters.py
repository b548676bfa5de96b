"""Clusters: the desk of places where attempts run. Each is one executor's address that an operator declared; nothing
else is ever called. Nodes are what clusters tell of themselves: derived, and written down when they change.
"""

import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Annotated, Any

from falaj.core.context import SYSTEM_TENANT, Actor, CallContext
from falaj.core.errors import Conflict, Denied, FalajError, Invalid, NotFound
from falaj.core.executor import Executor, NodeInfo
from falaj.core.operation import operation
from falaj.core.ports import SeriesStore
from falaj.core.settings import Settings
from falaj.fleet import sandbox
from falaj.fleet.amounts import format_amounts
from falaj.fleet.elastic_capacity import ScalingOperations
from falaj.fleet.fleet_use import (
    check_tenants,
    iter_records,
    list_uses,
    make_system_context,
    make_system_key,
    sum_amounts,
)
from falaj.fleet.records import Cluster, ClusterCheck, NodeView
from falaj.fleet.telemetry_operations import TelemetryOperations
from falaj.govern.secret_service import (
    is_reference_in_zone,
    looks_like_secret,
    parse_secret_reference,
    require_secret_use,
)
from falaj.schedule.amount_text import format_amount
from falaj.store.codec import from_plain, to_plain
from falaj.store.ledger import Ledger, LedgerReader, LedgerWriter
from falaj.store.records import LedgerRecord

ExecutorOpener = Callable[[str, Mapping[str, Any]], Executor]
_NAME = re.compile(r"[a-z][a-z0-9-]{0,31}")
_ADDRESS = re.compile(r"[a-z][a-z0-9+]{0,15}:[^\s]{0,500}")
_PASSWORD = re.compile(r"//[^/@\s]+:[^/@\s]+@")
_NO_OPTIONS: dict[str, str] = {}
_TROUBLE = "trouble"


class ClusterService(TelemetryOperations, ScalingOperations):
    """Where attempts run: declare clusters, look at their nodes, drain them."""

    def __init__(
        self,
        ledger: Ledger,
        opener: ExecutorOpener,
        resolve: Callable[[CallContext, str], bytes],
        settings: Settings,
        series: Callable[[], SeriesStore],
    ) -> None:
        self._ledger = ledger
        self._series = series
        self._opener = opener
        self._resolve = resolve
        self._zone, self._folder = settings.zone, f"{settings.home}/attempts"
        self._settings, self._sandbox_options = settings, sandbox.build_options(settings)
        self._open_lock = threading.Lock()
        self._open_executors: dict[str, tuple[Cluster, Executor]] = {}

    @operation(group="operate")
    def add(
        self,
        ctx: CallContext,
        name: Annotated[str, "its name, in small letters"],
        address: Annotated[str, "its executor, for example ray:https://head:8265 or slurm: or kubernetes:"],
        zone: Annotated[str, "the legal zone it stands in; this process' own when left out"] = "",
        more: Annotated[
            dict[str, str], "tenants, folder, checkpoints, and what its executor understands; secrets by reference"
        ] = _NO_OPTIONS,
    ) -> Cluster:
        """Declare a cluster: the address of what runs attempts, and the zone it stands in.

        Example:
            falaj clusters add gpu-hall slurm: --zone ae-dubai --more folder=/shared/falaj --more partition=gpu
        """
        if not _NAME.fullmatch(name):
            raise Invalid(f"{name[:60]!r} is no name of a cluster", "small letters, digits and dashes, at most 32")
        cluster = self._with_default_folder(
            _apply_options(Cluster(name, _check_address(address), zone or ctx.zone), more)
        )
        self._probe_address(cluster)
        with self._ledger.write(_require_system_tenant(ctx)) as tx:
            _check_named(tx, cluster)
            _check_secrets(tx, ctx.actor, cluster)
            records_by_name = _read_records(tx)
            if not records_by_name:
                self._save_cluster(tx, self._make_default_cluster(), "clusters.add")
            previous = records_by_name.get(name)
            if previous is not None and previous.body["state"] != "gone":
                raise Conflict(f"there is a cluster {name}", f"falaj clusters change {name}")
            return self._save_cluster(tx, cluster, "clusters.add", previous)

    @operation(group="operate")
    def change(
        self,
        ctx: CallContext,
        name: Annotated[str, "the cluster"],
        more: Annotated[dict[str, str], "what to change: address, zone, tenants, folder, state (open, closed), …"],
    ) -> Cluster:
        """Change a cluster: whose jobs it takes, its address, or close it to new ones.

        Example:
            falaj clusters change local --more tenants=bank,clinic --more state=open
        """
        with self._ledger.read(_require_system_tenant(ctx)) as tx:
            planned_cluster = self._with_default_folder(_apply_options(self._find_cluster(tx, name)[0], more))
        if set(more) - {"tenants", "state", "zone"}:
            self._probe_address(planned_cluster)
        with self._ledger.write(_require_system_tenant(ctx)) as tx:
            previous, record = self._find_cluster(tx, name)
            changed = self._with_default_folder(_apply_options(previous, more))
            if (changed.folder, changed.zone) != (previous.folder, previous.zone):
                self._check_idle(tx, name)
            _check_named(tx, changed, previous.tenants)
            if (changed.address, changed.options) != (previous.address, previous.options):
                _check_secrets(tx, ctx.actor, changed)
            return self._save_cluster(tx, changed, "clusters.change", record)

    @operation(group="operate")
    def remove(self, ctx: CallContext, name: Annotated[str, "the cluster"]) -> Cluster:
        """Forget a cluster. Nothing may run there.

        Example:
            falaj clusters remove old-hall
        """
        with self._ledger.write(_require_system_tenant(ctx)) as tx:
            previous, record = self._find_cluster(tx, name)
            self._check_idle(tx, name)
            for node in iter_records(tx, "node", SYSTEM_TENANT, {"cluster": name}):
                tx.delete(node.key, node.rev)
            if (trouble_record := tx.key(make_system_key(_TROUBLE, name))) is not None:
                tx.delete(trouble_record.key, trouble_record.rev)
            return self._save_cluster(tx, replace(previous, state="gone"), "clusters.remove", record)

    @operation()
    def list(self, ctx: CallContext) -> tuple[Cluster, ...]:
        """List the clusters.

        Example:
            falaj clusters list
        """
        with self._ledger.read(make_system_context(ctx)) as tx:
            clusters, troubles = self.known(tx).values(), self.troubles(tx)
            single_user = sandbox.is_single_user(self._settings, tx)
        return tuple(
            _redact_cluster(ctx, self._with_observations(cluster, troubles, single_user)) for cluster in clusters
        )

    @operation()
    def show(self, ctx: CallContext, name: Annotated[str, "the cluster"]) -> Cluster:
        """Show one cluster.

        Example:
            falaj clusters show local
        """
        with self._ledger.read(make_system_context(ctx)) as tx:
            cluster = self._find_cluster(tx, name.removeprefix(f"cluster:{SYSTEM_TENANT}/"))[0]
            return _redact_cluster(
                ctx, self._with_observations(cluster, self.troubles(tx), sandbox.is_single_user(self._settings, tx))
            )

    @operation()
    def nodes(self, ctx: CallContext, cluster: Annotated[str, "of one cluster only"] = "") -> tuple[NodeView, ...]:
        """List nodes: what each has, what of it is in use, and whether it takes work.

        Example:
            falaj clusters nodes --cluster gpu-hall
        """
        with self._ledger.read(make_system_context(ctx)) as tx:
            clusters = self.known(tx)
            if cluster and cluster not in clusters:
                raise _make_not_found(cluster)
            uses_by_job, troubles = list_uses(self._ledger, tx), self.troubles(tx)
            rows = [row for row in self.node_records(tx) if row[0].name == (cluster or row[0].name)]
        rows = [
            (
                node_cluster,
                replace(node_facts, ready=node_facts.ready and node_cluster.name not in troubles),
                changed_at,
            )
            for node_cluster, node_facts, changed_at in rows
        ]
        return tuple(
            _to_node_view(node_cluster, facts, changed_at, uses_by_job) for node_cluster, facts, changed_at in rows
        )

    @operation(group="operate")
    def drain(self, ctx: CallContext, node: Annotated[str, "cluster/node"]) -> Cluster:
        """Let nothing new start on a node; what runs there may end.

        Example:
            falaj clusters drain gpu-hall/node07
        """
        return self._mark_node(ctx, node, drained=True)

    @operation(group="operate")
    def open(self, ctx: CallContext, node: Annotated[str, "cluster/node"]) -> Cluster:
        """Let a drained node take work again.

        Example:
            falaj clusters open gpu-hall/node07
        """
        return self._mark_node(ctx, node, drained=False)

    @operation(group="operate", has_outside_effects=True)
    def check(self, ctx: CallContext, name: Annotated[str, "the cluster"]) -> ClusterCheck:
        """Talk to a cluster and say what it answers.

        Example:
            falaj clusters check gpu-hall
        """
        with self._ledger.read(_require_system_tenant(ctx)) as tx:
            cluster = self._find_cluster(tx, name)[0]
        began_at = time.monotonic()
        with self._open_lock:
            self._open_executors.pop(name, None)  # its secrets may be others by now
        try:
            executor = self.executor(ctx, cluster)
            try:
                nodes, sandbox_text = executor.capacity(), sandbox.describe_executor(executor)
            finally:
                executor.close()
        except FalajError as error:
            return ClusterCheck(name, False, seconds=round(time.monotonic() - began_at, 3), problem=str(error))
        ready = sum(node.ready for node in nodes)
        gpus = sum(len(node.devices) for node in nodes)
        elapsed_s = round(time.monotonic() - began_at, 3)
        problem = "" if ready else _explain_no_nodes(len(nodes), cluster.address)
        return ClusterCheck(name, ready > 0, len(nodes), ready, gpus, elapsed_s, problem, sandbox=sandbox_text)

    def check_sandbox(self, ctx: CallContext) -> None:
        """When a server starts: Unavailable where this machine must enforce what it cannot; else what is missing is
        logged, if accounts other than the owner of the folder may run jobs here; so are clusters without a sandbox."""
        with self._ledger.read(_require_system_tenant(ctx)) as tx:
            single_user = sandbox.is_single_user(self._settings, tx)
            clusters = [self._with_observations(cluster, {}, single_user) for cluster in self.known(tx).values()]
        for cluster in clusters:
            if not cluster.address.startswith("process:"):
                sandbox.warn_unsandboxed(cluster.name, cluster.unsandboxed)
            elif self._sandbox_options["sandbox"] == "required" or not single_user:
                executor = self.executor(ctx, cluster)
                sandbox.warn_unenforced(executor)
                executor.close()

    # For the room of jobs.

    def known(self, tx: LedgerReader) -> dict[str, Cluster]:
        """Every cluster by name; a fresh house has one of its own processes."""
        records = _read_records(tx)
        if not records:
            default_cluster = self._make_default_cluster()
            return {default_cluster.name: default_cluster}
        clusters = [_to_cluster(record) for record in records.values()]
        return {cluster.name: cluster for cluster in clusters if cluster.state != "gone"}

    def node_records(
        self, tx: LedgerReader, clusters: Mapping[str, Cluster] | None = None
    ) -> Iterator[tuple[Cluster, NodeInfo, float]]:
        """Every node, with its cluster and when it was last different; `clusters` where they are known already."""
        cluster_by_name = self.known(tx) if clusters is None else clusters
        for record in iter_records(tx, "node", SYSTEM_TENANT):
            cluster = cluster_by_name.get(record.body["cluster"])
            if cluster is not None:
                yield cluster, from_plain(NodeInfo, record.body["facts"]), record.at

    def write_nodes(self, tx: LedgerWriter, cluster: str, facts: Mapping[str, NodeInfo]) -> None:
        """Bring what is kept of a cluster's nodes to what it says now; the same again writes nothing."""
        record_by_name = {
            record.body["facts"]["name"]: record
            for record in iter_records(tx, "node", SYSTEM_TENANT, {"cluster": cluster})
        }
        for name, previous in record_by_name.items():
            if name not in facts:
                tx.delete(previous.key, previous.rev)
        for name, node_facts in facts.items():
            plain, kept_record = to_plain(node_facts), record_by_name.get(name)
            if kept_record is None or kept_record.body["facts"] != plain:
                body = {"cluster": cluster, "facts": plain}
                key = make_system_key("node", name, cluster)
                tx.put(key, body, rev=kept_record.rev if kept_record else None, terms={"cluster": cluster})

    def troubles(self, tx: LedgerReader) -> dict[str, str]:
        """The clusters that do not answer, and what went wrong."""
        return {record.key.name: record.body["why"] for record in iter_records(tx, _TROUBLE, SYSTEM_TENANT)}

    def write_trouble(self, tx: LedgerWriter, cluster: str, reason: str) -> None:
        """A cluster does not answer, or (empty) does again; the same again writes nothing."""
        key = make_system_key(_TROUBLE, cluster)
        previous = tx.key(key)
        if reason and (previous is None or previous.body["why"] != reason):
            tx.put(key, {"why": reason}, rev=previous.rev if previous else None)
        elif not reason and previous is not None:
            tx.delete(key, previous.rev)

    def executor(self, ctx: CallContext, cluster: Cluster) -> Executor:
        """The executor of a cluster, opened; secrets in its options are resolved here and kept nowhere. Invalid where
        the installation requires a sandbox and this cluster has none."""
        sandbox.check_requirement(self._sandbox_options, cluster.address, cluster.options)
        system_ctx = replace(make_system_context(ctx), zone=cluster.zone)
        options = {
            name: self._resolve(system_ctx, value).decode() if value.startswith("secret://") else value
            for name, value in cluster.options.items()
        }
        # Only processes of our own keep their books where attempts lie; others get each attempt's folder with it.
        if not cluster.address.startswith("process:"):
            return self._opener(cluster.address, options)
        folder_options = {"folder": cluster.folder} if cluster.folder else {}
        sandbox_options = sandbox.merge_options(self._sandbox_options, cluster.address, options)
        with self._ledger.read(system_ctx) as tx:
            hidden = filter(
                None, (sandbox_options.get("hidden"), *sandbox.find_shared_folders(tx, self.known(tx).values()))
            )
        return self._opener(cluster.address, folder_options | sandbox_options | {"hidden": ",".join(hidden)})

    def spoken(self, ctx: CallContext, cluster: Cluster) -> Executor:
        """The same, opened once and kept, for questions."""
        with self._open_lock:
            cached = self._open_executors.get(cluster.name)
            if cached is None or cached[0] != cluster:
                cached = (cluster, self.executor(ctx, cluster))
                self._open_executors[cluster.name] = cached
        return cached[1]

    def close(self) -> None:
        """Close what was opened for questions, and write the last telemetry down."""
        if "telemetry" in vars(self):
            self.telemetry.close()
        with self._open_lock:
            for _, executor in self._open_executors.values():
                executor.close()
            self._open_executors = {}

    def _with_observations(self, cluster: Cluster, troubles: Mapping[str, str], single_user: bool) -> Cluster:
        """A cluster with what is seen of it and never declared."""
        return replace(
            cluster,
            trouble=troubles.get(cluster.name, ""),
            unsandboxed=sandbox.find_unsandboxed(self._sandbox_options, cluster.address, cluster.options, single_user),
        )

    def _make_default_cluster(self) -> Cluster:
        """The cluster of a fresh house. It runs where our keys lie, so other tenants may not use it unless an operator
        lets them."""
        return Cluster("local", "process:", self._zone, tenants=(SYSTEM_TENANT,), folder=self._folder)

    def _probe_address(self, cluster: Cluster) -> None:
        """Invalid where nothing could ever be run under this address. Nobody is spoken to, and no secret is read."""
        sandbox.check_requirement(self._sandbox_options, cluster.address, cluster.options)
        if cluster.address.startswith("slurm:") and not cluster.folder:
            raise Invalid("Slurm needs a folder that its nodes share with the platform", "--more folder=/shared/falaj")
        folder = {"folder": cluster.folder} if cluster.address.startswith("process:") else {}
        try:
            self._opener(cluster.address, {**folder, **cluster.options}).close()
        except Invalid:
            raise
        except FalajError:
            return  # what is missing here may come: the address can be one

    def _check_idle(self, tx: LedgerReader, name: str) -> None:
        busy = sum(any(node.startswith(f"{name}/") for node in use.nodes) for use in list_uses(self._ledger, tx))
        if busy:
            raise Conflict(f"{busy} jobs run on {name}", f"falaj clusters change {name} --more state=closed, and wait")

    def _with_default_folder(self, cluster: Cluster) -> Cluster:
        """Processes of our own machine have their attempts beside ours, unless their address says where; Ray clusters
        belong to a single tenant."""
        scheme, _, rest = cluster.address.partition(":")
        if scheme == "ray":
            single_tenant = sandbox.separate_tenants(cluster.address, cluster.options, cluster.tenants)
            return replace(cluster, tenants=single_tenant)
        if cluster.folder or scheme != "process":
            return cluster
        return replace(cluster, folder=rest.partition("?")[0] or f"{self._folder}-{cluster.name}")

    def _find_cluster(self, tx: LedgerReader, name: str) -> tuple[Cluster, LedgerRecord | None]:
        cluster = self.known(tx).get(name)
        if cluster is None:
            raise _make_not_found(name)
        return cluster, tx.key(make_system_key("cluster", name))

    def _mark_node(self, ctx: CallContext, node: str, *, drained: bool) -> Cluster:
        name, _, node_name = node.partition("/")
        with self._ledger.write(_require_system_tenant(ctx)) as tx:
            previous, record = self._find_cluster(tx, name)
            if node_name not in previous.drained and tx.key(make_system_key("node", node_name, name)) is None:
                raise NotFound(f"{name} has no node {node_name[:80]!r}", f"falaj clusters nodes --cluster {name}")
            marked = {*previous.drained, node_name} if drained else {*previous.drained} - {node_name}
            verb_name = "clusters.drain" if drained else "clusters.open"
            return self._save_cluster(
                tx, replace(previous, drained=tuple(sorted(marked))), verb_name, record, node=node
            )

    def _save_cluster(
        self, tx: LedgerWriter, cluster: Cluster, event_name: str, previous: LedgerRecord | None = None, node: str = ""
    ) -> Cluster:
        record = tx.put(
            make_system_key("cluster", cluster.name), to_plain(cluster), rev=previous.rev if previous else None
        )
        tx.emit(event_name, record.ref, zone=cluster.zone, state=cluster.state, node=node)
        return cluster


def is_open_to(cluster: Cluster, tenant: str) -> bool:
    """True when this tenant's jobs may run there."""
    return not cluster.tenants or tenant in cluster.tenants or "*" in cluster.tenants


def _check_named(tx: LedgerReader, cluster: Cluster, tenants_before: tuple[str, ...] = ()) -> None:
    """NotFound or Invalid where it names a zone or tenants that are not there, or another zone's agent."""
    if tx.key(make_system_key("zone", cluster.zone)) is None:
        raise NotFound(f"there is no zone {cluster.zone!r:.60}", "falaj zones list shows them")
    check_tenants(tx, set(cluster.tenants) - set(tenants_before))
    kind, _, agent_zone = cluster.address.partition(":")
    if kind == "agent" and agent_zone != cluster.zone:
        raise Invalid(
            f"the agent of {agent_zone[:60]} runs nothing in {cluster.zone}", f"agent:{cluster.zone}, or --zone"
        )


def _check_secrets(tx: LedgerReader, actor: Actor, cluster: Cluster) -> None:
    """Raise Denied unless the caller may use every secret that the executor sends to the cluster's address."""
    for reference in (value for value in cluster.options.values() if value.startswith("secret://")):
        require_secret_use(tx.need(parse_secret_reference(reference), SYSTEM_TENANT), actor, SYSTEM_TENANT)


def _apply_options(cluster: Cluster, changed_options: Mapping[str, str]) -> Cluster:
    changes: dict[str, Any] = {
        name: changed_options[name] for name in ("zone", "folder", "checkpoints") if name in changed_options
    }
    for name in ("folder", "checkpoints"):
        if name in changed_options and not changed_options[name].startswith(("/", "~/")) and changed_options[name]:
            raise Invalid(
                f"the {name} {changed_options[name][:80]!r} begins nowhere", "write the whole path: /shared/falaj"
            )
    if "address" in changed_options:
        changes["address"] = _check_address(changed_options["address"])
    if "tenants" in changed_options:
        changes["tenants"] = tuple(
            sorted(tenant.strip() for tenant in changed_options["tenants"].split(",") if tenant.strip())
        )
    if "state" in changed_options:
        if changed_options["state"] not in ("open", "closed"):
            raise Invalid(f"{changed_options['state'][:40]!r} is no state of a cluster", "open or closed")
        changes["state"] = changed_options["state"]
    cluster_fields = ("zone", "folder", "checkpoints", "address", "tenants", "state")
    options = {
        **cluster.options,
        **{name: value for name, value in changed_options.items() if name not in cluster_fields},
    }
    for name, value in options.items():
        if looks_like_secret(f"{name}={value}"):
            raise Invalid(f"{name} holds a secret", "put it on the shelf and name it: secret://house/zone/project/name")
        if value.startswith("secret://") and not is_reference_in_zone(
            value, SYSTEM_TENANT, zone := changes.get("zone", cluster.zone)
        ):
            raise Invalid(
                f"{name} names no secret of {zone[:60]}", f"write secret://{SYSTEM_TENANT}/{zone[:60]}/project/name"
            )
    return replace(cluster, options={name: value for name, value in options.items() if value}, **changes)


def _check_address(address: str) -> str:
    if not _ADDRESS.fullmatch(address):
        raise Invalid(
            f"{address[:80]!r} is no address", "for example ray:https://head:8265, slurm:, kubernetes:, process:"
        )
    if _PASSWORD.search(address):
        raise Invalid("the address holds a password", "use --more with a reference: secret://house/zone/project/name")
    return address


def _require_system_tenant(ctx: CallContext) -> CallContext:
    if ctx.tenant != SYSTEM_TENANT:
        raise Denied("clusters belong to the house", "ask the people who run this installation")
    return ctx


def _make_not_found(name: str) -> NotFound:
    return NotFound(f"there is no cluster {name!r:.60}", "falaj clusters list shows them")


def _read_records(tx: LedgerReader) -> dict[str, LedgerRecord]:
    return {record.key.name: record for record in iter_records(tx, "cluster", SYSTEM_TENANT)}


def _explain_no_nodes(count: int, address: str) -> str:
    """Why a cluster that answers can run nothing."""
    if count:
        return f"it answers, and none of its {count} nodes is ready"
    return f"it answers, and no node has joined it yet ({address.partition(':')[0]}: add nodes to it)"


def _to_cluster(record: LedgerRecord) -> Cluster:
    cluster: Cluster = from_plain(Cluster, record.body)
    return cluster


def _redact_cluster(ctx: CallContext, cluster: Cluster) -> Cluster:
    """A tenant sees the place; where exactly it answers, and for whom else, is the house's business."""
    if ctx.tenant == SYSTEM_TENANT:
        return cluster
    kind = cluster.address.partition(":")[0]
    tenants = (ctx.tenant,) if cluster.tenants and is_open_to(cluster, ctx.tenant) else ()
    trouble = "it does not answer" if cluster.trouble else ""
    return Cluster(
        cluster.name, f"{kind}:", cluster.zone, tenants, drained=cluster.drained, state=cluster.state, trouble=trouble
    )  # fmt: skip


def _to_node_view(cluster: Cluster, facts: NodeInfo, changed_at: float, uses_by_job: "list[Any]") -> NodeView:
    name = f"{cluster.name}/{facts.name}"
    node_uses = [use.nodes[name] for use in uses_by_job if name in use.nodes]
    state = "drained" if facts.name in cluster.drained else "away" if not facts.ready else "open"
    models = ", ".join(sorted({device.model for device in facts.devices}))
    cpu, memory = (
        format_amount("cpu", facts.amounts.get("cpu", 0)),
        format_amount("memory", facts.amounts.get("memory", 0)),
    )
    used = {key: value for key, value in sum_amounts(facts.taken, *node_uses).items() if ":" not in key}
    return NodeView(
        name, "leaving" if facts.leaving and state == "open" else state, cpu, memory, len(facts.devices), models,
        format_amounts(used), len(node_uses), cluster.zone, facts.amounts, facts.devices, facts.labels, changed_at,
    )  # fmt: skip
