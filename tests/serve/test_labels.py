"""Labels: joined by request or key with what was answered, in whatever protocol; and forgotten with a person."""

import json
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from falaj.oip import infer_messages, rest_codec
from falaj.oip.tensors import InferenceResponse, OutputTensor
from falaj.serve.journal_tensors import read_inputs, read_outputs, to_nested_lists
from falaj.serve.late_labels import (
    QUALITY_METHODS,
    LabelRow,
    LateLabels,
    QualityMeasure,
    compute_badness,
    score_request,
)
from falaj.serve.request_journal import GRPC_ENCODING, RequestJournal, binary_encoding
from falaj.serve.sequential_test import OutcomeTally
from tests.serve.ground import NOON, REF, WHOSE, logged
from tests.town import Town

Y = QualityMeasure("y")


@pytest.fixture
def labels(town: Town) -> Iterator[LateLabels]:
    made = LateLabels(town.house._open_series, town.house.ledger)
    yield made
    made.delete("bank", REF)


@pytest.fixture
def journal(town: Town) -> Iterator[RequestJournal]:
    made = RequestJournal(town.house._open_series, town.house.ledger)
    yield made
    made.delete("bank", REF)


def answer(*values: float) -> bytes:
    tensor = {"name": "y", "datatype": "FP32", "shape": [len(values), 1], "data": list(values)}
    return json.dumps({"model_name": "m", "outputs": [tensor]}).encode()


def test_labels_by_request_and_by_key(journal: RequestJournal, labels: LateLabels) -> None:
    rows = [
        logged(NOON, "a", response=answer(0.9)),
        logged(NOON + 1, "b", response=answer(0.2)),
        logged(NOON + 2, "c", "k1", response=answer(0.8), arm="b"),
        logged(NOON + 30, "d", "k1", response=answer(0.8), arm="b"),
        logged(NOON + 3, "unlabelled", response=answer(0.8)),
        logged(NOON + 4, "broken", response=b"{", arm="b"),
    ]
    journal.append(WHOSE, rows)
    labels.append(
        WHOSE, [LabelRow(NOON + 9, "a", "", 1), LabelRow(NOON + 9, "b", "", 1), LabelRow(NOON + 9, "broken", "", 1)]
    )
    labels.append(WHOSE, [LabelRow(NOON + 10, "", "k1", 1)])
    assert labels.quality("bank", REF, Y, NOON) == {"base": OutcomeTally(2, 1.0), "b": OutcomeTally(1, 0.0)}
    assert labels.quality("bank", REF, Y, NOON + 2) == {"b": OutcomeTally(1, 0.0)}
    labels.append(WHOSE, [LabelRow(NOON + 11, "b", "", 0)])
    assert labels.quality("bank", REF, Y, NOON)["base"] == OutcomeTally(2, 0.0), "the later label counts"


def test_what_comes_later_is_added_and_nothing_is_counted_twice(journal: RequestJournal, labels: LateLabels) -> None:
    proxy = QualityMeasure("y", "value")
    for turn in range(5):
        journal.append(WHOSE, [logged(NOON + 60 * turn, f"q{turn}", response=answer(1.0))])
        journal.append(WHOSE, [logged(NOON + 60 * turn - 50, f"late{turn}", response=answer(0.0))])
        assert labels.quality("bank", REF, proxy, NOON - 100) == {"base": OutcomeTally(2 * turn + 2, turn + 1.0)}
    assert labels.quality("bank", REF, proxy, NOON + 240) == {"base": OutcomeTally(1, 0.0)}


def test_a_proxy_needs_no_label(journal: RequestJournal, labels: LateLabels) -> None:
    journal.append(WHOSE, [logged(NOON + n, f"q{n}", response=answer(5.0)) for n in range(4)])
    proxy = QualityMeasure("y", "value", 0.0, 10.0)
    assert labels.quality("bank", REF, proxy, NOON) == {"base": OutcomeTally(4, 2.0)}


def test_badness_is_between_0_and_1() -> None:
    assert compute_badness(QualityMeasure("y", "absolute", 0, 10), (3.0,), 8.0) == 0.5
    assert compute_badness(QualityMeasure("y", "squared", 0, 10), (3.0,), 8.0) == 0.25
    assert compute_badness(QualityMeasure("y", "absolute", 0, 10), (300.0,), 8.0) == 1.0
    assert compute_badness(QualityMeasure("y", "value", better="low"), (0.2,), 0.0) == pytest.approx(0.2)
    assert compute_badness(Y, (1.0, 0.0), 1.0) == 0.5


def test_answers_of_every_protocol_are_read() -> None:
    made = InferenceResponse(
        "m",
        "1",
        "",
        [
            OutputTensor("y", "FP32", (2, 2), np.array([[1, 2], [3, 4]], "<f4")),
            OutputTensor("t", "BYTES", (1,), [b"hi"]),
        ],
    )
    wanted = {"y": [[1.0, 2.0], [3.0, 4.0]], "t": ["hi"]}
    text = b"".join(rest_codec.encode_response(made, False).parts)
    tail = rest_codec.encode_response(made, True)
    message = infer_messages.encode_infer_response(made, infer_messages.RAW_RESPONSE)
    typed = infer_messages.encode_infer_response(made, 0)
    assert to_nested_lists(read_outputs(logged(NOON, "q", response=text))) == wanted
    assert (
        to_nested_lists(
            read_outputs(logged(NOON, "q", response=b"".join(tail.parts), encoding=binary_encoding(0, tail.json_bytes)))
        )
        == wanted
    )
    assert to_nested_lists(read_outputs(logged(NOON, "q", response=message, encoding=GRPC_ENCODING))) == wanted
    assert to_nested_lists(read_outputs(logged(NOON, "q", response=typed, encoding=GRPC_ENCODING))) == wanted
    assert read_outputs(logged(NOON, "q", response=text, status=500)) == {}


@pytest.mark.parametrize("encoding", ["json", "grpc", "gone", "binary 10 10", "binary 999 999", "unheard of"])
def test_what_cannot_be_read_is_left_out(encoding: str) -> None:
    for junk in (b"", b"{}", b"\xff" * 30, b'{"outputs": 3}', b'{"outputs": [{"name": "y"}]}'):
        row = logged(NOON, "q", request=junk, response=junk, encoding=encoding)
        assert (read_inputs(row), read_outputs(row)) == ({}, {})


ENCODINGS = st.sampled_from(["json", "grpc", "binary 40 90", "binary 0 0", "gone", ""])
SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3)
TENSOR = st.fixed_dictionaries(
    {"name": st.sampled_from(["y", "x"]), "datatype": st.sampled_from(["FP32", "BYTES", "?"])},
    optional={"shape": st.lists(st.integers(-2, 1 << 70), max_size=3), "data": st.lists(SCALARS, max_size=4)},
)


@given(
    ENCODINGS,
    st.binary(max_size=60)
    | st.builds(lambda one: json.dumps({"outputs": one, "inputs": one}).encode(), st.lists(TENSOR, max_size=2)),
)
@settings(deadline=None)
def test_no_body_breaks_the_judge(encoding: str, body: bytes) -> None:
    row = logged(NOON, "q", request=body, response=body, encoding=encoding)
    to_nested_lists(read_inputs(row))
    to_nested_lists(read_outputs(row))
    for how in QUALITY_METHODS:
        scored = score_request(row, QualityMeasure("y", how))
        if scored.values:
            assert 0 <= compute_badness(QualityMeasure("y", how), scored.values, 1.0) <= 1


@given(st.data())
@settings(deadline=None)
def test_no_cut_or_changed_answer_breaks_the_judge(data: st.DataObject) -> None:
    made = InferenceResponse("m", "1", "", [OutputTensor("y", "FP32", (2, 2), np.array([[1, 2], [3, 4]], "<f4"))])
    tail = rest_codec.encode_response(made, True)
    bodies = {
        GRPC_ENCODING: infer_messages.encode_infer_response(made, infer_messages.RAW_RESPONSE),
        binary_encoding(0, tail.json_bytes): b"".join(tail.parts),
    }
    encoding = data.draw(st.sampled_from(sorted(bodies)))
    body = bytearray(bodies[encoding])
    for at in data.draw(st.lists(st.integers(0, len(body) - 1), max_size=4)):
        body[at] = data.draw(st.integers(0, 255))
    cut = bytes(body[: data.draw(st.integers(0, len(body)))])
    to_nested_lists(read_outputs(logged(NOON, "q", response=cut, encoding=encoding)))


def test_requests_are_read_too() -> None:
    request = json.dumps({"inputs": [{"name": "x", "datatype": "INT64", "shape": [2], "data": [1, 2]}]}).encode()
    assert to_nested_lists(read_inputs(logged(NOON, "q", request=request))) == {"x": [1, 2]}


def test_the_largest_score_is_the_class(journal: RequestJournal, labels: LateLabels) -> None:
    tensor = {"name": "y", "datatype": "FP32", "shape": [1, 3], "data": [0.1, 0.2, 0.7]}
    journal.append(WHOSE, [logged(NOON, "q", response=json.dumps({"outputs": [tensor]}).encode())])
    labels.append(WHOSE, [LabelRow(NOON + 1, "q", "", 2)])
    assert labels.quality("bank", REF, Y, NOON) == {"base": OutcomeTally(1, 0.0)}


def test_labels_of_a_person_go(labels: LateLabels) -> None:
    labels.append(WHOSE, [LabelRow(NOON, "a", "", 1), LabelRow(NOON, "", "k1", 1), LabelRow(NOON, "", "k2", 1)])
    assert labels.forget(WHOSE, ["k1"], ["a"]) == 2
    assert [row.key for row in labels.read("bank", REF)] == ["k2"]
    assert labels.forget(WHOSE, ["k2"]) == 1
    assert labels.read("bank", REF) == []
    labels.append(WHOSE, [LabelRow(NOON, "a", "", 1)])
    assert labels.expire("bank", REF, NOON + 1) == 1
