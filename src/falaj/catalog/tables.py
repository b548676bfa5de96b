"""What is known of the rows of a version: its columns, their types, and statistics taken in one pass.

A column that somebody declared personal or sensitive, and all that lies inside it, is described by name, type and
number of nulls alone: bounds, means and counts of distinct values can show a person.

Parquet files know much of this themselves. Row counts, nulls and exact bounds come from their footers; what is left is
read once, and of a table beyond `READ_BYTES` nothing is read, so that its columns have no mean and no distinct count.
"""

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from falaj.catalog.duck import Duck, Relation, TableFiles, ask, find_table, named, opened, quoted, reply
from falaj.catalog.records import Column, Table
from falaj.core.errors import NotFound

CATEGORIES = ("personal", "sensitive")
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


def describe(source: Path, categories: Mapping[str, str] | None = None) -> Table | None:
    """The table that lies at `source`: a file, or a folder whose table files share one schema. None: there is none.

    `categories` says which columns are personal or sensitive. Invalid says why files that look like a table cannot be
    described; NotFound that a declared column is not there.
    """
    files = find_table(source)
    return None if files is None else ask(__name__, Question(files, dict(categories or {})), Table)


def guess(columns: Iterable[Column]) -> tuple[str, ...]:
    """What a person should look at: columns that seem to hold personal data and are not declared. A hint, no more."""
    return tuple(
        f"the column {column.name!r} looks like {what}: declare it personal if it is"
        for column in columns
        if not column.category and (what := _looks(column))
    )


@dataclass(frozen=True, slots=True)
class Question:
    """What the child process is asked."""

    files: TableFiles
    categories: dict[str, str]


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


@dataclass(slots=True)
class Known:
    """What has been found out of a field so far."""

    nulls: int | None = None
    distinct: int | None = None
    low: str | None = None
    high: str | None = None
    mean: float | None = None


@dataclass(slots=True)
class Seen:
    """What has been found out of a table so far."""

    fields: dict[Field, Known]
    rows: int | None = None


def describe_files(files: TableFiles, categories: Mapping[str, str]) -> Table:
    """The same in this process, for those who are in a child already."""
    with opened(files) as duck:
        return duck.read(files, lambda relation: _table(duck, files, relation, categories))


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


def measure(duck: Duck, relation: Relation, seen: Seen) -> None:
    """Fill in what is not known yet, by reading every row once."""
    wanted = [(field, known, list(_asks(field, known))) for field, known in seen.fields.items()]
    wanted = [(field, known, asks) for field, known, asks in wanted if asks]
    for start in range(0, max(len(wanted), 1), _GROUP):
        group = wanted[start : start + _GROUP]
        if not group and seen.rows is not None:
            return
        texts = ["count(*)", *(text for _, _, asks in group for text, _ in asks)]
        (row,) = duck.select(f"{', '.join(texts)} FROM {relation.scan()}")
        seen.rows, values = int(row[0]), iter(row[1:])
        for field, known, asks in group:
            for _, keep in asks:
                keep(known, next(values), seen.rows)
            _tidy(field, known)


def column_of(field: Field, known: Known, rows: int) -> Column:
    """A field as records keep it."""
    nulls = known.nulls if known.nulls is not None else 0
    distinct = None if known.distinct is None else min(known.distinct, rows - nulls)
    return Column(
        field.name,
        type_name(field.type),
        nulls,
        distinct,
        known.low or "",
        known.high or "",
        known.mean,
        field.category,
    )


def _table(duck: Duck, files: TableFiles, relation: Relation, categories: Mapping[str, str]) -> Table:
    fields = fields_of(relation, categories)
    _check_declared(fields, categories)
    seen = Seen({field: Known() for field in fields})
    if files.format == "parquet":
        _read_footers(duck, relation, seen)
    if seen.rows is None or files.size_bytes <= READ_BYTES:
        measure(duck, relation, seen)
    rows = seen.rows or 0
    columns = tuple(column_of(field, known, rows) for field, known in seen.fields.items())
    return Table(rows, columns, files.format, len(files.paths))


def _below(path: tuple[str, ...], kind: Any, above: str, categories: Mapping[str, str]) -> Iterator[Field]:
    category = above or category_of(".".join(path), categories)
    yield Field(path, kind, category)
    if kind.id == "struct":
        for name, child in kind.children:
            yield from _below((*path, name), child, category, categories)


def _check_declared(fields: Sequence[Field], categories: Mapping[str, str]) -> None:
    names = {field.name.casefold() for field in fields}
    for name, category in categories.items():
        if name.casefold() not in names:
            raise NotFound(f"the table has no column {name!r:.80}", f"it was declared {category}; check the spelling")


Keep = Callable[[Known, Any, int], None]


def _asks(field: Field, known: Known) -> Iterator[tuple[str, Keep]]:
    """The expressions that are still wanted of a field, and where their values go."""
    x, kind = field.sql, field.type.id
    if known.nulls is None:
        yield f"count({x})", lambda known, value, rows: setattr(known, "nulls", rows - value)
    if field.category or kind not in _ORDERED:
        return
    if known.distinct is None:
        yield f"approx_count_distinct({x})", lambda known, value, _: setattr(known, "distinct", value)
    # Where some numbers are none (NaN), the bounds and the mean are those of the others.
    real = f" FILTER (NOT isnan({x}))" if kind in _FLOATS else ""
    short = f"left({x}, {_BOUND})" if kind == "varchar" else x
    if known.low is None:
        yield f"CAST(min({short}){real} AS VARCHAR)", lambda known, value, _: setattr(known, "low", value)
        yield f"CAST(max({short}){real} AS VARCHAR)", lambda known, value, _: setattr(known, "high", value)
    if kind in NUMBERS:
        number = f"CAST({x} AS DOUBLE)" if kind != "boolean" else f"CAST({x} AS INTEGER)"
        yield f"favg({number}){real}", lambda known, value, _: setattr(known, "mean", value)


def _tidy(field: Field, known: Known) -> None:
    if known.mean is not None:
        # Two threads add in no fixed order; fewer digits are the same every time. Infinity is no number on the wire.
        known.mean = float(f"{known.mean:.12g}") if math.isfinite(known.mean) else None
    known.low, known.high = (text and _shown(field.type.id, text) for text in (known.low, known.high))


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
        if (row := by_path.get(", ".join(field.path))) is not None and field.type.id not in ("list", "map", "struct"):
            _take(field, known, row)
            _tidy(field, known)


def _take(field: Field, known: Known, row: tuple[Any, ...]) -> None:
    chunks, counted, nulls, bounded, exact, *bounds = row
    if counted == chunks:
        known.nulls = int(nulls or 0)
    if field.category or not bounded:
        return
    kind = field.type.id
    if kind in _INTEGERS:
        known.low, known.high = bounds[0:2]
    elif kind == "timestamp":
        known.low, known.high = bounds[2:4]
    elif kind == "varchar" and exact:
        known.low, known.high = bounds[4:6]


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


if __name__ == "__main__":
    reply(Question, lambda question: describe_files(question.files, question.categories))
