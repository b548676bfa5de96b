"""The order of a key's rows, and cells: the same whatever order rows come in."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from falaj.core.errors import CorruptData, Invalid
from falaj.core.online_rows import (
    MULTIPLE_ROWS_MARK,
    find_current_row,
    merge_row,
    pack_entry,
    pack_moment_bound,
    pack_rank,
    unpack_entry,
    unpack_moment,
    unpack_rank,
)

LEAST, MOST = -(1 << 63), (1 << 63) - 1
INT64 = st.one_of(st.integers(LEAST, MOST), st.sampled_from([LEAST, -1, 0, 1, MOST]))
EVENT = INT64.filter(lambda event: event < MOST)
SMALL = st.tuples(st.integers(-4, 4), st.integers(-2, 2), st.integers(0, 3))


@given(st.tuples(EVENT, INT64, INT64), st.tuples(EVENT, INT64, INT64))
def test_ranks_sort_as_numbers(a: tuple[int, int, int], b: tuple[int, int, int]) -> None:
    assert (pack_rank(*a) < pack_rank(*b)) == (a < b)
    assert unpack_rank(pack_rank(*a) + b"row") == a
    assert unpack_moment(pack_rank(*a)) == a[0]
    assert (pack_rank(*a) < pack_moment_bound(b[0])) == (a[0] <= b[0])


def test_the_moment_that_never_comes_is_no_cell_of_several() -> None:
    assert unpack_moment(pack_rank(MOST, 0, 0)) == MOST - 1
    assert unpack_entry(pack_rank(MOST, MOST, MOST)) == [pack_rank(MOST, MOST, MOST)]


def test_what_is_no_rank_is_refused() -> None:
    for bad in ((MOST + 1, 0, 0), (0, LEAST - 1, 0), (0, 0, 1 << 70)):
        with pytest.raises(Invalid):
            pack_rank(*bad)


@given(st.lists(SMALL, min_size=1, max_size=12), st.integers(-5, 5), st.randoms())
def test_any_order_and_repetition_gives_one_cell(ranks: list[tuple[int, int, int]], now: int, random: object) -> None:
    rows = [pack_rank(*rank) + repr(rank).encode() for rank in ranks]
    cell = None
    for row in rows:
        cell = merge_row(cell, row, now)
    other = None
    random.shuffle(rows)  # type: ignore[attr-defined]
    for row in rows + rows[:3]:
        other = merge_row(other, row, now)
    assert cell == other
    assert cell is not None
    for later in range(now, 6):
        standing = max((rank for rank in ranks if rank[0] <= later), default=None)
        found = find_current_row(cell, later)
        assert (unpack_rank(found) if found else None) == standing
        assert any(row >= pack_moment_bound(later) for row in unpack_entry(cell)) == any(
            rank[0] > later for rank in ranks
        )
    assert merge_row(cell, rows[0], now) is cell


@given(st.lists(st.tuples(SMALL, st.integers(-5, 5)), min_size=1, max_size=12))
def test_a_later_put_keeps_what_stands_from_then_on(puts: list[tuple[tuple[int, int, int], int]]) -> None:
    cell, last = None, max(now for _, now in puts)
    for rank, now in puts:
        cell = merge_row(cell, pack_rank(*rank), now)
    assert cell is not None
    for later in range(last, 6):
        found = find_current_row(cell, later)
        expected = max((rank for rank, _ in puts if rank[0] <= later), default=None)
        assert (unpack_rank(found) if found else None) == expected


@given(st.binary(max_size=200), st.booleans())
def test_hostile_cells_are_refused_or_read(data: bytes, several: bool) -> None:
    cell = MULTIPLE_ROWS_MARK + data if several else data
    try:
        rows = unpack_entry(cell)
    except CorruptData:
        return
    assert pack_entry(rows) == cell or len(rows) == 1
    assert all(len(row) >= 24 for row in rows)
