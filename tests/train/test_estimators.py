"""Estimators of scikit-learn as parts of jobs: what they read, how they are measured, how they are written."""

import json
import os
import subprocess
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.feather
import pyarrow.parquet
import pytest
import torch
from sklearn.datasets import load_breast_cancer, load_diabetes
from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from falaj import worker
from falaj.content.model_formats import inspect_model
from falaj.core.errors import Invalid, NotFound
from falaj.drift.profiles import read_profile
from falaj.drift.records import PROFILE_FILE
from falaj.train import estimators
from falaj.train.estimators import count_cores, fit_estimator, read_rows, split_rows, use_cores, write_files
from falaj.train.profiles import write_profile
from tests.servers.peers import peer
from tests.servers.process import Missing

WRITERS = (
    "skl2onnx==1.20.0", "onnxruntime==1.31.1", "skops==0.16.0", "scikit-learn==1.9.1", "pyarrow==26.0.1",
    "numpy==2.4.6",
)  # fmt: skip


def table() -> pa.Table:
    rng = np.random.default_rng(0)
    columns = {"a": rng.normal(size=20_000).astype(np.float32), "b": np.arange(20_000, dtype=np.int16)}
    return pa.table(columns | {"y": rng.integers(0, 2, 20_000)})


@pytest.mark.parametrize("form", ["parquet", "csv", "arrow", "npz", "folder"])
def test_tables_of_every_form_are_the_same_matrix(tmp_path: Path, form: str) -> None:
    given, path = table(), tmp_path / f"rows.{form}"
    if form == "parquet":
        pa.parquet.write_table(given, path)
    elif form == "csv":
        pa.csv.write_csv(given, path)
    elif form == "arrow":
        pa.feather.write_feather(given, str(path), compression="uncompressed")
    elif form == "npz":
        np.savez(path, **{name: given.column(name).to_numpy() for name in given.column_names})
    else:
        path.mkdir()
        pa.parquet.write_table(given.slice(0, 9000), path / "part-0.parquet")
        pa.parquet.write_table(given.slice(9000), path / "part-1.parquet")
    rows = read_rows(path, "y")
    assert rows.columns == ("a", "b")
    assert rows.x.dtype == (np.float64 if form == "csv" else np.float32)
    assert np.allclose(rows.x[:, 0], given.column("a").to_numpy())
    assert (rows.x[:, 1] == np.arange(20_000)).all()
    assert (rows.y == given.column("y").to_numpy()).all()


def test_a_matrix_stays_where_it_is() -> None:
    x, y = np.ones((10, 3)), np.zeros(10)
    assert read_rows((x, y)).x is x
    assert np.shares_memory(read_rows({"x": x, "y": y}, "y").x, x)


def test_bad_tables_get_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="no table"):
        read_rows(tmp_path / "nothing")
    with pytest.raises(Invalid, match="no column 'z'"):
        read_rows(table(), "z")
    with pytest.raises(Invalid, match="column 'a' is string"):
        read_rows(pa.table({"a": ["x"], "y": [1]}), "y")
    with pytest.raises(Invalid, match="no part of the rows"):
        split_rows(read_rows(table(), "y"), 1.5, 0)


def test_a_part_kept_apart_is_the_same_for_the_same_seed() -> None:
    rows = read_rows(table(), "y")
    (rest, apart), (_, again), (_, other) = (split_rows(rows, 0.25, seed) for seed in (1, 1, 2))
    assert (len(rest.x), len(apart.x)) == (15_000, 5_000)
    assert set(rest.x[:, 1]).isdisjoint(apart.x[:, 1])
    assert (apart.x == again.x).all()
    assert (apart.x != other.x).any()


def test_every_core_in_the_outermost_that_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    inner = make_pipeline(StandardScaler(), RandomForestClassifier())
    use_cores(inner)
    assert (count_cores(), inner.get_params()["randomforestclassifier__n_jobs"]) == (3, 3)
    outer = GridSearchCV(RandomForestClassifier(), {})
    use_cores(outer)
    assert (outer.n_jobs, outer.estimator.n_jobs) == (3, None)
    said = RandomForestClassifier(n_jobs=1)
    use_cores(said)
    assert said.n_jobs == 1
    use_cores(plain := LogisticRegression())
    assert plain.n_jobs is None


def test_a_job_reads_measures_tells_and_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ATTEMPT", "OUTBOX", "INPUT_DATA", "OUTPUT_MODEL"):
        monkeypatch.setenv(f"FALAJ_{name}", str(tmp_path / name.lower()))
    worker.attempt.cache_clear()
    try:
        (tmp_path / "input_data").mkdir()
        pa.parquet.write_table(table(), tmp_path / "input_data" / "rows.parquet")
        made = fit_estimator(HistGradientBoostingClassifier(max_iter=3), "data", target="y", valid=0.2)
        with pytest.raises(Invalid, match="no output 'other'"):
            fit_estimator(Ridge(), "data", target="y", output="other")
    finally:
        worker.attempt.cache_clear()
    told = [json.loads(line) for path in (tmp_path / "outbox").iterdir() for line in path.read_text().splitlines()]
    assert {fact["key"] for fact in told if fact["kind"] == "metric"} == {"accuracy", "auc", "log_loss"}
    assert [fact["step"] for fact in told if fact["kind"] == "progress"] == [0, 1]
    assert made.folder == tmp_path / "output_model"
    assert not inspect_model(made.folder).code_bearing
    nodes = made.model._predictors[2][0].nodes
    assert (np.load(made.folder / "arrays.npz")["_predictors.2.0.nodes"] == nodes).all()


def test_without_other_packages_arrays_and_words_are_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(estimators, "find_spec", lambda name: None)
    x, y = load_breast_cancer(return_X_y=True)
    made = fit_estimator(make_pipeline(StandardScaler(), RandomForestClassifier(4)), (x, y), valid=0.2)
    assert made.metrics["accuracy"] > 0.85
    seen = inspect_model(made.folder)
    assert (seen.format, seen.code_bearing) == ("numpy", False)
    arrays = np.load(made.folder / "arrays.npz", allow_pickle=False)
    assert (arrays["steps.0.1.mean_"] == made.model[0].mean_).all()
    assert (arrays["steps.1.1.estimators_.3.tree_.values"] == made.model[1].estimators_[3].tree_.value).all()
    x, y = load_diabetes(return_X_y=True)
    apart = fit_estimator(Ridge(), (x[:300], y[:300]), valid=(x[300:], y[300:]))
    assert set(apart.metrics) == {"r2", "rmse", "mae"}
    made = fit_estimator(Ridge(), (x, y), valid=None, output="other")
    assert set(made.metrics) == {"train_r2", "train_rmse", "train_mae"}
    assert (np.load(made.folder / "arrays.npz")["coef_"] == made.model.coef_).all()
    with pytest.raises(Invalid, match="only boosters"):
        fit_estimator(Ridge(), (x, y), chunk=3)


WRITE = """
import sys, pathlib, numpy as np
from sklearn.datasets import load_breast_cancer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from falaj.train.estimators import fit_estimator, write_estimator, EstimatorRows
assert "torch" not in sys.modules
x, y = load_breast_cancer(return_X_y=True)
x = x.astype(np.float32)
made = fit_estimator(make_pipeline(StandardScaler(), LogisticRegression()), (x, y), valid=0.2)
import onnxruntime
session = onnxruntime.InferenceSession("model/model.onnx")
from falaj.drift.profiles import read_profile
profile = read_profile(pathlib.Path("model/falaj.profile.json").read_bytes())
assert profile.quality.rows == 113
assert set(profile.tensors) == {one.name for one in (*session.get_inputs(), *session.get_outputs())}
said, chances = session.run(None, {session.get_inputs()[0].name: x})
assert (said == made.model.predict(x)).all() and np.allclose(chances, made.model.predict_proba(x), atol=1e-4)
sys.modules["skl2onnx"] = None
import falaj.train.estimators as ours
ours.find_spec = lambda name: name == "skops" or None
pathlib.Path("other").mkdir()
assert write_estimator(made.model, pathlib.Path("other"), EstimatorRows(x, y), dict) == "skops"
import skops.io
assert (skops.io.load("other/model.skops").predict(x) == said).all()
"""


@pytest.mark.timeout(600)  # the first installs them
def test_onnx_and_skops_where_they_are_installed(tmp_path: Path) -> None:
    try:
        python = peer("estimators", *WRITERS) / "python"
    except Missing as missing:
        if os.environ.get("CI"):
            pytest.fail(str(missing), pytrace=False)
        pytest.skip(str(missing))
    env = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2] / "src")}
    done = subprocess.run([python, "-c", WRITE], cwd=tmp_path, env=env, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    for folder, form in (("model", "onnx"), ("other", "skops")):
        seen = inspect_model(tmp_path / folder)
        assert (seen.format, seen.code_bearing) == (form, False), seen


def test_files_are_whole_and_on_the_disk_before_they_have_their_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a").write_bytes(b"before")
    synced: list[int] = []
    real = os.fsync

    def fsync(file: int) -> None:
        assert (tmp_path / "a").read_bytes() == b"before"
        real(file)
        synced.append(os.fstat(file).st_ino)

    monkeypatch.setattr(os, "fsync", fsync)
    write_files(tmp_path, {"a": b"1" * 100_000, "b": b"2", "c": b""})
    assert {one.name: one.stat().st_size for one in tmp_path.iterdir()} == {"a": 100_000, "b": 1, "c": 0}
    assert sorted(synced) == sorted(one.stat().st_ino for one in tmp_path.iterdir())

    def fails(file: int) -> None:
        raise OSError("the disk is gone")

    monkeypatch.setattr(os, "fsync", fails)
    with pytest.raises(OSError, match="gone"):
        write_files(tmp_path, {"a": b"3", "d": b"4"})
    assert (tmp_path / "a").stat().st_size == 100_000
    assert not (tmp_path / "d").exists()


def test_a_model_comes_with_its_profile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    x, y = load_breast_cancer(return_X_y=True)
    columns = {f"f{at}": x[:, at] for at in range(30)}
    forest = RandomForestClassifier(20, random_state=0)
    made = fit_estimator(forest, columns | {"sick": np.where(y, "no", "yes")}, target="sick", valid=0.4)
    profile = read_profile((made.folder / PROFILE_FILE).read_bytes())
    names = [axis.name for axis in profile.axes]
    assert names == [*columns, "label", "probabilities[0]", "probabilities[1]", "sick"]
    assert profile.tensors["X"] == tuple(columns)
    assert (profile.rows, profile.quality.rows, profile.quality.task) == (342, 227, "binary")
    wanted = {name: made.metrics[name] for name in ("accuracy", "auc", "log_loss")}
    assert {name: profile.quality.metrics[name] for name in wanted} == pytest.approx(wanted, rel=1e-6)
    assert max(axis.weight for axis in profile.axes[:30]) == 1.0
    assert min(axis.weight for axis in profile.axes[:30]) < 0.2
    assert json.loads((made.folder / "model.json").read_text())["target"] == "sick"


def test_numbers_and_rows_without_others_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    x, y = load_diabetes(return_X_y=True)
    apart = read_profile((fit_estimator(Ridge(), (x, y), valid=0.3).folder / PROFILE_FILE).read_bytes())
    assert (apart.quality.task, apart.axes[-2].name, apart.axes[0].name) == ("regression", "variable", "X[0]")
    # Of answers to the very rows that it learnt from nothing is said.
    alone = read_profile((fit_estimator(Ridge(), (x, y), output="alone").folder / PROFILE_FILE).read_bytes())
    assert {axis.role for axis in alone.axes} == {"input"}
    assert (alone.quality.task, alone.source) == ("", "the rows it was trained on")


def test_a_profile_never_makes_a_training_fail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for where, inputs in {
        "odd": {"x": np.array([[1, None], [object(), 2]], object)},
        "empty": {"x": np.zeros((0, 3))},
        "none": {},
        "complex": {"x": np.zeros(3, complex)},
    }.items():
        assert not write_profile(where, inputs)
        assert not (tmp_path / where / PROFILE_FILE).exists()
    wide = np.zeros((50, 3000), np.float32)
    assert write_profile("wide", {"x": wide, "t": torch.zeros(50, 2)}, {"y": torch.rand(50, 1)}, np.arange(50) % 2)
    profile = read_profile((tmp_path / "wide" / PROFILE_FILE).read_bytes())
    assert [axis.name for axis in profile.axes] == ["x.mean", "x.std", "t[0]", "t[1]", "y", "label"]
