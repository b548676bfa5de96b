"""Graphs: nodes in layers from left to right (mirrored where the language is), each a link to its page."""

from collections.abc import Sequence
from dataclasses import dataclass

from falaj.console.markup import Html, h
from falaj.console.plots.axis_scales import ChartView
from falaj.console.plots.chart_frame import (
    STATE_SIGNS,
    chart_figure,
    describe_mark,
    empty_chart,
    format_coordinate,
    truncate_middle,
)
from falaj.console.plots.layered_layout import LayeredLayout, compute_layout, index_edges
from falaj.console.state_tones import get_tone

MAX_NODES = 300
_NODE_WIDTH, _NODE_HEIGHT, _LAYER_GAP, _ROW_HEIGHT, _MARGIN = 176, 44, 64, 60, 14


@dataclass(frozen=True, slots=True)
class GraphNode:
    """A thing in a graph; `note` is a second, quieter line."""

    id: str
    name: str
    note: str = ""
    state: str = ""
    link: str = ""


def node_graph(view: ChartView, nodes: Sequence[GraphNode], edges: Sequence[tuple[str, str]], *, title: str) -> Html:
    """Nodes and what leads to what. Of more than 300 nodes the first 300 are drawn, and the caption says so."""
    shown_nodes = list({node.id: node for node in nodes[:MAX_NODES]}.values())
    if not shown_nodes:
        return empty_chart(view, "graph", title)
    edge_indexes = index_edges([node.id for node in shown_nodes], edges)
    layout = compute_layout(len(shown_nodes), edge_indexes)
    total_width = 2 * _MARGIN + _NODE_WIDTH + (_NODE_WIDTH + _LAYER_GAP) * max(layer for layer, _ in layout.at)
    node_ys = [node_y for _, node_y in layout.at] + [node_y for bends in layout.bends.values() for _, node_y in bends]
    total_height = 2 * _MARGIN + _NODE_HEIGHT + round(_ROW_HEIGHT * max(node_ys))
    edge_elements = [
        _render_edge(view, layout, edge, total_width) for edge in dict.fromkeys(edge_indexes) if edge[0] != edge[1]
    ]
    node_elements = [
        _render_node(view, node, n, _get_node_corner(view, layout.at[n], total_width))
        for n, node in enumerate(shown_nodes)
    ]
    drawing = h.svg(
        h.g(edge_elements, class_="edges"),
        node_elements,
        class_="drawing",
        width=total_width,
        height=total_height,
        viewBox=f"0 0 {total_width} {total_height}",
        role="group",
        aria_label=title,
    )
    scroll_box = h.div(drawing, class_="plot-scroll", tabindex=0, role="region", aria_label=title)
    truncation_note = len(nodes) > MAX_NODES and h.p(
        view.t("plots.more", shown=MAX_NODES, all=len(nodes)), class_="plot-unit"
    )
    return chart_figure("graph", title, scroll_box, truncation_note, legend=zoom_buttons(view))


def zoom_buttons(view: ChartView) -> Html:
    """Buttons that make a drawing larger and smaller."""
    kinds = (
        ("in", "+", view.t("plots.larger")),
        ("out", "\u2212", view.t("plots.smaller")),
        ("all", "⤢", view.t("plots.whole")),
    )
    return h.span(
        [
            h.button(sign, type="button", data_zoom=kind, aria_label=tooltip, title=tooltip)
            for kind, sign, tooltip in kinds
        ],
        class_="plot-zoom",
    )


def _get_node_corner(view: ChartView, layer_and_row: tuple[int, float], total_width: int) -> tuple[float, float]:
    x = _MARGIN + layer_and_row[0] * (_NODE_WIDTH + _LAYER_GAP)
    return (total_width - x - _NODE_WIDTH if view.rtl else x), _MARGIN + layer_and_row[1] * _ROW_HEIGHT


def _render_node(view: ChartView, node: GraphNode, index: int, corner: tuple[float, float]) -> Html:
    x, y = corner
    tone_name = get_tone(node.state)
    start, direction = (_NODE_WIDTH - 12, -1) if view.rtl else (12, 1)
    sign_text = tone_name and h.text(STATE_SIGNS[tone_name], x=start, y=19, class_="sign", text_anchor="start")
    description = describe_mark(view, node.name, node.note, state=node.state)
    body = (
        h.title(description),
        h.rect(width=_NODE_WIDTH, height=_NODE_HEIGHT, rx=6),
        sign_text,
        h.text(
            truncate_middle(node.name, 21),
            x=start + (16 * direction if tone_name else 0),
            y=19 if node.note else 27,
            class_="name",
        ),
        node.note and h.text(truncate_middle(node.note, 26), x=start, y=35, class_="note"),
    )
    node_attributes = {
        "transform": f"translate({format_coordinate(x)} {format_coordinate(y)})",
        "class_": f"node t-{tone_name}" if tone_name else "node",
        "data_node": index,
    }
    if node.link:
        return h.a(body, href=node.link, **node_attributes)
    return h.g(body, tabindex=0, role="img", aria_label=description, **node_attributes)


def _render_edge(view: ChartView, layout: LayeredLayout, edge: tuple[int, int], total_width: int) -> Html:
    """A curve from the end of one box to the beginning of the other, through the room that was kept for it."""
    is_back_edge = edge in layout.back
    first_node, last_node = (edge[1], edge[0]) if is_back_edge else edge
    direction = -1 if view.rtl else 1
    near_offset, far_offset = (0, _NODE_WIDTH) if view.rtl else (_NODE_WIDTH, 0)
    corners = [
        _get_node_corner(view, layout.at[first_node], total_width),
        *(
            _get_node_corner(view, bend_point, total_width)
            for bend_point in layout.bends.get((first_node, last_node), ())
        ),
        _get_node_corner(view, layout.at[last_node], total_width),
    ]
    x, y = corners[0][0] + near_offset, corners[0][1] + _NODE_HEIGHT / 2
    path_commands = [f"M{format_coordinate(x)},{format_coordinate(y)}"]
    for n, (left, top) in enumerate(corners[1:], start=1):
        target_x, target_y, control_offset = left + far_offset, top + _NODE_HEIGHT / 2, direction * _LAYER_GAP / 2
        path_commands.append(
            f"C{format_coordinate(x + control_offset)},{format_coordinate(y)} "
            f"{format_coordinate(target_x - control_offset)},{format_coordinate(target_y)} "
            f"{format_coordinate(target_x)},{format_coordinate(target_y)}"
        )
        x, y = (left + near_offset, target_y) if n < len(corners) - 1 else (target_x, target_y)
        path_commands += [f"H{format_coordinate(x)}"] if n < len(corners) - 1 else []
    tip_x, tip_y, tip_direction = (
        (corners[0][0] + near_offset, corners[0][1] + _NODE_HEIGHT / 2, 1) if is_back_edge else (x, y, -1)
    )
    path_commands.append(
        f"M{format_coordinate(tip_x + tip_direction * direction * 6)},{format_coordinate(tip_y - 4)} "
        f"L{format_coordinate(tip_x)},{format_coordinate(tip_y)} l{format_coordinate(tip_direction * direction * 6)},4"
    )
    return h.path(
        d="".join(path_commands), class_="edge back" if is_back_edge else "edge", data_from=edge[0], data_to=edge[1]
    )
