"""bind: what a person writes in a call becomes what the verb asks for, the same in process and over the wire."""

import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from typing import Any

from falaj.core.errors import Invalid
from falaj.core.label import Label
from falaj.core.ref import Ref
from falaj.core.verb import Param, Verb


def bind(verb: Verb, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a call by name, texts turned into references and labels, defaults filled in."""
    names = [p.name for p in verb.params]
    if len(args) > len(names):
        raise Invalid(f"{verb.name} takes {len(names)} arguments and got {len(args)}", f"they are: {', '.join(names)}")
    given = dict(zip(names, args, strict=False))
    for name, value in kwargs.items():
        if name not in names:
            raise Invalid(f"{verb.name} has no argument {name!r}", f"it has: {', '.join(names) or 'none'}")
        if name in given:
            raise Invalid(f"{verb.name} got {name!r} twice")
        given[name] = value
    missing = [p.name for p in verb.params if p.required and p.name not in given]
    if missing:
        raise Invalid(f"{verb.name} needs {', '.join(missing)}", verb.summary)
    return {p.name: _fit(p, given[p.name]) if p.name in given else p.default for p in verb.params}


def _fit(param: Param, value: Any) -> Any:
    for kind in options(param.type):
        fitted = _as(kind, value)
        if fitted is not _MISFIT:
            return fitted
    expected = " or ".join(_describe(kind) for kind in options(param.type) if kind is not type(None))
    raise Invalid(f"{param.name}: expected {expected}, got {_describe(type(value))} {value!r:.80}", param.help)


def _describe(kind: Any) -> str:
    """A type in the words of an error message."""
    origin = typing.get_origin(kind) or kind
    if origin in (dict, Mapping):
        return "texts by name" if str in typing.get_args(kind)[1:] else "an object"
    if origin in (tuple, list, Sequence):
        return "a list"
    return _DESCRIPTIONS.get(origin) or f"a {type_name(kind)}"


def options(kind: Any) -> tuple[Any, ...]:
    """The alternatives of a type: `X | None` gives both."""
    if typing.get_origin(kind) in (typing.Union, types.UnionType):
        return typing.get_args(kind)
    return (kind,)


_DESCRIPTIONS = {
    str: "text", int: "a whole number", float: "a number", bool: "true or false", bytes: "bytes",
    type(None): "nothing", Ref: "a reference", Label: "a label",
}  # fmt: skip


def type_name(kind: Any) -> str:
    """A type as help texts write it."""
    return str(getattr(kind, "__name__", kind)) if not typing.get_args(kind) else str(kind).replace("typing.", "")


_MISFIT = object()


def _as(kind: Any, value: Any) -> Any:
    origin = typing.get_origin(kind) or kind
    if kind is Any:
        return value
    if kind is Ref:
        return Ref.parse(value) if isinstance(value, (str, Ref)) else _MISFIT
    if kind is Label:
        return Label.parse(value) if isinstance(value, (str, dict, Label)) else _MISFIT
    if origin is tuple:
        return _tuple(typing.get_args(kind), value)
    if origin is dict or origin is Mapping:
        return _dict(typing.get_args(kind), value)
    if kind is float and type(value) is int:
        return float(value)
    if kind is int and type(value) is bool:
        return _MISFIT
    if is_dataclass(kind) and isinstance(value, Mapping) and isinstance(kind, type):
        return _record(kind, value)
    return value if isinstance(origin, type) and isinstance(value, origin) else _MISFIT


def _record(kind: Any, value: Mapping[str, Any]) -> Any:
    """A record from its plain form, records in it too."""
    hints, made = typing.get_type_hints(kind), dict[str, Any]()
    known = {one.name for one in fields(kind)}
    for name, one in value.items():
        fitted = [_as(option, one) for option in options(hints[name])] if name in known else []
        made[name] = next((found for found in fitted if found is not _MISFIT), _MISFIT)
    needed = {one.name for one in fields(kind) if one.default is MISSING and one.default_factory is MISSING}
    return kind(**made) if needed <= set(made) and not any(one is _MISFIT for one in made.values()) else _MISFIT


def _tuple(inner: tuple[Any, ...], value: Any) -> Any:
    if inner[0] is Ref and isinstance(value, (str, Ref)):
        value = (value,)  # one reference is a list of one, as on the command line; other texts may be meant as several
    if isinstance(value, (str, bytes)) or not isinstance(value, (Sequence, set, frozenset)):
        return _MISFIT
    fitted = tuple(_as(inner[0], item) for item in value)
    return _MISFIT if any(item is _MISFIT for item in fitted) else fitted


def _dict(inner: tuple[Any, ...], value: Any) -> Any:
    if not isinstance(value, Mapping) or len(inner) < 2:
        return dict(value) if isinstance(value, Mapping) else _MISFIT
    fitted = {key: _any(inner[1], item) for key, item in value.items()}
    return _MISFIT if any(item is _MISFIT for item in fitted.values()) else fitted


def _any(kind: Any, value: Any) -> Any:
    return next((fitted for one in options(kind) if (fitted := _as(one, value)) is not _MISFIT), _MISFIT)
