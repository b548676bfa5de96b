"""Scales: round marks, short numbers, Gulf time; whatever the values are."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from falaj.console.plots.axis_scales import (
    AxisScale,
    format_period,
    format_short,
    list_round_values,
    make_scale,
    to_drawable_number,
)
from tests.console.plots_gallery import NOON, reader

EN = reader()


@pytest.mark.parametrize(
    ("low", "high", "wanted", "marks"),
    [
        (0, 10, 5, [0, 2, 4, 6, 8, 10]),
        (0, 1, 5, [0, 0.2, 0.4, 0.6, 0.8, 1]),
        (-3, 7, 5, [-2, 0, 2, 4, 6]),
        (0.12, 0.19, 4, [0.12, 0.14, 0.16, 0.18]),
        (1000, 5000, 4, [1000, 2000, 3000, 4000, 5000]),
        (0, 2.5, 1, [0, 2.5]),
    ],
)
def test_marks_are_round(low: float, high: float, wanted: int, marks: list[float]) -> None:
    assert list_round_values(low, high, wanted) == pytest.approx(marks)


@pytest.mark.parametrize(
    ("value", "step", "top", "written"),
    [
        (0, 0, 0, "0"),
        (0.5, 0, 0, "0.5"),
        (1234, 0, 0, "1,234"),
        (12840, 0, 0, "12.84k"),
        (2000, 2000, 10000, "2k"),
        (3.14159, 0, 0, "3.142"),
        (0.25, 0.25, 1, "0.25"),
        (1.5e9, 0, 0, "1.5G"),
        (-20, 10, 40, "-20"),
        (1e-7, 0, 0, "1e-7"),
        (2.5e20, 0, 0, "2.5e20"),
        (1e300, 0, 0, "1e300"),
    ],
)
def test_numbers_are_short(value: float, step: float, top: float, written: str) -> None:
    assert format_short(EN, value, step, top) == written


def test_digits_are_the_readers() -> None:
    assert format_short(reader("ar", indic=True), 12.5) == "١٢٫٥"  # noqa: RUF001
    assert format_short(reader("ar"), 12.5) == "12.5"


def test_days_begin_at_midnight_in_the_gulf() -> None:
    day = AxisScale(NOON, NOON + 4 * 86400, time=True)
    assert [(mark + 4 * 3600) % 86400 for mark in day.ticks(4)] == [0] * len(day.ticks(4))
    assert day.label(EN, day.ticks(4)[0]) == "22/09"
    assert format_period(EN, day) == "21 Sep 2026, 18:13 \u2013 25 Sep 2026, 18:13"
    assert format_period(EN, AxisScale(NOON, NOON + 3600, time=True)) == "21 Sep 2026, 18:13 \u2013 19:13"


@pytest.mark.parametrize(
    ("low", "high", "marks"), [(1, 1000, [1, 10, 100, 1000]), (1e-9, 1, [1e-9, 1e-7, 1e-5, 1e-3, 1e-1])]
)
def test_powers_of_ten(low: float, high: float, marks: list[float]) -> None:
    assert AxisScale(low, high, log=True).ticks() == pytest.approx(marks)


@settings(deadline=None)
@given(st.lists(st.floats() | st.none(), max_size=20), st.booleans(), st.booleans(), st.booleans())
def test_every_value_has_a_place(values: list[float | None], log: bool, time: bool, rounded: bool) -> None:
    made = make_scale(values, log=log, time=time and not log, rounded=rounded)
    assert made.low < made.high
    marks = made.ticks()
    assert len(marks) <= 24
    for mark in marks:
        assert -0.001 <= made.at(mark) <= 1.001
        assert len(made.label(EN, mark, marks)) <= 16
    for value in map(to_drawable_number, values):
        if value is not None and (value > 1e-300 or not log):
            assert -1e-6 <= made.at(value) <= 1 + 1e-6


@settings(deadline=None)
@given(st.floats(-1e300, 1e300))
def test_any_number_is_written_and_close(value: float) -> None:
    written = format_short(EN, value)
    assert len(written) <= 12
    units = {"k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
    read = float(written.rstrip("kMGT").replace(",", "")) * units.get(written[-1], 1)
    assert math.isclose(read, value, rel_tol=0.006)
