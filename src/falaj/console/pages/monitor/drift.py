"""Drift by column and segment: the windows as a map, what differs most, and a column then and now."""

from collections.abc import Sequence

from falaj.console import parts
from falaj.console.markup import Html, h, join
from falaj.console.page import href
from falaj.console.parts import Column, Field, Row
from falaj.console.plots import heat, histogram
from falaj.console.view import View
from falaj.console.writing import moment
from falaj.core.ref import Ref
from falaj.drift.records import NUMBER, ODD, Finding
from falaj.monitor.records import AxisView, Figures, WatchView, Window, WindowPage

MOVES = ("input", "prediction", "label", "together")
WINDOWS, COLUMNS, ROWS = 24, 40, 100
SPANS = (6, 24, 168, 720)
"""Hours that a column can be drawn over."""


def drift(view: View, one: WatchView) -> Html:
    """What moved, where, and how."""
    t = view.t
    told: WindowPage = view.here.monitor.windows(one.ref, since_s=30 * 86400.0, limit=WINDOWS)
    if not told.windows:
        return parts.empty(view, t("monitor.no_windows"), t("monitor.no_windows_hint"))
    chosen = next((w for w in told.windows if str(int(w.until)) == view.query("window")), told.windows[0])
    segments = sorted({f.segment for f in chosen.findings if f.segment})
    wanted = view.query("segment") if view.query("segment") in segments else ""
    findings = by_effect([f for f in chosen.findings if f.what in MOVES and wanted in ("", f.segment)])
    found = (
        finding_table(view, one.ref, findings[:ROWS], t("monitor.by_effect"))
        if findings
        else h.p(t("monitor.nothing_compared"))
    )
    choice = [("", t("console.all")), *((name, name) for name in segments)]
    picked = (
        parts.filters(view, (Field("segment", t("monitor.segment"), "select", options=choice),)) if segments else None
    )
    title = t("monitor.window_until", when=moment(t, chosen.until))
    return join(
        h.div(_map(view, told.windows), class_="card", id="map"), parts.card(title, picked, found, id="effects"),
        view.part(lambda: _column(view, one, findings[0].column if findings else "")),
    )  # fmt: skip


def by_effect(findings: Sequence[Finding]) -> list[Finding]:
    """Alarms first, then by how much differs."""
    return sorted(findings, key=lambda one: (not one.alarm, -one.value))


def cells(windows: Sequence[Window]) -> tuple[list[str], list[Window], list[float | None]]:
    """Columns by windows, oldest first: how much each differs over all segments; the most moved column on top."""
    order = sorted(windows, key=lambda one: one.until)
    found: dict[str, dict[int, float]] = {}
    for at, window in enumerate(order):
        for one in window.findings:
            if one.what in MOVES and not one.segment:
                found.setdefault(one.column or one.what, {})[at] = one.value
    names = sorted(found, key=lambda name: -max(found[name].values()))[:COLUMNS]
    return names, order, [found[name].get(at) for name in names for at in range(len(order))]


def _map(view: View, windows: Sequence[Window]) -> Html:
    names, order, values = cells(windows)
    heads = [moment(view.t, one.until).split(" ")[-1] for one in order]
    links = [view.link(window=int(one.until)) for _ in names for one in order]
    top = max((value for value in values if value is not None), default=1.0)
    return heat(view, names, heads, values, title=view.t("monitor.map"), low=0.0, high=max(0.1, top), links=links)


def finding_table(view: View, endpoint: Ref, findings: Sequence[Finding], caption: str | Html) -> Html:
    """Findings as a table; columns lead to how they are drawn."""
    t = view.t
    heads = (
        t("console.kind"), t("console.column"), t("monitor.segment"), t("monitor.measure"),
        Column(t("monitor.now"), "n"), Column(t("monitor.then"), "n"),
        Column(t("monitor.bound"), "n"), Column(t("monitor.chance"), "n"), t("monitor.said"),
    )  # fmt: skip
    return parts.table(view, heads, [_row(view, endpoint, one) for one in findings], caption)


def _row(view: View, endpoint: Ref, one: Finding) -> Row:
    t, watch = view.t, Ref("watch", endpoint.project, endpoint.name)
    kind = join(t.of("monitor.kind", one.what), " ", parts.badge(view, "alarm") if one.alarm else None)
    spread = 1.96 * one.measures.get("error", 0.0)
    value = h.bdi(f"{one.value:.4g} ± {spread:.2g}", dir="ltr") if spread else view.number(one.value)
    column = h.a(h.bdi(one.column), href=href(watch, tab="drift", column=one.column)) if one.column else ""
    return Row(
        (
            kind, column, h.bdi(one.segment), h.bdi(one.measure), value, view.number(one.then), view.number(one.bound),
            view.number(one.p), view.english(one.said, class_="words"),
        ),
        state="bad" if one.alarm else "",
    )  # fmt: skip


def _column(view: View, one: WatchView, moved: str) -> Html:
    """A column of the reader's choice, then and now."""
    t = view.t
    hours = min(720, max(1, view.count("hours", 6)))
    told: Figures = view.here.monitor.figures(one.ref, since_s=hours * 3600.0)
    if not told.axes:
        return parts.card(
            t("monitor.then_and_now"), _over(view, hours, ()), h.p(t("monitor.no_baseline"), class_="soft")
        )
    shown = next((axis for axis in told.axes if axis.name == view.query("column", moved)), told.axes[0])
    names = [axis.name for axis in told.axes]
    field = Field("column", t("console.column"), "select", value=shown.name, options=[(name, name) for name in names])
    return parts.card(t("monitor.then_and_now"), _over(view, hours, (field,)), drawn(view, shown), id="column")


def _over(view: View, hours: int, fields: tuple[Field, ...]) -> Html:
    t = view.t
    spans = [(str(n), t.of("monitor.hours", str(n))) for n in SPANS]
    over = Field("hours", t("monitor.over"), "select", value=str(hours), options=spans)
    return parts.filters(view, (*fields, over))


def drawn(view: View, axis: AxisView) -> Html:
    """Numbers as a histogram beside the reference; words, and what is odd, as a table."""
    plain = [at for at, name in enumerate(axis.bins) if name not in ODD] if axis.kind == NUMBER else []
    edges = edges_of([axis.bins[at] for at in plain])
    bars = (
        histogram(view, edges, [axis.now[at] for at in plain], title=axis.name, then=[axis.then[at] for at in plain])
        if edges
        else None
    )
    rest = [at for at in range(len(axis.bins)) if not edges or at not in plain]
    heads = (view.t("console.value"), Column(view.t("monitor.then"), "n"), Column(view.t("monitor.now"), "n"))
    rows = [(h.bdi(axis.bins[at]), view.percent(axis.then[at]), view.percent(axis.now[at])) for at in rest]
    return join(bars, parts.table(view, heads, rows, axis.name) if rows else None)


def edges_of(bins: Sequence[str]) -> list[float]:
    """Where bars of one width begin, and where the last one ends; nothing when they are no such bars."""
    try:
        starts = [float(name) for name in bins]
    except ValueError:
        return []
    return [*starts, 2 * starts[-1] - starts[-2]] if len(starts) > 1 else []
