"""Lineage as a graph to walk: from a column over views and models to the endpoints that answer with it."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from falaj.audit.records import Graph
from falaj.catalog.records import Version
from falaj.console import parts
from falaj.console.markup import EMPTY, Html, h, join
from falaj.console.page import Page, href
from falaj.console.pages.catalog.shown import asked, at, crumbs, summary, title, ways
from falaj.console.pages.catalog.version import HIDDEN_KINDS, plain
from falaj.console.parts import Field, Row
from falaj.console.plots import Node, graph
from falaj.console.view import View
from falaj.core.ref import Ref

_DEPTHS = ("1", "2", "3", "5", "")
_MOST = 300
Drawn = tuple[dict[str, Node], list[tuple[str, str]]]


def lineage(view: View) -> Page:
    """What it was made from and what was made from it, as far as asked."""
    version: Version = view.here.catalog.show(asked(view))
    ref, column = version.ref, view.query("column")
    direction = view.query("direction") if view.query("direction") in ("up", "down") else "both"
    found: Graph = view.here.audit.lineage(ref, direction=direction, depth=view.count("depth", 0, 50))
    nodes, edges = drawn(view, found)
    denied = view.part(lambda: _served(view, ref, nodes, edges)) if direction != "up" else EMPTY
    if direction != "up" and column and ref.kind == "dataset":
        denied = join(denied, view.part(lambda: _from_column(view, ref, column, (nodes, edges))))
    picture = graph(view, list(nodes.values()), edges, title=view.t("catalog.lineage_of", name=ref))
    cut = None if found.complete else parts.notice("plain", view.t("catalog.cut_graph"))
    body = join(ways(view, ref, "lineage"), summary(view, version), _filters(view, version), cut, denied, picture,
                view.part(lambda: _impact(view, ref)), _listed(view, nodes))  # fmt: skip
    return Page(title(ref), body, crumbs(view, ref), ("catalog", "serve"), scripts=("plots.js",), wide=True)


def _filters(view: View, version: Version) -> Html:
    t = view.t
    ways_ = [("", t("catalog.both")), ("up", t("catalog.made_from")), ("down", t("catalog.went_into"))]
    depths = [(one, t("catalog.all_steps") if not one else t("catalog.steps", n=int(one))) for one in reversed(_DEPTHS)]
    fields = [Field("direction", t("catalog.direction"), "select", options=ways_),
              Field("depth", t("catalog.depth"), "select", options=depths)]  # fmt: skip
    if version.table:
        names = [("", t("console.none")), *((one.name, one.name) for one in version.table.columns[:200])]
        fields.append(Field("column", t("console.column"), "select", options=names))
    return parts.filters(view, fields)


def drawn(view: View, found: Graph) -> Drawn:
    """The graph as it is drawn: a thing without versions once, and what only keeps the books left out."""
    nodes: dict[str, Node] = {}
    names: dict[str, str] = {}
    for one in found.nodes:
        if one.ref.partition(":")[0] in HIDDEN_KINDS:
            continue
        key = one.ref if one.hidden else str(plain(one.ref))
        names[one.ref] = key
        if key not in nodes:
            nodes[key] = _node(view, key, one.hidden, one.depth == 0)
    pairs = ((names.get(edge.input), names.get(edge.output)) for edge in found.edges)
    edges = [(a, b) for a, b in dict.fromkeys(pairs) if a and b and a != b]
    return nodes, edges


def _node(view: View, key: str, hidden: bool, here: bool) -> Node:
    if hidden:
        return Node(key, view.t("catalog.hidden"))
    ref = Ref.parse(key)
    shown = f"{ref.name[:18]}@{ref.version}" if ref.version else ref.name
    note = view.t.of("catalog.kind", ref.kind)
    return Node(key, f"● {shown}" if here else shown, note, link=way(ref, here))


def way(ref: Ref, here: bool = False) -> str:
    """A node leads to its own lineage, so that the graph can be walked; what has none leads to its page."""
    keeps = ref.kind in ("dataset", "model", "code") and ref.version and not here
    return at(ref, "lineage") if keeps else href(ref)


def _served(view: View, ref: Ref, nodes: dict[str, Node], edges: list[tuple[str, str]]) -> Html:
    """The endpoints that serve a model of the graph now, with their state: where the way of a column ends."""
    for one in view.here.serve.list(project=ref.project, limit=200).endpoints:
        key, known = (
            str(one.ref.bare),
            {str(part.model) for part in one.revisions}
            | {str(part.features) for part in one.revisions if part.features},
        )
        sources = [name for name in known if name in nodes]
        if sources or key in nodes:
            note = f"{view.t.of('catalog.kind', 'endpoint')} · {view.t.of('catalog.serves', one.state)}"
            nodes[key] = Node(key, one.ref.name, note, one.state, href(one.ref.bare))
            edges += [(name, key) for name in sources if (name, key) not in edges]
    return EMPTY


def _from_column(view: View, ref: Ref, column: str, into: Drawn) -> Html:
    """The column itself, and every view that says it computes something from it."""
    nodes, edges = into
    first = f"column {column}"
    nodes[first] = Node(first, column, view.t("console.column"), link=href(ref))
    edges.append((first, str(ref)))
    for known in view.here.features.list(project=ref.project, limit=100).items:
        shown = view.here.features.show(known.ref) if len(nodes) < _MOST else known
        made = made_of(shown.definition, str(ref.bare), column)
        key = str(known.ref)
        if made:
            nodes[key] = Node(key, known.ref.name, " ".join(made)[:60], link=href(known.ref))
            edges.append((first, key))
            for user in view.here.features.users(known.ref):
                name = str(plain(str(user)))
                nodes.setdefault(name, _node(view, name, False, False))
                edges += [(key, name)] if (key, name) not in edges else []
    return EMPTY


def made_of(definition: Mapping[str, Any], source: str, column: str) -> list[str]:
    """The features of a view that are computed from this column of that dataset, by what the definition says."""
    if Ref.parse(source).bare != _dataset(definition):
        return []
    plainly = [one["name"] for one in definition.get("features", ())
               if (one["name"] == column if one.get("express") is None else _uses(one["express"], column))]  # fmt: skip
    windows = [str(one.get("name") or one.get("function") or column) for one in definition.get("windows", ())
               if column in (one.get("column"), one.get("of"), one.get("over_column"))]  # fmt: skip
    return [*plainly, *windows]


def _dataset(definition: Mapping[str, Any]) -> Ref | None:
    said = str(definition.get("source", {}).get("address", ""))
    return Ref.parse(said).bare if said.startswith("dataset:") else None


def _uses(express: Any, column: str) -> bool:
    if isinstance(express, Mapping):
        return express.get("col") == column or any(_uses(one, column) for one in express.values())
    return isinstance(express, Sequence) and not isinstance(express, str) and any(_uses(one, column) for one in express)


def _impact(view: View, ref: Ref) -> Html:
    """What is touched should this turn out to be wrong."""
    t = view.t
    found = view.here.audit.impact(ref)
    things = Counter(plain(one).kind for one in {str(plain(one)) for one in found.affected})
    kinds = [
        parts.stat(t.of("catalog.kinds", kind), view.number(count))
        for kind, count in things.most_common()
        if kind not in HIDDEN_KINDS
    ]
    if not kinds:
        return parts.card(t("catalog.impact"), h.p(t("catalog.no_impact"), class_="soft"), id="impact")
    where = h.p(t("catalog.lies_in"), " ", [parts.tag(one) for one in found.zones]) if found.zones else None
    hidden = h.p(t("catalog.impact_hidden", n=found.hidden), class_="soft") if found.hidden else None
    return parts.card(t("catalog.impact"), h.div(kinds, class_="stats"), where, hidden, id="impact")


def _listed(view: View, nodes: Mapping[str, Node]) -> Html:
    """The same as a list, for those who hear the page or look for a name."""
    t = view.t
    rows = [
        Row((h.a(h.bdi(one.id), href=one.link, class_="ref") if one.link else h.bdi(one.name), h.span(one.note),
             parts.badge(view, one.state) if one.state else ""))
        for one in list(nodes.values())[:_MOST]
    ]  # fmt: skip
    table = parts.table(view, (t("console.name"), t("console.kind"), t("console.state")), rows, t("console.lineage"))
    return h.details(h.summary(t("catalog.as_list", n=len(nodes))), table, id="as-list")
