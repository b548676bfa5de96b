"""Lineage as a graph to walk: from a column over views and models to the endpoints that answer with it."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from falaj.audit.records import LineageGraph
from falaj.catalog.records import CatalogVersion
from falaj.console import components
from falaj.console.components import FormField, TableRow
from falaj.console.markup import EMPTY, Html, h, join_html
from falaj.console.page import Page, build_resource_url
from falaj.console.page_view import PageView
from falaj.console.pages.catalog.version_page import HIDDEN_KINDS, to_display_ref
from falaj.console.pages.catalog.version_parts import (
    build_version_url,
    make_breadcrumbs,
    parse_catalog_ref,
    render_summary,
    render_title,
    render_version_tabs,
)
from falaj.console.plots import GraphNode, node_graph
from falaj.core.ref import Ref

_DEPTH_OPTIONS = ("1", "2", "3", "5", "")
_MAX_NODES = 300
DrawnGraph = tuple[dict[str, GraphNode], list[tuple[str, str]]]


def render_lineage_page(view: PageView) -> Page:
    """What it was made from and what was made from it, as far as asked."""
    version: CatalogVersion = view.here.catalog.show(parse_catalog_ref(view))
    ref, column = version.ref, view.query("column")
    direction = view.query("direction") if view.query("direction") in ("up", "down") else "both"
    lineage_graph: LineageGraph = view.here.audit.lineage(ref, direction=direction, depth=view.count("depth", 0, 50))
    nodes, edges = build_graph(view, lineage_graph)
    notices = view.part(lambda: _add_endpoints(view, ref, nodes, edges)) if direction != "up" else EMPTY
    if direction != "up" and column and ref.kind == "dataset":
        notices = join_html(notices, view.part(lambda: _add_column(view, ref, column, (nodes, edges))))
    graph_chart = node_graph(view, list(nodes.values()), edges, title=view.t("catalog.lineage_of", name=ref))
    truncation_note = None if lineage_graph.complete else components.notice("plain", view.t("catalog.cut_graph"))
    body = join_html(
        render_version_tabs(view, ref, "lineage"),
        render_summary(view, version),
        _render_filters(view, version),
        truncation_note,
        notices,
        graph_chart,
        view.part(lambda: _render_impact(view, ref)),
        _render_node_list(view, nodes),
    )
    return Page(
        render_title(ref), body, make_breadcrumbs(view, ref), ("catalog", "serve"), scripts=("plots.js",), wide=True
    )


def _render_filters(view: PageView, version: CatalogVersion) -> Html:
    t = view.t
    direction_options = [("", t("catalog.both")), ("up", t("catalog.made_from")), ("down", t("catalog.went_into"))]
    depth_options = [
        (option, t("catalog.all_steps") if not option else t("catalog.steps", n=int(option)))
        for option in reversed(_DEPTH_OPTIONS)
    ]
    fields = [
        FormField("direction", t("catalog.direction"), "select", options=direction_options),
        FormField("depth", t("catalog.depth"), "select", options=depth_options),
    ]
    if version.table:
        column_options = [
            ("", t("console.none")),
            *((option.name, option.name) for option in version.table.columns[:200]),
        ]
        fields.append(FormField("column", t("console.column"), "select", options=column_options))
    return components.filter_form(view, fields)


def build_graph(view: PageView, lineage_graph: LineageGraph) -> DrawnGraph:
    """The graph as it is drawn: a thing without versions once, and what only keeps the books left out."""
    nodes: dict[str, GraphNode] = {}
    key_by_ref: dict[str, str] = {}
    for lineage_node in lineage_graph.nodes:
        if lineage_node.ref.partition(":")[0] in HIDDEN_KINDS:
            continue
        key = lineage_node.ref if lineage_node.hidden else str(to_display_ref(lineage_node.ref))
        key_by_ref[lineage_node.ref] = key
        if key not in nodes:
            nodes[key] = _make_node(view, key, lineage_node.hidden, lineage_node.depth == 0)
    pairs = ((key_by_ref.get(edge.input), key_by_ref.get(edge.output)) for edge in lineage_graph.edges)
    edges = [(source, target) for source, target in dict.fromkeys(pairs) if source and target and source != target]
    return nodes, edges


def _make_node(view: PageView, key: str, is_hidden: bool, is_start: bool) -> GraphNode:
    if is_hidden:
        return GraphNode(key, view.t("catalog.hidden"))
    ref = Ref.parse(key)
    label = f"{ref.name[:18]}@{ref.version}" if ref.version else ref.name
    note = view.t.of("catalog.kind", ref.kind)
    return GraphNode(key, f"● {label}" if is_start else label, note, link=get_node_url(ref, is_start))


def get_node_url(ref: Ref, is_start: bool = False) -> str:
    """A node leads to its own lineage, so that the graph can be walked; what has none leads to its page."""
    has_lineage = ref.kind in ("dataset", "model", "code") and ref.version and not is_start
    return build_version_url(ref, "lineage") if has_lineage else build_resource_url(ref)


def _add_endpoints(view: PageView, ref: Ref, nodes: dict[str, GraphNode], edges: list[tuple[str, str]]) -> Html:
    """The endpoints that serve a model of the graph now, with their state: where the way of a column ends."""
    for endpoint in view.here.serve.list(project=ref.project, limit=200).endpoints:
        key, model_refs = (
            str(endpoint.ref.bare),
            {str(revision.model) for revision in endpoint.revisions}
            | {str(revision.features) for revision in endpoint.revisions if revision.features},
        )
        sources = [source for source in model_refs if source in nodes]
        if sources or key in nodes:
            note = f"{view.t.of('catalog.kind', 'endpoint')} · {view.t.of('catalog.serves', endpoint.state)}"
            nodes[key] = GraphNode(key, endpoint.ref.name, note, endpoint.state, build_resource_url(endpoint.ref.bare))
            edges += [(source, key) for source in sources if (source, key) not in edges]
    return EMPTY


def _add_column(view: PageView, ref: Ref, column: str, drawn_graph: DrawnGraph) -> Html:
    """The column itself, and every view that says it computes something from it."""
    nodes, edges = drawn_graph
    column_key = f"column {column}"
    nodes[column_key] = GraphNode(column_key, column, view.t("console.column"), link=build_resource_url(ref))
    edges.append((column_key, str(ref)))
    for definition in view.here.features.list(project=ref.project, limit=100).items:
        full_definition = view.here.features.show(definition.ref) if len(nodes) < _MAX_NODES else definition
        feature_names = find_derived_features(full_definition.definition, str(ref.bare), column)
        key = str(definition.ref)
        if feature_names:
            nodes[key] = GraphNode(
                key, definition.ref.name, " ".join(feature_names)[:60], link=build_resource_url(definition.ref)
            )
            edges.append((column_key, key))
            for user_ref in view.here.features.users(definition.ref):
                name = str(to_display_ref(str(user_ref)))
                nodes.setdefault(name, _make_node(view, name, False, False))
                edges += [(key, name)] if (key, name) not in edges else []
    return EMPTY


def find_derived_features(definition: Mapping[str, Any], source: str, column: str) -> list[str]:
    """The features of a view that are computed from this column of that dataset, by what the definition says."""
    if Ref.parse(source).bare != _parse_source_dataset(definition):
        return []
    feature_names = [
        feature["name"]
        for feature in definition.get("features", ())
        if (feature["name"] == column if feature.get("express") is None else _uses_column(feature["express"], column))
    ]
    window_names = [
        str(feature.get("name") or feature.get("function") or column)
        for feature in definition.get("windows", ())
        if column in (feature.get("column"), feature.get("of"), feature.get("over_column"))
    ]
    return [*feature_names, *window_names]


def _parse_source_dataset(definition: Mapping[str, Any]) -> Ref | None:
    address = str(definition.get("source", {}).get("address", ""))
    return Ref.parse(address).bare if address.startswith("dataset:") else None


def _uses_column(expression: Any, column: str) -> bool:
    if isinstance(expression, Mapping):
        return expression.get("col") == column or any(_uses_column(operand, column) for operand in expression.values())
    return (
        isinstance(expression, Sequence)
        and not isinstance(expression, str)
        and any(_uses_column(operand, column) for operand in expression)
    )


def _render_impact(view: PageView, ref: Ref) -> Html:
    """What is touched should this turn out to be wrong."""
    t = view.t
    impact = view.here.audit.impact(ref)
    count_by_kind = Counter(
        to_display_ref(ref_text).kind for ref_text in {str(to_display_ref(ref_text)) for ref_text in impact.affected}
    )
    kind_tiles = [
        components.stat_tile(t.of("catalog.kinds", kind), view.number(count))
        for kind, count in count_by_kind.most_common()
        if kind not in HIDDEN_KINDS
    ]
    if not kind_tiles:
        return components.card(t("catalog.impact"), h.p(t("catalog.no_impact"), class_="soft"), id="impact")
    zones_line = (
        h.p(t("catalog.lies_in"), " ", [components.tag(ref_text) for ref_text in impact.zones])
        if impact.zones
        else None
    )
    hidden_note = h.p(t("catalog.impact_hidden", n=impact.hidden), class_="soft") if impact.hidden else None
    return components.card(t("catalog.impact"), h.div(kind_tiles, class_="stats"), zones_line, hidden_note, id="impact")


def _render_node_list(view: PageView, nodes: Mapping[str, GraphNode]) -> Html:
    """The same as a list, for those who hear the page or look for a name."""
    t = view.t
    rows = [
        TableRow(
            (
                h.a(h.bdi(node.id), href=node.link, class_="ref") if node.link else h.bdi(node.name),
                h.span(node.note),
                components.badge(view, node.state) if node.state else "",
            )
        )
        for node in list(nodes.values())[:_MAX_NODES]
    ]
    table = components.table(
        view, (t("console.name"), t("console.kind"), t("console.state")), rows, t("console.lineage")
    )
    return h.details(h.summary(t("catalog.as_list", n=len(nodes))), table, id="as-list")
