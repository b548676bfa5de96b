"""Every GPU as a cell: how busy it is, or how full its memory, by node and device."""

from collections.abc import Mapping, Sequence

from falaj.console import parts
from falaj.console.markup import EMPTY, Html, h, join
from falaj.console.page import address
from falaj.console.plots import heat
from falaj.console.view import View
from falaj.fleet.records import NodeView
from falaj.fleet.signs import NodeFigures

MOST_ROWS = 64


def gpu_heat(view: View, nodes: Sequence[NodeView], seen: Sequence[NodeFigures]) -> Html:
    """The map; nothing where there is no GPU."""
    having = [node for node in nodes if node.gpus][:MOST_ROWS]
    if not having:
        return EMPTY
    t, of = view.t, "memory" if view.query("of") == "memory" else "busy"
    figures = {one.node: one.figures for one in seen}
    columns = [str(number) for number in range(max(node.gpus for node in having))]
    values = cells(having, figures, of, len(columns))
    links = [address(f"clusters/{node.node}") for node in having for _ in columns]
    ways = h.p(
        h.a(t("clusters.busy"), href=view.link(of=""), aria_current="true" if of == "busy" else None), " · ",
        h.a(t("clusters.memory"), href=view.link(of="memory"), aria_current="true" if of == "memory" else None),
    )  # fmt: skip
    title = t("clusters.heat_memory") if of == "memory" else t("clusters.heat_busy")
    drawn = heat(view, [node.node for node in having], columns, values, title=str(title), low=0, high=100, links=links)
    last = max((one.at for one in seen), default=0.0)
    note = t("clusters.seen", when=view.ago(last)) if last else t("clusters.not_seen")
    return parts.card(t("clusters.heat"), join(ways, drawn, h.p(note, class_="soft small")), id="heat")


def cells(
    nodes: Sequence[NodeView], figures: Mapping[str, Mapping[str, float]], of: str, columns: int
) -> list[float | None]:
    """Percent by node and device, row by row; nothing where nobody told, or where there is no such device."""
    found: list[float | None] = []
    for node in nodes:
        told = figures.get(node.node, {})
        for number in range(columns):
            value = told.get(f"{number}.{of}")
            whole = told.get(f"{number}.memory_total", 0.0) if of == "memory" else 100.0
            found.append(None if value is None or not whole else min(100.0, 100.0 * value / whole))
    return found
