"""The list of datasets, models and programs."""

from falaj.catalog.records import KINDS, Version
from falaj.console import parts
from falaj.console.markup import Html, h, join
from falaj.console.page import Page, href
from falaj.console.pages.catalog.shown import label_marks, marks, stage
from falaj.console.parts import Column, Field, Row
from falaj.console.view import View

_PAGE = 50


def listing(view: View) -> Page:
    """What you may see, each at its newest version, or at the one that holds a stage."""
    kind = view.query("kind") if view.query("kind") in KINDS else ""
    chosen = {"kind": kind, "project": view.query("project"), "search": view.query("q"), "alias": view.query("alias")}
    page = view.here.catalog.list(**chosen, after=view.query("page"), limit=_PAGE)
    found = _table(view, page.versions) if page.versions else _nothing(view, any(chosen.values()))
    body = join(_kinds(view, kind), _filters(view), found, parts.pager(view, page.next))
    return Page(view.t("console.room.catalog"), body, live=("catalog",))


def _kinds(view: View, now: str) -> Html:
    links = [
        h.a(view.t.of("catalog.kinds", kind), href=view.link(kind="" if kind == "all" else kind, page=""),
            aria_current="page" if kind == (now or "all") else None)
        for kind in ("all", *KINDS)
    ]  # fmt: skip
    return h.nav(links, class_="tabs", aria_label=view.t("console.kind"))


def _filters(view: View) -> Html:
    t = view.t
    return parts.filters(
        view,
        (
            Field("q", t("catalog.in_name"), "search"),
            Field("project", t("console.project")),
            Field("alias", t("catalog.alias")),
        ),
    )


def _nothing(view: View, filtered: bool) -> Html:
    if filtered:
        return parts.empty(view, view.t("catalog.none_fits"), h.a(view.t("catalog.show_all"), href="/console/catalog"))
    line = "falaj catalog publish dataset:PROJECT/NAME ./folder"
    return parts.empty(view, view.t("catalog.empty"), view.t("catalog.empty_hint"), line)


def _table(view: View, versions: tuple[Version, ...]) -> Html:
    t = view.t
    columns = (
        t("console.name"), t("console.kind"), t("console.version"), t("catalog.stage_alias"),
        Column(t("console.size"), "n"), Column(t("catalog.rows"), "n"), t("console.label"), t("console.by"),
        t("console.made"),
    )  # fmt: skip
    return parts.table(view, columns, [_row(view, one) for one in versions], t("console.room.catalog"))


def _row(view: View, version: Version) -> Row:
    ref = version.ref
    name = h.div(h.a(h.strong(h.bdi(ref.name)), href=href(ref.bare), class_="ref"),
                 h.div(h.bdi(ref.project), class_="soft small"))  # fmt: skip
    others = tuple(one for one in version.aliases if one != version.stage)
    staged = join(stage(view, version.stage) if version.stage != "experiment" else None, marks(view, ref, others))
    cells = (
        name,
        view.t.of("catalog.kind", ref.kind),
        h.a(h.bdi(ref.version), href=href(ref), class_="ref"),
        staged,
        view.bytes(version.size_bytes),
        view.number(version.table.rows) if version.table else "",
        label_marks(view, version.label),
        h.bdi(version.author),
        view.ago(version.made_at),
    )
    return Row(cells, id=f"row-{ref.bare}")
