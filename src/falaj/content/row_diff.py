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

from falaj.content.duck_engine import (
    DuckEngine,
    TableFiles,
    TableRelation,
    detect_format,
    find_table_files,
    open_engine,
    parse_tables,
    quote_name,
)
from falaj.content.isolated_parser import answer_request
from falaj.content.table_statistics import (
    NUMBER_TYPES,
    TIME_TYPES,
    TableMeasurement,
    find_category,
    format_type,
    list_fields,
    measure_columns,
)
from falaj.core.errors import Invalid

MAX_SAMPLES = 5
HIDDEN_VALUE = "(hidden)"
_MAX_VALUE_CHARS = 64
_ADDED_CONDITION, _REMOVED_CONDITION, _CHANGED_CONDITION = "had IS NULL", "has IS NULL", "had AND has"


@dataclass(frozen=True, slots=True)
class RetypedColumn:
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
    columns_retyped: tuple[RetypedColumn, ...] = ()
    columns_changed: Mapping[str, int] = field(default_factory=dict)
    """In how many of the changed rows each column differs."""
    statistics: tuple[StatisticShift, ...] = ()
    samples: tuple[RowSample, ...] = ()


@dataclass(frozen=True, slots=True)
class DiffRequest:
    """What the child process is asked."""

    before: TableFiles | None
    after: TableFiles | None
    key: tuple[str, ...]
    categories: dict[str, str]


def diff_tables(
    before: Sequence[Path], after: Sequence[Path], key: Sequence[str] = (), categories: Mapping[str, str] | None = None
) -> TableDiff:
    """What changed between two sets of table files; `categories` names the columns whose values are not shown."""
    request = DiffRequest(_collect_files(before), _collect_files(after), tuple(key), dict(categories or {}))
    if request.before is None and request.after is None:
        raise Invalid("there is no table on either side", "name Parquet, CSV, Arrow or JSON lines files")
    tables = (table for table in (request.before, request.after) if table is not None)
    return parse_tables(__name__, request, TableDiff, *tables)


def diff_files(request: DiffRequest) -> TableDiff:
    """The same in this process, for those who are in a child already."""
    tables = [table for table in (request.before, request.after) if table is not None]
    with open_engine(*tables) as engine:
        before_relation = _load_relation(engine, "before_rows", request.before)
        after_relation = _load_relation(engine, "after_rows", request.after)
        return _TableComparison(
            engine,
            before_relation or after_relation,  # type: ignore[arg-type]
            after_relation or before_relation,  # type: ignore[arg-type]
            request,
        ).result(before_relation is None, after_relation is None)


def _collect_files(paths: Iterable[Path]) -> TableFiles | None:
    table_files = [table for path in sorted(paths) if (table := find_table_files(path)) is not None]
    if len({table.format for table in table_files}) > 1:
        raise Invalid("one side of the comparison has tables of several kinds", "compare one table at a time")
    names = tuple(path for table in table_files for path in table.paths)
    return (
        TableFiles(detect_format(names[0]), names, sum(table.size_bytes for table in table_files))
        if table_files
        else None
    )


def _load_relation(engine: DuckEngine, name: str, files: TableFiles | None) -> TableRelation | None:
    """Parquet is read in place as often as needed; what is slow to parse, or can be read once only, is taken in."""
    if files is None:
        return None
    relation_kind = "VIEW" if files.format == "parquet" else "TABLE"

    def _create_copy(relation: TableRelation) -> TableRelation:
        engine.make(f"{relation_kind} {name}", f"FROM {relation.scan()}")
        return TableRelation(lambda: name, relation.columns)

    return engine.read(files, _create_copy)


@dataclass(frozen=True, slots=True)
class _SharedColumn:
    """A column that both sides have, under a name of our own (`c0`, `c1`, …) and in a type that holds both."""

    at: str
    name: str
    sides: tuple[str, str]
    hidden: bool


class _TableComparison:
    """Two relations side by side, and what is known of their difference so far."""

    def __init__(self, engine: DuckEngine, before: TableRelation, after: TableRelation, request: DiffRequest) -> None:
        self._engine = engine
        self._relations = (before, after)
        self._request = request
        field_names = {field.name.casefold() for side in self._relations for field in list_fields(side, {})}
        # Under which name the values of a declared column lie that neither side has, nobody can tell.
        self._hides_all = any(name.casefold() not in field_names for name in request.categories)
        self._columns_by_side = [
            {name.casefold(): (name, kind) for name, kind in side.columns} for side in self._relations
        ]
        shared_keys = [key for key in self._columns_by_side[0] if key in self._columns_by_side[1]]
        self._shared = [self._make_shared_column(f"c{number}", key) for number, key in enumerate(shared_keys)]
        self._key_columns = self._resolve_key_columns(request.key)
        self._value_columns = [column for column in self._shared if column not in self._key_columns]

    def result(self, is_before_empty: bool, is_after_empty: bool) -> TableDiff:
        """Compare. A side without files is an empty table of the other's columns."""
        for side, empty in enumerate((is_before_empty, is_after_empty)):
            columns = ", ".join(column.sides[side] for column in self._shared) or f"{side} AS nothing"
            limit = "LIMIT 0" if empty else ""
            self._engine.make(f"VIEW side{side}", f"FROM {self._relations[side].scan()} SELECT {columns} {limit}")
        rows = [self._count_rows(f"side{side}") for side in (0, 1)]
        self._pair_rows()
        added, removed, changed = self._count_changes()
        return TableDiff(
            rows[0],
            rows[1],
            added,
            removed,
            changed,
            tuple(column.name for column in self._key_columns),
            self._count_rows("twice") if self._key_columns else 0,
            tuple(name for key, (name, _) in self._columns_by_side[1].items() if key not in self._columns_by_side[0]),
            tuple(name for key, (name, _) in self._columns_by_side[0].items() if key not in self._columns_by_side[1]),
            tuple(self._list_retyped()),
            self._count_changed_columns() if changed else {},
            tuple(self._list_statistic_shifts(is_before_empty, is_after_empty)),
            tuple(self._generate_samples()),
        )

    def _make_shared_column(self, alias: str, key: str) -> _SharedColumn:
        (name, before_type), (_, after_type) = self._columns_by_side[0][key], self._columns_by_side[1][key]
        column_type = str(before_type)
        if column_type != str(after_type):
            comparable = any({before_type.id, after_type.id} <= family for family in (NUMBER_TYPES, TIME_TYPES))
            column_type = self._find_common_type(column_type, str(after_type)) if comparable else "VARCHAR"
        sides = tuple(
            f"CAST({quote_name(self._columns_by_side[side][key][0])} AS {column_type}) AS {alias}" for side in (0, 1)
        )
        return _SharedColumn(alias, name, (sides[0], sides[1]), self._is_hidden(name))

    def _find_common_type(self, left: str, right: str) -> str:
        return str(self._engine.types(f"SELECT NULL::{left} UNION ALL SELECT NULL::{right}")[0][1])

    def _is_hidden(self, name: str) -> bool:
        has_declared_field = any(
            declared.casefold().startswith(f"{name.casefold()}.") for declared in self._request.categories
        )
        return self._hides_all or has_declared_field or bool(find_category(name, self._request.categories))

    def _resolve_key_columns(self, names: Sequence[str]) -> list[_SharedColumn]:
        shared = {column.name.casefold(): column for column in self._shared}
        for name in names:
            if name.casefold() not in shared:
                raise Invalid(f"the key {name!r:.80} is not a column of both tables", "name columns that both have")
        return [shared[name.casefold()] for name in dict.fromkeys(names)]

    def _count_rows(self, table: str) -> int:
        return int(self._engine.select(f"count(*) FROM {table}")[0][0])

    def _pair_rows(self) -> None:
        """`twice`: keys that cannot be matched. `pairs`: rows matched and unequal, or without a match. `loose_queries`:
        by how many more of each other row there are on the right."""
        loose_queries = [f"FROM side{side}" for side in (0, 1)]
        if self._key_columns:
            keys = ", ".join(column.at for column in self._key_columns)
            match_condition = " AND ".join(
                f"l.{column.at} IS NOT DISTINCT FROM r.{column.at}" for column in self._key_columns
            )
            repeated = (f"(FROM side{side} SELECT {keys} GROUP BY {keys} HAVING count(*) > 1)" for side in (0, 1))
            self._engine.make("TABLE twice", " UNION ".join(repeated))
            loose_queries = [f"FROM side{side} l SEMI JOIN twice r ON {match_condition}" for side in (0, 1)]
            self._match_rows(match_condition)
        union_query = f"({loose_queries[1]} SELECT *, 1 AS weight) UNION ALL ({loose_queries[0]} SELECT *, -1)"
        weight_query = "SELECT * EXCLUDE weight, sum(weight) AS weight GROUP BY ALL HAVING sum(weight) <> 0"
        self._engine.make("TABLE loose", f"FROM ({union_query}) {weight_query}")

    def _match_rows(self, match_condition: str) -> None:
        sides = [
            f"(FROM side{side} l ANTI JOIN twice r ON {match_condition} SELECT *, true AS here)" for side in (0, 1)
        ]
        values = ", ".join(f"{side}.{column.at} AS {side}_{column.at}" for side in "lr" for column in self._shared)
        unequal = (f"l.{column.at} IS DISTINCT FROM r.{column.at}" for column in self._value_columns)
        self._engine.make(
            "TABLE pairs",
            f"FROM {sides[0]} l FULL JOIN {sides[1]} r ON {match_condition} "
            f"SELECT l.here AS had, r.here AS has, {values}"
            f" WHERE {' OR '.join(('l.here IS NULL', 'r.here IS NULL', *unequal))}",
        )

    def _count_changes(self) -> tuple[int, int, int]:
        surplus_sql, deficit_sql = "weight) FILTER (weight > 0)", "-weight) FILTER (weight < 0)"
        ((added_count, removed_count),) = self._engine.select(
            f"coalesce(sum({surplus_sql}, 0), coalesce(sum({deficit_sql}, 0) FROM loose"
        )
        if not self._key_columns:
            return int(added_count), int(removed_count), 0
        counts = ", ".join(
            f"count(*) FILTER ({condition})" for condition in (_ADDED_CONDITION, _REMOVED_CONDITION, _CHANGED_CONDITION)
        )
        ((new_count, gone_count, changed_count),) = self._engine.select(f"{counts} FROM pairs")
        return int(added_count) + new_count, int(removed_count) + gone_count, changed_count

    def _list_retyped(self) -> Iterator[RetypedColumn]:
        for key, (name, left) in self._columns_by_side[0].items():
            right = self._columns_by_side[1].get(key, (name, left))[1]
            if str(left) != str(right):
                yield RetypedColumn(name, format_type(left), format_type(right))

    def _count_changed_columns(self) -> dict[str, int]:
        counts = ", ".join(
            f"count(*) FILTER (l_{shared_column.at} IS DISTINCT FROM r_{shared_column.at})"
            for shared_column in self._value_columns
        )
        row = self._engine.select(f"{counts} FROM pairs WHERE {_CHANGED_CONDITION}")[0]
        return {column.name: count for column, count in zip(self._value_columns, row, strict=True) if count}

    def _list_statistic_shifts(self, is_before_empty: bool, is_after_empty: bool) -> Iterator[StatisticShift]:
        if is_before_empty or is_after_empty:
            return
        fields = (list_fields(side, self._request.categories) for side in self._relations)
        measurements_by_side = (
            TableMeasurement({table_field: {} for table_field in side_fields}) for side_fields in fields
        )
        sides = zip(self._relations, measurements_by_side, strict=True)
        measured = (measure_columns(self._engine, side, columns, not self._hides_all) for side, columns in sides)
        before_columns, after_columns = ({column.name: column for column in columns} for columns in measured)
        for name in before_columns:
            for statistic in ("nulls", "distinct", "low", "high", "mean") if name in after_columns else ():
                before_value, after_value = (
                    getattr(before_columns[name], statistic),
                    getattr(after_columns[name], statistic),
                )
                if before_value != after_value:
                    yield StatisticShift(name, statistic, _to_text(before_value), _to_text(after_value))

    def _generate_samples(self) -> Iterator[RowSample]:
        for how, pair_condition, loose_condition, side in (
            ("added", _ADDED_CONDITION, "weight > 0", "r_"),
            ("removed", _REMOVED_CONDITION, "weight < 0", "l_"),
        ):
            rows = self._sample_rows("pairs", pair_condition, self._shared, side) if self._key_columns else []
            rows += self._sample_rows("loose", loose_condition, self._shared)
            for row in rows[:MAX_SAMPLES]:
                yield RowSample(how, after=row) if how == "added" else RowSample(how, before=row)
        if self._key_columns:
            yield from (RowSample("duplicate", row) for row in self._sample_rows("twice", "true", self._key_columns))
            yield from self._generate_changes()

    def _generate_changes(self) -> Iterator[RowSample]:
        keys = self._sample_rows("pairs", _CHANGED_CONDITION, self._key_columns, "l_")
        sides = [self._sample_rows("pairs", _CHANGED_CONDITION, self._value_columns, side) for side in ("l_", "r_")]
        differ = [f"l_{column.at} IS DISTINCT FROM r_{column.at}" for column in self._value_columns]
        difference_flags = self._select_first("pairs", _CHANGED_CONDITION, differ, "l_") if differ else []
        for key, before_row, after_row, row_flags in zip(keys, *sides, difference_flags, strict=True):
            names = {
                column.name for column, is_different in zip(self._value_columns, row_flags, strict=True) if is_different
            }
            yield RowSample(
                "changed",
                *(
                    {**key, **{column_name: row[column_name] for column_name in row if column_name in names}}
                    for row in (before_row, after_row)
                ),
            )

    def _sample_rows(
        self, table: str, condition: str, columns: Sequence[_SharedColumn], side: str = ""
    ) -> list[dict[str, str]]:
        """Some rows as texts, without what is null and what is not to be shown."""
        texts = [
            f"'{HIDDEN_VALUE}'"
            if shared_column.hidden
            else f"left(CAST({side}{shared_column.at} AS VARCHAR), {_MAX_VALUE_CHARS})"
            for shared_column in columns
        ]
        names = [column.name for column in columns]
        return [
            {name: value for name, value in zip(names, row, strict=True) if value is not None}
            for row in (self._select_first(table, condition, texts, side) if texts else ())
        ]

    def _select_first(self, table: str, condition: str, texts: Sequence[str], side: str) -> list[tuple[Any, ...]]:
        """The same few rows every time. Changed rows are ordered by their key, which is the same on both sides."""
        order_columns = self._key_columns if table == "twice" or condition == _CHANGED_CONDITION else self._shared
        order_sql = ", ".join(f"{side}{column.at}" for column in order_columns)
        return self._engine.select(
            f"{', '.join(texts)} FROM {table} WHERE {condition} ORDER BY {order_sql} LIMIT {MAX_SAMPLES}"
        )


def _to_text(value: object) -> str:
    return "" if value is None else str(value)


def main(_arguments: Sequence[str]) -> None:
    """Answer one question; started in a helper process."""
    answer_request(DiffRequest, diff_files)
