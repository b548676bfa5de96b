"""A window of the table of runs: some of its rows, some of its columns. Pure."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from falaj.track.records import RunCells, RunTable, TableWindow
from falaj.track.search_language import TableColumn, format_column

if TYPE_CHECKING:
    from falaj.track.run_index import RunRow

FIRST_COLUMNS = ("status", "start_time", "user_id")
"""What every run has and everybody looks at; its name stands in every row."""
_MLFLOW_PREFIX = "mlflow."
_COLUMN_FAMILIES = ("params", "metrics", "tags")


def list_table_columns(rows: Sequence["RunRow"]) -> tuple[TableColumn, ...]:
    """Every column that any of these runs has something in, in a lasting order; what clients note for themselves is
    none."""
    columns: list[TableColumn] = [("attributes", name) for name in FIRST_COLUMNS]
    for family in _COLUMN_FAMILIES:
        keys = set[str]().union(*[getattr(row, family) for row in rows])
        columns += [(family, key) for key in sorted(keys) if family != "tags" or not key.startswith(_MLFLOW_PREFIX)]
    return tuple(columns)


def read_window(rows: Sequence["RunRow"], columns: Sequence[TableColumn], window: TableWindow) -> RunTable:
    """What stands in a window."""
    if window.find:
        searched_text = window.find.casefold()
        columns = [column for column in columns if searched_text in format_column(column).casefold()]
    shown_columns = columns[window.left : window.left + window.width]
    shown_rows = rows[window.first : window.first + window.rows]
    return RunTable(
        tuple([format_column(column) for column in shown_columns]),
        tuple([_build_cells(row, shown_columns) for row in shown_rows]),
        window.first, window.left, len(rows), len(columns),
    )  # fmt: skip


def _build_cells(row: "RunRow", columns: Sequence[TableColumn]) -> RunCells:
    values_by_family = {"attributes": row.attributes, "params": row.params, "metrics": row.metrics, "tags": row.tags}
    values = tuple([_to_cell_value(values_by_family[family].get(key)) for family, key in columns])
    return RunCells(row.record.ref.bare, row.attributes["run_name"], values)


def _to_cell_value(value: Any) -> float | str | None:
    """JSON knows no NaN and no infinity: those are words."""
    if isinstance(value, str) and len(value) > 200:
        return value[:199] + "\u2026"
    return repr(value) if isinstance(value, float) and not math.isfinite(value) else value
