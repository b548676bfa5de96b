"""The list of datasets, models and programs."""

from falaj.catalog.records import VERSION_KINDS, CatalogVersion
from falaj.console import components
from falaj.console.components import ColumnHeader, FormField, TableRow
from falaj.console.markup import Html, h, join_html
from falaj.console.page import Page, build_resource_url
from falaj.console.page_view import PageView
from falaj.console.pages.catalog.version_parts import render_aliases, render_label_summary, render_stage

_PAGE_SIZE = 50


def render_list_page(view: PageView) -> Page:
    """What you may see, each at its newest version, or at the one that holds a stage."""
    chosen_kind = view.query("kind") if view.query("kind") in VERSION_KINDS else ""
    filter_values = {
        "kind": chosen_kind,
        "project": view.query("project"),
        "search": view.query("q"),
        "alias": view.query("alias"),
    }
    page = view.here.catalog.list(**filter_values, after=view.query("page"), limit=_PAGE_SIZE)
    version_table = (
        _render_table(view, page.versions) if page.versions else _render_empty(view, any(filter_values.values()))
    )
    body = join_html(
        _render_kind_tabs(view, chosen_kind), _render_filters(view), version_table, components.pager(view, page.next)
    )
    return Page(view.t("console.room.catalog"), body, live=("catalog",))


def _render_kind_tabs(view: PageView, current_kind: str) -> Html:
    links = [
        h.a(view.t.of("catalog.kinds", kind), href=view.link(kind="" if kind == "all" else kind, page=""),
            aria_current="page" if kind == (current_kind or "all") else None)
        for kind in ("all", *VERSION_KINDS)
    ]  # fmt: skip
    return h.nav(links, class_="tabs", aria_label=view.t("console.kind"))


def _render_filters(view: PageView) -> Html:
    t = view.t
    return components.filter_form(
        view,
        (
            FormField("q", t("catalog.in_name"), "search"),
            FormField("project", t("console.project")),
            FormField("alias", t("catalog.alias")),
        ),
    )


def _render_empty(view: PageView, is_filtered: bool) -> Html:
    if is_filtered:
        return components.empty_state(
            view, view.t("catalog.none_fits"), h.a(view.t("catalog.show_all"), href="/console/catalog")
        )
    command_line = "falaj catalog publish dataset:PROJECT/NAME ./folder"
    return components.empty_state(view, view.t("catalog.empty"), view.t("catalog.empty_hint"), command_line)


def _render_table(view: PageView, versions: tuple[CatalogVersion, ...]) -> Html:
    t = view.t
    columns = (
        t("console.name"), t("console.kind"), t("console.version"), t("catalog.stage_alias"),
        ColumnHeader(t("console.size"), "n"), ColumnHeader(t("catalog.rows"), "n"), t("console.label"), t("console.by"),
        t("console.made"),
    )  # fmt: skip
    return components.table(
        view, columns, [_make_row(view, version) for version in versions], t("console.room.catalog")
    )


def _make_row(view: PageView, version: CatalogVersion) -> TableRow:
    ref = version.ref
    name = h.div(h.a(h.strong(h.bdi(ref.name)), href=build_resource_url(ref.bare), class_="ref"),
                 h.div(h.bdi(ref.project), class_="soft small"))  # fmt: skip
    other_aliases = tuple(alias for alias in version.aliases if alias != version.stage)
    stage_marks = join_html(
        render_stage(view, version.stage) if version.stage != "experiment" else None,
        render_aliases(view, ref, other_aliases),
    )
    cells = (
        name,
        view.t.of("catalog.kind", ref.kind),
        h.a(h.bdi(ref.version), href=build_resource_url(ref), class_="ref"),
        stage_marks,
        view.bytes(version.size_bytes),
        view.number(version.table.rows) if version.table else "",
        render_label_summary(view, version.label),
        h.bdi(version.author),
        view.ago(version.made_at),
    )
    return TableRow(cells, id=f"row-{ref.bare}")
