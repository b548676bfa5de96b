"""Protobuf by hand, against protobuf's own: the same messages in both ways, and the same judgement on broken bytes."""

import struct
import time
from typing import Any

import numpy as np
import pytest
from google.protobuf import json_format
from google.protobuf.message import DecodeError
from google.protobuf.message import Message as Official
from hypothesis import given, settings
from hypothesis import strategies as st
from tritonclient.grpc import model_config_pb2, service_pb2

from falaj.core.errors import Invalid
from falaj.oip import infer_messages, packed_varints
from falaj.oip.grpc_messages import (
    CONTENTS,
    INFER_REQUEST,
    LOAD_REQUEST,
    METHODS,
    MODEL_CONFIG,
    PARAMETER,
    SERVICE_NAME,
    TENSOR,
)  # fmt: skip
from falaj.oip.protobuf import MAX_FIELDS, MessageType, decode_message, encode_message, encode_varint
from falaj.oip.tensors import MAX_TEXT_ELEMENTS, NUMPY_TYPES, InferenceResponse, OutputTensor

REQUESTS = service_pb2.DESCRIPTOR.services_by_name["GRPCInferenceService"].methods_by_name
INTS = {"int32": (-(1 << 31), (1 << 31) - 1), "int64": (-(1 << 63), (1 << 63) - 1), "uint32": (0, (1 << 32) - 1)}


def values(kind: MessageType) -> st.SearchStrategy[dict[str, Any]]:
    """Plain values for a message, from its table."""
    fields = {field.name: _value(field) for field in kind.fields}
    if kind.choice:
        return st.one_of(*(st.fixed_dictionaries({name: value}) for name, value in fields.items()))
    return st.fixed_dictionaries({}, optional=fields)


def _value(field: Any) -> st.SearchStrategy[Any]:
    if field.kind == "map":
        inner = values(field.part) if field.part else st.text(max_size=4)
        return st.dictionaries(st.text(max_size=5), inner, min_size=1, max_size=2)
    if field.part is not None:
        one: st.SearchStrategy[Any] = values(field.part)
    else:
        kinds = {
            "string": st.text(max_size=8), "bytes": st.binary(max_size=8), "bool": st.booleans(),
            "float": st.floats(width=32, allow_nan=False), "double": st.floats(allow_nan=False),
            "enum": st.sampled_from(sorted(field.names)) if field.names else st.none(),
        }  # fmt: skip
        one = kinds.get(field.kind, st.integers(*INTS.get(field.kind, (0, (1 << 64) - 1))))
    return st.lists(one, min_size=1, max_size=3) if field.many else one


def official(kind: MessageType, type_: type[Official], plain: dict[str, Any]) -> Official:
    """The same values in protobuf's own message."""
    made = type_()
    _fill(kind, made, plain)
    return made


def _fill(kind: MessageType, made: Any, plain: dict[str, Any]) -> None:
    for field in kind.fields:
        value = plain.get(field.name)
        if value is None:
            continue
        if field.kind == "map":
            for key, one in value.items():
                if field.part:
                    getattr(made, field.name)[key].SetInParent()
                    _fill(field.part, getattr(made, field.name)[key], one)
                else:
                    getattr(made, field.name)[key] = one
        elif field.part and field.many:
            for one in value:
                _fill(field.part, getattr(made, field.name).add(), one)
        elif field.part:
            getattr(made, field.name).SetInParent()
            _fill(field.part, getattr(made, field.name), value)
        elif field.many:
            getattr(made, field.name).extend(field.names.get(one, one) for one in value)
        else:
            setattr(made, field.name, field.names.get(value, value))


MESSAGES = [
    *((f"{name} {which}", kind, getattr(service_pb2, getattr(REQUESTS[name], f"{which}_type").name))
      for name, pair in METHODS.items() for which, kind in zip(("input", "output"), pair, strict=True)),
    ("ModelConfig", MODEL_CONFIG, model_config_pb2.ModelConfig),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "type_"), [one[1:] for one in MESSAGES], ids=[one[0] for one in MESSAGES])
def test_every_message_goes_both_ways(kind: MessageType, type_: type[Official]) -> None:
    @settings(max_examples=12, deadline=None)
    @given(values(kind))
    def check(plain: dict[str, Any]) -> None:
        theirs = official(kind, type_, plain)
        ours = type_()
        ours.ParseFromString(encode_message(kind, plain))
        assert ours == theirs
        again = encode_message(kind, decode_message(kind, theirs.SerializeToString()))
        back = type_()
        back.ParseFromString(again)
        assert back == theirs

    check()


def test_every_method_of_the_tables_is_one_of_the_service() -> None:
    assert service_pb2.DESCRIPTOR.services_by_name["GRPCInferenceService"].full_name == SERVICE_NAME
    assert set(METHODS) <= set(REQUESTS)
    for _name, kind, type_ in MESSAGES:
        for field in kind.fields:
            assert type_.DESCRIPTOR.fields_by_name[field.name].number == field.number


BROKEN_KINDS = [
    (INFER_REQUEST, service_pb2.ModelInferRequest), (LOAD_REQUEST, service_pb2.RepositoryModelLoadRequest),
    (PARAMETER, service_pb2.InferParameter), (CONTENTS, service_pb2.InferTensorContents),
    (TENSOR, service_pb2.ModelInferRequest.InferInputTensor),
]  # fmt: skip


@settings(max_examples=110, deadline=None)
@given(st.sampled_from(BROKEN_KINDS), st.data())
def test_broken_bytes_are_judged_as_protobuf_judges_them(which: Any, data: st.DataObject) -> None:
    kind, type_ = which
    whole = bytearray(encode_message(kind, data.draw(values(kind))))
    for _ in range(data.draw(st.integers(0, 3))):
        at = data.draw(st.integers(0, len(whole)))
        whole[at : at + data.draw(st.integers(0, 2))] = data.draw(st.binary(max_size=3))
    _same_judgement(kind, type_, bytes(whole))


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(BROKEN_KINDS), st.binary(max_size=40))
def test_arbitrary_bytes_too(which: Any, data: bytes) -> None:
    _same_judgement(*which, data)


def _same_judgement(kind: MessageType, type_: type[Official], data: bytes) -> None:
    theirs = type_()
    try:
        theirs.ParseFromString(data)
    except DecodeError:
        with pytest.raises(Invalid):
            decode_message(kind, data)
        return
    back = type_()
    back.ParseFromString(encode_message(kind, decode_message(kind, data)))
    theirs.DiscardUnknownFields()
    # NaN is not itself: the texts are compared. Python's protobuf, unlike the others, drops an entry of a map that has
    # a field it does not know; a parameter that was sent is better read.
    ours, said = (json_format.MessageToDict(one) for one in (back, theirs))
    assert repr(_plain(ours)) == repr(_plain(said)) or repr(_plain(ours, maps=False)) == repr(_plain(said, maps=False))


def _plain(found: Any, *, maps: bool = True) -> Any:
    if isinstance(found, dict):
        return {key: _plain(found[key], maps=maps) for key in sorted(found) if maps or key != "parameters"}
    return [_plain(one, maps=maps) for one in found] if isinstance(found, list) else found


@pytest.mark.parametrize(
    "data",
    [
        b"\x0a", b"\x0a\x05abc", b"\x0a\xff\xff\xff\xff\x0fabc", b"\x0a" + b"\xff" * 9 + b"\x01",
        b"\x08" + b"\xff" * 11, b"\x00\x01", b"\x0b" * 200 + b"\x0c" * 200, b"\x0b\x14", b"\x0c", b"\x0f",
        b"\x0e\x01", b"\x0a\x01\xff", b"\xfa\xff\xff\xff\xff\x01\x00",
    ],
)  # fmt: skip
def test_hostile_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(DecodeError):
        service_pb2.ModelInferRequest().ParseFromString(data)
    for read in (
        infer_messages.peek_model,
        infer_messages.decode_infer_request,
        lambda given: decode_message(INFER_REQUEST, given),
    ):
        with pytest.raises(Invalid):
            read(data)


def test_groups_and_unknown_fields_are_skipped_and_the_last_of_a_field_counts() -> None:
    data = b"\x0a\x01a" + b"\xa3\x06\x0a\x02xx\x08\x01\xa4\x06" + b"\x0d1234" + b"\x09" + b"8" * 8 + b"\x8a\x00\x01b"
    assert infer_messages.peek_model(data + b"\x12\x012") == ("b", "2", "")
    assert service_pb2.ModelInferRequest.FromString(data).model_name == "b"


def test_a_message_of_endless_fields_is_refused_soon() -> None:
    with pytest.raises(Invalid, match="more than"):
        infer_messages.decode_infer_request(b"\x78\x01" * 10_000)
    with pytest.raises(Invalid, match="fields"):
        decode_message(CONTENTS, b"\x10\x01" * (MAX_FIELDS + 1))


@settings(max_examples=110, deadline=None)
@given(st.one_of(st.binary(max_size=60), values(INFER_REQUEST).map(lambda plain: encode_message(INFER_REQUEST, plain))))
def test_peek_agrees_with_protobuf_and_nothing_but_invalid_is_raised(data: bytes) -> None:
    try:
        found = infer_messages.peek_model(data)
    except Invalid:
        with pytest.raises(DecodeError):
            service_pb2.ModelInferRequest().ParseFromString(data)
    else:
        theirs = service_pb2.ModelInferRequest()
        try:
            theirs.ParseFromString(data)
        except DecodeError:
            pass  # inside a part that peek leaves alone
        else:
            assert found == (theirs.model_name, theirs.model_version, theirs.id)
    try:
        ask, _ = infer_messages.decode_infer_request(data)
    except Invalid:
        return
    assert (ask.model, ask.version, ask.id) == found


def request(**more: Any) -> Any:
    made = service_pb2.ModelInferRequest(model_name="m", model_version="3", id="seven", **more)
    made.inputs.add(name="x", datatype="FP32", shape=[2, 2])
    return made


def test_a_raw_request_and_its_answer() -> None:
    x = np.arange(4, dtype="<f4").reshape(2, 2)
    asked = request(raw_input_contents=[x.tobytes()])
    asked.outputs.add(name="y")
    asked.parameters["sequence_id"].int64_param = 9
    asked.parameters["sequence_start"].bool_param = True
    asked.parameters["priority"].uint64_param = 2
    asked.parameters["timeout"].int64_param = 5_000_000
    asked.parameters["mine"].string_param = "yes"
    for _ in range(2):  # the second time from what was learnt the first time
        ask, wanted = infer_messages.decode_infer_request(asked.SerializeToString())
        (x_in,) = ask.inputs
        assert (ask.model, ask.version, ask.id, list(ask.outputs)) == ("m", "3", "seven", ["y"])
        assert (x_in.name, x_in.datatype, x_in.shape, x_in.data) == ("x", "FP32", (2, 2), x.tobytes())
        assert (ask.sequence, ask.sequence_start, ask.sequence_end, ask.priority) == (9, True, False, 2)
        assert ask.parameters == {"mine": "yes"}
        assert 4 < ask.deadline - time.monotonic() <= 5
        answer = InferenceResponse(
            "m", "3", ask.id, [OutputTensor("y", "FP32", (2, 2), x * 2), OutputTensor("t", "BYTES", (2,), [b"a", b""])]
        )
        answer.parameters = {"a": 1, "b": "two", "c": True, "d": 0.5}
        theirs = service_pb2.ModelInferResponse.FromString(infer_messages.encode_infer_response(answer, wanted))
        assert theirs.id == "seven"
        assert theirs.raw_output_contents[0] == (x * 2).tobytes()
        assert theirs.raw_output_contents[1] == b"\x01\0\0\0a\0\0\0\0"
        assert [list(one.shape) for one in theirs.outputs] == [[2, 2], [2]]
        assert [theirs.parameters[key].WhichOneof("parameter_choice") for key in "abcd"] == [
            "int64_param", "string_param", "bool_param", "double_param",
        ]  # fmt: skip


def test_large_inputs_are_not_copied() -> None:
    big = np.zeros((1024, 1024), dtype="<f4")
    asked = service_pb2.ModelInferRequest(model_name="m", raw_input_contents=[big.tobytes()])
    asked.inputs.add(name="x", datatype="FP32", shape=big.shape)
    (x,) = infer_messages.decode_infer_request(asked.SerializeToString())[0].inputs
    assert isinstance(x.data, memoryview)
    assert x.data.nbytes == big.nbytes


FIELDS = {
    "BOOL": "bool_contents", "INT8": "int_contents", "INT16": "int_contents", "INT32": "int_contents",
    "INT64": "int64_contents", "UINT8": "uint_contents", "UINT16": "uint_contents", "UINT32": "uint_contents",
    "UINT64": "uint64_contents", "FP32": "fp32_contents", "FP64": "fp64_contents",
}  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(sorted(FIELDS)), st.integers(0, 300), st.integers(0, 1 << 30))
def test_typed_numbers_go_both_ways(datatype: str, count: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    data = np.frombuffer(rng.bytes(count * 8), NUMPY_TYPES[datatype] if datatype != "BOOL" else "u1")[:count]
    data = (data & 1).astype("?") if datatype == "BOOL" else np.nan_to_num(data) if datatype[0] == "F" else data
    asked = service_pb2.ModelInferRequest(model_name="m")
    tensor = asked.inputs.add(name="x", datatype=datatype, shape=[count])
    getattr(tensor.contents, FIELDS[datatype]).extend(data.tolist())
    ask, wanted = infer_messages.decode_infer_request(asked.SerializeToString())
    assert bytes(ask.inputs[0].data) == data.tobytes()  # type: ignore[arg-type]
    assert not wanted & infer_messages.RAW_RESPONSE
    sent = infer_messages.encode_infer_response(
        InferenceResponse("m", "", "", [OutputTensor("y", datatype, (count,), data)]), wanted
    )
    theirs = service_pb2.ModelInferResponse.FromString(sent)
    assert list(getattr(theirs.outputs[0].contents, FIELDS[datatype])) == data.tolist()
    assert not theirs.raw_output_contents


def test_typed_bytes_and_numbers_one_by_one() -> None:
    asked = service_pb2.ModelInferRequest(model_name="m")
    asked.inputs.add(name="t", datatype="BYTES", shape=[2]).contents.bytes_contents.extend([b"", b"\xff" * 5000])
    ask, wanted = infer_messages.decode_infer_request(asked.SerializeToString())
    assert ask.inputs[0].data == [b"", b"\xff" * 5000]
    sent = infer_messages.encode_infer_response(
        InferenceResponse("m", "", "", [OutputTensor("t", "BYTES", (2,), ask.inputs[0].data)]), wanted
    )
    theirs = service_pb2.ModelInferResponse.FromString(sent)
    assert list(theirs.outputs[0].contents.bytes_contents) == ask.inputs[0].data
    contents = b"\x1a\x02\x05\x06" + b"\x18" + encode_varint(-7) + b"\x1a\x00"
    tensor = b"\x0a\x01x\x12\x05INT64\x1a\x01\x03\x2a" + encode_varint(len(contents)) + contents
    ask, _ = infer_messages.decode_infer_request(b"\x2a" + encode_varint(len(tensor)) + tensor)
    assert np.frombuffer(ask.inputs[0].data, "<i8").tolist() == [5, 6, -7]  # type: ignore[arg-type]
    half = infer_messages.encode_infer_response(
        InferenceResponse("m", "", "", [OutputTensor("h", "FP16", (1,), np.ones(1, "<f2"))]), 0
    )
    assert service_pb2.ModelInferResponse.FromString(half).raw_output_contents == [struct.pack("<e", 1)]


def _sized(tag: bytes, data: bytes) -> bytes:
    return tag + encode_varint(len(data)) + data


def _loops() -> dict[str, tuple[bytes, str]]:
    """Requests that are short and would hold the loop for long."""
    most = MAX_TEXT_ELEMENTS
    texts = b"\x0a\x01t\x12\x05BYTES\x1a"
    one, many = texts + b"\x01\x01", texts + _sized(b"", encode_varint(most // 2 + 1))
    x = b"\x0a\x01x\x12\x05INT64\x1a\x01\x01"
    other = many.replace(b"\x01t", b"\x01u", 1)
    return {
        "more than the shape": (_sized(b"\x2a", one + _sized(b"\x2a", b"\x42\0" * 2 * most)), "has 2 elements"),
        "over all inputs": (_sized(b"\x2a", many) + _sized(b"\x2a", other) + b"\x3a\0\x3a\0", "elements of BYTES"),
        "typed over all": (_sized(b"\x2a", many) + _sized(b"\x2a", other), "elements of BYTES"),
        "empty lists": (_sized(b"\x2a", x + _sized(b"\x2a", b"\x1a\0" * 2 * most)), "fields"),
        "fields nobody knows": (_sized(b"\x2a", x + b"\x78\0" * most), "fields"),
        "a shape without end": (_sized(b"\x2a", x + _sized(b"\x1a", b"\1" * 2 * most)), "a list of numbers"),
        "a group without end": (_sized(b"\x2a", x + b"\x7b" + b"\x78\0" * most), "groups"),
        "inputs without end": (_sized(b"\x2a", x) * 4000, "257 inputs"),
    }


@pytest.mark.parametrize("name", sorted(_loops()))
def test_no_request_holds_the_loop_for_long(name: str) -> None:
    message, said = _loops()[name]
    with pytest.raises(Invalid, match=said):
        infer_messages.decode_infer_request(message)


def _broken_requests() -> dict[str, Any]:
    made = {
        name: request() for name in ("none", "short", "two", "both", "kind", "count", "dtype", "negative", "shared")
    }
    made["short"].raw_input_contents.append(b"123")
    made["two"].raw_input_contents.extend([b"0" * 16] * 2)
    made["both"].raw_input_contents.append(b"0" * 16)
    made["both"].inputs[0].contents.fp32_contents.extend([1] * 4)
    made["kind"].inputs[0].contents.fp64_contents.extend([1] * 4)
    made["count"].inputs[0].contents.fp32_contents.extend([1] * 5)
    made["dtype"].inputs[0].datatype = "FP128"
    made["negative"].inputs[0].shape[0] = -1
    made["shared"].inputs[0].parameters["shared_memory_region"].string_param = "r"
    for name in ("named", "same", "half", "range", "twice", "class", "timeout", "seq", "seq2", "empty", "bytes"):
        made[name] = request(raw_input_contents=[b"0" * 16])
    made["named"].inputs[0].name = ""
    made["same"].inputs.add(name="x", datatype="FP32", shape=[0])
    made["same"].raw_input_contents.append(b"")
    made["half"].inputs[0].datatype = "FP16"
    made["range"].ClearField("raw_input_contents")
    made["range"].inputs[0].datatype = "INT8"
    made["range"].inputs[0].contents.int_contents.extend([1, 2, 3, 300])
    made["twice"].outputs.add(name="y")
    made["twice"].outputs.add(name="y")
    made["class"].outputs.add(name="y").parameters["classification"].int64_param = 3
    made["timeout"].parameters["timeout"].string_param = "soon"
    made["seq"].parameters["sequence_start"].bool_param = True
    made["seq2"].parameters["sequence_else"].bool_param = True
    made["empty"].parameters["priority"].SetInParent()
    made["bytes"].inputs[0].datatype = "BYTES"
    return made


@pytest.mark.parametrize("name", sorted(_broken_requests()))
def test_a_request_that_does_not_say_what_it_holds_is_invalid(name: str) -> None:
    with pytest.raises(Invalid):
        infer_messages.decode_infer_request(_broken_requests()[name].SerializeToString())


def test_stream_answers() -> None:
    answer = infer_messages.encode_infer_response(
        InferenceResponse("m", "1", "a", []), infer_messages.RAW_RESPONSE | infer_messages.FINAL_MARK
    )
    theirs = service_pb2.ModelStreamInferResponse.FromString(infer_messages.wrap_stream_response(answer))
    assert theirs.infer_response.id == "a"
    assert theirs.infer_response.parameters["triton_final_response"].bool_param
    theirs = service_pb2.ModelStreamInferResponse.FromString(infer_messages.encode_stream_error("no", "a"))
    assert (theirs.error_message, theirs.infer_response.id) == ("no", "a")


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, (1 << 64) - 1), max_size=60))
def test_packed_lists(numbers: list[int]) -> None:
    packed = packed_varints.pack_varints(np.array(numbers, np.uint64))
    assert packed == b"".join(encode_varint(one) for one in numbers)
    assert packed_varints.unpack_varints(packed).tolist() == numbers


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from("ab"), st.integers(0, 3), st.binary(min_size=12, max_size=12), st.booleans(), st.booleans()
        ),
        min_size=2,
        max_size=8,
    )
)
def test_requests_that_look_alike_are_each_read_as_they_are(asked: list[tuple[str, int, bytes, bool, bool]]) -> None:
    """What is known of one request is used for the next; never for one that says anything else."""
    for model, tail, data, last, output in asked:
        made = service_pb2.ModelInferRequest(model_name=model)
        made.inputs.add(name="x", datatype="FP32", shape=[3])
        if output:
            made.outputs.add(name="y")
        numbers = b"\x3a\x0c" + data
        # Fields in any order, numbers that hold what could be fields, and fields behind the numbers.
        more = (b"", b"\x0a\x01c", b"\x1a\x02id", b"\x78\x01")[tail]
        sent = made.SerializeToString() + (more + numbers if last else numbers + more)
        theirs = service_pb2.ModelInferRequest.FromString(sent)
        for _ in range(2):
            ask, wanted = infer_messages.decode_infer_request(sent)
            assert infer_messages.peek_model(sent) == (theirs.model_name, "", theirs.id)
            assert (ask.model, ask.id, list(ask.outputs)) == (theirs.model_name, theirs.id, ["y"] if output else [])
            assert (ask.inputs[0].data, wanted) == (data, infer_messages.RAW_RESPONSE)
