"""Graphs: nodes in layers from left to right (mirrored where the language is), each a link to its page."""

from collections.abc import Sequence
from dataclasses import dataclass

from falaj.console.markup import Html, h
from falaj.console.plots.layers import Laid, indexed, lay
from falaj.console.plots.scale import Seer
from falaj.console.plots.shell import SIGNS, cut, figure, fix, nothing, said
from falaj.console.states import tone

MOST = 300
_WIDE, _TALL, _GAP, _ROW, _EDGE = 176, 44, 64, 60, 14


@dataclass(frozen=True, slots=True)
class Node:
    """A thing in a graph; `note` is a second, quieter line."""

    id: str
    name: str
    note: str = ""
    state: str = ""
    link: str = ""


def graph(view: Seer, nodes: Sequence[Node], edges: Sequence[tuple[str, str]], *, title: str) -> Html:
    """Nodes and what leads to what. Of more than 300 nodes the first 300 are drawn, and the caption says so."""
    shown = list({node.id: node for node in nodes[:MOST]}.values())
    if not shown:
        return nothing(view, "graph", title)
    pairs = indexed([node.id for node in shown], edges)
    laid = lay(len(shown), pairs)
    wide = 2 * _EDGE + _WIDE + (_WIDE + _GAP) * max(layer for layer, _ in laid.at)
    ways = [at for _, at in laid.at] + [at for bends in laid.bends.values() for _, at in bends]
    tall = 2 * _EDGE + _TALL + round(_ROW * max(ways))
    lines = [_edge(view, laid, edge, wide) for edge in dict.fromkeys(pairs) if edge[0] != edge[1]]
    boxes = [_box(view, node, n, _corner(view, laid.at[n], wide)) for n, node in enumerate(shown)]
    drawing = h.svg(
        h.g(lines, class_="edges"), boxes, class_="drawing", width=wide, height=tall, viewBox=f"0 0 {wide} {tall}",
        role="group", aria_label=title,
    )  # fmt: skip
    box = h.div(drawing, class_="plot-scroll", tabindex=0, role="region", aria_label=title)
    more = len(nodes) > MOST and h.p(view.t("plots.more", shown=MOST, all=len(nodes)), class_="plot-unit")
    return figure("graph", title, box, more, legend=zoomer(view))


def zoomer(view: Seer) -> Html:
    """Buttons that make a drawing larger and smaller."""
    kinds = (
        ("in", "+", view.t("plots.larger")),
        ("out", "\u2212", view.t("plots.smaller")),
        ("all", "⤢", view.t("plots.whole")),
    )
    return h.span(
        [h.button(sign, type="button", data_zoom=kind, aria_label=tip, title=tip) for kind, sign, tip in kinds],
        class_="plot-zoom",
    )


def _corner(view: Seer, at: tuple[int, float], wide: int) -> tuple[float, float]:
    x = _EDGE + at[0] * (_WIDE + _GAP)
    return (wide - x - _WIDE if view.rtl else x), _EDGE + at[1] * _ROW


def _box(view: Seer, node: Node, index: int, corner: tuple[float, float]) -> Html:
    x, y = corner
    shown = tone(node.state)
    start, side = (_WIDE - 12, -1) if view.rtl else (12, 1)
    sign = shown and h.text(SIGNS[shown], x=start, y=19, class_="sign", text_anchor="start")
    spoken = said(view, node.name, node.note, state=node.state)
    body = (
        h.title(spoken),
        h.rect(width=_WIDE, height=_TALL, rx=6),
        sign,
        h.text(cut(node.name, 21), x=start + (16 * side if shown else 0), y=19 if node.note else 27, class_="name"),
        node.note and h.text(cut(node.note, 26), x=start, y=35, class_="note"),
    )
    place = {
        "transform": f"translate({fix(x)} {fix(y)})",
        "class_": f"node t-{shown}" if shown else "node",
        "data_node": index,
    }
    if node.link:
        return h.a(body, href=node.link, **place)
    return h.g(body, tabindex=0, role="img", aria_label=spoken, **place)


def _edge(view: Seer, laid: Laid, edge: tuple[int, int], wide: int) -> Html:
    """A curve from the end of one box to the beginning of the other, through the room that was kept for it."""
    back = edge in laid.back
    first, last = (edge[1], edge[0]) if back else edge
    sign = -1 if view.rtl else 1
    near, far = (0, _WIDE) if view.rtl else (_WIDE, 0)
    ends = [_corner(view, laid.at[first], wide), *(_corner(view, b, wide) for b in laid.bends.get((first, last), ())),
            _corner(view, laid.at[last], wide)]  # fmt: skip
    x, y = ends[0][0] + near, ends[0][1] + _TALL / 2
    way = [f"M{fix(x)},{fix(y)}"]
    for n, (left, top) in enumerate(ends[1:], start=1):
        to, level, bend = left + far, top + _TALL / 2, sign * _GAP / 2
        way.append(f"C{fix(x + bend)},{fix(y)} {fix(to - bend)},{fix(level)} {fix(to)},{fix(level)}")
        x, y = (left + near, level) if n < len(ends) - 1 else (to, level)
        way += [f"H{fix(x)}"] if n < len(ends) - 1 else []
    tip, at, turn = (ends[0][0] + near, ends[0][1] + _TALL / 2, 1) if back else (x, y, -1)
    way.append(f"M{fix(tip + turn * sign * 6)},{fix(at - 4)} L{fix(tip)},{fix(at)} l{fix(turn * sign * 6)},4")
    return h.path(d="".join(way), class_="edge back" if back else "edge", data_from=edge[0], data_to=edge[1])
