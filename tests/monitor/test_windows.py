"""How time is cut into windows, and that each delta is counted once."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from falaj.monitor.windows import (
    MAX_GROWN_LENGTHS,
    SlotPart,
    WindowCut,
    compute_grace_s,
    cut_window,
    find_last_closed_end,
    find_slot_start,
    is_counted,
    mark_counted,
)

HOUR = 3600.0
NOON = find_slot_start(1_800_000_000.0, HOUR)


def enough(part: SlotPart) -> bool:
    return part.rows >= 500


@pytest.mark.parametrize(
    ("parts", "hours", "wanted"),
    [
        ({}, 5, None),
        ({0: 600}, 1, WindowCut(NOON, NOON + HOUR)),
        ({0: 600}, 0, None),  # not closed yet
        ({2: 600}, 5, WindowCut(NOON + 2 * HOUR, NOON + 3 * HOUR)),  # nobody asked before
        ({0: 300, 1: 300, 2: 900}, 5, WindowCut(NOON, NOON + 2 * HOUR)),
        ({0: 300, 3: 300}, 5, WindowCut(NOON, NOON + 4 * HOUR)),
        ({0: 300}, 5, None),  # it may still grow
        ({0: 300}, MAX_GROWN_LENGTHS, WindowCut(NOON, NOON + MAX_GROWN_LENGTHS * HOUR, few=True)),
    ],
)
def test_windows_grow_until_they_have_enough(parts: dict[int, int], hours: int, wanted: WindowCut | None) -> None:
    made = {NOON + at * HOUR: SlotPart(rows) for at, rows in parts.items()}
    assert cut_window(NOON, HOUR, NOON + hours * HOUR, made, enough) == wanted


def test_the_first_window_begins_where_its_revision_did_and_ends_with_the_hour() -> None:
    assert cut_window(NOON + 900, HOUR, NOON + HOUR, {NOON: SlotPart(500)}, enough) == WindowCut(
        NOON + 900, NOON + HOUR
    )


def test_a_window_waits_a_moment_for_what_is_on_its_way() -> None:
    assert find_last_closed_end(HOUR, NOON + compute_grace_s(HOUR) - 0.1) == NOON - HOUR
    assert find_last_closed_end(HOUR, NOON + compute_grace_s(HOUR)) == NOON
    assert [compute_grace_s(every) for every in (1.0, 60.0, HOUR, 86400.0)] == [2.0, 3.0, 60.0, 60.0]


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 60)), max_size=80))
def test_what_was_counted_is_known_whatever_order_it_came_in(rows: list[tuple[str, int]]) -> None:
    done = mark_counted({}, [(replica, number, NOON) for replica, number in rows], 0.0)
    for replica in "abc":
        for number in range(1, 61):
            assert is_counted(done, replica, number) == ((replica, number) in rows)
    # Ranges neither touch nor overlap: they stay few.
    for _, pairs in done.values():
        assert all(first[1] + 1 < second[0] for first, second in pairwise(pairs))


def test_replicas_of_long_ago_are_forgotten() -> None:
    done = mark_counted({"old": [NOON - 9 * HOUR, [[1, 5]]]}, [("new", 1, NOON)], NOON - HOUR)
    assert list(done) == ["new"]
