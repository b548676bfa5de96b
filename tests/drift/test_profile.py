"""Profiles: cut where the reference says, counted as later rows are, and read with every bound checked."""

import json
from dataclasses import asdict, replace

import numpy as np
import pytest

from falaj.core.errors import Invalid
from falaj.drift.axis_cutting import select_even_rows
from falaj.drift.profiles import build_profile, encode_profile, get_layout_hash, hash_profile, read_profile
from falaj.drift.records import KIND_CATEGORY, KIND_NUMBER, ROLE_INPUT, ROLE_LABEL, ROLE_PREDICTION, ModelQuality
from falaj.drift.tally import DataTally

ROWS = 4_000


@pytest.fixture(scope="module")
def columns():
    random = np.random.default_rng(3)
    return {
        "plain": random.normal(40, 7, ROWS),
        "single": random.normal(0, 1, ROWS).astype(np.float32),
        "tail": random.pareto(0.7, ROWS),
        "sparse": np.where(random.random(ROWS) < 0.001, 5.0, 0.0),
        "moment": 1.7e9 + random.random(ROWS) * 3600,
        "date": np.datetime64("2026-01-01") + random.integers(0, 10**6, ROWS).astype("timedelta64[s]"),
        "constant": np.full(ROWS, 0.1),
        "nothing": np.full(ROWS, np.nan),
        "huge": random.normal(0, 1e307, ROWS),
        "gaps": np.where(random.random(ROWS) < 0.2, np.nan, random.normal(0, 1, ROWS)),
        "wild": np.where(random.random(ROWS) < 0.01, np.inf, random.normal(0, 1, ROWS)),
        "many": random.integers(0, 500, ROWS),
        "few": random.integers(0, 4, ROWS),
        "flag": random.random(ROWS) < 0.3,
        "city": random.choice(np.array(["rome", "oslo", "lima"], object), ROWS),
        "names": np.array([f"user {n}" for n in random.integers(0, 3_000, ROWS)], object),
        "mixed": np.array([None, 3, 4, 3] * (ROWS // 4), object),
    }


@pytest.fixture(scope="module")
def profile(columns):
    scores = np.random.default_rng(4).random(ROWS)
    return build_profile(
        columns, predictions={"score": scores}, label=scores > 0.5, label_name="y", segment="city",
        source="dataset:a/b@v1", weights={"plain": 0.5},
        quality=ModelQuality("binary", {"auc": 0.9}, (0.1, 0.9), (0.2, 0.8), rows=10),
    )  # fmt: skip


def test_columns_are_numbers_or_categories_by_what_they_hold(profile):
    kinds = {axis.name: axis.kind for axis in profile.axes}
    categories = {name for name, kind in kinds.items() if kind == KIND_CATEGORY}
    assert categories == {"few", "flag", "city", "names", "mixed", "y"}
    assert [axis.role for axis in profile.axes[-2:]] == [ROLE_PREDICTION, ROLE_LABEL]
    assert profile.axes[0].role == ROLE_INPUT
    assert profile.axes[0].weight == 0.5
    by_name = {axis.name: axis for axis in profile.axes}
    assert set(by_name["flag"].values) == {"true", "false"}
    assert by_name["mixed"].values == ("3", "4")
    assert len(by_name["names"].values) == 64


def test_edges_are_where_values_really_are_cut(profile, columns):
    for at, axis in enumerate(profile.axes):
        if axis.kind == KIND_NUMBER and axis.edges and axis.name not in ("score", "date"):
            values = np.asarray(columns[axis.name], float)
            values = values[np.isfinite(values)]
            wanted = np.bincount(np.searchsorted(axis.edges, values, side="left"), minlength=axis.bins)
            assert wanted.tolist() == list(profile.counts[at][:-4]), axis.name
            assert max(wanted) < 0.03 * ROWS or axis.name in ("sparse", "constant"), axis.name
            assert profile.counts[at][-2:] == (0, 0)


@pytest.mark.parametrize(("name", "at", "share"), [("nothing", 0, 1.0), ("gaps", 0, 0.2), ("wild", 1, 0.01)])
def test_odd_values_are_counted_beside_the_bins(profile, name, at, share):
    place = [axis.name for axis in profile.axes].index(name)
    assert abs(profile.counts[place][-4 + at] / ROWS - share) < 0.02


@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_the_range_of_a_column_is_that_of_its_finite_values(kind):
    column = np.array([np.nan, 3, -np.inf, -7, np.inf, 0.5, np.nan, np.inf, 12], kind)
    (axis,) = build_profile({"x": column}).axes
    assert (axis.low, axis.high, axis.centre) == (-7.0, 12.0, 3.0)


def test_a_profile_is_written_field_by_field_and_whole(profile):
    plain = json.dumps(asdict(profile), allow_nan=False, sort_keys=True, separators=(",", ":"))
    assert encode_profile(profile) == plain.encode()


def test_a_profile_comes_back_as_it_was(profile):
    again = read_profile(encode_profile(profile))
    assert again == profile
    assert hash_profile(again) == hash_profile(profile)
    other = replace(profile, quality=ModelQuality())
    assert hash_profile(other) != hash_profile(profile)
    assert get_layout_hash(other) == get_layout_hash(profile)
    later = json.loads(encode_profile(profile)) | {"of a later release": 1}
    assert read_profile(json.dumps(later).encode()) == profile


def test_a_reference_found_on_a_sample_still_counts_all_rows():
    values = np.random.default_rng(0).normal(size=101_000)
    found = build_profile({"x": values})
    assert sum(found.counts[0]) == found.rows == 101_000
    assert (found.axes[0].low, found.axes[0].high) == (values.min(), values.max())


@pytest.mark.parametrize("rows", [7, ROWS, 40_000, 101_000])
def test_rows_of_a_profile_are_counted_as_later_ones_are(columns, rows):
    again = {name: np.resize(column, rows) for name, column in columns.items()}
    again["late"] = np.where(np.arange(rows) == rows - 1, 1e300, np.nan)  # the only number, and no sample has it
    found = build_profile(again)
    tally = DataTally(found)
    tally.add(again)
    assert [tuple(tally.of(at).tolist()) for at in range(len(found.axes))] == list(found.counts)
    late = found.axes[-1]
    assert (late.low, late.high, found.counts[-1]) == (1e300, 1e300, (1, rows - 1, 0, 0, 0))


@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_parts_of_a_large_reference_hold_equally_many_of_all_its_rows(kind):
    values = np.sort(np.random.default_rng(0).gamma(2.0, size=60_000)).astype(kind)
    found = build_profile({"x": values})
    assert len(found.axes[0].edges) == 127
    parts = np.array(found.counts[0][:-4])
    # As fine as numbers are told from each other: a rank or two more or less.
    assert abs(parts - 60_000 / 128).max() < 0.6 * 60_000 / 128
    assert np.median(abs(parts - 60_000 / 128)) < 0.25 * 60_000 / 128
    wanted = np.sort(values)[(np.arange(1, 128) * 60_000) // 128]
    assert (np.array(found.axes[0].edges) >= wanted).all()
    assert np.allclose(found.axes[0].edges, wanted, rtol=0, atol=0.05)


def test_rows_of_a_sample_come_from_everywhere():
    assert select_even_rows(50, 50, 0) == slice(None)
    found = select_even_rows(100_000, 4_096, 1)
    assert (np.diff(found) > 0).all()
    assert abs(found - (np.arange(4_096) + 0.5) * 100_000 / 4_096).max() <= 1 + 0.5 * 100_000 / 4_096
    assert (found != select_even_rows(100_000, 4_096, 2)).any()


def test_one_wild_value_moves_neither_mean_nor_bins():
    values = np.random.default_rng(0).normal(size=4_000)
    axis = build_profile({"x": values}).axes[0]
    values[7] = 1e30
    wild = build_profile({"x": values}).axes[0]
    assert abs(axis.mean - wild.mean) < 0.01
    assert abs(axis.std - wild.std) < 0.01
    assert np.allclose(axis.edges, wild.edges[: len(axis.edges)], atol=0.05)


def test_a_float32_finds_the_bin_of_the_float64_it_was():
    constant, steps = np.full(900, 0.1), np.random.default_rng(0).integers(0, 50, 900) / 10
    found = build_profile({"constant": constant, "steps": steps})
    tally = DataTally(found)
    tally.add({"constant": constant.astype(np.float32), "steps": steps.astype(np.float32)})
    assert [tuple(tally.of(at).tolist()) for at in (0, 1)] == list(found.counts)


@pytest.mark.parametrize(
    ("said", "columns"),
    [
        ("no columns", {}),
        ("shape", {"a": np.zeros(3), "b": np.zeros(4)}),
        ("shape", {"a": np.zeros((3, 2))}),
        ("type", {"a": np.zeros(3, complex)}),
        ("lists", {"a": np.array([[1], [2, 3], None], object)}),
    ],
)
def test_what_cannot_be_profiled_is_said(said, columns):
    with pytest.raises(Invalid, match=said):
        build_profile(columns)
    with pytest.raises(Invalid, match="to keep rows apart"):
        build_profile({"a": np.zeros(3)}, segment="b")


def _changed(profile, **fields):
    return json.dumps(json.loads(encode_profile(profile)) | fields).encode()


@pytest.mark.parametrize(
    "fields",
    [
        {"axes": []},
        {"axes": 3},
        {"axes": [{"name": "x"}] * 2000},
        {"axes": [{"name": "x"}, {"name": "x"}], "counts": [[0] * 5] * 2},
        {"axes": [{"name": "x", "edges": [2, 1]}], "counts": [[0] * 7]},
        {"axes": [{"name": "x", "edges": [1e400]}], "counts": [[0] * 6]},
        {"axes": [{"name": "x", "edges": ["1"]}], "counts": [[0] * 6]},
        {"axes": [{"name": "x", "kind": "odd"}], "counts": [[0] * 5]},
        {"axes": [{"name": "x", "std": -1}], "counts": [[0] * 5]},
        {"axes": [{"name": "x", "kind": "category", "values": ["a", "a"]}], "counts": [[0] * 7]},
        {"axes": [{"name": 7}], "counts": [[0] * 5]},
        {"axes": [{"name": "x"}], "counts": [[0] * 4]},
        {"axes": [{"name": "x"}], "counts": [[-1, 0, 0, 0, 0]]},
        {"axes": [{"name": "x"}], "counts": [[10**6, 0, 0, 0, 0]]},
        {"counts": [[0.5] * 5]},
        {"rows": -1},
        {"rows": "many"},
        {"segments": ["a"] * 2},
        {"segments": [str(n) for n in range(40)]},
        {"by_segment": []},
        {"tensors": {"x": ["c"] * 5000}},
        {"tensors": 4},
        {"quality": {"metrics": {"auc": "good"}}},
        {"quality": {"scores": [0.1], "chances": []}},
        {"mixture": [[1, 2], ["x"]]},
        {"made_at": None},
    ],
)  # fmt: skip
def test_a_profile_out_of_bounds_is_refused(profile, fields):
    if fields == {"by_segment": []}:  # Without them, and with none of them wrong, it is whole.
        assert read_profile(_changed(profile, **fields)).by_segment == ()
        return
    with pytest.raises(Invalid):
        read_profile(_changed(profile, **fields))


@pytest.mark.parametrize(
    "data", [b"", b"[]", b"{", b"null", b"[" * 100_000, b'{"axes": NaN}', b"\xff", b" " * (25 << 20)]
)
def test_bytes_that_are_no_profile_are_refused(data):
    with pytest.raises(Invalid):
        read_profile(data)
