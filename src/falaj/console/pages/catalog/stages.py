"""Stages: what holds which and since when, the evidence beside the button that promotes, and the way back."""

from falaj.catalog.life_records import Binding
from falaj.catalog.records import Version
from falaj.console import parts
from falaj.console.markup import EMPTY, Html, h, join
from falaj.console.page import Page, href
from falaj.console.pages.catalog.gate import gates
from falaj.console.pages.catalog.shown import asked, crumbs, marks, summary, title, ways
from falaj.console.parts import Field, Row
from falaj.console.plots import Span, timeline
from falaj.console.view import View
from falaj.core.ref import Ref

_SHOWN = 100
_GATED = ("production", "staging")


def stages(view: View) -> Page:
    """Of a version: what each gate finds of it. Of every name: what held its stages when, and how to go back."""
    ref = asked(view)
    version: Version | None = view.here.catalog.show(ref) if ref.version else None
    ref = version.ref if version else ref
    history: tuple[Binding, ...] = view.here.catalog.history(ref.bare)
    body = join(
        ways(view, ref, "stages"),
        summary(view, version) if version else None,
        gates(view, version) if version and version.state == "live" else None,
        _back(view, ref.bare, history),
        _history(view, ref, history),
    )
    return Page(
        title(ref), body, crumbs(view, ref), ("catalog", "approvals", "serve", "monitor"), scripts=("plots.js",)
    )


def _history(view: View, ref: Ref, history: tuple[Binding, ...]) -> Html:
    t = view.t
    if not history:
        hint, line = t("catalog.no_history_hint"), f"falaj catalog promote {ref.bare}@v1 staging"
        return parts.card(t("console.history"), parts.empty(view, t("catalog.no_history"), hint, line), id="history")
    order = {"production": 0, "staging": 1}
    some = sorted(history, key=lambda one: (order.get(one.alias, 2), one.alias, one.since))
    spans = [
        Span(t.of("catalog.stage", one.alias), one.ref.version, one.since, one.until or view.now,
             "production" if one.alias == "production" and not one.until else "", "")
        for one in some[-_SHOWN:]
    ]  # fmt: skip
    drawn = timeline(view, spans, title=t("catalog.held_when"))
    return parts.card(t("console.history"), drawn, _table(view, history), id="history")


def _table(view: View, history: tuple[Binding, ...]) -> Html:
    t = view.t
    newest = sorted(history, key=lambda one: one.since, reverse=True)[:_SHOWN]
    rows = [
        Row((marks(view, one.ref, (one.alias,)), parts.ref(view, one.ref, short=True), view.when(one.since),
             view.when(one.until) if one.until else t("catalog.until_now"),
             t.of("catalog.done_by", one.how.partition(" by ")[0]), _who(one.by), _people(view, one),
             h.span(one.why[:300], dir="auto")))
        for one in newest
    ]  # fmt: skip
    heads = (t("catalog.stage_alias"), t("console.version"), t("console.since"), t("console.until"), t("catalog.how"),
             t("console.by"), t("catalog.approved_by"), t("console.reason"))  # fmt: skip
    return parts.table(view, heads, rows, t("console.history"))


def _who(name: str) -> Html:
    """Whoever did it; what works for somebody has a long name."""
    return h.bdi(name if len(name) <= 20 else f"{name[:12]}…{name[-4:]}", title=name)


def _people(view: View, one: Binding) -> Html:
    names = join([h.bdi(who, " ") for who in one.approved_by])
    link = h.a(view.t("catalog.approval"), href=href(Ref.parse(one.approval).bare)) if one.approval else None
    return join(names, " ", link)


def earlier(history: tuple[Binding, ...], alias: str) -> tuple[str, list[str]]:
    """The version that an alias means now, and those it meant before, the latest first."""
    of = sorted((one for one in history if one.alias == alias), key=lambda one: one.since)
    now = next((one.ref.version for one in of if not one.until), "")
    return now, [one for one in dict.fromkeys(one.ref.version for one in reversed(of)) if one != now]


def _back(view: View, name: Ref, history: tuple[Binding, ...]) -> Html:
    """For each stage: what holds it, and a button that brings an earlier one back."""
    t, made = view.t, list[Html]()
    for alias in _GATED:
        now, before = earlier(history, alias)
        if not now and not before:
            continue
        holds = parts.ref(view, name.at(now), short=True) if now else h.span(t("console.none"), class_="soft")
        since = next((one for one in reversed(history) if one.alias == alias and not one.until), None)
        told = parts.facts([
            (t("catalog.holds_now"), holds), (t("console.since"), view.when(since.since) if since else ""),
            (t("console.by"), h.bdi(since.by) if since else ""),
        ])  # fmt: skip
        button = _rollback(view, name, alias, before) if before else h.p(t("catalog.nothing_before"), class_="soft")
        made.append(parts.card(t.of("catalog.stage", alias), told, button, id=f"holds-{alias}"))
    return parts.cards(*made) if made else EMPTY


def _rollback(view: View, name: Ref, alias: str, before: list[str]) -> Html:
    t = view.t
    fields = (
        Field("to", t("catalog.back_to"), "select", before[0], [(one, h.bdi(one)) for one in before]),
        Field("reason", t("console.reason"), required=True),
    )
    return parts.action(view, "catalog", "rollback", {"name": name, "alias": alias}, t("catalog.roll_back"), fields,
                        danger=True, confirm=t("catalog.roll_back_means"), id=f"rollback-{alias}")  # fmt: skip
