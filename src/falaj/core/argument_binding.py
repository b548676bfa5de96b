"""bind: what a person writes in a call becomes what the verb asks for, the same in process and over the wire."""

import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from typing import Any

from falaj.core.errors import Invalid
from falaj.core.label import Label
from falaj.core.operation import Operation, OperationParam
from falaj.core.ref import Ref


def bind_arguments(operation: Operation, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a call by name, texts turned into references and labels, defaults filled in."""
    names = [param.name for param in operation.params]
    if len(args) > len(names):
        raise Invalid(
            f"{operation.name} takes {len(names)} arguments and got {len(args)}", f"they are: {', '.join(names)}"
        )
    bound_values = dict(zip(names, args, strict=False))
    for name, value in kwargs.items():
        if name not in names:
            raise Invalid(f"{operation.name} has no argument {name!r}", f"it has: {', '.join(names) or 'none'}")
        if name in bound_values:
            raise Invalid(f"{operation.name} got {name!r} twice")
        bound_values[name] = value
    missing = [param.name for param in operation.params if param.required and param.name not in bound_values]
    if missing:
        raise Invalid(f"{operation.name} needs {', '.join(missing)}", operation.summary)
    return {
        param.name: _convert_argument(param, bound_values[param.name]) if param.name in bound_values else param.default
        for param in operation.params
    }


def _convert_argument(param: OperationParam, value: Any) -> Any:
    for expected_type in union_members(param.type):
        converted = _convert_value(expected_type, value)
        if converted is not _NOT_CONVERTIBLE:
            return converted
    expected = " or ".join(
        _describe_type(expected_type) for expected_type in union_members(param.type) if expected_type is not type(None)
    )
    raise Invalid(f"{param.name}: expected {expected}, got {_describe_type(type(value))} {value!r:.80}", param.help)


def _describe_type(expected_type: Any) -> str:
    """A type in the words of an error message."""
    origin = typing.get_origin(expected_type) or expected_type
    if origin in (dict, Mapping):
        return "texts by name" if str in typing.get_args(expected_type)[1:] else "an object"
    if origin in (tuple, list, Sequence):
        return "a list"
    return _DESCRIPTIONS.get(origin) or f"a {format_type_name(expected_type)}"


def union_members(annotation: Any) -> tuple[Any, ...]:
    """The alternatives of a type: `X | None` gives both."""
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        return typing.get_args(annotation)
    return (annotation,)


_DESCRIPTIONS = {
    str: "text", int: "a whole number", float: "a number", bool: "true or false", bytes: "bytes",
    type(None): "nothing", Ref: "a reference", Label: "a label",
}  # fmt: skip


def format_type_name(annotation: Any) -> str:
    """A type as help texts write it."""
    return (
        str(getattr(annotation, "__name__", annotation))
        if not typing.get_args(annotation)
        else str(annotation).replace("typing.", "")
    )


_NOT_CONVERTIBLE = object()


def _convert_value(expected_type: Any, value: Any) -> Any:
    origin = typing.get_origin(expected_type) or expected_type
    if expected_type is Any:
        return value
    if expected_type is Ref:
        return Ref.parse(value) if isinstance(value, (str, Ref)) else _NOT_CONVERTIBLE
    if expected_type is Label:
        return Label.parse(value) if isinstance(value, (str, dict, Label)) else _NOT_CONVERTIBLE
    if origin is tuple:
        return _convert_tuple(typing.get_args(expected_type), value)
    if origin is dict or origin is Mapping:
        return _convert_mapping(typing.get_args(expected_type), value)
    if expected_type is float and type(value) is int:
        return float(value)
    if expected_type is int and type(value) is bool:
        return _NOT_CONVERTIBLE
    if is_dataclass(expected_type) and isinstance(value, Mapping) and isinstance(expected_type, type):
        return _convert_record(expected_type, value)
    return value if isinstance(origin, type) and isinstance(value, origin) else _NOT_CONVERTIBLE


def _convert_record(record_class: Any, value: Mapping[str, Any]) -> Any:
    """A record from its plain form, records in it too."""
    hints, converted = typing.get_type_hints(record_class), dict[str, Any]()
    field_names = {field_value.name for field_value in fields(record_class)}
    for name, field_value in value.items():
        candidates = (
            [_convert_value(member_type, field_value) for member_type in union_members(hints[name])]
            if name in field_names
            else []
        )
        converted[name] = next(
            (candidate for candidate in candidates if candidate is not _NOT_CONVERTIBLE), _NOT_CONVERTIBLE
        )
    required_names = {
        field_value.name
        for field_value in fields(record_class)
        if field_value.default is MISSING and field_value.default_factory is MISSING
    }
    return (
        record_class(**converted)
        if required_names <= set(converted)
        and not any(field_value is _NOT_CONVERTIBLE for field_value in converted.values())
        else _NOT_CONVERTIBLE
    )


def _convert_tuple(item_types: tuple[Any, ...], value: Any) -> Any:
    if item_types[0] is Ref and isinstance(value, (str, Ref)):
        value = (value,)  # one reference is a list of one, as on the command line; other texts may be meant as several
    if isinstance(value, (str, bytes)) or not isinstance(value, (Sequence, set, frozenset)):
        return _NOT_CONVERTIBLE
    converted = tuple(_convert_value(item_types[0], item) for item in value)
    return _NOT_CONVERTIBLE if any(item is _NOT_CONVERTIBLE for item in converted) else converted


def _convert_mapping(item_types: tuple[Any, ...], value: Any) -> Any:
    if not isinstance(value, Mapping) or len(item_types) < 2:
        return dict(value) if isinstance(value, Mapping) else _NOT_CONVERTIBLE
    converted = {key: _convert_union(item_types[1], item) for key, item in value.items()}
    return _NOT_CONVERTIBLE if any(item is _NOT_CONVERTIBLE for item in converted.values()) else converted


def _convert_union(expected_type: Any, value: Any) -> Any:
    return next(
        (
            converted
            for member_type in union_members(expected_type)
            if (converted := _convert_value(member_type, value)) is not _NOT_CONVERTIBLE
        ),
        _NOT_CONVERTIBLE,
    )
