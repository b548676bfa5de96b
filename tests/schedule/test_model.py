"""Knobs as an installation says them."""

import pytest

from falaj.core.errors import Invalid
from falaj.schedule.model import SchedulerOptions


def test_knobs_are_named_and_numbered() -> None:
    assert SchedulerOptions.of({}) == SchedulerOptions()
    assert SchedulerOptions.of({"resize_gap_s": "7", "grow": "0"}) == SchedulerOptions(resize_gap_s=7, grow=False)


@pytest.mark.parametrize(
    ("said", "message"), [({"speed": "9"}, "no knob 'speed'"), ({"depth": "many"}, "depth is set to 'many'")]
)
def test_a_strange_knob_is_refused(said: dict[str, str], message: str) -> None:
    with pytest.raises(Invalid, match=message):
        SchedulerOptions.of(said)
