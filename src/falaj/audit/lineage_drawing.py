"""A lineage graph as a picture: SVG with a layered layout of our own, and Graphviz DOT for those with their own tools.

Layers go left to right by the longest way from a source; edges over several layers pass through empty places; each
layer is ordered by the places of its neighbours, a few times to and fro.
"""

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from html import escape

from falaj.audit.records import LineageEdge, LineageGraph
from falaj.core.data import dataclass

_BOX_WIDTH, _BOX_HEIGHT, _GAP_X, _GAP_Y, _PADDING = 230, 44, 90, 22, 24
_SWEEPS = 6
_KIND_COLOURS = ("#2f6f8f", "#8f5a2f", "#4f7f3f", "#7a4f8f", "#8f2f4f", "#3f5f9f", "#6f6f2f", "#2f8f7f")
_STYLE_CSS = """
 text{font:12px system-ui,sans-serif;fill:#1c2733} .v{fill:#5b6875;font-size:11px}
 rect{fill:#fff;stroke-width:1.5} path{fill:none;stroke:#8896a3;stroke-width:1.3} .me rect{stroke-width:3}
 .hidden rect{stroke-dasharray:4 3;stroke:#8896a3}
 @media (prefers-color-scheme:dark){text{fill:#e6edf3} .v{fill:#9fb0bf} rect{fill:#17212b} path{stroke:#5f7080}}
"""


@dataclass(slots=True)
class _GraphLayout:
    """Where everything stands: layers of names, among them empty places that only pass an edge on."""

    layers: list[list[str]] = field(default_factory=list)
    ways: dict[tuple[str, str], list[str]] = field(default_factory=dict)
    """Each edge as the chain of places it passes, ends included."""
    y: dict[str, float] = field(default_factory=dict)

    def x(self, layer: int) -> float:
        """The left side of a layer."""
        return _PADDING + layer * (_BOX_WIDTH + _GAP_X)


def to_dot(graph: LineageGraph) -> str:
    """Graphviz text."""
    lines = ["digraph lineage {", "  rankdir=LR;", '  node [shape=box, fontname="sans-serif"];']
    for node in graph.nodes:
        box_style = ", style=bold" if node.depth == 0 else ", style=dashed" if node.hidden else ""
        lines.append(
            f"  {_quote_dot(node.ref)} [label={_quote_dot('hidden' if node.hidden else node.ref)}{box_style}];"
        )
    lines += [
        f"  {_quote_dot(edge_item.input)} -> {_quote_dot(edge_item.output)} [label={_quote_dot(edge_item.verb)}];"
        for edge_item in graph.edges
    ]
    return "\n".join([*lines, "}"]) + "\n"


def to_svg(graph: LineageGraph) -> str:
    """A self-contained picture, readable in light and dark, every box with its full name as a tooltip."""
    layout = lay_out_graph([node.ref for node in graph.nodes], graph.edges)
    width = 2 * _PADDING + len(layout.layers) * (_BOX_WIDTH + _GAP_X) - _GAP_X
    height = 2 * _PADDING + max((layout.y[name] + _BOX_HEIGHT for layer in layout.layers for name in layer), default=0)
    title = escape(f"Lineage of {graph.ref}")
    parts = [
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" '
            f'width="{width:.0f}" height="{height:.0f}" '
            f'role="img" aria-label="{title}">'
        ),
        f"<title>{title}</title><style>{_STYLE_CSS}</style>",
        (
            '<defs><marker id="tip" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
            '<path d="M0 0L8 4L0 8" style="fill:#8896a3"/></marker></defs>'
        ),
    ]
    positions = {
        name: (layout.x(i), _PADDING + layout.y[name]) for i, layer in enumerate(layout.layers) for name in layer
    }
    operations_by_edge: dict[tuple[str, str], list[str]] = {}
    for edge in graph.edges:
        operations_by_edge.setdefault((edge.input, edge.output), []).append(edge.verb)
    parts += [
        _draw_edge(layout.ways[pair], positions, ", ".join(dict.fromkeys(names)))
        for pair, names in operations_by_edge.items()
        if pair in layout.ways
    ]
    kinds = {
        kind: _KIND_COLOURS[i % len(_KIND_COLOURS)]
        for i, kind in enumerate(
            sorted({graph_node.ref.partition(":")[0] for graph_node in graph.nodes if not graph_node.hidden})
        )
    }
    for node in graph.nodes:
        box_style = "me" if node.depth == 0 else "hidden" if node.hidden else ""
        parts.append(
            _draw_box(node.ref, box_style, positions[node.ref], kinds.get(node.ref.partition(":")[0], "#8896a3"))
        )
    return "\n".join([*parts, "</svg>"]) + "\n"


def lay_out_graph(names: Sequence[str], edges: Iterable[LineageEdge]) -> _GraphLayout:
    """Give every node a layer and a height."""
    edge_pairs = list(
        dict.fromkeys((edge_item.input, edge_item.output) for edge_item in edges if edge_item.input != edge_item.output)
    )
    layer_by_name = _assign_layers(names, edge_pairs)
    layout = _GraphLayout([[] for _ in range(max(layer_by_name.values(), default=-1) + 1)])
    for name in names:
        layout.layers[layer_by_name[name]].append(name)
    for source, target in edge_pairs:
        first_layer, last_layer = sorted((layer_by_name[source], layer_by_name[target]))
        waypoints = [f"\0{source}\0{target}\0{i}" for i in range(first_layer + 1, last_layer)]
        for i, waypoint in enumerate(waypoints, first_layer + 1):
            layout.layers[i].append(waypoint)
        chain = [source, *(waypoints if layer_by_name[source] < layer_by_name[target] else reversed(waypoints)), target]
        layout.ways[source, target] = chain
    _order_layers(layout)
    _assign_heights(layout)
    return layout


def _assign_layers(names: Sequence[str], edge_pairs: Sequence[tuple[str, str]]) -> dict[str, int]:
    """The longest way from a source, by Kahn; where an act closed a ring the ring is cut at the first of it."""
    targets_by_name: dict[str, list[str]] = {name: [] for name in names}
    open_input_counts = dict.fromkeys(names, 0)
    for source, target in edge_pairs:
        targets_by_name[source].append(target)
        open_input_counts[target] += 1
    layer_by_name: dict[str, int] = dict.fromkeys(names, 0)
    ready_names = [name for name in names if not open_input_counts[name]]
    unplaced = dict.fromkeys(names)
    while unplaced:
        if not ready_names:
            ready_names = [min(unplaced, key=lambda name: open_input_counts[name])]
        name = ready_names.pop()
        if name not in unplaced:
            continue
        del unplaced[name]
        for target in targets_by_name[name]:
            if target in unplaced:
                layer_by_name[target] = max(layer_by_name[target], layer_by_name[name] + 1)
                open_input_counts[target] -= 1
                if open_input_counts[target] == 0:
                    ready_names.append(target)
    return layer_by_name


def _order_layers(layout: _GraphLayout) -> None:
    """Order each layer by the middle of its neighbours' places."""
    neighbours: dict[str, list[str]] = {}
    for chain in layout.ways.values():
        for first_name, second_name in itertools.pairwise(chain):
            neighbours.setdefault(first_name, []).append(second_name)
            neighbours.setdefault(second_name, []).append(first_name)
    for sweep_number in range(_SWEEPS):
        index_by_name = {name: i for layer in layout.layers for i, name in enumerate(layer)}
        layer_indexes = range(1, len(layout.layers)) if sweep_number % 2 == 0 else range(len(layout.layers) - 2, -1, -1)
        for i in layer_indexes:
            fixed_names = set(layout.layers[i - 1 if sweep_number % 2 == 0 else i + 1])
            layout.layers[i].sort(
                key=lambda name: _compute_mean(
                    [index_by_name[neighbour] for neighbour in neighbours.get(name, ()) if neighbour in fixed_names],
                    index_by_name[name],
                )
            )
            index_by_name.update({name: j for j, name in enumerate(layout.layers[i])})


def _assign_heights(layout: _GraphLayout) -> None:
    """Heights: every layer centred on the tallest."""
    tallest = max((_compute_layer_height(layer) for layer in layout.layers), default=0.0)
    for layer in layout.layers:
        y = (tallest - _compute_layer_height(layer)) / 2
        for name in layer:
            layout.y[name] = y
            y += (_GAP_Y if name.startswith("\0") else _BOX_HEIGHT) + _GAP_Y


def _compute_layer_height(layer: Sequence[str]) -> float:
    return sum((_GAP_Y if name.startswith("\0") else _BOX_HEIGHT) + _GAP_Y for name in layer) - _GAP_Y


def _compute_mean(values: Sequence[int], fallback: int) -> float:
    return sum(values) / len(values) if values else float(fallback)


def _draw_edge(chain: Sequence[str], positions: Mapping[str, tuple[float, float]], operation_names: str) -> str:
    points = []
    for i, name in enumerate(chain):
        x, y = positions[name]
        half_height = _GAP_Y / 2 if name.startswith("\0") else _BOX_HEIGHT / 2
        if i:
            points.append((x, y + half_height))
        if i < len(chain) - 1:
            points.append((x + _BOX_WIDTH, y + half_height))
    path = f"M{points[0][0]:.1f} {points[0][1]:.1f}"
    for (ax, ay), (bx, by) in itertools.pairwise(points):
        path += f"C{(ax + bx) / 2:.1f} {ay:.1f} {(ax + bx) / 2:.1f} {by:.1f} {bx:.1f} {by:.1f}"
    return f'<path d="{path}" marker-end="url(#tip)"><title>{escape(operation_names)}</title></path>'


def _draw_box(name: str, box_style: str, top_left: tuple[float, float], colour: str) -> str:
    is_hidden = box_style == "hidden"
    unversioned, _, version = ("something you may not see" if is_hidden else name).partition("@")
    kind, _, short_name = unversioned.rpartition(":")
    label = short_name if len(short_name) <= 32 else f"…{short_name[-31:]}"
    subtitle = " ".join(part for part in (kind, version) if part)
    return (
        f'<g class="{box_style}" transform="translate({top_left[0]:.1f} {top_left[1]:.1f})">'
        f"<title>{escape(unversioned if is_hidden else name)}</title>"
        f'<rect width="{_BOX_WIDTH}" height="{_BOX_HEIGHT}" rx="7" stroke="{colour}"/>'
        f'<text x="12" y="19">{escape(label)}</text><text class="v" x="12" y="35">{escape(subtitle)}</text></g>'
    )


def _quote_dot(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
