"""The list of watches: what is looked at, how it stands, and what people have to look after."""

from falaj.console import parts
from falaj.console.markup import Html, h, join
from falaj.console.page import Page, address
from falaj.console.parts import Column, Field, Row
from falaj.console.view import View
from falaj.core.ref import Ref
from falaj.monitor.records import OPEN, RESOLVED, Incident, WatchView

PAGE, FEW = 100, 5


def watches(view: View) -> Page:
    """Every watch that the reader may see, what is open first."""
    t, project = view.t, view.query("project")
    found: tuple[WatchView, ...] = view.here.monitor.list(project=project, limit=PAGE, after=view.query("page"))
    order = sorted(found, key=lambda one: (one.state == "ok", str(one.ref)))
    heads = (
        t("console.endpoint"), t("console.state"), Column(t("serve.revision"), "n"), Column(t("monitor.windows"), "n"),
        Column(t("monitor.alarms"), "n"), t("monitor.against"), t("monitor.follows"),
    )  # fmt: skip
    listed = (
        parts.table(view, heads, [_row(view, one) for one in order], t("monitor.list"))
        if order
        else parts.empty(view, t("monitor.none"), t("monitor.none_hint"), "falaj monitor add endpoint:PROJECT/NAME")
    )
    filters = parts.filters(view, (Field("project", t("console.project"), value=project),))
    more = parts.pager(view, found[-1].more if found else "")
    body = join(view.part(lambda: _open(view, project)), filters, listed, more)
    return Page(t("console.room.monitor"), body, live=("monitor",))


def watch_ref(endpoint: Ref) -> Ref:
    """The watch of an endpoint, whose page this is."""
    return Ref("watch", endpoint.project, endpoint.name)


def incident_state(view: View, one: Incident) -> Html:
    """An incident that is open is no good news, whatever else may be open."""
    kind = {OPEN: "bad", RESOLVED: "good"}.get(one.state, "warn")
    return h.span(view.t.of("console.state", one.state), class_=f"badge {kind}", data_state=one.state)


def _row(view: View, one: WatchView) -> Row:
    named = h.a(h.bdi(one.ref.name), href=address(f"monitor/{watch_ref(one.ref)}"), class_="ref")
    base = parts.ref(view, one.baseline) if one.baseline.startswith(("model:", "dataset:")) else h.bdi(one.baseline)
    return Row(
        (
            h.div(named, h.br(), h.small(h.bdi(one.ref.project), class_="soft")), parts.badge(view, one.state),
            view.number(one.revision), view.number(one.windows), view.number(one.alarms), base, follows(view, one),
        ),
        id=str(one.ref),
    )  # fmt: skip


def follows(view: View, one: WatchView) -> Html:
    """What is done by itself."""
    acting, t = one.plan.acting, view.t
    said = [h.span(t("monitor.retrains"), " ", parts.ref(view, acting.retrain, short=True))] if acting.retrain else []
    said += [h.span(t("monitor.goes_back"))] if acting.rollback else []
    return join([h.div(line) for line in said] or h.span(t("monitor.tells"), class_="soft"))


def _open(view: View, project: str) -> Html:
    t = view.t
    found: tuple[Incident, ...] = view.here.monitor.incidents(project=project, state=OPEN, limit=FEW)
    every = address("monitor/incidents")
    if not found:
        return h.p(h.a(t("monitor.incidents"), href=every))
    rows = [
        h.li(parts.ref(view, one.ref, short=True), " ", t.of("monitor.what", one.what), " · ", view.ago(one.opened_at),
             h.div(view.english(one.said), class_="soft small"), id=parts.slug(str(one.ref)))
        for one in found
    ]  # fmt: skip
    return parts.card(t("monitor.open_incidents"), h.ul(rows, class_="plain-list"), id="open", more=every)
