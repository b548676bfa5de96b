"""`dataclass` as the standard library has it, but for when its methods come to be.

The standard one compiles six functions for every class while its module is loaded; a command loads a hundred classes
and makes a few of them, and that was a third of its time. Ours takes fields and slots from the standard one at once,
and how objects are made, compared and hashed when the first one is. What is not frozen and slotted, inherits
fields or writes one of those methods itself is left to the standard one.
"""

import dataclasses
from collections.abc import Callable
from reprlib import recursive_repr
from typing import TYPE_CHECKING, Any

__all__ = ["dataclass"]

_OURS = ("__init__", "__repr__", "__eq__", "__hash__", "__setattr__", "__delattr__", "__getstate__", "__setstate__")
_COMPILED = ("__init__", "__eq__", "__hash__")

if TYPE_CHECKING:
    from dataclasses import dataclass
else:

    def dataclass(cls: type | None = None, /, *, frozen: bool = False, slots: bool = False, **more: bool) -> Any:
        """Make a class a data class; takes what the standard one takes."""

        def made(given: type) -> type:
            plain = given.__doc__ and not any(name in vars(given) for name in _OURS)
            heir = any(dataclasses.is_dataclass(base) for base in given.__mro__[1:])
            if frozen and slots and plain and not heir and not more:
                return _lazy(given)
            return dataclasses.dataclass(frozen=frozen, slots=slots, **more)(given)

        return made if cls is None else made(cls)


def _lazy(given: type) -> Any:
    cls: Any = dataclasses.dataclass(init=False, repr=False, eq=False, slots=True)(given)
    if any(isinstance(each.type, dataclasses.InitVar) for each in cls.__dataclass_fields__.values()):
        raise TypeError(f"{cls.__qualname__} has an InitVar: make it a data class with the standard library's")
    for name in _COMPILED:
        setattr(cls, name, _at_first(cls, name))
    cls.__repr__ = _repr
    cls.__setattr__, cls.__delattr__ = _frozen(cls)
    cls.__getstate__, cls.__setstate__ = _state, _restore
    said = cls.__dataclass_params__
    said.init = said.repr = said.eq = said.frozen = True
    return cls


def _at_first(cls: type, name: str) -> Callable[..., Any]:
    """A method that comes to be, with its like, when it is first called."""

    def first(self: Any, *args: Any, **kwargs: Any) -> Any:
        twin = _twin(cls)
        for each in _COMPILED:
            setattr(cls, each, vars(twin)[each])
        return getattr(cls, name)(self, *args, **kwargs)

    return first


def _twin(cls: Any) -> type:
    """A class of the same fields that the standard library has made whole; its methods do for ours."""
    fields = _fields(cls)
    space = {each.name: each for each in fields} | {"__annotations__": {each.name: each.type for each in fields}}
    space |= {"__module__": cls.__module__, "__qualname__": cls.__qualname__, "__doc__": cls.__doc__}
    if hasattr(cls, "__post_init__"):
        space["__post_init__"] = cls.__post_init__
    return dataclasses.dataclass(frozen=True, slots=True, repr=False)(type(cls.__name__, (), space))


@recursive_repr()
def _repr(self: Any) -> str:
    said = ", ".join(f"{each.name}={getattr(self, each.name)!r}" for each in dataclasses.fields(self) if each.repr)
    return f"{type(self).__qualname__}({said})"


def _frozen(cls: Any) -> tuple[Callable[[Any, str, Any], None], Callable[[Any, str], None]]:
    """What refuses to set and to delete; a class made from this one may have attributes of its own."""
    names = frozenset(each.name for each in _fields(cls))

    def refuse_to_set(self: Any, name: str, value: Any) -> None:
        if type(self) is cls or name in names:
            raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")
        super(cls, self).__setattr__(name, value)

    def refuse_to_delete(self: Any, name: str) -> None:
        if type(self) is cls or name in names:
            raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")
        super(cls, self).__delattr__(name)

    return refuse_to_set, refuse_to_delete


def _fields(cls: Any) -> tuple["dataclasses.Field[Any]", ...]:
    return dataclasses.fields(cls)


def _state(self: Any) -> list[Any]:
    return [getattr(self, each.name) for each in dataclasses.fields(self)]


def _restore(self: Any, state: list[Any]) -> None:
    for each, value in zip(dataclasses.fields(self), state, strict=True):
        object.__setattr__(self, each.name, value)
