"""The list of endpoints: which model answers, how it is asked, and whether what it is asked has moved."""

from collections.abc import Mapping
from typing import Any

from falaj.console import parts
from falaj.console.markup import EMPTY, Html, h, join
from falaj.console.page import Page, address
from falaj.console.pages.serve.acts import TRIALS
from falaj.console.parts import Column, Field, Row
from falaj.console.view import View
from falaj.console.writing import NOTHING
from falaj.core.errors import FalajError
from falaj.core.ref import Ref
from falaj.serve.loads import LoadView
from falaj.serve.records import EndpointView

PAGE = 50


def endpoints(view: View) -> Page:
    """Every endpoint that the reader may see."""
    t, project, after = view.t, view.query("project"), view.query("page")
    found = view.here.serve.list(project=project, after=after, limit=PAGE)
    loads = {one.ref: one for one in _told(lambda: view.here.serve.loads(project=project, after=after, limit=PAGE))}
    watched = {one.ref: one.state for one in _told(lambda: view.here.monitor.list(project=project))}
    rows = [_row(view, one, loads.get(one.ref), watched.get(one.ref, "")) for one in found.endpoints]
    heads = (
        Column(t("console.name")), t("console.state"), t("console.model"), t("serve.traffic"),
        Column(t("serve.per_s"), "n"), Column(t("serve.failed"), "n"), Column(t("serve.p95"), "n"),
        t("serve.drift"), t("serve.by"),
    )  # fmt: skip
    listed = parts.table(view, heads, rows, t("serve.list")) if rows else _none(view)
    fields = (Field("project", t("console.project"), value=project),)
    top = join(h.div(_deploy(view), class_="actions"), parts.filters(view, fields))
    return Page(t("console.room.serve"), join(top, listed, parts.pager(view, found.next)), live=("serve", "monitor"),
                every_s=10)  # fmt: skip


def _told(ask: Any) -> tuple[Any, ...]:
    """What stands beside the list; who may not see it sees the list all the same."""
    try:
        found: tuple[Any, ...] = ask()
    except FalajError:
        return ()
    return found


def _row(view: View, one: EndpointView, load: LoadView | None, drift: str) -> Row:
    asked = load is not None and load.requests_s > 0
    newest = one.revisions[-1]
    watch = Ref("watch", one.ref.project, one.ref.name)
    return Row(
        (
            h.div(parts.ref(view, one.ref, short=True), h.br(), h.small(h.bdi(one.ref.project), class_="soft")),
            parts.badge(view, one.state),
            [h.div(parts.ref(view, model, short=True)) for model in models(one)],
            [h.div(view.t("serve.has_share", revision=number, share=view.percent(share, 0)), class_="nowrap")
             for number, share in one.traffic.items()],
            view.number(round(load.requests_s, 2)) if load else "",
            view.percent(load.errors) if load and asked else NOTHING,
            view.duration(load.p95_ms / 1000) if load and asked else NOTHING,
            h.a(parts.badge(view, drift), href=address(f"monitor/{watch}")) if drift else EMPTY,
            h.div(h.bdi(newest.made_by), h.br(), h.small(view.ago(newest.made_at), class_="soft")),
        ),
        id=str(one.ref),
    )  # fmt: skip


def models(one: EndpointView) -> list[Ref]:
    """The versions that have traffic; of an endpoint without any, the newest."""
    known: Mapping[int, Ref] = {revision.number: revision.model for revision in one.revisions}
    served = [known[int(number)] for number in one.traffic if int(number) in known]
    return served or [one.revisions[-1].model]


def _none(view: View) -> Html:
    command = "falaj serve deploy endpoint:PROJECT/NAME model:PROJECT/NAME@production"
    return parts.empty(view, view.t("serve.none"), view.t("serve.none_hint"), command)


def _deploy(view: View) -> Html:
    t = view.t
    fields = (
        Field("endpoint", t("console.endpoint"), required=True, hint=h.bdi("endpoint:fraud/score")),
        Field("model", t("console.model"), required=True, hint=h.bdi("model:fraud/scorer@production")),
        Field("plan", t("serve.how"), "select", options=[(plan, t.of("serve.trial", name)) for name, plan in TRIALS]),
    )
    return parts.action(view, "serve", "add", {}, t("serve.deploy"), fields, primary=True)
