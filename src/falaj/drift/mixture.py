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
_BLOCK = 1_024
"""Rows that are looked at in one go: so many squares are summed exactly enough in 32 bits."""
_BESIDE, _HALVED = 2_048, 1_024
"""Rows whose features are put beside each other, and that are halved: what halves differ by, in what chance would do,
is the same of some of the rows."""
ALONE = 1 << 18
"""Products of two numbers in a product of matrices that wakes no other threads: these would wait for more work, in a
loop, for longer than all of this takes."""


class Prepared(NamedTuple):
    """What a profile keeps."""

    mean: tuple[float, ...]
    spread: tuple[float, ...]
    tests: Mapping[str, float]


def features(scaled: NDArray[np.floating], seed: int = 0) -> NDArray[np.float32]:
    """Of rows whose columns have mean 0 and deviation 1 in the reference. What is missing counts as ordinary."""
    tame = np.clip(scaled, -_CLIP, _CLIP).astype(np.float32, copy=False)
    if (missing := np.isnan(tame)).any():
        tame[missing] = 0.0
    directions = _directions(tame.shape[1], seed)
    phase, found = np.empty((len(tame), SIZE // 2), np.float32), np.empty((len(tame), SIZE), np.float32)
    for low in range(0, len(tame), step := max(1, ALONE // directions.size)):
        np.matmul(tame[low : low + step], directions, out=phase[low : low + step])
    np.cos(phase, out=found[:, : SIZE // 2])
    np.sin(phase, out=found[:, SIZE // 2 :])
    return found


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
    sums, squares = np.zeros(SIZE), np.zeros(SIZE)
    for low in range(0, len(scaled), _BLOCK):
        part = features(scaled[low : low + _BLOCK], seed)
        sums += part.sum(0)
        squares += np.einsum("ij,ij->j", part, part)
    mean = sums / len(scaled)
    spread = np.maximum(np.sqrt(np.maximum(squares / len(scaled) - mean**2, 0.0)), 1e-3)
    picks = np.random.default_rng([seed, 2]).permutation(len(scaled))[:_BESIDE]  # Tables are often sorted.
    some = features(scaled[picks], seed)
    some -= mean.astype(np.float32)
    some /= spread.astype(np.float32)
    tests = {**_shape(some), ROWS: float(len(scaled))}
    tests[SCALE] = max(1.0, _halves(some) / _quantile(tests))
    return Prepared(tuple(mean.tolist()), tuple(spread.tolist()), tests)


def _shape(some: NDArray[np.float32]) -> dict[str, float]:
    """A sum of squares of things that go together is like one of fewer things that do not: the same three moments."""
    step = max(1, ALONE // SIZE**2)
    total, product = np.zeros((SIZE, SIZE), np.float32), np.empty((SIZE, SIZE), np.float32)
    for low in range(0, len(some), step):
        part = some[low : low + step]
        total += np.matmul(part.T, part.copy(), out=product)  # Of one array it would be another product, with threads.
    together = total.astype(np.float64) / len(some)
    parts = [together[low : low + step] for low in range(0, SIZE, step)]
    first = max(float(together.trace()), 1e-9)
    # Less what so few rows show of each other by chance; but no less than there must be.
    second = max(float(np.square(together).sum()) - first**2 / len(some), first**2 / SIZE)
    third = sum(float(np.sum(part * (part @ together))) for part in parts)
    third = max(third - 3 * first * second / len(some) - first**3 / len(some) ** 2, second**2 / first)
    return {FREE: second**3 / third**2, WIDE: math.sqrt(2 * second) / SIZE}


def _halves(some: NDArray[np.float32]) -> float:
    """What halves of the reference, put against each other, reach once in twenty times. All halves that Walsh's
    functions make, of rows in an order of chance: sums of pairs, and of pairs of those, tell of a thousand at once."""
    size = 1 << (min(len(some), _HALVED).bit_length() - 1)
    apart = some[:size]
    for _ in range(size.bit_length() - 1):
        one, other = apart[0::2], apart[1::2]
        apart = np.concatenate([one + other, one - other])
    return float(np.quantile(np.square(apart[1:]).mean(1) / size, 0.95))


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
