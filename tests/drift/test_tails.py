"""A column that moved has a tail outside of what the reference had: that is drift, and no fault of the data."""

import numpy as np
import pytest

from falaj.drift.compare import compare
from falaj.drift.profile import profile_of
from falaj.drift.records import Finding, Rules
from falaj.drift.tally import Tally


@pytest.mark.parametrize(
    ("factor", "drifted", "broken"),
    [(1.0, False, False), (2.5, True, False), (1000.0, True, True)],
    ids=["as it was", "further away", "in metres"],
)
def test_out_of_range(factor: float, drifted: bool, broken: bool) -> None:
    draw = np.random.default_rng(3)
    profile = profile_of({"km": draw.exponential(8, 5000), "age": draw.normal(40, 9, 5000)})
    tally = Tally(profile)
    tally.add({"km": factor * draw.exponential(8, 4000), "age": draw.normal(40, 9, 4000)})
    alarms: list[Finding] = [one for one in compare(profile, tally, Rules()) if one.alarm and one.column == "km"]
    assert (any(one.what == "input" for one in alarms), any(one.what == "quality" for one in alarms)) == (
        drifted, broken,
    )  # fmt: skip


def test_a_sorted_reference_is_no_drift() -> None:
    """What lies last in a table is no sample of it."""
    draw = np.random.default_rng(5)
    day, x = np.sort(draw.normal(0, 1, 60_000)), draw.normal(0, 1, 60_000)
    profile = profile_of({"day": day, "x": x + day})
    tally = Tally(profile, seed=1)
    day = draw.normal(0, 1, 20_000)
    tally.add({"day": day, "x": draw.normal(0, 1, 20_000) + day})
    assert [one for one in compare(profile, tally, Rules()) if one.alarm] == []
