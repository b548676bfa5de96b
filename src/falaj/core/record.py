"""dataclass: the standard library's, made in a fifth of the time.

The house has some hundreds of records, and whoever types one command waits until those it needs are made. The standard
decorator compiles six functions for each; here one is compiled and the others are shared closures. What comes out is a
dataclass to everybody who asks: fields, replace, asdict, matching, copying. Only the form that the house uses is made
so, `@dataclass(frozen=True, slots=True)`; any other is handed on.
"""

import dataclasses
from operator import attrgetter
from typing import TYPE_CHECKING, Any

__all__ = ["dataclass"]

if TYPE_CHECKING:
    from dataclasses import dataclass  # checkers know it by this name
else:

    def dataclass(cls=None, /, **form):
        """As `dataclasses.dataclass`."""
        if form != {"frozen": True, "slots": True}:
            return dataclasses.dataclass(cls, **form)
        return _made


_UNSET: Any = object()
_set = object.__setattr__


def _made(cls: Any) -> Any:
    own = set(vars(cls))
    made: Any = dataclasses.dataclass(init=False, repr=False, eq=False, slots=True)(cls)
    fields = dataclasses.fields(made)
    compared = _getter([field.name for field in fields if field.compare])
    methods = {
        "__init__": _init(made, fields),
        "__repr__": _repr([field.name for field in fields if field.repr]),
        "__eq__": _eq(compared),
        "__hash__": _hash(compared),
        "__getstate__": _getstate,
        "__setstate__": _setstate,
        "__setattr__": _no_set,
        "__delattr__": _no_delete,
    }
    for name, method in methods.items():
        if name not in own:
            setattr(made, name, method)
    return made


def _init(made: Any, fields: tuple[dataclasses.Field[Any], ...]) -> Any:
    """The one function that is compiled: its signature is the record's."""
    known: dict[str, Any] = {"_set": _set, "_UNSET": _UNSET}
    words, lines = [], []
    for field in fields:
        name, value = field.name, field.name
        if field.default is not dataclasses.MISSING:
            known[f"_default_{name}"] = field.default
            words.append(f"{name}=_default_{name}")
        elif field.default_factory is not dataclasses.MISSING:
            known[f"_factory_{name}"] = field.default_factory
            words.append(f"{name}=_UNSET")
            value = f"_factory_{name}() if {name} is _UNSET else {name}"
        elif field.init:
            words.append(name)
        else:
            continue  # __post_init__ sets it
        lines.append(f" _set(self, {name!r}, {value})")
    if hasattr(made, "__post_init__"):
        lines.append(" self.__post_init__()")
    exec(f"def __init__(self, {', '.join(words)}):\n" + "\n".join(lines or [" pass"]), known)  # noqa: S102  # nosec B102 - made of field names, as the standard library does
    init = known["__init__"]
    init.__qualname__ = f"{made.__qualname__}.__init__"
    init.__annotations__ = {field.name: field.type for field in fields if field.init} | {"return": None}
    return init


def _getter(names: list[str]) -> Any:
    """All of these fields at once, as a tuple."""
    if len(names) > 1:
        return attrgetter(*names)
    return lambda record: tuple(getattr(record, name) for name in names)


def _repr(names: list[str]) -> Any:
    def __repr__(self: Any) -> str:  # noqa: N807
        return f"{type(self).__qualname__}({', '.join(f'{name}={getattr(self, name)!r}' for name in names)})"

    return __repr__


def _eq(compared: Any) -> Any:
    def __eq__(self: Any, other: Any) -> bool:  # noqa: N807
        if other.__class__ is not self.__class__:
            return NotImplemented
        return bool(compared(self) == compared(other))

    return __eq__


def _hash(compared: Any) -> Any:
    def __hash__(self: Any) -> int:  # noqa: N807
        return hash(compared(self))

    return __hash__


def _getstate(self: Any) -> list[Any]:
    return [getattr(self, field.name) for field in dataclasses.fields(self)]


def _setstate(self: Any, state: list[Any]) -> None:
    for field, value in zip(dataclasses.fields(self), state, strict=True):
        _set(self, field.name, value)


def _no_set(self: Any, name: str, value: Any) -> None:
    del self, value
    raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")


def _no_delete(self: Any, name: str) -> None:
    del self
    raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")
