"""Labels: joined by request or key with what was answered, in whatever protocol; and forgotten with a person."""

import json
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from falaj.oip import proto, rest
from falaj.oip.tensors import Answer, Made
from falaj.serve.bodies import inputs_of, outputs_of, plain
from falaj.serve.journal import GRPC, Journal, binary
from falaj.serve.judge import Tally
from falaj.serve.labels import HOW, Labelled, Labels, Quality, badness, score
from tests.serve.ground import NOON, REF, WHOSE, logged
from tests.town import Town

Y = Quality("y")


@pytest.fixture
def labels(town: Town) -> Iterator[Labels]:
    made = Labels(town.house._series, town.house.ledger)
    yield made
    made.delete("bank", REF)


@pytest.fixture
def journal(town: Town) -> Iterator[Journal]:
    made = Journal(town.house._series, town.house.ledger)
    yield made
    made.delete("bank", REF)


def answer(*values: float) -> bytes:
    tensor = {"name": "y", "datatype": "FP32", "shape": [len(values), 1], "data": list(values)}
    return json.dumps({"model_name": "m", "outputs": [tensor]}).encode()


def test_labels_by_request_and_by_key(journal: Journal, labels: Labels) -> None:
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
        WHOSE, [Labelled(NOON + 9, "a", "", 1), Labelled(NOON + 9, "b", "", 1), Labelled(NOON + 9, "broken", "", 1)]
    )
    labels.append(WHOSE, [Labelled(NOON + 10, "", "k1", 1)])
    assert labels.quality("bank", REF, Y, NOON) == {"base": Tally(2, 1.0), "b": Tally(1, 0.0)}
    assert labels.quality("bank", REF, Y, NOON + 2) == {"b": Tally(1, 0.0)}
    labels.append(WHOSE, [Labelled(NOON + 11, "b", "", 0)])
    assert labels.quality("bank", REF, Y, NOON)["base"] == Tally(2, 0.0), "the later label counts"


def test_what_comes_later_is_added_and_nothing_is_counted_twice(journal: Journal, labels: Labels) -> None:
    proxy = Quality("y", "value")
    for turn in range(5):
        journal.append(WHOSE, [logged(NOON + 60 * turn, f"q{turn}", response=answer(1.0))])
        journal.append(WHOSE, [logged(NOON + 60 * turn - 50, f"late{turn}", response=answer(0.0))])
        assert labels.quality("bank", REF, proxy, NOON - 100) == {"base": Tally(2 * turn + 2, turn + 1.0)}
    assert labels.quality("bank", REF, proxy, NOON + 240) == {"base": Tally(1, 0.0)}


def test_a_proxy_needs_no_label(journal: Journal, labels: Labels) -> None:
    journal.append(WHOSE, [logged(NOON + n, f"q{n}", response=answer(5.0)) for n in range(4)])
    proxy = Quality("y", "value", 0.0, 10.0)
    assert labels.quality("bank", REF, proxy, NOON) == {"base": Tally(4, 2.0)}


def test_badness_is_between_0_and_1() -> None:
    assert badness(Quality("y", "absolute", 0, 10), (3.0,), 8.0) == 0.5
    assert badness(Quality("y", "squared", 0, 10), (3.0,), 8.0) == 0.25
    assert badness(Quality("y", "absolute", 0, 10), (300.0,), 8.0) == 1.0
    assert badness(Quality("y", "value", better="low"), (0.2,), 0.0) == pytest.approx(0.2)
    assert badness(Y, (1.0, 0.0), 1.0) == 0.5


def test_answers_of_every_protocol_are_read() -> None:
    made = Answer(
        "m", "1", "", [Made("y", "FP32", (2, 2), np.array([[1, 2], [3, 4]], "<f4")), Made("t", "BYTES", (1,), [b"hi"])]
    )
    wanted = {"y": [[1.0, 2.0], [3.0, 4.0]], "t": ["hi"]}
    text = b"".join(rest.encode(made, False).parts)
    tail = rest.encode(made, True)
    message = proto.write_answer(made, proto.RAW)
    typed = proto.write_answer(made, 0)
    assert plain(outputs_of(logged(NOON, "q", response=text))) == wanted
    assert (
        plain(outputs_of(logged(NOON, "q", response=b"".join(tail.parts), encoding=binary(0, tail.json_bytes))))
        == wanted
    )
    assert plain(outputs_of(logged(NOON, "q", response=message, encoding=GRPC))) == wanted
    assert plain(outputs_of(logged(NOON, "q", response=typed, encoding=GRPC))) == wanted
    assert outputs_of(logged(NOON, "q", response=text, status=500)) == {}


@pytest.mark.parametrize("encoding", ["json", "grpc", "gone", "binary 10 10", "binary 999 999", "unheard of"])
def test_what_cannot_be_read_is_left_out(encoding: str) -> None:
    for junk in (b"", b"{}", b"\xff" * 30, b'{"outputs": 3}', b'{"outputs": [{"name": "y"}]}'):
        row = logged(NOON, "q", request=junk, response=junk, encoding=encoding)
        assert (inputs_of(row), outputs_of(row)) == ({}, {})


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
    plain(inputs_of(row))
    plain(outputs_of(row))
    for how in HOW:
        scored = score(row, Quality("y", how))
        if scored.values:
            assert 0 <= badness(Quality("y", how), scored.values, 1.0) <= 1


@given(st.data())
@settings(deadline=None)
def test_no_cut_or_changed_answer_breaks_the_judge(data: st.DataObject) -> None:
    made = Answer("m", "1", "", [Made("y", "FP32", (2, 2), np.array([[1, 2], [3, 4]], "<f4"))])
    tail = rest.encode(made, True)
    bodies = {GRPC: proto.write_answer(made, proto.RAW), binary(0, tail.json_bytes): b"".join(tail.parts)}
    encoding = data.draw(st.sampled_from(sorted(bodies)))
    body = bytearray(bodies[encoding])
    for at in data.draw(st.lists(st.integers(0, len(body) - 1), max_size=4)):
        body[at] = data.draw(st.integers(0, 255))
    cut = bytes(body[: data.draw(st.integers(0, len(body)))])
    plain(outputs_of(logged(NOON, "q", response=cut, encoding=encoding)))


def test_requests_are_read_too() -> None:
    request = json.dumps({"inputs": [{"name": "x", "datatype": "INT64", "shape": [2], "data": [1, 2]}]}).encode()
    assert plain(inputs_of(logged(NOON, "q", request=request))) == {"x": [1, 2]}


def test_the_largest_score_is_the_class(journal: Journal, labels: Labels) -> None:
    tensor = {"name": "y", "datatype": "FP32", "shape": [1, 3], "data": [0.1, 0.2, 0.7]}
    journal.append(WHOSE, [logged(NOON, "q", response=json.dumps({"outputs": [tensor]}).encode())])
    labels.append(WHOSE, [Labelled(NOON + 1, "q", "", 2)])
    assert labels.quality("bank", REF, Y, NOON) == {"base": Tally(1, 0.0)}


def test_labels_of_a_person_go(labels: Labels) -> None:
    labels.append(WHOSE, [Labelled(NOON, "a", "", 1), Labelled(NOON, "", "k1", 1), Labelled(NOON, "", "k2", 1)])
    assert labels.forget(WHOSE, ["k1"], ["a"]) == 2
    assert [row.key for row in labels.read("bank", REF)] == ["k2"]
    assert labels.forget(WHOSE, ["k2"]) == 1
    assert labels.read("bank", REF) == []
    labels.append(WHOSE, [Labelled(NOON, "a", "", 1)])
    assert labels.expire("bank", REF, NOON + 1) == 1
