"""Times that are whole, and memory that is the model's own."""

import time
from pathlib import Path
from typing import Any

import numpy as np

from falaj.optimize.records import OptimizePlan
from falaj.optimize.timing import BATCH_SIZES, measure_footprints, measure_variants
from tests.infer import models

PLAN = OptimizePlan("m", "o", rounds=2, round_ms=2.0)
X = [np.zeros((4, 8), np.float32)]


def _busy(given: Any) -> list[Any]:
    end = time.process_time() + 0.0005
    while time.process_time() < end:
        pass
    return list(given)


def test_all_are_measured_at_every_size() -> None:
    sizes: set[int] = set()

    def quick(given: Any) -> list[Any]:
        sizes.add(len(given[0]))
        return list(given)

    found = measure_variants({"quick": quick, "busy": _busy}, X, PLAN, accepts_any_batch=True)
    assert sizes == set(BATCH_SIZES)
    assert found["busy"].cpu_us >= 500
    assert found["busy"].batch == 128
    assert found["busy"].p95_us >= found["busy"].p50_us >= 500
    assert found["busy"].cost > found["quick"].cost


def test_a_model_of_a_fixed_batch_is_measured_at_that() -> None:
    assert measure_variants({"fixed": _busy}, X, PLAN, accepts_any_batch=False)["fixed"].batch == 4


def test_memory_is_that_of_the_model_and_a_broken_one_hides_no_other(tmp_path: Path) -> None:
    small, large = models.mlp(tmp_path / "s") / "model.onnx", models.encoder(tmp_path / "l", layers=2) / "model.onnx"
    (tmp_path / "broken.onnx").write_bytes(b"no model")
    found = measure_footprints(
        {"small": (small, 8), "broken": (tmp_path / "broken.onnx", 1), "large": (large, 1)}, PLAN
    )
    assert found["broken"] == 0
    assert 0 < found["small"] < found["large"]
    assert found["large"] > large.stat().st_size
