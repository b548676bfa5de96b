"""What returns every day or week is no drift, and what is new is."""

import numpy as np

from falaj.drift.profiles import build_profile
from falaj.drift.records import DriftRules
from falaj.drift.seasonality import DAY_S, WEEK_S, PastWindow, compare_seasonal, merge_tallies, select_seasonal
from falaj.drift.tally import DataTally

HOUR_S = 3600.0


def hours(count: int, rows: int = 400) -> list[PastWindow]:
    return [PastWindow(at * HOUR_S, (at + 1) * HOUR_S, rows) for at in range(count)]


def test_which_windows_serve() -> None:
    past, now = hours(24 * 15), (24 * 15 * HOUR_S, (24 * 15 + 1) * HOUR_S)
    assert select_seasonal(past, now, season_s=WEEK_S) == (24, 24 * 8)
    assert select_seasonal(past, now, season_s=DAY_S) == tuple(24 * at for at in range(11, 15))  # The last four only.
    assert select_seasonal(past, now, season_s=WEEK_S, least_rows=801) == ()
    assert select_seasonal(past, now, season_s=0.0) == ()
    assert select_seasonal(past, (now[0], now[0] + 2 * WEEK_S)) == ()
    past[24] = past[24]._replace(spoiled=True)
    assert select_seasonal(past, now, season_s=WEEK_S, least_rows=400) == (24 * 8,)


def test_windows_of_other_lengths_serve_where_they_overlap() -> None:
    now = (WEEK_S, WEEK_S + HOUR_S)
    cases = [
        (PastWindow(0.0, 2 * HOUR_S, 900), True), (PastWindow(-0.4 * HOUR_S, 0.6 * HOUR_S, 900), True),
        (PastWindow(0.6 * HOUR_S, 1.6 * HOUR_S, 900), False), (PastWindow(5.0, 5.0, 900), False),
        (PastWindow(WEEK_S, WEEK_S + HOUR_S, 900), False),
    ]  # fmt: skip
    for moment, serves in cases:
        assert bool(select_seasonal([moment], now)) == serves


def test_a_pattern_that_returns_is_no_alarm_and_a_new_one_is() -> None:
    draw = np.random.default_rng(3)
    profile = build_profile({"load": draw.normal(size=8_000), "size": draw.normal(size=8_000)})

    def window(load: float, size: float = 0.0) -> DataTally:
        tally = DataTally(profile, seed=0)
        tally.add({"load": draw.normal(load, 1, 2_000), "size": draw.normal(size, 1, 2_000)})
        return tally

    nights = merge_tallies(window(1.5) for _ in range(3))
    assert nights is not None
    assert merge_tallies([]) is None
    for tally, columns in (
        (window(1.5), set()), (window(1.5, 0.5), {"size"}), (window(0.0), set()), (window(3.0), {"load"}),
    ):  # fmt: skip
        found = compare_seasonal(profile, tally, DriftRules(), nights)
        assert {one.column for one in found if one.alarm and one.what == "input"} == columns
    explained = compare_seasonal(profile, window(1.5), DriftRules(), nights)
    assert any("as at this time in seasons before" in one.said for one in explained)
    assert any(one.alarm for one in compare_seasonal(profile, window(1.5), DriftRules(), None))
