"""Requests that came before but for their numbers: what stands around those is read once, and looked up from then on.

Clients send the same JSON again and again, with other bytes behind it (Known) or with another list in it (Listed).
"""

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import msgspec

from falaj.core.errors import Invalid
from falaj.oip.tensors import MAX_COPIED_BYTES, InferenceRequest, InputTensor, pack_numbers

Wanted = bool | dict[str, bool]
"""Which outputs are wanted as bytes: all, none, or by name."""
Tails = Sequence[bytes | memoryview]
_MOST_KNOWN, _LONGEST_KNOWN = 1024, 2048
_LOOKED_AT = frozenset({"BOOL", "BYTES"})
"""Datatypes whose bytes may be wrong."""
_KINDS: dict[str, type] = {
    "BOOL": bool, "UINT8": int, "UINT16": int, "UINT32": int, "UINT64": int, "INT8": int, "INT16": int, "INT32": int,
    "INT64": int, "FP16": float, "BF16": float, "FP32": float, "FP64": float, "BYTES": str,
}  # fmt: skip
DATATYPES = tuple(_KINDS)
_READERS: dict[tuple[str, int], Callable[..., list[Any]]] = {}


def reader(datatype: str, depth: int) -> Callable[..., list[Any]]:
    """What reads lists of lists … of one kind of thing, strictly: no text for a number, no number for a truth.
    KeyError where there is no such kind."""
    made = _READERS.get((datatype, depth))
    if made is None:
        wanted: Any = _KINDS[datatype]
        for _ in range(depth):
            wanted = list[wanted]
        made = _READERS[datatype, depth] = msgspec.json.Decoder(wanted).decode
    return made


def rows_of(shapes: Sequence[tuple[int, ...]]) -> int:
    """How many rows a request with inputs of these shapes has; 0 where it is to be looked at by itself."""
    first = shapes[0][:1]
    return first[0] if first and all(shape[:1] == first for shape in shapes) else 0


class Known:
    """A JSON header that says nothing of one request alone."""

    __slots__ = ("inputs", "outputs", "rows", "size", "wanted")

    def __init__(self, size: int, ask: InferenceRequest, wanted: Wanted) -> None:
        self.size, self.outputs, self.wanted = size, ask.outputs, wanted
        self.inputs = [(one.name, one.datatype, one.shape, len(one.data)) for one in ask.inputs]
        self.rows = rows_of([one.shape for one in ask.inputs])

    def again(self, model: str, version: str, tail: "bytes | memoryview") -> tuple[InferenceRequest, Wanted]:
        """The request that it makes with these bytes."""
        made, at = [], 0
        for name, datatype, shape, size in self.inputs:
            made.append(InputTensor(name, datatype, shape, tail[at : at + size]))
            at += size
        ask = InferenceRequest(model, version, made)
        ask.outputs = self.outputs
        return ask, self.wanted

    def joined(self, tails: Tails) -> list[InputTensor]:
        """The inputs of as many requests, as those of one."""
        made, num, at = [], len(tails), 0
        for name, datatype, shape, size in self.inputs:
            parts = tails if size == self.size else [tail[at : at + size] for tail in tails]
            made.append(InputTensor(name, datatype, (shape[0] * num, *shape[1:]), b"".join(parts)))
            at += size
        return made


class Listed:
    """The same for a request whose one input is a list in the JSON; `begin` is where its numbers do."""

    __slots__ = ("_datatype", "_name", "_read", "_shape", "begin", "commas", "outputs", "rows", "wanted")

    def __init__(self, begin: int, commas: int, ask: InferenceRequest, wanted: Wanted) -> None:
        self.begin, self.commas, self.outputs, self.wanted = begin, commas, ask.outputs, wanted
        (one,) = ask.inputs
        self._name, self._datatype, self._shape = one.name, one.datatype, one.shape
        self._read = reader(one.datatype, 1)
        self.rows = rows_of([one.shape])

    def again(self, model: str, version: str, part: bytes) -> tuple[InferenceRequest, Wanted] | None:
        """The request that it makes with these numbers; None where they are none."""
        made = self.joined((part,))
        if made is None:
            return None
        ask = InferenceRequest(model, version, made)
        ask.outputs = self.outputs
        return ask, self.wanted

    def joined(self, parts: Sequence[bytes]) -> list[InputTensor] | None:
        """The inputs of as many requests, as those of one; None where one of them holds something else than such
        numbers. Commas part numbers and nothing else, and each has as many: so nobody gets a number of another's."""
        num = len(parts)
        try:
            values = self._read(b"[%b]" % b",".join(parts))
            if len(values) != num * (self.commas + 1):
                return None
            data = pack_numbers(self._name, self._datatype, values)
        except (msgspec.MsgspecError, ValueError, RecursionError, Invalid):
            return None
        shape = (self._shape[0] * num, *self._shape[1:]) if num > 1 else self._shape
        return [InputTensor(self._name, self._datatype, shape, data)]


_KNOWN: dict[bytes, Known] = {}
_LISTED: dict[bytes, Listed] = {}


def known(body: bytes, json_bytes: int) -> "tuple[Known, bytes | memoryview] | None":
    """What a header that came before means, and what stands behind it; None where it did not come before."""
    found = _KNOWN.get(body[:json_bytes])
    if found is None or found.size != len(body) - json_bytes:
        return None
    return found, body[json_bytes:] if len(body) < MAX_COPIED_BYTES else memoryview(body)[json_bytes:]


def listed(body: bytes) -> tuple[Listed, bytes] | None:
    """The same for a body that is all JSON: what stands around its numbers, and those as text."""
    begin, end = _numbers(body)
    found = _LISTED.get(body[:begin] + body[end:]) if begin + len(body) - end <= _LONGEST_KNOWN else None
    if found is None or found.begin != begin:
        return None
    part = body[begin:end]
    return (found, part) if part.count(b",") == found.commas else None


def of_header(head: bytes, tail: "bytes | memoryview") -> Known | None:
    """What `known` finds, for a body that is cut already."""
    found = _KNOWN.get(head)
    return found if found is not None and found.size == len(tail) else None


def remember(head: bytes, size: int, ask: InferenceRequest, wanted: Wanted) -> None:
    """Keep what a header means, where only the bytes behind it can differ the next time."""
    if len(head) > _LONGEST_KNOWN or sum(len(one.data) for one in ask.inputs) != size:
        return
    if any(one.datatype in _LOOKED_AT for one in ask.inputs):
        return
    if len(_KNOWN) >= _MOST_KNOWN:
        _KNOWN.clear()
    _KNOWN[head] = Known(size, ask, wanted)


def remember_list(body: bytes, ask: InferenceRequest, wanted: Wanted, data_of: Callable[[bytes], bytes]) -> None:
    """Keep what stands around the numbers of a request, where only they can differ the next time. `find_training_data`
    gives the data of the one input of a body, as text."""
    begin, end = _numbers(body)
    before, behind, commas = body[:begin], body[end:], body.count(b",", begin, end)
    (one,) = ask.inputs
    if one.datatype == "BYTES" or prod(one.shape) != commas + 1 or len(before) + len(behind) > _LONGEST_KNOWN:
        return
    # That the numbers stand there is seen, not guessed: with others in their place the data is those. What they are is
    # settled by what comes before them, so it is the same for any list of numbers.
    for other in (b"7", b"8"):
        if data_of(before + other + behind).translate(None, b"[] \t\r\n") != other:
            return
    if len(_LISTED) >= _MOST_KNOWN:
        _LISTED.clear()
    _LISTED[before + behind] = Listed(begin, commas, ask, wanted)


def _numbers(body: bytes) -> tuple[int, int]:
    """Where the numbers of the last list of data begin and end, if it is one."""
    begin = body.find(b"[", body.rfind(b'"data"')) + 1
    while body[begin : begin + 1] == b"[":
        begin += 1
    end = body.find(b"]", begin)
    return begin, end if end > 0 else len(body)
