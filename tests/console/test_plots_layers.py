"""Layers: edges lead forward, nodes stand apart, cycles are borne, crossings are few."""

import random
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from falaj.console.plots.layered_layout import compute_layout, index_edges

GRAPHS = st.integers(1, 25).flatmap(
    lambda n: st.tuples(st.just(n), st.lists(st.tuples(st.integers(0, n - 1), st.integers(0, n - 1)), max_size=60))
)


@settings(deadline=None)
@given(GRAPHS)
def test_edges_lead_forward_and_nodes_stand_apart(graph: tuple[int, list[tuple[int, int]]]) -> None:
    count, edges = graph
    laid = compute_layout(count, edges)
    for a, b in edges:
        if a != b:
            first, last = (b, a) if (a, b) in laid.back else (a, b)
            assert laid.at[first][0] < laid.at[last][0]
    layers: dict[int, list[float]] = {}
    for layer, height in laid.at:
        assert layer >= 0
        assert height >= 0
        layers.setdefault(layer, []).append(height)
    for heights in layers.values():
        assert all(b - a >= 1 - 1e-6 for a, b in pairwise(sorted(heights)))


@pytest.mark.parametrize(
    ("count", "edges", "layers"),
    [
        (3, [(0, 1), (1, 2)], [0, 1, 2]),
        (3, [(0, 2), (1, 2)], [0, 0, 1]),
        (4, [(0, 1), (1, 2), (3, 2)], [0, 1, 2, 1]),
        (2, [(0, 1), (1, 0)], [0, 1]),
        (1, [(0, 0)], [0]),
        (2, [], [0, 0]),
    ],
)
def test_layers_by_the_longest_path(count: int, edges: list[tuple[int, int]], layers: list[int]) -> None:
    assert [layer for layer, _ in compute_layout(count, edges).at] == layers


def test_a_chain_is_straight_and_a_shuffled_ladder_does_not_cross() -> None:
    assert {height for _, height in compute_layout(5, pairwise(range(5))).at} == {0.0}
    left, right = list(range(10)), list(range(10, 20))
    random.Random(3).shuffle(right)
    at = compute_layout(20, zip(left, right, strict=True)).at
    order = sorted(left, key=lambda n: at[n][1])
    assert [at[right[n]][1] for n in order] == sorted(at[n][1] for n in right)


def test_edges_to_nowhere_are_left_out() -> None:
    assert index_edges(["a", "b"], [("a", "b"), ("a", "z"), ("y", "b")]) == [(0, 1)]
