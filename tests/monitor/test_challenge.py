"""A shadow beside the champion: answers of one request are found together, and compared where the truth is known."""

import json
import random

import pytest

from falaj.drift.paired import BETTER
from falaj.monitor.challenge import compared, paired, truths
from falaj.serve.journal import Logged
from falaj.serve.labels import Labelled, Quality

OUTPUT = Quality("y")


def answer(
    id_: str, arm: str, revision: int, *values: float, at: float = 0.0, status: int = 200, key: str = ""
) -> Logged:
    body = {"outputs": [{"name": "y", "datatype": "FP32", "shape": [len(values), 1], "data": list(values)}]}
    return Logged(at, id_, key, arm, revision, status, 100, "amal", b"{}", json.dumps(body).encode(), "json")


def both(id_: str, champion: float, challenger: float, **more: object) -> list[Logged]:
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
    found = paired(rows, 1, 2, OUTPUT)
    assert [(one.id, one.values, two.values) for one, two in found] == [("a", (1.0,), (0.0,)), ("b", (0.0,), (0.0,))]
    assert paired(rows, 1, 2, Quality("")) == found, "the first output, where nobody names one"
    assert paired(rows, 1, 2, Quality("z")) == []


def test_the_better_one_is_found() -> None:
    chance = random.Random(1)
    rows, labels = [], []
    for number in range(600):
        truth = chance.random() < 0.5
        champion = truth if chance.random() < 0.7 else not truth
        rows += both(str(number), float(champion), float(truth), at=float(number))
        labels.append(Labelled(1000.0, str(number), "", float(truth)))
    pairs, same = compared(paired(rows, 1, 2, OUTPUT), truths(labels), OUTPUT)
    reading = pairs.read(0.01)
    assert (pairs.rows, reading.verdict, reading.challenger) == (600, BETTER, 0.0)
    assert same == pytest.approx(0.7, abs=0.06)


def test_labels_by_key_are_of_requests_before_them() -> None:
    rows = [*both("a", 1.0, 0.0, at=1.0, key="k"), *both("b", 1.0, 0.0, at=5.0, key="k"), *both("c", 0.0, 0.0, at=9.0)]
    labels = [Labelled(3.0, "", "k", 1.0), Labelled(7.0, "", "k", 0.0)]
    pairs, _ = compared(paired(rows, 1, 2, OUTPUT), truths(labels), OUTPUT)
    assert (pairs.rows, pairs.champion, pairs.challenger) == (2, 1.0, 1.0)
    assert compared([], truths([]), OUTPUT)[0].rows == 0
