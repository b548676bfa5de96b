"""With labels: more errors are evidence, and scores that mean something else are found though inputs are as before."""

import numpy as np

from falaj.drift.compare import compare
from falaj.drift.concept import calibration, errors, most_errors
from falaj.drift.profile import profile_of
from falaj.drift.records import BINARY, REGRESSION, Quality, Rules
from falaj.drift.synthetic import CONCEPT, COVARIATE, LOCAL, NONE, PRIOR, SUDDEN, Batch, batch, reference
from falaj.drift.tally import Tally

RULES = Rules()


def known(rows: int = 8_000) -> Quality:
    """Of the model, on rows it was not made from."""
    held = batch(NONE, rows, seed=77)
    order = np.argsort(held.scores)
    parts = np.array_split(order, 20)
    return Quality(
        BINARY,
        {"accuracy": float(np.mean((held.scores > 0.5) == held.labels))},
        tuple(float(held.scores[part].mean()) for part in parts),
        tuple(float(held.labels[part].mean()) for part in parts),
        rows=rows,
    )


def wrong(one: Batch) -> np.ndarray:
    return ((one.scores > 0.5) != one.labels).astype(np.float64)


def test_a_new_concept_is_found_and_inputs_that_moved_are_none() -> None:
    quality = known()
    cases = [(NONE, 0.0, False), (SUDDEN, 0.5, False), (PRIOR, 0.5, False), (LOCAL, 1.0, False), (CONCEPT, 0.3, True)]
    for kind, strength, alarm in cases:
        one = batch(kind, 4_000, seed=5, strength=strength)
        found = calibration(quality, one.scores, one.labels, RULES)
        assert found is not None
        assert (kind, found.alarm) == (kind, alarm)
    assert found is not None
    assert found.said.startswith("scores mean something else: where ")


def test_errors_are_evidence_over_windows() -> None:
    quality, state = known(), tuple[float, ...]()
    for seed in range(10):
        found, state = errors(quality, wrong(batch(NONE, 500, seed=seed)), RULES, state)
        assert found is not None
        assert not found.alarm
    for seed in range(12):
        found, state = errors(quality, wrong(batch(CONCEPT, 500, seed=seed, strength=0.4)), RULES, state)
        assert found is not None
        if found.alarm:
            break
    assert found.alarm
    assert seed <= 4
    assert found.p <= 0.001
    assert found.what == "performance"
    assert "for certain" in found.said
    found, state = errors(quality, wrong(batch(NONE, 2_000, seed=99)), RULES, state)
    assert found is not None
    assert not found.alarm  # It is over.


def test_without_knowledge_nothing_is_said() -> None:
    assert most_errors(Quality(), RULES) is None
    assert errors(Quality(REGRESSION, {"mae": 1.0}, rows=9), [1, 0], RULES) == (None, ())
    assert calibration(Quality(), [0.5], [1], RULES) is None
    assert calibration(known(), [0.5] * 10, [1] * 10, RULES) is None
    found = calibration(known(), [0.5, np.nan] * 600, [1, 0] * 600, RULES)
    assert found is not None
    assert found.rows == 600
    perfect = Quality(BINARY, {"accuracy": 1.0}, rows=100)
    assert 0 < (most_errors(perfect, RULES) or 0) < 1


def test_every_kind_of_drift_is_what_it_says() -> None:
    then = reference(8_000)
    profile = profile_of(
        then.columns, predictions={"score": then.scores}, label=then.labels, label_name="truth", segment="city"
    )
    seen = {}
    for kind in (NONE, SUDDEN, LOCAL, COVARIATE, PRIOR, CONCEPT):
        now = batch(kind, 20_000, seed=3, strength=0.0 if kind == NONE else 0.4 if kind != COVARIATE else 1.0)
        tally, columns = Tally(profile, seed=0), {**now.columns, "score": now.scores, "truth": now.labels}
        for first in range(0, 20_000, 1_000):
            tally.add({name: column[first : first + 1_000] for name, column in columns.items()})
        found = [one for one in compare(profile, tally, RULES) if one.alarm]
        seen[kind] = {one.what for one in found}, {one.column for one in found if not one.segment}
    assert seen[NONE] == seen[CONCEPT] == (set(), set())
    assert {"input", "prediction"} <= seen[SUDDEN][0]
    assert {"income", "debt", "score"} <= seen[SUDDEN][1]
    assert "age" not in seen[SUDDEN][1]
    assert "together" in seen[COVARIATE][0]
    assert "debt" not in seen[COVARIATE][1]
    assert {"prediction", "label"} <= seen[PRIOR][0]
    assert {"input"} <= seen[LOCAL][0]
