"""Arguments on the wire: a JSON object becomes exactly what a verb's signature asks for, or Invalid says why not."""

import base64
import re
import types
import typing
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Annotated, Any

import msgspec

from falaj.core.argument_binding import union_members
from falaj.core.byte_stream import ByteStream
from falaj.core.errors import Invalid
from falaj.core.label import Label
from falaj.core.operation import Operation
from falaj.core.ref import Ref
from falaj.store.codec import from_plain

RECONNECT_COMMENT = ": elsewhere"
"""The last word of an event stream whose replica goes."""
ARGUMENTS_HEADER = "falaj-args"
MAX_ARGUMENTS_HEADER_BYTES = 16_384
_INT64 = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
_LABEL_INPUT = str | dict[str, Any]
_FIELD_PATTERN = re.compile(r"field `([^`]*)`")
# Strings leave first (they may hold brackets), then everything that is no bracket; what is left is the nesting alone.
_STRING_PATTERN = re.compile(rb'"(?:[^"\\]++|\\.)*+"?', re.DOTALL)
# Which kind of bracket closes which is the parser's business; for depth all are square.
_SQUARE_BRACKETS = bytes.maketrans(b"{}", b"[]")
_NON_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))


class ArgumentDecoder:
    """The arguments of one verb: decoder made once, used by every request."""

    def __init__(self, service_name: str, operation: Operation) -> None:
        self.action = f"{service_name}.{operation.name}"
        self.stream = next((p.name for p in operation.params if ByteStream in union_members(p.type)), "")
        self.gives_stream = ByteStream in union_members(operation.result)
        self._body_params = [p for p in operation.params if p.name != self.stream]
        self._converters = tuple((p.name, _get_converter(p.type)) for p in self._body_params)
        struct_fields = [
            (p.name, _to_strict_type(p.type))
            if p.required
            else (p.name, _to_strict_type(p.type) | msgspec.UnsetType, msgspec.UNSET)
            for p in self._body_params
        ]
        arguments_struct = msgspec.defstruct("Arguments", struct_fields, forbid_unknown_fields=True, kw_only=True)
        self._decoder = msgspec.json.Decoder(arguments_struct, dec_hook=_decode_custom_type)

    def decode(self, body: bytes) -> dict[str, Any]:
        """The arguments by name; what was not given is not in it."""
        try:
            decoded = self._decoder.decode(body or b"{}")
        except msgspec.MsgspecError as error:
            raise self._explain_error(str(error)) from None
        except UnicodeDecodeError:
            raise Invalid("the body is not UTF-8", "write JSON in UTF-8") from None
        except RecursionError:
            raise Invalid("the body is nested too deep", "flatten it") from None
        operation_arguments: dict[str, Any] = {}
        for name, convert in self._converters:
            value = getattr(decoded, name)
            if value is not msgspec.UNSET:
                operation_arguments[name] = value if convert is None else convert(value)
        return operation_arguments

    def decode_header(self, text: str) -> dict[str, Any]:
        """The same from the header that carries them when the body is a stream."""
        if len(text) > MAX_ARGUMENTS_HEADER_BYTES:
            raise Invalid(
                f"the {ARGUMENTS_HEADER} header is longer than {MAX_ARGUMENTS_HEADER_BYTES} bytes",
                "large values belong into the body",
            )
        try:
            return self.decode(base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True))
        except ValueError:  # not base64, or not even ASCII
            raise Invalid(
                f"the {ARGUMENTS_HEADER} header is not base64url",
                f"write the JSON arguments of {self.action} in base64url",
            ) from None

    def _explain_error(self, problem: str) -> Invalid:
        names = ", ".join(p.name for p in self._body_params) or "none"
        field_match = _FIELD_PATTERN.search(problem)
        if field_match and "missing" in problem and "$." not in problem:
            return Invalid(f"{self.action} needs the argument {field_match[1]!r}", f"its arguments are: {names}")
        if field_match and "unknown" in problem and "$." not in problem:
            return Invalid(f"{self.action} has no argument {field_match[1][:80]!r}", f"its arguments are: {names}")
        return Invalid(
            f"the arguments of {self.action} do not fit: {problem[:300]}", "the schema is in /v1/openapi.json"
        )


def encode_arguments_header(arguments: bytes) -> str:
    """JSON arguments as the header carries them."""
    return base64.urlsafe_b64encode(arguments).decode().rstrip("=")


def check_json_depth(body: bytes, limit: int) -> None:
    """Refuse nesting beyond `limit` before any parser sees it.

    Almost every body has fewer brackets than the limit and passes after two counts. The others lose their innermost
    pairs `limit` times, each time in one sweep; brackets that remain are deeper, or not balanced.
    """
    if body.count(b"[") + body.count(b"{") <= limit:
        return
    brackets = _STRING_PATTERN.sub(b"", body).translate(_SQUARE_BRACKETS, _NON_BRACKETS)
    for _ in range(limit):
        shorter = brackets.replace(b"[]", b"")
        if len(shorter) == len(brackets):
            break
        brackets = shorter
    if brackets:
        raise Invalid(f"the body is nested deeper than {limit} or its brackets do not match", "flatten it")


def _decode_custom_type(expected_type: type, value: Any) -> Any:
    if expected_type is Ref and isinstance(value, str):
        return Ref.parse(value)
    raise Invalid(f"a reference is a text, not {type(value).__name__}", "for example dataset:fraud/transactions@v3")


@cache
def _to_strict_type(value_type: Any) -> Any:
    """The type as msgspec should read it: numbers that stores hold, labels as people write them, no stray fields."""
    if value_type is int:
        return _INT64
    if value_type is Label:
        return _LABEL_INPUT
    if is_dataclass(value_type) and isinstance(value_type, type):
        return _make_strict_struct(value_type)
    origin, args = typing.get_origin(value_type), typing.get_args(value_type)
    if origin in (typing.Union, types.UnionType):
        return typing.Union[tuple(_to_strict_type(arg) for arg in args)]  # noqa: UP007 - built at run time
    if origin is tuple:
        return tuple[tuple(a if a is Ellipsis else _to_strict_type(a) for a in args)]  # type: ignore[misc]
    if origin is dict:
        return dict[args[0], _to_strict_type(args[1])]  # type: ignore[misc,valid-type]
    return value_type


def _make_strict_struct(record_class: type) -> Any:
    hints = typing.get_type_hints(record_class)
    struct_fields = []
    for record_field in fields(record_class):
        has_default = record_field.default is not record_field.default_factory  # both are MISSING when there is none
        struct_field = (
            (record_field.name, _to_strict_type(hints[record_field.name]) | msgspec.UnsetType, msgspec.UNSET)
            if has_default
            else (record_field.name, _to_strict_type(hints[record_field.name]))
        )
        struct_fields.append(struct_field)
    return msgspec.defstruct(record_class.__name__, struct_fields, forbid_unknown_fields=True, kw_only=True)


def _get_converter(value_type: Any) -> Callable[[Any], Any] | None:
    """What is left to do after decoding: None for almost everything."""
    if Label in union_members(value_type):
        return lambda value: None if value is None else Label.parse(value)
    if _contains_record(value_type):
        return lambda value: from_plain(value_type, msgspec.to_builtins(value, enc_hook=str))
    return None


def _contains_record(value_type: Any) -> bool:
    return is_dataclass(value_type) or any(_contains_record(arg) for arg in typing.get_args(value_type))
