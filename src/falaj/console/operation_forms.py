"""Doing: a form becomes one guarded call of a verb, as the command line and the API make it."""

import json
import typing
from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qsl

from falaj.core.argument_binding import bind_arguments, union_members
from falaj.core.byte_stream import ByteStream
from falaj.core.errors import Invalid, NotFound
from falaj.core.operation import Operation, OperationParam, get_operation
from falaj.core.ref import Ref
from falaj.services import SERVICES, load_service_class

MAX_FORM_BYTES = 262_144
ARGUMENTS_FIELD, FORM_TOKEN_FIELD, RETURN_FIELD, SHOW_RESULT_FIELD, FILE_NAME_FIELD, INPUT_PREFIX = (
    "_given",
    "_key",
    "_back",
    "_show",
    "_name",
    "f.",
)
"""Fields of ours; what a person filled in begins with `f.`, and can never be taken for one."""


def parse_form(body: bytes) -> dict[str, str]:
    """The fields of a form; one given several times is its values, one a line."""
    try:
        pairs = parse_qsl(body.decode("utf-8"), keep_blank_values=True, max_num_fields=200)
    except ValueError:
        raise Invalid("the form cannot be read", "load the page again and repeat") from None
    values_by_name: dict[str, str] = {}
    for name, value in pairs:
        values_by_name[name] = f"{values_by_name[name]}\n{value}" if name in values_by_name else value
    return values_by_name


def find_operation(service_name: str, operation_name: str) -> Operation:
    """The verb; only verbs can be called so, never what would run beside the caller, which here is the server."""
    if service_name not in SERVICES or operation_name not in SERVICES[service_name].groups:
        raise NotFound("there is no such verb", "load the page again")
    return get_operation(load_service_class(service_name), operation_name)


def bind_form_arguments(operation: Operation, form: Mapping[str, str]) -> dict[str, Any]:
    """What the page fixed and what the person filled in, as the verb takes them."""
    fixed_arguments = _parse_json_object(form.get(ARGUMENTS_FIELD, "{}"))
    input_texts = {
        param.name: form[INPUT_PREFIX + param.name]
        for param in operation.params
        if form.get(INPUT_PREFIX + param.name, "") != ""
    }
    input_arguments = {
        param.name: _convert_input(param, input_texts[param.name])
        for param in operation.params
        if param.name in input_texts
    }
    input_arguments |= {
        param.name: keyed_values for param in operation.params if (keyed_values := _read_keyed_fields(param.name, form))
    }
    return bind_arguments(operation, (), {**fixed_arguments, **input_arguments})


def _read_keyed_fields(param_name: str, form: Mapping[str, str]) -> dict[str, Any]:
    """A mapping with a field for each key: `params.city` is a text, `params:rate` any value, as JSON writes it."""
    text_prefix, json_prefix = (f"{INPUT_PREFIX}{param_name}{separator}" for separator in ".:")
    keyed_values: dict[str, Any] = {}
    for field_name, field_text in form.items():
        if field_name.startswith(text_prefix) and field_text != "":
            keyed_values[field_name[len(text_prefix) :]] = field_text
        elif field_name.startswith(json_prefix) and field_text != "":
            keyed_values[field_name[len(json_prefix) :]] = _parse_json_value(field_name[len(json_prefix) :], field_text)
    return keyed_values


def _parse_json_value(name: str, json_text: str) -> Any:
    try:
        return json.loads(json_text)
    except (ValueError, RecursionError):
        raise Invalid(f"{name} cannot be read", 'write it as JSON does: 0.5, true, "text", [1, 2]') from None


def _convert_input(param: OperationParam, input_text: str) -> Any:
    value_type = next((item for item in union_members(param.type) if item is not type(None)), str)
    origin_type = typing.get_origin(value_type) or value_type
    if value_type is bool:
        return input_text in ("on", "true", "1")
    if value_type in (int, float):
        return _parse_number(param.name, value_type, input_text)
    if origin_type in (tuple, list):
        item_type = next(iter(typing.get_args(value_type)), str)
        items = [item.strip() for line in input_text.splitlines() for item in line.split(",") if item.strip()]
        return tuple(Ref.parse(item) if item_type is Ref else item for item in items)
    if origin_type in (dict, Mapping) and not input_text.lstrip().startswith("{"):
        lines = [line.partition("=") for line in input_text.splitlines() if line.strip()]
        return {key.strip(): value.strip() for key, _, value in lines}
    if value_type is ByteStream:
        return ByteStream([input_text.encode()], len(input_text.encode()))
    return (
        _parse_json_object(input_text) if input_text.lstrip().startswith("{") and value_type is not str else input_text
    )


def _parse_number(param_name: str, number_type: Any, input_text: str) -> float:
    try:
        return number_type(input_text.strip())  # type: ignore[no-any-return]
    except ValueError:
        raise Invalid(f"{param_name} is no number", "write digits, with a point where there is a fraction") from None


def _parse_json_object(json_text: str) -> dict[str, Any]:
    try:
        parsed = json.loads(json_text)
    except (ValueError, RecursionError):
        parsed = None
    if not isinstance(parsed, dict):
        raise Invalid("the form cannot be read", "load the page again and repeat")
    return parsed
