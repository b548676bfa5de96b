"""Writes the dashboards beside this file, one for each audience: `python deploy/grafana/make.py`.

They are data made from the few lines below, so that they stay in step with the names of the metrics;
tests/deploy/test_dashboards.py holds both against what a platform, a gateway and a replica really tell.
"""

# ruff: noqa: E501, INP001 - one panel a line reads best; a program, and no package
import json
from pathlib import Path
from typing import Any, NamedTuple

WIDE, COLUMNS, HIGH = 8, 24, 8
RATE = "[$__rate_interval]"
Q = "histogram_quantile({share}, sum by (le{more}) (rate({name}_bucket{where}{rate})))"


class Panel(NamedTuple):
    """A title, the unit of what is shown, and queries by legend."""

    title: str
    unit: str
    queries: dict[str, str]
    kind: str = "timeseries"
    wide: int = WIDE
    note: str = ""


def rate(name: str, where: str = "") -> str:
    """How much a counter grows in a second."""
    return f"rate({name}{where}{RATE})"


def quantiles(name: str, where: str = "", *shares: float) -> dict[str, str]:
    """Quantiles of a histogram over everything that `where` names."""
    return {
        f"p{share * 100:g}": Q.format(share=share, more="", name=name, where=where, rate=RATE)
        for share in shares or (0.5, 0.95, 0.99)
    }


ENDPOINT = '{endpoint=~"$endpoint"}'
FAILED = 'sum by (endpoint) (rate(falaj_gateway_errors_total{endpoint=~"$endpoint"}[$__rate_interval]))'
ASKED = 'sum by (endpoint) (rate(falaj_gateway_requests_total{endpoint=~"$endpoint"}[$__rate_interval]))'

OVERVIEW = [
    Panel("Up", "short", {"{{job}} {{instance}}": 'up{job=~"falaj.*"}'}, "stat", 6),
    Panel("Incidents", "short", {"": 'sum(falaj_incidents{state="open"}) or vector(0)'}, "stat", 6),
    Panel("Oldest unsealed event", "s", {"": "max(falaj_audit_oldest_unsealed_seconds)"}, "stat", 6),
    Panel("Jobs that wait", "short", {"": 'sum(falaj_jobs{state="waiting"}) or vector(0)'}, "stat", 6),
    Panel("Calls by action", "reqps", {"{{action}}": f"topk(10, sum by (action) ({rate('falaj_requests_total')}))"}),
    Panel(
        "Calls that failed", "percentunit",
        {"5xx": "sum(" + rate("falaj_requests_total", '{status=~"5.."}') + ") / " +
                f"sum({rate('falaj_requests_total')})"},
    ),
    Panel("Time to answer", "s", quantiles("falaj_request_seconds")),
    Panel("Refused before any verb", "reqps", {"{{reason}}": f"sum by (reason) ({rate('falaj_refused_total')})"}),
    Panel("Time to make durable", "s", quantiles("falaj_ledger_commit_seconds", "", 0.5, 0.99)),
    Panel("Events by verb", "ops", {"{{verb}}": f"topk(10, sum by (verb) ({rate('falaj_ledger_events_total')}))"}),
    Panel(
        "Transactions in one commit", "short",
        {"": f"sum({rate('falaj_ledger_transactions_total')}) / sum({rate('falaj_ledger_commit_seconds_count')})"},
    ),
    Panel("Loops: share of time at work", "percentunit",
          {"{{loop}}": f"sum by (loop) ({rate('falaj_loop_step_seconds_total')})"}),
    Panel("Loops: steps that failed", "ops", {"{{loop}}": f"sum by (loop) ({rate('falaj_loop_failures_total')})"}),
    Panel("Lanes", "short", {"waiting": "sum(falaj_lane_waiting)", "streams": "sum(falaj_open_event_streams)"}),
    Panel("Bytes kept", "bytes", {"{{zone}} {{state}}": "max by (zone, state) (falaj_blobs_bytes)"}),
    Panel("Versions kept", "short", {"{{kind}}": "max by (kind) (falaj_catalog_versions)"}),
    Panel("Memory", "bytes", {"{{job}} {{instance}}": 'process_resident_memory_bytes{job=~"falaj.*"}'}),
    Panel("Processor", "short",
          {"{{job}} {{instance}}": 'rate(process_cpu_seconds_total{job=~"falaj.*"}[$__rate_interval])'}),
    Panel("Spans that were not sent", "ops", {"{{instance}}": f"sum by (instance) ({rate('falaj_trace_spans_dropped_total')})"}),
]  # fmt: skip
ENDPOINTS = [
    Panel("Requests", "reqps", {"{{endpoint}} {{class}}": "sum by (endpoint, class) (" + rate("falaj_gateway_requests_total", ENDPOINT) + ")"}),
    Panel("Errors", "percentunit", {"{{endpoint}}": f"{FAILED} / {ASKED}"}),
    Panel("Time to answer", "s", quantiles("falaj_gateway_request_seconds", ENDPOINT)),
    Panel("Traffic by revision", "reqps", {"{{endpoint}} r{{revision}} {{arm}}": "sum by (endpoint, revision, arm) (" + rate("falaj_gateway_requests_total", ENDPOINT) + ")"}),
    Panel("p95 by revision", "s", {"{{endpoint}} r{{revision}}": Q.format(share=0.95, more=", endpoint, revision", name="falaj_gateway_request_seconds", where=ENDPOINT, rate=RATE)}),
    Panel("In flight and held", "short", {"{{endpoint}} in flight": "sum by (endpoint) (falaj_gateway_in_flight" + ENDPOINT + ")", "{{endpoint}} held": "sum by (endpoint) (falaj_gateway_held" + ENDPOINT + ")"}),
    Panel("Replicas that answer", "short", {"{{endpoint}}": "max by (endpoint) (falaj_endpoint_ready_replicas" + ENDPOINT + ")"}),
    Panel("Connections to replicas", "short", {"{{instance}} {{state}}": "falaj_gateway_replicas"}),
    Panel("Asked of another replica, too", "reqps", {"{{instance}}": rate("falaj_gateway_retries_total")}),
    Panel("Refused at the gateway", "reqps", {"{{code}}": f"sum by (code) ({rate('falaj_gateway_refused_total')})"}),
    Panel("Waiting for a first replica", "short", {"{{instance}}": "falaj_gateway_waiting"}),
    Panel("Callers connected", "short", {"{{instance}}": "falaj_gateway_connections"}),
    Panel("Replicas: time in line", "s", quantiles("falaj_infer_queue_seconds"), note="of replicas that Prometheus reads"),
    Panel("Replicas: time of a run", "s", quantiles("falaj_infer_compute_seconds")),
    Panel("Replicas: rows of a run", "short", quantiles("falaj_infer_batch_rows", "", 0.5, 0.95)),
]  # fmt: skip
JOBS = [
    Panel("Jobs by state", "short", {"{{state}}": "sum by (state) (max by (state, queue) (falaj_jobs))"}),
    Panel("Jobs by queue", "short", {"{{queue}}": "sum by (queue) (max by (state, queue) (falaj_jobs))"}),
    Panel("Oldest wait", "s", {"{{queue}}": "max by (queue) (falaj_jobs_oldest_wait_seconds)"}),
    Panel("Jobs asked for and ended", "ops", {"{{verb}}": 'sum by (verb) (rate(falaj_ledger_events_total{verb=~"jobs.(add|end|cancel|retry)"}[$__rate_interval]))'}),
    Panel("Attempts that ended", "ops", {"{{outcome}}": f"sum by (outcome) ({rate('falaj_attempts_total')})"}),
    Panel("How long they had waited", "s", {"": f"sum({rate('falaj_attempts_waited_seconds_sum')}) / sum({rate('falaj_attempts_waited_seconds_count')})"}),
    Panel("Nodes", "short", {"{{cluster}} {{state}}": "max by (cluster, state) (falaj_cluster_nodes)"}),
    Panel("Alerts of nodes and jobs", "short", {"{{kind}}": "max by (kind) (falaj_cluster_alerts)"}),
    Panel("GPUs held", "percentunit", {"{{cluster}}": "max by (cluster) (falaj_cluster_used_gpus) / max by (cluster) (falaj_cluster_gpus)"}),
    Panel("Cores held", "percentunit", {"{{cluster}}": "max by (cluster) (falaj_cluster_used_cpu_cores) / max by (cluster) (falaj_cluster_cpu_cores)"}),
    Panel("Memory held", "percentunit", {"{{cluster}}": "max by (cluster) (falaj_cluster_used_memory_bytes) / max by (cluster) (falaj_cluster_memory_bytes)"}),
    Panel("GPUs: how busy", "percentunit", {"{{node}}": "max by (node) (falaj_node_gpu_busy_ratio)"}),
    Panel("GPUs: memory used", "bytes", {"{{node}}": "max by (node) (falaj_node_gpu_memory_used_bytes)"}),
    Panel("The most ill nodes", "short", {"{{node}}": "bottomk(10, max by (node) (falaj_node_health_score))"}, note="100 is well"),
    Panel("Searches for parameters", "short", {"{{state}}": "max by (state) (falaj_sweeps)"}),
]  # fmt: skip
FLOWS = [
    Panel("Watches", "short", {"{{state}}": "max by (state) (falaj_watches)"}),
    Panel("Incidents", "short", {"{{state}} {{what}}": "max by (state, what) (falaj_incidents)"}),
    Panel("Alerts and verdicts", "ops", {"{{verb}}": 'sum by (verb) (rate(falaj_ledger_events_total{verb=~"monitor[.].*"}[$__rate_interval]))'}),
    Panel("Runs of flows", "short", {"{{state}}": "max by (state) (falaj_flow_runs)"}),
    Panel("Begun and ended", "ops", {"{{verb}}": 'sum by (verb) (rate(falaj_ledger_events_total{verb=~"flows[.].*"}[$__rate_interval]))'}),
    Panel("Deliveries to hooks", "short", {"{{state}}": "max by (state) (falaj_hook_deliveries)"}),
    Panel("Reads of online features", "reqps", {"reads": f"sum({rate('falaj_feature_reads_total')})", "rows": f"sum({rate('falaj_feature_rows_read_total')})"}),
    Panel("Age of the newest features", "s", {"{{stream}}": "time() - max by (stream) (falaj_feature_newest_timestamp_seconds > 0)"}),
]  # fmt: skip
LEFT = "1 - falaj:slo_burn:rate30d"
WHICH = "{{slo}} {{endpoint}}{{stream}}"
OBJECTIVES = [
    Panel("Budget of errors that is left", "percentunit", {WHICH: f"sort({LEFT})"}, "stat", COLUMNS, "of 30 days; below 0 the promise is broken"),
    Panel("Used up over time", "percentunit", {WHICH: LEFT}),
    Panel("How fast it goes: an hour", "short", {WHICH: "falaj:slo_burn:rate1h"}, note="at 1 it lasts 30 days; from 14.4 on somebody is called"),
    Panel("How fast it goes: six hours", "short", {WHICH: "falaj:slo_burn:rate6h"}, note="from 6 on somebody is called"),
    Panel("How fast it goes: a day", "short", {WHICH: "falaj:slo_burn:rate1d"}, note="from 3 on there is a ticket"),
    Panel("Went wrong", "percentunit", {WHICH: "falaj:slo_errors:rate5m / (falaj:slo_events:rate5m > 0)"}, note="of the last five minutes"),
    Panel("Versions at work", "short", {"{{version}}": "max by (version) (falaj_platform_replicas)"}),
]  # fmt: skip
BOARDS = {
    "objectives": ("Falaj: objectives", OBJECTIVES),
    "overview": ("Falaj: the platform", OVERVIEW),
    "endpoints": ("Falaj: endpoints", ENDPOINTS),
    "jobs": ("Falaj: jobs and clusters", JOBS),
    "flows": ("Falaj: flows and watches", FLOWS),
}
SOURCE = {"type": "prometheus", "uid": "${source}"}


def dashboard(name: str) -> dict[str, Any]:
    """One dashboard as Grafana takes it."""
    title, panels = BOARDS[name]
    made: list[dict[str, Any]] = []
    x = y = 0
    for number, panel in enumerate(panels, 1):
        if x + panel.wide > COLUMNS:
            x, y = 0, y + HIGH
        made.append(_panel(panel, number, {"x": x, "y": y, "w": panel.wide, "h": HIGH}))
        x += panel.wide
    variables = [{"name": "source", "label": "Prometheus", "type": "datasource", "query": "prometheus"}]
    if name == "endpoints":
        query = "label_values(falaj_gateway_requests_total, endpoint)"
        variables.append(
            {"name": "endpoint", "label": "Endpoint", "type": "query", "datasource": SOURCE, "query": query,
             "refresh": 2, "includeAll": True, "multi": True, "allValue": ".*", "current": {"text": "All", "value": "$__all"}}
        )  # fmt: skip
    return {
        "uid": f"falaj-{name}", "title": title, "tags": ["falaj"], "schemaVersion": 39, "version": 1, "editable": True,
        "refresh": "30s", "time": {"from": "now-6h", "to": "now"}, "timezone": "", "templating": {"list": variables},
        "panels": made,
    }  # fmt: skip


def _panel(panel: Panel, number: int, place: dict[str, int]) -> dict[str, Any]:
    targets = [
        {"refId": chr(65 + index), "expr": expr, "legendFormat": legend or "__auto", "datasource": SOURCE}
        for index, (legend, expr) in enumerate(panel.queries.items())
    ]
    return {
        "id": number, "title": panel.title, "description": panel.note, "type": panel.kind, "gridPos": place,
        "datasource": SOURCE, "targets": targets, "fieldConfig": {"defaults": {"unit": panel.unit}, "overrides": []},
    }  # fmt: skip


def text(name: str) -> str:
    """A dashboard's file."""
    return json.dumps(dashboard(name), indent=1) + "\n"


if __name__ == "__main__":
    for board in BOARDS:
        Path(__file__).with_name(f"{board}.json").write_text(text(board), encoding="utf-8")
