"""One watch: how it stands, its windows, what moved, what it means, what was decided, and what follows."""

from collections.abc import Sequence

from falaj.console import components
from falaj.console.components import FormField
from falaj.console.formatting import NO_VALUE
from falaj.console.markup import EMPTY, Html, h, join_html
from falaj.console.page import Page, build_resource_url, build_url
from falaj.console.page_view import PageView
from falaj.console.pages.monitor.drift_page import render_drift, render_finding_table
from falaj.console.pages.monitor.watch_list import render_automatic_actions
from falaj.console.plots import TIME_AXIS, LineSeries, TimelineSpan, line_chart, timeline
from falaj.core.ref import Ref
from falaj.monitor.records import MonitorWindow, WatchVerdict, WatchView, WindowPage

MAX_WINDOWS, MAX_ITEMS = 100, 50
_PAUSED_STATES = ("paused", "cooling", "frozen")
_QUALITY_KINDS = ("performance", "estimate", "fairness", "quality", "errors", "latency", "concept")


def render_watch_page(view: PageView) -> Page:
    """The watch of an endpoint, in parts."""
    parsed_ref = Ref.parse(view.args["ref"])
    watch_view: WatchView = view.here.monitor.show(Ref("endpoint", parsed_ref.project, parsed_ref.name))
    t, current_tab = view.t, view.query("tab")
    tab_labels = (
        ("", t("console.overview")),
        ("drift", t("monitor.drift")),
        ("service", t("monitor.service")),
        ("verdicts", t("monitor.verdicts")),
        ("plan", t("monitor.plan")),
    )
    body = {
        "drift": render_drift,
        "service": render_service_quality,
        "verdicts": render_verdicts,
        "plan": render_plan,
    }.get(current_tab, render_overview)(view, watch_view)
    state_line = h.p(
        components.badge(view, watch_view.state), " ", components.ref_link(view, watch_view.ref), id="state"
    )
    notices = [
        components.notice("warn", notice_text) for notice_text in (watch_view.paused, watch_view.note) if notice_text
    ]
    page_body = join_html(
        state_line, notices, _render_actions(view, watch_view), components.tabs(view, tab_labels), body
    )
    crumbs = ((h.bdi(watch_view.ref.project), build_url("monitor", {"project": watch_view.ref.project})),)
    return Page(h.bdi(watch_view.ref.name), page_body, crumbs=crumbs, live=("monitor", "serve"))


def _render_actions(view: PageView, watch_view: WatchView) -> Html:
    t, reason_fields = view.t, (FormField("reason", view.t("console.reason")),)
    watch_argument = {"endpoint": watch_view.ref}
    resume_button = components.action_button(
        view, "monitor", "resume", watch_argument, t("monitor.resume"), reason_fields, primary=True
    )
    pause_button = components.action_button(
        view, "monitor", "pause", watch_argument, t("monitor.pause"), reason_fields, confirm=t("monitor.pause_sure")
    )
    return h.div(
        resume_button if watch_view.paused or watch_view.state in _PAUSED_STATES else pause_button, class_="actions"
    )


def render_overview(view: PageView, watch_view: WatchView) -> Html:
    """The figures of now, the windows, what is open."""
    t, last_window = view.t, watch_view.last
    error_share = (
        view.percent(last_window.errors / last_window.requests) if last_window and last_window.requests else NO_VALUE
    )
    tiles = (
        components.stat_tile(
            t("monitor.alarms_last"),
            view.number(last_window.alarms if last_window else 0),
            "",
            view.link(tab="drift"),
            "bad" if last_window and last_window.alarms else "good",
        ),
        components.stat_tile(t("monitor.rows_last"), view.number(last_window.rows if last_window else 0)),
        components.stat_tile(t("monitor.windows"), view.number(watch_view.windows)),
        components.stat_tile(t("serve.failed"), error_share, "", view.link(tab="service")),
        components.stat_tile(
            t("serve.p95"), view.duration(last_window.p95_ms / 1000) if last_window and last_window.p95_ms else NO_VALUE
        ),
    )
    alarms = [item for item in last_window.findings if item.alarm] if last_window else []
    last_window_card = (
        components.card(
            t("monitor.last_window"),
            render_finding_table(view, watch_view.ref, alarms, t("monitor.last_window")),
            id="last",
            heading_link=view.link(tab="drift"),
        )
        if alarms
        else EMPTY
    )
    incident_links = [h.li(components.ref_link(view, item)) for item in watch_view.incidents[:MAX_ITEMS]]
    incidents_card = (
        components.card(t("monitor.open_incidents"), h.ul(incident_links, class_="plain-list"), id="open")
        if incident_links
        else EMPTY
    )
    windows_card = h.div(view.part(lambda: _render_timeline(view, watch_view)), class_="card", id="windows")
    return join_html(h.div(tiles, class_="stats"), incidents_card, windows_card, last_window_card)


def _render_timeline(view: PageView, watch_view: WatchView) -> Html:
    window_page: WindowPage = view.here.monitor.windows(watch_view.ref, since_s=30 * 86400.0, limit=MAX_WINDOWS)
    return timeline(view, list_window_spans(view, window_page.windows), title=view.t("monitor.windows"))


def list_window_spans(view: PageView, windows: Sequence[MonitorWindow]) -> list[TimelineSpan]:
    """A row for each revision: its windows, those with alarms marked."""
    return [
        TimelineSpan(
            str(view.t("serve.revision_n", n=window.revision)),
            str(window.alarms or ""),
            window.since,
            window.until,
            "alarm" if window.alarms else "ok",
            view.link(tab="drift", window=int(window.until)),
        )
        for window in sorted(windows, key=lambda window: (window.revision, window.since))
    ]


def render_service_quality(view: PageView, watch_view: WatchView) -> Html:
    """How good the answers are, by labels or foreseen, and how fast they come; fairness between groups."""
    t = view.t
    window_page: WindowPage = view.here.monitor.windows(watch_view.ref, since_s=30 * 86400.0, limit=MAX_WINDOWS)
    if not window_page.windows:
        return components.empty_state(view, t("monitor.no_windows"), t("monitor.no_windows_hint"))
    sorted_windows = sorted(window_page.windows, key=lambda window: window.until)
    used_windows = [window for window in sorted_windows if window.requests]
    window_ends = [window.until for window in used_windows]
    error_series = LineSeries("", window_ends, [100 * window.errors / window.requests for window in used_windows])
    latency_series = LineSeries("", window_ends, [window.p95_ms for window in used_windows])
    charts = [
        *(
            line_chart(view, curves, title=name, x=TIME_AXIS, height=220)
            for name, curves in collect_metric_series(sorted_windows).items()
        ),
        line_chart(view, [error_series], title=t("serve.failed_percent"), x=TIME_AXIS, height=180),
        line_chart(view, [latency_series], title=t("serve.p95_ms"), x=TIME_AXIS, height=180),
    ]
    quality_findings = [finding for finding in sorted_windows[-1].findings if finding.what in _QUALITY_KINDS]
    finding_list = (
        render_finding_table(view, watch_view.ref, quality_findings, t("monitor.meaning"))
        if quality_findings
        else h.p(t("monitor.nothing_compared"), class_="soft")
    )
    return join_html(
        components.card_grid(*(h.div(chart, class_="card") for chart in charts)),
        components.card(t("monitor.meaning"), finding_list),
    )


def collect_metric_series(windows: Sequence[MonitorWindow]) -> dict[str, list[LineSeries]]:
    """Metrics over time, each with its interval: what labels say, and what is foreseen without them."""
    points_by_metric: dict[str, dict[str, list[tuple[float, float, float]]]] = {}
    for window in windows:
        for finding in window.findings:
            if finding.what in ("performance", "estimate") and not finding.segment:
                point = (window.until, finding.value, 1.96 * finding.measures.get("error", 0.0))
                points_by_metric.setdefault(finding.measure, {}).setdefault(finding.what, []).append(point)
    return {
        metric: [
            LineSeries(
                finding_kind,
                [point_values[0] for point_values in points],
                [point_values[1] for point_values in points],
                [point_values[1] - point_values[2] for point_values in points],
                [point_values[1] + point_values[2] for point_values in points],
            )
            for finding_kind, points in sorted(points_by_kind.items())
        ]
        for metric, points_by_kind in list(points_by_metric.items())[:6]
    }


def render_verdicts(view: PageView, watch_view: WatchView) -> Html:
    """What was decided, on what evidence, and what came of it."""
    t = view.t
    verdict_list: tuple[WatchVerdict, ...] = view.here.monitor.verdicts(watch_view.ref, limit=MAX_ITEMS)
    if not verdict_list:
        return components.empty_state(view, t("monitor.no_verdicts"), t("monitor.no_verdicts_hint"))
    return join_html([_render_verdict(view, watch_view.ref, verdict) for verdict in verdict_list])


def _render_verdict(view: PageView, endpoint: Ref, verdict: WatchVerdict) -> Html:
    t = view.t
    title = h.span(t.of("monitor.action", verdict.action), " ", components.badge(view, verdict.state))
    verdict_facts = components.fact_list(
        [
            (t("console.when"), view.when(verdict.at)),
            (t("monitor.began"), view.when(verdict.since) if verdict.since else ""),
            (t("serve.revision"), view.number(verdict.revision)),
            (t("console.kind"), t.of("monitor.what", verdict.what)),
            (t("monitor.flow"), components.ref_link(view, verdict.flow) if verdict.flow else ""),
            (t("monitor.run"), h.a(h.bdi(verdict.run), href=build_resource_url(verdict.run)) if verdict.run else ""),
            (t("monitor.outcome"), h.span(verdict.outcome, dir="auto") if verdict.outcome else ""),
        ]
    )
    evidence = (
        render_finding_table(view, endpoint, verdict.evidence, t("monitor.evidence")) if verdict.evidence else None
    )
    return components.card(title, h.p(view.english(verdict.said)), verdict_facts, evidence, id=f"verdict-{verdict.id}")


def render_plan(view: PageView, watch_view: WatchView) -> Html:
    """How closely it looks, what is too much, and what follows."""
    t, watch_plan = view.t, watch_view.plan
    check_facts = components.fact_list(
        [
            (t("monitor.every"), view.duration(watch_plan.every_s)),
            (t("monitor.least_rows"), view.number(watch_plan.rules.least_rows)),
            (t("monitor.segment"), h.bdi(watch_plan.segment) if watch_plan.segment else ""),
            (t("monitor.alpha"), view.number(watch_plan.rules.alpha)),
            (t("monitor.least_step"), view.number(watch_plan.rules.least_step)),
            (t("monitor.persist"), t("monitor.of", n=watch_plan.rules.persist[0], many=watch_plan.rules.persist[1])),
            (t("monitor.too_many_errors"), view.percent(watch_plan.errors)),
            (
                t("monitor.too_slow"),
                view.duration(watch_plan.latency_ms / 1000) if watch_plan.latency_ms else t("serve.not_looked_at"),
            ),
            (t("monitor.against"), h.bdi(watch_view.baseline)),
        ]
    )
    action_plan = watch_plan.acting
    action_facts = components.fact_list(
        [
            (t("monitor.follows"), render_automatic_actions(view, watch_view)),
            (t("monitor.cools"), view.duration(action_plan.cool_s)),
            (t("monitor.most_a_day"), view.number(action_plan.most_a_day)),
            (t("monitor.asks"), t.of("console.state", "yes" if action_plan.approval else "no")),
        ]
    )
    plan_field = FormField(
        "more",
        t("monitor.words"),
        "textarea",
        required=True,
        value=f"every_s={watch_plan.every_s:g}",
        hint=t("monitor.words_hint"),
    )
    change_button = components.action_button(
        view, "monitor", "change", {"endpoint": watch_view.ref}, t("monitor.change"), (plan_field,)
    )
    return join_html(
        components.card_grid(
            components.card(t("monitor.looks"), check_facts), components.card(t("monitor.policy"), action_facts)
        ),
        change_button,
    )
