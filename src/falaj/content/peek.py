"""The first rows of a table file, as texts: for somebody who looks at it, read in a child as all strange tables are."""

from dataclasses import dataclass

from falaj.content.duck import TableFiles, ask, opened, reply

CELL = 200


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
    """The first rows, by a child process with limits."""
    return ask("falaj.content.peek", PeekQuestion(files, rows), Peeked)


def peek_files(question: PeekQuestion) -> Peeked:
    """The same in this process, for those who are in a child already."""
    with opened(question.files) as duck:
        return duck.read(question.files, lambda relation: Peeked(
            tuple(name for name, _ in relation.columns),
            tuple(tuple(None if cell is None else str(cell)[:CELL] for cell in row)
                  for row in duck.select(f"* FROM {relation.scan()} LIMIT {question.rows:d}")),
        ))  # fmt: skip


if __name__ == "__main__":
    reply(PeekQuestion, peek_files)
