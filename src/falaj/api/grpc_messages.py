"""What is said over gRPC: messages made from one table at import, so that no generated file can differ from it.

`build_proto_text()` writes the table as a .proto file, from which clients in any language generate their own.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory  # type: ignore[import-untyped]
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

from falaj.asof.records import STATUS_NAMES
from falaj.core.errors import Invalid
from falaj.core.ref import Ref

PROTO_PACKAGE, PROTO_SERVICE = "falaj.v1", "Features"
STREAMING_BY_METHOD = {"Read": False, "ReadStream": True}
"""Each takes ReadRequest and gives ReadResponse; True: streams of them, answered one by one, in order."""
MESSAGE_FIELDS: dict[str, tuple[tuple[str, str, str], ...]] = {
    "Column": (
        ("bools", "repeated bool", "One value a row, in the list of its type; the other lists are empty."),
        ("ints", "repeated int64", "Whole numbers; times as microseconds since 1970, UTC."),
        ("doubles", "repeated double", ""),
        ("strings", "repeated string", ""),
        ("blobs", "repeated bytes", ""),
        ("lists", "repeated Column", "Rows that are lists themselves."),
        ("nulls", "repeated uint32", "Rows without a value; what stands in the list there means nothing."),
        ("statuses", "repeated Status", "In answers: why each row has a value, or none. Only PRESENT has one."),
    ),
    "ReadRequest": (
        ("service", "string", "For example service:fraud/scorer@v3."),
        ("keys", "map<string, Column>", "Whose features: each key with a value for every row."),
        ("request", "map<string, Column>", "What only the request knows, likewise."),
        ("model", "string", "The model that reads, where one does: it must have been trained on this version."),
    ),
    "ReadResponse": (
        ("service", "string", "What was read, with its version."),
        ("at_us", "int64", "As of when: microseconds since 1970, UTC."),
        ("names", "repeated string", ""),
        ("columns", "repeated Column", "One for each name."),
    ),
}
_VALUE_FIELDS = ("bools", "ints", "doubles", "strings", "blobs", "lists")
_VALUE_FIELD_BY_TYPE = {
    "bool": "bools", "int32": "ints", "int64": "ints", "time": "ints", "float32": "doubles", "float64": "doubles",
    "string": "strings", "bytes": "blobs",
}  # fmt: skip
_VALUE_FIELD_BY_PYTHON_TYPE = {
    bool: "bools",
    int: "ints",
    float: "doubles",
    str: "strings",
    bytes: "blobs",
    list: "lists",
    tuple: "lists",
}
_EMPTY_VALUES: dict[str, Any] = {"bools": False, "ints": 0, "doubles": 0.0, "strings": "", "blobs": b""}
_STATUS_CODES = {name: code for code, name in enumerate(STATUS_NAMES)}


def build_proto_text() -> str:
    """The .proto file of this door."""
    lines = ['syntax = "proto3";', "", f"package {PROTO_PACKAGE};", "", "enum Status {"]
    lines += [f"  {name} = {code};" for code, name in enumerate(STATUS_NAMES)] + ["}"]
    for message, fields in MESSAGE_FIELDS.items():
        lines += ["", f"message {message} {{"]
        for number, (name, field_type, comment) in enumerate(fields, 1):
            lines += [f"  // {comment}"] if comment else []
            lines += [f"  {field_type} {name} = {number};"]
        lines += ["}"]
    lines += ["", "// Send the token as metadata: authorization: Bearer <token>.", f"service {PROTO_SERVICE} {{"]
    for method, is_streamed in STREAMING_BY_METHOD.items():
        stream_keyword = "stream " if is_streamed else ""
        lines += [f"  rpc {method}({stream_keyword}ReadRequest) returns ({stream_keyword}ReadResponse);"]
    return "\n".join([*lines, "}", ""])


def _build_file_descriptor() -> descriptor_pb2.FileDescriptorProto:
    file = descriptor_pb2.FileDescriptorProto(name="falaj/v1/features.proto", package=PROTO_PACKAGE, syntax="proto3")
    status = file.enum_type.add(name="Status")
    for code, name in enumerate(STATUS_NAMES):
        status.value.add(name=name, number=code)
    for message, fields in MESSAGE_FIELDS.items():
        message_descriptor = file.message_type.add(name=message)
        for number, (name, field_type, _) in enumerate(fields, 1):
            _add_field(message_descriptor, name, number, field_type)
    return file


def _add_field(message: descriptor_pb2.DescriptorProto, name: str, number: int, field_type: str) -> None:
    descriptor = descriptor_pb2.FieldDescriptorProto
    field = message.field.add(name=name, number=number, label=descriptor.LABEL_OPTIONAL)
    if field_type.startswith("map<string, "):
        entry = message.nested_type.add(name=f"{name.capitalize()}Entry")
        entry.options.map_entry = True
        _add_field(entry, "key", 1, "string")
        _add_field(entry, "value", 2, field_type[len("map<string, ") : -1])
        field_type = f"repeated {message.name}.{entry.name}"
    if field_type.startswith("repeated "):
        field.label, field_type = descriptor.LABEL_REPEATED, field_type.removeprefix("repeated ")
    type_constant = f"TYPE_{field_type.upper()}"
    if hasattr(descriptor, type_constant):
        field.type = getattr(descriptor, type_constant)
    else:
        field.type, field.type_name = (
            descriptor.TYPE_ENUM if field_type == "Status" else descriptor.TYPE_MESSAGE,
            f".{PROTO_PACKAGE}.{field_type}",
        )


def _build_message_classes() -> dict[str, Any]:
    # A pool of our own: another package in the process may know a file of the same name.
    pool = descriptor_pool.DescriptorPool()
    pool.Add(_build_file_descriptor())
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{PROTO_PACKAGE}.{name}"))
        for name in MESSAGE_FIELDS
    }


MESSAGE_CLASSES = _build_message_classes()


def decode_read_request(body: bytes) -> dict[str, Any]:
    """The arguments of `features.read` in a ReadRequest, or Invalid."""
    try:
        read_request = MESSAGE_CLASSES["ReadRequest"].FromString(body)
    except DecodeError:
        raise Invalid("this is no ReadRequest", "generate your client from the .proto of this release") from None
    operation_arguments: dict[str, Any] = {
        "service": Ref.parse(read_request.service),
        "keys": _read_columns(read_request.keys),
    }
    if read_request.request:
        operation_arguments["request"] = _read_columns(read_request.request)
    if read_request.model:
        operation_arguments["model"] = Ref.parse(read_request.model)
    return operation_arguments


def encode_read_response(feature_rows: Any) -> bytes:
    """A ReadResponse from what `features.read` gave: columns and statuses by name."""
    types: Mapping[str, str] = getattr(feature_rows, "types", None) or {}
    response = MESSAGE_CLASSES["ReadResponse"](
        service=str(feature_rows.service), at_us=round(feature_rows.at * 1e6), names=feature_rows.columns
    )
    for name, values in feature_rows.columns.items():
        column = response.columns.add()
        column.statuses.extend([_STATUS_CODES[status] for status in feature_rows.statuses[name]])
        _fill_column(column, values, types.get(name, ""))
    encoded: bytes = response.SerializeToString()
    return encoded


def _read_columns(columns: Mapping[str, Any]) -> dict[str, list[Any]]:
    return {name: _read_column(column, name) for name, column in columns.items()}


def _read_column(column: Any, name: str, is_nested: bool = False) -> list[Any]:
    """The values of a request's column."""
    filled_fields = [value_field for value_field in _VALUE_FIELDS if len(getattr(column, value_field))]
    if len(filled_fields) > 1 or (is_nested and "lists" in filled_fields):
        raise Invalid(f"the column {name[:80]!r} has values of more than one type", "fill one list of it")
    if not filled_fields:
        # Nothing but nulls: there is no value whose number could say how many they are.
        size = len(column.nulls)
        if sorted(column.nulls) != list(range(size)):
            raise _misplaced_nulls_error(name)
        return [None] * size
    values = list(getattr(column, filled_fields[0]))
    if filled_fields[0] == "lists":
        values = [_read_column(nested_column, name, is_nested=True) for nested_column in values]
    for row in column.nulls:
        if row >= len(values):
            raise _misplaced_nulls_error(name)
        values[row] = None
    return values


def _misplaced_nulls_error(name: str) -> Invalid:
    return Invalid(f"the column {name[:80]!r} has nulls where it has no rows", "nulls are numbers of rows, from 0")


def _fill_column(column: Any, values: Sequence[Any], type_name: str) -> None:
    """Values into the list of their type, with something that means nothing where there is none."""
    value_field = _choose_value_field(values, type_name)
    column.nulls.extend([row for row, value in enumerate(values) if value is None])
    if value_field == "lists":
        for value in values:
            _fill_column(column.lists.add(), value or (), type_name.removeprefix("list[").removesuffix("]"))
    elif value_field:
        empty = _EMPTY_VALUES[value_field]
        getattr(column, value_field).extend(
            [empty if value is None else _to_proto_value(value, value_field) for value in values]
        )


def _to_proto_value(value: Any, value_field: str) -> Any:
    """JSON has no word for some values; here they get their own form back."""
    if isinstance(value, str) and value_field == "doubles":
        return float(value)
    return bytes.fromhex(value) if isinstance(value, str) and value_field == "blobs" else value


def _choose_value_field(values: Sequence[Any], type_name: str) -> str:
    """The list for a column: by its declared type, else by what it holds."""
    if type_name:
        return "lists" if type_name.startswith("list[") else _VALUE_FIELD_BY_TYPE[type_name]
    value_fields = {_VALUE_FIELD_BY_PYTHON_TYPE.get(type(value), "") for value in values if value is not None}
    if "doubles" in value_fields:
        return "doubles"
    return value_fields.pop() if len(value_fields) == 1 else ""
