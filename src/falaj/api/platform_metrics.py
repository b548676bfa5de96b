"""Figures: what every room knows of itself, for /metrics. Counted when somebody reads, within bounds, kept a while.

A room that cannot be counted now keeps its last figures and is named in `falaj_figures_failed`; one that has more than
is counted here is named in `falaj_figures_cut`.
"""

import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

from falaj.api.metrics import (
    COUNTER,
    GAUGE,
    HISTOGRAM,
    MetricFamily,
    MetricRow,
    make_counter,
    make_gauge,
    make_histogram_rows,
    make_labelled_family,
)
from falaj.core import tracing
from falaj.core.context import SYSTEM_TENANT, CallContext
from falaj.core.errors import FalajError
from falaj.core.ports import RecordKey
from falaj.fleet.fleet_use import iter_records, list_tenants
from falaj.store.ledger import LedgerReader
from falaj.store.ledger_statistics import BOUNDS_S
from falaj.store.records import LedgerRecord
from falaj.store.stored_objects import to_stored_object

if TYPE_CHECKING:
    from falaj.server import Server

LIVE_METRICS_TTL_S, STORED_METRICS_TTL_S = 10.0, 300.0
"""How long figures of rooms are kept: those of things that live, and those of all that is kept."""
MAX_TIME_SHARE = 0.02
"""Where there is so much to count that it would take more of the time than this, it is counted less often."""
MAX_COUNTED_RECORDS, MAX_SERIES = 20_000, 200
"""Records of one kind that are counted, and series of one metric."""
SHARED_METRICS_LOOP = "seal"
"""The loop whose leader tells what all replicas share."""
TELEMETRY_WINDOW_S = 120.0
MIB = 1 << 20


class MetricsContext(NamedTuple):
    """What a part counts with."""

    house: "Server"
    tx: LedgerReader
    ctx: CallContext
    tenants: tuple[str, ...]
    cut: set[str]
    """Rooms of which not all was counted."""

    def all(self, service_name: str, kind: str, terms: Mapping[str, str] | None = None) -> Iterator[LedgerRecord]:
        """Records of every tenant, as far as they are counted."""
        record_count = 0
        for tenant in self.tenants:
            for record in islice(iter_records(self.tx, kind, tenant, terms), MAX_COUNTED_RECORDS - record_count + 1):
                record_count += 1
                if record_count > MAX_COUNTED_RECORDS:
                    self.cut.add(service_name)
                    return
                yield record


MetricsCollector = Callable[[MetricsContext], Iterable[MetricFamily]]


class PlatformMetrics:
    """The figures of one house."""

    def __init__(self, server: "Server") -> None:
        self._server = server
        self._lock = threading.Lock()
        self._cached_families: dict[str, tuple[float, list[MetricFamily]]] = {}
        self._failure_counts: Counter[str] = Counter()
        self._truncated_by_service: dict[str, set[str]] = {}

    def families(self) -> list[MetricFamily]:
        """All of them; in a thread, since it reads. Two who ask at once cause one count."""
        with self._lock, self._server.ledger.polling():
            reports_shared = reports_shared_gauges(self._server)
            families = [*_ledger_families(self._server), *_loop_families(self._server), *list_trace_families()]
            if reports_shared and "store" in self._server.desks:
                families += _backup_families(self._server)
            with self._server.ledger.read(self._server.system()) as tx:  # one transaction for all parts
                for service_name, (ttl_s, collect) in METRICS_COLLECTORS.items():
                    if service_name in self._server.desks:
                        collected = self._collect_service(tx, service_name, ttl_s, collect)
                        families += [family for family in collected if reports_shared or family.kind != GAUGE]
            truncated = {
                service_name: 1.0
                for service_names in self._truncated_by_service.values()
                for service_name in service_names
            }
            families.append(
                make_labelled_family(
                    "room", "falaj_figures_cut", "Rooms of which only a part is counted here.", truncated
                )
            )
            help_text = "Times that a room could not be counted."
            return [
                *families,
                make_labelled_family("room", "falaj_figures_failed_total", help_text, self._failure_counts, COUNTER),
            ]

    def _collect_service(
        self, tx: LedgerReader, service_name: str, ttl_s: float, collect: MetricsCollector
    ) -> list[MetricFamily]:
        next_due_at, families = self._cached_families.get(service_name, (0.0, []))
        now = time.monotonic()
        if now < next_due_at:
            return families
        server, ctx, truncated = self._server, self._server.system(), set[str]()
        try:
            tenant_names = tuple(sorted({SYSTEM_TENANT, *list_tenants(server.ledger)}))
            families = list(collect(MetricsContext(server, tx, ctx, tenant_names, truncated)))
            self._truncated_by_service[service_name] = truncated
        except (FalajError, LookupError, TypeError, ValueError):
            # Also records that are not as they are thought to be: no room may hide the others from whoever watches.
            self._failure_counts[service_name] += 1
        finished_at = time.monotonic()
        self._cached_families[service_name] = (finished_at + max(ttl_s, (finished_at - now) / MAX_TIME_SHARE), families)
        return families


def reports_shared_gauges(server: "Server") -> bool:
    """Whether this process tells gauges about what all replicas share: the one that leads the loop SHARED_BY.

    So a sum over replicas counts each thing once. A process that has no such loop is the only one that could tell.
    """
    leads_loop = [loop.leads for loop in server.turned() if loop.loop == SHARED_METRICS_LOOP]
    return not leads_loop or any(leads_loop)


def _ledger_families(server: "Server") -> Iterator[MetricFamily]:
    statistics = server.ledger.counts
    help_text = "Time to make a group of transactions durable."
    yield MetricFamily(
        "falaj_ledger_commit_seconds",
        help_text,
        HISTOGRAM,
        make_histogram_rows({}, BOUNDS_S, statistics.slots, statistics.seconds),
    )
    yield make_counter("falaj_ledger_transactions_total", "Transactions made durable.", statistics.transactions)
    yield make_labelled_family(
        "verb", "falaj_ledger_events_total", "Events written here, by verb.", dict(statistics.events), COUNTER
    )


def _loop_families(server: "Server") -> Iterator[MetricFamily]:
    loop_statuses = server.turned()
    for name, help_text, metric_type, field_name in (
        ("falaj_loop_leads", "Whether this process leads a loop.", GAUGE, "leads"),
        ("falaj_loop_rest_seconds", "How long a loop rests between steps.", GAUGE, "every_s"),
        ("falaj_loop_last_turn_timestamp_seconds", "When a loop last looked, without failing.", GAUGE, "at"),
        ("falaj_loop_steps_total", "Steps of a loop.", COUNTER, "steps"),
        ("falaj_loop_failures_total", "Steps of a loop that failed.", COUNTER, "failures"),
        ("falaj_loop_step_seconds_total", "Time in steps of a loop.", COUNTER, "seconds"),
    ):
        yield make_labelled_family(
            "loop",
            name,
            help_text,
            {loop_status.loop: float(getattr(loop_status, field_name)) for loop_status in loop_statuses},
            metric_type,
        )


def list_trace_families() -> Iterator[MetricFamily]:
    """What became of spans."""
    sent_count, dropped_count = tracing.count_spans()
    yield make_counter("falaj_trace_spans_total", "Spans sent to the collector.", sent_count)
    yield make_counter("falaj_trace_spans_dropped_total", "Spans that were not sent.", dropped_count)


def _job_families(context: MetricsContext) -> Iterator[MetricFamily]:
    from falaj.jobs.records import WAIT_BUCKETS_S

    now, count_by_state, longest_wait_by_queue = context.ctx.now(), Counter[tuple[str, str]](), dict[str, float]()
    for record in context.all("jobs", "job", {"live": "1"}):
        state, queue = record.body["state"], record.body["queue"]
        count_by_state[state, queue] += 1
        if state == "waiting":
            longest_wait_by_queue[queue] = max(longest_wait_by_queue.get(queue, 0.0), now - record.body["submitted"])
    rows = [("", {"state": state, "queue": queue}, count) for (state, queue), count in sorted(count_by_state.items())]
    yield MetricFamily("falaj_jobs", "Jobs that are not over, by state and queue.", GAUGE, rows[:MAX_SERIES])
    yield make_labelled_family(
        "queue", "falaj_jobs_oldest_wait_seconds", "How long the oldest waiting job waits.", longest_wait_by_queue
    )
    job_service = context.house.desks["jobs"]
    yield make_labelled_family(
        "outcome", "falaj_attempts_total", "Attempts that ended, by outcome.", dict(job_service.ended), COUNTER
    )
    help_text = "How long attempts that ended had waited to begin."
    histogram_rows = make_histogram_rows({}, WAIT_BUCKETS_S, job_service.waited, job_service.waited_s)
    yield MetricFamily("falaj_attempts_waited_seconds", help_text, HISTOGRAM, histogram_rows)


def _cluster_families(context: MetricsContext) -> Iterator[MetricFamily]:
    from falaj.fleet.alerts import iter_open_alerts, list_healths

    nodes = list(islice(context.house.desks["clusters"].node_records(context.tx), MAX_COUNTED_RECORDS))
    count_by_state, capacity = Counter[tuple[str, str]](), Counter[tuple[str, str]]()
    for cluster, node_info, _ in nodes:
        count_by_state[
            cluster.name, "drained" if node_info.name in cluster.drained else "open" if node_info.ready else "away"
        ] += 1
        capacity[cluster.name, "gpu"] += 1000 * len(node_info.devices)
        capacity.update(
            {(cluster.name, amount_name): node_info.amounts.get(amount_name, 0) for amount_name in ("cpu", "memory")}
        )
    used_amounts = Counter[tuple[str, str]]()
    for record in context.all("clusters", "job", {"live": "1"}):
        for node, amount_by_cluster in record.body["use"]["nodes"].items():
            used_amounts.update(
                {
                    (node.partition("/")[0], amount_name): amount_by_cluster.get(amount_name, 0)
                    for amount_name in ("cpu", "memory", "gpu")
                }
            )
    rows = [
        ("", {"cluster": metric_name, "state": state}, count)
        for (metric_name, state), count in sorted(count_by_state.items())
    ]
    yield MetricFamily("falaj_cluster_nodes", "Nodes by cluster and state.", GAUGE, rows)
    for amount_name, metric_name, unit_factor in (
        ("cpu", "cpu_cores", 1e-3),
        ("memory", "memory_bytes", MIB),
        ("gpu", "gpus", 1e-3),
    ):
        capacity_by_cluster = {
            cluster: count * unit_factor for (cluster, kind), count in capacity.items() if kind == amount_name
        }
        amount_by_cluster = {
            cluster: used_amounts[cluster, amount_name] * unit_factor for cluster in capacity_by_cluster
        }
        yield make_labelled_family("cluster", f"falaj_cluster_{metric_name}", "What nodes have.", capacity_by_cluster)
        yield make_labelled_family(
            "cluster", f"falaj_cluster_used_{metric_name}", "What jobs hold of it.", amount_by_cluster
        )
    alerts = Counter(str(record.body["kind"]) for record in iter_open_alerts(context.tx, context.tenants))
    yield make_labelled_family("kind", "falaj_cluster_alerts", "Alerts of nodes and jobs that last.", alerts)
    node_names = [f"{cluster.name}/{node_info.name}" for cluster, node_info, _ in nodes]
    score_by_node = {
        node_health.node: float(node_health.score)
        for node_health in list_healths(context.tx, node_names, context.ctx.now())[:MAX_SERIES]
    }
    yield make_labelled_family(
        "node", "falaj_node_health_score", "100 is well, 0 as ill as can be; the most ill nodes.", score_by_node
    )
    yield from _device_families(context, nodes)


def _device_families(context: MetricsContext, nodes: "list[Any]") -> Iterator[MetricFamily]:
    """What telemetry last heard of GPUs, node by node."""
    from falaj.fleet.telemetry_targets import make_node_target

    gpu_nodes = [(cluster, node_info) for cluster, node_info, _ in nodes if node_info.devices][:MAX_SERIES]
    subjects = {
        make_node_target(f"{cluster.name}/{node_info.name}", cluster.zone): 0 for cluster, node_info in gpu_nodes
    }
    telemetry = context.house.desks["clusters"].telemetry
    frames = telemetry.read(subjects, context.ctx.now() - TELEMETRY_WINDOW_S) if subjects else {}
    for name, help_text, column_suffix, unit_factor in (
        ("falaj_node_gpu_busy_ratio", "How busy the GPUs of a node are.", ".busy", 0.01),
        ("falaj_node_gpu_memory_used_bytes", "Memory used on the GPUs of a node, on average.", ".memory", MIB),
    ):
        ratio_by_node = {}
        for subject, frame in frames.items():
            last_values = [
                values[-1] for key, values in frame.columns.items() if key.endswith(column_suffix) and len(values)
            ]
            known_values = [float(value) for value in last_values if not math.isnan(value)]
            if known_values:
                ratio_by_node[subject.name] = unit_factor * sum(known_values) / len(known_values)
        yield make_labelled_family("node", name, help_text, ratio_by_node)


def _audit_families(context: MetricsContext) -> Iterator[MetricFamily]:
    ledger, now = context.house.ledger, context.ctx.now()
    sealed_events = newest_at = oldest_age_s = 0.0
    unsealed_logs = 0
    logs = ledger.logs()
    for tenant, zone in logs[:MAX_SERIES]:
        checkpoint_head = context.tx.key(RecordKey(tenant, "checkpoint", zone, "head"))
        sealed_events += checkpoint_head.body["size"] if checkpoint_head else 0
        newest_at = max(newest_at, checkpoint_head.at if checkpoint_head else 0.0)
        for row in ledger.store.events(
            checkpoint_head.body["pos"] if checkpoint_head else "", tenant=tenant, zone=zone, limit=1
        ):
            unsealed_logs, oldest_age_s = unsealed_logs + 1, max(oldest_age_s, now - row.at)
    if len(logs) > MAX_SERIES:
        context.cut.add("audit")
    yield make_gauge("falaj_audit_logs", "Logs of events: one for each tenant and zone.", len(logs))
    yield make_gauge("falaj_audit_sealed_events", "Events under a checkpoint.", sealed_events)
    yield make_gauge("falaj_audit_unsealed_logs", "Logs with events that no checkpoint holds yet.", unsealed_logs)
    yield make_gauge(
        "falaj_audit_oldest_unsealed_seconds", "Age of the oldest event without a checkpoint.", oldest_age_s
    )
    yield make_gauge("falaj_audit_checkpoint_timestamp_seconds", "When the newest checkpoint was made.", newest_at)


def _store_families(context: MetricsContext) -> Iterator[MetricFamily]:
    bytes_by_state, count_by_state = Counter[tuple[str, str]](), Counter[tuple[str, str]]()
    for record in context.all("store", "object"):
        if record.key.project != "store":
            continue  # where a loop stands, or who writes now
        stored_object = to_stored_object(record)
        if not stored_object.parts:  # what is made of parts holds no bytes of its own
            bytes_by_state[stored_object.zone, stored_object.state] += stored_object.size
            count_by_state[stored_object.zone, stored_object.state] += 1
    for name, help_text, value_by_state in (
        ("falaj_blobs_bytes", "Bytes that are kept, by zone and state.", bytes_by_state),
        ("falaj_blobs_objects", "Objects that are kept, by zone and state.", count_by_state),
    ):
        rows = [("", {"zone": zone, "state": state}, value) for (zone, state), value in sorted(value_by_state.items())]
        yield MetricFamily(name, help_text, GAUGE, rows[:MAX_SERIES])


def _backup_families(server: "Server") -> Iterator[MetricFamily]:
    """When the newest backup was made, and how often one should be; nothing where none was ever wanted."""
    backup_manager = server.storage.kept
    try:
        last_backup = backup_manager.last(server.system()) if backup_manager is not None else {}
    except FalajError:
        return
    interval_s = (
        backup_manager.plan.every_s
        if backup_manager is not None and backup_manager.plan.to
        else float(last_backup.get("every_s", 0.0))
    )
    if interval_s:
        newest_at, help_text = float(last_backup.get("at", 0.0)), "When the newest backup was made; 0: there is none."
        yield make_gauge("falaj_backup_newest_timestamp_seconds", help_text, newest_at)
        yield make_gauge("falaj_backup_every_seconds", "How often a backup should be made.", interval_s)


def _catalog_families(context: MetricsContext) -> Iterator[MetricFamily]:
    kinds = ("dataset", "model", "code")
    count_by_kind = {
        kind: float(sum(bool(record.key.version) for record in context.all("catalog", kind))) for kind in kinds
    }
    yield make_labelled_family("kind", "falaj_catalog_versions", "Versions that are kept, by kind.", count_by_kind)


def _feature_families(context: MetricsContext) -> Iterator[MetricFamily]:
    rows = [
        (
            "",
            {"tenant": record.key.tenant, "stream": f"{record.key.project}/{record.key.name}"},
            record.body["newest_us"] / 1e6,
        )
        for record in context.all("features", "stream", {"stream": "yes"})
    ]
    feature_service = context.house.desks["features"]
    yield make_counter(
        "falaj_feature_reads_total", "Reads of online features through the platform.", feature_service.reads
    )
    yield make_counter("falaj_feature_rows_read_total", "Rows that those reads asked for.", feature_service.rows_read)
    yield make_gauge("falaj_feature_streams", "Streams of rows that feature views keep.", len(rows))
    help_text = "The moment of the newest row of a feature view's stream."
    yield MetricFamily(
        "falaj_feature_newest_timestamp_seconds", help_text, GAUGE, _truncate_rows(context, "features", rows)
    )


def _serving_families(context: MetricsContext) -> Iterator[MetricFamily]:
    count_by_state, ready_by_endpoint = Counter[str](), Counter[str]()
    for record in context.all("serve", "replica"):
        count_by_state[str(record.body["state"])] += 1
        ready_by_endpoint[str(record.body["endpoint"])] += record.body["state"] == "ready"
    endpoint_records = list(context.all("serve", "endpoint"))
    endpoint_states = Counter("stopped" if record.body["stopped"] else "open" for record in endpoint_records)
    yield make_labelled_family("state", "falaj_endpoints", "Endpoints by state.", endpoint_states)
    yield make_labelled_family("state", "falaj_replicas", "Replicas by state.", count_by_state)
    rows = [
        (
            "",
            {"tenant": endpoint_record.key.tenant, "endpoint": str(endpoint_record.ref.bare)},
            float(ready_by_endpoint[str(endpoint_record.body["id"])]),
        )
        for endpoint_record in endpoint_records
    ]
    help_text = "Replicas of an endpoint that answer."
    yield MetricFamily("falaj_endpoint_ready_replicas", help_text, GAUGE, _truncate_rows(context, "serve", rows))


def _monitor_families(context: MetricsContext) -> Iterator[MetricFamily]:
    watch_states = Counter(
        "paused" if record.body["paused"] else str(record.body["state"])
        for record in context.all("monitor", "watch", {"live": "1"})
    )
    yield make_labelled_family("state", "falaj_watches", "Watches of endpoints by state.", watch_states)
    rows = Counter[tuple[str, str]]()
    for record in context.all("monitor", "incident", {"live": "1"}):
        rows[str(record.body["state"]), str(record.body["what"])] += 1
    incident_rows = [("", {"state": state, "what": what}, count) for (state, what), count in sorted(rows.items())]
    yield MetricFamily(
        "falaj_incidents", "Incidents that are not resolved.", GAUGE, _truncate_rows(context, "monitor", incident_rows)
    )


def _flow_families(context: MetricsContext) -> Iterator[MetricFamily]:
    run_states = Counter(str(record.body["state"]) for record in context.all("flows", "turn", {"live": "1"}))
    yield make_labelled_family("state", "falaj_flow_runs", "Runs of flows that are not over.", run_states)
    deliveries_by_state = {
        state: float(sum(1 for _ in context.all("flows", "delivery", {"state": state})))
        for state in ("waiting", "dead")
    }
    yield make_labelled_family(
        "state", "falaj_hook_deliveries", "Deliveries to hooks that wait, or were given up.", deliveries_by_state
    )


def _sweep_families(context: MetricsContext) -> Iterator[MetricFamily]:
    count_by_state = Counter(str(record.body["state"]) for record in context.all("sweeps", "sweep", {"live": "1"}))
    yield make_labelled_family("state", "falaj_sweeps", "Searches for parameters that are not over.", count_by_state)


METRICS_COLLECTORS: Mapping[str, tuple[float, MetricsCollector]] = {
    "jobs": (LIVE_METRICS_TTL_S, _job_families),
    "clusters": (LIVE_METRICS_TTL_S, _cluster_families),
    "audit": (LIVE_METRICS_TTL_S, _audit_families),
    "serve": (LIVE_METRICS_TTL_S, _serving_families),
    "monitor": (LIVE_METRICS_TTL_S, _monitor_families),
    "flows": (LIVE_METRICS_TTL_S, _flow_families),
    "sweeps": (LIVE_METRICS_TTL_S, _sweep_families),
    "features": (LIVE_METRICS_TTL_S, _feature_families),
    "store": (STORED_METRICS_TTL_S, _store_families),
    "catalog": (STORED_METRICS_TTL_S, _catalog_families),
}
"""By the desk they belong to."""


def _truncate_rows(context: MetricsContext, service_name: str, rows: Sequence[MetricRow]) -> Sequence[MetricRow]:
    if len(rows) > MAX_SERIES:
        context.cut.add(service_name)
    return rows[:MAX_SERIES]
