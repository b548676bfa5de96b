"""Finds the rows of one person in a Parquet file, in an isolated helper process: the file is untrusted."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from falaj.content.isolated_stream import answer_with_stream, stream_isolated
from falaj.core.errors import Invalid


@dataclass(frozen=True, slots=True)
class PersonQuestion:
    """Whose rows, in which file, by which of its columns."""

    path: str
    columns: tuple[str, ...]
    subject: str


def find_rows(file: Path, columns: Sequence[str], subject: str) -> Iterator[Any]:
    """Yield record batches of the rows in which one of `columns` holds `subject`."""
    return stream_isolated(__name__, PersonQuestion(str(file.absolute()), tuple(columns), subject), [str(file)])


def main(_arguments: Sequence[str]) -> None:
    """Answer one question; started in a helper process."""
    answer_with_stream(PersonQuestion, read_rows)


def read_rows(question: PersonQuestion) -> Any:
    """Read the rows in this process, which is the helper; returns a pyarrow RecordBatchReader."""
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    try:
        table = pq.read_table(question.path)
        mask = None
        for name in (name for name in question.columns if name in table.schema.names):
            equal = pc.equal(table[name].cast("string"), question.subject)
            mask = equal if mask is None else pc.or_kleene(mask, equal)
        return (table.filter(mask) if mask is not None else table.slice(0, 0)).to_reader()
    except (pa.ArrowException, OSError) as error:
        raise Invalid(f"its Parquet file cannot be read: {type(error).__name__}", "write it again") from error
