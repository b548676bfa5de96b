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

ALLOWED_MODULES = ("datetime", "math", "numpy", "re", "unicodedata", "zoneinfo")
"""What a function may import, inside or at the top of its file."""
MAX_TEXT_CHARS = 100_000
_REFUSED_NAMES = {"__import__", "breakpoint", "compile", "eval", "exec", "globals", "input", "locals", "open", "vars"}


def capture_function(function: object) -> str:
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
    text = _build_imports(function, _extract_body(name, source))
    check_function_text(text)
    return text


def hash_function_text(text: str) -> str:
    """What names a kept function."""
    return f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"


def _extract_body(name: str, source: str) -> str:
    """The function's lines without its decorator."""
    tree = ast.parse(source).body
    if len(tree) != 1 or not isinstance(tree[0], ast.FunctionDef):
        raise Invalid(f"{name} does not stand by itself", "write it with def, one function and nothing else")
    if len(tree[0].decorator_list) > 1:
        raise Invalid(f"{name} has another decorator", "what it does would be lost: write it into the function")
    return "\n".join(source.splitlines()[tree[0].lineno - 1 : tree[0].end_lineno])


def _build_imports(function: FunctionType, body: str) -> str:
    lines = []
    for name in sorted(set(_list_global_names(symtable.symtable(body, "function", "exec")))):
        value = function.__globals__.get(name)
        if name == function.__name__ or (value is None and hasattr(builtins, name)):
            continue
        if not isinstance(value, ModuleType):
            hint = "write it into the function, or import a module: import numpy as np"
            raise Invalid(f"{function.__name__} uses {name}, which is outside of it", hint)
        alias = "" if value.__name__ == name else f" as {name}"
        lines.append(f"import {value.__name__}{alias}")
    return "\n".join([*lines, *([""] * 2 if lines else []), body, ""])


def _list_global_names(table: symtable.SymbolTable) -> Iterator[str]:
    """Names that are looked up outside of every function."""
    for child_table in table.get_children():
        yield from (symbol.get_name() for symbol in child_table.get_symbols() if symbol.is_global())
        yield from _list_global_names(child_table)


def check_function_text(text: str) -> str:
    """The name of the one function a text holds; Invalid for any other text."""
    try:
        tree = ast.parse(text) if len(text) <= MAX_TEXT_CHARS else ast.Module([], [])
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise Invalid("the text of a function is no Python", "define it again") from error
    if not tree.body or not isinstance(tree.body[-1], ast.FunctionDef):
        raise Invalid("the text of a function holds none", "define it again")
    function = tree.body[-1]
    if not all(isinstance(node, ast.Import) for node in tree.body[:-1]) or function.decorator_list:
        raise Invalid(f"the text of {function.name} holds more than a function", "define it again")
    parameters = function.args
    all_parameters = [
        *parameters.posonlyargs,
        *parameters.args,
        *parameters.kwonlyargs,
        parameters.vararg,
        parameters.kwarg,
    ]
    if (
        sum(parameter is not None for parameter in all_parameters) != 1
        or parameters.defaults
        or not (parameters.args or parameters.posonlyargs)
    ):
        raise Invalid(f"{function.name} does not take one argument", f"def {function.name}(columns): ...")
    for node in ast.walk(tree):
        _check_node(function.name, node)
    return function.name


def _check_node(name: str, node: ast.AST) -> None:
    imported_modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
    imported_modules += [node.module or "."] if isinstance(node, ast.ImportFrom) else []
    unexpected = [module for module in imported_modules if module.partition(".")[0] not in ALLOWED_MODULES]
    if unexpected:
        raise Invalid(f"{name} imports {unexpected[0]}", f"it may import {', '.join(ALLOWED_MODULES)}")
    if isinstance(node, ast.Name) and node.id in _REFUSED_NAMES:
        raise Invalid(f"{name} uses {node.id}", "a transformation gets columns and gives columns, and nothing else")


def capture_function_source(source: str) -> tuple[str, str]:
    """The name and text of a function whose source is at hand and whose file is not: it may lean on builtins only."""
    source = textwrap.dedent(source)
    body = _extract_body("this", source)
    text = f"{body}\n"
    name = check_function_text(text)
    unexpected = sorted(
        {
            global_name
            for global_name in _list_global_names(symtable.symtable(body, name, "exec"))
            if not hasattr(builtins, global_name)
        }
    )
    if unexpected and unexpected != [name]:
        raise Invalid(f"{name} uses {unexpected[0]}, which is outside of it", "write it into the function")
    return name, text
