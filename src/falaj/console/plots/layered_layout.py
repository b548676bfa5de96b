"""Layers: where the nodes of a directed graph stand, so that edges go one way and cross little."""

from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

_SWEEPS = 6
# An edge over more layers than this is drawn straight: bends for all of them would cost more than they clear.
_MAX_EDGE_SPAN = 8
_Edge = tuple[int, int]


@dataclass(frozen=True, slots=True)
class LayeredLayout:
    """`at[node] = (layer, height)` in units of one row; `bends[edge]` are the places an edge passes through on its way;
    `back` are the edges that close a cycle."""

    at: list[tuple[int, float]]
    bends: Mapping[_Edge, list[tuple[int, float]]]
    back: frozenset[_Edge]


def compute_layout(count: int, edges: Iterable[_Edge]) -> LayeredLayout:
    """Places for nodes 0 … count-1."""
    unique_edges = list(dict.fromkeys((a, b) for a, b in edges if a != b))
    back_edges = _find_back_edges(count, unique_edges)
    forward_edges = list(dict.fromkeys((b, a) if (a, b) in back_edges else (a, b) for a, b in unique_edges))
    layer_by_node = _assign_layers(count, forward_edges)
    hops, bend_chains = _split_edges(count, forward_edges, layer_by_node)
    nodes_by_layer = _order_layers(layer_by_node, hops)
    height_by_node = _compute_heights(nodes_by_layer, hops, count)
    positions = [(layer_by_node[n], height_by_node[n]) for n in range(count)]
    bends = {edge: [(layer_by_node[n], height_by_node[n]) for n in chain] for edge, chain in bend_chains.items()}
    return LayeredLayout(positions, bends, frozenset(back_edges))


def _find_back_edges(count: int, edges: Sequence[_Edge]) -> set[_Edge]:
    """Edges that lead to a node still being walked: turned round, no cycle is left."""
    successors = _group_by_end(edges, 0)
    visit_states = [0] * count  # 1: on the way, 2: done
    back_edges: set[_Edge] = set()
    for root in range(count):
        stack = [(root, iter(successors[root]))] if not visit_states[root] else []
        visit_states[root] = visit_states[root] or 1
        while stack:
            node, remaining = stack[-1]
            following = next(remaining, None)
            if following is None:
                visit_states[node] = 2
                stack.pop()
            elif visit_states[following] == 1:
                back_edges.add((node, following))
            elif not visit_states[following]:
                visit_states[following] = 1
                stack.append((following, iter(successors[following])))
    return back_edges


def _group_by_end(edges: Iterable[_Edge], end: int) -> defaultdict[int, list[int]]:
    neighbours: defaultdict[int, list[int]] = defaultdict(list)
    for edge in edges:
        neighbours[edge[end]].append(edge[1 - end])
    return neighbours


def _assign_layers(count: int, edges: Sequence[_Edge]) -> list[int]:
    successors, pending_counts = _group_by_end(edges, 0), [0] * count
    for _, target in edges:
        pending_counts[target] += 1
    layer_by_node, ready = [0] * count, [n for n in range(count) if not pending_counts[n]]
    for node in ready:  # grows while it is walked
        for following in successors[node]:
            layer_by_node[following] = max(layer_by_node[following], layer_by_node[node] + 1)
            pending_counts[following] -= 1
            if not pending_counts[following]:
                ready.append(following)
    # A source stands just before the first that needs it, not far off at the start.
    sources = set(range(count)) - {target for _, target in edges}
    for node in sources:
        if successors[node]:
            layer_by_node[node] = min(layer_by_node[n] for n in successors[node]) - 1
    return layer_by_node


def _split_edges(
    count: int, edges: Sequence[_Edge], layer_by_node: list[int]
) -> tuple[list[_Edge], dict[_Edge, list[int]]]:
    """Edges cut into hops from one layer to the next; `layer_by_node` grows by the bends between."""
    hops: list[_Edge] = []
    chains: dict[_Edge, list[int]] = {}
    for a, b in edges:
        if layer_by_node[b] - layer_by_node[a] > _MAX_EDGE_SPAN:
            continue
        bends = list(range(len(layer_by_node), len(layer_by_node) + layer_by_node[b] - layer_by_node[a] - 1))
        layer_by_node.extend(layer_by_node[a] + 1 + n for n in range(len(bends)))
        hops.extend(zip((a, *bends), (*bends, b), strict=True))
        chains[a, b] = bends
    return hops, chains


def _order_layers(layer_by_node: Sequence[int], hops: Sequence[_Edge]) -> list[list[int]]:
    """Each layer's nodes from top to bottom: by the middle of their neighbours, sweeping there and back."""
    rows: list[list[int]] = [[] for _ in range(max(layer_by_node, default=-1) + 1)]
    for node, layer_index in enumerate(layer_by_node):
        rows[layer_index].append(node)
    predecessors, successors = _group_by_end(hops, 1), _group_by_end(hops, 0)
    position_by_node = {node: float(n) for row in rows for n, node in enumerate(row)}
    for sweep in range(_SWEEPS):
        neighbours = predecessors if sweep % 2 == 0 else successors
        for row in rows if sweep % 2 == 0 else reversed(rows):
            mean_positions = {n: _compute_mean(position_by_node, neighbours[n], position_by_node[n]) for n in row}
            row.sort(key=mean_positions.__getitem__)
            position_by_node.update((node, float(n)) for n, node in enumerate(row))
    return rows


def _compute_mean(position_by_node: Mapping[int, float], nodes: Sequence[int], default: float) -> float:
    return sum(position_by_node[n] for n in nodes) / len(nodes) if nodes else default


def _compute_heights(rows: Sequence[Sequence[int]], hops: Sequence[_Edge], count: int) -> dict[int, float]:
    """Heights that keep each layer's order and distance, near to the neighbours' middle."""
    neighbours: defaultdict[int, list[int]] = _group_by_end(hops, 0)
    for target, predecessors in _group_by_end(hops, 1).items():
        neighbours[target] = neighbours[target] + predecessors
    offsets_by_row = [_compute_offsets(row, count) for row in rows]
    tallest = max((row_offsets[-1] for row_offsets in offsets_by_row), default=0.0)
    height_by_node = {
        n: (tallest - row_offsets[-1]) / 2 + node_height
        for row, row_offsets in zip(rows, offsets_by_row, strict=True)
        for n, node_height in zip(row, row_offsets, strict=True)
    }
    rows_with_offsets = list(zip(rows, offsets_by_row, strict=True))
    for sweep in range(2 * _SWEEPS):
        for row, row_offsets in rows_with_offsets if sweep % 2 == 0 else reversed(rows_with_offsets):
            preferred_heights = [_compute_mean(height_by_node, neighbours[n], height_by_node[n]) for n in row]
            height_by_node.update(zip(row, _spread_heights(preferred_heights, row_offsets), strict=True))
    lowest = min(height_by_node.values(), default=0.0)
    return {n: node_height - lowest for n, node_height in height_by_node.items()}


def _compute_offsets(row: Sequence[int], count: int) -> list[float]:
    """How far below the first each may come at least: a node needs a whole row, an edge that passes less."""
    offsets = [0.0]
    for a, b in pairwise(row):
        offsets.append(offsets[-1] + (0.3, 0.7, 1.0)[(a < count) + (b < count)])
    return offsets


def _spread_heights(preferred_heights: Sequence[float], offsets: Sequence[float]) -> list[float]:
    """The nearest heights to those wished, in order and apart as they must be: runs that touch share their mean."""
    blocks: list[tuple[float, int]] = []  # mean of (wish - step), how many
    for preferred_height, offset in zip(preferred_heights, offsets, strict=True):
        mean, size = preferred_height - offset, 1
        while blocks and blocks[-1][0] > mean:
            previous_mean, previous_size = blocks.pop()
            mean, size = (mean * size + previous_mean * previous_size) / (size + previous_size), size + previous_size
        blocks.append((mean, size))
    block_means = [mean for mean, size in blocks for _ in range(size)]
    return [mean + offset for mean, offset in zip(block_means, offsets, strict=True)]


def index_edges(names: Sequence[Hashable], pairs: Iterable[tuple[Hashable, Hashable]]) -> list[_Edge]:
    """Edges by position; those to nowhere are left out."""
    index_by_name = {name: n for n, name in enumerate(names)}
    return [(index_by_name[a], index_by_name[b]) for a, b in pairs if a in index_by_name and b in index_by_name]
