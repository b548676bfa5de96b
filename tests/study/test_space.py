"""Spaces: what people write, the values it gives, and what is refused."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from falaj.core.errors import Invalid
from falaj.study.search_space import (
    SpaceAxis,
    count_grid_points,
    find_grid_point,
    read_space,
    to_flag,
    to_space_texts,
    to_variable_name,
)


def test_a_space_is_read_as_it_is_written() -> None:
    lr, width, depth, drop, hidden, act = read_space(
        (
            "lr=log:1e-5..1e-1",
            "width=64|128",
            "depth=int:2..8",
            "drop=float:0..0.5/0.25",
            "hidden=logint:8..64",
            "act=a|b",
        )
    )
    assert (lr.low, lr.high, lr.log, lr.whole) == (1e-5, 1e-1, True, False)
    assert width.choices == (64, 128)
    assert depth.values == (2, 3, 4, 5, 6, 7, 8)
    assert drop.values == (0.0, 0.25, 0.5)
    assert (hidden.log, hidden.whole) == (True, True)
    assert act.choices == ("a", "b")


@pytest.mark.parametrize(
    "text",
    [
        "lr", "lr=", "=1|2", "1r=1|2", "lr=0.1..1", "lr=log:0..1", "lr=log:-1..1", "lr=float:1..0", "lr=float:1..1",
        "lr=float:a..b", "lr=float:0..inf", "n=int:0.5..2", "n=int:1..9/0", "lr=float:0..1/2", "lr=log:1..9/2",
        "w=1||2", "w=1|1", "lr=maybe:1..2", "lr=uniform:3", "lr=float:nan..1",
    ],
)  # fmt: skip
def test_what_is_no_space_is_refused_with_an_example(text: str) -> None:
    if text == "n=int:1..9/0":
        assert read_space((text,))[0].values == tuple(range(1, 10))  # a step of 0 is none
        return
    with pytest.raises(Invalid) as caught:
        read_space((text,))
    assert caught.value.hint


def test_a_parameter_is_said_once() -> None:
    for texts in (("a=1|2", "a=3|4"), ("batch-size=1|2", "batch_size=3|4"), ("lr=1|2", "LR=3|4"), ()):
        with pytest.raises(Invalid):
            read_space(texts)


def test_a_file_says_the_same_as_flags() -> None:
    given: dict[str, Any] = {"lr": "log:1e-5..1e-1", "width": [64, 128]}
    assert to_space_texts(given) == ("lr=log:1e-5..1e-1", "width=64|128")
    assert to_space_texts("lr=log:1e-5..1e-1, width=64|128") == to_space_texts(given)
    with pytest.raises(Invalid, match="depends on others"):
        to_space_texts({"optimizer": {"adam": {"lr": "log:1e-5..1e-1"}}})


def test_a_grid_counts_every_point_once() -> None:
    axes = read_space(("a=1|2", "b=int:0..2", "c=float:0..1/0.5"))
    points = [tuple(find_grid_point(axes, number).values()) for number in range(count_grid_points(axes))]
    assert len(set(points)) == len(points) == 18
    for text in ("lr=log:1e-5..1e-1", "n=int:1..100000", "n=logint:1..100000000"):
        with pytest.raises(Invalid, match="cannot count"):
            count_grid_points(read_space((text,)))


def test_names_of_a_parameter() -> None:
    assert to_variable_name("batch-size") == "FALAJ_PARAM_BATCH_SIZE"
    assert to_flag("batch-size", 0.1) == ("--batch-size", "0.1")


_AXES = read_space(
    ("a=log:1e-5..1e-1", "b=int:-3..8", "c=float:0..1/0.1", "d=logint:1..1000", "e=x|y|z", "f=float:-1..1")
)


@settings(deadline=None)
@given(st.sampled_from(_AXES), st.floats(0, 1, exclude_max=True))
def test_every_part_of_the_way_is_a_value(axis: SpaceAxis, part: float) -> None:
    value = axis.at(part)
    if axis.choices:
        assert value in axis.choices
    else:
        assert not isinstance(value, str)
        assert axis.low <= value <= axis.high
        assert isinstance(value, int) == axis.whole
        assert axis.fit(value) == value
