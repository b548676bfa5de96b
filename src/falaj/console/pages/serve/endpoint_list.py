"""The list of endpoints: which model answers, how it is asked, and whether what it is asked has moved."""

from collections.abc import Mapping
from typing import Any

from falaj.console import components
from falaj.console.components import ColumnHeader, FormField, TableRow
from falaj.console.formatting import NO_VALUE
from falaj.console.markup import EMPTY, Html, h, join_html
from falaj.console.page import Page, build_url
from falaj.console.page_view import PageView
from falaj.console.pages.serve.endpoint_actions import TRIAL_PLANS
from falaj.core.errors import FalajError
from falaj.core.ref import Ref
from falaj.serve.records import EndpointView
from falaj.serve.traffic_operations import LoadView

PAGE_SIZE = 50


def render_endpoints_page(view: PageView) -> Page:
    """Every endpoint that the reader may see."""
    t, project, page_token = view.t, view.query("project"), view.query("page")
    endpoint_page = view.here.serve.list(project=project, after=page_token, limit=PAGE_SIZE)
    load_by_endpoint = {
        item.ref: item
        for item in _call_or_empty(lambda: view.here.serve.loads(project=project, after=page_token, limit=PAGE_SIZE))
    }
    state_by_endpoint = {
        item.ref: item.state for item in _call_or_empty(lambda: view.here.monitor.list(project=project))
    }
    rows = [
        _make_row(view, item, load_by_endpoint.get(item.ref), state_by_endpoint.get(item.ref, ""))
        for item in endpoint_page.endpoints
    ]
    headers = (
        ColumnHeader(t("console.name")),
        t("console.state"),
        t("console.model"),
        t("serve.traffic"),
        ColumnHeader(t("serve.per_s"), "n"),
        ColumnHeader(t("serve.failed"), "n"),
        ColumnHeader(t("serve.p95"), "n"),
        t("serve.drift"),
        t("serve.by"),
    )
    endpoint_table = components.table(view, headers, rows, t("serve.list")) if rows else _render_empty(view)
    fields = (FormField("project", t("console.project"), value=project),)
    toolbar = join_html(h.div(_render_deploy_button(view), class_="actions"), components.filter_form(view, fields))
    return Page(
        t("console.room.serve"),
        join_html(toolbar, endpoint_table, components.pager(view, endpoint_page.next)),
        live=("serve", "monitor"),
        every_s=10,
    )


def _call_or_empty(call: Any) -> tuple[Any, ...]:
    """What stands beside the list; who may not see it sees the list all the same."""
    try:
        items: tuple[Any, ...] = call()
    except FalajError:
        return ()
    return items


def _make_row(view: PageView, endpoint_view: EndpointView, load: LoadView | None, drift: str) -> TableRow:
    has_requests = load is not None and load.requests_s > 0
    newest_revision = endpoint_view.revisions[-1]
    watch_ref = Ref("watch", endpoint_view.ref.project, endpoint_view.ref.name)
    return TableRow(
        (
            h.div(
                components.ref_link(view, endpoint_view.ref, short=True),
                h.br(),
                h.small(h.bdi(endpoint_view.ref.project), class_="soft"),
            ),
            components.badge(view, endpoint_view.state),
            [h.div(components.ref_link(view, model, short=True)) for model in list_served_models(endpoint_view)],
            [
                h.div(view.t("serve.has_share", revision=number, share=view.percent(share, 0)), class_="nowrap")
                for number, share in endpoint_view.traffic.items()
            ],
            view.number(round(load.requests_s, 2)) if load else "",
            view.percent(load.errors) if load and has_requests else NO_VALUE,
            view.duration(load.p95_ms / 1000) if load and has_requests else NO_VALUE,
            h.a(components.badge(view, drift), href=build_url(f"monitor/{watch_ref}")) if drift else EMPTY,
            h.div(h.bdi(newest_revision.made_by), h.br(), h.small(view.ago(newest_revision.made_at), class_="soft")),
        ),
        id=str(endpoint_view.ref),
    )


def list_served_models(endpoint_view: EndpointView) -> list[Ref]:
    """The versions that have traffic; of an endpoint without any, the newest."""
    model_by_revision: Mapping[int, Ref] = {revision.number: revision.model for revision in endpoint_view.revisions}
    served_models = [
        model_by_revision[int(number)] for number in endpoint_view.traffic if int(number) in model_by_revision
    ]
    return served_models or [endpoint_view.revisions[-1].model]


def _render_empty(view: PageView) -> Html:
    command_line = "falaj serve deploy endpoint:PROJECT/NAME model:PROJECT/NAME@production"
    return components.empty_state(view, view.t("serve.none"), view.t("serve.none_hint"), command_line)


def _render_deploy_button(view: PageView) -> Html:
    t = view.t
    fields = (
        FormField("endpoint", t("console.endpoint"), required=True, hint=h.bdi("endpoint:fraud/score")),
        FormField("model", t("console.model"), required=True, hint=h.bdi("model:fraud/scorer@production")),
        FormField(
            "plan", t("serve.how"), "select", options=[(plan, t.of("serve.trial", name)) for name, plan in TRIAL_PLANS]
        ),
    )
    return components.action_button(view, "serve", "add", {}, t("serve.deploy"), fields, primary=True)
