"""Layers: where the nodes of a directed graph stand, so that edges go one way and cross little."""

from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

_SWEEPS = 6
# An edge over more layers than this is drawn straight: bends for all of them would cost more than they clear.
_LONGEST = 8
_Edge = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Laid:
    """`at[node] = (layer, height)` in units of one row; `bends[edge]` are the places an edge passes through on its way;
    `back` are the edges that close a cycle."""

    at: list[tuple[int, float]]
    bends: Mapping[_Edge, list[tuple[int, float]]]
    back: frozenset[_Edge]


def lay(count: int, edges: Iterable[_Edge]) -> Laid:
    """Places for nodes 0 … count-1."""
    known = list(dict.fromkeys((a, b) for a, b in edges if a != b))
    back = _back(count, known)
    forward = list(dict.fromkeys((b, a) if (a, b) in back else (a, b) for a, b in known))
    layer = _longest(count, forward)
    hops, chains = _chains(count, forward, layer)
    order = _ordered(layer, hops)
    height = _heights(order, hops, count)
    at = [(layer[n], height[n]) for n in range(count)]
    bends = {edge: [(layer[n], height[n]) for n in chain] for edge, chain in chains.items()}
    return Laid(at, bends, frozenset(back))


def _back(count: int, edges: Sequence[_Edge]) -> set[_Edge]:
    """Edges that lead to a node still being walked: turned round, no cycle is left."""
    after = _by(edges, 0)
    seen = [0] * count  # 1: on the way, 2: done
    found: set[_Edge] = set()
    for root in range(count):
        stack = [(root, iter(after[root]))] if not seen[root] else []
        seen[root] = seen[root] or 1
        while stack:
            node, rest = stack[-1]
            following = next(rest, None)
            if following is None:
                seen[node] = 2
                stack.pop()
            elif seen[following] == 1:
                found.add((node, following))
            elif not seen[following]:
                seen[following] = 1
                stack.append((following, iter(after[following])))
    return found


def _by(edges: Iterable[_Edge], end: int) -> defaultdict[int, list[int]]:
    found: defaultdict[int, list[int]] = defaultdict(list)
    for edge in edges:
        found[edge[end]].append(edge[1 - end])
    return found


def _longest(count: int, edges: Sequence[_Edge]) -> list[int]:
    after, waits = _by(edges, 0), [0] * count
    for _, b in edges:
        waits[b] += 1
    layer, ready = [0] * count, [n for n in range(count) if not waits[n]]
    for node in ready:  # grows while it is walked
        for following in after[node]:
            layer[following] = max(layer[following], layer[node] + 1)
            waits[following] -= 1
            if not waits[following]:
                ready.append(following)
    # A source stands just before the first that needs it, not far off at the start.
    heads = set(range(count)) - {b for _, b in edges}
    for node in heads:
        if after[node]:
            layer[node] = min(layer[n] for n in after[node]) - 1
    return layer


def _chains(count: int, edges: Sequence[_Edge], layer: list[int]) -> tuple[list[_Edge], dict[_Edge, list[int]]]:
    """Edges cut into hops from one layer to the next; `layer` grows by the bends between."""
    hops: list[_Edge] = []
    chains: dict[_Edge, list[int]] = {}
    for a, b in edges:
        if layer[b] - layer[a] > _LONGEST:
            continue
        bends = list(range(len(layer), len(layer) + layer[b] - layer[a] - 1))
        layer.extend(layer[a] + 1 + n for n in range(len(bends)))
        hops.extend(zip((a, *bends), (*bends, b), strict=True))
        chains[a, b] = bends
    return hops, chains


def _ordered(layer: Sequence[int], hops: Sequence[_Edge]) -> list[list[int]]:
    """Each layer's nodes from top to bottom: by the middle of their neighbours, sweeping there and back."""
    rows: list[list[int]] = [[] for _ in range(max(layer, default=-1) + 1)]
    for node, at in enumerate(layer):
        rows[at].append(node)
    before, after = _by(hops, 1), _by(hops, 0)
    place = {node: float(n) for row in rows for n, node in enumerate(row)}
    for sweep in range(_SWEEPS):
        beside = before if sweep % 2 == 0 else after
        for row in rows if sweep % 2 == 0 else reversed(rows):
            middle = {n: _mean(place, beside[n], place[n]) for n in row}
            row.sort(key=middle.__getitem__)
            place.update((node, float(n)) for n, node in enumerate(row))
    return rows


def _mean(place: Mapping[int, float], of: Sequence[int], otherwise: float) -> float:
    return sum(place[n] for n in of) / len(of) if of else otherwise


def _heights(rows: Sequence[Sequence[int]], hops: Sequence[_Edge], count: int) -> dict[int, float]:
    """Heights that keep each layer's order and distance, near to the neighbours' middle."""
    beside: defaultdict[int, list[int]] = _by(hops, 0)
    for b, some in _by(hops, 1).items():
        beside[b] = beside[b] + some
    steps = [_offsets(row, count) for row in rows]
    tallest = max((step[-1] for step in steps), default=0.0)
    height = {n: (tallest - step[-1]) / 2 + at for row, step in zip(rows, steps, strict=True)
              for n, at in zip(row, step, strict=True)}  # fmt: skip
    layers = list(zip(rows, steps, strict=True))
    for sweep in range(2 * _SWEEPS):
        for row, step in layers if sweep % 2 == 0 else reversed(layers):
            wish = [_mean(height, beside[n], height[n]) for n in row]
            height.update(zip(row, _apart(wish, step), strict=True))
    least = min(height.values(), default=0.0)
    return {n: at - least for n, at in height.items()}


def _offsets(row: Sequence[int], count: int) -> list[float]:
    """How far below the first each may come at least: a node needs a whole row, an edge that passes less."""
    found = [0.0]
    for a, b in pairwise(row):
        found.append(found[-1] + (0.3, 0.7, 1.0)[(a < count) + (b < count)])
    return found


def _apart(wish: Sequence[float], steps: Sequence[float]) -> list[float]:
    """The nearest heights to those wished, in order and apart as they must be: runs that touch share their mean."""
    blocks: list[tuple[float, int]] = []  # mean of (wish - step), how many
    for at, step in zip(wish, steps, strict=True):
        mean, size = at - step, 1
        while blocks and blocks[-1][0] > mean:
            other, more = blocks.pop()
            mean, size = (mean * size + other * more) / (size + more), size + more
        blocks.append((mean, size))
    flat = [mean for mean, size in blocks for _ in range(size)]
    return [mean + step for mean, step in zip(flat, steps, strict=True)]


def indexed(names: Sequence[Hashable], pairs: Iterable[tuple[Hashable, Hashable]]) -> list[_Edge]:
    """Edges by position; those to nowhere are left out."""
    where = {name: n for n, name in enumerate(names)}
    return [(where[a], where[b]) for a, b in pairs if a in where and b in where]
