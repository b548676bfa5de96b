"""The first rows of a table file, as texts: for somebody who looks at it, read in a child as all strange tables are."""

from collections.abc import Sequence
from dataclasses import dataclass

from falaj.content.duck_engine import TableFiles, open_engine, parse_tables
from falaj.content.isolated_parser import answer_request

MAX_CELL_CHARS = 200
MAX_PREVIEW_S = 15.0
"""Seconds to parse one file for a page; a file that takes longer is not shown."""


@dataclass(frozen=True, slots=True)
class TablePreview:
    """Some rows; a cell that is null is None, and a long one is cut."""

    columns: tuple[str, ...]
    rows: tuple[tuple[str | None, ...], ...]


@dataclass(frozen=True, slots=True)
class PreviewRequest:
    """How many rows of which file."""

    files: TableFiles
    rows: int


def preview_table(files: TableFiles, rows: int) -> TablePreview:
    """The first rows, read in an isolated helper process."""
    return parse_tables(__name__, PreviewRequest(files, rows), TablePreview, files, max_seconds=MAX_PREVIEW_S)


def preview_files(request: PreviewRequest) -> TablePreview:
    """The same in this process, for those who are in a child already."""
    with open_engine(request.files) as engine:
        return engine.read(request.files, lambda relation: TablePreview(
            tuple(name for name, _ in relation.columns),
            tuple(tuple(None if cell is None else str(cell)[:MAX_CELL_CHARS] for cell in row)
                  for row in engine.select(f"* FROM {relation.scan()} LIMIT {request.rows:d}")),
        ))  # fmt: skip


def main(_arguments: Sequence[str]) -> None:
    """Answer one question; started in a helper process."""
    answer_request(PreviewRequest, preview_files)
