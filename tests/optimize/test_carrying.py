"""A smaller model keeps the profile of the one it was made from; what it answers is measured anew."""

from pathlib import Path

import numpy as np

from falaj.drift.profile_making import make_profile, to_columns
from falaj.drift.profiles import encode_profile, read_profile
from falaj.drift.records import PROFILE_FILE, ROLE_PREDICTION, DataProfile
from falaj.optimize.child_profile import build_child_profile
from falaj.optimize.dataset_rows import DatasetRows
from tests.infer import models

CHANCE = np.random.default_rng(4)
X = CHANCE.standard_normal((2000, 32)).astype(np.float32)


def profile(folder: Path, seed: int = 7, tensor: str = "y") -> DataProfile:
    y = models.mlp_of(X, seed=seed)
    found = make_profile(
        to_columns("x", X), {tensor: y}, y[:, 0] > 0, tensors={"x": tuple(to_columns("x", X))}, source="test"
    )  # fmt: skip
    folder.mkdir(exist_ok=True, parents=True)
    (folder / PROFILE_FILE).write_bytes(encode_profile(found))
    return found


def test_answers_are_the_childs_own(tmp_path: Path) -> None:
    before = profile(tmp_path / "parent")
    child = models.mlp(tmp_path / "child", seed=8) / "model.onnx"
    data, why = build_child_profile(
        str(tmp_path / "parent"), child, DatasetRows((X,), (models.mlp_of(X)[:, 0] > 0).astype(np.int64))
    )
    now = read_profile(data)
    assert why == ""
    assert now.axes == before.axes
    for axis, old, new in zip(now.axes, before.counts, now.counts, strict=True):
        assert (old == new) == (axis.role != ROLE_PREDICTION), axis.name
    assert before.quality.metrics["accuracy"] == 1.0
    assert now.quality.metrics["accuracy"] < 0.9


def test_without_rows_it_stays_and_without_a_fit_it_is_left_out(tmp_path: Path) -> None:
    before = profile(tmp_path / "parent")
    child = models.mlp(tmp_path / "child", seed=8) / "model.onnx"
    few = DatasetRows((X[:10],))
    assert read_profile(build_child_profile(str(tmp_path / "parent"), child, few)[0]) == before
    assert build_child_profile(str(tmp_path / "child"), child, None) == (b"", "")
    profile(tmp_path / "other", tensor="z")
    assert build_child_profile(str(tmp_path / "other"), child, None)[1].startswith("its parent's profile names z")
    (tmp_path / "other" / PROFILE_FILE).write_text("{}")
    assert "cannot be carried on" in build_child_profile(str(tmp_path / "other"), child, None)[1]
