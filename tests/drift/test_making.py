"""The profile of a model: tensors as columns, answers to held-out rows, and what they were worth."""

from typing import Any

import numpy as np
import pytest

from falaj.core.errors import Invalid
from falaj.drift.performance_estimate import compare_estimates, list_score_axes
from falaj.drift.profile_making import find_score_output, judge_answers, make_profile, to_columns
from falaj.drift.profiles import encode_profile, read_profile
from falaj.drift.records import (
    KIND_CATEGORY,
    ROLE_LABEL,
    ROLE_PREDICTION,
    TASK_BINARY,
    TASK_CLASSES,
    TASK_REGRESSION,
    DriftRules,
)
from falaj.drift.tally import DataTally

CHANCE = np.random.default_rng(11)


def test_tensors_become_columns_by_one_rule() -> None:
    assert list(to_columns("x", np.zeros((4, 1)))) == ["x"]
    assert list(to_columns("x", np.zeros(4), ["age"])) == ["age"]
    assert list(to_columns("x", np.zeros((4, 2)))) == ["x[0]", "x[1]"]
    assert list(to_columns("x", np.zeros((4, 2)), ["age", "city"])) == ["age", "city"]
    assert list(to_columns("image", np.zeros((4, 3, 32, 32)))) == ["image.mean", "image.std"]
    assert list(to_columns("p", np.eye(100), max_columns=32)) == ["p.mean", "p.std"]
    assert list(to_columns("x", np.zeros((0, 2)))) == ["x[0]", "x[1]"]


@pytest.mark.parametrize("width", [2, 3, 50])
def test_inputs_of_all_rows_and_answers_of_those_held_out(width: int) -> None:
    x, held = CHANCE.normal(size=(3000, 2)), CHANCE.normal(size=(1200, 2))
    city = np.where(np.arange(3000) % 3 == 0, "Al Ain", "Dubai")
    scores = CHANCE.dirichlet(np.full(width, 0.3), 1200)
    truth = (scores.cumsum(1) < CHANCE.random((1200, 1))).sum(1)
    columns: dict[str, Any] = {"a": x[:, 0], "b": x[:, 1], "city": city}
    profile = make_profile(
        columns, {"label": scores.argmax(1), "p": scores}, truth, segment="city", target="y", source="test",
        held_out_columns={"a": held[:, 0], "b": held[:, 1], "city": city[:1200]}, tensors={"x": ("a", "b")},
    )  # fmt: skip
    assert read_profile(encode_profile(profile)) == profile
    roles = {axis.name: axis.role for axis in profile.axes}
    assert (roles["label"], roles["y"], roles["a"]) == (ROLE_PREDICTION, ROLE_LABEL, "input")
    assert profile.rows == 3000
    sizes = {axis.name: sum(counts) for axis, counts in zip(profile.axes, profile.counts, strict=True)}
    assert (sizes["a"], sizes["label"], sizes["y"]) == (3000, 1200, 1200)
    assert profile.segments == ("Al Ain", "Dubai")
    assert [sum(part[0]) for part in profile.by_segment] == [1000, 2000, 0]
    assert profile.quality.output == "p"
    assert profile.quality.task == (TASK_BINARY if width == 2 else TASK_CLASSES)
    assert ("prediction" in roles) == (width == 3)
    assert [len(profile.tensors[name]) for name in ("x", "label", "p")] == [2, 1, width if width < 50 else 2]
    if width == 50:
        assert not profile.quality.scores
        return
    assert len(list_score_axes(profile)) == {2: 1, 3: 3}[width]
    tally = DataTally(profile, seed=0)
    tally.add({**to_columns("p", scores), "city": city[:1200]})
    found = {(one.segment, one.measure): one for one in compare_estimates(profile, tally, DriftRules())}
    accuracy = (scores.argmax(1) == truth).mean()
    assert found["", "accuracy"].value == pytest.approx(accuracy, abs=0.03)
    assert not any(one.alarm for one in found.values())


def test_answers_without_truth_and_truth_of_every_kind() -> None:
    x = CHANCE.normal(size=500)
    bare = make_profile({"x": x}, {"y": x[:, None]})
    assert (bare.quality.task, [axis.name for axis in bare.axes]) == ("", ["x", "y"])
    assert bare.tensors == {"y": ("y",)}
    assert make_profile({"x": x}, {}).axes == make_profile({"x": x}, {}, np.full(500, np.nan)).axes
    same = make_profile({"y": x}, {"y": x})
    assert [axis.name for axis in same.axes] == ["y", "y said"]
    assert judge_answers(x * 2, x).task == TASK_REGRESSION
    logits = judge_answers(x > 0, 9 * x)
    assert (logits.task, logits.threshold, logits.metrics["accuracy"]) == (TASK_BINARY, 0.0, 1.0)
    two = judge_answers(x > 0, np.stack([-5 * x, 5 * x], 1))
    assert (two.metrics["accuracy"], two.scores) == (1.0, ())
    texts = judge_answers(np.where(x > 0, "yes", "no").astype(object), 1 / (1 + np.exp(-x)))
    assert (texts.task, texts.metrics["accuracy"]) == (TASK_BINARY, 1.0)
    with pytest.raises(Invalid, match="several dimensions"):
        judge_answers(x, np.zeros((500, 2, 2)))
    assert find_score_output({"label": np.zeros(3, np.int64), "p": np.zeros((3, 4))}) == "p"
    label = make_profile({"x": x}, {"label": (x > 0).astype(np.int64)}, (x > 0).astype(int))
    assert label.axes[1].kind == KIND_CATEGORY
    assert label.quality.metrics["accuracy"] == 1.0
