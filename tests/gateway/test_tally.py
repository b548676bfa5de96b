"""What counts as an error of a revision."""

import pytest

from falaj.gateway.tally import Tally


@pytest.mark.parametrize(
    ("status", "errors"), [(200, 0), (400, 1), (422, 1), (500, 1), (503, 1), (504, 1), (404, 0), (429, 0)]
)
def test_what_a_revision_did_not_answer(status: int, errors: int) -> None:
    tally = Tally("canary", 2)
    tally.done(0.001, status)
    assert (tally.requests, tally.errors) == (1, errors)
