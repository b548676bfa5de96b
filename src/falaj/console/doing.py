"""Doing: a form becomes one guarded call of a verb, as the command line and the API make it."""

import json
import typing
from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qsl

from falaj.core.bind import bind, options
from falaj.core.errors import Invalid, NotFound
from falaj.core.ref import Ref
from falaj.core.stream import Stream
from falaj.core.verb import Param, Verb, verb_of
from falaj.desks import DESKS, desk_class

FORM_BYTES = 262_144
GIVEN, KEY, BACK, SHOW, NAME, ASKED = "_given", "_key", "_back", "_show", "_name", "f."
"""Fields of ours; what a person filled in begins with `f.`, and can never be taken for one."""


def read_form(body: bytes) -> dict[str, str]:
    """The fields of a form; one given several times is its values, one a line."""
    try:
        pairs = parse_qsl(body.decode("utf-8"), keep_blank_values=True, max_num_fields=200)
    except ValueError:
        raise Invalid("the form cannot be read", "load the page again and repeat") from None
    found: dict[str, str] = {}
    for name, value in pairs:
        found[name] = f"{found[name]}\n{value}" if name in found else value
    return found


def verb_for(desk: str, name: str) -> Verb:
    """The verb; only verbs can be called so, never what would run beside the caller, which here is the server."""
    if desk not in DESKS or name not in DESKS[desk].groups:
        raise NotFound("there is no such verb", "load the page again")
    return verb_of(desk_class(desk), name)


def arguments(verb: Verb, form: Mapping[str, str]) -> dict[str, Any]:
    """What the page fixed and what the person filled in, as the verb takes them."""
    fixed = _object(form.get(GIVEN, "{}"))
    filled = {p.name: form[ASKED + p.name] for p in verb.params if form.get(ASKED + p.name, "") != ""}
    given = {p.name: _typed(p, filled[p.name]) for p in verb.params if p.name in filled}
    given |= {p.name: found for p in verb.params if (found := _keyed(p.name, form))}
    return bind(verb, (), {**fixed, **given})


def _keyed(name: str, form: Mapping[str, str]) -> dict[str, Any]:
    """A mapping with a field for each key: `params.city` is a text, `params:rate` any value, as JSON writes it."""
    texts, values = (f"{ASKED}{name}{mark}" for mark in ".:")
    found: dict[str, Any] = {}
    for field, said in form.items():
        if field.startswith(texts) and said != "":
            found[field[len(texts) :]] = said
        elif field.startswith(values) and said != "":
            found[field[len(values) :]] = _value(field[len(values) :], said)
    return found


def _value(name: str, said: str) -> Any:
    try:
        return json.loads(said)
    except (ValueError, RecursionError):
        raise Invalid(f"{name} cannot be read", 'write it as JSON does: 0.5, true, "text", [1, 2]') from None


def _typed(param: Param, said: str) -> Any:
    kind = next((one for one in options(param.type) if one is not type(None)), str)
    origin = typing.get_origin(kind) or kind
    if kind is bool:
        return said in ("on", "true", "1")
    if kind in (int, float):
        return _number(param.name, kind, said)
    if origin in (tuple, list):
        inner = next(iter(typing.get_args(kind)), str)
        pieces = [one.strip() for line in said.splitlines() for one in line.split(",") if one.strip()]
        return tuple(Ref.parse(one) if inner is Ref else one for one in pieces)
    if origin in (dict, Mapping) and not said.lstrip().startswith("{"):
        lines = [line.partition("=") for line in said.splitlines() if line.strip()]
        return {key.strip(): value.strip() for key, _, value in lines}
    if kind is Stream:
        return Stream([said.encode()], len(said.encode()))
    return _object(said) if said.lstrip().startswith("{") and kind is not str else said


def _number(name: str, kind: Any, said: str) -> float:
    try:
        return kind(said.strip())  # type: ignore[no-any-return]
    except ValueError:
        raise Invalid(f"{name} is no number", "write digits, with a point where there is a fraction") from None


def _object(said: str) -> dict[str, Any]:
    try:
        found = json.loads(said)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise Invalid("the form cannot be read", "load the page again and repeat")
    return found
