"""The sides of bench/monitor.py, each a program in an environment of its own: the standard library at the top, all
else where it is used. The last line says what the work cost after the imports, and what was found.

    python monitor_sides.py ACT ARGUMENTS …
"""

import json
import os
import resource
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

COLUMNS, TEXTS, SHIFTED, CHUNK = 45, 5, ("f00", "f05", "f10", "c0"), 5000
METRICS = ("auc", "f1", "accuracy")
Work = Callable[[], Any]


def told(work: Work, then: Callable[[Any], dict[str, Any]] = lambda _: {}) -> None:
    """Do the work, say what it cost: CPU of all threads, memory beyond what the imports took."""
    base, cpu, wall = _peak_mib(), _used_s(), time.perf_counter()
    found = work()
    cpu, wall = _used_s() - cpu, time.perf_counter() - wall
    print(json.dumps({"cpu_s": cpu, "wall_s": wall, "peak_mib": _peak_mib() - base, **then(found)}))


def _used_s() -> float:
    found = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(one.ru_utime + one.ru_stime for one in found)


def _peak_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def make(folder: str, rows: str) -> None:
    """Reference and current rows: 45 numbers of four shapes, 5 texts; four columns have moved by half a deviation."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

    def table(seed: int, *, moved: bool) -> Any:
        draw, count = np.random.default_rng(seed), int(rows)
        shapes = [draw.standard_normal, draw.standard_exponential, draw.standard_gamma, draw.random]
        columns: dict[str, Any] = {}
        for at in range(COLUMNS):
            name, shape = f"f{at:02d}", shapes[at % 4]
            values = shape(2.0, count) if at % 4 == 2 else shape(count)  # type: ignore[call-arg]
            columns[name] = values + 0.5 * values.std() if moved and name in SHIFTED else values
        words = np.array([f"v{at}" for at in range(8)])
        for at in range(TEXTS):
            share = np.array([8.0, 7, 6, 5, 4, 3, 2, 1])
            share = share[::-1] if moved and f"c{at}" in SHIFTED else share
            columns[f"c{at}"] = words[draw.choice(8, count, p=share / share.sum())]
        return pa.table(columns)

    for name, moved in (("reference", False), ("current", True)):
        made = table(len(name), moved=moved)
        pq.write_table(made, Path(folder) / f"{name}.parquet")
        numbers = np.column_stack([made.column(one).to_numpy() for one in made.column_names[:COLUMNS]])
        np.save(Path(folder) / f"{name}.npy", numbers)
    told(lambda: None)


def _drifted(findings: Sequence[Any]) -> dict[str, Any]:
    return {"drifted": sorted({one.column for one in findings if one.alarm and one.column})}


def ours_profile(folder: str) -> None:
    """The profile of the reference, stored."""
    import numpy.random  # noqa: F401
    import pyarrow.dataset
    import pyarrow.parquet  # noqa: F401

    from falaj.drift.profiles import encode_profile
    from falaj.drift.table_comparison import profile_table

    def work() -> bytes:
        return encode_profile(profile_table(Path(folder) / "reference.parquet"))

    def then(made: bytes) -> dict[str, Any]:
        (Path(folder) / "profile.json").write_bytes(made)
        return {"bytes": len(made)}

    told(work, then)


def ours_report(folder: str, whole: str = "") -> None:
    """From the stored profile; or from both tables."""
    import numpy.random  # noqa: F401
    import pyarrow.dataset
    import pyarrow.parquet  # noqa: F401

    from falaj.drift.profiles import read_profile
    from falaj.drift.table_comparison import compare_tables

    at = Path(folder)

    def work() -> Any:
        then = at / "reference.parquet" if whole else read_profile((at / "profile.json").read_bytes())
        return compare_tables(then, at / "current.parquet")

    told(work, lambda found: {**_drifted(found[1]), "rows": found[0].rows})


def evidently_report(folder: str) -> None:
    """As its documentation has it."""
    warnings.filterwarnings("ignore")
    import pandas as pd
    import pyarrow.parquet  # noqa: F401
    from evidently import Report
    from evidently.presets import DataDriftPreset

    def work() -> Any:
        then, now = (pd.read_parquet(Path(folder) / f"{name}.parquet") for name in ("reference", "current"))
        return Report([DataDriftPreset()]).run(current_data=now, reference_data=then)

    def then(found: Any) -> dict[str, Any]:
        every = [one for one in found.dict()["metrics"] if one["config"].get("type", "").endswith("ValueDrift")]
        moved = [one["config"]["column"] for one in every if float(one["value"]) >= one["config"]["threshold"]]
        return {"drifted": sorted(moved), "columns": len(every)}

    told(work, then)


def numpy_pass(folder: str) -> None:
    """The limit: the current rows read, and each number looked at once."""
    import numpy.random  # noqa: F401
    import pyarrow.dataset
    import pyarrow.parquet  # noqa: F401

    from falaj.drift.table_comparison import iterate_pieces

    def work() -> float:
        found = iterate_pieces(Path(folder) / "current.parquet")
        return sum(float(one.sum()) for piece in found for one in piece.values() if one.dtype.kind == "f")

    told(work)


def ours_ks(folder: str, whole: str = "") -> None:
    """KS of every number: rows are counted and compared with the stored profile; or the reference is cut as well."""
    import numpy as np
    import numpy.random

    from falaj.drift.drift_tests import compare_tally
    from falaj.drift.profiles import build_profile
    from falaj.drift.records import DriftRules
    from falaj.drift.tally import DataTally

    then, now = (np.load(Path(folder) / f"{name}.npy") for name in ("reference", "current"))
    names = [f"f{at:02d}" for at in range(COLUMNS)]

    def cut() -> Any:
        return build_profile({name: then[:, at] for at, name in enumerate(names)})

    stored = None if whole else cut()

    def work() -> Any:
        profile = stored or cut()
        tally = DataTally(profile, max_sample_rows=0, seed=0)
        tally.add({name: now[:, at] for at, name in enumerate(names)})
        return compare_tally(profile, tally, DriftRules())

    told(work, _drifted)


def alibi_ks(folder: str) -> None:
    """Its detector, set up and asked once."""
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    warnings.filterwarnings("ignore")
    import numpy as np
    from alibi_detect.cd import KSDrift

    then, now = (np.load(Path(folder) / f"{name}.npy") for name in ("reference", "current"))

    def then_found(found: Any) -> dict[str, Any]:
        bound = found["data"]["threshold"]
        return {"drifted": [f"f{at:02d}" for at, p in enumerate(found["data"]["p_val"]) if p < bound]}

    told(lambda: KSDrift(then, p_val=0.05).predict(now), then_found)


def car_loan(folder: str) -> None:
    """NannyML's own data, as tables."""
    import nannyml

    then, now, truth = nannyml.load_synthetic_car_loan_dataset()
    then.to_parquet(Path(folder) / "then.parquet")
    now.to_parquet(Path(folder) / "now.parquet")
    truth.to_parquet(Path(folder) / "truth.parquet")
    told(lambda: None)


def nannyml_estimate(folder: str) -> None:
    """Confidence-based estimates of ten chunks, as its documentation has it."""
    warnings.filterwarnings("ignore")
    import nannyml
    import pandas as pd

    names = {"auc": "roc_auc", "f1": "f1", "accuracy": "accuracy"}

    def work() -> Any:
        then, now = (pd.read_parquet(Path(folder) / f"{name}.parquet") for name in ("then", "now"))
        estimator = nannyml.CBPE(
            y_pred_proba="y_pred_proba", y_pred="y_pred", y_true="repaid", timestamp_column_name="timestamp",
            metrics=list(names.values()), chunk_size=CHUNK, problem_type="classification_binary",
        ).fit(then)  # fmt: skip
        return estimator.estimate(now)

    def found(result: Any) -> dict[str, Any]:
        table = result.filter(period="analysis").to_df()
        return {
            "estimates": {name: table[(theirs, "value")].tolist() for name, theirs in names.items()},
            "alarms": table[("accuracy", "alert")].tolist(),
        }

    told(work, found)


def ours_estimate(folder: str) -> None:
    """The same from the same tables: calibrate, cut, count ten windows, estimate each with its interval."""
    import numpy as np
    import numpy.random
    import pyarrow.parquet as pq

    from falaj.drift.performance import measure_quality
    from falaj.drift.performance_estimate import PerformanceEstimator, calibrate_quality
    from falaj.drift.profiles import build_profile
    from falaj.drift.records import TASK_BINARY, DriftRules
    from falaj.drift.tally import DataTally

    threshold = [0.5]

    def columns(table: str, *names: str) -> list[Any]:
        opened = pq.ParquetFile(f"{folder}/{table}.parquet", memory_map=True, pre_buffer=False)
        found = opened.read(list(names), use_threads=False)
        return [found.column(name).to_numpy() for name in names]

    def work() -> Any:
        score, said, true = columns("then", "y_pred_proba", "y_pred", "repaid")
        (now,) = columns("now", "y_pred_proba")
        threshold[0] = float(score[said == 1].min())
        quality = calibrate_quality(TASK_BINARY, true, score, threshold=threshold[0])
        profile, found = build_profile({}, predictions={"score": score}, quality=quality), []
        tally, foresight = DataTally(profile, max_sample_rows=0, seed=0), PerformanceEstimator(profile)
        for first in range(0, len(now), CHUNK):
            tally = tally.anew()
            tally.add({"score": now[first : first + CHUNK]})
            found.append(foresight.findings(tally, DriftRules()))
        return found

    def then(found: Any) -> dict[str, Any]:
        (now,), (truth,) = columns("now", "y_pred_proba"), columns("truth", "repaid")
        parts = [slice(first, first + CHUNK) for first in range(0, len(now), CHUNK)]
        real = [measure_quality(TASK_BINARY, truth[part], now[part], threshold=threshold[0]).metrics for part in parts]
        each = [{one.measure: one for one in window} for window in found]
        return {
            "estimates": {name: [window[name].value for window in each] for name in METRICS},
            "real": {name: [window[name] for window in real] for name in METRICS},
            "alarms": [window["accuracy"].alarm for window in each],
            "inside": float(np.mean([
                abs(window[name].value - truth[name]) <= 1.96 * window[name].measures["error"]
                for window, truth in zip(each, real, strict=True) for name in METRICS
            ])),
        }  # fmt: skip

    told(work, then)


def ours_independent(folder: str) -> None:
    """Comparing stored counts of many rows and of few, in turns."""
    import statistics

    import numpy as np
    import numpy.random

    from falaj.drift.drift_tests import compare_tally
    from falaj.drift.profiles import build_profile
    from falaj.drift.records import DriftRules
    from falaj.drift.tally import DataTally

    del folder
    sides = []
    for rows in (1_000_000, 10_000):
        draw = np.random.default_rng(rows)
        columns = {f"f{at}": draw.standard_normal(rows, np.float32) for at in range(50)}
        profile = build_profile(columns)
        tally = DataTally(profile, max_sample_rows=0, seed=0)
        tally.add(columns)
        sides.append((profile, tally))
        del columns
    took: list[list[float]] = [[], []]
    for _ in range(60):
        for side, (profile, tally) in enumerate(sides):
            began = time.process_time()
            for _ in range(3):
                compare_tally(profile, tally, DriftRules())
            took[side].append((time.process_time() - began) / 3)
    many, few = (statistics.median(one) for one in took)
    told(lambda: None, lambda _: {"many_s": many, "few_s": few})


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
