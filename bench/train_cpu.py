"""What training on CPUs costs through us: LightGBM, XGBoost and scikit-learn against the bare libraries, and torch with
our threads against its default.

    python bench/train_cpu.py

Both ways take turns in one process on the same arrays, in every order equally often, since whoever comes next pays for
what the one before left behind; a ratio is the median over rounds of ours by bare. Where our threads and cores are
torch's own choice there is nothing to compare, and the ratio is 1; two ranks side by side are where it matters. ROUNDS
and ROWS make it longer or shorter.
"""

import contextlib
import gc
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

# Threads that wait by spinning would count the load of the machine as our work.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
ROUNDS = int(os.environ.get("ROUNDS", "12"))
ROWS = int(os.environ.get("ROWS", "40000"))
Bar = tuple[float, float, bool, str]
Work = Callable[[Path], object]
LIGHT = {"objective": "binary", "num_leaves": 31, "bagging_fraction": 0.8, "bagging_freq": 1, "feature_fraction": 0.8}
EXTREME = {"objective": "binary:logistic", "max_depth": 6, "subsample": 0.8, "colsample_bytree": 0.8}
BOOSTED = 150


def bars() -> dict[str, Bar]:
    """Name -> value, bar, whether the bar is a least, note."""
    chance = np.random.default_rng(0)
    x = chance.normal(size=(ROWS, 28)).astype(np.float32)
    y = (x[:, 0] * x[:, 1] + x[:, 2] + chance.normal(size=ROWS) > 0).astype(np.int64)
    found: dict[str, Bar] = {}
    for name, (ours, bare) in pairs(x, y).items():
        cpu, wall, note = compared(ours, bare)
        found[f"{name}_cpu"] = (cpu, 1.02, False, f"CPU seconds by those of the bare library; {note}")
        found[f"{name}_wall"] = (wall, 1.02, False, "seconds by those of the bare library")
    return found | threads()


def pairs(x: Any, y: Any) -> dict[str, tuple[Work, Work]]:
    """The same work through us and bare, to the same end: a model in a folder."""
    import joblib
    import lightgbm
    import xgboost
    from sklearn.ensemble import HistGradientBoostingClassifier
    from sklearn.linear_model import LogisticRegression

    from falaj.train.boosters import Boosting, train_booster
    from falaj.train.estimators import EstimatorRows, count_cores, fit_estimator

    rows, number = EstimatorRows(x, y), count_cores()

    def light(to: Path) -> None:
        params = {**LIGHT, "num_threads": number, "verbosity": -1}
        lightgbm.train(params, lightgbm.Dataset(x, y, params=params), BOOSTED).save_model(to / "model.txt")

    def extreme(to: Path) -> None:
        params = {**EXTREME, "nthread": number}
        xgboost.train(params, xgboost.DMatrix(x, y, nthread=number), BOOSTED).save_model(to / "model.ubj")

    def boosted(library: str, params: dict[str, Any]) -> Work:
        # A checkpoint as often as users have it: between chunks, at most every ten seconds.
        return lambda to: train_booster(Boosting(library, params, rounds=BOOSTED), rows, folder=to)

    def fitted(make: Callable[[], Any]) -> tuple[Work, Work]:
        def ours(to: Path) -> object:
            with contextlib.chdir(to):
                return fit_estimator(make(), (x, y))

        def bare(to: Path) -> None:
            from sklearn.metrics import accuracy_score, log_loss, roc_auc_score

            made = make().fit(x, y)
            chances = made.predict_proba(x)
            accuracy_score(y, made.predict(x)), log_loss(y, chances), roc_auc_score(y, chances[:, 1])
            joblib.dump(made, to / "model")  # what people do who write no model without code

        return ours, bare

    return {
        "lightgbm": (boosted("lightgbm", LIGHT), light),
        "xgboost": (boosted("xgboost", EXTREME), extreme),
        "hist_gradient_boosting": fitted(lambda: HistGradientBoostingClassifier(max_iter=80, early_stopping=False)),
        "logistic_regression": fitted(lambda: LogisticRegression(solver="saga", max_iter=60, tol=1e-12)),
    }


def compared(ours: Work, bare: Work) -> tuple[float, float, str]:
    """Ratios of CPU seconds and of seconds; and the same of the bare library against itself, which is the noise."""
    took: dict[str, list[tuple[float, float]]] = {"ours": [], "bare": [], "again": []}
    works = {"ours": ours, "bare": bare, "again": bare}
    orders = list(itertools.permutations(works))
    for number in range(-1, ROUNDS):
        for name in orders[number % len(orders)]:
            gc.collect()
            with tempfile.TemporaryDirectory() as folder:
                began, cpu = time.perf_counter(), time.process_time()
                works[name](Path(folder))
                if number >= 0:  # the first time is everybody's to warm up
                    took[name].append((time.process_time() - cpu, time.perf_counter() - began))
    (cpu_ratio, wall_ratio), (cpu_noise, wall_noise) = (
        [statistics.median(a[at] / b[at] for a, b in zip(took[name], took["bare"], strict=True)) for at in (0, 1)]
        for name in ("ours", "again")
    )
    seconds = statistics.median(one for one, _ in took["bare"])
    return cpu_ratio, wall_ratio, f"bare {seconds:.2f} s, itself by itself {cpu_noise:.3f} (wall {wall_noise:.3f})"


TORCH = """
import os, sys, time
import torch
if sys.argv[1] == "ours":
    from falaj.train.cpus import apply_threads
    from falaj.train.options import Options
    apply_threads(Options(), int(sys.argv[2]), int(sys.argv[3]))
print(torch.get_num_threads(), torch.get_num_interop_threads(), sorted(os.sched_getaffinity(0)), flush=True)
torch.manual_seed(0)
net = torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.GELU(), torch.nn.Linear(512, 512), torch.nn.GELU(), torch.nn.Linear(512, 10))
x, y = torch.randn(256, 256), torch.randint(0, 10, (256,))
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3, fused=True)
for line in sys.stdin:
    began = time.perf_counter()
    for _ in range(15):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(net(x), y).backward()
        optimizer.step()
    print(15 / (time.perf_counter() - began), flush=True)
"""  # noqa: E501 - a program


def threads() -> dict[str, Bar]:
    """Steps a second with the threads and cores of `falaj.train.cpus`, by those of torch's default."""
    alone, same, note = beside(1)
    note = f"the same threads and cores as torch's default, measured {alone:.3f}; {note}" if same else note
    found: dict[str, Bar] = {"torch_threads": (1.0 if same else alone, 1.0, True, note)}
    ratio, _, note = beside(2)
    return found | {"torch_threads_two_ranks": (ratio, 1.0, True, note)}


def beside(ranks: int) -> tuple[float, bool, str]:
    """The ratio of both ways with some ranks at once, whether both chose the same, and a note."""
    env = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    env |= {"PYTHONPATH": str(ROOT / "src")}
    started = {
        way: [
            subprocess.Popen(
                [sys.executable, "-c", TORCH, way, str(rank), str(ranks)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env=env,
            )
            for rank in range(ranks)
        ]
        for way in ("ours", "default")
    }
    chosen = {way: [_line(one) for one in group] for way, group in started.items()}
    rates: dict[str, list[float]] = {"ours": [], "default": []}
    for number in range(-1, 4 * ROUNDS):
        for way in ("ours", "default") if number % 2 else ("default", "ours"):
            for one in started[way]:
                print("go", file=one.stdin, flush=True)
            rate = sum(float(_line(one)) for one in started[way])
            if number >= 0:
                rates[way].append(rate)
    for one in itertools.chain(*started.values()):
        one.communicate()
    ratio = statistics.median(a / b for a, b in zip(rates["ours"], rates["default"], strict=True))
    note = f"{statistics.median(rates['ours']):.0f} steps/s; torch's default {statistics.median(rates['default']):.0f}"
    return ratio, chosen["ours"] == chosen["default"], note


def _line(one: "subprocess.Popen[str]") -> str:
    assert one.stdout
    return one.stdout.readline()


def main() -> int:
    warnings.filterwarnings("ignore", message="The max_iter was reached")  # a fixed amount of work is wanted
    found = bars()
    for name, (value, bar, at_least, note) in found.items():
        good = value >= bar if at_least else value <= bar
        print(f"{name:32} {value:8.3f}  {'>=' if at_least else '<='} {bar:<6} {'ok  ' if good else 'MISS'}  {note}")
    print(json.dumps({name: round(value, 4) for name, (value, *_) in found.items()}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
