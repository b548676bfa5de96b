"""Boosters in chunks: killed, asked to stop, with a broken checkpoint, they end with the very bytes of an easy life."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from falaj import worker
from falaj.content.model_formats import inspect_model
from falaj.core.errors import Invalid
from falaj.train.boosters import Boosting, plan_boosting, train_booster
from falaj.train.estimators import EstimatorRows, FittedEstimator, fit_estimator

LIGHT = {"objective": "binary", "num_leaves": 7, "bagging_fraction": 0.7, "bagging_freq": 1, "feature_fraction": 0.6}
EXTREME = {"objective": "binary:logistic", "max_depth": 3, "subsample": 0.7, "colsample_bytree": 0.6}
PLANS = [
    ("lightgbm", LIGHT),
    ("lightgbm", LIGHT | {"bagging_freq": 3, "feature_fraction_bynode": 0.5, "extra_trees": True}),
    ("lightgbm", {"objective": "regression", "subsample": 0.5, "subsample_freq": 2, "num_leaves": 7}),
    ("xgboost", EXTREME),
    ("xgboost", EXTREME | {"colsample_bylevel": 0.7, "colsample_bynode": 0.7, "eval_metric": ["auc", "logloss"]}),
    ("xgboost", EXTREME | {"tree_method": "exact"}),
    ("xgboost", EXTREME | {"tree_method": "approx", "grow_policy": "lossguide", "max_leaves": 6}),
    ("xgboost", EXTREME | {"objective": "reg:squarederror", "num_parallel_tree": 2}),
]
SCRIPT = """
import sys, json, numpy as np
from falaj.train.boosters import Boosting
from falaj.train.estimators import fit_estimator
rng = np.random.default_rng(0)
x = rng.normal(size=(600, 6))
plan = json.loads(sys.argv[1])
fit_estimator(Boosting(**plan, save_s=0), (x, (x[:, 0] * x[:, 1] > 0).astype(int)), valid=0.2)
assert "torch" not in sys.modules
"""


def rows(number: int = 600) -> EstimatorRows:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(number, 6))
    return EstimatorRows(x, (x[:, 0] * x[:, 1] + 0.5 * rng.normal(size=number) > 0).astype(np.int64))


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """This process as an attempt with a folder of checkpoints."""
    monkeypatch.setenv("FALAJ_ATTEMPT", "a-1")
    monkeypatch.setenv("FALAJ_OUTBOX", str(tmp_path / "outbox"))
    monkeypatch.setenv("FALAJ_CHECKPOINTS", str(tmp_path / "checkpoints"))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGUSR1)}
    worker.attempt.cache_clear()
    yield tmp_path
    worker.attempt.cache_clear()
    for number, action in before.items():
        signal.signal(number, action)


def model(folder: Path) -> bytes:
    (found,) = [path for path in folder.iterdir() if path.suffix in (".txt", ".ubj")]
    return found.read_bytes()


def again(plan: Boosting, folder: Path, valid: EstimatorRows | None = None) -> FittedEstimator:
    folder.mkdir(exist_ok=True)
    worker.attempt.cache_clear()
    return train_booster(plan, rows(), valid, folder=folder)


def facts(place: Path) -> list[dict[str, Any]]:
    lines = [line for path in (place / "outbox").iterdir() for line in path.read_text().splitlines()]
    return [json.loads(line) for line in lines]


@pytest.mark.parametrize(("library", "params"), PLANS)
def test_from_any_checkpoint_the_same_bytes(place: Path, library: str, params: dict[str, Any]) -> None:
    plan = Boosting(library, params, rounds=22, chunk=5, save_s=0)
    made = again(plan, place / "easy")
    kept = sorted((place / "checkpoints").glob("booster-*/*"))
    assert [int(path.name) % plan.stride for path in kept] == [0, 0]
    again(plan, place / "late")
    kept[1].unlink()
    again(plan, place / "early")
    assert model(place / "easy") == model(place / "late") == model(place / "early")
    assert not inspect_model(place / "easy").code_bearing
    assert inspect_model(place / "easy").format == library
    assert (made.model.num_boosted_rounds() if library == "xgboost" else made.model.num_trees()) == 22


@pytest.mark.parametrize(("library", "params"), [PLANS[0], PLANS[3]])
def test_a_seed_is_part_of_the_model_and_chunks_differ(place: Path, library: str, params: dict[str, Any]) -> None:
    for number, seed in enumerate((0, 0, 1)):
        (place / "checkpoints").mkdir(exist_ok=True)
        again(Boosting(library, params, rounds=6, chunk=3, seed=seed), place / str(number))
    assert model(place / "0") == model(place / "1") != model(place / "2")


@pytest.mark.timeout(400)
@pytest.mark.parametrize(("library", "params"), [PLANS[0], pytest.param(*PLANS[3], marks=pytest.mark.slow)])
def test_killed_again_and_again(place: Path, library: str, params: dict[str, Any]) -> None:
    plan = {"library": library, "params": params, "rounds": 120, "chunk": 8}
    easy, hard = place / "easy", place / "hard"
    with started(plan, easy) as process:
        assert process.wait(100) == 0
    killed = 0
    for least in (8, 40):
        with started(plan, hard) as process:
            end = time.monotonic() + 100
            while process.poll() is None and newest(hard) < least and time.monotonic() < end:
                time.sleep(0.001)
            process.kill()
            killed += process.wait() == -signal.SIGKILL
    broken = max((hard / "checkpoints").glob("booster-*/[0-9]*"))
    content = bytearray(broken.read_bytes())
    content[-100] ^= 1
    broken.write_bytes(content)
    with started(plan, hard) as process:
        assert process.wait(100) == 0
    assert killed >= 1
    assert model(easy / "model") == model(hard / "model")
    notes = [line for path in (hard / "outbox").iterdir() for line in path.read_text().splitlines() if "note" in line]
    assert "is broken" in notes[0]


def test_asked_for_its_place_it_saves_and_goes(place: Path) -> None:
    plan = Boosting("lightgbm", LIGHT, rounds=12, chunk=3, save_s=1000)
    worker.attempt().asked()
    os.kill(os.getpid(), signal.SIGTERM)
    (place / "one").mkdir()
    with pytest.raises(SystemExit) as ended:
        train_booster(plan, rows(), folder=place / "one")
    assert ended.value.code == 85
    assert [fact["step"] for fact in facts(place) if fact["kind"] == "checkpoint"] == [3]
    again(plan, place / "one")
    next((place / "checkpoints").glob("*/000000003")).unlink()
    again(plan, place / "two")
    assert model(place / "one") == model(place / "two")


@pytest.mark.parametrize(("library", "params"), [PLANS[0], PLANS[4]])
def test_no_better_for_long_is_the_end_across_chunks(place: Path, library: str, params: dict[str, Any]) -> None:
    noise = EstimatorRows(rows().x, np.random.default_rng(1).integers(0, 2, 600))
    plan = Boosting(library, params, rounds=200, chunk=4, early=10, save_s=0)
    made = again(plan, place / "one", noise)
    assert 0 < json.loads((place / "one/model.json").read_text())["rounds"] < 100
    assert set(made.metrics) >= {"valid_binary_logloss" if library == "lightgbm" else "valid_logloss"}
    again(plan, place / "two", noise)
    assert model(place / "one") == model(place / "two")
    told = facts(place)
    assert {fact["key"] for fact in told if fact["kind"] == "metric"} == set(made.metrics)
    assert [fact["step"] for fact in told if fact["kind"] == "progress"][:2] == [4, 8]


def test_each_booster_of_a_job_finds_its_own_checkpoints(place: Path) -> None:
    plan = Boosting("xgboost", EXTREME, rounds=6, chunk=3, save_s=0)
    folds = [EstimatorRows(rows().x[half::2], rows().y[half::2]) for half in (0, 1)]
    for number, fold in enumerate(folds * 2):
        (place / str(number)).mkdir()
        train_booster(plan, fold, folder=place / str(number))
    assert model(place / "0") == model(place / "2") != model(place / "1") == model(place / "3")
    again(Boosting("xgboost", EXTREME | {"max_depth": 2}, rounds=6, chunk=3, save_s=0), place / "4")
    assert len(list((place / "checkpoints").iterdir())) == 3
    with pytest.raises(Invalid, match="cannot be boosted"):
        Boosting("catboost")


@pytest.mark.parametrize("word", ["boosting=dart", "data_sample_strategy=goss", "linear_tree=true"])
def test_what_cannot_go_on_exactly_is_trained_in_one_piece(place: Path, word: str) -> None:
    params = {"objective": "binary", **dict([word.split("=")])}
    again(Boosting("lightgbm", params, rounds=6, chunk=2, save_s=0), place / "one")
    assert not (place / "checkpoints").exists()


def test_objects_of_the_libraries_are_plans_too(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import lightgbm
    import xgboost

    monkeypatch.chdir(place)
    names = np.array(["ham", "spam"])[rows().y]
    light = lightgbm.LGBMClassifier(n_estimators=8, subsample=0.5, subsample_freq=1, n_jobs=1, random_state=3)
    made = fit_estimator(light, (rows().x, names), valid=0.2, chunk=4)
    about = json.loads((made.folder / "model.json").read_text())
    assert (about["labels"], about["seed"], about["params"]["subsample"]) == (["ham", "spam"], 3, 0.5)
    assert "valid_binary_logloss" in made.metrics
    plan = plan_boosting(xgboost.XGBClassifier(n_estimators=8, max_depth=2), np.arange(9) % 3)
    assert (plan.rounds, plan.params["num_class"], plan.params["objective"]) == (8, 3, "multi:softprob")
    number = plan_boosting(xgboost.XGBRegressor(n_estimators=9), rows().y, chunk=2)
    assert (number.rounds, number.chunk, number.params["objective"]) == (9, 2, "reg:squarederror")


def newest(home: Path) -> int:
    return max((int(path.name) for path in (home / "checkpoints").glob("booster-*/[0-9]*")), default=0)


@contextlib.contextmanager
def started(plan: dict[str, Any], home: Path) -> "Iterator[subprocess.Popen[bytes]]":
    env = os.environ | {
        "FALAJ_CHECKPOINTS": str(home / "checkpoints"),
        "FALAJ_OUTBOX": str(home / "outbox"),
        "FALAJ_OUTPUT_MODEL": str(home / "model"),
    }
    with subprocess.Popen([sys.executable, "-W", "ignore", "-c", SCRIPT, json.dumps(plan)], env=env) as process:
        try:
            yield process
        finally:
            process.kill()
