"""`dataclass` as the standard library has it, but for when what it makes comes to be.

The standard one describes every field and compiles six functions for every class while its module is loaded; a command
loads a hundred classes, makes a few objects of a few of them, and spent more than a quarter of its time so. Ours makes
the slots at once. Fields are described when somebody asks for them; objects are made, compared and hashed by hand until
that has happened often, and from then on by the methods that the standard library compiles. What is not frozen and
slotted, inherits anything or writes one of those methods itself is left to the standard one.
"""

import dataclasses
from collections.abc import Callable
from reprlib import recursive_repr
from typing import TYPE_CHECKING, Any, ClassVar

__all__ = ["dataclass"]

_OURS = ("__init__", "__repr__", "__eq__", "__hash__", "__setattr__", "__delattr__", "__getstate__", "__setstate__")
_COMPILED = ("__init__", "__eq__", "__hash__")
_OFTEN = 200
_UNSAID = dataclasses.MISSING

if TYPE_CHECKING:
    from dataclasses import dataclass
else:

    def dataclass(cls: type | None = None, /, *, frozen: bool = False, slots: bool = False, **more: bool) -> Any:
        """Make a class a data class; takes what the standard one takes."""

        def made(given: type) -> type:
            plain = given.__doc__ and given.__bases__ == (object,) and not any(name in vars(given) for name in _OURS)
            if frozen and slots and plain and not more and not _strange(given):
                return _lazy(given)
            return dataclasses.dataclass(frozen=frozen, slots=slots, **more)(given)

        return made if cls is None else made(cls)


def _strange(given: type) -> bool:
    """Whether the fields are such as the standard library should see at once, be it to refuse them."""
    held = vars(given)
    for name, kind in held.get("__annotations__", {}).items():
        if isinstance(kind, dataclasses.InitVar) or kind is dataclasses.InitVar:
            raise TypeError(f"{given.__qualname__} has an InitVar: make it a data class with the standard library's")
        if kind is dataclasses.KW_ONLY or (isinstance(kind, str) and ("Var" in kind or "KW_ONLY" in kind)):
            return True
        if name in held and type(held[name]).__hash__ is None:
            return True
    return False


class _Field:
    """What making, comparing and hashing by hand have to know of a field."""

    __slots__ = ("compared", "default", "factory", "given", "hashed", "name", "put")

    def __init__(self, name: str, value: Any, put: Callable[[Any, Any], None]) -> None:
        said = isinstance(value, dataclasses.Field)
        self.name, self.put = name, put
        self.default = value.default if said else value
        self.factory = value.default_factory if said else _UNSAID
        self.given = value.init if said else True
        self.compared = value.compare if said else True
        self.hashed = value.hash if said and value.hash is not None else self.compared


def _lazy(given: type) -> Any:
    space = dict(vars(given))
    kinds = space.get("__annotations__", {})
    names = tuple([name for name, kind in kinds.items() if kind is not ClassVar and _origin(kind) is not ClassVar])
    values = {name: space.pop(name, _UNSAID) for name in names}
    for made_anew in ("__dict__", "__weakref__"):
        space.pop(made_anew, None)
    order = tuple([name for name in names if _in_order(values[name])])
    # All of it is there when the class is made: whatever is set on a class later has Python go over its slots again.
    space["__init__"], space["__eq__"], space["__hash__"] = _by_hand(lambda: cls, order, values)
    space["__setattr__"], space["__delattr__"] = _frozen(lambda: cls, names)
    space["__dataclass_fields__"], space["__dataclass_params__"] = _Late(kinds, values), _Late(kinds, values)
    space |= {"__slots__": names, "__match_args__": order, "__qualname__": given.__qualname__, "__repr__": _repr}
    space |= {"__getstate__": _state, "__setstate__": _restore, "__signature__": _Signature()}
    cls: Any = type(given.__name__, (), space)
    return cls


def _origin(kind: Any) -> Any:
    return getattr(kind, "__origin__", None)


def _in_order(value: Any) -> bool:
    return not isinstance(value, dataclasses.Field) or (value.init and value.kw_only is not True)


class _Late:
    """What the standard library says of a class, found out when it is first asked for."""

    def __init__(self, kinds: dict[str, Any], values: dict[str, Any]) -> None:
        self._kinds, self._values = kinds, values

    def __set_name__(self, cls: type, name: str) -> None:
        self._cls, self._name = cls, name

    def __get__(self, one: object, owner: type) -> Any:
        cls: Any = self._cls
        if vars(cls)[self._name] is self:
            fields = {name: (self._kinds[name], value) for name, value in self._values.items()}
            twin: Any = dataclasses.dataclass(init=False, repr=False, eq=False)(_like(cls, fields))
            said = twin.__dataclass_params__
            for name in ("init", "repr", "eq", "frozen", "slots"):
                if hasattr(said, name):
                    setattr(said, name, True)
            cls.__dataclass_fields__, cls.__dataclass_params__ = twin.__dataclass_fields__, said
        return vars(cls)[self._name]


class _Signature:
    """Who asks how objects are made is shown the compiled way, of which that can be read."""

    def __set_name__(self, cls: type, name: str) -> None:
        self._cls = cls

    def __get__(self, one: object, owner: type) -> Any:
        _compile(self._cls)
        raise AttributeError("__signature__")


def _by_hand(
    made: Callable[[], Any], order: tuple[str, ...], values: dict[str, Any]
) -> tuple[Callable[..., None], Callable[..., Any], Callable[..., int]]:
    """Making, comparing and hashing for the class that will be `made`, until they are done often."""
    found: list[_Field] = []
    done = 0

    def known() -> list[_Field]:
        nonlocal done, found
        done += 1
        if done >= _OFTEN:
            _compile(made())
        found = found or [_Field(name, value, vars(made())[name].__set__) for name, value in values.items()]
        return found

    def make(self: Any, /, *args: Any, **given: Any) -> None:
        fields, said = known(), dict(zip(order, args, strict=False))
        if len(said) != len(args) or not said.keys().isdisjoint(given) or not _filled(self, fields, {**said, **given}):
            # It does not fit. The compiled one says why, in the words that Python has for it.
            _compile(made())
            vars(made())["__init__"](self, *args, **given)
        elif hasattr(made(), "__post_init__"):
            self.__post_init__()

    def same(self: Any, other: Any) -> Any:
        if other.__class__ is not self.__class__:
            return NotImplemented
        names = [each.name for each in known() if each.compared]
        return tuple([getattr(self, name) for name in names]) == tuple([getattr(other, name) for name in names])

    def hashed(self: Any) -> int:
        return hash(tuple([getattr(self, each.name) for each in known() if each.hashed]))

    return make, same, hashed


def _filled(self: Any, fields: list[_Field], said: dict[str, Any]) -> bool:
    """Fill every slot through its own descriptor, which no freezing stands before; False where that does not fit."""
    for each in fields:
        if each.given and each.name in said:
            each.put(self, said.pop(each.name))
        elif each.factory is not _UNSAID:
            each.put(self, each.factory())
        elif each.default is not _UNSAID:
            each.put(self, each.default)
        elif each.given:
            return False
    return not said


def _compile(cls: Any) -> None:
    """Let the standard library's methods take the place of ours."""
    fields = {each.name: (each.type, each) for each in dataclasses.fields(cls)}
    twin: Any = dataclasses.dataclass(frozen=True, slots=True, repr=False)(_like(cls, fields))
    for name in _COMPILED:
        setattr(cls, name, vars(twin)[name])


def _like(cls: Any, fields: dict[str, tuple[Any, Any]]) -> type:
    """A class with the same fields, for the standard library to make a data class of."""
    space = {name: value for name, (_, value) in fields.items() if value is not _UNSAID}
    space |= {"__annotations__": {name: kind for name, (kind, _) in fields.items()}}
    space |= {"__module__": cls.__module__, "__qualname__": cls.__qualname__, "__doc__": cls.__doc__}
    if hasattr(cls, "__post_init__"):
        space["__post_init__"] = cls.__post_init__
    return type(cls.__name__, (), space)


@recursive_repr()
def _repr(self: Any) -> str:
    said = ", ".join(f"{each.name}={getattr(self, each.name)!r}" for each in dataclasses.fields(self) if each.repr)
    return f"{type(self).__qualname__}({said})"


def _frozen(
    made: Callable[[], Any], names: tuple[str, ...]
) -> tuple[Callable[[Any, str, Any], None], Callable[[Any, str], None]]:
    """What refuses to set and to delete; a class made from this one may have attributes of its own."""

    def refuse_to_set(self: Any, name: str, value: Any) -> None:
        if type(self) is made() or name in names:
            raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")
        super(made(), self).__setattr__(name, value)

    def refuse_to_delete(self: Any, name: str) -> None:
        if type(self) is made() or name in names:
            raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")
        super(made(), self).__delattr__(name)

    return refuse_to_set, refuse_to_delete


def _state(self: Any) -> list[Any]:
    return [getattr(self, each.name) for each in dataclasses.fields(self)]


def _restore(self: Any, state: list[Any]) -> None:
    for each, value in zip(dataclasses.fields(self), state, strict=True):
        object.__setattr__(self, each.name, value)
