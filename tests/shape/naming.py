"""Measures the language and the shape of the package: names, private words, sizes, repeated mechanisms.

`python -m tests.shape.report` prints the figures as a table; tests/shape/test_naming.py holds each to its limit.
"""

import ast
import json
import re
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

from tests.shape.source import PACKAGE, File, Function, files

WORDS = json.loads((Path(__file__).parent / "words.json").read_text(encoding="utf-8"))
BANNED_NAMES = frozenset(WORDS["banned"])
PRIVATE_WORDS = frozenset(WORDS["private"])
OBLIQUE_PROSE = re.compile(
    r"\b(whoever|somebody|nobody|everybody|anybody|so long|so often|so many|as ever)\b", re.IGNORECASE
)
STRING_KEYED = re.compile(r"^(Body|(Mapping|dict)\[str, (Any|object)\])( \| None)?$")
RENAMED_DRAFT = r"os\.replace\(|\.replace\((target|path|final|destination)\)|os\.rename\("


class Definition(NamedTuple):
    """A name that a file defines: kind is "function", "class", "argument" or "variable"."""

    kind: str
    name: str
    path: str
    line: int


def split_words(name: str) -> list[str]:
    """Split a snake_case or CamelCase identifier into words."""
    parts = name.strip("_").split("_")
    return [word for part in parts for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z0-9]+", part)]


@cache
def definitions() -> tuple[Definition, ...]:
    """Every function, class, argument and assigned variable, but dunder methods and public operations."""
    return tuple(definition for file in source_files() for definition in _definitions_in(file))


@cache
def source_files() -> tuple[File, ...]:
    """The files of the package without the templates that `falaj` writes into users' folders."""
    return tuple(file for file in files() if "templates" not in file.path.split("/"))


def callables() -> list[Definition]:
    """Functions, methods and classes."""
    return [definition for definition in definitions() if definition.kind in {"function", "class"}]


def measure_one_word_percent() -> float:
    """The share of functions and classes whose name is a single word."""
    names = [definition.name for definition in callables()]
    return round(100 * sum(len(split_words(name)) <= 1 for name in names) / len(names), 1)


def measure_mean_name_length() -> float:
    """The mean length of the names of functions and classes, in characters."""
    names = [definition.name.strip("_") for definition in callables()]
    return round(sum(map(len, names)) / len(names), 1)


def banned_names() -> list[Definition]:
    """Definitions whose name is one of BANNED_NAMES."""
    return [definition for definition in definitions() if definition.name.strip("_").lower() in BANNED_NAMES]


def private_names() -> list[Definition]:
    """Functions, classes and modules whose name holds a private word."""
    stems = [(file.path, file.path.rsplit("/", 1)[-1].removesuffix(".py")) for file in source_files()]
    named = [*callables(), *(Definition("module", stem, path, 1) for path, stem in stems)]
    return [each for each in named if PRIVATE_WORDS & {word.lower() for word in split_words(each.name)}]


def count_oblique_lines() -> int:
    """Lines whose prose speaks of persons where a component acts."""
    return sum(bool(OBLIQUE_PROSE.search(row)) for file in source_files() for row in file.text.splitlines())


def count_top_level() -> int:
    """Packages and modules directly below `falaj`."""
    packages = [path for path in PACKAGE.iterdir() if (path / "__init__.py").is_file()]
    modules = [path for path in PACKAGE.glob("*.py") if not path.name.startswith("__")]
    return len(packages) + len(modules)


def measure_comment_percent() -> float:
    """Comment lines for each hundred lines of code."""
    rows = [row.strip() for file in source_files() for row in file.text.splitlines() if row.strip()]
    comments = sum(row.startswith("#") for row in rows)
    return round(100 * comments / (len(rows) - comments), 1)


@cache
def class_sizes() -> dict[str, int]:
    """Methods of each class with those that it inherits from classes of the package, by the class's name."""
    own: dict[str, tuple[list[str], int]] = {}
    for file in source_files():
        for node in file.classes():
            bases = [base.rpartition(".")[2] for base in map(ast.unparse, node.bases)]
            own[node.name] = bases, sum(isinstance(part, Function) for part in node.body)

    def count_methods(name: str, inheriting: frozenset[str] = frozenset()) -> int:
        if name not in own or name in inheriting:
            return 0
        bases, methods = own[name]
        return methods + sum(count_methods(base, inheriting | {name}) for base in bases)

    return {name: count_methods(name) for name in own}


def more_arguments() -> list[Definition]:
    """Arguments called `more`: dictionaries of options that have no flag of their own."""
    return [definition for definition in definitions() if definition.kind == "argument" and definition.name == "more"]


def string_keyed_signatures() -> list[str]:
    """Functions that take or return a dictionary with string keys and values of any type."""
    return [name for file in source_files() for name, function in file.functions() if _is_string_keyed(function)]


def count_calls(pattern: str) -> int:
    """Files of the package in which `pattern` matches."""
    regex = re.compile(pattern)
    return sum(bool(regex.search(file.text)) for file in source_files())


def count_definitions(name: str) -> int:
    """Functions of the package that are called `name`."""
    return sum(definition.name.lstrip("_") == name for definition in callables())


class Measure(NamedTuple):
    """A figure, what issue it comes from in words, and how it is computed."""

    name: str
    compute: Callable[[], float]
    at_least: bool = False


MEASURES = (
    Measure("functions and classes with a one-word name, %", measure_one_word_percent),
    Measure("mean length of those names, characters", measure_mean_name_length, at_least=True),
    Measure("banned names", lambda: len(banned_names())),
    Measure("private words in names of functions, classes and modules", lambda: len(private_names())),
    Measure("lines of oblique prose", count_oblique_lines),
    Measure("top-level packages and modules", count_top_level),
    Measure("files", lambda: len(source_files())),
    Measure("lines", lambda: sum(file.num_lines for file in source_files())),
    Measure("methods of the largest class with what it inherits", lambda: max(class_sizes().values())),
    Measure("arguments called `more`", lambda: len(more_arguments())),
    Measure("functions with string-keyed dictionaries in their signature", lambda: len(string_keyed_signatures())),
    Measure(
        "files that rename a draft themselves",
        lambda: count_calls(RENAMED_DRAFT),
    ),
    Measure("functions called digest_of", lambda: count_definitions("digest_of")),
    Measure("comment lines for 100 lines of code", measure_comment_percent, at_least=True),
)


def _definitions_in(file: File) -> Iterator[Definition]:
    for node in ast.walk(file.tree):
        if isinstance(node, Function):
            if not (node.name.startswith("__") and node.name.endswith("__")) and not _is_public_operation(node):
                yield Definition("function", node.name, file.path, node.lineno)
            for argument in [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]:
                if argument.arg not in {"self", "cls"}:
                    yield Definition("argument", argument.arg, file.path, argument.lineno)
        elif isinstance(node, ast.ClassDef):
            yield Definition("class", node.name, file.path, node.lineno)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield Definition("variable", node.id, file.path, node.lineno)


def _is_public_operation(function: Function) -> bool:
    """An operation of a service keeps the verb that its users type."""
    return any(
        "verb" in ast.dump(mark) or "errand" in ast.dump(mark) or "operation" in ast.dump(mark)
        for mark in function.decorator_list
    )


def _is_string_keyed(function: Function) -> bool:
    arguments = [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]
    annotations = [function.returns, *(argument.annotation for argument in arguments)]
    return any(STRING_KEYED.match(ast.unparse(annotation)) for annotation in annotations if annotation is not None)
