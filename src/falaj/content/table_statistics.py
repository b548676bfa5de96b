"""What is known of the rows of a version: its columns, their types, and statistics taken in one pass.

A column that somebody declared personal or sensitive, and all that lies inside it, is described by name, type and
number of nulls alone: bounds, means and counts of distinct values can show a person. While a column that was declared
for an earlier version is not found, nobody can tell under which name its values lie, and all columns are described so.

Parquet files know much of this themselves. Row counts, nulls and exact bounds come from their footers; what is left is
read once, and of a table beyond `MAX_READ_BYTES` nothing is read, so that its columns have no mean and no distinct
count.
"""

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from falaj.content.duck_engine import (
    DuckEngine,
    TableFiles,
    TableRelation,
    find_table_files,
    open_engine,
    parse_tables,
    quote_name,
    quote_text,
)
from falaj.content.isolated_parser import answer_request
from falaj.content.records import TableColumn, TableDescription
from falaj.core.errors import NotFound

CATEGORY_GONE = "gone"
"""Said of a column that was declared and will not come back."""
MAX_READ_BYTES = 16 << 30
_MAX_BOUND_CHARS = 64
_COLUMNS_PER_QUERY = 400
"""So many columns are described in one query; a thousand would need too much memory."""
_INTEGER_TYPES = frozenset(
    f"{sign}{size}" for sign in ("", "u") for size in ("tinyint", "smallint", "integer", "bigint", "hugeint")
)
_FLOAT_TYPES = frozenset({"float", "double"})
NUMBER_TYPES = _INTEGER_TYPES | _FLOAT_TYPES | {"decimal", "boolean"}
TIME_TYPES = frozenset({"timestamp", "timestamp with time zone", "timestamp_s", "timestamp_ms", "timestamp_ns", "date"})
_ORDERED_TYPES = NUMBER_TYPES | TIME_TYPES | {"varchar", "uuid", "time", "enum"}


def describe_table(
    source: Path, categories: Mapping[str, str] | None = None, earlier_categories: Mapping[str, str] | None = None
) -> TableDescription | None:
    """The table that lies at `source`: a file, or a folder whose table files share one schema. None: there is none.

    `categories` says which columns are personal or sensitive, and `earlier_categories` which ones were in earlier
    versions. Invalid says why files that look like a table cannot be described; NotFound that a column of `categories`
    is not there.
    """
    files = find_table_files(source)
    if files is None:
        return None
    return parse_tables(
        __name__,
        DescribeRequest(files, dict(categories or {}), dict(earlier_categories or {})),
        TableDescription,
        files,
    )


def make_absent_columns(declared: Mapping[str, str]) -> tuple[TableColumn, ...]:
    """Columns that were declared and are not there, as records remember them."""
    return tuple(TableColumn(name, "", category=category) for name, category in sorted(declared.items()))


def warn_undeclared_columns(columns: Iterable[TableColumn]) -> tuple[str, ...]:
    """What a person should look at: columns that seem to hold personal data and are not declared. A hint, no more."""
    return tuple(
        f"the column {column.name!r} looks like {data_description}: declare it personal if it is"
        for column in columns
        if column.type and not column.category and (data_description := _describe_personal_look(column))
    )


@dataclass(frozen=True, slots=True)
class DescribeRequest:
    """What the child process is asked."""

    files: TableFiles
    categories: dict[str, str]
    before: dict[str, str]


@dataclass(frozen=True, slots=True)
class TableField:
    """A column, or a field inside a structured one: the way to it, its type, and whether its values may be shown."""

    path: tuple[str, ...]
    type: Any
    category: str = ""

    @property
    def name(self) -> str:
        """As people write it."""
        return ".".join(self.path)

    @property
    def sql(self) -> str:
        """As queries write it."""
        text = quote_name(self.path[0])
        for step in self.path[1:]:
            text = f"struct_extract({text}, {quote_text(step)})"
        return text


FieldFacts = dict[str, Any]
"""What has been found out of a field so far, by the names that `Column` has for it."""


@dataclass(slots=True)
class TableMeasurement:
    """What has been found out of a table so far."""

    fields: dict[TableField, FieldFacts]
    rows: int | None = None


def describe_files(request: DescribeRequest) -> TableDescription:
    """The same in this process, for those who are in a child already."""
    with open_engine(request.files) as engine:
        return engine.read(request.files, lambda relation: _build_table(engine, relation, request))


def list_fields(relation: TableRelation, categories: Mapping[str, str]) -> list[TableField]:
    """Every column and every field inside one, declared as its parents are."""
    return [
        table_field
        for name, column_type in relation.columns
        for table_field in _generate_fields((name,), column_type, "", categories)
    ]


def find_category(name: str, categories: Mapping[str, str]) -> str:
    """What a column was declared as. The engine adds a number to names that differ only in case, or not at all."""
    folded = {key.casefold(): value for key, value in categories.items()}
    return folded.get(name.casefold()) or folded.get(re.sub(r"_\d+$", "", name.casefold()), "")


def format_type(engine_type: Any) -> str:
    """A type as records name it; of an enumeration without its values."""
    return re.sub(r"ENUM\(.*\)", "ENUM", str(engine_type), flags=re.DOTALL)


def measure_columns(
    engine: DuckEngine, relation: TableRelation, measurement: TableMeasurement, with_values: bool = True
) -> tuple[TableColumn, ...]:
    """Every column; what is not known yet is found out by reading each row once. Not `with_values`: the nulls and no
    more."""
    open_questions = [
        (field, expressions)
        for field in measurement.fields
        if (expressions := dict(_generate_expressions(field, measurement.fields[field], with_values)))
    ]
    for start in range(0, len(open_questions), _COLUMNS_PER_QUERY):
        group = open_questions[start : start + _COLUMNS_PER_QUERY]
        select_list = ["count(*)", *(text for _, expressions in group for text in expressions.values())]
        (row,) = engine.select(f"{', '.join(select_list)} FROM {relation.scan()}")
        measurement.rows, values = int(row[0]), iter(row[1:])
        for field, expressions in group:
            measurement.fields[field].update(zip(expressions, values, strict=False))
    return tuple(
        _build_column(field, field_facts, measurement.rows or 0) for field, field_facts in measurement.fields.items()
    )


def _build_table(engine: DuckEngine, relation: TableRelation, request: DescribeRequest) -> TableDescription:
    files = request.files
    fields = list_fields(relation, request.before | request.categories)
    for name, category in _find_missing(fields, request.categories).items():
        raise NotFound(f"the table has no column {name!r:.80}", f"it was declared {category}; check the spelling")
    missing_columns = _find_missing(fields, request.before)
    measurement = TableMeasurement({field: {} for field in fields})
    if files.format == "parquet":
        _read_footers(engine, relation, measurement)
    reads_values = files.format != "parquet" or files.size_bytes <= MAX_READ_BYTES
    columns = measure_columns(engine, relation, measurement, reads_values and not missing_columns)
    if missing_columns:
        bare_columns = (
            TableColumn(
                measured_column.name, measured_column.type, measured_column.nulls, category=measured_column.category
            )
            for measured_column in columns
        )
        columns = (*bare_columns, *make_absent_columns(missing_columns))
    return TableDescription(measurement.rows or 0, columns, files.format, len(files.paths))


def _generate_fields(
    path: tuple[str, ...], field_type: Any, parent_category: str, categories: Mapping[str, str]
) -> Iterator[TableField]:
    category = parent_category or find_category(".".join(path), categories)
    yield TableField(path, field_type, category)
    if field_type.id == "struct":
        for name, child_type in field_type.children:
            yield from _generate_fields((*path, name), child_type, category, categories)


def _find_missing(fields: Sequence[TableField], declared: Mapping[str, str]) -> dict[str, str]:
    names = {field.name.casefold() for field in fields}
    return {name: category for name, category in declared.items() if name.casefold() not in names}


def _generate_expressions(field: TableField, field_facts: FieldFacts, with_values: bool) -> Iterator[tuple[str, str]]:
    """What is still wanted of a field, and the expression that gives it."""
    field_sql, type_id = field.sql, field.type.id
    if "nulls" not in field_facts:
        yield "nulls", f"count(*) - count({field_sql})"
    if field.category or type_id not in _ORDERED_TYPES or not with_values:
        return
    yield "distinct", f"approx_count_distinct({field_sql})"
    # Where some numbers are none (NaN), the bounds and the mean are those of the others.
    nan_filter = f" FILTER (NOT isnan({field_sql}))" if type_id in _FLOAT_TYPES else ""
    bounded_sql = f"left({field_sql}, {_MAX_BOUND_CHARS})" if type_id == "varchar" else field_sql
    if "low" not in field_facts:
        yield "low", f"CAST(min({bounded_sql}){nan_filter} AS VARCHAR)"
        yield "high", f"CAST(max({bounded_sql}){nan_filter} AS VARCHAR)"
    if type_id in NUMBER_TYPES:
        yield "mean", f"favg(CAST({field_sql} AS {'INTEGER' if type_id == 'boolean' else 'DOUBLE'})){nan_filter}"


def _build_column(field: TableField, field_facts: FieldFacts, rows: int) -> TableColumn:
    """A field as records keep it."""
    nulls, distinct, mean = int(field_facts.get("nulls", 0)), field_facts.get("distinct"), field_facts.get("mean")
    low, high = (_format_bound(field.type.id, field_facts.get(bound) or "") for bound in ("low", "high"))
    if distinct is not None:
        distinct = min(distinct, rows - nulls)
    if mean is not None:
        # Two threads add in no fixed order; fewer digits are the same every time. Infinity is no number on the wire.
        mean = float(f"{mean:.12g}") if math.isfinite(mean) else None
    return TableColumn(field.name, format_type(field.type), nulls, distinct, low, high, mean, field.category)


def _format_bound(type_id: str, text: str) -> str:
    if type_id.startswith("timestamp"):
        text = re.sub(r"([+-]\d\d)$", r"\1:00", text.replace(" ", "T", 1))
    return "0.0" if text == "-0.0" else text[:_MAX_BOUND_CHARS]


def _read_footers(engine: DuckEngine, relation: TableRelation, measurement: TableMeasurement) -> None:
    """Rows, nulls and exact bounds as the footers state them; whatever one footer leaves out is not taken."""
    totals = "coalesce(sum(num_rows), 0), coalesce(sum(num_row_groups), 0)"
    ((rows, groups),) = engine.select(f"{totals} FROM parquet_file_metadata({relation.names})")
    no_values_condition = "stats_null_count = num_values"
    footer_expressions = [
        *("path_in_schema", "count(*)", "count(stats_null_count)", "sum(stats_null_count)"),
        f"bool_and({no_values_condition} OR stats_min_value IS NOT NULL AND stats_max_value IS NOT NULL)",
        f"bool_and({no_values_condition} OR coalesce(min_is_exact AND max_is_exact, false))",
        *(
            f"CAST({bound_name}(TRY_CAST(stats_{bound_name}_value AS {sql_type})) AS VARCHAR)"
            for sql_type in ("HUGEINT", "TIMESTAMP", "VARCHAR")
            for bound_name in ("min", "max")
        ),
    ]
    footer_rows = engine.select(
        f"{', '.join(footer_expressions)} FROM parquet_metadata({relation.names}) GROUP BY path_in_schema"
    )
    measurement.rows = int(rows)
    by_path = {row[0]: row[1:] for row in footer_rows if row[1] == groups}
    for field, field_facts in measurement.fields.items():
        if field.type.id not in ("list", "map", "struct"):
            field_facts.update(_read_footer_facts(field, by_path.get(", ".join(field.path))))


def _read_footer_facts(field: TableField, row: tuple[Any, ...] | None) -> FieldFacts:
    if row is None:
        return {}
    chunks, counted_chunks, nulls, has_bounds, is_exact, *bounds = row
    field_facts = {"nulls": nulls or 0} if counted_chunks == chunks else {}
    type_id = field.type.id
    bound_index = (
        0
        if type_id in _INTEGER_TYPES
        else 2
        if type_id == "timestamp"
        else 4
        if type_id == "varchar" and is_exact
        else None
    )
    if has_bounds and bound_index is not None and not field.category:
        field_facts |= {"low": bounds[bound_index], "high": bounds[bound_index + 1]}
    return field_facts


_PERSONAL_NAME_PATTERNS = {
    "an e-mail address": r"e_?mail",
    "a telephone number": r"phone|mobile|msisdn|whatsapp",
    "an Emirates ID": r"emirates_?id|\beid\b|national_?id",
    "an account number": r"iban|account_?(no|num)",
    "a passport number": r"passport",
    "a person's name": r"(first|last|full|sur|family|given)_?name|customer_?name",
    "a date of birth": r"\bdob\b|birth",
    "an address": r"\baddress|street|\bpo_?box",
}
_PERSONAL_VALUE_PATTERNS = {
    "an e-mail address": r"[^@\s]+@[^@\s]+\.[A-Za-z]{2,}",
    "an Emirates ID": r"784-?\d{4}-?\d{7}-?\d",
    "an account number": r"AE\d{21}|[A-Z]{2}\d{2}[A-Z0-9]{11,30}",
    "a telephone number": r"(\+|00)\d[\d \-]{7,16}",
}


def _describe_personal_look(column: TableColumn) -> str:
    name = re.sub(r"[^a-z0-9]+", "_", column.name.lower())
    for data_description, pattern in _PERSONAL_NAME_PATTERNS.items():
        if re.search(pattern.replace(r"\b", r"(?:^|_|$)"), name):
            return data_description
    bounds = [bound for bound in (column.low, column.high) if bound]
    for data_description, pattern in _PERSONAL_VALUE_PATTERNS.items():
        if bounds and all(re.fullmatch(pattern, bound) for bound in bounds):
            return data_description
    return ""


def main(_arguments: Sequence[str]) -> None:
    """Answer one question; started in a helper process."""
    answer_request(DescribeRequest, describe_files)
