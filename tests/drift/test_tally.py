"""Tallies: counts that add up in any order, bounded whatever comes, and bytes that are checked."""

import json
import zlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from falaj.core.errors import CorruptData, Invalid
from falaj.drift.profiles import build_profile
from falaj.drift.records import DataProfile, ProfileAxis
from falaj.drift.tally import DataTally
from falaj.drift.tally_encoding import join_encoded as packed_join
from falaj.drift.value_binning import compute_ranks, find_true_edges

RANDOM = np.random.default_rng(5)
REFERENCE = {
    "x": RANDOM.normal(size=2_000),
    "y": RANDOM.normal(3, 2, size=2_000),
    "kind": RANDOM.choice(np.array(["a", "b", "c"], object), 2_000),
    "shop": RANDOM.integers(0, 3, 2_000),
}
PROFILE = build_profile(REFERENCE, segment="shop")
ODD = [np.nan, np.inf, -np.inf, 1e308, -1e308, 0.0, -0.0, 5e-324, 1e30]
number = st.one_of(st.sampled_from(ODD), st.floats(-10, 10))
row = st.tuples(
    number, number, st.sampled_from(["a", "b", "new", "", None, b"a"]), st.sampled_from([0.0, 1.0, 9.0, np.nan])
)


def _columns(rows):
    kinds = np.empty(len(rows), object)
    kinds[:] = [one[2] for one in rows]
    return {
        "x": np.array([one[0] for one in rows], float),
        "y": np.array([one[1] for one in rows], float),
        "kind": kinds,
        "shop": np.array([one[3] for one in rows], float),
    }


def _tally(rows, **options):
    tally = DataTally(PROFILE, **options)
    tally.add(_columns(rows))
    return tally


def _same(one, other):
    assert (one.counts == other.counts).all()
    assert (one.rows, one.seen, one.fresh) == (other.rows, other.seen, other.fresh)
    assert {name: bytes(kept) for name, kept in one.distinct.items()} == {
        name: bytes(kept) for name, kept in other.distinct.items()
    }
    assert np.allclose(one.sums, other.sums, atol=1e-6)
    assert one.sample.keys.tolist() == other.sample.keys.tolist()


@settings(max_examples=25, deadline=None)
@given(st.lists(row, max_size=30), st.lists(row, max_size=30), st.lists(row, max_size=30))
def test_joining_is_the_same_in_any_order_and_travels(first, second, third):
    a, b, c = (_tally(rows, seed=at) for at, rows in enumerate((first, second, third)))
    _same(a.merged(b).merged(c), a.merged(b.merged(c)))
    _same(a.merged(b), b.merged(a))
    whole = _tally([*first, *second, *third])
    joined = a.merged(b).merged(c)
    assert (whole.counts == joined.counts).all()
    _same(DataTally.from_bytes(joined.to_bytes(), PROFILE), joined)
    _same(DataTally.from_bytes(packed_join([one.to_bytes() for one in (a, b, c)]), PROFILE), joined)
    for at in range(4):  # Every row is in one bin of every axis.
        assert joined.of(at).sum() == len(first) + len(second) + len(third)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1, max_size=40), st.floats(1e-3, 1e9))
def test_any_reference_is_cut_at_its_true_edges(values, factor):
    values = np.array([*values, *(np.array([1.0, 2.0, 2.5]) * factor)])
    found = build_profile({"x": values})
    wanted = np.bincount(np.searchsorted(found.axes[0].edges, values, side="left"), minlength=found.axes[0].bins)
    assert wanted.tolist() == list(found.counts[0][:-4])
    assert found.counts[0][-4:] == (0, 0, 0, 0)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=2, max_size=40),
    st.floats(-1e12, 1e12),
    st.floats(1e-12, 1e12),
)
def test_an_edge_is_the_greatest_number_that_is_cut_as_it_is(values, centre, scale):
    wanted = np.sort(np.array([*values, centre, centre + scale, centre - 2.5 * scale]))
    low, high = float(wanted[0]), float(wanted[-1])
    edges = find_true_edges(wanted, centre, scale, low, high)
    above = np.nextafter(edges, np.inf)
    assert (compute_ranks(above, centre, scale) > compute_ranks(edges, centre, scale)).all()
    below_top = np.unique(compute_ranks(wanted, centre, scale))
    assert (
        compute_ranks(edges, centre, scale).tolist()
        == below_top[below_top < compute_ranks(wanted[-1:], centre, scale)].tolist()
    )


def test_many_rows_at_once_are_counted_as_one_by_one():
    draw = np.random.default_rng(8)
    block = {"x": draw.normal(size=3_000), "y": draw.normal(3, 2, 3_000)}
    whole, single = DataTally(PROFILE, seed=1), DataTally(PROFILE, seed=1)
    whole.add(block)
    for at in range(3_000):
        single.add_matrix(np.array([[block["x"][at], block["y"][at]]]), ("x", "y"))
    assert (whole.counts == single.counts).all()


@pytest.mark.parametrize(
    ("value", "at"), [(np.nan, -4), (np.inf, -3), (-np.inf, -3), (-1e3, -2), (1e3, -1), (1e308, -1), (-1.7e308, -2)]
)
def test_odd_numbers_have_places_of_their_own(value, at):
    tally = _tally([(value, 3.0, "a", 0.0)])
    assert tally.of(0)[at] == tally.of(0).sum() == 1
    assert np.isfinite(tally.sums).all()


def test_segments_are_apart_and_others_together():
    tally = _tally([(0, 0, "a", 0.0), (0, 0, "a", 2.0), (0, 0, "a", 7.0), (0, 0, "a", np.nan)])
    assert PROFILE.segments == ("0", "1", "2")
    assert [int(tally.of(0, at).sum()) for at in range(4)] == [1, 0, 1, 2]


@pytest.mark.parametrize(
    ("column", "known"),
    [
        (np.array([0, 1, 7], np.int8), 2),
        (np.array([0, 1, 7], np.float16), 2),
        (np.array([False, True]), 2),
        (np.array([b"0", b"1", b"x"], object), 2),
        (np.array(["0", "1", "\ud800"]), 2),
        (np.array([b"\xff", b"2"], "S3"), 1),
    ],
)
def test_values_of_a_category_are_found_however_they_come(column, known):
    tally = DataTally(PROFILE)
    tally.add({"shop": column})
    assert tally.of(3)[:3].sum() == known
    DataTally.from_bytes(tally.to_bytes(), PROFILE)


def test_values_without_end_stay_bounded():
    found = DataTally(PROFILE)
    for first in range(0, 20_000, 5_000):
        values = np.array([f"user {n} {'x' * 500}" for n in range(first, first + 5_000)] + ["often"] * 100, object)
        found.add({"kind": values})
    assert len(found.fresh["kind"]) <= 32
    assert found.fresh["kind"]["often"] == 400
    assert abs(found.unknown_values(2) / 20_001 - 1) < 0.25
    assert len(found.to_bytes()) < 100_000


def test_the_sample_is_even_also_after_joining():
    parts = []
    for at in range(20):
        part = DataTally(PROFILE, max_sample_rows=40, seed=at)
        part.add({"x": np.full(100 + 50 * at, at / 10), "y": np.zeros(100 + 50 * at)}, ids=["id"] * (100 + 50 * at))
        parts.append(part)
    whole = parts[0]
    for part in parts[1:]:
        whole = whole.merged(part)
    rows = np.array([100 + 50 * at for at in range(20)])
    axis = PROFILE.axes[0]
    found = np.round((whole.sample.values[:, 0] * axis.std + axis.mean) * 10).astype(int)
    wanted = rows / rows.sum() * len(found)
    assert 150 < len(found) <= 1024
    assert float(np.sum((np.bincount(found, minlength=20) - wanted) ** 2 / wanted)) < 45  # chi-square, 19: one in 1,000
    assert set(whole.sample.ids) == {"id"}


def test_sums_are_in_deviations_and_no_value_weighs_more_than_eight():
    tally = DataTally(PROFILE)
    tally.add({name: REFERENCE[name] for name in ("x", "y")})
    assert np.allclose(tally.sums[:2] / 2_000, 0, atol=0.02)
    assert np.allclose(tally.squares[:2] / 2_000, 1, atol=0.05)
    wild = _tally([(1e30, -1e300, "a", 0.0), (np.nan, np.inf, "a", 0.0)])
    assert np.allclose(wild.sums[:2], (8, -8))
    assert np.allclose(wild.squares[:2], 64)


def test_columns_that_are_not_there_are_left_out():
    tally = DataTally(PROFILE)
    tally.add({"x": np.zeros(5), "stranger": np.zeros(5)})
    assert tally.rows == 5
    assert tally.of(1).sum() == 0
    assert tally.mixed == 0
    with pytest.raises(Invalid, match="different numbers"):
        tally.add({"x": np.zeros(5), "y": np.zeros(4)})


def test_an_axis_made_by_hand_is_cut_at_its_edges():
    tally = DataTally(DataProfile((ProfileAxis("x", edges=(1.0, 2.0)),), ((0,) * 7,), 0))
    tally.add({"x": np.array([0.5, 1.5, 1.9, 2.5])})
    assert tally.of(0).tolist() == [1, 2, 1, 0, 0, 0, 0]


def _damaged():
    good = _tally([(0, 0, "new", 0.0)] * 3).to_bytes()
    plain = zlib.decompress(good[4:])
    size = int.from_bytes(plain[:4], "little")
    head, rest = json.loads(plain[4 : 4 + size]), plain[4 + size :]

    def packed(head, rest=rest):
        text = json.dumps(head).encode()
        return b"FJT1" + zlib.compress(len(text).to_bytes(4, "little") + text + rest)

    yield b""
    yield good[:-3]
    yield b"FJT2" + good[4:]
    yield good + b"x"
    yield b"FJT1" + zlib.compress(b"\0" * (64 << 20))
    yield packed([])
    yield packed(head, rest[:-1])
    yield packed(head, rest + b"\0")
    yield packed(head, np.full(1, -1, "<i8").tobytes() + rest[8:])
    yield packed(head, np.full(1, 9, "<i8").tobytes() + rest[8:])
    for change in (
        {"layout": "other"}, {"numbers": [-1, 3, 0, 3]}, {"numbers": [2.5, 3, 0, 0]}, {"numbers": [3, True, 0, 0]},
        {"numbers": [3, 0, 0, 0]}, {"numbers": [3, 3, 0, 7]}, {"numbers": [3]}, {"shape": [1, 2, 3, 4]}, {"bound": 2},
        {"distinct": ["kind", "kind"]}, {"distinct": ["none"]}, {"fresh": [["kind", "v", 9]]},
        {"fresh": [["no", "v", 1]]},
        {"fresh": [["kind", "v" * 500, 1]]}, {"ids": ["x"] * 5000}, {"ids": [1, 2, 3]}, {"numbers": [3, 3, 5, 3]},
    ):  # fmt: skip
        yield packed(head | change)


@pytest.mark.parametrize("data", list(_damaged()), ids=range(27))
def test_bytes_that_are_no_tally_are_refused(data):
    with pytest.raises(CorruptData):
        DataTally.from_bytes(data, PROFILE)


def test_tallies_of_other_profiles_are_not_joined():
    other = DataTally(build_profile({"x": np.arange(100.0)}))
    with pytest.raises(Invalid, match="different profiles"):
        other.merged(DataTally(PROFILE))
    with pytest.raises(CorruptData, match="another profile"):
        DataTally.from_bytes(other.to_bytes(), PROFILE)
