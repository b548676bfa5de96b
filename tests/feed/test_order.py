"""A shuffle must be one: every sample once, whatever the size; the same for ever; and nothing to be seen in it."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from falaj.feed.permutation import MAX_SORTED_SIZE, ShuffleOrder, mix_seeds

GOLDEN = {
    10: [1, 8, 9, 3, 6, 5, 0, 7, 4, 2],
    5000: [1548, 3088, 1264, 3791, 3060, 1073, 4645, 1898],
    1_000_003: [241401, 630811, 880496, 611358, 810561, 115559, 644117, 656539],
    2**33: [5664047830, 7605065196, 3152011743, 8061013612],
}


def whole(size: int, seed: int = 0, epoch: int = 0) -> np.ndarray:
    return ShuffleOrder(size, seed, epoch).at(np.arange(size))


@given(size=st.integers(1, 60_000), seed=st.integers(0, 2**64 - 1), epoch=st.integers(0, 1000))
@settings(max_examples=60, deadline=None)
def test_every_sample_comes_once(size: int, seed: int, epoch: int) -> None:
    assert np.array_equal(np.sort(whole(size, seed, epoch)), np.arange(size))


@pytest.mark.parametrize(
    "size", [1, 2, 3, MAX_SORTED_SIZE - 1, MAX_SORTED_SIZE, MAX_SORTED_SIZE + 1, 2**16, 2**16 + 1, 250_007]
)
def test_sizes_at_edges_are_permuted(size: int) -> None:
    assert np.array_equal(np.sort(whole(size, 5)), np.arange(size))


@pytest.mark.parametrize("size", [100, 10_007, 2**33 + 9])
def test_a_part_is_the_same_as_in_the_whole(size: int) -> None:
    order, places = ShuffleOrder(size, 3, 2), np.linspace(0, size - 1, 50, dtype=np.int64)
    together = order.at(places)
    assert [int(order.at(places[n : n + 1])[0]) for n in range(50)] == together.tolist()
    assert together.min() >= 0
    assert together.max() < size
    assert len(set(together.tolist())) == 50


def test_the_order_of_a_seed_never_changes() -> None:
    """A checkpoint names a step: were these numbers to change, every run that resumes would read other samples."""
    assert mix_seeds(1, 2, 3) == 15020427595393229491
    assert whole(10, 0).tolist() == GOLDEN[10]
    assert ShuffleOrder(5000, 7, 1).at(np.arange(8)).tolist() == GOLDEN[5000]
    assert ShuffleOrder(1_000_003, 7, 1).at(np.arange(8)).tolist() == GOLDEN[1_000_003]
    assert ShuffleOrder(2**33, 7, 1).at(np.arange(4)).tolist() == GOLDEN[2**33]


def test_seeds_and_epochs_give_different_orders() -> None:
    found = {tuple(whole(6000, seed, epoch)[:20].tolist()) for seed in range(10) for epoch in range(10)}
    assert len(found) == 100


@pytest.mark.parametrize("size", [1000, 4097, 10_007, 65_536])
def test_nothing_is_to_be_seen_in_a_shuffle(size: int) -> None:
    """Place against sample, a sample against the next, one epoch against another: as uncorrelated as chance allows."""
    places, cells = np.arange(size), 16
    pairs = []
    for seed in range(20):
        first, second = whole(size, seed), whole(size, seed, 1)
        pairs += [(places, first), (first[1:], first[:-1]), (first, second), (first[64:], first[:-64])]
    scores = np.array([np.corrcoef(a, b)[0, 1] * np.sqrt(size) for a, b in pairs])
    assert np.abs(scores).max() < 4.5
    assert 0.7 < scores.std() < 1.3
    table = sum(np.histogram2d(a, b, bins=cells, range=[[0, size]] * 2)[0] for a, b in pairs)
    expected = table.sum() / cells**2
    chi = ((table - expected) ** 2 / expected).sum()
    assert abs(chi - cells**2) < 6 * np.sqrt(2 * cells**2)


def test_permutations_of_few_are_all_reached_about_as_often() -> None:
    counts: dict[tuple[int, ...], int] = {}
    for seed in range(2400):
        key = tuple(whole(4, seed).tolist())
        counts[key] = counts.get(key, 0) + 1
    assert len(counts) == 24
    assert max(counts.values()) < 160
    assert min(counts.values()) > 50
