"""ModelInfer's messages, read and written by hand: the part of the gRPC protocol that is on the path of every request.

What repeats from request to request (the description of a tensor) is read once and looked up by its bytes after that.
"""

from math import prod
from typing import Any, NamedTuple

from falaj.core.errors import Invalid
from falaj.core.sheet import MOST_TENSORS
from falaj.oip.asked import check_inputs, check_plain, settle
from falaj.oip.messages import PARAMETER, STREAM_RESPONSE, TENSOR, WANTED
from falaj.oip.tensors import MOST_TEXTS, SIZES, Answer, Ask, Given, Made, elements, few_enough, given, raw_of
from falaj.oip.typed import contents_of, typed
from falaj.oip.wire import Field, Message, broken, decode, encode, fields, read_varint, skip, text, varint

RAW, FINAL = 1, 2
"""How an answer is wanted: as raw bytes; with a mark that it is the last one to its request (Triton's streams)."""
_MOST_PARTS, _COPIED, _KEPT, _SHORT, _SAME = 4096, 4096, 1024, 512, 48
_FINAL = "triton_enable_empty_final_response"
_VALUES = {bool: "bool_param", int: "int64_param", float: "double_param", str: "string_param"}
_UNFILLED = Message(*(field for field in TENSOR.fields if field.name != "contents"))
_ENTRY = Message(Field(1, "key", "string"), Field(2, "value", "message", part=PARAMETER))
Piece = bytes | memoryview


class Described(NamedTuple):
    """What a request says of an input, without its numbers."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    size_bytes: int
    """-1 where the bytes must be looked at (BYTES, BOOL)."""
    contents: Piece | None


class Pattern(NamedTuple):
    """A request that differs from others of its caller in the numbers alone: one raw input, and it comes last."""

    prefix: bytes
    """All that stands before the numbers, with their length: what follows can be nothing else."""
    model: str
    version: str
    one: Described | None = None
    outputs: tuple[str, ...] = ()


_peeked: dict[tuple[int, bytes], Pattern] = {}
_patterns: dict[tuple[int, bytes], Pattern] = {}
_inputs: dict[Piece, Described] = {}
_outputs: dict[Piece, str] = {}
_made: dict[tuple[str, str, tuple[int, ...]], bytes] = {}
_heads: dict[tuple[str, str], bytes] = {}


def peek(message: bytes) -> tuple[str, str, str]:
    """Model, version and id of a ModelInferRequest, as `read_ask` would find them; the rest is not looked at."""
    key = (len(message), message[:_SAME])
    known = _peeked.get(key)
    if known is not None and message.startswith(known.prefix):
        return known.model, known.version, ""
    found = _parts(message)
    model, version, id_ = _last(found[1]), _last(found[2]), _last(found[3])
    prefix = _prefix(message, found)
    if prefix:
        _keep(_peeked, key, Pattern(prefix, model, version))
    return model, version, id_


def read_ask(message: bytes) -> tuple[Ask, int]:
    """The inference a ModelInferRequest asks for, checked, and how its answer is wanted (RAW, FINAL)."""
    key = (len(message), message[:_SAME])
    known = _patterns.get(key)
    if known is not None and known.one is not None and message.startswith(known.prefix):
        one, at = known.one, len(known.prefix)
        data = message[at:] if one.size_bytes <= _COPIED else memoryview(message)[at:]
        ask = Ask(known.model, known.version, [Given(one.name, one.datatype, one.shape, data)])
        ask.outputs = known.outputs
        return ask, RAW
    return _read(message, key)


def _read(message: bytes, key: tuple[int, bytes]) -> tuple[Ask, int]:
    found = _parts(message)
    raw = found[7]
    described = [_known(piece) for piece in found[5][: MOST_TENSORS + 1]]
    if len(described) != 1:
        check_inputs([one.name for one in described])
    few_enough(described[0].name, sum([prod(one.shape) for one in described if one.datatype == "BYTES"]))
    if raw:
        if len(raw) != len(described):
            raise Invalid(f"{len(raw)} raw_input_contents for {len(described)} inputs", "one each, in their order")
        inputs, wanted = [_raw(one, piece) for one, piece in zip(described, raw, strict=True)], RAW
    else:
        inputs, wanted = [_typed(one, len(described)) for one in described], 0
    ask = Ask(_last(found[1]), _last(found[2]), inputs)
    if found[3]:
        ask.id = _last(found[3])
    if found[6]:
        ask.outputs = [_outputs.get(piece) or _wanted(piece) for piece in found[6]]
        if len(set(ask.outputs)) < len(ask.outputs):
            raise Invalid("an output is asked for twice", "ask for each once")
    prefix = _prefix(message, found)
    if prefix and len(described) == 1 and described[0].size_bytes > 0:
        _keep(_patterns, key, Pattern(prefix, ask.model, ask.version, described[0], tuple(ask.outputs)))
    return ask, (wanted | _settled(ask, found[4])) if found[4] else wanted


def _prefix(message: bytes, found: "tuple[list[Piece], ...]") -> bytes:
    """What stands before the numbers of a request that may be a pattern; empty for one that may not."""
    if len(found[7]) != 1 or found[3] or found[4] or not len(found[7][0]):
        return b""
    prefix = message[: -len(found[7][0])]
    mark = b"\x3a" + varint(len(found[7][0]))
    if len(prefix) > _SHORT or not prefix.endswith(mark):
        return b""
    before = _parts(prefix[: -len(mark)])
    return prefix if not before[7] and before[:7] == found[:7] else b""


def write_answer(answer: Answer, wanted: int) -> bytes:
    """A ModelInferResponse. Raw when the request was; numbers that have no list of their own (FP16) make it raw too."""
    parts = [_heads.get((answer.model, answer.version)) or _head(answer.model, answer.version)]
    if answer.id:
        said = answer.id.encode()
        parts.append(b"\x1a" + varint(len(said)) + said)
    if answer.parameters or wanted & FINAL:
        parts.append(_said(answer.parameters | ({"triton_final_response": True} if wanted & FINAL else {})))
    if not wanted & RAW and all(contents_of(one) is not None for one in answer.outputs):
        parts.extend(_output(one, contents_of(one) or b"") for one in answer.outputs)
        return b"".join(parts)
    raws = []
    for one in answer.outputs:
        parts.append(_made.get((one.name, one.datatype, one.shape)) or _output(one))
        data = raw_of(one)
        size = len(data)
        raws.append(b"\x32" + varint(size) if size > 127 else _SIZED[size])
        raws.append(data)
    return b"".join(parts + raws)


def in_stream(answer: bytes) -> bytes:
    """A ModelStreamInferResponse that holds this ModelInferResponse."""
    return b"\x12" + varint(len(answer)) + answer


def stream_error(error: str, id_: str = "") -> bytes:
    """A ModelStreamInferResponse that says what went wrong with the request of this id: the stream goes on."""
    return encode(STREAM_RESPONSE, {"error_message": error, "infer_response": {"id": id_} if id_ else None})


_SIZED = tuple(b"\x32" + varint(size) for size in range(128))


def _parts(data: bytes) -> tuple[list[Piece], ...]:
    """The fields of ModelInferRequest by number; all seven are sized. Large ones are views, not copies."""
    found: tuple[list[Piece], ...] = ([], [], [], [], [], [], [], [])
    at, end, count = 0, len(data), 0
    while at < end:
        tag = data[at]
        count += 1
        if count > _MOST_PARTS:
            raise Invalid(f"a request of more than {_MOST_PARTS} parts", "send fewer parameters and tensors")
        if tag & 7 != 2 or not 8 <= tag <= 0x3A:
            tag, at = _odd(data, at)
            if not tag:
                continue
        else:
            at += 1
        size, at = (data[at], at + 1) if at < end and data[at] < 128 else read_varint(data, at)
        stop = at + size
        if stop > end:
            raise broken("a field is longer than the message")
        found[tag >> 3].append(data[at:stop] if size <= _COPIED else memoryview(data)[at:stop])
        at = stop
    return found


def _odd(data: bytes, at: int) -> tuple[int, int]:
    """A tag that is not one of the seven in one byte: skipped (0), unless it is one of them in more bytes."""
    tag, after = read_varint(data, at)
    return (tag, after) if tag & 7 == 2 and 8 <= tag <= 0x3A else (0, skip(data, at))


def _last(pieces: list[Piece]) -> str:
    said = ""
    for piece in pieces:
        said = text(piece)
    return said


def _known(piece: Piece) -> Described:
    found = _inputs.get(piece) if type(piece) is bytes else None
    return found or _describe(piece)


def _describe(piece: Piece) -> Described:
    # The contents stay bytes here: the tables would make a list of their numbers.
    contents = [value for number, wire, value in fields(piece, _MOST_PARTS) if number == 5 and wire == 2]
    said = decode(_UNFILLED, piece, _MOST_PARTS)
    name, datatype, shape = said.get("name", ""), said.get("datatype", ""), tuple(said.get("shape", ()))
    check_plain(name, said.get("parameters", {}))
    if not name or (datatype != "BYTES" and datatype not in SIZES):
        raise Invalid(f"{name[:60]!r} is of datatype {datatype[:20]!r}", f"one of {', '.join(SIZES)}, BYTES")
    count = elements(name, shape)
    size = -1 if datatype in ("BYTES", "BOOL") else count * SIZES[datatype]
    made = Described(name, datatype, shape, size, b"".join(contents) if contents else None)
    if not contents:
        _keep(_inputs, piece, made)
    return made


def _keep(known: dict[Any, Any], key: Any, value: Any) -> None:
    if type(key) is not memoryview and len(key) <= _SHORT:
        if len(known) >= _KEPT:
            known.clear()
        known[key] = value


def _wanted(piece: Piece) -> str:
    said = decode(WANTED, piece)
    name = str(said.get("name", ""))
    if not name:
        raise Invalid("an output that is wanted has no name", "name it, or ask for none to have them all")
    check_plain(name, said.get("parameters", {}))
    _keep(_outputs, piece, name)
    return name


def _raw(one: Described, piece: Piece) -> Given:
    if one.contents is not None:
        raise Invalid(f"{one.name[:60]!r} has contents beside raw_input_contents", "all inputs are raw, or none is")
    if len(piece) != one.size_bytes:
        return given(one.name, one.datatype, one.shape, piece)
    return Given(one.name, one.datatype, one.shape, piece)


def _typed(one: Described, inputs: int) -> Given:
    return typed(one.name, one.datatype, one.shape, one.contents or b"", MOST_TEXTS // inputs)


def _settled(ask: Ask, pieces: list[Piece]) -> int:
    """Puts the request's parameters where they belong."""
    found: dict[str, Any] = {}
    for piece in pieces:
        entry = decode(_ENTRY, piece)
        values = tuple(entry.get("value", {}).values())
        if not values:
            raise Invalid(f"the parameter {entry.get('key', '')[:60]!r} has no value", "give it one, or leave it out")
        found[entry.get("key", "")] = values[0]
    final = found.pop(_FINAL, False) is True
    settle(ask, found)
    return FINAL if final else 0


def _head(model: str, version: str) -> bytes:
    made = encode(_NAMES, {"model_name": model, "model_version": version})
    if len(_heads) >= _KEPT:
        _heads.clear()
    _heads[model, version] = made
    return made


_NAMES = Message(Field(1, "model_name", "string"), Field(2, "model_version", "string"))


def _said(parameters: dict[str, Any]) -> bytes:
    plain = {name: {_VALUES.get(type(one), "string_param"): one} for name, one in parameters.items()}
    return encode(_PARAMETERS, {"parameters": plain})


_PARAMETERS = Message(Field(4, "parameters", "map", part=PARAMETER))


def _output(one: Made, contents: bytes | None = None) -> bytes:
    made = encode(_UNFILLED, {"name": one.name, "datatype": one.datatype, "shape": one.shape})
    if contents is not None:
        made += b"\x2a" + varint(len(contents)) + contents
    made = b"\x2a" + varint(len(made)) + made
    if contents is None:
        _keep(_made, (one.name, one.datatype, one.shape), made)
    return made
