"""Functions kept as text: what a definition's Python says, self-contained; run in an isolated process (functions.py).

A function may use its one argument, builtins, and a few modules by name. So its text alone decides what it gives, its
digest names it, and whoever reads the definition reads all of it.

`check_text` is a lint, not a security boundary: it tells an author early that a function leans on something that will
not be there. An author can get past it; only the sandbox of its process decides what the text may do.
"""

import ast
import builtins
import hashlib
import inspect
import symtable
import textwrap
from collections.abc import Iterator
from types import FunctionType, ModuleType

from falaj.core.errors import Invalid

MODULES = ("datetime", "math", "numpy", "re", "unicodedata", "zoneinfo")
"""What a function may import, inside or at the top of its file."""
MAX_TEXT = 100_000
_REFUSED = {"__import__", "breakpoint", "compile", "eval", "exec", "globals", "input", "locals", "open", "vars"}


def keep(function: object) -> str:
    """The text of a function with the imports it needs; Invalid where it leans on anything else."""
    if not isinstance(function, FunctionType) or function.__name__ == "<lambda>":
        raise Invalid("this is no function with a name", "write it with def")
    name = function.__name__
    if inspect.iscoroutinefunction(function) or inspect.isgeneratorfunction(function):
        raise Invalid(f"{name} does not return its columns at once", "return a dict of columns; no async, no yield")
    if function.__closure__:
        names = ", ".join(function.__code__.co_freevars)
        raise Invalid(f"{name} uses {names} of the function around it", "write the value into the function itself")
    try:
        source = textwrap.dedent(inspect.getsource(function))
    except OSError as error:
        raise Invalid(f"the text of {name} cannot be found", "put it in a .py file") from error
    text = _imports(function, _body(name, source))
    check_text(text)
    return text


def digest_of(text: str) -> str:
    """What names a kept function."""
    return f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"


def _body(name: str, source: str) -> str:
    """The function's lines without its decorator."""
    tree = ast.parse(source).body
    if len(tree) != 1 or not isinstance(tree[0], ast.FunctionDef):
        raise Invalid(f"{name} does not stand by itself", "write it with def, one function and nothing else")
    if len(tree[0].decorator_list) > 1:
        raise Invalid(f"{name} has another decorator", "what it does would be lost: write it into the function")
    return "\n".join(source.splitlines()[tree[0].lineno - 1 : tree[0].end_lineno])


def _imports(function: FunctionType, body: str) -> str:
    lines = []
    for name in sorted(set(_globals(symtable.symtable(body, "function", "exec")))):
        value = function.__globals__.get(name)
        if name == function.__name__ or (value is None and hasattr(builtins, name)):
            continue
        if not isinstance(value, ModuleType):
            hint = "write it into the function, or import a module: import numpy as np"
            raise Invalid(f"{function.__name__} uses {name}, which is outside of it", hint)
        alias = "" if value.__name__ == name else f" as {name}"
        lines.append(f"import {value.__name__}{alias}")
    return "\n".join([*lines, *([""] * 2 if lines else []), body, ""])


def _globals(table: symtable.SymbolTable) -> Iterator[str]:
    """Names that are looked up outside of every function."""
    for inner in table.get_children():
        yield from (symbol.get_name() for symbol in inner.get_symbols() if symbol.is_global())
        yield from _globals(inner)


def check_text(text: str) -> str:
    """The name of the one function a text holds; Invalid for any other text."""
    try:
        tree = ast.parse(text) if len(text) <= MAX_TEXT else ast.Module([], [])
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise Invalid("the text of a function is no Python", "define it again") from error
    if not tree.body or not isinstance(tree.body[-1], ast.FunctionDef):
        raise Invalid("the text of a function holds none", "define it again")
    made = tree.body[-1]
    if not all(isinstance(node, ast.Import) for node in tree.body[:-1]) or made.decorator_list:
        raise Invalid(f"the text of {made.name} holds more than a function", "define it again")
    taken = made.args
    every = [*taken.posonlyargs, *taken.args, *taken.kwonlyargs, taken.vararg, taken.kwarg]
    if sum(one is not None for one in every) != 1 or taken.defaults or not (taken.args or taken.posonlyargs):
        raise Invalid(f"{made.name} does not take one argument", f"def {made.name}(columns): ...")
    for node in ast.walk(tree):
        _allowed(made.name, node)
    return made.name


def _allowed(name: str, node: ast.AST) -> None:
    named = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
    named += [node.module or "."] if isinstance(node, ast.ImportFrom) else []
    strange = [module for module in named if module.partition(".")[0] not in MODULES]
    if strange:
        raise Invalid(f"{name} imports {strange[0]}", f"it may import {', '.join(MODULES)}")
    if isinstance(node, ast.Name) and node.id in _REFUSED:
        raise Invalid(f"{name} uses {node.id}", "a transformation gets columns and gives columns, and nothing else")


def keep_text(source: str) -> tuple[str, str]:
    """The name and text of a function whose source is at hand and whose file is not: it may lean on builtins only."""
    source = textwrap.dedent(source)
    body = _body("this", source)
    text = f"{body}\n"
    name = check_text(text)
    strange = sorted({one for one in _globals(symtable.symtable(body, name, "exec")) if not hasattr(builtins, one)})
    if strange and strange != [name]:
        raise Invalid(f"{name} uses {strange[0]}, which is outside of it", "write it into the function")
    return name, text
