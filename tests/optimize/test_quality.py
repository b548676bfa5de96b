"""Quality as others compute it, and what is lost of it."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score

from falaj.optimize.model_quality import choose_measure, compute_loss, compute_quality

WHOLE = st.lists(st.tuples(st.integers(0, 1), st.integers(-3, 3)), min_size=4, max_size=60)


@settings(max_examples=60, deadline=None)
@given(WHOLE)
def test_auc_is_what_scikit_learn_says(pairs: list[tuple[int, int]]) -> None:
    target = np.array([one for one, _ in pairs] + [0, 1])
    scores = np.array([one for _, one in pairs] + [0, 0], np.float32)[:, None]
    assert choose_measure(scores, target) == "auc"
    assert compute_quality("auc", scores, scores, target) == pytest.approx(roc_auc_score(target, scores[:, 0]))


def test_the_kind_follows_the_answers() -> None:
    wide, one = np.zeros((4, 3), np.float32), np.zeros((4, 1), np.float32)
    assert choose_measure(wide, np.array([0, 1, 2, 0])) == "accuracy"
    assert choose_measure(one, np.array([0, 1, 1, 0])) == "auc"
    assert choose_measure(one, np.array([0.5, 1, 2, 3], np.float32)) == "rmse"
    assert choose_measure(one, np.array([1, 2, 3, 4])) == "rmse"
    assert choose_measure(wide, None) == "agreement"


def test_figures() -> None:
    scores = np.array([[0, 1], [1, 0], [1, 0], [0, 1]], np.float32)
    assert compute_quality("accuracy", scores, scores, np.array([1, 0, 1, 1])) == 0.75
    assert compute_quality("agreement", scores, scores[::-1].copy(), None) == 1.0
    numbers = np.array([[1.0], [3.0]], np.float32)
    assert compute_quality("rmse", numbers, numbers, np.array([1.0, 1.0])) == pytest.approx(math.sqrt(2))
    assert compute_quality("agreement", numbers * 1.1, numbers, None) < 1
    assert compute_loss("accuracy", 0.9, 0.8) == pytest.approx(0.1)
    assert compute_loss("rmse", 2.0, 2.2) == pytest.approx(0.1)
    assert compute_loss("rmse", 0.0, 0.1) == math.inf


def test_answers_that_are_no_numbers_any_more_lose_everything() -> None:
    before = np.ones((3, 2), np.float32)
    now = compute_quality("accuracy", before * np.nan, before, np.array([0, 0, 0]))
    assert compute_loss("accuracy", 1.0, now) == math.inf
    assert math.isnan(compute_quality("agreement", before[:2], before, None))
