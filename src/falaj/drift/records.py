"""A profile: how the values of a model's inputs and answers were when it was made, cut so that later ones compare."""

from collections.abc import Mapping
from dataclasses import field
from typing import ClassVar

from falaj.core.data import dataclass

PROFILE_FILE = "falaj.profile.json"
"""Where it lies in a model's folder, or in that of a baseline."""
KIND_NUMBER, KIND_CATEGORY = "number", "category"
ROLE_INPUT, ROLE_PREDICTION, ROLE_LABEL = "input", "prediction", "label"
TASK_BINARY, TASK_CLASSES, TASK_REGRESSION = "binary", "classes", "regression"
MAX_COLUMNS, MAX_EDGES, MAX_VALUES, MAX_SEGMENTS = 1024, 127, 64, 16
MAX_CLASS_SCORES = 32
"""Classes whose scores are each an axis."""
SPECIAL_BINS = ("missing", "infinite", "below", "above")
"""Counted beside the bins of every column: null or NaN; infinite; finite and outside all that the reference had."""


@dataclass(frozen=True, slots=True)
class ProfileAxis:
    """How one column is cut. A number's bins lie between its edges; a category's are its values, and one for others."""

    name: str
    kind: str = KIND_NUMBER
    role: str = ROLE_INPUT
    edges: tuple[float, ...] = ()
    """Ascending. Bin i holds edges[i - 1] < value <= edges[i]; there is one bin more than edges."""
    values: tuple[str, ...] = ()
    """Most common first."""
    low: float = 0.0
    high: float = 0.0
    """The least and the greatest finite value of the reference."""
    mean: float = 0.0
    std: float = 0.0
    """Of the reference, without its outermost thousandths: one wild value moves neither."""
    centre: float = 0.0
    scale: float = 0.0
    """What a number is moved and scaled by before it is cut: median and spread of the middle half. 0: mean and std."""
    weight: float = 1.0
    """How much the model heeds it, where that is known; the most heeded one has 1."""

    @property
    def bins(self) -> int:
        """How many, without the odd ones."""
        return (len(self.edges) if self.kind == KIND_NUMBER else len(self.values)) + 1


@dataclass(frozen=True, slots=True)
class ModelQuality:
    """How good the model was on rows whose truth was known, and what its scores were worth."""

    task: str = ""
    """binary, classes or regression; empty: nothing is known."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """On rows it was not trained on: accuracy, auc, f1, log_loss, mae, rmse, …"""
    scores: tuple[float, ...] = ()
    """Scores at which the chance below was measured, ascending (binary; of the chosen class where there are more)."""
    chances: tuple[float, ...] = ()
    """How often it was true at such a score: what makes an estimate without labels possible. Of numbers: how far off
    it was, in the mean."""
    beside: tuple[float, ...] = ()
    """A second measurement at the same scores: how often a class was the truth, chosen or not (classes); the mean of
    squared errors (regression)."""
    weights: tuple[int, ...] = ()
    """On how many rows each was measured."""
    output: str = ""
    """The model's output that was judged: its columns are the scores."""
    threshold: float = 0.5
    """From which score on the second of two classes is said."""
    rows: int = 0
    spread: Mapping[str, float] = field(default_factory=dict)
    """How much each metric differs between chunks of the reference by chance alone (standard deviation, 1,000 rows)."""


@dataclass(frozen=True, slots=True)
class DataProfile:
    """Of one model version."""

    axes: tuple[ProfileAxis, ...]
    """Inputs in the order of the model's columns, then predictions, then the label where there is one."""
    counts: tuple[tuple[int, ...], ...]
    """For each axis: its bins, then the four of ODD. Of all segments together."""
    rows: int
    segment: str = ""
    """The column whose values keep rows apart; empty: none."""
    segments: tuple[str, ...] = ()
    """Its values; rows of another one are counted together as the last segment."""
    by_segment: tuple[tuple[tuple[int, ...], ...], ...] = ()
    """As `counts`, for each of the segments and the rest."""
    quality: ModelQuality = ModelQuality()
    tensors: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Input or output tensor of the model to the names of its columns, in order."""
    mixture: tuple[tuple[float, ...], tuple[float, ...]] = ((), ())
    """Mean and spread of random Fourier features of standardised inputs: how columns go together
    (drift/joint_features.py)."""
    source: str = ""
    """What the reference was: a dataset version, or "traffic"."""
    made_at: float = 0.0
    tests: Mapping[str, float] = field(default_factory=dict)
    """Bounds found by trying halves of the reference against each other (what chance alone reaches)."""


@dataclass(frozen=True, slots=True)
class DriftRules:
    """When a difference is a finding. All three must hold: it is no chance, it is large enough, and it lasts."""

    STRUCTURE: ClassVar = ("alpha", "least_rows", "least_step", "least_drop", "least_gap", "persist")

    alpha: float = 0.05
    """How many windows without any drift may have a finding (over all columns and segments together)."""
    least_rows: int = 500
    """Windows with fewer rows are joined to the next."""
    least_step: float = 0.04
    """Kolmogorov-Smirnov (numbers) or total variation (categories) below this is harmless."""
    least_drop: float = 0.02
    """A metric that is worse by less is harmless (of its value)."""
    least_gap: float = 0.1
    """A difference between groups that is smaller is harmless (of shares: chosen, found, falsely accused)."""
    persist: tuple[int, int] = (2, 3)
    """Found in so many of so many windows."""


@dataclass(frozen=True, slots=True)
class DriftFinding:
    """One comparison of one window."""

    STRUCTURE: ClassVar = ("what", "column", "measure", "rows", "alarm")

    what: str
    """quality, input, prediction, label, together (multivariate), estimate, performance, latency, errors, fairness."""
    column: str = ""
    segment: str = ""
    measure: str = ""
    """ks, psi, js, distance, chi2, mmd, auc, missing, new values, accuracy, …"""
    value: float = 0.0
    then: float = 0.0
    """The same of the reference, where that has one."""
    bound: float = 0.0
    p: float = 1.0
    rows: int = 0
    alarm: bool = False
    """Beyond chance (after correction for how many were looked at) and beyond harmless, in this window."""
    said: str = ""
    """In words, with figures."""
    measures: Mapping[str, float] = field(default_factory=dict)
    """All the measures of this column."""
