"""Old names in texts: dotted paths, file paths, programs in strings and documents, and names in backticks."""

import io
import re
import subprocess
import tokenize
from collections import defaultdict
from collections.abc import Iterator

from tests.codemod.index import Index
from tests.codemod.moves import Moves

DOCUMENTS = (".md", ".toml", ".yml", ".yaml", ".txt", ".cfg", ".sh", "Makefile")
DOTTED = re.compile(r"(?<![\w./])((?:falaj|tests|examples)(?:\.[A-Za-z_]\w*)+)(:[A-Za-z_][\w.]*)?")
FILE = re.compile(r"(?<![\w/.-])((?:\w+/)+\w+\.py)((?:::\w+(?:\.\w+)*)*)")
FOLDER = re.compile(r"(?<![\w/.-])((?:src/falaj|tests|falaj)(?:/\w+)+)(?=[/\s`'\"*),]|$)")
IMPORT = re.compile(r"from (falaj[\w.]*) import (?:\(([\w,\s]+)\)|(\w+(?: as \w+)?(?:, \w+(?: as \w+)?)*))")
TICKED = re.compile(r"`([A-Za-z_]\w*(?:\.\w+)*)(\(\))?`")
Change = tuple[int, int, int, int, str]


class Prose:
    """Edits of strings, comments and documents, and notes on texts that a person should look at."""

    def __init__(
        self, index: Index, new_names: dict[str, str], by_name: dict[str, set[str]], kept: set[str], moves: Moves,
    ) -> None:  # fmt: skip
        self.index, self.new_names, self.moves = index, new_names, moves
        members = {name for name in by_name if any("<" not in s and s.endswith(f".{name}") for s in new_names)}
        self.unique = {
            name: next(iter(by_name[name])) for name in members if len(by_name[name]) == 1 and name not in kept
        }
        self.texts = members
        self.notes: list[str] = []
        self.inner: dict[str, list[tuple[int, int, str, str]]] = defaultdict(list)
        for symbol, new in new_names.items():
            if "<" in symbol and symbol in index.definitions:
                function = index.definitions.get(symbol.partition(".<")[0])
                if function:
                    name = index.definitions[symbol].name
                    self.inner[function.path].append((function.line, function.end_line, name, new))

    def edits(self) -> dict[str, list[Change]]:
        """Return the edits by path."""
        changes = {}
        for path, file in self.index.files.items():
            if not path.startswith("tests/codemod/"):  # its texts are examples
                changes[path] = list(self._edit_python(path, file.text))
        listing = subprocess.run(
            ["git", "ls-files"], cwd=self.index.root, capture_output=True, text=True, check=True
        ).stdout
        for path in listing.splitlines():
            if path.endswith(DOCUMENTS) and path != "CHANGELOG.md" and (self.index.root / path).is_file():
                changes[path] = list(self._edit_document(path, (self.index.root / path).read_text()))
        return {path: edits for path, edits in changes.items() if edits}

    def _edit_python(self, path: str, text: str) -> Iterator[Change]:
        lines = text.split("\n")
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type not in (tokenize.STRING, tokenize.COMMENT):
                continue
            inner = {name: new for first, last, name, new in self.inner[path] if first <= token.start[0] <= last}
            new = self.rewrite(token.string, inner)
            bare = token.string.strip("rbfuRBFU'\"")
            if bare in self.texts and new == token.string:
                self.notes.append(f"{path}:{token.start[0]}: {bare!r} is written as text")
            if new != token.string:
                start, end = (_bytes(lines, line, column) for line, column in (token.start, token.end))
                yield token.start[0], start, token.end[0], end, new

    def _edit_document(self, path: str, text: str) -> Iterator[Change]:
        parts = re.split(r"(^```.*?^```)", text, flags=re.MULTILINE | re.DOTALL) if path.endswith(".md") else [text]
        new = "".join(self.rewrite(part, {}) for part in parts)
        if new != text:
            lines = text.split("\n")
            yield 1, 0, len(lines), len(lines[-1].encode()), new

    def rewrite(self, text: str, inner: dict[str, str]) -> str:
        """Return a text under the new names; `inner` holds arguments and locals of the function around it."""
        text = self._rewrite_program(text) if "import " in text else text
        text = DOTTED.sub(lambda match: self._dotted(match[1]) + self._qualified(match[1], match[2] or ""), text)
        text = FILE.sub(lambda match: self._file(match[1], match[2]), text)
        text = FOLDER.sub(lambda match: self._folder(match[1]), text)
        names = {**self.unique, **inner}
        return TICKED.sub(lambda match: f"`{_each(match[1], names)}{match[2] or ''}`", text)

    def _dotted(self, path: str) -> str:
        module, rest = self._split(path)
        if not module:
            return path
        return ".".join([self.moves.after.get(module, module), *self._members(module, rest)])

    def _qualified(self, path: str, name: str) -> str:
        module, rest = self._split(path)
        if not name or not module or rest:
            return name
        return ":" + ".".join(self._members(module, name[1:].split(".")))

    def _split(self, path: str) -> tuple[str, list[str]]:
        parts = path.split(".")
        for count in range(len(parts), 0, -1):
            if ".".join(parts[:count]) in self.index.modules:
                return ".".join(parts[:count]), parts[count:]
        return "", parts

    def _members(self, module: str, names: list[str], symbol: str | None = None) -> Iterator[str]:
        symbol = symbol or f"module:{module}"
        for name in names:
            symbol = self.index.attribute(symbol, name) if symbol else None
            yield self.new_names.get(symbol or "", name)

    def _file(self, path: str, names: str) -> str:
        for head in ("", "src/", "src/falaj/", "tests/"):
            file = self.index.files.get(head + path)
            if file is not None:
                new = self.moves.after.get(file.module)
                after = path
                if new:
                    base = file.path[: len(file.path) - len(file.module.replace(".", "/")) - 3]
                    after = f"{base}{new.replace('.', '/')}.py"
                    after = after.removeprefix(head) if not file.package else path
                parts = names.removeprefix("::").split("::") if names else []
                qualified = ".".join(parts).split(".") if parts else []
                renamed = list(self._members(file.module, qualified))
                return after + "".join("::" + ".".join(renamed[i] for i in group) for group in _groups(parts))
        return path + names

    def _folder(self, path: str) -> str:
        module = path.removeprefix("src/").replace("/", ".")
        new = self.moves.after.get(module)
        if not new or not self.index.modules[module].endswith("__init__.py"):
            return path
        return ("src/" if path.startswith("src/") else "") + new.replace(".", "/")

    def _rewrite_program(self, text: str) -> str:
        """Rename what a program in a text imports from falaj, wherever the text uses it."""
        for match in IMPORT.finditer(text):
            for part in (match[2] or match[3]).split(","):
                name, _, alias = part.strip().partition(" as ")
                symbol = self.index.attribute(f"module:{match[1]}", name) if name else None
                if symbol is None:
                    continue
                written = alias or name
                pattern = re.compile(rf"(?<![\w.]){written}((?:\.\w+)*)\b")
                new = written if alias else self.new_names.get(symbol, name)
                text = pattern.sub(lambda m, s=symbol, n=new: self._use(m[1], s, n), text)  # type: ignore[misc]
        return text

    def _use(self, attributes: str, symbol: str, name: str) -> str:
        names = attributes.removeprefix(".").split(".") if attributes else []
        return ".".join([name, *self._members("", names, symbol)])


def _groups(parts: list[str]) -> Iterator[range]:
    start = 0
    for part in parts:
        count = part.count(".") + 1
        yield range(start, start + count)
        start += count


def _each(dotted: str, names: dict[str, str]) -> str:
    return ".".join(names.get(part, part) for part in dotted.split("."))


def _bytes(lines: list[str], line: int, column: int) -> int:
    return len(lines[line - 1][:column].encode())
