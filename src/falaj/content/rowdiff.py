"""Which rows and columns differ between two states of a table.

With a key, rows are matched by it, and a match that is not equal is a change. Rows under a key that occurs twice on a
side cannot be matched; they are compared as a multiset, as all rows are when there is no key. Null equals null, NaN
equals NaN, 0.0 equals -0.0, times with zones are compared as instants. A column whose type changed is compared in the
smallest type that holds both. Columns that only one side has do not make rows differ; where there are no others, all
rows were removed and all are new.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from falaj.content.duck import Duck, Relation, TableFiles, find_table, format_of, named, opened, parse_tables
from falaj.content.isolated_parser import answer_question
from falaj.content.tables import NUMBERS, TIMES, Seen, category_of, fields_of, measure, type_name
from falaj.core.errors import Invalid

SAMPLES = 5
HIDDEN = "(hidden)"
_SHOWN = 64
_ADDED, _REMOVED, _CHANGED = "had IS NULL", "has IS NULL", "had AND has"


@dataclass(frozen=True, slots=True)
class Retyped:
    """A column that is there on both sides with two types."""

    name: str
    before: str
    after: str


@dataclass(frozen=True, slots=True)
class StatisticShift:
    """A figure of a column that is not what it was."""

    column: str
    statistic: str
    before: str
    after: str


@dataclass(frozen=True, slots=True)
class RowSample:
    """One of the rows that differ. Values of personal and sensitive columns are hidden; null is absent."""

    how: str
    """added, removed, changed, or duplicate: a key that occurs more than once on one side."""
    before: Mapping[str, str] = field(default_factory=dict)
    after: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TableDiff:
    """What became of a table."""

    COLUMNS: ClassVar[tuple[str, ...]] = ("rows_before", "rows_after", "rows_added", "rows_removed", "rows_changed")

    rows_before: int
    rows_after: int
    rows_added: int
    rows_removed: int
    rows_changed: int = 0
    key: tuple[str, ...] = ()
    duplicate_keys: int = 0
    columns_added: tuple[str, ...] = ()
    columns_removed: tuple[str, ...] = ()
    columns_retyped: tuple[Retyped, ...] = ()
    columns_changed: Mapping[str, int] = field(default_factory=dict)
    """In how many of the changed rows each column differs."""
    statistics: tuple[StatisticShift, ...] = ()
    samples: tuple[RowSample, ...] = ()


@dataclass(frozen=True, slots=True)
class DiffQuestion:
    """What the child process is asked."""

    before: TableFiles | None
    after: TableFiles | None
    key: tuple[str, ...]
    categories: dict[str, str]


def diff_tables(
    before: Sequence[Path], after: Sequence[Path], key: Sequence[str] = (), categories: Mapping[str, str] | None = None
) -> TableDiff:
    """What changed between two sets of table files; `categories` names the columns whose values are not shown."""
    question = DiffQuestion(_files(before), _files(after), tuple(key), dict(categories or {}))
    if question.before is None and question.after is None:
        raise Invalid("there is no table on either side", "name Parquet, CSV, Arrow or JSON lines files")
    tables = (table for table in (question.before, question.after) if table is not None)
    return parse_tables(__name__, question, TableDiff, *tables)


def diff_files(question: DiffQuestion) -> TableDiff:
    """The same in this process, for those who are in a child already."""
    tables = [table for table in (question.before, question.after) if table is not None]
    with opened(*tables) as duck:
        left = _load(duck, "before_rows", question.before)
        right = _load(duck, "after_rows", question.after)
        return _Comparison(duck, left or right, right or left, question).result(left is None, right is None)  # type: ignore[arg-type]


def _files(paths: Iterable[Path]) -> TableFiles | None:
    found = [table for path in sorted(paths) if (table := find_table(path)) is not None]
    if len({table.format for table in found}) > 1:
        raise Invalid("one side of the comparison has tables of several kinds", "compare one table at a time")
    names = tuple(path for table in found for path in table.paths)
    return TableFiles(format_of(names[0]), names, sum(table.size_bytes for table in found)) if found else None


def _load(duck: Duck, name: str, files: TableFiles | None) -> Relation | None:
    """Parquet is read in place as often as needed; what is slow to parse, or can be read once only, is taken in."""
    if files is None:
        return None
    kind = "VIEW" if files.format == "parquet" else "TABLE"

    def take(relation: Relation) -> Relation:
        duck.make(f"{kind} {name}", f"FROM {relation.scan()}")
        return Relation(lambda: name, relation.columns)

    return duck.read(files, take)


@dataclass(frozen=True, slots=True)
class _Shared:
    """A column that both sides have, under a name of our own (`c0`, `c1`, …) and in a type that holds both."""

    at: str
    name: str
    sides: tuple[str, str]
    hidden: bool


class _Comparison:
    """Two relations side by side, and what is known of their difference so far."""

    def __init__(self, duck: Duck, before: Relation, after: Relation, question: DiffQuestion) -> None:
        self._duck = duck
        self._sides = (before, after)
        self._question = question
        found = {field.name.casefold() for side in self._sides for field in fields_of(side, {})}
        # Under which name the values of a declared column lie that neither side has, nobody can tell.
        self._veiled = any(name.casefold() not in found for name in question.categories)
        self._names = [{name.casefold(): (name, kind) for name, kind in side.columns} for side in self._sides]
        both = [key for key in self._names[0] if key in self._names[1]]
        self._shared = [self._share(f"c{number}", key) for number, key in enumerate(both)]
        self._key = self._key_columns(question.key)
        self._rest = [column for column in self._shared if column not in self._key]

    def result(self, nothing_before: bool, nothing_after: bool) -> TableDiff:
        """Compare. A side without files is an empty table of the other's columns."""
        for side, empty in enumerate((nothing_before, nothing_after)):
            columns = ", ".join(column.sides[side] for column in self._shared) or f"{side} AS nothing"
            limit = "LIMIT 0" if empty else ""
            self._duck.make(f"VIEW side{side}", f"FROM {self._sides[side].scan()} SELECT {columns} {limit}")
        rows = [self._count(f"side{side}") for side in (0, 1)]
        self._pair()
        added, removed, changed = self._totals()
        return TableDiff(
            rows[0],
            rows[1],
            added,
            removed,
            changed,
            tuple(column.name for column in self._key),
            self._count("twice") if self._key else 0,
            tuple(name for key, (name, _) in self._names[1].items() if key not in self._names[0]),
            tuple(name for key, (name, _) in self._names[0].items() if key not in self._names[1]),
            tuple(self._retyped()),
            self._changed_columns() if changed else {},
            tuple(self._shifts(nothing_before, nothing_after)),
            tuple(self._samples()),
        )

    def _share(self, at: str, key: str) -> _Shared:
        (name, left), (_, right) = self._names[0][key], self._names[1][key]
        kind = str(left)
        if kind != str(right):
            comparable = any({left.id, right.id} <= family for family in (NUMBERS, TIMES))
            kind = self._common(kind, str(right)) if comparable else "VARCHAR"
        sides = tuple(f"CAST({named(self._names[side][key][0])} AS {kind}) AS {at}" for side in (0, 1))
        return _Shared(at, name, (sides[0], sides[1]), self._is_hidden(name))

    def _common(self, left: str, right: str) -> str:
        return str(self._duck.types(f"SELECT NULL::{left} UNION ALL SELECT NULL::{right}")[0][1])

    def _is_hidden(self, name: str) -> bool:
        inside = any(declared.casefold().startswith(f"{name.casefold()}.") for declared in self._question.categories)
        return self._veiled or inside or bool(category_of(name, self._question.categories))

    def _key_columns(self, names: Sequence[str]) -> list[_Shared]:
        shared = {column.name.casefold(): column for column in self._shared}
        for name in names:
            if name.casefold() not in shared:
                raise Invalid(f"the key {name!r:.80} is not a column of both tables", "name columns that both have")
        return [shared[name.casefold()] for name in dict.fromkeys(names)]

    def _count(self, table: str) -> int:
        return int(self._duck.select(f"count(*) FROM {table}")[0][0])

    def _pair(self) -> None:
        """`twice`: keys that cannot be matched. `pairs`: rows matched and unequal, or without a match. `loose`: by how
        many more of each other row there are on the right."""
        loose = [f"FROM side{side}" for side in (0, 1)]
        if self._key:
            keys = ", ".join(column.at for column in self._key)
            same = " AND ".join(f"l.{column.at} IS NOT DISTINCT FROM r.{column.at}" for column in self._key)
            repeated = (f"(FROM side{side} SELECT {keys} GROUP BY {keys} HAVING count(*) > 1)" for side in (0, 1))
            self._duck.make("TABLE twice", " UNION ".join(repeated))
            loose = [f"FROM side{side} l SEMI JOIN twice r ON {same}" for side in (0, 1)]
            self._match(same)
        both = f"({loose[1]} SELECT *, 1 AS weight) UNION ALL ({loose[0]} SELECT *, -1)"
        weighed = "SELECT * EXCLUDE weight, sum(weight) AS weight GROUP BY ALL HAVING sum(weight) <> 0"
        self._duck.make("TABLE loose", f"FROM ({both}) {weighed}")

    def _match(self, same: str) -> None:
        sides = [f"(FROM side{side} l ANTI JOIN twice r ON {same} SELECT *, true AS here)" for side in (0, 1)]
        values = ", ".join(f"{side}.{column.at} AS {side}_{column.at}" for side in "lr" for column in self._shared)
        unequal = (f"l.{column.at} IS DISTINCT FROM r.{column.at}" for column in self._rest)
        self._duck.make(
            "TABLE pairs",
            f"FROM {sides[0]} l FULL JOIN {sides[1]} r ON {same} SELECT l.here AS had, r.here AS has, {values}"
            f" WHERE {' OR '.join(('l.here IS NULL', 'r.here IS NULL', *unequal))}",
        )

    def _totals(self) -> tuple[int, int, int]:
        more, fewer = "weight) FILTER (weight > 0)", "-weight) FILTER (weight < 0)"
        ((added, removed),) = self._duck.select(f"coalesce(sum({more}, 0), coalesce(sum({fewer}, 0) FROM loose")
        if not self._key:
            return int(added), int(removed), 0
        counts = ", ".join(f"count(*) FILTER ({how})" for how in (_ADDED, _REMOVED, _CHANGED))
        ((new, gone, changed),) = self._duck.select(f"{counts} FROM pairs")
        return int(added) + new, int(removed) + gone, changed

    def _retyped(self) -> Iterator[Retyped]:
        for key, (name, left) in self._names[0].items():
            right = self._names[1].get(key, (name, left))[1]
            if str(left) != str(right):
                yield Retyped(name, type_name(left), type_name(right))

    def _changed_columns(self) -> dict[str, int]:
        counts = ", ".join(f"count(*) FILTER (l_{c.at} IS DISTINCT FROM r_{c.at})" for c in self._rest)
        row = self._duck.select(f"{counts} FROM pairs WHERE {_CHANGED}")[0]
        return {column.name: count for column, count in zip(self._rest, row, strict=True) if count}

    def _shifts(self, nothing_before: bool, nothing_after: bool) -> Iterator[StatisticShift]:
        if nothing_before or nothing_after:
            return
        fields = (fields_of(side, self._question.categories) for side in self._sides)
        seen = (Seen({found: {} for found in of_side}) for of_side in fields)
        sides = zip(self._sides, seen, strict=True)
        measured = (measure(self._duck, side, columns, not self._veiled) for side, columns in sides)
        left, right = ({column.name: column for column in columns} for columns in measured)
        for name in left:
            for statistic in ("nulls", "distinct", "low", "high", "mean") if name in right else ():
                was, now = getattr(left[name], statistic), getattr(right[name], statistic)
                if was != now:
                    yield StatisticShift(name, statistic, _text(was), _text(now))

    def _samples(self) -> Iterator[RowSample]:
        for how, paired, loose, side in (
            ("added", _ADDED, "weight > 0", "r_"),
            ("removed", _REMOVED, "weight < 0", "l_"),
        ):
            rows = self._few("pairs", paired, self._shared, side) if self._key else []
            rows += self._few("loose", loose, self._shared)
            for row in rows[:SAMPLES]:
                yield RowSample(how, after=row) if how == "added" else RowSample(how, before=row)
        if self._key:
            yield from (RowSample("duplicate", row) for row in self._few("twice", "true", self._key))
            yield from self._changes()

    def _changes(self) -> Iterator[RowSample]:
        keys = self._few("pairs", _CHANGED, self._key, "l_")
        sides = [self._few("pairs", _CHANGED, self._rest, side) for side in ("l_", "r_")]
        differ = [f"l_{column.at} IS DISTINCT FROM r_{column.at}" for column in self._rest]
        flags = self._first("pairs", _CHANGED, differ, "l_") if differ else []
        for key, was, now, flag in zip(keys, *sides, flags, strict=True):
            names = {column.name for column, yes in zip(self._rest, flag, strict=True) if yes}
            yield RowSample("changed", *({**key, **{n: row[n] for n in row if n in names}} for row in (was, now)))

    def _few(self, table: str, where: str, columns: Sequence[_Shared], side: str = "") -> list[dict[str, str]]:
        """Some rows as texts, without what is null and what is not to be shown."""
        texts = [f"'{HIDDEN}'" if c.hidden else f"left(CAST({side}{c.at} AS VARCHAR), {_SHOWN})" for c in columns]
        names = [column.name for column in columns]
        return [
            {name: value for name, value in zip(names, row, strict=True) if value is not None}
            for row in (self._first(table, where, texts, side) if texts else ())
        ]

    def _first(self, table: str, where: str, texts: Sequence[str], side: str) -> list[tuple[Any, ...]]:
        """The same few rows every time. Changed rows are ordered by their key, which is the same on both sides."""
        order = self._key if table == "twice" or where == _CHANGED else self._shared
        ordered = ", ".join(f"{side}{column.at}" for column in order)
        return self._duck.select(f"{', '.join(texts)} FROM {table} WHERE {where} ORDER BY {ordered} LIMIT {SAMPLES}")


def _text(value: object) -> str:
    return "" if value is None else str(value)


def main(_arguments: Sequence[str]) -> None:
    """Answer one question; started in a helper process."""
    answer_question(DiffQuestion, diff_files)
