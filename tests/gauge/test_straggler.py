"""Who is slower than the others."""

import random

import pytest

from falaj.gauge.straggler import stragglers


def _ranks(*seconds: float) -> dict[int, list[float]]:
    chance = random.Random(5)
    return {rank: [one * chance.uniform(0.97, 1.03) for _ in range(9)] for rank, one in enumerate(seconds)}


@pytest.mark.parametrize(
    ("seconds", "who"),
    [
        ((1.0, 1.0, 1.0, 1.0), set()),
        ((1.0, 1.0, 1.5, 1.0), {2}),
        ((1.0, 1.0, 1.05, 1.0), set()),
        ((1.0, 1.4), {1}),
        ((1.0, 0.2, 1.0, 1.0), set()),
        ((1.0, 2.0, 3.0, 4.0), set()),
        ((1.0,), set()),
        ((), set()),
    ],
)
def test_a_straggler_is_far_above_the_others(seconds: tuple[float, ...], who: set[int]) -> None:
    assert set(stragglers(_ranks(*seconds))) == who


def test_it_says_how_many_times_as_long() -> None:
    assert stragglers({0: [1.0], 1: [2.5], 2: [1.0], 3: []}) == {1: 2.5}
