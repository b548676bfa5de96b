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

from falaj.audit.records import LineageEdge, LineageGraph, LineageImpact, LineageNode
from falaj.core.errors import Invalid

UPSTREAM, DOWNSTREAM, BOTH_DIRECTIONS = "up", "down", "both"
MAX_GRAPH_NODES = 5000
PRODUCER_URL = "https://falaj.example/lineage"
_RUN_EVENT_SCHEMA = "https://openlineage.io/spec/2-0-2/OpenLineage.json#/$defs/RunEvent"
_VERSION_FACET = (
    "https://openlineage.io/spec/facets/1-0-1/DatasetVersionDatasetFacet.json#/$defs/DatasetVersionDatasetFacet"
)


class LineageIndex:
    """The edges of one tenant, both ways."""

    def __init__(self) -> None:
        self.edges_by_output: dict[str, list[LineageEdge]] = {}
        self.edges_by_input: dict[str, list[LineageEdge]] = {}
        self._versions: dict[str, list[str]] = {}

    def add(self, subject: str, inputs: Iterable[str], operation: str, event_id: str, event_at: float) -> None:
        """Take in one event: `subject` was made from `inputs`."""
        for source in inputs:
            if source == subject:
                continue
            edge = LineageEdge(source, subject, operation, event_id, event_at)
            for endpoint in (source, subject):
                if endpoint not in self.edges_by_output and endpoint not in self.edges_by_input:
                    self._versions.setdefault(endpoint.partition("@")[0], []).append(endpoint)
            self.edges_by_output.setdefault(subject, []).append(edge)
            self.edges_by_input.setdefault(source, []).append(edge)

    def around(
        self, ref: str, direction: str = BOTH_DIRECTIONS, depth: int = 0, limit: int = MAX_GRAPH_NODES
    ) -> LineageGraph:
        """The graph around a thing (all its versions when none is named), `depth` steps far; 0 is as far as it goes."""
        if direction not in (UPSTREAM, DOWNSTREAM, BOTH_DIRECTIONS):
            raise Invalid(f"{direction!r} is no direction", f"one of: {UPSTREAM}, {DOWNSTREAM}, {BOTH_DIRECTIONS}")
        depths: dict[str, int] = dict.fromkeys(self.starts(ref), 0)
        edges: dict[tuple[str, str, str], LineageEdge] = {}
        is_complete = True
        for edge_direction, edge_table, depth_sign in (
            (UPSTREAM, self.edges_by_output, -1),
            (DOWNSTREAM, self.edges_by_input, 1),
        ):
            if direction in (edge_direction, BOTH_DIRECTIONS):
                is_complete &= _walk_edges(self.starts(ref), edge_table, depth_sign, depth, limit, depths, edges)
        nodes = tuple(LineageNode(ref, node_depth) for ref, node_depth in depths.items())
        return LineageGraph(ref, nodes, tuple(edges.values()), is_complete)

    def starts(self, ref: str) -> list[str]:
        """The thing itself, or every version of it the graph knows."""
        return [ref] if "@" in ref else self._versions.get(ref, [ref])


def _walk_edges(
    starts: Sequence[str],
    edge_table: dict[str, list[LineageEdge]],
    depth_sign: int,
    depth: int,
    limit: int,
    depths: dict[str, int],
    edges: dict[tuple[str, str, str], LineageEdge],
) -> bool:
    """Breadth first from `starts`; True when nothing was left out."""
    queue = deque((start, 0) for start in starts)
    visited = set(starts)
    is_complete = True
    while queue:
        current, current_depth = queue.popleft()
        if depth and current_depth >= depth:
            is_complete = is_complete and not edge_table.get(current)
            continue
        for edge in edge_table.get(current, ()):
            neighbour = edge.input if depth_sign < 0 else edge.output
            if neighbour not in visited and len(depths) >= limit:
                is_complete = False
                continue
            edges[edge.input, edge.output, edge.event] = edge
            if neighbour not in visited:
                visited.add(neighbour)
                depths.setdefault(neighbour, depth_sign * (current_depth + 1))
                queue.append((neighbour, current_depth + 1))
    return is_complete


def build_impact(graph: LineageGraph, zones: Collection[str]) -> LineageImpact:
    """What a downstream graph says about damage: which things, of which kinds, and in which zones they lie."""
    visible_refs = sorted(node.ref for node in graph.nodes if node.depth > 0 and not node.hidden)
    hidden = sum(node.hidden for node in graph.nodes if node.depth > 0)
    kinds = Counter(ref.partition(":")[0] for ref in visible_refs)
    return LineageImpact(graph.ref, tuple(visible_refs), dict(sorted(kinds.items())), tuple(sorted(zones)), hidden)


def hide_invisible(graph: LineageGraph, is_visible: Callable[[str], bool]) -> LineageGraph:
    """The same graph with the names of what the caller may not see taken out, places and connections kept."""
    names = {node.ref: node.ref if is_visible(node.ref) else f"hidden-{i}" for i, node in enumerate(graph.nodes, 1)}
    nodes = tuple(LineageNode(names[node.ref], node.depth, names[node.ref] != node.ref) for node in graph.nodes)
    edges = tuple(_cover_edge(edge, names) for edge in graph.edges)
    return LineageGraph(graph.ref, nodes, edges, graph.complete)


def _cover_edge(edge: LineageEdge, names: dict[str, str]) -> LineageEdge:
    source, target = names[edge.input], names[edge.output]
    if (source, target) == (edge.input, edge.output):
        return edge
    return LineageEdge(source, target, edge.verb if target == edge.output else "", "", edge.at)


def format_tree(graph: LineageGraph) -> str:
    """The graph as an indented text: what it was made from above, what was made from it below."""
    edges_by_output: dict[str, list[LineageEdge]] = {}
    edges_by_input: dict[str, list[LineageEdge]] = {}
    for edge in graph.edges:
        edges_by_output.setdefault(edge.output, []).append(edge)
        edges_by_input.setdefault(edge.input, []).append(edge)
    lines = []
    for start in [node.ref for node in graph.nodes if node.depth == 0]:
        lines += [start]
        lines += _format_branch(start, edges_by_output, "made from", lambda edge: edge.input)
        lines += _format_branch(start, edges_by_input, "went into", lambda edge: edge.output)
    if not graph.complete:
        lines.append("(cut here: ask for more depth)")
    return "\n".join(lines) + "\n"


def _format_branch(
    start: str, edge_table: dict[str, list[LineageEdge]], title: str, get_neighbour: Callable[[LineageEdge], str]
) -> list[str]:
    """One direction as lines; a thing met a second time is named and not opened again."""
    if start not in edge_table:
        return []
    lines, visited = [f"  {title}:"], {start}
    stack = [(edge, 2) for edge in reversed(edge_table[start])]
    while stack:
        edge, indent = stack.pop()
        neighbour = get_neighbour(edge)
        is_repeated = neighbour in visited
        suffix = "  (above)" if is_repeated and neighbour in edge_table else ""
        lines.append("  " * indent + f"{neighbour}  [{edge.verb}]{suffix}")
        if not is_repeated:
            visited.add(neighbour)
            stack += [(next_edge, indent + 1) for next_edge in reversed(edge_table.get(neighbour, []))]
    return lines


def to_json_text(graph: LineageGraph) -> str:
    """The graph as one JSON object."""
    return json.dumps(asdict(graph), ensure_ascii=False, indent=1) + "\n"


def to_openlineage(graph: LineageGraph, namespace: str) -> str:
    """The acts of the graph as OpenLineage run events, one JSON object a line, oldest first."""
    edges_by_event: dict[str, list[LineageEdge]] = {}
    for edge in sorted(graph.edges, key=lambda edge_item: (edge_item.at, edge_item.event, edge_item.input)):
        edges_by_event.setdefault(edge.event or f"{edge.verb}{edge.output}", []).append(edge)
    return "".join(
        json.dumps(_build_run_event(event_key, edges, namespace), ensure_ascii=False) + "\n"
        for event_key, edges in edges_by_event.items()
    )


def _build_run_event(event_key: str, edges: Sequence[LineageEdge], namespace: str) -> dict[str, object]:
    event_time = datetime.fromtimestamp(edges[0].at, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    try:
        run_uuid = uuid.UUID(hex=event_key)
    except ValueError:
        run_uuid = uuid.uuid5(uuid.NAMESPACE_URL, f"{PRODUCER_URL}/{event_key}")
    return {
        "eventType": "COMPLETE",
        "eventTime": event_time,
        "run": {"runId": str(run_uuid), "facets": {}},
        "job": {"namespace": namespace, "name": edges[0].verb or "hidden", "facets": {}},
        "inputs": [_build_dataset(name, namespace) for name in dict.fromkeys(edge.input for edge in edges)],
        "outputs": [_build_dataset(name, namespace) for name in dict.fromkeys(edge.output for edge in edges)],
        "producer": PRODUCER_URL,
        "schemaURL": _RUN_EVENT_SCHEMA,
    }


def _build_dataset(name: str, namespace: str) -> dict[str, object]:
    unversioned, separator, version = name.partition("@")
    facets = (
        {"version": {"_producer": PRODUCER_URL, "_schemaURL": _VERSION_FACET, "datasetVersion": version}}
        if separator
        else {}
    )
    return {"namespace": namespace, "name": unversioned, "facets": facets}
