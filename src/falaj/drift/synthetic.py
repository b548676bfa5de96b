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

NONE, SUDDEN, GRADUAL, RECURRING, LOCAL = "none", "sudden", "gradual", "recurring", "local"
COVARIATE, PRIOR, CONCEPT = "covariate", "prior", "concept"
KINDS = (NONE, SUDDEN, GRADUAL, RECURRING, LOCAL, COVARIATE, PRIOR, CONCEPT)
"""sudden, gradual: two amounts move; recurring: they do so for some windows of every period; local: in one city only;
covariate: columns go together in another way, each by itself is as before; prior: one class becomes more common;
concept: the rule changes, and nothing else."""
CITIES, CHANNELS = ("Abu Dhabi", "Dubai", "Sharjah"), ("app", "branch", "web")
_CITIES, _CHANNELS = (0.3, 0.5, 0.2), (0.6, 0.1, 0.3)
_RULE = {"income": 1.1, "debt": -0.9, "balance": 0.6}
_PERIOD, _AWAY = 8, 3
"""A recurring drift is there in the last three of eight windows."""


class Batch(NamedTuple):
    """One window."""

    columns: dict[str, NDArray[np.generic]]
    scores: Floats
    """What the model says: the chance of 1."""
    labels: NDArray[np.int64]
    drifted: bool
    """Whether it differs from the reference at all."""


def reference(rows: int, *, seed: int = 0, extra: int = 0) -> Batch:
    """Rows as the model was trained on. `extra`: columns of noise beside those that matter."""
    return batch(NONE, rows, seed=seed, extra=extra)


def stream(
    kind: str, windows: int, rows: int, *, seed: int = 0, begins: int = 0, size: float = 1.0, extra: int = 0
) -> Iterator[Batch]:
    """Windows of so many rows; from window `begins` on they drift. `size`: in standard deviations, about."""
    for at in range(windows):
        yield batch(kind, rows, seed=seed + 1 + at, strength=size * strength(kind, at - begins), extra=extra)


def strength(kind: str, at: int) -> float:
    """How much of the drift is there, so many windows after it began."""
    if kind == NONE or at < 0:
        return 0.0
    if kind == GRADUAL:
        return min(1.0, (at + 1) / 10)
    if kind == RECURRING:
        return 1.0 if at % _PERIOD >= _PERIOD - _AWAY else 0.0
    return 1.0


def batch(kind: str, rows: int, *, seed: int = 0, strength: float = 0.0, extra: int = 0) -> Batch:
    """One window of one kind of drift."""
    if kind not in KINDS:
        raise Invalid(f"{kind!r} is no kind of drift", hint=f"one of {', '.join(KINDS)}")
    draw = np.random.default_rng([seed, KINDS.index(kind) if strength else 0])
    columns = _drawn(draw, rows, extra)
    if strength and kind == PRIOR:
        columns = _reweighed(draw, columns, strength)
    elif strength:
        _moved(draw, columns, kind, strength)
    chance = _chance(columns, turned=strength if kind == CONCEPT else 0.0)
    labels = (draw.random(rows) < chance).astype(np.int64)
    return Batch(columns, score(columns), labels, strength != 0)


def score(columns: dict[str, NDArray[np.generic]]) -> Floats:
    """The model: the rule as it was before anything drifted."""
    return _chance(columns)


def _drawn(draw: np.random.Generator, rows: int, extra: int) -> dict[str, NDArray[np.generic]]:
    common = draw.normal(size=rows)
    found: dict[str, NDArray[np.generic]] = {
        "income": np.exp(9.5 + 0.5 * (0.6 * common + 0.8 * draw.normal(size=rows))),
        "debt": 0.6 * common + 0.8 * draw.normal(size=rows),
        "balance": np.where(draw.random(rows) < 0.3, 0.0, draw.exponential(size=rows)),
        "age": np.clip(np.round(draw.normal(38, 11, rows)), 18, 90),
        "city": draw.choice(CITIES, rows, p=_CITIES),
        "channel": draw.choice(CHANNELS, rows, p=_CHANNELS),
    }
    return found | {f"noise{at}": draw.normal(size=rows) for at in range(extra)}


def _moved(draw: np.random.Generator, columns: dict[str, NDArray[np.generic]], kind: str, strength: float) -> None:
    debt, income = columns["debt"].astype(np.float64), columns["income"].astype(np.float64)
    if kind == COVARIATE:  # As many of each as before, and no longer together.
        loose = draw.random(len(debt)) < min(1.0, strength)
        debt[loose] = draw.permutation(debt[loose])
    elif kind != CONCEPT:
        where = columns["city"] == CITIES[2] if kind == LOCAL else np.ones(len(debt), np.bool_)
        debt = debt + strength * where
        income = income * np.exp(-0.5 * strength * where)
    columns["debt"], columns["income"] = debt, income


def _reweighed(
    draw: np.random.Generator, columns: dict[str, NDArray[np.generic]], strength: float
) -> dict[str, NDArray[np.generic]]:
    """The same kinds of people, but more of those whose answer is 1."""
    weight = _chance(columns) ** strength
    picks = draw.choice(len(weight), len(weight), p=weight / weight.sum())
    return {name: column[picks] for name, column in columns.items()}


def _chance(columns: dict[str, NDArray[np.generic]], *, turned: float = 0.0) -> Floats:
    """Of the label 1. `turned`: how far debt has come to mean the opposite."""
    income = (np.log(columns["income"].astype(np.float64)) - 9.5) / 0.5
    debt, balance = columns["debt"].astype(np.float64), columns["balance"].astype(np.float64)
    away = np.where(columns["channel"] == CHANNELS[1], 0.5, 0.0) + (columns["age"].astype(np.float64) < 25) * -0.7
    debt_part = _RULE["debt"] * (1 - 2 * turned) * debt
    total = 2 * (_RULE["income"] * income + debt_part + _RULE["balance"] * (balance - 0.7) + away)
    return np.asarray(1 / (1 + np.exp(-np.clip(total, -30, 30))), np.float64)
