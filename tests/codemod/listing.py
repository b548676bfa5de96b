"""Lists the definitions of a package whose names the rules of language object to."""

import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Any

from tests.codemod.index import Index
from tests.codemod.public_words import PublicWords

BANNED = frozenset(
    (
        "one",
        "found",
        "told",
        "said",
        "made",
        "known",
        "held",
        "given",
        "whole",
        "wanted",
        "asked",
        "thing",
        "way",
        "here",
    )
)
"""Names that say nothing about what they hold."""


def list_objections(index: Index, package: str) -> list[dict[str, Any]]:
    """Return what a person or model needs to name each objectionable definition of a package anew."""
    references = count_references(index)
    public = PublicWords(index)
    entries = []
    for symbol, definition in sorted(index.definitions.items(), key=lambda item: (item[1].path, item[1].line)):
        if not (symbol == package or symbol.startswith(f"{package}.")):
            continue
        objection = judge_name(definition.name, definition.kind)
        if objection:
            family = index.family(symbol)
            entries.append(
                {
                    "symbol": symbol,
                    "kind": definition.kind,
                    "objection": objection,
                    "at": f"{definition.path}:{definition.line}",
                    "signature": definition.signature,
                    "summary": definition.summary,
                    "references": references[family],
                    "family": [] if family == symbol else [family],
                    "public": public.reason(symbol),
                }
            )
    return entries


def judge_name(name: str, kind: str) -> str:
    """Return what is wrong with a name, or nothing."""
    plain = name.strip("_").lower()
    if name.startswith("__") or not plain:
        return ""
    if plain in BANNED:
        return "banned"
    if kind in ("class", "function", "method") and len(split_words(name)) <= 1:
        return "one word"
    return ""


def split_words(name: str) -> list[str]:
    """Split a snake_case or CamelCase identifier into words."""
    return [
        word for part in name.strip("_").split("_") for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z0-9]+", part)
    ]


def count_references(index: Index) -> Counter[str]:
    """Count the sites of each family of definitions."""
    counts: Counter[str] = Counter()
    for file in index.files.values():
        for site in file.sites:
            counts.update({index.family(symbol) for symbol in site.symbols})
    return counts


def format_objections(entries: list[dict[str, Any]]) -> Iterator[str]:
    """Yield the list for people: modules with their definitions, and locals on one line a function."""
    locals_by_function: dict[str, list[str]] = defaultdict(list)
    for entry in entries:
        if entry["kind"] in ("local", "argument"):
            function, _, name = entry["symbol"].rpartition(".<")
            locals_by_function[f"{function} ({entry['at'].rpartition(':')[0]})"].append(
                f"<{name}:{entry['at'].rpartition(':')[2]}"
            )
            continue
        public = f"  PUBLIC: {entry['public']}" if entry["public"] else ""
        yield f"{entry['symbol']}{entry['signature']}"
        yield f"    {entry['at']} {entry['kind']}, {entry['objection']}, {entry['references']} references{public}"
        if entry["summary"]:
            yield f"    {entry['summary']}"
    for function, names in locals_by_function.items():
        yield f"{function}: {' '.join(names)}"


def as_json(entries: list[dict[str, Any]]) -> str:
    """Return the list for programs."""
    return json.dumps(entries, indent=1)
