"""One endpoint: what answers, with which share, how it is asked, and what can be done about it."""

from falaj.console import components
from falaj.console.components import ColumnHeader, TableRow
from falaj.console.formatting import NO_VALUE
from falaj.console.markup import EMPTY, Html, h, join_html
from falaj.console.page import Page, build_url
from falaj.console.page_view import PageView
from falaj.console.pages.serve.endpoint_actions import render_actions, render_change_button, render_scale_button
from falaj.console.pages.serve.request_logs import render_logs
from falaj.console.pages.serve.rollout_card import render_rollout
from falaj.console.pages.serve.traffic_charts import render_figures, render_traffic
from falaj.console.pages.serve.try_endpoint import render_try_form
from falaj.console.plots import share_bar
from falaj.core.ref import Ref
from falaj.serve.records import RUNNING, EndpointView

REFRESH_INTERVAL_S = 5.0
"""Counts are no events: what is shown of them is looked at again so often."""
MAX_ITEMS = 50


def render_endpoint_page(view: PageView) -> Page:
    """One endpoint, in parts."""
    endpoint_view: EndpointView = view.here.serve.show(Ref.parse(view.args["ref"]).bare)
    t, current_tab = view.t, view.query("tab")
    tab_labels = (
        ("", t("console.overview")),
        ("traffic", t("serve.traffic")),
        ("try", t("serve.try")),
        ("logs", t("serve.logs")),
        ("settings", t("serve.settings")),
    )
    renderers = {"traffic": render_traffic, "try": render_try_form, "logs": render_logs, "settings": render_settings}
    body = renderers.get(current_tab, render_overview)(view, endpoint_view)
    page_content = join_html(
        _render_state(view, endpoint_view), render_actions(view, endpoint_view), components.tabs(view, tab_labels), body
    )
    is_static = current_tab in ("try", "logs")
    crumbs = ((h.bdi(endpoint_view.ref.project), build_url("serve", {"project": endpoint_view.ref.project})),)
    live_services = () if is_static else ("serve", "monitor")
    return Page(
        h.bdi(endpoint_view.ref.name),
        page_content,
        crumbs=crumbs,
        live=live_services,
        every_s=0.0 if is_static else REFRESH_INTERVAL_S,
    )


def _render_state(view: PageView, endpoint_view: EndpointView) -> Html:
    watch_link = h.a(
        view.t("serve.watch"),
        href=build_url(f"monitor/{Ref('watch', endpoint_view.ref.project, endpoint_view.ref.name)}"),
    )
    state_line = h.p(
        components.badge(view, endpoint_view.state),
        " ",
        h.code(endpoint_view.ref, dir="ltr"),
        " · ",
        watch_link,
        id="state",
    )
    return join_html(state_line, components.notice("warn", endpoint_view.note) if endpoint_view.note else EMPTY)


def render_overview(view: PageView, endpoint_view: EndpointView) -> Html:
    """How it stands now."""
    request_figures = view.part(lambda: render_figures(view, endpoint_view))
    rollout_card = render_rollout(view, endpoint_view) if endpoint_view.rollout else EMPTY
    return join_html(
        request_figures,
        _render_traffic_split(view, endpoint_view),
        rollout_card,
        _render_revisions(view, endpoint_view),
        _render_replicas(view, endpoint_view),
    )


def _render_traffic_split(view: PageView, endpoint_view: EndpointView) -> Html:
    revision_by_number = {str(revision.number): revision for revision in endpoint_view.revisions}
    traffic_parts = [
        (f"{number} · {revision_by_number[number].model.name}@{revision_by_number[number].model.version}", share, "")
        for number, share in endpoint_view.traffic.items()
        if number in revision_by_number
    ]
    split_chart = (
        share_bar(view, traffic_parts, title=view.t("serve.split")) if traffic_parts else view.t("serve.no_traffic")
    )
    rollout_view = endpoint_view.rollout
    shadow_note = (
        h.p(view.t("serve.copied", percent=f"{100 * rollout_view.shares.get('shadow', 0.0):g}%"), class_="soft")
        if rollout_view is not None and rollout_view.kind == "shadow" and rollout_view.state == RUNNING
        else EMPTY
    )
    return h.div(split_chart, shadow_note, class_="card", id="split")


def _render_revisions(view: PageView, endpoint_view: EndpointView) -> Html:
    t = view.t
    headers = (
        ColumnHeader(t("serve.revision"), "n"),
        t("console.model"),
        ColumnHeader(t("console.share"), "n"),
        t("console.who"),
        t("console.when"),
        t("serve.message"),
    )
    rows = [
        TableRow(
            (
                view.number(revision.number),
                [
                    h.div(components.ref_link(view, used_ref))
                    for used_ref in (revision.model, revision.features, revision.code)
                    if used_ref
                ],
                view.percent(share, 0) if (share := endpoint_view.traffic.get(str(revision.number), 0.0)) else NO_VALUE,
                h.bdi(revision.made_by),
                view.ago(revision.made_at),
                h.span(revision.message, dir="auto"),
            ),
            id=f"revision-{revision.number}",
        )
        for revision in list(reversed(endpoint_view.revisions))[:MAX_ITEMS]
    ]
    return components.card(
        t("serve.revisions"), components.table(view, headers, rows, t("serve.revisions")), id="revisions"
    )


def _render_replicas(view: PageView, endpoint_view: EndpointView) -> Html:
    t = view.t
    title = t("serve.replicas")
    if not endpoint_view.replicas:
        return components.card(title, h.p(t("serve.no_replicas"), class_="soft"), id="replicas")
    headers = (
        t("console.name"),
        ColumnHeader(t("serve.revision"), "n"),
        t("console.state"),
        ColumnHeader(t("serve.address"), "code"),
        t("console.since"),
        t("console.note"),
    )
    rows = [
        TableRow(
            (
                components.ref_link(view, replica.job, short=True),
                view.number(replica.revision),
                components.badge(view, replica.state),
                replica.address,
                view.ago(replica.since),
                h.span(replica.note, dir="auto"),
            ),
            id=replica.name,
        )
        for replica in endpoint_view.replicas[:MAX_ITEMS]
    ]
    bounds = t("serve.bounds", least=endpoint_view.scale.least, most=endpoint_view.scale.most)
    return components.card(
        title, h.p(bounds, class_="soft"), components.table(view, headers, rows, title), id="replicas"
    )


def render_settings(view: PageView, endpoint_view: EndpointView) -> Html:
    """How it scales, what callers are held to, and where it is called."""
    t, scale, call_rules = view.t, endpoint_view.scale, endpoint_view.rules
    scale_facts = components.fact_list(
        [
            (t("serve.least"), view.number(scale.least)),
            (t("serve.most"), view.number(scale.most)),
            (t("serve.concurrency"), view.number(scale.concurrency)),
            (
                t("serve.slower"),
                view.duration(scale.latency_ms / 1000) if scale.latency_ms else t("serve.not_looked_at"),
            ),
            (t("serve.idle_s"), view.duration(scale.idle_s)),
            (t("serve.keep_s"), view.duration(scale.keep_s)),
        ]
    )
    rules_facts = components.fact_list(
        [
            (t("serve.caller_per_s"), view.number(call_rules.per_s) if call_rules.per_s else t("serve.unbounded")),
            (t("serve.burst"), view.number(call_rules.burst) if call_rules.burst else t("serve.unbounded")),
            (t("serve.timeout"), view.duration(call_rules.timeout_s)),
            (t("serve.hold"), view.duration(call_rules.hold_s)),
            (t("serve.retries"), view.percent(call_rules.retries, 0)),
            (t("serve.sample"), view.percent(call_rules.sample)),
            (t("serve.keep_days"), view.duration(call_rules.keep_days * 86400)),
        ]
    )
    needs = endpoint_view.revisions[-1].needs
    needs_facts = components.fact_list(
        [
            (t("serve.cpus"), view.number(needs.cpus)),
            (t("serve.memory"), h.bdi(needs.memory)),
            (t("serve.gpus"), view.number(needs.gpus)),
            (t("console.zone"), h.bdi(needs.zone) if needs.zone else ""),
        ]
    )
    addresses = (
        [components.copyable_code(view, endpoint_view.url), components.copyable_code(view, endpoint_view.grpc)]
        if endpoint_view.url
        else t("serve.no_gateway")
    )
    return components.card_grid(
        components.card(t("serve.scaling"), scale_facts, render_scale_button(view, endpoint_view)),
        components.card(t("serve.rules"), rules_facts, render_change_button(view, endpoint_view)),
        components.card(t("serve.needs"), needs_facts),
        components.card(t("serve.where"), addresses),
    )
