"""Streams whose drift is known: for tests, for the bench, and to try a policy on.

A small credit problem: three amounts, a channel, a city and an age decide, with noise; the model is the rule as it was
before anything drifted. Every row can be made again from its seed.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from falaj.core.errors import Invalid
from falaj.drift.measures import Floats

KIND_NONE, KIND_SUDDEN, KIND_GRADUAL, KIND_RECURRING, KIND_LOCAL = "none", "sudden", "gradual", "recurring", "local"
KIND_COVARIATE, KIND_PRIOR, KIND_CONCEPT = "covariate", "prior", "concept"
DRIFT_KINDS = (
    KIND_NONE,
    KIND_SUDDEN,
    KIND_GRADUAL,
    KIND_RECURRING,
    KIND_LOCAL,
    KIND_COVARIATE,
    KIND_PRIOR,
    KIND_CONCEPT,
)
"""sudden, gradual: two amounts move; recurring: they do so for some windows of every period; local: in one city only;
covariate: columns go together in another way, each by itself is as before; prior: one class becomes more common;
concept: the rule changes, and nothing else."""
CITY_NAMES, CHANNEL_NAMES = ("Abu Dhabi", "Dubai", "Sharjah"), ("app", "branch", "web")
_CITY_SHARES, _CHANNEL_SHARES = (0.3, 0.5, 0.2), (0.6, 0.1, 0.3)
_RULE_WEIGHTS = {"income": 1.1, "debt": -0.9, "balance": 0.6}
_PERIOD_WINDOWS, _DRIFTED_WINDOWS = 8, 3
"""A recurring drift is there in the last three of eight windows."""


class SyntheticBatch(NamedTuple):
    """One window."""

    columns: dict[str, NDArray[np.generic]]
    scores: Floats
    """What the model says: the chance of 1."""
    labels: NDArray[np.int64]
    drifted: bool
    """Whether it differs from the reference at all."""


def make_reference(rows: int, *, seed: int = 0, noise_columns: int = 0) -> SyntheticBatch:
    """Rows as the model was trained on. `noise_columns`: columns of noise beside those that matter."""
    return make_batch(KIND_NONE, rows, seed=seed, noise_columns=noise_columns)


def iterate_windows(
    kind: str,
    windows: int,
    rows: int,
    *,
    seed: int = 0,
    first_drifted: int = 0,
    drift_size: float = 1.0,
    noise_columns: int = 0,
) -> Iterator[SyntheticBatch]:
    """Windows of so many rows; from window `first_drifted` on they drift. `drift_size`: in standard deviations,
    about."""
    for window_number in range(windows):
        yield make_batch(
            kind,
            rows,
            seed=seed + 1 + window_number,
            strength=drift_size * compute_strength(kind, window_number - first_drifted),
            noise_columns=noise_columns,
        )


def compute_strength(kind: str, windows_since: int) -> float:
    """How much of the drift is there, so many windows after it began."""
    if kind == KIND_NONE or windows_since < 0:
        return 0.0
    if kind == KIND_GRADUAL:
        return min(1.0, (windows_since + 1) / 10)
    if kind == KIND_RECURRING:
        return 1.0 if windows_since % _PERIOD_WINDOWS >= _PERIOD_WINDOWS - _DRIFTED_WINDOWS else 0.0
    return 1.0


def make_batch(kind: str, rows: int, *, seed: int = 0, strength: float = 0.0, noise_columns: int = 0) -> SyntheticBatch:
    """One window of one kind of drift."""
    if kind not in DRIFT_KINDS:
        raise Invalid(f"{kind!r} is no kind of drift", hint=f"one of {', '.join(DRIFT_KINDS)}")
    generator = np.random.default_rng([seed, DRIFT_KINDS.index(kind) if strength else 0])
    columns = _draw_columns(generator, rows, noise_columns)
    if strength and kind == KIND_PRIOR:
        columns = _resample_rows(generator, columns, strength)
    elif strength:
        _shift_columns(generator, columns, kind, strength)
    chance = _compute_chance(columns, concept_shift=strength if kind == KIND_CONCEPT else 0.0)
    labels = (generator.random(rows) < chance).astype(np.int64)
    return SyntheticBatch(columns, score_rows(columns), labels, strength != 0)


def score_rows(columns: dict[str, NDArray[np.generic]]) -> Floats:
    """The model: the rule as it was before anything drifted."""
    return _compute_chance(columns)


def _draw_columns(generator: np.random.Generator, rows: int, noise_columns: int) -> dict[str, NDArray[np.generic]]:
    common_factor = generator.normal(size=rows)
    columns: dict[str, NDArray[np.generic]] = {
        "income": np.exp(9.5 + 0.5 * (0.6 * common_factor + 0.8 * generator.normal(size=rows))),
        "debt": 0.6 * common_factor + 0.8 * generator.normal(size=rows),
        "balance": np.where(generator.random(rows) < 0.3, 0.0, generator.exponential(size=rows)),
        "age": np.clip(np.round(generator.normal(38, 11, rows)), 18, 90),
        "city": generator.choice(CITY_NAMES, rows, p=_CITY_SHARES),
        "channel": generator.choice(CHANNEL_NAMES, rows, p=_CHANNEL_SHARES),
    }
    return columns | {f"noise{noise_number}": generator.normal(size=rows) for noise_number in range(noise_columns)}


def _shift_columns(
    generator: np.random.Generator, columns: dict[str, NDArray[np.generic]], kind: str, strength: float
) -> None:
    debt, income = columns["debt"].astype(np.float64), columns["income"].astype(np.float64)
    if kind == KIND_COVARIATE:  # As many of each as before, and no longer together.
        is_shuffled = generator.random(len(debt)) < min(1.0, strength)
        debt[is_shuffled] = generator.permutation(debt[is_shuffled])
    elif kind != KIND_CONCEPT:
        is_shifted = columns["city"] == CITY_NAMES[2] if kind == KIND_LOCAL else np.ones(len(debt), np.bool_)
        debt = debt + strength * is_shifted
        income = income * np.exp(-0.5 * strength * is_shifted)
    columns["debt"], columns["income"] = debt, income


def _resample_rows(
    generator: np.random.Generator, columns: dict[str, NDArray[np.generic]], strength: float
) -> dict[str, NDArray[np.generic]]:
    """The same kinds of people, but more of those whose answer is 1."""
    weight = _compute_chance(columns) ** strength
    picked_rows = generator.choice(len(weight), len(weight), p=weight / weight.sum())
    return {name: column[picked_rows] for name, column in columns.items()}


def _compute_chance(columns: dict[str, NDArray[np.generic]], *, concept_shift: float = 0.0) -> Floats:
    """Of the label 1. `concept_shift`: how far debt has come to mean the opposite."""
    income = (np.log(columns["income"].astype(np.float64)) - 9.5) / 0.5
    debt, balance = columns["debt"].astype(np.float64), columns["balance"].astype(np.float64)
    offset = (
        np.where(columns["channel"] == CHANNEL_NAMES[1], 0.5, 0.0) + (columns["age"].astype(np.float64) < 25) * -0.7
    )
    debt_part = _RULE_WEIGHTS["debt"] * (1 - 2 * concept_shift) * debt
    total = 2 * (_RULE_WEIGHTS["income"] * income + debt_part + _RULE_WEIGHTS["balance"] * (balance - 0.7) + offset)
    return np.asarray(1 / (1 + np.exp(-np.clip(total, -30, 30))), np.float64)
