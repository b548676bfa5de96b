"""A lineage graph as a picture: SVG with a layered layout of our own, and Graphviz DOT for those with their own tools.

Layers go left to right by the longest way from a source; edges over several layers pass through empty places; each
layer is ordered by the places of its neighbours, a few times to and fro.
"""

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from html import escape

from falaj.audit.records import Edge, Graph
from falaj.core.data import dataclass

_BOX_W, _BOX_H, _GAP_X, _GAP_Y, _PAD = 230, 44, 90, 22, 24
_SWEEPS = 6
_COLOURS = ("#2f6f8f", "#8f5a2f", "#4f7f3f", "#7a4f8f", "#8f2f4f", "#3f5f9f", "#6f6f2f", "#2f8f7f")
_STYLE = """
 text{font:12px system-ui,sans-serif;fill:#1c2733} .v{fill:#5b6875;font-size:11px}
 rect{fill:#fff;stroke-width:1.5} path{fill:none;stroke:#8896a3;stroke-width:1.3} .me rect{stroke-width:3}
 .hidden rect{stroke-dasharray:4 3;stroke:#8896a3}
 @media (prefers-color-scheme:dark){text{fill:#e6edf3} .v{fill:#9fb0bf} rect{fill:#17212b} path{stroke:#5f7080}}
"""


@dataclass(slots=True)
class _Layout:
    """Where everything stands: layers of names, among them empty places that only pass an edge on."""

    layers: list[list[str]] = field(default_factory=list)
    ways: dict[tuple[str, str], list[str]] = field(default_factory=dict)
    """Each edge as the chain of places it passes, ends included."""
    y: dict[str, float] = field(default_factory=dict)

    def x(self, layer: int) -> float:
        """The left side of a layer."""
        return _PAD + layer * (_BOX_W + _GAP_X)


def as_dot(graph: Graph) -> str:
    """Graphviz text."""
    lines = ["digraph lineage {", "  rankdir=LR;", '  node [shape=box, fontname="sans-serif"];']
    for node in graph.nodes:
        look = ", style=bold" if node.depth == 0 else ", style=dashed" if node.hidden else ""
        lines.append(f"  {_quote(node.ref)} [label={_quote('hidden' if node.hidden else node.ref)}{look}];")
    lines += [f"  {_quote(e.input)} -> {_quote(e.output)} [label={_quote(e.verb)}];" for e in graph.edges]
    return "\n".join([*lines, "}"]) + "\n"


def as_svg(graph: Graph) -> str:
    """A self-contained picture, readable in light and dark, every box with its full name as a tooltip."""
    layout = lay_out([node.ref for node in graph.nodes], graph.edges)
    width = 2 * _PAD + len(layout.layers) * (_BOX_W + _GAP_X) - _GAP_X
    height = 2 * _PAD + max((layout.y[name] + _BOX_H for layer in layout.layers for name in layer), default=0)
    title = escape(f"Lineage of {graph.ref}")
    parts = [
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" '
            f'width="{width:.0f}" height="{height:.0f}" '
            f'role="img" aria-label="{title}">'
        ),
        f"<title>{title}</title><style>{_STYLE}</style>",
        (
            '<defs><marker id="tip" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
            '<path d="M0 0L8 4L0 8" style="fill:#8896a3"/></marker></defs>'
        ),
    ]
    place = {name: (layout.x(i), _PAD + layout.y[name]) for i, layer in enumerate(layout.layers) for name in layer}
    verbs: dict[tuple[str, str], list[str]] = {}
    for edge in graph.edges:
        verbs.setdefault((edge.input, edge.output), []).append(edge.verb)
    parts += [
        _curve(layout.ways[pair], place, ", ".join(dict.fromkeys(names)))
        for pair, names in verbs.items()
        if pair in layout.ways
    ]
    kinds = {
        kind: _COLOURS[i % len(_COLOURS)]
        for i, kind in enumerate(sorted({n.ref.partition(":")[0] for n in graph.nodes if not n.hidden}))
    }
    for node in graph.nodes:
        look = "me" if node.depth == 0 else "hidden" if node.hidden else ""
        parts.append(_box(node.ref, look, place[node.ref], kinds.get(node.ref.partition(":")[0], "#8896a3")))
    return "\n".join([*parts, "</svg>"]) + "\n"


def lay_out(names: Sequence[str], edges: Iterable[Edge]) -> _Layout:
    """Give every node a layer and a height."""
    pairs = list(dict.fromkeys((e.input, e.output) for e in edges if e.input != e.output))
    rank = _ranks(names, pairs)
    layout = _Layout([[] for _ in range(max(rank.values(), default=-1) + 1)])
    for name in names:
        layout.layers[rank[name]].append(name)
    for source, target in pairs:
        low, high = sorted((rank[source], rank[target]))
        between = [f"\0{source}\0{target}\0{i}" for i in range(low + 1, high)]
        for i, empty in enumerate(between, low + 1):
            layout.layers[i].append(empty)
        chain = [source, *(between if rank[source] < rank[target] else reversed(between)), target]
        layout.ways[source, target] = chain
    _order(layout)
    _place(layout)
    return layout


def _ranks(names: Sequence[str], pairs: Sequence[tuple[str, str]]) -> dict[str, int]:
    """The longest way from a source, by Kahn; where an act closed a ring the ring is cut at the first of it."""
    below: dict[str, list[str]] = {name: [] for name in names}
    waiting = dict.fromkeys(names, 0)
    for source, target in pairs:
        below[source].append(target)
        waiting[target] += 1
    rank: dict[str, int] = dict.fromkeys(names, 0)
    ready = [name for name in names if not waiting[name]]
    left = dict.fromkeys(names)
    while left:
        if not ready:
            ready = [min(left, key=lambda name: waiting[name])]
        name = ready.pop()
        if name not in left:
            continue
        del left[name]
        for target in below[name]:
            if target in left:
                rank[target] = max(rank[target], rank[name] + 1)
                waiting[target] -= 1
                if waiting[target] == 0:
                    ready.append(target)
    return rank


def _order(layout: _Layout) -> None:
    """Order each layer by the middle of its neighbours' places."""
    beside: dict[str, list[str]] = {}
    for chain in layout.ways.values():
        for a, b in itertools.pairwise(chain):
            beside.setdefault(a, []).append(b)
            beside.setdefault(b, []).append(a)
    for sweep in range(_SWEEPS):
        place = {name: i for layer in layout.layers for i, name in enumerate(layer)}
        steps = range(1, len(layout.layers)) if sweep % 2 == 0 else range(len(layout.layers) - 2, -1, -1)
        for i in steps:
            fixed = set(layout.layers[i - 1 if sweep % 2 == 0 else i + 1])
            layout.layers[i].sort(
                key=lambda name: _middle([place[n] for n in beside.get(name, ()) if n in fixed], place[name])
            )
            place.update({name: j for j, name in enumerate(layout.layers[i])})


def _place(layout: _Layout) -> None:
    """Heights: every layer centred on the tallest."""
    tall = max((_height(layer) for layer in layout.layers), default=0.0)
    for layer in layout.layers:
        y = (tall - _height(layer)) / 2
        for name in layer:
            layout.y[name] = y
            y += (_GAP_Y if name.startswith("\0") else _BOX_H) + _GAP_Y


def _height(layer: Sequence[str]) -> float:
    return sum((_GAP_Y if name.startswith("\0") else _BOX_H) + _GAP_Y for name in layer) - _GAP_Y


def _middle(places: Sequence[int], own: int) -> float:
    return sum(places) / len(places) if places else float(own)


def _curve(chain: Sequence[str], place: Mapping[str, tuple[float, float]], verb: str) -> str:
    points = []
    for i, name in enumerate(chain):
        x, y = place[name]
        half = _GAP_Y / 2 if name.startswith("\0") else _BOX_H / 2
        if i:
            points.append((x, y + half))
        if i < len(chain) - 1:
            points.append((x + _BOX_W, y + half))
    path = f"M{points[0][0]:.1f} {points[0][1]:.1f}"
    for (ax, ay), (bx, by) in itertools.pairwise(points):
        path += f"C{(ax + bx) / 2:.1f} {ay:.1f} {(ax + bx) / 2:.1f} {by:.1f} {bx:.1f} {by:.1f}"
    return f'<path d="{path}" marker-end="url(#tip)"><title>{escape(verb)}</title></path>'


def _box(name: str, look: str, at: tuple[float, float], colour: str) -> str:
    hidden = look == "hidden"
    head, _, version = ("something you may not see" if hidden else name).partition("@")
    kind, _, rest = head.rpartition(":")
    label = rest if len(rest) <= 32 else f"…{rest[-31:]}"
    below = " ".join(part for part in (kind, version) if part)
    return (
        f'<g class="{look}" transform="translate({at[0]:.1f} {at[1]:.1f})">'
        f"<title>{escape(head if hidden else name)}</title>"
        f'<rect width="{_BOX_W}" height="{_BOX_H}" rx="7" stroke="{colour}"/>'
        f'<text x="12" y="19">{escape(label)}</text><text class="v" x="12" y="35">{escape(below)}</text></g>'
    )


def _quote(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
