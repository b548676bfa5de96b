"""Inference over HTTP for requests that ask alike: many to one, and its answer to the answer of each."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from math import prod

import msgspec

from falaj.core.errors import FalajError
from falaj.oip.again import Wanted
from falaj.oip.handler_calls import JSON_TYPE, OCTET_STREAM_TYPE, HttpReply
from falaj.oip.lot_frames import Told
from falaj.oip.rest_codec import encode_response, error_reply, json_around_outputs
from falaj.oip.tensors import (
    InferenceRequest,
    InferenceResponse,
    InputTensor,
    OutputTensor,
    RequestGroup,
    to_plain_values,
    to_raw_bytes,
)


def joined(asks: Sequence[InferenceRequest]) -> list[InputTensor]:
    """The inputs of requests whose inputs have the same names, datatypes and shapes, as those of one."""
    made, num = [], len(asks)
    for at, one in enumerate(asks[0].inputs):
        data = b"".join([ask.inputs[at].data for ask in asks])  # type: ignore[misc]
        made.append(InputTensor(one.name, one.datatype, (one.shape[0] * num, *one.shape[1:]), data))
    return made


def asked_of(lot: RequestGroup, at: int, id_: str) -> InferenceRequest:
    """One of the requests of a lot, by itself."""
    made = []
    for one in lot.inputs:
        size, rows = len(one.data) // lot.num, one.shape[0] // lot.num
        made.append(InputTensor(one.name, one.datatype, (rows, *one.shape[1:]), one.data[at * size : (at + 1) * size]))
    ask = InferenceRequest(lot.model, lot.version, made)
    ask.id, ask.outputs = id_, lot.outputs
    return ask


def answer_of(answer: InferenceResponse, at: int, num: int, id_: str) -> InferenceResponse:
    """The answer to one of as many."""
    outputs = [next(islice(_parts(made, num), at, None)) for made in answer.outputs]
    return InferenceResponse(answer.model, answer.version, id_, outputs)


def encode_lot(answer: InferenceResponse, wanted: Wanted, ids: Sequence[str]) -> Told | None:
    """The answers to all of the requests with these ids, in order, where they begin alike; None where they do not."""
    num, plain = len(ids), all(made.datatype != "BYTES" for made in answer.outputs)
    if not plain or any(ids):
        return None
    if wanted is True:
        head, tails = _as_bytes(answer, num)
        return Told(200, len(head), OCTET_STREAM_TYPE, [b"".join((head, *tail)) for tail in tails])
    bodies = _as_lists(answer, num) if wanted is False else None
    return Told(200, 0, JSON_TYPE, bodies) if bodies is not None else None


def encode_each(answer: InferenceResponse, wanted: Wanted, ids: Sequence[str]) -> Iterator[HttpReply]:
    """The answer to each of the requests with these ids, as it is sent, in order, whatever they are."""
    parts = [_parts(made, len(ids)) for made in answer.outputs]
    for id_, outputs in zip(ids, zip(*parts, strict=True), strict=True):
        try:
            yield encode_response(InferenceResponse(answer.model, answer.version, id_, outputs), wanted)
        except FalajError as error:  # the others are answered all the same
            yield error_reply(error)


def _as_bytes(answer: InferenceResponse, num: int) -> tuple[bytes, Iterable[tuple[bytes, ...]]]:
    """All outputs as bytes: the header, which is the same for all, and what follows it."""
    firsts = [next(_parts(made, num)) for made in answer.outputs]
    head = encode_response(InferenceResponse(answer.model, answer.version, "", firsts), True).parts[0]
    return head, zip(*[_cut(to_raw_bytes(made), num) for made in answer.outputs], strict=True)


def _as_lists(answer: InferenceResponse, num: int) -> list[bytes] | None:
    """All outputs as lists of numbers, which are written at once and cut after; None where that cannot be."""
    columns = []
    for made in answer.outputs:
        values = to_plain_values(made)
        step = len(values) // num
        # A number that JSON has no word for is one answer's trouble, and is told it by itself.
        text = msgspec.json.encode([values[at * step : (at + 1) * step] for at in range(num)])
        if not step or b"null" in text:
            return None
        columns.append(text[2:-2].split(b"],["))
    before, *between = json_around_outputs(
        answer.model, answer.version, [next(_parts(made, num)) for made in answer.outputs]
    )
    if len(columns) == 1:
        (last,) = between
        return [before + text + last for text in columns[0]]
    return [
        b"".join((before, *(part for pair in zip(texts, between, strict=True) for part in pair)))
        for texts in zip(*columns, strict=True)
    ]


def _cut(raw: bytes, num: int) -> list[bytes]:
    step = len(raw) // num
    return [raw[at : at + step] for at in range(0, len(raw), step)] if step else [b""] * num


def _parts(made: OutputTensor, num: int) -> Iterator[OutputTensor]:
    """An output in as many equal parts."""
    shape = (made.shape[0] // num, *made.shape[1:])
    step = prod(shape) if made.datatype == "BYTES" else shape[0]
    for at in range(num):
        yield OutputTensor(made.name, made.datatype, shape, made.data[at * step : (at + 1) * step])
