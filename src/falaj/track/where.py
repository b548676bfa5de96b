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

LONGEST, MOST_CLAUSES, MOST_VALUES, MOST_PIECES = 20_000, 64, 2_000, 64
_TOKEN = re.compile(
    r"""\s*(?:(?P<text>'(?:[^'\\]|\\.|'')*'|"(?:[^"\\]|\\.)*"|`[^`]*`)|(?P<sign><=|>=|!=|==|<>|=|<|>|!|\(|\)|,)
    |(?P<word>[^\s'"`<>=!(),]+)|(?P<end>$))""",
    re.VERBOSE | re.DOTALL,
)
_PLAIN = re.compile(r"[^\s'\"`<>=!(),]+")
_NUMBER = re.compile(r"-?[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]+)?", re.ASCII)
_SIGNS: Mapping[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq, "==": operator.eq, "!=": operator.ne, "<>": operator.ne,
    "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
}  # fmt: skip
_FAMILIES = {
    **dict.fromkeys(("metric", "metrics"), "metrics"),
    **dict.fromkeys(("param", "params", "parameter", "parameters"), "params"),
    **dict.fromkeys(("tag", "tags"), "tags"),
    **dict.fromkeys(("attribute", "attributes", "attr", "run"), "attributes"),
    **dict.fromkeys(("dataset", "datasets"), "datasets"),
}


class Seen(Protocol):
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


S = TypeVar("S", bound=Seen)
Column = tuple[str, str]
"""A family (metrics, params, tags, attributes) and a key of it."""
Look = Callable[[Any], Any]
Pick = Callable[[list[Any]], list[Any]]
"""One clause: those of some things for which it holds. A list at a time: there are many things and few clauses."""


@dataclass(frozen=True)
class Words:
    """What may be asked of one kind of thing: its attributes, which of them are numbers, and other names for them.

    A name that ends in a dot is one for a family; one of a tag says where the platform keeps what clients see as a tag.
    """

    attributes: frozenset[str]
    numbers: frozenset[str]
    names: tuple[tuple[str, str], ...] = ()
    families: frozenset[str] = frozenset({"tags", "attributes"})


RUNS = Words(
    frozenset({"run_id", "run_name", "status", "artifact_uri", "user_id", "start_time", "end_time", "experiment_id"}),
    frozenset({"start_time", "end_time"}),
    (
        ("name", "run_name"), ("run name", "run_name"), ("id", "run_id"), ("run id", "run_id"), ("user", "user_id"),
        ("created", "start_time"), ("started", "start_time"), ("ended", "end_time"),
        ("tags.mlflow.runName", "run_name"),
    ),
    frozenset({"metrics", "params", "tags", "attributes", "datasets"}),
)  # fmt: skip
EXPERIMENTS = Words(
    frozenset({"name", "experiment_id", "creation_time", "last_update_time"}),
    frozenset({"creation_time", "last_update_time"}),
    (("id", "experiment_id"), ("title", "name"), ("last_updated", "last_update_time")),
)


@lru_cache(maxsize=512)
def read_where(text: str, words: Words = RUNS) -> tuple[Pick, ...]:
    """The clauses, all of which must hold, or Invalid that says where the text goes wrong."""
    if len(text) > LONGEST:
        raise Invalid(f"a filter of {len(text)} characters", f"at most {LONGEST}")
    reader = _Reader(text, words)
    picks: list[Pick] = []
    if reader.at_end():
        return ()
    while True:
        picks.append(reader.clause())
        if reader.at_end():
            return tuple(picks)
        if len(picks) >= MOST_CLAUSES:
            raise Invalid(f"a filter of more than {MOST_CLAUSES} clauses", "ask in several questions")
        reader.word("AND")


@lru_cache(maxsize=512)
def read_order(order: tuple[str, ...], words: Words = RUNS) -> tuple[tuple[Look, bool], ...]:
    """(how to read what orders, True when the greatest comes first) of each clause."""
    found: list[tuple[Look, bool]] = []
    if len(order) > 32 or sum(map(len, order)) > LONGEST:
        raise Invalid(f"an order of {len(order)} parts", "at most 32")
    for text in order:
        reader = _Reader(text, words)
        family, key = reader.subject()
        way = "ASC" if reader.at_end() else reader.word("ASC", "DESC")
        if not reader.at_end():
            reader.wrong("one name and ASC or DESC")
        if family == "datasets":
            raise Invalid("runs cannot be ordered by their datasets", "order by metrics, params, tags or attributes")
        found.append((_look(family, key), way == "DESC"))
    return tuple(found)


@lru_cache(maxsize=512)
def read_columns(text: str, words: Words = RUNS) -> tuple[Column, ...]:
    """The columns of a table, as in: status, params.lr, metrics."valid loss"."""
    if len(text) > LONGEST:
        raise Invalid(f"columns of {len(text)} characters", f"at most {LONGEST}")
    reader = _Reader(text, words)
    found: dict[Column, None] = {}
    while not reader.at_end():
        column = reader.subject()
        if column[0] == "datasets":
            raise Invalid("the datasets of a run are no column", "choose metrics, params, tags or attributes")
        found[column] = None
        if not reader.at_end():
            reader.comma()
    return tuple(found)


def write_column(column: Column) -> str:
    """A column as it is written in filters and orders."""
    family, key = column
    if family == "attributes":
        return key
    return f"{family}.{key}" if _PLAIN.fullmatch(key) else f"{family}.{_quoted(key)}"


def select(things: list[S], picks: tuple[Pick, ...]) -> list[S]:
    """Those for which every clause holds."""
    for pick in picks:
        things = pick(things)
    return things


def arrange(things: list[S], order: tuple[tuple[Look, bool], ...]) -> list[S]:
    """In order; what has no such thing to order by comes last, and NaN before that. The last clause sorts first."""
    for look, descending in reversed(order):
        seen = [(look(thing), thing) for thing in things]
        # Only NaN differs from itself.
        known = [(value, thing) for value, thing in seen if value is not None and value == value]
        odd = [thing for value, thing in seen if value is not None and value != value]
        known.sort(key=operator.itemgetter(0), reverse=descending)
        things = [thing for _, thing in known] + odd + [thing for value, thing in seen if value is None]
    return things


class _Token(NamedTuple):
    kind: str
    text: str
    at: int


class _Reader:
    """One text, token by token."""

    def __init__(self, text: str, words: Words) -> None:
        self._text, self._words = text, words
        self._at = 0
        self._next = self._scan()

    def at_end(self) -> bool:
        return self._next.kind == "end"

    def word(self, *wanted: str) -> str:
        """One of these words, in any case."""
        token = self._take()
        if token.kind != "word" or token.text.upper() not in wanted:
            self.wrong(" or ".join(wanted), token)
        return token.text.upper()

    def comma(self) -> None:
        """Between two things of a list."""
        self._sign(",")

    def clause(self) -> Pick:
        """One comparison."""
        family, key = self.subject()
        number = family == "metrics" or (family == "attributes" and key in self._words.numbers)
        token = self._take()
        if token.kind == "sign" and token.text in _SIGNS:
            return self._compared(family, key, number, token)
        name = token.text.upper() if token.kind == "word" else ""
        if name == "IS":
            return self._null(_look(family, key))
        if number and name in ("LIKE", "ILIKE"):
            self.wrong("a sign that compares numbers", token)
        if name in ("LIKE", "ILIKE"):
            return _picking(family, key, _liking(self._string(), fold=name == "ILIKE"))
        negated = name == "NOT"
        if negated:
            name = self.word("IN")
        if name != "IN":
            self.wrong("a comparison: = != < <= > >= LIKE ILIKE IN IS", token)
        values = self._list(number)
        return _picking(family, key, lambda value: (value in values) is not negated)

    def subject(self) -> tuple[str, str]:
        """What a clause is about: the family and the key."""
        token = self._take()
        if token.kind == "text" and token.text[0] != "'":
            return "attributes", self._attribute(_unquoted(token.text), token)
        if token.kind != "word":
            self.wrong("a name, such as metrics.acc", token)
        head, dot, key = token.text.partition(".")
        names = dict(self._words.names)
        named = names.get(f"{head.lower()}.", "") if dot else ""
        family = named or _FAMILIES.get(head.lower()) if dot else "attributes"
        if family is None or (family not in self._words.families and not named):
            other = {name[:-1] for name in names if name.endswith(".")}
            self.wrong(f"a name that begins with {', '.join(sorted(self._words.families | other))}", token)
        if dot and not key:
            quoted = self._take()
            if quoted.kind != "text" or quoted.text[0] == "'" or quoted.at != token.at + len(token.text):
                self.wrong("a key after the dot, plain or in double quotes or backticks", quoted)
            key = _unquoted(quoted.text)
        if family == "attributes":
            return family, self._attribute(key if dot else token.text, token)
        if family == "datasets" and named:
            return family, f"{head.lower()}.{key}"  # several may go by one name, as several datasets do
        if family == "datasets" and key not in ("name", "digest", "context"):
            self.wrong("dataset.name, dataset.digest or dataset.context", token)
        known = names.get(f"{family}.{key}")
        return ("attributes", known) if known else (family, key)

    def wrong(self, wanted: str, token: _Token | None = None) -> NoReturn:
        """Say where the text goes wrong."""
        token = token or self._next
        found = f"{token.text[:40]!r}" if token.text else "the end"
        raise Invalid(f"at character {token.at + 1} of {self._text[:200]!r} stands {found}", f"expected {wanted}")

    def _attribute(self, key: str, token: _Token) -> str:
        known = dict(self._words.names).get(key.lower(), key)
        if known not in self._words.attributes:
            self.wrong(f"an attribute: {', '.join(sorted(self._words.attributes))}", token)
        return known

    def _compared(self, family: str, key: str, number: bool, sign: _Token) -> Pick:
        compare = _SIGNS[sign.text]
        if family == "datasets" and "." in key and sign.text not in ("=", "==", "!=", "<>"):
            least = self._number()
            return _picking(family, key, lambda value: _NUMBER.fullmatch(value) and compare(float(value), least))
        if not number and sign.text not in ("=", "==", "!=", "<>"):
            self.wrong("= or != or LIKE, since this is a text", sign)
        wanted = self._number() if number else self._string()
        if family == "metrics":  # the commonest ones, written out
            return lambda all_: [
                one for one in all_ if (value := one.metrics.get(key)) is not None and compare(value, wanted)
            ]
        if family == "params" and compare is operator.eq:
            return lambda all_: [one for one in all_ if one.params.get(key) == wanted]
        return _picking(family, key, lambda value: compare(value, wanted))

    def _null(self, look: Look) -> Pick:
        negated = self.word("NOT", "NULL") == "NOT"
        if negated:
            self.word("NULL")
        return lambda all_: [one for one in all_ if (look(one) in (None, ())) is not negated]

    def _list(self, number: bool) -> frozenset[Any]:
        self._sign("(")
        found: set[Any] = set()
        while True:
            found.add(self._number() if number else self._string())
            if len(found) > MOST_VALUES:
                raise Invalid(f"a list of more than {MOST_VALUES} values", "ask in several questions")
            if self._sign(",", ")") == ")":
                return frozenset(found)

    def _sign(self, *wanted: str) -> str:
        token = self._take()
        if token.kind != "sign" or token.text not in wanted:
            self.wrong(" or ".join(wanted), token)
        return token.text

    def _number(self) -> float:
        token = self._take()
        try:
            return float(_unquoted(token.text) if token.kind == "text" and token.text[0] != "`" else token.text)
        except ValueError:
            self.wrong("a number", token)

    def _string(self) -> str:
        token = self._take()
        if token.kind != "text" or token.text[0] == "`":
            self.wrong("a text in quotes", token)
        return _unquoted(token.text)

    def _take(self) -> _Token:
        token = self._next
        if token.kind != "end":
            self._next = self._scan()
        return token

    def _scan(self) -> _Token:
        match = _TOKEN.match(self._text, self._at)
        if match is None:
            rest = self._text[self._at :].lstrip()
            at = len(self._text) - len(rest)
            raise Invalid(f"at character {at + 1} of {self._text[:200]!r} a quote is not closed", "close it")
        kind = match.lastgroup or "end"
        self._at = match.end()
        return _Token(kind, match[kind], match.start(kind))


def _unquoted(text: str) -> str:
    inside = text[1:-1]
    if text[0] == "`":
        return inside
    if text[0] == "'":
        inside = inside.replace("''", "'")
    return re.sub(r"\\(['\"\\])", r"\1", inside)


def _quoted(key: str) -> str:
    escaped = key.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _look(family: str, key: str) -> Look:
    if family == "datasets":
        return lambda seen: tuple(one[key] for one in seen.datasets if key in one)
    table = operator.attrgetter(family)
    return lambda seen: table(seen).get(key)


def _picking(family: str, key: str, holds: Callable[[Any], Any]) -> Pick:
    """What has such a thing and for which it holds; of datasets, for any one of them."""
    look = _look(family, key)
    if family == "datasets":
        return lambda all_: [one for one in all_ if any(map(holds, look(one)))]
    return lambda all_: [one for one in all_ if (value := look(one)) is not None and holds(value)]


def _liking(pattern: str, *, fold: bool) -> Callable[[str], bool]:
    """LIKE: % is any run of characters and _ any one. Read piece by piece, so that no pattern takes long."""
    flags = re.DOTALL | (re.IGNORECASE if fold else 0)
    parts = pattern.split("%")
    if len(parts) > MOST_PIECES:
        raise Invalid(f"a pattern with {len(parts) - 1} times %", f"fewer than {MOST_PIECES}")
    pieces = [re.compile("".join("." if c == "_" else re.escape(c) for c in part), flags) for part in parts]

    def holds(text: str) -> bool:
        if len(pieces) == 1:
            return pieces[0].fullmatch(text) is not None
        first, last = pieces[0].match(text), len(text) - len(parts[-1])
        if first is None:
            return False
        at = first.end()
        for piece in pieces[1:-1]:
            found = piece.search(text, at)
            if found is None:
                return False
            at = found.end()
        return at <= last and pieces[-1].match(text, last) is not None

    return holds
