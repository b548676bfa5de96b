"""The package's source as the shape tests see it: files, functions, classes."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "falaj"

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class File:
    """One file of the package: its path as people write it, its text and its tree."""

    path: str
    text: str
    tree: ast.Module

    @property
    def num_lines(self) -> int:
        return self.text.count("\n")

    def functions(self) -> Iterator[tuple[str, Function]]:
        """Every function and method, with the name an excuse would use: `src/falaj/core/ref.py::Ref.parse`."""
        return _functions(self.tree, f"{self.path}::")

    def classes(self) -> Iterator[ast.ClassDef]:
        return (node for node in ast.walk(self.tree) if isinstance(node, ast.ClassDef))


@cache
def files() -> tuple[File, ...]:
    paths = sorted(PACKAGE.rglob("*.py"))
    texts = [(path, path.read_text(encoding="utf-8")) for path in paths]
    return tuple(File(str(path.relative_to(ROOT)), text, ast.parse(text, str(path))) for path, text in texts)


def _functions(parent: ast.AST, prefix: str) -> Iterator[tuple[str, Function]]:
    for node in ast.iter_child_nodes(parent):
        if isinstance(node, Function):
            yield f"{prefix}{node.name}", node
        inner = f"{prefix}{node.name}." if isinstance(node, Function | ast.ClassDef) else prefix
        yield from _functions(node, inner)
