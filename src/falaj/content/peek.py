"""The first rows of a table file, as texts: for somebody who looks at it, read in a child as all strange tables are."""

from collections.abc import Sequence
from dataclasses import dataclass

from falaj.content.duck import TableFiles, opened, parse_tables
from falaj.content.isolated_parser import answer_question

CELL = 200
LIMIT_S = 15.0
"""Seconds to parse one file for a page; a file that takes longer is not shown."""


@dataclass(frozen=True, slots=True)
class Peeked:
    """Some rows; a cell that is null is None, and a long one is cut."""

    columns: tuple[str, ...]
    rows: tuple[tuple[str | None, ...], ...]


@dataclass(frozen=True, slots=True)
class PeekQuestion:
    """How many rows of which file."""

    files: TableFiles
    rows: int


def peek(files: TableFiles, rows: int) -> Peeked:
    """The first rows, read in an isolated helper process."""
    return parse_tables(__name__, PeekQuestion(files, rows), Peeked, files, seconds=LIMIT_S)


def peek_files(question: PeekQuestion) -> Peeked:
    """The same in this process, for those who are in a child already."""
    with opened(question.files) as duck:
        return duck.read(question.files, lambda relation: Peeked(
            tuple(name for name, _ in relation.columns),
            tuple(tuple(None if cell is None else str(cell)[:CELL] for cell in row)
                  for row in duck.select(f"* FROM {relation.scan()} LIMIT {question.rows:d}")),
        ))  # fmt: skip


def main(_arguments: Sequence[str]) -> None:
    """Answer one question; started in a helper process."""
    answer_question(PeekQuestion, peek_files)
