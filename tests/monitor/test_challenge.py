"""A shadow beside the champion: answers of one request are found together, and compared where the truth is known."""

import json
import random

import pytest

from falaj.drift.paired_test import VERDICT_BETTER
from falaj.monitor.challenger_test import compare_losses, index_labels, pair_answers
from falaj.serve.late_labels import LabelRow, QualityMeasure
from falaj.serve.request_journal import JournalRow

OUTPUT = QualityMeasure("y")


def answer(
    id_: str, arm: str, revision: int, *values: float, at: float = 0.0, status: int = 200, key: str = ""
) -> JournalRow:
    body = {"outputs": [{"name": "y", "datatype": "FP32", "shape": [len(values), 1], "data": list(values)}]}
    return JournalRow(at, id_, key, arm, revision, status, 100, "amal", b"{}", json.dumps(body).encode(), "json")


def both(id_: str, champion: float, challenger: float, **more: object) -> list[JournalRow]:
    return [answer(id_, "base", 1, champion, **more), answer(id_, "shadow", 2, challenger, **more)]  # type: ignore[arg-type]


def test_pairs_are_answers_to_one_request() -> None:
    rows = [
        *both("a", 0.9, 0.2),
        *reversed(both("b", 0.1, 0.1)),
        answer("c", "base", 1, 0.5),  # no copy was kept
        answer("d", "shadow", 2, 0.5),
        answer("e", "base", 1, 0.5),
        answer("e", "shadow", 3, 0.5),  # of another trial
        answer("f", "base", 1, 0.5),
        answer("f", "shadow", 2, 0.5, status=500),
        answer("g", "base", 1, 0.5, 0.6),
        answer("g", "shadow", 2, 0.5),  # not the same rows
    ]
    found = pair_answers(rows, 1, 2, OUTPUT)
    assert [(one.id, one.values, two.values) for one, two in found] == [("a", (1.0,), (0.0,)), ("b", (0.0,), (0.0,))]
    assert pair_answers(rows, 1, 2, QualityMeasure("")) == found, "the first output, where nobody names one"
    assert pair_answers(rows, 1, 2, QualityMeasure("z")) == []


def test_the_better_one_is_found() -> None:
    chance = random.Random(1)
    rows, labels = [], []
    for number in range(600):
        truth = chance.random() < 0.5
        champion = truth if chance.random() < 0.7 else not truth
        rows += both(str(number), float(champion), float(truth), at=float(number))
        labels.append(LabelRow(1000.0, str(number), "", float(truth)))
    pairs, same = compare_losses(pair_answers(rows, 1, 2, OUTPUT), index_labels(labels), OUTPUT)
    reading = pairs.read(0.01)
    assert (pairs.rows, reading.verdict, reading.challenger) == (600, VERDICT_BETTER, 0.0)
    assert same == pytest.approx(0.7, abs=0.06)


def test_labels_by_key_are_of_requests_before_them() -> None:
    rows = [*both("a", 1.0, 0.0, at=1.0, key="k"), *both("b", 1.0, 0.0, at=5.0, key="k"), *both("c", 0.0, 0.0, at=9.0)]
    labels = [LabelRow(3.0, "", "k", 1.0), LabelRow(7.0, "", "k", 0.0)]
    pairs, _ = compare_losses(pair_answers(rows, 1, 2, OUTPUT), index_labels(labels), OUTPUT)
    assert (pairs.rows, pairs.champion, pairs.challenger) == (2, 1.0, 1.0)
    assert compare_losses([], index_labels([]), OUTPUT)[0].rows == 0
