"""Plots as markup: well formed, escaped, small, and calm with whatever values come."""

import math
import random
import re
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from falaj.console import components, plots
from falaj.console.markup import Html
from falaj.console.plots.chart_frame import estimate_width, truncate_middle
from falaj.console.plots.region_coordinates import REGION_COORDINATES, find_coordinates
from tests.console.dom import Node, read
from tests.console.plots_gallery import HOSTILE, Reader, every, reader

EN, AR = reader(), reader("ar")
WILD = st.floats() | st.none() | st.sampled_from((0.0, 1e308, -1e308, 5e-324, math.inf, math.nan))
FEW = st.lists(WILD, max_size=12)


def test_every_plot_is_well_formed_and_says_what_it_is() -> None:
    for view in (EN, AR):
        for name, made in every(view).items():
            tree = read(made)
            for svg in tree.all("svg"):
                inner = {"plane", "earth", "place"} & set(svg["class"].split()) or svg.children == []
                told = svg["aria-hidden"] == "true" or (svg["role"] in ("img", "group") and svg["aria-label"])
                assert inner or told or _within(tree, svg), (name, svg["class"])
            assert not {"style", "fill", "stroke"} & {key for node in tree.walk() for key in node.attributes}, name
            for node in tree.all("[role=img]"):
                assert not [one for one in list(node.walk())[1:] if "tabindex" in one.attributes or one.tag == "a"], (
                    name
                )


def _within(tree: Node, svg: Node) -> bool:
    return any(svg in list(one.walk())[1:] for one in tree.all("svg") if one["role"] or one["aria-hidden"])


def test_hostile_names_stay_text() -> None:
    bad = HOSTILE
    made = [
        plots.line_chart(
            EN, [plots.LineSeries(bad, [1, 2], [1, 2]), plots.LineSeries("b", [1], [1])], title=bad, x=bad, y=bad
        ),
        plots.sparkline(EN, [1, 2], title=bad),
        plots.bar_chart(EN, [(bad, 1)], title=bad, unit=bad),
        plots.share_bar(EN, [(bad, 1, bad)], title=bad),
        plots.histogram(EN, [0, 1], [1], title=bad),
        plots.heatmap(EN, [bad], [bad], [0.5], title=bad),
        plots.timeline(EN, [plots.TimelineSpan(bad, bad, 0, 1, bad)], title=bad),
        plots.node_graph(EN, [plots.GraphNode(bad, bad, bad, bad)], [], title=bad),
        plots.parallel_coordinates(
            EN, [plots.ParallelAxis(bad, choices=(bad,))], [plots.ParallelLine(bad, bad, [bad])], title=bad
        ),
        plots.world_map(
            EN, [plots.MapPlace(bad, bad, 1, 1, bad, bad), plots.MapPlace("b", "b", 2, 2)], [(bad, "b", bad)], title=bad
        ),
    ]
    for one in made:
        tree = read(one)
        assert "&lt;img" in one
        assert not tree.all("img")
        assert "\u202e" not in one
        assert not any(key.startswith("on") for node in tree.walk() for key in node.attributes)


def test_words_that_are_markup_already_are_not_escaped_twice() -> None:
    title = Html("R&amp;D")
    for made in (
        plots.sparkline(EN, [1, 2], title=title),
        plots.line_chart(EN, [plots.LineSeries(title, [1], [1]), plots.LineSeries("b", [1], [1])], title=title),
        plots.node_graph(EN, [plots.GraphNode("a", title)], [], title=title),
        plots.timeline(EN, [plots.TimelineSpan("a", title, 0, 1, "done")], title=title),
        plots.world_map(EN, [plots.MapPlace("a", title, 1, 1)], [], title=title),
    ):
        assert "&amp;amp;" not in made


def test_a_link_that_leads_away_is_refused() -> None:
    with pytest.raises(ValueError, match="leads away"):
        plots.node_graph(EN, [plots.GraphNode("a", "a", link="https://elsewhere.example")], [], title="t")


@pytest.mark.parametrize("view", [EN, AR])
def test_nothing_to_draw_is_said(view: Reader) -> None:
    for made in (
        plots.line_chart(view, [], title="t"),
        plots.line_chart(view, [plots.LineSeries("a", [1, 2], [math.nan, None])], title="t"),
        plots.bar_chart(view, [], title="t"),
        plots.share_bar(view, [("a", 0, "")], title="t"),
        plots.histogram(view, [], [], title="t"),
        plots.heatmap(view, [], [], [], title="t"),
        plots.timeline(view, [], title="t"),
        plots.node_graph(view, [], [], title="t"),
        plots.parallel_coordinates(view, [], [], title="t"),
        plots.world_map(view, [], [], title="t"),
    ):
        assert read(made).one(".plot-none").text == view.t("plots.none")


@settings(max_examples=60, deadline=None)
@given(FEW, FEW, st.booleans())
def test_curves_of_any_values(xs: list[float | None], ys: list[float | None], log: bool) -> None:
    real = [math.nan if x is None else x for x in xs]
    made = plots.line_chart(
        EN, [plots.LineSeries("a", real, ys, low=ys, high=ys), plots.LineSeries("b", real, ys)], title="t", log_y=log
    )
    _in_bounds(made)
    made = plots.line_chart(EN, [plots.LineSeries("a", real, ys)], title="t", x=plots.TIME_AXIS)
    _in_bounds(made)
    _in_bounds(plots.sparkline(EN, ys, title="t"))


@settings(max_examples=60, deadline=None)
@given(FEW, FEW)
def test_amounts_of_any_values(some: list[float | None], others: list[float | None]) -> None:
    values = [math.nan if v is None else v for v in some]
    _in_bounds(plots.bar_chart(AR, [(str(n), v) for n, v in enumerate(values)], title="t"))
    _in_bounds(plots.share_bar(AR, [(str(n), v, "") for n, v in enumerate(values)], title="t"))
    then = [math.nan if v is None else v for v in others]
    _in_bounds(plots.histogram(AR, range(len(values) + 1), values, title="t", reference_counts=then))
    _in_bounds(plots.heatmap(AR, ["a", "b"], ["c", "d", "e"], some, title="t", low=min(values, default=0)))


@settings(max_examples=60, deadline=None)
@given(FEW, FEW, st.booleans())
def test_spans_places_and_runs_of_any_values(some: list[float | None], others: list[float | None], log: bool) -> None:
    values = [math.nan if v is None else v for v in some]
    spans = [
        plots.TimelineSpan(str(n % 2), "a", start, end, "done")
        for n, (start, end) in enumerate(zip(values, others, strict=False))
    ]
    _in_bounds(plots.timeline(EN, spans, title="t"))
    _in_bounds(
        plots.world_map(
            EN, [plots.MapPlace(str(n), "a", v, v) for n, v in enumerate(values)], [("0", "1", "")], title="t"
        )
    )
    lines = [plots.ParallelLine(str(n), "a", (v, "x" if v else None)) for n, v in enumerate(some)]
    _in_bounds(
        plots.parallel_coordinates(
            EN, [plots.ParallelAxis("a", log=log), plots.ParallelAxis("b", choices=("x",))], lines, title="t"
        )
    )


def _in_bounds(made: str) -> None:
    """No coordinate is no number, and none is far from the drawing."""
    tree = read(made)
    for node in tree.walk():
        for key in {"x", "y", "width", "height", "x1", "x2", "y1", "y2", "d", "viewbox"} & set(node.attributes):
            assert not re.search(r"nan|inf|e[+\d]", node[key]), (node.tag, key, node[key][:80])
            assert all(abs(float(number)) <= 4000 for number in re.findall(r"-?\d+(?:\.\d+)?", node[key])), node[key][
                :80
            ]
            assert key not in ("width", "height") or not node[key].startswith("-"), (node.tag, key, node[key])


def test_a_point_that_stands_alone_is_a_dot() -> None:
    made = read(plots.line_chart(EN, [plots.LineSeries("a", [1, 2, 3, 4, 5], [1, 2, None, 4, None])], title="t"))
    assert made.one(".stroke[data-y]")["d"].count("M") == 1
    assert made.one(".lone")["d"] == "M750,0h0"
    assert read(plots.sparkline(EN, [7], title="t")).one(".lone")


def test_a_million_points_are_folded_into_few() -> None:
    ys = [math.sin(n / 900) + (n % 7) / 100 for n in range(100_000)]
    made = plots.line_chart(EN, [plots.LineSeries("a", range(100_000), ys)], title="t")
    assert len(made) < 140_000
    path = read(made).one(".stroke[data-y]")
    assert len(path["data-x"].split(",")) == len(path["data-y"].split(",")) <= 2000
    assert read(made).all(".band")
    assert len(plots.sparkline(EN, ys, title="t")) < 4000


def test_large_things_stay_small() -> None:
    chance = random.Random(1)
    nodes = [plots.GraphNode(str(n), f"node {n}", "note") for n in range(400)]
    edges = [(str(chance.randrange(n)), str(n)) for n in range(1, 400)] + [
        (str(n), str(n + 3)) for n in range(0, 390, 3)
    ]
    graph = plots.node_graph(EN, nodes, edges, title="t")
    assert len(read(graph).all(".node")) == 300
    assert EN.t("plots.more", shown=300, all=400) in graph
    assert len(graph) < 200_000
    many = plots.line_chart(EN, [plots.LineSeries(str(n), range(500), range(500)) for n in range(200)], title="t")
    assert len(read(many).all(".plane .stroke")) == 64
    assert len(many) < 450_000
    axes = [plots.ParallelAxis(str(n)) for n in range(10)]
    lines = [plots.ParallelLine(f"r{n}", f"run {n}", [chance.random() for _ in axes]) for n in range(1500)]
    parallel = plots.parallel_coordinates(EN, axes, lines, title="t")
    assert len(read(parallel).all(".run")) == 1000
    assert len(parallel) < 350_000


def test_boxes_of_a_graph_do_not_overlap_and_arabic_mirrors_it() -> None:
    nodes, edges = (
        [plots.GraphNode(n, n) for n in "abcdef"],
        [("a", "b"), ("a", "c"), ("b", "d"), ("c", "d"), ("a", "e")],
    )
    places = [_places(plots.node_graph(view, nodes, edges, title="t")) for view in (EN, AR)]
    for boxes in places:
        for a, (x, y) in boxes.items():
            assert all(a == b or abs(x - u) >= 176 or abs(y - v) >= 44 for b, (u, v) in boxes.items())
    assert places[0]["a"][0] < places[0]["b"][0] < places[0]["d"][0]
    assert places[1]["a"][0] > places[1]["b"][0] > places[1]["d"][0]


def _places(made: str) -> dict[str, tuple[float, float]]:
    return {node["aria-label"]: _pair(re.findall(r"[\d.]+", node["transform"])) for node in read(made).all(".node")}


def _pair(found: Sequence[str]) -> tuple[float, float]:
    return float(found[0]), float(found[1])


def test_states_have_words_and_signs_beside_their_colour() -> None:
    made = read(plots.node_graph(EN, [plots.GraphNode("a", "a", state="failed")], [], title="t"))
    node = made.one(".node.t-bad")
    assert node["aria-label"] == "a · failed"
    assert node.one(".sign").text == "✕"
    spans = read(plots.timeline(AR, [plots.TimelineSpan("r", "a", 0, 9, "failed", "/console/x")], title="t"))
    assert AR.t("console.state.failed") in spans.one("a.t-bad title").text


def test_a_card_says_the_title_of_its_plot_once() -> None:
    card = read(
        components.card(
            "R&D <x>", plots.bar_chart(EN, [("a", 1)], title="R&D <x>"), plots.bar_chart(EN, [("a", 1)], title="b")
        )
    )
    assert [title["class"] for title in card.all(".plot-title")] == ["plot-title unseen", "plot-title"]


def test_heat_has_links_and_shades() -> None:
    made = read(plots.heatmap(EN, ["a"], ["x", "y", "z"], [0, 0.99, None], title="t", links=["/console/x"]))
    assert [cell["class"] for cell in made.all("tbody td")] == ["q0", "q7", "qn"]
    assert [a["href"] for a in made.all("a")] == ["/console/x"]


def test_a_map_opens_on_what_is_marked() -> None:
    def box(*codes: str) -> list[float]:
        places = [plots.MapPlace(code, code, *(find_coordinates(code) or (0, 0))) for code in codes]
        return [float(n) for n in read(plots.world_map(EN, places, [], title="t")).one(".earth")["viewbox"].split()]

    gulf, wide = box("AE-DU", "AE-AZ"), box("AE-DU", "US", "AU")
    assert gulf[2] < 15
    assert wide[2] > 250
    assert gulf[0] < 55.3 < gulf[0] + gulf[2]


def test_places_are_known_by_country_and_region() -> None:
    assert find_coordinates("ae-du") == (55.3, 25.2)
    assert find_coordinates("AE-XX") == REGION_COORDINATES["AE"]
    assert find_coordinates("ZZ") is None
    assert len(REGION_COORDINATES) > 190
    assert all(-180 <= x <= 180 and -60 <= y <= 84 for x, y in REGION_COORDINATES.values())


@settings(deadline=None)
@given(st.text(), st.integers(3, 40))
def test_a_name_is_cut_to_its_room(name: str, room: int) -> None:
    assert estimate_width(truncate_middle(name, room)) <= room + (6 if room >= 12 else 1)
