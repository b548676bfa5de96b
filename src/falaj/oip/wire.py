"""Protocol buffers by table: messages as plain dictionaries, for those that are not sent thousands of times a second.

A field that is absent is absent from the dictionary. As protobuf's own readers do: the last of a repeated singular
field counts, messages merge, unknown fields are skipped, packed and unpacked lists are both read, texts must be UTF-8.
"""

import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from falaj.core.errors import Invalid

MOST_FIELDS = 1 << 20
"""In one message: the reader is a loop, and a request may not hold it for long."""
_DEEPEST = 100
_WORD = (1 << 64) - 1
_VARINT, _EIGHT, _SIZED, _GROUP, _GROUP_END, _FOUR = range(6)
_FIXED = {"float": struct.Struct("<f"), "double": struct.Struct("<d")}
_WIRES = {"string": _SIZED, "bytes": _SIZED, "float": _FOUR, "double": _EIGHT}
_SIGNED = {"int32": 32, "int64": 64, "enum": 32}
_SMALL = tuple(bytes((number,)) for number in range(128))


class Field(NamedTuple):
    """One field of a message; `kind` is a scalar's name, `enum`, `message` or `map` (keys are texts)."""

    number: int
    name: str
    kind: str
    many: bool = False
    part: "Message | None" = None
    """The message of a `message` or `map`; a map of texts has none."""
    names: Mapping[str, int] = {}
    """The names of an `enum`."""


class Message:
    """The fields of a message. Of a `choice`, one field at most is set."""

    __slots__ = ("by_number", "choice", "fields")

    def __init__(self, *fields: Field, choice: bool = False) -> None:
        self.fields, self.choice = tuple(sorted(fields)), choice
        self.by_number = {field.number: field for field in fields}


def message(text: str, *, choice: bool = False, **parts: "Message | Mapping[str, int]") -> Message:
    """A message from its fields: `1 name string, 2 shape int64*, 3 inputs Tensor*, 4 values Value%` (% is a map)."""
    return Message(*(_field(one, parts) for one in text.split(",") if one.strip()), choice=choice)


def _field(text: str, parts: "Mapping[str, Message | Mapping[str, int]]") -> Field:
    number, name, said = text.split()
    kind, many = said.rstrip("*%"), said.endswith("*")
    part = parts.get(kind)
    if isinstance(part, Message):
        return Field(int(number), name, "map" if said.endswith("%") else "message", many, part)
    if part is not None:
        return Field(int(number), name, "enum", many, None, part)
    return Field(int(number), name, "map" if said.endswith("%") else kind, many)


def varint(number: int) -> bytes:
    """A number of at most 64 bits, as protobuf writes it."""
    if 0 <= number < 128:
        return _SMALL[number]
    number &= _WORD
    made = bytearray()
    while number > 127:
        made.append(number & 127 | 128)
        number >>= 7
    made.append(number)
    return bytes(made)


def read_varint(data: bytes | memoryview, at: int) -> tuple[int, int]:
    """The number at a place, and the place behind it."""
    found = shift = 0
    while shift < 70:
        if at >= len(data):
            raise broken("it ends inside a number")
        octet = data[at]
        at += 1
        found |= (octet & 127) << shift
        if octet < 128:
            return found & _WORD, at
        shift += 7
    raise broken("a number has more than ten bytes")


def broken(why: str) -> Invalid:
    """What is said of bytes that are no message."""
    return Invalid(f"the message is no protobuf: {why}", "send a message of inference.GRPCInferenceService")


def fields(data: bytes | memoryview, most: int = MOST_FIELDS) -> Iterator[tuple[int, int, Any]]:
    """Number, wire type and value of each field: an int, or the bytes. Groups, which nothing here has, are skipped."""
    at = count = 0
    while at < len(data):
        count += 1
        if count > most:
            raise Invalid(f"a message of more than {most} fields", "send the numbers as raw_input_contents")
        number, wire, at = _tag(data, at)
        if wire == _VARINT:
            value, at = read_varint(data, at)
            yield number, wire, value
        elif wire == _GROUP:
            at = _skip_group(data, at, number)
        else:
            start, at = _span(data, at, wire)
            yield number, wire, data[start:at]


def _tag(data: bytes | memoryview, at: int) -> tuple[int, int, int]:
    tag, at = read_varint(data, at)
    if tag >> 32 or not tag >> 3:
        raise broken("a field has no number that exists")
    return tag >> 3, tag & 7, at


def _span(data: bytes | memoryview, at: int, wire: int) -> tuple[int, int]:
    """Where a value of bytes begins and ends."""
    if wire == _SIZED:
        size, at = read_varint(data, at)
    elif wire in (_FOUR, _EIGHT):
        size = 4 if wire == _FOUR else 8
    else:
        raise broken("a field is of no kind that exists")
    if size > len(data) - at:
        raise broken("a field is longer than the message")
    return at, at + size


def _skip_group(data: bytes | memoryview, at: int, number: int) -> int:
    open_groups, last = [number], at + MOST_FIELDS
    while open_groups:
        if at > last:
            raise broken("its groups are too long")
        number, wire, at = _tag(data, at)
        if wire == _GROUP:
            open_groups.append(number)
            if len(open_groups) > _DEEPEST:
                raise broken("its groups are too deep")
        elif wire == _GROUP_END:
            if open_groups.pop() != number:
                raise broken("a group ends that did not begin")
        elif wire == _VARINT:
            at = read_varint(data, at)[1]
        else:
            at = _span(data, at, wire)[1]
    return at


def skip(data: bytes, at: int) -> int:
    """The place behind the field at a place, whatever it is."""
    number, wire, at = _tag(data, at)
    if wire == _VARINT:
        return read_varint(data, at)[1]
    if wire == _GROUP:
        return _skip_group(data, at, number)
    return _span(data, at, wire)[1]


def text(data: bytes | memoryview) -> str:
    """A string of a message."""
    try:
        return str(data, "utf-8")
    except UnicodeDecodeError as error:
        raise broken("a text is not UTF-8") from error


def decode(kind: Message, data: bytes | memoryview, most: int = MOST_FIELDS) -> dict[str, Any]:
    """What a message of so many fields holds."""
    found: dict[str, Any] = {}
    for number, wire, value in fields(data, most):
        field = kind.by_number.get(number)
        if field is None:
            continue
        if kind.choice and wire == _wire(field):
            found.clear()
        if field.many:
            _append(found.setdefault(field.name, []), field, wire, value)
        elif wire == _wire(field):
            _set(found, field, value)
    return {name: value for name, value in found.items() if value != []}


def _wire(field: Field) -> int:
    return _SIZED if field.kind in ("message", "map") else _WIRES.get(field.kind, _VARINT)


def _set(found: dict[str, Any], field: Field, value: Any) -> None:
    if field.kind == "map":
        entry = decode(_entry(field), value)
        found.setdefault(field.name, {})[entry.get("key", "")] = entry.get("value", {} if field.part else "")
    elif field.part is not None:
        new = decode(field.part, value)
        found[field.name] = _merge(field.part, found[field.name], new) if field.name in found else new
    else:
        found[field.name] = _scalar(field.kind, value)


def _entry(field: Field) -> Message:
    value = Field(2, "value", "message", part=field.part) if field.part else Field(2, "value", "string")
    return Message(Field(1, "key", "string"), value)


def _merge(kind: Message, old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """Two occurrences of one message: as if their bytes stood one after the other."""
    made = {} if kind.choice and new else dict(old)
    for field in kind.fields:
        if field.name not in new:
            continue
        value = new[field.name]
        if field.name in made and field.many:
            value = made[field.name] + value
        elif field.name in made and field.kind == "map":
            value = made[field.name] | value
        elif field.name in made and field.part is not None:
            value = _merge(field.part, made[field.name], value)
        made[field.name] = value
    return made


def _append(found: list[Any], field: Field, wire: int, value: Any) -> None:
    if field.part is not None:
        if wire == _SIZED:
            found.append(decode(field.part, value))
    elif wire == _wire(field):
        found.append(_scalar(field.kind, value))
    elif wire == _SIZED:
        found.extend(_packed(field.kind, value))


def _packed(kind: str, data: bytes | memoryview) -> Iterator[Any]:
    if kind in _FIXED:
        if len(data) % _FIXED[kind].size:
            raise broken("a list of numbers ends inside one")
        yield from (one for (one,) in _FIXED[kind].iter_unpack(data))
        return
    if len(data) > MOST_FIELDS:
        raise Invalid(f"a list of numbers in {len(data)} bytes", "send fewer")
    at = 0
    while at < len(data):
        number, at = read_varint(data, at)
        yield _scalar(kind, number)


def _scalar(kind: str, value: Any) -> Any:
    if kind == "string":
        return text(value)
    if kind == "bytes":
        return bytes(value)
    if kind == "bool":
        return value != 0
    if kind in _FIXED:
        return _FIXED[kind].unpack(value)[0]
    bits = _SIGNED.get(kind)
    if bits:
        value &= (1 << bits) - 1
        return value - (1 << bits) if value >> (bits - 1) else value
    return value & 0xFFFF_FFFF if kind == "uint32" else value


def encode(kind: Message, values: Mapping[str, Any]) -> bytes:
    """A message that holds these values. Names it does not have are left out; so is what is 0 or empty."""
    return b"".join(
        part for field in kind.fields for part in _written(field, values.get(field.name), always=kind.choice)
    )


def _written(field: Field, value: Any, *, always: bool) -> Iterator[bytes]:
    if value is None:
        return
    if field.kind == "map":
        for key in value:
            yield _sized(field.number, encode(_entry(field), {"key": key, "value": value[key]}))
    elif not field.many:
        if value or always or field.part is not None:
            yield _one(field, value)
    elif field.part is not None or _wire(field) == _SIZED:
        yield from (_one(field, one) for one in value)
    elif value:
        yield _sized(field.number, _pack(field, value))


def _pack(field: Field, values: Sequence[Any]) -> bytes:
    return b"".join(_plain(field, one) for one in values)


def _one(field: Field, value: Any) -> bytes:
    if field.part is not None:
        return _sized(field.number, encode(field.part, value))
    if field.kind in ("string", "bytes"):
        return _sized(field.number, value.encode() if isinstance(value, str) else bytes(value))
    return varint(field.number << 3 | _wire(field)) + _plain(field, value)


def _plain(field: Field, value: Any) -> bytes:
    if field.kind in _FIXED:
        return _FIXED[field.kind].pack(value)
    return varint(field.names[value] if isinstance(value, str) else int(value))


def _sized(number: int, data: bytes) -> bytes:
    return varint(number << 3 | _SIZED) + varint(len(data)) + data
