"""The list of watches: what is looked at, how it stands, and what people have to look after."""

from falaj.console import components
from falaj.console.components import ColumnHeader, FormField, TableRow
from falaj.console.markup import Html, h, join_html
from falaj.console.page import Page, build_url
from falaj.console.page_view import PageView
from falaj.core.ref import Ref
from falaj.monitor.records import INCIDENT_OPEN, INCIDENT_RESOLVED, Incident, WatchView

PAGE_SIZE, MAX_OPEN_INCIDENTS = 100, 5


def render_watches_page(view: PageView) -> Page:
    """Every watch that the reader may see, what is open first."""
    t, project = view.t, view.query("project")
    watch_views: tuple[WatchView, ...] = view.here.monitor.list(
        project=project, limit=PAGE_SIZE, after=view.query("page")
    )
    sorted_watches = sorted(watch_views, key=lambda watch_view: (watch_view.state == "ok", str(watch_view.ref)))
    headers = (
        t("console.endpoint"),
        t("console.state"),
        ColumnHeader(t("serve.revision"), "n"),
        ColumnHeader(t("monitor.windows"), "n"),
        ColumnHeader(t("monitor.alarms"), "n"),
        t("monitor.against"),
        t("monitor.follows"),
    )
    watch_table = (
        components.table(
            view, headers, [_make_row(view, watch_view) for watch_view in sorted_watches], t("monitor.list")
        )
        if sorted_watches
        else components.empty_state(
            view, t("monitor.none"), t("monitor.none_hint"), "falaj monitor add endpoint:PROJECT/NAME"
        )
    )
    filter_bar = components.filter_form(view, (FormField("project", t("console.project"), value=project),))
    page_links = components.pager(view, watch_views[-1].more if watch_views else "")
    body = join_html(view.part(lambda: _render_open_incidents(view, project)), filter_bar, watch_table, page_links)
    return Page(t("console.room.monitor"), body, live=("monitor",))


def make_watch_ref(endpoint: Ref) -> Ref:
    """The watch of an endpoint, whose page this is."""
    return Ref("watch", endpoint.project, endpoint.name)


def render_incident_state(view: PageView, incident: Incident) -> Html:
    """An incident that is open is no good news, whatever else may be open."""
    badge_class = {INCIDENT_OPEN: "bad", INCIDENT_RESOLVED: "good"}.get(incident.state, "warn")
    return h.span(view.t.of("console.state", incident.state), class_=f"badge {badge_class}", data_state=incident.state)


def _make_row(view: PageView, watch_view: WatchView) -> TableRow:
    name_link = h.a(
        h.bdi(watch_view.ref.name), href=build_url(f"monitor/{make_watch_ref(watch_view.ref)}"), class_="ref"
    )
    baseline_link = (
        components.ref_link(view, watch_view.baseline)
        if watch_view.baseline.startswith(("model:", "dataset:"))
        else h.bdi(watch_view.baseline)
    )
    return TableRow(
        (
            h.div(name_link, h.br(), h.small(h.bdi(watch_view.ref.project), class_="soft")),
            components.badge(view, watch_view.state),
            view.number(watch_view.revision),
            view.number(watch_view.windows),
            view.number(watch_view.alarms),
            baseline_link,
            render_automatic_actions(view, watch_view),
        ),
        id=str(watch_view.ref),
    )


def render_automatic_actions(view: PageView, watch_view: WatchView) -> Html:
    """What is done by itself."""
    action_plan, t = watch_view.plan.acting, view.t
    action_texts = (
        [h.span(t("monitor.retrains"), " ", components.ref_link(view, action_plan.retrain, short=True))]
        if action_plan.retrain
        else []
    )
    action_texts += [h.span(t("monitor.goes_back"))] if action_plan.rollback else []
    return join_html([h.div(action_text) for action_text in action_texts] or h.span(t("monitor.tells"), class_="soft"))


def _render_open_incidents(view: PageView, project: str) -> Html:
    t = view.t
    incidents: tuple[Incident, ...] = view.here.monitor.incidents(
        project=project, state=INCIDENT_OPEN, limit=MAX_OPEN_INCIDENTS
    )
    incidents_url = build_url("monitor/incidents")
    if not incidents:
        return h.p(h.a(t("monitor.incidents"), href=incidents_url))
    rows = [
        h.li(
            components.ref_link(view, incident.ref, short=True),
            " ",
            t.of("monitor.what", incident.what),
            " · ",
            view.ago(incident.opened_at),
            h.div(view.english(incident.said), class_="soft small"),
            id=components.to_element_id(str(incident.ref)),
        )
        for incident in incidents
    ]
    return components.card(
        t("monitor.open_incidents"), h.ul(rows, class_="plain-list"), id="open", heading_link=incidents_url
    )
