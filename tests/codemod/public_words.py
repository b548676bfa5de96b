"""Words that users, clients or stored bytes know: a rename of one is a change of the product and not of its source."""

import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cached_property

from tests.codemod.index import Index
from tests.codemod.source import Definition

MARKS = ("verb", "errand", "for_python")
"""Decorators that make a function an operation of the API, the client and the command line."""
DECODERS = ("from_json", "from_plain", "convert", "decode", "Decoder")
TEXTS = {
    "event": re.compile(r"\bemit\(\s*f?\"([a-z_]+\.[a-z_.]+)\""),
    "flag": re.compile(r"add_argument\(\s*\"(--?[a-z][\w-]*)\""),
    "metric": re.compile(r"\"(falaj_[a-z_]+)\""),
    "route": re.compile(r"\"(/v1/[^\"\s]*|/[a-z]+)\","),
    "environment": re.compile(r"\"(FALAJ_[A-Z_]+)\""),
    "record kind": re.compile(r"\bKey\([^()]*?\"([a-z-]+)\""),
    "class tag": re.compile(r"\btag=\"([\w-]+)\""),
}


class PublicWords:
    """Definitions whose names are public or persisted, and public words that are written as texts."""

    def __init__(self, index: Index) -> None:
        self.index = index

    def reason(self, symbol: str) -> str:
        """Return why the name of a definition is public, or nothing."""
        definition = self.index.definitions.get(symbol)
        if definition is None or not definition.path.startswith("src/"):
            return ""
        if symbol in self.operations:
            return "an operation of the API and the command line"
        owner, _, _ = symbol.rpartition(".<arg>" if definition.kind == "argument" else ".")
        if (
            definition.kind == "argument"
            and owner in self.operations
            and definition.name not in ("self", "here", "ctx")
        ):
            return "a parameter of an operation"
        if definition.kind == "attribute" and owner in self.records and not definition.name.startswith("_"):
            return "a field of what operations take or give, of settings, or of stored records"
        return ""

    @cached_property
    def operations(self) -> set[str]:
        """Functions that are marked as operations."""
        return {
            symbol
            for symbol, definition in self.index.definitions.items()
            if definition.path.startswith("src/")
            and any(word.partition("(")[0] in MARKS for word in definition.decorators)
        }

    @cached_property
    def records(self) -> set[str]:
        """Classes whose fields cross the API or are stored: in signatures of operations, decoded, or of settings."""
        waiting = [name for symbol in self.operations for name in self._classes_in(self.index.definitions[symbol])]
        for symbol, definition in self.index.definitions.items():
            stored = "Struct" in definition.signature or definition.path == "src/falaj/core/settings.py"
            if stored and definition.kind == "class" and definition.path.startswith("src/"):
                waiting.append(symbol)
        for file in self.index.files.values():
            if file.path.startswith("src/"):
                for match in re.finditer(rf"\b(?:{'|'.join(DECODERS)})\([^()\n]*?\b([A-Z]\w+)\b", file.text):
                    waiting += self._resolve(file.path, match[1])
        reached: set[str] = set()
        while waiting:
            symbol = waiting.pop()
            if symbol not in reached:
                reached.add(symbol)
                record = self.index.typed.classes.get(symbol)
                waiting += record.bases if record else ()
                for field in self._fields.get(symbol, ()):
                    waiting += self._classes_in(field)
        return reached

    @cached_property
    def _fields(self) -> dict[str, list[Definition]]:
        fields: dict[str, list[Definition]] = defaultdict(list)
        for symbol, definition in self.index.definitions.items():
            if definition.kind == "attribute" and definition.signature:
                fields[symbol.rpartition(".")[0]].append(definition)
        return fields

    def _classes_in(self, definition: Definition) -> Iterator[str]:
        for name in re.findall(r"\b[A-Z]\w+\b", definition.signature):
            yield from self._resolve(definition.path, name)

    def _resolve(self, path: str, name: str) -> Iterator[str]:
        for bound in self.index.files[path].scope.bindings.get(name, ()):
            symbol = self.index.canonical(bound.partition("=")[2] or bound)
            if symbol in self.index.typed.classes:
                yield symbol

    def dump(self) -> list[str]:
        """Return every public and persisted word, one a line, sorted."""
        lines = set()
        for symbol, definition in self.index.definitions.items():
            reason = self.reason(symbol)
            if reason.startswith("an operation"):
                arguments = [name for name in definition.arguments if name not in ("self", "here", "ctx")]
                lines.add(f"operation {symbol.removeprefix('falaj.')}({', '.join(arguments)})")
            elif reason.startswith("a field"):
                lines.add(f"field {'.'.join(symbol.split('.')[-2:])}")
        for file in self.index.files.values():
            if file.path.startswith("src/"):
                for kind, pattern in TEXTS.items():
                    lines |= {f"{kind} {match}" for match in pattern.findall(file.text)}
        return sorted(lines)
