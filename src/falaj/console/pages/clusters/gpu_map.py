"""Every GPU as a cell: how busy it is, or how full its memory, by node and device."""

from collections.abc import Mapping, Sequence

from falaj.console import components
from falaj.console.markup import EMPTY, Html, h, join_html
from falaj.console.page import build_url
from falaj.console.page_view import PageView
from falaj.console.plots import heatmap
from falaj.fleet.records import NodeView
from falaj.fleet.telemetry_operations import NodeFigures

MAX_ROWS = 64


def render_gpu_map(view: PageView, nodes: Sequence[NodeView], node_figures: Sequence[NodeFigures]) -> Html:
    """The map; nothing where there is no GPU."""
    gpu_nodes = [node for node in nodes if node.gpus][:MAX_ROWS]
    if not gpu_nodes:
        return EMPTY
    t, figure_name = view.t, "memory" if view.query("of") == "memory" else "busy"
    figures = {figures_view.node: figures_view.figures for figures_view in node_figures}
    columns = [str(device) for device in range(max(node.gpus for node in gpu_nodes))]
    values = make_cells(gpu_nodes, figures, figure_name, len(columns))
    cell_links = [build_url(f"clusters/{node.node}") for node in gpu_nodes for _ in columns]
    toggle_links = h.p(
        h.a(t("clusters.busy"), href=view.link(of=""), aria_current="true" if figure_name == "busy" else None),
        " · ",
        h.a(
            t("clusters.memory"), href=view.link(of="memory"), aria_current="true" if figure_name == "memory" else None
        ),
    )
    title = t("clusters.heat_memory") if figure_name == "memory" else t("clusters.heat_busy")
    chart = heatmap(
        view, [node.node for node in gpu_nodes], columns, values, title=str(title), low=0, high=100, links=cell_links
    )
    latest_at = max((figures_view.at for figures_view in node_figures), default=0.0)
    note = t("clusters.seen", when=view.ago(latest_at)) if latest_at else t("clusters.not_seen")
    return components.card(
        t("clusters.heat"), join_html(toggle_links, chart, h.p(note, class_="soft small")), id="heat"
    )


def make_cells(
    nodes: Sequence[NodeView], figures: Mapping[str, Mapping[str, float]], figure_name: str, columns: int
) -> list[float | None]:
    """Percent by node and device, row by row; nothing where nobody told, or where there is no such device."""
    cell_values: list[float | None] = []
    for node in nodes:
        node_values = figures.get(node.node, {})
        for device in range(columns):
            value = node_values.get(f"{device}.{figure_name}")
            full_value = node_values.get(f"{device}.memory_total", 0.0) if figure_name == "memory" else 100.0
            cell_values.append(None if value is None or not full_value else min(100.0, 100.0 * value / full_value))
    return cell_values
