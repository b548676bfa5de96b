"""Moves of modules and packages: files, import statements, dotted names."""

import subprocess
from collections import defaultdict
from collections.abc import Callable, Iterator

from tests.codemod.index import Index
from tests.codemod.source import Import, SourceFile


class Moves:
    """Where each module goes: the map names modules and packages, and what lies in a package goes with it."""

    def __init__(self, index: Index, moves: dict[str, str]) -> None:
        self.index, self.moves = index, moves
        self.problems = [f"module:{old}: no such module" for old in moves if old not in index.modules]
        self.after: dict[str, str] = {}
        for module in index.modules:
            prefix = max((old for old in moves if module == old or module.startswith(f"{old}.")), key=len, default="")
            if prefix:
                self.after[module] = moves[prefix] + module[len(prefix) :]
        targets: dict[str, str] = {}
        for module, new in self.after.items():
            if (new in index.modules and new not in self.after) or new in targets:
                self.problems.append(f"module:{module}: {new} exists; move its modules in one by one")
            targets[new] = module

    def renamed_last(self) -> dict[str, str]:
        """Return the new last name of each module whose last name changes."""
        lasts = {module: new.rpartition(".")[2] for module, new in self.after.items()}
        return {module: last for module, last in lasts.items() if last != module.rpartition(".")[2]}

    def import_edits(
        self, file: SourceFile, name_after: Callable[[str], str]
    ) -> Iterator[tuple[int, int, int, int, str]]:
        """Yield the edits of import statements: of the dotted name, or of a statement that must be split."""
        for statement in file.imports:
            new_base = self.after.get(statement.module, statement.module)
            groups = self._groups(statement, new_base, name_after)
            if len(groups) > 1 or (groups and new_base not in groups):
                line, column, end_line, end_column = statement.span
                lines = [f"from {base} import {', '.join(names)}" for base, names in sorted(groups.items())]
                yield line, column, end_line, end_column, f"\n{' ' * column}".join(lines)
            elif new_base != statement.module:
                line, column = statement.span[0], statement.column
                yield line, column, line, column + len(statement.module.encode()), new_base

    def _groups(self, statement: Import, new_base: str, name_after: Callable[[str], str]) -> dict[str, list[str]]:
        """Return the names of a `from` import by the module that holds them afterwards."""
        groups: dict[str, list[str]] = defaultdict(list)
        for name, alias in statement.names:
            symbol = self.index.canonical(f"{statement.module}.{name}") or ""
            is_module = symbol == f"module:{statement.module}.{name}"
            new = name_after(symbol) if symbol.rpartition(".")[2] == name else name
            base = new_base
            if is_module:
                base = self.after.get(symbol[7:], symbol[7:]).rpartition(".")[0]
            groups[base].append(f"{new} as {alias}" if alias and alias != name else new)
        return groups

    def files(self) -> dict[str, str]:
        """Return the new path of every tracked file that moves."""
        listing = subprocess.run(
            ["git", "ls-files"], cwd=self.index.root, capture_output=True, text=True, check=True
        ).stdout
        places = {}
        for old, new in self.moves.items():
            path = self.index.modules[old]
            base = path.removesuffix("/__init__.py").removesuffix(".py")
            head = base[: len(base) - len(old)] if base.endswith(old.replace(".", "/")) else ""
            places[base] = head + new.replace(".", "/")
        moved = {}
        for path in listing.splitlines():
            base = max((b for b in places if path == f"{b}.py" or path.startswith(f"{b}/")), key=len, default="")
            if base:
                moved[path] = places[base] + path[len(base) :]
        return moved

    def move_files(self) -> dict[str, str]:
        """Move the files with git; new packages get an `__init__.py` whose docstring is to be written."""
        root, moved = self.index.root, self.files()
        for old, new in moved.items():
            folder = (root / new).parent
            folder.mkdir(parents=True, exist_ok=True)
            subprocess.run(["git", "mv", old, new], cwd=root, check=True)
            while new.endswith(".py") and folder not in (root, root / "src") and not (folder / "__init__.py").exists():
                if f"{folder.relative_to(root)}/__init__.py" not in moved.values():
                    (folder / "__init__.py").write_text('"""TODO: what this package is for."""\n')
                folder = folder.parent
        return moved
