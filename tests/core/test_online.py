"""The order of a key's rows, and cells: the same whatever order rows come in."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from falaj.core.errors import Corrupt, Invalid
from falaj.core.online import SEVERAL, after, due, merge, moment_of, pack_cell, pack_rank, rank_of, rows_in

LEAST, MOST = -(1 << 63), (1 << 63) - 1
INT64 = st.one_of(st.integers(LEAST, MOST), st.sampled_from([LEAST, -1, 0, 1, MOST]))
EVENT = INT64.filter(lambda event: event < MOST)
SMALL = st.tuples(st.integers(-4, 4), st.integers(-2, 2), st.integers(0, 3))


@given(st.tuples(EVENT, INT64, INT64), st.tuples(EVENT, INT64, INT64))
def test_ranks_sort_as_numbers(a: tuple[int, int, int], b: tuple[int, int, int]) -> None:
    assert (pack_rank(*a) < pack_rank(*b)) == (a < b)
    assert rank_of(pack_rank(*a) + b"row") == a
    assert moment_of(pack_rank(*a)) == a[0]
    assert (pack_rank(*a) < after(b[0])) == (a[0] <= b[0])


def test_the_moment_that_never_comes_is_no_cell_of_several() -> None:
    assert moment_of(pack_rank(MOST, 0, 0)) == MOST - 1
    assert rows_in(pack_rank(MOST, MOST, MOST)) == [pack_rank(MOST, MOST, MOST)]


def test_what_is_no_rank_is_refused() -> None:
    for bad in ((MOST + 1, 0, 0), (0, LEAST - 1, 0), (0, 0, 1 << 70)):
        with pytest.raises(Invalid):
            pack_rank(*bad)


@given(st.lists(SMALL, min_size=1, max_size=12), st.integers(-5, 5), st.randoms())
def test_any_order_and_repetition_gives_one_cell(ranks: list[tuple[int, int, int]], now: int, random: object) -> None:
    rows = [pack_rank(*rank) + repr(rank).encode() for rank in ranks]
    cell = None
    for row in rows:
        cell = merge(cell, row, now)
    other = None
    random.shuffle(rows)  # type: ignore[attr-defined]
    for row in rows + rows[:3]:
        other = merge(other, row, now)
    assert cell == other
    assert cell is not None
    for later in range(now, 6):
        standing = max((rank for rank in ranks if rank[0] <= later), default=None)
        found = due(cell, later)
        assert (rank_of(found) if found else None) == standing
        assert any(row >= after(later) for row in rows_in(cell)) == any(rank[0] > later for rank in ranks)
    assert merge(cell, rows[0], now) is cell


@given(st.lists(st.tuples(SMALL, st.integers(-5, 5)), min_size=1, max_size=12))
def test_a_later_put_keeps_what_stands_from_then_on(puts: list[tuple[tuple[int, int, int], int]]) -> None:
    cell, last = None, max(now for _, now in puts)
    for rank, now in puts:
        cell = merge(cell, pack_rank(*rank), now)
    assert cell is not None
    for later in range(last, 6):
        found = due(cell, later)
        expected = max((rank for rank, _ in puts if rank[0] <= later), default=None)
        assert (rank_of(found) if found else None) == expected


@given(st.binary(max_size=200), st.booleans())
def test_hostile_cells_are_refused_or_read(data: bytes, several: bool) -> None:
    cell = SEVERAL + data if several else data
    try:
        rows = rows_in(cell)
    except Corrupt:
        return
    assert pack_cell(rows) == cell or len(rows) == 1
    assert all(len(row) >= 24 for row in rows)
