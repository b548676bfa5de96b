"""Protocol buffers by table: messages as plain dictionaries, for those that are not sent thousands of times a second.

A field that is absent is absent from the dictionary. As protobuf's own readers do: the last of a repeated singular
field counts, messages merge, unknown fields are skipped, packed and unpacked lists are both read, texts must be UTF-8.
"""

import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from falaj.core.errors import Invalid

MAX_FIELDS = 1 << 20
"""In one message: the reader is a loop, and a request may not hold it for long."""
_MAX_GROUP_DEPTH = 100
_MASK_64 = (1 << 64) - 1
_WIRE_VARINT, _WIRE_FIXED64, _WIRE_SIZED, _WIRE_GROUP, _WIRE_GROUP_END, _WIRE_FIXED32 = range(6)
_FIXED_FORMATS = {"float": struct.Struct("<f"), "double": struct.Struct("<d")}
_WIRE_TYPES = {"string": _WIRE_SIZED, "bytes": _WIRE_SIZED, "float": _WIRE_FIXED32, "double": _WIRE_FIXED64}
_SIGNED_BITS = {"int32": 32, "int64": 64, "enum": 32}
_SMALL_VARINTS = tuple(bytes((number,)) for number in range(128))


class MessageField(NamedTuple):
    """One field of a message; `kind` is a scalar's name, `enum`, `message` or `map` (keys are texts)."""

    number: int
    name: str
    kind: str
    many: bool = False
    part: "MessageType | None" = None
    """The message of a `message` or `map`; a map of texts has none."""
    names: Mapping[str, int] = {}
    """The names of an `enum`."""


class MessageType:
    """The fields of a message. Of a `choice`, one field at most is set."""

    __slots__ = ("by_number", "choice", "fields")

    def __init__(self, *fields: MessageField, is_oneof: bool = False) -> None:
        self.fields, self.choice = tuple(sorted(fields)), is_oneof
        self.by_number = {field.number: field for field in fields}


def define_message(
    definition: str, *, is_oneof: bool = False, **message_types: "MessageType | Mapping[str, int]"
) -> MessageType:
    """A message from its fields: `1 name string, 2 shape int64*, 3 inputs Tensor*, 4 values Value%` (% is a map)."""
    return MessageType(
        *(
            _parse_field(field_definition, message_types)
            for field_definition in definition.split(",")
            if field_definition.strip()
        ),
        is_oneof=is_oneof,
    )


def _parse_field(definition: str, message_types: "Mapping[str, MessageType | Mapping[str, int]]") -> MessageField:
    number, name, type_text = definition.split()
    kind, is_repeated = type_text.rstrip("*%"), type_text.endswith("*")
    message_type = message_types.get(kind)
    if isinstance(message_type, MessageType):
        return MessageField(
            int(number), name, "map" if type_text.endswith("%") else "message", is_repeated, message_type
        )
    if message_type is not None:
        return MessageField(int(number), name, "enum", is_repeated, None, message_type)
    return MessageField(int(number), name, "map" if type_text.endswith("%") else kind, is_repeated)


def encode_varint(number: int) -> bytes:
    """A number of at most 64 bits, as protobuf writes it."""
    if 0 <= number < 128:
        return _SMALL_VARINTS[number]
    number &= _MASK_64
    encoded = bytearray()
    while number > 127:
        encoded.append(number & 127 | 128)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)


def read_varint(data: bytes | memoryview, offset: int) -> tuple[int, int]:
    """The number at a place, and the place behind it."""
    decoded = shift = 0
    while shift < 70:
        if offset >= len(data):
            raise malformed_error("it ends inside a number")
        octet = data[offset]
        offset += 1
        decoded |= (octet & 127) << shift
        if octet < 128:
            return decoded & _MASK_64, offset
        shift += 7
    raise malformed_error("a number has more than ten bytes")


def malformed_error(reason: str) -> Invalid:
    """What is said of bytes that are no message."""
    return Invalid(f"the message is no protobuf: {reason}", "send a message of inference.GRPCInferenceService")


def iterate_fields(data: bytes | memoryview, max_fields: int = MAX_FIELDS) -> Iterator[tuple[int, int, Any]]:
    """Number, wire type and value of each field: an int, or the bytes. Groups, which nothing here has, are skipped."""
    offset = count = 0
    while offset < len(data):
        count += 1
        if count > max_fields:
            raise Invalid(f"a message of more than {max_fields} fields", "send the numbers as raw_input_contents")
        number, wire_type, offset = _read_tag(data, offset)
        if wire_type == _WIRE_VARINT:
            value, offset = read_varint(data, offset)
            yield number, wire_type, value
        elif wire_type == _WIRE_GROUP:
            offset = _skip_group(data, offset, number)
        else:
            start, offset = _value_span(data, offset, wire_type)
            yield number, wire_type, data[start:offset]


def _read_tag(data: bytes | memoryview, offset: int) -> tuple[int, int, int]:
    tag, offset = read_varint(data, offset)
    if tag >> 32 or not tag >> 3:
        raise malformed_error("a field has no number that exists")
    return tag >> 3, tag & 7, offset


def _value_span(data: bytes | memoryview, offset: int, wire_type: int) -> tuple[int, int]:
    """Where a value of bytes begins and ends."""
    if wire_type == _WIRE_SIZED:
        size, offset = read_varint(data, offset)
    elif wire_type in (_WIRE_FIXED32, _WIRE_FIXED64):
        size = 4 if wire_type == _WIRE_FIXED32 else 8
    else:
        raise malformed_error("a field is of no kind that exists")
    if size > len(data) - offset:
        raise malformed_error("a field is longer than the message")
    return offset, offset + size


def _skip_group(data: bytes | memoryview, offset: int, number: int) -> int:
    open_groups, max_offset = [number], offset + MAX_FIELDS
    while open_groups:
        if offset > max_offset:
            raise malformed_error("its groups are too long")
        number, wire_type, offset = _read_tag(data, offset)
        if wire_type == _WIRE_GROUP:
            open_groups.append(number)
            if len(open_groups) > _MAX_GROUP_DEPTH:
                raise malformed_error("its groups are too deep")
        elif wire_type == _WIRE_GROUP_END:
            if open_groups.pop() != number:
                raise malformed_error("a group ends that did not begin")
        elif wire_type == _WIRE_VARINT:
            offset = read_varint(data, offset)[1]
        else:
            offset = _value_span(data, offset, wire_type)[1]
    return offset


def skip_field(data: bytes, offset: int) -> int:
    """The place behind the field at a place, whatever it is."""
    number, wire_type, offset = _read_tag(data, offset)
    if wire_type == _WIRE_VARINT:
        return read_varint(data, offset)[1]
    if wire_type == _WIRE_GROUP:
        return _skip_group(data, offset, number)
    return _value_span(data, offset, wire_type)[1]


def decode_text(data: bytes | memoryview) -> str:
    """A string of a message."""
    try:
        return str(data, "utf-8")
    except UnicodeDecodeError as error:
        raise malformed_error("a text is not UTF-8") from error


def decode_message(message_type: MessageType, data: bytes | memoryview, max_fields: int = MAX_FIELDS) -> dict[str, Any]:
    """What a message of so many fields holds."""
    decoded: dict[str, Any] = {}
    for number, wire_type, value in iterate_fields(data, max_fields):
        field = message_type.by_number.get(number)
        if field is None:
            continue
        if message_type.choice and wire_type == _get_wire_type(field):
            decoded.clear()
        if field.many:
            _append_repeated(decoded.setdefault(field.name, []), field, wire_type, value)
        elif wire_type == _get_wire_type(field):
            _set_field(decoded, field, value)
    return {name: value for name, value in decoded.items() if value != []}


def _get_wire_type(field: MessageField) -> int:
    return _WIRE_SIZED if field.kind in ("message", "map") else _WIRE_TYPES.get(field.kind, _WIRE_VARINT)


def _set_field(decoded: dict[str, Any], field: MessageField, value: Any) -> None:
    if field.kind == "map":
        entry = decode_message(_map_entry_type(field), value)
        decoded.setdefault(field.name, {})[entry.get("key", "")] = entry.get("value", {} if field.part else "")
    elif field.part is not None:
        new_value = decode_message(field.part, value)
        decoded[field.name] = (
            _merge_messages(field.part, decoded[field.name], new_value) if field.name in decoded else new_value
        )
    else:
        decoded[field.name] = _decode_scalar(field.kind, value)


def _map_entry_type(field: MessageField) -> MessageType:
    value = MessageField(2, "value", "message", part=field.part) if field.part else MessageField(2, "value", "string")
    return MessageType(MessageField(1, "key", "string"), value)


def _merge_messages(
    message_type: MessageType, old_values: dict[str, Any], new_values: dict[str, Any]
) -> dict[str, Any]:
    """Two occurrences of one message: as if their bytes stood one after the other."""
    merged = {} if message_type.choice and new_values else dict(old_values)
    for field in message_type.fields:
        if field.name not in new_values:
            continue
        value = new_values[field.name]
        if field.name in merged and field.many:
            value = merged[field.name] + value
        elif field.name in merged and field.kind == "map":
            value = merged[field.name] | value
        elif field.name in merged and field.part is not None:
            value = _merge_messages(field.part, merged[field.name], value)
        merged[field.name] = value
    return merged


def _append_repeated(elements: list[Any], field: MessageField, wire_type: int, value: Any) -> None:
    if field.part is not None:
        if wire_type == _WIRE_SIZED:
            elements.append(decode_message(field.part, value))
    elif wire_type == _get_wire_type(field):
        elements.append(_decode_scalar(field.kind, value))
    elif wire_type == _WIRE_SIZED:
        elements.extend(_iterate_packed(field.kind, value))


def _iterate_packed(scalar_kind: str, data: bytes | memoryview) -> Iterator[Any]:
    if scalar_kind in _FIXED_FORMATS:
        if len(data) % _FIXED_FORMATS[scalar_kind].size:
            raise malformed_error("a list of numbers ends inside one")
        yield from (item for (item,) in _FIXED_FORMATS[scalar_kind].iter_unpack(data))
        return
    if len(data) > MAX_FIELDS:
        raise Invalid(f"a list of numbers in {len(data)} bytes", "send fewer")
    offset = 0
    while offset < len(data):
        integer, offset = read_varint(data, offset)
        yield _decode_scalar(scalar_kind, integer)


def _decode_scalar(scalar_kind: str, value: Any) -> Any:
    if scalar_kind == "string":
        return decode_text(value)
    if scalar_kind == "bytes":
        return bytes(value)
    if scalar_kind == "bool":
        return value != 0
    if scalar_kind in _FIXED_FORMATS:
        return _FIXED_FORMATS[scalar_kind].unpack(value)[0]
    bits = _SIGNED_BITS.get(scalar_kind)
    if bits:
        value &= (1 << bits) - 1
        return value - (1 << bits) if value >> (bits - 1) else value
    return value & 0xFFFF_FFFF if scalar_kind == "uint32" else value


def encode_message(message_type: MessageType, values: Mapping[str, Any]) -> bytes:
    """A message that holds these values. Names it does not have are left out; so is what is 0 or empty."""
    return b"".join(
        part
        for field in message_type.fields
        for part in _encode_field(field, values.get(field.name), writes_zero=message_type.choice)
    )


def _encode_field(field: MessageField, value: Any, *, writes_zero: bool) -> Iterator[bytes]:
    if value is None:
        return
    if field.kind == "map":
        for key in value:
            yield _encode_sized(field.number, encode_message(_map_entry_type(field), {"key": key, "value": value[key]}))
    elif not field.many:
        if value or writes_zero or field.part is not None:
            yield _encode_element(field, value)
    elif field.part is not None or _get_wire_type(field) == _WIRE_SIZED:
        yield from (_encode_element(field, element) for element in value)
    elif value:
        yield _encode_sized(field.number, _encode_packed(field, value))


def _encode_packed(field: MessageField, values: Sequence[Any]) -> bytes:
    return b"".join(_encode_scalar(field, element) for element in values)


def _encode_element(field: MessageField, value: Any) -> bytes:
    if field.part is not None:
        return _encode_sized(field.number, encode_message(field.part, value))
    if field.kind in ("string", "bytes"):
        return _encode_sized(field.number, value.encode() if isinstance(value, str) else bytes(value))
    return encode_varint(field.number << 3 | _get_wire_type(field)) + _encode_scalar(field, value)


def _encode_scalar(field: MessageField, value: Any) -> bytes:
    if field.kind in _FIXED_FORMATS:
        return _FIXED_FORMATS[field.kind].pack(value)
    return encode_varint(field.names[value] if isinstance(value, str) else int(value))


def _encode_sized(number: int, data: bytes) -> bytes:
    return encode_varint(number << 3 | _WIRE_SIZED) + encode_varint(len(data)) + data
