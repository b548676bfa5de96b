"""What mypy knows: the class that each attribute, keyword and attribute name in a string belongs to."""

import gc
import sqlite3
import sys
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

from mypy import build
from mypy.config_parser import parse_config_file
from mypy.find_sources import create_source_list
from mypy.modulefinder import BuildSource
from mypy.nodes import (
    CallExpr,
    Decorator,
    Expression,
    FuncDef,
    MemberExpr,
    MypyFile,
    NameExpr,
    Node,
    OverloadedFuncDef,
    RefExpr,
    StrExpr,
    SymbolTable,
    TypeInfo,
    Var,
)
from mypy.options import Options
from mypy.state import state
from mypy.subtypes import is_protocol_implementation
from mypy.types import (
    AnyType,
    CallableType,
    Instance,
    LiteralType,
    NoneType,
    Overloaded,
    TupleType,
    Type,
    TypeOfAny,
    TypeType,
    TypeVarType,
    UnionType,
    get_proper_type,
)
from mypy.typestate import type_state
from mypy.typevars import fill_typevars_with_any

from tests.codemod.source import Position

UNKNOWN = "?"
"""The symbol of an attribute whose receiver mypy does not know."""
REPLACERS = ("dataclasses.replace", "msgspec.structs.replace", "copy.replace")
REACHED_BY_NAME = "falaj.backends."
"""Classes that are opened by entry point, so that no line of code shows mypy which protocols they implement."""

PROXIES = ("falaj.platform", "falaj.bound", "falaj.core.errand", "falaj.api.client")
"""Modules whose classes pass attributes on to services."""


@dataclass(slots=True)
class ModuleTypes:
    """Symbols by position in one module."""

    attributes: dict[Position, tuple[str, ...]] = field(default_factory=dict)
    keywords: dict[tuple[Position, str], tuple[str, ...]] = field(default_factory=dict)
    strings: dict[Position, tuple[str, ...]] = field(default_factory=dict)


@dataclass(slots=True)
class ClassRecord:
    """A class: its bases nearest first, its own names, and names that third-party bases define."""

    bases: tuple[str, ...]
    names: frozenset[str]
    foreign_names: frozenset[str]
    is_protocol: bool


@dataclass(slots=True)
class Typed:
    """What one build of mypy adds to the syntax."""

    modules: dict[str, ModuleTypes]
    classes: dict[str, ClassRecord]
    implementers: set[tuple[str, str]]
    """Pairs of a class and a protocol that it implements without naming it as a base."""
    errors: list[str]


def find_sources(root: Path, folders: Iterable[str]) -> tuple[list[BuildSource], Options]:
    """Return every module of the folders, and mypy's options as pyproject.toml has them."""
    options = Options()
    parse_config_file(options, lambda: None, str(root / "pyproject.toml"), sys.stdout, sys.stderr)
    options.export_types = options.preserve_asts = options.check_untyped_defs = True
    options.cache_dir = str(root / ".codemod" / "mypy")
    options.namespace_packages = options.explicit_package_bases = True
    options.mypy_path = [str(root / folder) for folder in ("src", ".", "bench")]
    options.python_executable = sys.executable
    options.packages = []
    options.native_parser = False  # its columns are wrong in lines that are not ASCII
    sources = []
    for folder in folders:
        if (root / folder).is_dir():
            sources += create_source_list([str(root / folder)], options)
    return sources, options


def read_types(sources: list[BuildSource], options: Options, local_classes: dict[tuple[str, str, int], str]) -> Typed:
    """Run mypy over the sources; third-party packages come from its cache."""
    _forget(sources, Path(options.cache_dir))
    result = build.build(sources, options)
    reader = _Reader({source.module for source in sources}, local_classes)
    modules, infos = {}, {}
    for source in sources:
        tree = result.files[source.module]
        modules[source.module] = reader.read_module(tree, result.types)
        infos.update({info.fullname: info for info in _classes(tree.names, source.module)})
    classes = {reader.class_id(info): reader.class_record(info) for info in infos.values()}
    return Typed(modules, classes, reader.implementers(infos), result.errors)


def _forget(sources: list[BuildSource], cache: Path) -> None:
    """Remove our own modules from mypy's cache: it shows no types of expressions in what it need not check again."""
    stems = [source.module.replace(".", "/") for source in sources]
    keys = [(f"{stem}{end}",) for stem in stems for end in (".meta.ff", "/__init__.meta.ff")]
    for file in cache.glob("*/cache.*.db"):
        with closing(sqlite3.connect(file)) as database, database:
            database.executemany("DELETE FROM files2 WHERE path = ?", keys)


class _Reader:
    def __init__(self, modules: set[str], local_classes: dict[tuple[str, str, int], str]) -> None:
        self.modules, self.local_classes = modules, local_classes

    def class_id(self, info: TypeInfo) -> str:
        """Return the full name of a class; classes in functions are found by their line."""
        if "@" not in info.fullname:
            return info.fullname
        name, _, line = info.fullname.rpartition("@")
        short = name.rpartition(".")[2]
        return self.local_classes.get((info.module_name, short, int(line)) if line.isdigit() else ("", "", 0), name)

    def class_record(self, info: TypeInfo) -> ClassRecord:
        bases = [base for base in info.mro[1:] if base.fullname != "builtins.object"]
        ours = tuple(self.class_id(base) for base in bases if base.module_name in self.modules)
        foreign = [name for base in bases if base.module_name not in self.modules for name in base.names]
        return ClassRecord(ours, frozenset(info.names), frozenset(foreign), info.is_protocol)

    def implementers(self, infos: dict[str, TypeInfo]) -> set[tuple[str, str]]:
        """Return the classes that code passes, or entry points give, where a protocol is expected."""
        protocols = {name: info for name, info in infos.items() if info.is_protocol}
        attempts = {(name, other) for name, others in type_state._attempted_protocols.items() for other in others}
        for name in infos:
            if name.startswith(REACHED_BY_NAME):
                attempts |= {(name, protocol) for protocol in protocols}
        pairs = set()
        with state.strict_optional_set(True):
            for name, other in attempts:
                info, protocol = infos.get(name), protocols.get(other)
                if info is None or protocol is None or info is protocol or protocol in info.mro:
                    continue
                left, right = fill_typevars_with_any(info), fill_typevars_with_any(protocol)
                if isinstance(left, Instance) and isinstance(right, Instance) and implements(left, right):
                    pairs.add((self.class_id(info), self.class_id(protocol)))
        return pairs

    def read_module(self, tree: MypyFile, types: dict[Expression, Type]) -> ModuleTypes:
        result = ModuleTypes()
        for expression in _expressions(tree):
            if isinstance(expression, MemberExpr):
                result.attributes[_end(expression)] = self._attribute(expression, types)
            else:
                for name in expression.arg_names:
                    if name is not None:
                        result.keywords[_end(expression), name] = self._keyword(expression, name, types)
                self._read_strings(expression, types, result)
        return result

    def _attribute(self, expression: MemberExpr, types: dict[Expression, Type]) -> tuple[str, ...]:
        receiver = expression.expr
        if isinstance(receiver, RefExpr) and isinstance(receiver.node, MypyFile):
            module = receiver.node.fullname
            return (f"{module}.{expression.name}",) if module in self.modules else ()
        return self._members(types.get(receiver), expression.name)

    def _members(self, kind: Type | None, name: str) -> tuple[str, ...]:
        """Return the definitions that `name` can be on a value of this type, with UNKNOWN where mypy cannot tell."""
        if kind is None:
            return (UNKNOWN,)
        members: list[str] = []
        for info in _infos(kind):
            if info is None:
                members.append(UNKNOWN)
                continue
            base = next((base for base in info.mro if name in base.names), None)
            if base is not None and base.module_name in self.modules:
                members.append(f"{self.class_id(base)}.{name}")
            elif base is None and (info.fallback_to_any or _is_proxy(info)):
                members.append(UNKNOWN)
        return tuple(dict.fromkeys(members))

    def _keyword(self, call: CallExpr, name: str, types: dict[Expression, Type]) -> tuple[str, ...]:
        if isinstance(call.callee, RefExpr) and call.callee.fullname in REPLACERS and call.args:
            return self._members(types.get(call.args[0]), name)
        if isinstance(call.callee, MemberExpr) and call.callee.name == "_replace":
            return self._members(types.get(call.callee.expr), name)
        symbols = [*self._parameters(types.get(call.callee), name)]
        if not symbols or symbols == [UNKNOWN]:
            # functools.partial, executor.submit and their like pass keywords on to a function they are given
            for argument in call.args:
                kind = get_proper_type(types[argument]) if argument in types else None
                if isinstance(kind, CallableType) and name in kind.arg_names:
                    passed = [*self._parameters(kind, name)]
                    symbols = passed or symbols
        return tuple(dict.fromkeys(symbols))

    def _parameters(self, kind: Type | None, name: str) -> Iterator[str]:
        proper = get_proper_type(kind) if kind is not None else None
        if proper is None or isinstance(proper, AnyType):
            yield UNKNOWN
        elif isinstance(proper, (Overloaded, UnionType)):
            for item in proper.items:
                yield from self._parameters(item, name)
        elif isinstance(proper, TypeType) and isinstance(proper.item, Instance):
            yield from self._constructor(proper.item.type, name)
        elif isinstance(proper, Instance):
            for member in self._members(proper, "__call__"):
                yield f"{member}.<arg>{name}" if member != UNKNOWN else UNKNOWN
        elif isinstance(proper, CallableType):
            if proper.is_type_obj():
                yield from self._constructor(proper.type_object(), name)
            else:
                yield from self._definition(proper, name)

    def _definition(self, kind: CallableType, name: str) -> Iterator[str]:
        node = kind.definition
        function = node.func if isinstance(node, Decorator) else node
        if isinstance(function, (FuncDef, OverloadedFuncDef)):
            owner = function.info
            if owner and owner.module_name in self.modules:
                yield f"{self.class_id(owner)}.{function.name}.<arg>{name}"
            elif "." in function.fullname and not owner:
                yield f"{function.fullname}.<arg>{name}"

    def _constructor(self, info: TypeInfo, name: str) -> Iterator[str]:
        """A keyword of a constructor is a parameter of `__init__`, or a field where that is generated."""
        for base in info.mro:
            init = base.names.get("__init__")
            if base.module_name not in self.modules:
                continue
            if init is not None and not init.plugin_generated:
                yield f"{self.class_id(base)}.__init__.<arg>{name}"
                return
            if name in base.names:
                yield f"{self.class_id(base)}.{name}"
                return

    def _read_strings(self, call: CallExpr, types: dict[Expression, Type], result: ModuleTypes) -> None:
        if len(call.args) > 1 and isinstance(call.args[1], StrExpr):
            receiver, text = call.args[0], call.args[1]
            if isinstance(receiver, RefExpr) and isinstance(receiver.node, MypyFile):
                module = receiver.node.fullname
                symbols = (f"{module}.{text.value}",) if module in self.modules else ()
            else:
                symbols = self._members(types.get(receiver), text.value)
            result.strings[_end(text)] = symbols


def _is_proxy(info: TypeInfo) -> bool:
    """Whether attributes of the class come from another class of ours, and not out of nothing."""
    return any("__getattr__" in base.names and base.module_name in PROXIES for base in info.mro)


def _expressions(tree: MypyFile) -> Iterator[MemberExpr | CallExpr]:
    """Yield every attribute and call of a tree. mypy's own visitors are compiled and cannot be derived from."""
    waiting: list[object] = list(tree.defs)
    visited: set[int] = set()
    while waiting:
        node = waiting.pop()
        if id(node) in visited or isinstance(node, (NameExpr, TypeInfo, Var, MypyFile)):
            continue
        visited.add(id(node))
        if isinstance(node, MemberExpr):
            yield node
            waiting.append(node.expr)  # and not what it refers to, which may belong to another file
        elif isinstance(node, (Node, list, tuple, dict)):
            if isinstance(node, CallExpr):
                yield node
            waiting += gc.get_referents(node)


def implements(left: Instance, right: Instance) -> bool:
    """Return True if the class of `left` has everything that the protocol of `right` asks for."""
    return is_protocol_implementation(left, right, options=None)


def _infos(kind: Type) -> Iterator[TypeInfo | None]:
    """Yield the class of every value of this type that can have attributes of ours; None where it is unknown."""
    proper = get_proper_type(kind)
    if isinstance(proper, Instance):
        yield None if proper.type.fullname in ("types.ModuleType", "builtins.object") else proper.type
    elif isinstance(proper, UnionType):
        for item in proper.items:
            yield from _infos(item)
    elif isinstance(proper, CallableType):
        yield from [proper.type_object()] if proper.is_type_obj() else []
    elif isinstance(proper, AnyType):
        yield from [] if proper.type_of_any == TypeOfAny.from_unimported_type else [None]
    elif isinstance(proper, (TypeVarType, TypeType, TupleType, LiteralType, Overloaded)):
        yield from _infos(_inner(proper))
    elif not isinstance(proper, NoneType):
        yield None


def _inner(kind: TypeVarType | TypeType | TupleType | LiteralType | Overloaded) -> Type:
    """Return the type whose attributes a value of such a type has."""
    if isinstance(kind, TypeVarType):
        return kind.upper_bound
    if isinstance(kind, TypeType):
        return kind.item
    if isinstance(kind, TupleType):
        return kind.partial_fallback
    return kind.fallback if isinstance(kind, LiteralType) else kind.items[0]


def _classes(names: SymbolTable, module: str) -> Iterator[TypeInfo]:
    for entry in names.values():
        info = entry.node
        if isinstance(info, TypeInfo) and info.module_name == module and not info.fullname.startswith("<"):
            yield info
            yield from _classes(info.names, module)


def _end(node: Expression) -> Position:
    return node.end_line or 0, node.end_column or 0
