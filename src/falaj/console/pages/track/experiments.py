"""The list of experiments."""

from falaj.console import parts
from falaj.console.markup import Html, h, join
from falaj.console.page import Page, address
from falaj.console.pages.track.texts import like, tags
from falaj.console.parts import Column, Field, Row
from falaj.console.view import View
from falaj.track.records import Experiment

_PAGE = 50


def experiments(view: View) -> Page:
    """Experiments that the reader may see, by name or by what is asked for."""
    t, asked = view.t, view.query("q")
    order = {"title": "name ASC", "-title": "name DESC", "when": "last_update_time DESC", "-when": "last_update_time"}
    found = view.here.track.experiments(
        project=view.query("project"), where=f"name ILIKE {like(asked)}" if asked else "",
        order=(order[view.query("order")],) if view.query("order") in order else (),
        state="deleted" if view.query("state") == "deleted" else "active", after=view.query("page"), limit=_PAGE,
    )  # fmt: skip
    columns = (
        Column(t("track.experiment"), sort="title"), t("console.project"), t("console.tags"), t("console.by"),
        Column(t("track.changed"), sort="when"),
    )  # fmt: skip
    shown = parts.table(view, columns, [_row(view, one) for one in found.experiments], t("console.room.track"))
    if not found.experiments:
        shown = parts.empty(view, t("track.no_experiments"), t("track.no_experiments_hint"),
                            "falaj track create experiment:fraud/scoring")  # fmt: skip
    body = join(_filters(view), shown, parts.pager(view, found.next))
    return Page(t("console.room.track"), body, live=("track",))


def _filters(view: View) -> Html:
    t = view.t
    states = (("", t("track.state_active")), ("deleted", t("track.state_deleted")))
    fields = (Field("q", t("track.title_has")), Field("project", t("console.project")),
              Field("state", t("console.state"), "select", options=states))  # fmt: skip
    every = h.a(t("track.all_runs"), href=address("track/runs"), class_="button quiet")
    return h.div(parts.filters(view, fields), every, class_="grid-bar")


def _row(view: View, one: Experiment) -> Row:
    link = h.a(h.bdi(one.title), href=address(f"track/{one.ref}"))
    return Row(
        (join(link, h.br(), h.code(one.ref.name, dir="ltr", class_="soft")), h.bdi(one.ref.project), tags(one.tags),
         h.bdi(one.author), view.ago(one.changed_at)), str(one.ref),
    )  # fmt: skip
