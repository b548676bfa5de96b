"""Lineage as a pure reading: reach, depth, rings, big graphs, and every form it can be shown in."""

import itertools
import json
import random
import time
import uuid
import xml.etree.ElementTree as ET
from datetime import datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from falaj.audit import lineage, lineage_drawing
from falaj.audit.lineage import LineageIndex
from falaj.core.errors import Invalid


def ref(n: int) -> str:
    return f"dataset:p/d{n}@v1"


def grown(pairs: list[tuple[int, int]]) -> LineageIndex:
    graph = LineageIndex()
    for n, (source, target) in enumerate(pairs):
        graph.add(ref(target), [ref(source)], "make", f"{n:032x}", 1_760_000_000.0 + n)
    return graph


PAIRS = st.lists(st.tuples(st.integers(0, 12), st.integers(0, 12)), max_size=40)


@settings(max_examples=200, deadline=None)
@given(PAIRS, st.integers(0, 12))
def test_reach_is_that_of_the_definition(pairs: list[tuple[int, int]], start: int) -> None:
    """Against a transitive closure by brute force; rings and self-made things included."""
    reach = {n: {t for s, t in pairs if s == n and t != n} for n in range(13)}
    for _ in range(13):
        for near_by in reach.values():
            near_by |= {far for near in list(near_by) for far in reach[near]}
    graph = grown(pairs)
    down, up = graph.around(ref(start), "down"), graph.around(ref(start), "up")
    assert {node.ref for node in down.nodes if node.depth > 0} == {ref(n) for n in reach[start] - {start}}
    assert {node.ref for node in up.nodes if node.depth < 0} == {
        ref(n) for n in range(13) if start in reach[n] and n != start
    }
    assert (down.complete, up.complete) == (True, True)


@settings(max_examples=60, deadline=None)
@given(PAIRS, st.integers(0, 12))
def test_every_form_holds_every_node(pairs: list[tuple[int, int]], start: int) -> None:
    graph = grown(pairs).around(ref(start))
    names = {node.ref for node in graph.nodes}
    svg = ET.fromstring(lineage_drawing.to_svg(graph))  # noqa: S314 - our own text
    titles = {title.text for title in svg.iter("{http://www.w3.org/2000/svg}title")}
    assert names <= titles
    dot = lineage_drawing.to_dot(graph)
    assert all(f'"{name}"' in dot for name in names)
    assert dot.count("->") == len(graph.edges)
    tree = lineage.format_tree(graph)
    assert all(name in tree for name in names)
    parsed = json.loads(lineage.to_json_text(graph))
    assert {node["ref"] for node in parsed["nodes"]} == names
    events = [json.loads(line) for line in lineage.to_openlineage(graph, "falaj/bank").splitlines()]
    assert sum(len(e["inputs"]) for e in events) == len(graph.edges)


def test_depth_and_direction() -> None:
    chain = grown([(n, n + 1) for n in range(10)])
    cut = chain.around(ref(5), "up", 2)
    assert {node.ref: node.depth for node in cut.nodes} == {ref(5): 0, ref(4): -1, ref(3): -2}
    assert not cut.complete
    assert chain.around(ref(5), "up", 5).complete
    assert "(cut here" in lineage.format_tree(cut)
    small = chain.around(ref(0), "down", limit=4)
    assert len(small.nodes) == 4
    assert not small.complete
    with pytest.raises(Invalid):
        chain.around(ref(5), "sideways")


def test_a_bare_name_means_every_version() -> None:
    graph = LineageIndex()
    for version in (1, 2):
        graph.add(f"model:p/m@v{version}", [f"dataset:p/d@v{version}"], "train", "", 1.0)
    every, one = graph.around("dataset:p/d", "down"), graph.around("dataset:p/d@v2", "down")
    assert {node.ref for node in every.nodes if node.depth} == {"model:p/m@v1", "model:p/m@v2"}
    assert {node.ref for node in one.nodes if node.depth} == {"model:p/m@v2"}


def test_openlineage_has_what_its_specification_requires() -> None:
    """RunEvent: eventTime, run.runId, job.namespace, job.name, producer, schemaURL; datasets: namespace, name."""
    graph = grown([(0, 1), (1, 2)]).around(ref(1))
    for line in lineage.to_openlineage(graph, "falaj/bank").splitlines():
        event = json.loads(line)
        assert {"eventTime", "producer", "schemaURL", "run", "job"} <= set(event)
        assert event["eventType"] in {"START", "RUNNING", "COMPLETE", "ABORT", "FAIL", "OTHER"}
        assert datetime.fromisoformat(event["eventTime"]).tzinfo is not None
        uuid.UUID(event["run"]["runId"])
        for thing in (event["job"], *event["inputs"], *event["outputs"]):
            assert thing["namespace"] == "falaj/bank"
            assert thing["name"]
        for uri in (event["producer"], event["schemaURL"]):
            assert uri.startswith("https://")
        for dataset in event["inputs"] + event["outputs"]:
            assert {"_producer", "_schemaURL", "datasetVersion"} == set(dataset["facets"]["version"])


def test_the_picture_is_layered() -> None:
    """Inputs stand left of outputs, nothing overlaps, and a hostile name stays a name."""
    pairs = [(0, 3), (1, 3), (2, 4), (3, 5), (4, 5), (0, 5), (5, 6)]
    graph = grown(pairs).around(ref(5))
    layout = lineage_drawing.lay_out_graph([node.ref for node in graph.nodes], graph.edges)
    layer = {name: i for i, names in enumerate(layout.layers) for name in names}
    assert all(layer[ref(a)] < layer[ref(b)] for a, b in pairs)
    for names in layout.layers:
        heights = sorted(layout.y[name] for name in names)
        assert all(b - a > 20 for a, b in itertools.pairwise(heights))
    hostile = LineageIndex()
    hostile.add('model:p/"><script>@v1', ["dataset:p/&d@v1"], "<b>", "e", 1.0)
    picture = hostile.around("dataset:p/&d@v1")
    ET.fromstring(lineage_drawing.to_svg(picture))  # noqa: S314 - our own text
    assert "<script>" not in lineage_drawing.to_svg(picture)
    assert '"model:p/\\"><script>@v1"' in lineage_drawing.to_dot(picture)


def test_a_hundred_thousand_edges_in_a_second() -> None:
    dice = random.Random(7)
    rows = [(ref(n), [ref(dice.randrange(max(1, n - 500), n))]) for n in range(2, 100_002)]
    graph = LineageIndex()
    start = time.perf_counter()
    for n, (subject, inputs) in enumerate(rows):
        graph.add(subject, inputs, "make", str(n), float(n))
    built = time.perf_counter() - start
    start = time.perf_counter()
    around = graph.around(ref(50_000))
    asked = time.perf_counter() - start
    assert len(graph.around(ref(1), "down", limit=200_000).nodes) == 100_001
    assert around.nodes
    assert built + asked < 5, "a second on an idle machine"
    print(f"built {built:.3f} s, asked {asked:.3f} s")
