"""Positions and names of one Python file, by its syntax alone: scopes, bindings, references, attributes, keywords.

Types are not known at this stage; `types.py` adds what needs them and `index.py` links both.
"""

import ast
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

Function = ast.FunctionDef | ast.AsyncFunctionDef
Position = tuple[int, int]
"""Line (from 1) and column (in bytes, from 0)."""
Span = tuple[int, int, int, int]
DECLARING_CALLS = ("TypeVar", "ParamSpec", "TypeVarTuple", "NewType", "NamedTuple", "namedtuple", "TypedDict")
BY_NAME = {"getattr", "setattr", "hasattr", "delattr", "attrgetter", "methodcaller", "object"}
"""Functions whose second argument (of the two `operator` ones: the first) names an attribute."""


@dataclass(slots=True)
class Scope:
    """One scope of names; `id` starts the full name of what is bound in it."""

    id: str
    kind: str  # module, class, function, or inner (comprehension or lambda)
    parent: "Scope | None"
    bindings: dict[str, list[str]] = field(default_factory=dict)
    outer_names: set[str] = field(default_factory=set)
    """Names that `global` or `nonlocal` sends elsewhere, as `global:name` or `nonlocal:name`."""

    def bind(self, name: str, symbol: str) -> None:
        """Add a symbol that `name` can stand for in this scope."""
        symbols = self.bindings.setdefault(name, [])
        if symbol not in symbols:
            symbols.append(symbol)

    def owner(self, name: str) -> "Scope | None":
        """Return the scope that Python reads `name` from, or None for a builtin."""
        scope: Scope | None = self
        while scope is not None:
            if f"global:{name}" in scope.outer_names:
                while scope.parent is not None:
                    scope = scope.parent
                return scope if name in scope.bindings else None
            if name in scope.bindings and (scope is self or scope.kind != "class"):
                return scope
            scope = scope.parent
        return None


@dataclass(slots=True)
class Site:
    """One place where a name is written, and what it may refer to once it is linked."""

    line: int
    column: int
    name: str
    kind: str  # name, definition, attribute, keyword, string, import, imported (under another name)
    scope: Scope
    symbols: tuple[str, ...] = ()
    chain: tuple[str, tuple[str, ...]] | None = None
    """Attributes and keywords on a plain chain: the root name and the attributes between."""
    key: Position = (0, 0)
    """Where mypy has the result: the end of the expression, as the start is not exact in f-strings."""
    class_id: str = ""
    """The class whose instance (`self.`), or whose bases (`super().`), an attribute is read from."""
    regions: tuple[tuple[Scope, int], ...] = ()


@dataclass(slots=True)
class Definition:
    """A name that can be renamed: where it is bound first, and what a reader of a list needs to know."""

    symbol: str
    name: str
    kind: str  # class, function, method, argument, attribute, constant, local
    path: str
    line: int
    signature: str = ""
    summary: str = ""
    decorators: tuple[str, ...] = ()
    arguments: tuple[str, ...] = ()
    end_line: int = 0
    """The last line of a function or class."""


@dataclass(slots=True)
class Import:
    """One import statement, or one module of `import a, b`: its span, the module, and (name, alias) pairs of `from`."""

    span: Span
    module: str
    column: int
    """Where the dotted name starts, on the first line of the span."""
    names: tuple[tuple[str, str], ...] = ()


@dataclass(slots=True)
class Text:
    """A string literal, for dotted paths and for names that are written as text."""

    line: int
    column: int
    end_line: int
    end_column: int
    value: str
    function: str = ""
    """The function whose decorator names its arguments in this text (pytest's and ours)."""


@dataclass(slots=True)
class SourceFile:
    """Everything the syntax of one file says about names."""

    path: str
    module: str
    package: bool
    scope: Scope
    text: str
    sites: list[Site] = field(default_factory=list)
    definitions: dict[str, Definition] = field(default_factory=dict)
    imports: list[Import] = field(default_factory=list)
    texts: list[Text] = field(default_factory=list)
    classes: dict[tuple[str, int], str] = field(default_factory=dict)
    """Classes by name and line, for those that mypy names by their line."""
    fixtures: dict[str, str] = field(default_factory=dict)
    """Pytest fixtures of the module: name and symbol."""
    tests: list[str] = field(default_factory=list)
    """Functions that pytest calls (tests and fixtures), whose arguments are fixtures."""


def read_source(path: str, module: str, text: str) -> SourceFile:
    """Parse a file and collect every name in it."""
    package = path.endswith("__init__.py")
    source = SourceFile(path, module, package, Scope(module, "module", None), text)
    _Reader(source, text).read()
    return source


class _Reader(ast.NodeVisitor):
    def __init__(self, source: SourceFile, text: str) -> None:
        self.source, self.text = source, text
        self.lines = text.encode().split(b"\n")
        self.scope = source.scope
        self.class_id = ""
        self.self_name = ""
        self.regions: tuple[tuple[Scope, int, frozenset[str]], ...] = ()
        self.function = ""
        self.is_docstring: set[int] = set()
        self.decorated = ""

    def read(self) -> None:
        tree = ast.parse(self.text)
        self._read_body(tree)
        for statement in tree.body:
            self.visit(statement)
        _resolve_names(self.source)

    # -- scopes -----------------------------------------------------------------------------------------------------

    def visit_FunctionDef(self, node: Function) -> None:
        outer = self.scope
        symbol = self._bind_definition(node, "method" if outer.kind == "class" else "function")
        self._visit_decorators(node, symbol)
        self._visit_defaults(node.args)
        scope = Scope(symbol, "function", outer)
        before = self.class_id, self.self_name, self.function, self.regions
        names = [argument.arg for argument in _arguments(node.args)]
        if outer.kind == "class":
            self.class_id, self.self_name = outer.id, names[0] if names and not _is_static(node) else ""
        elif self.self_name in names:
            self.self_name = ""
        self.function = symbol
        for argument in _arguments(node.args):
            self._bind_argument(scope, symbol, argument)
        self._annotate(node.returns)
        self.scope = scope
        self._read_body(node)
        for statement in node.body:
            self.visit(statement)
        self.scope = outer
        self.class_id, self.self_name, self.function, self.regions = before
        self._note_fixture(node, symbol)

    visit_AsyncFunctionDef = visit_FunctionDef  # noqa: N815 - the name is ast's

    def visit_Lambda(self, node: ast.Lambda) -> None:
        self._visit_defaults(node.args)
        outer, self.scope = self.scope, Scope(self._owner().id, "inner", self.scope)
        for argument in _arguments(node.args):
            self.scope.bind(argument.arg, "")
            self._site(argument.lineno, argument.col_offset, argument.arg, "definition")
        self.visit(node.body)
        self.scope = outer

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        symbol = self._bind_definition(node, "class")
        self._visit_decorators(node, symbol)
        for part in [*node.bases, *node.keywords]:
            self.visit(part)
        self.source.classes[node.name, node.lineno] = symbol
        for decorator in node.decorator_list:
            self.source.classes[node.name, decorator.lineno] = symbol
        before = self.scope, self.class_id, self.self_name
        self.scope = Scope(symbol, "class", self.scope)
        self._read_body(node)
        for statement in node.body:
            self.visit(statement)
        self.scope, self.class_id, self.self_name = before

    def _visit_comprehension(self, node: ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp) -> None:
        first = node.generators[0]
        self.visit(first.iter)
        outer, self.scope = self.scope, Scope(self._owner().id, "inner", self.scope)
        for generator in node.generators:
            self.visit(generator.target)
        for generator in node.generators:
            if generator is not first:
                self.visit(generator.iter)
            for condition in generator.ifs:
                self.visit(condition)
        for part in (node.key, node.value) if isinstance(node, ast.DictComp) else (node.elt,):
            self.visit(part)
        self.scope = outer

    visit_ListComp = visit_SetComp = visit_GeneratorExp = visit_DictComp = _visit_comprehension  # noqa: N815

    def _owner(self) -> Scope:
        scope = self.scope
        while scope.kind == "inner" and scope.parent is not None:
            scope = scope.parent
        return scope

    # -- bindings ---------------------------------------------------------------------------------------------------

    def _bind_definition(self, node: Function | ast.ClassDef, kind: str) -> str:
        symbol = f"{self.scope.id}.{node.name}"
        self.scope.bind(node.name, symbol)
        word = "class" if isinstance(node, ast.ClassDef) else "def"
        line, column = self._search(rf"{word}\s+({node.name})\b", node.lineno, node.col_offset)
        self._site(line, column, node.name, "definition")
        if symbol not in self.source.definitions:
            is_function = not isinstance(node, ast.ClassDef)
            doc = (ast.get_docstring(node) or "").partition("\n")[0]
            signature = ", ".join(ast.unparse(base) for base in getattr(node, "bases", ()))
            arguments: tuple[str, ...] = ()
            if is_function:
                returns = f" -> {ast.unparse(node.returns)}" if node.returns else ""
                signature = f"({ast.unparse(node.args)}){returns}"
                arguments = tuple(argument.arg for argument in _arguments(node.args))
            self.source.definitions[symbol] = Definition(
                symbol, node.name, kind, self.source.path, line, signature, doc,
                tuple(ast.unparse(decorator) for decorator in node.decorator_list), arguments, node.end_lineno or 0,
            )  # fmt: skip
        return symbol

    def _bind_argument(self, scope: Scope, function: str, argument: ast.arg) -> None:
        symbol = f"{function}.<arg>{argument.arg}"
        scope.bind(argument.arg, symbol)
        self._annotate(argument.annotation)
        outer, self.scope = self.scope, scope
        self._site(argument.lineno, argument.col_offset, argument.arg, "definition")
        self.scope = outer
        kind = f": {ast.unparse(argument.annotation)}" if argument.annotation else ""
        self._define(symbol, argument.arg, "argument", argument.lineno, kind)

    def _define(self, symbol: str, name: str, kind: str, line: int, signature: str = "") -> None:
        definition = Definition(symbol, name, kind, self.source.path, line, signature)
        self.source.definitions.setdefault(symbol, definition)

    def _bind_name(self, name: str, line: int, column: int, signature: str = "") -> None:
        scope = self.scope
        if f"global:{name}" in scope.outer_names or f"nonlocal:{name}" in scope.outer_names:
            self._site(line, column, name, "name")
            return
        if scope.kind in ("module", "class"):
            symbol = f"{scope.id}.{name}"
            self._define(symbol, name, "attribute" if scope.kind == "class" else "constant", line, signature)
        else:
            symbol = ""  # numbered at the end, when the regions of a local are known
        if name not in scope.bindings or symbol:
            scope.bind(name, symbol)
        self._site(line, column, name, "definition")

    def visit_Name(self, node: ast.Name) -> None:
        if isinstance(node.ctx, ast.Load):
            self._site(node.lineno, node.col_offset, node.id, "name")
        else:
            self._bind_name(node.id, node.lineno, node.col_offset)

    def visit_NamedExpr(self, node: ast.NamedExpr) -> None:
        inner, self.scope = self.scope, self._owner()
        self.visit(node.target)
        self.scope = inner
        self.visit(node.value)

    def visit_Global(self, node: ast.Global | ast.Nonlocal) -> None:
        word = "global" if isinstance(node, ast.Global) else "nonlocal"
        for name in node.names:
            self.scope.outer_names.add(f"{word}:{name}")
            if word == "global":
                self.source.scope.bind(name, f"{self.source.module}.{name}")
            line, column = self._search(rf"\b({name})\b", node.lineno, node.col_offset)
            self._site(line, column, name, "name")

    visit_Nonlocal = visit_Global  # noqa: N815

    def visit_ExceptHandler(self, node: ast.ExceptHandler) -> None:
        if node.type:
            self.visit(node.type)
        before = self.regions
        if node.name and node.type:
            self._enter_region({node.name})
            line, column = self._search(rf"\bas\s+({node.name})\b", node.type.end_lineno, node.type.end_col_offset)
            self._bind_name(node.name, line, column)
        for statement in node.body:
            self.visit(statement)
        self.regions = before

    def visit_MatchAs(self, node: ast.MatchAs | ast.MatchStar) -> None:
        if getattr(node, "pattern", None):
            self.visit(node.pattern)  # type: ignore[union-attr,arg-type]
        if node.name:
            self._bind_name(node.name, node.end_lineno or 0, (node.end_col_offset or 0) - len(node.name.encode()))

    visit_MatchStar = visit_MatchAs  # noqa: N815

    def visit_MatchMapping(self, node: ast.MatchMapping) -> None:
        self.generic_visit(node)
        if node.rest:
            line, column = self._search(rf"\*\*({node.rest})\b", node.lineno, node.col_offset)
            self._bind_name(node.rest, line, column)

    def visit_MatchClass(self, node: ast.MatchClass) -> None:
        self.visit(node.cls)
        for pattern in node.patterns:
            self.visit(pattern)
        position = node.cls.end_lineno or 0, node.cls.end_col_offset or 0
        for name, pattern in zip(node.kwd_attrs, node.kwd_patterns, strict=True):
            line, column = self._search(rf"\b({name})\s*=", *position)
            self._site(line, column, name, "keyword", chain=_chain(node.cls), key=_end(node.cls))
            self.visit(pattern)
            position = pattern.end_lineno or 0, pattern.end_col_offset or 0

    def visit_For(self, node: ast.For | ast.AsyncFor) -> None:
        self.visit(node.iter)
        before = self.regions
        self._enter_region(_bound_names(node.target))
        for part in [node.target, *node.body, *node.orelse]:
            self.visit(part)
        self.regions = before

    visit_AsyncFor = visit_For  # noqa: N815

    def visit_With(self, node: ast.With | ast.AsyncWith) -> None:
        before = self.regions
        for item in node.items:
            self.visit(item.context_expr)
            if item.optional_vars is not None:
                self._enter_region(_bound_names(item.optional_vars))
                self.visit(item.optional_vars)
        for statement in node.body:
            self.visit(statement)
        self.regions = before

    visit_AsyncWith = visit_With  # noqa: N815

    def _enter_region(self, names: set[str]) -> None:
        number = len(self.source.sites)
        self.regions = (*self.regions, (self._owner(), number, frozenset(names)))

    # -- imports ----------------------------------------------------------------------------------------------------

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            self.source.imports.append(Import(_span(alias), alias.name, alias.col_offset))
            if alias.asname:
                self._bind_alias(alias, f"module:{alias.name}")
            else:
                root = alias.name.partition(".")[0]
                self.scope.bind(root, f"module:{root}")

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        base = node.module or ""
        if node.level:
            parts = self.source.module.split(".")
            parts = parts[: len(parts) - node.level + self.source.package]
            base = ".".join([*parts, *([base] if base else [])])
        else:
            _, column = self._search(rf"from\s+({re.escape(base)})", node.lineno, node.col_offset)
            names = tuple((alias.name, alias.asname or "") for alias in node.names)
            self.source.imports.append(Import(_span(node), base, column, names))
        for alias in node.names:
            target = f"{base}.{alias.name}"
            if alias.asname:
                self._site(alias.lineno, alias.col_offset, alias.name, "imported", symbols=(target,))
                self._bind_alias(alias, target)
            else:
                self.scope.bind(alias.name, target)
                self._site(alias.lineno, alias.col_offset, alias.name, "import", symbols=(target,))

    def _bind_alias(self, alias: ast.alias, target: str) -> None:
        name = alias.asname or ""
        column = (alias.end_col_offset or 0) - len(name.encode())
        if name == alias.name:
            self.scope.bind(name, target)
            self._site(alias.end_lineno or 0, column, name, "import", symbols=(target,))
            return
        symbol = f"{self._owner().id}.<alias>{name}"
        self.scope.bind(name, f"{symbol}={target}")
        self._site(alias.end_lineno or 0, column, name, "definition")
        self._define(symbol, name, "alias", alias.lineno, f" of {target}")

    # -- references -------------------------------------------------------------------------------------------------

    def visit_Attribute(self, node: ast.Attribute) -> None:
        column = (node.end_col_offset or 0) - len(node.attr.encode())
        class_id = ""
        if isinstance(node.value, ast.Name) and node.value.id == self.self_name and self.class_id:
            class_id = self.class_id
            if isinstance(node.ctx, ast.Store):
                self._define(f"{class_id}.{node.attr}", node.attr, "attribute", node.lineno)
        elif isinstance(node.value, ast.Call) and isinstance(node.value.func, ast.Name):
            class_id = f"super:{self.class_id}" if node.value.func.id == "super" and not node.value.args else ""
        chain = _chain(node.value)
        self._site(node.end_lineno or 0, column, node.attr, "attribute", chain=chain, key=_end(node), class_id=class_id)
        self.visit(node.value)

    def visit_Call(self, node: ast.Call) -> None:
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        self.visit(node.func)
        if name == "cast" and node.args:
            self._annotate(node.args[0])
            rest = node.args[1:]
        else:
            rest = node.args
        for argument in rest:
            self.visit(argument)
        for keyword in node.keywords:
            if keyword.arg:
                self._site(
                    keyword.lineno, keyword.col_offset, keyword.arg, "keyword", chain=_chain(node.func),
                    key=_end(node),
                )  # fmt: skip
            self.visit(keyword.value)
        self._read_names_in_strings(node, name)

    def _read_names_in_strings(self, node: ast.Call, function: str) -> None:
        place = 0 if function in ("attrgetter", "methodcaller") else 1
        if function not in BY_NAME or len(node.args) <= place:
            return
        text = node.args[place]
        if isinstance(text, ast.Constant) and isinstance(text.value, str) and text.value.isidentifier():
            chain = _chain(node.args[0]) if place else None
            start = self._inside(text)
            if start:
                self._site(*start, text.value, "string", chain=chain, key=_end(text))

    def _site(self, line: int, column: int, name: str, kind: str, **more: object) -> None:
        if self.lines[line - 1][column : column + len(name.encode())] != name.encode():
            raise ValueError(f"{self.source.path}:{line}:{column}: expected {name!r}; the positions of ast do not fit")
        regions = tuple((scope, number) for scope, number, names in self.regions if name in names)
        self.source.sites.append(Site(line, column, name, kind, self.scope, regions=regions, **more))  # type: ignore[arg-type]

    # -- annotations and strings ------------------------------------------------------------------------------------

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        self._annotate(node.annotation)
        if isinstance(node.target, ast.Name):
            name, kind = node.target.id, f": {ast.unparse(node.annotation)}"
            self._bind_name(name, node.target.lineno, node.target.col_offset, kind)
        else:
            self.visit(node.target)
        if node.value:
            self.visit(node.value)

    def _annotate(self, node: ast.AST | None) -> None:
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            self._read_text_as_type(node)
        elif isinstance(node, ast.Subscript):
            name = node.value.attr if isinstance(node.value, ast.Attribute) else getattr(node.value, "id", "")
            self.visit(node.value)
            if name == "Annotated" and isinstance(node.slice, ast.Tuple):
                self._annotate(node.slice.elts[0])
                for part in node.slice.elts[1:]:
                    self.visit(part)
            elif name == "Literal":
                self.visit(node.slice)
            else:
                self._annotate(node.slice)
        elif isinstance(node, (ast.Tuple, ast.List, ast.BinOp)):
            for part in ast.iter_child_nodes(node):
                self._annotate(part)
        elif node is not None:
            self.visit(node)

    def _read_text_as_type(self, node: ast.Constant) -> None:
        start = self._inside(node)
        if start is None:
            return
        try:
            tree = ast.parse(node.value, mode="eval")
        except SyntaxError:
            return
        for part in ast.walk(tree):
            if hasattr(part, "lineno"):
                part.lineno, part.end_lineno = start[0], start[0]
                part.col_offset += start[1]
                part.end_col_offset += start[1]  # type: ignore[attr-defined]
        self._annotate(tree.body)

    def _inside(self, node: ast.Constant) -> Position | None:
        """Return where the text between the quotes starts, if it is written on one line without escapes."""
        line = self.lines[node.lineno - 1]
        match = re.compile(rb"[rRuU]?(\"\"\"|'''|\"|')").match(line, node.col_offset)
        value = node.value.encode()
        if match is None or line[match.end() : match.end() + len(value)] != value:
            return None
        return node.lineno, match.end()

    def visit_Constant(self, node: ast.Constant) -> None:
        if isinstance(node.value, str) and node.value and id(node) not in self.is_docstring:
            self.source.texts.append(Text(*_span(node), node.value, self.decorated))

    def visit_Assign(self, node: ast.Assign) -> None:
        name = getattr(node.targets[0], "id", "")
        if name in ("__all__", "__slots__", "__match_args__") and isinstance(node.value, (ast.List, ast.Tuple)):
            for element in node.value.elts:
                if isinstance(element, ast.Constant) and (start := self._inside(element)):
                    if name == "__all__":
                        self._site(*start, element.value, "name")
                    else:
                        self._site(*start, element.value, "attribute", class_id=self.scope.id)
        for target in node.targets:
            self.visit(target)
        self.visit(node.value)
        self._read_declared_name(node)

    def _read_declared_name(self, node: ast.Assign) -> None:
        """The text in `T = TypeVar("T")` is the name once more."""
        call, target = node.value, node.targets[0]
        declares = isinstance(call, ast.Call) and ast.unparse(call.func).rpartition(".")[2] in DECLARING_CALLS
        if isinstance(call, ast.Call) and declares and call.args and isinstance(target, ast.Name):
            text = call.args[0]
            if isinstance(text, ast.Constant) and text.value == target.id and (start := self._inside(text)):
                self._site(*start, target.id, "name")

    def _visit_decorators(self, node: Function | ast.ClassDef, symbol: str) -> None:
        for decorator in node.decorator_list:
            name = ast.unparse(decorator.func).rpartition(".")[2] if isinstance(decorator, ast.Call) else ""
            if name in ("verb", "errand"):
                self.decorated = symbol
            self.visit(decorator)
            self.decorated = ""
            if name == "parametrize" and isinstance(decorator, ast.Call) and decorator.args:
                self._read_argument_names(decorator.args[0], symbol)

    def _read_argument_names(self, node: ast.AST, function: str) -> None:
        for part in ast.walk(node):
            if isinstance(part, ast.Constant) and isinstance(part.value, str):
                self.source.texts.append(Text(*_span(part), part.value, function))

    def _visit_defaults(self, arguments: ast.arguments) -> None:
        for default in [*arguments.defaults, *arguments.kw_defaults]:
            if default is not None:
                self.visit(default)

    def _read_body(self, node: ast.Module | Function | ast.ClassDef) -> None:
        first = node.body[0] if node.body else None
        if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
            self.is_docstring.add(id(first.value))

    def _note_fixture(self, node: Function, symbol: str) -> None:
        is_fixture = any("fixture" in ast.unparse(decorator) for decorator in node.decorator_list)
        if is_fixture:
            self.source.fixtures[node.name] = symbol
        if is_fixture or node.name.startswith("test_"):
            self.source.tests.append(symbol)

    def _search(self, pattern: str, line: int | None, column: int | None) -> Position:
        """Return where group 1 of the pattern starts, at or after a position."""
        compiled = re.compile(pattern.encode())
        number, start = line or 1, column or 0
        while number <= len(self.lines):
            match = compiled.search(self.lines[number - 1], start)
            if match:
                return number, match.start(1)
            number, start = number + 1, 0
        raise ValueError(f"{self.source.path}:{line}: {pattern!r} was not found")


def _resolve_names(source: SourceFile) -> None:
    """Give every plain name its symbol; a local of several loops or blocks that never meet becomes several symbols."""
    numbers: Counter[str] = Counter()
    assigned: dict[tuple[int, str, int], str] = {}
    unsplit = _unsplit(source)
    for site in source.sites:
        if site.symbols or site.kind in ("attribute", "keyword", "string", "imported"):
            continue
        owner = site.scope.owner(site.name)
        if owner is None:
            continue
        symbols = owner.bindings[site.name]
        if symbols != [""]:
            site.symbols = tuple(symbol for symbol in symbols if symbol)
            continue
        region = -1 if (id(owner), site.name) in unsplit else _region(site, owner)
        key = id(owner), site.name, region
        if key not in assigned:
            base = f"{owner.id}.<local>{site.name}"
            numbers[base] += 1
            assigned[key] = base if numbers[base] == 1 else f"{base}#{numbers[base]}"
            definition = Definition(assigned[key], site.name, "local", source.path, site.line)
            source.definitions[assigned[key]] = definition
        site.symbols = (assigned[key],)
    for (_, name, _), symbol in assigned.items():
        source.definitions[symbol].name = name


def _unsplit(source: SourceFile) -> set[tuple[int, str]]:
    """Locals that are also used outside the loops and blocks that bind them."""
    outside = set()
    for site in source.sites:
        if site.kind in ("name", "definition"):
            owner = site.scope.owner(site.name)
            if owner is not None and _region(site, owner) == -1:
                outside.add((id(owner), site.name))
    return outside


def _region(site: Site, owner: Scope) -> int:
    return next((number for scope, number in site.regions if scope is owner), -1)


def _arguments(arguments: ast.arguments) -> Iterator[ast.arg]:
    yield from [*arguments.posonlyargs, *arguments.args]
    if arguments.vararg:
        yield arguments.vararg
    yield from arguments.kwonlyargs
    if arguments.kwarg:
        yield arguments.kwarg


def _bound_names(target: ast.AST) -> set[str]:
    return {node.id for node in ast.walk(target) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}


def _chain(node: ast.AST) -> tuple[str, tuple[str, ...]] | None:
    attributes: list[str] = []
    while isinstance(node, ast.Attribute):
        attributes.append(node.attr)
        node = node.value
    return (node.id, tuple(reversed(attributes))) if isinstance(node, ast.Name) else None


def _end(node: ast.AST) -> Position:
    return _span(node)[2:]


def _span(node: ast.AST) -> Span:
    return node.lineno, node.col_offset, node.end_lineno, node.end_col_offset  # type: ignore[attr-defined]


def _is_static(node: Function) -> bool:
    return any(ast.unparse(decorator) == "staticmethod" for decorator in node.decorator_list)
