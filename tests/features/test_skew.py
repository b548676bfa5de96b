"""Samples of reads survive their way, and the check says of each difference what it is, and nothing of whose."""

import base64
import math
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from falaj.asof.records import EXPIRED, NOT_FOUND, NULL, PRESENT
from falaj.core.errors import CorruptData, Invalid
from falaj.features.serving_skew import (
    MAX_BLOCK_BYTES,
    MAX_EXAMPLES,
    HistoryValues,
    ReadSampler,
    SampledRead,
    compare_reads,
    pack_reads,
    to_labels,
)
from falaj.features.serving_skew import unpack_reads as unpack


@dataclass
class Given:
    """An answer as readers give it."""

    columns: dict[str, Any]
    statuses: dict[str, Any]
    events: dict[str, Any] = field(default_factory=dict)


def read(
    value: object, status: int = PRESENT, *, at: int = 5, key: str = "c1", event: int | None = None
) -> SampledRead:
    events = {} if event is None else {"x": [event]}
    return SampledRead(at, {"id": [key]}, {}, {"x": [value]}, {"x": [status]}, events)


def truth(value: object, status: int = PRESENT, event: int | None = None) -> HistoryValues:
    return HistoryValues({"x": [value]}, {"x": [status]}, {} if event is None else {"x": [event]})


NAN = float(np.frombuffer(b"\x01\0\0\0\0\0\xf8\x7f", np.float64)[0])


@pytest.mark.parametrize(
    ("served", "true"),
    [
        ((1.5, PRESENT), (1.5, PRESENT)),
        ((math.nan, PRESENT), (NAN, PRESENT)),
        ((1, PRESENT), (np.int64(1), np.uint8(PRESENT))),
        ((None, NULL), (0.0, NULL)),
        (([1.0, math.nan], PRESENT), (np.array([1.0, math.nan]), PRESENT)),
        ((1_000_000, PRESENT), (datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC), PRESENT)),
        ((b"a", PRESENT), (b"a", PRESENT)),
    ],
)
def test_what_is_the_same(served: tuple[object, int], true: tuple[object, int]) -> None:
    report = compare_reads([read(*served)], truth(*true))
    assert (report.verdict, report.features[0].differ, report.examples) == ("the same", 0, ())


@pytest.mark.parametrize(
    ("served", "true", "kind", "apart"),
    [
        ((1.5, PRESENT), (1.25, PRESENT), "value", 0.25),
        ((0.0, PRESENT), (-0.0, PRESENT), "value", 0.0),
        ((1, PRESENT), (1.0, PRESENT), "value", 0.0),
        ((True, PRESENT), (1, PRESENT), "value", 0.0),
        (("a", PRESENT), ("b", PRESENT), "value", 0.0),
        ((math.nan, PRESENT), (1.0, PRESENT), "value", 0.0),
        (([1, 2], PRESENT), ([2, 1], PRESENT), "value", 0.0),
        ((7.0, PRESENT), (None, EXPIRED), "status", 0.0),
        ((None, NOT_FOUND), (None, NULL), "status", 0.0),
    ],
)
def test_what_differs(served: tuple[object, int], true: tuple[object, int], kind: str, apart: float) -> None:
    report = compare_reads([read(*served)], truth(*true))
    (feature,) = report.features
    assert (feature.differ, feature.rate, getattr(feature, kind), feature.max_abs) == (1, 1.0, 1, apart)
    assert [(one.feature, one.kind) for one in report.examples] == [("x", kind)]
    assert report.verdict == "skew in 1 of 1 features, most in x"


def test_a_store_that_is_behind_and_rows_that_came_late_are_told_apart() -> None:
    behind = compare_reads([read(1.0, event=10)], truth(2.0, event=20))
    assert (behind.features[0].behind, behind.verdict) == (1, "the online store was behind")
    late = compare_reads([read(1.0)], truth(1.0), truth(2.0))
    assert (late.features[0].late, late.features[0].differ, late.verdict, late.examples) == (1, 0, "the same", ())


def test_examples_say_neither_whose_nor_what() -> None:
    reads = [read(123.25, key=f"person-{n}") for n in range(20)]
    report = compare_reads(reads, HistoryValues({"x": [99.5] * 20}, {"x": [PRESENT] * 20}), salt=b"secret")
    said = msgspec.json.encode(report).decode()
    assert len(report.examples) == MAX_EXAMPLES
    assert "person" not in said
    assert "123.25" not in said
    assert len({one.key for one in report.examples}) == MAX_EXAMPLES
    other = compare_reads(reads, HistoryValues({"x": [99.5] * 20}, {"x": [PRESENT] * 20}), salt=b"another")
    assert {one.key for one in other.examples}.isdisjoint(one.key for one in report.examples)


def test_no_difference_in_few_reads_is_no_proof() -> None:
    few = compare_reads([read(1.0)] * 10, HistoryValues({"x": [1.0] * 10}, {"x": [PRESENT] * 10})).features[0]
    many = compare_reads([read(1.0)] * 5_000, HistoryValues({"x": [1.0] * 5_000}, {"x": [PRESENT] * 5_000})).features[0]
    assert few.at_most > 0.2
    assert many.at_most < 0.001
    assert compare_reads([], HistoryValues({}, {})).verdict == "no reads to check"


def test_history_is_asked_for_each_row_in_order() -> None:
    reads = [
        SampledRead(5, {"id": ["a", "b"]}, {"price": [1.0, 2.0]}, {"x": [1.0, 2.0]}, {"x": [PRESENT, PRESENT]}),
        SampledRead(9, {"id": ["c"]}, {}, {"x": [3.0], "y": [1]}, {"x": [PRESENT], "y": [PRESENT]}),
    ]
    columns, moments = to_labels(reads)
    assert columns == {"id": ["a", "b", "c"], "price": [1.0, 2.0, None]}
    assert moments == [5, 5, 9]
    report = compare_reads(
        reads, HistoryValues({"x": [1.0, 2.0, 4.0], "y": [0, 0, 1]}, {"x": [PRESENT] * 3, "y": [PRESENT] * 3})
    )
    assert [(one.feature, one.checked, one.differ) for one in report.features] == [("x", 3, 1), ("y", 1, 0)]
    assert (report.reads, report.rows, report.since_at, report.until_at) == (2, 3, 5e-6, 9e-6)
    with pytest.raises(Invalid, match="another number of rows"):
        compare_reads(reads, HistoryValues({"x": [1.0]}, {"x": [PRESENT]}))


values = st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats() | st.text() | st.binary()
nested = values | st.lists(st.floats(), max_size=3)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(nested, st.integers(0, 4), st.text(max_size=8)), max_size=8))
def test_reads_survive_their_way(rows: list[tuple[object, int, str]]) -> None:
    reads = [read(value, status, key=key) for value, status, key in rows]
    again = unpack(pack_reads(reads))
    assert [repr(one) for one in again] == [repr(one) for one in reads]


def test_a_block_has_room_for_so_much_and_keeps_the_newest() -> None:
    reads = [read("x" * 10_000, at=n) for n in range(200)]
    text = pack_reads(reads)
    kept = unpack(text)
    assert len(text) < 1 << 20
    assert len(kept) == pytest.approx(MAX_BLOCK_BYTES / 10_000, abs=2)
    assert [one.at_us for one in kept] == list(range(200))[-len(kept) :]


def test_what_no_feature_can_hold_is_left_out() -> None:
    assert unpack(pack_reads([read(2**70), read(1), read("\ud800"), read(object())])) == (read(1),)


def _packed(value: object) -> str:
    return base64.b64encode(msgspec.msgpack.encode(value)).decode()


@pytest.mark.parametrize(
    "text",
    [
        "*",
        "",
        "A" * (3 * MAX_BLOCK_BYTES),
        _packed({"a": 1}),
        _packed([[5]]),
        _packed([[5, {"id": ["a"]}, {}, {"x": [1]}, {"x": [9]}, {}]]),
        _packed([[5, {"id": ["a"]}, {}, {"x": [1, 2]}, {"x": [0, 0]}, {}]]),
        _packed([[5, {"id": ["a"]}, {}, {"x": [1]}, {"y": [0]}, {}]]),
        _packed([["now", {"id": ["a"]}, {}, {"x": [1]}, {"x": [0]}, {}]]),
        base64.b64encode(b"\x91" * 100_000).decode(),
    ],
)
def test_strange_bytes_are_corrupt(text: str) -> None:
    with pytest.raises(CorruptData):
        unpack(text)


def test_a_sampler_takes_every_nth_and_holds_the_newest() -> None:
    sampler = ReadSampler(10, max_reads=3)
    answer = Given({"x": np.array([1.0])}, {"x": np.array([PRESENT], np.uint8)})
    for n in range(100):
        if sampler.chosen():
            sampler.take({"id": [f"c{n}"]}, None, n, answer)
    held = sampler.drain()
    assert [one.at_us for one in held] == [70, 80, 90]
    assert (sampler.dropped, sampler.drain()) == (7, [])
    assert unpack(pack_reads(held)) == tuple(held)


def test_a_long_read_is_held_in_part() -> None:
    sampler = ReadSampler(1)
    answer = Given({"x": np.arange(1_000.0)}, {"x": [PRESENT] * 1_000}, {"x": np.arange(1_000)})
    sampler.take({"id": np.arange(1_000)}, {"price": [2.5] * 1_000}, 7, answer)
    (one,) = sampler.drain()
    assert len(one.keys["id"]) == 16
    assert one.columns["x"] == one.keys["id"] == one.events["x"]
    sampler.take({"id": ["a"]}, None, 7, Given({"x": [1.0]}, {"x": [PRESENT]}, {"view:a/b@v1": [3]}))
    assert unpack(pack_reads(sampler.drain()))[0].events == {}
    sampler.take({"id": []}, None, 7, Given({"x": []}, {"x": []}))
    assert sampler.drain() == []
    with pytest.raises(Invalid):
        ReadSampler(0)


def test_by_request_the_same_are_chosen_everywhere_and_about_as_many() -> None:
    ids = [f"req-{n:08}" for n in range(20_000)]
    chosen = {one for one in ids if ReadSampler(100).chosen(one)}
    again = ReadSampler(100)
    assert chosen == {one for one in ids if again.chosen(one)}
    assert 120 <= len(chosen) <= 290
