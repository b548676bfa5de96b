"""What labels say of the answers they belong to: performance, segments, fairness; and what they do not say."""

from typing import Any

import numpy as np
import pytest

from falaj.drift.profiles import build_profile
from falaj.drift.records import (
    TASK_BINARY,
    TASK_CLASSES,
    TASK_REGRESSION,
    DataProfile,
    DriftFinding,
    DriftRules,
    ModelQuality,
)
from falaj.drift.tally import DataTally
from falaj.monitor.gathering import WindowCounts
from falaj.monitor.late_labels import MAX_LABELS, MIN_LABELS, LabelledRows, describe_labels, judge_labels
from falaj.monitor.records import WatchPlan
from falaj.monitor.window_findings import (
    combine_findings,
    compute_min_share,
    find_all,
    find_service_faults,
    limit_findings,
)
from falaj.monitor.window_judging import compare_window

RULES = DriftRules()


def truth(label: Any, answer: Any, segment: Any = None, came: int = 0) -> LabelledRows:
    label, answer = np.asarray(label, float), np.asarray(answer, float)
    apart = np.full(len(label), "", object) if segment is None else np.asarray(segment, object)
    return LabelledRows(np.zeros(len(label)), label, answer, apart, came or len(label), 9.0)


def made(task: str, **metrics: float) -> DataProfile:
    return DataProfile((), (), 1000, quality=ModelQuality(task, metrics, rows=5000))


def answers(rows: int, right: float, seed: int = 0) -> tuple[Any, Any]:
    """Scores and truths of which this share agree."""
    rng = np.random.default_rng(seed)
    score = rng.random(rows)
    return np.where(rng.random(rows) < right, score >= 0.5, score < 0.5).astype(float), score


@pytest.mark.parametrize(("right", "alarm"), [(0.9, False), (0.6, True)])
def test_a_worse_metric_is_an_alarm_and_evidence_goes_on(right: float, alarm: bool) -> None:
    state: Any = ()
    for seed in range(3):
        findings, state = judge_labels(truth(*answers(600, right, seed)), made(TASK_BINARY, accuracy=0.9), RULES, state)
    by_name = {one.measure: one for one in findings}
    assert by_name["accuracy"].alarm == alarm
    assert by_name["errors"].alarm == alarm
    assert len(state) > 0


def test_numbers_and_classes_are_judged_as_what_they_are() -> None:
    rng = np.random.default_rng(1)
    value = rng.normal(size=500)
    findings, _ = judge_labels(
        truth(value, value + rng.normal(0, 3, 500)), made(TASK_REGRESSION, mae=0.5, rmse=0.7), RULES
    )
    assert {one.measure for one in findings if one.alarm} == {"mae", "rmse"}
    label = rng.integers(0, 3, 500)
    scores = np.eye(3)[np.where(rng.random(500) < 0.5, label, (label + 1) % 3)] * 0.8 + 0.1
    findings, _ = judge_labels(truth(label, scores), made(TASK_CLASSES, accuracy=0.95), RULES)
    assert next(one for one in findings if one.measure == "accuracy").alarm


def test_a_segment_that_is_worse_is_named_and_groups_that_are_treated_otherwise_too() -> None:
    label, score = answers(2000, 0.9)
    bad, score_bad = answers(600, 0.5, 5)
    groups = ["dubai"] * 2000 + ["sharjah"] * 600
    whole = truth([*label, *bad], [*score, *score_bad], groups)
    findings, _ = judge_labels(whole, made(TASK_BINARY, accuracy=0.9), RULES)
    assert {one.segment for one in findings if one.alarm and one.what == "performance" and one.segment} == {"sharjah"}
    skewed = truth([0.0, 1.0] * 1000, [0.9] * 1000 + [0.1] * 1000, ["a"] * 1000 + ["b"] * 1000)
    findings, _ = judge_labels(skewed, made(TASK_BINARY), RULES)
    assert "demographic parity" in {one.measure for one in findings if one.alarm and one.what == "fairness"}


def test_few_labels_and_labels_that_do_not_fit_conclude_nothing() -> None:
    label, score = answers(MIN_LABELS - 1, 0.1)
    assert judge_labels(truth(label, score), made(TASK_BINARY, accuracy=0.9), RULES, (1.0,)) == ((), (1.0,))
    (one,), _ = judge_labels(truth(np.arange(300) % 7, np.zeros(300)), made(TASK_BINARY, accuracy=0.9), RULES)
    assert (one.what, one.alarm) == ("quality", False)
    assert "do not fit" in one.said


def test_floods_droughts_and_labels_of_nobody_are_told() -> None:
    assert describe_labels(truth([], []), 0) == []
    assert "no request that was kept" in describe_labels(truth([], [], came=7), 0)[0]
    assert (
        "the first 100,000 were looked at"
        in describe_labels(truth([1.0] * 200, [1.0] * 200, came=MAX_LABELS + 1), 0)[0]
    )
    assert "wait until" in describe_labels(truth([1.0], [1.0]), 0)[0]


def test_a_few_failures_of_a_few_requests_prove_nothing() -> None:
    assert compute_min_share(2, 10) < 0.05 < compute_min_share(20, 100)
    plan = WatchPlan(errors=0.02, latency_ms=10)
    few, many = (WindowCounts(None, (), rows, rows // 10, 50.0, ()) for rows in (10, 400))
    assert [one.alarm for one in find_service_faults(few, plan)] == [False, False]
    assert [one.alarm for one in find_service_faults(many, plan)] == [True, True]
    assert find_service_faults(WindowCounts(None, (), 0, 0, 0.0, ()), plan) == []
    assert find_all(None, few, plan)[0].what == "errors"


def test_arithmetic_that_breaks_is_said_of_one_window_and_stops_nothing() -> None:
    narrow, wide = (build_profile({name: np.arange(900.0) for name in names}) for names in ("a", "abc"))
    tally = DataTally(wide)
    tally.add({name: np.arange(900.0) for name in "abc"})
    stretch = WindowCounts(tally, (), 100, 50, 1.0, ())
    said, evidence = compare_window(narrow, (stretch, truth([], [])), WatchPlan(), None, (1.0,))
    assert [(one.what, one.alarm) for one in said] == [("quality", False), ("errors", True)]
    assert ("cannot be compared" in said[0].said, evidence) == (True, (1.0,))


def test_an_alarm_says_what_it_means_for_the_metric_and_all_of_it_is_plain() -> None:
    moved = (
        DriftFinding("quality", "a", alarm=True, said="a is missing"),
        DriftFinding("input", "b", alarm=True, said="b rose"),
    )
    told = combine_findings(moved, (DriftFinding("estimate", said="accuracy is estimated at 0.8"),))
    assert [one.said for one in told][1] == "b rose; accuracy is estimated at 0.8"
    odd = DriftFinding(
        "input", value=float("nan"), bound=float("inf"), alarm=np.True_, measures={"ks": np.float32(0.5)}
    )
    kept = limit_findings([*told, odd])
    assert [one.what for one in kept] == ["quality", "input", "input", "estimate"]  # alarms first
    assert (kept[2].value, kept[2].bound, kept[2].alarm, kept[2].measures) == (0.0, 0.0, True, {"ks": 0.5})
