"""The list of experiments."""

from falaj.console import components
from falaj.console.components import ColumnHeader, FormField, TableRow
from falaj.console.markup import Html, h, join_html
from falaj.console.page import Page, build_url
from falaj.console.page_view import PageView
from falaj.console.pages.track.note_markup import quote_like_pattern, render_tags
from falaj.track.records import Experiment

_PAGE_SIZE = 50


def render_experiments_page(view: PageView) -> Page:
    """Experiments that the reader may see, by name or by what is asked for."""
    t, search_text = view.t, view.query("q")
    order_by_key = {
        "title": "name ASC",
        "-title": "name DESC",
        "when": "last_update_time DESC",
        "-when": "last_update_time",
    }
    experiment_page = view.here.track.experiments(
        project=view.query("project"),
        where=f"name ILIKE {quote_like_pattern(search_text)}" if search_text else "",
        order=(order_by_key[view.query("order")],) if view.query("order") in order_by_key else (),
        state="deleted" if view.query("state") == "deleted" else "active",
        after=view.query("page"),
        limit=_PAGE_SIZE,
    )
    columns = (
        ColumnHeader(t("track.experiment"), sort="title"),
        t("console.project"),
        t("console.tags"),
        t("console.by"),
        ColumnHeader(t("track.changed"), sort="when"),
    )
    experiment_table = components.table(
        view,
        columns,
        [_make_row(view, experiment) for experiment in experiment_page.experiments],
        t("console.room.track"),
    )
    if not experiment_page.experiments:
        experiment_table = components.empty_state(
            view,
            t("track.no_experiments"),
            t("track.no_experiments_hint"),
            "falaj track create experiment:fraud/scoring",
        )
    body = join_html(_render_filters(view), experiment_table, components.pager(view, experiment_page.next))
    return Page(t("console.room.track"), body, live=("track",))


def _render_filters(view: PageView) -> Html:
    t = view.t
    state_options = (("", t("track.state_active")), ("deleted", t("track.state_deleted")))
    fields = (
        FormField("q", t("track.title_has")),
        FormField("project", t("console.project")),
        FormField("state", t("console.state"), "select", options=state_options),
    )
    all_runs_link = h.a(t("track.all_runs"), href=build_url("track/runs"), class_="button quiet")
    return h.div(components.filter_form(view, fields), all_runs_link, class_="grid-bar")


def _make_row(view: PageView, experiment: Experiment) -> TableRow:
    link = h.a(h.bdi(experiment.title), href=build_url(f"track/{experiment.ref}"))
    return TableRow(
        (
            join_html(link, h.br(), h.code(experiment.ref.name, dir="ltr", class_="soft")),
            h.bdi(experiment.ref.project),
            render_tags(experiment.tags),
            h.bdi(experiment.author),
            view.ago(experiment.changed_at),
        ),
        str(experiment.ref),
    )
