"""With labels: more errors are evidence, and scores that mean something else are found though inputs are as before."""

import numpy as np

from falaj.drift.concept_drift import compute_error_bound, detect_calibration_drift, detect_error_drift
from falaj.drift.drift_tests import compare_tally
from falaj.drift.profiles import build_profile
from falaj.drift.records import TASK_BINARY, TASK_REGRESSION, DriftRules, ModelQuality
from falaj.drift.synthetic_drift import (
    KIND_CONCEPT,
    KIND_COVARIATE,
    KIND_LOCAL,
    KIND_NONE,
    KIND_PRIOR,
    KIND_SUDDEN,
    SyntheticBatch,
    make_batch,
    make_reference,
)
from falaj.drift.tally import DataTally

RULES = DriftRules()


def known(rows: int = 8_000) -> ModelQuality:
    """Of the model, on rows it was not made from."""
    held = make_batch(KIND_NONE, rows, seed=77)
    order = np.argsort(held.scores)
    parts = np.array_split(order, 20)
    return ModelQuality(
        TASK_BINARY,
        {"accuracy": float(np.mean((held.scores > 0.5) == held.labels))},
        tuple(float(held.scores[part].mean()) for part in parts),
        tuple(float(held.labels[part].mean()) for part in parts),
        rows=rows,
    )


def wrong(one: SyntheticBatch) -> np.ndarray:
    return ((one.scores > 0.5) != one.labels).astype(np.float64)


def test_a_new_concept_is_found_and_inputs_that_moved_are_none() -> None:
    quality = known()
    cases = [
        (KIND_NONE, 0.0, False),
        (KIND_SUDDEN, 0.5, False),
        (KIND_PRIOR, 0.5, False),
        (KIND_LOCAL, 1.0, False),
        (KIND_CONCEPT, 0.3, True),
    ]
    for kind, strength, alarm in cases:
        one = make_batch(kind, 4_000, seed=5, strength=strength)
        found = detect_calibration_drift(quality, one.scores, one.labels, RULES)
        assert found is not None
        assert (kind, found.alarm) == (kind, alarm)
    assert found is not None
    assert found.said.startswith("scores mean something else: where ")


def test_errors_are_evidence_over_windows() -> None:
    quality, state = known(), tuple[float, ...]()
    for seed in range(10):
        found, state = detect_error_drift(quality, wrong(make_batch(KIND_NONE, 500, seed=seed)), RULES, state)
        assert found is not None
        assert not found.alarm
    for seed in range(12):
        found, state = detect_error_drift(
            quality, wrong(make_batch(KIND_CONCEPT, 500, seed=seed, strength=0.4)), RULES, state
        )
        assert found is not None
        if found.alarm:
            break
    assert found.alarm
    assert seed <= 4
    assert found.p <= 0.001
    assert found.what == "performance"
    assert "for certain" in found.said
    found, state = detect_error_drift(quality, wrong(make_batch(KIND_NONE, 2_000, seed=99)), RULES, state)
    assert found is not None
    assert not found.alarm  # It is over.


def test_without_knowledge_nothing_is_said() -> None:
    assert compute_error_bound(ModelQuality(), RULES) is None
    assert detect_error_drift(ModelQuality(TASK_REGRESSION, {"mae": 1.0}, rows=9), [1, 0], RULES) == (None, ())
    assert detect_calibration_drift(ModelQuality(), [0.5], [1], RULES) is None
    assert detect_calibration_drift(known(), [0.5] * 10, [1] * 10, RULES) is None
    found = detect_calibration_drift(known(), [0.5, np.nan] * 600, [1, 0] * 600, RULES)
    assert found is not None
    assert found.rows == 600
    perfect = ModelQuality(TASK_BINARY, {"accuracy": 1.0}, rows=100)
    assert 0 < (compute_error_bound(perfect, RULES) or 0) < 1


def test_every_kind_of_drift_is_what_it_says() -> None:
    then = make_reference(8_000)
    profile = build_profile(
        then.columns, predictions={"score": then.scores}, label=then.labels, label_name="truth", segment="city"
    )
    seen = {}
    for kind in (KIND_NONE, KIND_SUDDEN, KIND_LOCAL, KIND_COVARIATE, KIND_PRIOR, KIND_CONCEPT):
        now = make_batch(
            kind, 20_000, seed=3, strength=0.0 if kind == KIND_NONE else 0.4 if kind != KIND_COVARIATE else 1.0
        )
        tally, columns = DataTally(profile, seed=0), {**now.columns, "score": now.scores, "truth": now.labels}
        for first in range(0, 20_000, 1_000):
            tally.add({name: column[first : first + 1_000] for name, column in columns.items()})
        found = [one for one in compare_tally(profile, tally, RULES) if one.alarm]
        seen[kind] = {one.what for one in found}, {one.column for one in found if not one.segment}
    assert seen[KIND_NONE] == seen[KIND_CONCEPT] == (set(), set())
    assert {"input", "prediction"} <= seen[KIND_SUDDEN][0]
    assert {"income", "debt", "score"} <= seen[KIND_SUDDEN][1]
    assert "age" not in seen[KIND_SUDDEN][1]
    assert "together" in seen[KIND_COVARIATE][0]
    assert "debt" not in seen[KIND_COVARIATE][1]
    assert {"prediction", "label"} <= seen[KIND_PRIOR][0]
    assert {"input"} <= seen[KIND_LOCAL][0]
