"""The list of what is defined: views with their freshness, services, entities; found by any word of theirs."""

from falaj.console import components
from falaj.console.components import ColumnHeader, FormField, TableRow
from falaj.console.formatting import NO_VALUE
from falaj.console.markup import Html, h, join_html
from falaj.console.page import Page
from falaj.console.page_view import PageView
from falaj.features.records import KINDS, DefinitionView

PAGE_SIZE = 50


def render_definitions_page(view: PageView) -> Page:
    """One kind at a time."""
    t = view.t
    kind = view.query("tab") if view.query("tab") in KINDS else "view"
    definition_page = view.here.features.list(
        kind=kind, project=view.query("project"), search=view.query("q"), after=view.query("page"), limit=PAGE_SIZE
    )
    tab_labels = (
        ("view", t("features.views")),
        ("service", t("features.services")),
        ("entity", t("features.entities")),
    )
    filter_bar = components.filter_form(
        view,
        (
            FormField("q", t("console.search"), hint=t("features.search_hint")),
            FormField("project", t("console.project")),
        ),
    )
    body = join_html(
        components.tabs(view, tab_labels),
        filter_bar,
        _render_definitions(view, kind, definition_page.items),
        components.pager(view, definition_page.next),
    )
    return Page(t("console.room.features"), body, live=("features",))


def _render_definitions(view: PageView, kind: str, items: tuple[DefinitionView, ...]) -> Html:
    if not items:
        hint = view.t("features.none_hint")
        return components.empty_state(view, view.t("features.none"), hint, "falaj features apply features.py --plan")
    return _render_views(view, items) if kind == "view" else _render_others(view, items)


def _render_views(view: PageView, items: tuple[DefinitionView, ...]) -> Html:
    t = view.t
    rows = [
        TableRow(
            (
                components.ref_link(view, definition.ref.bare),
                view.number(len(definition.columns)),
                view.number(definition.rows),
                render_freshness(view, definition),
                render_online_state(view, definition),
                view.number(definition.quarantined),
                h.bdi(definition.owner),
                h.span(definition.about, dir="auto"),
            ),
            id=str(definition.ref.bare),
        )
        for definition in items
    ]
    headers = (
        t("console.name"),
        ColumnHeader(t("features.columns"), "n"),
        ColumnHeader(t("features.rows"), "n"),
        t("features.newest"),
        t("features.online"),
        ColumnHeader(t("features.apart"), "n"),
        t("console.owner"),
        t("features.about"),
    )
    return components.table(view, headers, rows, t("features.views"))


def render_freshness(view: PageView, definition: DefinitionView) -> Html:
    """How old the newest row is."""
    return view.ago(definition.fresh) if definition.fresh else h.span(view.t("features.no_rows"), class_="soft")


def render_online_state(view: PageView, definition: DefinitionView) -> Html:
    """Whether the online store has all that came in."""
    if not definition.generation:
        return h.span(NO_VALUE, class_="soft")
    return components.badge(view, "fresh" if definition.filled >= definition.generation else "late")


def _render_others(view: PageView, items: tuple[DefinitionView, ...]) -> Html:
    t = view.t
    rows = [
        TableRow(
            (
                components.ref_link(view, definition.ref.bare),
                join_html([h.code(column_text, dir="ltr", class_="tag") for column_text in definition.columns[:8]]),
                h.bdi(definition.owner),
                view.ago(definition.at),
                h.span(definition.about, dir="auto"),
            ),
            id=str(definition.ref.bare),
        )
        for definition in items
    ]
    headers = (t("console.name"), t("features.columns"), t("console.owner"), t("console.made"), t("features.about"))
    return components.table(view, headers, rows, t("features.entities"))
