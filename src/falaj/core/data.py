"""`dataclass` as the standard library has it, but for when its methods come to be.

The standard one compiles six functions for every class while its module is loaded; a command loads a hundred classes
and makes a few of them, and that was a third of its time. Ours takes fields and slots from the standard one, and
compiles how objects are made, compared and hashed when the first one is. What is not frozen and slotted, inherits
fields or writes one of those methods itself is left to the standard one.
"""

import dataclasses
from collections.abc import Callable
from reprlib import recursive_repr
from typing import TYPE_CHECKING, Any

__all__ = ["dataclass"]

_OURS = ("__init__", "__repr__", "__eq__", "__hash__", "__setattr__", "__delattr__", "__getstate__", "__setstate__")
_UNSAID = object()

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
    for name, write in (("__init__", _init), ("__eq__", _eq), ("__hash__", _hash)):
        setattr(cls, name, _at_first(cls, name, write))
    cls.__repr__ = _repr
    cls.__setattr__, cls.__delattr__ = _frozen(cls)
    cls.__getstate__, cls.__setstate__ = _state, _restore
    said = cls.__dataclass_params__
    said.init = said.repr = said.eq = said.frozen = True
    return cls


def _at_first(cls: type, name: str, write: Callable[[Any], Callable[..., Any]]) -> Callable[..., Any]:
    """A method that writes itself when it is first called."""

    def first(self: Any, *args: Any, **kwargs: Any) -> Any:
        written = write(cls)
        written.__qualname__, written.__module__ = f"{cls.__qualname__}.{name}", cls.__module__
        setattr(cls, name, written)
        return written(self, *args, **kwargs)

    return first


def _init(cls: type) -> Callable[..., None]:
    """Every slot is filled through its own descriptor, which no freezing stands before."""
    order, named, body = ["self"], list[str](), list[str]()
    known: dict[str, Any] = {"__unsaid": _UNSAID}
    for n, each in enumerate(_fields(cls)):
        name, default = each.name, ""
        if each.default_factory is not dataclasses.MISSING:
            known[f"__new{n}"], default = each.default_factory, "=__unsaid"
            value = f"__new{n}() if {name} is __unsaid else {name}" if each.init else f"__new{n}()"
        elif each.default is not dataclasses.MISSING:
            known[f"__else{n}"], default = each.default, f"=__else{n}"
            value = name if each.init else f"__else{n}"
        elif each.init:
            value = name
        else:
            continue  # whoever wrote it sets it after the making
        known[f"__set{n}"] = vars(cls)[name].__set__
        body.append(f"__set{n}(self, {value})")
        if each.init:
            (named if each.kw_only else order).append(name + default)
    if hasattr(cls, "__post_init__"):
        body.append("self.__post_init__()")
    return _compiled(f"__init__({', '.join([*order, *(['*', *named] if named else [])])})", body or ["pass"], known)


def _eq(cls: type) -> Callable[..., bool]:
    names = [each.name for each in _fields(cls) if each.compare]
    mine, other = ("".join(f"{who}.{name}, " for name in names) for who in ("self", "other"))
    return _compiled(
        "__eq__(self, other)",
        [f"return ({mine}) == ({other}) if other.__class__ is self.__class__ else NotImplemented"],
        {},
    )


def _hash(cls: type) -> Callable[..., int]:
    names = [each.name for each in _fields(cls) if (each.compare if each.hash is None else each.hash)]
    return _compiled("__hash__(self)", [f"return hash(({''.join(f'self.{name}, ' for name in names)}))"], {})


def _compiled(head: str, body: list[str], known: dict[str, Any]) -> Callable[..., Any]:
    """A function of these lines, for which some names are known."""
    name = head.partition("(")[0]
    lines = [f"def around({', '.join(known)}):", f" def {head}:", *(f"  {line}" for line in body), f" return {name}"]
    space: dict[str, Any] = {}
    # Nothing goes in but the names of a class's own fields, which Python has taken for names before.
    exec("\n".join(lines), space)  # noqa: S102 # nosec B102
    found: Callable[..., Any] = space["around"](**known)
    return found


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
