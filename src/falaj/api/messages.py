"""What is said over gRPC: messages made from one table at import, so that no generated file can differ from it.

`proto_text()` writes the table as a .proto file, from which clients in any language generate their own.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory  # type: ignore[import-untyped]
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

from falaj.asof.records import STATUSES
from falaj.core.errors import Invalid
from falaj.core.ref import Ref

PACKAGE, SERVICE = "falaj.v1", "Features"
METHODS = {"Read": False, "ReadStream": True}
"""Each takes ReadRequest and gives ReadResponse; True: streams of them, answered one by one, in order."""
MESSAGES: dict[str, tuple[tuple[str, str, str], ...]] = {
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
_LISTS = ("bools", "ints", "doubles", "strings", "blobs", "lists")
_KINDS = {
    "bool": "bools", "int32": "ints", "int64": "ints", "time": "ints", "float32": "doubles", "float64": "doubles",
    "string": "strings", "bytes": "blobs",
}  # fmt: skip
_OF = {bool: "bools", int: "ints", float: "doubles", str: "strings", bytes: "blobs", list: "lists", tuple: "lists"}
_EMPTY: dict[str, Any] = {"bools": False, "ints": 0, "doubles": 0.0, "strings": "", "blobs": b""}
_CODES = {name: code for code, name in enumerate(STATUSES)}


def proto_text() -> str:
    """The .proto file of this door."""
    lines = ['syntax = "proto3";', "", f"package {PACKAGE};", "", "enum Status {"]
    lines += [f"  {name} = {code};" for code, name in enumerate(STATUSES)] + ["}"]
    for message, fields in MESSAGES.items():
        lines += ["", f"message {message} {{"]
        for number, (name, kind, about) in enumerate(fields, 1):
            lines += [f"  // {about}"] if about else []
            lines += [f"  {kind} {name} = {number};"]
        lines += ["}"]
    lines += ["", "// Send the token as metadata: authorization: Bearer <token>.", f"service {SERVICE} {{"]
    for method, streamed in METHODS.items():
        stream = "stream " if streamed else ""
        lines += [f"  rpc {method}({stream}ReadRequest) returns ({stream}ReadResponse);"]
    return "\n".join([*lines, "}", ""])


def _file() -> descriptor_pb2.FileDescriptorProto:
    file = descriptor_pb2.FileDescriptorProto(name="falaj/v1/features.proto", package=PACKAGE, syntax="proto3")
    status = file.enum_type.add(name="Status")
    for code, name in enumerate(STATUSES):
        status.value.add(name=name, number=code)
    for message, fields in MESSAGES.items():
        made = file.message_type.add(name=message)
        for number, (name, kind, _) in enumerate(fields, 1):
            _add_field(made, name, number, kind)
    return file


def _add_field(message: descriptor_pb2.DescriptorProto, name: str, number: int, kind: str) -> None:
    form = descriptor_pb2.FieldDescriptorProto
    field = message.field.add(name=name, number=number, label=form.LABEL_OPTIONAL)
    if kind.startswith("map<string, "):
        entry = message.nested_type.add(name=f"{name.capitalize()}Entry")
        entry.options.map_entry = True
        _add_field(entry, "key", 1, "string")
        _add_field(entry, "value", 2, kind[len("map<string, ") : -1])
        kind = f"repeated {message.name}.{entry.name}"
    if kind.startswith("repeated "):
        field.label, kind = form.LABEL_REPEATED, kind.removeprefix("repeated ")
    known = f"TYPE_{kind.upper()}"
    if hasattr(form, known):
        field.type = getattr(form, known)
    else:
        field.type, field.type_name = form.TYPE_ENUM if kind == "Status" else form.TYPE_MESSAGE, f".{PACKAGE}.{kind}"


def _classes() -> dict[str, Any]:
    # A pool of our own: another package in the process may know a file of the same name.
    pool = descriptor_pool.DescriptorPool()
    pool.Add(_file())
    return {name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{PACKAGE}.{name}")) for name in MESSAGES}


CLASSES = _classes()


def asked(body: bytes) -> dict[str, Any]:
    """The arguments of `features.read` in a ReadRequest, or Invalid."""
    try:
        found = CLASSES["ReadRequest"].FromString(body)
    except DecodeError:
        raise Invalid("this is no ReadRequest", "generate your client from the .proto of this release") from None
    given: dict[str, Any] = {"service": Ref.parse(found.service), "keys": _values(found.keys)}
    if found.request:
        given["request"] = _values(found.request)
    if found.model:
        given["model"] = Ref.parse(found.model)
    return given


def answered(found: Any) -> bytes:
    """A ReadResponse from what `features.read` gave: columns and statuses by name."""
    types: Mapping[str, str] = getattr(found, "types", None) or {}
    response = CLASSES["ReadResponse"](service=str(found.service), at_us=round(found.at * 1e6), names=found.columns)
    for name, values in found.columns.items():
        column = response.columns.add()
        column.statuses.extend([_CODES[status] for status in found.statuses[name]])
        _fill(column, values, types.get(name, ""))
    encoded: bytes = response.SerializeToString()
    return encoded


def _values(columns: Mapping[str, Any]) -> dict[str, list[Any]]:
    return {name: _read(column, name) for name, column in columns.items()}


def _read(column: Any, name: str, inner: bool = False) -> list[Any]:
    """The values of a request's column."""
    filled = [kind for kind in _LISTS if len(getattr(column, kind))]
    if len(filled) > 1 or (inner and "lists" in filled):
        raise Invalid(f"the column {name[:80]!r} has values of more than one type", "fill one list of it")
    if not filled:
        # Nothing but nulls: there is no value whose number could say how many they are.
        size = len(column.nulls)
        if sorted(column.nulls) != list(range(size)):
            raise _misplaced(name)
        return [None] * size
    values = list(getattr(column, filled[0]))
    if filled[0] == "lists":
        values = [_read(one, name, inner=True) for one in values]
    for row in column.nulls:
        if row >= len(values):
            raise _misplaced(name)
        values[row] = None
    return values


def _misplaced(name: str) -> Invalid:
    return Invalid(f"the column {name[:80]!r} has nulls where it has no rows", "nulls are numbers of rows, from 0")


def _fill(column: Any, values: Sequence[Any], kind: str) -> None:
    """Values into the list of their type, with something that means nothing where there is none."""
    target = _target(values, kind)
    column.nulls.extend([row for row, value in enumerate(values) if value is None])
    if target == "lists":
        for value in values:
            _fill(column.lists.add(), value or (), kind.removeprefix("list[").removesuffix("]"))
    elif target:
        empty = _EMPTY[target]
        getattr(column, target).extend([empty if value is None else _plain(value, target) for value in values])


def _plain(value: Any, target: str) -> Any:
    """JSON has no word for some values; here they get their own form back."""
    if isinstance(value, str) and target == "doubles":
        return float(value)
    return bytes.fromhex(value) if isinstance(value, str) and target == "blobs" else value


def _target(values: Sequence[Any], kind: str) -> str:
    """The list for a column: by its declared type, else by what it holds."""
    if kind:
        return "lists" if kind.startswith("list[") else _KINDS[kind]
    seen = {_OF.get(type(value), "") for value in values if value is not None}
    if "doubles" in seen:
        return "doubles"
    return seen.pop() if len(seen) == 1 else ""
