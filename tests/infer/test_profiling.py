"""A model over a dataset gives a profile that the server can count by, and that says what its answers were worth."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from falaj import worker
from falaj.core.errors import Invalid
from falaj.drift.performance_estimate import compare_estimates
from falaj.drift.profiles import read_profile
from falaj.drift.records import KIND_CATEGORY, PROFILE_FILE, TASK_BINARY, DriftRules
from falaj.infer import profiling
from falaj.infer.profiling import ProfileRequest, profile_model, run_profiling_job
from falaj.infer.records import CountingConfig, ModelConfig
from falaj.infer.row_counting import RowCounter, read_model_profile
from falaj.infer.runtimes import load_runtime
from falaj.train.estimators import fit_estimator
from tests.infer import models

ROWS = 3000


@pytest.fixture(autouse=True)
def _own_attempt() -> Iterator[None]:
    """What one test says of its attempt, no other hears."""
    worker.attempt.cache_clear()
    yield
    worker.attempt.cache_clear()


@pytest.fixture(scope="module")
def ground(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Any]:
    """A model, rows for it with their truth, one column of whole numbers, and which rows were held out."""
    home = tmp_path_factory.mktemp("ground")
    chance = np.random.default_rng(5)
    x = chance.standard_normal((ROWS, 32)).astype(np.float32)
    x[:, 31] = chance.integers(0, 3, ROWS)
    truth = models.mlp_of(x)[:, 0] + chance.normal(0, 0.3, ROWS) > 0
    columns: dict[str, Any] = {f"f{at:02d}": x[:, at] for at in range(31)} | {"city": x[:, 31].astype(np.int64)}
    columns |= {"y_true": truth, "split": np.where(np.arange(ROWS) % 3 == 0, "test", "train")}
    (home / "data").mkdir()
    pq.write_table(pa.table(columns | {"note": ["text"] * ROWS}), home / "data" / "rows.parquet")
    return models.mlp(home / "model"), home / "data", x


def config(folder: Path) -> ModelConfig:
    return ModelConfig("model", "1", str(folder))


def test_a_job_writes_a_profile_that_the_server_counts_by(
    ground: tuple[Path, Path, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, data, x = ground
    known = {"INPUT_MODEL": model, "INPUT_DATA": data, "OUTPUT_PROFILE": tmp_path / "out"}
    for name, value in (known | {"PARAM_TARGET": "y_true", "PARAM_SEGMENT": "city"}).items():
        monkeypatch.setenv(f"FALAJ_{name}", str(value))
    assert run_profiling_job() == 0
    profile = read_profile((tmp_path / "out" / PROFILE_FILE).read_bytes())
    assert profile.tensors["x"][::31] == ("f00", "city")
    kinds = {axis.name: axis.kind for axis in profile.axes}
    assert (kinds["city"], "note" in kinds, "split" in kinds) == (KIND_CATEGORY, False, False)
    assert (profile.rows, profile.segments) == (ROWS, ("0", "1", "2"))
    # The third that was held out is what it was judged on; scores are no chances here, and split at nought.
    assert (profile.quality.task, profile.quality.rows, profile.quality.threshold) == (TASK_BINARY, ROWS // 3, 0.0)
    assert profile.quality.metrics["accuracy"] > 0.7
    runtime = load_runtime(config(model))
    watching = RowCounter(profile, runtime.inputs, runtime.outputs, CountingConfig(), batches=True)
    for start in range(0, ROWS, 100):
        given = [x[start : start + 100]]
        watching.note(given, runtime.run(given, {}))
    runtime.close()
    tally = watching.take()
    assert (tally.rows, tally.odd) == (ROWS, 0)
    for at, axis in enumerate(profile.axes):
        if axis.role == "input":
            assert np.abs(tally.of(at) - np.asarray(profile.counts[at])).sum() <= 4, axis.name


def test_without_held_out_rows_it_says_so(ground: tuple[Path, Path, Any], tmp_path: Path) -> None:
    model, _, x = ground
    np.save(tmp_path / "x.npy", x)
    bare = profile_model(config(model), str(tmp_path / "x.npy"), ProfileRequest(source="dataset:fraud/x@v1"))
    assert bare.tensors["x"][:2] == ("x[0]", "x[1]")
    assert (bare.quality.task, bare.source) == ("", "dataset:fraud/x@v1, all rows")


def test_of_many_rows_some_are_looked_at(ground: tuple[Path, Path, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    model, data, _ = ground
    monkeypatch.setattr(profiling, "MAX_PROFILE_ROWS", 1200)
    found = profile_model(config(model), str(data), ProfileRequest("y_true"))
    assert found.rows == 1200
    assert 300 < found.quality.rows < 500


def test_the_target_and_order_that_the_model_tells(ground: tuple[Path, Path, Any], tmp_path: Path) -> None:
    _, data, x = ground
    model = models.mlp(tmp_path / "model")
    names = [*(f"f{at:02d}" for at in range(30, -1, -1)), "city"]
    (model / "model.json").write_text(json.dumps({"target": "y_true"}))
    sheet = {"runtime": "onnx", "file": "model.onnx", "parameters": {"features.order": ",".join(names)}}
    (model / "falaj.json").write_text(json.dumps(sheet))
    found = profile_model(config(model), str(data), ProfileRequest())
    assert found.tensors["x"] == tuple(names)
    assert found.quality.rows == ROWS // 3
    del x


def test_what_does_not_fit_is_said(
    ground: tuple[Path, Path, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    model, data, _ = ground
    with pytest.raises(Invalid, match="no column 'z'"):
        profile_model(config(model), str(data), ProfileRequest("z"))
    pq.write_table(pa.table({"a": [1.0], "b": [2.0]}), tmp_path / "few.parquet")
    with pytest.raises(Invalid, match="2 columns for 'x', which takes 32"):
        profile_model(config(model), str(tmp_path / "few.parquet"), ProfileRequest())
    monkeypatch.delenv("FALAJ_INPUT_MODEL", raising=False)
    assert run_profiling_job() == 2
    assert "FALAJ_INPUT_MODEL" in capsys.readouterr().err


def test_what_was_trained_is_served_and_foreseen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the rows of a training to an alarm without labels: one profile goes all the way."""
    lightgbm = pytest.importorskip("lightgbm")
    monkeypatch.chdir(tmp_path)
    chance = np.random.default_rng(0)
    x = chance.normal(size=(8000, 3))
    truth = (2 * x[:, 0] + x[:, 1] + chance.normal(0, 0.7, 8000) > 0).astype(int)
    table = {"a": x[:, 0], "b": x[:, 1], "c": x[:, 2], "paid": truth}
    model = lightgbm.LGBMClassifier(n_estimators=10, verbose=-1)
    made = fit_estimator(model, table, target="paid", valid=0.4)
    told = config(made.folder.resolve())
    profile, runtime = read_model_profile(told), load_runtime(told)
    assert profile is not None
    for spread, alarm in ((1.0, False), (0.1, True)):
        watching = RowCounter(profile, runtime.inputs, runtime.outputs, CountingConfig(), batches=True)
        now = chance.normal(size=(3000, 3)) * [spread, 1, 1]
        for start in range(0, 3000, 100):
            given = [now[start : start + 100]]
            watching.note(given, runtime.run(given, {}))
        found = compare_estimates(profile, watching.take(), DriftRules())
        assert [one.measure for one in found] == ["accuracy", "auc", "f1"]
        assert {one.alarm for one in found} == {alarm}
    runtime.close()
