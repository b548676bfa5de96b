"""Inference over HTTP: JSON, with tensors as lists or as bytes behind it (Triton's binary tensor extension)."""

import math
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Annotated, Any

import msgspec

from falaj.core.errors import FalajError, Invalid, UserCodeFailed
from falaj.core.sheet import MOST_DIMENSIONS, MOST_TENSORS
from falaj.oip.again import DATATYPES, Wanted, listed, of_header, reader, remember, remember_list
from falaj.oip.asked import check_inputs, check_plain, settle
from falaj.oip.calls import JSON, OCTETS, Reply, retry_after
from falaj.oip.tensors import (
    SMALL_BYTES,
    Answer,
    Ask,
    Given,
    Made,
    elements,
    few_enough,
    given,
    pack,
    raw_of,
    values_of,
)

HEADER = b"inference-header-content-length"
NO_HEADER = -1
MOST_ID = 1024
_Parameters = dict[str, bool | int | float | str]
_Size = Annotated[int, msgspec.Meta(ge=0, lt=1 << 31)]
_Shape = Annotated[tuple[_Size, ...], msgspec.Meta(max_length=MOST_DIMENSIONS)]


class _Input(msgspec.Struct):
    name: str
    datatype: str
    shape: _Shape
    data: msgspec.Raw = msgspec.Raw()
    parameters: _Parameters | None = None


class _Output(msgspec.Struct):
    name: str
    parameters: _Parameters | None = None


class _Request(msgspec.Struct):
    inputs: list[_Input]
    id: str | None = None
    parameters: _Parameters | None = None
    outputs: list[_Output] | None = None


class _Tensor(msgspec.Struct, omit_defaults=True):
    name: str
    datatype: str
    shape: tuple[int, ...]
    parameters: dict[str, Any] | None = None
    data: list[Any] | None = None


class _Response(msgspec.Struct, omit_defaults=True):
    model_name: str
    outputs: list[_Tensor]
    model_version: str = ""
    id: str = ""
    parameters: dict[str, Any] | None = None


_request = msgspec.json.Decoder(_Request).decode
_dump = msgspec.json.Encoder().encode


def header_bytes(headers: Mapping[bytes, bytes]) -> int:
    """What the caller says the length of the JSON is; NO_HEADER when nothing is said."""
    said = headers.get(HEADER)
    if said is None:
        return NO_HEADER
    if not said.isdigit() or len(said) > 12:
        raise Invalid("Inference-Header-Content-Length is no length", "the bytes of the JSON, in digits")
    return int(said)


def decode(body: bytes, json_bytes: int, model: str, version: str) -> tuple[Ask, Wanted]:
    """The request in a body, checked, and how its answer is wanted."""
    tail: bytes | memoryview = b""
    if json_bytes >= 0:
        if json_bytes > len(body):
            raise Invalid(f"the JSON is said to have {json_bytes} bytes, and the body has {len(body)}", "count again")
        tail = body[json_bytes:] if len(body) < SMALL_BYTES else memoryview(body)[json_bytes:]
        body = body[:json_bytes]
        if (found := of_header(body, tail)) is not None:
            return found.again(model, version, tail)
    elif (alike := listed(body)) is not None and (made := alike[0].again(model, version, alike[1])) is not None:
        return made
    try:
        asked = _request(body)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise Invalid(f"the body is no request: {str(error)[:300]}", "see the Open Inference Protocol") from error
    ask = Ask(model, version, _inputs(asked.inputs, tail))
    if asked.id:
        if len(asked.id) > MOST_ID:
            raise Invalid("the id is too long", f"{MOST_ID} letters at most")
        ask.id = asked.id
    # Looked at now: what is understood is taken out.
    plain = not asked.id and (not asked.parameters or asked.parameters.keys() <= _BINARY)
    binary = _parameters(ask, asked.parameters) if asked.parameters else False
    wanted = _outputs(ask, asked.outputs, binary) if asked.outputs else binary
    if tail and plain:
        remember(body, len(tail), ask, wanted)
    elif plain and len(asked.inputs) == 1 and not asked.inputs[0].parameters:
        remember_list(body, ask, wanted, _data_of)
    return ask, wanted


def _data_of(body: bytes) -> bytes:
    """The data of the first input of a request, as text; nothing where it is none."""
    try:
        return bytes(memoryview(_request(body).inputs[0].data))
    except (msgspec.MsgspecError, ValueError, RecursionError, IndexError):
        return b""


_MOST_KNOWN = 1024
_BINARY = frozenset({"binary_data_output"})


def decode_raw(body: bytes, ask: Ask, spec: Mapping[str, Any], *, batches: bool) -> tuple[Ask, Wanted]:
    """A body that is nothing but the one input of a model, for one row (Inference-Header-Content-Length: 0). `spec` is
    that input as metadata say it."""
    name, datatype, shape = str(spec["name"]), str(spec["datatype"]), [int(one) for one in spec["shape"]]
    if batches and shape:
        shape[0] = 1
    if datatype == "BYTES":
        if any(one not in (-1, 1) for one in shape):
            raise Invalid(f"{name[:60]!r} takes more than one element", "send a request with a header in JSON")
        ask.inputs = [Given(name, datatype, (1,) * len(shape), [body])]
        return ask, True
    known = math.prod(one for one in shape if one >= 0)
    if shape.count(-1) > 1:
        raise Invalid(f"the shape of {name[:60]!r} cannot be told from its bytes", "send a request with a header")
    row_bytes = known * len(pack(name, datatype, [0]))
    shape = [len(body) // row_bytes if one < 0 and row_bytes else max(one, 0) for one in shape]
    ask.inputs = [given(name, datatype, tuple(shape), body)]
    return ask, True


def encode(answer: Answer, wanted: Wanted) -> Reply:
    """An answer as it is sent. What was not asked for is left out; what is not there is Invalid."""
    outputs = answer.outputs
    if wanted is True and outputs and not answer.id and not answer.parameters:
        return _as_bytes(answer)
    if type(wanted) is dict:
        by_name = {made.name: made for made in outputs}
        missing = [name for name in wanted if name not in by_name]
        if missing:
            raise Invalid(f"the model has no output {missing[0][:60]!r}", f"it has {', '.join(by_name)}"[:300])
        outputs = [by_name[name] for name in wanted]
    tail: list[bytes] = []
    tensors = [_tensor(made, wanted if type(wanted) is bool else wanted[made.name], tail) for made in outputs]
    head = _dump(_Response(answer.model, tensors, answer.version, answer.id, answer.parameters or None))
    # A number that JSON has no word for is written as null: nobody should take it for something else.
    if b"null" in head:
        _sayable(tensors)
    if not tail:
        return Reply(200, (head,))
    return Reply(200, (head, *tail), kind=OCTETS, json_bytes=len(head))


def _as_bytes(answer: Answer) -> Reply:
    """All outputs as bytes, behind a header that is the same for all answers of their shapes."""
    tail = [raw_of(made) for made in answer.outputs]
    sizes = [(made.name, made.datatype, made.shape, len(raw)) for made, raw in zip(answer.outputs, tail, strict=True)]
    key = (answer.model, answer.version, *sizes)
    head = _SAID.get(key)
    if head is None:
        tensors = [_Tensor(name, kind, shape, {"binary_data_size": size}) for name, kind, shape, size in sizes]
        head = _dump(_Response(answer.model, tensors, answer.version))
        if len(_SAID) >= _MOST_KNOWN:
            _SAID.clear()
        _SAID[key] = head
    return Reply(200, (head, *tail), kind=OCTETS, json_bytes=len(head))


_SAID: dict[tuple[Any, ...], bytes] = {}


def around(model: str, version: str, outputs: Sequence[Made]) -> list[bytes]:
    """An answer in JSON without its numbers: what stands before, between and behind those of its outputs."""
    key = (model, version, *[(made.name, made.datatype, made.shape) for made in outputs])
    found = _AROUND.get(key)
    if found is None:
        tensors = [_Tensor(made.name, made.datatype, made.shape, None, []) for made in outputs]
        # No text holds these bytes: a quotation mark within one has a backslash before it.
        before, *rest = _dump(_Response(model, tensors, version)).split(b'"data":[]')
        found = [before + b'"data":[', *(b"]" + one + b'"data":[' for one in rest[:-1]), b"]" + rest[-1]]
        if len(_AROUND) >= _MOST_KNOWN:
            _AROUND.clear()
        _AROUND[key] = found
    return found


_AROUND: dict[tuple[Any, ...], list[bytes]] = {}


def problem(error: FalajError) -> Reply:
    """An error as clients of the protocol read it: {"error": text}, and nothing else."""
    headers = ((b"www-authenticate", b"Bearer"),) if error.status == 401 else retry_after(error)
    return Reply(error.status, (_dump({"error": str(error)}),), headers=headers)


def refusal(status: int, message: str, hint: str) -> Reply:
    """The same for what has no class of its own: the statuses of HTTP itself."""
    return said({"error": f"{message} ({hint})"}, status)


def said(value: Any, status: int = 200) -> Reply:
    """Plain values as JSON."""
    return Reply(status, (_dump(value),), kind=JSON)


def _inputs(asked: Sequence[_Input], tail: "bytes | memoryview") -> list[Given]:
    if len(asked) != 1:
        check_inputs([one.name for one in asked])
    made, at, texts = [], 0, 0
    for one in asked:
        if one.datatype == "BYTES":
            texts += math.prod(one.shape)
            few_enough(one.name, texts)
        size = _binary_bytes(one) if one.parameters else None
        if size is None:
            made.append(_listed(one))
            continue
        made.append(given(one.name, one.datatype, one.shape, tail[at : at + size]))
        at += size
    if at != len(tail):
        raise Invalid(
            f"the inputs say {at} bytes of binary data, and {len(tail)} came", "binary_data_size is of each input"
        )
    return made


def _binary_bytes(one: _Input) -> int | None:
    parameters = one.parameters or {}
    check_plain(one.name, parameters)
    size = parameters.get("binary_data_size")
    if size is None:
        return None
    if type(size) is not int or size < 0:
        raise Invalid(f"binary_data_size of {one.name[:60]!r} is no size", "how many bytes of it follow the JSON")
    if memoryview(one.data):
        raise Invalid(f"{one.name[:60]!r} has data and binary_data_size", "send one of them")
    return size


def _listed(one: _Input) -> Given:
    """An input whose data is a list in the JSON: flat, or nested as its shape says."""
    count = math.prod(one.shape) or elements(one.name, one.shape)
    raw = memoryview(one.data)
    depth = 1 if len(raw) > 1 and raw[1] not in b"[ \t\r\n" else _depth(one.name, raw)
    try:
        values = reader(one.datatype, depth)(raw)
    except KeyError:
        raise Invalid(
            f"{one.name[:60]!r} is of datatype {one.datatype[:20]!r}", f"one of {', '.join(DATATYPES)}"
        ) from None
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise Invalid(f"the data of {one.name[:60]!r}: {str(error)[:200]}", f"a list of {one.datatype}") from error
    if depth > 1:
        values = _flat(one, values, depth)
    if len(values) != count:
        raise Invalid(f"{one.name[:60]!r} has {len(values)} elements, and its shape {count}", "send as many")
    if one.datatype == "BYTES":
        return Given(one.name, "BYTES", one.shape, [text.encode() for text in values])
    return Given(one.name, one.datatype, one.shape, pack(one.name, one.datatype, values))


def _depth(name: str, raw: memoryview) -> int:
    """How deep the list is nested, by how it begins."""
    if not raw:
        raise Invalid(f"{name[:60]!r} has no data", "data, or parameters.binary_data_size")
    begin = bytes(raw[:4096]).translate(None, b" \t\r\n")
    return max(1, min(len(begin) - len(begin.lstrip(b"[")), MOST_DIMENSIONS))


def _flat(one: _Input, values: list[Any], depth: int) -> list[Any]:
    shape = one.shape[: one.shape.index(0) + 1] if 0 in one.shape else one.shape
    if depth != len(shape):
        raise Invalid(f"{one.name[:60]!r} is nested {depth} deep, and its shape {len(shape)}", "nest as the shape")
    fits = len(values) == shape[0]
    for size in shape[1:]:
        fits = fits and all(len(inner) == size for inner in values)
        values = list(chain.from_iterable(values))
    if not fits:
        raise Invalid(f"{one.name[:60]!r} is not nested as its shape", "every list as long as the shape says")
    return values


def _parameters(ask: Ask, found: _Parameters) -> bool:
    """The parameters that are understood go where they belong; the rest is the model's. Whether outputs are binary."""
    binary = found.pop("binary_data_output", False)
    if type(binary) is not bool:
        raise Invalid("binary_data_output is neither true nor false", "true: all outputs as bytes")
    settle(ask, found)
    return binary


def _outputs(ask: Ask, asked: Sequence[_Output], binary: bool) -> Wanted:
    wanted: dict[str, bool] = {}
    for one in asked:
        parameters = one.parameters or {}
        check_plain(one.name, parameters)
        as_bytes = parameters.get("binary_data", binary)
        if type(as_bytes) is not bool:
            raise Invalid(f"binary_data of {one.name[:60]!r} is neither true nor false", "true: as bytes")
        wanted[one.name] = as_bytes
    if len(wanted) < len(asked) or len(asked) > MOST_TENSORS:
        raise Invalid("an output is asked for twice, or there are too many", f"each once, {MOST_TENSORS} at most")
    ask.outputs = tuple(wanted)
    return wanted


def _tensor(made: Made, as_bytes: bool, tail: list[bytes]) -> _Tensor:
    if not as_bytes:
        return _Tensor(made.name, made.datatype, made.shape, None, values_of(made))
    raw = raw_of(made)
    tail.append(raw)
    return _Tensor(made.name, made.datatype, made.shape, {"binary_data_size": len(raw)})


def _sayable(tensors: Sequence[_Tensor]) -> None:
    for one in tensors:
        if one.data and isinstance(one.data[0], float) and not all(map(math.isfinite, one.data)):
            raise UserCodeFailed(
                f"the model's {one.name[:60]!r} holds NaN or infinity, and JSON has no word for them",
                "ask for it as binary data",
            )
