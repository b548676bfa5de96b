"""A service: the features that a model asks for, where they come from, and whether what is served is true."""

from typing import Any

from falaj.console import parts
from falaj.console.markup import EMPTY, Html, h, join
from falaj.console.page import Page
from falaj.console.pages.features.defined import facts, users
from falaj.console.parts import Column
from falaj.console.view import View
from falaj.core.errors import NotFound
from falaj.core.ref import Ref
from falaj.features.records import Defined, Opening
from falaj.features.skew import SkewReport
from falaj.platform import Platform

MOST_ROWS = 200_000
"""Where the views have more, the check reads too much to be done for a page."""


def page(view: View, ref: Ref) -> Page:
    """One service, part by part."""
    t = view.t
    one: Defined = view.here.features.show(ref)
    named = (("", t("console.overview")), ("skew", t("features.skew")), ("users", t("features.users")))
    made = {"skew": _skew, "users": users}.get(view.query("tab"), _overview)
    body = join(parts.tabs(view, named), view.part(lambda: made(view, one)))
    return Page(h.bdi(one.ref.name), body, live=("features",), scripts=("plots.js",))


def _overview(view: View, one: Defined) -> Html:
    made_of = (view.t("features.views"), join([h.div(parts.ref(view, ref)) for ref in one.uses]))
    return join(
        parts.card(view.t("features.what"), facts(view, one, [made_of])),
        parts.card(view.t("features.outputs"), view.part(lambda: _outputs(view, one)), id="outputs"),
        parts.card(view.t("features.do"), parts.copyable(view, f"falaj features read {one.ref.bare} --keys KEY=VALUE"),
                   parts.copyable(view, f"falaj features materialize {one.ref.bare}")),
    )  # fmt: skip


def _outputs(view: View, one: Defined) -> Html:
    plan = view.here.features.open(one.ref).plan
    t = view.t
    come = {name: each for each in plan.views for name in each.names}
    rows = [
        (h.bdi(field.name), h.code(field.type, dir="ltr"),
         parts.ref(view, come[field.name].ref) if field.name in come else t("features.on_request"),
         join([h.code(key.name, dir="ltr", class_="tag") for key in come[field.name].keys])
         if field.name in come else EMPTY)
        for field in plan.outputs
    ]  # fmt: skip
    heads = (t("console.name"), t("features.type"), t("features.comes_from"), t("features.keys"))
    return parts.table(view, heads, rows, t("features.outputs"))


def _skew(view: View, one: Defined) -> Html:
    t, line = view.t, f"falaj features skew {one.ref.bare}"
    told = parts.card(t("features.skew"), h.p(t("features.skew_hint")), parts.copyable(view, line))
    opening: Opening = view.here.features.open(one.ref)
    num_rows = sum(view.here.features.show(ref).rows for ref in one.uses if ref.kind == "view")
    if any(each.source for each in opening.plan.computed) or num_rows > MOST_ROWS:
        # A function of somebody's runs beside its caller or in an attempt, never in this process.
        return join(told, parts.notice("plain", t("features.skew_elsewhere")))
    return join(told, _report(view, one))


def _report(view: View, one: Defined) -> Html:
    beside: Any = Platform(view.here.house, view.actor, view.here.purpose)
    t, n = view.t, view.number
    try:
        found: SkewReport = beside.features.skew(one.ref)
    except NotFound as nothing:
        return parts.empty(view, t("features.no_reads"), h.span(nothing.hint, dir="auto"))
    rows = [
        (h.bdi(each.feature), n(each.checked), n(each.differ), view.percent(each.rate, 2), n(each.status),
         n(each.value), n(each.behind), n(each.late), n(each.max_abs))
        for each in found.features
    ]  # fmt: skip
    names = (t("features.checked"), t("features.differ"), t("features.rate"), t("features.status"),
             t("console.value"), t("features.old_row"), t("features.late"), t("features.max_abs"))  # fmt: skip
    heads = [Column(t("console.column")), *(Column(name, "n") for name in names)]
    said = join(t("features.reads", n=found.reads), " ", h.span(found.verdict, dir="auto"))
    return parts.card(t("features.verdict"), h.p(said), parts.table(view, heads, rows, t("features.skew")), id="report")
