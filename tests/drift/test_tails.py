"""A column that moved has a tail outside of what the reference had: that is drift, and no fault of the data."""

import numpy as np
import pytest

from falaj.drift.drift_tests import compare_tally
from falaj.drift.profiles import build_profile
from falaj.drift.records import DriftFinding, DriftRules
from falaj.drift.tally import DataTally


@pytest.mark.parametrize(
    ("factor", "drifted", "broken"),
    [(1.0, False, False), (2.5, True, False), (1000.0, True, True)],
    ids=["as it was", "further away", "in metres"],
)
def test_out_of_range(factor: float, drifted: bool, broken: bool) -> None:
    draw = np.random.default_rng(3)
    profile = build_profile({"km": draw.exponential(8, 5000), "age": draw.normal(40, 9, 5000)})
    tally = DataTally(profile)
    tally.add({"km": factor * draw.exponential(8, 4000), "age": draw.normal(40, 9, 4000)})
    alarms: list[DriftFinding] = [
        one for one in compare_tally(profile, tally, DriftRules()) if one.alarm and one.column == "km"
    ]
    assert (any(one.what == "input" for one in alarms), any(one.what == "quality" for one in alarms)) == (
        drifted, broken,
    )  # fmt: skip


def test_a_sorted_reference_is_no_drift() -> None:
    """What lies last in a table is no sample of it."""
    draw = np.random.default_rng(5)
    day, x = np.sort(draw.normal(0, 1, 60_000)), draw.normal(0, 1, 60_000)
    profile = build_profile({"day": day, "x": x + day})
    tally = DataTally(profile, seed=1)
    day = draw.normal(0, 1, 20_000)
    tally.add({"day": day, "x": draw.normal(0, 1, 20_000) + day})
    assert [one for one in compare_tally(profile, tally, DriftRules()) if one.alarm] == []
