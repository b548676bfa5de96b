"""Runs the SQL of a feature definition in an isolated helper process and streams its rows back as Arrow batches.

A definition is written by one person and ingested by another. Its SQL therefore reads the files or the database that
the definition names and nothing else: no other file, no network, no extension, and none of the caller's environment.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from falaj.content.isolated_stream import answer_with_stream, stream_isolated
from falaj.core.errors import UserCodeFailed

BATCH_ROWS = 65_536
_MAX_ERROR_TEXT = 300
_HINT = "correct it in the definition"
_READER_BY_SUFFIX = {
    ".parquet": "read_parquet",
    ".parq": "read_parquet",
    ".pq": "read_parquet",
    ".csv": "read_csv_auto",
}
_DISABLED_SETTINGS = ("autoinstall_known_extensions", "autoload_known_extensions", "allow_community_extensions",
        "allow_persistent_secrets", "python_enable_replacements")  # fmt: skip
_LOCKING_SETTINGS = ("enable_external_access=false", "lock_configuration=true")


@dataclass(frozen=True, slots=True)
class QueryQuestion:
    """A query over files, which are the view `rows`, or over a database."""

    query: str
    files: tuple[str, ...] = ()
    database: str = ""


def query_files(query: str, files: Sequence[Path]) -> Iterator[Any]:
    """Yield the record batches of `query` over the view `rows`, which holds the rows of all files."""
    paths = tuple(str(file.absolute()) for file in files)
    return stream_isolated(__name__, QueryQuestion(query, paths), paths)


def query_database(query: str, database: Path) -> Iterator[Any]:
    """Yield the record batches of `query` over a DuckDB file, opened read-only."""
    logs = (database, database.with_name(f"{database.name}.wal"))
    question = QueryQuestion(query, database=str(database.absolute()))
    return stream_isolated(__name__, question, [str(path) for path in logs if path.exists()])


def main(_arguments: Sequence[str]) -> None:
    """Answer one question; started in a helper process."""
    answer_with_stream(QueryQuestion, run_query)


def run_query(question: QueryQuestion) -> Any:
    """Run the query in this process, which is the helper; returns a pyarrow RecordBatchReader."""
    import duckdb
    import pyarrow as pa

    try:
        answer = _open_engine(question).sql(question.query)
        if answer is None:
            raise UserCodeFailed("the query gives no rows: it is no select", _HINT)
        reader = answer.to_arrow_reader(BATCH_ROWS)
    except duckdb.Error as error:
        raise _describe_failure(error) from None

    def read_batches() -> Iterator[Any]:
        try:
            yield from reader
        except (duckdb.Error, pa.ArrowException) as error:
            raise _describe_failure(error) from None

    return pa.RecordBatchReader.from_batches(reader.schema, read_batches())


def _open_engine(question: QueryQuestion) -> Any:
    import duckdb

    config: dict[str, Any] = dict.fromkeys(_DISABLED_SETTINGS, "false")
    engine = duckdb.connect(question.database or ":memory:", read_only=bool(question.database), config=config)
    names = ", ".join("'" + path.replace("'", "''") + "'" for path in question.files)
    engine.execute("SET TimeZone = 'UTC'")
    for setting in (f"allowed_paths=[{names}]", *_LOCKING_SETTINGS):
        engine.execute(f"SET {setting}")
    if question.files:
        reader = _READER_BY_SUFFIX.get(Path(question.files[0]).suffix.lower(), "read_json_auto")
        engine.execute(f"CREATE TEMP VIEW rows AS SELECT * FROM {reader}([{names}])")  # noqa: S608  # nosec B608 - our paths
    return engine


def _describe_failure(error: Exception) -> UserCodeFailed:
    return UserCodeFailed(f"the query failed: {str(error)[:_MAX_ERROR_TEXT]}", _HINT)
