"""Reports: capacity, usage, cost and health as tables and plots in the terminal, drawn beside the caller."""

import os
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Annotated, Any, ClassVar, cast

import numpy as np

from falaj.core.client_command import Client, client_command
from falaj.core.data import dataclass
from falaj.core.errors import Invalid
from falaj.fleet.alerts import Alert
from falaj.fleet.amounts import parse_seconds
from falaj.fleet.figure_frames import FloatArray
from falaj.fleet.health import NodeHealth
from falaj.fleet.telemetry_operations import PoolLoad
from falaj.fleet.usage import UsageTable
from falaj.fleet.usage_trend import DAY, forecast_usage
from falaj.track.text_charts import format_bar, plot_curves

KINDS = ("capacity", "usage", "cost", "health")
FORECAST_HOURS = 14 * 24
_CHART_FIELDS = ("money", "gpu_hours", "cpu_hours")
TableRow = Sequence[object]


@dataclass(frozen=True, slots=True)
class TerminalReport:
    """A report: lines for eyes, figures for programs."""

    TEXT: ClassVar[str] = "lines"

    kind: str
    since: str
    lines: tuple[str, ...]
    figures: dict[str, Any] = field(default_factory=dict)


@client_command
def report(
    client: Client,
    kind: Annotated[str, "capacity, usage, cost or health"],
    since: Annotated[str, "how far back: 24h, 7d, 90d"] = "7d",
    most: Annotated[int, "how many lines of each table"] = 20,
) -> TerminalReport:
    """Report on capacity (use, forecast, when a pool runs full), usage (who, idle, wasted), cost, or health.

    Example:
        falaj jobs report capacity --since 28d
        falaj jobs report cost --since 30d
    """
    parse_seconds(since)
    if most < 1:
        raise Invalid(f"{most} lines of each table", "from 1")
    reporters = {"capacity": _report_capacity, "usage": _report_usage, "cost": _report_cost, "health": _report_health}
    if kind not in reporters:
        raise Invalid(f"there is no report {kind[:40]!r}", f"one of {', '.join(KINDS)}")
    lines, figures = reporters[kind](client, since, most)
    return TerminalReport(kind, since, tuple("\n".join(lines).split("\n")), figures)


def _report_capacity(client: Client, since: str, max_rows: int) -> tuple[list[str], dict[str, Any]]:
    pools: tuple[PoolLoad, ...] = client.clusters.pools(since)
    lines, figures = [], dict[str, Any]()
    rows: list[TableRow] = []
    for pool in pools[:max_rows]:
        values = np.array([np.nan if value is None else value for value in pool.hours[:-1]], np.float64)
        prediction = forecast_usage(values, FORECAST_HOURS)
        full_in_hours = prediction.full(pool.capacity) if prediction else (-1, -1)
        stranded = 1 - pool.empty / max(pool.capacity - pool.held, 1e-9) if pool.capacity > pool.held else 0.0
        known_values = values[~np.isnan(values)]
        busy_share = float(known_values.mean() / pool.capacity) if len(known_values) and pool.capacity else 0.0
        rows.append(
            (
                pool.pool,
                f"{pool.capacity:g}",
                f"{pool.held:g}",
                f"{pool.waiting:g}",
                f"{busy_share:.0%}",
                f"{pool.largest:g}",
                f"{stranded:.0%}",
                _format_full_time(full_in_hours),
            )
        )
        figures[pool.pool] = {
            "use": busy_share,
            "full_in_h": full_in_hours[0],
            "full_at_worst_in_h": full_in_hours[1],
            "stranded": stranded,
            "forecast": prediction and {"middle": prediction.middle, "low": prediction.low, "high": prediction.high},
        }
        if len(known_values) > 1:
            days = (len(values) + (FORECAST_HOURS if prediction else 0)) / DAY
            curves = [
                ("in use, by day at most", _find_daily_peaks(values, 0)),
                ("capacity", [(0.0, pool.capacity), (days, pool.capacity)]),
            ]
            if prediction:
                curves.append(("expected", _find_daily_peaks(np.array(prediction.middle), len(values))))
                curves.append(("and 9 of 10 times at most", _find_daily_peaks(np.array(prediction.high), len(values))))
            lines += ["", f"{pool.pool} by day", draw_curves(curves)]
    header = ("pool", "capacity", "in use", "waiting", "mean use", "largest piece", "in pieces", "runs full")
    return [*format_table(header, rows), *lines], figures


def _report_usage(client: Client, since: str, max_rows: int) -> tuple[list[str], dict[str, Any]]:
    names = ("name", "attempts", "gpu_hours", "lost_gpu_hours", "idle_gpu_hours", "cpu_hours", "lost_to")
    return _sum_usage(client, since, max_rows, ("queue", "project", "person"), names)


def _report_cost(client: Client, since: str, max_rows: int) -> tuple[list[str], dict[str, Any]]:
    names = ("name", "money", "gpu_hours", "cpu_hours")
    lines, figures = _sum_usage(client, since, max_rows, ("project", "job", "model"), names)
    if not any(row["money"] for rows in figures.values() for row in rows):
        lines.append("no node has a price: say what one costs an hour by its label `price`, in millionths of money")
    return lines, figures


def _sum_usage(
    client: Client, since: str, max_rows: int, groupings: Sequence[str], names: Sequence[str]
) -> tuple[list[str], dict[str, Any]]:
    lines, figures = list[str](), dict[str, Any]()
    for grouping in groupings:
        usage_rows = cast(UsageTable, client.jobs.usage(grouping, since)).rows
        rows = sorted(usage_rows, key=lambda row: -row.money) if "money" in names else usage_rows
        header = [grouping, *map(_format_title, names[1:])]
        # Drawn by the first of its amounts that anybody has: where there are no GPUs, hours of CPUs tell more.
        chart_field = next(
            (name for name in _CHART_FIELDS if name in names and any(getattr(row, name) for row in rows)), ""
        )
        max_amount = max((getattr(row, chart_field) for row in rows), default=0.0) if chart_field else 0.0
        visible_scopes = [
            [
                *(_format_cell(getattr(row, name)) for name in names),
                format_bar(getattr(row, chart_field) / max_amount) if max_amount else "",
            ]
            for row in rows[:max_rows]
        ]
        lines += [*format_table([*header, _format_title(chart_field)], visible_scopes), ""]
        figures[grouping] = [_to_plain_row(row) for row in rows]
    return lines, figures


def _report_health(client: Client, since: str, max_rows: int) -> tuple[list[str], dict[str, Any]]:
    nodes = cast(tuple[NodeHealth, ...], client.clusters.health(every=True))
    alerts = cast(tuple[Alert, ...], client.clusters.alerts(every=True, since=since))
    ill_nodes = [entry for entry in nodes if entry.verdict != "well"]
    rows = [
        (entry.node, entry.verdict, entry.score, format_bar(entry.score / 100, 10), "; ".join(entry.why), entry.advice)
        for entry in ill_nodes[:max_rows]
    ]
    lines = format_table(("node", "looks", "score", "", "why", "what to do"), rows, "no node looks ill")
    lines += [f"{len(nodes) - len(ill_nodes)} of {len(nodes)} nodes look well", ""]
    alert_rows = [
        (_format_moment(entry.since), _format_moment(entry.until), entry.kind, entry.node, entry.job, entry.text)
        for entry in alerts[:max_rows]
    ]
    lines += format_table(("since", "until", "alert", "node", "job", "what"), alert_rows, "no alerts")
    return lines, {
        "nodes": [_to_plain_row(entry) for entry in nodes],
        "alerts": [_to_plain_row(entry) for entry in alerts],
    }


def _find_daily_peaks(values: FloatArray, first_hour: int) -> list[tuple[float, float]]:
    """The highest of every day, where one was seen."""
    days = [(start, values[start : start + DAY]) for start in range(0, len(values), DAY)]
    return [((first_hour + start) / DAY, float(np.nanmax(day))) for start, day in days if not np.isnan(day).all()]


def format_table(header: TableRow, rows: Sequence[TableRow], empty_text: str = "") -> list[str]:
    """Aligned columns; one that says nothing is left out."""
    if not rows:
        return [empty_text or f"nothing by {header[0]} yet"]
    shown_columns = [column for column in range(len(header)) if any(str(row[column]) for row in rows)]
    texts = [[str(row[column]) for column in shown_columns] for row in (header, *rows)]
    widths = [max(len(row[column]) for row in texts) for column in range(len(shown_columns))]
    return ["  ".join(f"{text:<{width}}" for text, width in zip(row, widths, strict=True)).rstrip() for row in texts]


def draw_curves(curves: Sequence[tuple[str, Sequence[tuple[float, float]]]]) -> str:
    """Curves as wide as the terminal."""
    width = max(20, shutil.get_terminal_size((100, 24)).columns - 14)
    return plot_curves(curves, width, 12, uses_colour=sys.stdout.isatty() and "NO_COLOR" not in os.environ)


def _format_title(name: str) -> str:
    return name.replace("_", " ").replace("gpu", "GPU").replace("cpu", "CPU")


def _format_full_time(full: tuple[int, int]) -> str:
    if full[0] == 0:
        return "now"
    if full[0] > 0:
        return f"in {full[0] / 24:.1f} days"
    return f"perhaps in {full[1] / 24:.1f} days" if full[1] >= 0 else ""


def _format_cell(value: object) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{cause} {amount:g}" for cause, amount in value.items())
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _format_moment(moment: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.gmtime(moment)) if moment else ""


def _to_plain_row(row: Any) -> dict[str, Any]:
    return {name: getattr(row, name) for name in row.__slots__}
