"""Garbage is looked for seldom while there is work, and as before afterwards."""

import gc
from collections.abc import Iterator

import pytest

from falaj.core.garbage_collection import throttle_garbage_collector


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    before = gc.get_threshold()
    yield
    gc.set_threshold(*before)


@pytest.mark.parametrize(
    ("given", "inside"),
    [
        ((700, 10, 10), (50_000, 20, 20)),
        ((100_000, 10, 30), (100_000, 20, 30)),
        ((0, 10, 10), (0, 10, 10)),
    ],
)
def test_while_there_is_work_it_is_looked_for_more_seldom_and_never_more_often(
    given: tuple[int, int, int], inside: tuple[int, int, int]
) -> None:
    gc.set_threshold(*given)
    with throttle_garbage_collector():
        assert gc.get_threshold() == inside
    assert gc.get_threshold() == given


def test_an_error_leaves_it_as_it_was() -> None:
    gc.set_threshold(700, 10, 10)
    with pytest.raises(ValueError, match="x"), throttle_garbage_collector():
        raise ValueError("x")
    assert gc.get_threshold() == (700, 10, 10)
