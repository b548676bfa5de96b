"""OpenAPI 3.1 from the verbs. It names verbs and types, holds no data, and so may be read by anybody."""

import dataclasses
import types
import typing
from collections.abc import Iterable, Mapping
from typing import Any

import falaj
from falaj.api.routes import OPEN, SHOW, Route
from falaj.api.wire import ARGS_HEADER
from falaj.core.errors import FalajError
from falaj.core.label import CLASS_NAMES, Label
from falaj.core.ref import Ref
from falaj.core.stream import Stream

Schema = dict[str, Any]
_PLAIN: dict[Any, Schema] = {
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
_ERROR = {
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
_PARAMETERS = [
    {"name": "Idempotency-Key", "in": "header", "schema": {"type": "string", "pattern": "^[A-Za-z0-9._:-]{8,128}$"}},
    {
        "name": "Falaj-Purpose",
        "in": "header",
        "schema": {"type": "string", "pattern": "^[A-Za-z0-9][A-Za-z0-9._ -]{0,63}$"},
    },
]
FOREIGN = ("/api/", "/version")
"""Paths of an API that is somebody else's to describe: MLflow's."""
_BYTES: Schema = {"application/octet-stream": {}}


def document(routes: Iterable[Route]) -> Schema:
    """The whole document."""
    components: dict[str, Schema] = {"Error": _ERROR}
    paths: dict[str, Schema] = {}
    for route in routes:
        if route.path.startswith(FOREIGN):
            continue
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, components)
    paths[f"{SHOW}{{ref}}"] = {"get": _show()}
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


def schema(kind: Any, components: dict[str, Schema]) -> Schema:
    """The JSON Schema of a type; records become named components."""
    if kind in _PLAIN:
        return dict(_PLAIN[kind])
    if kind is Label:
        return {
            "oneOf": [{"type": "string", "examples": ["AE-PDPL,sensitive,purpose=fraud"]}, _named(Label, components)]
        }
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        return _named(kind, components)
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        return {"anyOf": [schema(arg, components) for arg in args]}
    if origin in (tuple, list, frozenset, set):
        if origin is tuple and args[-1] is not Ellipsis:
            return {
                "type": "array",
                "prefixItems": [schema(a, components) for a in args],
                "minItems": len(args),
                "maxItems": len(args),
            }
        return {"type": "array", "items": schema(args[0], components)}
    if origin is not None and issubclass(origin, Mapping):
        return {"type": "object", "additionalProperties": schema(args[1], components)}
    return {}


def _named(kind: type, components: dict[str, Schema]) -> Schema:
    name = kind.__name__
    if name not in components:
        components[name] = {}  # it may hold itself
        hints = typing.get_type_hints(kind)
        items = dataclasses.fields(kind)
        components[name] = {
            "type": "object",
            "description": (kind.__doc__ or "").partition("\n")[0],
            "properties": {item.name: schema(hints[item.name], components) for item in items},
            "required": [
                i.name for i in items if i.default is dataclasses.MISSING and i.default_factory is dataclasses.MISSING
            ],
            "additionalProperties": False,
        }
        if kind is Label:
            components[name]["properties"]["classification"] |= {
                "minimum": 0,
                "maximum": 3,
                "description": ", ".join(CLASS_NAMES),
            }
    return {"$ref": f"#/components/schemas/{name}"}


def _operation(route: Route, components: dict[str, Schema]) -> Schema:
    made: Schema = {
        "operationId": f"{route.method.lower()}_{route.path.strip('/').replace('/', '_').replace('.', '_')}",
        "responses": _responses(route, components),
    }
    inside = [part.strip("{}") for part in route.path.split("/") if part.startswith("{")]
    if inside:
        text = {"type": "string", "minLength": 1, "maxLength": 250}
        made["parameters"] = [{"name": name, "in": "path", "required": True, "schema": text} for name in inside]
    if route.action == OPEN:
        return made | {"security": []}
    if route.call is None:
        return made
    verb, arguments = route.call.verb, route.call.arguments
    named = [p for p in verb.params if p.name != arguments.stream]
    shape = {
        "type": "object",
        "additionalProperties": False,
        "properties": {p.name: schema(p.type, components) | ({"description": p.help} if p.help else {}) for p in named},
        "required": [p.name for p in named if p.required],
    }
    made |= {
        "summary": verb.summary,
        "description": verb.doc,
        "tags": [route.call.desk],
        "parameters": list(_PARAMETERS),
    }
    if arguments.stream:
        made["parameters"].append(_args_header(shape))
        return made | {"requestBody": {"required": True, "content": _BYTES}}
    return made | {
        "requestBody": {"required": bool(shape["required"]), "content": {"application/json": {"schema": shape}}}
    }


def _args_header(shape: Schema) -> Schema:
    """The arguments of a stream: base64url of JSON of this shape."""
    text = {
        "type": "string",
        "contentEncoding": "base64url",
        "contentMediaType": "application/json",
        "contentSchema": shape,
        "pattern": "^[A-Za-z0-9_-]+$",
    }
    return {"name": ARGS_HEADER, "in": "header", "required": bool(shape["required"]), "schema": text}


def _responses(route: Route, components: dict[str, Schema]) -> Schema:
    error = {
        "description": "Not done, and why.",
        "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}},
    }
    content: Schema = {"application/json": {}}
    if route.call is not None:
        content = (
            _BYTES
            if route.call.verb.result is Stream
            else {"application/json": {"schema": schema(route.call.verb.result or type(None), components)}}
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


def _show() -> Schema:
    error = {
        "description": "Not shown, and why.",
        "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}},
    }
    return {
        "operationId": "show",
        "summary": "Show a thing by its reference, for people and links.",
        "parameters": [{"name": "ref", "in": "path", "required": True, "schema": dict(_PLAIN[Ref])}],
        "responses": {"200": {"description": "Done.", "content": {"application/json": {}}}}
        | dict.fromkeys(["400", "401", "403", "404", "405", "421", "429", "500", "503"], error),
    }
