"""What is known of the rows of a version: its columns, their types, and statistics taken in one pass.

A column that somebody declared personal or sensitive, and all that lies inside it, is described by name, type and
number of nulls alone: bounds, means and counts of distinct values can show a person. While a column that was declared
for an earlier version is not found, nobody can tell under which name its values lie, and all columns are described so.

Parquet files know much of this themselves. Row counts, nulls and exact bounds come from their footers; what is left is
read once, and of a table beyond `READ_BYTES` nothing is read, so that its columns have no mean and no distinct count.
"""

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from falaj.content.duck import Duck, Relation, TableFiles, find_table, named, opened, parse_tables, quoted
from falaj.content.isolated_parser import answer_question
from falaj.content.records import Column, Table
from falaj.core.errors import NotFound

GONE = "gone"
"""Said of a column that was declared and will not come back."""
READ_BYTES = 16 << 30
_BOUND = 64
_GROUP = 400
"""So many columns are described in one query; a thousand would need too much memory."""
_INTEGERS = frozenset(
    f"{sign}{size}" for sign in ("", "u") for size in ("tinyint", "smallint", "integer", "bigint", "hugeint")
)
_FLOATS = frozenset({"float", "double"})
NUMBERS = _INTEGERS | _FLOATS | {"decimal", "boolean"}
TIMES = frozenset({"timestamp", "timestamp with time zone", "timestamp_s", "timestamp_ms", "timestamp_ns", "date"})
_ORDERED = NUMBERS | TIMES | {"varchar", "uuid", "time", "enum"}


def describe(
    source: Path, categories: Mapping[str, str] | None = None, before: Mapping[str, str] | None = None
) -> Table | None:
    """The table that lies at `source`: a file, or a folder whose table files share one schema. None: there is none.

    `categories` says which columns are personal or sensitive, and `before` which ones were in earlier versions. Invalid
    says why files that look like a table cannot be described; NotFound that a column of `categories` is not there.
    """
    files = find_table(source)
    if files is None:
        return None
    return parse_tables(__name__, Question(files, dict(categories or {}), dict(before or {})), Table, files)


def absent(declared: Mapping[str, str]) -> tuple[Column, ...]:
    """Columns that were declared and are not there, as records remember them."""
    return tuple(Column(name, "", category=category) for name, category in sorted(declared.items()))


def guess(columns: Iterable[Column]) -> tuple[str, ...]:
    """What a person should look at: columns that seem to hold personal data and are not declared. A hint, no more."""
    return tuple(
        f"the column {column.name!r} looks like {what}: declare it personal if it is"
        for column in columns
        if column.type and not column.category and (what := _looks(column))
    )


@dataclass(frozen=True, slots=True)
class Question:
    """What the child process is asked."""

    files: TableFiles
    categories: dict[str, str]
    before: dict[str, str]


@dataclass(frozen=True, slots=True)
class Field:
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
        text = named(self.path[0])
        for step in self.path[1:]:
            text = f"struct_extract({text}, {quoted(step)})"
        return text


Known = dict[str, Any]
"""What has been found out of a field so far, by the names that `Column` has for it."""


@dataclass(slots=True)
class Seen:
    """What has been found out of a table so far."""

    fields: dict[Field, Known]
    rows: int | None = None


def describe_files(question: Question) -> Table:
    """The same in this process, for those who are in a child already."""
    with opened(question.files) as duck:
        return duck.read(question.files, lambda relation: _table(duck, relation, question))


def fields_of(relation: Relation, categories: Mapping[str, str]) -> list[Field]:
    """Every column and every field inside one, declared as its parents are."""
    return [found for name, kind in relation.columns for found in _below((name,), kind, "", categories)]


def category_of(name: str, categories: Mapping[str, str]) -> str:
    """What a column was declared as. The engine adds a number to names that differ only in case, or not at all."""
    folded = {key.casefold(): value for key, value in categories.items()}
    return folded.get(name.casefold()) or folded.get(re.sub(r"_\d+$", "", name.casefold()), "")


def type_name(kind: Any) -> str:
    """A type as records name it; of an enumeration without its values."""
    return re.sub(r"ENUM\(.*\)", "ENUM", str(kind), flags=re.DOTALL)


def measure(duck: Duck, relation: Relation, seen: Seen, whole: bool = True) -> tuple[Column, ...]:
    """Every column; what is not known yet is found out by reading each row once. Not `whole`: the nulls and no more."""
    wanted = [(field, asks) for field in seen.fields if (asks := dict(_asks(field, seen.fields[field], whole)))]
    for start in range(0, len(wanted), _GROUP):
        group = wanted[start : start + _GROUP]
        texts = ["count(*)", *(text for _, asks in group for text in asks.values())]
        (row,) = duck.select(f"{', '.join(texts)} FROM {relation.scan()}")
        seen.rows, values = int(row[0]), iter(row[1:])
        for field, asks in group:
            seen.fields[field].update(zip(asks, values, strict=False))
    return tuple(_column(field, known, seen.rows or 0) for field, known in seen.fields.items())


def _table(duck: Duck, relation: Relation, question: Question) -> Table:
    files = question.files
    fields = fields_of(relation, question.before | question.categories)
    for name, category in _missing(fields, question.categories).items():
        raise NotFound(f"the table has no column {name!r:.80}", f"it was declared {category}; check the spelling")
    missing = _missing(fields, question.before)
    seen = Seen({field: {} for field in fields})
    if files.format == "parquet":
        _read_footers(duck, relation, seen)
    whole = files.format != "parquet" or files.size_bytes <= READ_BYTES
    columns = measure(duck, relation, seen, whole and not missing)
    if missing:
        bare = (Column(each.name, each.type, each.nulls, category=each.category) for each in columns)
        columns = (*bare, *absent(missing))
    return Table(seen.rows or 0, columns, files.format, len(files.paths))


def _below(path: tuple[str, ...], kind: Any, above: str, categories: Mapping[str, str]) -> Iterator[Field]:
    category = above or category_of(".".join(path), categories)
    yield Field(path, kind, category)
    if kind.id == "struct":
        for name, child in kind.children:
            yield from _below((*path, name), child, category, categories)


def _missing(fields: Sequence[Field], declared: Mapping[str, str]) -> dict[str, str]:
    names = {field.name.casefold() for field in fields}
    return {name: category for name, category in declared.items() if name.casefold() not in names}


def _asks(field: Field, known: Known, whole: bool) -> Iterator[tuple[str, str]]:
    """What is still wanted of a field, and the expression that gives it."""
    x, kind = field.sql, field.type.id
    if "nulls" not in known:
        yield "nulls", f"count(*) - count({x})"
    if field.category or kind not in _ORDERED or not whole:
        return
    yield "distinct", f"approx_count_distinct({x})"
    # Where some numbers are none (NaN), the bounds and the mean are those of the others.
    real = f" FILTER (NOT isnan({x}))" if kind in _FLOATS else ""
    short = f"left({x}, {_BOUND})" if kind == "varchar" else x
    if "low" not in known:
        yield "low", f"CAST(min({short}){real} AS VARCHAR)"
        yield "high", f"CAST(max({short}){real} AS VARCHAR)"
    if kind in NUMBERS:
        yield "mean", f"favg(CAST({x} AS {'INTEGER' if kind == 'boolean' else 'DOUBLE'})){real}"


def _column(field: Field, known: Known, rows: int) -> Column:
    """A field as records keep it."""
    nulls, distinct, mean = int(known.get("nulls", 0)), known.get("distinct"), known.get("mean")
    low, high = (_shown(field.type.id, known.get(bound) or "") for bound in ("low", "high"))
    if distinct is not None:
        distinct = min(distinct, rows - nulls)
    if mean is not None:
        # Two threads add in no fixed order; fewer digits are the same every time. Infinity is no number on the wire.
        mean = float(f"{mean:.12g}") if math.isfinite(mean) else None
    return Column(field.name, type_name(field.type), nulls, distinct, low, high, mean, field.category)


def _shown(kind: str, text: str) -> str:
    if kind.startswith("timestamp"):
        text = re.sub(r"([+-]\d\d)$", r"\1:00", text.replace(" ", "T", 1))
    return "0.0" if text == "-0.0" else text[:_BOUND]


def _read_footers(duck: Duck, relation: Relation, seen: Seen) -> None:
    """Rows, nulls and exact bounds as the footers state them; whatever one footer leaves out is not taken."""
    totals = "coalesce(sum(num_rows), 0), coalesce(sum(num_row_groups), 0)"
    ((rows, groups),) = duck.select(f"{totals} FROM parquet_file_metadata({relation.names})")
    hollow = "stats_null_count = num_values"
    asked = [
        *("path_in_schema", "count(*)", "count(stats_null_count)", "sum(stats_null_count)"),
        f"bool_and({hollow} OR stats_min_value IS NOT NULL AND stats_max_value IS NOT NULL)",
        f"bool_and({hollow} OR coalesce(min_is_exact AND max_is_exact, false))",
        *(
            f"CAST({end}(TRY_CAST(stats_{end}_value AS {kind})) AS VARCHAR)"
            for kind in ("HUGEINT", "TIMESTAMP", "VARCHAR")
            for end in ("min", "max")
        ),
    ]
    found = duck.select(f"{', '.join(asked)} FROM parquet_metadata({relation.names}) GROUP BY path_in_schema")
    seen.rows = int(rows)
    by_path = {row[0]: row[1:] for row in found if row[1] == groups}
    for field, known in seen.fields.items():
        if field.type.id not in ("list", "map", "struct"):
            known.update(_stated(field, by_path.get(", ".join(field.path))))


def _stated(field: Field, row: tuple[Any, ...] | None) -> Known:
    if row is None:
        return {}
    chunks, counted, nulls, bounded, exact, *bounds = row
    known = {"nulls": nulls or 0} if counted == chunks else {}
    kind = field.type.id
    at = 0 if kind in _INTEGERS else 2 if kind == "timestamp" else 4 if kind == "varchar" and exact else None
    if bounded and at is not None and not field.category:
        known |= {"low": bounds[at], "high": bounds[at + 1]}
    return known


_NAMES = {
    "an e-mail address": r"e_?mail",
    "a telephone number": r"phone|mobile|msisdn|whatsapp",
    "an Emirates ID": r"emirates_?id|\beid\b|national_?id",
    "an account number": r"iban|account_?(no|num)",
    "a passport number": r"passport",
    "a person's name": r"(first|last|full|sur|family|given)_?name|customer_?name",
    "a date of birth": r"\bdob\b|birth",
    "an address": r"\baddress|street|\bpo_?box",
}
_VALUES = {
    "an e-mail address": r"[^@\s]+@[^@\s]+\.[A-Za-z]{2,}",
    "an Emirates ID": r"784-?\d{4}-?\d{7}-?\d",
    "an account number": r"AE\d{21}|[A-Z]{2}\d{2}[A-Z0-9]{11,30}",
    "a telephone number": r"(\+|00)\d[\d \-]{7,16}",
}


def _looks(column: Column) -> str:
    name = re.sub(r"[^a-z0-9]+", "_", column.name.lower())
    for what, pattern in _NAMES.items():
        if re.search(pattern.replace(r"\b", r"(?:^|_|$)"), name):
            return what
    bounds = [bound for bound in (column.low, column.high) if bound]
    for what, pattern in _VALUES.items():
        if bounds and all(re.fullmatch(pattern, bound) for bound in bounds):
            return what
    return ""


def main(_arguments: Sequence[str]) -> None:
    """Answer one question; started in a helper process."""
    answer_question(Question, describe_files)
