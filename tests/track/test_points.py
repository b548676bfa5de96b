"""Points in columns: order, merging, cutting, down-sampling, and the way through bytes."""

import math
from struct import pack

import pytest
from hypothesis import given
from hypothesis import strategies as st

from falaj.core.errors import CorruptData, Invalid
from falaj.track.metric_points import (
    MAX_STEP,
    CurveSpot,
    SpotColumns,
    distinct_points,
    format_cursor,
    format_place,
    pack_columns,
    parse_cursor,
    spot_rank,
    unpack_columns,
    unpack_points,
    update_latest,
)

STEPS = st.integers(-MAX_STEP, MAX_STEP) | st.integers(0, 3)
TIMES = st.floats(allow_nan=False, allow_infinity=False) | st.sampled_from([0.0, 1.0, -1.0])
VALUES = st.floats().map(lambda value: math.nan if math.isnan(value) else value) | st.sampled_from([0.0, 1.0, math.nan])
SPOTS = st.lists(st.tuples(STEPS, TIMES, VALUES), max_size=30)


def same(a: CurveSpot, b: CurveSpot) -> bool:
    return a[:2] == b[:2] and pack("d", a[2]) == pack("d", b[2])


def model(*lists: list[CurveSpot]) -> list[CurveSpot]:
    unique = {(step, at, pack("d", value)): (step, at, value) for spots in lists for step, at, value in spots}
    return sorted(unique.values(), key=spot_rank)


def alike(found: list[CurveSpot], wanted: list[CurveSpot]) -> bool:
    """The same spots in the same order; equals in rank may stand in any order."""
    ranks = [spot_rank(spot) for spot in found] == [spot_rank(spot) for spot in wanted]
    bits = sorted((s, a, pack("d", v)) for s, a, v in found) == sorted((s, a, pack("d", v)) for s, a, v in wanted)
    return ranks and bits


@given(SPOTS, st.lists(SPOTS, max_size=4))
def test_merging_is_the_union_in_order(first: list[CurveSpot], others: list[list[CurveSpot]]) -> None:
    merged = SpotColumns.of(first).merged([SpotColumns.of(spots) for spots in others])
    assert alike(list(merged), model(first, *others))


@given(SPOTS)
def test_columns_come_back_from_bytes(spots: list[CurveSpot]) -> None:
    columns = SpotColumns.of(spots)
    back = unpack_columns(pack_columns(columns))
    assert all(same(a, b) for a, b in zip(columns, back, strict=True))


@given(SPOTS, st.integers(1, 7))
def test_pieces_hold_everything_and_none_is_too_large(spots: list[CurveSpot], size: int) -> None:
    columns = SpotColumns.of(spots)
    pieces = list(columns.cut(size))
    assert all(0 < len(piece) <= size for piece in pieces) or not len(columns)
    assert alike([spot for piece in pieces for spot in piece], list(columns))


@given(SPOTS, SPOTS)
def test_places_sort_as_steps_and_times_do(first: list[CurveSpot], second: list[CurveSpot]) -> None:
    for a, b in zip(first, second, strict=False):
        assert (format_place(a) < format_place(b)) == (spot_rank(a)[:2] < spot_rank(b)[:2]) or a[1] == b[1] == 0.0


@given(SPOTS, st.integers(0, 29))
def test_a_page_goes_on_after_its_cursor(spots: list[CurveSpot], index: int) -> None:
    columns = SpotColumns.of(spots)
    if index < len(columns):
        spot = parse_cursor(format_cursor(columns.spot(index)))
        assert spot is not None
        assert [spot_rank(s) for s in columns.after(spot)] == [
            spot_rank(s) for s in columns if spot_rank(s) > spot_rank(spot)
        ]


def test_a_cursor_of_nonsense_is_refused() -> None:
    assert parse_cursor("") is None
    for text in ("x", "1 2", "1 x 3", "1.5 2 3"):
        with pytest.raises(Invalid):
            parse_cursor(text)


@given(st.lists(st.tuples(st.integers(0, 50), st.just(0.0), VALUES), min_size=1, max_size=200), st.integers(1, 20))
def test_down_sampling_keeps_the_lowest_the_highest_and_the_last(spots: list[CurveSpot], bins: int) -> None:
    columns = SpotColumns.of(spots)
    drawn = columns.binned(bins)
    assert len(drawn) <= max(3 * bins, len(columns) if len(columns) <= 3 * bins else 0)
    assert same(drawn[-1], columns.spot(-1))
    numbers = [value for _, _, value in columns if not math.isnan(value)]
    if numbers:
        shown = [value for _, _, value in drawn if not math.isnan(value)]
        assert (min(shown), max(shown)) == (min(numbers), max(numbers))
    assert [spot_rank(spot) for spot in drawn] == sorted(spot_rank(spot) for spot in drawn)


@given(st.lists(st.tuples(STEPS, TIMES, VALUES), min_size=1, max_size=30), st.integers(1, 9), st.integers(1, 7))
def test_folds_keep_the_lowest_the_highest_and_the_last(spots: list[CurveSpot], size: int, bins: int) -> None:
    whole = SpotColumns.of(spots)
    folded = whole.folded(size)
    assert len(folded) == 3 * -(-len(whole) // size)
    assert {spot_rank(one) for one in folded} <= {spot_rank(one) for one in whole}
    drawn = folded.refolded(min(bins, len(folded) // 3))
    numbers = [value for _, _, value in whole if not math.isnan(value)]
    if numbers:
        kept = [value for _, _, value in drawn if not math.isnan(value)]
        assert (min(kept), max(kept)) == (min(numbers), max(numbers))
        assert spot_rank(drawn[-1]) == spot_rank(whole.spot(-1))


def test_the_newest_is_by_step_then_time_then_value() -> None:
    points = [("a", 1, 5.0, 9.0), ("a", 2, 1.0, 3.0), ("a", 2, 1.0, 4.0), ("a", 2, 0.5, 99.0), ("b", 0, 0.0, math.nan)]
    heads = update_latest({}, points)
    assert heads["a"] == (0, 2, 1.0, 4.0)
    assert heads["b"][0] == 1
    assert update_latest(heads, [("b", 0, 0.0, -5.0)])["b"] == (1, 0, 0.0, -5.0)
    assert update_latest(heads, reversed(points))["a"] == heads["a"]


def test_nan_is_itself_when_points_are_sorted_out() -> None:
    assert len(distinct_points([("a", 1, 1.0, math.nan), ("a", 1, 1.0, float("nan")), ("a", 1, 1.0, 0.0)])) == 2


def test_bytes_that_are_no_points_are_said_to_be_damaged() -> None:
    with pytest.raises(CorruptData):
        unpack_points(b"\x01\x02")
    with pytest.raises(CorruptData):
        unpack_columns(b"\x93\xa1a\x01\x02")
