"""The search language that MLflow's clients speak, read strictly: filters and orders over runs and experiments. Pure.

    metrics.acc > 0.9 and params."model type" = 'tree' and tags.mlflow.user ILIKE '%amal%'
    attributes.status IN ('RUNNING', 'FINISHED') and start_time > 1735689600000 and params.lr IS NOT NULL

Clauses are joined by AND only. A clause about something that a run does not have is false, also with != and NOT IN.
"""

import operator
import re
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple, NoReturn, Protocol, TypeVar

from falaj.core.data import dataclass
from falaj.core.errors import Invalid

MAX_TEXT_CHARS, MAX_CLAUSES, MAX_LIST_VALUES, MAX_PATTERN_PIECES = 20_000, 64, 2_000, 64
_TOKEN_PATTERN = re.compile(
    r"""\s*(?:(?P<text>'(?:[^'\\]|\\.|'')*'|"(?:[^"\\]|\\.)*"|`[^`]*`)|(?P<sign><=|>=|!=|==|<>|=|<|>|!|\(|\)|,)
    |(?P<word>[^\s'"`<>=!(),]+)|(?P<end>$))""",
    re.VERBOSE | re.DOTALL,
)
_PLAIN_KEY_PATTERN = re.compile(r"[^\s'\"`<>=!(),]+")
_NUMBER_PATTERN = re.compile(r"-?[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]+)?", re.ASCII)
_COMPARISONS: Mapping[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq, "==": operator.eq, "!=": operator.ne, "<>": operator.ne,
    "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
}  # fmt: skip
_FAMILY_NAMES = {
    **dict.fromkeys(("metric", "metrics"), "metrics"),
    **dict.fromkeys(("param", "params", "parameter", "parameters"), "params"),
    **dict.fromkeys(("tag", "tags"), "tags"),
    **dict.fromkeys(("attribute", "attributes", "attr", "run"), "attributes"),
    **dict.fromkeys(("dataset", "datasets"), "datasets"),
}


class SearchableItem(Protocol):
    """What a filter looks at."""

    @property
    def metrics(self) -> Mapping[str, float]: ...
    @property
    def params(self) -> Mapping[str, str]: ...
    @property
    def tags(self) -> Mapping[str, str]: ...
    @property
    def attributes(self) -> Mapping[str, Any]: ...
    @property
    def datasets(self) -> Sequence[Mapping[str, str]]: ...


ItemT = TypeVar("ItemT", bound=SearchableItem)
TableColumn = tuple[str, str]
"""A family (metrics, params, tags, attributes) and a key of it."""
ReadValue = Callable[[Any], Any]
FilterItems = Callable[[list[Any]], list[Any]]
"""One clause: those of some things for which it holds. A list at a time: there are many things and few clauses."""


@dataclass(frozen=True)
class SearchVocabulary:
    """What may be asked of one kind of thing: its attributes, which of them are numbers, and other names for them.

    A name that ends in a dot is one for a family; one of a tag says where the platform keeps what clients see as a tag.
    """

    attributes: frozenset[str]
    numbers: frozenset[str]
    names: tuple[tuple[str, str], ...] = ()
    families: frozenset[str] = frozenset({"tags", "attributes"})


RUN_VOCABULARY = SearchVocabulary(
    frozenset({"run_id", "run_name", "status", "artifact_uri", "user_id", "start_time", "end_time", "experiment_id"}),
    frozenset({"start_time", "end_time"}),
    (
        ("name", "run_name"), ("run name", "run_name"), ("id", "run_id"), ("run id", "run_id"), ("user", "user_id"),
        ("created", "start_time"), ("started", "start_time"), ("ended", "end_time"),
        ("tags.mlflow.runName", "run_name"),
    ),
    frozenset({"metrics", "params", "tags", "attributes", "datasets"}),
)  # fmt: skip
EXPERIMENT_VOCABULARY = SearchVocabulary(
    frozenset({"name", "experiment_id", "creation_time", "last_update_time"}),
    frozenset({"creation_time", "last_update_time"}),
    (("id", "experiment_id"), ("title", "name"), ("last_updated", "last_update_time")),
)


@lru_cache(maxsize=512)
def parse_filter(text: str, vocabulary: SearchVocabulary = RUN_VOCABULARY) -> tuple[FilterItems, ...]:
    """The clauses, all of which must hold, or Invalid that says where the text goes wrong."""
    if len(text) > MAX_TEXT_CHARS:
        raise Invalid(f"a filter of {len(text)} characters", f"at most {MAX_TEXT_CHARS}")
    reader = _SearchParser(text, vocabulary)
    filters: list[FilterItems] = []
    if reader.at_end():
        return ()
    while True:
        filters.append(reader.clause())
        if reader.at_end():
            return tuple(filters)
        if len(filters) >= MAX_CLAUSES:
            raise Invalid(f"a filter of more than {MAX_CLAUSES} clauses", "ask in several questions")
        reader.word("AND")


@lru_cache(maxsize=512)
def parse_order(
    order: tuple[str, ...], vocabulary: SearchVocabulary = RUN_VOCABULARY
) -> tuple[tuple[ReadValue, bool], ...]:
    """(how to read what orders, True when the greatest comes first) of each clause."""
    orders: list[tuple[ReadValue, bool]] = []
    if len(order) > 32 or sum(map(len, order)) > MAX_TEXT_CHARS:
        raise Invalid(f"an order of {len(order)} parts", "at most 32")
    for text in order:
        reader = _SearchParser(text, vocabulary)
        family, key = reader.subject()
        direction = "ASC" if reader.at_end() else reader.word("ASC", "DESC")
        if not reader.at_end():
            reader.wrong("one name and ASC or DESC")
        if family == "datasets":
            raise Invalid("runs cannot be ordered by their datasets", "order by metrics, params, tags or attributes")
        orders.append((_create_reader(family, key), direction == "DESC"))
    return tuple(orders)


@lru_cache(maxsize=512)
def parse_columns(text: str, vocabulary: SearchVocabulary = RUN_VOCABULARY) -> tuple[TableColumn, ...]:
    """The columns of a table, as in: status, params.lr, metrics."valid loss"."""
    if len(text) > MAX_TEXT_CHARS:
        raise Invalid(f"columns of {len(text)} characters", f"at most {MAX_TEXT_CHARS}")
    reader = _SearchParser(text, vocabulary)
    columns: dict[TableColumn, None] = {}
    while not reader.at_end():
        column = reader.subject()
        if column[0] == "datasets":
            raise Invalid("the datasets of a run are no column", "choose metrics, params, tags or attributes")
        columns[column] = None
        if not reader.at_end():
            reader.comma()
    return tuple(columns)


def format_column(column: TableColumn) -> str:
    """A column as it is written in filters and orders."""
    family, key = column
    if family == "attributes":
        return key
    return f"{family}.{key}" if _PLAIN_KEY_PATTERN.fullmatch(key) else f"{family}.{_quote_key(key)}"


def apply_filters(items: list[ItemT], filters: tuple[FilterItems, ...]) -> list[ItemT]:
    """Those for which every clause holds."""
    for filter_clause in filters:
        items = filter_clause(items)
    return items


def sort_items(items: list[ItemT], order: tuple[tuple[ReadValue, bool], ...]) -> list[ItemT]:
    """In order; what has no such thing to order by comes last, and NaN before that. The last clause sorts first."""
    for read_value, descending in reversed(order):
        value_and_item = [(read_value(item), item) for item in items]
        # Only NaN differs from itself.
        comparable = [(value, item) for value, item in value_and_item if value is not None and value == value]
        nan_items = [item for value, item in value_and_item if value is not None and value != value]
        comparable.sort(key=operator.itemgetter(0), reverse=descending)
        items = [item for _, item in comparable] + nan_items + [item for value, item in value_and_item if value is None]
    return items


class _SearchToken(NamedTuple):
    kind: str
    text: str
    at: int


class _SearchParser:
    """One text, token by token."""

    def __init__(self, text: str, vocabulary: SearchVocabulary) -> None:
        self._text, self._vocabulary = text, vocabulary
        self._position = 0
        self._next_token = self._scan_token()

    def at_end(self) -> bool:
        return self._next_token.kind == "end"

    def word(self, *expected_words: str) -> str:
        """One of these words, in any case."""
        token = self._take_token()
        if token.kind != "word" or token.text.upper() not in expected_words:
            self.wrong(" or ".join(expected_words), token)
        return token.text.upper()

    def comma(self) -> None:
        """Between two things of a list."""
        self._expect_sign(",")

    def clause(self) -> FilterItems:
        """One comparison."""
        family, key = self.subject()
        is_number = family == "metrics" or (family == "attributes" and key in self._vocabulary.numbers)
        token = self._take_token()
        if token.kind == "sign" and token.text in _COMPARISONS:
            return self._parse_comparison(family, key, is_number, token)
        name = token.text.upper() if token.kind == "word" else ""
        if name == "IS":
            return self._parse_null_check(_create_reader(family, key))
        if is_number and name in ("LIKE", "ILIKE"):
            self.wrong("a sign that compares numbers", token)
        if name in ("LIKE", "ILIKE"):
            return _create_filter(family, key, _create_like_match(self._expect_string(), ignores_case=name == "ILIKE"))
        is_negated = name == "NOT"
        if is_negated:
            name = self.word("IN")
        if name != "IN":
            self.wrong("a comparison: = != < <= > >= LIKE ILIKE IN IS", token)
        values = self._parse_list(is_number)
        return _create_filter(family, key, lambda value: (value in values) is not is_negated)

    def subject(self) -> tuple[str, str]:
        """What a clause is about: the family and the key."""
        token = self._take_token()
        if token.kind == "text" and token.text[0] != "'":
            return "attributes", self._resolve_attribute(_unquote_text(token.text), token)
        if token.kind != "word":
            self.wrong("a name, such as metrics.acc", token)
        family_text, dot, key = token.text.partition(".")
        names = dict(self._vocabulary.names)
        aliased_family = names.get(f"{family_text.lower()}.", "") if dot else ""
        family = aliased_family or _FAMILY_NAMES.get(family_text.lower()) if dot else "attributes"
        if family is None or (family not in self._vocabulary.families and not aliased_family):
            alias_families = {name[:-1] for name in names if name.endswith(".")}
            self.wrong(
                f"a name that begins with {', '.join(sorted(self._vocabulary.families | alias_families))}", token
            )
        if dot and not key:
            quoted_token = self._take_token()
            if (
                quoted_token.kind != "text"
                or quoted_token.text[0] == "'"
                or quoted_token.at != token.at + len(token.text)
            ):
                self.wrong("a key after the dot, plain or in double quotes or backticks", quoted_token)
            key = _unquote_text(quoted_token.text)
        if family == "attributes":
            return family, self._resolve_attribute(key if dot else token.text, token)
        if family == "datasets" and aliased_family:
            return family, f"{family_text.lower()}.{key}"  # several may go by one name, as several datasets do
        if family == "datasets" and key not in ("name", "digest", "context"):
            self.wrong("dataset.name, dataset.digest or dataset.context", token)
        aliased_attribute = names.get(f"{family}.{key}")
        return ("attributes", aliased_attribute) if aliased_attribute else (family, key)

    def wrong(self, expectation: str, token: _SearchToken | None = None) -> NoReturn:
        """Say where the text goes wrong."""
        token = token or self._next_token
        found_text = f"{token.text[:40]!r}" if token.text else "the end"
        raise Invalid(
            f"at character {token.at + 1} of {self._text[:200]!r} stands {found_text}", f"expected {expectation}"
        )

    def _resolve_attribute(self, key: str, token: _SearchToken) -> str:
        resolved = dict(self._vocabulary.names).get(key.lower(), key)
        if resolved not in self._vocabulary.attributes:
            self.wrong(f"an attribute: {', '.join(sorted(self._vocabulary.attributes))}", token)
        return resolved

    def _parse_comparison(self, family: str, key: str, is_number: bool, sign: _SearchToken) -> FilterItems:
        compare = _COMPARISONS[sign.text]
        if family == "datasets" and "." in key and sign.text not in ("=", "==", "!=", "<>"):
            compared_number = self._expect_number()
            return _create_filter(
                family, key, lambda value: _NUMBER_PATTERN.fullmatch(value) and compare(float(value), compared_number)
            )
        if not is_number and sign.text not in ("=", "==", "!=", "<>"):
            self.wrong("= or != or LIKE, since this is a text", sign)
        compared_value = self._expect_number() if is_number else self._expect_string()
        if family == "metrics":  # the commonest ones, written out
            return lambda items: [
                item
                for item in items
                if (value := item.metrics.get(key)) is not None and compare(value, compared_value)
            ]
        if family == "params" and compare is operator.eq:
            return lambda items: [item for item in items if item.params.get(key) == compared_value]
        return _create_filter(family, key, lambda value: compare(value, compared_value))

    def _parse_null_check(self, read_value: ReadValue) -> FilterItems:
        is_negated = self.word("NOT", "NULL") == "NOT"
        if is_negated:
            self.word("NULL")
        return lambda items: [item for item in items if (read_value(item) in (None, ())) is not is_negated]

    def _parse_list(self, is_number: bool) -> frozenset[Any]:
        self._expect_sign("(")
        values: set[Any] = set()
        while True:
            values.add(self._expect_number() if is_number else self._expect_string())
            if len(values) > MAX_LIST_VALUES:
                raise Invalid(f"a list of more than {MAX_LIST_VALUES} values", "ask in several questions")
            if self._expect_sign(",", ")") == ")":
                return frozenset(values)

    def _expect_sign(self, *expected_signs: str) -> str:
        token = self._take_token()
        if token.kind != "sign" or token.text not in expected_signs:
            self.wrong(" or ".join(expected_signs), token)
        return token.text

    def _expect_number(self) -> float:
        token = self._take_token()
        try:
            return float(_unquote_text(token.text) if token.kind == "text" and token.text[0] != "`" else token.text)
        except ValueError:
            self.wrong("a number", token)

    def _expect_string(self) -> str:
        token = self._take_token()
        if token.kind != "text" or token.text[0] == "`":
            self.wrong("a text in quotes", token)
        return _unquote_text(token.text)

    def _take_token(self) -> _SearchToken:
        token = self._next_token
        if token.kind != "end":
            self._next_token = self._scan_token()
        return token

    def _scan_token(self) -> _SearchToken:
        match = _TOKEN_PATTERN.match(self._text, self._position)
        if match is None:
            remaining = self._text[self._position :].lstrip()
            position = len(self._text) - len(remaining)
            raise Invalid(f"at character {position + 1} of {self._text[:200]!r} a quote is not closed", "close it")
        kind = match.lastgroup or "end"
        self._position = match.end()
        return _SearchToken(kind, match[kind], match.start(kind))


def _unquote_text(text: str) -> str:
    inside = text[1:-1]
    if text[0] == "`":
        return inside
    if text[0] == "'":
        inside = inside.replace("''", "'")
    return re.sub(r"\\(['\"\\])", r"\1", inside)


def _quote_key(key: str) -> str:
    escaped = key.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _create_reader(family: str, key: str) -> ReadValue:
    if family == "datasets":
        return lambda item: tuple(dataset[key] for dataset in item.datasets if key in dataset)
    table = operator.attrgetter(family)
    return lambda item: table(item).get(key)


def _create_filter(family: str, key: str, value_matches: Callable[[Any], Any]) -> FilterItems:
    """What has such a thing and for which it holds; of datasets, for any one of them."""
    read_value = _create_reader(family, key)
    if family == "datasets":
        return lambda items: [item for item in items if any(map(value_matches, read_value(item)))]
    return lambda items: [item for item in items if (value := read_value(item)) is not None and value_matches(value)]


def _create_like_match(pattern: str, *, ignores_case: bool) -> Callable[[str], bool]:
    """LIKE: % is any run of characters and _ any one. Read piece by piece, so that no pattern takes long."""
    flags = re.DOTALL | (re.IGNORECASE if ignores_case else 0)
    parts = pattern.split("%")
    if len(parts) > MAX_PATTERN_PIECES:
        raise Invalid(f"a pattern with {len(parts) - 1} times %", f"fewer than {MAX_PATTERN_PIECES}")
    pieces = [
        re.compile("".join("." if character == "_" else re.escape(character) for character in part), flags)
        for part in parts
    ]

    def matches_pattern(text: str) -> bool:
        if len(pieces) == 1:
            return pieces[0].fullmatch(text) is not None
        first_match, last_position = pieces[0].match(text), len(text) - len(parts[-1])
        if first_match is None:
            return False
        search_position = first_match.end()
        for piece in pieces[1:-1]:
            piece_match = piece.search(text, search_position)
            if piece_match is None:
                return False
            search_position = piece_match.end()
        return search_position <= last_position and pieces[-1].match(text, last_position) is not None

    return matches_pattern
