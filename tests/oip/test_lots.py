"""Answers that were made as one: each is written as it would be by itself."""

from typing import Any

import numpy as np
import pytest

from falaj.core.errors import FalajError
from falaj.oip.handler_calls import HttpReply
from falaj.oip.lots import encode_each, encode_lot
from falaj.oip.rest_codec import encode_response, error_reply
from falaj.oip.tensors import InferenceResponse, OutputTensor

NUM = 4
TYPES = {"FP32": "f4", "FP64": "f8", "INT64": "i8", "BOOL": "?", "BF16": "u2", "UINT8": "u1"}
OUTPUTS: dict[str, list[tuple[str, str, tuple[int, ...]]]] = {
    "one": [("y", "FP32", (1,))],
    "rows of several": [("y", "FP64", (2, 3))],
    "several": [("y", "FP32", (2,)), ("z", "INT64", (1,)), ("b", "BOOL", (3,))],
    "odd names": [('y"data":[]', "FP32", (1,)), ("null],[", "INT64", (2,))],
    "halves": [("y", "BF16", (2,))],
    "nothing in a row": [("y", "FP32", (0,)), ("z", "UINT8", (1,))],
    "texts": [("t", "BYTES", (2,)), ("y", "FP32", (1,))],
}


def made_of(name: str, datatype: str, trailing: tuple[int, ...], each: int) -> OutputTensor:
    shape = (NUM * each, *trailing)
    count = int(np.prod(shape))
    if datatype == "BYTES":
        return OutputTensor(name, datatype, shape, [b"text %d" % number for number in range(count)])
    return OutputTensor(name, datatype, shape, (np.arange(count) * 3 % 5).astype(TYPES[datatype]).reshape(shape))


def part(made: OutputTensor, at: int, each: int) -> OutputTensor:
    shape = (each, *made.shape[1:])
    step = int(np.prod(shape)) if made.datatype == "BYTES" else each
    return OutputTensor(made.name, made.datatype, shape, made.data[at * step : (at + 1) * step])


def alone(answer: InferenceResponse, wanted: Any, at: int, id_: str, each: int) -> HttpReply:
    try:
        return encode_response(
            InferenceResponse("m", "1", id_, [part(one, at, each) for one in answer.outputs]), wanted
        )
    except FalajError as error:
        return error_reply(error)


def told(reply: HttpReply) -> tuple[Any, ...]:
    return reply.status, b"".join(reply.parts), reply.kind, reply.json_bytes


@pytest.mark.parametrize("each", [1, 3])
@pytest.mark.parametrize("ids", [[""] * NUM, ["a", "", "", "d"]], ids=["unnamed", "named"])
@pytest.mark.parametrize("wanted", [True, False, "by name"])
@pytest.mark.parametrize("outputs", OUTPUTS)
def test_each_is_written_as_by_itself(outputs: str, wanted: Any, ids: list[str], each: int) -> None:
    answer = InferenceResponse("m", "1", "", [made_of(*one, each) for one in OUTPUTS[outputs]])
    if wanted == "by name":
        wanted = {made.name: at % 2 == 0 for at, made in enumerate(answer.outputs)}
    got = [told(one) for one in encode_each(answer, wanted, ids)]
    assert got == [told(alone(answer, wanted, at, id_, each)) for at, id_ in enumerate(ids)]
    lot = encode_lot(answer, wanted, ids)
    none = any(ids) or isinstance(wanted, dict) or outputs == "texts" or (not wanted and outputs == "nothing in a row")
    assert (lot is None) == none
    assert lot is None or [told(lot.reply(place)) for place in range(NUM)] == got


def test_a_number_that_json_has_no_word_for_is_one_answers_trouble() -> None:
    answer = InferenceResponse(
        "m", "1", "", [OutputTensor("y", "FP32", (3, 1), np.array([[1], [np.nan], [3]], np.float32))]
    )
    assert [one.status for one in encode_each(answer, False, ["", "", ""])] == [200, 422, 200]
    assert [one.status for one in encode_each(answer, True, ["", "", ""])] == [200, 200, 200]
    assert encode_lot(answer, False, ["", "", ""]) is None
