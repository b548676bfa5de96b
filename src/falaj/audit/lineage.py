"""Lineage: a reading of events. What a thing was made from, what was made from it, what is touched when it is wrong.

Pure: a graph is fed with rows of the log and asked. References in the log are pinned, so a thing is never made from its
own future; where an act names a thing again that came later (an approval of a version, then the version's promotion by
it) the walk simply does not go round twice.
"""

import json
import uuid
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import asdict
from datetime import UTC, datetime

from falaj.audit.records import Edge, Graph, Impact, Node
from falaj.core.errors import Invalid

UP, DOWN, BOTH = "up", "down", "both"
MAX_NODES = 5000
PRODUCER = "https://falaj.example/lineage"
_SPEC = "https://openlineage.io/spec/2-0-2/OpenLineage.json#/$defs/RunEvent"
_VERSION_FACET = (
    "https://openlineage.io/spec/facets/1-0-1/DatasetVersionDatasetFacet.json#/$defs/DatasetVersionDatasetFacet"
)


class Lineage:
    """The edges of one tenant, both ways."""

    def __init__(self) -> None:
        self._made_from: dict[str, list[Edge]] = {}
        self._went_into: dict[str, list[Edge]] = {}
        self._versions: dict[str, list[str]] = {}

    def add(self, subject: str, inputs: Iterable[str], verb: str, event: str, at: float) -> None:
        """Take in one event: `subject` was made from `inputs`."""
        for source in inputs:
            if source == subject:
                continue
            edge = Edge(source, subject, verb, event, at)
            for thing in (source, subject):
                if thing not in self._made_from and thing not in self._went_into:
                    self._versions.setdefault(thing.partition("@")[0], []).append(thing)
            self._made_from.setdefault(subject, []).append(edge)
            self._went_into.setdefault(source, []).append(edge)

    def around(self, ref: str, direction: str = BOTH, depth: int = 0, limit: int = MAX_NODES) -> Graph:
        """The graph around a thing (all its versions when none is named), `depth` steps far; 0 is as far as it goes."""
        if direction not in (UP, DOWN, BOTH):
            raise Invalid(f"{direction!r} is no direction", f"one of: {UP}, {DOWN}, {BOTH}")
        depths: dict[str, int] = dict.fromkeys(self.starts(ref), 0)
        edges: dict[tuple[str, str, str], Edge] = {}
        whole = True
        for way, table, sign in ((UP, self._made_from, -1), (DOWN, self._went_into, 1)):
            if direction in (way, BOTH):
                whole &= _walk(self.starts(ref), table, sign, depth, limit, depths, edges)
        nodes = tuple(Node(ref, steps) for ref, steps in depths.items())
        return Graph(ref, nodes, tuple(edges.values()), whole)

    def starts(self, ref: str) -> list[str]:
        """The thing itself, or every version of it the graph knows."""
        return [ref] if "@" in ref else self._versions.get(ref, [ref])


def _walk(
    starts: Sequence[str],
    table: dict[str, list[Edge]],
    sign: int,
    depth: int,
    limit: int,
    depths: dict[str, int],
    edges: dict[tuple[str, str, str], Edge],
) -> bool:
    """Breadth first from `starts`; True when nothing was left out."""
    queue = deque((start, 0) for start in starts)
    seen = set(starts)
    whole = True
    while queue:
        here, steps = queue.popleft()
        if depth and steps >= depth:
            whole = whole and not table.get(here)
            continue
        for edge in table.get(here, ()):
            there = edge.input if sign < 0 else edge.output
            if there not in seen and len(depths) >= limit:
                whole = False
                continue
            edges[edge.input, edge.output, edge.event] = edge
            if there not in seen:
                seen.add(there)
                depths.setdefault(there, sign * (steps + 1))
                queue.append((there, steps + 1))
    return whole


def impact_of(graph: Graph, zones: Collection[str]) -> Impact:
    """What a downstream graph says about damage: which things, of which kinds, and in which zones they lie."""
    shown = sorted(node.ref for node in graph.nodes if node.depth > 0 and not node.hidden)
    hidden = sum(node.hidden for node in graph.nodes if node.depth > 0)
    kinds = Counter(ref.partition(":")[0] for ref in shown)
    return Impact(graph.ref, tuple(shown), dict(sorted(kinds.items())), tuple(sorted(zones)), hidden)


def hide(graph: Graph, visible: Callable[[str], bool]) -> Graph:
    """The same graph with the names of what the caller may not see taken out, places and connections kept."""
    names = {node.ref: node.ref if visible(node.ref) else f"hidden-{i}" for i, node in enumerate(graph.nodes, 1)}
    nodes = tuple(Node(names[node.ref], node.depth, names[node.ref] != node.ref) for node in graph.nodes)
    edges = tuple(_covered(edge, names) for edge in graph.edges)
    return Graph(graph.ref, nodes, edges, graph.complete)


def _covered(edge: Edge, names: dict[str, str]) -> Edge:
    source, target = names[edge.input], names[edge.output]
    if (source, target) == (edge.input, edge.output):
        return edge
    return Edge(source, target, edge.verb if target == edge.output else "", "", edge.at)


def as_tree(graph: Graph) -> str:
    """The graph as an indented text: what it was made from above, what was made from it below."""
    up: dict[str, list[Edge]] = {}
    down: dict[str, list[Edge]] = {}
    for edge in graph.edges:
        up.setdefault(edge.output, []).append(edge)
        down.setdefault(edge.input, []).append(edge)
    lines = []
    for start in [node.ref for node in graph.nodes if node.depth == 0]:
        lines += [start]
        lines += _branch(start, up, "made from", lambda edge: edge.input)
        lines += _branch(start, down, "went into", lambda edge: edge.output)
    if not graph.complete:
        lines.append("(cut here: ask for more depth)")
    return "\n".join(lines) + "\n"


def _branch(start: str, table: dict[str, list[Edge]], title: str, step: Callable[[Edge], str]) -> list[str]:
    """One direction as lines; a thing met a second time is named and not opened again."""
    if start not in table:
        return []
    lines, seen = [f"  {title}:"], {start}
    stack = [(edge, 2) for edge in reversed(table[start])]
    while stack:
        edge, indent = stack.pop()
        there = step(edge)
        again = there in seen
        tail = "  (above)" if again and there in table else ""
        lines.append("  " * indent + f"{there}  [{edge.verb}]{tail}")
        if not again:
            seen.add(there)
            stack += [(below, indent + 1) for below in reversed(table.get(there, []))]
    return lines


def as_json(graph: Graph) -> str:
    """The graph as one JSON object."""
    return json.dumps(asdict(graph), ensure_ascii=False, indent=1) + "\n"


def as_openlineage(graph: Graph, namespace: str) -> str:
    """The acts of the graph as OpenLineage run events, one JSON object a line, oldest first."""
    acts: dict[str, list[Edge]] = {}
    for edge in sorted(graph.edges, key=lambda e: (e.at, e.event, e.input)):
        acts.setdefault(edge.event or f"{edge.verb}{edge.output}", []).append(edge)
    return "".join(
        json.dumps(_run_event(act, edges, namespace), ensure_ascii=False) + "\n" for act, edges in acts.items()
    )


def _run_event(act: str, edges: Sequence[Edge], namespace: str) -> dict[str, object]:
    when = datetime.fromtimestamp(edges[0].at, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    try:
        run = uuid.UUID(hex=act)
    except ValueError:
        run = uuid.uuid5(uuid.NAMESPACE_URL, f"{PRODUCER}/{act}")
    return {
        "eventType": "COMPLETE",
        "eventTime": when,
        "run": {"runId": str(run), "facets": {}},
        "job": {"namespace": namespace, "name": edges[0].verb or "hidden", "facets": {}},
        "inputs": [_dataset(name, namespace) for name in dict.fromkeys(edge.input for edge in edges)],
        "outputs": [_dataset(name, namespace) for name in dict.fromkeys(edge.output for edge in edges)],
        "producer": PRODUCER,
        "schemaURL": _SPEC,
    }


def _dataset(name: str, namespace: str) -> dict[str, object]:
    bare, at, version = name.partition("@")
    facets = {"version": {"_producer": PRODUCER, "_schemaURL": _VERSION_FACET, "datasetVersion": version}} if at else {}
    return {"namespace": namespace, "name": bare, "facets": facets}
