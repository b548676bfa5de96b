"""What is known of a table: its columns, its rows, and how much of them may be told."""

from typing import ClassVar

from falaj.core.data import dataclass


@dataclass(frozen=True, slots=True)
class TableColumn:
    """One column of a table. What would show values is left out where the column is personal or sensitive."""

    STRUCTURE: ClassVar = ("name", "type", "nulls", "distinct", "category")

    name: str
    type: str
    """Empty where the column was declared for an earlier version and is not in this one."""
    nulls: int = 0
    distinct: int | None = None
    low: str = ""
    high: str = ""
    mean: float | None = None
    category: str = ""
    """personal, sensitive, or nothing."""


@dataclass(frozen=True, slots=True)
class TableDescription:
    """What is known of the rows in a tree."""

    STRUCTURE: ClassVar = ("rows", "columns", "format", "files")

    rows: int | None
    """None when the files cannot be read as one table, and all that is known is what was declared before."""
    columns: tuple[TableColumn, ...]
    format: str = "parquet"
    files: int = 1
    source: str = ""
    """Where it was pinned, for example `delta:12` or `iceberg:8744…`."""
