"""Two models that answer the same, and two that do not."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from falaj.core.errors import CorruptData, Invalid
from falaj.optimize.parity import check_parity, find_worst_difference

X = np.linspace(-1, 1, 600, dtype=np.float32).reshape(300, 2)


def test_the_worst_row_is_named() -> None:
    with pytest.raises(CorruptData, match=r"row 277 of the data"):
        check_parity(_same, _shifted, [("seeded inputs", [X[:200]]), ("data", [X])])


def _same(given: Sequence[Any]) -> list[Any]:
    return [given[0]]


def _shifted(given: Sequence[Any]) -> list[Any]:
    made = given[0].copy()
    made[(given[0] == X[277]).all(1), 1] += 0.5
    return [made]


def test_another_order_of_sums_passes() -> None:
    assert check_parity(_same, lambda given: [given[0] * np.float32(1 + 1e-5)], [("data", [X])]).error < 1e-3


def test_numbers_that_are_none_count() -> None:
    broken = X.copy()
    broken[3, 0] = np.nan
    found = find_worst_difference([X], [broken])
    assert (found.row, found.error) == (3, np.inf)
    assert find_worst_difference([broken], [broken]).error == 0


def test_other_shapes_are_no_parity() -> None:
    with pytest.raises(Invalid):
        find_worst_difference([X], [X[:, :1]])
