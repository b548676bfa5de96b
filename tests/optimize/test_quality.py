"""Quality as others compute it, and what is lost of it."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score

from falaj.optimize.quality import kind_of, loss, quality

WHOLE = st.lists(st.tuples(st.integers(0, 1), st.integers(-3, 3)), min_size=4, max_size=60)


@settings(max_examples=60, deadline=None)
@given(WHOLE)
def test_auc_is_what_scikit_learn_says(pairs: list[tuple[int, int]]) -> None:
    target = np.array([one for one, _ in pairs] + [0, 1])
    scores = np.array([one for _, one in pairs] + [0, 0], np.float32)[:, None]
    assert kind_of(scores, target) == "auc"
    assert quality("auc", scores, scores, target) == pytest.approx(roc_auc_score(target, scores[:, 0]))


def test_the_kind_follows_the_answers() -> None:
    wide, one = np.zeros((4, 3), np.float32), np.zeros((4, 1), np.float32)
    assert kind_of(wide, np.array([0, 1, 2, 0])) == "accuracy"
    assert kind_of(one, np.array([0, 1, 1, 0])) == "auc"
    assert kind_of(one, np.array([0.5, 1, 2, 3], np.float32)) == "rmse"
    assert kind_of(one, np.array([1, 2, 3, 4])) == "rmse"
    assert kind_of(wide, None) == "agreement"


def test_figures() -> None:
    scores = np.array([[0, 1], [1, 0], [1, 0], [0, 1]], np.float32)
    assert quality("accuracy", scores, scores, np.array([1, 0, 1, 1])) == 0.75
    assert quality("agreement", scores, scores[::-1].copy(), None) == 1.0
    numbers = np.array([[1.0], [3.0]], np.float32)
    assert quality("rmse", numbers, numbers, np.array([1.0, 1.0])) == pytest.approx(math.sqrt(2))
    assert quality("agreement", numbers * 1.1, numbers, None) < 1
    assert loss("accuracy", 0.9, 0.8) == pytest.approx(0.1)
    assert loss("rmse", 2.0, 2.2) == pytest.approx(0.1)
    assert loss("rmse", 0.0, 0.1) == math.inf


def test_answers_that_are_no_numbers_any_more_lose_everything() -> None:
    before = np.ones((3, 2), np.float32)
    now = quality("accuracy", before * np.nan, before, np.array([0, 0, 0]))
    assert loss("accuracy", 1.0, now) == math.inf
    assert math.isnan(quality("agreement", before[:2], before, None))
