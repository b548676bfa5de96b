"""How columns go together, as sums: random Fourier features of all numeric inputs of a row at once.

The mean of such features tells one joint distribution from another, even where every column by itself is as before
(a kernel two-sample test, Rahimi and Recht). Sums add up over replicas and minutes, and no row need be kept.
"""

import math
from collections.abc import Mapping
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from falaj.drift.measures import Floats, chi2_p

SIZE = 128
"""Features of a row."""
FREE, WIDE, SCALE, ROWS = "mixture.free", "mixture.wide", "mixture.scale", "mixture.rows"
"""In a profile's `tests`: degrees of freedom and deviation of what chance does, how much more halves of the reference
showed, and its rows."""
_CLIP = 4.0
_MOST_ROWS, _HALVED, _HALVES = 8_192, 2_048, 256
"""Rows whose features are put beside each other, and that are halved, and how often: what halves differ by, in what
chance would do, is the same of a quarter of the rows."""


class Prepared(NamedTuple):
    """What a profile keeps."""

    mean: tuple[float, ...]
    spread: tuple[float, ...]
    tests: Mapping[str, float]


def features(scaled: NDArray[np.floating], seed: int = 0) -> NDArray[np.float32]:
    """Of rows whose columns have mean 0 and deviation 1 in the reference. What is missing counts as ordinary."""
    tame = np.clip(np.nan_to_num(scaled, nan=0.0, posinf=_CLIP, neginf=-_CLIP), -_CLIP, _CLIP).astype(np.float32)
    phase = tame @ _directions(tame.shape[1], seed)
    return np.concatenate([np.cos(phase), np.sin(phase)], axis=1)


@lru_cache(maxsize=64)
def _directions(columns: int, seed: int) -> NDArray[np.float32]:
    """Directions through the space of columns, short and long: coarse differences and fine ones."""
    half = SIZE // 2
    drawn = np.random.default_rng([seed, columns]).normal(size=(columns, half))
    long = np.where(np.arange(half) % 2, 1.4, 0.7) / math.sqrt(max(1, columns))
    return (drawn * long).astype(np.float32)


def prepared(scaled: NDArray[np.floating], seed: int = 0) -> Prepared:
    """Of the reference (a sample of its rows): mean and spread of the features, and what chance alone does to them."""
    if len(scaled) < 2 or not scaled.shape[1]:
        return Prepared((), (), {})
    every = features(scaled, seed)
    mean = every.mean(0, dtype=np.float64)
    every -= mean.astype(np.float32)
    # A thousand squares at a time are summed exactly enough in 32 bits, in a quarter of the time.
    parts = (every[low : low + 1024] for low in range(0, len(every), 1024))
    squares = sum((np.einsum("ij,ij->j", part, part).astype(np.float64) for part in parts), np.zeros(SIZE))
    spread = np.maximum(np.sqrt(squares / len(every)), 1e-3)
    picks = np.random.default_rng([seed, 2]).permutation(len(every))[:_MOST_ROWS]  # Tables are often sorted.
    some = every[picks] / spread.astype(np.float32)
    together = (some.T @ some).astype(np.float64) / len(some)
    # A sum of squares of things that go together is like one of fewer things that do not: the same three moments.
    alone = np.maximum(np.linalg.eigvalsh(together), 0.0)
    second, third = (max(float((alone**power).sum()), 1e-9) for power in (2, 3))
    tests = {FREE: second**3 / third**2, WIDE: math.sqrt(2 * second) / SIZE, ROWS: float(len(every))}
    tests[SCALE] = max(1.0, _halves(some[:_HALVED], seed) / _quantile(tests))
    return Prepared(tuple(mean.tolist()), tuple(spread.tolist()), tests)


def _halves(some: NDArray[np.float32], seed: int) -> float:
    """What halves of the reference, put against each other, reach once in twenty times."""
    sides = np.where(np.arange(len(some)) % 2, 1, -1).astype(np.int8)
    sign = np.random.default_rng([seed, 1]).permuted(np.tile(sides, (_HALVES, 1)), axis=1)
    apart = sign.astype(np.float32) @ some / math.sqrt(len(some))
    return float(np.quantile(np.square(apart).mean(1), 0.95))


def _quantile(tests: Mapping[str, float]) -> float:
    """What chance should reach once in twenty times."""
    free = tests[FREE]
    third = 2 / (9 * free)
    over = free * (1 - third + 1.645 * math.sqrt(third)) ** 3 - free
    return 1 + tests[WIDE] * over / math.sqrt(2 * free)


def apart(now: tuple[Floats, float], then: tuple[Floats, float], spread: Floats) -> float:
    """How far the means (sum and rows of each side) are from each other, in what chance would do: 1 is chance."""
    (ours, rows), (theirs, others) = now, then
    size = rows * others / (rows + others)
    return float(size * np.square((ours / rows - theirs / others) / spread).mean())


def chance(value: float, tests: Mapping[str, float]) -> float:
    """How often chance alone is so far apart."""
    free, wide = max(tests.get(FREE, 1.0), 0.1), max(tests.get(WIDE, 1.0), 1e-9)
    fair = value / max(1.0, tests.get(SCALE, 1.0))
    over = free + (fair - 1) / wide * math.sqrt(2 * free)
    return float(chi2_p(np.array(max(0.0, over)), np.array(free)))
