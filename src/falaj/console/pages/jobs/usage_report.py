"""Who used how much: GPU-hours, CPU-hours and money by queue, project, person, job or model, over a time."""

from collections.abc import Sequence

from falaj.console import components
from falaj.console.components import ColumnHeader
from falaj.console.markup import Html, escape_text, h, join_html
from falaj.console.page import Page, build_resource_url
from falaj.console.page_view import PageView
from falaj.console.pages.jobs.job_figures import render_span_filter
from falaj.console.plots import bar_chart
from falaj.core.errors import FalajError
from falaj.fleet.usage import GROUPINGS, UsageRow, UsageTable

TIME_SPANS = ("24h", "7d", "30d", "90d", "365d")
MAX_ROWS, MAX_BARS = 100, 20


def render_usage_page(view: PageView) -> Page:
    """The report."""
    t = view.t
    grouped_by = view.query("by") if view.query("by") in GROUPINGS else GROUPINGS[0]
    since = view.query("since") if view.query("since") in TIME_SPANS else "30d"
    usage_table: UsageTable = view.here.jobs.usage(by=grouped_by, since=since)
    tab_bar = components.tabs(view, [(name, t.of("jobs.by", name)) for name in GROUPINGS], "by")
    rows = sorted(usage_table.rows, key=lambda row: (-row.money, -row.gpu_hours, -row.cpu_hours))
    report = (
        _render_report(view, rows, grouped_by)
        if rows
        else components.empty_state(
            view,
            t("jobs.no_cost"),
            t("jobs.cost_hint"),
            f"falaj jobs usage --by {grouped_by} --since {since}",
        )
    )
    return Page(t("jobs.usage"), join_html(tab_bar, render_span_filter(view, since, TIME_SPANS), report))


def _render_report(view: PageView, rows: Sequence[UsageRow], grouped_by: str) -> Html:
    t = view.t
    measure, title, unit = choose_measure(rows)
    amounts = [(row.name, float(getattr(row, measure))) for row in rows[:MAX_BARS]]
    measure_title = t.of("jobs.measure", title)
    chart = h.section(bar_chart(view, amounts, title=str(measure_title), unit=unit), class_="card")
    measure_names = ("gpu_hours", "lost_gpu_hours", "idle_gpu_hours", "cpu_hours", "money")
    columns: tuple[ColumnHeader | str, ...] = (
        t.of("jobs.by", grouped_by),
        *(ColumnHeader(t.of("jobs.measure", name), "n") for name in measure_names),
        ColumnHeader(t("jobs.attempts"), "n"),
        t("jobs.lost_to"),
    )
    table_rows = [
        (
            _render_name_link(row.name),
            *(view.number(getattr(row, name)) for name in measure_names),
            view.number(row.attempts),
            [h.div(t.of("console.state", cause), " ", view.number(amount)) for cause, amount in row.lost_to.items()],
        )
        for row in rows[:MAX_ROWS]
    ]
    price_note = h.p(t("jobs.no_price"), class_="soft") if not any(row.money for row in rows) else None
    return join_html(chart, components.table(view, columns, table_rows, t("jobs.usage")), price_note)


def choose_measure(rows: Sequence[UsageRow]) -> tuple[str, str, str]:
    """What is worth drawing: money where nodes have a price, else GPUs where there are any."""
    if any(row.money for row in rows):
        return "money", "money", ""
    has_gpus = any(row.gpu_hours for row in rows)
    return ("gpu_hours", "gpu_hours", "h") if has_gpus else ("cpu_hours", "cpu_hours", "h")


def _render_name_link(name: str) -> Html:
    """A thing is a link to its page; a queue, project or person is its name."""
    try:
        return h.a(h.bdi(name), href=build_resource_url(name), class_="ref") if ":" in name else h.bdi(name)
    except FalajError:
        return escape_text(name)
