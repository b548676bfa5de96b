"""A service: the features that a model asks for, where they come from, and whether what is served is true."""

from typing import Any

from falaj.console import components
from falaj.console.components import ColumnHeader
from falaj.console.markup import EMPTY, Html, h, join_html
from falaj.console.page import Page
from falaj.console.page_view import PageView
from falaj.console.pages.features.definition_parts import render_facts, render_users
from falaj.core.errors import NotFound
from falaj.core.ref import Ref
from falaj.features.records import DefinitionView, ServiceAccess
from falaj.features.serving_skew import SkewReport
from falaj.server import LocalClient

MAX_SKEW_ROWS = 200_000
"""Where the views have more, the check reads too much to be done for a page."""


def render_feature_service_page(view: PageView, ref: Ref) -> Page:
    """One service, part by part."""
    t = view.t
    service_definition: DefinitionView = view.here.features.show(ref)
    tab_labels = (("", t("console.overview")), ("skew", t("features.skew")), ("users", t("features.users")))
    render_tab = {"skew": _render_skew, "users": render_users}.get(view.query("tab"), _render_overview)
    body = join_html(components.tabs(view, tab_labels), view.part(lambda: render_tab(view, service_definition)))
    return Page(h.bdi(service_definition.ref.name), body, live=("features",), scripts=("plots.js",))


def _render_overview(view: PageView, service_definition: DefinitionView) -> Html:
    views_fact = (
        view.t("features.views"),
        join_html([h.div(components.ref_link(view, ref)) for ref in service_definition.uses]),
    )
    return join_html(
        components.card(view.t("features.what"), render_facts(view, service_definition, [views_fact])),
        components.card(
            view.t("features.outputs"), view.part(lambda: _render_outputs(view, service_definition)), id="outputs"
        ),
        components.card(
            view.t("features.do"),
            components.copyable_code(view, f"falaj features read {service_definition.ref.bare} --keys KEY=VALUE"),
            components.copyable_code(view, f"falaj features materialize {service_definition.ref.bare}"),
        ),
    )


def _render_outputs(view: PageView, service_definition: DefinitionView) -> Html:
    plan = view.here.features.open(service_definition.ref).plan
    t = view.t
    view_by_column = {name: planned_view for planned_view in plan.views for name in planned_view.names}
    rows = [
        (
            h.bdi(field.name),
            h.code(field.type, dir="ltr"),
            components.ref_link(view, view_by_column[field.name].ref)
            if field.name in view_by_column
            else t("features.on_request"),
            join_html([h.code(key.name, dir="ltr", class_="tag") for key in view_by_column[field.name].keys])
            if field.name in view_by_column
            else EMPTY,
        )
        for field in plan.outputs
    ]
    headers = (t("console.name"), t("features.type"), t("features.comes_from"), t("features.keys"))
    return components.table(view, headers, rows, t("features.outputs"))


def _render_skew(view: PageView, service_definition: DefinitionView) -> Html:
    t, command_line = view.t, f"falaj features skew {service_definition.ref.bare}"
    command_card = components.card(
        t("features.skew"), h.p(t("features.skew_hint")), components.copyable_code(view, command_line)
    )
    service_access: ServiceAccess = view.here.features.open(service_definition.ref)
    num_rows = sum(view.here.features.show(ref).rows for ref in service_definition.uses if ref.kind == "view")
    if any(computed_column.source for computed_column in service_access.plan.computed) or num_rows > MAX_SKEW_ROWS:
        # A function of somebody's runs beside its caller or in an attempt, never in this process.
        return join_html(command_card, components.notice("plain", t("features.skew_elsewhere")))
    return join_html(command_card, _render_report(view, service_definition))


def _render_report(view: PageView, service_definition: DefinitionView) -> Html:
    unrecorded_client: Any = LocalClient(view.here.house, view.actor, view.here.purpose)
    t, format_number = view.t, view.number
    try:
        skew_report: SkewReport = unrecorded_client.features.skew(service_definition.ref)
    except NotFound as error:
        return components.empty_state(view, t("features.no_reads"), h.span(error.hint, dir="auto"))
    rows = [
        (
            h.bdi(feature_skew.feature),
            format_number(feature_skew.checked),
            format_number(feature_skew.differ),
            view.percent(feature_skew.rate, 2),
            format_number(feature_skew.status),
            format_number(feature_skew.value),
            format_number(feature_skew.behind),
            format_number(feature_skew.late),
            format_number(feature_skew.max_abs),
        )
        for feature_skew in skew_report.features
    ]
    column_titles = (
        t("features.checked"),
        t("features.differ"),
        t("features.rate"),
        t("features.status"),
        t("console.value"),
        t("features.old_row"),
        t("features.late"),
        t("features.max_abs"),
    )
    headers = [ColumnHeader(t("console.column")), *(ColumnHeader(name, "n") for name in column_titles)]
    summary_line = join_html(t("features.reads", n=skew_report.reads), " ", h.span(skew_report.verdict, dir="auto"))
    return components.card(
        t("features.verdict"), h.p(summary_line), components.table(view, headers, rows, t("features.skew")), id="report"
    )
