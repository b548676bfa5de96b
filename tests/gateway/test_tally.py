"""What counts as an error of a revision."""

import pytest

from falaj.gateway.arm_tally import ArmTally
from falaj.serve.request_counts import latency_bucket


@pytest.mark.parametrize(
    ("status", "errors"), [(200, 0), (400, 1), (422, 1), (500, 1), (503, 1), (504, 1), (404, 0), (429, 0)]
)
def test_what_a_revision_did_not_answer(status: int, errors: int) -> None:
    tally = ArmTally("canary", 2)
    tally.done(0.001, status)
    assert (tally.requests, tally.errors) == (1, errors)


@pytest.mark.parametrize(
    "at_us", [0, 7, 8, 100, 127, 128, 143, 144, 1000, 2047, 2048, 30_001, 65_535, 65_536, 9_000_000]
)
def test_a_latency_is_counted_in_its_bucket(at_us: int) -> None:
    tally = ArmTally("main", 1)
    tally.done((at_us + 0.5) / 1e6, 200)
    tally.done((at_us + 0.5) / 1e6, 404)
    assert tally.latency_us == {latency_bucket(at_us): 2}
    assert tally.classes[2] == tally.classes[4] == 1
