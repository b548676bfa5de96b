"""Windows of training sets equal brute force; what a window may be."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from falaj.asof import range_queries
from falaj.asof.records import Window
from falaj.asof.window_aggregation import (
    check_window,
    choose_default_hop,
    compute_edge_us,
    compute_window_columns,
    infer_output_type,
)
from falaj.core.errors import Invalid
from tests.asof import windows_cases as cases
from tests.asof.windows_oracle import Row, clustered, oracle, same

DAY = 86_400_000_000


def asked(rows, labels, windows, known):
    given_ = clustered(rows, tuple(cases.TYPES), 3)
    at = np.array([moment for _, moment in labels], np.int64)
    run = np.array([key for key, _ in labels], np.int64)
    instants = {"label": at, "none": None}.get(known, np.full(len(at), known if isinstance(known, int) else 0))
    got = compute_window_columns(
        given_["run_starts"], given_["event"], given_["created"], given_["columns"], run, at, instants, windows
    )
    for window, (values, valid) in zip(windows, got, strict=True):
        assert isinstance(values, list) == (window.how == "last")
        for place, (key, moment) in enumerate(labels):
            until = None if instants is None else int(instants[place])
            truth, present = oracle(rows, key, moment, window, until)
            assert bool(valid[place]) == present, (window, key, moment)
            if present:
                value = values[place] if isinstance(values, list) else values[place].item()
                assert same(value, truth), (window, key, moment, value, truth)


LABELS = st.lists(st.tuples(st.integers(-1, 2), cases.MOMENTS), max_size=12)
KNOWN = st.one_of(st.just("none"), st.just("label"), st.integers(-50, 60))


@settings(max_examples=300, deadline=None)
@given(cases.rows(), LABELS, cases.windows(), KNOWN)
def test_windows_equal_brute_force(rows, labels, windows, known) -> None:
    asked(rows, labels, windows, known)


@settings(max_examples=60, deadline=None)
@given(cases.rows(), LABELS, cases.windows())
def test_small_chunks_change_nothing(rows, labels, windows) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(range_queries, "_MAX_COPIED_CELLS", 3)
        asked(rows, labels, windows, "label")


def test_many_rows_not_known_yet_and_long_windows() -> None:
    """Beyond the steps back that are tried first, and through every level of the tables."""
    rng = np.random.default_rng(5)
    rows = [
        Row(0, int(event), int(event + rng.choice([0, 5, 400])), seq, dict.fromkeys(cases.TYPES) | {"i": seq % 9})
        for seq, event in enumerate(np.sort(rng.integers(0, 500, 600)))
    ]
    windows = tuple(
        Window(how, how, "i", over, 10, infer_output_type(how, "int64"), 3 if how == "last" else 0)
        for how, over in [("count", 500), ("sum", 300), ("mean", 500), ("min", 400), ("distinct", 500), ("last", 450)]
    )
    labels = [(0, int(moment)) for moment in rng.integers(0, 520, 60)]
    for known in ("none", "label", 300):
        asked(rows, labels, windows, known)


def test_nothing_at_all() -> None:
    none = np.zeros(0, np.int64)
    windows = [Window("n", "count", "", 10, 1, "int64"), Window("s", "sum", "f", 10, 1, "float64")]
    columns = {"f": (np.zeros(0), np.zeros(0, bool))}
    starts = np.zeros(1, np.int64)
    for run in (none, np.array([-1, -1])):
        for known in (None, np.arange(len(run))):
            got = compute_window_columns(starts, none, none, columns, run, np.zeros(len(run), np.int64), known, windows)
            assert [(len(values), valid.tolist()) for values, valid in got] == [(len(run), [False] * len(run))] * 2


def test_a_moment_that_is_none_finds_nothing() -> None:
    got = compute_window_columns(
        np.array([0, 1]),
        np.array([5]),
        np.array([5]),
        {},
        np.array([0]),
        np.array([-(1 << 63)]),
        None,
        [Window("n", "count", "", 10, 1, "int64")],
    )
    assert got[0][1].tolist() == [False]


def test_a_sum_that_does_not_fit_is_refused() -> None:
    columns = {"i": (np.array([1 << 62, 1 << 62]), np.ones(2, bool))}
    with pytest.raises(Invalid, match="64 bits"):
        compute_window_columns(
            np.array([0, 2]),
            np.array([0, 1]),
            np.array([0, 1]),
            columns,
            np.array([0]),
            np.array([5]),
            None,
            [Window("s", "sum", "i", 10, 1, "int64")],
        )


def test_hops() -> None:
    minute = 60_000_000
    assert [choose_default_hop(span) for span in (1, minute, minute + 1, 60 * minute, DAY, 7 * DAY, 30 * DAY)] == [
        1_000_000,
        1_000_000,
        10_000_000,
        minute,
        15 * minute,
        120 * minute,
        720 * minute,
    ]
    assert choose_default_hop(30 * DAY + 1) == DAY
    assert choose_default_hop(61 * DAY) == 2 * DAY


def test_edges_before_1970_and_across_a_clock_change() -> None:
    """Tiles are cut from 1970 UTC, so a day of 23 or 25 hours on the wall is nothing special."""
    window = Window("n", "count", "", DAY, 900_000_000, "int64")
    for at in (-1, -DAY - 7, 0, 1_711_846_800_000_000 - 1, 1_711_846_800_000_000):  # 2024-03-31 01:00 UTC
        edge = compute_edge_us(at, window)
        assert at - DAY < edge <= at - DAY + window.hop_us
        assert edge % window.hop_us == 0


def test_types() -> None:
    assert [infer_output_type("sum", kind) for kind in ("bool", "int32", "float32")] == ["int64", "int64", "float64"]
    assert infer_output_type("last", "time") == "list[time]"
    assert infer_output_type("count", "list[int64]") == "int64"
    for how, kind in [("sum", "string"), ("mean", "time"), ("min", "bytes"), ("last", "list[int64]"), ("median", "x")]:
        with pytest.raises(Invalid):
            infer_output_type(how, kind)


def test_windows_that_cannot_be() -> None:
    fine = Window("w", "last", "f", 60, 1, "list[float64]", 3)
    check_window(fine, "float64")
    check_window(Window("n", "count", "", 60, 1, "int64"))
    for change in ({"of": ""}, {"type": "float64"}, {"hop_us": 0}, {"hop_us": 61}, {"over_us": -1}, {"n": 0}):
        with pytest.raises(Invalid):
            check_window(replace(fine, **change), "float64")
    for change in ({"n": 1001}, {"over_us": 1001}, {"over_us": 1 << 62, "hop_us": 1 << 60}, {"how": "mode"}):
        with pytest.raises(Invalid):
            check_window(replace(fine, **change), "float64")
