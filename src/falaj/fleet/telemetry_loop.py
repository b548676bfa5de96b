"""The loop that watches: new samples in, alerts and health out; and the upkeep of what telemetry keeps.

One replica leads. It reads what any of them wrote, so that a node whose launchers report here and there is seen whole;
who leads next reads the last half hour once more, and knows what is open from the records.
"""

import logging
import platform
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from falaj.core.context import SYSTEM_TENANT, CallContext
from falaj.core.errors import FalajError
from falaj.core.executor import NodeInfo
from falaj.fleet import alerts
from falaj.fleet.alert_kinds import FAULT, IDLE, LEAK, AlertSignal
from falaj.fleet.amounts import parse_mebibytes
from falaj.fleet.anomaly import MAX_SILENCE_S, SlotLimit, TargetWatch
from falaj.fleet.clusters import ClusterService
from falaj.fleet.figure_frames import GRID_STEP_S, SUMMED_FIGURES
from falaj.fleet.fleet_use import iter_records, list_tenants
from falaj.fleet.pool_loads import compute_pool_loads
from falaj.fleet.records import Cluster
from falaj.fleet.telemetry import FLUSH_DELAY_S
from falaj.fleet.telemetry_samples import SampleRecorder
from falaj.fleet.telemetry_targets import (
    DAY_S,
    HOUR_S,
    TelemetryTarget,
    make_node_target,
    make_pool_target,
    make_run_target,
)
from falaj.store.ledger import Ledger, LedgerReader
from falaj.store.reconcile_loop import LoopIteration
from falaj.store.records import LedgerRecord
from falaj.worker.telemetry_sampler import AcceleratorDevices, sample_machine

log = logging.getLogger(__name__)
STEP_INTERVAL_S = 15.0
WARM_UP_S, NODE_SILENCE_S = 1800, 300
POOL_INTERVAL_S, POOL_SHARE = 60, 0.02
"""Pools are counted every minute, or less often where there is so much to count that it would take a fiftieth."""
ALERT_TIMEOUTS_S: Mapping[str, int] = {FAULT: DAY_S}
"""An alert of which nobody says anything any more ends after an hour; of broken hardware, after a day."""


@dataclass(frozen=True, slots=True)
class WatchSnapshot:
    """What there is to look at in one step."""

    nodes: Mapping[str, tuple[Cluster, NodeInfo]]
    jobs: tuple[LedgerRecord, ...]
    """Those that hold something."""
    zones: Mapping[str, str]
    lasting: tuple[LedgerRecord, ...]
    """Alerts that are open."""

    @property
    def running(self) -> list[LedgerRecord]:
        """Jobs whose attempt has begun."""
        return [record for record in self.jobs if record.body["attempt"] and record.body["attempt"]["started"]]

    def held(self) -> dict[str, dict[int, LedgerRecord]]:
        """Who has which device of which node."""
        owners: dict[str, dict[int, LedgerRecord]] = {}
        for record in self.running:
            for node, _, devices, _ in record.body["attempt"]["spots"]:
                owners.setdefault(node, {}).update(dict.fromkeys(devices, record))
        return owners

    def runs(self) -> dict[TelemetryTarget, LedgerRecord]:
        """Whose figures there are beside those of nodes."""
        zones = ((record, self.zones.get(record.body["attempt"]["cluster"], record.zone)) for record in self.running)
        return {make_run_target(record.key.tenant, record.body["id"], zone): record for record, zone in zones}


class TelemetryLoop:
    """Watches nodes and runs."""

    name = "telemetry"
    every_s = STEP_INTERVAL_S

    def __init__(self, ledger: Ledger, clusters: ClusterService, folder: str) -> None:
        self._ledger, self._clusters, self._folder = ledger, clusters, folder
        self._telemetry = clusters.telemetry
        self._samples = SampleRecorder(self._telemetry)
        self._devices: AcceleratorDevices | None = None
        self._reset_state(0)

    def step(self, iteration: LoopIteration) -> bool:
        """Sample this machine and the pools, look at what is new, say what changed, tidy what is over."""
        if iteration.token != self._token:
            self._reset_state(iteration.token)
        ctx, now = iteration.ctx, iteration.ctx.now()
        snapshot = self._read_snapshot(ctx)
        device_owners = snapshot.held()
        self._sample_local_nodes(snapshot, device_owners, now)
        self._count_pools(ctx, snapshot)
        self._telemetry.flush()
        self._watch_nodes(ctx, snapshot, device_owners)
        self._watch_runs(ctx, snapshot)
        self._read_to = now - 2 * FLUSH_DELAY_S - 2 * GRID_STEP_S
        self._close_silent_alerts(ctx, snapshot)
        self._compact_targets(ctx, snapshot)
        return False

    def _reset_state(self, token: int) -> None:
        self._token = token
        self._watches: dict[TelemetryTarget, TargetWatch] = {}
        self._read_until: dict[TelemetryTarget, float] = {}
        """Up to when a subject was looked at."""
        self._attempts: dict[TelemetryTarget, str] = {}
        self._is_well_by_node: dict[str, bool] = {}
        self._pools: set[TelemetryTarget] = set()
        self._read_to = self._pools_due_at = 0.0
        self._compacted_hour = 0

    def _read_snapshot(self, ctx: CallContext) -> WatchSnapshot:
        with self._ledger.read(ctx) as tx:
            nodes = {
                f"{node_cluster.name}/{facts.name}": (node_cluster, facts)
                for node_cluster, facts, _ in self._clusters.node_records(tx)
            }
            zones = {name: cluster.zone for name, cluster in self._clusters.known(tx).items()}
            open_alerts = tuple(alerts.iter_open_alerts(tx, {SYSTEM_TENANT, *list_tenants(self._ledger)}))
            return WatchSnapshot(
                nodes, tuple(self._iter_jobs(tx, "starting", "running", "stopping")), zones, open_alerts
            )

    def _iter_jobs(self, tx: LedgerReader, *states: str) -> Iterator[LedgerRecord]:
        for tenant in list_tenants(self._ledger):
            for state in states:
                yield from iter_records(tx, "job", tenant, {"state": state})

    # What nobody else samples.

    def _sample_local_nodes(
        self, snapshot: WatchSnapshot, device_owners: Mapping[str, Mapping[int, LedgerRecord]], now: float
    ) -> None:
        host_name = platform.node()
        for name, (cluster, facts) in snapshot.nodes.items():
            if cluster.address.startswith("process:") and facts.name == host_name == facts.labels.get("host"):
                self._devices = self._devices or AcceleratorDevices(None)
                device_values = self._samples.devices(
                    name, self._devices.read(), [device.index for device in facts.devices]
                )
                # Errors of a device that a launcher watches are counted there.
                counted = {f"{device}.{figure}" for device in device_owners.get(name, ()) for figure in SUMMED_FIGURES}
                device_values = {key: value for key, value in device_values.items() if key not in counted}
                figures = {**self._samples.node(name, sample_machine(self._folder), now), **device_values}
                self._telemetry.put(make_node_target(name, cluster.zone), now, figures, now)

    def _count_pools(self, ctx: CallContext, snapshot: WatchSnapshot) -> None:
        now, began_at = ctx.now(), time.perf_counter()
        if now < self._pools_due_at:
            return
        with self._ledger.read(ctx) as tx:
            waiting = (record.body for record in self._iter_jobs(tx, "waiting"))
            nodes = {name: facts for name, (_, facts) in snapshot.nodes.items()}
            loads = compute_pool_loads(nodes, (record.body for record in snapshot.jobs), waiting)
        for pool, load in loads.items():
            self._pools.add(make_pool_target(pool, ctx.zone))
            self._telemetry.put(make_pool_target(pool, ctx.zone), now, load, now)
        self._pools_due_at = now + max(POOL_INTERVAL_S, (time.perf_counter() - began_at) / POOL_SHARE)

    # What is new.

    def _iter_new_rows(
        self, snapshot: WatchSnapshot, targets: Iterable[TelemetryTarget], now: float
    ) -> Iterator[tuple[TelemetryTarget, int, dict[str, float]]]:
        """Rows that no watch has seen; the newest moments may still grow, and are left for the next step."""
        for target, frame in self._telemetry.read(targets, self._read_to or now - WARM_UP_S).items():
            self._ensure_watch(snapshot, target)
            read_until = self._read_until.get(target, 0.0)
            for sampled_at, figures in frame.between(0, now - 2 * GRID_STEP_S).rows():
                if sampled_at > read_until:
                    self._read_until[target] = sampled_at
                    yield target, sampled_at, figures

    def _watch_nodes(
        self, ctx: CallContext, snapshot: WatchSnapshot, device_owners: Mapping[str, Mapping[int, LedgerRecord]]
    ) -> None:
        names = {make_node_target(name, cluster.zone): name for name, (cluster, _) in snapshot.nodes.items()}
        causes_by_node: dict[str, dict[str, float]] = {}
        for target, sampled_at, figures in self._iter_new_rows(snapshot, names, ctx.now()):
            name, owner_by_device = names[target], device_owners.get(names[target], {})
            owners = {device: record.body["id"] for device, record in owner_by_device.items()}
            for signal in self._watches[target].node(sampled_at, figures, owners):
                device = signal.part.removeprefix("GPU ") if signal.kind in (IDLE, LEAK) else ""
                self._update_alert(
                    ctx, alerts.AlertSubject(name, name, owner_by_device.get(int(device)) if device else None), signal
                )
            for cause, amount in _read_health_causes(figures).items():
                causes_by_node.setdefault(name, {})[cause] = causes_by_node.get(name, {}).get(cause, 0.0) + amount
        for target, name in names.items():
            read_until = self._read_until.get(target, 0.0)
            is_silent = name in device_owners and 0 < read_until < ctx.now() - NODE_SILENCE_S
            is_well = snapshot.nodes[name][1].ready and not is_silent
            if self._is_well_by_node.get(name, is_well) and not is_well:
                causes_by_node.setdefault(name, {})["away"] = 1.0
            self._is_well_by_node[name] = is_well
        for name, amounts in causes_by_node.items():
            alerts.record_health_causes(self._ledger, ctx, name, amounts)

    def _watch_runs(self, ctx: CallContext, snapshot: WatchSnapshot) -> None:
        runs = snapshot.runs()
        limits = {target: _read_slot_limits(record) for target, record in runs.items()}
        for target, record in runs.items():
            if self._attempts.get(target) != record.body["attempt"]["id"]:
                self._attempts[target] = record.body["attempt"]["id"]
                self._watches.pop(target, None)  # what the attempt before did is nothing that this one did
        for target, sampled_at, figures in self._iter_new_rows(snapshot, runs, ctx.now()):
            for signal in self._watches[target].run(sampled_at, figures, limits[target]):
                slot = signal.part.removeprefix("slot ")
                limit = limits[target].get(int(slot)) if slot.isdigit() else None
                self._update_alert(
                    ctx, alerts.AlertSubject(target.name, limit.node if limit else "", runs[target]), signal
                )

    def _ensure_watch(self, snapshot: WatchSnapshot, target: TelemetryTarget) -> None:
        """Begin where another left off: what is open is open, and what was before that has been looked at."""
        if target not in self._watches:
            alert_bodies = [record.body for record in snapshot.lasting if record.body["of"] == target.name]
            self._watches[target] = TargetWatch((body["kind"], body["part"]) for body in alert_bodies)
            moments = [body["opened"] for body in alert_bodies] + [self._read_until.get(target, 0.0)]
            self._read_until[target] = max(moments)

    def _update_alert(self, ctx: CallContext, alert_subject: alerts.AlertSubject, signal: AlertSignal) -> None:
        with self._ledger.write(ctx) as tx:
            alerts.update_alert(tx, alert_subject, signal, ctx.now())

    def _close_silent_alerts(self, ctx: CallContext, snapshot: WatchSnapshot) -> None:
        """Alerts of attempts that are over, of nodes that are gone, and of those nobody speaks of any more."""
        live_attempts, now = {record.body["id"]: record.body["attempt"]["id"] for record in snapshot.running}, ctx.now()
        read_until_by_name = {target.name: read_at for target, read_at in self._read_until.items()}
        for record in snapshot.lasting:
            body = record.body
            last_seen = max(read_until_by_name.get(body["of"], 0.0), body["opened"])
            is_over = bool(body["id"]) and live_attempts.get(body["id"]) != body["attempt"]
            is_gone = bool(body["node"]) and body["node"] not in snapshot.nodes
            if is_over or is_gone or now - last_seen > ALERT_TIMEOUTS_S.get(body["kind"], HOUR_S):
                with self._ledger.write(ctx) as tx:
                    current = tx.key(record.key)
                    if current is not None and not current.body["until"]:
                        alerts.close_alert(tx, current, now)
                for target in [watched for watched in self._watches if watched.name == body["of"]]:
                    del self._watches[target]

    # Upkeep.

    def _compact_targets(self, ctx: CallContext, snapshot: WatchSnapshot) -> None:
        """Once an hour, when the last one is surely told."""
        now = ctx.now()
        if int(now - MAX_SILENCE_S) // HOUR_S == self._compacted_hour:
            return
        targets = {*self._read_until, *self._pools}
        targets |= {make_node_target(name, cluster.zone) for name, (cluster, _) in snapshot.nodes.items()}
        for target in sorted(targets, key=str):
            try:
                self._telemetry.tidy(target, now)
            except FalajError as error:
                log.warning("telemetry was not tidied", extra={"subject": target.name, "reason": str(error)})
        live_names = {record.body["id"] for record in snapshot.jobs} | set(snapshot.nodes)
        for target in [stale for stale in self._read_until if stale.name not in live_names]:
            del self._read_until[target]
            self._watches.pop(target, None)
            self._attempts.pop(target, None)
        for tenant in {SYSTEM_TENANT, *list_tenants(self._ledger)}:
            self._telemetry.expire(tenant, now)
        self._compacted_hour = int(now - MAX_SILENCE_S) // HOUR_S


def _read_slot_limits(record: LedgerRecord) -> dict[int, SlotLimit]:
    roles = record.body["spec"]["roles"]
    rows = ((row[0], roles[row[1]]) for row in record.body["attempt"]["spots"])
    return {
        index: SlotLimit(role["name"], node, float(role["cpus"]), float(parse_mebibytes(role["memory"])))
        for index, (node, role) in enumerate(rows)
    }


def _read_health_causes(figures: Mapping[str, float]) -> dict[str, float]:
    """What a sample takes from a node's health."""
    causes: dict[str, float] = {}
    for name, value in figures.items():
        device, _, figure = name.partition(".")
        if figure in ("xid", "ecc") and value > 0:
            causes[figure] = causes.get(figure, 0.0) + value
        elif figure == "throttled" and value > 0 and figures.get(f"{device}.busy", 0.0) > 0:
            causes["throttle_h"] = causes.get("throttle_h", 0.0) + GRID_STEP_S / HOUR_S
    return causes
