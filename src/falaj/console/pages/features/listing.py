"""The list of what is defined: views with their freshness, services, entities; found by any word of theirs."""

from falaj.console import parts
from falaj.console.markup import Html, h, join
from falaj.console.page import Page
from falaj.console.parts import Column, Field, Row
from falaj.console.view import View
from falaj.console.writing import NOTHING
from falaj.features.records import KINDS, Defined

PAGE = 50


def page(view: View) -> Page:
    """One kind at a time."""
    t = view.t
    kind = view.query("tab") if view.query("tab") in KINDS else "view"
    found = view.here.features.list(
        kind=kind, project=view.query("project"), search=view.query("q"), after=view.query("page"), limit=PAGE
    )
    named = (("view", t("features.views")), ("service", t("features.services")), ("entity", t("features.entities")))
    asked = parts.filters(view, (Field("q", t("console.search"), hint=t("features.search_hint")),
                                 Field("project", t("console.project"))))  # fmt: skip
    body = join(parts.tabs(view, named), asked, _listed(view, kind, found.items), parts.pager(view, found.next))
    return Page(t("console.room.features"), body, live=("features",))


def _listed(view: View, kind: str, items: tuple[Defined, ...]) -> Html:
    if not items:
        hint = view.t("features.none_hint")
        return parts.empty(view, view.t("features.none"), hint, "falaj features apply features.py --plan")
    return _views(view, items) if kind == "view" else _others(view, items)


def _views(view: View, items: tuple[Defined, ...]) -> Html:
    t = view.t
    rows = [
        Row((parts.ref(view, one.ref.bare), view.number(len(one.columns)), view.number(one.rows), freshness(view, one),
             online(view, one), view.number(one.quarantined), h.bdi(one.owner), h.span(one.about, dir="auto")),
            id=str(one.ref.bare))
        for one in items
    ]  # fmt: skip
    heads = (t("console.name"), Column(t("features.columns"), "n"), Column(t("features.rows"), "n"),
             t("features.newest"), t("features.online"), Column(t("features.apart"), "n"), t("console.owner"),
             t("features.about"))  # fmt: skip
    return parts.table(view, heads, rows, t("features.views"))


def freshness(view: View, one: Defined) -> Html:
    """How old the newest row is."""
    return view.ago(one.fresh) if one.fresh else h.span(view.t("features.no_rows"), class_="soft")


def online(view: View, one: Defined) -> Html:
    """Whether the online store has all that came in."""
    if not one.generation:
        return h.span(NOTHING, class_="soft")
    return parts.badge(view, "fresh" if one.filled >= one.generation else "late")


def _others(view: View, items: tuple[Defined, ...]) -> Html:
    t = view.t
    rows = [
        Row((parts.ref(view, one.ref.bare), join([h.code(each, dir="ltr", class_="tag") for each in one.columns[:8]]),
             h.bdi(one.owner), view.ago(one.at), h.span(one.about, dir="auto")), id=str(one.ref.bare))
        for one in items
    ]  # fmt: skip
    heads = (t("console.name"), t("features.columns"), t("console.owner"), t("console.made"), t("features.about"))
    return parts.table(view, heads, rows, t("features.entities"))
