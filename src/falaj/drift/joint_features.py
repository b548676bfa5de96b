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

from falaj.drift.measures import Floats, compute_chi2_p

FEATURE_COUNT = 128
"""Features of a row."""
FREE_KEY, WIDE_KEY, SCALE_KEY, ROWS_KEY = "mixture.free", "mixture.wide", "mixture.scale", "mixture.rows"
"""In a profile's `tests`: degrees of freedom and deviation of what chance does, how much more halves of the reference
showed, and its rows."""
_CLIP_DEVIATIONS = 4.0
_BLOCK_ROWS = 1_024
"""Rows that are looked at in one go: so many squares are summed exactly enough in 32 bits."""
_COVARIANCE_ROWS, _HALVED_ROWS = 2_048, 1_024
"""Rows whose features are put beside each other, and that are halved: what halves differ by, in what chance would do,
is the same of some of the rows."""
SINGLE_THREAD_PRODUCTS = 1 << 18
"""Products of two numbers in a product of matrices that wakes no other threads: these would wait for more work, in a
loop, for longer than all of this takes."""


class JointReference(NamedTuple):
    """What a profile keeps."""

    mean: tuple[float, ...]
    spread: tuple[float, ...]
    tests: Mapping[str, float]


def compute_features(scaled: NDArray[np.floating], seed: int = 0) -> NDArray[np.float32]:
    """Of rows whose columns have mean 0 and deviation 1 in the reference. What is missing counts as ordinary."""
    clipped = np.clip(scaled, -_CLIP_DEVIATIONS, _CLIP_DEVIATIONS).astype(np.float32, copy=False)
    if (is_missing := np.isnan(clipped)).any():
        clipped[is_missing] = 0.0
    directions = _draw_directions(clipped.shape[1], seed)
    phase, feature_rows = (
        np.empty((len(clipped), FEATURE_COUNT // 2), np.float32),
        np.empty((len(clipped), FEATURE_COUNT), np.float32),
    )
    for low in range(0, len(clipped), step := max(1, SINGLE_THREAD_PRODUCTS // directions.size)):
        np.matmul(clipped[low : low + step], directions, out=phase[low : low + step])
    np.cos(phase, out=feature_rows[:, : FEATURE_COUNT // 2])
    np.sin(phase, out=feature_rows[:, FEATURE_COUNT // 2 :])
    return feature_rows


@lru_cache(maxsize=64)
def _draw_directions(columns: int, seed: int) -> NDArray[np.float32]:
    """Directions through the space of columns, short and long: coarse differences and fine ones."""
    half = FEATURE_COUNT // 2
    normals = np.random.default_rng([seed, columns]).normal(size=(columns, half))
    lengths = np.where(np.arange(half) % 2, 1.4, 0.7) / math.sqrt(max(1, columns))
    return (normals * lengths).astype(np.float32)


def prepare_reference(scaled: NDArray[np.floating], seed: int = 0) -> JointReference:
    """Of the reference (a sample of its rows): mean and spread of the features, and what chance alone does to them."""
    if len(scaled) < 2 or not scaled.shape[1]:
        return JointReference((), (), {})
    sums, squares = np.zeros(FEATURE_COUNT), np.zeros(FEATURE_COUNT)
    for low in range(0, len(scaled), _BLOCK_ROWS):
        feature_block = compute_features(scaled[low : low + _BLOCK_ROWS], seed)
        sums += feature_block.sum(0)
        squares += np.einsum("ij,ij->j", feature_block, feature_block)
    mean = sums / len(scaled)
    spread = np.maximum(np.sqrt(np.maximum(squares / len(scaled) - mean**2, 0.0)), 1e-3)
    sample_rows = np.random.default_rng([seed, 2]).permutation(len(scaled))[
        :_COVARIANCE_ROWS
    ]  # Tables are often sorted.
    sample_features = compute_features(scaled[sample_rows], seed)
    sample_features -= mean.astype(np.float32)
    sample_features /= spread.astype(np.float32)
    tests = {**_fit_chance_shape(sample_features), ROWS_KEY: float(len(scaled))}
    tests[SCALE_KEY] = max(1.0, _measure_halves(sample_features) / _chance_quantile(tests))
    return JointReference(tuple(mean.tolist()), tuple(spread.tolist()), tests)


def _fit_chance_shape(sample_features: NDArray[np.float32]) -> dict[str, float]:
    """A sum of squares of things that go together is like one of fewer things that do not: the same three moments."""
    step = max(1, SINGLE_THREAD_PRODUCTS // FEATURE_COUNT**2)
    total, product = (
        np.zeros((FEATURE_COUNT, FEATURE_COUNT), np.float32),
        np.empty((FEATURE_COUNT, FEATURE_COUNT), np.float32),
    )
    for low in range(0, len(sample_features), step):
        feature_block = sample_features[low : low + step]
        total += np.matmul(
            feature_block.T, feature_block.copy(), out=product
        )  # Of one array it would be another product, with threads.
    covariance = total.astype(np.float64) / len(sample_features)
    covariance_blocks = [covariance[low : low + step] for low in range(0, FEATURE_COUNT, step)]
    first = max(float(covariance.trace()), 1e-9)
    # Less what so few rows show of each other by chance; but no less than there must be.
    second = max(float(np.square(covariance).sum()) - first**2 / len(sample_features), first**2 / FEATURE_COUNT)
    third = sum(float(np.sum(feature_block * (feature_block @ covariance))) for feature_block in covariance_blocks)
    third = max(
        third - 3 * first * second / len(sample_features) - first**3 / len(sample_features) ** 2, second**2 / first
    )
    return {FREE_KEY: second**3 / third**2, WIDE_KEY: math.sqrt(2 * second) / FEATURE_COUNT}


def _measure_halves(sample_features: NDArray[np.float32]) -> float:
    """What halves of the reference, put against each other, reach once in twenty times. All halves that Walsh's
    functions make, of rows in an order of chance: sums of pairs, and of pairs of those, tell of a thousand at once."""
    size = 1 << (min(len(sample_features), _HALVED_ROWS).bit_length() - 1)
    differences = sample_features[:size]
    for _ in range(size.bit_length() - 1):
        first, second = differences[0::2], differences[1::2]
        differences = np.concatenate([first + second, first - second])
    return float(np.quantile(np.square(differences[1:]).mean(1) / size, 0.95))


def _chance_quantile(tests: Mapping[str, float]) -> float:
    """What chance should reach once in twenty times."""
    degrees = tests[FREE_KEY]
    third = 2 / (9 * degrees)
    excess = degrees * (1 - third + 1.645 * math.sqrt(third)) ** 3 - degrees
    return 1 + tests[WIDE_KEY] * excess / math.sqrt(2 * degrees)


def measure_gap(current: tuple[Floats, float], reference: tuple[Floats, float], spread: Floats) -> float:
    """How far the means (sum and rows of each side) are from each other, in what chance would do: 1 is chance."""
    (current_sum, current_rows), (reference_sum, reference_rows) = current, reference
    size = current_rows * reference_rows / (current_rows + reference_rows)
    return float(size * np.square((current_sum / current_rows - reference_sum / reference_rows) / spread).mean())


def compute_chance(value: float, tests: Mapping[str, float]) -> float:
    """How often chance alone is so far apart."""
    degrees, deviation = max(tests.get(FREE_KEY, 1.0), 0.1), max(tests.get(WIDE_KEY, 1.0), 1e-9)
    scaled_value = value / max(1.0, tests.get(SCALE_KEY, 1.0))
    excess = degrees + (scaled_value - 1) / deviation * math.sqrt(2 * degrees)
    return float(compute_chi2_p(np.array(max(0.0, excess)), np.array(degrees)))
