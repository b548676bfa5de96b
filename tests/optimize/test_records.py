"""Plans are read strictly: what is wrong is said before anything is built."""

import pytest

from falaj.core.errors import Invalid
from falaj.optimize.__main__ import read_plan
from falaj.optimize.records import OptimizePlan, parse_plan

GOOD = {"model": "m", "out": "o"}


def test_a_plan_is_read_from_plain_values() -> None:
    assert parse_plan({**GOOD, "methods": ["prune"], "max_loss": 0}) == OptimizePlan(
        "m", "o", methods=("prune",), max_loss=0
    )


@pytest.mark.parametrize(
    "wrong",
    [
        {"methods": ["magic"]}, {"aim": "tpu"}, {"max_loss": 2}, {"max_loss": "0.5%"}, {"threads": 0}, {"seed": "x"},
        {"share": 1}, {"width": 0}, {"unknown": 1}, {"target": "label"}, {"rounds": 10**9},
    ],
)  # fmt: skip
def test_what_is_wrong_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(Invalid):
        parse_plan({**GOOD, **wrong})


@pytest.mark.parametrize("text", ["{", "[1]", "/nowhere/plan.json", '{"model": "m"}', "{" * 10_000])
def test_what_is_no_plan_is_refused(text: str) -> None:
    with pytest.raises(Invalid):
        read_plan(text)


def test_folders_may_be_variables_of_the_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FALAJ_INPUT_PARENT", "/in/parent")
    assert read_plan('{"model": "$FALAJ_INPUT_PARENT", "out": "o"}').model == "/in/parent"
