"""Turns a map of renames into edits: expands families, finds ambiguous places, refuses collisions, writes files."""

import builtins
import difflib
import keyword
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tests.codemod.index import Index, find_fixture
from tests.codemod.moves import Moves
from tests.codemod.prose import Prose
from tests.codemod.public_words import PublicWords
from tests.codemod.receivers import UNKNOWN
from tests.codemod.source import Scope, Site, SourceFile

Place = tuple[int, int]
COMMON = {name for kind in (str, bytes, dict, list, set, tuple, int, float, Path, object, type) for name in dir(kind)}
"""Attributes of types that are met everywhere; an unknown receiver is as likely to be one of these."""


@dataclass(slots=True)
class Edit:
    """One replacement in a file: bytes of a line, or from one line to another."""

    line: int
    column: int
    end_line: int
    end_column: int
    text: str


@dataclass(slots=True)
class Plan:
    """What applying a map would do, and what stands against it."""

    edits: dict[str, list[Edit]] = field(default_factory=lambda: defaultdict(list))
    problems: list[str] = field(default_factory=list)
    """Reasons to refuse."""
    ambiguous: dict[str, str] = field(default_factory=dict)
    """Places a person must decide, by `file:line:column`, with the line; the map's "ambiguous" answers them."""
    guessed: list[str] = field(default_factory=list)
    """Receivers of unknown type that were renamed, because no definition that keeps the name is left."""
    notes: list[str] = field(default_factory=list)
    """Texts and prose that hold an old name and stay as they are."""
    counts: Counter[str] = field(default_factory=Counter)


def expand_scope_names(names: Mapping[str, str], definitions: Iterable[str]) -> dict[str, str]:
    """Replace `scope.name` of an argument or a local by its definitions: `scope.<arg>name`, `scope.<local>name#2`, …"""
    by_scope: dict[str, list[str]] = defaultdict(list)
    for symbol in definitions:
        by_scope[re.sub(r"<(arg|local)>|#\d+$", "", symbol)].append(symbol)
    expanded: dict[str, str] = {}
    for key, new_name in names.items():
        variables = [] if "<" in key else [symbol for symbol in by_scope[key] if symbol != key]
        keys = [key, *variables] if key in by_scope[key] else variables or [key]
        expanded |= dict.fromkeys(keys, new_name)
    return expanded


class Planner:
    """Plans the renames of one map against one index."""

    def __init__(self, index: Index, mapping: dict[str, object], *, public: bool = False) -> None:
        self.index, self.plan = index, Plan()
        decisions = mapping.get("ambiguous", {})
        self.decisions = dict(decisions) if isinstance(decisions, dict) else {}
        self.moves = Moves(index, {k[7:]: str(v) for k, v in mapping.items() if k.startswith("module:")})
        self.plan.problems += self.moves.problems
        names = {k: str(v) for k, v in mapping.items() if k != "ambiguous" and not k.startswith("module:")}
        self.new_names = self._expand(names, None if public else PublicWords(index))
        for module, new in self.moves.renamed_last().items():
            self.new_names[f"module:{module}"] = new
        self.by_name: dict[str, set[str]] = defaultdict(set)
        for symbol, new in self.new_names.items():
            self.by_name[_last(symbol)].add(new)
        self.kept_names = self._kept_names()

    def make(self) -> Plan:
        """Compute every edit and every reason to refuse."""
        for path, file in self.index.files.items():
            edited = self._edit_sites(path, file)
            edited |= self._edit_fixture_texts(path, file)
            if edited:
                self._check_scopes(path, file)
            self.plan.edits[path] += [Edit(*edit) for edit in self.moves.import_edits(file, self._name_after)]
        self._check_classes()
        prose = Prose(self.index, self.new_names, self.by_name, self.kept_names, self.moves)
        for path, edits in prose.edits().items():
            self.plan.edits[path] += [Edit(*edit) for edit in edits]
        self.plan.notes += prose.notes
        self.plan.edits = {path: edits for path, edits in self.plan.edits.items() if edits}
        return self.plan

    # -- what is renamed --------------------------------------------------------------------------------------------

    def _expand(self, names: dict[str, str], public: PublicWords | None) -> dict[str, str]:
        """Return the new name of every definition, those included that share their name with one of the map."""
        by_family: dict[str, tuple[str, str]] = {}
        names = expand_scope_names(names, self.index.definitions)
        foreign = {self.index.family(symbol) for symbol in self.index.foreign}
        for symbol, new in names.items():
            if symbol not in self.index.definitions:
                close = difflib.get_close_matches(symbol, self.index.definitions, 1)
                self.plan.problems.append(f"{symbol}: no such definition; did you mean {close[0] if close else '…'}?")
                continue
            if not new.isidentifier() or keyword.iskeyword(new):
                self.plan.problems.append(f"{symbol}: {new!r} is not an identifier")
                continue
            family = self.index.family(symbol)
            other = by_family.setdefault(family, (symbol, new))
            if other[1] != new:
                self.plan.problems.append(f"{symbol} → {new}, but it shares its name with {other[0]} → {other[1]}")
            if family in foreign or (new != _last(symbol) and _last(symbol).startswith("__")):
                self.plan.problems.append(f"{symbol}: the name is chosen by a third-party base class or by Python")
        members = {s: by_family[f][1] for s in self.index.definitions if (f := self.index.family(s)) in by_family}
        for symbol in members if public else ():
            reason = public.reason(symbol) if public else ""
            if reason:
                self.plan.problems.append(f"{symbol}: {reason}; renaming it needs --public")
        return members

    def _kept_names(self) -> set[str]:
        """Names of members that some definition keeps, so that an unknown receiver may mean that one."""
        kept = set(COMMON)
        for symbol, definition in self.index.definitions.items():
            if symbol not in self.new_names and "<" not in symbol:
                kept.add(definition.name)
        for file in self.index.files.values():
            for site in file.sites:
                if site.kind == "attribute" and not site.symbols and site.name in self.by_name:
                    kept.add(site.name)  # third-party classes have it, too
        return kept

    def _name_after(self, symbol: str) -> str:
        return self.new_names.get(symbol, _last(symbol))

    def after(self, site: Site, path: str) -> str:
        """Return what is written at a site afterwards."""
        names = {self.new_names.get(symbol, "") for symbol in site.symbols if _last(symbol) == site.name}
        new = next(iter(names), "")
        if len(names) > 1:
            place = f"{path}:{site.line}:{site.column + 1}"
            symbols = ", ".join(site.symbols)
            self.plan.problems.append(f"{place}: {site.name} is one of {symbols}, and they would get different names")
        return new or site.name

    def _edit_sites(self, path: str, file: SourceFile) -> bool:
        places: dict[Place, str] = {}
        for site in file.sites:
            if site.symbols == (UNKNOWN,):
                new = self._decide(path, site) if site.name in self.by_name else site.name
            elif any(symbol in self.new_names for symbol in site.symbols):
                new = self.after(site, path)
            else:
                continue
            if new != site.name:
                places[site.line, site.column] = new
                self.plan.counts[site.kind] += 1
                end = site.column + len(site.name.encode())
                self.plan.edits[path].append(Edit(site.line, site.column, site.line, end, new))
        return bool(places)

    def _decide(self, path: str, site: Site) -> str:
        """Return the new name where the type of the receiver is unknown: as decided, or the only one that is left."""
        members = {s for s in self.new_names if _last(s) == site.name and self._fits(s, site)}
        if not members:
            return site.name
        place = f"{path}:{site.line}:{site.column + 1}"
        for key in (place, f"{path}:{site.name}", f"*:{site.name}"):
            if key in self.decisions:
                return str(self.decisions[key]) or site.name
        names = {self.new_names[symbol] for symbol in members}
        if len(names) == 1 and site.name not in self.kept_names and site.kind != "keyword":
            self.plan.guessed.append(place)
            return names.pop()
        if site.name in COMMON:
            self.plan.notes.append(f"{place}: {site.name} on an unknown type stays, as builtin types have it, too")
            return site.name
        self.plan.ambiguous[place] = f"{site.name} → {' or '.join(sorted(names))}?"
        return site.name

    def _fits(self, symbol: str, site: Site) -> bool:
        """Whether an unknown attribute, or an unknown keyword, can be this definition."""
        if site.kind == "keyword":
            return "<arg>" in symbol or self.index.definitions[symbol].kind == "attribute"
        return symbol.rpartition(".")[0] in self.index.typed.classes

    def _edit_fixture_texts(self, path: str, file: SourceFile) -> bool:
        """Texts that name arguments: those of parametrize and verb, and fixtures in usefixtures and getfixturevalue."""
        edited = False
        for text in file.texts:
            for name in re.findall(r"\w+", text.value) if re.fullmatch(r"[\w, ]+", text.value) else ():
                symbol = f"{text.function}.<arg>{name}" if text.function else None
                if symbol is None and file.path.startswith("tests/") and name in self.by_name and name == text.value:
                    symbol = find_fixture(self.index, file, name)
                if symbol in self.new_names:
                    line = file.text.encode().split(b"\n")[text.line - 1]
                    for match in re.finditer(rb"\b%s\b" % name.encode(), line[text.column : text.end_column]):
                        start = text.column + match.start()
                        self.plan.edits[path].append(
                            Edit(text.line, start, text.line, start + len(name.encode()), self.new_names[symbol])
                        )
                    edited = True
        return edited

    # -- collisions -------------------------------------------------------------------------------------------------

    def _check_scopes(self, path: str, file: SourceFile) -> None:
        """Every name must be read from the scope it is read from today, and mean one definition there."""
        bound: dict[int, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
        owners: dict[int, Scope | None] = {}
        sites = [site for site in file.sites if site.kind in ("name", "definition", "import")]
        written = {id(site): self.after(site, path) for site in sites}
        for site in sites:
            owner = site.scope.owner(site.name)
            owners[id(site)] = owner
            if owner is not None:
                bound[id(owner)][written[id(site)]].add(site.name)
        for site in sites:
            owner = owners[id(site)]
            if owner is not None and written[id(site)] != site.name:
                others = bound[id(owner)][written[id(site)]] - {site.name}
                if others:
                    new, old = written[id(site)], " and ".join(sorted(others))
                    self.plan.problems.append(
                        f"{path}:{site.line}: {site.name} → {new}, as {old} would be called there"
                    )
        for site in sites:
            name, scope = written[id(site)], site.scope
            while scope is not None and scope is not owners[id(site)]:
                inside = name in bound[id(scope)] and (scope is site.scope or scope.kind != "class")
                if inside and f"global:{name}" not in site.scope.outer_names:
                    self.plan.problems.append(f"{path}:{site.line}: {name} would be captured by {scope.id}")
                    break
                scope = scope.parent  # type: ignore[assignment]
            if owners[id(site)] is not None and name != site.name and hasattr(builtins, name):
                self.plan.notes.append(f"{path}:{site.line}: {name} hides a builtin")

    def _check_classes(self) -> None:
        """A member may not take the name of another member of its class, a base or a subclass."""
        renamed = [symbol for symbol in self.new_names if symbol.rpartition(".")[0] in self.index.typed.classes]
        below: dict[str, list[str]] = defaultdict(list)
        for class_id, record in self.index.typed.classes.items():
            for base in record.bases:
                below[base].append(class_id)
        for symbol in renamed:
            owner, new = symbol.rpartition(".")[0], self.new_names[symbol]
            record = self.index.typed.classes[owner]
            for class_id in (owner, *record.bases, *below[owner]):
                other = self.index.typed.classes.get(class_id)
                stays = other and new in other.names and self.new_names.get(f"{class_id}.{new}", new) == new
                if stays and self.index.family(f"{class_id}.{new}") != self.index.family(symbol):
                    self.plan.problems.append(f"{symbol}: {class_id} already has {new}")
            if new in record.foreign_names:
                self.plan.problems.append(f"{symbol}: a third-party base of {owner} already has {new}")


def write_edits(root: Path, edits: dict[str, list[Edit]]) -> Iterator[str]:
    """Write the edits of each file and yield the paths; of overlapping edits the wider one counts."""
    for path, places in edits.items():
        data = (root / path).read_bytes()
        starts = [0]
        for line in data.split(b"\n"):
            starts.append(starts[-1] + len(line) + 1)
        spans = {(starts[e.line - 1] + e.column, starts[e.end_line - 1] + e.end_column, e.text) for e in places}
        end_of_last = 0
        parts = []
        for start, end, text in sorted(spans, key=lambda span: (span[0], -span[1])):
            if start < end_of_last:
                continue  # lies in what a wider edit replaces
            parts += [data[end_of_last:start], text.encode()]
            end_of_last = end
        data = b"".join([*parts, data[end_of_last:]])
        (root / path).write_bytes(data)
        yield path


def _last(symbol: str) -> str:
    """Return the name that is written for a symbol."""
    return re.split(r"[.>:]", symbol.partition("#")[0].partition("=")[0])[-1]
