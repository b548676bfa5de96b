"""Drift by column and segment: the windows as a map, what differs most, and a column then and now."""

from collections.abc import Sequence

from falaj.console import components
from falaj.console.components import ColumnHeader, FormField, TableRow
from falaj.console.formatting import format_moment
from falaj.console.markup import Html, h, join_html
from falaj.console.page import build_resource_url
from falaj.console.page_view import PageView
from falaj.console.plots import heatmap, histogram
from falaj.core.ref import Ref
from falaj.drift.records import KIND_NUMBER, SPECIAL_BINS, DriftFinding
from falaj.monitor.records import AxisView, MonitorWindow, ReportFigures, WatchView, WindowPage

DRIFT_KINDS = ("input", "prediction", "label", "together")
MAX_WINDOWS, MAX_COLUMNS, MAX_ROWS = 24, 40, 100
HOUR_SPANS = (6, 24, 168, 720)
"""Hours that a column can be drawn over."""


def render_drift(view: PageView, watch_view: WatchView) -> Html:
    """What moved, where, and how."""
    t = view.t
    window_page: WindowPage = view.here.monitor.windows(watch_view.ref, since_s=30 * 86400.0, limit=MAX_WINDOWS)
    if not window_page.windows:
        return components.empty_state(view, t("monitor.no_windows"), t("monitor.no_windows_hint"))
    chosen_window = next(
        (window for window in window_page.windows if str(int(window.until)) == view.query("window")),
        window_page.windows[0],
    )
    segments = sorted({finding.segment for finding in chosen_window.findings if finding.segment})
    chosen_segment = view.query("segment") if view.query("segment") in segments else ""
    findings = sort_by_effect(
        [
            finding
            for finding in chosen_window.findings
            if finding.what in DRIFT_KINDS and chosen_segment in ("", finding.segment)
        ]
    )
    finding_list = (
        render_finding_table(view, watch_view.ref, findings[:MAX_ROWS], t("monitor.by_effect"))
        if findings
        else h.p(t("monitor.nothing_compared"))
    )
    segment_options = [("", t("console.all")), *((name, name) for name in segments)]
    segment_filter = (
        components.filter_form(view, (FormField("segment", t("monitor.segment"), "select", options=segment_options),))
        if segments
        else None
    )
    title = t("monitor.window_until", when=format_moment(t, chosen_window.until))
    return join_html(
        h.div(_render_map(view, window_page.windows), class_="card", id="map"),
        components.card(title, segment_filter, finding_list, id="effects"),
        view.part(lambda: _render_column(view, watch_view, findings[0].column if findings else "")),
    )


def sort_by_effect(findings: Sequence[DriftFinding]) -> list[DriftFinding]:
    """Alarms first, then by how much differs."""
    return sorted(findings, key=lambda finding: (not finding.alarm, -finding.value))


def make_cells(windows: Sequence[MonitorWindow]) -> tuple[list[str], list[MonitorWindow], list[float | None]]:
    """Columns by windows, oldest first: how much each differs over all segments; the most moved column on top."""
    sorted_windows = sorted(windows, key=lambda item: item.until)
    values_by_column: dict[str, dict[int, float]] = {}
    for window_index, window in enumerate(sorted_windows):
        for item in window.findings:
            if item.what in DRIFT_KINDS and not item.segment:
                values_by_column.setdefault(item.column or item.what, {})[window_index] = item.value
    names = sorted(values_by_column, key=lambda name: -max(values_by_column[name].values()))[:MAX_COLUMNS]
    return (
        names,
        sorted_windows,
        [values_by_column[name].get(window_index) for name in names for window_index in range(len(sorted_windows))],
    )


def _render_map(view: PageView, windows: Sequence[MonitorWindow]) -> Html:
    names, sorted_windows, values = make_cells(windows)
    window_labels = [format_moment(view.t, window.until).split(" ")[-1] for window in sorted_windows]
    cell_links = [view.link(window=int(window.until)) for _ in names for window in sorted_windows]
    largest = max((value for value in values if value is not None), default=1.0)
    return heatmap(
        view,
        names,
        window_labels,
        values,
        title=view.t("monitor.map"),
        low=0.0,
        high=max(0.1, largest),
        links=cell_links,
    )


def render_finding_table(view: PageView, endpoint: Ref, findings: Sequence[DriftFinding], caption: str | Html) -> Html:
    """Findings as a table; columns lead to how they are drawn."""
    t = view.t
    headers = (
        t("console.kind"),
        t("console.column"),
        t("monitor.segment"),
        t("monitor.measure"),
        ColumnHeader(t("monitor.now"), "n"),
        ColumnHeader(t("monitor.then"), "n"),
        ColumnHeader(t("monitor.bound"), "n"),
        ColumnHeader(t("monitor.chance"), "n"),
        t("monitor.said"),
    )
    return components.table(view, headers, [_make_row(view, endpoint, finding) for finding in findings], caption)


def _make_row(view: PageView, endpoint: Ref, finding: DriftFinding) -> TableRow:
    t, watch = view.t, Ref("watch", endpoint.project, endpoint.name)
    kind = join_html(
        t.of("monitor.kind", finding.what), " ", components.badge(view, "alarm") if finding.alarm else None
    )
    margin = 1.96 * finding.measures.get("error", 0.0)
    value = h.bdi(f"{finding.value:.4g} ± {margin:.2g}", dir="ltr") if margin else view.number(finding.value)
    column = (
        h.a(h.bdi(finding.column), href=build_resource_url(watch, tab="drift", column=finding.column))
        if finding.column
        else ""
    )
    return TableRow(
        (
            kind,
            column,
            h.bdi(finding.segment),
            h.bdi(finding.measure),
            value,
            view.number(finding.then),
            view.number(finding.bound),
            view.number(finding.p),
            view.english(finding.said, class_="words"),
        ),
        state="bad" if finding.alarm else "",
    )


def _render_column(view: PageView, watch_view: WatchView, default_column: str) -> Html:
    """A column of the reader's choice, then and now."""
    t = view.t
    hours = min(720, max(1, view.count("hours", 6)))
    figures: ReportFigures = view.here.monitor.figures(watch_view.ref, since_s=hours * 3600.0)
    if not figures.axes:
        return components.card(
            t("monitor.then_and_now"),
            _render_column_filter(view, hours, ()),
            h.p(t("monitor.no_baseline"), class_="soft"),
        )
    shown_axis = next(
        (axis for axis in figures.axes if axis.name == view.query("column", default_column)), figures.axes[0]
    )
    names = [axis.name for axis in figures.axes]
    field = FormField(
        "column", t("console.column"), "select", value=shown_axis.name, options=[(name, name) for name in names]
    )
    return components.card(
        t("monitor.then_and_now"),
        _render_column_filter(view, hours, (field,)),
        render_distribution(view, shown_axis),
        id="column",
    )


def _render_column_filter(view: PageView, hours: int, fields: tuple[FormField, ...]) -> Html:
    t = view.t
    spans = [(str(span_hours), t.of("monitor.hours", str(span_hours))) for span_hours in HOUR_SPANS]
    hours_field = FormField("hours", t("monitor.over"), "select", value=str(hours), options=spans)
    return components.filter_form(view, (*fields, hours_field))


def render_distribution(view: PageView, axis: AxisView) -> Html:
    """Numbers as a histogram beside the reference; words, and what is odd, as a table."""
    regular_bins = (
        [bin_index for bin_index, name in enumerate(axis.bins) if name not in SPECIAL_BINS]
        if axis.kind == KIND_NUMBER
        else []
    )
    edges = compute_edges([axis.bins[bin_index] for bin_index in regular_bins])
    bars_chart = (
        histogram(
            view,
            edges,
            [axis.now[bin_index] for bin_index in regular_bins],
            title=axis.name,
            reference_counts=[axis.then[bin_index] for bin_index in regular_bins],
        )
        if edges
        else None
    )
    other_bins = [bin_index for bin_index in range(len(axis.bins)) if not edges or bin_index not in regular_bins]
    headers = (
        view.t("console.value"),
        ColumnHeader(view.t("monitor.then"), "n"),
        ColumnHeader(view.t("monitor.now"), "n"),
    )
    rows = [
        (h.bdi(axis.bins[bin_index]), view.percent(axis.then[bin_index]), view.percent(axis.now[bin_index]))
        for bin_index in other_bins
    ]
    return join_html(bars_chart, components.table(view, headers, rows, axis.name) if rows else None)


def compute_edges(bins: Sequence[str]) -> list[float]:
    """Where bars of one width begin, and where the last one ends; nothing when they are no such bars."""
    try:
        starts = [float(name) for name in bins]
    except ValueError:
        return []
    return [*starts, 2 * starts[-1] - starts[-2]] if len(starts) > 1 else []
