"""Inference over HTTP for requests that ask alike: many to one, and its answer to the answer of each."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from math import prod

import msgspec

from falaj.core.errors import FalajError
from falaj.oip.again import Wanted
from falaj.oip.calls import JSON, OCTETS, Reply
from falaj.oip.lot_frames import Told
from falaj.oip.rest import around, encode, problem
from falaj.oip.tensors import Answer, Ask, Given, Lot, Made, raw_of, values_of


def joined(asks: Sequence[Ask]) -> list[Given]:
    """The inputs of requests whose inputs have the same names, datatypes and shapes, as those of one."""
    made, num = [], len(asks)
    for at, one in enumerate(asks[0].inputs):
        data = b"".join([ask.inputs[at].data for ask in asks])  # type: ignore[misc]
        made.append(Given(one.name, one.datatype, (one.shape[0] * num, *one.shape[1:]), data))
    return made


def asked_of(lot: Lot, at: int, id_: str) -> Ask:
    """One of the requests of a lot, by itself."""
    made = []
    for one in lot.inputs:
        size, rows = len(one.data) // lot.num, one.shape[0] // lot.num
        made.append(Given(one.name, one.datatype, (rows, *one.shape[1:]), one.data[at * size : (at + 1) * size]))
    ask = Ask(lot.model, lot.version, made)
    ask.id, ask.outputs = id_, lot.outputs
    return ask


def answer_of(answer: Answer, at: int, num: int, id_: str) -> Answer:
    """The answer to one of as many."""
    outputs = [next(islice(_parts(made, num), at, None)) for made in answer.outputs]
    return Answer(answer.model, answer.version, id_, outputs)


def encode_lot(answer: Answer, wanted: Wanted, ids: Sequence[str]) -> Told | None:
    """The answers to all of the requests with these ids, in order, where they begin alike; None where they do not."""
    num, plain = len(ids), all(made.datatype != "BYTES" for made in answer.outputs)
    if not plain or any(ids):
        return None
    if wanted is True:
        head, tails = _as_bytes(answer, num)
        return Told(200, len(head), OCTETS, [b"".join((head, *tail)) for tail in tails])
    bodies = _as_lists(answer, num) if wanted is False else None
    return Told(200, 0, JSON, bodies) if bodies is not None else None


def encode_each(answer: Answer, wanted: Wanted, ids: Sequence[str]) -> Iterator[Reply]:
    """The answer to each of the requests with these ids, as it is sent, in order, whatever they are."""
    parts = [_parts(made, len(ids)) for made in answer.outputs]
    for id_, outputs in zip(ids, zip(*parts, strict=True), strict=True):
        try:
            yield encode(Answer(answer.model, answer.version, id_, outputs), wanted)
        except FalajError as error:  # the others are answered all the same
            yield problem(error)


def _as_bytes(answer: Answer, num: int) -> tuple[bytes, Iterable[tuple[bytes, ...]]]:
    """All outputs as bytes: the header, which is the same for all, and what follows it."""
    firsts = [next(_parts(made, num)) for made in answer.outputs]
    head = encode(Answer(answer.model, answer.version, "", firsts), True).parts[0]
    return head, zip(*[_cut(raw_of(made), num) for made in answer.outputs], strict=True)


def _as_lists(answer: Answer, num: int) -> list[bytes] | None:
    """All outputs as lists of numbers, which are written at once and cut after; None where that cannot be."""
    columns = []
    for made in answer.outputs:
        values = values_of(made)
        step = len(values) // num
        # A number that JSON has no word for is one answer's trouble, and is told it by itself.
        text = msgspec.json.encode([values[at * step : (at + 1) * step] for at in range(num)])
        if not step or b"null" in text:
            return None
        columns.append(text[2:-2].split(b"],["))
    before, *between = around(answer.model, answer.version, [next(_parts(made, num)) for made in answer.outputs])
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


def _parts(made: Made, num: int) -> Iterator[Made]:
    """An output in as many equal parts."""
    shape = (made.shape[0] // num, *made.shape[1:])
    step = prod(shape) if made.datatype == "BYTES" else shape[0]
    for at in range(num):
        yield Made(made.name, made.datatype, shape, made.data[at * step : (at + 1) * step])
