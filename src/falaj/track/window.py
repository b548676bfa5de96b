"""A window of the table of runs: some of its rows, some of its columns. Pure."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from falaj.track.records import RunCells, RunTable, Window
from falaj.track.where import Column, write_column

if TYPE_CHECKING:
    from falaj.track.board import Row

FIRST = ("status", "start_time", "user_id")
"""What every run has and everybody looks at; its name stands in every row."""
_OURS = "mlflow."
_FAMILIES = ("params", "metrics", "tags")


def keys_of(rows: Sequence["Row"]) -> tuple[Column, ...]:
    """Every column that any of these runs has something in, in a lasting order; what clients note for themselves is
    none."""
    found: list[Column] = [("attributes", name) for name in FIRST]
    for family in _FAMILIES:
        keys = set[str]().union(*[getattr(row, family) for row in rows])
        found += [(family, key) for key in sorted(keys) if family != "tags" or not key.startswith(_OURS)]
    return tuple(found)


def window_of(rows: Sequence["Row"], columns: Sequence[Column], window: Window) -> RunTable:
    """What stands in a window."""
    if window.find:
        wanted = window.find.casefold()
        columns = [column for column in columns if wanted in write_column(column).casefold()]
    across = columns[window.left : window.left + window.width]
    down = rows[window.first : window.first + window.rows]
    return RunTable(
        tuple([write_column(column) for column in across]),
        tuple([_cells(row, across) for row in down]),
        window.first, window.left, len(rows), len(columns),
    )  # fmt: skip


def _cells(row: "Row", columns: Sequence[Column]) -> RunCells:
    tables = {"attributes": row.attributes, "params": row.params, "metrics": row.metrics, "tags": row.tags}
    values = tuple([_plain(tables[family].get(key)) for family, key in columns])
    return RunCells(row.record.ref.bare, row.attributes["run_name"], values)


def _plain(value: Any) -> float | str | None:
    """JSON knows no NaN and no infinity: those are words."""
    if isinstance(value, str) and len(value) > 200:
        return value[:199] + "\u2026"
    return repr(value) if isinstance(value, float) and not math.isfinite(value) else value
