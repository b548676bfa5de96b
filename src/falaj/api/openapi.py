"""OpenAPI 3.1 from the verbs. It names verbs and types, holds no data, and so may be read by anybody."""

import dataclasses
import types
import typing
from collections.abc import Iterable, Mapping
from typing import Any

import falaj
from falaj.api.argument_decoding import ARGUMENTS_HEADER
from falaj.api.routes import OPEN_ACTION, SHOW_PATH_PREFIX, HttpRoute
from falaj.core.byte_stream import ByteStream
from falaj.core.errors import FalajError
from falaj.core.label import CLASS_NAMES, Label
from falaj.core.ref import Ref

JsonSchema = dict[str, Any]
_SCALAR_SCHEMAS: dict[Any, JsonSchema] = {
    str: {"type": "string"},
    int: {"type": "integer", "minimum": -(2**63), "maximum": 2**63 - 1},
    float: {"type": "number"},
    bool: {"type": "boolean"},
    type(None): {"type": "null"},
    Ref: {
        "type": "string",
        "pattern": "^[a-z][a-z0-9-]*:[a-z0-9][a-z0-9._-]*/[A-Za-z0-9][A-Za-z0-9._-]*(@[a-z0-9._-]+)?$",
        "maxLength": 300,
    },
    Any: {},
}
_ERROR_SCHEMA = {
    "type": "object",
    "required": ["code", "message", "hint", "ref"],
    "additionalProperties": False,
    "properties": {
        "code": {"type": "string"},
        "message": {"type": "string"},
        "hint": {"type": "string"},
        "ref": {"type": "string"},
    },
}
_HEADER_PARAMETERS = [
    {"name": "Idempotency-Key", "in": "header", "schema": {"type": "string", "pattern": "^[A-Za-z0-9._:-]{8,128}$"}},
    {
        "name": "Falaj-Purpose",
        "in": "header",
        "schema": {"type": "string", "pattern": "^[A-Za-z0-9][A-Za-z0-9._ -]{0,63}$"},
    },
]
EXTERNAL_PATH_PREFIXES = ("/api/", "/version")
"""Paths of an API that is somebody else's to describe: MLflow's."""
_BYTES_CONTENT: JsonSchema = {"application/octet-stream": {}}


def build_document(routes: Iterable[HttpRoute]) -> JsonSchema:
    """The whole document."""
    components: dict[str, JsonSchema] = {"Error": _ERROR_SCHEMA}
    paths: dict[str, JsonSchema] = {}
    for route in routes:
        if route.path.startswith(EXTERNAL_PATH_PREFIXES):
            continue
        paths.setdefault(route.path, {})[route.method.lower()] = _describe_route(route, components)
    paths[f"{SHOW_PATH_PREFIX}{{ref}}"] = {"get": _describe_show()}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Falaj",
            "version": falaj.__version__,
            "description": "Every verb is POST /v1/<desk>/<verb> with a JSON object of arguments. "
            "MLflow's clients find their own REST API under /api, as MLflow documents it.",
        },
        "security": [{"bearer": []}],
        "paths": paths,
        "components": {"schemas": components, "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer"}}},
    }


def build_schema(value_type: Any, components: dict[str, JsonSchema]) -> JsonSchema:
    """The JSON Schema of a type; records become named components."""
    if value_type in _SCALAR_SCHEMAS:
        return dict(_SCALAR_SCHEMAS[value_type])
    if value_type is Label:
        return {
            "oneOf": [
                {"type": "string", "examples": ["AE-PDPL,sensitive,purpose=fraud"]},
                _reference_component(Label, components),
            ]
        }
    if dataclasses.is_dataclass(value_type) and isinstance(value_type, type):
        return _reference_component(value_type, components)
    origin, args = typing.get_origin(value_type), typing.get_args(value_type)
    if origin in (typing.Union, types.UnionType):
        return {"anyOf": [build_schema(arg, components) for arg in args]}
    if origin in (tuple, list, frozenset, set):
        if origin is tuple and args[-1] is not Ellipsis:
            return {
                "type": "array",
                "prefixItems": [build_schema(a, components) for a in args],
                "minItems": len(args),
                "maxItems": len(args),
            }
        return {"type": "array", "items": build_schema(args[0], components)}
    if origin is not None and issubclass(origin, Mapping):
        return {"type": "object", "additionalProperties": build_schema(args[1], components)}
    return {}


def _reference_component(record_class: type, components: dict[str, JsonSchema]) -> JsonSchema:
    name = record_class.__name__
    if name not in components:
        components[name] = {}  # it may hold itself
        hints = typing.get_type_hints(record_class)
        record_fields = dataclasses.fields(record_class)
        components[name] = {
            "type": "object",
            "description": (record_class.__doc__ or "").partition("\n")[0],
            "properties": {item.name: build_schema(hints[item.name], components) for item in record_fields},
            "required": [
                i.name
                for i in record_fields
                if i.default is dataclasses.MISSING and i.default_factory is dataclasses.MISSING
            ],
            "additionalProperties": False,
        }
        if record_class is Label:
            components[name]["properties"]["classification"] |= {
                "minimum": 0,
                "maximum": 3,
                "description": ", ".join(CLASS_NAMES),
            }
    return {"$ref": f"#/components/schemas/{name}"}


def _describe_route(route: HttpRoute, components: dict[str, JsonSchema]) -> JsonSchema:
    description: JsonSchema = {
        "operationId": f"{route.method.lower()}_{route.path.strip('/').replace('/', '_').replace('.', '_')}",
        "responses": _describe_responses(route, components),
    }
    path_parameters = [part.strip("{}") for part in route.path.split("/") if part.startswith("{")]
    if path_parameters:
        text = {"type": "string", "minLength": 1, "maxLength": 250}
        description["parameters"] = [
            {"name": name, "in": "path", "required": True, "schema": text} for name in path_parameters
        ]
    if route.action == OPEN_ACTION:
        return description | {"security": []}
    if route.call is None:
        return description
    operation, arguments = route.call.verb, route.call.arguments
    body_params = [p for p in operation.params if p.name != arguments.stream]
    arguments_schema = {
        "type": "object",
        "additionalProperties": False,
        "properties": {
            p.name: build_schema(p.type, components) | ({"description": p.help} if p.help else {}) for p in body_params
        },
        "required": [p.name for p in body_params if p.required],
    }
    description |= {
        "summary": operation.summary,
        "description": operation.doc,
        "tags": [route.call.desk],
        "parameters": list(_HEADER_PARAMETERS),
    }
    if arguments.stream:
        description["parameters"].append(_describe_args_header(arguments_schema))
        return description | {"requestBody": {"required": True, "content": _BYTES_CONTENT}}
    return description | {
        "requestBody": {
            "required": bool(arguments_schema["required"]),
            "content": {"application/json": {"schema": arguments_schema}},
        }
    }


def _describe_args_header(arguments_schema: JsonSchema) -> JsonSchema:
    """The arguments of a stream: base64url of JSON of this shape."""
    text = {
        "type": "string",
        "contentEncoding": "base64url",
        "contentMediaType": "application/json",
        "contentSchema": arguments_schema,
        "pattern": "^[A-Za-z0-9_-]+$",
    }
    return {"name": ARGUMENTS_HEADER, "in": "header", "required": bool(arguments_schema["required"]), "schema": text}


def _describe_responses(route: HttpRoute, components: dict[str, JsonSchema]) -> JsonSchema:
    error = {
        "description": "Not done, and why.",
        "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}},
    }
    content: JsonSchema = {"application/json": {}}
    if route.call is not None:
        content = (
            _BYTES_CONTENT
            if route.call.verb.result is ByteStream
            else {"application/json": {"schema": build_schema(route.call.verb.result or type(None), components)}}
        )
    elif route.path == "/metrics":
        content = {"text/plain": {}}
    elif route.path == "/v1/events":
        content = {"text/event-stream": {}}
    statuses = sorted({str(cls.status) for cls in FalajError.__subclasses__()} | {"405", "408", "413", "415", "421"})
    if route.path == "/ready":
        statuses.remove("503")
        return {
            "200": {"description": "Ready.", "content": content},
            "503": {"description": "Not ready.", "content": content},
        } | dict.fromkeys(statuses, error)
    return {"200": {"description": "Done.", "content": content}} | dict.fromkeys(statuses, error)


def _describe_show() -> JsonSchema:
    error = {
        "description": "Not shown, and why.",
        "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}},
    }
    return {
        "operationId": "show",
        "summary": "Show a thing by its reference, for people and links.",
        "parameters": [{"name": "ref", "in": "path", "required": True, "schema": dict(_SCALAR_SCHEMAS[Ref])}],
        "responses": {"200": {"description": "Done.", "content": {"application/json": {}}}}
        | dict.fromkeys(["400", "401", "403", "404", "405", "421", "429", "500", "503"], error),
    }
