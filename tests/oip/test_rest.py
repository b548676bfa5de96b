"""Requests and answers in JSON and binary: what is right is exactly numpy's, what is wrong is said to be."""

import json
import math
import time
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from falaj.core.errors import FalajError, Invalid, QuotaExceeded, Unauthenticated, Unavailable, UserCodeFailed
from falaj.oip.handler_calls import OCTET_STREAM_TYPE, HttpReply
from falaj.oip.rest_codec import (
    NO_JSON_LENGTH,
    decode_raw_request,
    decode_request,
    encode_response,
    error_reply,
    parse_json_length,
)
from falaj.oip.tensors import (
    MAX_TEXT_ELEMENTS,
    NUMPY_TYPES,
    InferenceRequest,
    InferenceResponse,
    OutputTensor,
    pack_numbers,
    to_raw_bytes,
)
from tests.oip.test_tensors import values

SPEC = {"name": "x", "datatype": "FP32", "shape": [1, 2], "data": [1, 2.5]}


def ask(request: Any, tail: bytes = b"") -> tuple[InferenceRequest, Any]:
    head = request if isinstance(request, bytes) else json.dumps(request).encode()
    return decode_request(head + tail, len(head) if tail else NO_JSON_LENGTH, "m", "3")


def request(tail: bytes = b"", **changes: Any) -> tuple[InferenceRequest, Any]:
    spec = {name: value for name, value in {**SPEC, **changes}.items() if value is not ...}
    return ask({"inputs": [spec]}, tail)


def test_a_plain_request() -> None:
    found, wanted = ask({"id": "7", "inputs": [SPEC], "parameters": {"k": 1}, "unknown": {"a": [1]}})
    (one,) = found.inputs
    assert (found.model, found.version, found.id, found.parameters) == ("m", "3", "7", {"k": 1})
    assert (one.name, one.datatype, one.shape, one.data) == ("x", "FP32", (1, 2), np.array([1, 2.5], "<f4").tobytes())
    assert wanted is False
    assert (found.deadline, found.priority, found.sequence, found.outputs) == (0.0, 0, 0, ())


def test_parameters_that_are_understood_go_where_they_belong() -> None:
    parameters = {
        "timeout": 2_000_000,
        "priority": 3,
        "sequence_id": 9,
        "sequence_start": True,
        "binary_data_output": True,
    }
    found, wanted = ask({"inputs": [SPEC], "parameters": parameters})
    assert 1 < found.deadline - time.monotonic() < 3
    assert (found.priority, found.sequence, found.sequence_start, found.sequence_end) == (3, 9, True, False)
    assert (found.parameters, wanted) == ({}, True)
    assert ask({"inputs": [SPEC], "parameters": {"sequence_id": "s"}})[0].sequence == "s"


def test_outputs_by_name() -> None:
    outputs = [{"name": "y", "parameters": {"binary_data": True}}, {"name": "z"}]
    found, wanted = ask({"inputs": [SPEC], "outputs": outputs})
    assert (found.outputs, wanted) == (("y", "z"), {"y": True, "z": False})
    _, wanted = ask({"inputs": [SPEC], "outputs": [{"name": "y"}], "parameters": {"binary_data_output": True}})
    assert wanted == {"y": True}


@pytest.mark.parametrize("name", ["id", "parameters", "outputs"])
def test_nothing_may_be_said_as_null(name: str) -> None:
    assert ask({"inputs": [SPEC], name: None})[0].id == ""


def test_binary_inputs_follow_in_order() -> None:
    inputs = [
        {"name": "a", "datatype": "INT16", "shape": [2], "parameters": {"binary_data_size": 4}},
        {"name": "b", "datatype": "FP32", "shape": [1], "data": [1.5]},
        {"name": "c", "datatype": "BYTES", "shape": [2], "parameters": {"binary_data_size": 9}},
    ]
    for padding in (b"", b" " * 5000):  # large bodies are not copied
        found, _ = ask(json.dumps({"inputs": inputs}).encode() + padding, b"\1\0\2\0" + b"\1\0\0\0x\0\0\0\0")
        assert [one.data for one in found.inputs] == [b"\1\0\2\0", b"\0\0\xc0?", [b"x", b""]]


WRONG: dict[str, Any] = {
    "empty": b"",
    "no JSON": b"hello",
    "a list": b"[]",
    "null": b"null",
    "cut": b'{"inputs":[',
    "two": b"{}{}",
    "not UTF-8": b'{"inputs":[],"id":"\xff"}',
    "half a surrogate": b'{"inputs":[],"id":"\\ud800"}',
    "no inputs": {},
    "empty inputs": {"inputs": []},
    "inputs no list": {"inputs": {}},
    "input no object": {"inputs": [1]},
    "deep": b'{"inputs":' + b"[" * 100_000,
    "deep data": b'{"inputs":[{"name":"x","datatype":"FP32","shape":[1],"data":'
    + b"[" * 100_000
    + b"]" * 100_000
    + b"}]}",
    "NaN": b'{"inputs":[{"name":"x","datatype":"FP32","shape":[1],"data":[NaN]}]}',
    "Infinity": b'{"inputs":[{"name":"x","datatype":"FP32","shape":[1],"data":[Infinity]}]}',
    "too many inputs": {"inputs": [{**SPEC, "name": f"x{i}"} for i in range(300)]},
    "two of one name": {"inputs": [SPEC, SPEC]},
    "id a number": {"inputs": [SPEC], "id": 7},
    "long id": {"inputs": [SPEC], "id": "x" * 2000},
    "parameters a list": {"inputs": [SPEC], "parameters": []},
    "nested parameter": {"inputs": [SPEC], "parameters": {"a": {}}},
    "null parameter": {"inputs": [SPEC], "parameters": {"a": None}},
    "timeout a text": {"inputs": [SPEC], "parameters": {"timeout": "1"}},
    "timeout negative": {"inputs": [SPEC], "parameters": {"timeout": -1}},
    "timeout a fraction": {"inputs": [SPEC], "parameters": {"timeout": 1.5}},
    "timeout true": {"inputs": [SPEC], "parameters": {"timeout": True}},
    "priority negative": {"inputs": [SPEC], "parameters": {"priority": -1}},
    "priority a text": {"inputs": [SPEC], "parameters": {"priority": "high"}},
    "sequence a fraction": {"inputs": [SPEC], "parameters": {"sequence_id": 1.5}},
    "sequence negative": {"inputs": [SPEC], "parameters": {"sequence_id": -1}},
    "sequence true": {"inputs": [SPEC], "parameters": {"sequence_id": True}},
    "start of no sequence": {"inputs": [SPEC], "parameters": {"sequence_start": True}},
    "start a number": {"inputs": [SPEC], "parameters": {"sequence_id": 1, "sequence_start": 1}},
    "sequence unknown": {"inputs": [SPEC], "parameters": {"sequence_id": 1, "sequence_pause": True}},
    "binary output a text": {"inputs": [SPEC], "parameters": {"binary_data_output": "yes"}},
    "output twice": {"inputs": [SPEC], "outputs": [{"name": "y"}, {"name": "y"}]},
    "output without a name": {"inputs": [SPEC], "outputs": [{}]},
    "classification": {"inputs": [SPEC], "outputs": [{"name": "y", "parameters": {"classification": 2}}]},
    "output in shared memory": {
        "inputs": [SPEC],
        "outputs": [{"name": "y", "parameters": {"shared_memory_region": "r"}}],
    },
    "binary_data a number": {"inputs": [SPEC], "outputs": [{"name": "y", "parameters": {"binary_data": 1}}]},
}
WRONG_INPUT: dict[str, dict[str, Any]] = {
    "no name": {"name": ...},
    "name a number": {"name": 1},
    "no datatype": {"datatype": ...},
    "no shape": {"shape": ...},
    "no data": {"data": ...},
    "data null": {"data": None},
    "data a number": {"data": 1},
    "data a text": {"data": "ab"},
    "data an object": {"data": {}},
    "datatype unknown": {"datatype": "FP31"},
    "datatype small": {"datatype": "fp32"},
    "shape a number": {"shape": 2},
    "shape negative": {"shape": [-1, -2]},
    "shape of any size": {"shape": [-1, 2]},
    "shape a fraction": {"shape": [1.5, 2]},
    "shape a truth": {"shape": [True, 2]},
    "shape huge": {"shape": [1 << 40]},
    "shape of many": {"shape": [1] * 17 + [2]},
    "fewer": {"data": [1]},
    "more": {"data": [1, 2, 3]},
    "none": {"data": []},
    "null in data": {"data": [1, None]},
    "text in data": {"data": [1, "2"]},
    "truth in numbers": {"data": [1, True]},
    "number in truths": {"datatype": "BOOL", "data": [0, 1]},
    "fraction in INT32": {"datatype": "INT32", "data": [1, 2.5]},
    "number in BYTES": {"datatype": "BYTES", "data": [1, 2]},
    "too large for UINT8": {"datatype": "UINT8", "data": [1, 256]},
    "too large for FP32": {"data": [1, 1e39]},
    "too large for FP64": {"datatype": "FP64", "data": [1, 10**400]},
    "too deep": {"data": [[[1, 2]]]},
    "wrong nest": {"data": [[1], [2]]},
    "ragged": {"shape": [2, 2], "data": [[1, 2, 3], [4]]},
    "mixed nest": {"shape": [2, 2], "data": [[1, 2], 3, 4]},
    "nothing huge": {"shape": [0, 1 << 30, 1 << 30], "data": []},
    "shared memory": {"data": ..., "parameters": {"shared_memory_region": "r"}},
    "data and binary": {"parameters": {"binary_data_size": 8}},
    "binary without bytes": {"data": ..., "parameters": {"binary_data_size": 8}},
    "binary size negative": {"data": ..., "parameters": {"binary_data_size": -8}},
    "binary size a text": {"data": ..., "parameters": {"binary_data_size": "8"}},
    "binary size true": {"data": ..., "parameters": {"binary_data_size": True}},
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_no_request_is_invalid(name: str) -> None:
    with pytest.raises(Invalid) as found:
        ask(WRONG[name])
    assert len(str(found.value)) < 700


@pytest.mark.parametrize("name", WRONG_INPUT)
def test_what_is_no_input_is_invalid(name: str) -> None:
    with pytest.raises(Invalid):
        request(**WRONG_INPUT[name])


@pytest.mark.parametrize(("size", "tail"), [(8, b"1234567"), (8, b"123456789"), (4, b"1234"), (1 << 60, b"12345678")])
def test_binary_sizes_that_lie_are_invalid(size: int, tail: bytes) -> None:
    with pytest.raises(Invalid):
        request(tail, data=..., parameters={"binary_data_size": size})


def test_elements_of_bytes_are_counted_over_all_inputs() -> None:
    many = MAX_TEXT_ELEMENTS // 2 + 1
    inputs = [{"name": one, "datatype": "BYTES", "shape": [many], "data": [""]} for one in "ab"]
    with pytest.raises(Invalid, match="has 1 elements"):
        decode_request(json.dumps({"inputs": inputs[:1]}).encode(), NO_JSON_LENGTH, "m", "")
    inputs[0]["data"] = [""] * many
    with pytest.raises(Invalid, match=f"{2 * many} elements of BYTES"):
        decode_request(json.dumps({"inputs": inputs}).encode(), NO_JSON_LENGTH, "m", "")


def test_a_header_longer_than_the_body_is_invalid() -> None:
    with pytest.raises(Invalid, match="count again"):
        decode_request(b"{}", 3, "m", "")
    for said in (b"-1", b"x", b"1_0", b"\xb2", b"9" * 20, b""):
        with pytest.raises(Invalid):
            parse_json_length({b"inference-header-content-length": said})
    assert parse_json_length({b"inference-header-content-length": b"12"}) == 12


SHAPES = st.lists(st.integers(0, 4), max_size=4).map(tuple)


@pytest.mark.parametrize("datatype", [*NUMPY_TYPES, "BF16", "BYTES"])
@given(data=st.data())
@settings(max_examples=25, deadline=None)
def test_tensors_arrive_as_they_were_sent_and_leave_as_they_were_made(datatype: str, data: st.DataObject) -> None:
    """Flat, nested and binary are one tensor; and an answer that is sent as it was asked for is the same again."""
    shape = data.draw(SHAPES)
    count = math.prod(shape)
    flat = data.draw(st.lists(values(datatype), min_size=count, max_size=count))
    raw = (
        to_raw_bytes(OutputTensor("x", "BYTES", shape, flat))
        if datatype == "BYTES"
        else pack_numbers("x", datatype, flat)
    )
    nested = np.array(flat, object).reshape(shape).tolist() if shape else flat
    spec = {"name": "x", "datatype": datatype, "shape": list(shape)}
    wanted: Any = [one.encode() for one in flat] if datatype == "BYTES" else raw
    for listed in (flat, nested):
        assert ask({"inputs": [{**spec, "data": listed}]})[0].inputs[0].data == wanted
    head = json.dumps({"inputs": [{**spec, "parameters": {"binary_data_size": len(raw)}}]}).encode()
    (one,) = decode_request(head + raw, len(head), "m", "")[0].inputs
    assert one.data == wanted
    made_of = wanted if datatype == "BYTES" else np.frombuffer(raw, NUMPY_TYPES.get(datatype, "<u2")).reshape(shape)
    answer = InferenceResponse("m", "1", "", [OutputTensor("x", datatype, shape, made_of)])
    told = json.loads(b"".join(encode_response(answer, False).parts))["outputs"][0]
    assert ask({"inputs": [told]})[0].inputs[0].data == wanted
    reply = encode_response(answer, True)
    assert decode_request(b"".join(reply.parts).replace(b'"outputs"', b'"inputs" '), reply.json_bytes, "m", "")[
        0
    ].inputs[0].data == (wanted)


def test_answers_say_what_there_is_and_nothing_else() -> None:
    made = [OutputTensor("y", "FP32", (1, 2), np.array([[1, 2.5]], "<f4")), OutputTensor("z", "BYTES", (1,), [b"ab"])]
    answer = InferenceResponse("m", "", "", made)
    assert body(encode_response(answer, False)) == {
        "model_name": "m",
        "outputs": [
            {"name": "y", "datatype": "FP32", "shape": [1, 2], "data": [1.0, 2.5]},
            {"name": "z", "datatype": "BYTES", "shape": [1], "data": ["ab"]},
        ],
    }
    answer.version, answer.id, answer.parameters = "3", 'i"\r\n', {"k": 1}
    reply = encode_response(answer, {"z": True, "y": False})
    assert reply.kind == OCTET_STREAM_TYPE
    told = json.loads(reply.parts[0])
    assert (told["model_version"], told["id"], told["parameters"]) == ("3", 'i"\r\n', {"k": 1})
    assert [one["name"] for one in told["outputs"]] == ["z", "y"]
    assert told["outputs"][0]["parameters"] == {"binary_data_size": 6}
    assert "data" not in told["outputs"][0]
    assert (reply.json_bytes, reply.parts[1:]) == (len(reply.parts[0]), (b"\2\0\0\0ab",))
    with pytest.raises(Invalid, match="no output 'q'"):
        encode_response(answer, {"q": False})


@pytest.mark.parametrize("odd", [math.nan, math.inf, -math.inf])
def test_numbers_that_json_has_no_word_for_are_not_made_up(odd: float) -> None:
    answer = InferenceResponse("m", "1", "null", [OutputTensor("y", "FP32", (2,), np.array([1, odd], "<f4"))])
    with pytest.raises(UserCodeFailed, match="binary"):
        encode_response(answer, False)
    assert encode_response(answer, True).parts[1] == np.array([1, odd], "<f4").tobytes()
    answer.outputs = [OutputTensor("null", "FP32", (1,), np.array([1], "<f4"))]
    assert body(encode_response(answer, False))["id"] == "null"


@pytest.mark.parametrize(
    ("spec", "batches", "sent", "shape"),
    [
        (("FP32", [-1, 4]), True, bytes(16), (1, 4)),
        (("FP32", [-1, -1]), True, bytes(12), (1, 3)),
        (("FP32", [-1]), False, bytes(12), (3,)),
        (("FP32", [2, -1]), False, bytes(16), (2, 2)),
        (("FP32", [-1, 4]), True, bytes(32), None),
        (("FP32", [-1, -1]), False, bytes(16), None),
        (("FP32", [-1]), False, bytes(13), None),
        (("BYTES", [-1, 1]), True, b"hello", (1, 1)),
        (("BYTES", [-1, 2]), True, b"hello", None),
        (("FP32", [-1, 0, -1]), True, b"hello", None),
    ],
)
def test_a_body_of_nothing_but_bytes(spec: Any, batches: bool, sent: bytes, shape: tuple[int, ...] | None) -> None:
    found = {"name": "x", "datatype": spec[0], "shape": spec[1]}
    if shape is None:
        with pytest.raises(Invalid):
            decode_raw_request(sent, InferenceRequest("m", "", ()), found, is_batched=batches)
        return
    asked, wanted = decode_raw_request(sent, InferenceRequest("m", "", ()), found, is_batched=batches)
    assert (asked.inputs[0].shape, wanted) == (shape, True)
    assert asked.inputs[0].data == ([sent] if spec[0] == "BYTES" else sent)


class Later(QuotaExceeded):
    """As the engine says that its queue is full."""

    retry_after_s = 2.5


@pytest.mark.parametrize(
    ("error", "status", "headers"),
    [
        (Invalid("a", "b"), 400, {}),
        (Unauthenticated("a", "b"), 401, {b"www-authenticate": b"Bearer"}),
        (Later("a", "b"), 429, {b"retry-after": b"3"}),
        (Unavailable("a", "b"), 503, {b"retry-after": b"1"}),
        (FalajError("a", "b"), 500, {}),
    ],
)
def test_errors_are_one_text(error: FalajError, status: int, headers: dict[bytes, bytes]) -> None:
    reply = error_reply(error)
    assert (reply.status, dict(reply.headers), body(reply)) == (status, headers, {"error": "a (b)"})


ANY = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
NAMES = st.sampled_from(["name", "datatype", "shape", "data", "parameters"])
CHANGED = st.dictionaries(NAMES, ANY, max_size=2).map(lambda changes: {**SPEC, **changes})
BODIES = st.one_of(
    st.binary(max_size=60),
    ANY.map(lambda one: json.dumps(one).encode()),
    st.fixed_dictionaries(
        {"inputs": st.lists(CHANGED, max_size=2)},
        optional={"id": ANY, "parameters": ANY, "outputs": ANY, "other": ANY},
    ).map(lambda one: json.dumps(one).encode()),
)


@given(BODIES, st.binary(max_size=12), st.integers(-3, 3))
@settings(max_examples=400, deadline=None)
def test_no_body_breaks_the_decoder(head: bytes, tail: bytes, off: int) -> None:
    length = max(len(head) + off, 0) if tail else NO_JSON_LENGTH
    try:
        found, _ = decode_request(head + tail, length, "m", "")
    except Invalid as error:
        assert len(str(error)) < 700  # noqa: PT017
        return
    for one in found.inputs:
        size = np.dtype(NUMPY_TYPES[one.datatype]).itemsize if one.datatype in NUMPY_TYPES else 1
        assert len(one.data) == math.prod(one.shape) * (size if one.datatype != "BF16" else 2)


def body(reply: HttpReply) -> Any:
    return json.loads(b"".join(reply.parts))


def test_a_header_that_came_before_means_the_same_with_other_bytes() -> None:
    def body(value: float, **more: Any) -> tuple[bytes, int]:
        given = {"name": "x", "shape": [1, 2], "datatype": "FP32", "parameters": {"binary_data_size": 8}}
        head = json.dumps({"inputs": [given], "parameters": {"binary_data_output": True}, **more}).encode()
        return head + np.full((1, 2), value, np.float32).tobytes(), len(head)

    for value in (1.0, 2.0, 3.0):
        whole, size = body(value)
        ask, wanted = decode_request(whole, size, f"m{value:g}", "1")
        assert (ask.model, ask.id, ask.parameters, wanted) == (f"m{value:g}", "", {}, True)
        assert bytes(ask.inputs[0].data) == np.full((1, 2), value, np.float32).tobytes()
    for cut in (whole[:-1], whole + b"\0"):
        with pytest.raises(Invalid):
            decode_request(cut, size, "m", "1")
    for number in ("a", "b"):
        whole, size = body(1.0, id=number)
        assert decode_request(whole, size, "m", "1")[0].id == number
    first, second = (
        decode_request(*body(1.0, parameters={"timeout": 1_000_000, "binary_data_output": True}), "m", "1")[0]
        for _ in range(2)
    )
    assert 0 < first.deadline < second.deadline


def test_bytes_that_may_be_wrong_are_looked_at_each_time() -> None:
    given = {"name": "b", "shape": [2], "datatype": "BOOL", "parameters": {"binary_data_size": 2}}
    head = json.dumps({"inputs": [given]}).encode()
    assert decode_request(head + b"\0\1", len(head), "m", "1")[0].inputs[0].shape == (2,)
    with pytest.raises(Invalid):
        decode_request(head + b"\0\2", len(head), "m", "1")
