"""What a job did and cost: CPUs, memory and GPUs of its slots, where a training's time went, what attempts held."""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from falaj.console import components
from falaj.console.components import ColumnHeader, FormField
from falaj.console.formatting import NO_VALUE
from falaj.console.markup import Html, h, join_html
from falaj.console.page_view import PageView
from falaj.console.plots import TIME_AXIS, LineSeries, bar_chart, line_chart, share_bar
from falaj.fleet.amounts import parse_seconds
from falaj.fleet.telemetry_operations import Figure
from falaj.fleet.usage import UsageRow
from falaj.gauge.advice import list_advice
from falaj.jobs.records import JobView

SUMMARY_PATH = "profile/summary.json"
MAX_SUMMARY_BYTES = 4 << 20
TIME_SPANS = ("1h", "6h", "24h", "7d", "30d")
_FIGURE_NAME = re.compile(r"(r?\d+)\.(\w+)")


def render_figures(view: PageView, job: JobView) -> Html:
    """The tab of telemetry."""
    since = view.query("since") if view.query("since") in TIME_SPANS else "6h"
    figures: tuple[Figure, ...] = view.here.jobs.figures(job.ref, since)
    if not figures:
        return join_html(
            render_span_filter(view, since),
            components.empty_state(view, view.t("jobs.no_figures"), view.t("jobs.figures_hint")),
        )
    return join_html(render_span_filter(view, since), render_charts(view, figures, since))


def render_span_filter(view: PageView, since: str, spans: Sequence[str] = TIME_SPANS) -> Html:
    """How far back to look."""
    span_options = [(span, view.t.of("jobs.span", span)) for span in spans]
    return components.filter_form(view, [FormField("since", view.t("console.since"), "select", since, span_options)])


def render_charts(view: PageView, figures: Sequence[Figure], since: str) -> Html:
    """A plot for each kind of figure, a line for each slot, device or rank that has it; a node's page has the same."""
    charts = []
    for name, curves in group_figures(figures).items():
        series = [
            LineSeries(label, list_step_times(view.now, since, len(figure.curve)), figure.curve)
            for label, figure in curves
        ]
        title = view.t.of("jobs.figure", name)
        charts.append(h.section(line_chart(view, series, title=str(title), x=TIME_AXIS, height=200), class_="card"))
    return components.card_grid(*charts)


def group_figures(figures: Sequence[Figure]) -> dict[str, list[tuple[str, Figure]]]:
    """By what is measured: whose it is (slot or device `#0`, rank `r0`), and its curve."""
    groups: dict[str, list[tuple[str, Figure]]] = {}
    for figure in figures:
        match = _FIGURE_NAME.fullmatch(figure.name)
        name, label = (match[2], match[1] if match[1][0] == "r" else f"#{match[1]}") if match else (figure.name, "")
        groups.setdefault(name, []).append((label, figure))
    order = ("busy", "memory", "cpu", "rss", "pace", "load", "available")
    return dict(sorted(groups.items(), key=lambda pair: order.index(pair[0]) if pair[0] in order else len(order)))


def list_step_times(now: float, since: str, steps: int) -> list[float]:
    """The middle of each of so many steps of a window that ends now."""
    span_s = parse_seconds(since)
    return [now - span_s + (step + 0.5) * span_s / max(1, steps) for step in range(steps)]


def render_profile(view: PageView, job: JobView) -> Html:
    """Where the time of a training's steps went, if its run kept a profile."""
    artifacts = view.here.track.artifacts(job.run, deep=True)
    if not any(file.path == SUMMARY_PATH for file in artifacts):
        command = f"falaj train profile {job.ref}"
        return components.empty_state(view, view.t("jobs.no_profile"), view.t("jobs.profile_hint"), command)
    summary = _parse_summary(b"".join(view.here.track.fetch(job.run, SUMMARY_PATH, 0, MAX_SUMMARY_BYTES)))
    time_split, kernels = _parse_numbers(summary.get("split")), summary.get("kernels")
    t = view.t
    split_chart = share_bar(view, [(str(t.of("jobs.split", name)), value, "") for name, value in time_split.items()],
                  title=t("jobs.time_went"))  # fmt: skip
    top_kernels = [(str(row.get("name", "")), _parse_numbers(row).get("seconds", 0.0))
           for row in (kernels if isinstance(kernels, list) else ())[:15] if isinstance(row, Mapping)]  # fmt: skip
    return join_html(
        components.card_grid(
            h.section(split_chart, class_="card"),
            h.section(bar_chart(view, top_kernels, title=t("jobs.kernels"), unit="s"), class_="card"),
        ),
        components.card(t("jobs.advice"), _render_advice(view, summary)),
    )  # fmt: skip


def _parse_summary(summary_bytes: bytes) -> dict[str, Any]:
    """What a job wrote may be anything."""
    try:
        parsed = json.loads(summary_bytes)
    except (ValueError, RecursionError):
        parsed = None
    return parsed if isinstance(parsed, dict) else {}


def _parse_numbers(raw_values: Any) -> dict[str, float]:
    items = raw_values.items() if isinstance(raw_values, Mapping) else ()
    return {str(name): float(value) for name, value in items if isinstance(value, (int, float))}


def _render_advice(view: PageView, summary: Mapping[str, Any]) -> Html:
    try:
        advice_list = list_advice(summary)
    except (KeyError, TypeError, ValueError, AttributeError, ZeroDivisionError):
        advice_list = []  # written by a job: not every file of that name is a profile
    if not advice_list:
        return h.p(view.t("jobs.no_advice"), class_="soft")
    t = view.t
    columns = (t("jobs.what"), t("jobs.change"), ColumnHeader(t("jobs.saves"), "n"))
    rows = [(join_html(h.strong(advice.title, dir="auto"), h.br(), h.small(advice.evidence, dir="auto")),
             h.span(advice.change, dir="auto"), view.percent(advice.gain, 0)) for advice in advice_list]  # fmt: skip
    return components.table(view, columns, rows, t("jobs.advice"))


def render_cost(view: PageView, job: JobView) -> Html:
    """What its ended attempts held, and what of that came to nothing."""
    since = view.query("since") if view.query("since") in TIME_SPANS else "30d"
    rows: tuple[UsageRow, ...] = view.here.jobs.usage(by="job", since=since).rows
    own_row = next((row for row in rows if row.name == str(job.ref)), None)
    if own_row is None:
        return join_html(
            render_span_filter(view, since),
            components.empty_state(view, view.t("jobs.no_cost"), view.t("jobs.cost_hint")),
        )
    return join_html(render_span_filter(view, since), render_totals(view, own_row), render_split(view, own_row))


def render_totals(view: PageView, row: UsageRow) -> Html:
    """The numbers that matter of what was used."""
    t = view.t
    tiles = (
        components.stat_tile(t("jobs.gpu_hours"), view.number(row.gpu_hours)),
        components.stat_tile(
            t("jobs.lost"), view.number(row.lost_gpu_hours), state="bad" if row.lost_gpu_hours else ""
        ),
        components.stat_tile(
            t("jobs.idle"), view.number(row.idle_gpu_hours), state="warn" if row.idle_gpu_hours else ""
        ),
        components.stat_tile(t("jobs.cpu_hours"), view.number(row.cpu_hours)),
        components.stat_tile(t("jobs.money"), view.number(row.money) if row.money else NO_VALUE),
        components.stat_tile(t("jobs.attempts"), view.number(row.attempts)),
    )
    return h.div(tiles, class_="stats")


def render_split(view: PageView, row: UsageRow) -> Html:
    """GPU-hours that were of use, idle, and lost."""
    t = view.t
    if not row.gpu_hours:
        return h.p(t("jobs.no_price") if not row.money else "", class_="soft")
    useful_hours = max(0.0, row.gpu_hours - row.lost_gpu_hours - row.idle_gpu_hours)
    share_parts = [(str(t("jobs.of_use")), useful_hours, "ok"), (str(t("jobs.idle")), row.idle_gpu_hours, "held"),
           (str(t("jobs.lost")), row.lost_gpu_hours, "lost")]  # fmt: skip
    return h.section(share_bar(view, share_parts, title=t("jobs.gpu_hours")), class_="card")
