"""The reference index: every name of src, tests, bench and examples linked to the definition it refers to."""

import hashlib
import pickle
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tests.codemod.receivers import UNKNOWN, ClassRecord, ModuleTypes, Typed, find_sources, read_types
from tests.codemod.source import Definition, Scope, Site, SourceFile, read_source

FOLDERS = ("src/falaj", "tests", "bench", "examples")
CONSTRUCTORS = ("__init__", "__new__", "__post_init__")
"""Each class has its own: a subclass may take other arguments."""


@dataclass(slots=True)
class Index:
    """What a rename needs: sites with their symbols, definitions, and which of them can only change together."""

    root: Path
    files: dict[str, SourceFile]
    modules: dict[str, str]
    """Paths by module."""
    hashes: dict[str, str]
    typed: Typed
    roots: frozenset[str]
    definitions: dict[str, Definition] = field(default_factory=dict)
    families: dict[str, str] = field(default_factory=dict)
    """The representative of each symbol that shares its name with others: overrides, implementers, fixtures."""
    foreign: set[str] = field(default_factory=set)
    """Definitions whose name a third-party base class has chosen."""

    def family(self, symbol: str) -> str:
        """Return the representative of the definitions that must be renamed together with this one."""
        while self.families.get(symbol, symbol) != symbol:
            symbol = self.families[symbol]
        return symbol

    def join(self, left: str, right: str) -> None:
        """Make two definitions share one name."""
        first, second = sorted((self.family(left), self.family(right)))
        if first != second:
            self.families[second] = first

    def member(self, class_id: str, name: str) -> str | None:
        """Return the definition of `name` in a class or its nearest base."""
        record = self.typed.classes.get(class_id)
        if record is None:
            return f"{class_id}.{name}" if f"{class_id}.{name}" in self.definitions else None
        for base in (class_id, *record.bases):
            if base in self.typed.classes and name in self.typed.classes[base].names:
                return f"{base}.{name}"
        return None

    def canonical(self, symbol: str) -> str | None:
        """Follow imports that hand a name on, to the definition or module (`module:falaj.store`) itself."""
        for _ in range(20):
            if symbol.startswith("module:"):
                return symbol if symbol[7:] in self.modules else None
            if "=" in symbol or symbol in self.definitions:
                return symbol
            owner, _, name = symbol.rpartition(".")
            path = self.modules.get(owner)
            bound = self.files[path].scope.bindings.get(name, []) if path else []
            following = next((target for target in bound if target != symbol), None)
            if following is None:
                if symbol in self.modules:
                    return f"module:{symbol}"
                parent = self.canonical(owner) if not path and "." in owner else None
                return self.member(parent, name) if parent else None
            symbol = following.partition("=")[2] or following
        return None

    def walk(self, scope: Scope, chain: tuple[str, tuple[str, ...]]) -> list[str]:
        """Return what a chain of plain attributes refers to, as far as modules and classes tell."""
        owner = scope.owner(chain[0])
        symbols = []
        for bound in owner.bindings[chain[0]] if owner else ():
            symbol = self.canonical(bound.partition("=")[2] or bound) if bound else None
            for attribute in chain[1]:
                symbol = self.attribute(symbol, attribute) if symbol else None
            if symbol:
                symbols.append(symbol)
        return symbols

    def is_foreign(self, site: Site) -> bool:
        """Whether a chain of attributes starts at a third-party module or what is imported from it."""
        owner = site.scope.owner(site.chain[0]) if site.chain else None
        for bound in owner.bindings[site.chain[0]] if owner and site.chain else ():
            target = (bound.partition("=")[2] or bound).removeprefix("module:")
            if target and "<" not in target and target.partition(".")[0] not in self.roots:
                return True
        return False

    def attribute(self, symbol: str, name: str) -> str | None:
        """Return the definition of `name` in a module or a class."""
        if symbol.startswith("module:"):
            return self.canonical(f"{symbol[7:]}.{name}")
        definition = self.definitions.get(symbol)
        return self.member(symbol, name) if definition and definition.kind == "class" else None

    def parameter(self, symbol: str, name: str) -> str | None:
        """Return what a keyword of a call of this function or class names."""
        if f"{symbol}.<arg>{name}" in self.definitions:
            return f"{symbol}.<arg>{name}"
        record = self.typed.classes.get(symbol)
        for base in (symbol, *record.bases) if record else ():
            if f"{base}.__init__" in self.definitions:
                argument = f"{base}.__init__.<arg>{name}"
                return argument if argument in self.definitions else None
            if f"{base}.{name}" in self.definitions:
                return f"{base}.{name}"
        return None


def load_index(root: Path) -> Index:
    """Return the index of the tree as it is: from the cache if no file has changed, else built anew."""
    cache = root / ".codemod" / "index.pickle"
    hashes = _hashes(root)
    sys.setrecursionlimit(20_000)
    if cache.exists():
        with cache.open("rb") as stream:
            if pickle.load(stream) == hashes:  # noqa: S301 - written by this program
                index: Index = pickle.load(stream)  # noqa: S301
                return index
    index = build_index(root)
    cache.parent.mkdir(exist_ok=True)
    with cache.open("wb") as stream:
        pickle.dump(hashes, stream)
        pickle.dump(index, stream)
    return index


def build_index(root: Path, folders: Iterable[str] = FOLDERS) -> Index:
    """Read syntax and types of every file and link them."""
    sources, options = find_sources(root, folders)
    files, modules, local_classes = {}, {}, {}
    for source in sources:
        path = str(Path(source.path or "").relative_to(root))
        files[path] = read_source(path, source.module, (root / path).read_text())
        modules[source.module] = path
        for (name, line), symbol in files[path].classes.items():
            local_classes[source.module, name, line] = symbol
    roots = frozenset(module.partition(".")[0] for module in modules)
    index = Index(root, files, modules, _hashes(root), read_types(sources, options, local_classes), roots)
    for file in files.values():
        index.definitions.update(file.definitions)
    _drop_inherited(index)
    for file in files.values():
        types = index.typed.modules[file.module]
        for site in file.sites:
            site.symbols = tuple(dict.fromkeys(_symbols(index, site, types)))
    _join_families(index)
    index.typed.modules.clear()
    return index


def _drop_inherited(index: Index) -> None:
    """`self.x = …` in a subclass defines nothing where a base class declares `x`."""
    for symbol, definition in list(index.definitions.items()):
        owner, _, name = symbol.rpartition(".")
        record = index.typed.classes.get(owner)
        if definition.kind == "attribute" and record is not None and name not in record.names:
            del index.definitions[symbol]


def _symbols(index: Index, site: Site, types: ModuleTypes) -> Iterator[str]:
    """Yield the definitions a site may refer to: as its syntax tells, else as mypy tells."""
    if site.kind in ("name", "definition", "import", "imported"):
        yield from filter(None, (index.canonical(bound.partition("=")[0]) for bound in site.symbols))
        return
    plain = list(_plain_symbols(index, site))
    if plain:
        yield from plain
        return
    key = site.key
    if site.kind == "keyword":
        typed = types.keywords.get(
            (key, site.name), () if site.chain and index.walk(site.scope, site.chain) else (UNKNOWN,)
        )
    else:
        typed = (types.attributes if site.kind == "attribute" else types.strings).get(key, (UNKNOWN,))
    ours = [symbol for symbol in typed if symbol in index.definitions]
    if ours:
        yield from ours
    elif UNKNOWN in typed and not index.is_foreign(site):
        yield UNKNOWN


def _plain_symbols(index: Index, site: Site) -> Iterator[str]:
    """Yield what an attribute or keyword refers to where its class or module is plain to see."""
    if site.class_id:
        record = index.typed.classes.get(site.class_id.removeprefix("super:"))
        is_super = site.class_id.startswith("super:")
        owners = (record.bases if record else ()) if is_super else (site.class_id,)
        yield from [member for owner in owners if (member := index.member(owner, site.name))][:1]
    elif site.chain:
        reach = index.parameter if site.kind == "keyword" else index.attribute
        yield from filter(None, (reach(symbol, site.name) for symbol in index.walk(site.scope, site.chain)))


def _join_families(index: Index) -> None:
    """Find the definitions that only make sense under one name."""
    for class_id, record in index.typed.classes.items():
        for name in record.names:
            symbol = f"{class_id}.{name}"
            for base in record.bases:
                if name in index.typed.classes.get(base, _EMPTY).names and name not in CONSTRUCTORS:
                    index.join(symbol, f"{base}.{name}")
    for class_id, protocol in index.typed.implementers:
        _join_implementer(index, class_id, protocol)
    for class_id, record in index.typed.classes.items():
        for name in record.names & record.foreign_names:
            index.foreign.add(f"{class_id}.{name}")
    for file in index.files.values():
        _join_stand_ins(index, file)
    _join_arguments(index)
    _join_fixtures(index)


def _join_implementer(index: Index, class_id: str, protocol: str) -> None:
    """Join what a protocol and its bases declare with what the class has under these names."""
    for owner in (protocol, *index.typed.classes[protocol].bases):
        for name in index.typed.classes.get(owner, _EMPTY).names:
            implementation, declared = index.member(class_id, name), index.member(protocol, name)
            if implementation and declared and name not in CONSTRUCTORS:
                index.join(implementation, declared)


def _join_stand_ins(index: Index, file: SourceFile) -> None:
    """Where one branch imports a name and another defines it, both keep one name."""
    for name, bound in file.scope.bindings.items():
        own = f"{file.module}.{name}"
        for other in bound if own in bound else ():
            symbol = index.canonical(other.partition("=")[2] or other)
            if symbol is None:
                index.foreign.add(own)
            elif symbol != own:
                index.join(own, symbol)


def _join_arguments(index: Index) -> None:
    """Arguments of the same name belong together in all overrides of a method."""
    groups: dict[tuple[str, str], list[str]] = defaultdict(list)
    for symbol, definition in index.definitions.items():
        if definition.kind == "argument" and definition.name not in ("self", "cls"):
            function = symbol.rpartition(".<arg>")[0]
            if index.family(function) != function or function in index.families.values():
                groups[index.family(function), definition.name].append(symbol)
    for symbols in groups.values():
        for symbol in symbols[1:]:
            index.join(symbols[0], symbol)


def _join_fixtures(index: Index) -> None:
    """An argument of a test is the fixture of its name: of the module, of what it imports, or of a conftest above."""
    for file in index.files.values():
        for function in file.tests:
            definition = index.definitions[function]
            for name in definition.arguments:
                fixture = find_fixture(index, file, name)
                if fixture and fixture != function:
                    index.join(f"{function}.<arg>{name}", fixture)
                elif fixture:
                    above = find_fixture(index, file, name, own=False)
                    if above:
                        index.join(f"{function}.<arg>{name}", above)


def find_fixture(index: Index, file: SourceFile, name: str, *, own: bool = True) -> str | None:
    """Return the fixture that pytest gives for `name` in this module."""
    if own:
        if name in file.fixtures:
            return file.fixtures[name]
        for bound in file.scope.bindings.get(name, []):
            symbol = index.canonical(bound.partition("=")[2] or bound)
            if symbol in index.definitions and any("fixture" in word for word in index.definitions[symbol].decorators):
                return symbol
    for folder in Path(file.path).parents:
        path = str(folder / "conftest.py")
        if path in index.files and path != file.path:
            symbol = find_fixture(index, index.files[path], name)
            if symbol:
                return symbol
    return None


def _hashes(root: Path) -> dict[str, str]:
    paths = [path for folder in FOLDERS for path in (root / folder).rglob("*.py")]
    return {str(path.relative_to(root)): hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(paths)}


_EMPTY = ClassRecord((), frozenset(), frozenset(), is_protocol=False)
