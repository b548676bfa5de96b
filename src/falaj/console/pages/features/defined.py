"""What every definition has: its facts, its columns, and who relies on it. An entity has no more than that."""

from falaj.console import parts
from falaj.console.markup import Html, h, join
from falaj.console.page import Page, href
from falaj.console.parts import Column
from falaj.console.plots import Node, graph
from falaj.console.view import View
from falaj.core.ref import Ref
from falaj.features.records import Defined


def entity(view: View, ref: Ref) -> Page:
    """An entity: its keys, and what it is about."""
    one: Defined = view.here.features.show(ref)
    person = one.definition.get("subject", "")
    more = [(view.t("features.subject"), h.bdi(person))] if person else []
    found = view.here.features.list(kind="view", project=ref.project, limit=50).items
    mine = [each for each in found if any(used.bare == one.ref.bare for used in each.uses)]
    rows = [(parts.ref(view, each.ref.bare), view.number(each.rows), h.span(each.about, dir="auto")) for each in mine]
    heads = (view.t("console.name"), Column(view.t("features.rows"), "n"), view.t("features.about"))
    body = join(
        parts.card(view.t("console.overview"), facts(view, one, more)),
        parts.card(view.t("features.keys"), columns(view, one.columns)),
        parts.card(view.t("features.views"), parts.table(view, heads, rows, view.t("features.views"))),
    )
    return Page(h.bdi(one.ref.name), body, live=("features",))


def facts(view: View, one: Defined, more: list[tuple[Html, Html]]) -> Html:
    """Version, owner, words, label, and what is of its kind alone."""
    label = join([parts.tag(each) for each in sorted(one.label.regimes)])
    tags = join([parts.tag(f"{key}={value}") for key, value in one.tags.items()])
    return parts.facts([
        (view.t("console.version"), h.bdi(one.ref.version)), (view.t("console.owner"), h.bdi(one.owner)),
        (view.t("console.made"), view.when(one.at)), (view.t("features.about"), h.span(one.about, dir="auto")),
        (view.t("features.law"), label), (view.t("console.tags"), tags), *more,
    ])  # fmt: skip


def columns(view: View, given: tuple[str, ...]) -> Html:
    """Names and types."""
    rows = [(h.bdi(one.rpartition(" ")[0]), h.code(one.rpartition(" ")[2], dir="ltr")) for one in given]
    heads = (view.t("console.name"), view.t("features.type"))
    return parts.table(view, heads, rows, view.t("features.columns"))


def users(view: View, one: Defined) -> Html:
    """What it is made of, and everything that was made with it, as a graph whose nodes are links."""
    found: tuple[Ref, ...] = view.here.features.users(one.ref)
    nodes = [
        Node(str(ref), ref.name, str(join(view.t.of("features.kind", ref.kind), " ", ref.version)), link=href(ref))
        for ref in (*one.uses, one.ref, *found)
    ]
    drawn = graph(view, nodes, relies(one.ref, one.uses, found), title=str(view.t("features.users")))
    if found:
        return drawn
    return join(drawn, h.p(view.t("features.no_users"), class_="soft"))


def relies(middle: Ref, uses: tuple[Ref, ...], found: tuple[Ref, ...]) -> list[tuple[str, str]]:
    """Edges: services from the view, training sets from services, models from training sets, where there are such."""
    edges = [(str(ref), str(middle)) for ref in uses]
    before = [middle]
    for kind in ("service", "dataset", "model"):
        level = [ref for ref in found if ref.kind == kind]
        edges += [(str(first), str(ref)) for first in before for ref in level]
        before = level or before
    return edges
